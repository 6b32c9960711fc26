"""Where data sets are looked for, and which of these places holds one."""

import os
import sys
from pathlib import Path
from typing import Final

from bayesprune.data.contents import ArchiveSource, FolderSource, Source, fetch_command
from bayesprune.data.errors import DataError
from bayesprune.data.spec import FileSpec

ENVIRONMENT_VARIABLE: Final = "BAYESPRUNE_DATA"


def user_cache_folder() -> Path:
    """Return the folder for caches this platform gives to the user, with a folder of our own inside."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return Path(local or Path.home() / "AppData" / "Local") / "bayesprune" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bayesprune"
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG rule: a relative path there is invalid and to be ignored.
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "bayesprune"


def search_folders(data_dir: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """Return the folders to search, in order: `data_dir`, $BAYESPRUNE_DATA, the user's cache folder."""
    given = [] if data_dir is None else [Path(data_dir).expanduser()]
    if from_environment := os.environ.get(ENVIRONMENT_VARIABLE):
        given.append(Path(from_environment).expanduser())
    return tuple(dict.fromkeys([*given, user_cache_folder()]))


def find_source(spec: FileSpec, folder: Path) -> Source | None:
    """Return the place in `folder` that holds every file of the data set, or None.

    Unpacked files come before the publisher's archive, because they are faster to read.  Only the presence of
    the files is looked at; reading checks their contents.
    """
    remedy = fetch_command(spec.name, folder)
    if not missing_files(spec, folder):
        return FolderSource(folder / spec.folder, remedy)
    if spec.archive is not None and (folder / spec.archive.name).is_file():
        return ArchiveSource(folder / spec.archive.name, spec.folder, remedy)
    return None


def locate(spec: FileSpec, data_dir: str | os.PathLike[str] | None = None) -> Source:
    """Return the first place searched that holds the data set, or raise DataError listing them all."""
    folders = search_folders(data_dir)
    for folder in folders:
        if source := find_source(spec, folder):
            return source
    searched = "\n".join(f"  {folder}: {_what_is_missing(spec, folder)}" for folder in folders)
    command = fetch_command(spec.name, folders[0] if data_dir is not None else None)
    raise DataError(f"data set {spec.name} was not found.  Searched:\n{searched}\nTo download it run: {command}")


def missing_files(spec: FileSpec, folder: Path) -> list[str]:
    """Return the names of the data set's files that `folder` lacks."""
    return [file.name for file in spec.files if not (folder / spec.folder / file.name).is_file()]


def _what_is_missing(spec: FileSpec, folder: Path) -> str:
    if not folder.exists():
        return "no such folder"
    if not folder.is_dir():
        return "not a folder"
    missing = missing_files(spec, folder)
    more = f" and {len(missing) - 1} more files" if len(missing) > 1 else ""
    archive = f" (nor {spec.archive.name})" if spec.archive else ""
    return f"no {spec.folder}/{missing[0]}{more}{archive}"
