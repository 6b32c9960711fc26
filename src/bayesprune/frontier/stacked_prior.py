"""The prior's pull on all members at once: `NetworkPrior.refresh` of the collapsed family for single weights."""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import vmap

from bayesprune.frontier.stack import Stack
from bayesprune.priors import PrunableWeight
from bayesprune.structure import Structure, unit_costs, unit_sizes, unit_sums
from bayesprune.structure import to_weights as units_to_weights
from bayesprune.turbo import Settings
from bayesprune.turbo.network_prior import SMALLEST_SCALE

SHAPE = 1.5  # of the Gamma posterior of a single weight's precision: 1 + 1/2


@dataclasses.dataclass(frozen=True)
class Entry:
    """A weight with a prior: the names of its layer, its parameter and the BatchNorm behind it."""

    layer: str
    weight: str
    factor: float
    norm: str | None
    norm_eps: float


class StackedPrior:
    """Posterior of the supports of every member, and the pull it exerts on weights and BatchNorm scales.

    model: the network that `weights` and `structure` describe, of the members' architecture.
    examples: size of the training set, D.
    """

    def __init__(
        self,
        stack: Stack,
        model: nn.Module,
        weights: Sequence[PrunableWeight],
        structure: Structure,
        settings: Sequence[Settings],
        examples: int,
    ) -> None:
        self.stack, self.examples = stack, examples
        self.structure = structure.to(stack.flat.device)
        names = {module: name for name, module in model.named_modules()}
        self.entries = [_entry(weight, names) for weight in weights]
        self._costs = torch.stack([unit_costs(self.structure, s.cost_mix) for s in settings])
        self._sizes = unit_sizes(self.structure).clamp_min(1)
        self._slab = self._column([s.slab_rate for s in settings])
        self._spike = self._column([s.spike_rate for s in settings])
        self._floor = self._column([s.unit_floor for s in settings])
        # ln p(w|s=1)/p(w|s=0) + logit of p(s=1), without its part that depends on the weight.
        self._offset = self._column(
            [
                math.log(s.slab_rate) - math.log(s.spike_rate) + math.log(s.activity) - math.log1p(-s.activity)
                for s in settings
            ]
        )

    def _column(self, numbers: Sequence[float]) -> Tensor:
        """(members, 1)"""
        flat = self.stack.flat
        return torch.tensor(numbers, dtype=flat.dtype, device=flat.device).unsqueeze(1)

    def _scale(self, entry: Entry) -> Tensor:
        """What turns the weight into what the prior sees, (members, out or 1, 1, ...)."""
        factor = self._slab.new_full((1, 1), entry.factor)
        if entry.norm is not None:
            everything = {**self.stack.parameters, **self.stack.buffers}
            factor = factor * torch.rsqrt(everything[f"{entry.norm}.running_var"] + entry.norm_eps)
            if f"{entry.norm}.weight" in everything:
                factor = factor * everything[f"{entry.norm}.weight"]
        weight = self.stack.parameters[entry.weight]
        return factor.reshape(*factor.shape, *(1,) * (weight.ndim - 2))

    def _logits(self, energy: Tensor) -> Tensor:
        """ln q(s=1)/q(s=0) of every weight, rho integrated out; energy: w^2 / 2, (members, *shape)."""
        x = energy.flatten(1)
        logits = self._offset - SHAPE * (torch.log(self._slab + x) - torch.log(self._spike + x))
        return logits.reshape(energy.shape)

    def _precision(self, energy: Tensor) -> Tensor:
        """E[rho] of every weight, (members, *shape)."""
        x, q = energy.flatten(1), torch.sigmoid(self._logits(energy)).flatten(1)
        return (q * SHAPE / (self._slab + x) + (1 - q) * SHAPE / (self._spike + x)).reshape(energy.shape)

    @torch.no_grad()
    def masks(self) -> dict[str, Tensor]:
        """s* = [q(s=1) > 1/2], (members, *shape) bool by layer name, not closed over dead units."""
        weights = self.stack.parameters
        return {
            entry.layer: self._logits((weights[entry.weight] * self._scale(entry)).square() / 2) > 0
            for entry in self.entries
        }

    @torch.no_grad()
    def refresh(self, pull: Tensor, weight_strengths: Sequence[float], unit_strengths: Sequence[float]) -> None:
        """Compute anew how strongly each weight is pulled to zero, into `pull`, a tensor like `stack.flat`.

        weight_strengths, unit_strengths: one per member.  The equation is that of `NetworkPrior.refresh`.
        """
        weight_strength, unit_strength = self._column(weight_strengths), self._column(unit_strengths)
        parameters, pulls = self.stack.parameters, self.stack.views(pull)
        scales = {entry.layer: self._scale(entry) for entry in self.entries}
        squares = {entry.layer: (parameters[entry.weight] * scales[entry.layer]).square() for entry in self.entries}
        mean = vmap(partial(unit_sums, self.structure))(squares) / self._sizes
        per_unit = unit_strength * 2 * self._costs / (self._sizes * (mean + self._floor))
        unit_pull = vmap(partial(units_to_weights, self.structure))(per_unit)
        for entry in self.entries:
            weight, square, scale = parameters[entry.weight], squares[entry.layer], scales[entry.layer]
            precision = self._precision(square / 2)
            strength = weight_strength.reshape(-1, *(1,) * (weight.ndim - 1))
            own = pulls[entry.weight]
            own.copy_(precision * strength).add_(unit_pull[entry.layer]).mul_(scale.square() / self.examples)
            norm = f"{entry.norm}.weight"
            if norm in parameters:
                held = (own * weight.square()).flatten(2).sum(2)
                pulls[norm].copy_(held / parameters[norm].square().clamp_min(SMALLEST_SCALE**2))


def _entry(weight: PrunableWeight, names: dict[nn.Module, str]) -> Entry:
    fan_in = math.prod(weight.weight.shape[1:])
    factor = math.sqrt(fan_in / 2) if weight.normalised else 1.0
    norm = weight.batchnorm
    return Entry(weight.name, f"{weight.name}.weight", factor, names[norm] if norm else None, norm.eps if norm else 0.0)
