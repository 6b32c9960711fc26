"""Module A: sparse variational Bayes over weights, precisions and supports (paper IV-B)."""

from bayesprune.variational.collapsed import Collapsed
from bayesprune.variational.family import Family, Posterior, message_to_supports
from bayesprune.variational.gaussian import gaussian_kl, optimal_variance, taylor_loss
from bayesprune.variational.mean_field import MeanField, MeanFieldPosterior

__all__ = [
    "Collapsed",
    "Family",
    "MeanField",
    "MeanFieldPosterior",
    "Posterior",
    "gaussian_kl",
    "message_to_supports",
    "optimal_variance",
    "taylor_loss",
]
