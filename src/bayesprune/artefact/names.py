"""Which names and texts a file may hold.  torch.fx writes them into the Python source it generates."""

import keyword
import re
import reprlib
from typing import Any, Final

from bayesprune.artefact.errors import ArtefactError

IDENTIFIER = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*")
NUMBER = re.compile(r"[0-9]{1,9}")
TEXT = re.compile(r"[A-Za-z0-9_ .,:;+*/<>=()\-]*")
LONGEST = 200  # characters of one part of a name, or of a text
DEEPEST = 32  # parts of a name

# Names with a meaning in the generated source.  `node_` begins the names of its variables, and functions are bound
# to names such as `torch_cat`.
TAKEN: Final = frozenset(
    {"self", "getattr", "slice", "inf", "nan", "device", "fx_pytree", "pytree", "NoneType", "Ellipsis"}
)
TAKEN_STARTS = ("node_", "torch", "operator", "math", "builtins")


def is_identifier(name: Any) -> bool:
    """Whether `name` is a plain ASCII identifier: no keyword, no leading double underscore."""
    return (
        isinstance(name, str)
        and len(name) <= LONGEST
        and IDENTIFIER.fullmatch(name) is not None
        and not keyword.iskeyword(name)
    )


def is_argument(name: Any) -> bool:
    """Whether the generated source can have an argument of this name."""
    return is_identifier(name) and name not in TAKEN and not name.startswith(TAKEN_STARTS)


def is_text(text: Any) -> bool:
    """Whether `text` is short and plain."""
    return isinstance(text, str) and len(text) <= LONGEST and TEXT.fullmatch(text) is not None


def check_path(path: Any, what: str) -> str:
    """Return `path`, the dotted name of a module or tensor, or raise ArtefactError."""
    parts = path.split(".") if isinstance(path, str) else []
    if not 0 < len(parts) <= DEEPEST or not all(is_identifier(one) or NUMBER.fullmatch(one) for one in parts):
        raise ArtefactError(
            f"{what} has the name {shorten(path)}; names are at most {DEEPEST} identifiers or numbers joined by single "
            "dots, without Python keywords and leading double underscores: rename it and save again"
        )
    return str(path)


def shorten(value: Any) -> str:
    """`value` for a message: one line of ASCII, however large, deep or strange it is."""
    text = _SHORT.repr(value).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 200 else f"{text[:197]}..."


_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
