"""The study of regularity: plans, comparison at equal nonzeros, sentences, and the command from data to a report."""

import json
import math
from pathlib import Path

import pytest
import torch
from made_up_rows import STUDY_CONFIGS, study_row

from bayesprune.cli import job_runner
from bayesprune.regularity import regularity as measure
from bayesprune.reproduce import ROWS, RowFiles, merge, study_plan, study_report
from bayesprune.reproduce.regularity_figures import DRAWS, regularity_figures
from bayesprune.reproduce.study import FAMILIES, IDENTITY, groups
from bayesprune.reproduce.study.equal_nonzeros import IrregularNetworks
from bayesprune.reproduce.study.families import family_of, implied_coupling
from bayesprune.reproduce.study.figure import STYLES, draw_study
from bayesprune.reproduce.study.markdown import study_markdown
from bayesprune.reproduce.study.sentences import couplings, prices
from bayesprune.supports import MarkovChain
from bayesprune.turbo import PRESETS, Interrupted, Settings, SettingsError

STUDY_ROWS = ("lenet5", "vgg11", "digits")

# ------------------------------------------------------------------------------------------------ plans


@pytest.mark.parametrize("row", STUDY_ROWS)
def test_every_file_is_a_setting_for_every_seed(row, monkeypatch):
    monkeypatch.setitem(PRESETS, "regular", PRESETS.get("regular", {"groups": "tile"}))
    plan = study_plan(ROWS[row], None, (3, 5), STUDY_CONFIGS)
    files = {path.stem for path in (STUDY_CONFIGS / row).glob("*.yaml")} - {"base"}
    assert {(job.setting, job.seed) for job in plan.jobs} == {(name, seed) for name in files for seed in (3, 5)}
    assert plan.waiting == {}
    assert all(job.settings.seed == job.seed for job in plan.jobs)
    assert len({job.title for job in plan.jobs}) == len(files)
    if row != "vgg11":
        assert {job.epochs for job in plan.jobs} == {80 if row == "lenet5" else 130}
    irregular = [job for job in plan.jobs if family_of(job.settings.as_dict(), job.preset) == "irregular"]
    assert len(irregular) >= 2 * 3
    assert plan.jobs[0] in irregular


def test_base_then_preset_then_file(tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS, "bold", {"weight_strength": 7.0, "coupling": 0.3})
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "base.yaml").write_text("model: lenet5\nprune_epochs: 9\nweight_strength: 1\ncoupling: 0.1")
    (folder / "bold.yaml").write_text("preset: bold\ntitle: a title\ncoupling: 0.7")
    (job,) = study_plan(ROWS["digits"], None, [4], tmp_path).jobs
    assert (job.name, job.title, job.preset) == ("bold-4", "a title", "bold")
    assert (job.settings.prune_epochs, job.settings.weight_strength, job.settings.coupling) == (9, 7.0, 0.7)


def test_a_preset_that_is_not_there_yet_waits(tmp_path, reproduce):
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "later.yaml").write_text("preset: tomorrow")
    (folder / "now.yaml").write_text("prune_epochs: 9")
    code, out, _ = reproduce("regularity", "--row", "digits", "--configs", tmp_path, "--list")
    assert code == 0
    assert "waits      later: the preset 'tomorrow' is not there yet, only paper" in out
    assert "now-0: to do" in out
    assert "1 of 1 networks to train" in out


def test_what_is_wrong_with_a_setting_names_its_file(tmp_path):
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "odd.yaml").write_text("couplings: 0.1")
    with pytest.raises(SettingsError, match=r"odd\.yaml: unknown setting 'couplings'; did you mean coupling"):
        study_plan(ROWS["digits"], None, [0], tmp_path)
    with pytest.raises(SettingsError, match="unknown setting 'even'; choose from odd"):
        study_plan(ROWS["digits"], ["even"], [0], tmp_path)
    with pytest.raises(SettingsError, match="holds no settings"):
        study_plan(ROWS["vgg11"], None, [0], tmp_path)


def test_families():
    def of(preset=None, **settings):
        return family_of(Settings(**settings).as_dict(), preset)

    assert of() == "irregular"
    assert of(coupling=0.5) == "ising"
    assert of(p01=0.1, p10=0.3) == "transitions"
    assert of(groups="tile", coupling=0.5) == "tiles"
    assert of(groups="pattern") == "pattern"
    assert of(groups="kernel") == "other"
    assert of(linear_groups="tile") == "other"
    assert of(weight_strength=0.0) == "units"
    assert of("regular", groups="tile") == "regular"
    assert set(STYLES) == set(FAMILIES)
    assert len(set(STYLES.values())) == len(STYLES)


