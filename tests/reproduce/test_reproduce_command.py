"""`bayesprune reproduce table2` as a person uses it: rows on digits, stopped and continued, damaged and done again."""

import json
import multiprocessing
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_rows import CONFIGS, a_row

from bayesprune import baselines, data
from bayesprune.cli import job_runner, main
from bayesprune.reproduce import ROWS, MethodJob, Progress, RowFiles, jobs, merge, run_job, table2_report
from bayesprune.reproduce.row_files import KEYS
from bayesprune.runs import Display, Interrupts
from bayesprune.turbo import DivergedError, Interrupted

METHODS = "unpruned,ours,magnitude"
SCALE = "0.02"
QUICK = (
    "--row",
    "digits",
    "--protocols",
    "best",
    "--seeds",
    "0",
    "--epochs-scale",
    SCALE,
    "--output",
    "out",
    "--quiet",
)
ALL = (*QUICK, "--methods", METHODS)
FOLDER = Path("out/rows/digits-trial-0.02")


@pytest.fixture(scope="module")
def finished_files(tmp_path_factory):
    """Row files of three methods, computed once."""
    files = RowFiles(tmp_path_factory.mktemp("finished"), "digits", float(SCALE))
    work = jobs(ROWS["digits"], METHODS.split(","), ["best"], [0], CONFIGS, epochs_scale=float(SCALE))
    loaded = data.load("digits", validation=work[0].settings.validation, seed=0)
    for job in work:
        files.write(job, run_job(job, loaded))
    return {path.name: path.read_bytes() for path in files.folder.iterdir()}


@pytest.fixture
def finished(finished_files):
    """The same in the folder of a test."""
    FOLDER.mkdir(parents=True)
    for name, content in finished_files.items():
        (FOLDER / name).write_bytes(content)


def never(*_, **__):
    raise AssertionError("a finished row was computed again")


def test_three_methods_from_data_to_a_table(table2, monkeypatch):
    monkeypatch.setattr("bayesprune.reproduce.running.SECONDS", 0.01)
    monkeypatch.setattr("bayesprune.reproduce.running.BATCHES", (1,))
    code, out, err = table2(*ALL, "--bench")
    assert (code, err) == (0, "")
    rows = json.loads(Path("out/digits-trial-0.02.json").read_text())
    assert [row["method"] for row in rows] == ["magnitude", "ours", "unpruned"]
    for row in rows:
        assert set(KEYS) <= set(row)
        assert row == json.loads((FOLDER / f"{row['method']}-best-0.json").read_text()) | {
            key: row[key] for key in ("accuracy_unpruned", "accuracy_drop")
        }
        assert row["epochs_scale"] == 0.02
        assert row["epochs"] == sum(row["settings"][f"{p}_epochs"] for p in ("warmup", "prune", "finetune"))
        assert row["proof"]["max_rel_64"] < 1e-10
        assert row["latency"]["comparisons"]
        assert row["versions"]["torch"]
        assert row["hardware"]["processor"]
        assert 0 <= row["regularity"]["in_larger_rectangles"] <= row["regularity"]["in_rectangles"] <= 1
    by_method = {row["method"]: row for row in rows}
    dense = by_method["unpruned"]
    assert (dense["nonzero_fraction"], dense["macs_removed"], dense["structure"]) == (1, 0, [6, 16, 120, 84])
    for row in rows:
        assert row["accuracy_unpruned"] == dense["accuracy"]
        assert row["accuracy_drop"] == dense["accuracy"] - row["accuracy"]
    assert by_method["magnitude"]["nonzero_fraction"] <= 0.1
    assert 0 < by_method["magnitude"]["bytes"] <= dense["bytes"]
    text = Path("out/digits-trial-0.02.md").read_text()
    assert "these are not results" in text
    assert Path("out/digits-trial-0.02.png").read_bytes().startswith(b"\x89PNG")
    assert not list(Path("out").glob("digits.*"))  # where results would be
    assert "written    out/digits-trial-0.02.md" in out


def test_finished_rows_are_skipped(table2, finished, monkeypatch):
    monkeypatch.setattr(job_runner, "run_job", never)
    before = {path: path.stat().st_mtime_ns for path in FOLDER.iterdir()}
    for extra in ((), ("--again",)):
        code, _, err = table2(*ALL, *extra)
        assert (code, err) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in FOLDER.iterdir()} == before


