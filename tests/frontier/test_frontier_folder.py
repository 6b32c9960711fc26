"""A frontier on disk and from the command line."""

import json
import sys

import frontier_examples as examples
import pytest
import torch

from bayesprune import artefact, data, frontier
from bayesprune.cli import main
from bayesprune.frontier import folder as folders
from bayesprune.likelihoods import Classification
from bayesprune.runs import RunError
from bayesprune.surgery import ProofError
from bayesprune.turbo import Interrupted
from bayesprune.turbo.training import evaluate

SHORT = {"warmup_epochs": 1, "prune_epochs": 3, "finetune_epochs": 1}
SETTINGS = [*examples.with_values(examples.VARIED, **SHORT), *examples.with_values(examples.VARIED, seed=7, **SHORT)]


def plan(**values):
    settings = [one.as_dict() for one in SETTINGS]
    defaults = {"model": "mlp", "data": "digits", "order_seed": 0, "validation": 0.1, "chunk": 4, "one_by_one": False}
    return defaults | {"settings": settings} | values


def without_seconds(content):
    return {key: value for key, value in content.items() if key != "seconds"}


def test_the_networks_on_the_front_are_kept(tmp_path):
    loaded = examples.digits()
    with frontier.FrontierFolder.create(tmp_path / "front", plan()) as folder:
        records = frontier.explore(folder, examples.mlp, loaded)
        folder.write_figure()
    content = frontier.read_frontier(tmp_path / "front")
    assert content["finished"]
    assert content["seconds"] > 0
    assert content["versions"]["torch"] == torch.__version__
    assert content["hardware"]["threads"]
    assert content["members"] == json.loads(json.dumps(records))
    on_front = [record["number"] for record in records if record["front"]]
    assert on_front == frontier.front(records)
    files = sorted((tmp_path / "front" / "members").iterdir())
    assert [file.name for file in files] == [f"{number:03d}.safetensors" for number in on_front]
    for number, file in zip(on_front, files, strict=True):
        assert records[number]["file"] == f"members/{file.name}"
        assert records[number]["proof"]["max_rel_32"] < 1e-5
        score = evaluate(artefact.load(file), Classification(), loaded.validation)
        assert score["accuracy"] == records[number]["validation"]["accuracy"]
    assert (tmp_path / "front" / "frontier.png").read_bytes()[1:4] == b"PNG"
    assert not (tmp_path / "front" / "checkpoint.safetensors").exists()


def test_finished_chunks_are_not_trained_again(tmp_path, monkeypatch):
    loaded = examples.digits()
    with frontier.FrontierFolder.create(tmp_path / "whole", plan()) as folder:
        frontier.explore(folder, examples.mlp, loaded)
    made = []

    def make(settings):
        made.append(settings)
        return examples.mlp(settings)

    with frontier.FrontierFolder.create(tmp_path / "parts", plan()) as folder:
        stops = iter((None, 2))
        with pytest.raises(Interrupted):  # in the second chunk, after two epochs
            frontier.explore(folder, make, loaded, lambda save, done: Saving(save, next(stops)))
        assert len(folder.members) == 4
        with pytest.raises(RunError, match="in use"):
            frontier.FrontierFolder.open(tmp_path / "parts")
    starts = []
    with frontier.FrontierFolder.open(tmp_path / "parts") as folder:
        assert not folder.content["finished"]

        def recorder_of(save, done):
            starts.append(done)
            return Saving(save)

        frontier.explore(folder, make, loaded, recorder_of)
        frontier.explore(folder, make, loaded)  # nothing is left
    assert made == SETTINGS + SETTINGS[4:]
    assert starts == [5 + 2]  # epochs of the first chunk, and those done in the second
    whole, parts = (frontier.read_frontier(tmp_path / name) for name in ("whole", "parts"))
    assert without_seconds(whole) == without_seconds(parts)
    for name in ("whole", "parts"):
        assert len(list((tmp_path / name / "members").iterdir())) == sum(one["front"] for one in whole["members"])


class Saving(examples.Recording):
    def __init__(self, save, stop_after=None):
        super().__init__(stop_after)
        self._save = save

    def checkpoint(self, state, *, must=False):
        self._save(state())


def test_a_network_that_is_not_proven_is_not_on_the_front(tmp_path, monkeypatch):
    shrink, refused = folders.shrink_member, []

    def refuse_the_first(member, loaded):
        if not refused:
            refused.append(member.settings)
            raise ProofError("the networks differ")
        return shrink(member, loaded)

    monkeypatch.setattr(folders, "shrink_member", refuse_the_first)
    with frontier.FrontierFolder.create(tmp_path / "front", plan()) as folder:
        records = frontier.explore(folder, examples.mlp, examples.digits())
    (bad,) = [record for record in records if record["status"] != "finished"]
    assert bad["status"] == "not proven: the networks differ"
    assert not bad["front"]
    assert bad["file"] is None
    assert any(record["front"] for record in records)


