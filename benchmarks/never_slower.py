"""Whether the way that `runtime.compile` chooses is the fastest one: random layers, all ways side by side.

    python -m benchmarks.never_slower [--layers 50] [--threads 1] [--seconds 0.4] [--device cpu] [--output FILE]

For every layer the ways take turns after the choice is made, and the lower quartile of each one's times counts: a
choice is good when its time is at most 5 % above that of the best way.  A figure far above is a wrong choice; dense
torch is always among the ways.  On the CPU, where a measurement serves several sizes, the network runs on others
before: on the next power of two, and on that which shares the choice and differs most.  Everything is kept as JSON in
benchmarks/results/.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.provenance import hardware, versions
from bayesprune.runtime import compile
from bayesprune.runtime.compiled import rounded_up
from benchmarks.report import RESULTS, keep

SEED = 0
ALLOWED = 1.05
FEWEST_TURNS = 15
DENSITIES = (0.01, 0.03, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
BATCHES = (1, 8, 17, 32, 33, 64, 65, 130, 256)  # of Linear layers
CONV_BATCHES = (1, 8, 17, 32, 33)
PATTERNS = ("weights", "blocks", "rows")


def random_layer(choose: random.Random, generator: torch.Generator) -> tuple[nn.Module, Tensor, dict[str, Any]]:
    """A layer with ReLU, an input for it, and what it is."""
    density, pattern = choose.choice(DENSITIES), choose.choice(PATTERNS)
    about: dict[str, Any] = {"density": density, "pattern": pattern}
    layer: nn.Linear | nn.Conv2d
    if choose.random() < 0.5:
        inputs, outputs = (choose.randint(16, 1024) for _ in range(2))
        batch = choose.choice(BATCHES)
        layer, x = nn.Linear(inputs, outputs), torch.randn(batch, inputs, generator=generator)
        about |= {"kind": "linear", "inputs": inputs, "outputs": outputs, "batch": batch}
    else:
        inputs, outputs = (choose.randint(3, 128) for _ in range(2))
        kernel, side, stride = choose.choice((1, 3, 5)), choose.randint(7, 32), choose.choice((1, 1, 2))
        batch = choose.choice(CONV_BATCHES)
        layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
        x = torch.randn(batch, inputs, side, side, generator=generator)
        about |= {"kind": "conv", "inputs": inputs, "outputs": outputs, "kernel": kernel, "side": side}
        about |= {"stride": stride, "batch": batch}
    with torch.no_grad():
        layer.weight.mul_(_mask(layer.weight.shape, density, pattern, generator))
    return nn.Sequential(layer, nn.ReLU()).eval(), x, about


def _mask(shape: torch.Size, density: float, pattern: str, generator: torch.Generator) -> Tensor:
    """Live weights, of a layer's shape: one by one, in blocks of 8 outputs and inputs, or whole outputs."""
    outputs, inputs = shape[:2]
    rest = (1,) * (len(shape) - 2)
    if pattern == "weights":
        return torch.rand(shape, generator=generator) < density
    if pattern == "rows":
        return (torch.rand(outputs, 1, *rest, generator=generator) < density).expand(shape)
    blocks = torch.rand(-(-outputs // 8), -(-inputs // 8), generator=generator) < density
    return blocks.repeat_interleave(8, 0).repeat_interleave(8, 1)[:outputs, :inputs].reshape(outputs, inputs, *rest)


def compare(network: nn.Module, x: Tensor, seconds: float) -> dict[str, Any]:
    """The choice for x, and the lower quartile of the seconds of every way, in turns."""
    fast = compile(network, x)
    before = [] if x.is_cuda else sizes_before(len(x))
    with torch.inference_mode():
        for size in before:
            fast(torch.cat([x, x])[:size])
        fast(x)
        choice = fast._choose(x)
        chosen = choice.way
        names = [name for name, seconds_of in choice.seconds.items() if seconds_of < float("inf")] or ["torch"]
        taken = _take_turns({name: fast._way(name) for name in names}, x, seconds)
    best = min(taken, key=taken.__getitem__)
    ratio = taken[chosen] / taken[best]
    plain = min(value for way, value in taken.items() if way.startswith("torch"))
    return {
        "sizes_before": before,
        "chosen": chosen,
        "best": best,
        "ratio_to_best": ratio,
        "times_dense": plain / taken[chosen],
        "seconds": taken,
        "lowered": fast.reason is None,
    }


def sizes_before(batch: int) -> list[int]:
    """The next power of two, and of the sizes that share their choice with `batch` that which differs most."""
    shared = [size for size in range(1, 2 * batch) if rounded_up(size) == rounded_up(batch)]
    return [1 << (batch - 1).bit_length(), max(shared, key=lambda size: abs(size - batch))]


def _take_turns(ways: dict[str, Callable[[Tensor], Tensor]], x: Tensor, seconds: float) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    begun, turns = time.perf_counter(), 0
    while turns < FEWEST_TURNS or time.perf_counter() - begun < seconds * len(ways):
        for name, way in ways.items():
            way(x)  # what the way before left in the caches is not this one's fault
            _wait(x)
            started = time.perf_counter()
            way(x)
            _wait(x)
            times[name].append(time.perf_counter() - started)
        turns += 1
    return {name: statistics.quantiles(taken, n=4)[0] for name, taken in times.items()}


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)


def main() -> None:
    """Print a line for every layer, and keep all figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.4, help="for every way of a layer")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    choose, generator = random.Random(SEED), torch.Generator().manual_seed(SEED)
    device = torch.device(options.device)
    rows = []
    for number in range(options.layers):
        network, x, about = random_layer(choose, generator)
        row = about | compare(network.to(device), x.to(device), options.seconds)
        rows.append(row)
        shape = f"{row['kind']} {row['inputs']} -> {row['outputs']}, batch {row['batch']}, {row['density']:.0%}"
        print(
            f"{number + 1:3} {shape:45} {row['pattern']:8} {row['chosen']:22} {row['times_dense']:6.2f} x dense torch, "
            f"{row['ratio_to_best']:.3f} of the best ({row['best']})"
        )
    worst = max(row["ratio_to_best"] for row in rows)
    above = sum(row["ratio_to_best"] > ALLOWED for row in rows)
    print(f"{above} of {len(rows)} choices are more than 5 % slower than the best way; the worst is {worst:.3f}")
    report = {"layers": rows, "worst": worst, "above_5_percent": above, "threads": options.threads, "seed": SEED}
    report |= {"versions": versions(), "hardware": hardware(device)}
    keep(report, options.output or RESULTS / f"never_slower-{device.type}.json")


if __name__ == "__main__":
    main()
