"""Empirical Bayes: fit the parameters of a support model to evidence.  Never done unless asked for."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayesprune.messages import checked_evidence
from bayesprune.supports.base import Support
from bayesprune.supports.grid import PairwiseGrid, conditional_logits, gibbs

SupportT = TypeVar("SupportT", bound=Support)
Values = Mapping[str, Tensor]

# A learned probability or coupling at these borders says that the evidence holds no information about it.
LARGEST_LOGIT = 9.0
LARGEST_COUPLING = 3.0


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
    """
    evidence, _ = support._batched(checked_evidence(evidence_logit).double().cpu(), batch_dims)
    if evidence.numel() == 0:
        return support
    if isinstance(support, PairwiseGrid):
        values = _stochastic_em(support, evidence, steps, torch.Generator().manual_seed(seed))
    else:
        values = _maximise(lambda v: support._log_evidence(evidence, v), support._values(), support, steps)
    fitted = {name: float(v) if v.ndim == 0 else tuple(v.tolist()) for name, v in values.items()}
    return dataclasses.replace(support, **fitted)  # type: ignore[type-var]


def _maximise(function: Callable[[Values], Tensor], start: Values, support: Support, steps: int) -> Values:
    """L-BFGS on log-odds of probabilities and on couplings as they are; never worse than the start."""
    kinds = support.learnable
    free = {n: torch.logit(v) if kinds[n] == "probability" else v.clone() for n, v in start.items()}
    optimiser = torch.optim.LBFGS(
        [value.requires_grad_() for value in free.values()], max_iter=steps, line_search_fn="strong_wolfe"
    )
    scale = abs(float(function(start))) + 1

    def constrained() -> Values:
        return {
            n: torch.sigmoid(v.clamp(-LARGEST_LOGIT, LARGEST_LOGIT))
            if kinds[n] == "probability"
            else v.clamp(-LARGEST_COUPLING, LARGEST_COUPLING)
            for n, v in free.items()
        }

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = -function(constrained()) / scale
        value.backward()
        return value

    optimiser.step(loss)
    with torch.no_grad():
        found = constrained()
        return found if float(function(found)) >= float(function(start)) else start


def _stochastic_em(support: PairwiseGrid, evidence: Tensor, steps: int, generator: torch.Generator) -> Values:
    values: Values = support._values()
    alive = torch.rand(evidence.shape, generator=generator) < torch.sigmoid(evidence)
    kept: list[Values] = []
    for step in range(steps):
        unary, log_tables = support._log_factors(values, evidence.ndim - 1)
        alive = gibbs(alive, evidence + unary, log_tables, sweeps=3, generator=generator)

        def pseudo_likelihood(v: Values, alive: Tensor = alive) -> Tensor:
            logits = conditional_logits(alive, *support._log_factors(v, evidence.ndim - 1))
            return (alive * logits - softplus(logits)).sum()

        values = _maximise(pseudo_likelihood, values, support, steps=10)
        if step >= steps // 2:
            kept.append(values)
    return {name: torch.stack([v[name] for v in kept]).mean(0) for name in values}
