"""The default family: w a point, rho integrated out, s inferred given w.  An EM algorithm, with one fixed point for s.

Its bound is ln p(D|w) + sum_g <ln p(w_g | s_g)> + <ln p(s)> + H[q(s)].  Integrating rho out makes q(s) a monotone
function of |w| that remembers nothing of its start, unlike the paper's mean-field update (docs/bistability.md).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayesprune.priors import SpikeSlab
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
        """q(rho | s) is exact given w; its mean mixes over q(s)."""
        return Posterior(state, self._mixed(state, energy, size, "expected_precision"))

    def expected_log_precision(self, state: Tensor, energy: Tensor, size: Tensor | float) -> Tensor:
        """<ln rho>, mixed over q(s)."""
        return self._mixed(state, energy, size, "expected_log_precision")

    def precision_mode(self, state: Tensor, energy: Tensor, size: Tensor | float) -> Tensor:
        """The mode of q(rho | s) for the more probable s."""
        slab = self.prior.active.precision_mode(energy, size)
        if self.prior.inactive is None:
            return slab
        return torch.where(state > 0, slab, self.prior.inactive.precision_mode(energy, size))

    def _mixed(self, state: Tensor, energy: Tensor, size: Tensor | float, moment: str) -> Tensor:
        slab: Tensor = getattr(self.prior.active, moment)(energy, size)
        if self.prior.inactive is None:
            return slab
        q = torch.sigmoid(state)
        spike: Tensor = getattr(self.prior.inactive, moment)(energy, size)
        return q * slab + (1 - q) * spike

    def objective(self, state: Tensor, energy: Tensor, size: Tensor | float, prior_logit: Tensor) -> Tensor:
        """<ln p(w | s)> - KL(q(s) || p(s)), per group."""
        slab = self.prior.active.log_density(energy, size)
        if self.prior.inactive is None:
            return slab
        spike = self.prior.inactive.log_density(energy, size)
        q = torch.sigmoid(state)
        return q * slab + (1 - q) * spike + support_terms(state, prior_logit)
