"""kill -9 at random moments of a compression: resumed, it ends with the figures of an undisturbed one."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from run_processes import ENVIRONMENT, SMALL_RUN, Processes, figures
from turbo_examples import without_seconds

from bayesprune.runs import load_newest, read_history


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    processes = Processes(tmp_path_factory.mktemp("killed"))
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def undisturbed(processes):
    """The folder of a run that nobody kills, and how long it took."""
    processes.start("cli", "compress", *SMALL_RUN, "--name", "whole")
    started = time.monotonic()
    assert processes.wait() == [0], processes.output.read_text()
    return processes.folder / "runs" / "whole", time.monotonic() - started


def command(folder):
    if (folder / "config.json").exists():
        return ("compress", "--resume", folder)
    return ("compress", *SMALL_RUN, "--name", folder.name)


def same(folder, undisturbed):
    assert figures(folder) == figures(undisturbed)
    assert without_seconds(read_history(folder)) == without_seconds(read_history(undisturbed))
    assert message_files(folder) == message_files(undisturbed)
    one, two = load_newest(folder)[0], load_newest(undisturbed)[0]
    assert all(torch.equal(one["model"][name], two["model"][name]) for name in two["model"])
    assert all(torch.equal(one["masks"][name], two["masks"][name]) for name in two["masks"])


def message_files(folder):
    """Everything in the folder of messages, killed processes' temporary files too, and its content."""
    return {path.name: path.read_bytes() for path in (folder / "messages").iterdir()}


def kill_often(processes, undisturbed, kills, seed, label):
    """Kill one run after the other; return how many runs it took to be killed so often."""
    whole, seconds = undisturbed
    moments, runs = random.Random(seed), 0
    while kills > 0:
        runs += 1
        folder = processes.folder / "runs" / f"{label}-{runs}"
        for _ in range(moments.randint(1, 8)):
            codes = processes.killed(moments.uniform(0, 0.7 * seconds), *command(folder))
            if codes == [0]:  # it was faster
                break
            assert codes == [-signal.SIGKILL], processes.output.read_text()
            kills -= 1
            if kills == 0:
                break
        codes, output = processes.run("cli", *command(folder))
        assert codes == [0], output
        same(folder, whole)
    return runs


def test_a_few_kills_at_random_moments(processes, undisturbed):
    assert kill_often(processes, undisturbed, 4, 0, "few") >= 1


def test_killed_between_the_last_checkpoint_and_the_summary(processes, undisturbed):
    whole, _ = undisturbed
    wanted = figures(whole)
    assert sorted(message_files(whole)) == [f"{epoch:04d}.safetensors" for epoch in range(1, 7)]
    (whole / "summary.json").unlink()
    codes, output = processes.run("cli", "compress", "--resume", whole)
    assert codes == [0], output
    assert figures(whole) == wanted


@pytest.mark.slow
def test_fifty_kills_at_random_moments(processes, undisturbed):
    assert kill_often(processes, undisturbed, 50, 1, "many") >= 7


@pytest.mark.slow
def test_ten_kills_of_fresh_processes(processes, undisturbed):
    """As a person would start them, killed while importing, too."""
    moments = random.Random(2)
    folder = processes.folder / "runs" / "fresh"
    for _ in range(10):
        program = subprocess.Popen(
            [sys.executable, "-m", "bayesprune", *map(os.fspath, command(folder))],
            cwd=processes.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
        time.sleep(moments.uniform(2, 6))
        program.kill()
        program.wait()
    codes, output = processes.run("cli", *command(folder))
    assert codes == [0], output
    same(folder, undisturbed[0])
