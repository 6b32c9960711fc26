"""docs/results.md from made-up results."""

import json
import re
import shutil
from pathlib import Path

import pytest
from made_up_rows import a_row, failed_row, study_row

from bayesprune.reproduce.comparing import groups, with_drops
from bayesprune.reproduce.page import COMMAND, latency_table, remarks, write_results_page
from bayesprune.reproduce.paper import TABLE2
from bayesprune.runs import RunError

PNG = b"\x89PNG made up"


def of_both_protocols():
    rows = [
        *(a_row("unpruned", 0.9, 1, 0, seed=s) for s in range(3)),
        *(a_row("ours", 0.88 + 0.01 * s, 0.01, 0.8, seed=s) for s in range(3)),
        *(a_row("variational-dropout", 0.88, 0.07, 0.1, seed=s) for s in range(3)),
        *(a_row("snip", 0.895, 0.2, 0.3, seed=s) for s in range(2)),
        a_row("ours", 0.85, 0.01, 0.8, protocol="paper"),
        failed_row("snip", protocol="paper"),
    ]
    return with_drops(rows)


def test_remarks_are_computed():
    best = [group for group in groups(of_both_protocols()) if group.protocol == "best"]
    lines = remarks(best, TABLE2["lenet5"])
    assert lines == [
        "- `ours` is not the best by accuracy %: 89.00 ± 1.00 against 89.50 ± 0.00 of `snip`",
        "- `ours` is not the best by drop, points: 1.00 ± 1.00 against 0.50 ± 0.00 of `snip`",
        "- `ours` against the paper's proposed: wins on accuracy % (+0.23), nonzero % (-0.14), MACs removed % (+3.97)",
        "- our unpruned network is 0.99 points above the paper's (90.00 against 89.01 %): compare drops as well as "
        "accuracies",
        "- the baseline `variational-dropout` is below the paper's line for it on all axes: it loses on accuracy % "
        "(-0.91), nonzero % (+0.84), MACs removed % (-1.82)",
        "- 2 of 3 seeds, so that means say little: `snip`",
    ]


def test_the_best_and_the_dominated_are_said():
    alone = groups([a_row("ours", 0.9, 0.01, 0.8, seed=s) for s in range(3)])
    assert remarks(alone, {}) == ["- `ours` is the best on every axis"]
    rows = [
        a_row(method, 0.9, nonzero, 0.8, seed=s) for method, nonzero in (("ours", 0.02), ("l1", 0.01)) for s in range(3)
    ]
    lines = remarks(groups(rows), {})
    assert "- `ours` is not the best by nonzero %: 2.00 ± 0.00 against 1.00 ± 0.00 of `l1`" in lines
    assert "- `ours` is dominated in accuracy, nonzeros and MACs by `l1`" in lines


@pytest.fixture
def results():
    """Results of two studies and a frontier in the folder of the test."""
    for study, rows in (
        ("table2", of_both_protocols()),
        ("regularity", [study_row("loose", 0.9, 0.04, 0.05), study_row("tiles", 0.8, 0.04, 0.9, groups="tile")]),
    ):
        folder = Path("results") / study
        folder.mkdir(parents=True)
        (folder / "lenet5.json").write_text(json.dumps(rows))
        (folder / "lenet5.png").write_bytes(PNG)
    figures = {"nonzero_fraction": 0.02, "macs_removed": 0.5, "structure": [3, 4], "validation": {"accuracy": 0.95}}
    strengths = [{"unit_strength": 300.0, "seed": 0}, {"unit_strength": 500.0, "seed": 0}]
    members = [
        figures | {"number": 0, "front": True, "settings": strengths[0]},
        figures | {"number": 1, "front": False, "structure": [9, 9], "settings": strengths[1]},
    ]
    plan = {"model": "lenet5", "data": "digits"}
    content = {
        "plan": plan,
        "members": members,
        "seconds": 12.3,
        "versions": {"python": "3"},
        "hardware": {"gpu": "none"},
    }
    Path("results/frontier.json").write_text(json.dumps(content))


