"""Scale mixtures against numerical integration over the precision, special functions and textbook penalties."""

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, optimize, special

from bayesprune.priors import (
    Gamma,
    Horseshoe,
    Laplace,
    ScaleMixture,
    SpikeSlab,
    horseshoe,
    lasso,
    log_uniform,
)
from bayesprune.priors.mixtures import scaled_exponential_integral

LogPdf = Callable[[float, int], float]


def gamma_pdf(a: float, b: float) -> LogPdf:
    return lambda rho, k: a * math.log(b) - math.lgamma(a) + (a - 1) * math.log(rho) - b * rho


def laplace_pdf(strength: float) -> LogPdf:
    """1/rho ~ Gamma((K+1)/2, strength^2/2), with the Jacobian of 1/rho."""
    return lambda rho, k: gamma_pdf((k + 1) / 2, strength**2 / 2)(1 / rho, k) - 2 * math.log(rho)


def horseshoe_pdf(scale: float) -> LogPdf:
    """z = 1/sqrt(rho) half-Cauchy, |dz/drho| = rho^(-3/2)/2."""
    return lambda rho, k: (
        math.log(2 / (math.pi * scale)) - math.log1p(1 / (rho * scale**2)) - 1.5 * math.log(rho) - math.log(2)
    )


CASES: list[tuple[ScaleMixture, LogPdf]] = [
    (Gamma(1.0, 1.0), gamma_pdf(1.0, 1.0)),
    (Gamma(1.0, 1e-3), gamma_pdf(1.0, 1e-3)),
    (Gamma(2.5, 0.3), gamma_pdf(2.5, 0.3)),
    (Laplace(1.0), laplace_pdf(1.0)),
    (Laplace(3.0), laplace_pdf(3.0)),
    (Horseshoe(1.0), horseshoe_pdf(1.0)),
    (Horseshoe(0.2), horseshoe_pdf(0.2)),
]


class Posterior:
    """p(w, rho) as a function of t = ln rho, integrated by scipy."""

    def __init__(self, log_pdf: LogPdf, energy: float, size: int) -> None:
        self.log_pdf, self.energy, self.size = log_pdf, energy, size
        grid = np.linspace(-40, 40, 8001)
        values = np.array([self.log_joint(t) for t in grid])
        self.peak, self.top = grid[values.argmax()], values.max()
        self.lower, self.upper = grid[values > self.top - 50][[0, -1]]

    def log_joint(self, t: float) -> float:
        rho = math.exp(t)
        log_weights = self.size / 2 * (t - math.log(2 * math.pi)) - self.energy * rho
        return log_weights + self.log_pdf(rho, self.size) + t

    def integral(self, f: Callable[[float], float]) -> float:
        def integrand(t: float) -> float:
            return f(t) * math.exp(self.log_joint(t) - self.top)

        value, _ = integrate.quad(integrand, self.lower, self.upper, points=[self.peak], limit=500, epsabs=0)
        return float(value)

    def mode(self) -> float:
        found = optimize.minimize_scalar(
            lambda t: -(self.log_joint(t) - t),
            bounds=(self.lower, self.upper),
            method="bounded",
            options={"xatol": 1e-9},
        )
        return math.exp(found.x)


@pytest.mark.parametrize("energy", [1e-4, 0.05, 1.0, 20.0])
@pytest.mark.parametrize("size", [1, 2, 9, 60])
@pytest.mark.parametrize(("mixture", "log_pdf"), CASES, ids=lambda c: str(c) if isinstance(c, ScaleMixture) else "")
def test_moments_equal_integrals_over_the_precision(
    mixture: ScaleMixture, log_pdf: LogPdf, size: int, energy: float
) -> None:
    exact = Posterior(log_pdf, energy, size)
    mass = exact.integral(lambda t: 1.0)
    x = torch.tensor([energy], dtype=torch.float64)
    assert float(mixture.log_density(x, size)) == pytest.approx(math.log(mass) + exact.top, abs=1e-7)
    assert float(mixture.expected_precision(x, size)) == pytest.approx(exact.integral(math.exp) / mass, rel=1e-6)
    mean_log = exact.integral(lambda t: t) / mass
    assert float(mixture.expected_log_precision(x, size)) == pytest.approx(mean_log, abs=1e-6)
    mode = float(mixture.precision_mode(x, size))
    if mode == 0:  # the density falls from rho = 0 on
        slopes = [exact.log_joint(t + 0.1) - exact.log_joint(t) - 0.1 for t in np.linspace(-30, exact.upper, 40)]
        assert max(slopes) < 1e-9
    else:
        assert mode == pytest.approx(exact.mode(), rel=1e-4)


