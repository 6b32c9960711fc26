"""Ctrl-C and SIGTERM: a flag first, an exception for the impatient, and everything as before in the end."""

import contextlib
import os
import signal
import threading

import pytest

from bayesprune.runs import Interrupts, interrupt


@pytest.fixture(autouse=True)
def _handlers_are_put_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_flag(number):
    with Interrupts() as interrupts:
        assert not interrupts.requested
        send(number)
        assert interrupts.requested
        assert interrupts.signal is number


def test_a_second_ctrl_c_stops_at_once(monkeypatch):
    monkeypatch.setattr(interrupt, "SAME_KEYSTROKE", -1.0)
    with Interrupts() as interrupts:
        send(signal.SIGTERM)
        send(signal.SIGTERM)  # schedulers repeat themselves
        assert interrupts.requested
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_one_keystroke_that_comes_twice_is_one():
    with Interrupts() as interrupts:
        send(signal.SIGINT)
        send(signal.SIGINT)
        assert interrupts.requested


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            send(signal.SIGINT)
            assert not interrupts.requested
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_after_an_error_and_nested():
    with Interrupts() as outer:
        inner = Interrupts()
        with contextlib.suppress(ZeroDivisionError), inner:
            send(signal.SIGTERM)
            raise ZeroDivisionError
        assert inner.requested
        assert not outer.requested
        send(signal.SIGTERM)
        assert outer.requested


def test_outside_the_main_thread_nothing_happens():
    seen = []

    def work():
        with Interrupts() as interrupts:
            seen.append(signal.getsignal(signal.SIGINT))
            seen.append(interrupts.requested)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, False]
