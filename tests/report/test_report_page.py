"""The page as text: complete, closed, escaped, and nothing from elsewhere."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from bayesprune.report import read_sources, render
from bayesprune.report.markup import data_block, escape, prose, slug
from report.small_run import LAYERS, SUMMARY, messages_of, write_frontier, write_run

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&`$x$"
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Page(HTMLParser):
    """Elements, ids, links and the contents of scripts; fails where tags do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.scripts, self.text = [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append([dict(attributes).get("type"), ""])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1] += data
        elif not self.open or self.open[-1] != "style":
            self.text += data

    def attributes(self, name):
        return [attributes[name] for _, attributes in self.elements if name in attributes]


@pytest.fixture(scope="module")
def text(run_folder):
    return render(*read_sources([run_folder]))


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_whole_and_closed(page):
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    anchors = [link for link in page.attributes("href") if link.startswith("#")]
    assert anchors
    assert {link[1:] for link in anchors} <= set(ids)
    assert [tag for tag, _ in page.elements].count("h1") == 1
    for identity in ("speed", "layers", "kernels", "weights", "training", "convergence", "messages", "storage"):
        assert identity in ids
    assert "missing" not in ids  # the run has everything


def test_first_screen_has_the_answer(page):
    assert "25 times fewer weights, 4.0 times fewer multiplications" in page.text
    assert "Not faster at batch 1" in page.text
    assert [tag for tag, attributes in page.elements if attributes.get("class") == "card"] == ["div"] * 4


def test_nothing_is_loaded_and_only_one_script_runs(text, page):
    assert page.attributes("src") == []
    assert all(link.startswith("#") for link in page.attributes("href"))
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    code = [body for kind, body in page.scripts if kind is None]
    assert len(code) == 1
    assert re.findall(r"https?://[^\"]+", code[0]) == ["http://www.w3.org/2000/svg"]  # the name of SVG, not a place
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(code[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_messages_and_weights_are_in_it(page, run_folder):
    blocks = [json.loads(body) for kind, body in page.scripts if kind == "application/json"]
    frames = next(block for block in blocks if "iterations" in block)
    part = np.frombuffer(base64.b64decode(frames["layers"][LAYERS.index("fc1")]["parts"][1]), np.uint8)
    sent = messages_of(3).layers["fc1"].from_supports.numpy()
    assert np.array_equal(part.reshape(-1, *sent.shape)[2], sent)
    matrices = [block for block in blocks if block.get("whole") == [120, 64]]
    assert len(matrices) == 2  # before and after
    after = np.frombuffer(base64.b64decode(matrices[1]["cells"]), np.int8).reshape(120, 64)
    layer = next(one for one in read_sources([run_folder])[0][0].layers if one.name == "fc1")
    assert np.array_equal(after != 0, layer.live.numpy())


def test_text_from_files_is_only_text(tmp_path):
    folder = write_run(tmp_path / "evil", name=EVIL, summary=SUMMARY | {"status": EVIL, "notes": [EVIL]})
    named = tmp_path / "a<b>&'\"`x"
    folder.rename(named)
    harmless = {tag for tag, _ in Page(render(*read_sources([write_run(tmp_path / "good")]))).elements}
    for sources in ([named], [named, named / "network.safetensors"]):
        page = Page(render(*read_sources(sources)))
        assert {tag for tag, _ in page.elements} - {"li", "b", "i", "circle", "polygon"} <= harmless
        assert [kind for kind, _ in page.scripts].count(None) == 1
        assert not page.attributes("onerror")
        assert EVIL.replace("`", "")[:20] in page.text.replace("`", "")


def test_several_runs_and_a_frontier(run_folder, tmp_path):
    frontier = write_frontier(tmp_path / "front", run_folder / "network.safetensors")
    page = Page(render(*read_sources([run_folder, run_folder / "network.safetensors", frontier])))
    ids = page.attributes("id")
    assert "comparison" in ids
    assert "frontier" in ids
    assert "3 settings of lenet5 on digits, of which 1 are on the front" in page.text
    assert "is the most accurate (95.0" in page.text
    assert "not in it" in page.text  # what a file lacks


def test_unfinished_run(tmp_path):
    folder = write_run(tmp_path / "half", summary=None, messages=False)
    for name in ("network.safetensors", "history.jsonl"):
        (folder / name).unlink()
    page = Page(render(*read_sources([folder])))
    assert "It has no summary" in page.text
    assert "speed not measured" in page.text
    (folder / "checkpoint.safetensors").unlink()
    page = Page(render(*read_sources([folder])))
    assert "Speed not measured." in page.text


def test_uncoupled_messages_are_explained(tmp_path):
    folder = write_run(tmp_path / "still", messages=False)
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    for row in rows:
        if "message_change" in row:
            row["message_change"] = 0.0
            row["message_change_by_layer"] = dict.fromkeys(LAYERS, 0.0)
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = Page(render(*read_sources([folder])))
    assert "has no coupling between neighbours" in page.text
    assert "It has kept no messages" in page.text


def test_markup():
    assert escape('<a href="x">\'&\x1b') == "&lt;a href=&quot;x&quot;&gt;&#x27;&amp;?"
    assert prose("`a < b` is 3 x 4, v_{h->s}, 5 %") == ("<code>a &lt; b</code> is 3 × 4, v<sub>h→s</sub>, 5\u00a0%")
    block = data_block({"a": "</script><!--&"})
    assert block.count("<") == 2
    assert json.loads(block[block.index(">") + 1 : block.rindex("<")]) == {"a": "</script><!--&"}
    assert slug("../../etc/pass wd") == "etc-pass-wd"
    assert slug("$$$") == "x"
