"""The default family: w a point, rho integrated out, s inferred given w.  An EM algorithm, with one fixed point for s.

Its bound is ln p(D|w) + sum_g <ln p(w_g | s_g)> + <ln p(s)> + H[q(s)].  Integrating rho out makes q(s) a monotone
function of |w| that remembers nothing of its start, unlike the paper's mean-field update (docs/bistability.md).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayesprune.priors import ScaleMixture, SpikeSlab
from bayesprune.variational.family import Posterior, support_terms


@dataclass(frozen=True)
class Collapsed:
    """Any pair of scale mixtures; the state is ln q(s=1)/q(s=0), (batch, *groups)."""

    prior: SpikeSlab = field(default_factory=SpikeSlab)

    def start(self, energy: Tensor, size: Tensor | float, prior_logit: Tensor) -> Tensor:
        """The exact q(s) given w: there is nothing to iterate."""
        return self.prior.evidence_logit(energy, size) + prior_logit

    def update(self, state: Tensor, energy: Tensor, size: Tensor | float, prior_logit: Tensor) -> Tensor:
        """logit q(s) = logit pi + ln p(w|s=1)/p(w|s=0); the old state has no influence."""
        return self.start(energy, size, prior_logit)

    def posterior(self, state: Tensor, energy: Tensor, size: Tensor | float) -> Posterior:
        """q(rho | s) is exact given w; the moments mix over q(s), the mode is that of the more probable s."""
        slab, spike = self.prior.active, self.prior.inactive
        if spike is None:
            return Posterior(state, *(moment(energy, size) for moment in _moments(slab)))
        q = torch.sigmoid(state)
        pairs = zip(_moments(slab), _moments(spike), strict=True)
        (precision1, precision0), (log1, log0), (mode1, mode0) = (
            (m1(energy, size), m0(energy, size)) for m1, m0 in pairs
        )
        return Posterior(
            state,
            q * precision1 + (1 - q) * precision0,
            q * log1 + (1 - q) * log0,
            torch.where(state > 0, mode1, mode0),
        )

    def objective(self, state: Tensor, energy: Tensor, size: Tensor | float, prior_logit: Tensor) -> Tensor:
        """<ln p(w | s)> - KL(q(s) || p(s)), per group."""
        slab = self.prior.active.log_density(energy, size)
        if self.prior.inactive is None:
            return slab
        spike = self.prior.inactive.log_density(energy, size)
        q = torch.sigmoid(state)
        return q * slab + (1 - q) * spike + support_terms(state, prior_logit)


def _moments(mixture: ScaleMixture):  # type: ignore[no-untyped-def]
    return mixture.expected_precision, mixture.expected_log_precision, mixture.precision_mode
