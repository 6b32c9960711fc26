"""What was packed comes back to the bit, for us and for a reader that knows only the description of the bytes."""

import time

import numpy as np
import pytest
import storage_reference
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_examples import DTYPES, arrays, specs_of

from bayesprune.storage import pack, unpack
from bayesprune.storage.bits import BitReader, BitWriter
from bayesprune.storage.masks import get_mask, put_mask


def back(content, like):
    return list(unpack(content, specs_of(like)))


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.array_equal(one, other)


@settings(max_examples=150, deadline=None)
@given(st.lists(arrays(), max_size=4))
def test_arrays_come_back(given_arrays):
    packed = pack(given_arrays)
    assert_same(back(packed.content, given_arrays), given_arrays)
    slow = storage_reference.unpack(
        packed.content, [one.shape for one in given_arrays], [one.itemsize for one in given_arrays]
    )
    for one, values in zip(given_arrays, slow, strict=True):
        assert one.reshape(-1).view(f"u{one.itemsize}").tolist() == values


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (7,), (3, 0), (0, 3), (1, 1), (30, 40), (5, 3, 3, 3)], ids=str)
@pytest.mark.parametrize("kind", ["nothing", "one", "all"])
def test_extremes(shape, kind, dtype):
    array = np.zeros(shape, dtype)
    if array.size and kind == "one":
        array.reshape(-1)[array.size // 2] = -3
    if kind == "all":
        array[...] = 5
    packed = pack([array])
    assert_same(back(packed.content, [array]), [array])
    assert packed.values == [int(np.count_nonzero(array))]
    if kind != "one":
        assert packed.position_bits[0] <= 12  # no array costs much that is empty or full


def test_floats_that_are_not_numbers_or_have_no_digits():
    """Every bit survives: signs of zeros, payloads of NaNs, the smallest and the largest."""
    bits = [0x80000000, 0, 0x7FC00001, 0xFFC00002, 0x7F800001, 0x7F800000, 0xFF800000, 1, 0x80000001, 0x7F7FFFFF]
    array = np.array(bits, np.uint32).view(np.int32).reshape(2, 5)
    packed = pack([array])
    assert_same(back(packed.content, [array]), [array])
    assert packed.values == [8]


def test_negative_zeros_cost_a_bit():
    """What masking by a product leaves behind."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((100, 100), np.float32) * (rng.random((100, 100)) < 0.05)
    packed = pack([weight.view(np.int32)])
    assert np.signbit(weight[weight == 0]).mean() == pytest.approx(0.5, abs=0.02)
    assert packed.values == [int(np.count_nonzero(weight))]
    assert len(packed.content) < 4 * packed.values[0] + 10_000 / 8 + 0.3 * 10_000 / 8


def entropy(density):
    return -(density * np.log2(density) + (1 - density) * np.log2(1 - density))


@pytest.mark.parametrize("density", [0.003, 0.03, 0.1, 0.2, 0.3, 0.5, 0.6, 0.8, 0.97])
def test_random_positions_are_near_their_entropy(density):
    mask = np.random.default_rng(1).random((200, 500)) < density
    writer = BitWriter()
    put_mask(writer, mask)
    assert writer.length < 1.04 * mask.size * entropy(mask.mean()) + 50


def test_panels_cost_next_to_nothing():
    panels = np.random.default_rng(2).random((50, 60)) < 0.05
    writer = BitWriter()
    put_mask(writer, np.kron(panels, np.ones((4, 9), bool)))
    assert writer.length < 20 * panels.sum()  # bits for a corner, a height and a width
    assert writer.length < 0.15 * panels.size * 36 * entropy(panels.mean())


def test_dead_lines_are_left_out():
    mask = np.zeros((400, 400), bool)
    alive = np.random.default_rng(3).random((100, 100)) < 0.3
    mask[::4, ::4] = alive
    writer = BitWriter()
    put_mask(writer, mask)
    assert writer.length < 1.02 * alive.size * entropy(alive.mean()) + 2 * 400 + 50
    assert np.array_equal(get_mask(BitReader(writer.to_bytes()), 400, 400), mask)


def test_values_that_are_alike_are_compressed():
    weight = np.random.default_rng(4).standard_normal((300, 300), np.float32)
    packed = pack([weight.view(np.int32)])
    assert len(packed.content) < 0.86 * weight.nbytes
    noise = np.random.default_rng(4).integers(1, 2**31, (300, 300), np.int32)
    assert len(pack([noise]).content) < 1.001 * noise.nbytes + 100


def test_a_band_of_a_million_rectangles_is_written_in_time():
    row, column = np.indices((1500, 1500))
    band = abs(row - column) < 300
    start = time.perf_counter()
    writer = BitWriter()
    put_mask(writer, band)
    assert time.perf_counter() - start < 5
    assert np.array_equal(get_mask(BitReader(writer.to_bytes()), *band.shape), band)


def test_holes_in_a_full_matrix_are_written_in_time():
    """Every hole is the corner of several rectangles, none of which is worth its bits."""
    holed = np.random.default_rng(0).random((512, 4608)) > 0.005
    start = time.perf_counter()
    writer = BitWriter()
    put_mask(writer, holed)
    assert time.perf_counter() - start < 3
    assert writer.length < 12 * np.count_nonzero(~holed)
    assert np.array_equal(get_mask(BitReader(writer.to_bytes()), *holed.shape), holed)


@given(st.lists(st.integers(0, 2**40), max_size=30), st.integers(0, 2**50))
def test_numbers(values, single):
    values = np.array(values, np.int64)
    writer = BitWriter()
    writer.put_number(single)
    if len(values) and values.max() >= 2**36:  # as zeros and a one, with the largest parameter, this takes a while
        values //= 2**8
    writer.put_numbers(values)
    reader = BitReader(writer.to_bytes())
    assert reader.number(2**50) == single
    assert np.array_equal(reader.numbers(len(values), 2**40), values)
    reader.finish()
