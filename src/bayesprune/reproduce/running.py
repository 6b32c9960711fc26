"""Run one job, from data to a row of figures."""

import contextlib
import copy
import gc
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
from bayesprune.reproduce.progress import Resume
from bayesprune.reproduce.regularity_figures import regularity_figures
from bayesprune.reproduce.row_files import FAILED, FIGURES
from bayesprune.runs.atomic import remove_temporary_files
from bayesprune.surgery import ProofError
from bayesprune.turbo import CollapsedError, Compression, DivergedError, Recorder, Settings, compress

BATCHES, SECONDS = (1, 256), 0.3  # of the measurement of speed
NOT_IN_THE_FILE = ("regularity", "seconds_training")  # so that the same job makes the same file, and a small one
FROM_SUMMARY = (
    *("accuracy", "nll", "validation", "nonzero_fraction", "dense_fraction", "macs_removed", "macs", "macs_dense"),
    *("macs_shrunk", "structure", "parameters_shrunk", "parameters_dense", "proof", "status", "notes"),
)


def run_job(
    job: Job,
    data: DataSet,
    *,
    recorder: Recorder | None = None,
    bench: bool = False,
    keep: Path | None = None,
    resume: Resume | None = None,
) -> dict[str, Any]:
    """Train, prune, fine-tune and evaluate; returns the row.

    data: with the validation split of the job's settings.  bench: measure the speed, too.  keep: the file for the
    shrunk network; a job that fails leaves none there.  resume: where `ours` was stopped; baselines begin anew.
    A network that diverges, collapses or is not proven equal gives a row without figures that says so: it is what the
    method does under this protocol, and the other jobs go on.
    """
    device = data.train.x.device
    row = job.description
    started = time.perf_counter()
    generator = torch.Generator().manual_seed(job.seed)
    network = models.create(job.row.model, data.input_shape, len(data.classes), generator=generator)
    dense = copy.deepcopy(network) if bench else None
    try:
        result = _train(job, network.to(device), data, recorder, resume)
    except (CollapsedError, DivergedError, ProofError) as error:
        figures: dict[str, Any] = dict.fromkeys(FIGURES) | {"status": f"{FAILED}: {error}"}
        if keep is not None:
            keep.unlink(missing_ok=True)  # of other settings
    else:
        figures = _figures(job, result)
        figures["bytes"] = artefact.size(result.shrunk, example_shape=data.input_shape)
        if keep is not None:
            _keep(keep, result.shrunk, data, row, figures)
        if dense is not None:
            figures["latency"] = _latency(dense, result.shrunk, data)
    finally:
        gc.collect()  # the CUDA graphs of this job
    made = {"versions": versions(), "hardware": hardware(device)}
    return row | made | figures | {"seconds": round(time.perf_counter() - started, 2)}


def _train(
    job: Job, network: nn.Module, data: DataSet, recorder: Recorder | None, resume: Resume | None
) -> Compression | Baseline:
    if isinstance(job.settings, Settings):
        torch.manual_seed(job.seed)
        return compress(network, data, settings=job.settings, recorder=recorder, resume=resume)
    if job.method == UNPRUNED:
        return baselines.train_dense(network, data, settings=job.settings, recorder=recorder)
    return baselines.run(job.algorithm, network, data, settings=job.settings, recorder=recorder)


def _figures(job: Job, result: Compression | Baseline) -> dict[str, Any]:
    figures = {key: result.summary[key] for key in FROM_SUMMARY if key in result.summary}
    figures["seconds_training"] = result.summary["seconds"]
    if job.settings.warmup_epochs and job.method != UNPRUNED:
        figures["accuracy_after_warmup"] = result.summary["accuracy_unpruned"]
    return figures | {"regularity": regularity_figures(result.masks, job.seed, by_layer=job.by_layer)}


def _keep(path: Path, network: nn.Module, data: DataSet, job: dict[str, Any], figures: dict[str, Any]) -> None:
    """Write the network with what its row says about it; `bytes` there is the size without that."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_temporary_files(path)
    metrics = {key: value for key, value in figures.items() if key not in NOT_IN_THE_FILE}
    described: dict[str, Any] = {"example_shape": data.input_shape, "classes": data.classes}
    artefact.save(path, network, storage="auto", config=job, metrics=metrics, **described)


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
