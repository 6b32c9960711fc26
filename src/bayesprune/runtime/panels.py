"""Rows of a weight matrix in panels: those that read much the same inputs share their loads."""

from typing import NamedTuple

import torch
from torch import Tensor

MOST_ROWS = 8  # as in native/engine.h
# A panel of h rows that read n inputs between them costs n (h + LOAD): a product for every row, a load for all.
LOAD = 0.6


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


class Part(NamedTuple):
    """Some columns of a panel.  begins, ends: whether none of its columns comes before, after."""

    rows: list[int]
    columns: Tensor
    begins: bool
    ends: bool


def parts(whole: list[Panel], number: Tensor) -> list[Part]:
    """The panels in parts, those of the first columns first; number: (columns,) of the part of each, growing."""
    count = int(number.max()) + 1 if len(number) else 1
    if count == 1:
        return [Part(*panel, begins=True, ends=True) for panel in whole]
    found = []
    for one in range(count):
        for panel in whole:
            columns = panel.columns[number[panel.columns] == one]
            begins, ends = one == 0, one == count - 1
            if begins or ends or len(columns):  # the first adds the bias, the last the ReLU
                found.append(Part(panel.rows, columns, begins, ends))
    return found


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

    always: pair those that save nothing, too, but for one of an odd number.
    """
    counts = read.sum(1)
    both = counts[:, None] + counts[None, :]
    union = both - read @ read.T
    saved = both * (height + LOAD) - union * (2 * height + LOAD)
    first, second = torch.triu_indices(len(read), len(read), offset=1)
    worth = saved[first, second]
    order = torch.argsort(worth, descending=True, stable=True)
    if not always:
        order = order[: int((worth > 0).sum())]
    free = [True] * len(read)
    pairs = []
    for a, b in zip(first[order].tolist(), second[order].tolist(), strict=True):
        if free[a] and free[b]:
            free[a] = free[b] = False
            pairs.append((a, b))
    return pairs
