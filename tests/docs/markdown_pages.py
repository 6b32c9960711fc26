"""The pages of the documentation, and the blocks of code in them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")))
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: what stands behind its first fence, its text, and the number of its first line."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text()
    return [Block(found[1], found[2], text[: found.start(2)].count("\n") + 1) for found in FENCE.finditer(text)]


def python_of(page: Path) -> str:
    """The Python of a page as one script, every line where it is on the page, so that a traceback points there."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python":
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    return "\n".join(lines)


def prose_of(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", page.read_text())


def commands(page: Path) -> list[list[str]]:
    """What a page says to type, one list of words per command, comments left out."""
    shown = [line for block in blocks(page) if block.language == "console" for line in block.text.splitlines()]
    return [shlex.split(line[2:], comments=True) for line in shown if line.startswith("$ ")]
