"""Claims, tables and pictures of made-up figures."""

import json
import sys

import pytest

from bayesprune.reproduce import write_results_page
from bayesprune.reproduce.figure import STYLES
from bayesprune.reproduce.robustness_claims import AMONG_THESE, FAILS, HOLDS, UNKNOWN, claims
from bayesprune.reproduce.robustness_figure import PALETTE, label_of, styles_of
from bayesprune.reproduce.robustness_markdown import robustness_markdown
from bayesprune.reproduce.robustness_report import write_robustness

SETTINGS = {"epsilons": [0.0, 0.05, 0.1], "pgd_epsilons": [0.1], "pgd_steps": 10, "noise": [0.2], "bins": 15, "seed": 7}


def figures(clean, at_drop, at_gain, pgd=0.01):
    def one(accuracy, **key):
        return {**key, "accuracy": accuracy, "nll": 1.0, "ece": 0.1}

    return {
        "examples": 10000,
        "clean": one(clean),
        "reliability": [],
        "fgsm": [one(clean, epsilon=0.0), one(at_drop, epsilon=0.05), one(at_gain, epsilon=0.1)],
        "pgd": [one(pgd, epsilon=0.1)],
        "noise": [one(0.5, sigma=0.2)],
        "seconds": 3.0,
        "versions": {"torch": "2.11.0"},
        "hardware": {"machine": "x86_64"},
    }


def record(method, before, gain=None, number=0):
    made = {
        **{"name": f"{method}-{number}", "method": method, "model": "lenet5", "data": "fashion-mnist"},
        **{"validation": 0.05, "split_seed": number, "sha256": "0", "facts": {}, "settings": SETTINGS},
        "before": figures(*before),
    }
    if gain is not None:
        adversarial = {"epochs": 4, "epsilon": [0.0, 0.1], "learning_rate": 0.003}
        after = figures(before[0] - 0.02, before[1] + gain, before[2] + gain)
        made |= {"adversarial": adversarial, "history": [{"epoch": 1, "seconds": 2.0}], "after": after}
    return made


def as_the_paper_says():
    return [
        record("ours", (0.8901, 0.2486, 0.05), 0.5626),
        record("polarization", (0.8727, 0.25, 0.05), 0.6),
        record("variational-dropout", (0.8891, 0.24, 0.05), 0.7731),
        record("snip", (0.8283, 0.22, 0.05), 0.4),
    ]


def test_the_figures_of_the_paper_confirm_the_paper():
    found = claims(as_the_paper_says())
    assert [one.verdict for one in found] == ["–", HOLDS, "–", HOLDS, HOLDS, HOLDS, "–", HOLDS]
    assert found[0].measured == "24.86 %"
    assert found[2].measured == "72.07 %"
    assert "`variational-dropout` 77.31" in found[5].measured
    assert found[6].measured == "56.26 points"


def test_other_figures_refute_it():
    records = [
        record("ours", (0.89, 0.10, 0.05), 0.8),
        record("variational-dropout", (0.89, 0.30, 0.05), 0.5),
        record("snip", (0.89, 0.40, 0.05), 0.6),
        record("polarization", (0.89, 0.35, 0.05), -0.01),
    ]
    found = claims(records)
    assert found[1].verdict == f"{FAILS}: `ours`"
    assert found[3].verdict == FAILS
    assert found[4].verdict == FAILS
    assert found[5].verdict == f"{FAILS}: `ours`"
    assert found[7].verdict == f"{FAILS}: `polarization`"


def test_means_over_seeds_decide():
    records = [record("snip", (0.8, 0.2, 0.05), number=0), record("snip", (0.8, 0.4, 0.05), number=1)]
    records.append(record("ours", (0.8, 0.25, 0.05)))
    found = claims(records)
    assert "`snip` 62.50 ± 17.68" in found[1].measured
    assert found[1].verdict == f"{FAILS}: `ours`"
    assert len(found) == 4  # nothing about fine-tuning, which was not done


