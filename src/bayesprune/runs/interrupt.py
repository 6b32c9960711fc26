"""Ctrl-C and SIGTERM as a flag: the loop saves and stops at the next point where that is safe."""

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

SAME_KEYSTROKE = 0.5  # seconds; torchrun passes on the Ctrl-C that the terminal has sent to everybody already


class Interrupts:
    """Within the `with` block SIGINT and SIGTERM set `requested`; a second Ctrl-C raises KeyboardInterrupt.

    A signal that is ignored (nohup, shell background jobs) stays ignored.  Outside the main thread, where Python allows
    no handlers, nothing happens.
    """

    def __init__(self) -> None:
        self.requested = False
        self.signal: signal.Signals | None = None  # the one that came first
        self._since = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                # None: a handler that is not Python's, which could not be put back.
                if before is not None and before != signal.SIG_IGN:
                    self._before[number] = before
                    signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._before:
            number, before = self._before.popitem()
            signal.signal(number, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.requested:
            self.requested, self.signal, self._since = True, signal.Signals(number), now
        elif number == signal.SIGINT and now - self._since > SAME_KEYSTROKE:
            raise KeyboardInterrupt
