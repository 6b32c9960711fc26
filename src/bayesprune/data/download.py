"""Fetch a data set from its publisher or a mirror: checked, atomic, and only when asked for."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from bayesprune.data.contents import ArchiveSource, DataFile, FolderSource, fetch_command, read_file
from bayesprune.data.errors import DataError
from bayesprune.data.folders import search_folders
from bayesprune.data.progress import progress_bar
from bayesprune.data.registry import file_spec
from bayesprune.data.spec import Archive, FileSpec

TIMEOUT = 30  # seconds without a byte before a server counts as dead
CHUNK = 1 << 16


def fetch(
    name: str | FileSpec,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    base_url: str | None = None,
    quiet: bool = False,
) -> Path:
    """Download what is missing or damaged of a data set and return its folder.

    Files with the right content stay as they are, whatever their gzip wrapping.  A file gets its final name
    only when it is complete and its checksum is right; on any failure what was there before stays.
    Only a process that is killed leaves something: a hidden folder .fetch-*, safe to delete.

    Args:
        name: one of `DATA_SETS`, or a spec of your own.
        data_dir: the folder to put the data set in; by default $BAYESPRUNE_DATA, or the user's cache folder.
        base_url: a mirror that has the publisher's files, instead of the publisher.
        quiet: show no progress.
    """
    spec = file_spec(name) if isinstance(name, str) else name
    folder = search_folders(data_dir)[0]
    url = _checked_url(base_url or spec.base_url)
    target = folder / spec.folder
    try:
        if spec.archive is None:
            _fetch_files(spec, target, url, quiet)
        else:
            _fetch_archive(spec, spec.archive, folder, url, quiet)
    except OSError as error:
        raise DataError(
            f"cannot write to {folder}: {error}; choose another folder: bayesprune data fetch {spec.name} "
            "--data-dir FOLDER"
        ) from error
    return target


def _fetch_files(spec: FileSpec, target: Path, url: str, quiet: bool) -> None:
    """Bring every file of `spec` into `target`, one download each."""
    remedy = fetch_command(spec.name, target.parent)
    for file in spec.files:
        if _has_right_content(target / file.name, file):
            continue
        with _scratch_folder(target.parent) as scratch:
            fresh = scratch / file.name
            _download(url + file.name, fresh, quiet)
            _check_download(fresh, file, url + file.name, remedy)
            _move(fresh, target / file.name)
    spec.read(FolderSource(target, remedy))


def _fetch_archive(spec: FileSpec, archive: Archive, folder: Path, url: str, quiet: bool) -> None:
    """Bring the files of `spec` into its folder out of `archive`, which is downloaded unless it is there."""
    target, remedy = folder / spec.folder, fetch_command(spec.name, folder)
    with contextlib.suppress(DataError):
        spec.read(FolderSource(target, remedy))
        return
    with _scratch_folder(folder) as scratch:
        path = folder / archive.name
        if not (path.is_file() and _md5_of_file(path) == archive.md5):
            path = scratch / archive.name
            _download(url + archive.name, path, quiet)
            if (found := _md5_of_file(path)) != archive.md5:
                raise _wrong_checksum(url + archive.name, archive.md5, found, remedy)
        contents = ArchiveSource(path, spec.folder, remedy).read(spec.files)
        spec.parse(contents)
        for file in spec.files:
            fresh = scratch / file.name
            fresh.write_bytes(contents[file.name].data)
            _move(fresh, target / file.name)


def _download(url: str, path: Path, quiet: bool) -> None:
    """Write what `url` serves to the new file `path`, or raise DataError."""
    pooch = _import_pooch()
    progress = None if quiet else progress_bar(path.name)
    responses: list[Any] = []
    downloader = pooch.HTTPDownloader(
        progressbar=progress or False,
        chunk_size=CHUNK,
        timeout=TIMEOUT,
        # A server that offers to gzip what is gzipped already would have it unwrapped on arrival.
        headers={"Accept-Encoding": "identity"},
        hooks={"response": lambda response, **_: responses.append(response)},
    )
    try:
        downloader(url, str(path), None)
    except (OSError, ValueError) as error:  # requests' exceptions are OSErrors
        raise DataError(
            f"cannot download {url}: {error}; check the connection and try again, or name a mirror with --base-url URL"
        ) from error
    finally:
        if progress is not None:
            progress.abandon()
        for response in responses:  # pooch leaves the connection of a failed download open
            response.close()


def _check_download(path: Path, file: DataFile, url: str, remedy: str) -> None:
    """Raise DataError unless the downloaded file is the published one, or its content is."""
    if file.download_md5 is None:
        read_file(path, file, remedy)
    elif (found := _md5_of_file(path)) != file.download_md5 and not _has_right_content(path, file):
        raise _wrong_checksum(url, file.download_md5, found, remedy)


def _has_right_content(path: Path, file: DataFile) -> bool:
    """Say whether `path` is known to hold the content of `file`: by its MD5, or that of its content."""
    if not path.is_file():
        return False
    if file.content_md5 is None:
        return file.download_md5 is not None and _md5_of_file(path) == file.download_md5
    with contextlib.suppress(DataError):
        read_file(path, file, remedy="")
        return True
    return False


def _wrong_checksum(url: str, expected: str, found: str, remedy: str) -> DataError:
    return DataError(
        f"{url}: expected a file with MD5 {expected}, found MD5 {found}; nothing was kept.  Try again, or "
        f"another mirror: {remedy} --base-url URL"
    )


def _md5_of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextlib.contextmanager
def _scratch_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary folder inside `folder`: on the same disk, moving a file out of it is atomic."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        yield Path(scratch)


def _move(fresh: Path, final: Path) -> None:
    """Give a complete file its final name, in place of what had it before."""
    final.parent.mkdir(exist_ok=True)
    fresh.replace(final)


def _checked_url(base_url: str) -> str:
    if not base_url.startswith(("http://", "https://")):
        raise DataError(f"base_url must start with http:// or https://, got {base_url!r}; try https://{base_url}")
    return base_url if base_url.endswith("/") else base_url + "/"


def _import_pooch() -> Any:
    try:
        return import_module("pooch")
    except ImportError as error:
        raise DataError(
            "downloading needs pooch, which is not installed; run: pip install 'bayesprune[fetch]'"
        ) from error