def test_the_coupling_of_transitions_is_that_of_the_chain():
    """Against the pairwise factor of the chain's joint distribution: exp(J) on equal, exp(-J) on other neighbours."""
    p01, p10 = 0.05, 0.1
    stationary = p01 / (p01 + p10)
    joint = {
        (0, 0): (1 - stationary) * (1 - p01),
        (0, 1): (1 - stationary) * p01,
        (1, 0): stationary * p10,
        (1, 1): stationary * (1 - p10),
    }
    odds = joint[0, 0] * joint[1, 1] / (joint[0, 1] * joint[1, 0])
    assert implied_coupling(p01, p10) == pytest.approx(math.log(odds) / 4)
    assert implied_coupling(0.3, 0.7) == pytest.approx(0)


# ------------------------------------------------------------------------------------------------ figures of a row


def test_layers_and_chance_of_a_row():
    masks = {"conv": torch.zeros(6, 4, 3, 3, dtype=torch.bool), "out": torch.zeros(10, 20, dtype=torch.bool)}
    masks["conv"][:3, 0] = True  # 3 x 9: one rectangle
    masks["out"][::2, ::2] = True  # alone and dense once dead lines are gone
    masks["out"][1, :5] = True
    found = regularity_figures(masks, seed=1, by_layer=True)
    conv = found["layers"]["conv"]
    assert (conv["live"], conv["in_rectangles"], conv["rectangles"], conv["mean_area"]) == (27, 1.0, 1, 27.0)
    assert (conv["cluster_along_rows"], conv["cluster_along_columns"]) == (9.0, 3.0)
    whole = measure(masks).network
    assert found["live"] == whole.live == found["chance"]["live"]
    assert found["cluster_along_rows"] == whole.along_rows.mean_cluster
    assert found["chance"]["layers"]["out"]["live"] == int(masks["out"].sum())
    assert found["chance"]["layers"]["conv"]["in_rectangles"] == 1.0  # nowhere else to go
    assert found["chance"]["layers"]["out"]["in_rectangles"] < found["layers"]["out"]["in_rectangles"]
    assert DRAWS * found["chance"]["rectangles"] == round(DRAWS * found["chance"]["rectangles"])
    assert regularity_figures(masks, seed=1, by_layer=True) == found
    assert "layers" not in regularity_figures(masks)


def test_lengths_along_rows_are_those_of_a_chain():
    """A mask drawn from a chain has clusters of 1 / p10 and gaps of 1 / p01 along its rows."""
    alive = MarkovChain(p01=0.05, p10=0.2).sample((60, 3000), torch.Generator().manual_seed(0)).bool()
    found = regularity_figures({"layer": alive})
    assert found["cluster_along_rows"] == pytest.approx(5, rel=0.05)
    assert found["gap_along_rows"] == pytest.approx(20, rel=0.05)


# ------------------------------------------------------------------------------------------------ equal nonzeros


def irregular_rows():
    """90 % at 4 % nonzero and 88 % at 1 %: 89 % at 2 %, the mean of the logarithms; of MACs 60, 80 and 70 % removed."""
    loose, tight = study_row("loose", 0.9, 0.04, 0.05), study_row("tight", 0.88, 0.01, 0.03, weight_strength=12.0)
    return [loose | {"macs_removed": 0.6}, tight | {"macs_removed": 0.8}]


def test_interpolation_is_linear_in_the_logarithm():
    line = IrregularNetworks(((1.0, 88.0), (4.0, 90.0), (8.0, 90.5)))
    assert line.accuracy(2) == pytest.approx(89)
    assert line.accuracy(1) == 88
    assert line.accuracy(4) == 90
    assert line.accuracy(4 * math.sqrt(2)) == pytest.approx(90.25)
    assert line.accuracy(0.99) is None
    assert line.accuracy(8.01) is None
    assert IrregularNetworks(((2.0, 88.0),)).accuracy(2) == 88
    assert IrregularNetworks(()).accuracy(2) is None
    assert IrregularNetworks.among(groups(irregular_rows())).macs_removed(2) == pytest.approx(70)
    assert line.macs_removed(2) is None


