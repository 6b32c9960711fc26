"""The exception of the storage package."""


class StorageError(ValueError):
    """Bytes are not what `pack` writes; the message says why."""
