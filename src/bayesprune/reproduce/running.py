"""Run one job, from data to a row of figures."""

import contextlib
import copy
import gc
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesprune import artefact, baselines, models
from bayesprune.baselines import Baseline
from bayesprune.data import DataSet
from bayesprune.latency import LatencyError, measure
from bayesprune.provenance import hardware, versions
from bayesprune.reproduce.jobs import Job
from bayesprune.reproduce.methods import UNPRUNED
from bayesprune.reproduce.regularity_figures import regularity_figures
from bayesprune.reproduce.row_files import FAILED, FIGURES
from bayesprune.surgery import ProofError
from bayesprune.turbo import CollapsedError, Compression, DivergedError, Recorder, Settings, compress

BATCHES, SECONDS = (1, 256), 0.3  # of the measurement of speed
FROM_SUMMARY = (
    *("accuracy", "nll", "validation", "nonzero_fraction", "dense_fraction", "macs_removed", "macs", "macs_dense"),
    *("macs_shrunk", "structure", "parameters_shrunk", "parameters_dense", "proof", "status", "notes"),
)


def run_job(job: Job, data: DataSet, *, recorder: Recorder | None = None, bench: bool = False) -> dict[str, Any]:
    """Train, prune, fine-tune and evaluate; returns the row.

    data: with the validation split of the job's settings.  bench: measure the speed, too.
    A network that diverges, collapses or is not proven equal gives a row without figures that says so: it is what the
    method does under this protocol, and the other jobs go on.
    """
    device = data.train.x.device
    row: dict[str, Any] = {
        "row": job.row.name,
        "model": job.row.model,
        "data": job.row.data,
        "method": job.method,
        **job.identity,
        "seed": job.seed,
        "epochs": job.epochs,
        "epochs_scale": job.epochs_scale,
        "settings": job.settings.as_dict(),
        "versions": versions(),
        "hardware": hardware(device),
    }
    started = time.perf_counter()
    generator = torch.Generator().manual_seed(job.seed)
    network = models.create(job.row.model, data.input_shape, len(data.classes), generator=generator)
    dense = copy.deepcopy(network) if bench else None
    try:
        result = _train(job, network.to(device), data, recorder)
    except (CollapsedError, DivergedError, ProofError) as error:
        figures: dict[str, Any] = dict.fromkeys(FIGURES) | {"status": f"{FAILED}: {error}"}
    else:
        figures = _figures(job, result)
        figures["bytes"] = artefact_bytes(result.shrunk, data)
        if dense is not None:
            figures["latency"] = _latency(dense, result.shrunk, data)
    finally:
        gc.collect()  # the CUDA graphs of this job
    return row | figures | {"seconds": round(time.perf_counter() - started, 2)}


def _train(job: Job, network: nn.Module, data: DataSet, recorder: Recorder | None) -> Compression | Baseline:
    if isinstance(job.settings, Settings):
        torch.manual_seed(job.seed)
        return compress(network, data, settings=job.settings, recorder=recorder)
    if job.method == UNPRUNED:
        return baselines.train_dense(network, data, settings=job.settings, recorder=recorder)
    return baselines.run(job.method, network, data, settings=job.settings, recorder=recorder)


def _figures(job: Job, result: Compression | Baseline) -> dict[str, Any]:
    figures = {key: result.summary[key] for key in FROM_SUMMARY if key in result.summary}
    figures["seconds_training"] = result.summary["seconds"]
    if job.settings.warmup_epochs and job.method != UNPRUNED:
        figures["accuracy_after_warmup"] = result.summary["accuracy_unpruned"]
    return figures | {"regularity": regularity_figures(result.masks, job.seed, by_layer=job.by_layer)}


def artefact_bytes(network: nn.Module, data: DataSet) -> int:
    """The size of the file that holds the network and nothing about how it was made."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.safetensors"
        artefact.save(path, network, example_shape=data.input_shape)
        return path.stat().st_size


def _latency(dense: nn.Module, shrunk: nn.Module, data: DataSet) -> dict[str, Any] | None:
    """The dense network beside the smaller one; None where nothing could be measured."""
    with contextlib.suppress(LatencyError):
        return measure(
            {"dense": dense, "shrunk": shrunk},
            data.train.x[:1],
            batches=BATCHES,
            device=data.train.x.device,
            runtimes=("eager",),
            seconds=SECONDS,
        ).as_dict(samples=False)
    return None