def test_only_what_is_missing_runs(table2, finished):
    path = FOLDER / "magnitude-best-0.json"
    before = json.loads(path.read_text())
    path.unlink()
    code, out, _ = table2(*ALL, "--list")
    assert code == 0
    assert "magnitude-best-0: to do" in out
    assert "stays" in out
    assert "1 of 3 networks to train" in out
    assert not path.exists()
    assert table2(*ALL)[0] == 0
    after = json.loads(path.read_text())
    assert after["accuracy"] == before["accuracy"]  # the same seed
    assert after["structure"] == before["structure"]


def test_stopped_it_keeps_what_is_finished_and_goes_on(table2, monkeypatch):
    calls = []

    def stop_at_the_second(job, *_, **__):
        calls.append(job.name)
        if len(calls) == 2:
            raise Interrupted
        return a_row(job.method, 0.9, 0.5, 0.1, row="digits", settings=job.settings.as_dict(), epochs_scale=0.02) | {
            "data": "digits"
        }

    monkeypatch.setattr(job_runner, "run_job", stop_at_the_second)
    code, out, _ = table2(*(one for one in ALL if one != "--quiet"))
    assert code == 130
    assert "1 of 3 networks were finished and are kept" in out
    assert [path.name for path in FOLDER.iterdir()] == ["unpruned-best-0.json"]
    assert table2(*ALL)[0] == 0
    assert calls == ["unpruned-best-0", "ours-best-0", "ours-best-0", "magnitude-best-0"]


OURS_ALONE = (*(one for one in QUICK if one != "--quiet"), "--methods", "ours")


def stopped_after(epochs, monkeypatch, table2, *options):
    """Press Ctrl-C in an epoch of `ours`."""
    seen = []
    with monkeypatch.context() as patch:
        row = Progress.row
        patch.setattr(Progress, "row", lambda self, one: (seen.append(one), row(self, one)))
        patch.setattr(Progress, "should_stop", lambda self: len(seen) == epochs)
        code, out, _ = table2(*OURS_ALONE, *options)
    assert (code, len(seen)) == (130, epochs)
    assert "0 of 1 networks were finished" in out


def test_a_job_of_ours_goes_on_in_the_epoch_where_it_was(table2, monkeypatch):
    """Its row is that of a job that was not stopped."""
    unlike = ("seconds", "seconds_training")
    assert table2(*OURS_ALONE, "--output", "whole", "--epochs-scale", "0.05")[0] == 0
    (expected,) = json.loads(Path("whole/digits-trial-0.05.json").read_text())
    folder = Path("out/rows/digits-trial-0.05")
    for epochs in (1, 3):
        stopped_after(epochs, monkeypatch, table2, "--epochs-scale", "0.05")
        assert [path.name for path in folder.iterdir()] == [".ours-best-0.state.safetensors"]
    code, out, _ = table2(*OURS_ALONE, "--epochs-scale", "0.05")
    assert code == 0
    assert "ours-best-0: goes on after 4 epochs" in out
    assert "epoch 5/7" in out
    (row,) = json.loads(Path("out/digits-trial-0.05.json").read_text())
    assert {k: v for k, v in row.items() if k not in unlike} == {k: v for k, v in expected.items() if k not in unlike}
    assert not list(folder.glob(".*"))


def test_a_state_of_other_settings_or_damaged_is_not_used(table2, monkeypatch):
    stopped_after(1, monkeypatch, table2)
    state = FOLDER / ".ours-best-0.state.safetensors"
    good = state.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(MethodJob, "description", property(lambda self: {"other": "settings"}))
        display = Display(3, quiet=True)
        (job,) = jobs(ROWS["digits"], ["ours"], ["best"], [0], CONFIGS, epochs_scale=0.02)
        assert Progress(display, Interrupts(), job, 1, 1, state).resume() is None
    state.write_bytes(good[:-9])
    code, out, _ = table2(*OURS_ALONE)
    assert code == 0
    assert "ours-best-0: begins anew" in out


@pytest.mark.parametrize("content", [b"", b'{"row": ', b"[1]", b'{"row": "digits"}', b"\xff\xfe"])
def test_a_damaged_row_is_an_error_and_computed_with_again(table2, finished, monkeypatch, content):
    path = FOLDER / "magnitude-best-0.json"
    good = path.read_bytes()
    path.write_bytes(content)
    code, _, err = table2(*ALL)
    assert code == 1
    assert f"error: {path} is damaged" in err
    assert "--again" in err
    assert path.read_bytes() == content
    assert "damaged" in table2(*ALL, "--list")[1]
    assert "is damaged" in table2(*ALL, "--merge")[2]
    monkeypatch.setattr(job_runner, "run_job", lambda job, *_, **__: json.loads(good))
    assert table2(*ALL, "--again")[0] == 0
    assert json.loads(path.read_text()) == json.loads(good)


