"""A file that gets its name only after it was checked."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from bayesprune.export.report import ExportError
from bayesprune.runs.atomic import Buffer, sync_folder, temporary_name, write_new

Result = TypeVar("Result")


def write_verified(path: Path, chunks: Sequence[Buffer], verify: Callable[[Path], Result]) -> Result:
    """Write `chunks` beside `path`, call `verify` on that file, then rename it to `path`.

    Whatever fails, nothing is left over and the file that was at `path` stays.
    """
    if not path.parent.is_dir():
        raise ExportError(f"the folder {path.parent} does not exist; make it first or choose another one")
    if path.is_dir():
        raise ExportError(f"{path} is a folder; give the name of a file")
    fresh = temporary_name(path)
    try:
        write_new(fresh, chunks)
        result = verify(fresh)
        fresh.replace(path)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
    sync_folder(path.parent)
    return result
