"""Names of runs: lenet5-fashion-mnist-1, the next one -2, each a folder below runs/."""

import os
import re
from pathlib import Path

from bayesprune.runs.errors import RunError

BASE = "runs"


def default_name(model: str, data: str, base: str | os.PathLike[str] = BASE) -> str:
    """The next name for a run of `model` on `data` below `base`: numbers go on after the highest one there."""
    stem = f"{_words(model)}-{_words(data)}"
    pattern = re.compile(re.escape(stem) + r"-([0-9]{1,9})")
    base = Path(base)
    taken = [pattern.fullmatch(entry.name) for entry in base.iterdir()] if base.is_dir() else []
    return f"{stem}-{max((int(match[1]) for match in taken if match), default=0) + 1}"


def new_folder(model: str, data: str, base: str | os.PathLike[str] = BASE) -> Path:
    """Make and return the folder of the next default name; two processes at once get two folders."""
    base = Path(base)
    try:
        base.mkdir(parents=True, exist_ok=True)
        while True:
            folder = base / default_name(model, data, base)
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise RunError(f"cannot make a run folder in {base}: {error.strerror}; choose another place") from error


def run_folder(name: str, base: str | os.PathLike[str] = BASE) -> Path:
    """The folder of the run `name` below `base`."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,199}", name):
        raise RunError(
            f"a run name holds letters, digits and _ . + = - and starts with a letter, a digit or _, got {name!r}; "
            f"try {_words(name)!r}"
        )
    return Path(base) / name


def _words(text: str) -> str:
    """`text` in lower case with single hyphens between its words, `run` where it has none."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:90] or "run"
