"""warm-up -> repeat { Module A for an epoch; Module B } -> decide -> fine-tune: the state between two epochs."""

import copy
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bayesprune.data import Batches, DataSet, FlipAndCrop, Split
from bayesprune.likelihoods import Likelihood
from bayesprune.runs.messages import Messages
from bayesprune.surgery import ProofError, moved_masks, moved_state
from bayesprune.turbo.accuracy_budget import EPSILON, AccuracyBudget, Front
from bayesprune.turbo.compressor import Compressor, Size, apply_masks
from bayesprune.turbo.parallel import World
from bayesprune.turbo.plain_settings import SettingsError
from bayesprune.turbo.settings import Settings
from bayesprune.turbo.training import Teacher, TrainStep, evaluate, make_optimiser, masked
from bayesprune.turbo.windows import message_windows

PHASES = ("warmup", "prune", "finetune")


class DivergedError(RuntimeError):
    """The loss became NaN or infinite."""


class CollapsedError(RuntimeError):
    """A layer has no live weight left."""


class Recorder(Protocol):
    """Where a compression leaves its traces: a run folder, a display, or nothing."""

    def row(self, row: dict[str, Any]) -> None:
        """The end of an epoch."""

    def step(self, done: int, total: int) -> None:
        """A training step of `total` in this epoch."""

    def checkpoint(self, state: Callable[[], dict[str, Any]], *, must: bool = False) -> None:
        """A moment from which the compression can go on; `state()` is everything it needs."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def should_stop(self) -> bool:
        """Whether the user wants to stop at the next checkpoint."""


@runtime_checkable
class MessageRecorder(Recorder, Protocol):
    """A recorder that wants the messages between Module A and Module B, too."""

    def messages(self, messages: Callable[[], Messages]) -> None:
        """An outer iteration has passed messages; `messages()` makes their windows, which costs some milliseconds."""


class Silent:
    """Record nothing, never stop."""

    def row(self, row: dict[str, Any]) -> None:
        pass

    def step(self, done: int, total: int) -> None:
        pass

    def checkpoint(self, state: Callable[[], dict[str, Any]], *, must: bool = False) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def should_stop(self) -> bool:
        return False


class Interrupted(Exception):
    """The user asked to stop; the last checkpoint holds everything."""


class Loop:
    """The state of a compression between two epochs, and how it goes on."""

    def __init__(
        self,
        model: nn.Module,
        data: DataSet,
        likelihood: Likelihood,
        settings: Settings,
        recorder: Recorder,
        world: World,
    ) -> None:
        if data.validation is None:
            raise SettingsError(
                "compression needs a validation split for its decisions; load the data with validation=0.1"
            )
        self.model, self.data, self.likelihood = model, data, likelihood
        if settings.batch_size % world.size:
            raise SettingsError(
                f"batch_size {settings.batch_size} must be a multiple of the {world.size} processes that share it"
            )
        self.settings, self.recorder, self.world = settings, recorder, world
        self.validation = data.validation
        if settings.max_accuracy_drop is not None:
            _check_figure(evaluate(model, likelihood, Split(self.validation.x[:2], self.validation.y[:2])))
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.compressor = Compressor(
            model,
            data.train.x[:2],
            examples=likelihood.predictions(data.train.y),
            epochs=settings.prune_epochs,
            settings=settings,
        )
        self.epochs = dict(
            zip(PHASES, (settings.warmup_epochs, settings.prune_epochs, settings.finetune_epochs), strict=True)
        )
        self.phase, self.epoch = 0, 0  # epoch within the phase
        self.history: list[dict[str, Any]] = []
        self.budget = AccuracyBudget(settings.max_accuracy_drop, len(data.validation), settings.prune_epochs)
        self.unpruned_weights: dict[str, Tensor] = {}
        self.masks: dict[str, Tensor] | None = None
        self.good: dict[str, Tensor] | None = None  # the last network that was neither cut nor guessing
        self.front = Front()
        self.chosen: dict[str, float] = {}  # cost of the one being fine-tuned, and points that it had lost before
        self.recovery = math.inf  # points that fine-tuning brings back, as far as seen
        self.best: dict[str, Any] | None = None  # the best epoch of fine-tuning under an accuracy budget
        self.on_target: dict[str, Any] | None = None  # the best network that met the targets
        self.notes: list[str] = []
        self.seconds = 0.0
        self.step = self._new_step()

    # ------------------------------------------------------------------ phases

    def _new_step(self) -> TrainStep:
        s = self.settings
        optimiser = make_optimiser([*self.model.parameters(), *self.likelihood.parameters()], s)
        phase = PHASES[min(self.phase, len(PHASES) - 1)]  # a finished run is loaded to be summed up
        return TrainStep(
            self.model,
            self.likelihood,
            optimiser,
            prior=self.compressor.prior if phase == "prune" else None,
            decoupled=s.decoupled,
            masks=self.masks if phase == "finetune" else None,
            teacher=Teacher.from_settings(s, phase, self.model, self.unpruned_weights),
            bfloat16=s.bfloat16,
            world=self.world,
        )

    def _learning_rate(self) -> float:
        s, phase = self.settings, PHASES[self.phase]
        done = self.epoch / max(1, self.epochs[phase])
        if phase == "prune":
            return s.pruning_rate(done)
        rate = s.learning_rate * (s.finetune_rate if phase == "finetune" else 1.0)
        return rate * 0.5 * (1 + math.cos(math.pi * done))

    def run(self) -> None:
        """Go on until the end, from wherever the state stands."""
        while self.phase < len(PHASES):
            while self.epoch < self.epochs[PHASES[self.phase]]:
                self._one_epoch()
                stop = self.world.any(self.recorder.should_stop())
                self.recorder.checkpoint(self.state, must=stop)
                if stop:
                    raise Interrupted
            self._end_phase()
            if self.phase < len(PHASES):
                self.step = self._new_step()
        self.recorder.checkpoint(self.state, must=True)

    def _end_phase(self) -> None:
        phase = PHASES[self.phase]
        if phase == "warmup":
            self.budget.unpruned = evaluate(self.model, self.likelihood, self.validation)
            self.unpruned_weights = copy.deepcopy(self.model.state_dict())
        elif phase == "prune":
            self._decide()
        elif self._falls_back():
            return
        self.phase, self.epoch = self.phase + 1, 0

    def _one_epoch(self) -> None:
        started = time.perf_counter()
        phase = PHASES[self.phase]
        self.model.train()
        self.step.set_learning_rate(self._learning_rate())
        augment = FlipAndCrop() if self.settings.augment else None
        batches = Batches(
            self.data.train,
            min(self.settings.batch_size, len(self.data.train) // self.world.size * self.world.size),
            self.generator,
            augment,
            drop_last=True,
        )
        losses = torch.zeros((), device=self.data.train.x.device)
        for done, (x, y) in enumerate(batches, start=1):
            losses += self.step(x, y)
            if phase == "prune" and self.compressor.count_step():
                self.step.drop_tiny()
            self.recorder.step(done, len(batches))
        loss = float(self.world.mean(losses)) / len(batches)
        trained = [*self.model.state_dict().values(), *self.likelihood.state_dict().values()]
        if not math.isfinite(loss) or not all(bool(tensor.isfinite().all()) for tensor in trained):
            what = f"the loss became {loss}" if not math.isfinite(loss) else "a weight became infinite or NaN"
            raise DivergedError(
                f"{what} in {phase} epoch {self.epoch + 1}; "
                f"try a learning rate below {self.settings.learning_rate:g}, or weaker priors"
            )
        row: dict[str, Any] = {"phase": phase, "epoch": self.epoch + 1, "epochs": self.epochs[phase], "loss": loss}
        row.update(self._after_epoch(phase))
        self.seconds += time.perf_counter() - started
        row["seconds"] = round(self.seconds, 3)
        self.epoch += 1
        self.history.append(row)
        self.recorder.row(row)

    def _after_epoch(self, phase: str) -> dict[str, Any]:
        if phase != "prune":
            score = evaluate(self.model, self.likelihood, self.validation)
            row: dict[str, Any] = {f"validation_{k}": v for k, v in score.items()}
            if self.masks is not None:
                row |= _size_row(self.compressor.size(self.masks))
                self._keep_best(self.budget.lost(score))
            return row
        update = self.compressor.exchange()
        if isinstance(self.recorder, MessageRecorder):
            self.recorder.messages(lambda: message_windows(self.compressor.prior, self.epoch + 1))
        masks = update.masks
        with masked(self.model, masks):
            score = evaluate(self.model, self.likelihood, self.validation)
        self.world.check_equal(
            [
                *self.model.state_dict().values(),
                *self.likelihood.state_dict().values(),
                *self.compressor.prior.prior_logits,
            ],
            f"in prune epoch {self.epoch + 1}",
        )
        if update.size.is_cut:
            self._recover(f"no live weight left in {', '.join(update.size.empty_layers)}")
        elif self._has_target and self.good is not None and self.guesses(score):
            self._recover("no better than guessing")
        else:
            if not self.guesses(score):
                self.good = copy.deepcopy(self.model.state_dict())
            self._remember(update.size, score, masks)
            rate = self._learning_rate() / self.settings.learning_rate
            budget = self.budget
            self.compressor.adjust(update.size, budget.recently_lost, budget.tolerated(rate), hold=budget.looking)
        if self.compressor.reorder_due:
            self._reorder()
        row = {f"validation_{k}": v for k, v in score.items()}
        row |= _size_row(update.size)
        row |= {"message_change": update.change, "messages_converged": update.converged}
        row["message_change_by_layer"] = update.message_change_by_layer
        row["evidence_change_by_layer"] = update.evidence_change_by_layer
        row |= {"weight_strength": update.weight_strength, "unit_strength": update.unit_strength}
        return row

    # ------------------------------------------------------------------ budget, collapse, decision

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.recorder.note(text)

    def guesses(self, score: Mapping[str, float]) -> bool:
        """Whether a network knows no more of the validation split than its most frequent class, or its mean."""
        if "accuracy" not in score:
            return score.get("r2", 1.0) <= 0
        labels = self.validation.y.flatten()
        if labels.is_floating_point():  # an accuracy of the user's own
            return False
        return score["accuracy"] <= float(labels.bincount().max()) / len(labels) + EPSILON

    @property
    def _has_target(self) -> bool:
        return self.settings.target_macs is not None or self.settings.target_nonzero is not None

    def _remember(self, size: Size, score: Mapping[str, float], masks: dict[str, Tensor]) -> None:
        """Keep this network if it met the targets better than any before, or may be the answer to a budget."""
        better = self.on_target is None or score["nll"] <= self.on_target["nll"]
        if self._has_target and better and not self.compressor.missed_targets(size):
            self.on_target = {"nll": score["nll"], **self._snapshot(masks)}
        lost = self.budget.lost(score)
        if lost is not None:
            self.budget.losses.append(lost)
            if self.budget.allowed is not None:
                self.front.consider(_cost(size), lost, lambda: self._snapshot(masks))

    def _snapshot(self, masks: dict[str, Tensor]) -> dict[str, Any]:
        """Everything that makes this network one that may be chosen later."""
        return {"model": copy.deepcopy(self.model.state_dict()), "masks": masks}

    def _take(self, snapshot: Mapping[str, Any]) -> None:
        """Go back to a network that was kept, and to what Module A and Module B hold to be true of it."""
        self.model.load_state_dict(snapshot["model"])
        self.compressor.prior.pass_messages()
        self.masks = snapshot["masks"]
        assert self.masks is not None
        apply_masks(self.model, self.masks)

    def _reorder(self) -> None:
        """Sort the units of the model, and of every network that is kept beside it."""
        try:
            moves = self.compressor.reorder(self.step.optimiser)
        except ProofError as error:
            self._note(str(error))
            return
        self.unpruned_weights = moved_state(self.unpruned_weights, moves)
        if self.step.teacher is not None:  # it says the same, but in another order it rounds differently
            self.step.teacher.network.load_state_dict(self.unpruned_weights)
        self.good = None if self.good is None else moved_state(self.good, moves)
        for kept in (*self.front.kept.values(), *([] if self.on_target is None else [self.on_target])):
            kept["model"], kept["masks"] = moved_state(kept["model"], moves), moved_masks(kept["masks"], moves)

    def _recover(self, reason: str) -> None:
        """The network is lost: go back to the last one that was not, with half the strength."""
        self._note(f"prune epoch {self.epoch + 1}: {reason}; strengths halved")
        self.model.load_state_dict(self.good if self.good is not None else self.unpruned_weights)
        self.compressor.weaken()
        self.compressor.prior.update_states()

    def _decide(self) -> None:
        if self.on_target is not None:
            self._take(self.on_target)
        else:
            self.masks = self.compressor.masks()
            apply_masks(self.model, self.masks)
        assert self.masks is not None
        size = self.compressor.size(self.masks)
        if size.is_cut:
            raise CollapsedError(
                f"no live weight is left in {', '.join(size.empty_layers)}, even at reduced strength; "
                f"try a smaller weight_strength than {self.settings.weight_strength:g} or unit_strength than "
                f"{self.settings.unit_strength:g}"
            )
        self._choose(_cost(size), self.budget.lost(evaluate(self.model, self.likelihood, self.validation)))

    def _choose(self, cost: float, lost: float | None) -> None:
        """Note what is being fine-tuned from here on."""
        self.chosen = {} if lost is None else {"cost": cost, "lost": lost}
        self.best = None
        self._keep_best(lost)

    def _keep_best(self, lost: float | None) -> None:
        """Under an accuracy budget, keep the epoch of fine-tuning that is best on the validation split."""
        if self.budget.allowed is not None and lost is not None and (self.best is None or lost <= self.best["lost"]):
            self.best = {"lost": lost, "model": copy.deepcopy(self.model.state_dict())}

    def _falls_back(self) -> bool:
        """After fine-tuning: take its best epoch; if that is over the budget, choose a larger network to fine-tune.

        The next is the smallest that would be within the budget if fine-tuning brought back as much as it did so far.
        """
        if self.best is None or self.budget.allowed is None:
            return False
        self.model.load_state_dict(self.best["model"])
        after: float = self.best["lost"]
        if self.budget.allows(after):
            return False
        self.recovery = min(self.recovery, self.chosen["lost"] - after)
        following = self.front.larger(self.chosen["cost"], self.budget.allowed + self.recovery)
        if following is None:
            return False
        self._take(following)
        self._choose(following["cost"], following["lost"])
        self.epoch = 0
        self._note(
            f"{after:.2f} points lost after fine-tuning, {self.settings.max_accuracy_drop:g} allowed; "
            f"a larger network is fine-tuned ({self.compressor.size(following['masks']).nonzero_fraction:.1%} nonzero)"
        )
        self.step = self._new_step()
        return True

    # ------------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        """Everything from which `load` goes on to the bit-identical result; plain data and tensors."""
        optimiser, device = self.step.optimiser.state_dict(), self.data.train.x.device
        return {
            "phase": self.phase,
            "epoch": self.epoch,
            "rows": len(self.history),
            "seconds": self.seconds,
            "notes": list(self.notes),
            "unpruned": dict(self.budget.unpruned),
            "losses": list(self.budget.losses),
            "unpruned_weights": dict(self.unpruned_weights),
            "model": dict(self.model.state_dict()),
            "likelihood": dict(self.likelihood.state_dict()),
            "optimiser": {str(k): v for k, v in optimiser["state"].items()},
            "compressor": self.compressor.state(),
            "masks": self.masks,
            "good": self.good,
            "front": self.front.kept,
            "chosen": dict(self.chosen),
            "recovery": None if math.isinf(self.recovery) else self.recovery,
            "best": self.best,
            "on_target": self.on_target,
            "order": self.generator.get_state(),
            "torch_random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        }

    def load(self, state: Mapping[str, Any], history: list[dict[str, Any]]) -> None:
        """Restore what `state` returned."""
        device = self.data.train.x.device
        self.phase, self.epoch, self.seconds = state["phase"], state["epoch"], state["seconds"]
        self.notes = list(state["notes"])
        self.budget.unpruned, self.budget.losses = dict(state["unpruned"]), list(state["losses"])
        self.unpruned_weights = _to(state["unpruned_weights"], device)
        self.history = history[: state["rows"]]
        self.model.load_state_dict(state["model"])
        self.likelihood.load_state_dict(state["likelihood"])
        self.compressor.load(state["compressor"])
        self.masks = _to(state["masks"], device)
        self.good, self.front.kept = _to(state["good"], device), _to(state["front"], device)
        self.chosen, self.best = dict(state["chosen"]), _to(state["best"], device)
        self.recovery = math.inf if state["recovery"] is None else state["recovery"]
        self.on_target = _to(state["on_target"], device)
        self.generator.set_state(state["order"])
        torch.set_rng_state(state["torch_random"])
        if state["cuda_random"] is not None and device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_random"], device)
        self.step = self._new_step()
        groups = self.step.optimiser.state_dict()["param_groups"]
        restored = {int(k): v for k, v in state["optimiser"].items()}
        self.step.optimiser.load_state_dict({"state": restored, "param_groups": groups})


def _to(tree: Any, device: torch.device) -> Any:
    if isinstance(tree, Tensor):
        return tree.to(device)
    if isinstance(tree, dict):
        return {k: _to(v, device) for k, v in tree.items()}
    return tree


def _check_figure(score: Mapping[str, float]) -> None:
    """Raise SettingsError where a likelihood's score has nothing that a budget of accuracy could count."""
    if not {"accuracy", "r2"} & set(score):
        names = ", ".join(name for name in score if name != "nll") or "nothing"
        raise SettingsError(
            "max_accuracy_drop counts points of `accuracy` or `r2`, but the score of the likelihood has "
            f"{names}; name one of them so, or use target_macs or target_nonzero"
        )


def _cost(size: Size) -> float:
    """What a budget makes small: the shares of MACs and of weights that are left."""
    return size.macs_fraction + size.nonzero_fraction


def _size_row(size: Size) -> dict[str, Any]:
    return {"nonzero_fraction": size.nonzero_fraction, "macs_fraction": size.macs_fraction, "structure": size.structure}
