"""The Triton engine for CUDA tensors: the same contract as the other engines, imported only when it is used."""

import functools
import importlib.util
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesprune.messages.schedule import Schedule
from bayesprune.messages.table import Table


@functools.cache
def is_available() -> bool:
    """Whether Triton is installed; CUDA builds of torch bring it."""
    return importlib.util.find_spec("triton") is not None


def grids(
    evidence: Tensor, tables: Sequence[Table], schedule: Schedule, messages: Tensor | None
) -> tuple[Tensor, int, float]:
    """Product of the messages into each site, iterations done and last change; evidence: odds (batch, *sizes)."""
    from bayesprune.messages import gpu_kernels

    evidence = evidence.contiguous()
    axes, total = len(tables), evidence.numel()
    sizes, strides = tuple(evidence.shape[1:]), tuple(evidence.stride()[1:])
    packed = torch.tensor([list(t) for t in tables], dtype=evidence.dtype, device=evidence.device)
    old = evidence.new_ones((2 * axes, *evidence.shape))
    new = torch.ones_like(old)
    ratio = evidence.new_ones(())
    done, change = 0, math.inf
    while done < schedule.iterations:
        done += 1
        checked = schedule.looks_after(done)
        if checked:
            ratio.fill_(1)
        gpu_kernels.flood(evidence, old, new, packed, ratio, total, sizes, strides, schedule.damping, checked)
        old, new = new, old
        if checked:
            change = math.log(ratio.item())  # waits for the device, so only here
            if change <= schedule.tolerance:
                break
    if messages is not None:
        messages.copy_(old)
    return gpu_kernels.collect(old, evidence), done, change


def chains(evidence: Tensor, table: Table, first: float) -> Tensor:
    """Odds received from both sides, (length, chains) -> (length, chains)."""
    from bayesprune.messages import gpu_kernels

    return gpu_kernels.chains(evidence, table, first)
