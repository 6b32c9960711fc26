"""Progress over all jobs of a command."""

from collections.abc import Callable
from typing import Any

from bayesprune.reproduce.jobs import Job
from bayesprune.runs import Display, Interrupts


class Progress:
    """What the jobs report goes to one display that counts the epochs of all of them."""

    def __init__(self, display: Display, interrupts: Interrupts, job: Job, number: int, jobs: int) -> None:
        self._display, self._interrupts = display, interrupts
        self._label = f"{number}/{jobs} {job.name}"

    def row(self, row: dict[str, Any]) -> None:
        shown = {k: v for k, v in row.items() if k not in ("epoch", "epochs", "seconds", "structure")}
        self._display.row(shown | {"phase": f"{self._label}: {row['phase']}"})

    def step(self, done: int, total: int) -> None:
        self._display.step(done, total)

    def checkpoint(self, state: Callable[[], dict[str, Any]], *, must: bool = False) -> None:
        """Nothing: a job is short, and begins anew when it was stopped."""

    def note(self, text: str) -> None:
        self._display.note(f"{self._label}: {text}")

    def should_stop(self) -> bool:
        return bool(self._interrupts.requested)
