"""The arguments of a graph as JSON, and back.

Numbers, booleans, texts, null and lists are themselves; everything else is an object with one tag:
{"node": 3}  {"tuple": [...]}  {"slice": [start, stop, step]}  {"dict": [[key, value], ...]}  {"float": "inf"}
{"ellipsis": true}  {"dtype": "float32"}  {"memory_format": "channels_last"}
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from bayesprune.artefact.errors import ArtefactError, UnlistedError
from bayesprune.artefact.names import is_text, shorten

DEEPEST: Final = 16
LARGEST: Final = 2**63
FLOATS: Final = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
DTYPES: Final = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex64", "complex128"),
        *("int64", "int32", "int16", "int8", "uint8", "bool"),
    )
}
MEMORY_FORMATS: Final = {
    name: getattr(torch, name) for name in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
}


def encode(value: Any, numbers: Mapping[fx.Node, int], depth: int = 0) -> Any:
    """The JSON of `value`; nodes are their numbers."""
    if depth > DEEPEST:
        raise UnlistedError(f"an argument is nested deeper than {DEEPEST}")
    if value is None or isinstance(value, bool):
        return value
    if type(value) is int and abs(value) < LARGEST:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if is_text(value):
        return str(value)
    if isinstance(value, fx.Node):
        return {"node": numbers[value]}
    if isinstance(value, list):
        return [encode(item, numbers, depth + 1) for item in value]
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return {"tuple": [encode(item, numbers, depth + 1) for item in value]}
    if isinstance(value, slice):
        return {"slice": [encode(item, numbers, depth + 1) for item in (value.start, value.stop, value.step)]}
    if isinstance(value, dict) and all(_is_key(key) for key in value):
        return {"dict": [[key, encode(item, numbers, depth + 1)] for key, item in value.items()]}
    if value is Ellipsis:
        return {"ellipsis": True}
    for tag, table in (("dtype", DTYPES), ("memory_format", MEMORY_FORMATS)):
        for name, known in table.items():
            if value is known:
                return {tag: name}
    raise UnlistedError(f"the argument {shorten(value)}, a {type(value).__name__}, cannot be stored as data")


def decode(value: Any, nodes: Sequence[fx.Node], where: str, depth: int = 0) -> Any:
    """The value of its JSON; `nodes` are those it may refer to, `where` is for the messages."""
    if depth > DEEPEST:
        raise ArtefactError(f"{where} has an argument nested deeper than {DEEPEST}; arguments are flat or nearly so")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if not abs(value) < LARGEST and not (isinstance(value, float) and math.isfinite(value)):
            raise ArtefactError(f"{where} has the argument {shorten(value)}; numbers are finite and fit into 64 bits")
        return value
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, list):
        return [decode(item, nodes, where, depth + 1) for item in value]
    if not isinstance(value, dict) or len(value) != 1:
        raise ArtefactError(f"{where} has the argument {shorten(value)}; an object has exactly one tag")
    ((tag, content),) = value.items()
    if tag == "node":
        return _node(content, nodes, where)
    if tag == "tuple" and isinstance(content, list):
        return tuple(decode(item, nodes, where, depth + 1) for item in content)
    if tag == "slice" and isinstance(content, list) and len(content) == 3:
        return slice(*(decode(item, nodes, where, depth + 1) for item in content))
    if tag == "dict" and isinstance(content, list):
        return _dict(content, nodes, where, depth)
    if tag == "ellipsis" and content is True:
        return Ellipsis
    for known, table in (("float", FLOATS), ("dtype", DTYPES), ("memory_format", MEMORY_FORMATS)):
        if tag == known and isinstance(content, str) and content in table:
            return table[content]
    raise ArtefactError(f"{where} has the argument {shorten(value)}, which is no known tag with its content")


def _node(number: Any, nodes: Sequence[fx.Node], where: str) -> fx.Node:
    if type(number) is not int or not 0 <= number < len(nodes):
        raise ArtefactError(
            f"{where} refers to node {shorten(number)}; it may refer to the {len(nodes)} nodes before it only"
        )
    return nodes[number]


def _dict(content: list[Any], nodes: Sequence[fx.Node], where: str, depth: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for item in content:
        if not isinstance(item, list) or len(item) != 2 or not _is_key(item[0]) or item[0] in found:
            raise ArtefactError(
                f"{where} has a dict with the item {shorten(item)}; items are [key, value], keys unique"
            )
        found[item[0]] = decode(item[1], nodes, where, depth + 1)
    return found


def _text(value: str, where: str) -> str:
    if not is_text(value):
        raise ArtefactError(f"{where} has the text {shorten(value)}; texts are short and plain, without quotes")
    return value


def _is_key(key: Any) -> bool:
    return is_text(key) or (type(key) is int and abs(key) < LARGEST)
