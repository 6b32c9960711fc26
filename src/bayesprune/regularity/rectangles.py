"""Disjoint all-live rectangles, largest first: every maximal one is found at once, then taken greedily.

A rectangle is (row, column, height, width).  The order of the greedy choice is: larger area, then smaller row, smaller
column, smaller height; no two rectangles are equal in all four, so the result is unique.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

Cells = NDArray[np.bool_]
Rectangles = NDArray[np.int64]


def in_windows(live: Cells, smallest: tuple[int, int]) -> Cells:
    """The live cells inside at least one all-live window of `smallest`, (rows, columns)."""
    opened = live
    for axis, size in enumerate(smallest):
        opened = np.all(_windows(opened, axis, size), -1)
    for axis, size in enumerate(smallest):
        before_after = [(size - 1, size - 1) if axis == other else (0, 0) for other in range(2)]
        opened = np.any(_windows(np.pad(opened, before_after), axis, size), -1)
    return opened


def _windows(cells: Cells, axis: int, size: int) -> Cells:
    """All windows of `size` neighbours along an axis, as a new last axis; none where the axis is shorter."""
    if cells.shape[axis] < size:
        shape = list(cells.shape)
        shape[axis] = 0
        return np.empty((*shape, size), bool)
    return np.lib.stride_tricks.sliding_window_view(cells, size, axis)


def maximal(live: Cells, smallest: tuple[int, int]) -> Rectangles:
    """The all-live rectangles of at least `smallest` that cannot grow to any side, (n, 4), in no special order.

    Row by row, each live cell is the foot of a column that reaches up to the next dead cell, and the widest rectangle
    of that height is the intersection of the runs on the way.  All maximal rectangles are among those.
    """
    if live.shape[0] > live.shape[1]:  # few long rows are faster than many short ones
        return maximal(live.T, smallest[::-1])[:, [1, 0, 3, 2]]
    rows, columns = live.shape
    begin, end = _runs(live)
    height = np.zeros(columns, np.int64)
    left, right = np.zeros(columns, np.int64), np.full(columns, columns)
    found = []
    for row in range(rows):
        height = np.where(live[row], height + 1, 0)
        left = np.where(live[row], np.maximum(left, begin[row]), 0)
        right = np.where(live[row], np.minimum(right, end[row]), columns)
        complete = (height >= smallest[0]) & (right - left >= smallest[1])
        if row + 1 < rows:
            complete &= ~live[row + 1] | (begin[row + 1] > left) | (end[row + 1] < right)
        feet = np.flatnonzero(complete)
        if len(feet):
            high, first, last = height[feet], left[feet], right[feet]
            _, once = np.unique(first * (rows + 1) + high, return_index=True)
            found.append(np.stack([row + 1 - high, first, high, last - first], 1)[once])
    return np.concatenate(found) if found else np.empty((0, 4), np.int64)


def _runs(live: Cells) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Where the run of a live cell in its row begins and ends (exclusive), (rows, columns); anything for dead cells."""
    columns = live.shape[1]
    place = np.arange(columns, dtype=np.int32)
    begin = np.maximum.accumulate(np.where(live, np.int32(0), place + 1), axis=1)
    backwards = np.minimum.accumulate(np.where(live, np.int32(columns), place)[:, ::-1], axis=1)
    return begin, backwards[:, ::-1]


def in_order(rectangles: Rectangles) -> Rectangles:
    """Disjoint rectangles sorted by the order of the greedy choice, (n, 4)."""
    row, column, height, width = rectangles.T
    return rectangles[np.lexsort((column, row, -height * width))]


def times_covered(rectangles: Rectangles, shape: tuple[int, int]) -> NDArray[np.int64]:
    """In how many rectangles each cell is, (rows, columns)."""
    corners = np.zeros((shape[0] + 1, shape[1] + 1), np.int64)
    row, column, height, width = rectangles.T
    np.add.at(corners, (row, column), 1)
    np.add.at(corners, (row + height, column + width), 1)
    np.add.at(corners, (row + height, column), -1)
    np.add.at(corners, (row, column + width), -1)
    return corners.cumsum(0).cumsum(1)[:-1, :-1]


def greedy(live: Cells, smallest: tuple[int, int], *, most: int | None = None) -> Rectangles:
    """Again and again the first rectangle, in the order above, of what is still free; (n, 4), in that order.

    most: with more maximal rectangles than this there are none at all, for choosing among them takes long.
    """
    candidates = maximal(live, smallest)
    if most is not None and len(candidates) > most:
        return candidates[:0]
    if not len(candidates):
        return candidates
    alone = _alone(candidates, live.shape)
    rest = choose(candidates[~alone], live.shape, smallest)
    return in_order(np.concatenate([candidates[alone], rest]))


def _alone(rectangles: Rectangles, shape: tuple[int, ...]) -> Cells:
    """Which rectangles overlap no other one, (n,): they are chosen whatever happens to the others."""
    rows, columns = shape
    total = np.zeros((rows + 1, columns + 1), np.int64)
    total[1:, 1:] = times_covered(rectangles, (rows, columns)).cumsum(0).cumsum(1)
    row, column, height, width = rectangles.T
    bottom, right = row + height, column + width
    inside = total[bottom, right] - total[row, right] - total[bottom, column] + total[row, column]
    alone: Cells = inside == height * width
    return alone


def choose(candidates: Rectangles, shape: tuple[int, ...], smallest: tuple[int, int]) -> Rectangles:
    """The greedy choice from all maximal rectangles, (n, 4) -> (m, 4).

    A heap holds them in order.  One that is met after a part of it was taken goes back as what is left of it above,
    below, left and right of the part: all smaller, so nothing is met too late, and every rectangle that is maximal in
    what is free lies in one of the four.
    """
    least_height, least_width = smallest
    row, column, height, width = candidates.T
    heap = list(zip(*(part.tolist() for part in (-height * width, row, column, height, width)), strict=True))
    heapq.heapify(heap)
    taken: list[tuple[int, int, int, int]] = []
    free = np.iinfo(np.int32).max
    owner = np.full(shape, free, np.int32)  # which of the taken
    last = None
    while heap:
        item = heapq.heappop(heap)
        if item == last:  # the same rest of two rectangles
            continue
        last = item
        _, top, left, high, wide = item
        bottom, right = top + high, left + wide
        here = owner[top:bottom, left:right]
        first = int(here.min())
        if first == free:
            here[:] = len(taken)
            taken.append((top, left, high, wide))
            continue
        gone_top, gone_left, gone_high, gone_wide = taken[first]
        for t, b in ((top, gone_top), (gone_top + gone_high, bottom)):
            if b - t >= least_height:
                heapq.heappush(heap, ((t - b) * wide, t, left, b - t, wide))
        for le, r in ((left, gone_left), (gone_left + gone_wide, right)):
            if r - le >= least_width:
                heapq.heappush(heap, ((le - r) * high, top, le, high, r - le))
    return np.array(taken, np.int64).reshape(-1, 4)
