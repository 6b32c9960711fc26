"""Turbo-VBI for people who keep their own training loop: a pull in every step, an update per epoch, a decision."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.structure import Structure, close, live_units, macs, trace, weights, widths
from bayesprune.surgery import Moves, move_optimiser, reorder
from bayesprune.turbo.network_prior import NetworkPrior
from bayesprune.turbo.settings import Settings

# Under a budget the strengths are in units per training example in which LeNet-5 loses accuracy near 1; larger networks
# may need less of the weight prior.  They begin low, grow by a constant factor an epoch to LAST_FACTOR in a share of
# the epochs, wait while the size falls by more than FALLING an epoch, because units take epochs to die, and fall back
# when too much accuracy is lost.
UNIT_PER_EXAMPLE, WEIGHT_PER_EXAMPLE = 0.08, 8e-5
FIRST_FACTORS = (0.02, 0.25)  # of the weight prior and of the unit prior
LAST_FACTOR, FALLING = 2.5, 0.03
UNITS_FIRST = 0.45  # share of the epochs in which only the unit prior grows
SLOWER = 0.5  # of the unit prior's growth after that
UNITS = 1  # the place of the unit prior in pairs of weight and unit prior
STEPS_BACK = 2  # of growth, when too much accuracy is lost
# Below ENOUGH examples these units are too small, by up to ENOUGH / examples; how much depends on the network.  A
# strength that has doubled while the size fell by less than STUCK makes up for that factor in CATCH_UP of the epochs,
# under an accuracy budget, which asks for no size, in UNITS_FIRST of them.
ENOUGH, STUCK, CATCH_UP = 45_000, 0.2, 0.25
FASTEST = 1.3  # factor an epoch above which nothing catches up: a network needs some epochs to follow


@dataclass(frozen=True)
class Size:
    """What is left of a network under masks.

    nonzero: live weights over all prunable weights.  macs, dense_weights: of the dense remaining structure, MACs with
    those of transposed convs, which are not prunable.
    """

    live_weights: int
    weights: int
    dense_weights: int
    macs: int
    macs_dense: int
    structure: list[int]
    empty_layers: list[str]

    @property
    def is_cut(self) -> bool:
        """Whether nothing leads from input to output; where skip connections go around a layer, it may be empty."""
        return self.live_weights == 0

    @property
    def nonzero_fraction(self) -> float:
        return self.live_weights / self.weights

    @property
    def dense_fraction(self) -> float:
        return self.dense_weights / self.weights

    @property
    def macs_fraction(self) -> float:
        return self.macs / self.macs_dense

    def figures(self, parameters: int) -> dict[str, Any]:
        """For a summary; parameters: of the dense network, biases and norms included."""
        return {
            "nonzero_fraction": self.nonzero_fraction,
            "dense_fraction": self.dense_fraction,
            "structure": self.structure,
            "macs": self.macs,
            "macs_dense": self.macs_dense,
            "macs_removed": 1 - self.macs_fraction,
            "parameters": parameters - self.weights + self.live_weights,
            "parameters_dense": parameters,
        }


@dataclass(frozen=True)
class Update:
    """What an outer iteration found.

    masks: s* closed over dead units, by layer name.  size: of what they leave.
    change: mean |change| of the probabilities v_{h->s}.  converged: whether message passing settled in every layer.
    message_change_by_layer, evidence_change_by_layer: mean |change| of v_{h->s} and of v_{eta->s}, by layer name.
    """

    masks: dict[str, Tensor] = field(repr=False)
    size: Size
    change: float
    converged: bool
    weight_strength: float
    unit_strength: float
    message_change_by_layer: dict[str, float] = field(default_factory=dict, repr=False)
    evidence_change_by_layer: dict[str, float] = field(default_factory=dict, repr=False)


class Compressor:
    """The prior of a network as an object beside your own training loop.

        compressor = Compressor(model, example, examples=len(train), epochs=40)
        for epoch in range(40):
            for x, y in batches:
                loss = criterion(model(x), y)
                optimiser.zero_grad(); loss.backward()
                compressor.add_gradients()        # with Adam; with SGD instead, after the step: compressor.decay(lr)
                optimiser.step()
            print(compressor.update())            # Module B, once an epoch
            if compressor.reorder_due:            # with the setting reorder_at
                compressor.reorder(optimiser)
        masks = compressor.finish()               # decides, closes over dead units, sets dead weights to zero

    example: an input, batch first, to trace the network with.  examples: size of the training set; of maps of classes,
    as in segmentation, images times pixels.  epochs: how many times `update` will be called, for the ramps.
    The prior is weighed against a loss that is the mean over the examples of the negative log-likelihood, in nats:
    cross-entropy, or squared error / (2 noise variance).
    """

    def __init__(
        self, model: nn.Module, example: Tensor, *, examples: int, epochs: int, settings: Settings | None = None
    ) -> None:
        self.model = model
        self.settings = settings or Settings()
        self.structure: Structure = trace(model, example)
        self.prior = NetworkPrior(model, self.structure, self.settings.prior(), examples, self.settings.seed)
        self.structure = self.prior.structure
        self._example = example
        self.epochs = epochs
        self.epoch = 0
        self._factors = list(FIRST_FACTORS) if self.settings.has_budget else [1.0, 1.0]
        self._resting = [False, False]  # a target that is met pulls no more
        self._sizes = [1.0, 1.0]  # nonzero and MACs of the epoch before
        self._judged = [[f, 1.0] for f in self._factors]  # factor and size when growth was last judged
        self._stuck = [False, False]
        self._steps = 0
        self.prior.refresh(*self.strengths)

    @property
    def strengths(self) -> tuple[float, float]:
        """Strength of the weight prior and of the unit prior in this epoch."""
        s = self.settings
        if s.has_budget:
            weight_strength = WEIGHT_PER_EXAMPLE * self.prior.examples
            unit_strength = UNIT_PER_EXAMPLE * self.prior.examples
        else:
            done = (self.epoch + 1) / max(1, self.epochs)
            early = s.weight_start * _ramp(done, *s.unit_ramp)
            weight_strength = max(early, s.weight_strength * _ramp(done, *s.weight_ramp))
            unit_strength = s.unit_strength * _ramp(done, *s.unit_ramp)
        pulling = [0.0 if resting else f for f, resting in zip(self._factors, self._resting, strict=True)]
        return weight_strength * pulling[0], unit_strength * pulling[1]

    def count_step(self) -> bool:
        """Note that the prior has pulled; every `refresh_every` steps E[rho] follows the weights.  Whether it did."""
        self._steps += 1
        due = self._steps % self.settings.refresh_every == 0
        if due:
            self.prior.refresh(*self.strengths)
        return due

    def add_gradients(self) -> None:
        """Add the prior's pull to the gradients, between backward and the optimiser's step."""
        self.prior.add_gradients()
        self.count_step()

    def decay(self, learning_rate: float) -> None:
        """Pull the weights towards zero after the optimiser's step."""
        self.prior.decay(learning_rate)
        self.count_step()

    def update(self, accuracy_lost: float | None = None) -> Update:
        """Finish an outer iteration: Module B, then strengths for the next epoch.

        accuracy_lost: points that the masked network has lost, for `max_accuracy_drop`.
        """
        found = self.exchange()
        _warn_if_empty(found.size.empty_layers)
        self.adjust(found.size, accuracy_lost, self.settings.max_accuracy_drop)
        return found

    def exchange(self) -> Update:
        """Module B in every layer, and what its messages leave alive."""
        change, results = self.prior.pass_messages()
        masks = self.masks()
        return Update(
            masks,
            self.size(masks),
            change,
            all(r.converged for r in results),
            *self.strengths,
            message_change_by_layer=dict(self.prior.message_change_by_layer),
            evidence_change_by_layer=dict(self.prior.evidence_change_by_layer),
        )

    def adjust(self, size: Size, accuracy_lost: float | None, tolerated: float | None, *, hold: bool = False) -> None:
        """Go to the next epoch and its strengths; under a budget they stay as they are with `hold`."""
        if self.settings.has_budget and not hold:
            self._follow_budget(size, accuracy_lost, tolerated)
        self.epoch += 1
        self.prior.refresh(*self.strengths)

    @property
    def _scarcity(self) -> float:
        """By how much the strengths per example may be too small; 1 where there are enough examples."""
        return max(1.0, ENOUGH / self.prior.examples)

    def _growth(self, which: int) -> float:
        """Factor an epoch that takes a strength from its first to its last value while the units grow; stuck, more."""
        growth = float((LAST_FACTOR / FIRST_FACTORS[which]) ** (1 / max(1.0, UNITS_FIRST * self.epochs)))
        if not self._stuck[which]:
            return growth
        share = CATCH_UP if self.settings.max_accuracy_drop is None else UNITS_FIRST
        catching_up = float(growth * self._scarcity ** (1 / max(1.0, share * self.epochs)))
        return max(growth, min(FASTEST, catching_up))

    def _judge(self, which: int, size: float) -> None:
        """Whenever a strength has doubled, see whether that made the network smaller."""
        factor, size_then = self._judged[which]
        if self._factors[which] >= 2 * factor:
            self._stuck[which] = size > (1 - STUCK) * size_then
            self._judged[which] = [self._factors[which], size]

    def _retreat(self, divisors: Sequence[float]) -> None:
        """Weaken the strengths; from there on they grow slowly until they are stuck again."""
        self._factors = [f / divisor for f, divisor in zip(self._factors, divisors, strict=True)]
        self._judged = [[f, size] for f, size in zip(self._factors, self._sizes, strict=True)]
        self._stuck = [False, False]

    def _follow_budget(self, size: Size, accuracy_lost: float | None, tolerated: float | None) -> None:
        """Units first, then weights; a target that is met pulls no more; lost accuracy makes everything weaker."""
        s = self.settings
        if tolerated is not None and accuracy_lost is not None and accuracy_lost > tolerated:
            self._retreat([self._growth(which) ** STEPS_BACK for which in range(2)])
            return
        units_only = self.epoch < UNITS_FIRST * self.epochs
        if s.target_nonzero is not None and s.max_accuracy_drop is None and self._scarcity > 1:
            weight_pace = 1.0  # the way is longer
        else:
            weight_pace = 0.0 if units_only else 1.0
        goals = (
            (0, s.target_nonzero, size.nonzero_fraction, weight_pace),
            (1, s.target_macs, size.macs_fraction, 1.0 if units_only or s.target_macs is not None else SLOWER),
        )
        for which, target, reached, pace in goals:
            self._resting[which] = target is not None and reached <= target
            falling = which == UNITS and reached < (1 - FALLING) * self._sizes[which]
            self._sizes[which] = reached
            self._judge(which, reached)
            asked = target is not None or s.max_accuracy_drop is not None
            if asked and not falling and not self._resting[which]:
                self._factors[which] *= self._growth(which) ** pace

    def missed_targets(self, size: Size) -> list[str]:
        """Which targets a network of this size misses, and by how much, in words."""
        s, missed = self.settings, []
        if s.target_macs is not None and size.macs_fraction > s.target_macs:
            missed.append(f"MACs {size.macs_fraction:.3f} of the dense network's instead of {s.target_macs:g}")
        if s.target_nonzero is not None and size.nonzero_fraction > s.target_nonzero:
            missed.append(f"nonzero {size.nonzero_fraction:.4f} instead of {s.target_nonzero:g}")
        return missed

    def weaken(self) -> None:
        """Go to the next epoch with half the strengths, after the network was lost."""
        self._retreat([2.0, 2.0])
        self.epoch += 1
        self.prior.refresh(*self.strengths)

    @property
    def reorder_due(self) -> bool:
        """Whether `reorder_at` of the epochs have just passed."""
        at = self.settings.reorder_at
        return at is not None and self.epoch == max(1, round(at * self.epochs))

    def reorder(self, optimiser: torch.optim.Optimizer | None = None) -> Moves:
        """Sort the hidden units of the model, in place: those with the largest mean squared effective weight first.

        Neighbouring rows of a weight then belong to units of equal strength, so that a tile or panel of them is alive
        or dead as a whole.  The network computes the same (ProofError, and no change, where it would not); the
        optimiser's state follows, and the prior starts anew.  Call it between two epochs.

        Returns where everything went: what you keep of the model from before, a state dict or masks, follows with
        `surgery.moved_state` and `surgery.moved_masks`.
        """
        moves = reorder(self.model, self.structure, self.prior.unit_means(), self._example)
        if optimiser is not None:
            move_optimiser(optimiser, self.model, moves)
        self.prior.start()
        self.prior.refresh(*self.strengths)
        return moves

    @torch.no_grad()
    def masks(self) -> dict[str, Tensor]:
        """s* closed over dead units, by layer name."""
        return close(self.structure, self.prior.masks())

    def size(self, masks: Mapping[str, Tensor]) -> Size:
        """Count what the masks leave."""
        return size_of(self.structure, masks)

    @torch.no_grad()
    def finish(self) -> dict[str, Tensor]:
        """Decide which weights live (Algorithm 1), set the others to zero in the model, return the masks."""
        masks = self.masks()
        size = self.size(masks)
        _warn_if_empty(size.empty_layers)
        if missed := self.missed_targets(size):
            warnings.warn(f"budget not met: {'; '.join(missed)}; try more epochs", stacklevel=2)
        apply_masks(self.model, masks)
        return masks

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {
            "epoch": self.epoch,
            "steps": self._steps,
            "factors": list(self._factors),
            "resting": list(self._resting),
            "sizes": list(self._sizes),
            "judged": [list(one) for one in self._judged],
            "stuck": list(self._stuck),
            "prior": self.prior.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.epoch, self._steps, self._factors = state["epoch"], state["steps"], list(state["factors"])
        self._resting, self._sizes = list(state["resting"]), list(state["sizes"])
        # Checkpoints of earlier versions do not have these: growth is judged from now on.
        now = zip(self._factors, self._sizes, strict=True)
        self._judged = [list(one) for one in state.get("judged", now)]
        self._stuck = list(state.get("stuck", (False, False)))
        self.prior.load(state["prior"])


@torch.no_grad()
def apply_masks(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Set dead weights to zero."""
    modules = dict(model.named_modules())
    for name, mask in masks.items():
        weight = modules[name].weight
        assert isinstance(weight, Tensor)
        weight.mul_(mask)


def size_of(structure: Structure, masks: Mapping[str, Tensor]) -> Size:
    """Count what closed masks leave."""
    alive = live_units(structure, masks)
    live = {name: int(mask.sum()) for name, mask in masks.items()}
    return Size(
        live_weights=sum(live.values()),
        weights=sum(mask.numel() for mask in masks.values()),
        dense_weights=weights(structure, alive, transposed=False),
        macs=macs(structure, alive),
        macs_dense=macs(structure),
        structure=widths(structure, alive),
        empty_layers=[name for name, count in live.items() if count == 0],
    )


def _warn_if_empty(layers: list[str]) -> None:
    """Most networks with an empty layer say the same of every input."""
    if layers:
        warnings.warn(
            f"no live weight is left in {', '.join(layers)}; try smaller strengths, and see that the loss is the mean "
            "negative log-likelihood over `examples` predictions, in nats",
            stacklevel=3,
        )


def _ramp(done: float, begin: float, end: float) -> float:
    """0 before `begin`, 1 after `end`, linear between."""
    if done >= end:
        return 1.0
    return max(0.0, (done - begin) / (end - begin))
