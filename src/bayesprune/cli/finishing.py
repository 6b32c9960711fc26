"""The end of a run: the smaller network in a file of its own, checked, its speed, and the summary."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesprune import artefact
from bayesprune.cli.networks import network_of_plan, runtimes_of
from bayesprune.data import DataSet
from bayesprune.latency import LatencyError, measure, shrink_fastest
from bayesprune.runs import RunError, RunFolder
from bayesprune.runs.atomic import remove_temporary_files
from bayesprune.runs.disk_errors import continuing
from bayesprune.runs.folder import NETWORK
from bayesprune.structure import macs, trace, widths
from bayesprune.surgery import prove
from bayesprune.turbo import Compression

BATCHES, SECONDS = (1, 256), 0.3  # of the short measurement
CHECKED = 64  # examples on which the file is compared with the network
NOT_IN_THE_FILE = ("seconds", "hardware", "versions")  # so that the same run makes the same file


def finish(
    run: RunFolder, plan: dict[str, Any], data_of_run: DataSet, result: Compression, *, bench: bool, rounding: bool
) -> dict[str, Any]:
    """Write the artefact, measure, then write the summary, so that a run with a summary has its network."""
    if rounding:
        result = _rounded(data_of_run, result)
    summary = dict(result.summary)
    summary |= _write_network(run, plan, data_of_run, result)
    if bench:
        try:
            summary["latency"] = _latency(run, plan, data_of_run, result.shrunk)
        except LatencyError as error:
            summary["notes"] = [*summary["notes"], f"the speed was not measured: {error}"]
    run.write_summary(summary)
    return summary


def _rounded(data_of_run: DataSet, result: Compression) -> Compression:
    """The same with widths rounded up to the multiple that measures fastest, proven again."""
    x = data_of_run.train.x
    network, multiple = shrink_fastest(
        copy.deepcopy(result.network).cpu().eval(),
        {name: mask.cpu() for name, mask in result.masks.items()},
        x[:2].cpu(),
        device=x.device,
        runtimes=runtimes_of(x.device),
        seconds=SECONDS,
    )
    if multiple == 1:
        return replace(result, summary=result.summary | {"multiple": 1})
    figures = {
        "multiple": multiple,
        "proof": prove(result.network, network, [x[:CHECKED]]).as_dict(),
        "parameters_shrunk": sum(p.numel() for p in network.parameters()),
    }
    figures |= {
        key: count(trace(network, x[:2].cpu())) for key, count in (("macs_shrunk", macs), ("structure_shrunk", widths))
    }
    return replace(result, shrunk=network.to(x.device), summary=result.summary | figures)


def _write_network(run: RunFolder, plan: dict[str, Any], data_of_run: DataSet, result: Compression) -> dict[str, int]:
    """Write the smaller network and read it back; returns its size, and that of the dense network in such a file."""
    path = run.path / NETWORK
    described: dict[str, Any] = {
        "example_shape": data_of_run.input_shape,
        "config": plan,
        "metrics": {key: value for key, value in result.summary.items() if key not in NOT_IN_THE_FILE},
        "classes": data_of_run.classes,
    }
    with continuing(path, run.path):
        remove_temporary_files(path)
        artefact.save(path, result.shrunk, storage=plan.get("storage", "auto"), **described)
        try:
            _check(path, result.shrunk, data_of_run)
        except RunError:
            path.unlink()
            raise
        size = path.stat().st_size
    return {"bytes": size, "bytes_dense": artefact.size(result.network, storage="dense", **described)}


def _check(path: Path, network: nn.Module, data_of_run: DataSet) -> None:
    """Raise RunError unless the network in the file gives the very same outputs."""
    x = data_of_run.train.x[:CHECKED].cpu()
    with torch.no_grad():
        expected, got = copy.deepcopy(network).cpu().eval()(x), artefact.load(path)(x)
    if not torch.equal(expected, got):
        raise RunError(
            f"the network read back from {path} gives other outputs than the one written; "
            "this is a bug or a fault of the disk or memory: try again with --resume"
        )


def _latency(run: RunFolder, plan: dict[str, Any], data_of_run: DataSet, shrunk: nn.Module) -> dict[str, Any]:
    """The unpruned network of the run beside the smaller one."""
    state = run.load_checkpoint()
    assert state is not None
    dense = network_of_plan(plan | {"weights": None}, data_of_run)
    dense.load_state_dict(state["unpruned_weights"])
    latency = measure(
        {"dense": dense, "shrunk": shrunk},
        data_of_run.train.x[:1],
        batches=BATCHES,
        device=data_of_run.train.x.device,
        runtimes=[one for one in runtimes_of(data_of_run.train.x.device) if one != "onnx"],  # its export takes long
        seconds=SECONDS,
    )
    return latency.as_dict(samples=False)
