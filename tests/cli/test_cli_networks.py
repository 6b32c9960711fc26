"""The smaller network at the end of a run: its file, proof and speed, and the commands that use it."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bayesprune import artefact, data, models
from bayesprune.cli import main
from bayesprune.latency import measure
from bayesprune.runs import RunFolder, load_newest
from bayesprune.surgery import ProofError

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
# The demo in three seconds: most units go.
LENET = (
    *("--config", Path(__file__).parents[2] / "configs" / "demo.yaml", "--device", "cpu", "--quiet"),
    *("--set", "warmup_epochs=6", "--set", "prune_epochs=24", "--set", "finetune_epochs=6"),
)
SMALL = (
    *("--model", "mlp", "--data", "digits", "--device", "cpu", "--set", "warmup_epochs=1", "--quiet", "--no-bench"),
    *("--set", "prune_epochs=2", "--set", "finetune_epochs=1", "--set", "batch_size=256"),
)


def run_main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["bayesprune", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_info:
        main()
    return exit_info.value.code or 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run."""
    runs = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("bayesprune.cli.finishing.SECONDS", 0.02)
        assert run_main(monkeypatch, "compress", *LENET, "--runs", runs, "--name", "done") == 0
    return runs / "done"


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of it that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "copied"))


@pytest.fixture
def moved(finished, tmp_path):
    """Its network alone, as if sent to somebody."""
    return Path(shutil.copy(finished / "network.safetensors", tmp_path / "moved.safetensors"))


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def figures(folder):
    return {key: value for key, value in summary_of(folder).items() if key not in ("seconds", "latency")}


def in_own_process(program, *arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )


def test_the_file_is_a_plain_network_equal_to_the_masked_one(finished, moved, tmp_path):
    program = (
        "import sys, torch, bayesprune\n"
        "from safetensors.torch import load_file, save_file\n"
        "network = bayesprune.load(sys.argv[1])\n"
        "with torch.no_grad(): save_file({'y': network(load_file('x.safetensors')['x'])}, 'y.safetensors')\n"
        "assert 'bayesprune.models.lenet' not in {type(m).__module__ for m in network.modules()}\n"
    )
    examples = data.load("digits").test.x
    save_file({"x": examples}, tmp_path / "x.safetensors")
    done = in_own_process(program, moved)
    assert done.returncode == 0, done.stderr
    masked = models.create("lenet5", (1, 8, 8), 10).eval()
    masked.load_state_dict(load_newest(finished)[0]["model"])
    with torch.no_grad():
        expected = masked(examples)
    got = load_file(tmp_path / "y.safetensors")["y"]
    assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()
    shrunk = artefact.load(moved)
    assert sum(p.numel() for p in shrunk.parameters()) < sum(p.numel() for p in masked.parameters()) / 2


def test_the_summary_has_proof_size_and_speed(finished):
    summary, path = summary_of(finished), finished / "network.safetensors"
    assert summary["proof"]["max_rel_32"] < 1e-5
    assert summary["proof"]["max_rel_64"] < 1e-10
    assert summary["bytes"] == path.stat().st_size
    dense = models.create("lenet5", (1, 8, 8), 10)
    artefact.save(path.parent / "dense.safetensors", dense, config=artefact.read(path).config)
    assert summary["bytes_dense"] == pytest.approx((path.parent / "dense.safetensors").stat().st_size, rel=0.05)
    (path.parent / "dense.safetensors").unlink()
    assert [(c["batch"], c["baseline"]["name"]) for c in summary["latency"]["comparisons"]] == [
        (1, "dense"),
        (256, "dense"),
    ]
    assert {row["layout"] for row in summary["latency"]["rows"]} == {"contiguous", "channels_last"}
    held = artefact.read(path)
    assert held.metrics["accuracy"] == summary["accuracy"]
    assert (held.config["model"], held.example_shape, len(held.classes)) == ("lenet5", [1, 8, 8], 10)


