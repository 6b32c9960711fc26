"""Which cells of a matrix are live, as bits.

1. the rows that are not left out, a subset of all; 2. the columns that are not left out.  What follows is about the
   matrix of these rows and columns, and the cells in others are dead.
3. how many rectangles, a number, and if any: their upper left corners in row-major order, as the gaps between the
   numbers of these cells, row * columns + column; then their heights less 3; then their widths less 3.  All cells in
   them are live, and they do not overlap.
4. the live ones among the cells outside all rectangles, in row-major order, a subset.
"""

import numpy as np
from numpy.typing import NDArray

from bayesprune.regularity.rectangles import greedy
from bayesprune.storage.bits import BitReader, BitWriter, Flags, Numbers, gaps
from bayesprune.storage.errors import StorageError

LEAST = 3  # height and width of a rectangle
# Bands along a diagonal are a million overlapping rectangles, and choosing among them takes half a minute.  Holes in a
# full matrix are few bits without rectangles, and each is the corner of some: below that many bits for each nothing can
# be gained.
MOST_CANDIDATES, FEW_CANDIDATES, LEAST_BITS = 100_000, 1000, 4

Rectangles = NDArray[np.int64]


def put_mask(writer: BitWriter, live: Flags) -> None:
    """Write a mask, (rows, columns) bool, in the way that takes the fewest bits."""
    rows: Flags = np.any(live, axis=1)
    columns: Flags = np.any(live, axis=0)
    ways = [_written(live, np.ones_like(rows), np.ones_like(columns), _none())]
    inner = live
    if not (rows.all() and columns.all()):
        inner = live[rows][:, columns]
        ways.append(_written(inner, rows, columns, _none()))
    worth = min(way.length for way in ways) // LEAST_BITS
    rectangles = greedy(inner, (LEAST, LEAST), most=min(MOST_CANDIDATES, max(FEW_CANDIDATES, worth)))
    if len(rectangles):
        ways.append(_written(inner, rows, columns, rectangles))
    writer.extend(min(ways, key=lambda way: way.length))


def get_mask(reader: BitReader, rows: int, columns: int) -> Flags:
    """Read a mask, (rows, columns) bool."""
    kept_rows, kept_columns = reader.subset(rows), reader.subset(columns)
    shape = int(np.count_nonzero(kept_rows)), int(np.count_nonzero(kept_columns))
    covered = _covered(_get_rectangles(reader, *shape), *shape)
    free = covered.size - int(np.count_nonzero(covered))
    leftover = reader.subset(free)
    if free < covered.size:
        covered[~covered] = leftover
    else:
        covered = leftover
    inner = covered.reshape(shape)
    if shape == (rows, columns):
        return inner
    live = np.zeros((rows, columns), bool)
    live[np.ix_(kept_rows, kept_columns)] = inner
    return live


def _written(inner: Flags, rows: Flags, columns: Flags, rectangles: Rectangles) -> BitWriter:
    writer = BitWriter()
    writer.put_subset(rows)
    writer.put_subset(columns)
    across = inner.shape[1]
    rectangles = rectangles[np.argsort(rectangles[:, 0] * across + rectangles[:, 1])]
    row, column, height, width = rectangles.T
    writer.put_number(len(rectangles))
    writer.put_numbers(gaps(row * across + column))
    writer.put_numbers(height - LEAST)
    writer.put_numbers(width - LEAST)
    cells = inner.reshape(-1)
    if len(rectangles):
        cells = cells[~_covered(rectangles, *inner.shape)]
    writer.put_subset(cells)
    return writer


def _get_rectangles(reader: BitReader, rows: int, columns: int) -> Rectangles:
    """Rectangles inside the matrix that may yet overlap, but are not larger than it together, (n, 4)."""
    count = reader.number(rows * columns // LEAST**2)
    if not count:
        return _none()
    if min(rows, columns) < LEAST:
        raise StorageError(f"rectangles of {LEAST} x {LEAST} or more in a matrix of {rows} x {columns}")
    row, column = np.divmod(reader.places(count, rows * columns), columns)
    height = reader.numbers(count, rows - LEAST) + LEAST
    width = reader.numbers(count, columns - LEAST) + LEAST
    if (row + height > rows).any() or (column + width > columns).any():
        raise StorageError(f"a rectangle reaches out of its matrix of {rows} x {columns}")
    if (height * width).sum(dtype=np.float64) > rows * columns:
        raise StorageError(f"the rectangles are larger than their matrix of {rows} x {columns}; they overlap")
    return np.stack([row, column, height, width], 1)


def _covered(rectangles: Rectangles, rows: int, columns: int) -> Flags:
    """The cells in rectangles, (rows * columns,) bool, or StorageError where some overlap."""
    if not len(rectangles):
        return np.zeros(rows * columns, bool)
    row, column, height, width = rectangles.T
    begin = np.repeat(row * columns + column, height) + columns * _count_up(height)
    steps = np.zeros(rows * columns + 1, np.int8)
    np.add.at(steps, begin, 1)
    np.add.at(steps, begin + np.repeat(width, height), -1)
    covered: Flags = np.cumsum(steps[:-1], dtype=np.int8) != 0
    if int(np.count_nonzero(covered)) != int((height * width).sum()):
        raise StorageError("rectangles overlap")
    return covered


def _count_up(lengths: Numbers) -> Numbers:
    """0, 1, ..., length - 1 for each of the lengths, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)


def _none() -> Rectangles:
    return np.empty((0, 4), np.int64)
