"""Plans, the paper's numbers, means, dominance, Markdown and the figure."""

import itertools
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from made_up_rows import CONFIGS, a_row, failed_row, random_rows

from bayesprune import baselines
from bayesprune.baselines import recipe
from bayesprune.reproduce import METHODS, PROTOCOLS, ROWS, TABLE2, jobs
from bayesprune.reproduce.averaging import ACCURACY, DROP, MACS, NONZERO
from bayesprune.reproduce.comparing import best, dominated_by, dominates, groups, usable, with_drops
from bayesprune.reproduce.figure import STYLES, draw
from bayesprune.reproduce.jobs import PHASES
from bayesprune.reproduce.markdown import markdown
from bayesprune.reproduce.methods import shared
from bayesprune.reproduce.tables import cells
from bayesprune.turbo import PRESETS, SettingsError

REAL_ROWS = ("lenet5", "alexnet", "vgg11")

# ------------------------------------------------------------------------------------------------ plans


def every_job(row, **options):
    return jobs(ROWS[row], METHODS, PROTOCOLS, (0, 1), CONFIGS, **options)


@pytest.mark.parametrize("row", ROWS)
def test_there_is_a_job_for_every_method_protocol_and_seed(row):
    names = {(job.method, job.protocol, job.seed) for job in every_job(row)}
    expected = set(itertools.product(METHODS, ("best", "paper"), (0, 1)))
    expected -= {(m, p, s) for m, p in (("ours-paper-prior", "best"), ("ours-macs", "paper")) for s in (0, 1)}
    taught = {one for one in expected if one[0].endswith("-distilled")}
    with_teacher = {one for one in taught if one[1] == "best"} if row == "vgg11" else set()
    small = {one for one in expected if one[0] == "group-norm-small"}
    fewer_macs = {one for one in small if one[1] == "best"} if row == "lenet5" else set()
    longer = {"unpruned", "ours-distilled", "group-norm-distilled"} if row == "vgg11" else set()
    long = set(itertools.product(longer, ("long",), (0, 1)))
    assert names == expected - taught - small | with_teacher | fewer_macs | long
    assert all(job.settings.seed == job.seed for job in every_job(row))


@pytest.mark.parametrize("row", ROWS)
def test_all_methods_get_the_same_epochs_and_validation_split(row):
    for job in every_job(row):
        leader = "ours-distilled" if job.protocol == "long" else "ours"
        (ours,) = jobs(ROWS[row], [leader], [job.protocol], [0], CONFIGS)
        missing = ours.settings.finetune_epochs if (job.method, job.protocol) == ("snip", "paper") else 0
        assert job.epochs == ours.epochs - missing
        assert job.settings.validation == ours.settings.validation


@pytest.mark.parametrize("row", REAL_ROWS)
def test_the_protocol_of_the_paper(row):
    for job in every_job(row):
        if job.protocol == "paper":
            assert job.settings.learning_rate == 0.01
            assert job.settings.batch_size == (64 if row == "lenet5" else 128)
            finetune = 0 if job.method in ("snip", "unpruned") else 15 if row == "lenet5" else 30
            assert job.settings.finetune_epochs == finetune


def test_baselines_keep_the_proportions_of_their_recipe():
    for job in every_job("vgg11"):
        if job.method in baselines.METHODS and job.protocol == "best" and job.method != "snip":
            known = recipe(job.method, "best", "vgg11")
            assert [getattr(job.settings, p) for p in PHASES] == [getattr(known, p) for p in PHASES]  # 145 already
            assert job.settings.strength == known.strength
    kept = {job.method: job.settings for job in every_job("alexnet")}
    assert kept["magnitude"].target_nonzero == pytest.approx(0.0145)
    assert kept["group-norm"].target_macs == pytest.approx(0.346)
    assert kept["snip"].target_nonzero == pytest.approx(0.1175)


