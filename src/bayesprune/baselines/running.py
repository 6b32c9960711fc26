"""What all baselines do alike: epochs of training in phases, rows of a history, a decision."""

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.baselines.settings import STRENGTHS, BaselineSettings
from bayesprune.baselines.swapping import Prunable
from bayesprune.data import Batches, DataSet, FlipAndCrop
from bayesprune.likelihoods import Likelihood
from bayesprune.structure import close, trace
from bayesprune.turbo.compressor import Size, apply_masks, size_of
from bayesprune.turbo.loop import CollapsedError, DivergedError, Interrupted, Recorder, Silent
from bayesprune.turbo.plain_settings import SettingsError
from bayesprune.turbo.training import Teacher, TrainStep, evaluate, make_optimiser

Masks = dict[str, Tensor]
"""Live weights by layer name, of the weight's shape: bool, or float where a training step reads them."""


class Step(TrainStep):
    """A training step with something to do after it, such as a clamp or a proximal step.

    after: work in place on tensors that stay where they are, without decisions in Python: on CUDA it is captured.
    """

    after: Callable[[], None] | None = None

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super()._step(x, y)
        if self.after is not None:
            with torch.no_grad():
                self.after()
        return loss


class Run:
    """A network on its way from training to fine-tuning, and what is known of it."""

    def __init__(
        self,
        method: str,
        model: nn.Module,
        data: DataSet,
        likelihood: Likelihood,
        settings: BaselineSettings,
        recorder: Recorder | None = None,
    ) -> None:
        if data.validation is None:
            raise SettingsError("a baseline needs a validation split; load the data with validation=0.1")
        self.method, self.model, self.data, self.likelihood, self.settings = method, model, data, likelihood, settings
        self.validation = data.validation
        self.recorder = recorder or Silent()
        self.device = data.train.x.device
        self.structure = trace(model, data.train.x[:2]).to(self.device)
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.history: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.seconds = 0.0
        self.unpruned: dict[str, float] = {}
        self.unpruned_weights: dict[str, Tensor] = {}
        modules = dict(model.named_modules())
        found = {layer.name: modules[layer.name] for layer in self.structure.layers}
        owners: dict[int, str] = {}
        for name, module in found.items():
            if _weight(module).requires_grad:
                owners.setdefault(id(_weight(module)), name)
        self.layers = {name: found[name] for name in owners.values()}
        if not self.layers:
            raise ValueError(
                f"{type(model).__name__} has no trainable Linear or Conv weight; there is nothing to compress"
            )

    @property
    def examples(self) -> int:
        """The size of the training set."""
        return len(self.data.train)

    @property
    def predictions(self) -> int:
        """Over how many predictions the mean loss of the training set is."""
        return self.likelihood.predictions(self.data.train.y)

    @property
    def strength(self) -> float:
        """The penalty's strength: that of the settings, or the method's own."""
        given = self.settings.strength
        return STRENGTHS[self.method] if given is None else given

    def ramped_strength(self, done: float) -> float:
        """The strength when a share `done` of the pruning epochs is over."""
        begin, end = self.settings.strength_ramp
        if done >= end:
            return self.strength
        return self.strength * (done - begin) / (end - begin) if done > begin else 0.0

    @property
    def untied(self) -> list[str]:
        """The layers whose weight is theirs alone, so that a scale can be folded into it."""
        named = dict(self.model.named_modules(remove_duplicate=False))
        everyone = {id(m): m for m in named.values() if isinstance(m, Prunable)}.values()
        users = [id(m.weight) for m in everyone]
        return [name for name, module in self.layers.items() if users.count(id(_weight(module))) == 1]

    def weights(self) -> dict[str, Tensor]:
        """The prunable weights themselves, without gradient, by layer name."""
        return {name: _weight(module).detach() for name, module in self.layers.items()}

    def note(self, text: str) -> None:
        """Keep something that the user should know."""
        self.notes.append(text)
        self.recorder.note(text)

    def warm_up(self, *, restart: bool = False, after: Callable[[], None] | None = None) -> None:
        """Plain training; its result is the unpruned network.  restart: put the first weights back afterwards."""
        first = copy.deepcopy(self.model.state_dict())
        self.train("warmup", self.settings.warmup_epochs, after=after)
        self.unpruned = evaluate(self.model, self.likelihood, self.validation)
        self.unpruned_weights = copy.deepcopy(self.model.state_dict())
        if restart:
            self.model.load_state_dict(first)

    def train(
        self,
        phase: str,
        epochs: int,
        *,
        network: nn.Module | None = None,
        penalty: Callable[[], Tensor] | None = None,
        after: Callable[[], None] | None = None,
        masks: Mapping[str, Tensor] | None = None,
        on_epoch: Callable[[float, float], None] | None = None,
        current: Callable[[], Masks] | None = None,
        decay: bool = True,
    ) -> None:
        """Train for some epochs.

        network: instead of the model, a version of it for training.  penalty: added to the loss.  after: of a step, see
        `Step`.  masks: dead weights stay zero; float ones may be changed in place on the way.  on_epoch: called before
        each epoch with the share of the epochs that is done and the learning rate.  current: the masks that a decision
        now would give, for the history.  decay: whether the settings' weight decay acts; a KL does without.
        """
        settings = optimiser_settings(self.settings, phase)
        if not decay:
            settings = dataclasses.replace(settings, weight_decay=0.0)
        network = self.model if network is None else network
        step = Step(
            network,
            self.likelihood,
            make_optimiser([*network.parameters(), *self.likelihood.parameters()], settings),
            masks=masks,
            teacher=Teacher.from_settings(settings, phase, self.model, self.unpruned_weights),
            penalty=penalty,
            bfloat16=self.settings.bfloat16,
        )
        step.after = after
        for epoch in range(epochs):
            started = time.perf_counter()
            done = epoch / epochs
            rate = learning_rate(settings, phase, done)
            step.set_learning_rate(rate)
            if on_epoch is not None:
                on_epoch(done, rate)
            loss = self._epoch(network, step)
            self._check_finite(loss, network, f"{phase} epoch {epoch + 1}", settings.learning_rate)
            row: dict[str, Any] = {"phase": phase, "epoch": epoch + 1, "epochs": epochs, "loss": loss}
            row |= {f"validation_{k}": v for k, v in evaluate(network, self.likelihood, self.validation).items()}
            if current is not None:
                row |= size_row(size_of(self.structure, close(self.structure, current())))
            self.seconds += time.perf_counter() - started
            row["seconds"] = round(self.seconds, 3)
            self.history.append(row)
            self.recorder.row(row)
            if self.recorder.should_stop():
                raise Interrupted(
                    f"{self.method} was stopped after {phase} epoch {epoch + 1} of {epochs}; "
                    "a baseline has no checkpoints, so it begins anew next time"
                )

    def _epoch(self, network: nn.Module, step: Step) -> float:
        """The mean loss of an epoch."""
        s = self.settings
        augment = FlipAndCrop() if s.augment else None
        batches = Batches(self.data.train, min(s.batch_size, self.examples), self.generator, augment, drop_last=True)
        losses = torch.zeros((), device=self.device)
        network.train()
        for done, (x, y) in enumerate(batches, start=1):
            losses += step(x, y)
            self.recorder.step(done, len(batches))
        return float(losses) / len(batches)

    def _check_finite(self, loss: float, network: nn.Module, where: str, rate: float) -> None:
        trained = [*network.state_dict().values(), *self.likelihood.state_dict().values()]
        if math.isfinite(loss) and all(bool(tensor.isfinite().all()) for tensor in trained):
            return
        what = "a weight became infinite or NaN" if math.isfinite(loss) else f"the loss became {loss}"
        raise DivergedError(
            f"{what} in {where} of {self.method}; try a learning rate below {rate:g}, or a smaller strength"
        )

    def decide(self, masks: Masks) -> Masks:
        """Close the masks over dead units and set dead weights of the model to zero."""
        closed = close(self.structure, {name: mask.bool() for name, mask in masks.items()})
        size = size_of(self.structure, closed)
        if size.is_cut:
            raise CollapsedError(
                f"{self.method} leaves no live weight in {', '.join(size.empty_layers)}; "
                "try a smaller strength, or larger target_nonzero or target_macs"
            )
        apply_masks(self.model, closed)
        return closed


def optimiser_settings(settings: BaselineSettings, phase: str) -> BaselineSettings:
    """The settings as the optimiser of a phase reads them."""
    if phase != "prune" or settings.prune_optimiser is None:
        return settings
    rate = settings.prune_learning_rate
    assert rate is not None  # BaselineSettings sees to that
    return dataclasses.replace(settings, optimiser=settings.prune_optimiser, learning_rate=rate)


def learning_rate(settings: BaselineSettings, phase: str, done: float) -> float:
    """The learning rate when a share `done` of a phase is over."""
    cosine = 0.5 * (1 + math.cos(math.pi * done))
    if phase == "finetune":
        return settings.learning_rate * settings.finetune_rate * cosine
    if phase == "warmup":
        return settings.learning_rate * cosine
    return settings.learning_rate * {"constant": 1.0, "linear": 1 - done, "cosine": cosine}[settings.prune_schedule]


def size_row(size: Size) -> dict[str, Any]:
    """The figures of a size in a row of the history."""
    return {"nonzero_fraction": size.nonzero_fraction, "macs_fraction": size.macs_fraction, "structure": size.structure}


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight
