"""Time the networks of a row in every way to run them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from bayesprune import artefact, models
from bayesprune.latency import LAYOUTS, Latency, measure
from bayesprune.latency import Row as TimedRow
from bayesprune.latency.candidates import Kind, kinds
from bayesprune.latency.statistics import ratio_of_medians
from bayesprune.provenance import hardware, versions
from bayesprune.reproduce.acceleration.kept import PROTOCOL, Kept, KeptNetwork, network_digests
from bayesprune.reproduce.acceleration.parts import Parts, Way, engine_digest
from bayesprune.reproduce.acceleration.roofline import Machine, measure_machine, work_of
from bayesprune.reproduce.jobs import Row
from bayesprune.reproduce.methods import OURS, UNPRUNED
from bayesprune.reproduce.paper import FIGURE9
from bayesprune.runs import RunError

BATCHES: Final = {"lenet5": 10000, "alexnet": 10000, "vgg11": 1000, "digits": 1000}  # the paper's; digits is ours
FEWEST_PASSES, MOST_ROUNDS = 20, 1000
SECONDS: Final = 2.0  # for a network in a way
COMPILED: Final = (UNPRUNED, OURS)  # by torch.compile, which takes long
FROM_ROW: Final = ("accuracy", "nonzero_fraction", "macs_removed", "structure", "bytes")
TRAINED, DRAWN = "the trained network of `unpruned`", "a network with random weights: none of `unpruned` was kept"

Tell = Callable[[str], object]


def acceleration(
    row: Row,
    kept: Kept,
    device: torch.device,
    *,
    runtimes: Sequence[str],
    batch: int | None = None,
    passes: int = FEWEST_PASSES,
    seconds: float = SECONDS,
    threads: int | None = None,
    tf32: bool = False,
    folder: Path | None = None,
    tell: Tell = lambda text: None,
) -> dict[str, Any]:
    """Forward times of the dense network and of every kept one, each in all runtimes and layouts; plain JSON.

    torch.compile is only for the dense network and `ours`.

    batch: None for the paper's.  seconds: for a network in a way, on average, but `passes` forward passes in any case.
    tf32: on CUDA, let all ways use TF32, as torch's convolutions do by default; otherwise all is exact float32.
    folder: where every way is kept until all are measured, so that a study that was stopped goes on; None for nowhere.
    tell: called with every way before it is measured.
    In the result, ratio and interval are how many times faster a network in its best way is than the dense one in its
    best way, by medians, and the 95 % interval of that; roofline: see `Machine.bound`, times_bound is the time over it.
    """
    pruned = [one for one in kept.networks if one.method != UNPRUNED]
    if not pruned:
        why = ", ".join(f"{method}: {reason}" for method, reason in kept.left_out.items())
        raise RunError(
            f"no pruned network of {kept.name} with seed {kept.seed} is kept ({why}); "
            f"make some with: bayesprune reproduce table2 --row {row.name} --again-without-network"
        )
    if passes < 1:
        raise RunError(f"passes must be at least 1, got {passes}; try {FEWEST_PASSES}")
    tf32 = tf32 and device.type == "cuda"
    example = torch.zeros(1, *(artefact.read(pruned[0].path).example_shape or ()))
    dense = next((one for one in kept.networks if one.method == UNPRUNED), None)
    networks = {UNPRUNED: dense.load() if dense else _drawn(row, pruned[0], example)}
    networks |= {one.method: one.load() for one in pruned}
    size = batch or BATCHES[row.name]
    asked = {
        "networks": network_digests(kept),
        "batch": size,
        "passes": passes,
        "seconds": seconds,
        "threads": threads or torch.get_num_threads(),
        "tf32": tf32,
        "versions": versions("onnxruntime"),
        "engine": engine_digest(),
        "hardware": hardware(device),
    }
    parts = Parts(folder, asked)
    found = _all_ways(networks, example, size, device, runtimes, passes, seconds, threads, tf32, parts, tell)
    machine = measure_machine(device, threads, tf32=tf32)
    rows = [one for way in found for one in way.rows]
    best = {name: _best(rows, name) for name in networks}
    figures = {one.method: {key: one.row.get(key) for key in FROM_ROW} for one in kept.networks}
    return {
        "row": row.name,
        "title": row.title,
        "model": row.model,
        "device": device.type,
        "tf32": tf32,
        "protocol": PROTOCOL,
        "seed": kept.seed,
        "epochs_scale": kept.epochs_scale,
        "batch": size,
        "paper": FIGURE9.get(device.type, {}).get(row.name),
        "dense": TRAINED if dense else DRAWN,
        "networks": asked["networks"],
        "left_out": {name: reason for name, reason in kept.left_out.items() if name != UNPRUNED},
        "fewest_passes": passes,
        "machine": machine.as_dict(),
        "padding_counts": False,  # among the FLOPs; it did in measurements that do not say so
        "methods": {
            name: figures.get(name, {}) | _figures(network, example, size, best[name], best[UNPRUNED], machine)
            for name, network in networks.items()
        },
        "ways": [_way(one, rows, best[UNPRUNED]) for one in rows],
        "settings": found[0].settings,
        "hardware": found[0].hardware,
        "versions": found[0].versions,
    }


def _drawn(row: Row, other: KeptNetwork, example: Tensor) -> nn.Module:
    """A dense network of the row: how long it takes does not depend on its weights."""
    classes = len(artefact.read(other.path).classes or ())
    generator = torch.Generator().manual_seed(0)
    return models.create(row.model, tuple(example.shape[1:]), classes, generator=generator).eval()


def _all_ways(
    networks: Mapping[str, nn.Module],
    example: Tensor,
    batch: int,
    device: torch.device,
    runtimes: Sequence[str],
    passes: int,
    seconds: float,
    threads: int | None,
    tf32: bool,
    parts: Parts,
    tell: Tell,
) -> list[Way]:
    """One way after the other, all networks in turns."""

    def timed(kind: Kind) -> Latency:
        slow = kind.runtime == "compile"  # to prepare
        return measure(
            {name: one for name, one in networks.items() if not slow or name in COMPILED},
            example,
            batches=(batch,),
            device=device,
            threads=threads,
            runtimes=(kind.runtime,),
            layouts=(kind.layout,),
            seconds=seconds,
            repeats=MOST_ROUNDS,
            fewest_calls=passes,
            tf32=tf32,
        )

    found = []
    for kind in kinds(runtimes, LAYOUTS, device, example.ndim):
        way = parts.kept(kind)
        tell(f"measured   {kind} before" if way else f"measuring  {kind}")
        if way is None:
            latency = timed(kind)
            way = Way(latency.rows, latency.settings, latency.hardware, latency.versions)
            parts.keep(kind, way)
        found.append(way)
    if not any(one.samples for way in found for one in way.rows):
        errors = {f"{one.kind}: {one.error}" for way in found for one in way.rows}
        raise RunError(f"nothing could be measured ({'; '.join(sorted(errors)) or 'no runtime fits the device'})")
    return found


def passes_of(row: TimedRow) -> int:
    """Forward passes that the time of a row is of."""
    return len(row.samples) * row.calls


def _best(rows: Sequence[TimedRow], name: str) -> TimedRow:
    measured = [one for one in rows if one.network == name and one.samples]
    if not measured:
        errors = {f"{one.kind}: {one.error}" for one in rows if one.network == name}
        raise RunError(f"{name} could not be measured ({'; '.join(sorted(errors))})")
    return min(measured, key=lambda one: one.median)


def _figures(
    network: nn.Module, example: Tensor, batch: int, best: TimedRow, dense: TimedRow, machine: Machine
) -> dict[str, Any]:
    work = work_of(network, example)
    bound, limit = machine.bound(work, batch)
    return {
        "live_macs": work.live_macs,
        "flops": work.flops(batch),
        "bytes_moved": work.bytes(batch),
        "best": _times(best),
        **_ratio(dense, best),
        "roofline": {"bound_ms": 1e3 * bound, "limit": limit, "times_bound": best.median / (1e3 * bound)},
    }


def _way(row: TimedRow, rows: Sequence[TimedRow], dense: TimedRow) -> dict[str, Any]:
    """A network in a way, against the dense one in its best way and in the same way."""
    found = {"network": row.network, **_times(row), "error": row.error}
    if not row.samples:
        return found
    same = next((one for one in rows if (one.network, one.kind) == (dense.network, row.kind) and one.samples), None)
    return found | _ratio(dense, row) | {"same_way": _ratio(same, row) if same else None}


def _times(row: TimedRow) -> dict[str, Any]:
    plain = row.as_dict(samples=False)
    kept = ("runtime", "layout", "milliseconds", "rounds", "preparation_seconds")
    return {key: plain[key] for key in kept} | {"passes": passes_of(row)}


def _ratio(dense: TimedRow, row: TimedRow) -> dict[str, Any]:
    together = dense.kind == row.kind  # only then were they timed in the same rounds
    places = dense.places, row.places
    ratio, low, high = ratio_of_medians(dense.samples, row.samples, paired=together, places=places)
    return {"ratio": ratio, "interval": [low, high]}
