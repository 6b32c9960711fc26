"""The rows of a run, one JSON object per line; only the end of the file can be torn, and it is cut off."""

import json
import os
from pathlib import Path
from typing import Any

from bayesprune.runs.atomic import write_all
from bayesprune.runs.errors import RunError
from bayesprune.runs.plain_json import to_json


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add a row; where that fails, the file is as before."""
    line = to_json(row, path).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, line)
        except BaseException:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows without a torn end; a missing file has none."""
    return _parse(_complete_lines(path), path)


def count_rows(path: Path) -> int:
    """How many rows there are, without a torn end."""
    return len(_complete_lines(path))


def cut_rows(path: Path, rows: int | None = None) -> None:
    """Keep the first `rows` rows, or all but a torn end.

    Shortening a file needs no space on the disk, and a killed process leaves it as before or shortened.
    """
    lines = _complete_lines(path)
    if rows is not None:
        if not 0 <= rows <= len(lines):
            raise RunError(
                f"{path} has {len(lines)} rows, the checkpoint knows {rows}; put the complete file back, or start "
                "again with another --name"
            )
        lines = lines[:rows]
        _parse(lines, path)
    size = sum(map(len, lines))
    if not path.exists() or path.stat().st_size == size:
        return
    sync_rows(path, size)


def sync_rows(path: Path, size: int | None = None) -> None:
    """Make the rows survive a loss of power, after cutting the file to `size` bytes where that is given."""
    if not path.exists():
        return
    descriptor = os.open(path, os.O_WRONLY)
    try:
        if size is not None:
            os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _complete_lines(path: Path) -> list[bytes]:
    """The lines up to the last one that is a row."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    while lines and not _is_row(lines[-1]):
        lines.pop()
    return lines


def _is_row(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _parse(lines: list[bytes], path: Path) -> list[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not _is_row(line):
            raise RunError(f"{path}, line {number}: not a JSON object; put the file back as the run wrote it")
    return [json.loads(line) for line in lines]