def retune(name, **settings):
    """Make the row of a job look as if the job had had other settings."""
    path = FOLDER / f"{name}.json"
    row = json.loads(path.read_text())
    row["settings"] |= settings
    path.write_text(json.dumps(row))


def test_a_stale_row_is_named_left_out_and_computed_again(table2, finished, monkeypatch):
    fresh = json.loads((FOLDER / "magnitude-best-0.json").read_text())
    retune("magnitude-best-0", learning_rate=0.5)
    why = "magnitude-best-0: stale (learning_rate 0.5 instead of 0.006)"
    assert f"runs      3 epochs  {why}" in table2(*ALL, "--list")[1]
    assert f"stays     3 epochs  {why}" in table2(*ALL, "--list", "--keep-stale")[1]

    code, out, _ = table2(*QUICK, "--methods", "ours", "--merge")  # also rows of methods that are not asked for
    assert code == 0
    assert "left out, stale: magnitude-best-0 (learning_rate 0.5 instead of 0.006)" in out
    assert {row["method"] for row in json.loads(Path("out/digits-trial-0.02.json").read_text())} == {"ours", "unpruned"}

    code, out, _ = table2(*ALL, "--merge", "--keep-stale")
    assert "kept though stale: magnitude-best-0 (learning_rate 0.5 instead of 0.006)" in out
    assert "`magnitude` with seed 0: stale" in Path("out/digits-trial-0.02.md").read_text()

    ran = []
    monkeypatch.setattr(job_runner, "run_job", lambda job, *_, **__: ran.append(job.name) or fresh)
    assert "kept       magnitude-best-0: stale" in table2(*ALL, "--keep-stale")[1]
    assert ran == []
    assert "stale" not in table2(*ALL)[1]
    assert ran == ["magnitude-best-0"]


def test_a_row_of_an_earlier_method_is_stale(table2, finished, monkeypatch):
    known = baselines.METHODS["magnitude"]
    monkeypatch.setitem(baselines.METHODS, "magnitude", replace(known, revision=known.revision + 1))
    assert "runs      3 epochs  magnitude-best-0: stale (revision 1 instead of 2)" in table2(*ALL, "--list")[1]
    path = FOLDER / "magnitude-best-0.json"
    row = json.loads(path.read_text())
    assert row.pop("revision") == 1
    path.write_text(json.dumps(row))  # as before there were revisions
    assert "magnitude-best-0: stale (revision 1 instead of 2)" in table2(*ALL, "--list")[1]


def test_a_table_of_stale_rows_only_is_refused(table2, finished):
    for method in METHODS.split(","):
        retune(f"{method}-best-0", learning_rate=0.5)
    code, _, err = table2(*ALL, "--merge")
    assert code == 1
    assert "are stale (magnitude-best-0, ours-best-0, unpruned-best-0)" in err
    assert "--keep-stale" in err


def test_settings_newer_than_a_row_have_their_usual_value(finished):
    path = FOLDER / "magnitude-best-0.json"
    row = json.loads(path.read_text())
    del row["settings"]["snip_batches"]
    path.write_text(json.dumps(row))
    (job,) = jobs(ROWS["digits"], ["magnitude"], ["best"], [0], CONFIGS, epochs_scale=0.02)
    files = RowFiles(Path("out"), "digits", 0.02)
    assert files.standing(job).state.value == "finished"
    other = replace(job, settings=replace(job.settings, snip_batches=2))
    assert "snip_batches 1 instead of 2" in files.standing(other).reason


def test_what_another_process_does_is_left_to_it(table2, finished, monkeypatch, tmp_path):
    for method in ("ours", "magnitude"):
        (FOLDER / f"{method}-best-0.json").unlink()
    files = RowFiles(Path("out"), "digits", 0.02)
    ours, magnitude = jobs(ROWS["digits"], ["ours", "magnitude"], ["best"], [0], CONFIGS, epochs_scale=0.02)
    rows = {
        job.name: a_row(job.method, 0.9, 0.5, 0.1, row="digits", data="digits", epochs_scale=0.02)
        | {"settings": job.settings.as_dict()}
        for job in (ours, magnitude)
    }
    ran = []

    def the_other_finishes_magnitude_meanwhile(job, *_, **__):
        ran.append(job.name)
        files.write(magnitude, rows[magnitude.name])
        return rows[job.name]

    monkeypatch.setattr(job_runner, "run_job", the_other_finishes_magnitude_meanwhile)
    with files.claim(ours):
        assert table2(*QUICK, "--methods", "ours")[0] == 0
    assert ran == []
    assert table2(*ALL)[0] == 0
    assert ran == ["ours-best-0"]
    assert not list(FOLDER.glob(".*.lock"))


def test_a_job_that_fails_is_a_row_and_the_others_go_on(table2, monkeypatch):
    def diverge(*_, **__):
        raise DivergedError("the loss became nan")

    monkeypatch.setattr("bayesprune.reproduce.running.baselines.run", diverge)
    assert table2(*ALL)[0] == 0
    rows = {row["method"]: row for row in json.loads(Path("out/digits-trial-0.02.json").read_text())}
    assert rows["magnitude"]["status"] == "failed: the loss became nan"
    assert rows["magnitude"]["accuracy"] is None
    assert rows["ours"]["accuracy"] > 0
    assert "failed: the loss became nan" in Path("out/digits-trial-0.02.md").read_text()
    assert "failed before" in table2(*ALL, "--list")[1]
    monkeypatch.undo()


def write_rows(folder, number):
    """What one of several processes does."""
    files = RowFiles(folder, "lenet5")
    work = jobs(ROWS["lenet5"], ["snip"], ["best"], range(3 * number, 3 * number + 3), CONFIGS)
    for job in work:
        files.write(job, a_row("snip", 0.8, 0.1, 0.2, seed=job.seed))
        merge(table2_report(ROWS["lenet5"]), files)


def test_processes_that_write_and_merge_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write_rows, args=(tmp_path, number)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    rows = json.loads((tmp_path / "lenet5.json").read_text())
    assert sorted(row["seed"] for row in rows) == list(range(6))


def test_merging_a_row_that_comes_meanwhile(tmp_path, monkeypatch):
    files = RowFiles(tmp_path, "lenet5")
    first, second = jobs(ROWS["lenet5"], ["snip"], ["best"], [0, 1], CONFIGS)
    files.write(first, a_row("snip", 0.8, 0.1, 0.2))
    original = files.read_all

    def read_then_another_comes():
        rows = original()
        if len(rows) == 1:
            files.write(second, a_row("snip", 0.8, 0.1, 0.2, seed=1))
        return rows

    monkeypatch.setattr(files, "read_all", read_then_another_comes)
    merge(table2_report(ROWS["lenet5"]), files)
    assert len(json.loads((tmp_path / "lenet5.json").read_text())) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--row", "lenet6"), "'lenet6' is not one of lenet5, alexnet"),
        ((*QUICK, "--methods", "snap"), "unknown method 'snap'; choose from unpruned, ours"),
        ((*QUICK, "--methods", "ours-paper-prior"), "no method of ours-paper-prior is part of the protocol best"),
        ((*QUICK, "--protocols", "worst"), "unknown protocol 'worst'; choose from best, long, paper"),
        ((*QUICK, "--methods", "ours-distilled"), "no method of ours-distilled is part of the row digits"),
        ((*QUICK, "--seeds", "a"), "'a' is not a list of whole numbers"),
        ((*QUICK, "--epochs-scale", "2"), "epochs_scale must be above 0 and at most 1, got 2.0"),
        ((*QUICK, "--configs", "nowhere"), "cannot read nowhere/digits-ours-best.yaml"),
        ((*QUICK, "--merge"), "holds no finished row yet"),
    ],
)
def test_what_cannot_be_is_said(table2, arguments, message):
    code, _, err = table2(*arguments)
    assert code in (1, 2)
    assert message in err


def test_the_study_of_gradients_writes_json(monkeypatch, capsys):
    arguments = ("--data", "digits", "--epochs", "2", "--samples", "5", "--device", "cpu", "--output", "g/g.json")
    monkeypatch.setattr(sys, "argv", ["bayesprune", "reproduce", "gradients", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert not exit_info.value.code
    content = json.loads(Path("g/g.json").read_text())
    noise = [study["noise_to_signal"] for study in content["studies"]]
    assert noise == sorted(noise)
    assert "times its cost" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["unpruned", "ours", "ours-paper-prior", "variational-dropout", "group-norm"])
def test_a_job_on_a_gpu(method):
    (job,) = jobs(ROWS["digits"], [method], ["paper"], [0], CONFIGS, epochs_scale=0.1)
    row = run_job(job, data.load("digits", validation=job.settings.validation, seed=0, device="cuda"), bench=True)
    assert set(KEYS) <= set(row)
    assert row["hardware"]["gpu"]
    assert row["latency"]["comparisons"]
