"""Time sparse layers in the native engine beside torch: dense in its best layout, CSR and BSR, in one run.

    python -m benchmarks.sparse_layers [--threads 1] [--seconds 1] [--output FILE]

5 % of the weights live, in aligned 16x16 blocks, in clusters of 3 to 24 anywhere, and anywhere at all.  All ways take
turns; reported are medians over the turns and ratios of medians.  The engine's times include the transposition of what
comes in and goes out.  Everything is kept as JSON in benchmarks/results/.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.provenance import hardware, versions
from bayesprune.runtime.lowering import lower
from bayesprune.runtime.native import Program
from benchmarks.report import RESULTS, keep

SEED, DENSITY, LANES = 0, 0.05, (16, 32, 64)
Ways = dict[str, Callable[[], Tensor]]


def blocks(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Aligned 16x16 blocks, (rows, columns) bool."""
    live = torch.rand(rows // 16, columns // 16, generator=generator) < DENSITY
    return live.repeat_interleave(16, 0).repeat_interleave(16, 1)


def clusters(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Rectangles with sides of 3 to 24 anywhere, (rows, columns) bool."""
    mask = torch.zeros(rows, columns, dtype=torch.bool)
    while mask.float().mean() < DENSITY:
        height, width = torch.randint(3, 25, (2,), generator=generator).tolist()
        row = int(torch.randint(rows - height + 1, (), generator=generator))
        column = int(torch.randint(columns - width + 1, (), generator=generator))
        mask[row : row + height, column : column + width] = True
    return mask


def scattered(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """Single weights, (rows, columns) bool."""
    return torch.rand(rows, columns, generator=generator) < DENSITY


PATTERNS = {"blocks of 16x16": blocks, "clusters of 3 to 24": clusters, "single weights": scattered}


def engine_ways(network: nn.Module, x: Tensor, threads: int) -> Ways:
    """The engine with each number of lanes."""
    lowered = lower(network, tuple(x.shape[1:]))
    flat = x.reshape(len(x), -1).contiguous()

    def way(lanes: int) -> Callable[[], Tensor]:
        program = Program(lowered, lanes)
        return lambda: program(flat, threads)

    return {f"engine, {lanes} lanes": way(lanes) for lanes in LANES}


def linear_ways(size: int, batch: int, mask: Tensor, threads: int) -> Ways:
    """All ways through a Linear layer (size, size) without bias."""
    layer = nn.Linear(size, size, bias=False)
    with torch.no_grad():
        layer.weight.mul_(mask)
    x = torch.randn(batch, size)
    weight, columns = layer.weight.detach(), x.T.contiguous()
    csr = weight.to_sparse_csr()
    bsr = weight.to_sparse_bsr((16, 16))
    return {
        "dense": lambda: layer(x),
        "dense, transposed": lambda: weight @ columns,
        "csr": lambda: (csr @ columns).T,
        "bsr": lambda: (bsr @ columns).T,
        **engine_ways(nn.Sequential(layer), x, threads),
    }


def conv_ways(channels: int, side: int, batch: int, mask: Tensor, threads: int) -> Ways:
    """All ways through a 3x3 convolution with padding; mask: (channels, channels), of whole kernels."""
    layer = nn.Conv2d(channels, channels, 3, padding=1)
    with torch.no_grad():
        layer.weight.mul_(mask[:, :, None, None])
    x = torch.randn(batch, channels, side, side)
    last, twin = x.to(memory_format=torch.channels_last), nn.Conv2d(channels, channels, 3, padding=1)
    twin.load_state_dict(layer.state_dict())
    twin = twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return {
        "dense": lambda: layer(x),
        "dense, channels last": lambda: twin(last),
        **engine_ways(nn.Sequential(layer), x, threads),
    }


def medians(ways: Ways, seconds: float) -> dict[str, float]:
    """Median seconds of every way; they take turns."""
    for way in ways.values():
        way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    started = time.perf_counter()
    while time.perf_counter() - started < seconds * len(ways) or len(times["dense"]) < 5:
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - begun)
    return {name: statistics.median(one) for name, one in times.items()}


def row(what: str, ways: Ways, seconds: float) -> dict[str, Any]:
    """The figures of one layer, printed on the way."""
    found = medians(ways, seconds)
    dense = min(value for name, value in found.items() if name.startswith("dense"))
    engine = min(value for name, value in found.items() if name.startswith("engine"))
    others = {name: found[name] / engine for name in ("csr", "bsr") if name in found}
    print(
        f"{what:58s} dense {1e6 * dense:9.0f} us  engine {1e6 * engine:8.0f} us  {dense / engine:5.1f} times"
        + "".join(f", {name} {ratio:.1f} times slower" for name, ratio in others.items())
    )
    return {"what": what, "seconds": found, "times_faster_than_dense": dense / engine, "slower": others}


@torch.inference_mode()
def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5, help="of measurement for each way")
    parser.add_argument("--output", type=Path, default=RESULTS / "sparse_layers-cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", message=".*(beta state|Sparse).*")
    torch.manual_seed(SEED)
    rows = []
    for pattern, make in PATTERNS.items():
        for size in (512, 2048):
            generator = torch.Generator().manual_seed(SEED)
            mask = make(size, size, generator)
            for batch in (64, 1000):
                ways = linear_ways(size, batch, mask, options.threads)
                rows.append(row(f"Linear {size}x{size}, batch {batch}, {pattern}", ways, options.seconds))
        generator = torch.Generator().manual_seed(SEED)
        ways = conv_ways(256, 28, 16, make(256, 256, generator), options.threads)
        rows.append(row(f"Conv 256 channels 3x3 at 28x28, batch 16, {pattern}", ways, options.seconds))
    found = {"density": DENSITY, "threads": options.threads, "rows": rows}
    found |= {"versions": versions(), "hardware": hardware(torch.device("cpu"))}
    keep({"seed": SEED, **found}, options.output)


if __name__ == "__main__":
    main()
