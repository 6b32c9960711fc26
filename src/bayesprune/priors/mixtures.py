"""Gaussian scale mixtures: the density of a group of weights with their common precision integrated out.

A group of K weights with w ~ Normal(0, 1/rho) and rho ~ p(rho) depends on the weights through its energy
x = sum w^2 / 2 only.  Its log density l(x) gives the precision that a quadratic surrogate of it needs:
E[rho | w] = -l'(x), because x multiplies rho in the exponent.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

# A precision of 1e12 holds a weight at zero; the singular priors (lasso, horseshoe) would give infinity at w = 0.
SMALLEST_ENERGY = 1e-24
EULER = 0.5772156649015329


class ScaleMixture(ABC):
    """A distribution p(rho) of the precision that K weights share.

    In all methods `energy` x = sum w^2 / 2 has any shape, and `size` K broadcasts against it.
    """

    @abstractmethod
    def log_density(self, energy: Tensor, size: Tensor | float) -> Tensor:
        """ln of the integral of Normal(w; 0, 1/rho) p(rho) over rho; up to a constant where p(rho) is improper."""

    @abstractmethod
    def expected_precision(self, energy: Tensor, size: Tensor | float) -> Tensor:
        """E[rho | w]."""

    @abstractmethod
    def expected_log_precision(self, energy: Tensor, size: Tensor | float) -> Tensor:
        """E[ln rho | w]."""

    @abstractmethod
    def precision_mode(self, energy: Tensor, size: Tensor | float) -> Tensor:
        """The most probable rho given w."""


@dataclass(frozen=True)
class Gamma(ScaleMixture):
    """rho ~ Gamma(shape, rate), paper (4); the weights follow a multivariate Student t.

    shape = 0 is the improper limit p(rho) = 1/rho for rate -> 0: log-uniform weights, ln p(w) = -K ln |w| + const.
    """

    shape: float = 1.0
    rate: float = 1.0

    def __post_init__(self) -> None:
        if not (self.shape >= 0 and math.isfinite(self.shape)):
            raise ValueError(f"the shape of a Gamma prior must be at least 0, got {self.shape}; try 1.0")
        if not (self.rate > 0 and math.isfinite(self.rate)):
            raise ValueError(f"the rate of a Gamma prior must be above 0, got {self.rate}; try 1.0 or 1e-3")

    @property
    def log_normaliser(self) -> float:
        """a ln b - ln Gamma(a); 0 for the improper prior, which has none."""
        return self.shape * math.log(self.rate) - math.lgamma(self.shape) if self.shape else 0.0

    def _posterior_shape(self, energy: Tensor, size: Tensor | float) -> Tensor | float:
        """a + K/2; a plain number stays one, which costs nothing."""
        shape = self.shape + size / 2
        return shape.to(energy) if isinstance(shape, Tensor) else shape

    def log_density(self, energy: Tensor, size: Tensor | float) -> Tensor:
        shape = self._posterior_shape(energy, size)
        log_gamma = torch.lgamma(shape) if isinstance(shape, Tensor) else math.lgamma(shape)
        constant = self.log_normaliser + log_gamma - size / 2 * math.log(2 * math.pi)
        return constant - shape * torch.log(self.rate + energy)

    def expected_precision(self, energy: Tensor, size: Tensor | float) -> Tensor:
        return self._posterior_shape(energy, size) / (self.rate + energy)

    def expected_log_precision(self, energy: Tensor, size: Tensor | float) -> Tensor:
        shape = torch.as_tensor(self._posterior_shape(energy, size), dtype=energy.dtype, device=energy.device)
        return torch.digamma(shape) - torch.log(self.rate + energy)

    def precision_mode(self, energy: Tensor, size: Tensor | float) -> Tensor:
        shape = self._posterior_shape(energy, size) - 1
        return (shape.clamp_min(0) if isinstance(shape, Tensor) else max(0.0, shape)) / (self.rate + energy)


@dataclass(frozen=True)
class Laplace(ScaleMixture):
    """1/rho ~ Gamma((K+1)/2, strength^2 / 2): ln p(w) = -strength |w| + const, the (group) lasso (paper, Remark 1)."""

    strength: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("the strength of a Laplace prior", self.strength)

    def log_density(self, energy: Tensor, size: Tensor | float) -> Tensor:
        k = torch.as_tensor(size, dtype=energy.dtype, device=energy.device)
        surface = math.log(2) + k / 2 * math.log(math.pi) - torch.lgamma(k / 2)
        return k * math.log(self.strength) - surface - torch.lgamma(k) - self.strength * (2 * energy).sqrt()

    def expected_precision(self, energy: Tensor, size: Tensor | float) -> Tensor:
        return (self.strength / _radius(energy)).expand(_common_shape(energy, size))

    def expected_log_precision(self, energy: Tensor, size: Tensor | float) -> Tensor:
        """rho | w is inverse Gaussian with mean strength/|w| and shape strength^2, whatever K: ln mean - e^z E1(z)."""
        radius = _radius(energy.double())
        mean_log = torch.log(self.strength / radius) - scaled_exponential_integral(2 * self.strength * radius)
        return mean_log.to(energy.dtype).expand(_common_shape(energy, size))

    def precision_mode(self, energy: Tensor, size: Tensor | float) -> Tensor:
        mean = self.strength / _radius(energy)
        ratio = 1.5 * mean / self.strength**2
        return (mean / (torch.sqrt(1 + ratio**2) + ratio)).expand(_common_shape(energy, size))


@dataclass(frozen=True)
class Horseshoe(ScaleMixture):
    """A half-Cauchy scale: 1/sqrt(rho) ~ C+(0, scale), the (group) horseshoe (paper, Remark 1)."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("the scale of a horseshoe prior", self.scale)

    def log_density(self, energy: Tensor, size: Tensor | float) -> Tensor:
        log_integral, _, _ = self._moments(energy, size)
        constant = size / 2 * math.log(2 * math.pi) + math.log(math.pi) + size * math.log(self.scale)
        return (log_integral - constant).to(energy.dtype)

    def expected_precision(self, energy: Tensor, size: Tensor | float) -> Tensor:
        return (self._moments(energy, size)[1] / self.scale**2).to(energy.dtype)

    def expected_log_precision(self, energy: Tensor, size: Tensor | float) -> Tensor:
        return (self._moments(energy, size)[2] - 2 * math.log(self.scale)).to(energy.dtype)

    def precision_mode(self, energy: Tensor, size: Tensor | float) -> Tensor:
        x = (energy / self.scale**2).clamp_min(SMALLEST_ENERGY)
        k = (torch.as_tensor(size, dtype=energy.dtype, device=energy.device) - 1) / 2
        p = k - x - 1  # the positive root of x rho^2 - p rho - k = 0, without cancellation
        root = torch.sqrt(p**2 + 4 * x * k)
        mode = torch.where(p > 0, (p + root) / (2 * x), 2 * k / (root - p))
        return mode / self.scale**2

    def _moments(self, energy: Tensor, size: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
        """ln integral, E[rho] and E[ln rho] of rho^((K-1)/2) e^(-x rho) / (1 + rho) at scale 1, in float64."""
        x = (energy.double() / self.scale**2).clamp_min(SMALLEST_ENERGY)
        c = (torch.as_tensor(size, dtype=torch.float64, device=x.device) + 1) / 2
        shape = _common_shape(x, c)
        pieces = zip(
            x.expand(shape).flatten().split(GROUPS_AT_ONCE),
            c.expand(shape).flatten().split(GROUPS_AT_ONCE),
            strict=True,
        )
        moments = [_horseshoe_moments(*piece) for piece in pieces]
        log_integral, mean, mean_log = (torch.cat(m).reshape(shape) for m in zip(*moments, strict=True))
        return log_integral, mean, mean_log


NODES = 256
GROUPS_AT_ONCE = 1 << 14  # bounds the memory of a quadrature to 256 nodes of that many groups


def _horseshoe_moments(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The moments above for (groups,) energies and orders c = (K+1)/2, by the trapezoidal rule in t = ln rho.

    The rule converges exponentially, because the integrand is smooth and vanishes at both ends: it rises like e^(c t)
    up to t = 0, like e^((c-1) t) up to its last bend at ln(c/x), then falls.
    """
    bend = torch.log(c / x)
    from_zero = bend.clamp_max(0) - 45 / c - 12 / c.sqrt()
    slope = (c - 1).clamp_min(1e-3)
    from_bend = bend - 45 / slope - 12 / slope.sqrt()
    lower, upper = torch.maximum(from_zero, from_bend), torch.log((c + 50 + 12 * c.sqrt()) / x)
    fractions = torch.linspace(0, 1, NODES, dtype=torch.float64, device=x.device)
    t = lower[:, None] + (upper - lower)[:, None] * fractions
    log_weights = c[:, None] * t - x[:, None] * t.exp() - torch.nn.functional.softplus(t)
    log_sum = torch.logsumexp(log_weights, -1)
    shares = torch.exp(log_weights - log_sum[:, None])
    log_integral = log_sum + torch.log((upper - lower) / (NODES - 1))
    return log_integral, (shares * t.exp()).sum(-1), (shares * t).sum(-1)


def scaled_exponential_integral(z: Tensor) -> Tensor:
    """e^z E1(z) for z > 0, float64, any shape: the series below 2, the continued fraction above; exact to 1e-12."""
    small, large = z.clamp_max(2), z.clamp_min(2)
    term, series = torch.ones_like(z), torch.zeros_like(z)
    for k in range(1, 30):
        term = -term * small / k
        series = series - term / k
    below = torch.exp(small) * (series - small.log() - EULER)
    fraction = torch.zeros_like(z)
    for k in range(60, 0, -1):
        fraction = k * k / (large + 2 * k + 1 - fraction)
    return torch.where(z < 2, below, 1 / (large + 1 - fraction))


def _radius(energy: Tensor) -> Tensor:
    """|w| of a group."""
    return (2 * energy.clamp_min(SMALLEST_ENERGY)).sqrt()


def _common_shape(energy: Tensor, size: Tensor | float) -> torch.Size:
    return torch.Size(torch.broadcast_shapes(energy.shape, size.shape if isinstance(size, Tensor) else ()))


def _check_positive(what: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{what} must be above 0, got {value}; try 1.0")
