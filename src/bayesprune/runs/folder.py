"""A run folder: config, history, checkpoints, messages and summary, in the hands of one process, always complete.

with RunFolder.create("runs/lenet5-digits-1", config) as run:
    run.append({"epoch": 1, "loss": 0.3})
    run.save_checkpoint({"model": model.state_dict(), "rows": run.rows})

with RunFolder.open("runs/lenet5-digits-1") as run:
    state = run.load_checkpoint()
    run.rewind(state["rows"] if state else 0)
"""

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bayesprune.runs import checkpoint, history, messages
from bayesprune.runs.atomic import remove_temporary_files, sync_folder, write_atomically
from bayesprune.runs.disk_errors import continuing, reading, resume_command, starting
from bayesprune.runs.errors import DamagedCheckpointError, RunError, RunWarning
from bayesprune.runs.lock import FolderLock
from bayesprune.runs.plain_json import read_json, to_json

CONFIG = "config.json"
HISTORY = "history.jsonl"
SUMMARY = "summary.json"
NETWORK = "network.safetensors"
CHECKPOINT = "checkpoint.safetensors"
PREVIOUS = "checkpoint.previous.safetensors"
LOCK = "lock"

# In the order in which they go when a run is overwritten: without its config it is no run.
RUN_FILES = (CONFIG, CHECKPOINT, PREVIOUS, HISTORY, SUMMARY, NETWORK)


class RunFolder:
    """What a run leaves on disk.  Made by `create` or `open`; the folder is locked until `close`."""

    def __init__(self, path: Path, lock: FolderLock) -> None:
        self.path = path
        self.rows = 0  # in the history
        self._lock = lock
        self._newest_is_good: bool | None = None  # None: not looked at yet

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: Mapping[str, Any], *, overwrite: bool = False) -> Self:
        """Start a run in the folder `path`, made where needed; files that are not a run's stay.

        Args:
            path: the folder.
            config: what the run needs to start again; finite numbers, text, lists and dicts.
            overwrite: remove the run that the folder holds, instead of refusing.
        """
        path = Path(path)
        text = to_json(dict(config), path / CONFIG, indent=2, exact=True)
        with starting(path):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError):
                raise RunError(f"{path} is not a folder, and cannot become one; choose another --name") from None
            run = cls(path, FolderLock(path / LOCK))
        try:
            with starting(path / CONFIG):
                run._remove_leftovers()
                _make_room(path, overwrite)
                write_atomically(path / CONFIG, [text.encode() + b"\n"])
                sync_folder(path.parent)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Take over the run in the folder `path` to continue it."""
        path = Path(path)
        read_config(path)
        with continuing(path / LOCK, path):
            run = cls(path, FolderLock(path / LOCK))
        try:
            with continuing(path / HISTORY, path):
                run._remove_leftovers()
                history.cut_rows(path / HISTORY)
                run.rows = history.count_rows(path / HISTORY)
        except BaseException:
            run.close()
            raise
        return run

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row to the history; NaN and infinity become null."""
        with self._writing(HISTORY) as path:
            history.append_row(path, dict(row))
        self.rows += 1

    def rewind(self, rows: int) -> None:
        """Cut the history to the `rows` that the checkpoint knows, and the messages to their outer iterations."""
        with self._writing(HISTORY) as path:
            history.cut_rows(path, rows)
            iterations = sum(messages.OUTER_ITERATION in row for row in history.read_rows(path))
        with self._writing(messages.MESSAGES) as path:
            messages.remove_messages(path, iterations)
        self.rows = rows

    def write_messages(self, sent: messages.Messages) -> None:
        """Keep the windows of the messages of an outer iteration, before its row is appended."""
        with self._writing(messages.MESSAGES):
            messages.write_messages(self.path, sent)

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Write `state` as the newest checkpoint; the newest before it becomes the previous one."""
        if self._newest_is_good is None:
            self._newest_is_good = self._is_good(CHECKPOINT)
        with self._writing(HISTORY) as path:
            history.sync_rows(path)  # a checkpoint never knows more rows than the disk
        with self._writing(CHECKPOINT) as path:
            # A damaged file must not take the place of the good one before it.
            checkpoint.save(path, dict(state), keep=self.path / PREVIOUS if self._newest_is_good else None)
        self._newest_is_good = True

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The newest checkpoint that is not damaged, None before the first; see `load_newest`."""
        state, file = load_newest(self.path)
        self._newest_is_good = file == CHECKPOINT
        return state

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json; NaN and infinity become null."""
        with self._writing(SUMMARY) as path:
            write_atomically(path, [to_json(dict(summary), path, indent=2).encode() + b"\n"])

    def read_config(self) -> dict[str, Any]:
        """What `create` was given."""
        return read_config(self.path)

    def read_history(self) -> list[dict[str, Any]]:
        """All rows of the history."""
        return read_history(self.path)

    def read_summary(self) -> dict[str, Any] | None:
        """The summary, None before it is written."""
        return read_summary(self.path)

    @property
    def resume_command(self) -> str:
        """What to type to continue this run."""
        return resume_command(self.path)

    def close(self) -> None:
        """Let the next process have the folder."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[Path]:
        """The path of the file `name`, for as long as it is written to."""
        if not self._lock.held:
            raise RunError(f"{self.path} is not open in this process (closed, or opened before a fork); open it again")
        with continuing(self.path / name, self.path):
            yield self.path / name

    def _is_good(self, name: str) -> bool:
        try:
            checkpoint.load(self.path / name)
        except RunError:
            return False
        return True

    def _remove_leftovers(self) -> None:
        for name in RUN_FILES:
            remove_temporary_files(self.path / name)
        messages.remove_temporary_messages(self.path / messages.MESSAGES)


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The config of the run in `folder`; like all reading, it needs no lock."""
    folder = Path(folder)
    with reading(folder / CONFIG):
        try:
            return read_json(folder / CONFIG)
        except (FileNotFoundError, NotADirectoryError):
            what = f"has no {CONFIG}" if folder.is_dir() else "is not a folder"
            raise RunError(f"there is no run in {folder}: it {what}; check the path, or start one there") from None


def read_history(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All rows of the history of the run in `folder`; an end torn by a crash is left out."""
    path = Path(folder) / HISTORY
    with reading(path):
        return history.read_rows(path)


