"""Docstrings, which are plain text, as reStructuredText for autodoc.

Paragraphs stay paragraphs.  Lines such as `name: what it is` or `p01 = ...` become a list.  A paragraph with indented
lines (code, aligned columns) is shown as it is written, but for those under `Args:` and `Raises:`.
"""

import re
from collections.abc import Iterator

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

ITEM = re.compile(r"[A-Za-z_]\w*(?:, [A-Za-z_]\w*)*(?::| =) ")
INLINE = re.compile(r"[a-z_]\w*(?:, [a-z_]\w*)*: ")  # a further one on the same line


def _escaped(text: str) -> str:
    """Text with nothing in it that reStructuredText reads as markup, `names` as code."""
    parts = re.split(r"`([^`]+)`", text)
    marked = [f"``{part}``" if at % 2 else re.sub(r"([\\*|_<>\[\]])", r"\\\1", part) for at, part in enumerate(parts)]
    return "".join(marked)


def _paragraph(lines: list[str]) -> Iterator[str]:
    """One paragraph of a docstring as lines of reStructuredText, an empty one at the end."""
    if lines[0] in ("Args:", "Raises:") and len(lines) > 1:
        yield from (f"*{lines[0]}*", "")
        lines = [line.removeprefix(" " * 4) for line in lines[1:]]
    if ITEM.match(lines[0]) and not any(line.startswith(" " * 5) for line in lines):
        lines = [line.removeprefix(" " * 4) for line in lines]  # hanging indents
    if any(line.startswith("  ") for line in lines):
        yield from ("::", "", *("  " + line for line in lines), "")
        return
    items = re.split(rf"\n(?={ITEM.pattern})|(?<=\.)  (?={INLINE.pattern})", "\n".join(lines))
    listed = len(items) > 1 or bool(ITEM.match(items[0]))
    for item in items:
        first, *others = _escaped(item).split("\n")
        bullet = listed and ITEM.match(item) is not None
        yield ("- " if bullet else "") + first
        yield from (("  " if bullet else "") + line for line in others)
        yield ""


def _rewrite(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    text = "\n".join(lines).strip("\n")
    lines[:] = [line for part in re.split(r"\n\s*\n", text) for line in _paragraph(part.split("\n"))] if text else []


def _without_factories(
    app: Sphinx, what: str, name: str, thing: object, options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """A default that a dataclass makes anew is printed as `<factory>`, which Sphinx cannot read."""
    return signature and signature.replace("<factory>", "..."), returns


def setup(app: Sphinx) -> ExtensionMetadata:
    """Rewrite every docstring that autodoc reads."""
    app.connect("autodoc-process-docstring", _rewrite)
    app.connect("autodoc-process-signature", _without_factories)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
