"""Arrays to pack."""

import numpy as np
from hypothesis import strategies as st

from bayesprune.storage import Spec

DTYPES = [np.dtype(name) for name in ("i1", "i2", "i4", "i8")]


def specs_of(arrays):
    return [Spec(f"array {number}", one.shape, one.dtype) for number, one in enumerate(arrays)]


@st.composite
def arrays(draw):
    """Of any shape, density and dtype, with clusters, dead lines and negative zeros."""
    shape = tuple(draw(st.lists(st.integers(0, 14), max_size=4)))
    dtype = draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    live = rng.random(shape) < draw(st.sampled_from([0, 0.03, 0.2, 0.5, 0.8, 1]))
    matrix = live.reshape(len(live), -1) if live.ndim > 1 and live.size else live.reshape(1, -1)
    for _ in range(draw(st.integers(0, 4))):
        row, column = rng.integers(0, matrix.shape[0] + 1), rng.integers(0, matrix.shape[1] + 1)
        matrix[row : row + rng.integers(2, 8), column : column + rng.integers(2, 12)] = True
    if draw(st.booleans()):
        matrix[rng.random(matrix.shape[0]) < 0.4] = False
        matrix[:, rng.random(matrix.shape[1]) < 0.4] = False
    dead = np.where(rng.random(shape) < draw(st.sampled_from([0, 0.5])), limits.min, 0).astype(dtype)
    return np.where(matrix.reshape(shape), values, dead)
