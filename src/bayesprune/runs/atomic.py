"""Write a file so that its name always holds something complete: temporary file, fsync, rename, fsync of the folder."""

import contextlib
import errno
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

Buffer = bytes | memoryview

NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}


def write_atomically(path: Path, chunks: Sequence[Buffer], keep: Path | None = None) -> None:
    """Put `chunks` into the file `path`; on any failure (OSError) the file that was there before stays.

    Args:
        path: the file to write.
        chunks: its content, in pieces.
        keep: a second name, in the same folder, for the file that was there before.
    """
    fresh = temporary_name(path)
    try:
        write_new(fresh, chunks)
        if keep is not None:
            _keep(path, keep)
        os.replace(fresh, path)  # noqa: PTH105 - the tests count the calls of os
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_new(path: Path, chunks: Sequence[Buffer]) -> None:
    """Put `chunks` into a file that is not there yet, down to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for chunk in chunks:
            write_all(descriptor, chunk)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: Buffer) -> None:
    """Write every byte of `data`: one call of os.write may stop early, on a disk that is nearly full."""
    rest = memoryview(data).cast("B") if len(data) else memoryview(b"")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a loss of power, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def temporary_name(path: Path) -> Path:
    """A name beside `path` that nobody else uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def remove_temporary_files(path: Path) -> None:
    """Remove what killed processes left of writing `path`; nobody may be writing it now."""
    for stale in path.parent.glob(f".{path.name}.*.tmp"):
        with contextlib.suppress(OSError):
            stale.unlink()


def _keep(path: Path, keep: Path) -> None:
    """Give the file `path`, if there is one, the name `keep` too, so that `path` is never missing."""
    link = temporary_name(keep)
    try:
        os.link(path, link)
        os.replace(link, keep)  # noqa: PTH105
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        os.replace(path, keep)  # noqa: PTH105
    finally:
        # Renaming one of two names of the same file does nothing and leaves both.
        with contextlib.suppress(OSError):
            link.unlink(missing_ok=True)
