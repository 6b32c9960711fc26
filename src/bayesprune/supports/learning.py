"""Empirical Bayes: fit the parameters of a support model to evidence.  Never done unless asked for."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayesprune.supports.base import Support
from bayesprune.supports.grid import PairwiseGrid, conditional_logits, gibbs

SupportT = TypeVar("SupportT", bound=Support)
Values = Mapping[str, Tensor]

# A learned probability or coupling at these borders says that the evidence holds no information about it.
LARGEST_LOGIT = 9.0
LARGEST_COUPLING = 3.0
# A draw with hardly a live or hardly a dead site has no maximum of its pseudo-likelihood; a weak pull to the start,
# in nats per squared unit, steadies draws that are nearly so and small tensors without information.
KEEP_NEAR_START = 5.0
FEWEST_SITES = 10


def learn(
    support: SupportT,
    evidence_logit: Tensor,
    *,
    batch_dims: int | None = None,
    steps: int = 40,
    seed: int = 0,
) -> SupportT:
    """Return the support with parameters fitted to evidence (as for `extrinsic`), starting from its own.

    Chains, hidden chains and trees: L-BFGS on the exact log evidence, `steps` at most.
    Grids: stochastic EM, `steps` times a Gibbs draw of s given the evidence and the maximum of its pseudo-likelihood,
    the mean of the second half returned.  Bethe's free energy would need no draws, but its prior breaks into two
    phases at a coupling of 0.35 in two dimensions and its optimum runs there (docs/log.md).
    A parameter that the evidence says nothing about stays near its start; one that ends at a border is warned about.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}; try 40")
    evidence = support._evidence_in_double(evidence_logit, batch_dims)
    if evidence.numel() == 0:
        return support
    if isinstance(support, PairwiseGrid):
        values = _stochastic_em(support, evidence, steps, torch.Generator().manual_seed(seed))
    else:
        values = _maximise(lambda v: support._log_evidence(evidence, v), support._values(), support, steps)
    _warn_at_borders(support, values)
    fitted = {name: float(v) if v.ndim == 0 else tuple(v.tolist()) for name, v in values.items()}
    return dataclasses.replace(support, **fitted)  # type: ignore[type-var]


def _maximise(function: Callable[[Values], Tensor], start: Values, support: Support, steps: int) -> Values:
    """L-BFGS on log-odds of probabilities and on couplings as they are; never worse than the start."""
    kinds = support.learnable
    free = {n: _to_free(v, kinds[n]).requires_grad_() for n, v in start.items()}
    optimiser = torch.optim.LBFGS(list(free.values()), max_iter=steps, line_search_fn="strong_wolfe")
    scale = abs(float(function(start))) + 1

    def constrained() -> Values:
        return {n: _from_free(v, kinds[n]) for n, v in free.items()}

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = -function(constrained()) / scale
        value.backward()
        return value

    optimiser.step(loss)
    with torch.no_grad():
        found = constrained()
        return found if float(function(found)) >= float(function(start)) else start


def _to_free(value: Tensor, kind: str) -> Tensor:
    """Strictly inside the borders, where the gradient is alive."""
    if kind == "probability":
        return torch.logit(value).clamp(-LARGEST_LOGIT + 0.01, LARGEST_LOGIT - 0.01)
    return value.clamp(-LARGEST_COUPLING + 0.01, LARGEST_COUPLING - 0.01)


def _from_free(free: Tensor, kind: str) -> Tensor:
    if kind == "probability":
        return torch.sigmoid(free.clamp(-LARGEST_LOGIT, LARGEST_LOGIT))
    return free.clamp(-LARGEST_COUPLING, LARGEST_COUPLING)


def _warn_at_borders(support: Support, values: Values) -> None:
    for name, value in values.items():
        kind = support.learnable[name]
        border = LARGEST_LOGIT if kind == "probability" else LARGEST_COUPLING
        if bool((_to_free(value, kind).abs() > border - 0.05).any()):
            warnings.warn(
                f"the learned {name} of {type(support).__name__} ran to its border, {value.tolist()}: the evidence has "
                "no maximum inside (all alive or all dead?); keep the parameter as it was",
                stacklevel=3,
            )


def _stochastic_em(support: PairwiseGrid, evidence: Tensor, steps: int, generator: torch.Generator) -> Values:
    start: Values = support._values()
    values, kinds = start, support.learnable
    alive = torch.rand(evidence.shape, generator=generator) < torch.sigmoid(evidence)
    kept: list[Values] = []
    for step in range(steps):
        unary, log_tables = support._log_factors(values, evidence.ndim - 1)
        alive = gibbs(alive, evidence + unary, log_tables, sweeps=3, generator=generator)
        live = int(alive.sum())
        if min(live, alive.numel() - live) < FEWEST_SITES:
            warnings.warn(
                f"{live} of {alive.numel()} sites are alive given the evidence: too few of one kind to learn "
                f"{type(support).__name__} from; it is returned as it was",
                stacklevel=3,
            )
            return start

        def pseudo_likelihood(v: Values, alive: Tensor = alive) -> Tensor:
            logits = conditional_logits(alive, *support._log_factors(v, evidence.ndim - 1))
            moved = [(_to_free(v[n], kinds[n]) - _to_free(start[n], kinds[n])).square().sum() for n in start]
            held = KEEP_NEAR_START * torch.stack(moved).sum()
            return (alive * logits - softplus(logits)).sum() - held

        values = _maximise(pseudo_likelihood, values, support, steps=10)
        if step >= steps // 2:
            kept.append(values)
    return {name: torch.stack([v[name] for v in kept]).mean(0) for name in values}
