"""All rows of a row of Table II in one JSON file, a Markdown file and a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayesprune.reproduce.comparing import with_drops
from bayesprune.reproduce.figure import draw
from bayesprune.reproduce.jobs import Row
from bayesprune.reproduce.markdown import markdown
from bayesprune.reproduce.row_files import RowFiles
from bayesprune.runs import RunError
from bayesprune.runs.atomic import write_atomically
from bayesprune.runs.plain_json import to_json


def merge(row: Row, files: RowFiles, *, epochs_scale: float = 1.0) -> list[Path]:
    """Write NAME.json, NAME.md and NAME.png from the row files; returns what was written.

    Without matplotlib there is no picture.  Raises RunError where no row is finished, or a file is damaged.
    """
    while True:
        marks = files.marks()
        rows = with_drops(files.read_all())
        if not rows:
            raise RunError(f"{files.folder} holds no finished row yet; run without --merge first")
        written = _write(row, files, rows, epochs_scale)
        if files.marks() == marks:
            return written
        # Another process has finished a row: its merge may have been before this one, so this one must know it.


def _write(row: Row, files: RowFiles, rows: Sequence[dict[str, Any]], epochs_scale: float) -> list[Path]:
    table, text, picture = (files.output / f"{files.name}.{ending}" for ending in ("json", "md", "png"))
    content = "[\n" + ",\n".join(to_json(one, table) for one in rows) + "\n]\n"
    write_atomically(table, [content.encode()])
    write_atomically(text, [markdown(row, rows, epochs_scale=epochs_scale).encode()])
    try:
        draw(row, rows, picture, epochs_scale=epochs_scale)
    except ImportError:
        return [table, text]
    return [table, text, picture]