def read_summary(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The summary of the run in `folder`, None before it is written."""
    path = Path(folder) / SUMMARY
    with reading(path):
        return read_json(path) if path.exists() else None


def load_newest(folder: str | os.PathLike[str]) -> tuple[dict[str, Any] | None, str | None]:
    """The newest checkpoint of the run in `folder` that is not damaged, and its file's name; None before the first.

    Warns (`RunWarning`) where that is not the last one written.
    """
    folder = Path(folder)
    damage = []
    with reading(folder):
        present = [name for name in (CHECKPOINT, PREVIOUS) if (folder / name).exists()]
    for name in present:
        try:
            state = checkpoint.load(folder / name)
        except DamagedCheckpointError as error:
            damage.append(str(error))
            continue
        if name == PREVIOUS:
            reason = damage[0] if damage else f"{folder / CHECKPOINT} is missing"
            warnings.warn(f"{reason}; going on from the one before it, {folder / name}", RunWarning, stacklevel=2)
        return state, name
    if damage:
        raise RunError(f"{'; '.join(damage)}; no checkpoint is left to resume from: start again with another --name")
    return None, None


def _make_room(path: Path, overwrite: bool) -> None:
    """See to it that the locked folder `path` holds no run."""
    found = [name for name in RUN_FILES if (path / name).exists()]
    sent = path / messages.MESSAGES
    if messages.message_files(sent):
        found.append(messages.MESSAGES)
    if not found:
        return
    if not overwrite:
        if CONFIG in found:
            raise RunError(
                f"{path} already holds a run; resume it with: {resume_command(path)}, or choose another --name"
            )
        raise RunError(f"{path} holds part of a run ({', '.join(found)}, but no {CONFIG}); choose another --name")
    for name in RUN_FILES:
        (path / name).unlink(missing_ok=True)
    messages.remove_messages(sent)
    sync_folder(path)
