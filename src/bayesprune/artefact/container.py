"""The file itself: a safetensors file whose header is checked, byte for byte, before anything is made of it.

8 bytes, the length of the header, little-endian; the header, a JSON object; the tensors, one after the other.  In
version 1 the header describes the network.  In version 2, storage "clusters", there is one tensor of bytes, `packed`,
which holds that description and all tensors of the network (see `packed`).
"""

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch
from torch import Tensor

from bayesprune.artefact.errors import ArtefactError
from bayesprune.artefact.names import check_path, shorten
from bayesprune.runs.atomic import Buffer
from bayesprune.runs.checkpoint import DIGITS, FIELD, PLACEHOLDER

FORMAT: Final = "bayesprune-artefact"
DENSE, CLUSTERS = "1", "2"  # versions
PACKED: Final = "packed"
SHELL: Final = frozenset({"format", "version", "checksum"})
DESCRIPTION: Final = ("architecture", "note", "tied", "config", "metrics", "classes", "example_shape", "versions")
KEYS: Final = {DENSE: SHELL | set(DESCRIPTION), CLUSTERS: SHELL}
# A header of real networks has some kilobytes.  Python's objects are many times larger than their JSON, so the number
# of items is limited too.
LONGEST_HEADER: Final = 16 * 2**20
MOST_ITEMS: Final = 1_000_000
MOST_DIMENSIONS: Final = 64
MOST_ELEMENTS: Final = 2**63 - 1
CHUNK: Final = 2**20
DTYPES: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Entry:
    """A tensor in the file: where its bytes begin, counted from the start of the file, and what they are.

    values: the dtype to which its values were rounded, None where they are as they were.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    bytes: int
    values: torch.dtype | None = None


@dataclass(frozen=True)
class Header:
    """What the header says, checked as far as it can be without the tensors."""

    path: Path
    raw: bytes  # with the 8 bytes before it
    metadata: dict[str, str]
    entries: dict[str, Entry]
    file_size: int


def pack(version: str, description: Mapping[str, str], tensors: Mapping[str, Tensor]) -> list[Buffer]:
    """The content of the file, in pieces that share the memory of the tensors where they can."""
    shell = {"format": FORMAT, "version": version, "checksum": PLACEHOLDER}
    header: dict[str, Any] = {"__metadata__": {**shell, **description}}
    data: list[Buffer] = []
    end = 0
    # Large items first, so that every tensor begins at a multiple of its item size.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        plain = plain_tensor(tensor, name)
        begin, end = end, end + plain.nbytes
        header[check_path(name, "a tensor")] = {
            "dtype": DTYPE_NAMES[plain.dtype],
            "shape": list(plain.shape),
            "data_offsets": [begin, end],
        }
        data.append(plain.reshape(-1).view(torch.uint8).numpy().data)
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-len(text) % 8)
    check_header_size(text)
    start = 8 + text.index(FIELD) + len(FIELD)
    raw = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(raw)
    for piece in data:
        digest.update(piece)
    return [raw[:start], digest.hexdigest().encode(), raw[start + DIGITS :], *data]


def check_header_size(text: bytes) -> None:
    """Raise ArtefactError where a header, or a description, is larger than we would read."""
    if len(text) > LONGEST_HEADER or text.count(b",") >= MOST_ITEMS:
        raise ArtefactError(
            f"the header would have {len(text)} bytes and {text.count(b',')} items, the limits are "
            f"{LONGEST_HEADER} and {MOST_ITEMS}; shorten config and metrics"
        )


def open_file(path: Path) -> BinaryIO:
    """The file, open for reading."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ArtefactError(f"{path} is not a file; an artefact is one file, check the path")
        return path.open("rb")
    except FileNotFoundError:
        raise ArtefactError(f"there is no file {path}; check the path") from None
    except OSError as error:
        raise ArtefactError(f"cannot read {path}: {error.strerror}; check the path and who owns it") from error


