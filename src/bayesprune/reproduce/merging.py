"""All rows of a study in one JSON file, a Markdown file and a picture."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayesprune.reproduce.jobs import Job
from bayesprune.reproduce.row_files import RowFiles, differences
from bayesprune.runs import RunError
from bayesprune.runs.atomic import write_atomically
from bayesprune.runs.plain_json import to_json

GONE = "the present configuration has no such job"
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Report:
    """What is made of rows.  text: Markdown.  draw: writes a picture.  complete: adds what needs the other rows."""

    text: Callable[[Rows], str]
    draw: Callable[[Rows, Path], None]
    complete: Callable[[Rows], Rows] = field(default=list)


@dataclass(frozen=True)
class Merged:
    """The files that were written, and by name the rows that are stale, with the reason."""

    written: list[Path]
    stale: dict[str, str]


def merge(
    report: Report,
    files: RowFiles,
    *,
    expected: Callable[[Rows], Iterable[Job]] | None = None,
    keep_stale: bool = False,
) -> Merged:
    """Write NAME.json, NAME.md and NAME.png from the row files.

    expected: the jobs that the present configuration has for these rows; rows with other settings, or without a job,
    are stale and left out, or with `keep_stale` marked.  None: every row is taken as it is.
    Without matplotlib there is no picture.  Raises RunError where no row is left, or a file is damaged.
    """
    while True:
        marks = files.marks()
        rows = files.read_all()
        if not rows:
            raise RunError(f"{files.folder} holds no finished row yet; run without --merge first")
        stale: dict[str, str] = {}
        if expected is not None:
            stale = _judge(rows, {job.name: job for job in expected(list(rows.values()))})
        kept = [
            row | ({"stale": stale[name]} if name in stale else {})
            for name, row in rows.items()
            if keep_stale or name not in stale
        ]
        if not kept:
            raise RunError(
                f"all rows in {files.folder} are stale ({', '.join(stale)}): their settings are not those of the "
                "present configuration; run without --merge first, or keep them with --keep-stale"
            )
        written = _write(report, files, report.complete(kept))
        if files.marks() == marks:
            return Merged(written, stale)
        # Another process has finished a row: its merge may have been before this one, so this one must know it.


def seeds_of(rows: Rows) -> list[int]:
    """The seeds of rows."""
    return sorted({row["seed"] for row in rows})


def _judge(rows: dict[str, dict[str, Any]], jobs: Mapping[str, Job]) -> dict[str, str]:
    """Which rows are stale, and why; the others get what their job says about them now."""
    stale = {}
    for name, row in rows.items():
        job = jobs.get(name)
        if reason := GONE if job is None else differences(job, row):
            stale[name] = reason
        elif job is not None:
            row.update(job.identity)
    return stale


def _write(report: Report, files: RowFiles, rows: Rows) -> list[Path]:
    table, text, picture = (files.output / f"{files.name}.{ending}" for ending in ("json", "md", "png"))
    content = "[\n" + ",\n".join(to_json(one, table) for one in rows) + "\n]\n"
    write_atomically(table, [content.encode()])
    write_atomically(text, [report.text(rows).encode()])
    try:
        report.draw(rows, picture)
    except ImportError:
        return [table, text]
    return [table, text, picture]
