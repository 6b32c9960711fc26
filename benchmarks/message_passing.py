"""Time loopy sum-product beside `sumproduct` and PGMax, and on every layer of VGG-11.

    python -m benchmarks.message_passing [--device cuda] [--no-peers]

The peers run in an environment of their own (`.venv-peers`, created on first use).  All times are the best of several
runs; ratios are of times from the same run.  Everything is kept as JSON in benchmarks/results/.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesprune import models
from bayesprune.layouts import ConvLayout, Layout
from bayesprune.messages import Table, grid_messages, native
from bayesprune.messages.grid import Engine, engine_for, torch_grids
from bayesprune.priors import prunable_weights
from bayesprune.provenance import hardware, versions
from bayesprune.supports import IsingGrid
from benchmarks.report import RESULTS, keep

SEED = 0
ACTIVITY, COUPLING = 0.4, 0.3


def evidence_of(shape: tuple[int, ...], device: str) -> Tensor:
    """Evidence like that of a trained layer: a tenth of the weights clearly alive, the others mostly dead."""
    generator = torch.Generator().manual_seed(SEED)
    alive = torch.rand(shape, generator=generator) < 0.1
    return (torch.where(alive, 5.0, -3.0) + torch.randn(shape, generator=generator)).to(device)


def best_seconds(work: Callable[[], Any], device: str, repeats: int) -> float:
    """Best time of a call, the device idle before and after; two warm-up calls."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    work()
    work()
    times = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - start)
    return min(times)


def extrinsic_with(engine: Engine | None, evidence: Tensor, iterations: int, damping: float = 0.0) -> Callable[[], Any]:
    """A whole call as a user makes it; with an engine given, the message passing alone."""
    if engine is None:
        support = IsingGrid(ACTIVITY, COUPLING, iterations=iterations, tolerance=0.0, damping=damping)
        return lambda: support.extrinsic(evidence)
    tables = [Table.from_coupling(COUPLING)] * evidence.ndim
    return lambda: grid_messages(
        evidence[None], tables, iterations=iterations, tolerance=0.0, damping=damping, engine=engine
    )


def time_grid(shape: tuple[int, int], iterations: int, device: str) -> dict[str, Any]:
    """Our engines on one grid."""
    evidence = evidence_of(shape, device)
    row: dict[str, Any] = {"shape": shape, "iterations": iterations}
    row["engine"] = engine_for(evidence[None]).__module__.rsplit(".", 1)[-1]
    row["ms"] = 1e3 * best_seconds(extrinsic_with(None, evidence, iterations), device, 30)
    row["ms_damped"] = 1e3 * best_seconds(extrinsic_with(None, evidence, iterations, damping=0.2), device, 30)
    row["ms_torch"] = 1e3 * best_seconds(extrinsic_with(torch_grids, evidence, iterations), device, 10)
    row["torch_over_ours"] = row["ms_torch"] / row["ms"]
    return row


def time_peer(peer: str, shape: tuple[int, int], iterations: int, repeats: int) -> dict[str, Any]:
    """A peer and we on the same grid, with the largest difference of the marginals."""
    from benchmarks.peers import environment

    evidence = evidence_of(shape, "cpu")
    result = environment.run(peer, evidence.double().numpy(), ACTIVITY, COUPLING, iterations, repeats)  # type: ignore[arg-type]
    support = IsingGrid(ACTIVITY, COUPLING, iterations=iterations, tolerance=0.0, damping=0.0)
    ours = torch.sigmoid(support.extrinsic(evidence).logit + evidence)
    seconds = best_seconds(lambda: support.extrinsic(evidence), "cpu", 30)
    return {
        "peer": peer,
        "shape": shape,
        "iterations": iterations,
        "ms_ours": 1e3 * seconds,
        "ms_peer": 1e3 * result.best,
        "peer_over_ours": result.best / seconds,
        "largest_difference_of_marginals": float((ours - torch.from_numpy(result.marginals)).abs().max()),
        "peer_compile_seconds": result.compile_seconds,
        "peer_build_seconds": result.build_seconds,
        "peer_cores_used": result.cores_used,
        "peer_precision": result.precision,
        "peer_versions": dict(result.versions),
    }


def time_vgg11(layout: ConvLayout, iterations: int, device: str) -> dict[str, Any]:
    """All weights of VGG-11, layer after layer."""
    with torch.device("meta"):
        network = models.create("vgg11", (3, 32, 32), 100)
    lattices = []
    for weight in prunable_weights(network, fold_batchnorm=False):
        shape = Layout(layout).to_lattice(weight.weight).shape
        lattices.append(evidence_of(tuple(shape), device))
    support = IsingGrid(ACTIVITY, COUPLING, iterations=iterations, tolerance=0.0, damping=0.0)

    def every_layer() -> None:
        for evidence in lattices:
            support.extrinsic(evidence, batch_dims=1)

    return {
        "layout": layout,
        "weights": sum(e.numel() for e in lattices),
        "iterations": iterations,
        "ms": 1e3 * best_seconds(every_layer, device, 5),
    }


def main() -> None:
    """Run everything, print it, keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--no-peers", action="store_true", help="do not run sumproduct and PGMax")
    parser.add_argument("--output", type=Path, help="where to keep the JSON")
    options = parser.parse_args()
    device: str = options.device
    output = options.output or RESULTS / f"message_passing-{device}.json"
    report: dict[str, Any] = {
        "seed": SEED,
        "activity": ACTIVITY,
        "coupling": COUPLING,
        "versions": versions(),
        "hardware": hardware(device),
        "native_kernel": device == "cpu" and native.is_built(),
        "grids": [],
        "vgg11": [],
        "peers": [],
    }

    def show(part: str, row: dict[str, Any]) -> None:
        report[part].append(row)
        figures = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
        print(", ".join(f for f in figures if not f.startswith("peer_v")), flush=True)

    if device == "cpu" and not options.no_peers:
        show("peers", time_peer("sumproduct", (40, 84), 10, 2))
        show("peers", time_peer("pgmax", (40, 84), 10, 20))
        show("peers", time_peer("pgmax", (400, 120), 30, 10))
    for shape, iterations in (((40, 84), 10), ((400, 120), 30), ((512, 512), 30), ((3000, 3000), 30)):
        show("grids", time_grid(shape, iterations, device))
    for layout in ("kernel", "matrix", "lattice"):
        show("vgg11", time_vgg11(layout, 30, device))
    keep(report, output)


if __name__ == "__main__":
    main()
