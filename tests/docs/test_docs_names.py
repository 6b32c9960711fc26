"""What the pages name exists: objects, packages, files, and every equation of the paper."""

import inspect
import pkgutil
import re
import tomllib
from typing import Any

import pytest
from markdown_pages import DOCS, PAGES, ROOT, prose_of

import bayesprune

EQUATIONS = 37  # of the paper
LINK = re.compile(r"\[(?:`[^`]*`|[^\]`])*\]\(([^)\s]+)\)")
OBJECT = re.compile(r"\(#(bayesprune\.[\w.]+)\)")


def table_of(page: str) -> list[list[str]]:
    """The cells of all rows of a page's tables but their heads."""
    rows = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows if not row.startswith("|---")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    """Anchors inside the site are checked when it is built; the README is not part of it."""
    for target in LINK.findall(prose_of(page)):
        if target.startswith("#bayesprune."):
            pkgutil.resolve_name(target[1:])
        elif not target.startswith(("http://", "https://", "#")):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name} links to {target}"


def knows(thing: Any, name: str) -> bool:
    """Whether something has this name, or an attribute, a field or a parameter of it."""
    known = {thing.__name__, *dir(thing), *getattr(thing, "__annotations__", {})}
    if callable(thing):
        known |= set(inspect.signature(thing).parameters)
    return name in known


def test_every_symbol_of_the_notation_exists():
    rows = [row for row in table_of("notation.md") if row[0] != "paper"]
    assert len(rows) > 20
    for symbol, names, _, where in rows:
        things = [pkgutil.resolve_name(name) for name in OBJECT.findall(where)]
        assert things, f"{symbol} has no place"
        for name in re.findall(r"`(\w+)`", names):
            assert any(knows(thing, name) for thing in things), f"{where} does not know {name}, the name of {symbol}"


def equations_in(text: str) -> set[int]:
    """The numbers behind `(2), (3)` and `(24)-(26)`."""
    found = {int(number) for number in re.findall(r"\((\d+)\)", text)}
    for first, last in re.findall(r"\((\d+)\)-\((\d+)\)", text):
        found |= set(range(int(first), int(last) + 1))
    return found


def test_every_equation_of_the_paper_has_its_place():
    rows = table_of("paper.md")
    assert set().union(*(equations_in(paper) for paper, *_ in rows)) == set(range(1, EQUATIONS + 1))
    for paper, where, proof in rows[1:]:
        assert OBJECT.search(where) or "not computed" in where, paper
        for file in re.findall(r"`(tests/[^`]+)`", proof):
            assert (ROOT / file).exists(), file


def test_the_theory_links_every_equation_that_is_implemented():
    implemented = {
        number for paper, where, _ in table_of("paper.md")[1:] if OBJECT.search(where) for number in equations_in(paper)
    }
    theory = (DOCS / "theory.md").read_text()
    named = equations_in(theory)
    named |= {int(number) for number in re.findall(r"\((\d+)\)", theory)}
    assert implemented <= named | {19}  # the constraint of (20)
    assert len(OBJECT.findall(theory)) > 30


def test_the_api_page_has_all_that_the_package_offers():
    text = (DOCS / "api.md").read_text()
    for name in bayesprune.__all__:
        listed = re.search(rf":: bayesprune\.{name}$|`bayesprune\.{name}`", text, re.MULTILINE)
        assert listed, f"api.md does not list {name}"


def test_the_packages_stand_in_the_order_of_their_imports():
    layers_shown = {row[1].strip("`"): int(row[0]) for row in table_of("inside.md")[1:]}
    packages = list(layers_shown)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in settings if contract["type"] == "layers")
    heights = {
        name.strip().removeprefix("bayesprune."): height
        for height, layer in enumerate(reversed(layers), start=1)
        for name in layer.split("|")
    }
    assert layers_shown == heights
    assert set(packages) == {module.name for module in pkgutil.iter_modules(bayesprune.__path__)} - {"__main__"}
    assert [heights[name] for name in packages] == sorted(heights.values())
    drawn = (DOCS / "figures" / "flow.svg").read_text()
    for words in re.findall(r'class="code"[^>]*>([^<]+)<', drawn):
        assert set(words.split(", ")) <= set(packages)


def test_the_readme_lists_the_pages():
    linked = set(LINK.findall((ROOT / "README.md").read_text()))
    assert {f"docs/{name}.md" for name in ("start", "own-network", "structures", "theory", "inside", "log")} <= linked