def read_header(file: BinaryIO, path: Path) -> Header:
    """Read and check everything but the tensors: lengths, names, format, version, offsets, then the checksum."""
    size = os.fstat(file.fileno()).st_size
    if size < 8:
        raise ArtefactError(f"{path} has {size} bytes, less than the 8 with the length of the header; it was cut off")
    first = _read(file, 8, path)
    length = int.from_bytes(first, "little")
    if length > LONGEST_HEADER:
        raise ArtefactError(
            f"{path} claims a header of {length} bytes, the limit is {LONGEST_HEADER}; it is not a safetensors file, "
            "or it is damaged"
        )
    if length > size - 8:
        raise ArtefactError(f"{path} claims a header of {length} bytes, but only {size - 8} follow; it was cut off")
    text = _read(file, length, path)
    content = parse_json(text, f"the header of {path}")
    if not isinstance(content, dict):
        raise ArtefactError(f"the header of {path} is not a JSON object; it is not a safetensors file")
    metadata = _checked_metadata(content.pop("__metadata__", None), path)
    entries = _checked_entries(content, 8 + length, size, path)
    header = Header(path, first + text, metadata, entries, size)
    _check_sum(file, header)
    return header


def read_tensor(file: BinaryIO, entry: Entry, name: str, path: Path) -> Tensor:
    """The tensor, read from the file into memory of its own."""
    tensor = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
    raw = tensor.reshape(-1).view(torch.uint8)
    target = raw.numpy().data
    file.seek(entry.begin)
    while target:
        count = file.readinto(target)  # type: ignore[attr-defined]
        if not count:
            raise ArtefactError(f"{path} ended while {name} was read; somebody changes it, load it again")
        target = target[count:]
    check_booleans(tensor, name, path)
    return tensor


def check_booleans(tensor: Tensor, name: str, path: Path) -> None:
    """Raise ArtefactError where a tensor of booleans has bytes that are none."""
    if tensor.dtype == torch.bool and tensor.numel() and (largest := int(tensor.view(torch.uint8).max())) > 1:
        raise ArtefactError(f"{name} in {path} is a tensor of booleans with the byte {largest}; use 0 and 1")


def parse_json(text: bytes | str, what: str, most: int = MOST_ITEMS) -> Any:
    """The content of strict JSON: UTF-8, no key twice, no NaN, fewer than `most` items; `what` is for the messages."""
    try:
        # json.loads would guess UTF-16 and UTF-32.
        plain = text if isinstance(text, str) else text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtefactError(f"{what} is not UTF-8: {error.reason} at byte {error.start}; it is damaged") from None
    if plain.count(",") >= most:
        raise ArtefactError(f"{what} has {plain.count(',')} items, the limit is {most}; this is absurd")
    try:
        return json.loads(plain, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except _KeyTwiceError as error:
        raise ArtefactError(f"{what} has the key {shorten(error.args[0])} twice; every key must be unique") from None
    except RecursionError:
        raise ArtefactError(f"{what} is nested too deep; it is not what bayesprune writes") from None
    except ValueError as error:
        raise ArtefactError(f"{what} is not JSON: {shorten(str(error))}; it is damaged") from None


class _KeyTwiceError(Exception):
    """A JSON object has a key twice."""


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _KeyTwiceError(key)
        found[key] = value
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _checked_metadata(metadata: Any, path: Path) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ArtefactError(f"{path} has no __metadata__ with texts; it was not written by bayesprune")
    if metadata.get("format") != FORMAT:
        raise ArtefactError(
            f"{path} has the format {shorten(metadata.get('format'))}, an artefact has {FORMAT!r}; "
            "give a file that artefact.save wrote"
        )
    version = metadata.get("version")
    if version not in KEYS:
        raise ArtefactError(
            f"{path} has version {shorten(version)} of the format, this bayesprune reads {' and '.join(KEYS)}; "
            "use the bayesprune that wrote it"
        )
    if metadata.keys() != KEYS[version]:
        wrong = shorten(sorted(metadata.keys() ^ KEYS[version]))
        raise ArtefactError(
            f"{path} has too many or too few keys in __metadata__: {wrong}; it must have {sorted(KEYS[version])}"
        )
    return metadata


def _checked_entries(content: dict[str, Any], start: int, size: int, path: Path) -> dict[str, Entry]:
    entries = {name: _checked_entry(one, name, start, path) for name, one in content.items()}
    end = start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].bytes)):
        if entry.begin != end:
            raise ArtefactError(
                f"tensor {name} in {path} begins at byte {entry.begin}, the one before it ends at {end}; tensors must "
                "follow each other without gap or overlap"
            )
        end += entry.bytes
    if end != size:
        raise ArtefactError(
            f"{path} has {size} bytes, its header describes {end}; it was cut off, or something was appended"
        )
    return entries