def test_the_page_of_this_repository_is_that_of_its_results(tmp_path):
    root = Path(__file__).parents[2]
    shutil.copytree(root / "docs/remarks", tmp_path / "docs/remarks")
    written = write_results_page(root / "results", tmp_path / "docs")
    for path in written:
        assert path.read_bytes() == (root / path.relative_to(tmp_path)).read_bytes(), f"{path.name}: run {COMMAND}"


def test_the_page_has_everything_and_keeps_what_people_wrote(results, reproduce):
    remarks_folder = Path("docs/remarks")
    remarks_folder.mkdir(parents=True)
    for name in ("results", "table2-lenet5", "regularity-lenet5", "frontier"):
        (remarks_folder / f"{name}.md").write_text(f"A person wrote this about {name}.\n")
    for _ in range(2):
        code, out, _ = reproduce("page")
        assert code == 0
    assert "written    docs/results.md" in out
    text = Path("docs/results.md").read_text()
    titles = re.findall(r"^#+ .*$", text, re.MULTILINE)
    assert titles == [
        "# Results",
        "## Table II: LeNet-5 on Fashion-MNIST",
        "### Protocol `best`",
        "### Protocol `paper`",
        "### How it was made",
        "## What regularity costs: LeNet-5 on Fashion-MNIST",
        "### Accuracy at equal nonzeros",
        "### Clusters and gaps",
        "### Layers",
        "### How it was made",
        "## A frontier: lenet5 on digits",
    ]
    for name in ("results", "table2-lenet5", "regularity-lenet5", "frontier"):
        assert text.count(f"A person wrote this about {name}.") == 1
    pictures = re.findall(r"\]\((.*?)\)", text)
    assert pictures == ["figures/table2-lenet5.png", "figures/regularity-lenet5.png"]
    assert all((Path("docs") / path).read_bytes() == PNG for path in pictures)
    assert "88.77 / 1.14 / 76.03" in text  # the paper, beside
    assert "89.00 ± 1.00" in text  # ours
    assert "`snip` with seed 0: failed: the loss became nan" in text
    assert "it loses 10.00 points and has 90.0 % of its weights in rectangles" in text
    assert "| 0 | 95.00 | 2.00 | 50.00 | 3-4 | 300.0 |" in text
    assert "trained at once in 12 s, 1 of them" in text
    assert "9-9" not in text
    assert "hardware: gpu none" in text


def test_what_is_missing_or_damaged_is_said():
    with pytest.raises(RunError, match=r"holds no table2/ROW\.json"):
        write_results_page(Path("results"), Path("docs"))
    assert not Path("docs").exists()
    folder = Path("results/table2")
    folder.mkdir(parents=True)
    for content in ("[", "{}", "[1]"):
        (folder / "vgg11.json").write_text(content)
        with pytest.raises(RunError, match=r"vgg11\.json .* write it again with --merge"):
            write_results_page(Path("results"), Path("docs"))


def test_latency_is_that_of_the_networks_in_the_table():
    def measured(accuracy, ms, ratio):
        best = {"milliseconds": {"median": ms}}
        return {"accuracy": accuracy, "nonzero_fraction": 0.02, "best": best, "ratio": ratio}

    methods = {"ours": measured(0.9, 12.3, 4.0), "snip": measured(0.8, 45.6, 2.0)}
    entry = {"device": "cpu", "batch": 1000, "seed": 0, "methods": methods}
    found = groups(
        [a_row("ours", 0.9, 0.02, 0.5), a_row("ours", 0.8, 0.02, 0.5, seed=1), a_row("snip", 0.81, 0.02, 0.5)]
    )
    assert latency_table(found, [entry])[2:] == [
        "| method | CPU, batch 1,000: ms |",
        "| --- | --- |",
        "| `ours` | 12.3 (4.00) |",  # snip has been trained again since
        "",
    ]
    assert latency_table(found, [entry | {"seed": 1}]) == []
