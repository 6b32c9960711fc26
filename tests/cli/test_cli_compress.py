"""`bayesprune compress`, `evaluate` and `info` as a person uses them: messages, exit codes, Ctrl-C, a full disk."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from bayesprune.models import create
from bayesprune.runs import RunFolder, load_newest, read_config, read_history

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SMALL = (
    *("--model", "mlp", "--data", "digits", "--device", "cpu", "--set", "warmup_epochs=1"),
    *("--set", "prune_epochs=2", "--set", "finetune_epochs=1", "--set", "batch_size=256"),
)


def figures(folder):
    summary = json.loads((folder / "summary.json").read_text())
    summary.pop("seconds")
    assert summary.pop("latency")["comparisons"]
    return summary


def test_from_data_to_a_summary(call, tmp_path):
    code, out, err = call("compress", *SMALL)
    assert (code, err) == (0, "")
    folder = tmp_path / "runs" / "mlp-digits-1"
    for words in ("accuracy", "nonzero", "removed", "structure", "status", "everything is in runs/mlp-digits-1"):
        assert words in out
    for words in (
        "times smaller than the dense network",
        "proof      equal to the masked network to",
        "speed      shrunk",
    ):
        assert words in out
    names = {entry.name for entry in folder.iterdir()}
    assert names >= {"config.json", "history.jsonl", "summary.json", "checkpoint.safetensors", "network.safetensors"}
    assert [row["phase"] for row in read_history(folder)] == ["warmup", "prune", "prune", "finetune"]
    plan = read_config(folder)
    assert (plan["model"], plan["data"]) == ("mlp", "digits")
    assert plan["settings"]["max_accuracy_drop"] == 0.5  # the default where nothing is asked for
    assert plan["settings"]["prune_epochs"] == 2
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"]

    code, out, _ = call("evaluate", folder, "--device", "cpu")
    assert code == 0
    assert json.loads(out)["accuracy"] == pytest.approx(summary["accuracy"], abs=1e-6)
    code, out, _ = call("info", folder)
    assert code == 0
    assert f"{summary['accuracy']:.2%}" in out

    before = figures(folder)
    assert call("compress", "--resume", folder)[0] == 0  # finished already: the same again
    assert figures(folder) == before
    assert call("compress", *SMALL, "--quiet")[0] == 0
    assert figures(tmp_path / "runs" / "mlp-digits-2") == before


def test_a_file_a_preset_and_options_in_their_order(call, tmp_path):
    config = tmp_path / "mine.yaml"
    config.write_text("model: mlp\ndata: digits\nlearning_rate: 1e-3\nprune_epochs: 5\nweight_ramp: [0.1, 0.9]\n")
    options = ("--set", "prune_epochs=1", "--set", "finetune_epochs=0", "--seed", 3, "--name", "mine", "--quiet")
    code, _, err = call("compress", "--config", config, "--preset", "paper", *options)
    assert (code, err) == (0, "")
    settings = read_config(tmp_path / "runs" / "mine")["settings"]
    assert settings["family"] == "mean_field"  # from the preset
    assert settings["learning_rate"] == 1e-3  # the file wins over the preset; YAML reads 1e-3 as text
    assert settings["prune_epochs"] == 1  # --set wins over the file
    assert (settings["seed"], settings["weight_ramp"]) == (3, [0.1, 0.9])
    assert settings["max_accuracy_drop"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--model", "lenet6"), 2, "'lenet6' is not one of mlp, lenet5"),
        (("--data", "mnist"), 2, "'mnist' is not one of digits"),
        (("--preset", "papers"), 2, "'papers' is not one of paper"),
        (("--config", "absent.yaml"), 2, "cannot read absent.yaml"),
        (("--config", "broken.yaml"), 2, "cannot read broken.yaml"),
        (("--config", "list.yaml"), 2, "list.yaml must hold `name: value` lines"),
        (("--config", "typo.yaml"), 1, "error: unknown setting 'learning_rat'; did you mean learning_rate"),
        (("--set", "prune_epoch=3"), 1, "error: unknown setting 'prune_epoch'; did you mean prune_epochs"),
        (("--set", "prune_epochs"), 2, "'prune_epochs' is not NAME=VALUE"),
        (("--set", "tile=[1"), 2, "cannot read the value of 'tile=[1'"),
        (("--set", "optimiser=adamm"), 1, "error: optimiser must be one of adam, sgd, got 'adamm'"),
        (("--set", "batch_size=many"), 1, "error: batch_size must be a whole number, got 'many'"),
        (("--set", "validation=0"), 1, "error: validation must be a fraction between 0 and 1"),
        (("--target-macs", "25"), 1, "error: target_macs must be a fraction between 0 and 1, such as 0.25, got 25"),
        (("--max-accuracy-drop", "much"), 2, "not a valid float"),
        (("--device", "abacus"), 2, "'abacus' cannot be used"),
        (("--data", "cifar10"), 1, "error: data set cifar10 was not found"),
        (("--weights", "absent.safetensors"), 1, "absent.safetensors does not hold the weights of a mlp"),
        (("--weights", "broken.yaml"), 1, "broken.yaml does not hold the weights of a mlp"),
        (("--name", "../away"), 1, "error: a run name holds letters"),
        (("--resume", "nowhere"), 1, "error: there is no run in nowhere: it is not a folder"),
    ],
)
def test_what_cannot_be_is_one_message_and_leaves_no_folder(call, tmp_path, arguments, code, words):
    (tmp_path / "broken.yaml").write_text("learning_rate: [1")
    (tmp_path / "list.yaml").write_text("- learning_rate")
    (tmp_path / "typo.yaml").write_text("learning_rat: 0.1")
    found, _, err = call("compress", *SMALL, *arguments)
    assert found == code
    assert words in re.sub(r"\s*│\n│\s*", " ", err)  # the box around usage errors
    assert "Traceback" not in err
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there(call, tmp_path, device):
    code, _, err = call("compress", *SMALL, "--device", device)
    assert code == 2
    assert f"'{device}' cannot be used" in err
    assert "Traceback" not in err
    assert not list(tmp_path.glob("runs/*"))


def test_a_network_that_does_not_fit_the_data(call, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise ValueError("vgg11 needs images of at least 32 x 32")

    monkeypatch.setattr("bayesprune.cli.compress.models.create", refuse)
    code, _, err = call("compress", *SMALL)
    assert code == 1
    assert "error: there is no mlp for digits: vgg11 needs images" in err
    assert not list(tmp_path.glob("runs/*"))


def test_a_name_that_is_taken(call):
    assert call("compress", *SMALL, "--name", "one", "--quiet")[0] == 0
    code, _, err = call("compress", *SMALL, "--name", "one")
    assert code == 1
    assert "already holds a run; resume it with: bayesprune compress --resume runs/one" in err


def test_a_trained_network_is_not_needed_again(call, tmp_path):
    network = create("mlp", (1, 8, 8), 10, generator=torch.Generator().manual_seed(5))
    save_file(network.state_dict(), tmp_path / "trained.safetensors")
    code, _, err = call("compress", *SMALL, "--weights", "trained.safetensors", "--name", "w", "--quiet")
    assert (code, err) == (0, "")
    folder = tmp_path / "runs" / "w"
    assert [row["phase"] for row in read_history(folder)] == ["prune", "prune", "finetune"]
    state, _ = load_newest(folder)
    given = load_file(tmp_path / "trained.safetensors")
    assert all(torch.equal(state["unpruned_weights"][name], given[name]) for name in given)
    before = figures(folder)
    (tmp_path / "trained.safetensors").unlink()
    assert call("compress", "--resume", folder)[0] == 0
    assert figures(folder) == before
    assert call("evaluate", folder, "--device", "cpu")[0] == 0


def test_the_second_process_in_a_folder_is_refused(call, tmp_path):
    assert call("compress", *SMALL, "--name", "one", "--quiet")[0] == 0
    program = (
        "import fcntl, os, pathlib, sys\n"
        "pathlib.Path('runs/one/lock').write_text(str(os.getpid()))\n"
        "lock = open('runs/one/lock'); fcntl.flock(lock, fcntl.LOCK_EX); print('open', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    try:
        assert holder.stdout.readline() == "open\n"
        code, _, err = call("compress", "--resume", "runs/one")
        assert code == 1
        assert f"error: runs/one is in use by process {holder.pid}; wait for it to end" in err
    finally:
        holder.communicate()


def test_nothing_is_evaluated_before_there_is_a_network(call, tmp_path):
    RunFolder.create("runs/new", {"model": "mlp", "data": "digits", "weights": None, "settings": {}}).close()
    code, _, err = call("evaluate", "runs/new")
    assert code == 1
    assert "holds no compressed network yet; go on with: bayesprune compress --resume runs/new" in err
    code, out, _ = call("info", "runs/new")
    assert code == 0
    assert "not finished; go on with: bayesprune compress --resume runs/new" in out


def test_a_loss_that_is_nan_is_one_message(call, tmp_path):
    code, _, err = call("compress", *SMALL, "--set", "learning_rate=1e30", "--name", "nan", "--quiet")
    assert code == 1
    assert re.search(r"error: .* in warmup epoch 1; try a learning rate below 1e\+30", err)
    assert "Traceback" not in err
    assert not (tmp_path / "runs" / "nan" / "summary.json").exists()


class FullDisk:
    """Fails the `at`-th call that touches the disk and all later writes below `folder`."""

    def __init__(self, monkeypatch, at):
        self.left = at
        for name in ("write", "fsync", "replace"):
            monkeypatch.setattr(os, name, self.limited(name, getattr(os, name)))

    def limited(self, name, original):
        def function(*arguments, **options):
            if name == "write" and arguments[0] in (1, 2):
                return original(*arguments, **options)
            self.left -= 1
            if self.left == 0 or (self.left < 0 and name == "write"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(*arguments, **options)

        return function


def test_a_full_disk_at_any_moment_loses_nothing(call, tmp_path):
    assert call("compress", *SMALL, "--name", "whole", "--quiet")[0] == 0
    wanted = figures(tmp_path / "runs" / "whole")
    failures = 0
    for at in (2, 5, 6, 9, 14, 20, 1000):
        folder = tmp_path / "runs" / f"full{at}"
        with pytest.MonkeyPatch.context() as monkeypatch:
            FullDisk(monkeypatch, at)
            code, _, err = call("compress", *SMALL, "--name", folder.name, "--quiet")
        if code != 0:
            failures += 1
            assert code == 1
            assert "error: cannot write runs/full" in err
            assert "the disk is full" in err
            assert "nothing was started" in err or f"bayesprune compress --resume runs/{folder.name}" in err
            again = ("--resume", folder) if (folder / "config.json").exists() else (*SMALL, "--name", folder.name)
            code, _, err = call("compress", *again, "--quiet")
        assert (code, err) == (0, "")
        assert figures(folder) == wanted
    assert failures >= 4


def test_ctrl_c_saves_and_says_how_to_go_on(call, tmp_path):
    many = (*SMALL, "--set", "prune_epochs=300", "--name", "stopped")
    program = subprocess.Popen(
        [sys.executable, "-m", "bayesprune", "compress", *many],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    folder = tmp_path / "runs" / "stopped"
    deadline = time.monotonic() + 60
    while not (folder / "history.jsonl").exists() or len(read_history(folder)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert program.returncode == 130
    assert "stopped and saved; go on with: bayesprune compress --resume runs/stopped" in out + err
    assert "Traceback" not in err
    rows = len(read_history(folder))
    assert load_newest(folder)[0]["rows"] == rows  # nothing that was shown is done again
    assert not (folder / "summary.json").exists()


def test_stopped_and_resumed_it_ends_with_the_same_figures(call, tmp_path, monkeypatch):
    assert call("compress", *SMALL, "--name", "whole", "--quiet")[0] == 0
    append = RunFolder.append

    def append_and_interrupt(run, row):
        append(run, row)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RunFolder, "append", append_and_interrupt)
    codes = [call("compress", *SMALL, "--name", "stopped")[0]]
    while codes[-1] != 0:
        code, out, _ = call("compress", "--resume", "runs/stopped")
        assert code == 0 or "go on with: bayesprune compress --resume runs/stopped" in out
        codes.append(code)
    assert codes == [130, 130, 130, 130, 0]
    assert figures(tmp_path / "runs" / "stopped") == figures(tmp_path / "runs" / "whole")
