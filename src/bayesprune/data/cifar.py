"""The binary format of CIFAR: records of label byte(s) followed by the red, green and blue planes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from bayesprune.data.contents import Content, DataFile
from bayesprune.data.errors import DataError
from bayesprune.data.spec import FileSpec, Part, RawPart, check_labels


def parse_cifar(content: Content, shape: tuple[int, int, int], label_bytes: int, classes: int) -> RawPart:
    """Return the records of one file, images uint8 (n, c, h, w), or raise DataError.

    The last label byte counts: CIFAR-100 has the coarse label before the fine one.
    """
    record = label_bytes + math.prod(shape)
    if len(content.data) % record:
        raise content.error(f"a multiple of {record} bytes, one record each", f"{len(content.data)} bytes")
    records = np.frombuffer(content.data, np.uint8).reshape(-1, record)
    labels = records[:, label_bytes - 1]
    check_labels(labels, classes, content)
    return RawPart(records[:, label_bytes:].reshape(-1, *shape), labels.astype(np.int64))


def cifar_file(name: str, records: int, label_bytes: int, shape: tuple[int, int, int] = (3, 32, 32)) -> DataFile:
    """Describe a file of `records` CIFAR records."""
    return DataFile(name, records * (label_bytes + math.prod(shape)))


@final
@dataclass(frozen=True)
class CifarSpec(FileSpec):
    """A data set in CIFAR's binary files: each part is one or more files of records, joined in order."""

    label_bytes: int = 1

    def parse_part(self, part: Part, contents: Mapping[str, Content]) -> RawPart:
        """Return one part from the `contents` of its files, or raise DataError."""
        files: tuple[DataFile, ...] = getattr(self, part)
        if not files:
            raise DataError(f"data set {self.name} names no file for its {part} part; add one to its spec")
        parts = [parse_cifar(contents[file.name], self.shape, self.label_bytes, self.class_count) for file in files]
        return RawPart(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))
