"""ROW/JOB.json and JOB.safetensors, the network, of every finished job: safe against other processes."""

import enum
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesprune.reproduce.jobs import Job
from bayesprune.runs import RunError
from bayesprune.runs.atomic import write_atomically
from bayesprune.runs.lock import FolderLock
from bayesprune.runs.plain_json import read_json, to_json

# What every row has; those of a job that failed have None for figures.
FIGURES = ("accuracy", "nonzero_fraction", "dense_fraction", "macs_removed", "structure", "bytes", "regularity")
KEYS = ("row", "model", "data", "method", "seed", "epochs", "epochs_scale", "settings", "status", *FIGURES)
FAILED = "failed"  # how the status of such a row begins
NETWORK = ".safetensors"
NO_NETWORK = "no network kept"


class ClaimedError(RunError):
    """A job that cannot be claimed: another process is at it, or the disk has no locks."""


class State(enum.Enum):
    """How far a job is."""

    MISSING = "to do"
    FINISHED = "finished"
    FAILED = "failed before"
    STALE = "stale"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Standing:
    """The state of a job, why it is not simply finished, and whether its row is there without its network."""

    state: State
    reason: str = ""
    lacks_network: bool = False

    def must_run(self, *, again: bool = False, keep_stale: bool = False, again_without_network: bool = False) -> bool:
        """Whether there is work.

        New jobs always, stale ones unless they are kept, failed and damaged ones `again`, finished ones without a
        network `again_without_network`.
        """
        if self.state is State.STALE:
            return not keep_stale
        if self.lacks_network:
            return again_without_network
        return self.state is State.MISSING or (again and self.state is not State.FINISHED)


class RowFiles:
    """The folder of results: rows/NAME/*.json, and NAME.json, NAME.md, NAME.png made of them.

    The network of rows/NAME/JOB.json is rows/NAME/JOB.safetensors; it is there before the row is.

    NAME is that of the row, or for trials with fewer epochs ROW-trial-SCALE, so that they are never taken for results.
    identity: keys that its rows have beside KEYS.
    """

    def __init__(self, output: Path, row: str, epochs_scale: float = 1.0, *, identity: tuple[str, ...] = ()) -> None:
        self.output = output
        self.name = name_of(row, epochs_scale)
        self.folder = output / "rows" / self.name
        self._keys = (*KEYS, *identity)

    def path(self, job: Job) -> Path:
        """The file of a job."""
        return self.folder / f"{job.name}.json"

    def network(self, job: Job) -> Path:
        """The file of the network that a job has made."""
        return self.path(job).with_suffix(NETWORK)

    def state(self, job: Job) -> Path:
        """The file of the state of a job that was stopped on the way."""
        return self.folder / f".{job.name}.state{NETWORK}"

    def standing(self, job: Job) -> Standing:
        """How far a job is, judged by its file."""
        if not self.path(job).exists():
            return Standing(State.MISSING)
        try:
            row = self.read(self.path(job))
        except RunError as error:
            return Standing(State.DAMAGED, str(error))
        if changed := differences(job, row):
            return Standing(State.STALE, changed)
        if row["status"].startswith(FAILED):
            return Standing(State.FAILED, row["status"])
        if not self.network(job).exists():
            return Standing(State.FINISHED, NO_NETWORK, lacks_network=True)
        return Standing(State.FINISHED)

    @contextmanager
    def claim(self, job: Job) -> Iterator[None]:
        """Keep other processes from the job until its row is written; ClaimedError where that cannot be.

        The kernel gives the job free when the process ends, however it ends.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f".{job.name}.lock"
        try:
            lock = FolderLock(path)
        except RunError as error:
            raise ClaimedError(str(error)) from error
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            lock.release()

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
        missing = [key for key in self._keys if key not in row]
        if missing:
            raise RunError(_damaged(path, f"lacks {', '.join(missing)}"))
        return row

    def read_all(self) -> dict[str, dict[str, Any]]:
        """The rows of all files, by the names of their jobs."""
        return {path.stem: self.read(path) for path in sorted(self.folder.glob("*.json"))}

    def marks(self) -> dict[str, int]:
        """Times of change of all files by the names of their jobs, to see whether one has come."""
        return {path.stem: path.stat().st_mtime_ns for path in sorted(self.folder.glob("*.json"))}


def name_of(row: str, epochs_scale: float) -> str:
    """Of the results of a row; trials with fewer epochs have another one."""
    return row if epochs_scale == 1 else f"{row}-trial-{epochs_scale:g}"


def _damaged(path: Path, reason: str) -> str:
    return f"{path} is damaged ({reason}); run its job once more with --again, or remove the file"


def differences(job: Job, row: dict[str, Any]) -> str:
    """What is other in a row than the job asks for; empty where nothing is."""
    expected = json.loads(json.dumps(job.settings.as_dict()))
    usual = type(job.settings)().as_dict()  # of settings that are newer than the row
    found = usual | row["settings"]
    pairs = {key: (found.get(key), expected.get(key)) for key in sorted(found.keys() | expected.keys())}
    pairs |= {
        "model": (row["model"], job.row.model),
        "data": (row["data"], job.row.data),
        "epochs_scale": (row["epochs_scale"], job.epochs_scale),
        "revision": (row.get("revision", 1), job.revision),
    }
    return ", ".join(f"{key} {old} instead of {new}" for key, (old, new) in pairs.items() if old != new)
