"""Text as HTML: whatever comes from a file is escaped."""

import html
import json
import re
from typing import Any

KEPT = "\n\t\u00a0"  # spaces of all kinds


def escape(text: object) -> str:
    """For element content and attributes in double quotes; characters that only control are shown as ?."""
    return html.escape("".join(one if one.isprintable() or one in KEPT else "?" for one in str(text)), quote=True)


SUBSCRIPTS = (("v_{eta-&gt;s}", "v<sub>η→s</sub>"), ("v_{h-&gt;s}", "v<sub>h→s</sub>"))


def prose(text: str) -> str:
    """Escaped text, `code` between backticks, and the paper's symbols."""
    safe = re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(text))
    for plain, symbol in SUBSCRIPTS:
        safe = safe.replace(plain, symbol)
    safe = re.sub(r"(?<=\d) (?=(%|ms)(\W|$))", "\u00a0", safe)  # a number stays with its unit
    return re.sub(r"(?<=\d) x (?=\d)", " × ", safe)


def plain(text: str) -> str:
    """The same without tags, for places that hold text only; not escaped."""
    text = text.replace("v_{eta->s}", "v(η→s)").replace("v_{h->s}", "v(h→s)")
    return re.sub(r"(?<=\d) x (?=\d)", " × ", text)


def data_block(content: Any) -> str:
    """JSON that a script reads, and that nothing can break out of."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    safe = text.replace("<", "\\u003c").replace("&", "\\u0026")
    return f'<script type="application/json">{safe}</script>'


def slug(text: str) -> str:
    """Letters, digits, dots and hyphens: for the names of files and anchors."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:60] or "x"
