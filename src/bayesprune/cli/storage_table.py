"""The table of `bayesprune info --storage`: what the weights of a network take in each format."""

from collections.abc import Mapping
from functools import reduce
from operator import add

from bayesprune.artefact import Artefact
from bayesprune.storage import FORMATS, Integers, Size, sizes

HEADINGS = ("layer", "weights", "live", *FORMATS, "index/live")
REST = "biases and others"
TOTAL = "total"


def storage_table(file: Artefact, arrays: Mapping[str, Integers]) -> str:
    """Bytes of every weight and of everything, values and positions; arrays: the bits of all tensors in the file."""
    found = sizes(arrays)
    rows = {name: size for name, size in found.items() if arrays[name].ndim > 1}
    rest = [_always_dense(size) for name, size in found.items() if name not in rows]
    if rest:
        rows[REST] = reduce(add, rest)
    if not rows:
        return "storage    the file holds no tensors"
    weights = reduce(add, (size for name, size in rows.items() if name != REST), _nothing())
    total = reduce(add, rows.values())
    lines = [HEADINGS, *(_row(name, size) for name, size in rows.items()), _row(TOTAL, total, weights)]
    per_weight = [f"{weights.index_bytes(name):.3f}" for name in FORMATS]
    lines.append(("index/live", "", "", *per_weight, ""))
    rounded = sorted({one.values for one in file.tensors.values() if one.values})
    around = file.size - total.bytes[file.storage]
    return "\n".join(
        [
            "bytes, values and positions; index/live: bytes per live weight besides its value",
            *_aligned(lines),
            f"file       {file.size:,} bytes, stored as {file.storage}: {total.bytes[file.storage]:,} of tensors and "
            f"{around:,} of description",
            *(f"values     rounded to {one} in the file, and counted so in every column" for one in rounded),
        ]
    )


def _always_dense(size: Size) -> Size:
    """A vector, which other formats do not make sparse."""
    others = {name: size.bytes["dense"] for name in FORMATS if name != "clusters"}
    return Size(size.values, size.live, size.live_bytes, size.position_bytes, size.bytes | others)


def _nothing() -> Size:
    return Size(0, 0, 0, 0.0, dict.fromkeys(FORMATS, 0))


def _row(name: str, size: Size, indexed: Size | None = None) -> tuple[str, ...]:
    counted = indexed or size
    index = "" if name == REST or not counted.live else f"{counted.index_bytes('clusters'):.3f}"
    numbers = (size.values, size.live, *(size.bytes[one] for one in FORMATS))
    return (name, *(f"{number:,}" for number in numbers), index)


def _aligned(lines: list[tuple[str, ...]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            [line[0].ljust(widths[0]), *(one.rjust(width) for one, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]