def test_prices_in_words():
    rows = [
        *irregular_rows(),
        study_row("tiles", 0.875, 0.02, 0.9, groups="tile") | {"macs_removed": 0.75, "validation": {"accuracy": 0.88}},
        study_row("panels", 0.878, 0.02, 0.9, groups="panel") | {"validation": {"accuracy": 0.87}},
        study_row("ising", 0.892, 0.02, 0.1, coupling=0.5) | {"macs_removed": None},
        study_row("pattern", 0.9, 0.08, 0.8, groups="pattern"),
    ]
    assert prices(groups(rows)) == [
        "- Of the networks that can be compared and have 50 % or more of their weights in rectangles, `tiles` is the "
        "most accurate at equal nonzeros on validation data: it loses 1.00 points there, and on test data loses 1.50 "
        "points.",
        "- `ising` has 89.20 % with 2.00 % nonzero, irregular networks 89.00 % with as many: it gains 0.20 points and "
        "has 10.0 % of its weights in rectangles (2.0 % by chance).",
        "- `tiles` has 87.50 % with 2.00 % nonzero, irregular networks 89.00 % with as many: it loses 1.50 points and "
        "has 90.0 % of its weights in rectangles (2.0 % by chance); of the MACs 75.0 % are removed, of theirs 70.0 %.",
        "- `pattern` has 90.00 % with 8.00 % nonzero and 80.0 % of its weights in rectangles (2.0 % by chance); it "
        "cannot be compared: the irregular networks have 1.00 to 4.00 %.",
        "- `panels` has 87.80 % with 2.00 % nonzero, irregular networks 89.00 % with as many: it loses 1.20 points and "
        "has 90.0 % of its weights in rectangles (2.0 % by chance); of the MACs 70.0 % are removed, of theirs 70.0 %.",
    ]
    without = [{key: value for key, value in row.items() if key != "validation"} for row in rows]
    assert prices(groups(without)) == prices(groups(rows))[1:]  # nothing to choose by


def test_prices_without_anything_to_compare():
    lonely = groups([study_row("tiles", 0.875, 0.02, 0.9, groups="tile")])
    assert prices(lonely) == [
        "- `tiles` has 87.50 % with 2.00 % nonzero and 90.0 % of its weights in rectangles (2.0 % by chance); it "
        "cannot be compared: there is no irregular network."
    ]
    failed = study_row("tiles", 0, 0, 0, groups="tile") | {"accuracy": None, "nonzero_fraction": None}
    assert prices(groups([*irregular_rows(), failed])) == ["- `tiles` has no network to compare."]
    weak = groups([*irregular_rows(), study_row("ising", 0.892, 0.02, 0.1, coupling=0.5)])
    assert prices(weak)[0] == "- No network that can be compared has 50 % or more of its weights in rectangles."


def test_a_loss_within_the_spread_is_called_so():
    pair = [study_row("ising", accuracy, 0.02, 0.1, coupling=0.5, seed=s) for s, accuracy in enumerate((0.885, 0.893))]
    (line,) = prices(groups([*irregular_rows(), *pair]))[1:]
    assert "has 88.90 ± 0.57 % with 2.00 ± 0.00 % nonzero" in line
    assert "it loses 0.10 points (within its spread over seeds)" in line


def test_no_mac_removed_is_a_figure():
    (line,) = prices(
        groups([*irregular_rows(), study_row("ising", 0.89, 0.02, 0.1, coupling=0.5) | {"macs_removed": 0.0}])
    )[1:]
    assert line.endswith("of the MACs 0.0 % are removed, of theirs 70.0 %.")


def test_couplings_in_words():
    rows = [
        *irregular_rows(),
        study_row("strong", 0.8, 0.01, 0.5, coupling=1.2, cluster=3.0),
        study_row("weak", 0.85, 0.02, 0.1, coupling=0.25),
        study_row("far", 0.87, 0.01, 0.4, p01=0.05, p10=0.1, cluster=4.0, gap=9.0),
        study_row("near", 0.88, 0.02, 0.05, p01=0.3, p10=0.7, cluster=1.6, gap=10.0),
        study_row("between", 0.88, 0.02, 0.05, p01=0.3, p10=0.3, cluster=1.5, gap=7.0),
    ]
    assert couplings(groups(rows)) == [
        "- From J = 0.00 to 1.20: share in rectangles 5.0 to 50.0 % (by chance 2.0 to 2.0), mean cluster along rows "
        "2.00 to 3.00 (by chance 1.50 to 1.50), nonzeros 4.00 to 1.00 %, accuracy 90.00 to 80.00 %.",
        "- From the J of p01 and p10 = 0.00 to 1.29: share in rectangles 5.0 to 40.0 % (by chance 2.0 to 2.0), mean "
        "cluster along rows 1.60 to 4.00 (by chance 1.50 to 1.50), nonzeros 2.00 to 1.00 %, accuracy 88.00 to 87.00 %.",
        "- The smaller p10, the longer the mean cluster along rows: true in 2 of 3 pairs of settings that differ in "
        "p10, and in 2 once lengths are divided by those of chance.",
        "- The smaller p01, the longer the mean gap along rows: true in 1 of 2 pairs of settings that differ in p01, "
        "and in 1 once lengths are divided by those of chance.",
    ]
    assert couplings(groups(irregular_rows())) == []