def test_a_distilled_baseline_is_the_baseline_with_a_teacher():
    found = {job.method: job for job in every_job("vgg11") if job.protocol == "best" and job.seed == 1}
    plain, taught = found["group-norm"], found["group-norm-distilled"]
    assert taught.settings == replace(plain.settings, distil=0.7, distil_temperature=1.0, distil_from="finetune")
    assert (taught.algorithm, taught.revision) == ("group-norm", plain.revision)
    assert taught.name == "group-norm-distilled-best-1"
    for ours in (found["ours-distilled"].settings, found["ours-macs-distilled"].settings):
        assert (ours.distil, ours.distil_from) == (0.7, "finetune")


def test_long_is_best_with_twice_the_epochs():
    found = {(job.method, job.protocol): job for job in every_job("vgg11") if job.seed == 1}
    methods = [method for method, protocol in found if protocol == "long"]
    assert methods == ["unpruned", "ours-distilled", "group-norm-distilled"]
    for method in methods:
        short, long = found[method, "best"].settings, found[method, "long"].settings
        assert [getattr(long, phase) for phase in PHASES] == [2 * getattr(short, phase) for phase in PHASES]
        same = {phase: getattr(short, phase) for phase in PHASES}
        if method == "ours-distilled":
            same["weight_strength"] = short.weight_strength
        assert replace(long, **same) == short
    assert found["ours-distilled", "long"].name == "ours-distilled-long-1"


def test_a_row_without_a_file_for_it_has_no_long_jobs():
    with pytest.raises(SettingsError, match=r"row lenet5 under long: it has no file"):
        jobs(ROWS["lenet5"], METHODS, ["long"], [0], CONFIGS)
    with pytest.raises(SettingsError, match=r"no method of snip is part of the protocol long; .*; under long: un"):
        jobs(ROWS["vgg11"], ["snip"], ["long"], [0], CONFIGS)


def test_long_needs_only_its_own_file(tmp_path):
    name = "vgg11-ours-distilled-long.yaml"
    (tmp_path / name).write_text((CONFIGS / name).read_text())
    found = jobs(ROWS["vgg11"], METHODS, ["long"], [0], tmp_path)
    assert [job.method for job in found] == ["unpruned", "ours-distilled", "group-norm-distilled"]


def test_group_norm_is_asked_for_the_macs_of_ours_macs_where_those_are_fewer():
    found = {job.method: job for job in every_job("lenet5") if job.protocol == "best" and job.seed == 1}
    plain, small = found["group-norm"], found["group-norm-small"]
    assert small.settings == replace(plain.settings, target_macs=0.17)
    assert (small.algorithm, small.revision, small.name) == ("group-norm", plain.revision, "group-norm-small-best-1")
    assert not any(job.method == "group-norm-small" for job in every_job("alexnet"))


def test_shared_epochs():
    assert shared(80, [15, 45, 20]) == [15, 45, 20]
    assert shared(172, [15, 45, 20]) == [32, 97, 43]
    assert shared(60, [15, 0]) == [60, 0]
    for total in range(50):
        assert sum(shared(total, [3, 1, 7])) == total


def test_our_settings_come_from_files():
    def read(path):
        return yaml.safe_load(path.read_text())

    assert read(CONFIGS / "lenet5-ours-best.yaml") == read(
        Path(__file__).parents[2] / "configs" / "lenet5-fashion-mnist.yaml"
    )
    (vgg,) = jobs(ROWS["vgg11"], ["ours"], ["best"], [3], CONFIGS)
    s = vgg.settings
    assert (s.optimiser, s.learning_rate, s.cost_mix, s.prune_decay, s.seed) == ("sgd", 0.05, 0.9, 0.2, 3)
    assert vgg.epochs == 145
    (prior,) = jobs(ROWS["vgg11"], ["ours-paper-prior"], ["paper"], [0], CONFIGS)
    assert prior.settings.family == PRESETS["paper"]["family"]
    assert (prior.settings.restart, prior.settings.augment, prior.settings.finetune_epochs) == (True, True, 30)


