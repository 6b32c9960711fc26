"""What rounding widths up is worth where tensor cores multiply in TF32: VGG-11 in the widths that pruning left.

    python -m benchmarks.tensor_core_widths [--row FILE] [--batch 1000] [--multiples 1,8,16,32] [--device cuda]

The widths are those of a row of Table II, rounded up to each multiple; weights are random, on which times do not
depend.  Dense and pruned networks take turns in every way to run them; all is kept as JSON in benchmarks/results/.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from bayesprune.latency import measure
from bayesprune.models.vgg import POOL_AFTER, WIDTHS
from benchmarks.report import RESULTS, keep

ROW = Path(__file__).parents[1] / "results/table2/rows/vgg11/ours-best-0.json"
DENSE, CLASSES = [*WIDTHS, 100], 100


def rounded(widths: Sequence[int], multiple: int) -> list[int]:
    """Widths as multiples, at most those of the dense network."""
    up = (-(-width // multiple) * multiple for width in widths)
    return [min(width, most) for width, most in zip(up, DENSE, strict=True)]


def vgg11_of(widths: Sequence[int]) -> nn.Sequential:
    """VGG-11 for 32x32 images with these widths of eight convs and a Linear."""
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(zip((3, *widths[:-2]), widths[:-1], strict=True), start=1):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if number in POOL_AFTER else []
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(widths[-2], widths[-1]), nn.ReLU(), nn.Linear(widths[-1], CLASSES)
    )


def main() -> None:
    """Print the times, and keep all figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--row", type=Path, default=ROW)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--multiples", default="1,8,16,32")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runtimes", default="eager,cuda_graph")
    parser.add_argument("--seconds", type=float, default=0.3, help="for every network in a way")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True  # every shape with the fastest algorithm there is
    widths = json.loads(options.row.read_text())["structure"]
    networks = {"dense": vgg11_of(DENSE)}
    for multiple in map(int, options.multiples.split(",")):
        networks[f"multiples of {multiple}"] = vgg11_of(rounded(widths, multiple))
    latency = measure(
        networks,
        torch.zeros(1, 3, 32, 32),
        batches=(options.batch,),
        device=options.device,
        runtimes=options.runtimes.split(","),
        seconds=options.seconds,
        tf32=True,
    )
    print(latency.table())
    print(latency.in_words())
    kept = latency.as_dict(samples=False) | {"widths": widths, "seed": 0}
    keep(kept, options.output or RESULTS / f"tensor_core_widths-{torch.device(options.device).type}.json")


if __name__ == "__main__":
    main()