def test_one_network_alone_and_other_networks_say_nothing():
    alone = [one.verdict for one in claims(as_the_paper_says()[:1])]
    assert alone == ["–", UNKNOWN, "–", UNKNOWN, AMONG_THESE, UNKNOWN, "–", UNKNOWN]
    two = claims([as_the_paper_says()[0], as_the_paper_says()[3]])
    assert two[1].verdict == two[3].verdict == AMONG_THESE
    assert claims([record("ours", (0.8, 0.2, 0.1)) | {"data": "cifar10"}]) == []


def test_the_table_has_every_figure_once():
    text = robustness_markdown(as_the_paper_says())
    lines = [line for line in text.splitlines() if line.startswith("| snip-0")]
    assert lines[0].split(" | ")[1:] == [
        *("`snip`", "as it is", "82.83", "22.00", "5.00", "1.00", "50.00", "10.00", "1.000 |")
    ]
    assert lines[1].split(" | ")[2:6] == ["adversarial", "80.83", "62.00", "45.00"]
    assert "FGSM 0.05 | FGSM 0.1 | PGD 0.1 | noise 0.2 | ECE %" in text
    assert "Means of the methods" not in text
    assert "all 10,000 test images" in text
    assert "4 epochs" in text
    assert "8 s of fine-tuning" in text


def test_means_of_methods_come_with_several_seeds():
    records = [record("ours", (0.8, 0.2, 0.1), number=number) for number in range(2)]
    assert "| `ours` | 2 | as it is | 80.00 ± 0.00 | 20.00 ± 0.00 |" in robustness_markdown(records)


def test_what_is_odd_is_said():
    odd = record("ours", (0.8, 0.2, 0.1, 0.3)) | {"facts": {"accuracy": 0.85}}
    text = robustness_markdown([odd])
    assert "PGD leaves 30.00 %, FGSM only 10.00 % at ε = 0.1" in text
    assert "its file says 85.00 %, measured 80.00 %" in text


def test_methods_keep_their_colours_and_many_networks_share_those_of_their_method():
    records = as_the_paper_says()
    assert styles_of(records)["snip-0"] == STYLES["snip"]
    two = [record("ours", (0.8, 0.2, 0.1), number=number) for number in range(2)]
    assert list(styles_of(two).values()) == list(PALETTE[:2])
    many = [record(method, (0.8, 0.2, 0.1), number=n) for method in ("ours", "snip", "l1") for n in range(3)]
    assert {label_of(one, many) for one in many} == {"ours", "snip", "l1"} == set(styles_of(many))


def test_all_files_are_written_and_pictures_are_reproducible(tmp_path):
    written, note = write_robustness(as_the_paper_says(), tmp_path)
    assert [path.name for path in written] == [f"robustness.{end}" for end in ("json", "md", "png", "svg")]
    assert note == ""
    content = json.loads(written[0].read_text())
    assert (content["seed"], content["data"], len(content["networks"])) == (7, "fashion-mnist", 4)
    assert {"torch", "python"} <= content["versions"].keys()
    assert "processor" in content["hardware"]
    assert content["claims"][0]["measured"] == "24.86 %"
    before = [path.read_bytes() for path in written[2:]]
    write_robustness(as_the_paper_says(), tmp_path)
    assert [path.read_bytes() for path in written[2:]] == before


def test_without_matplotlib_only_the_pictures_are_missing(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    written, note = write_robustness(as_the_paper_says(), tmp_path)
    assert [path.suffix for path in written] == [".json", ".md"]
    assert "matplotlib" in note


@pytest.mark.parametrize("count", [1, 20])
def test_any_number_of_networks_can_be_drawn(tmp_path, count):
    records = [record("other", (0.8, 0.2, 0.1), 0.2, number) for number in range(count)]
    assert len(write_robustness(records, tmp_path)[0]) == 4


def test_the_page_of_all_results_shows_it(tmp_path):
    write_robustness(as_the_paper_says(), tmp_path / "results" / "robustness")
    write_results_page(tmp_path / "results", tmp_path / "docs")
    page = (tmp_path / "docs/results.md").read_text()
    assert "| 24.86 |" in page
    assert (tmp_path / "docs/figures/robustness.png").exists()
