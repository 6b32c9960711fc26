"""The site is built without a warning, holds every page, and loads nothing from elsewhere."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from markdown_pages import DOCS, PAGES, prose_of

LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "object": "data",
    "link": "href",
    "use": "href",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """What `make docs` makes: links, anchors, names and the navigation are checked on the way."""
    place = tmp_path_factory.mktemp("site")
    command = ["--quiet", "--fail-on-warning", "--keep-going", "--doctree-dir", place / "trees", DOCS, place / "site"]
    done = subprocess.run([sys.executable, "-m", "sphinx", *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return place / "site"


class Tags(HTMLParser):
    """Addresses that a page loads, and the pages that it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: set[str] = set()

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if address := values.get(LOADS.get(tag, "")):
            self.loaded.append(address)
        if tag == "a" and (address := values.get("href")):
            self.linked.add(address.partition("#")[0])
        for address in re.findall(r"url\(([^)]*)\)", values.get("style") or ""):
            self.loaded.append(address)


def tags_of(page):
    parser = Tags()
    parser.feed(page.read_text())
    return parser


def test_every_page_is_in_the_navigation(site):
    linked = tags_of(site / "index.html").linked
    for page in DOCS.glob("*.md"):
        assert (site / f"{page.stem}.html").exists()
        assert page.stem == "index" or f"{page.stem}.html" in linked


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.glob("*.html"):
        loaded = tags_of(page).loaded
        assert loaded
        for address in loaded:
            assert not re.match(r"(\w+:)?//", address), f"{page.name} loads {address}"
            if not address.startswith("data:"):
                assert (page.parent / re.sub(r"[?#].*", "", address)).exists(), f"{page.name} loads {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*[\"']?(https?:)?//", style.read_text()), style.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_word_is_lost_as_a_tag(page):
    """`<rho>` outside of code is a tag of HTML, and a browser shows nothing of it."""
    text = re.sub(r"`[^`]*`|\$[^$]*\$|^    .*$", "", prose_of(page), flags=re.MULTILINE)
    assert not re.search(r"(?<!\\)<[A-Za-z/!].*", text)


def test_equations_are_drawn_by_the_browser(site):
    source, made = (DOCS / "theory.md").read_text(), (site / "theory.html").read_text()
    assert made.count('display="block"') == source.count("$$") // 2 > 10
    assert "$" not in re.sub(r"<pre>.*?</pre>", "", made, flags=re.DOTALL)
    assert "merror" not in made
    assert 'href="api.html#bayesprune.MeanField.update_precision"' in made


def test_docstrings_become_lists(site):
    made = (site / "api.html").read_text()
    assert re.search(r"<li><p>p01 = p\(next alive", made)
    assert "system-message" not in made
