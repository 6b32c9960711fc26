"""Run one start: outer iterations on the warm network, and what their messages do."""

import dataclasses
import gc
import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import save as serialize_tensors
from torch import Tensor, nn

from bayesprune import baselines, models
from bayesprune.baselines import BaselineSettings
from bayesprune.data import Batches, DataSet, FlipAndCrop
from bayesprune.likelihoods import Classification
from bayesprune.provenance import hardware, versions
from bayesprune.reproduce.convergence.jobs import FIRST, NOISE, SEED, ConvergenceJob
from bayesprune.reproduce.jobs import Job
from bayesprune.reproduce.progress import Resume
from bayesprune.reproduce.row_files import FAILED
from bayesprune.runs.atomic import remove_temporary_files, write_atomically
from bayesprune.runs.lock import FolderLock
from bayesprune.turbo import Compressor, DivergedError, Interrupted, Recorder, Settings
from bayesprune.turbo.loop import Silent
from bayesprune.turbo.network_prior import NetworkPrior
from bayesprune.turbo.training import TrainStep, evaluate, make_optimiser, masked
from bayesprune.turbo.windows import as_bytes, message_windows

SITES: Final = 4096  # of a layer, whose q(s) at the end is kept to compare starts; drawn once
WINDOW_ROWS, WINDOW_COLUMNS, WINDOW_CELLS = 64, 128, 4096  # most that is kept of the layer that is shown
WINDOWS_AT: Final = (1, 2, 5, 15)  # and the last: outer iterations whose messages are kept, of the first start
SHOWN: Final = 3  # the dense layer that the paper shows (Fig. 11), counted from 1; the last where there are fewer
Weights = dict[str, Tensor]


class StartRunner:
    """Runs jobs; the warm network is trained before the first, or taken from its file."""

    def __init__(self, warm: Path) -> None:
        self._path = warm
        self._warm: Weights | None = None

    def __call__(
        self,
        job: Job,
        data: DataSet,
        *,
        recorder: Recorder | None = None,
        bench: bool = False,
        keep: Path | None = None,
        resume: Resume | None = None,
    ) -> dict[str, Any]:
        """The row of a job; bench, keep, resume: nothing is measured, no network and no state is kept."""
        assert isinstance(job, ConvergenceJob)
        recorder = recorder or Silent()
        if self._warm is None:
            self._warm = warm_network(job, data, self._path, recorder)
        return run_start(job, self._warm, data, recorder)


