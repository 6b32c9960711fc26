"""The prior of a whole network while it is being trained: where Module A and Module B meet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.priors import Groups, PrunableWeight, SharedPrecision, prunable_weights
from bayesprune.structure import Structure, unit_costs, unit_sizes, unit_sums
from bayesprune.structure import to_weights as units_to_weights
from bayesprune.supports import Bernoulli, Extrinsic, Support
from bayesprune.turbo.subnormal import drop_tiny
from bayesprune.variational import Collapsed, Family, Posterior, message_to_supports

# A following BatchNorm scale of zero would divide by zero when the prior is carried over to it.
SMALLEST_SCALE = 1e-6


@dataclass(frozen=True)
class PriorSettings:
    """The three-layer prior and the unit prior.

    family: Module A.  support: p(s) on the lattice of groups.  groups: who shares a support and a precision.
    fold_batchnorm, normalise_fan_in: what weight the prior sees.
    cost_mix: share of MACs (the rest is weights) in what the removal of a unit saves.
    unit_floor: mean squared effective weight below which the unit prior no longer grows.
    random_start: draw the first pi_n uniformly instead of taking the support's own prior (Algorithm 1, line 1).
    restart: re-initialise q(rho) and q(s) in every outer iteration (Algorithm 1, line 4).
    """

    family: Family = field(default_factory=Collapsed)  # type: ignore[type-arg]
    support: Support = field(default_factory=lambda: Bernoulli(0.5))
    groups: Groups = field(default_factory=SharedPrecision)
    fold_batchnorm: bool = True
    normalise_fan_in: bool = True
    cost_mix: float = 0.5
    unit_floor: float = 1e-4
    random_start: bool = False
    restart: bool = False


class NetworkPrior:
    """Posterior of supports and precisions of every layer, and the pull it exerts on weights and BatchNorm scales.

    Call `pass_messages` once an outer iteration, `refresh` whenever E[rho] shall follow the weights, and in every step
    either `add_gradients` before the optimiser's step or `decay` after it.
    """

    def __init__(
        self, model: nn.Module, structure: Structure, settings: PriorSettings, examples: int, seed: int = 0
    ) -> None:
        known = {layer.name for layer in structure.layers}
        weights = prunable_weights(
            model, fold_batchnorm=settings.fold_batchnorm, normalise_fan_in=settings.normalise_fan_in
        )
        self.weights = [w for w in weights if w.name in known and w.weight.requires_grad]
        if not self.weights:
            raise ValueError(
                f"{type(model).__name__} has no trainable Linear or Conv weight; there is nothing to compress"
            )
        device = self.weights[0].weight.device
        self.structure = structure.to(device)
        self.settings = settings
        self.examples, self._seed = examples, seed
        self._costs = unit_costs(self.structure, settings.cost_mix)
        self._sizes = unit_sizes(self.structure).clamp_min(1)
        self._group_sizes = [_one_if_all(settings.groups.size(w.weight.shape, w.weight)) for w in self.weights]
        self._pulls = [torch.zeros_like(w.weight) for w in self.weights]
        self._norms = [norm for norm in map(_trained_scale, self.weights) if norm is not None]
        self._norm_pulls = [torch.zeros_like(norm) for norm in self._norms]
        self._decay_rate: float | None = None
        self._decay_factors: list[Tensor] | None = None
        self._prior_logits: list[Tensor] = []
        self._evidence_logits: list[Tensor] = []
        self.message_change_by_layer: dict[str, float] = {}  # of the last exchange
        self.evidence_change_by_layer: dict[str, float] = {}
        self._states: list[Any] = []
        self.start()

    @torch.no_grad()
    def start(self) -> None:
        """Begin with the support's own prior at the current weights, as if no messages had passed."""
        support = self.settings.support
        self._prior_logits = [support.extrinsic(torch.zeros_like(x), batch_dims=1).logit for x in self._energies()]
        if self.settings.random_start:
            generator = torch.Generator().manual_seed(self._seed)
            self._prior_logits = [
                torch.logit(torch.rand(p.shape, generator=generator), eps=1e-6).to(p) for p in self._prior_logits
            ]
        self._evidence_logits = [torch.zeros_like(p) for p in self._prior_logits]
        self._start_states()

    @property
    def prior_logits(self) -> list[Tensor]:
        """v_{h->s} of every layer, (batch, *groups)."""
        return self._prior_logits

    @property
    def evidence_logits(self) -> list[Tensor]:
        """v_{eta->s} of every layer as sent in the last exchange, (batch, *groups); 0 before the first."""
        return self._evidence_logits

    def _start_states(self) -> None:
        self._states = [
            self.settings.family.start(x, k, p)
            for x, k, p in zip(self._energies(), self._group_sizes, self._prior_logits, strict=True)
        ]

    def _energies(self) -> list[Tensor]:
        return [self.settings.groups.energy(w.effective()) for w in self.weights]

    @torch.no_grad()
    def posteriors(self, energies: list[Tensor] | None = None) -> list[Posterior]:
        """Module A's view of every layer at the current weights (or given energies), q(s) as last updated."""
        return [
            self.settings.family.posterior(state, x, k)
            for state, x, k in zip(self._states, energies or self._energies(), self._group_sizes, strict=True)
        ]

    @torch.no_grad()
    def update_states(self, energies: list[Tensor] | None = None) -> None:
        """One round of block updates of q(rho) and q(s) in every layer (paper (24)-(29))."""
        rows = zip(self._states, energies or self._energies(), self._group_sizes, self._prior_logits, strict=True)
        self._states = [self.settings.family.update(state, x, k, p) for state, x, k, p in rows]

    @torch.no_grad()
    def pass_messages(self) -> tuple[float, list[Extrinsic]]:
        """Module B in every layer: v_{eta->s} goes in, v_{h->s} comes out (paper (17), (36)).

        Returns the mean absolute change of the probabilities behind v_{h->s}, and what each layer's inference said.
        `message_change_by_layer` and `evidence_change_by_layer` hold the changes of v_{h->s} and of v_{eta->s}.
        """
        energies = self._energies()
        self.update_states(energies)
        results: list[Extrinsic] = []
        changed, count = 0.0, 0
        for i, posterior in enumerate(self.posteriors(energies)):
            name = self.weights[i].name
            evidence = message_to_supports(posterior, self._prior_logits[i])
            result = self.settings.support.extrinsic(evidence, batch_dims=1)
            total, sites = _total_change(result.logit, self._prior_logits[i]), evidence.numel()
            changed, count = changed + total, count + sites
            self.message_change_by_layer[name] = total / sites
            self.evidence_change_by_layer[name] = _total_change(evidence, self._evidence_logits[i]) / sites
            self._prior_logits[i], self._evidence_logits[i] = result.logit, evidence
            results.append(result)
        if self.settings.restart:
            self._start_states()
        self.update_states(energies)
        return changed / count, results

    @torch.no_grad()
    def refresh(self, weight_strength: float, unit_strength: float) -> None:
        """Compute anew how strongly each weight is pulled to zero, in place.

        pull = [weight_strength E[rho] + unit_strength 2 cost_u / (K_u (mean w^2 of unit u + floor))] scale^2 / D
        Weights that have all but vanished become zero (see `subnormal`).
        """
        drop_tiny(weight.weight for weight in self.weights)
        effective = [w.effective() for w in self.weights]
        energies = [self.settings.groups.energy(e) for e in effective]
        self.update_states(energies)
        unit_pull: Mapping[str, Tensor] = {}
        if unit_strength > 0:
            mean = self._unit_means(effective)
            per_unit = 2 * self._costs / (self._sizes * (mean + self.settings.unit_floor))
            unit_pull = units_to_weights(self.structure, unit_strength * per_unit)
        norms = iter(zip(self._norms, self._norm_pulls, strict=True))
        for weight, posterior, pull in zip(self.weights, self.posteriors(energies), self._pulls, strict=True):
            precision = self.settings.groups.weight_precision(posterior.expected_precision, weight.weight.shape)
            pull.copy_(precision).mul_(weight_strength)
            if weight.name in unit_pull:
                pull.add_(unit_pull[weight.name])
            scale = weight.scale()
            pull.mul_(scale.square() / self.examples)
            if _trained_scale(weight) is not None:
                norm, norm_pull = next(norms)
                held = (pull * weight.weight.square()).flatten(1).sum(1)
                norm_pull.copy_(held / norm.square().clamp_min(SMALLEST_SCALE**2))
        if self._decay_rate is not None:
            self.set_decay_rate(self._decay_rate)

    @torch.no_grad()
    def unit_means(self) -> Tensor:
        """Mean squared effective weight of everything into and out of each unit, (unit_count,)."""
        return self._unit_means([w.effective() for w in self.weights])

    def _unit_means(self, effective: list[Tensor]) -> Tensor:
        squares = {w.name: e.square() for w, e in zip(self.weights, effective, strict=True)}
        return unit_sums(self.structure, squares) / self._sizes

    @property
    def _pulled(self) -> tuple[list[Tensor], list[Tensor]]:
        return [w.weight for w in self.weights] + self._norms, self._pulls + self._norm_pulls

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add the gradient of the prior's quadratic surrogate, sum pull w^2 / 2, to the weights' gradients."""
        parameters, pulls = self._pulled
        pairs = [(p.grad, pull, p.detach()) for p, pull in zip(parameters, pulls, strict=True) if p.grad is not None]
        if pairs:
            grads, pulls, weights = ([pair[i] for pair in pairs] for i in range(3))
            torch._foreach_addcmul_(grads, pulls, weights)

    @torch.no_grad()
    def set_decay_rate(self, learning_rate: float) -> None:
        """Compute the factors of `decay` for a learning rate, in place: a step then costs one multiplication."""
        if self._decay_factors is None:
            self._decay_factors = [torch.empty_like(pull) for pull in self._pulled[1]]
        self._decay_rate = learning_rate
        for factor, pull in zip(self._decay_factors, self._pulled[1], strict=True):
            torch.mul(pull, learning_rate, out=factor).add_(1.0).reciprocal_()

    @torch.no_grad()
    def decay(self, learning_rate: float) -> None:
        """Proximal step of the same surrogate after the optimiser's own: w / (1 + lr pull)."""
        if learning_rate != self._decay_rate:
            self.set_decay_rate(learning_rate)
        assert self._decay_factors is not None
        torch._foreach_mul_([p.detach() for p in self._pulled[0]], self._decay_factors)

    @torch.no_grad()
    def masks(self) -> dict[str, Tensor]:
        """s* = [q(s=1) > 1/2] for every weight, by layer name (Algorithm 1)."""
        return {
            weight.name: self.settings.groups.to_weights(posterior.alive, weight.weight.shape)
            for weight, posterior in zip(self.weights, self.posteriors(), strict=True)
        }

    def state(self) -> dict[str, list[Any]]:
        """Everything that a resumed run needs, as plain tensors."""
        return {
            "prior_logits": [p.clone() for p in self._prior_logits],
            "evidence_logits": [e.clone() for e in self._evidence_logits],
            "states": [list(s) if isinstance(s, tuple) else [s] for s in self._states],
            "pulls": [p.clone() for p in self._pulls + self._norm_pulls],
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, list[Any]]) -> None:
        """Restore what `state` returned."""
        device = self._pulls[0].device
        for kept, current in zip(state["prior_logits"], self._prior_logits, strict=True):
            current.copy_(kept)
        # Checkpoints of earlier versions do not have it: the next change of v_{eta->s} counts from no evidence.
        sent = state.get("evidence_logits", map(torch.zeros_like, self._prior_logits))
        self._evidence_logits = [e.to(p) for p, e in zip(self._prior_logits, sent, strict=True)]
        restored: list[Any] = []
        for parts, current in zip(state["states"], self._states, strict=True):
            tensors = [p.to(device) for p in parts]
            restored.append(type(current)(*tensors) if isinstance(current, tuple) else tensors[0])
        self._states = restored
        for kept, pull in zip(state["pulls"], self._pulls + self._norm_pulls, strict=True):
            pull.copy_(kept)
        self._decay_rate = None


def _total_change(logit: Tensor, before: Tensor) -> float:
    """Sum of the absolute changes of the probabilities behind logits.

    Sums of transposed tensors differ in the last bit, and a resumed run has others.
    """
    return float((torch.sigmoid(logit.contiguous()) - torch.sigmoid(before.contiguous())).abs().sum())


def _one_if_all(sizes: Tensor) -> Tensor | float:
    """The sizes of the groups, (batch, *groups), as one number where they are equal: lgamma of millions is slow."""
    first = sizes.flatten()[0]
    return float(first) if bool((sizes == first).all()) else sizes


def _trained_scale(weight: PrunableWeight) -> Tensor | None:
    """The scale of the BatchNorm behind a weight, (out,), where there is one that is being trained."""
    scale = None if weight.batchnorm is None else weight.batchnorm.weight
    return scale if scale is not None and scale.requires_grad else None