def test_a_config_of_another_row_is_refused(tmp_path):
    (tmp_path / "digits-ours-best.yaml").write_text("model: vgg11")
    with pytest.raises(SettingsError, match="must have model: lenet5"):
        jobs(ROWS["digits"], ["ours"], ["best"], [0], tmp_path)
    (tmp_path / "digits-ours-best.yaml").write_text("[1]")
    with pytest.raises(SettingsError, match="`name: value` lines"):
        jobs(ROWS["digits"], ["ours"], ["best"], [0], tmp_path)


def test_trials_have_at_least_one_epoch_in_every_phase():
    for whole, trial in zip(every_job("lenet5"), every_job("lenet5", epochs_scale=0.001), strict=True):
        for phase in PHASES:
            assert getattr(trial.settings, phase) == min(1, getattr(whole.settings, phase))


# ------------------------------------------------------------------------------------------------ the paper


def test_the_papers_numbers():
    """Against findings, section 9: accuracy / nonzero / FLOPs removed."""
    findings = {
        ("lenet5", "ours"): (88.77, 1.14, 76.03, "3-5-16-17"),
        ("alexnet", "ours"): (65.57, 3.42, 45.94, "6-16-25-20-7-7-7"),
        ("vgg11", "ours"): (67.12, 4.68, 63.14, "60-119-191-148-181-176-44-64-59"),
        ("lenet5", "variational-dropout"): (88.91, 6.16, 11.82, None),
        ("alexnet", "group-variational-dropout"): (64.82, 9.30, 39.29, None),
        ("vgg11", "polarization"): (64.41, 26.74, 59.54, None),
        ("lenet5", "snip"): (82.83, 9.68, 19.82, None),
        ("alexnet", "unpruned"): (66.18, 100, 0, None),
    }
    for (row, method), (accuracy, nonzero, macs_removed, structure) in findings.items():
        line = TABLE2[row][method]
        assert (line.accuracy, line.nonzero, line.macs_removed) == (accuracy, nonzero, macs_removed)
        assert structure in (None, line.structure)
    for row in REAL_ROWS:
        widths = {len(line.structure.split("-")) for line in TABLE2[row].values()}
        assert len(widths) == 1
        assert set(TABLE2[row]) <= set(METHODS)


# ------------------------------------------------------------------------------------------------ who wins


@pytest.mark.parametrize("seed", range(20))
def test_dominance_against_brute_force(seed):
    rows = random_rows(METHODS[1:], seeds=(0,), seed=seed)
    found = groups(rows)
    for group in found:
        (mine,) = group.rows
        expected = set()
        for row in rows:
            better = (
                row["accuracy"] > mine["accuracy"],
                row["nonzero_fraction"] < mine["nonzero_fraction"],
                row["macs_removed"] > mine["macs_removed"],
            )
            worse = (
                row["accuracy"] < mine["accuracy"],
                row["nonzero_fraction"] > mine["nonzero_fraction"],
                row["macs_removed"] < mine["macs_removed"],
            )
            if any(better) and not any(worse):
                expected.add(row["method"])
        assert {one.method for one in dominated_by(group, found)} == expected


def test_dominance_is_strict_somewhere():
    assert not dominates((1, 2), (1, 2))
    assert dominates((1, 3), (1, 2))
    assert not dominates((0, 3), (1, 2))


def test_best_and_means():
    rows = [a_row("ours", 0.8, 0.01, 0.7), a_row("ours", 0.9, 0.03, 0.5, seed=1), a_row("snip", 0.85, 0.1, 0.8)]
    ours, snip = groups(rows)
    assert ours.mean(ACCURACY).mean == pytest.approx(85)
    assert ours.mean(ACCURACY).spread == pytest.approx(statistics.stdev([80, 90]))
    assert snip.mean(ACCURACY).spread is None
    assert ours.mean(DROP) is None  # nobody has trained the dense network
    assert best([ours, snip], NONZERO) == [ours]
    assert best([ours, snip], MACS) == [snip]
    assert best([], MACS) == []