def warm_network(job: ConvergenceJob, data: DataSet, path: Path, recorder: Recorder) -> Weights:
    """The weights after warm-up, from the file `path` if they are there, else trained and written."""
    warm_up = dataclasses.asdict(job.warm_up)
    names = {field.name for field in dataclasses.fields(BaselineSettings)} & warm_up.keys()
    phases = {"prune_epochs": 0, "finetune_epochs": 0, "seed": SEED}
    kept = ("target_macs", "target_nonzero")  # budgets mean something else there
    values = {name: warm_up[name] for name in names if name not in kept}
    settings = BaselineSettings(**values | phases)
    described = json.dumps({"model": job.row.model, "data": job.row.data, **settings.as_dict()}, sort_keys=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock_path = path.with_name(".warm.lock")
    lock = FolderLock(lock_path)
    try:
        if path.exists():
            with safe_open(path, "pt") as content:
                if (content.metadata() or {}).get("settings") == described:
                    return {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        recorder.note(f"training the network that all starts share, {settings.warmup_epochs} epochs")
        network = _create(job, data)
        baselines.train_dense(network, data, settings=settings, recorder=_WithoutRows(recorder))
        weights = {name: value.detach().cpu().contiguous().clone() for name, value in network.state_dict().items()}
        remove_temporary_files(path)
        write_atomically(path, [serialize_tensors(weights, {"settings": described})])
        return weights
    finally:
        lock_path.unlink(missing_ok=True)
        lock.release()


class _WithoutRows:
    """Passes on everything but rows: the display counts outer iterations."""

    def __init__(self, recorder: Recorder) -> None:
        self.step, self.checkpoint = recorder.step, recorder.checkpoint
        self.note, self.should_stop = recorder.note, recorder.should_stop

    def row(self, row: dict[str, Any]) -> None:
        pass


def run_start(job: ConvergenceJob, warm: Mapping[str, Tensor], data: DataSet, recorder: Recorder) -> dict[str, Any]:
    """Alternate training and message passing, and keep how much both messages change in every layer.

    warm: weights to begin with.  A loss that is not finite gives a row that says so.
    """
    device = data.train.x.device
    row = job.description | {"warm": fingerprint(warm)}
    started = time.perf_counter()
    assert isinstance(job.settings, Settings)
    network = _create(job, data)
    network.load_state_dict(noisy(warm) if job.noise else warm)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(SEED)
            figures = _Start(job, job.settings, network, data, recorder).run()
    except DivergedError as error:
        nothing = ("accuracy", "nonzero_fraction", "macs_removed", "sites", "outer_iterations", "end", "windows")
        figures = dict.fromkeys(nothing) | {"status": f"{FAILED}: {error}"}
    finally:
        gc.collect()  # the CUDA graph of this job
    made = {"versions": versions(), "hardware": hardware(device)}
    return row | made | figures | {"seconds": round(time.perf_counter() - started, 2)}


class _Start:
    """A network between two outer iterations."""

    def __init__(
        self, job: ConvergenceJob, settings: Settings, network: nn.Module, data: DataSet, recorder: Recorder
    ) -> None:
        self.job, self.settings, self.network, self.data, self.recorder = job, settings, network, data, recorder
        self.likelihood = Classification(settings.label_smoothing)
        self.likelihood.to(data.train.x.device)
        self.compressor = Compressor(
            network, data.train.x[:2], examples=len(data.train), epochs=job.iterations, settings=settings
        )
        self.step = TrainStep(
            network,
            self.likelihood,
            make_optimiser(network.parameters(), settings),
            prior=self.compressor.prior,
            decoupled=settings.decoupled,
            bfloat16=settings.bfloat16,
        )
        self.batches = Batches(
            data.train,
            min(settings.batch_size, len(data.train)),
            torch.Generator().manual_seed(SEED),
            FlipAndCrop() if settings.augment else None,
            drop_last=True,
        )
        self.shown = shown_layer(network)

    def run(self) -> dict[str, Any]:
        """All outer iterations; figures of the row."""
        rows: list[dict[str, Any]] = []
        windows: dict[str, dict[str, list[str]]] = {}
        examples = _endless(self.batches)
        steps = self.job.steps or len(self.batches)
        for iteration in range(1, self.job.iterations + 1):
            loss = self._train(examples, steps, (iteration - 1) / self.job.iterations)
            update = self.compressor.exchange()
            rows.append(
                {
                    "iteration": iteration,
                    "loss": _short(loss),
                    "message_change": _short(update.change),
                    "evidence_change": _short(mean_over_sites(self.compressor.prior, update.evidence_change_by_layer)),
                    "message_change_by_layer": _shorts(update.message_change_by_layer),
                    "evidence_change_by_layer": _shorts(update.evidence_change_by_layer),
                    "messages_converged": update.converged,
                    "nonzero_fraction": update.size.nonzero_fraction,
                    "empty_layers": update.size.empty_layers,
                    "weight_strength": update.weight_strength,
                    "unit_strength": update.unit_strength,
                }
            )
            last = iteration == self.job.iterations
            if self.job.start == FIRST and not self.job.noise and (iteration in WINDOWS_AT or last):
                windows[str(iteration)] = self._window(iteration)
            end = ends(self.compressor.prior) if last else {}
            self.compressor.adjust(update.size, None, None)
            shown = ("loss", "nonzero_fraction", "message_change", "evidence_change")
            self.recorder.row({"phase": "messages"} | {key: rows[-1][key] for key in shown})
            if self.recorder.should_stop():
                raise Interrupted
        with masked(self.network, update.masks):
            score = evaluate(self.network, self.likelihood, self.data.test)
        size = update.size
        return {
            "status": f"no live weight left in {', '.join(size.empty_layers)}" if size.is_cut else "finished",
            "accuracy": score["accuracy"],
            "nonzero_fraction": update.size.nonzero_fraction,
            "macs_removed": 1 - update.size.macs_fraction,
            "steps_of_iteration": steps,
            "sites": {w.name: p.numel() for w, p in _layers(self.compressor.prior)},
            "outer_iterations": rows,
            "end": end,
            "windows": {"layer": self.shown, "shape": self._shown_shape(), "iterations": windows} if windows else None,
        }

    def _train(self, examples: Iterator[tuple[Tensor, Tensor]], steps: int, done: float) -> float:
        """Module A's weights for one outer iteration; the mean loss.  done: share of the iterations that are over."""
        self.network.train()
        self.step.set_learning_rate(self.settings.pruning_rate(done))
        losses = torch.zeros((), device=self.data.train.x.device)
        for number in range(1, steps + 1):
            losses += self.step(*next(examples))
            self.compressor.count_step()
            self.recorder.step(number, steps)
        loss = float(losses) / steps
        if not math.isfinite(loss):
            raise DivergedError(f"the loss became {loss}; try a learning rate below {self.settings.learning_rate:g}")
        return loss

    def _shown_shape(self) -> list[int]:
        return [*self.network.get_submodule(self.shown).get_parameter("weight").shape]

    def _window(self, iteration: int) -> dict[str, list[str]]:
        """Both messages and q(s) of the layer that is shown: every row of the window as hexadecimal bytes."""
        layer = message_windows(self.compressor.prior, iteration, WINDOW_COLUMNS).layers[self.shown]
        rows = min(layer.shape[0], WINDOW_ROWS)
        columns = min(layer.shape[1], WINDOW_COLUMNS, WINDOW_CELLS // rows)
        parts = {"from_supports": layer.from_supports, "to_supports": layer.to_supports, "posterior": layer.posterior}
        return {
            name: [line.numpy().tobytes().hex() for line in part[:rows, :columns].contiguous()]
            for name, part in parts.items()
        }


def _short(value: float) -> float:
    """Six digits: enough for a change, and half the file."""
    return float(f"{value:.6g}")


def _shorts(values: Mapping[str, float]) -> dict[str, float]:
    return {name: _short(value) for name, value in values.items()}


def _create(job: ConvergenceJob, data: DataSet) -> nn.Module:
    generator = torch.Generator().manual_seed(SEED)
    network = models.create(job.row.model, data.input_shape, len(data.classes), generator=generator)
    return network.to(data.train.x.device)


def _endless(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from batches


def _layers(prior: NetworkPrior) -> Iterator[tuple[Any, Tensor]]:
    return zip(prior.weights, prior.prior_logits, strict=True)


def mean_over_sites(prior: NetworkPrior, by_layer: Mapping[str, float]) -> float:
    """The mean over all supports of means by layer."""
    sites = {weight.name: logits.numel() for weight, logits in _layers(prior)}
    return sum(by_layer[name] * count for name, count in sites.items()) / sum(sites.values())


@torch.no_grad()
def ends(prior: NetworkPrior) -> dict[str, str]:
    """q(s=1) of every layer as hexadecimal bytes, round(255 p): of all supports, or of as many as SITES, drawn once."""
    found = {}
    for weight, posterior in zip(prior.weights, prior.posteriors(), strict=True):
        logits = posterior.active_logit.flatten()
        if len(logits) > SITES:
            drawn = torch.randperm(len(logits), generator=torch.Generator().manual_seed(SEED))[:SITES]
            logits = logits[drawn.to(logits.device)]
        found[weight.name] = as_bytes(logits).numpy().tobytes().hex()
    return found


def noisy(weights: Mapping[str, Tensor]) -> Weights:
    """Every number w changed to w (1 + NOISE xi), xi normal."""
    generator = torch.Generator().manual_seed(SEED)
    found = {}
    for name, value in weights.items():
        if value.is_floating_point():
            value = value * (1 + NOISE * torch.randn(value.shape, generator=generator).to(value))
        found[name] = value
    return found


def shown_layer(network: nn.Module) -> str:
    """The dense layer whose messages are shown."""
    dense: list[str] = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    return dense[min(SHOWN, len(dense)) - 1]


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Of the network that a row began with: rows with another one are not compared."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
