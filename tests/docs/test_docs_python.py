"""The Python of the README and of every page runs as printed, from the first block to the last."""

import runpy

import pytest
import torch
from markdown_pages import PAGES, blocks, python_of

# Directives of MyST, and sessions in a terminal, which test_docs_commands.py types.  Nothing else may hide.
OTHERS = {"console", "{toctree}", "{eval-rst}", "{include} ../CONTRIBUTING.md", "{include} ../CHANGELOG.md"}


@pytest.mark.parametrize("page", [page for page in PAGES if python_of(page)], ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    script = tmp_path / f"{page.stem}.py"
    script.write_text(python_of(page))
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        runpy.run_path(str(script), run_name="__main__")
    if page.name == "README.md":
        assert "converged after 25 iterations" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_one_that_the_tests_know(page):
    for block in blocks(page):
        assert block.language in OTHERS | {"python"}, f"{page.name}, line {block.line}: ```{block.language}"
    fences = [line for line in page.read_text().splitlines() if line.lstrip().startswith("```")]
    assert len(fences) == 2 * len(blocks(page)), f"{page.name} has a fence that is not at the beginning of a line"