def test_means_of_fewer_seeds_say_so():
    rows = [a_row("unpruned", 0.9, 1, 0), *(a_row("ours", 0.8, 0.01, 0.7, seed=seed) for seed in range(3))]
    unpruned, ours = groups(with_drops(rows))
    assert cells(ours, [ACCURACY, DROP]) == ["80.00 ± 0.00", "10.00 (1 of 3)"]
    assert cells(unpruned, [ACCURACY, DROP]) == ["90.00", "0.00"]


def test_drops_are_those_of_the_same_seed_and_protocol():
    rows = with_drops(
        [
            a_row("unpruned", 0.9, 1, 0),
            a_row("unpruned", 0.8, 1, 0, seed=1),
            a_row("ours", 0.85, 0.1, 0.5),
            a_row("ours", 0.85, 0.1, 0.5, seed=1),
            a_row("ours", 0.85, 0.1, 0.5, protocol="paper"),
            failed_row("snip"),
        ]
    )
    assert [row["accuracy_drop"] for row in rows] == [0, 0, pytest.approx(0.05), pytest.approx(-0.05), None, None]


def test_a_network_that_has_forgotten_everything_wins_nothing():
    rows = with_drops([a_row("unpruned", 0.9, 1, 0), a_row("ours", 0.88, 0.1, 0.5), a_row("snip", 0.1, 0.001, 0.99)])
    assert [group.method for group in usable(groups(rows))] == ["unpruned", "ours"]
    text = markdown(ROWS["lenet5"], rows)
    assert "best nonzero %: `ours`" in text
    assert "`snip`: more than 10 points lost" in text


# ------------------------------------------------------------------------------------------------ Markdown, figure


def cells_of(text, method):
    """The cells of the first line of a method."""
    line = next(line for line in text.splitlines() if line.startswith(f"| `{method}` |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_shows_the_rows():
    rows = [
        *(a_row("unpruned", 0.91, 1, 0, seed=s) for s in (0, 1)),
        a_row("ours", 0.8877, 0.0114, 0.7603),
        a_row("ours", 0.8923, 0.0120, 0.7403, seed=1),
        failed_row("snip"),
    ]
    text = markdown(ROWS["lenet5"], rows)
    cells = cells_of(text, "ours")
    assert cells[1:4] == ["0, 1", "172", "89.00 ± 0.33"]
    assert cells[4] == "2.00 ± 0.33"
    assert cells[5:7] == ["1.17 ± 0.04", "75.03 ± 1.41"]
    assert cells[9] == "3-5-16-17, 3-5-16-18"
    assert cells[10:] == ["88.77 / 1.14 / 76.03", "3-5-16-17"]
    assert cells_of(text, "snip")[1:4] == ["– (1 failed)", "172", "–"]
    assert "`snip` with seed 0: failed: the loss became nan" in text
    assert "wins on accuracy % (+0.23); loses on nonzero % (+0.03), MACs removed % (-1.00)" in text
    assert "trial" not in text.lower()
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("| `ours`")}
    assert widths == {13, 9}  # of the main table and of that of regularity


def test_what_is_open_is_said():
    text = markdown(ROWS["lenet5"], random_rows(METHODS, protocols=PROTOCOLS))
    for words in ("What it leaves open is our choice", "as many epochs in total", "against the paper's proposed"):
        assert words in text


@pytest.mark.parametrize("row", ROWS)
def test_the_figure(row, tmp_path):
    assert set(STYLES) == set(METHODS)
    assert len(set(STYLES.values())) == len(STYLES)
    path = tmp_path / "figure.png"
    draw(ROWS[row], [*random_rows(METHODS, protocols=PROTOCOLS), failed_row("snip", seed=9)], path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 10_000
    assert [one.name for one in Path(tmp_path).iterdir()] == ["figure.png"]
