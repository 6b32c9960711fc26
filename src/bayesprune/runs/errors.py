"""The exceptions and the warning of the runs package."""


class RunError(ValueError):
    """A run folder cannot be used as asked; the message says which file, why, and what to do."""


class DamagedCheckpointError(RunError):
    """A checkpoint is not what was written: cut off, overwritten or changed."""


class RunWarning(UserWarning):
    """Something in a run folder was not right, and the run goes on without it."""
