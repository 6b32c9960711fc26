"""Files of a data set and their checked contents, read from a folder or straight from an archive."""

import gzip
import hashlib
import io
import shlex
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bayesprune.data.errors import DataError

TEXT_LIMIT = 1 << 16  # no list of class names is near 64 kB
ARCHIVE_SLACK = 1 << 24  # headers, padding and readme files beside the data: 16 MB is ample


@dataclass(frozen=True)
class DataFile:
    """One file of a data set: its name, the exact size of its uncompressed content, and known checksums.

    `size` None marks a short text file.  `content_md5` is the MD5 of the uncompressed content; `download_md5`
    that of the file as published, which another gzip wrapping of the same content does not have.
    """

    name: str
    size: int | None
    content_md5: str | None = None
    download_md5: str | None = None

    @property
    def size_limit(self) -> int:
        """The most bytes its content may have."""
        return TEXT_LIMIT if self.size is None else self.size

    @property
    def size_rule(self) -> str:
        """The rule for its size in words."""
        return f"at most {TEXT_LIMIT} bytes of text" if self.size is None else f"{self.size} bytes of content"


@dataclass(frozen=True)
class Content:
    """The uncompressed bytes of one file, with what an error message about them needs."""

    data: bytes
    path: str
    remedy: str

    def error(self, expected: str, found: str) -> DataError:
        """Return the error that names the file, the rule, what is there instead, and the remedy."""
        return damaged(self.path, expected, found, self.remedy)


class Source(Protocol):
    """A place that holds every file of a data set."""

    @property
    def path(self) -> Path:
        """The folder or archive read from."""
        ...

    def read(self, files: Sequence[DataFile]) -> dict[str, Content]:
        """Return the checked contents of `files` by name, or raise DataError."""
        ...


def damaged(path: str, expected: str, found: str, remedy: str) -> DataError:
    """Return the error for a file that is not what it should be."""
    return DataError(f"{path}: expected {expected}, found {found}; for a good copy run: {remedy}")


def fetch_command(name: str, data_dir: Path | None = None) -> str:
    """Return the command that fetches data set `name` (into `data_dir`)."""
    command = f"bayesprune data fetch {name}"
    return command if data_dir is None else f"{command} --data-dir {shlex.quote(str(data_dir))}"


def md5_of(data: bytes) -> str:
    """Return the MD5 of `data` in hexadecimal; it guards against accidents, not against attackers."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class FolderSource:
    """The files of a data set in one folder, gzip-wrapped where their name ends in .gz."""

    path: Path
    remedy: str

    def read(self, files: Sequence[DataFile]) -> dict[str, Content]:
        """Return the checked contents of `files` by name, or raise DataError."""
        return {file.name: read_file(self.path / file.name, file, self.remedy) for file in files}


def read_file(path: Path, file: DataFile, remedy: str) -> Content:
    """Return the content of one file after checking its wrapping, size and checksum."""
    try:
        with gzip.open(path) if file.name.endswith(".gz") else path.open("rb") as stream:
            # One byte more than allowed shows a file that is too long without reading all of it.
            data = stream.read(file.size_limit + 1)
    except FileNotFoundError as error:
        raise damaged(str(path), "a file", "nothing", remedy) from error
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(str(path), f"a readable file with {file.size_rule}", str(error), remedy) from error
    return checked(Content(data, str(path), remedy), file)


def checked(content: Content, file: DataFile) -> Content:
    """Return `content` if its size and, where known, its MD5 are those of `file`."""
    size = len(content.data)
    if size > file.size_limit:
        raise content.error(file.size_rule, "more")
    if file.size is not None and size < file.size:
        raise content.error(file.size_rule, f"only {size}")
    if file.content_md5 is not None and (found := md5_of(content.data)) != file.content_md5:
        raise content.error(f"content with MD5 {file.content_md5}", f"MD5 {found}")
    return content


@dataclass(frozen=True)
class ArchiveSource:
    """The files of a data set in a publisher's .tar.gz: read from it in one pass, never written to disk."""

    path: Path
    folder: str
    remedy: str

    def read(self, files: Sequence[DataFile]) -> dict[str, Content]:
        """Return the checked contents of `files` by name, or raise DataError."""
        limit = sum(file.size_limit for file in files) + ARCHIVE_SLACK
        try:
            with gzip.open(self.path) as unzipped:
                stream = _BoundedReader(unzipped, limit)
                contents = self._members(stream, {f"{self.folder}/{file.name}": file for file in files})
                while stream.read(1 << 20):  # gzip compares its checksum only at the very end
                    pass
        except DataError:
            raise
        # tarfile reports a broken header in many ways, some of them plain ValueErrors
        except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, LookupError) as error:
            raise damaged(str(self.path), "an intact .tar.gz archive", str(error), self.remedy) from error
        for file in files:
            if file.name not in contents:
                expected = f"a member {self.folder}/{file.name}"
                raise damaged(str(self.path), expected, "none", self.remedy)
        return contents

    def _members(self, stream: "_BoundedReader", wanted: dict[str, DataFile]) -> dict[str, Content]:
        contents: dict[str, Content] = {}
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                file = wanted.get(member.name.removeprefix("./"))
                if file is None:
                    continue
                where = f"{self.path}, member {member.name}"
                body = archive.extractfile(member) if member.isreg() else None
                if body is None:  # a link could point anywhere
                    raise damaged(where, "a regular file", "a link or a folder", self.remedy)
                if file.name in contents:
                    raise damaged(where, "one member of that name", "two", self.remedy)
                with body:
                    content = Content(body.read(file.size_limit + 1), where, self.remedy)
                contents[file.name] = checked(content, file)
        return contents


class _BoundedReader(io.RawIOBase):
    """A stream that refuses to give more than `limit` bytes: a small archive can unzip to terabytes."""

    def __init__(self, stream: gzip.GzipFile, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._left = limit

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"more than {self._limit} bytes")
        return data
