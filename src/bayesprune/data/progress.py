"""Progress of a download: a bar on a terminal, one line per file elsewhere."""

import sys
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress


class ProgressBar(Protocol):
    """What pooch asks of a progress bar, and `abandon` for a download that failed."""

    total: int

    def update(self, count: int) -> None:
        """Count `count` more bytes."""
        ...

    def reset(self) -> None:
        """Start again from 0 bytes."""
        ...

    def close(self) -> None:
        """The download is complete."""
        ...

    def abandon(self) -> None:
        """The download has ended, complete or not; harmless after `close`."""
        ...


class PlainLines:
    """One line when a file is complete: right for log files, where a moving bar is a mess."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self.total = 0
        self._name = name
        self._stream = stream

    def update(self, count: int) -> None:
        pass

    def reset(self) -> None:
        pass

    def close(self) -> None:
        size = f"{self.total / 1e6:.1f} MB" if self.total >= 1e6 else f"{self.total / 1e3:.1f} kB"
        self._stream.write(f"downloaded {self._name}, {size}\n")

    def abandon(self) -> None:
        pass


class RichBar:
    """A moving bar with speed and remaining time, drawn by rich."""

    def __init__(self, name: str, progress: "Progress") -> None:
        self._progress = progress
        self._task = progress.add_task(name, total=None)
        progress.start()

    @property
    def total(self) -> int:
        """The size of the file in bytes, 0 where the server does not say."""
        return int(self._progress.tasks[self._task].total or 0)

    @total.setter
    def total(self, size: int) -> None:
        self._progress.update(self._task, total=size or None)

    def update(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop()

    def abandon(self) -> None:
        self._progress.stop()


def progress_bar(name: str, stream: TextIO | None = None) -> ProgressBar:
    """Return a progress bar for the file `name`: a moving one on a terminal with rich, else plain lines."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        return PlainLines(name, stream)
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as Speed
    except ImportError:
        return PlainLines(name, stream)
    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), DownloadColumn(), Speed(), TimeRemainingColumn())
    return RichBar(name, Progress(*columns, console=Console(file=stream)))
