"""One file per finished job, ROW/METHOD-PROTOCOL-SEED.json: safe against other processes that write theirs."""

import enum
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesprune.reproduce.jobs import Job
from bayesprune.runs import RunError
from bayesprune.runs.atomic import write_atomically
from bayesprune.runs.plain_json import read_json, to_json

# What every row has; those of a job that failed have None for figures.
FIGURES = ("accuracy", "nonzero_fraction", "dense_fraction", "macs_removed", "structure", "bytes", "regularity")
KEYS = ("row", "model", "data", "method", "protocol", "seed", "epochs", "epochs_scale", "settings", "status", *FIGURES)
FAILED = "failed"  # how the status of such a row begins


class State(enum.Enum):
    """How far a job is."""

    MISSING = "to do"
    FINISHED = "finished"
    FAILED = "failed before"
    OTHER_SETTINGS = "finished with other settings"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Standing:
    """The state of a job, and why it is not simply finished."""

    state: State
    reason: str = ""

    def must_run(self, again: bool) -> bool:
        """Whether there is work: new jobs always, what is there and not as it should be with `again`."""
        return self.state is State.MISSING or (again and self.state is not State.FINISHED)


class RowFiles:
    """The folder of results: rows/NAME/*.json, and NAME.json, NAME.md, NAME.png made of them.

    NAME is that of the row, or for trials with fewer epochs ROW-trial-SCALE, so that they are never taken for results.
    """

    def __init__(self, output: Path, row: str, epochs_scale: float = 1.0) -> None:
        self.output = output
        self.name = row if epochs_scale == 1 else f"{row}-trial-{epochs_scale:g}"
        self.folder = output / "rows" / self.name

    def path(self, job: Job) -> Path:
        """The file of a job."""
        return self.folder / f"{job.name}.json"

    def standing(self, job: Job) -> Standing:
        """How far a job is, judged by its file."""
        if not self.path(job).exists():
            return Standing(State.MISSING)
        try:
            row = self.read(self.path(job))
        except RunError as error:
            return Standing(State.DAMAGED, str(error))
        if changed := _differences(job, row):
            return Standing(State.OTHER_SETTINGS, changed)
        if row["status"].startswith(FAILED):
            return Standing(State.FAILED, row["status"])
        return Standing(State.FINISHED)

    def write(self, job: Job, row: dict[str, Any]) -> None:
        """Write the row of a job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(job)
        write_atomically(path, [to_json(row, path, indent=1).encode() + b"\n"])

    def read(self, path: Path) -> dict[str, Any]:
        """The row in a file, or RunError where it is none."""
        try:
            row = read_json(path)
        except RunError as error:
            reason = str(error).removeprefix(f"{path} ").partition(";")[0]
            raise RunError(_damaged(path, reason)) from error
        missing = [key for key in KEYS if key not in row]
        if missing:
            raise RunError(_damaged(path, f"lacks {', '.join(missing)}"))
        return row

    def read_all(self) -> list[dict[str, Any]]:
        """The rows of all files, by name."""
        return [self.read(path) for path in sorted(self.folder.glob("*.json"))]

    def marks(self) -> list[tuple[str, int]]:
        """Names and times of change of all files, to see whether one has come."""
        return [(path.name, path.stat().st_mtime_ns) for path in sorted(self.folder.glob("*.json"))]


def _damaged(path: Path, reason: str) -> str:
    return f"{path} is damaged ({reason}); run its job once more with --again, or remove the file"


def _differences(job: Job, row: dict[str, Any]) -> str:
    """What is other in a row than the job asks for; empty where nothing is."""
    expected = json.loads(json.dumps(job.settings.as_dict()))
    usual = type(job.settings)().as_dict()  # of settings that are newer than the row
    found = usual | row["settings"]
    pairs = {key: (found.get(key), expected.get(key)) for key in sorted(found.keys() | expected.keys())}
    pairs |= {
        "model": (row["model"], job.row.model),
        "data": (row["data"], job.row.data),
        "epochs_scale": (row["epochs_scale"], job.epochs_scale),
    }
    return ", ".join(f"{key} {old} instead of {new}" for key, (old, new) in pairs.items() if old != new)
