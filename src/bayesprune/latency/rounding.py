"""Widths rounded up to a multiple, where that is measured to be faster."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bayesprune.latency.measuring import measure
from bayesprune.surgery import shrink


def shrink_fastest(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    example: Tensor,
    *,
    multiples: Sequence[int] = (1, 8, 16),
    batch: int = 256,
    device: torch.device | str = "cpu",
    runtimes: Sequence[str] = ("eager", "cuda_graph"),
    seconds: float = 0.5,
) -> tuple[nn.Module, int]:
    """The smaller network and the multiple of its widths: 1, or the fastest other one that is noticeably faster than 1.

    A rounded network keeps some dead units, with zero weights: it computes the same, in shapes that processors like.
    """
    widths = {1, *multiples}
    networks = {str(multiple): shrink(model, masks, example, multiple=multiple) for multiple in sorted(widths)}
    latency = measure(networks, example, batches=(batch,), device=device, runtimes=runtimes, seconds=seconds)
    faster = [one for one in latency.comparisons if one.faster]
    chosen = max(faster, key=lambda one: one.ratio).network.network if faster else "1"
    return networks[chosen], int(chosen)
