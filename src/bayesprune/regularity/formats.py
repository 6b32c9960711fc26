"""Exact bytes that the positions of live weights take in a file, without the values.

The shape of the matrix and the number of values are known to every reader and not counted.

- `coo`      row and column, int32 each, per weight;
- `csr`      column, int32, per weight, and int32 where each row begins, one more than rows;
- `bitmask`  one bit per cell, rounded up to bytes;
- `delta`    weights in row-major order, one byte per weight for the dead cells since the previous one; 255 says "255
             dead cells, and more to come", so a gap g takes 1 + g // 255 bytes;
- clusters   4 bytes for the number of rectangles and 1 for the kind of what follows them; per rectangle row, height
             - 1 in the smallest of uint8, uint16 and uint32 that holds rows - 1, and column, width - 1 in the smallest
             that holds columns - 1; then the leftover weights as `delta` or `bitmask`, whichever is smaller.
"""

import numpy as np
from torch import Tensor

from bayesprune.regularity.covering import Cover

HEADER_BYTES = 5


def coo_bytes(cells: Tensor) -> int:
    """Bytes of int32 coordinates of a matrix (rows, columns) bool."""
    return 8 * int(cells.sum())


def csr_bytes(cells: Tensor) -> int:
    """Bytes of int32 compressed rows of a matrix (rows, columns) bool."""
    return 4 * int(cells.sum()) + 4 * (len(cells) + 1)


def bitmask_bytes(cells: Tensor) -> int:
    """Bytes of a bit per cell of a matrix (rows, columns)."""
    return -(-cells.numel() // 8)


def delta_bytes(cells: Tensor) -> int:
    """Bytes of the gaps between live cells of a matrix (rows, columns) bool."""
    gaps = np.diff(np.flatnonzero(cells.numpy()), prepend=-1) - 1
    return int((1 + gaps // 255).sum())


def cluster_bytes(cover: Cover) -> int:
    """Bytes of rectangles and leftovers; 0 for a matrix without live cells."""
    if not cover.live:
        return 0
    rows, columns = cover.leftover.shape
    rectangle = 2 * integer_bytes(rows - 1) + 2 * integer_bytes(columns - 1)
    rest = min(delta_bytes(cover.leftover), bitmask_bytes(cover.leftover))
    return HEADER_BYTES + cover.count * rectangle + rest


def integer_bytes(largest: int) -> int:
    """Bytes of the smallest unsigned integer that holds `largest`: 1, 2 or 4."""
    return next(size for size in (1, 2, 4) if largest < 256**size)
