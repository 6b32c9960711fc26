"""Progress over all jobs of a command, and the state of a job that is stopped on the way."""

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bayesprune.reproduce.jobs import Job
from bayesprune.runs import DamagedCheckpointError, Display, Interrupts, checkpoint

SAVING = 0.02  # share of the time that saving states may take
Resume = tuple[Mapping[str, Any], list[dict[str, Any]]]  # a state, and the history up to it


class Progress:
    """What the jobs report goes to one display that counts the epochs of all of them.

    kept: the file for the state of the job, for those that have one; it goes once the job is done.
    """

    def __init__(
        self, display: Display, interrupts: Interrupts, job: Job, number: int, jobs: int, kept: Path | None = None
    ) -> None:
        self._display, self._interrupts, self._kept = display, interrupts, kept
        self._label = f"{number}/{jobs} {job.name}"
        self._described = json.dumps(job.description, sort_keys=True)
        self._history: list[dict[str, Any]] = []
        self._not_before = 0.0

    def resume(self) -> Resume | None:
        """Where the job was when it was stopped; None where it has not begun, or was another one then."""
        if self._kept is None or not self._kept.exists():
            return None
        try:
            found = checkpoint.load(self._kept)
        except DamagedCheckpointError as error:
            self.note(f"begins anew: {error}")
            return None
        if found["job"] != self._described:
            return None
        self._history = list(found["history"])
        self._display.epoch += len(self._history)
        self.note(f"goes on after {len(self._history)} epochs")
        return found["state"], list(self._history)

    def row(self, row: dict[str, Any]) -> None:
        self._history.append(row)
        shown = {k: v for k, v in row.items() if k not in ("epoch", "epochs", "seconds", "structure")}
        self._display.row(shown | {"phase": f"{self._label}: {row['phase']}"})

    def step(self, done: int, total: int) -> None:
        self._display.step(done, total)

    def checkpoint(self, state: Callable[[], dict[str, Any]], *, must: bool = False) -> None:
        """Keep the state, for a small part of the time; a disk that cannot take it does not end the job."""
        started = time.monotonic()
        if self._kept is None or (not must and started < self._not_before):
            return
        try:
            checkpoint.save(self._kept, {"job": self._described, "history": self._history, "state": state()})
        except OSError as error:
            self.note(f"its state is not kept ({error.strerror}); stopped, it would begin anew")
            self._kept = None
        self._not_before = started + (time.monotonic() - started) / SAVING

    def done(self) -> None:
        """Remove the state: the row is written."""
        if self._kept is not None:
            with contextlib.suppress(OSError):
                self._kept.unlink(missing_ok=True)

    def note(self, text: str) -> None:
        self._display.note(f"{self._label}: {text}")

    def should_stop(self) -> bool:
        return bool(self._interrupts.requested)
