"""The tensor `packed` of version 2: the description of a network and all its tensors, in few bytes.

First a zlib stream with UTF-8 text of nine lines, each JSON: architecture, note, tied, config, metrics, classes,
example_shape, versions and tensors.  The last is {name: [dtype, shape]}, or {name: [dtype, shape, dtype of the values]}
where the values were rounded.  Then the tensors in this order, as `bayesprune.storage` packs them.
"""

import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import torch
from torch import Tensor

from bayesprune.artefact.container import (
    DESCRIPTION,
    DTYPE_NAMES,
    LONGEST_HEADER,
    PACKED,
    Entry,
    Header,
    check_booleans,
    check_header_size,
    check_kind,
    parse_json,
    plain_tensor,
    read_tensor,
)
from bayesprune.artefact.errors import ArtefactError, TooSparseError
from bayesprune.artefact.names import check_path, shorten
from bayesprune.storage import Integers, Spec, StorageError, live_values, pack, unpack

# Zeros cost next to nothing, so a small file could ask for any amount of memory.
MOST_TIMES: Final = 1000
MOST_MORE: Final = 16 * 2**20
INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
ROUNDED: Final = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Content:
    """What `packed` holds: the description as texts, the tensors by name, and their bytes."""

    description: dict[str, str]
    entries: dict[str, Entry]
    tensors: bytes


