"""Bytes of pruned networks in our storage beside other formats, how near positions are to their entropy, and the time.

    python -m benchmarks.storage [--files runs/lenet5-digits-1/network.safetensors ...] [--output FILE]

Masks are random or in panels of 4 x 9, LeNet-5 and VGG-11 made up with as many live weights as good runs leave; files
of real networks may be added.  Everything is measured in one run and kept as JSON in benchmarks/results/.
"""

import argparse
import copy
import lzma
import statistics
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesprune import artefact, models, shrink
from bayesprune.provenance import hardware, versions
from bayesprune.regularity.formats import delta_bytes
from bayesprune.storage import FORMATS, as_matrix, sizes
from bayesprune.storage.bits import BitWriter, gaps
from bayesprune.storage.masks import put_mask
from benchmarks.report import RESULTS, keep

SEED = 0
TURNS = 5
SHAPE = (512, 1152)  # of the masks
DENSITIES = (0.03, 0.1, 0.3, 0.6)
PANEL = (4, 9)
KINDS: tuple[tuple[str, str | None], ...] = (
    ("dense", None),
    ("clusters", None),
    ("clusters", "float16"),
    ("clusters", "bfloat16"),
)

Mask = NDArray[np.bool_]


def made_up_mask(kind: str, shape: tuple[int, int], density: float, rng: np.random.Generator) -> Mask:
    """Live cells one by one, or in whole panels on a grid, (rows, columns)."""
    if kind == "random":
        return rng.random(shape) < density
    rows, columns = (-(-size // side) for size, side in zip(shape, PANEL, strict=True))
    panels = rng.random((rows, columns)) < density
    return np.kron(panels, np.ones(PANEL, bool))[: shape[0], : shape[1]]


def entropy(density: float) -> float:
    """Bits per cell that random positions of this density need at least."""
    return 0.0 if density in (0, 1) else -sum(p * float(np.log2(p)) for p in (density, 1 - density))


def codings(mask: Mask) -> dict[str, float]:
    """Bits per cell of several ways to write down a mask."""
    between = gaps(np.flatnonzero(mask))
    bitmask = np.packbits(mask).tobytes()
    rice, ours = BitWriter(), BitWriter()
    rice.put_subset(mask.reshape(-1))
    put_mask(ours, mask)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9}]
    bits: dict[str, float] = {
        "bit mask": mask.size,
        "bit mask, zlib": 8 * len(zlib.compress(bitmask, 9)),
        "bit mask, lzma": 8 * len(lzma.compress(bitmask, lzma.FORMAT_RAW, filters=filters)),
        "gaps, bytes": 8 * delta_bytes(torch.from_numpy(mask)),
        "gaps, Elias gamma": float((2 * np.floor(np.log2(between + 1)) + 1).sum()),
        "gaps, Rice": rice.length,
        "ours": ours.length,
    }
    return {"entropy": entropy(float(mask.mean()))} | {name: count / mask.size for name, count in bits.items()}


