"""One process per run folder: a lock that the kernel releases when the process ends, however it ends."""

import contextlib
import os
import weakref
from importlib import import_module
from pathlib import Path
from typing import Any

from bayesprune.runs.errors import RunError


class FolderLock:
    """An exclusive lock on a file, which holds the process id for the message that the next process gets."""

    def __init__(self, path: Path) -> None:
        """Take the lock, or raise RunError at once."""
        fcntl = _import_fcntl()
        self._stream = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with self._stream:
                raise RunError(_in_use(path, self._stream.read(20))) from None
        except OSError as error:
            self._stream.close()
            raise RunError(
                f"cannot lock {path}: {error.strerror}; choose a folder on a disk with file locks"
            ) from error
        _held.add(self)
        self._note(str(os.getpid()).encode())

    @property
    def held(self) -> bool:
        """Whether this process has the lock."""
        return not self._stream.closed

    def release(self) -> None:
        """Give the lock back; harmless when it is not held."""
        if self.held:
            self._note(b"")
            self.forget()

    def forget(self) -> None:
        """Close the file.  In a forked child this leaves the parent its lock."""
        self._stream.close()

    def _note(self, text: bytes) -> None:
        # Only the message of a refused process needs it: a full disk may not keep anybody from a lock.
        with contextlib.suppress(OSError):
            os.ftruncate(self._stream.fileno(), 0)
            os.pwrite(self._stream.fileno(), text, 0)


_held: "weakref.WeakSet[FolderLock]" = weakref.WeakSet()


def _forget_in_child() -> None:
    """Let go of the parent's locks: a worker that outlives its killed parent would keep the folder locked."""
    for lock in list(_held):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def _in_use(path: Path, pid: bytes) -> str:
    if not pid.isdigit():
        return f"{path.parent} is in use by another process; wait for it to end"
    number = int(pid)
    if number == os.getpid():
        return f"{path.parent} is in use by this process ({number}) already; close it there first"
    return f"{path.parent} is in use by process {number}; wait for it to end, or stop it with: kill {number}"


def _import_fcntl() -> Any:
    try:
        return import_module("fcntl")
    except ImportError as error:
        raise RunError("a run folder needs file locks, which this system lacks; use Linux, macOS or WSL") from error
