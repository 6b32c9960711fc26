"""Many settings trained at once: the turbo loop with a dimension for members, which share data and order."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.data import Batches, DataSet, FlipAndCrop
from bayesprune.frontier.members import FINISHED, Member
from bayesprune.frontier.stack import Snapshot, Stack
from bayesprune.frontier.stacked_prior import StackedPrior
from bayesprune.frontier.step import EnsembleStep, member_losses
from bayesprune.likelihoods import Classification
from bayesprune.structure import close
from bayesprune.turbo import Compressor, Interrupted, Recorder, Settings, SettingsError
from bayesprune.turbo.accuracy_budget import EPSILON
from bayesprune.turbo.loop import PHASES, Silent
from bayesprune.turbo.training import EVALUATION_BATCH

NetworkSource = nn.Module | Callable[[Settings], nn.Module]

# What members may differ in; everything else is one for all.
OWN = frozenset(
    (
        *("seed", "learning_rate", "prune_decay", "finetune_rate", "weight_decay", "weight_strength", "weight_start"),
        *("weight_ramp", "unit_strength", "unit_ramp", "unit_floor", "cost_mix", "slab_rate", "spike_rate", "activity"),
    )
)
# What an ensemble can do; the other ways of the turbo loop run one after another.
NEEDED: Mapping[str, Any] = {
    "optimiser": "adam",
    "family": "collapsed",
    "coupling": 0,
    "p01": None,
    "groups": "weight",
    "linear_groups": None,
    "reorder_at": None,
    "random_start": False,
    "bfloat16": False,
    "distil": 0,
    "max_accuracy_drop": None,
    "target_macs": None,
    "target_nonzero": None,
}


def check_settings(settings: Sequence[Settings]) -> None:
    """Raise SettingsError unless these settings can be trained at once."""
    if not settings:
        raise SettingsError("an ensemble needs at least one setting, got none")
    for one in settings:
        for name, needed in NEEDED.items():
            if getattr(one, name) != needed:
                raise SettingsError(
                    f"members of an ensemble need {name} = {needed}, got {getattr(one, name)!r}; "
                    "run these one after another (--one-by-one)"
                )
        try:
            one.prior()
        except ValueError as error:  # rates of spike and slab, or an activity, that cannot be
            raise SettingsError(str(error)) from error
    for name in (field.name for field in dataclasses.fields(Settings) if field.name not in OWN):
        values = [getattr(one, name) for one in settings]
        if any(value != values[0] for value in values):
            raise SettingsError(
                f"members of an ensemble share {name}, got {', '.join(map(str, dict.fromkeys(values)))}; make one "
                "frontier for each, or run these one after another (--one-by-one)"
            )


def train(
    network: NetworkSource,
    data: DataSet,
    settings: Sequence[Settings],
    *,
    order_seed: int | None = None,
    recorder: Recorder | None = None,
    resume: Mapping[str, Any] | None = None,
) -> list[Member]:
    """Train, prune and fine-tune one network per setting, all at once; each as `compress` would alone.

    network: makes the first network of a member from its settings, on the device of the data; or one that all start
    from, which stays as it is.  data: with a validation split; the test split is not looked at.
    order_seed: of the order of the examples, which all members share; that of the first setting by default.
    `compress` with seed=order_seed and otherwise the same settings gives the same network, up to rounding.
    resume: the state that `recorder.checkpoint` was given.

    A member that diverges or loses all its weights is not `finished`; the others go on.
    Raises Interrupted where the recorder asks to stop.
    """
    check_settings(settings)
    ensemble = Ensemble(first_networks(network, settings), data, settings, order_seed, recorder or Silent())
    if resume is not None:
        ensemble.load(resume)
    return ensemble.run()


def first_networks(network: NetworkSource, settings: Sequence[Settings]) -> list[nn.Module]:
    """The network that each member starts from; they may be one and the same."""
    if isinstance(network, nn.Module):
        return [network] * len(settings)
    return [network(one) for one in settings]


class Ensemble:
    """The state of the members between two epochs, and how they go on; see `turbo.loop.Loop` for each."""

    def __init__(
        self,
        networks: Sequence[nn.Module],
        data: DataSet,
        settings: Sequence[Settings],
        order_seed: int | None,
        recorder: Recorder,
    ) -> None:
        if data.validation is None:
            raise SettingsError("a frontier needs a validation split to choose by; load the data with validation=0.1")
        self.data, self.validation, self.settings, self.recorder = data, data.validation, list(settings), recorder
        self.stack = Stack(networks)
        self.shared = shared = settings[0]
        self.likelihood = Classification(shared.label_smoothing)
        self.generator = torch.Generator().manual_seed(shared.seed if order_seed is None else order_seed)
        # Counting and closing member by member are small operations, fastest on the CPU.
        twin = self.stack.network(0).cpu()
        self.counter = Compressor(
            twin, data.train.x[:2].cpu(), examples=len(data.train), epochs=shared.prune_epochs, settings=shared
        )
        self.prior = StackedPrior(
            self.stack, twin, self.counter.prior.weights, self.counter.structure, settings, len(data.train)
        )
        decay = self.stack.per_member([s.weight_decay for s in settings])
        self.step = EnsembleStep(self.stack, self.likelihood, decay)
        self.epochs = (shared.warmup_epochs, shared.prune_epochs, shared.finetune_epochs)
        self.phase, self.epoch = 0, 0  # epoch within the phase
        self.prune_steps, self.rows = 0, 0
        self.factors = [1.0] * len(settings)  # of the strengths, halved where a layer has died
        self.status = [FINISHED] * len(settings)
        self.notes: list[list[str]] = [[] for _ in settings]
        self.unpruned: list[dict[str, float]] = []
        self.good: Snapshot = {}  # every member as it last was not cut
        # A single run computes its first pulls and supports before any training.
        self.pull = torch.zeros_like(self.step.pull)
        self._refresh(self.pull)
        self.alive = self.prior.masks()
        self.masks: dict[str, Tensor] = {}  # closed, once decided
        self.guessing = float(data.validation.y.bincount().max()) / len(data.validation)  # accuracy of it

    # ------------------------------------------------------------------ schedule

    def _refresh(self, pull: Tensor) -> None:
        """Bring the pulls up to date with the weights and the strengths of this epoch of pruning."""
        epoch = self.epoch if PHASES[self.phase] == "prune" else 0
        done = (epoch + 1) / max(1, self.shared.prune_epochs)
        weight, unit = zip(*(strengths(one, done) for one in self.settings), strict=True)
        self.prior.refresh(
            pull,
            [factor * one for factor, one in zip(self.factors, weight, strict=True)],
            [factor * one for factor, one in zip(self.factors, unit, strict=True)],
        )

    def run(self) -> list[Member]:
        """Go on until the end, from wherever the state stands."""
        while self.phase < len(PHASES):
            if self.epoch == 0:
                self._begin_phase()
            while self.epoch < self.epochs[self.phase]:
                self._one_epoch()
                stop = self.recorder.should_stop()
                self.recorder.checkpoint(self.state, must=stop)
                if stop:
                    raise Interrupted
            self._end_phase()
            self.phase, self.epoch = self.phase + 1, 0
        return self._members()

    def _begin_phase(self) -> None:
        self.step.forget()
        self.step.pull.zero_()
        if PHASES[self.phase] == "prune":
            self.step.pull.copy_(self.pull)

    def _end_phase(self) -> None:
        if PHASES[self.phase] == "warmup":
            self.unpruned = self._evaluate(self.stack.parameters)
            self.good = self.stack.snapshot()
        elif PHASES[self.phase] == "prune":
            self._decide()

    def _one_epoch(self) -> None:
        phase, shared = PHASES[self.phase], self.shared
        self.stack.train()
        rates = [learning_rate(one, phase, self.epoch / max(1, self.epochs[self.phase])) for one in self.settings]
        self.step.rates.copy_(self.stack.per_member(rates))
        augment = FlipAndCrop() if shared.augment else None
        train = self.data.train
        batches = Batches(train, min(shared.batch_size, len(train)), self.generator, augment, drop_last=True)
        losses = torch.zeros(self.stack.members, device=train.x.device)
        for done, (x, y) in enumerate(batches, start=1):
            losses += self.step(x, y)
            if phase == "prune":
                self.prune_steps += 1
                if self.prune_steps % shared.refresh_every == 0:
                    self._refresh(self.step.pull)
            self.recorder.step(done, len(batches))
        self._note_diverged(losses)
        self.epoch += 1
        scores = self._after_prune_epoch() if phase == "prune" else self._evaluate(self.stack.parameters)
        self.rows += 1
        self.recorder.row(self._row(phase, losses / len(batches), scores))

    def _row(self, phase: str, losses: Tensor, scores: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        """Means over the members that are well."""
        well = [i for i, status in enumerate(self.status) if status == FINISHED]
        row: dict[str, Any] = {"phase": phase, "epoch": self.epoch, "epochs": self.epochs[self.phase]}
        row["members"] = len(well)
        if well:
            row["loss"] = float(losses[well].mean())
            row["validation_accuracy"] = sum(scores[i]["accuracy"] for i in well) / len(well)
        if phase != "warmup":
            masks = self.masks or self.alive
            live = sum(float(mask[well].sum()) for mask in masks.values())
            row["nonzero_fraction"] = live / max(1, sum(mask[well].numel() for mask in masks.values()))
        return row

    # ------------------------------------------------------------------ pruning

    def _after_prune_epoch(self) -> list[dict[str, float]]:
        """Look at what is left, take members that are cut back, and go to the next epoch's strengths."""
        self.alive = self.prior.masks()
        masks = self._closed()
        scores = self._evaluate(self._masked(masks))
        good, back = [], []
        for i, score in enumerate(scores):
            cut = not any(mask[i].any() for mask in masks.values())
            well = self.status[i] == FINISHED
            good.append(well and not cut and score["accuracy"] > self.guessing + EPSILON)
            back.append(well and cut)
            if back[-1]:
                self.factors[i] /= 2
                text = f"prune epoch {self.epoch}: no live weight left in {', '.join(masks)}; strengths halved"
                self.notes[i].append(text)
                self.recorder.note(f"member {i}: {text}")
        device = self.stack.flat.device
        self.stack.keep(self.good, torch.tensor(good, device=device))
        self.stack.restore(self.good, torch.tensor(back, device=device))
        self._refresh(self.step.pull)
        self.alive = self.prior.masks()
        return scores

    def _closed(self) -> dict[str, Tensor]:
        """The supports of every member closed over its dead units, (members, *shape) bool by layer name, on the CPU."""
        alive = {name: mask.cpu() for name, mask in self.alive.items()}
        members = [
            close(self.counter.structure, {name: mask[i] for name, mask in alive.items()})
            for i in range(self.stack.members)
        ]
        return {name: torch.stack([one[name] for one in members]) for name in alive}

    def _masked(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters with dead weights zero."""
        parameters = self.stack.parameters
        weights = {f"{name}.weight": mask for name, mask in masks.items()}
        return {name: p * weights[name].to(p) if name in weights else p for name, p in parameters.items()}

    @torch.no_grad()
    def _decide(self) -> None:
        self.masks = self._closed()
        self.step.mask.fill_(1.0)
        views = self.stack.views(self.step.mask)
        for name, mask in self.masks.items():
            views[f"{name}.weight"].copy_(mask)
        self.stack.flat.mul_(self.step.mask)
        for i in range(self.stack.members):
            cut = not any(mask[i].any() for mask in self.masks.values())
            if cut and self.status[i] == FINISHED:
                self.status[i] = f"collapsed: no live weight is left in {', '.join(self.masks)}"

    def _note_diverged(self, losses: Tensor) -> None:
        well = (self.stack.finite() & losses.isfinite()).tolist()
        for i, fine in enumerate(well):
            if not fine and self.status[i] == FINISHED:
                self.status[i] = f"diverged: loss or weights became infinite in {PHASES[self.phase]} epoch "
                self.status[i] += f"{self.epoch + 1}, at learning rate {self.settings[i].learning_rate:g}"
                self.recorder.note(f"member {i} {self.status[i]}")

    @torch.no_grad()
    def _evaluate(self, parameters: Mapping[str, Tensor]) -> list[dict[str, float]]:
        """Accuracy and nll of every member on the validation split."""
        split = self.validation
        self.stack.train(False)
        batches = Batches(split, EVALUATION_BATCH.get(split.x.device.type, 1000))
        outputs = torch.cat([self.stack.outputs(parameters, x).float() for x, _ in batches], dim=1)
        accuracy = (outputs.argmax(2) == split.y).double().mean(1).tolist()
        nll = member_losses(self.likelihood, outputs, split.y).tolist()
        return [{"accuracy": a, "nll": n} for a, n in zip(accuracy, nll, strict=True)]

    def _members(self) -> list[Member]:
        scores = self._evaluate(self.stack.parameters)
        return [self._member(number, score) for number, score in enumerate(scores)]

    def _member(self, number: int, score: dict[str, float]) -> Member:
        masks = {name: mask[number] for name, mask in self.masks.items()}
        status = self.status[number]
        if status == FINISHED and score["accuracy"] <= self.guessing + EPSILON:
            status = f"collapsed: validation accuracy {score['accuracy']:.3f} is that of guessing"
        return Member(
            settings=self.settings[number],
            network=self.stack.network(number),
            masks={name: mask.to(self.stack.flat.device) for name, mask in masks.items()},
            validation=score,
            validation_unpruned=self.unpruned[number],
            size=self.counter.size(masks) if status == FINISHED else None,
            status=status,
            notes=self.notes[number],
        )

    # ------------------------------------------------------------------ state

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors that training changes in place."""
        step = self.step
        own = {"flat": self.stack.flat.detach(), "pull": step.pull, "mask": step.mask, "first_pull": self.pull}
        own |= {"first": step.first, "second": step.second, "steps": step.steps}
        return own | {f"buffer.{name}": one for name, one in self.stack.buffers.items()}

    def state(self) -> dict[str, Any]:
        """Everything from which `load` goes on to the same result; plain data and tensors."""
        return {
            "phase": self.phase,
            "epoch": self.epoch,
            "rows": self.rows,
            "prune_steps": self.prune_steps,
            "factors": list(self.factors),
            "status": list(self.status),
            "notes": [list(notes) for notes in self.notes],
            "unpruned": [dict(one) for one in self.unpruned],
            "tensors": self._tensors(),
            "good": dict(self.good),
            "alive": dict(self.alive),
            "masks": dict(self.masks),
            "order": self.generator.get_state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        device = self.stack.flat.device
        self.phase, self.epoch, self.rows = state["phase"], state["epoch"], state["rows"]
        self.prune_steps, self.factors = state["prune_steps"], list(state["factors"])
        self.status, self.notes = list(state["status"]), [list(notes) for notes in state["notes"]]
        self.unpruned = [dict(one) for one in state["unpruned"]]
        for name, tensor in self._tensors().items():
            tensor.copy_(state["tensors"][name])
        self.good = {name: one.to(device) for name, one in state["good"].items()}
        self.alive = {name: one.to(device) for name, one in state["alive"].items()}
        self.masks = dict(state["masks"])
        self.generator.set_state(state["order"])


def strengths(settings: Settings, done: float) -> tuple[float, float]:
    """Of the weight prior and the unit prior at a part of the pruning epochs, as `Compressor.strengths` has them."""
    units = _ramp(done, *settings.unit_ramp)
    weight = settings.weight_strength * _ramp(done, *settings.weight_ramp)
    return max(settings.weight_start * units, weight), settings.unit_strength * units


def _ramp(done: float, begin: float, end: float) -> float:
    """0 before `begin`, 1 after `end`, linear between."""
    return 1.0 if done >= end else max(0.0, (done - begin) / (end - begin))


def learning_rate(settings: Settings, phase: str, done: float) -> float:
    """At a part of a phase, as the turbo loop has it."""
    if phase == "prune":
        return settings.learning_rate * (settings.prune_decay if done >= 0.7 else 1.0)
    rate = settings.learning_rate * (settings.finetune_rate if phase == "finetune" else 1.0)
    return rate * 0.5 * (1 + math.cos(math.pi * done))
