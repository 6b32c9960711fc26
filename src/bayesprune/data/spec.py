"""What a data set on disk consists of: its files, their meaning and where they are published."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from bayesprune.data.contents import Content, DataFile, Source

Part = Literal["train", "test"]


@dataclass(frozen=True, eq=False)
class RawPart:
    """Images uint8 (n, c, h, w) and labels int64 (n,) as published."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RawData:
    """A data set as published: the training and the test part and the names of the classes."""

    train: RawPart
    test: RawPart
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Archive:
    """A .tar.gz that holds the folder of a data set, with the MD5 its publisher gives."""

    name: str
    md5: str


@dataclass(frozen=True)
class FileSpec(ABC):
    """A data set kept in files of one folder: `folder`/`train` and `test` files, images of `shape` (c, h, w).

    `class_names` are the names themselves or the file that lists them.  The files come one by one from
    `base_url`, or all in `archive` where there is one.
    """

    name: str
    title: str
    folder: str
    base_url: str
    shape: tuple[int, int, int]
    class_count: int
    class_names: tuple[str, ...] | DataFile
    train: tuple[DataFile, ...]
    test: tuple[DataFile, ...]
    archive: Archive | None = None

    @property
    def files(self) -> tuple[DataFile, ...]:
        """Every file that must be there."""
        listed = (self.class_names,) if isinstance(self.class_names, DataFile) else ()
        return (*self.train, *self.test, *listed)

    def read(self, source: Source) -> RawData:
        """Return the whole data set from `source`, every file checked."""
        return self.parse(source.read(self.files))

    def parse(self, contents: Mapping[str, Content]) -> RawData:
        """Return the data set held by the `contents` of its files."""
        return RawData(self.parse_part("train", contents), self.parse_part("test", contents), self._names(contents))

    @abstractmethod
    def parse_part(self, part: Part, contents: Mapping[str, Content]) -> RawPart:
        """Return one part from the `contents` of its files, or raise DataError."""

    def _names(self, contents: Mapping[str, Content]) -> tuple[str, ...]:
        if isinstance(self.class_names, DataFile):
            return parse_names(contents[self.class_names.name], self.class_count)
        return self.class_names


def parse_names(content: Content, count: int) -> tuple[str, ...]:
    """Return the class names of a text file with one name per line; blank lines do not count."""
    try:
        lines = content.data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise content.error("UTF-8 text", str(error)) from error
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) != count:
        raise content.error(f"{count} class names, one per line", str(len(names)))
    if len(set(names)) != count or not all(name.isprintable() for name in names):
        raise content.error(f"{count} different, printable class names", "repeated or unprintable ones")
    return names


def check_labels(labels: npt.NDArray[np.uint8], class_count: int, content: Content) -> None:
    """Raise DataError unless every label (n,) is below `class_count`."""
    if labels.size and (highest := int(labels.max())) >= class_count:
        at = int(labels.argmax())
        raise content.error(f"labels from 0 to {class_count - 1}", f"{highest} in record {at}")
