"""How long clusters and gaps are along an axis (paper II-B: what p01 and p10 mean)."""

from typing import NamedTuple

from torch import Tensor


class RunLengths(NamedTuple):
    """Mean lengths of runs of live and of dead weights; NaN where there is none."""

    cluster: float
    gap: float
    density: float


def run_lengths(alive: Tensor, axis: int = -1) -> RunLengths:
    """Measure mean cluster and gap length along an axis of a bool tensor of any shape.

    For a long MarkovChain they are 1 / p10 and 1 / p01.  Runs cut off by the border count with the length they have.
    """
    line = alive.bool().movedim(axis, -1)

    def mean_run(member: Tensor) -> float:
        begins = member.clone()
        begins[..., 1:] &= ~member[..., :-1]
        runs = int(begins.sum())
        return int(member.sum()) / runs if runs else float("nan")

    return RunLengths(mean_run(line), mean_run(~line), float(line.float().mean()))