def test_folders_that_are_no_frontier(tmp_path):
    with pytest.raises(RunError, match=r"no frontier.json; make one with"):
        frontier.read_frontier(tmp_path)
    (tmp_path / "frontier.json").write_text("{}")
    with pytest.raises(RunError, match="needs plan and members"):
        frontier.read_frontier(tmp_path)
    with pytest.raises(RunError, match="already holds"):
        frontier.FrontierFolder.create(tmp_path, plan())
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is not a folder"):
        frontier.FrontierFolder.create(tmp_path / "file", plan())


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run `bayesprune ...` in a folder of its own; return exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bayesprune", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        captured = capsys.readouterr()
        return exit_info.value.code or 0, captured.out, captured.err

    return run


GRID = """
model: mlp
data: digits
batch_size: 128
learning_rate: 6e-3
unit_strength: [100, 300]
weight_strength: [0.5, 1.5]
"""


def test_from_a_grid_to_a_network(call, tmp_path):
    (tmp_path / "grid.yaml").write_text(GRID)
    options = ("--epochs", 1, 3, 1, "--device", "cpu", "--chunk", 3, "--name", "mine")
    code, out, err = call("frontier", "--config", "grid.yaml", *options)
    assert (code, err) == (0, "")
    for words in (
        "4 settings of mlp on digits (2 weight_strength x 2 unit_strength)",
        "epoch 10/10",
        "MACs removed %",
        "weight_strength",
        "frontier pick",
    ):
        assert words in out
    content = frontier.read_frontier(tmp_path / "runs" / "mine")
    assert [one["settings"]["unit_strength"] for one in content["members"]] == [100, 100, 300, 300]
    assert {one["settings"]["prune_epochs"] for one in content["members"]} == {3}

    code, out, err = call("frontier", "run", "--resume", "runs/mine", "--quiet", "--device", "cpu")
    assert (code, err) == (0, "")
    assert frontier.read_frontier(tmp_path / "runs" / "mine") == content

    choice = ("frontier", "pick", "runs/mine", "--device", "cpu", "--max-drop")
    code, out, err = call(*choice, 20, "--output", "small.safetensors")
    assert (code, err) == (0, "")
    place = frontier.pick(content["members"], 20)
    assert f"member     {place} of 4" in out
    network = artefact.load(tmp_path / "small.safetensors")
    score = evaluate(network, Classification(), data.load("digits", validation=0.1, seed=0).test)
    assert f"test       {score['accuracy']:.2%}" in out
    assert "network    small.safetensors" in out
    picked = json.loads((tmp_path / "runs" / "mine" / "picked.json").read_text())
    assert (picked["member"], picked["max_drop"], picked["test"]["accuracy"]) == (place, 20, score["accuracy"])
    assert picked["validation"] == content["members"][place]["validation"]
    assert call("info", "small.safetensors")[0] == 0

    code, _, err = call(*choice, -1)
    assert (code, "must be at least 0 points" in err) == (1, True)
    for file in (tmp_path / "runs" / "mine" / "members").iterdir():
        file.unlink()
    code, _, err = call(*choice, 20)
    assert (code, "its network is not in runs/mine/members" in err) == (1, True)
    code, _, err = call(*choice, 20, "--output", "small.bin")
    assert (code, "must end in .safetensors" in err) == (2, True)


def test_one_by_one_takes_what_an_ensemble_cannot(call, tmp_path):
    (tmp_path / "grid.yaml").write_text(GRID + "optimiser: sgd\nlearning_rate: 0.02\nunit_strength: [50]\n")
    options = ("--config", "grid.yaml", "--epochs", 1, 2, 0, "--device", "cpu", "--quiet")
    code, _, err = call("frontier", "run", *options)
    assert (code, "--one-by-one" in err) == (1, True)
    assert not (tmp_path / "runs").exists()
    code, _, err = call("frontier", "run", *options, "--one-by-one")
    assert (code, err) == (0, "")
    assert len(frontier.read_frontier(tmp_path / "runs" / "mlp-digits-frontier-1")["members"]) == 2


def test_what_cannot_be_asked_for(call, tmp_path):
    for options, words in (
        (("--model", "lenet6"), "'lenet6' is not one of"),
        (("--data", "mnist"), "'mnist' is not one of"),
        (("--set", "seed"), "is not NAME=VALUE"),
    ):
        code, _, err = call("frontier", "run", *options)
        assert (code, words in err) == (2, True)
    code, _, err = call("frontier", "run", "--set", "unit_strenght=3")
    assert (code, "did you mean unit_strength" in err) == (1, True)
    code, _, err = call("frontier", "run", "--resume", "nothing")
    assert (code, "there is no frontier in nothing" in err) == (1, True)
    assert not (tmp_path / "runs").exists()


def test_nothing_to_pick_yet(call, tmp_path):
    plan = {"model": "mlp", "data": "digits", "chunk": 2, "one_by_one": False, "settings": []}
    frontier.FrontierFolder.create(tmp_path / "begun", plan).close()
    code, _, err = call("frontier", "pick", "begun")
    assert (code, "is trained yet; go on with: bayesprune frontier run --resume begun" in err) == (1, True)
