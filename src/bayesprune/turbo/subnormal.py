"""Numbers on their way to nothing: below 1e-38 a processor computes with them many times as slowly as with others."""

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

# Of the largest of a tensor; and of any.  Not only what is slow itself, but what others multiply with: a gradient that
# passes through several layers is the product of their weights.
TINY: Final = 1e-10
LEAST: Final = 1e-20


@torch.no_grad()
def drop_tiny(tensors: Iterable[Tensor]) -> None:
    """Set to zero, in place, what is far too small to count."""
    for tensor in tensors:
        sizes = tensor.abs()
        tensor.masked_fill_(sizes < (TINY * sizes.max()).clamp_min(LEAST), 0.0)