def pruned(model: str, classes: int, shape: tuple[int, ...], kept: dict[str, float], panels: bool) -> dict[str, Any]:
    """A network unpruned, masked, the same with negative zeros, and shrunk.

    kept: of every layer how many units, and the share of the weights between these.
    """
    generator = torch.Generator().manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    network = models.create(model, shape, classes, generator=generator).eval()
    masks: dict[str, Tensor] = {}
    inputs = of = shape[0]
    layers = {name: one for name, one in network.named_modules() if isinstance(one, nn.Conv2d | nn.Linear)}
    for name, layer in layers.items():
        outputs, density = round(kept[f"{name}.units"]), kept[name]
        mask = torch.zeros_like(layer.weight, dtype=torch.bool)
        alive = mask[:outputs, : inputs * mask.shape[1] // of]  # several pixels of a channel after a Flatten
        matrix = made_up_mask("panels" if panels else "random", as_matrix(alive.shape), density, rng)
        alive.copy_(torch.from_numpy(matrix).reshape(alive.shape))
        masks[name], inputs, of = mask, outputs, len(mask)
    with torch.no_grad():
        masked = models.create(model, shape, classes, generator=torch.Generator().manual_seed(SEED)).eval()
        for name, mask in masks.items():
            weight = 0.1 * torch.randn(mask.shape, generator=generator)
            masked.get_parameter(f"{name}.weight").copy_(torch.where(mask, weight, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shrunk = shrink(masked, masks, torch.randn(2, *shape, generator=generator))
    signed = copy.deepcopy(masked)
    with torch.no_grad():
        for name, mask in masks.items():
            weight = signed.get_parameter(f"{name}.weight")
            weight.copy_(torch.where(mask, weight, torch.randn(mask.shape, generator=generator) * 0))
    return {"unpruned": network, "masked": masked, "masked by a product": signed, "shrunk": shrunk}


def made_up() -> dict[str, dict[str, Any]]:
    """LeNet-5 with about 700 live weights in 3-6-22-28, VGG-11 with about 340,000, in several ways."""
    lenet: dict[str, float] = {
        "conv1.units": 3,
        "conv1": 0.55,
        "conv2.units": 6,
        "conv2": 0.3,
        "fc1.units": 22,
        "fc1": 0.1,
    }
    lenet |= {"fc2.units": 28, "fc2": 0.15, "out.units": 10, "out": 0.2}
    units = dict(zip(range(1, 9), (48, 96, 200, 200, 380, 360, 300, 280), strict=True))
    density = dict(zip(range(1, 9), (0.5, 0.12, 0.12, 0.12, 0.1, 0.08, 0.06, 0.04), strict=True))
    vgg: dict[str, float] = {f"conv{number}.units": count for number, count in units.items()}
    vgg |= {f"conv{number}": share for number, share in density.items()}
    vgg |= {"fc1.units": 80, "fc1": 0.12, "out.units": 100, "out": 0.3}
    found = {}
    for kind in ("random", "panels"):
        for name, kept, classes, shape in (("lenet5", lenet, 10, (1, 28, 28)), ("vgg11", vgg, 100, (3, 32, 32))):
            networks = pruned(name, classes, shape, kept, kind == "panels")
            for state in ("shrunk", "masked", "masked by a product"):
                found[f"{name}, {kind}, {state}"] = {
                    "network": networks[state],
                    "dense_bytes": tensor_bytes(networks["unpruned"]),
                    "described": {"example_shape": shape, "classes": [str(one) for one in range(classes)]},
                }
    return found


def from_file(path: Path) -> dict[str, Any]:
    """A network that somebody trained."""
    held = artefact.read(path)
    config, classes, shape = held.config or {}, held.classes or [], tuple(held.example_shape or ())
    dense = models.create(config["model"], shape, len(classes), generator=torch.Generator().manual_seed(SEED))
    described = {"example_shape": shape, "classes": classes, "config": config, "metrics": held.metrics}
    return {"network": artefact.load(path), "dense_bytes": tensor_bytes(dense), "described": described}


def tensor_bytes(network: nn.Module) -> int:
    """Of parameters and buffers, without any header."""
    return sum(one.nbytes for one in (*network.parameters(), *network.buffers()))


def median_seconds(work: Callable[[], Any]) -> float:
    """Of several turns."""
    seconds = []
    for _ in range(TURNS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Sizes and times of one network; `ratio` is the unpruned network's tensors in fp32 over the whole file."""
    network, dense, described = case["network"], case["dense_bytes"], case["described"]
    bare = {key: value for key, value in described.items() if key not in ("config", "metrics")}
    files: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "network.safetensors")
        for storage, values in KINDS:

            def write(storage: Any = storage, values: str | None = values) -> None:
                artefact.save(path, network, storage=storage, values=values, **described)

            row: dict[str, Any] = {"storage": storage, "values": values, "save_s": median_seconds(write)}
            row["load_s"] = median_seconds(lambda: artefact.load(path))
            row["bytes"] = path.stat().st_size
            row["bytes_without_config"] = artefact.size(network, storage=storage, values=values, **bare)  # type: ignore[arg-type]
            row |= {"ratio": dense / row["bytes"], "ratio_without_config": dense / row["bytes_without_config"]}
            files.append(row)
        artefact.save(path, network, storage="dense")
        arrays = artefact.read_arrays(path)
    found = {name: one for name, one in sizes(arrays).items() if arrays[name].ndim > 1}
    live, cells = sum(one.live for one in found.values()), sum(one.values for one in found.values())
    bound = sum(one.values * entropy(one.live / one.values) for one in found.values() if one.values) / 8
    return {
        "dense_bytes": dense,
        "weights": cells,
        "live": live,
        "files": files,
        "formats": {name: sum(one.bytes[name] for one in found.values()) for name in FORMATS},
        "index_bytes_per_live": {
            name: sum(one.index_bytes(name) * one.live for one in found.values() if one.live) / live for name in FORMATS
        },
        "positions_over_entropy": sum(one.position_bytes for one in found.values()) / bound,
    }


def show(name: str, row: dict[str, Any]) -> None:
    """Print the figures of one network."""
    print(f"{name}: {row['live']:,} of {row['weights']:,} weights live, unpruned {row['dense_bytes']:,} bytes")
    print(f"  positions take {row['positions_over_entropy']:.3f} times their entropy per layer; bytes per live weight:")
    print("  " + ", ".join(f"{one} {count:.3f}" for one, count in row["index_bytes_per_live"].items()))
    for file in row["files"]:
        kind = f"{file['storage']}, {file['values'] or 'exact'}"
        print(
            f"  {kind:<20}{file['bytes']:>12,} bytes, {file['ratio']:7.1f} times smaller; without config "
            f"{file['bytes_without_config']:,}, {file['ratio_without_config']:.1f}; "
            f"save {file['save_s']:.3f} s, load {file['load_s']:.3f} s"
        )


def main() -> None:
    """Run everything, print it, keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="artefacts of trained networks to add")
    parser.add_argument("--output", type=Path, default=RESULTS / "storage.json", help="where to keep the JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(SEED)
    report: dict[str, Any] = {"seed": SEED, "versions": versions(), "hardware": hardware(), "masks": [], "networks": {}}
    for kind in ("random", "panels"):
        for density in DENSITIES:
            bits = codings(made_up_mask(kind, SHAPE, density, rng))
            report["masks"].append({"kind": kind, "density": density, "bits_per_cell": bits})
            print(f"{kind} {density:.0%}: " + ", ".join(f"{name} {count:.4f}" for name, count in bits.items()))
    cases = made_up() | {f"{path.parent.name}/{path.stem}": from_file(path) for path in options.files}
    for name, case in cases.items():
        report["networks"][name] = measure(case)
        show(name, report["networks"][name])
    keep(report, options.output)


if __name__ == "__main__":
    main()
