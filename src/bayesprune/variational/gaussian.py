"""q(w): the Gaussian of every weight, paper (30)-(35)."""

from torch import Tensor


def gaussian_kl(mean: Tensor, variance: Tensor, expected_precision: Tensor) -> Tensor:
    """KL(Normal(mean, variance) || Normal(0, 1/<rho>)) of each weight, paper (33); any common shape."""
    ratio = variance * expected_precision
    return (ratio - ratio.log() - 1 + expected_precision * mean.square()) / 2


def optimal_variance(expected_precision: Tensor, curvature: Tensor | float = 0.0) -> Tensor:
    """sigma^2 that maximises the bound: 1/<rho>, the optimum of paper (35), or 1/(<rho> + h) with the data's curvature.

    (35) evaluates the data term at the mean only, so it leaves out h = -d^2 ln p(D|w) / dw^2.
    """
    return 1 / (expected_precision + curvature)


def taylor_loss(mean_nll: Tensor, mean: Tensor, expected_precision: Tensor, examples: int) -> Tensor:
    """What the optimiser sees of paper (35), per example: mean NLL at the mean + sum <rho> mean^2 / 2 / D.

    The terms of (35) in sigma alone are constant once sigma^2 = 1/<rho> is put in.
    mean_nll: scalar; mean, expected_precision: one weight tensor's, any common shape.
    """
    return mean_nll + (expected_precision * mean.square()).sum() / (2 * examples)
