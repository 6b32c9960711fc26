"""Bytes that `pack` did not write: each is refused with a message that says why, before any array is made."""

import random
import resource
import zlib

import numpy as np
import pytest
import storage_reference
from storage_examples import specs_of

from bayesprune.storage import Spec, StorageError, pack, unpack
from bayesprune.storage.bits import LONGEST_NUMBER, BitReader, BitWriter
from bayesprune.storage.masks import get_mask

INT = np.dtype("i4")


def with_rectangles(corners, heights, widths, size=20):
    """The bits of a mask of size x size that consists of rectangles."""
    writer = BitWriter()
    for _ in range(2):
        writer.put_subset(np.ones(size, bool))
    writer.put_number(len(corners))
    for numbers in (np.diff(corners, prepend=-1) - 1, heights, widths):
        writer.put_numbers(np.array(numbers, np.int64))
    covered = sum((height + 3) * (width + 3) for height, width in zip(heights, widths, strict=True))
    writer.put_subset(np.zeros(max(size * size - covered, 0), bool))
    return writer.to_bytes()


def test_the_way_these_tests_write_rectangles_works():
    mask = get_mask(BitReader(with_rectangles([0, 10, 65], [0, 4, 1], [1, 0, 2])), 20, 20)
    expected = np.zeros((20, 20), bool)
    expected[0:3, 0:4] = expected[0:7, 10:13] = expected[3:7, 5:10] = True
    assert np.array_equal(mask, expected)


@pytest.mark.parametrize(
    ("corners", "heights", "widths", "message"),
    [
        ([0, 1], [0, 0], [0, 0], "overlap"),
        ([0, 42], [0, 0], [0, 0], "overlap"),
        ([0, 1], [17, 17], [17, 16], "overlap"),
        ([18], [0], [0], "reaches out"),
        ([360], [0], [0], "reaches out"),
        ([0], [18], [0], "the number 18 .*where at most 17"),
        ([0], [0], [1000], "where at most 17"),
        ([400], [0], [0], "places beyond the 400"),
        (list(range(45)), [0] * 45, [0] * 45, "the number 45 where at most 44"),
    ],
)
def test_wrong_rectangles(corners, heights, widths, message):
    with pytest.raises(StorageError, match=message):
        get_mask(BitReader(with_rectangles(corners, heights, widths)), 20, 20)


def test_rectangles_in_a_matrix_that_is_too_small():
    content = BitWriter()
    content.put_subset(np.ones(2, bool))
    content.put_subset(np.ones(200, bool))
    content.put_number(1)
    with pytest.raises(StorageError, match="3 x 3 or more in a matrix of 2 x 200"):
        get_mask(BitReader(content.to_bytes()), 2, 200)


def test_many_rectangles_on_one_another():
    """256 at the same place would be none in a counter of a byte."""
    content = with_rectangles(np.arange(256), [0] * 256, [257] * 256, size=700)
    with pytest.raises(StorageError, match="rectangles overlap"):
        get_mask(BitReader(content), 700, 700)


def test_wrong_numbers():
    writer = BitWriter()
    writer.put_number(2**LONGEST_NUMBER)
    with pytest.raises(StorageError, match=f"the limit is {LONGEST_NUMBER}"):
        BitReader(writer.to_bytes()).number(10)
    writer = BitWriter()
    writer.put_number(11)
    with pytest.raises(StorageError, match="the number 11 where at most 10"):
        BitReader(writer.to_bytes()).number(10)
    with pytest.raises(StorageError, match="the bits end"):
        BitReader(b"\0\0").number(10)
    with pytest.raises(StorageError, match="the bits end"):
        BitReader(b"").subset(10)
    with pytest.raises(StorageError, match="the bits end after 8, where"):
        BitReader(b"\xff").numbers(1, 2**40)  # k = 31
    with pytest.raises(StorageError, match="bits are left over"):
        BitReader(b"\0").finish()


def test_gaps_that_would_overflow():
    writer = BitWriter()
    writer.put_numbers(np.full(64, 2**40))
    with pytest.raises(StorageError, match="places beyond"):
        BitReader(writer.to_bytes()).places(64, 2**41)


def test_an_absurd_number_of_rows_without_columns():
    (found,) = unpack(pack([np.empty((0, 5), np.int32)]).content, [Spec("w", (2**40, 0), INT)])
    assert found.shape == (2**40, 0)


ARRAY = np.random.default_rng(0).integers(1, 2**30, (10, 12), np.int32) * (
    np.random.default_rng(1).random((10, 12)) < 0.4
).astype(np.int32)
CONTENT = pack([ARRAY]).content


def refused(content, message=None, spec=None):
    with pytest.raises(StorageError, match=message):
        unpack(content, [spec or specs_of([ARRAY])[0]])


def test_truncated_and_prolonged_streams():
    for length in range(len(CONTENT)):
        with pytest.raises(StorageError):
            unpack(CONTENT[:length], specs_of([ARRAY]))
    refused(CONTENT[:3], "3 bytes are left")
    refused(CONTENT + b"x", "and nothing else")
    refused((10**9).to_bytes(4, "little") + CONTENT[4:], "positions of 1000000000 bytes are claimed")


def test_other_shapes_than_those_that_were_packed():
    refused(CONTENT, spec=Spec("w", (12, 9), INT))
    refused(CONTENT, spec=Spec("w", (10, 12), np.dtype("i8")))
    refused(CONTENT, "the positions of w: ", Spec("w", (3, 3), INT))
    refused(CONTENT, "the number 45 where at most 0 is possible", Spec("w", (0,), INT))


def test_values_that_are_too_many():
    """Heads that decompress to a gigabyte are not decompressed."""
    bomb = zlib.compress(b"\0" * 50_000_000)
    live = int(np.count_nonzero(ARRAY))
    positions = 4 + int.from_bytes(CONTENT[:4], "little")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(CONTENT[: positions + 3 * live] + bomb, f"not {live} and nothing else")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000
    refused(CONTENT[: positions + 3 * live] + b"no zlib", "cannot be decompressed")


def test_mutations_are_refused_or_are_what_the_bytes_say():
    """A thousand of them, read by the slow reader as well, which must agree."""
    rng = random.Random(0)
    read = 0
    for _ in range(1000):
        content = bytearray(CONTENT)
        for _ in range(rng.choice([1, 1, 3])):
            content[rng.randrange(4, len(content))] ^= 1 << rng.randrange(8)
        try:
            (found,) = unpack(bytes(content), specs_of([ARRAY]))
        except StorageError:
            continue
        (expected,) = storage_reference.unpack(bytes(content), [ARRAY.shape], [4])
        assert found.reshape(-1).view(np.uint32).tolist() == expected
        read += 1
    assert read > 100
