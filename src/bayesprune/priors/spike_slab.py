"""p(w, rho | s): what the precision of a group is when it is alive and when it is dead (paper (4)-(6))."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayesprune.priors.mixtures import Gamma, Horseshoe, Laplace, ScaleMixture


@dataclass(frozen=True)
class SpikeSlab:
    """Two scale mixtures, chosen by the support: `active` if s = 1 (<rho> about 1), `inactive` if s = 0 (<rho> >> 1).

    The defaults are the paper's: a = b = abar = 1, bbar = 1e-3.  `inactive=None` leaves one layer, always active: the
    sparse priors of the literature (paper, Remark 1).
    """

    active: ScaleMixture = field(default_factory=lambda: Gamma(1.0, 1.0))
    inactive: ScaleMixture | None = field(default_factory=lambda: Gamma(1.0, 1e-3))

    def __post_init__(self) -> None:
        improper = [m for m in (self.active, self.inactive) if isinstance(m, Gamma) and m.shape == 0]
        if self.inactive is not None and improper:
            raise ValueError(f"{improper[0]} is improper and has no evidence against another prior; use it alone")
        if isinstance(self.active, Gamma) and isinstance(self.inactive, Gamma):
            slab, spike = self.active, self.inactive
            if not spike.shape / spike.rate > slab.shape / slab.rate:
                raise ValueError(
                    f"dead weights need a larger mean precision than live ones, got {spike.shape / spike.rate:g} for "
                    f"{spike} against {slab.shape / slab.rate:g} for {slab}; try a smaller rate for the dead"
                )

    def evidence_logit(self, energy: Tensor, size: Tensor | float) -> Tensor:
        """ln p(w | s=1) / p(w | s=0) with rho integrated out, same shape as the energy; +inf where nothing can die."""
        if self.inactive is None:
            return torch.full_like(energy, torch.inf)
        return self.active.log_density(energy, size) - self.inactive.log_density(energy, size)


def lasso(strength: float = 1.0) -> SpikeSlab:
    """-ln p(w) = strength |w|: random sparsity with single weights, group lasso with groups."""
    return SpikeSlab(Laplace(strength), None)


def log_uniform(floor: float = 1e-8) -> SpikeSlab:
    """-ln p(w) = K ln |w|: variational dropout's prior; with groups, the group log-uniform one.

    floor: the energy below which the singularity at w = 0 is rounded off.
    """
    return SpikeSlab(Gamma(0.0, floor), None)


def horseshoe(scale: float = 1.0) -> SpikeSlab:
    """Half-Cauchy scales: with groups, the group horseshoe."""
    return SpikeSlab(Horseshoe(scale), None)
