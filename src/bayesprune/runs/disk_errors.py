"""What the operating system says about a file, in words that tell a person what to do."""

import contextlib
import errno
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from bayesprune.runs.errors import RunError

FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError about reading `path` into a RunError."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot read {path}: {_reason(error)}; check the path and who owns it") from error


@contextlib.contextmanager
def starting(path: Path) -> Iterator[None]:
    """Turn an OSError about writing `path` into a RunError: there is no run yet."""
    with _writing(path, "nothing was started; free some space and start again"):
        yield


@contextlib.contextmanager
def continuing(path: Path, folder: Path) -> Iterator[None]:
    """Turn an OSError about writing `path` into a RunError that says how to resume the run in `folder`."""
    kept = "nothing was lost, the run is complete up to its last checkpoint"
    with _writing(path, f"{kept}; free some space and continue with: {resume_command(folder)}"):
        yield


def resume_command(folder: Path) -> str:
    """What to type to continue the run in `folder`."""
    return f"bayesprune compress --resume {shlex.quote(str(folder))}"


@contextlib.contextmanager
def _writing(path: Path, when_full: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            message = f"{FULL[error.errno]} ({_free_space(path)}); {when_full}"
        elif error.errno in FORBIDDEN:
            message = f"{_reason(error)}; check who owns it and how the disk is mounted, or choose another folder"
        else:
            message = f"{_reason(error)}; check the folder and its disk"
        raise RunError(f"cannot write {path}: {message}") from error


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _free_space(path: Path) -> str:
    try:
        return f"{shutil.disk_usage(path.parent).free / 1e6:.1f} MB free"
    except OSError:
        return "free space unknown"
