"""Several processes: the result of one, states that agree, and a dead rank ends a run that can go on."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from run_processes import ENVIRONMENT, SMALL_RUN, Processes, figures, wait_for_rows
from safetensors.torch import load_file
from turbo_examples import without_seconds

from bayesprune.runs import load_newest, read_history
from bayesprune.turbo.parallel import World

SHORT_RUN = (
    *("--model", "lenet5", "--data", "digits", "--device", "cpu", "--set", "warmup_epochs=1", "--set"),
    *("prune_epochs=2", "--set", "finetune_epochs=1", "--set", "batch_size=64", "--max-accuracy-drop", "1"),
)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bayesprune")


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    processes = Processes(tmp_path_factory.mktemp("worlds"))
    yield processes
    processes.close()


def compressed(processes, name, world, arguments=SHORT_RUN):
    codes, output = processes.run("cli", "compress", *arguments, "--name", name, world=world)
    assert codes == [0] * world, output
    assert "Warning" not in output
    return processes.folder / "runs" / name


def difference(one, two):
    return max(float((one[name].double() - two[name].double()).abs().max()) for name in one)


@pytest.fixture(scope="module")
def worlds(processes):
    """The same run with one process and with two."""
    return tuple(compressed(processes, f"world{world}", world) for world in (1, 2))


def test_two_processes_reach_the_result_of_one(worlds):
    one, two = worlds
    states = [load_newest(folder)[0] for folder in (one, two)]
    assert difference(states[0]["model"], states[1]["model"]) < 1e-4
    assert all(torch.equal(states[0]["masks"][n], states[1]["masks"][n]) for n in states[0]["masks"])
    a, b = figures(one), figures(two)
    for name in ("accuracy", "accuracy_unpruned", "nonzero_fraction", "macs", "structure", "status", "parameters"):
        assert a[name] == b[name]
    for first, second in zip(read_history(one), read_history(two), strict=True):
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-4)


def test_units_are_sorted_alike_everywhere(processes):
    """States are compared in the epoch after, and the run would end if they differed."""
    folder = compressed(processes, "sorted", 2, (*SHORT_RUN, "--preset", "regular"))
    assert [row["phase"] for row in read_history(folder)].count("prune") == 2
    assert figures(folder)["notes"] == []


@pytest.mark.parametrize("optimiser", [pytest.param("adam", marks=pytest.mark.slow), "sgd"])
def test_batchnorm_sees_the_global_batch(processes, optimiser):
    paths = [processes.folder / f"norm-{optimiser}{world}" for world in (1, 2)]
    for world, path in enumerate(paths, start=1):
        codes, output = processes.run("batchnorm", path, optimiser, world=world)
        assert codes == [0] * world, output
    one, two = (load_file(path) for path in paths)
    assert any("running_var" in name for name in one)
    assert difference(one, two) < 1e-4
    rows = [json.loads(Path(f"{path}.json").read_text()) for path in paths]
    for first, second in zip(*rows, strict=True):
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-3)


@pytest.mark.slow
def test_learned_noise_is_the_same_everywhere(processes):
    paths = [processes.folder / f"noise{world}-" for world in (1, 2)]
    for world, path in enumerate(paths, start=1):
        codes, output = processes.run("learned_noise", path, world=world)
        assert codes == [0] * world, output
    alone, first, second = (load_file(f"{paths[0]}0"), load_file(f"{paths[1]}0"), load_file(f"{paths[1]}1"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert difference(alone, first) < 1e-3


def test_ranks_that_differ_are_noticed(processes):
    codes, output = processes.run("disagree", processes.folder / "disagree", world=2)
    assert codes == [0, 0], output
    for rank in (0, 1):
        message = Path(processes.folder, f"disagree{rank}").read_text()
        assert message.startswith("the 2 processes hold different states in prune epoch 7")


def test_a_dead_rank_ends_the_run_which_goes_on(processes, worlds):
    whole, folder = worlds[1], processes.folder / "runs" / "bereft"
    arguments = ("compress", *SHORT_RUN, "--name", "bereft")
    codes, output = processes.run("kill_after_rows", folder, 2, *arguments, world=2)
    assert codes[1] == -signal.SIGKILL
    assert codes[0] != 0
    assert not (folder / "summary.json").exists()
    assert f"compress --resume {Path('runs', 'bereft')}" in output
    codes, output = processes.run("cli", "compress", "--resume", folder, world=2)
    assert codes == [0, 0], output
    assert figures(folder) == figures(whole)
    assert without_seconds(read_history(folder)) == without_seconds(read_history(whole))


def test_a_batch_that_cannot_be_shared_is_refused(processes):
    codes, output = processes.run("cli", "compress", *SHORT_RUN, "--set", "batch_size=65", "--name", "odd", world=2)
    assert codes == [1, 1]
    assert "batch_size 65 must be a multiple of the 2 processes" in output
    assert not (processes.folder / "runs" / "odd").exists()


def test_one_process_is_a_world_of_its_own():
    world, model, batch = World(), torch.nn.Linear(2, 2), torch.arange(6)
    assert world.writes
    assert world.wrap(model) is model
    assert world.share(batch) is batch
    assert float(world.mean(torch.tensor(3.0))) == 3.0
    assert (world.any(True), world.any(False)) == (True, False)
    assert world.from_first(lambda: "made") == "made"
    world.check_equal([torch.ones(2)], "now")


def test_shares_are_disjoint_and_complete():
    batch = torch.arange(12)
    shares = [World(rank, 3).share(batch) for rank in range(3)]
    assert sorted(torch.cat(shares).tolist()) == list(range(12))
    assert {len(share) for share in shares} == {4}


def descendants(pid):
    """Processes that a process has started, and theirs."""
    children = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [p for child in children for p in (child, *descendants(child))]


@pytest.fixture(scope="module")
def torchrun_whole(processes):
    """The folder of a run under torchrun that nobody disturbs."""
    command = [*TORCHRUN, "compress", *SMALL_RUN, "--name", "torchrun"]
    subprocess.run(command, cwd=processes.folder, env=ENVIRONMENT, check=True, capture_output=True)
    return processes.folder / "runs" / "torchrun"


@pytest.mark.slow
def test_ten_kills_under_torchrun(processes, torchrun_whole):
    moments, folder, kills, number = random.Random(3), None, 0, 0
    while kills < 10:
        if folder is None:
            number += 1
            folder = processes.folder / "runs" / f"torchrun-killed{number}"
        begun = (folder / "config.json").exists()
        arguments = ["--resume", str(folder)] if begun else [*SMALL_RUN, "--name", folder.name]
        rows = len(read_history(folder)) if begun else 0
        with (processes.folder / "torchrun.txt").open("w") as output:
            program = subprocess.Popen(
                [*TORCHRUN, "compress", *arguments],
                cwd=processes.folder,
                env=ENVIRONMENT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            whom = moments.choice(["rank", "group"])
            if moments.random() < 0.7 and rows < 10:
                wait_for_rows(folder, rows + moments.randint(1, 3))
            else:
                time.sleep(moments.uniform(4, 9))
            ranks = descendants(program.pid) if program.poll() is None else []
            alive = bool(ranks)
            if alive:
                for pid in [program.pid, *ranks] if whom == "group" else [moments.choice(ranks)]:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        alive = False
            code = program.wait(timeout=120)
        if code == 0:
            assert figures(folder) == figures(torchrun_whole)
            folder = None
        elif alive:
            kills += 1
    if folder is not None and (folder / "config.json").exists():
        command = [*TORCHRUN, "compress", "--resume", str(folder)]
        subprocess.run(command, cwd=processes.folder, env=ENVIRONMENT, check=True, capture_output=True)
        assert figures(folder) == figures(torchrun_whole)
        assert without_seconds(read_history(folder)) == without_seconds(read_history(torchrun_whole))


@pytest.mark.slow
def test_torchrun_equals_the_forked_world(processes, torchrun_whole):
    assert figures(compressed(processes, "forked", 2, SMALL_RUN)) == figures(torchrun_whole)
