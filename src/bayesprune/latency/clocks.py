"""Time of calls in a row, on the CPU or a CUDA device."""

import time
from collections.abc import Callable

import torch

Run = Callable[[], object]


def seconds_of(run: Run, calls: int, device: torch.device) -> float:
    """Seconds of one call, the mean of `calls` calls in a row; the device is idle before and after.

    On CUDA two events in the stream take the time.
    """
    with torch.inference_mode():
        if device.type == "cuda":
            return _by_events(run, calls, device)
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - start) / calls


def _by_events(run: Run, calls: int, device: torch.device) -> float:
    with torch.cuda.device(device):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(device)
        start.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize(device)
        return float(start.elapsed_time(end)) / 1e3 / calls


def warm_up(run: Run, device: torch.device, seconds: float) -> float:
    """Call `run` until it has settled, three times at least unless that takes longer than `seconds`.

    Returns the shortest time of a call in seconds, to plan with.
    """
    spent, shortest, calls = 0.0, float("inf"), 0
    while calls < 1 or (calls < 3 and spent < seconds) or spent < min(0.1, seconds / 10):
        took = seconds_of(run, 1, device)
        spent, shortest, calls = spent + took, min(shortest, took), calls + 1
    return max(shortest, 1e-7)
