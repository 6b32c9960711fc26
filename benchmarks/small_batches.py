"""Few examples at a time: dense and pruned networks in torch, ONNX Runtime and our engine, side by side.

    python -m benchmarks.small_batches [--files runs/lenet5-digits-1/network.safetensors ...] [--output FILE]

One core.  LeNet-5 and VGG-11 are made up with as many live weights as good runs leave, wherever chance puts them; files
of real networks may be added.  Everything is measured in one run and kept as JSON in benchmarks/results/.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesprune import artefact, models
from bayesprune.latency import Latency, measure
from benchmarks.report import RESULTS, keep
from benchmarks.storage import SEED, made_up

BATCHES = (1, 2, 4, 8, 16, 32)
RUNTIMES = ("eager", "onnx", "native")
SECONDS = 1.0


def cases(files: list[Path]) -> dict[str, tuple[nn.Module, nn.Module, tuple[int, ...]]]:
    """The dense network, the smaller one and the shape of an example, by name."""
    found = {}
    for name, case in made_up().items():
        if name.endswith("random, shrunk"):
            model, about = name.split(",")[0], case["described"]
            shape = about["example_shape"]
            found[f"{model}, made up"] = (_dense(model, shape, len(about["classes"])), case["network"], shape)
    for path in files:
        held = artefact.read(path)
        shape, model = tuple(held.example_shape or ()), (held.config or {})["model"]
        found[f"{model}, {path.parent.name}/{path.stem}"] = (
            _dense(model, shape, len(held.classes or [])),
            artefact.load(path),
            shape,
        )
    return found


def _dense(model: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    return models.create(model, shape, classes, generator=torch.Generator().manual_seed(SEED)).eval()


def figures(latency: Latency) -> list[dict[str, Any]]:
    """By batch: microseconds of each network in its best layout of each runtime, and how many times faster ours is."""
    rows = []
    if failed := [f"{row.network}, {row.kind}: {row.error}" for row in latency.rows if row.error]:
        raise SystemExit(f"not everything could be measured: {'; '.join(failed)}")
    for batch in BATCHES:
        of_batch = [row for row in latency.rows if row.batch == batch]
        times = {
            network: {
                runtime: 1e3 * min(r.median for r in of_batch if (r.network, r.kind.runtime) == (network, runtime))
                for runtime in RUNTIMES
            }
            for network in ("dense", "shrunk")
        }
        ours = times["shrunk"]["native"]
        ratios = {name: {runtime: of / ours for runtime, of in found.items()} for name, found in times.items()}
        rows.append({"batch": batch, "microseconds": times, "times_faster": ratios})
    return rows


def main() -> None:
    """Run everything, print it, keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="artefacts of trained networks to add")
    parser.add_argument(
        "--output", type=Path, default=RESULTS / "small_batches-cpu.json", help="where to keep the JSON"
    )
    options = parser.parse_args()
    report: dict[str, Any] = {"seed": SEED, "networks": {}}
    for name, (dense, shrunk, shape) in cases(options.files).items():
        latency = measure(
            {"dense": dense, "shrunk": shrunk},
            torch.zeros(1, *shape),
            batches=BATCHES,
            runtimes=RUNTIMES,
            threads=1,
            seconds=SECONDS,
        )
        report |= {"settings": latency.settings, "hardware": latency.hardware, "versions": latency.versions}
        report["networks"][name] = figures(latency)
        for row in report["networks"][name]:
            times = {
                f"{network} {way}": f"{of:.0f}"
                for network, ways in row["microseconds"].items()
                for way, of in ways.items()
            }
            print(f"{name}, batch {row['batch']}, microseconds: {times}")
    keep(report, options.output)


if __name__ == "__main__":
    main()
