"""The examples run as a newcomer would run them, and what they print is true."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed_by(example: str, folder: Path) -> str:
    """What an example prints, run in an empty folder on one core, warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / example)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(pattern: str, text: str) -> list[float]:
    """The numbers that a pattern's groups catch in its last match."""
    found = re.findall(pattern, text)
    assert found, f"{pattern!r} is not in {text!r}"
    last = found[-1]
    return [float(number) for number in ([last] if isinstance(last, str) else last)]


def test_regression_finds_the_inputs_that_matter(tmp_path: Path) -> None:
    text = printed_by("regression.py", tmp_path)
    assert "inputs that survive: [3, 7, 11]" in text
    rmse, before = numbers(r"rmse ([\d.]+), before compression ([\d.]+)", text)
    assert 0.09 < rmse < 0.16  # no better than the noise of 0.1, little worse
    assert rmse < before
    assert numbers(r"([\d.]+)% of the weights", text)[0] < 6


def test_a_trained_network_keeps_its_accuracy(tmp_path: Path) -> None:
    text = printed_by("pretrained.py", tmp_path)
    accuracy, before = numbers(r"accuracy ([\d.]+)%, before compression ([\d.]+)%", text)
    assert before > 97
    assert accuracy > before - 1.5
    live, removed = numbers(r"([\d.]+)% of the weights, ([\d.]+)% of the MACs removed", text)
    assert live < 10
    assert removed > 60


def test_an_own_loop_compresses(tmp_path: Path) -> None:
    text = printed_by("own_loop.py", tmp_path)
    accuracy, live = numbers(r"accuracy ([\d.]+)%, ([\d.]+)% of the weights live", text)
    assert accuracy > 96
    assert live < 10
    assert numbers(r"([\d.]+)% of the MACs removed", text)[0] > 40
    decided, finetuned = re.findall(r"epoch (?:80|110): .*, ([\d.]+)% of the weights", text)
    assert decided == finetuned
