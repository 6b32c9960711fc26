"""Arrays with many zeros as bytes: where the others are, and their values.

- 4 bytes, little-endian: the length of the next part;
- positions, as bits: for every array its mask (see `masks`), then which of its dead values are negative zeros, in
  row-major order, a subset (see `bits`); after the last, zeros up to a whole byte;
- tails: the values in row-major order, little-endian, without the last byte of each;
- heads: these last bytes, which hold sign and exponent and are much alike, compressed by zlib.

An array of more than two dimensions is the matrix (first, product of the others), one of fewer a single row, one
without elements has neither rows nor columns.  A value is dead where all its bits are zero, or all but the highest:
masking by a product makes zeros negative as often as not.  They come back as they were, and so does every NaN.
"""

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesprune.storage.bits import BitReader, BitWriter, Flags
from bayesprune.storage.errors import StorageError
from bayesprune.storage.masks import get_mask, put_mask

LENGTH_BYTES = 4

Integers = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class Spec:
    """What has to be known of an array to unpack it; the dtype is of integers, the name is for messages."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Packed:
    """The content, and what it is made of.

    position_bits, values: of every array, the bits of its mask and how many of its values are live.
    head_bytes: the compressed last bytes of all values.
    """

    content: bytes
    position_bits: list[int]
    values: list[int]
    head_bytes: int


def pack(arrays: Sequence[Integers]) -> Packed:
    """Put arrays of integers of 1, 2, 4 or 8 bytes, the bits of floats among them, into as few bytes as we can."""
    writer, bits, counts = BitWriter(), [], []
    heads, tails = [], []
    for array in arrays:
        matrix = array.reshape(as_matrix(array.shape))
        live = live_values(matrix)
        before = writer.length
        put_mask(writer, live)
        writer.put_subset(matrix[~live] != 0)
        bits.append(writer.length - before)
        values = np.ascontiguousarray(matrix[live].astype(array.dtype.newbyteorder("<"), copy=False))
        plain = values.view(np.uint8).reshape(len(values), array.itemsize)
        counts.append(len(values))
        heads.append(plain[:, -1].tobytes())
        tails.append(plain[:, :-1].tobytes())
    positions = writer.to_bytes()
    compressed = _compress(b"".join(heads))
    parts = [len(positions).to_bytes(LENGTH_BYTES, "little"), positions, *tails, compressed]
    return Packed(b"".join(parts), bits, counts, len(compressed))


def unpack(content: bytes, specs: Sequence[Spec]) -> Iterator[Integers]:
    """The arrays of `pack`, in their order.

    Everything is checked before the first array is made; a mask takes a byte per element.  The caller has to see to
    it that the shapes are not absurd.
    """
    positions = _positions(content)
    reader = BitReader(positions)
    masks = [_mask(reader, spec) for spec in specs]
    reader.finish()
    counts = [int(np.count_nonzero(live)) for live, _ in masks]
    begin = LENGTH_BYTES + len(positions)
    end = begin + sum(count * (spec.dtype.itemsize - 1) for count, spec in zip(counts, specs, strict=True))
    if end > len(content):
        raise StorageError(f"the values need {end - begin} bytes, and {len(content) - begin} follow")
    tails = np.frombuffer(content, np.uint8)[begin:end]
    heads = np.frombuffer(_decompress(content[end:], sum(counts)), np.uint8)
    return _fill(masks, specs, heads, tails)


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """The matrix as which an array of this shape is seen: rows and columns."""
    if 0 in shape:  # the other dimensions may be anything then
        return 0, 0
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


def live_values(array: Integers) -> Flags:
    """Which values are more than a sign, bool of the shape of the array."""
    live: Flags = (array != 0) & (array != _negative_zero(array.dtype))
    return live


def _positions(content: bytes) -> memoryview:
    if len(content) < LENGTH_BYTES:
        raise StorageError(f"{len(content)} bytes are left, less than the {LENGTH_BYTES} with the length of positions")
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    if LENGTH_BYTES + length > len(content):
        raise StorageError(f"positions of {length} bytes are claimed, and {len(content) - LENGTH_BYTES} follow")
    return memoryview(content)[LENGTH_BYTES : LENGTH_BYTES + length]


def _mask(reader: BitReader, spec: Spec) -> tuple[Flags, Flags]:
    """The live values, (rows, columns), and the negative zeros among the others, (n,)."""
    try:
        live = get_mask(reader, *as_matrix(spec.shape))
        return live, reader.subset(live.size - int(np.count_nonzero(live)))
    except StorageError as error:
        raise StorageError(f"the positions of {spec.name}: {error}") from None


def _fill(
    masks: list[tuple[Flags, Flags]], specs: Sequence[Spec], heads: NDArray[np.uint8], tails: NDArray[np.uint8]
) -> Iterator[Integers]:
    masks.reverse()
    for spec in specs:
        live, negative = masks.pop()  # not needed a second time
        count, tail = int(np.count_nonzero(live)), spec.dtype.itemsize - 1
        plain = np.empty((count, tail + 1), np.uint8)
        plain[:, tail], heads = heads[:count], heads[count:]
        plain[:, :tail], tails = tails[: count * tail].reshape(count, tail), tails[count * tail :]
        array = np.zeros(live.shape, spec.dtype)
        if negative.any():
            array[~live] = np.where(negative, _negative_zero(spec.dtype), array.dtype.type(0))
        array[live] = plain.reshape(-1).view(spec.dtype.newbyteorder("<"))
        yield array.reshape(spec.shape)


def _negative_zero(dtype: np.dtype[Any]) -> np.signedinteger[Any]:
    """The integer that has the bits of a negative zero."""
    lowest: np.signedinteger[Any] = dtype.type(np.iinfo(dtype).min)
    return lowest


def _compress(content: bytes) -> bytes:
    """Huffman codes alone: there is nothing to be found twice, and looking for it takes long."""
    compressor = zlib.compressobj(9, strategy=zlib.Z_HUFFMAN_ONLY)
    return compressor.compress(content) + compressor.flush()


def _decompress(content: bytes, count: int) -> bytes:
    decompressor = zlib.decompressobj()
    try:
        found = decompressor.decompress(content, count + 1)
    except zlib.error as error:
        raise StorageError(f"the last bytes of the values cannot be decompressed: {error}") from None
    if len(found) != count or not decompressor.eof or decompressor.unused_data:
        raise StorageError(f"the last bytes of the values are not {count} and nothing else")
    return found
