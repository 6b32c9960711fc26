"""Rows of a weight matrix in panels: those that read much the same inputs share their loads."""

from typing import NamedTuple

import torch
from torch import Tensor

MOST_ROWS = 8  # as in native/engine.h
# A panel of h rows that read n inputs between them costs n (h + LOAD): a product for every row, a load for all.
LOAD = 0.6
TIE = 1e-2  # below any difference between two savings
MOST_COMPARED = 4096


class Panel(NamedTuple):
    """rows: of the matrix.  columns: (n,) int64, those that at least one of them reads, in order."""

    rows: list[int]
    columns: Tensor


def panels(live: Tensor) -> list[Panel]:
    """All rows of a matrix (rows, columns) bool, joined to panels where that is expected to pay.

    Twice as high again and again: of all pairs of equally high panels the one that saves most comes first.
    """
    groups = [[row] for row in range(len(live))]
    done: list[list[int]] = []
    height = 1
    while groups and height < MOST_ROWS:
        read = torch.stack([live[group].any(0) for group in groups]).float()
        pairs = _pairs(read, height)
        joined = {one for pair in pairs for one in pair}
        done += [group for number, group in enumerate(groups) if number not in joined]
        groups = [groups[a] + groups[b] for a, b in pairs]
        height *= 2
    return [Panel(group, live[group].any(0).nonzero().flatten()) for group in done + groups]


class Parts(NamedTuple):
    """Panels in parts of their columns, m of them, those of the first columns first.

    panel: (m,) the panel of each part.  begins, ends: (m,) bool, whether none of its columns comes before, after.
    counts: (m,) of columns.  columns: all of them, part after part.  owner: of the same length, the panel of each.
    """

    panel: Tensor
    begins: Tensor
    ends: Tensor
    counts: Tensor
    columns: Tensor
    owner: Tensor


def parts(whole: list[Panel], number: Tensor) -> Parts:
    """The panels in parts; number: (columns,) of the part of each column, growing.

    Parts without columns are left out, but for the first, which adds the bias, and the last, which has the ReLU.
    """
    last = int(number.max()) if len(number) else 0
    columns = torch.cat([panel.columns for panel in whole])
    owner = torch.repeat_interleave(torch.tensor([len(panel.columns) for panel in whole]))
    place = number[columns] * len(whole) + owner
    order = torch.argsort(place, stable=True)
    counts = torch.bincount(place, minlength=(last + 1) * len(whole))
    part = torch.arange(len(counts)) // len(whole)
    kept = (counts > 0) | (part == 0) | (part == last)
    panel = (torch.arange(len(counts)) % len(whole))[kept]
    return Parts(panel, part[kept] == 0, part[kept] == last, counts[kept], columns[order], owner[order])


def even_panels(live: Tensor, height: int) -> list[Panel]:
    """All rows of a matrix (rows, columns) bool in panels of `height` rows, a power of two; the last may have fewer.

    Those that read much the same inputs come together, twice as high again and again.
    """
    groups = [[row] for row in range(len(live))]
    left: list[list[int]] = []
    size = 1
    while size < height and len(groups) > 1:
        read = torch.stack([live[group].any(0) for group in groups]).float()
        pairs = _pairs(read, size, always=True)
        joined = {one for pair in pairs for one in pair}
        left += [group for number, group in enumerate(groups) if number not in joined]
        groups = [groups[a] + groups[b] for a, b in pairs]
        size *= 2
    order = [row for group in groups + left[::-1] for row in group]
    chosen = [order[first : first + height] for first in range(0, len(order), height)]
    return [Panel(rows, live[rows].any(0).nonzero().flatten()) for rows in chosen]


def _pairs(read: Tensor, height: int, *, always: bool = False) -> list[tuple[int, int]]:
    """Disjoint pairs of panels of one height that save something together; read: (panels, columns) 0 or 1.

    The pair that saves most comes first, then the best of the rest, and so on: every panel proposes to the one with
    which it saves most, and where two propose to each other they are that pair.  A little noise decides between equals,
    which otherwise would all propose to the first.
    always: pair those that save nothing, too, but for one of an odd number.
    Of more than MOST_COMPARED panels neighbours are compared only.
    """
    found = []
    for first in range(0, len(read), MOST_COMPARED):
        some = read[first : first + MOST_COMPARED]
        found += [(first + a, first + b) for a, b in _matched(_saved(some, height), always=always)]
    return found


def _saved(read: Tensor, height: int) -> Tensor:
    """What every two panels save together, (panels, panels)."""
    counts = read.sum(1)
    both = counts[:, None] + counts[None, :]
    return both * (height + LOAD) - (both - read @ read.T) * (2 * height + LOAD)


def _matched(saved: Tensor, *, always: bool) -> list[tuple[int, int]]:
    noise = torch.rand(saved.shape, generator=torch.Generator().manual_seed(0)).triu()
    saved = saved + TIE * (noise + noise.T)
    saved.fill_diagonal_(-torch.inf)
    free = torch.arange(len(saved))
    pairs: list[tuple[int, int]] = []
    while len(free) > 1:
        worth, partner = saved.max(1)
        mutual = partner[partner] == torch.arange(len(free))
        if not always:
            mutual &= worth > 2 * TIE
        chosen = mutual & (torch.arange(len(free)) < partner)
        if not chosen.any():
            break
        pairs += zip(free[chosen].tolist(), free[partner[chosen]].tolist(), strict=True)
        free, saved = free[~mutual], saved[~mutual][:, ~mutual]
    return pairs
