"""The same number of live weights without their order: what chance gives."""

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from bayesprune.regularity.views import check_masks

Shuffle = Literal["entries", "rows", "columns"]


def shuffled(masks: Mapping[str, Tensor], generator: torch.Generator, what: Shuffle = "entries") -> dict[str, Tensor]:
    """Shuffle every mask (out, in, *kernel) as a matrix (out, in * taps).

    `entries`: the live weights fall anywhere into the live rows and columns, so that what is dead as a whole stays dead
    and the density after compaction stays about the same.  `rows`, `columns`: only their order is random.
    """
    if what not in get_args(Shuffle):
        raise ValueError(f"what must be one of {', '.join(get_args(Shuffle))}, got {what!r}")
    check_masks(masks)
    return {name: _shuffled(mask, generator, what) for name, mask in masks.items()}


def _shuffled(mask: Tensor, generator: torch.Generator, what: Shuffle) -> Tensor:
    matrix = mask.flatten(1)

    def permutation(size: int) -> Tensor:
        return torch.randperm(size, generator=generator, device=generator.device).to(mask.device)

    if what == "rows":
        matrix = matrix[permutation(matrix.shape[0])]
    elif what == "columns":
        matrix = matrix[:, permutation(matrix.shape[1])]
    else:
        live = matrix.bool()
        region = live.any(1, keepdim=True) & live.any(0)
        entries = matrix[region]
        matrix = torch.zeros_like(matrix).masked_scatter(region, entries[permutation(len(entries))])
    return matrix.reshape(mask.shape)
