"""What is measured already of a study that was stopped: a file for every way to run its networks."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesprune import runtime
from bayesprune.latency import Row as TimedRow
from bayesprune.latency.candidates import Kind
from bayesprune.reproduce.acceleration.kept import digest
from bayesprune.runs import RunError
from bayesprune.runs.atomic import write_atomically
from bayesprune.runs.plain_json import read_json, to_json


@dataclass(frozen=True)
class Way:
    """The rows of one way to run the networks, and under which circumstances they were timed."""

    rows: tuple[TimedRow, ...]
    settings: dict[str, Any]
    hardware: dict[str, Any]
    versions: dict[str, str]


@dataclass(frozen=True)
class Parts:
    """The folder of the ways that are measured.

    asked: what the times depend on: networks, numbers, machine, versions.  A way that was asked for otherwise is
    measured again, and so is one in which a network failed: memory may be free by then.  folder: None keeps nothing.
    """

    folder: Path | None
    asked: dict[str, Any]

    def kept(self, kind: Kind) -> Way | None:
        """What was measured in a way, if it was."""
        if self.folder is None:
            return None
        try:
            found = read_json(self.folder / _file_name(kind))
            if found["asked"] != self.asked:
                return None
            rows = tuple(TimedRow.from_dict(row) for row in found["rows"])
            return Way(rows, found["settings"], found["hardware"], found["versions"])
        except (OSError, RunError, KeyError, TypeError):  # not there, or damaged: it is measured again
            return None

    def keep(self, kind: Kind, way: Way) -> None:
        """Write what was measured in a way."""
        if self.folder is None or any(row.error for row in way.rows):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / _file_name(kind)
        content = {
            "asked": self.asked,
            "rows": [row.as_dict() for row in way.rows],
            "settings": way.settings,
            "hardware": way.hardware,
            "versions": way.versions,
        }
        write_atomically(path, [to_json(content, path).encode()])


def _file_name(kind: Kind) -> str:
    return f"{str(kind).replace(' ', '-')}.json"


def remove_parts(folder: Path) -> None:
    """Once all of them are in a result."""
    shutil.rmtree(folder, ignore_errors=True)


def engine_digest() -> str:
    """Of the sources of our own runtimes, which may change while the version does not."""
    folder = Path(runtime.__file__).parent
    return digest(*sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".c", ".h")))
