"""Several threads at once: first calls, new weights, compilation."""

import threading

import pytest
import torch
from runtime_networks import always, compiled_small_network, images, small_network

from bayesprune.runtime import Compiled, native

needs_engine = pytest.mark.skipif(native.library() is None, reason="the native engine is not built: no C compiler")


def at_once(work, count=4):
    """What `work` gives in every thread, or the error it raises; all begin together."""
    barrier, found = threading.Barrier(count), []

    def run():
        barrier.wait()
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_first_calls_share_one_measurement(monkeypatch):
    measured, running, together = [], [], []
    original = Compiled._measure

    def measure(self, x, with_graphs=True):
        running.append(1)
        together.append(len(running))
        measured.append(len(x))
        try:
            return original(self, x, with_graphs)
        finally:
            running.pop()

    monkeypatch.setattr(Compiled, "_measure", measure)
    fast, x = compiled_small_network(), images(64)
    with torch.no_grad():
        expected = small_network()(x)
    for answer in at_once(lambda: fast(x)):
        torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-5)
    assert measured == [64]
    sizes = iter([1, 2, 3, 4])
    at_once(lambda: fast(x[: next(sizes)]))
    assert sorted(measured) == [1, 2, 3, 4, 64]
    assert set(together) == {1}  # never two at a time: they would measure each other


@needs_engine
def test_a_chosen_size_waits_for_no_measurement(monkeypatch):
    monkeypatch.setattr(Compiled, "_measure", always("native, 16 lanes"))
    fast, x = compiled_small_network(), images(8)
    fast(x)
    begun, done = threading.Event(), threading.Event()

    def measure(self, x, with_graphs=True):
        begun.set()
        assert done.wait(60)
        return always("torch")(self, x)

    monkeypatch.setattr(Compiled, "_measure", measure)
    other = threading.Thread(target=lambda: fast(images(9)))
    other.start()
    assert begun.wait(60)
    fast(x)  # or waits for ever
    done.set()
    other.join()


@needs_engine
def test_changed_weights_are_prepared_once(monkeypatch):
    monkeypatch.setattr(Compiled, "_measure", always("native, 16 lanes"))
    fast, x = compiled_small_network(), images(8)
    fast(x)
    with torch.no_grad():
        for parameter in fast.parameters():
            parameter.mul_(-0.5)
        expected = fast.network(x)
    prepared, original = [], Compiled._prepare

    def prepare(self):
        prepared.append(1)
        original(self)

    monkeypatch.setattr(Compiled, "_prepare", prepare)
    for _ in range(2):
        for answer in at_once(lambda: fast(x)):
            torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-5)
    assert prepared == [1]


def test_several_threads_compile_at_once():
    x = images(3)
    with torch.no_grad():
        expected = small_network()(x)
    for fast in at_once(compiled_small_network):
        assert fast.reason is None or native.library() is None
        torch.testing.assert_close(fast(x), expected, rtol=1e-5, atol=1e-5)
