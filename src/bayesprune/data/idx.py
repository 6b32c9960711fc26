"""The IDX format of MNIST and Fashion-MNIST: a big-endian header with the sizes, then the bytes."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import numpy.typing as npt

from bayesprune.data.contents import Content, DataFile
from bayesprune.data.spec import FileSpec, Part, RawPart, check_labels

UNSIGNED_BYTE: Final = 0x08  # the third byte of the magic number names the element type


def header_size(dimensions: int) -> int:
    """Return the bytes before the data: the magic number and one 32-bit size per dimension."""
    return 4 + 4 * dimensions


def parse_idx(content: Content, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return the array uint8 of `shape` held in an IDX file, or raise DataError.

    The header must announce exactly `shape` and exactly that many bytes must follow; so nothing is ever
    allocated on the word of a header.
    """
    data, start = content.data, header_size(len(shape))
    if len(data) < start:
        raise content.error(f"an IDX header of {start} bytes", f"{len(data)} bytes in all")
    magic, expected_magic = data[:4], bytes((0, 0, UNSIGNED_BYTE, len(shape)))
    if magic != expected_magic:
        raise content.error(f"IDX magic number {expected_magic.hex()}", magic.hex())
    sizes = struct.unpack(f">{len(shape)}I", data[4:start])
    if sizes != shape:
        raise content.error(f"dimensions {shape}", str(sizes))
    if len(data) - start != math.prod(shape):
        raise content.error(f"{math.prod(shape)} bytes after the header", str(len(data) - start))
    # A copy, because torch wants memory it may write to.
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


def idx_file(
    name: str, shape: tuple[int, ...], content_md5: str | None = None, download_md5: str | None = None
) -> DataFile:
    """Describe an IDX file of unsigned bytes with dimensions `shape`."""
    return DataFile(name, header_size(len(shape)) + math.prod(shape), content_md5, download_md5)


@final
@dataclass(frozen=True)
class IdxSpec(FileSpec):
    """A data set in IDX files: each part is (images, labels); images of one channel."""

    def parse_part(self, part: Part, contents: Mapping[str, Content]) -> RawPart:
        """Return one part from the `contents` of its files, or raise DataError."""
        images_file, labels_file = getattr(self, part)
        _, height, width = self.shape
        count = (images_file.size - header_size(3)) // (height * width)
        labels = parse_idx(contents[labels_file.name], (count,))
        check_labels(labels, self.class_count, contents[labels_file.name])
        images = parse_idx(contents[images_file.name], (count, height, width))
        return RawPart(images[:, None], labels.astype(np.int64))
