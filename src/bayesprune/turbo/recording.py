"""A compression that leaves its traces in a run folder and on the screen."""

import time
from collections.abc import Callable
from typing import Any

from bayesprune.runs import Display, Interrupts, Messages, RunFolder

LARGEST_SHARE = 0.05  # of the time that saving checkpoints may take


class FolderRecorder:
    """Rows go to the history and the display, states to the checkpoints, messages to their folder.

    run: None in processes that do not write.
    A checkpoint is written after every epoch, or less often where writing would take more than a twentieth of the time.
    """

    def __init__(self, run: RunFolder | None, display: Display, interrupts: Interrupts) -> None:
        self._run, self._display, self._interrupts = run, display, interrupts
        self._not_before = 0.0

    def row(self, row: dict[str, Any]) -> None:
        if self._run is not None:
            self._run.append(row)
            shown = {k: v for k, v in row.items() if k not in ("epochs", "seconds")}
            self._display.row(shown | {"epoch": self._run.rows})

    def step(self, done: int, total: int) -> None:
        self._display.step(done, total)

    def messages(self, messages: Callable[[], Messages]) -> None:
        if self._run is not None:
            self._run.write_messages(messages())

    def note(self, text: str) -> None:
        self._display.note(text)

    def checkpoint(self, state: Callable[[], dict[str, Any]], *, must: bool = False) -> None:
        started = time.monotonic()
        if self._run is None:
            return
        if not must and not self.should_stop() and started < self._not_before:
            return
        self._run.save_checkpoint(state())
        took = time.monotonic() - started
        self._not_before = started + took / LARGEST_SHARE

    def should_stop(self) -> bool:
        return bool(self._interrupts.requested)