def test_the_whole_report(tmp_path):
    rows = [*irregular_rows(), study_row("tiles", 0.875, 0.02, 0.9, groups="tile", seed=1)]
    rows += [study_row("ising", 0.7, 0.02, 0.1, coupling=0.5), study_row("far", 0.87, 0.01, 0.4, p01=0.05, p10=0.1)]
    rows[0]["status"] = "collapsed: try weaker priors"
    text = study_markdown(ROWS["lenet5"], rows)
    assert "| `far` | 1.29 | 10.0 | 20.0 | 2.00 (1.50) | 1.20 (1.20) | 8.0 (6.0) | 7.0 (7.0) | 60.0 (60.0) |" in text
    assert (
        "| `tiles` | title of tiles | shared by tiles | 1 | 172 | 87.50 | 87.50 | 2.00 | 70.00 | 90.0 | 2.0 | 45.0 |"
        in text
    )
    assert "- `loose` with seed 0: collapsed: try weaker priors" in text
    assert "| setting | conv1 |" in text
    assert "trial" not in text
    for shown in (rows, rows[:1]):
        path = tmp_path / f"{len(shown)}.png"
        draw_study(ROWS["lenet5"], shown, path)
        assert path.read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------------------ the command

QUICK = ("--row", "digits", "--epochs-scale", "0.01", "--output", "out", "--quiet")
FOLDER = Path("out/rows/digits-trial-0.01")
SOME = "irregular-0.25,ising-1.2,tile-4x4"


def test_from_data_to_a_report(regularity):
    code, out, err = regularity(*QUICK, "--settings", SOME)
    assert (code, err) == (0, "")
    assert sorted(path.name for path in FOLDER.iterdir()) == [
        f"{name}-0.{ending}" for name in SOME.split(",") for ending in ("json", "safetensors")
    ]
    rows = json.loads(Path("out/digits-trial-0.01.json").read_text())
    for row in rows:
        assert row["regularity"]["layers"].keys() == {"conv1", "conv2", "fc1", "fc2", "out"}
        assert row["regularity"]["chance"]["live"] == row["regularity"]["live"]
        assert row["title"]
    text = Path("out/digits-trial-0.01.md").read_text()
    assert "these are not results" in text
    assert "## Accuracy at equal nonzeros" in text
    assert Path("out/digits-trial-0.01.png").read_bytes().startswith(b"\x89PNG")
    assert "written    out/digits-trial-0.01.png" in out
    assert "3 of 3" not in out


def test_stopped_it_goes_on_and_a_setting_that_is_gone_is_stale(regularity, monkeypatch, tmp_path):
    calls = []

    def stop_at_the_second(job, *_, **__):
        calls.append(job.name)
        if len(calls) == 2:
            raise Interrupted
        made_up = study_row(job.setting, 0.9, 0.02, 0.1) | {"data": "digits", "epochs_scale": 0.01}
        return made_up | job.identity | {"settings": job.settings.as_dict()}

    monkeypatch.setattr(job_runner, "run_job", stop_at_the_second)
    assert regularity(*QUICK, "--settings", SOME)[0] == 130
    assert [path.name for path in FOLDER.iterdir()] == ["irregular-0.25-0.json"]
    assert regularity(*QUICK, "--settings", SOME)[0] == 0
    assert calls == ["irregular-0.25-0", "ising-1.2-0", "ising-1.2-0", "tile-4x4-0"]
    (FOLDER / "ising-1.2-0.json").rename(FOLDER / "ising-9-0.json")
    out = regularity(*QUICK, "--merge")[1]
    assert "left out, stale: ising-9-0 (the present configuration has no such job)" in out
    assert len(json.loads(Path("out/digits-trial-0.01.json").read_text())) == 2


def test_a_new_title_needs_no_new_training(tmp_path):
    folder = tmp_path / "configs" / "digits"
    folder.mkdir(parents=True)
    (folder / "one.yaml").write_text("title: before")
    files = RowFiles(tmp_path, "digits", identity=IDENTITY)

    def expected(_=None):
        return study_plan(ROWS["digits"], None, [0], folder.parent).jobs

    (job,) = expected()
    files.write(job, study_row("one", 0.9, 0.02, 0.1) | job.identity | {"data": "digits"})
    (folder / "one.yaml").write_text("title: after")
    assert merge(study_report(ROWS["digits"]), files, expected=expected).stale == {}
    assert json.loads((tmp_path / "digits.json").read_text())[0]["title"] == "after"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--row", "alexnet"), "'alexnet' is not one of lenet5, vgg11, digits"),
        ((*QUICK, "--settings", "odd"), "unknown setting 'odd'; choose from chain-0.05-0.1"),
        ((*QUICK, "--configs", "nowhere"), "nowhere/digits holds no settings"),
        ((*QUICK, "--merge"), "holds no finished row yet"),
    ],
)
def test_what_cannot_be_is_said(regularity, arguments, message):
    code, _, err = regularity(*arguments)
    assert code in (1, 2)
    assert message in err
