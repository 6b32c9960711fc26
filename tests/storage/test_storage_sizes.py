"""The bytes of other formats, compared with what scipy makes of the same matrix."""

import numpy as np
import pytest
from scipy import sparse

from bayesprune.storage import FORMATS, pack, sizes


@pytest.fixture(scope="module")
def matrix():
    rng = np.random.default_rng(0)
    return (rng.standard_normal((48, 80)) * (rng.random((48, 80)) < 0.1)).astype(np.float32)


def as_integers(array):
    return np.ascontiguousarray(array).view(f"i{array.itemsize}")


def test_scipy_agrees(matrix):
    size = sizes({"w": as_integers(matrix)})["w"]
    assert tuple(size.bytes) == FORMATS
    coo = sparse.coo_array(matrix)
    assert size.bytes["coo"] == coo.data.nbytes + sum(one.astype(np.int32).nbytes for one in coo.coords)
    csr = sparse.csr_array(matrix)
    assert size.bytes["csr"] == csr.data.nbytes + csr.indices.nbytes + csr.indptr.nbytes
    for block in (4, 8, 16):
        bsr = csr.tobsr((block, block))
        bsr.eliminate_zeros()
        assert size.bytes[f"bsr{block}"] == bsr.data.nbytes + bsr.indices.nbytes + bsr.indptr.nbytes
    live = np.count_nonzero(matrix)
    assert (size.values, size.live, size.bytes["dense"]) == (matrix.size, live, matrix.nbytes)
    assert size.bytes["bitmask"] == 4 * live + matrix.size // 8
    assert size.index_bytes("coo") == 8


def test_blocks_are_padded_at_the_edges():
    one = np.zeros((5, 9), np.float32)
    one[4, 8] = 1
    size = sizes({"w": as_integers(one)})["w"]
    assert size.bytes["bsr4"] == 16 * 4 + 4 + 4 * 3
    assert size.bytes["bsr16"] == 256 * 4 + 4 + 4 * 2


def test_ours_adds_up_to_what_is_written(matrix):
    arrays = {"a": as_integers(matrix), "b": as_integers(matrix[:, :7].astype(np.float16)), "c": as_integers(matrix[0])}
    packed = pack(list(arrays.values()))
    found = sizes(arrays)
    total = sum(found.values(), next(iter(found.values())))
    assert total.bytes["clusters"] - found["a"].bytes["clusters"] == pytest.approx(len(packed.content) - 4, abs=4)
    assert found["a"].position_bytes == packed.position_bits[0] / 8
    assert found["a"].index_bytes("clusters") == packed.position_bits[0] / 8 / packed.values[0]


def test_nothing_lives():
    size = sizes({"w": np.zeros((3, 4), np.int32)})["w"]
    assert np.isnan(size.index_bytes("csr"))
    assert size.bytes["csr"] == 4 * 4
