"""JSON that every reader accepts: numbers that JSON does not have become null, or are refused."""

import json
import math
import os
from pathlib import Path
from typing import Any

from bayesprune.runs.errors import RunError


def to_json(content: dict[str, Any], path: Path, *, indent: int | None = None, exact: bool = False) -> str:
    """`content` as JSON for the file `path`.

    NaN and infinity become null, so that the end of a long run is never lost to a number; with `exact` they are
    refused, for content that is read back to continue.
    """
    if not isinstance(content, dict):
        raise RunError(f"{path} holds a dict, got a {type(content).__name__}")
    try:
        return json.dumps(_plain(content, "", path, exact), indent=indent, allow_nan=False)
    except RecursionError:
        raise RunError(f"{path} cannot hold a dict that contains itself") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file `path`, or RunError where it is not one; a missing file is an OSError."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise RunError(f"{path} is not JSON: {error}; put it back as the run wrote it") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} must hold a JSON object, found a {type(content).__name__}")
    return content


def _plain(value: Any, key: str, path: Path, exact: bool) -> Any:
    """`value` in JSON's types; a tensor or array with one element is its number, a path its text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        if exact:
            raise RunError(f"{path} cannot hold {key} = {value}; use a finite number, or None for none")
        return None
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise RunError(f"{path} cannot hold the key {name!r}; keys must be str")
        return {name: _plain(item, f"{key}.{name}" if key else name, path, exact) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{key}[{i}]", path, exact) for i, item in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", None) == 0:
        return _plain(item(), key, path, exact)
    raise RunError(f"{path} cannot hold {key}, a {type(value).__name__}; use numbers, text, lists and dicts")
