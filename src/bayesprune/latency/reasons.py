"""Why a smaller network is not faster, from what was counted and measured."""

import statistics

import torch
from torch import Tensor, nn

from bayesprune.latency.candidates import Copies, Kind, first_call, inputs, prepare
from bayesprune.latency.clocks import seconds_of, warm_up
from bayesprune.latency.report import NOTICEABLE, UNSURE, Row
from bayesprune.latency.work import Work

MOSTLY = 0.5  # the share of a time from which on it is said to be the cause
ROUNDS, ROUND_SECONDS = 20, 0.002


class Empty(nn.Module):
    """Operations that have next to nothing to do; two kinds in turn, because a runtime may merge equal ones."""

    def __init__(self, operations: int) -> None:
        super().__init__()
        self.operations = operations

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, 1) to (n, 1)."""
        for number in range(self.operations):
            x = torch.neg(x) if number % 2 else torch.relu(x)
        return x


def overhead_ms(operations: int, runtime: str, device: torch.device) -> float:
    """Milliseconds for that many operations on a single number in the same runtime: what no pruning removes."""
    example = torch.zeros(2, 1)
    runtime = "cuda_graph" if runtime == "fused" else runtime  # which is for images, and the same otherwise
    run = prepare(Kind(runtime, "contiguous"), Copies(Empty(operations), example, device), inputs(example, 1, device))
    first_call(run)
    calls = max(1, int(ROUND_SECONDS / warm_up(run, device, 0.5)))
    return 1e3 * statistics.median(seconds_of(run, calls, device) for _ in range(ROUNDS))


def reason(baseline: Row, network: Row, before: Work, after: Work, overhead: float | None) -> str:
    """Why `network` is not faster than `baseline`; overhead: milliseconds of its operations on a single number."""
    batch = network.batch
    fewer_macs = _times(before.macs, after.macs)
    fewer_bytes = _times(before.bytes(batch), after.bytes(batch))
    if max(fewer_macs, fewer_bytes) < NOTICEABLE:
        return (
            f"it has no less to do, {after.macs:,} multiplications per example against {before.macs:,} and "
            f"{after.bytes(batch):,} bytes of weights and activations per call against {before.bytes(batch):,}"
        )
    if baseline.median / network.median >= NOTICEABLE:
        return UNSURE
    if overhead is not None and overhead >= MOSTLY * network.median:
        same = "the same number as before" if after.operations == before.operations else f"{before.operations} before"
        return (
            f"the time is mostly that of starting {after.operations} operations ({same}); as many operations on a "
            f"single number take {overhead:.3f} of the {network.median:.3f} ms"
        )
    share = "" if overhead is None else f", and {overhead:.3f} ms of it are the start of {after.operations} operations"
    return (
        f"it has {fewer_macs:.2f} times fewer multiplications and {fewer_bytes:.2f} times fewer bytes of weights and "
        f"activations, but does {_rate(network, after)} multiplications a second where the other does "
        f"{_rate(baseline, before)}: its narrower layers use less of the processor{share}"
    )


def _times(before: int, after: int) -> float:
    return before / after if after else float("inf") if before else 1.0


def _rate(row: Row, work: Work) -> str:
    return f"{work.macs * row.examples_per_second / 1e9:.2f} billion"