def pack_network(description: Mapping[str, str], tensors: Mapping[str, Tensor], values: str | None) -> Tensor:
    """The tensor `packed`.

    values: float16 or bfloat16, to which the weights, floats of two or more dimensions, are rounded; None keeps them.
    """
    table: dict[str, Any] = {}
    stored = []
    for name, tensor in tensors.items():
        plain = plain_tensor(tensor, name)
        rounded = plain if values is None else _rounded(plain, values, name)
        kinds = [plain.dtype] if rounded.dtype == plain.dtype else [plain.dtype, rounded.dtype]
        dtype, *other = (DTYPE_NAMES[kind] for kind in kinds)
        table[check_path(name, "a tensor")] = [dtype, list(plain.shape), *other]
        stored.append(rounded)
    lines = [_one_line(description[key], key) for key in DESCRIPTION]
    text = "\n".join([*lines, json.dumps(table, separators=(",", ":"))]).encode()
    check_header_size(text)
    packed = pack([as_integers(one) for one in stored])
    content = zlib.compress(text, 9) + packed.content
    if (total := sum(one.nbytes for one in tensors.values())) > most_bytes(len(content)):
        raise TooSparseError(
            f"the weights are nearly all zero: {total} bytes would be packed into {len(content)}, and no more than "
            f"{MOST_TIMES} times as much can be loaded; remove what is dead, or use storage='dense'"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def as_integers(tensor: Tensor) -> Integers:
    """The bits of a tensor."""
    bits: Integers = tensor.view(INTEGERS[tensor.itemsize]).numpy()
    return bits


def share_of_zeros(tensors: Mapping[str, Tensor]) -> float:
    """How many of the weights, tensors of two or more dimensions, are zero."""
    weights = [as_integers(plain_tensor(one, name)) for name, one in tensors.items() if one.ndim > 1]
    size = sum(one.size for one in weights)
    return 1 - sum(int(np.count_nonzero(live_values(one))) for one in weights) / size if size else 0.0


def read_content(file: BinaryIO, shell: Header) -> Content:
    """Read and check everything but the weights themselves."""
    path = shell.path
    entry = shell.entries.get(PACKED)
    if len(shell.entries) != 1 or entry is None or entry.dtype != torch.uint8 or len(entry.shape) != 1:
        raise ArtefactError(
            f"{path} must hold the tensor {PACKED} of bytes, in one dimension, and no other; it has "
            f"{shorten(sorted(shell.entries))}"
        )
    packed = read_tensor(file, entry, PACKED, path).numpy().tobytes()
    text, tensors = _decompress(packed, path)
    lines = text.split(b"\n")
    keys = (*DESCRIPTION, "tensors")
    if len(lines) != len(keys):
        raise ArtefactError(f"the description in {path} has {len(lines)} lines; it must have {len(keys)}")
    try:
        texts = {key: line.decode("utf-8") for key, line in zip(keys, lines, strict=True)}
    except UnicodeDecodeError as error:
        raise ArtefactError(f"the description in {path} is not UTF-8: {error.reason}; it is damaged") from None
    entries = _entries(parse_json(texts.pop("tensors"), f"tensors in {path}"), path)
    total = sum(one.bytes for one in entries.values())
    if total > most_bytes(len(packed)):
        raise ArtefactError(
            f"{path} claims tensors of {total} bytes in {len(packed)}; the limit is {MOST_TIMES} times as much and "
            f"{MOST_MORE} more: this is absurd"
        )
    note = parse_json(texts["note"], f"note in {path}")
    if not isinstance(note, str):
        raise ArtefactError(f"note in {path} is {shorten(note)}; it must be a text")
    return Content(texts | {"note": note}, entries, tensors)


def unpack_tensors(content: Content, path: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its name; all are checked before the first is made."""
    specs = [
        Spec(name, one.shape, np.dtype(f"i{(one.values or one.dtype).itemsize}"))
        for name, one in content.entries.items()
    ]
    try:
        arrays = unpack(content.tensors, specs)
    except StorageError as error:
        raise ArtefactError(f"the weights in {path} are not as bayesprune packs them: {error}") from None
    for (name, entry), array in zip(content.entries.items(), arrays, strict=True):
        stored = torch.from_numpy(array).view(entry.values or entry.dtype)
        check_booleans(stored, name, path)
        # Memory that torch aligned: the last bits of results depend on it.
        yield name, torch.empty(entry.shape, dtype=entry.dtype, device="cpu").copy_(stored)


def most_bytes(packed: int) -> int:
    """The bytes of tensors that may be in so many packed bytes."""
    return MOST_TIMES * packed + MOST_MORE


def _rounded(tensor: Tensor, values: str, name: str) -> Tensor:
    """The weight in a smaller dtype; whatever is not a weight, or small already, as it is."""
    dtype = ROUNDED[values]
    if tensor.ndim < 2 or not tensor.is_floating_point() or tensor.itemsize <= dtype.itemsize:
        return tensor
    rounded = tensor.to(dtype)
    if bool((rounded.isinf() & tensor.isfinite()).any()):
        largest = float(tensor[tensor.isfinite()].abs().max())
        raise ArtefactError(
            f"{name} has the value {largest:g}, and {values} ends at {torch.finfo(dtype).max:g}; try values='bfloat16' "
            "or None"
        )
    return rounded


def _one_line(text: str, key: str) -> str:
    """JSON without spaces; the note is a plain text elsewhere."""
    content = text if key == "note" else json.loads(text)
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _decompress(packed: bytes, path: Path) -> tuple[bytes, bytes]:
    """The description, and what follows it."""
    decompressor = zlib.decompressobj()
    try:
        text = decompressor.decompress(packed, LONGEST_HEADER + 1)
    except zlib.error as error:
        raise ArtefactError(f"the description in {path} cannot be decompressed: {error}; it is damaged") from None
    if len(text) > LONGEST_HEADER:
        raise ArtefactError(f"the description in {path} has more than {LONGEST_HEADER} bytes; this is absurd")
    if not decompressor.eof:
        raise ArtefactError(f"the description in {path} ends too early; it was cut off")
    return text, decompressor.unused_data


def _entries(table: Any, path: Path) -> dict[str, Entry]:
    if not isinstance(table, dict):
        raise ArtefactError(f"tensors in {path} is {shorten(table)}; it must be an object")
    return {check_path(name, f"a tensor in {path}"): _entry(one, name, path) for name, one in table.items()}


def _entry(one: Any, name: str, path: Path) -> Entry:
    what = f"tensor {name} in {path}"
    if not isinstance(one, list) or len(one) not in (2, 3):
        raise ArtefactError(f"{what} is {shorten(one)}; it needs dtype, shape, and the dtype of rounded values if any")
    dtype = check_kind(one[0], one[1], what)
    values = None
    if len(one) == 3:
        values = next((known for known in ROUNDED.values() if DTYPE_NAMES[known] == one[2]), None)
        if values is None or not dtype.is_floating_point or dtype.itemsize <= values.itemsize:
            raise ArtefactError(f"{what} is {one[0]} with values of {shorten(one[2])}; only floats can be rounded")
    return Entry(dtype, tuple(one[1]), 0, math.prod(one[1]) * dtype.itemsize, values)
