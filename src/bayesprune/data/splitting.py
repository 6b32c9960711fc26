"""Hold examples out of a set: which ones stay and which ones go."""

import torch
from torch import Tensor

from bayesprune.data.errors import DataError


def hold_out_count(examples: int, amount: float) -> int:
    """Return how many of `examples` to hold out; `amount` is a fraction if float, their number if int."""
    allowed = 0 <= amount < (max(examples, 1) if isinstance(amount, int) else 1)
    if not allowed:
        raise DataError(
            f"the part to hold out must be a fraction in [0, 1) or a number of examples below {examples}, "
            f"got {amount}; try 0.1"
        )
    return amount if isinstance(amount, int) else min(round(amount * examples), examples - 1)


def hold_out(y: Tensor, amount: float, generator: torch.Generator, stratify: bool) -> tuple[Tensor, Tensor]:
    """Return the indices (n - m,) that stay and (m,) that are held out of targets `y` (n, ...), ascending.

    With `stratify`, `y` (n,) holds class indices and every class gives its share, give or take one; else all
    examples are equally likely.  The choice depends on `y`, `amount` and the CPU `generator` alone.
    """
    examples = y.shape[0]
    count = hold_out_count(examples, amount)
    shuffled = torch.randperm(examples, generator=generator)
    go = _in_shares(shuffled, y.cpu(), count, generator) if stratify else shuffled[:count]
    chosen = torch.zeros(examples, dtype=torch.bool)
    chosen[go] = True
    return torch.nonzero(~chosen).flatten(), torch.nonzero(chosen).flatten()


def _in_shares(shuffled: Tensor, y: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return `count` entries of `shuffled` (n,), the first ones of every class of `y` (n,) in its share.

    Shares are rounded down, and the examples then lacking go to the classes with the largest remainders.
    """
    labels = y[shuffled]
    sizes = torch.bincount(labels)
    shares = sizes.double() * count / len(shuffled)
    quota = shares.floor().long()
    # Shuffled first, so that chance and not the class number decides between equal remainders.
    classes = torch.randperm(len(sizes), generator=generator)
    neediest = classes[torch.argsort((shares - quota)[classes], descending=True, stable=True)]
    quota[neediest[: count - int(quota.sum())]] += 1
    by_class = torch.argsort(labels, stable=True)
    starts = torch.cumsum(sizes, 0) - sizes
    rank = torch.empty_like(labels)
    rank[by_class] = torch.arange(len(labels)) - starts[labels[by_class]]
    return shuffled[rank < quota[labels]]
