"""A state on disk: one safetensors file, written atomically, checked when read, and nothing in it is ever executed."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import load as parse_tensors
from safetensors.torch import save as serialize_tensors

from bayesprune.runs.atomic import Buffer, write_atomically
from bayesprune.runs.errors import DamagedCheckpointError, RunError
from bayesprune.runs.tree import TreeEncoder, decode

FORMAT = 1
DIGITS = 64  # of a SHA-256
PLACEHOLDER = "0" * DIGITS  # stands for the checksum while the checksum is computed
# Quotes inside the tree are escaped, so this can only be the field itself.
FIELD = b'"checksum":"'


def save(path: str | os.PathLike[str], state: Any, *, keep: str | os.PathLike[str] | None = None) -> None:
    """Write `state` to the file `path`: there is the old file or the complete new one, at any moment.

    Args:
        path: the file.
        state: dicts (keys str or int), lists, tuples, numbers, str, bool, None and dense tensors of any dtype and
            device, nested in any way.
        keep: a second name, in the same folder, for the file that was there before.

    Raises:
        RunError: the state holds something else; nothing was written.
        OSError: the file cannot be written; what was there before stays.
    """
    path = Path(path)
    write_atomically(path, serialize(state), None if keep is None else Path(keep))


def load(path: str | os.PathLike[str]) -> Any:
    """The state in the file `path`, equal to the one saved to the bit, its tensors on the CPU."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"there is no checkpoint {path}; check the path") from None
    except PermissionError as error:
        raise RunError(f"cannot read {path}: {error.strerror}; check who owns it") from error
    except OSError as error:
        raise DamagedCheckpointError(f"cannot read {path}: {error.strerror}") from error
    return deserialize(content, path)


def serialize(state: Any) -> list[Buffer]:
    """The content of the file, in pieces."""
    encoder = TreeEncoder()
    try:
        tree = json.dumps(encoder.encode(state), allow_nan=False, separators=(",", ":"))
    except RecursionError:
        raise RunError("the state is nested too deep, or contains itself; a checkpoint holds a finite tree") from None
    metadata = {"format": f"bayesprune-checkpoint-{FORMAT}", "checksum": PLACEHOLDER, "tree": tree}
    content = memoryview(serialize_tensors(encoder.tensors, metadata))
    start = _checksum_start(content, _header_end(content))
    assert start is not None
    digest = hashlib.sha256(content).hexdigest().encode()
    return [content[:start], digest, content[start + DIGITS :]]


def deserialize(content: bytes, path: Path) -> Any:
    """The state in the content of the file `path`; the name is for the messages."""
    view = memoryview(content)
    end = _header_end(view)
    start = _checksum_start(view, end)
    if start is None:
        raise DamagedCheckpointError(f"{path} is damaged: {len(content)} bytes, without the header of a checkpoint")
    digest = hashlib.sha256(view[:start])
    digest.update(PLACEHOLDER.encode())
    digest.update(view[start + DIGITS :])
    if digest.hexdigest().encode() != bytes(view[start : start + DIGITS]):
        raise DamagedCheckpointError(
            f"{path} is damaged: its checksum does not match its content ({len(content)} bytes)"
        )
    metadata = json.loads(bytes(view[8:end]))["__metadata__"]
    if metadata["format"] != f"bayesprune-checkpoint-{FORMAT}":
        raise RunError(
            f"{path} has the format {metadata['format']!r}, this version reads bayesprune-checkpoint-{FORMAT}; "
            "use the version of bayesprune that wrote it"
        )
    return decode(json.loads(metadata["tree"]), parse_tensors(content))


def _header_end(content: memoryview) -> int:
    """Where the header ends: it follows its own length, a little-endian number of 8 bytes."""
    return 8 + int.from_bytes(content[:8], "little")


def _checksum_start(content: memoryview, end: int) -> int | None:
    """The position of the checksum in a file whose header ends at `end`, None where it has none."""
    if not 8 < end <= len(content):
        return None
    position = bytes(content[:end]).find(FIELD, 8)
    return None if position < 0 or position + len(FIELD) + DIGITS > end else position + len(FIELD)
