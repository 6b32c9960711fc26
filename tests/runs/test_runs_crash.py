"""kill -9 at any moment: what is on disk is complete, consistent, and not older than the last saved checkpoint."""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from counting_run import chain, step, take_up

from bayesprune.runs import read_messages

PROGRAM = Path(__file__).with_name("counting_run.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


class Victims:
    """Workers that are killed, all forked from one process that has imported everything."""

    def __init__(self):
        command = [sys.executable, str(PROGRAM)]
        self.server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=ENVIRONMENT
        )

    def run(self, folder, *, seconds=None, call=None):
        """Run a worker until it is killed; return the last count it reported as saved, and its last line."""
        self.server.stdin.write(f"{folder} {call or ''}\n")
        pid = int(self.server.stdout.readline().split()[1])
        if seconds is not None:
            time.sleep(seconds)
            os.kill(pid, signal.SIGKILL)
        saved = 0
        for line in self.server.stdout:
            if line.startswith("ended"):
                return saved, line.strip()
            saved = int(line.split()[1])
        raise AssertionError("the server of the workers died")

    def close(self):
        self.server.stdin.close()
        self.server.wait()
        self.server.stdout.close()


@pytest.fixture
def victims():
    victims = Victims()
    yield victims
    victims.close()


def check(folder, at_least):
    """Take up the run after a kill; return the count of its checkpoint."""
    run, state = take_up(folder)
    with run:
        count = state["count"]
        assert count >= at_least
        values = chain(count)
        assert state["value"] == values[count]
        assert torch.equal(state["tensor"], torch.full((2000,), float(count)))
        rows = run.read_history()
        assert len(rows) == run.rows == state["rows"] == 2 * count
        assert [row["value"] for row in rows] == [value for value in values[1:] for _ in range(2)]
        assert run.read_config() == {"seed": 0}
        assert not [path.name for path in folder.rglob("*.tmp")]
        sent = read_messages(folder)
        assert [one.iteration for one in sent] == list(range(1, count + 1))
        assert all(bool((one.layers["fc"].posterior == one.iteration % 256).all()) for one in sent)
    return count


def test_thirty_kills_at_random_moments(victims, tmp_path):
    moments = random.Random(0)
    folder = tmp_path / "run"
    count = 0
    for _ in range(30):
        saved, end = victims.run(folder, seconds=moments.uniform(0, 0.06))
        assert end == "ended"
        count = check(folder, at_least=max(saved, count))
    assert count > 0


def test_a_kill_at_every_call_that_touches_the_disk(victims, tmp_path):
    for call in itertools.count(1):
        folder = tmp_path / f"run{call}"
        saved, end = victims.run(folder, call=call)
        count = check(folder, at_least=saved)
        # Killed while resuming, too: a run that was killed once is killed at the same call again.
        saved, _ = victims.run(folder, call=call)
        count = check(folder, at_least=max(count, saved))
        run, state = take_up(folder)
        with run:
            step(run, state)
        check(folder, at_least=count + 1)
        if end == "ended with 0":
            break
    assert call > 30


@pytest.mark.slow
def test_three_hundred_kills_of_fresh_processes_and_forks(tmp_path):
    moments = random.Random(1)
    victims = Victims()
    folder = tmp_path / "run"
    count = 0
    for _ in range(300):
        saved, _ = victims.run(folder, seconds=moments.uniform(0, 0.2))
        count = check(folder, at_least=max(saved, count))
    victims.close()
    for _ in range(15):
        program = subprocess.Popen(
            [sys.executable, "-c", f"from counting_run import work; work({str(folder)!r}, print)"],
            cwd=PROGRAM.parent,
            stdout=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
        time.sleep(moments.uniform(1, 4))
        program.kill()
        program.wait()
        count = check(folder, at_least=count)
