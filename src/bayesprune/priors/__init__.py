"""The lower layers of the prior: which weights share a precision, how it is distributed, what weight is meant."""

from bayesprune.priors.effective import PrunableWeight, prunable_weights
from bayesprune.priors.groups import Groups, PatternCoupled, PerKind, SharedPrecision
from bayesprune.priors.mixtures import Gamma, Horseshoe, Laplace, ScaleMixture
from bayesprune.priors.spike_slab import SpikeSlab, horseshoe, lasso, log_uniform

__all__ = [
    "Gamma",
    "Groups",
    "Horseshoe",
    "Laplace",
    "PatternCoupled",
    "PerKind",
    "PrunableWeight",
    "ScaleMixture",
    "SharedPrecision",
    "SpikeSlab",
    "horseshoe",
    "lasso",
    "log_uniform",
    "prunable_weights",
]