@pytest.mark.parametrize("size", [1, 4, 25])
@pytest.mark.parametrize("mixture", [case[0] for case in CASES], ids=str)
def test_expected_precision_is_the_slope_of_the_log_density(mixture: ScaleMixture, size: int) -> None:
    """-l'(x) by autograd, or by differences where the density is a quadrature."""
    x = torch.logspace(-4, 2, 25, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(mixture.log_density(x, size).sum(), x)
    torch.testing.assert_close(mixture.expected_precision(x.detach(), size), -slope, rtol=1e-6, atol=0)


def test_horseshoe_equals_its_special_functions() -> None:
    x = np.logspace(-6, 1.5, 30)
    single = np.log(special.exp1(x)) + x - 1.5 * math.log(math.pi) - 0.5 * math.log(2)
    got = Horseshoe().log_density(torch.from_numpy(x), 1).numpy()
    np.testing.assert_allclose(got, single, rtol=0, atol=1e-9)
    for size in (2, 3, 8, 15):
        c = (size + 1) / 2
        integral = np.array([float(mpmath.log(mpmath.gamma(c) * mpmath.hyperu(c, c, v))) for v in x])
        known = integral - size / 2 * math.log(2 * math.pi) - math.log(math.pi)
        got = Horseshoe().log_density(torch.from_numpy(x), size).numpy()
        np.testing.assert_allclose(got, known, rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [1, 9, 250, 1000, 4608])
@pytest.mark.parametrize("ratio", [0.01, 0.5, 2.0, 10.0, 100.0])
def test_horseshoe_of_large_groups(size: int, ratio: float) -> None:
    """Around and far above the bend at x = c = (K+1)/2, against Legendre's continued fraction of e^x E_c(x).

    The integral is Gamma(c) x^(1-c) e^x E_c(x), and E[rho] = Gamma(c) x^-c / integral - 1.
    """
    with mpmath.workdps(60):
        c = mpmath.mpf(size + 1) / 2
        x = c * ratio
        fraction = mpmath.mpf(0)
        for k in range(3000, 0, -1):
            fraction = k * (c + k - 1) / (x + c + 2 * k - fraction)
        scaled = 1 / (x + c - fraction)
        expected = 1 / (x * scaled) - 1
        log_integral = mpmath.loggamma(c) + (1 - c) * mpmath.log(x) + mpmath.log(scaled)
        log_density = log_integral - mpmath.mpf(size) / 2 * mpmath.log(2 * mpmath.pi) - mpmath.log(mpmath.pi)
    energy = torch.tensor([float(x)], dtype=torch.float64)
    assert float(Horseshoe().expected_precision(energy, size)) == pytest.approx(float(expected), rel=1e-8)
    assert float(Horseshoe().log_density(energy, size)) == pytest.approx(float(log_density), abs=1e-8)
    narrow = Horseshoe(0.1).expected_precision(energy * 0.01, float(size))
    assert float(narrow) == pytest.approx(100 * float(expected), rel=1e-8)


def test_precisions_stay_positive_at_huge_energies() -> None:
    energy = torch.logspace(-30, 30, 61, dtype=torch.float64)
    for mixture in (Gamma(), Laplace(), Horseshoe(1e-3)):
        assert (mixture.expected_precision(energy, 1.0) > 0).all()


def test_scaled_exponential_integral_equals_scipy() -> None:
    z = torch.logspace(-12, 2.5, 200, dtype=torch.float64)
    known = special.exp1(z.numpy()) * np.exp(z.numpy())
    np.testing.assert_allclose(scaled_exponential_integral(z).numpy(), known, rtol=1e-12)
    assert float(scaled_exponential_integral(torch.tensor([1e8], dtype=torch.float64))) == pytest.approx(1e-8, rel=1e-7)


def test_large_groups_and_zero_weights_stay_finite() -> None:
    energy = torch.tensor([0.0, 1e-12, 1.0, 1e4])
    for prior in (SpikeSlab(), lasso(), log_uniform(), horseshoe()):
        for size in (1.0, 4608.0):
            for moment in ("log_density", "expected_precision", "expected_log_precision", "precision_mode"):
                value = getattr(prior.active, moment)(energy, size)
                assert torch.isfinite(value).all(), (prior, size, moment)
                assert value.shape == energy.shape


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Gamma(-1.0, 1.0), "shape of a Gamma prior must be at least 0, got -1.0"),
        (lambda: Gamma(1.0, 0.0), "rate of a Gamma prior must be above 0, got 0.0"),
        (lambda: Laplace(0.0), "strength of a Laplace prior must be above 0"),
        (lambda: Horseshoe(float("nan")), "scale of a horseshoe prior"),
        (lambda: SpikeSlab(Gamma(1, 1e-3), Gamma(1, 1)), "larger mean precision"),
        (lambda: SpikeSlab(Gamma(1, 1), Gamma(0, 1e-3)), "improper"),
    ],
)
def test_bad_parameters_are_named(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
