"""The exceptions and the warning of the artefact package."""


class ArtefactError(ValueError):
    """A file is not an artefact that can be used, or a network cannot be put into one; the message says why."""


class TooSparseError(ArtefactError):
    """Packed, a network would be so small that no reader could tell it from one that asks for too much memory."""


class ArtefactWarning(UserWarning):
    """The file is complete, but holds less than it could."""


class UnlistedError(Exception):
    """Something in a network is not in the closed list, so its architecture cannot be data."""
