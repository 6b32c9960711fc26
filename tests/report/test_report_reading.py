"""What is read of runs, files and frontiers, and what is said to be missing."""

import json
import shutil

import pytest
import torch

from bayesprune import artefact, models
from bayesprune.report import read_sources
from bayesprune.runs import RunError, load_newest
from report.small_run import ITERATIONS, LATENCY, LAYERS, SUMMARY, write_frontier, write_run


def only(path):
    runs, frontiers = read_sources([path])
    assert len(runs) == 1
    assert not frontiers
    return runs[0]


def test_run_folder(run_folder):
    run = only(run_folder)
    assert run.name == "small"
    assert run.subject == "lenet5 on digits"
    assert run.metrics == SUMMARY
    assert run.latency == LATENCY
    assert len(run.messages) == ITERATIONS
    assert [layer.name for layer in run.layers] == list(LAYERS)
    assert run.missing == ()
    state, _ = load_newest(run_folder)
    for layer in run.layers:
        mask = state["masks"][layer.name]
        assert torch.equal(layer.live, mask)
        assert torch.equal(layer.after, state["model"][f"{layer.name}.weight"])
        assert torch.equal(layer.before, state["unpruned_weights"][f"{layer.name}.weight"])
        assert layer.density == pytest.approx(float(mask.float().mean()))
        assert layer.outputs == sum(bool(row.any()) for row in mask)
        assert layer.inputs == sum(bool(mask[:, place].any()) for place in range(mask.shape[1]))


def test_file_has_the_layers_of_the_smaller_network_in_order(run_folder):
    run = only(run_folder / "network.safetensors")
    assert run.name == "small"
    assert [layer.name for layer in run.layers] == list(LAYERS)
    dense = models.create("lenet5", (1, 8, 8))
    for layer in run.layers:
        assert layer.dense_shape == tuple(dense.get_submodule(layer.name).weight.shape)
        assert layer.before is None
    full = only(run_folder)
    # Surgery may remove live weights that nothing reads, but never adds any.
    assert sum(one.alive for one in run.layers) <= sum(one.alive for one in full.layers)
    assert "not a run folder" in run.missing[0]


def test_bench_beside_the_network_wins(run_folder, tmp_path):
    folder = shutil.copytree(run_folder, tmp_path / "copy")
    (folder / "bench.json").write_text(json.dumps(LATENCY | {"words": "newer"}))
    assert only(folder).latency["words"] == "newer"
    (folder / "bench.json").write_text("no JSON")
    assert only(folder).latency == LATENCY
    file = shutil.copy(folder / "network.safetensors", tmp_path / "ours-best-0.safetensors")
    assert only(file).latency is None
    (tmp_path / "ours-best-0.json").write_text(json.dumps({"latency": LATENCY}))
    assert only(file).latency == LATENCY


def test_unfinished_and_damaged_runs_say_what_is_missing(tmp_path):
    folder = write_run(tmp_path / "half", summary=None, messages=False)
    (folder / "history.jsonl").unlink()
    (folder / "network.safetensors").write_bytes(b"no network")
    (folder / "checkpoint.safetensors").unlink()
    run = only(folder)
    assert run.layers == []
    text = " ".join(run.missing)
    for word in ("no summary", "cannot be read", "no history", "no checkpoint"):
        assert word in text
    (folder / "messages").mkdir()
    (folder / "messages" / "0001.safetensors").write_bytes(b"nothing")
    assert "messages cannot be read" in " ".join(only(folder).missing)


def test_frontier_brings_the_network_that_pick_takes(run_folder, tmp_path):
    folder = write_frontier(tmp_path / "front", run_folder / "network.safetensors")
    runs, frontiers = read_sources([folder])
    assert [run.name for run in runs] == ["front, member 1"]
    assert runs[0].metrics["accuracy"] == 0.95
    assert runs[0].metrics["accuracy_unpruned"] == 0.93
    assert [found.name for found in frontiers] == ["front"]
    (folder / "members" / "001.safetensors").unlink()
    runs, frontiers = read_sources([folder])
    assert runs == []
    assert "No network of front is shown" in frontiers[0].missing[0]


def test_files_of_methods_go_by_their_method(run_folder, tmp_path):
    network, paths = artefact.load(run_folder / "network.safetensors"), []
    for method in ("ours", "magnitude"):
        config = {"model": "lenet5", "data": "digits", "method": method}
        paths.append(tmp_path / f"{method}-best-0.safetensors")
        artefact.save(paths[-1], network, config=config, metrics={"accuracy": 0.9}, example_shape=(1, 8, 8))
    assert [run.name for run in read_sources(paths)[0]] == ["ours", "magnitude"]


def test_names_differ(run_folder):
    runs, _ = read_sources([run_folder, run_folder])
    assert [run.name for run in runs] == ["small", "small (2)"]


def test_wrong_paths(tmp_path):
    with pytest.raises(RunError, match="there is no"):
        read_sources([tmp_path / "nothing"])
    with pytest.raises(RunError, match=r"config\.json"):
        read_sources([tmp_path])
    (tmp_path / "x.safetensors").write_bytes(b"x")
    with pytest.raises(RunError, match="neither"):
        read_sources([tmp_path / "x.safetensors"])
