"""Talks to `run_server.py`: run a command line in a process of its own, and kill it at some moment."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = Path(__file__).with_name("run_server.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
PATIENCE = 120.0
# A run of about a second in which every phase has several epochs and some units and many weights die.
SMALL_RUN = (
    *("--model", "mlp", "--data", "digits", "--device", "cpu", "--set", "warmup_epochs=3", "--set", "prune_epochs=6"),
    *("--set", "finetune_epochs=3", "--set", "batch_size=64", "--target-nonzero", "0.5", "--set", "refresh_every=7"),
)


class Processes:
    """Forked from one process that has imported everything."""

    def __init__(self, folder):
        self.folder = folder
        self.server = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=ENVIRONMENT,
        )

    def start(self, action, *arguments, world=1, kill_after=None, victims=()):
        self.output = self.folder / "output.txt"
        self.output.unlink(missing_ok=True)
        task = {"action": action, "arguments": [str(a) for a in arguments], "world": world}
        task |= {"output": str(self.output), "folder": str(self.folder)}
        task |= {"kill_after": kill_after, "victims": list(victims)}
        self.server.stdin.write(json.dumps(task) + "\n")
        return [int(pid) for pid in self.server.stdout.readline().split()[1:]]

    def wait(self):
        """The exit codes, negative for signals."""
        return [int(code) for code in self.server.stdout.readline().split()[1:]]

    def run(self, action, *arguments, world=1):
        """Run to the end; exit codes and output."""
        self.start(action, *arguments, world=world)
        return self.wait(), self.output.read_text()

    def killed(self, seconds, *arguments, world=1, victims=None):
        """Run the command line and kill -9 it, or the ranks `victims` of it, after some seconds; exit codes."""
        victims = range(world) if victims is None else victims
        self.start("cli", *arguments, world=world, kill_after=seconds, victims=victims)
        return self.wait()

    def close(self):
        self.server.stdin.close()
        self.server.wait()
        self.server.stdout.close()


def figures(folder):
    """The summary without the times: of the run, and of the networks."""
    summary = json.loads(Path(folder, "summary.json").read_text())
    assert summary.pop("latency")["comparisons"]
    assert summary.pop("seconds") > 0
    return summary


def wait_for_rows(folder, rows):
    """Until the history of a run has so many rows."""
    history, deadline = Path(folder, "history.jsonl"), time.monotonic() + PATIENCE
    while not (history.exists() and history.read_bytes().count(b"\n") >= rows):
        assert time.monotonic() < deadline, "the run makes no progress"
        time.sleep(0.01)
