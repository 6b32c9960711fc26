"""The one exception of the data package."""


class DataError(ValueError):
    """A data set is missing, damaged or asked for in a way that cannot work; the message says what to do."""
