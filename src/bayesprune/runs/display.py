"""One display for long work: a live one on a terminal, one line per row elsewhere."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TextIO

from bayesprune.runs.row_format import describe, duration

if TYPE_CHECKING:
    from rich.console import RenderableType

REDRAW = 0.2  # seconds between two pictures; one takes about 2 ms
WINDOW = 5  # epochs that the time left is judged by: phases differ in speed


class TimeLeft:
    """How long the rest takes, by the pace of the last few epochs."""

    def __init__(self, total: float, start: float, clock: Callable[[], float]) -> None:
        self._total = total
        self._clock = clock
        self._marks = deque([(clock(), start)], maxlen=WINDOW + 1)

    def mark(self, done: float) -> None:
        """An epoch has ended, the `done`-th."""
        self._marks.append((self._clock(), done))

    def seconds(self, done: float) -> float | None:
        """Seconds until all epochs are done, when `done` are now; None while there is nothing to judge by."""
        then, before = self._marks[0]
        passed = self._clock() - then
        if done >= self._total:
            return 0.0
        return (self._total - done) * passed / (done - before) if done > before and passed > 0 else None


class View(Protocol):
    """Where a display draws."""

    def draw(self, display: "Display", ended: bool) -> None:
        """Show the state; `ended`: an epoch has just ended."""
        ...

    def say(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class Display:
    """Shows phase, epoch, figures and time left of a long run.

    with Display(60) as display:
        display.phase("training")
        ...
        display.step(batch, batches)
        ...
        display.row({"loss": 0.21, "validation_accuracy": 0.912, "structure": [6, 16, 120, 84]})

    Output that fails (a closed pipe) ends the display, never the run.
    """

    def __init__(
        self,
        total_epochs: int,
        stream: TextIO | None = None,
        quiet: bool = False,
        *,
        start_epoch: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        total_epochs: how many epochs all phases have together.
        stream: where to write; by default stdout.
        quiet: show nothing.
        start_epoch: how many are done already, in a run that is resumed.
        clock: seconds, from any start.
        """
        self.total_epochs = total_epochs
        self.epoch = start_epoch  # how many are done
        self.part = 0.0  # of the current epoch that is done
        self.phase_name = ""
        self.figures: list[tuple[str, str]] = []  # of the last row
        self._stream = stream
        self._quiet = quiet
        self._clock = clock
        self._time_left = TimeLeft(total_epochs, start_epoch, clock)
        self._view: View | None = None
        self._next_picture = float("inf")

    def phase(self, name: str) -> None:
        """A new phase begins."""
        if name != self.phase_name:
            self.phase_name = name
            self._draw()

    def step(self, done: int, total: int) -> None:
        """`done` of `total` batches of the current epoch are done.  Cheap: call it after every batch."""
        if self._clock() >= self._next_picture:
            self.part = done / total if total else 0.0
            self._draw()

    def row(self, row: Mapping[str, Any]) -> None:
        """An epoch has ended with these figures; `epoch` counts from 1, and is counted here where it is missing."""
        epoch = row.get("epoch")
        self.epoch = epoch if isinstance(epoch, int) else self.epoch + 1
        self.part = 0.0
        self._time_left.mark(self.epoch)
        self.phase_name = str(row.get("phase", self.phase_name))
        self.figures = describe({key: value for key, value in row.items() if key not in ("epoch", "phase")})
        self._draw(ended=True)

    def note(self, text: str) -> None:
        """Something a person should know, on a line of its own."""
        if self._view is not None:
            self._try(lambda view: view.say(text))

    @property
    def seconds_left(self) -> float | None:
        """Estimated time until the end, None while unknown."""
        return self._time_left.seconds(self.epoch + self.part)

    @property
    def progress(self) -> str:
        """The epoch that is running or has just ended, of how many."""
        current = self.epoch if not self.part else self.epoch + 1
        return f"{min(current, self.total_epochs)}/{self.total_epochs}"

    def __enter__(self) -> Self:
        if not self._quiet:
            self._view = _view(sys.stdout if self._stream is None else self._stream)
            if isinstance(self._view, LivePanel):
                self._next_picture = self._clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._view is not None:
            self._draw()
            self._try(lambda view: view.close())
        self._view = None
        self._next_picture = float("inf")

    def _draw(self, ended: bool = False) -> None:
        if self._view is not None:
            self._try(lambda view: view.draw(self, ended))
        if self._next_picture < float("inf"):
            self._next_picture = self._clock() + REDRAW

    def _try(self, action: Callable[[View], None]) -> None:
        assert self._view is not None
        try:
            action(self._view)
        except OSError:
            self._view = None
            self._next_picture = float("inf")


class PlainLines:
    """One line per row, its columns below each other: right for log files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._phase = ""
        self._widths: dict[str, int] = {}

    def draw(self, display: Display, ended: bool) -> None:
        if display.phase_name != self._phase:
            self._phase = display.phase_name
            self.say(f"[{self._phase}]")
        if ended:
            columns = [("epoch", display.progress), *display.figures]
            left = display.seconds_left
            if left is not None:
                columns.append(("left", duration(left)))
            self.say("  ".join(f"{label} {self._padded(label, text)}" for label, text in columns).rstrip())

    def say(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        self._stream.flush()

    def close(self) -> None:
        pass

    def _padded(self, label: str, text: str) -> str:
        self._widths[label] = max(self._widths.get(label, 0), len(text))
        return text.ljust(self._widths[label])


class LivePanel:
    """A bar and the figures of the last row, drawn in place by rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        # No thread of its own: a picture is drawn when there is something new, and a fork finds one thread.
        self._live = Live(console=Console(file=stream), auto_refresh=False)
        self._live.start()

    def draw(self, display: Display, ended: bool) -> None:
        self._live.update(self._picture(display), refresh=True)

    def say(self, text: str) -> None:
        from rich.text import Text

        self._live.console.print(Text(text))

    def close(self) -> None:
        self._live.stop()

    def _picture(self, display: Display) -> "RenderableType":
        from rich.columns import Columns
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        done = display.epoch + display.part
        share = done / display.total_epochs if display.total_epochs else 1.0
        left = display.seconds_left
        head = Table.grid(padding=(0, 2, 0, 0))
        head.add_row(
            Text(display.phase_name, style="bold"),
            Text(f"epoch {display.progress}"),
            ProgressBar(total=1.0, completed=min(share, 1.0), width=30),
            Text(f"{100 * min(share, 1.0):.0f} %"),
            Text("" if left is None else f"{duration(left)} left", style="cyan"),
        )
        figures = [Text.assemble((label, "dim"), " ", text) for label, text in display.figures]
        return Group(head, Columns(figures, padding=(0, 3)))


def _view(stream: TextIO) -> View:
    """A live panel on a terminal that can draw one, else plain lines."""
    if not stream.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return PlainLines(stream)
    try:
        return LivePanel(stream)
    except ImportError:
        return PlainLines(stream)
