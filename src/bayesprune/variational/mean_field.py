"""The paper's family: q(w) q(rho) q(s), all independent, updated in closed form (paper (24)-(29), (33)-(35))."""

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bayesprune.priors import Gamma, SpikeSlab
from bayesprune.variational.family import Posterior, support_terms
from bayesprune.variational.gaussian import optimal_variance


class MeanFieldPosterior(NamedTuple):
    """The variational parameters of every group, all (batch, *groups).

    active_logit: ln q(s=1)/q(s=0).  shape, rate: of q(rho) = Gamma(shape, rate), the paper's a~ and b~.
    variance: sigma^2 of the weights of the group.
    """

    active_logit: Tensor
    shape: Tensor
    rate: Tensor
    variance: Tensor

    @property
    def expected_precision(self) -> Tensor:
        """<rho> = a~ / b~."""
        return self.shape / self.rate

    @property
    def expected_log_precision(self) -> Tensor:
        """<ln rho> = psi(a~) - ln b~."""
        return torch.digamma(self.shape) - torch.log(self.rate)


@dataclass(frozen=True)
class MeanField:
    """The paper's Module A.

    convention: `real` is right for real weights (+K/2 and <w^2>/2 in (25), (26)) and never lowers the bound;
        `complex` is the paper to the letter (+K and <w^2>), right for a complex Gaussian and, mixed with the real
        KL (33), is no ascent.
    curvature: h = -d^2 ln p(D|w)/dw^2 in sigma^2 = 1/(<rho> + h); 0 is the paper's (35).
    initial_active: q(s=1) before the first update, None for the prior pi; the fixed point depends on it
        (docs/bistability.md).
    """

    prior: SpikeSlab = field(default_factory=SpikeSlab)
    convention: Literal["real", "complex"] = "real"
    curvature: float = 0.0
    initial_active: float | None = None

    def __post_init__(self) -> None:
        if self.convention not in ("real", "complex"):
            raise ValueError(f"convention must be 'real' or 'complex', got {self.convention!r}")
        if not (isinstance(self.prior.active, Gamma) and isinstance(self.prior.inactive, Gamma)):
            raise ValueError(
                f"mean field needs Gamma priors for live and dead weights, which are conjugate, got {self.prior}; "
                "use the collapsed family for other priors"
            )
        if self.initial_active is not None and not 0 < self.initial_active < 1:
            raise ValueError(f"initial_active must be strictly between 0 and 1, got {self.initial_active}; try 0.5")

    @property
    def _gammas(self) -> tuple[Gamma, Gamma]:
        slab, spike = self.prior.active, self.prior.inactive
        assert isinstance(slab, Gamma)
        assert isinstance(spike, Gamma)
        return slab, spike

    def start(self, energy: Tensor, size: Tensor | float, prior_logit: Tensor) -> MeanFieldPosterior:
        """q(s) as `initial_active` says, q(rho) to match point weights, then sigma^2."""
        active_logit = prior_logit
        if self.initial_active is not None:
            logit = math.log(self.initial_active / (1 - self.initial_active))
            active_logit = torch.full_like(energy, logit)
        blank = torch.zeros_like(energy)
        state = MeanFieldPosterior(active_logit, blank, blank, blank)
        return self.update_variance(self.update_precision(state, energy, size))

    def update(
        self, state: MeanFieldPosterior, energy: Tensor, size: Tensor | float, prior_logit: Tensor
    ) -> MeanFieldPosterior:
        """rho, s, then sigma^2: one pass of the inner loop of Algorithm 1, the mean left to the optimiser."""
        state = self.update_precision(state, energy, size)
        state = self.update_support(state, prior_logit)
        return self.update_variance(state)

    def update_precision(self, state: MeanFieldPosterior, energy: Tensor, size: Tensor | float) -> MeanFieldPosterior:
        """q(rho) = Gamma(a~, b~), paper (24)-(26)."""
        slab, spike = self._gammas
        q = torch.sigmoid(state.active_logit)
        count, half_squares = self._statistics(state, energy, size)
        shape = q * slab.shape + (1 - q) * spike.shape + count
        rate = half_squares + q * slab.rate + (1 - q) * spike.rate
        return state._replace(shape=shape, rate=rate)

    def update_support(self, state: MeanFieldPosterior, prior_logit: Tensor) -> MeanFieldPosterior:
        """ln C1/C2 of paper (27)-(29)."""
        slab, spike = self._gammas
        precision, log_precision = state.expected_precision, state.expected_log_precision
        c1 = slab.log_normaliser + (slab.shape - 1) * log_precision - slab.rate * precision
        c2 = spike.log_normaliser + (spike.shape - 1) * log_precision - spike.rate * precision
        return state._replace(active_logit=prior_logit + c1 - c2)

    def update_variance(self, state: MeanFieldPosterior) -> MeanFieldPosterior:
        """sigma^2 = 1/<rho>, the optimum of paper (35), or 1/(<rho> + h)."""
        return state._replace(variance=optimal_variance(state.expected_precision, self.curvature))

    def posterior(self, state: MeanFieldPosterior, energy: Tensor, size: Tensor | float) -> Posterior:
        """Moments of q(rho) and q(s)."""
        return Posterior(state.active_logit, state.expected_precision)

    def expected_log_precision(self, state: MeanFieldPosterior, energy: Tensor, size: Tensor | float) -> Tensor:
        """<ln rho> = psi(a~) - ln b~."""
        return state.expected_log_precision

    def precision_mode(self, state: MeanFieldPosterior, energy: Tensor, size: Tensor | float) -> Tensor:
        """(a~ - 1) / b~."""
        return (state.shape - 1).clamp_min(0) / state.rate

    def objective(self, state: MeanFieldPosterior, energy: Tensor, size: Tensor | float, prior_logit: Tensor) -> Tensor:
        """The ELBO of paper (20) without ln p(D|mu), real convention, per group.

        The term that paper (32) drops as a constant depends on q(rho) and is kept: without it the sum may fall.
        """
        slab, spike = self._gammas
        q = torch.sigmoid(state.active_logit)
        precision, log_precision = state.expected_precision, state.expected_log_precision
        half_squares = energy + size * state.variance / 2
        log_weights = size / 2 * (log_precision - math.log(2 * math.pi)) - precision * half_squares
        weight_entropy = size / 2 * (1 + math.log(2 * math.pi) + state.variance.log())
        curvature_loss = self.curvature * size * state.variance / 2
        log_precisions = q * _log_gamma(slab, precision, log_precision) + (1 - q) * _log_gamma(
            spike, precision, log_precision
        )
        a, b = state.shape, state.rate
        precision_entropy = a - b.log() + torch.lgamma(a) + (1 - a) * torch.digamma(a)
        return (
            log_weights
            + weight_entropy
            - curvature_loss
            + log_precisions
            + precision_entropy
            + support_terms(state.active_logit, prior_logit)
        )

    def _statistics(
        self, state: MeanFieldPosterior, energy: Tensor, size: Tensor | float
    ) -> tuple[Tensor | float, Tensor]:
        """What a group of K weights adds to a~ and b~: K/2 and sum <w^2>/2, or twice that in the complex convention."""
        half_squares = energy + size * state.variance / 2
        if self.convention == "complex":
            return size, 2 * half_squares
        return size / 2, half_squares


def _log_gamma(prior: Gamma, precision: Tensor, log_precision: Tensor) -> Tensor:
    """<ln Gamma(rho; a, b)> under q(rho)."""
    return prior.log_normaliser + (prior.shape - 1) * log_precision - prior.rate * precision
