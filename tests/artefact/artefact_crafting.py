"""Take an artefact apart, change it, and put it together again with the right checksum."""

import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

FIELD = b'"checksum":"'


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the tensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def join(header: dict[str, Any] | bytes, data: bytes, *, checksum: bool = True) -> bytes:
    """The file, with its checksum computed anew."""
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    content = len(text).to_bytes(8, "little") + text + data
    return with_checksum(content) if checksum else content


def with_checksum(content: bytes) -> bytes:
    """The content with the right checksum, where it has a place for one."""
    start = content.find(FIELD) + len(FIELD)
    if start < len(FIELD) or start + 64 > len(content):
        return content
    zeroed = content[:start] + b"0" * 64 + content[start + 64 :]
    return content[:start] + hashlib.sha256(zeroed).hexdigest().encode() + content[start + 64 :]


def edit_header(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the header of the file."""
    header, data = split(path.read_bytes())
    edit(header)
    path.write_bytes(join(header, data))


def edit_architecture(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the architecture in the file."""

    def change(header: dict[str, Any]) -> None:
        architecture = json.loads(header["__metadata__"]["architecture"])
        edit(architecture)
        header["__metadata__"]["architecture"] = json.dumps(architecture)

    edit_header(path, change)


def split_packed(content: bytes) -> tuple[list[bytes], bytes]:
    """The lines of the description of a packed network, and its tensors."""
    decompressor = zlib.decompressobj()
    lines = decompressor.decompress(split(content)[1]).split(b"\n")
    return lines, decompressor.unused_data


def join_packed(lines: list[bytes], tensors: bytes, *, checksum: bool = True) -> bytes:
    """The file of a packed network."""
    return join_bytes(zlib.compress(b"\n".join(lines), 9) + tensors, checksum=checksum)


def join_bytes(packed: bytes, *, checksum: bool = True) -> bytes:
    """The file with these bytes as its tensor `packed`."""
    header = {
        "__metadata__": {"format": "bayesprune-artefact", "version": "2", "checksum": "0" * 64},
        "packed": {"dtype": "U8", "shape": [len(packed)], "data_offsets": [0, len(packed)]},
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return join(text + b" " * (-len(text) % 8), packed, checksum=checksum)