def _checked_entry(one: Any, name: str, start: int, path: Path) -> Entry:
    check_path(name, f"a tensor in {path}")
    if not isinstance(one, dict) or one.keys() != {"dtype", "shape", "data_offsets"}:
        raise ArtefactError(f"tensor {name} in {path} is {shorten(one)}; it needs dtype, shape and data_offsets")
    shape, offsets = one["shape"], one["data_offsets"]
    dtype = check_kind(one["dtype"], shape, f"tensor {name} in {path}")
    if not _natural_numbers(offsets) or len(offsets) != 2:
        raise ArtefactError(f"tensor {name} in {path} has the data_offsets {shorten(offsets)}; they are [begin, end]")
    needed = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != needed:
        raise ArtefactError(
            f"tensor {name} in {path} has {offsets[1] - offsets[0]} bytes; "
            f"its shape {shorten(shape)} of {one['dtype']} needs {needed}"
        )
    return Entry(dtype, tuple(shape), start + offsets[0], needed)


def check_kind(dtype: Any, shape: Any, what: str) -> torch.dtype:
    """The dtype by its name; ArtefactError where there is no such dtype or shape.  `what` is for the messages."""
    known = DTYPES.get(dtype) if isinstance(dtype, str) else None
    if known is None:
        raise ArtefactError(f"{what} has the dtype {shorten(dtype)}; known are {list(DTYPES)}")
    if not _natural_numbers(shape) or len(shape) > MOST_DIMENSIONS:
        raise ArtefactError(
            f"{what} has the shape {shorten(shape)}; a shape is at most {MOST_DIMENSIONS} integers, none negative"
        )
    # Empty dimensions count as one: torch multiplies the others even when there are no elements.
    if math.prod(max(one, 1) for one in shape) * known.itemsize > MOST_ELEMENTS:
        raise ArtefactError(f"{what} has the absurd shape {shorten(shape)}; it fits into no memory")
    return known


def _natural_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)


def _check_sum(file: BinaryIO, header: Header) -> None:
    """Compare the checksum with the SHA-256 of the whole file, the checksum itself replaced by zeros."""
    claimed = header.metadata["checksum"]
    field = FIELD + claimed.encode(errors="replace")
    if not re.fullmatch(rf"[0-9a-f]{{{DIGITS}}}", claimed) or header.raw.count(FIELD) != 1 or field not in header.raw:
        raise ArtefactError(
            f"{header.path} has the checksum {shorten(claimed)}; it is {DIGITS} hexadecimal digits, once"
        )
    start = header.raw.index(field) + len(FIELD)
    digest = hashlib.sha256(header.raw[:start] + PLACEHOLDER.encode() + header.raw[start + DIGITS :])
    file.seek(len(header.raw))
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    if digest.hexdigest() != claimed:
        raise ArtefactError(
            f"{header.path} is damaged: its checksum does not match its content ({header.file_size} bytes); "
            "copy it again from where it came"
        )


def _read(file: BinaryIO, count: int, path: Path) -> bytes:
    content = file.read(count)
    if len(content) < count:
        raise ArtefactError(f"{path} ended while its header was read; somebody changes it, try again")
    return content


def plain_tensor(tensor: Tensor, name: str) -> Tensor:
    """The tensor on the CPU, row by row, or ArtefactError."""
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_quantized:
        raise ArtefactError(
            f"{name} is a {type(tensor).__name__} with layout {tensor.layout}; an artefact holds dense tensors: "
            "try to_dense() or dequantize()"
        )
    if tensor.device.type == "meta":
        raise ArtefactError(f"{name} is on the meta device and has no values; give the network its weights first")
    if tensor.dtype not in DTYPE_NAMES:
        raise ArtefactError(f"{name} has {tensor.dtype}; an artefact holds {', '.join(map(str, DTYPE_NAMES))}")
    return tensor.detach().cpu().resolve_neg().contiguous()
