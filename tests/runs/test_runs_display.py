"""The display: what a person reads, on a terminal and in a log file, and how long it says it takes."""

import errno
import io
import math
import os
import pty
import re
import subprocess
import sys
import time

import pytest
import torch

from bayesprune.runs import Display
from bayesprune.runs.row_format import describe, duration, number, percent

ROW = {
    "loss": 0.213456,
    "validation_accuracy": 0.9123,
    "nonzero_fraction": 0.0114,
    "macs_fraction": 0.24,
    "structure": [6, 16, 120, 84],
    "message_change": 3.2e-4,
}
SHOWN = [
    "loss 0.2135",
    "accuracy 91.23 %",
    "nonzeros 1.14 %",
    "MACs 24.00 %",
    "structure 6-16-120-84",
    "change 3.2e-04",
]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    return Terminal()


def text_of(terminal):
    """What was drawn, without the moves of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())


def test_plain_lines_in_a_log_file():
    stream, clock = io.StringIO(), Clock()
    with Display(60, stream, clock=clock) as display:
        display.phase("warm-up")
        clock.now += 10
        display.row({"loss": 1.5})
        display.phase("training")
        display.step(3, 10)
        display.note("the message of a person")
        clock.now += 10
        display.row({**ROW, "learning_rate": 0.001, "restarts": 12345})
    lines = stream.getvalue().splitlines()
    assert lines[:4] == ["[warm-up]", "epoch 1/60  loss 1.500  left 9:50", "[training]", "the message of a person"]
    assert lines[4] == "  ".join(["epoch 2/60", *SHOWN, "learning rate 0.001", "restarts 12,345", "left 9:40"])
    assert len(lines) == 5


def test_columns_stay_below_each_other():
    stream = io.StringIO()
    with Display(10, stream, clock=Clock()) as display:
        for loss in (0.51234, 0.5, 0.49):
            display.row({"loss": loss, "accuracy": 0.9})
    places = {line.index("accuracy") for line in stream.getvalue().splitlines()}
    assert len(places) == 1


def test_time_left_from_the_steps_done():
    clock = Clock()
    display = Display(10, quiet=True, clock=clock)
    assert display.seconds_left is None
    clock.now += 5
    display.part = 0.5
    assert display.seconds_left == pytest.approx(95)  # half an epoch in 5 s, 9.5 to go
    for _ in range(4):
        clock.now += 10
        display.row({})
    assert display.seconds_left == pytest.approx(6 * 45 / 4)
    for _ in range(5):  # a faster phase: only the last five epochs count
        clock.now += 1
        display.row({})
    assert display.seconds_left == pytest.approx(1)
    display.row({})
    assert display.seconds_left == 0


def test_time_left_of_a_resumed_run():
    clock = Clock()
    display = Display(100, quiet=True, start_epoch=90, clock=clock)
    clock.now += 7
    display.row({"epoch": 91})
    assert display.epoch == 91
    assert display.seconds_left == pytest.approx(63)


def test_a_live_panel_on_a_terminal(terminal):
    clock = Clock()
    with Display(60, terminal, clock=clock) as display:
        display.phase("training")
        clock.now += 10
        display.row({**ROW, "learning_rate": 0.001})
        clock.now += 5
        display.step(5, 10)
        display.note("[a note] as it is")
    text = text_of(terminal)
    for part in ("training", "epoch 1/60", "epoch 2/60", "9:50 left", "9:45 left", "[a note] as it is", *SHOWN):
        assert part in text
    assert "learning rate 0.001" in text
    assert "╸" in text  # the bar
    assert terminal.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_a_narrow_terminal_breaks_between_the_columns(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    with Display(60, terminal) as display:
        display.row(ROW)
    lines = [line.strip() for line in text_of(terminal).splitlines()]
    for part in SHOWN:
        assert any(part in line for line in lines)


def test_steps_are_cheap_and_draw_seldom(terminal):
    for stream in (terminal, io.StringIO()):
        with Display(10, stream) as display:
            display.phase("training")
            calls = 50_000
            start = time.perf_counter()
            for call in range(calls):
                display.step(call, calls)
            spent = time.perf_counter() - start
        assert spent / calls < 20e-6


def test_pictures_are_limited_to_a_few_per_second(terminal):
    clock = Clock()
    with Display(10, terminal, clock=clock) as display:
        sizes = []
        for call in range(1000):
            clock.now += 0.01
            display.step(call, 1000)
            sizes.append(len(terminal.getvalue()))
        pictures = sum(size > before for before, size in zip([0, *sizes], sizes, strict=False))
    assert 40 <= pictures <= 51


def test_quiet_and_before_and_after():
    stream = io.StringIO()
    with Display(10, stream, quiet=True) as display:
        display.phase("training")
        display.row(ROW)
        display.note("x")
    assert stream.getvalue() == ""
    display = Display(10, stream)
    display.step(1, 2)
    display.row(ROW)
    display.note("x")
    with display:
        pass
    display.row(ROW)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_draw_gets_lines(terminal, monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    with Display(10, terminal) as display:
        display.row({"loss": 1.0})
    assert terminal.getvalue().startswith("epoch 1/10  loss 1.000")
    assert "\x1b" not in terminal.getvalue()


def test_a_closed_pipe_does_not_end_the_run():
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with Display(10, Broken()) as display:
        display.phase("training")
        display.row(ROW)
        display.note("x")


def test_an_encoding_without_the_letters():
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as stream:
        with Display(10, stream) as display:
            display.note("Größe")
        assert raw.getvalue() == b"Gr??e\n"


def test_nothing_heavy_is_imported_for_plain_lines():
    program = (
        "import io, sys; from bayesprune.runs import Display\n"
        "with Display(2, io.StringIO()) as d: d.row({'loss': 1.0})\n"
        "print([m for m in sys.modules if m.split('.')[0] == 'rich'])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_on_a_real_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w", encoding="utf-8") as stream, Display(3, stream) as display:
        display.phase("training")
        display.row(ROW)
    shown = os.read(leader, 65536).decode()
    os.close(leader)
    assert "training" in shown
    assert "91.23" in shown


def test_numbers_for_people():
    assert [percent(value) for value in (0.9123, 1.0, 0.0, 0.0114, 0.00034, 1e-9)] == [
        "91.23 %",
        "100.00 %",
        "0.00 %",
        "1.14 %",
        "0.034 %",
        "0.00000 %",
    ]
    assert [duration(value) for value in (0, 6.2, 754, 11045, 183845)] == [
        "0:00",
        "0:07",
        "12:34",
        "3:04:05",
        "2 d 03:04",
    ]
    assert [number(value) for value in (3, 1234567, 0.1, 123.456, 54321.9, 1e12, -2e-7)] == [
        "3",
        "1,234,567",
        "0.1",
        "123.5",
        "54,322",
        "1e+12",
        "-2e-07",
    ]


def test_every_kind_of_value_is_shown():
    row = {
        "loss": math.nan,
        "accuracy": None,
        "validation_accuracy": torch.tensor(0.5),
        "structure": "6-16",
        "converged": True,
        "dense_fraction": 0.3,
        "seconds": 61,
        "list": [1, 2.5],
        "text": "two\nlines",
        "macs_fraction": math.inf,
    }
    assert describe(row) == [
        ("loss", "nan"),
        ("accuracy", "-"),
        ("validation accuracy", "50.00 %"),
        ("MACs", "inf"),
        ("structure", "6-16"),
        ("time", "1:01"),
        ("converged", "yes"),
        ("dense fraction", "30.00 %"),
        ("list", "1 2.5"),
        ("text", "two lines"),
    ]


def test_losses_and_times():
    losses = [describe({"loss": value})[0][1] for value in (0.3, 12.0, 0, 123456.0, 2.5e-6)]
    assert losses == ["0.3000", "12.00", "0", "123,456", "2.5e-06"]
    assert [describe({"seconds": value})[0][1] for value in (0.24, 59, 61)] == ["0.2 s", "59.0 s", "1:01"]