def test_without_a_proof_nothing_is_finished(call, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise ProofError("the networks differ by 0.5")

    folder = tmp_path / "runs" / "unproven"
    with monkeypatch.context() as patch:
        patch.setattr("bayesprune.turbo.compression.prove", refuse)
        code, out, err = call("compress", *SMALL, "--name", folder.name)
    assert (code, out) == (1, "")
    assert "error: the smaller network was not proven equal to the compressed one: the networks differ by 0.5" in err
    assert "stays in the checkpoint of runs/unproven" in err
    assert {entry.name for entry in folder.iterdir()} == {
        *(
            "checkpoint.safetensors",
            "checkpoint.previous.safetensors",
            "config.json",
            "history.jsonl",
            "lock",
            "messages",
        )
    }
    assert call("evaluate", folder, "--device", "cpu")[0] == 0  # the masked network
    assert call("compress", "--resume", folder, "--no-bench", "--quiet")[0] == 0
    assert "latency" not in summary_of(folder)


def test_killed_between_the_file_and_the_summary(call, tmp_path):
    assert call("compress", *SMALL, "--name", "whole")[0] == 0
    folder = tmp_path / "runs" / "killed"
    program = (
        "import os, signal, sys\n"
        "from bayesprune.cli import main\n"
        "from bayesprune.runs import RunFolder\n"
        "RunFolder.write_summary = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.argv[0] = 'bayesprune'; main()\n"
    )
    done = in_own_process(program, "compress", *SMALL, "--name", folder.name)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (folder / "network.safetensors").exists()
    assert not (folder / "summary.json").exists()
    (folder / ".network.safetensors.1-ab.tmp").touch()  # a kill while it is written leaves such a file
    before = (folder / "network.safetensors").read_bytes()
    assert call("compress", "--resume", folder, "--no-bench")[0] == 0
    assert figures(folder) == figures(tmp_path / "runs" / "whole")
    assert (folder / "network.safetensors").read_bytes() == before
    assert not list(folder.glob(".*.tmp"))


def test_ctrl_c_while_the_speed_is_measured(call, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bayesprune.cli.finishing.measure", interrupt)
        code, out, _ = call("compress", *(one for one in SMALL if one != "--no-bench"), "--name", "stopped")
    assert code == 130
    assert out == "stopped; go on with: bayesprune compress --resume runs/stopped\n"
    assert not (tmp_path / "runs" / "stopped" / "summary.json").exists()
    assert call("compress", "--resume", "runs/stopped", "--quiet")[0] == 0
    assert summary_of(tmp_path / "runs" / "stopped")["latency"]["words"]


def test_a_full_disk_while_the_network_is_written(call, copied, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (copied / "network.safetensors").unlink()
    (copied / "summary.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("bayesprune.artefact.files.write_atomically", full)
        code, _, err = call("compress", "--resume", copied, "--quiet")
    assert code == 1
    assert f"error: cannot write {copied / 'network.safetensors'}: the disk is full" in err
    assert f"continue with: bayesprune compress --resume {copied}" in err
    assert not (copied / "summary.json").exists()


def test_a_file_that_reads_back_differently_is_an_error(call, copied, monkeypatch):
    (copied / "summary.json").unlink()
    monkeypatch.setattr("bayesprune.cli.finishing.artefact.load", lambda path: lambda x: torch.zeros(len(x), 10))
    code, _, err = call("compress", "--resume", copied, "--quiet")
    assert code == 1
    assert "gives other outputs than the one written" in err
    assert not (copied / "summary.json").exists()
    assert not (copied / "network.safetensors").exists()


def test_evaluate_from_the_run_from_the_file_and_from_an_old_run(call, finished, moved, copied):
    (copied / "network.safetensors").unlink()
    wanted = summary_of(finished)
    for source in (finished, moved, copied):
        code, out, err = call("evaluate", source, "--device", "cpu")
        assert (code, err) == (0, "")
        assert json.loads(out)["accuracy"] == pytest.approx(wanted["accuracy"], abs=1e-6)
        assert json.loads(out)["nll"] == pytest.approx(wanted["nll"], rel=1e-3)


def test_info_from_the_run_and_from_the_file(call, finished, moved):
    accuracy = f"{summary_of(finished)['accuracy']:.2%}"
    _, of_run, _ = call("info", finished)
    code, of_file, err = call("info", moved)
    assert (code, err) == (0, "")
    for words in (
        "lenet5 on digits",
        accuracy,
        "structure  ",
        "10 tensors",
        "without its class",
        "torch 2",
        "1 x 8 x 8",
    ):
        assert words in of_run
        assert words in of_file
    assert "speed" in of_run
    again = subprocess.run(
        [sys.executable, "-m", "bayesprune", "info", moved], capture_output=True, text=True, env=ENVIRONMENT, check=True
    )
    assert again.stdout == of_file


def test_info_of_a_file_that_does_not_know_the_unpruned_network(call, tmp_path):
    """As `reproduce` keeps them."""
    file = tmp_path / "kept.safetensors"
    artefact.save(file, nn.Linear(3, 2), metrics={"accuracy": 0.5, "structure": [2], "status": "finished"})
    code, out, _ = call("info", file)
    assert code == 0
    assert "accuracy   50.00%\nstructure  2\nstatus     finished" in out


@pytest.mark.parametrize(("to", "ending"), [("torch-export", ".pt2"), ("safetensors", ".weights.safetensors")])
def test_export_beside_the_network(call, copied, to, ending):
    code, out, err = call("export", copied, "--to", to)
    assert (code, err) == (0, "")
    path = copied / f"network{ending}"
    assert f"written to {path}" in out
    assert f"{path.stat().st_size:,} bytes" in out
    assert float(re.search(r"([\d.]+) times smaller than the dense network", out)[1]) > 1


def test_export_of_a_file_to_onnx(call, moved, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    code, out, err = call("export", moved, "--to", "onnx", "--output", tmp_path / "mine.onnx")
    assert (code, err) == (0, "")
    assert "same outputs at batch sizes" in out
    assert "times smaller than the dense network" in out
    x = torch.randn(7, 1, 8, 8)
    with torch.no_grad():
        expected = artefact.load(moved)(x)
    (got,) = onnxruntime.InferenceSession(tmp_path / "mine.onnx").run(None, {"input": x.numpy()})
    assert torch.allclose(torch.from_numpy(got), expected, atol=1e-4)


def test_bench_of_a_run_and_of_a_file(call, copied, moved, tmp_path):
    short = ("--seconds", "0.02", "--runtimes", "eager", "--device", "cpu", "--threads", "1")
    code, out, err = call("bench", copied, *short, "--batch", "2", "--batch", "8")
    assert (code, err) == (0, "")
    assert "dense is the network of this run before pruning" in out
    assert "shrunk beside dense, on the CPU with 1 thread" in out
    found = json.loads((copied / "bench.json").read_text())
    assert found["settings"]["batches"] == [2, 8]
    assert {row["network"] for row in found["rows"]} == {"dense", "shrunk"}
    assert found["work"]["shrunk"]["macs"] == summary_of(copied)["macs_shrunk"] < found["work"]["dense"]["macs"]
    code, out, _ = call("bench", moved, *short, "--batch", "1", "--output", tmp_path / "times.json")
    assert code == 0
    assert "dense is a new lenet5: the same work as the unpruned one, other weights" in out
    assert json.loads((tmp_path / "times.json").read_text())["words"] in out


@pytest.mark.parametrize("asked", [False, True])
def test_bench_lets_a_gpu_use_tf32_where_it_is_asked_for(call, moved, tmp_path, monkeypatch, asked):
    seen = []

    def note(*networks, tf32, **options):
        seen.append(tf32)
        return measure(*networks, tf32=tf32, **options)

    monkeypatch.setattr("bayesprune.cli.bench.measure", note)
    options = (
        "--device",
        "cpu",
        "--runtimes",
        "eager",
        "--seconds",
        "0.01",
        "--batch",
        "1",
        "--output",
        tmp_path / "t.json",
    )
    assert call("bench", moved, *options, *(["--tf32"] if asked else []))[0] == 0
    assert seen == [asked]
    assert json.loads((tmp_path / "t.json").read_text())["settings"]["tf32"] is False  # a CPU has none


def test_bench_beside_a_dense_network_in_a_file(call, copied, tmp_path):
    short = ("--seconds", "0.02", "--runtimes", "eager", "--device", "cpu", "--threads", "1", "--batch", "2")
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    artefact.save("own.safetensors", mlp, example_shape=(1, 8, 8))
    small = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    artefact.save("small.safetensors", small, example_shape=(1, 8, 8))
    for source, work in (("small.safetensors", 640), (copied, summary_of(copied)["macs_shrunk"])):
        code, out, err = call("bench", source, "--dense", "own.safetensors", *short, "--output", "times.json")
        assert (code, err) == (0, "")
        assert "dense is the network in own.safetensors" in out
        assert "only the smaller one" not in out
        found = json.loads((tmp_path / "times.json").read_text())
        assert found["dense"] == "dense is the network in own.safetensors"
        assert found["work"]["dense"]["macs"] == 64 * 50 + 50 * 10
        assert found["work"]["shrunk"]["macs"] == work
        assert {row["network"] for row in found["rows"]} == {"dense", "shrunk"}


def test_bench_says_why_a_dense_network_does_not_fit(call, tmp_path):
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for name, network, shape in (
        ("own", own, (1, 8, 8)),
        ("wide", own, (1, 4, 16)),
        ("many", nn.Sequential(nn.Flatten(), nn.Linear(64, 12)), (1, 8, 8)),
        ("bare", own, None),
    ):
        artefact.save(f"{name}.safetensors", network, example_shape=shape)
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "folder").mkdir()
    for dense, words in (
        ("absent.safetensors", "--dense must be the file of a network, got absent.safetensors, which does not exist"),
        ("folder", "--dense must be the file of a network, got folder, a folder; name the file in it"),
        ("notes.txt", "notes.txt is neither a run folder nor an artefact"),
        ("bare.safetensors", "bare.safetensors does not say the shape of an input"),
        ("wide.safetensors", "takes inputs of shape (1, 4, 16), own.safetensors those of shape (1, 8, 8)"),
        ("many.safetensors", "gives outputs of shape (12,), own.safetensors those of shape (10,)"),
    ):
        code, out, err = call("bench", "own.safetensors", "--dense", dense)
        assert (code, out) == (1, "")
        assert words in err
        assert "Traceback" not in err
    assert not (tmp_path / "own.bench.json").exists()


def test_a_network_of_ones_own(call, tmp_path):
    """An artefact that no run has made: what it does not say is asked for, what is known is used."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    artefact.save("own.safetensors", network, example_shape=(1, 8, 8), metrics={"accuracy": "\x1b[31mgood"})
    code, out, _ = call("info", "own.safetensors")
    assert code == 0
    assert "\x1b" not in out
    assert "a network on data that are not named" in out
    assert "figures    not those of a run" in out
    code, _, err = call("evaluate", "own.safetensors")
    assert code == 1
    assert "own.safetensors does not say on which data; add --data with one of digits" in err
    assert call("evaluate", "own.safetensors", "--data", "digits", "--device", "cpu")[0] == 0
    short = ("--seconds", "0.01", "--runtimes", "eager", "--batch", "1", "--device", "cpu")
    code, out, _ = call("bench", "own.safetensors", *short)
    assert code == 0
    assert "only the smaller one is measured" in out
    assert "shrunk takes" in out
    assert (tmp_path / "own.bench.json").exists()
    code, out, _ = call("export", "own.safetensors", "--to", "safetensors")
    assert code == 0
    assert "dense" not in out
    artefact.save("bare.safetensors", network)
    code, _, err = call("bench", "bare.safetensors", *short)
    assert code == 1
    assert "bare.safetensors does not say the shape of an input" in err
    artefact.save("other.safetensors", network, example_shape=(4, 4, 4))
    code, _, err = call("evaluate", "other.safetensors", "--data", "digits")
    assert code == 1
    assert "takes inputs of shape (4, 4, 4), digits has (1, 8, 8)" in err
    artefact.save("two.safetensors", network, example_shape=(1, 8, 8), classes=["cat", "dog"])
    code, _, err = call("evaluate", "two.safetensors", "--data", "digits")
    assert code == 1
    assert "knows 2 classes, digits has 10" in err


@pytest.mark.parametrize("command", [("evaluate",), ("info",), ("export", "--to", "onnx"), ("bench",)])
def test_what_is_neither_a_run_nor_a_network(call, finished, tmp_path, command):
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "empty").mkdir()
    for name, words in (
        ("absent", "there is no absent; give a run folder"),
        ("notes.txt", "notes.txt is neither a run folder nor an artefact"),
        ("empty", "there is no run in empty"),
        (finished / "checkpoint.safetensors", "is neither a run folder nor an artefact"),
    ):
        code, _, err = call(*command, name)
        assert code == 1
        assert words in err
        assert "Traceback" not in err


def test_what_cannot_be_done_is_one_message(call, copied, moved, monkeypatch):
    RunFolder.create("new", {"model": "mlp", "data": "digits", "weights": None, "settings": {}}).close()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    short = ("--seconds", "0.01", "--runtimes", "eager", "--batch", "1")
    for code, words, *arguments in (
        (1, "new holds no network.safetensors: it is not finished", "export", "new", "--to", "onnx"),
        (1, "make it with: bayesprune compress --resume new", "bench", "new"),
        (2, "'tflite' is not one of onnx, torch-export, safetensors", "export", moved, "--to", "tflite"),
        (1, "is the network itself", "export", moved, "--to", "safetensors", "--output", moved),
        (1, "the folder absent does not exist", "export", moved, "--to", "safetensors", "--output", "absent/a"),
        (1, "pip install 'bayesprune[onnx]'", "export", moved, "--to", "onnx"),
        (1, "unknown runtime 'tpu'", "bench", moved, "--runtimes", "tpu"),
        (1, "batches must be different sizes of at least 1", "bench", moved, "--batch", "0"),
        (2, "'abacus' cannot be used", "bench", moved, "--device", "abacus"),
        (2, "'mnist' is not one of digits", "evaluate", moved, "--data", "mnist"),
        (1, "cannot write absent/b.json", "bench", moved, *short, "--output", "absent/b.json"),
    ):
        found, _, err = call(*arguments)
        assert found == code, err
        assert words in re.sub(r"\s*│\n│\s*", " ", err)
        assert "Traceback" not in err
    damaged = copied / "network.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-5])
    code, _, err = call("info", copied)
    assert code == 1
    assert f"write it again with: bayesprune compress --resume {copied}" in err


def test_help_teaches(call):
    assert all(word in call("--help")[1] for word in ("compress", "evaluate", "info", "export", "bench"))
    assert "compiling takes up to a minute" in re.sub(r"\s*│\n│\s*", " ", call("bench", "--help")[1])
    assert "--dense" in call("bench", "--help")[1]
    assert "pip install" in call("export", "--help")[1]
    assert "--no-bench" in call("compress", "--help")[1]


def test_widths_are_rounded_where_that_measures_faster(call, copied, monkeypatch):
    def eight_is_faster(networks, *_, **__):
        comparison = SimpleNamespace(ratio=1.3, faster=True, network=SimpleNamespace(network="8"))
        assert list(networks) == ["1", "8", "16"]
        return SimpleNamespace(comparisons=[comparison])

    monkeypatch.setattr("bayesprune.latency.rounding.measure", eight_is_faster)
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"round_widths": True}))
    before = summary_of(copied)
    x = data.load("digits").test.x
    expected = artefact.load(copied / "network.safetensors")(x)
    code, _, error = call("compress", "--resume", copied, "--device", "cpu", "--quiet", "--no-bench")
    assert code == 0, error
    after = summary_of(copied)
    assert after["multiple"] == 8
    dense = [6, 16, 120, 84]
    shrunk = before.get("structure_shrunk", before["structure"])
    rounded = [min(full, -(-width // 8) * 8) for width, full in zip(shrunk, dense, strict=True)]
    assert after["structure_shrunk"] == rounded
    assert after["macs_shrunk"] > before["macs_shrunk"]
    assert after["proof"]["max_rel_64"] < 1e-10
    torch.testing.assert_close(artefact.load(copied / "network.safetensors")(x), expected)


def test_bench_with_rounded_widths(call, copied, moved, tmp_path):
    output = tmp_path / "bench.json"
    quick = ("--batch", "4", "--seconds", "0.01", "--runtimes", "eager", "--device", "cpu", "--output", output)
    code, out, error = call("bench", copied, *quick, "--multiple", "8")
    assert code == 0, error
    assert "shrunk x8" in out
    code, _, error = call("bench", moved, *quick, "--multiple", "8")
    assert code != 0
    assert "--multiple needs the run folder, not a file" in error
