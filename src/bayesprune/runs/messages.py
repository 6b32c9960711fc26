"""RUN/messages/0001.safetensors, ...: windows of the messages of every outer iteration, to look at."""

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as serialize_tensors
from torch import Tensor

from bayesprune.runs.atomic import sync_folder, write_atomically
from bayesprune.runs.disk_errors import reading
from bayesprune.runs.errors import RunError

MESSAGES = "messages"
FORMAT = "bayesprune-messages-1"
WINDOW = 64  # rows and columns that are kept of a layer
OUTER_ITERATION = "message_change"  # what the rows of outer iterations have in the history
NAME = re.compile(r"([0-9]{4,9})\.safetensors")
PARTS = ("from_supports", "to_supports", "posterior")
REMEDY = "remove the folder, or put the file back as the run wrote it"


@dataclass(frozen=True)
class LayerMessages:
    """The window of a layer: the first rows and columns of its view (out units, in units * kernel sites).

    shape: of the whole view.  Probabilities that s = 1 as uint8, round(255 p), all (rows, columns) of the window:
    from_supports: v_{h->s}, Module B to A (paper (36)).  to_supports: v_{eta->s}, Module A to B (paper (17)).
    posterior: q(s=1) with the new v_{h->s}.
    """

    shape: tuple[int, int]
    from_supports: Tensor
    to_supports: Tensor
    posterior: Tensor


@dataclass(frozen=True)
class Messages:
    """What an outer iteration has sent; iteration: counted from 1.  layers: by name."""

    iteration: int
    layers: dict[str, LayerMessages]


def window_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """What is kept of a view."""
    return min(WINDOW, shape[0]), min(WINDOW, shape[1])


def write_messages(folder: Path, messages: Messages) -> None:
    """Write the file of an outer iteration below the run folder, complete or not at all."""
    tensors = {
        f"{name}/{part}": getattr(layer, part).contiguous() for name, layer in messages.layers.items() for part in PARTS
    }
    shapes = json.dumps({name: list(layer.shape) for name, layer in messages.layers.items()})
    metadata = {"format": FORMAT, "iteration": str(messages.iteration), "shapes": shapes}
    path = folder / MESSAGES / f"{messages.iteration:04d}.safetensors"
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, [_in_order(serialize_tensors(tensors, metadata))])


def read_messages(run_folder: str | os.PathLike[str]) -> list[Messages]:
    """The messages of every outer iteration of a run, in their order; none where the run has kept none.

    Raises RunError where a file is not what a run writes, or one between two others is missing.
    """
    folder = Path(run_folder) / MESSAGES
    found: list[Messages] = []
    with reading(folder):
        for iteration, path in sorted(message_files(folder).items()):
            one = _parse(path, path.read_bytes())
            if one.iteration != iteration:
                raise _damaged(path, f"its iteration is {one.iteration}")
            if found and iteration != found[-1].iteration + 1:
                raise _damaged(folder, f"the messages of iteration {found[-1].iteration + 1} are missing")
            if found and _shapes(one) != _shapes(found[-1]):
                raise _damaged(path, "it has other layers than the iteration before")
            found.append(one)
    return found


def message_files(folder: Path) -> dict[int, Path]:
    """The files in the folder of messages by their iteration."""
    matches = [(NAME.fullmatch(path.name), path) for path in (folder.iterdir() if folder.is_dir() else ())]
    return {int(match[1]): path for match, path in matches if match}


def remove_messages(folder: Path, after: int = 0) -> None:
    """Remove the files of iterations beyond `after`, the last one first, so that none between two others misses."""
    later = [path for iteration, path in sorted(message_files(folder).items()) if iteration > after]
    for path in reversed(later):
        path.unlink()
    if later:
        sync_folder(folder)
    if later and not after:
        with contextlib.suppress(OSError):  # somebody else's files stay
            folder.rmdir()


def remove_temporary_messages(folder: Path) -> None:
    """Remove what killed processes left of writing into the folder; nobody may be writing there now."""
    for stale in folder.glob(".*.safetensors.*.tmp"):
        with contextlib.suppress(OSError):
            stale.unlink()


def _parse(path: Path, content: bytes) -> Messages:
    try:
        tensors = parse_tensors(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise _damaged(path, f"it is no safetensors file, {error}") from error
    metadata: Mapping[str, str] = _header(content).get("__metadata__") or {}
    if metadata.get("format") != FORMAT:
        raise RunError(f"{path} has the format {metadata.get('format')!r}, this version reads {FORMAT}")
    iteration = metadata.get("iteration", "")
    if not re.fullmatch("[1-9][0-9]{0,8}", iteration):
        raise _damaged(path, f"its iteration must be a whole number from 1, got {iteration!r}")
    shapes = _read_shapes(path, metadata.get("shapes", ""))
    expected = {f"{name}/{part}" for name in shapes for part in PARTS}
    if unexpected := sorted(expected ^ tensors.keys()):
        raise _damaged(path, f"tensors and shapes do not agree about {', '.join(unexpected)}")
    for name, shape in shapes.items():
        for part in PARTS:
            tensor = tensors[f"{name}/{part}"]
            if tensor.dtype != torch.uint8 or tuple(tensor.shape) != window_shape(shape):
                got = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
                raise _damaged(path, f"{name}/{part} must be uint8 {list(window_shape(shape))}, got {got}")
    layers = {
        name: LayerMessages(shape, *(tensors[f"{name}/{part}"] for part in PARTS)) for name, shape in shapes.items()
    }
    return Messages(int(iteration), layers)


def _header_end(content: bytes) -> int:
    """Where the header ends: it follows its own length, a little-endian number of 8 bytes."""
    return 8 + int.from_bytes(content[:8], "little")


def _header(content: bytes) -> dict[str, Any]:
    """Of a safetensors file that is known to be one."""
    header: dict[str, Any] = json.loads(content[8 : _header_end(content)])
    return header


def _in_order(content: bytes) -> bytes:
    """The same safetensors file with a sorted header: safetensors writes metadata in another order every time."""
    header = json.dumps(_header(content), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[_header_end(content) :]


def _read_shapes(path: Path, text: str) -> dict[str, tuple[int, int]]:
    try:
        shapes: Any = json.loads(text)
    except (ValueError, RecursionError):
        shapes = None
    if not isinstance(shapes, dict) or not all(_is_shape(shape) for shape in shapes.values()):
        raise _damaged(path, "its shapes must be JSON, {layer: [rows, columns]}")
    return {name: (rows, columns) for name, (rows, columns) in shapes.items()}


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and len(shape) == 2 and all(type(size) is int and size > 0 for size in shape)


def _shapes(messages: Messages) -> dict[str, tuple[int, int]]:
    return {name: layer.shape for name, layer in messages.layers.items()}


def _damaged(path: Path, reason: str) -> RunError:
    return RunError(f"{path} is damaged: {reason}; {REMEDY}")
