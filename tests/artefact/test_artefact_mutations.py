"""Damaged files: each is refused or gives the network that was saved, and none takes long or much memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(folder, count, seed, storage):
    script = Path(__file__).with_name("mutate_artefacts.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(folder), str(count), str(seed), storage]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    outcomes = report["outcomes"]
    assert sum(outcomes.values()) == count
    assert "another, old checksum" not in outcomes
    assert outcomes["refused, right checksum"] > 0.2 * count
    assert report["memory_grown"] < report["memory_allowed"]
    assert report["slowest_ms"] < 5000
    return report


@pytest.mark.parametrize("storage", ["dense", "clusters"])
def test_two_thousand_mutations(tmp_path, storage):
    run(tmp_path, 2_000, seed=1, storage=storage)


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["dense", "clusters"])
def test_twenty_thousand_mutations(tmp_path, storage):
    run(tmp_path, 20_000, seed=2, storage=storage)
