"""Module A: closed forms against numerical optima, bounds that never fall, the paper's numbers, bistability."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import digamma
from torch import Tensor

from bayesprune.priors import Gamma, PatternCoupled, SharedPrecision, SpikeSlab, horseshoe, lasso, log_uniform
from bayesprune.supports import HiddenMarkov, MarkovChain, MarkovTree, Support
from bayesprune.variational import (
    Collapsed,
    MeanField,
    MeanFieldPosterior,
    gaussian_kl,
    message_to_supports,
    optimal_variance,
    taylor_loss,
)

PRIORS = [
    SpikeSlab(),
    SpikeSlab(Gamma(1.0, 1.0), Gamma(1.0, 1e-4)),
    SpikeSlab(Gamma(2.0, 0.7), Gamma(1.5, 1e-2)),
]


@pytest.fixture(autouse=True)
def float64_and_seed() -> object:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def random_groups(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """size, target, curvature, mean and prior logit of `count` groups; the data term is -h/2 (mu - target)^2 each."""
    g = torch.Generator().manual_seed(seed)
    size = torch.randint(1, 10, (count,), generator=g).double()
    target = torch.randn(count, generator=g) * torch.rand(count, generator=g) ** 3 * 3
    curvature = 10 ** (torch.rand(count, generator=g) * 5 - 1)
    mean = torch.randn(count, generator=g)
    return size, target, curvature, mean, torch.randn(count, generator=g) * 3


def minimised(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    free = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([free], max_iter=2000, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss(free)
        value.backward()
        return value

    optimiser.step(closure)
    return free.detach()


# ---------------------------------------------------------------- closed forms are optima of their own objective


@pytest.mark.parametrize("prior", PRIORS, ids=str)
def test_mean_field_updates_are_the_optima_of_the_elbo(prior: SpikeSlab) -> None:
    size, _, _, mean, prior_logit = random_groups(20, 1)
    energy = size * mean**2 / 2
    family = MeanField(prior)
    state = MeanFieldPosterior(torch.randn(20), torch.rand(20) + 1, torch.rand(20) + 0.1, torch.rand(20) + 0.01)

    updated = family.update_precision(state, energy, size)
    found = minimised(
        lambda v: -family.objective(state._replace(shape=v[0].exp(), rate=v[1].exp()), energy, size, prior_logit).sum(),
        torch.zeros(2, 20),
    )
    torch.testing.assert_close(found.exp(), torch.stack((updated.shape, updated.rate)), rtol=1e-4, atol=1e-6)

    state = updated
    updated = family.update_support(state, prior_logit)
    found = minimised(
        lambda v: -family.objective(state._replace(active_logit=v), energy, size, prior_logit).sum(),
        torch.zeros(20),
    )
    torch.testing.assert_close(torch.sigmoid(found), torch.sigmoid(updated.active_logit), rtol=0, atol=1e-5)

    state = updated
    updated = family.update_variance(state)
    found = minimised(
        lambda v: -family.objective(state._replace(variance=v.exp()), energy, size, prior_logit).sum(),
        torch.zeros(20),
    )
    torch.testing.assert_close(found.exp(), updated.variance, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("prior", PRIORS, ids=str)
def test_collapsed_support_is_the_optimum_and_the_exact_posterior(prior: SpikeSlab) -> None:
    size, _, _, mean, prior_logit = random_groups(20, 2)
    energy = size * mean**2 / 2
    family = Collapsed(prior)
    state = family.start(energy, size, prior_logit)
    found = minimised(lambda v: -family.objective(v, energy, size, prior_logit).sum(), torch.zeros(20))
    torch.testing.assert_close(torch.sigmoid(found), torch.sigmoid(state), rtol=0, atol=1e-5)
    assert prior.inactive is not None
    pi = torch.sigmoid(prior_logit)
    joint1 = pi * prior.active.log_density(energy, size).exp()
    joint0 = (1 - pi) * prior.inactive.log_density(energy, size).exp()
    torch.testing.assert_close(torch.sigmoid(state), joint1 / (joint1 + joint0))
    torch.testing.assert_close(family.objective(state, energy, size, prior_logit), (joint1 + joint0).log())


def test_variance_is_the_optimum_of_equation_35_by_autograd() -> None:
    precision = torch.logspace(-2, 4, 30)
    mean = torch.randn(30)
    variance = optimal_variance(precision).requires_grad_()
    (slope,) = torch.autograd.grad(gaussian_kl(mean, variance, precision).sum(), variance)
    torch.testing.assert_close(slope / precision, torch.zeros(30), rtol=0, atol=1e-12)
    (curved,) = torch.autograd.grad(slope_of_kl(mean, variance, precision).sum(), variance)
    assert (curved > 0).all()
    h = torch.full((30,), 7.0)
    variance = optimal_variance(precision, h).requires_grad_()
    bound = gaussian_kl(mean, variance, precision) + h * variance / 2
    (slope,) = torch.autograd.grad(bound.sum(), variance)
    torch.testing.assert_close(slope * variance, torch.zeros(30), rtol=0, atol=1e-12)


def slope_of_kl(mean: Tensor, variance: Tensor, precision: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(gaussian_kl(mean, variance, precision).sum(), variance, create_graph=True)
    return slope


def test_gaussian_kl_equals_torch_distributions() -> None:
    mean, variance, precision = torch.randn(9), torch.rand(9) + 0.1, torch.rand(9) * 5 + 0.1
    q = torch.distributions.Normal(mean, variance.sqrt())
    p = torch.distributions.Normal(0.0, precision.rsqrt())
    torch.testing.assert_close(gaussian_kl(mean, variance, precision), torch.distributions.kl_divergence(q, p))


def test_taylor_loss_has_the_gradient_of_equation_35() -> None:
    """(35) per example, with sigma^2 at its optimum, differs from the loss by a constant in mu."""
    mean = torch.randn(6, requires_grad=True)
    precision, examples = torch.rand(6) * 9, 50
    nll = (mean - 1).square().sum() / examples
    paper = nll + gaussian_kl(mean, optimal_variance(precision), precision).sum() / examples
    (expected,) = torch.autograd.grad(paper, mean, retain_graph=True)
    (got,) = torch.autograd.grad(taylor_loss(nll, mean, precision, examples), mean)
    torch.testing.assert_close(got, expected)


# ---------------------------------------------------------------- bounds never fall


def data_term(mean: Tensor, target: Tensor, h: Tensor, size: Tensor) -> Tensor:
    return -size * h / 2 * (mean - target) ** 2


@pytest.mark.parametrize("curvature", [0.0, 5.0])
@pytest.mark.parametrize("prior", PRIORS, ids=str)
def test_mean_field_elbo_never_decreases(prior: SpikeSlab, curvature: float) -> None:
    """1000 random states, 30 rounds, looked at after every block; every group is a problem of its own."""
    size, target, h, mean, prior_logit = random_groups(1000, 3)
    family = MeanField(prior, curvature=curvature)
    g = torch.Generator().manual_seed(4)
    state = MeanFieldPosterior(
        torch.randn(1000, generator=g) * 4,
        torch.rand(1000, generator=g) * 5 + 0.1,
        10 ** (torch.rand(1000, generator=g) * 5 - 4),
        10 ** (torch.rand(1000, generator=g) * 5 - 4),
    )

    def bound() -> Tensor:
        return family.objective(state, size * mean**2 / 2, size, prior_logit) + data_term(mean, target, h, size)

    before = bound()
    for _ in range(30):
        for block in ("precision", "support", "variance", "mean"):
            if block == "precision":
                state = family.update_precision(state, size * mean**2 / 2, size)
            elif block == "support":
                state = family.update_support(state, prior_logit)
            elif block == "variance":
                state = family.update_variance(state)
            else:
                mean = h * target / (h + state.expected_precision)
            after = bound()
            assert ((after - before) > -1e-9 * (1 + before.abs())).all(), block
            before = after


@pytest.mark.parametrize("prior", [*PRIORS, lasso(2.0), log_uniform(), horseshoe(0.5)], ids=str)
def test_collapsed_objective_never_decreases(prior: SpikeSlab) -> None:
    """w under the quadratic surrogate, q(s), E[rho]: an EM algorithm, 1000 random states."""
    size, target, h, mean, prior_logit = random_groups(1000, 5)
    family = Collapsed(prior)
    state = torch.randn(1000, generator=torch.Generator().manual_seed(6)) * 4

    def bound() -> Tensor:
        value = family.objective(state, size * mean**2 / 2, size, prior_logit)
        return value + data_term(mean, target, h, size)

    before = bound()
    for _ in range(30):
        for block in ("weight", "support"):
            if block == "weight":
                precision = family.posterior(state, size * mean**2 / 2, size).expected_precision
                mean = h * target / (h + precision)
            else:
                state = family.update(state, size * mean**2 / 2, size, prior_logit)
            after = bound()
            assert ((after - before) > -1e-9 * (1 + before.abs())).all(), block
            before = after


def test_the_complex_convention_is_no_ascent() -> None:
    """Why `real` is the default: the paper's (25), (26) mixed with the real KL (33) let the bound fall."""
    size, _, _, mean, prior_logit = random_groups(1000, 7)
    energy = size * mean**2 / 2
    real, paper = MeanField(), MeanField(convention="complex")
    state = real.start(energy, size, prior_logit)
    for _ in range(50):
        state = real.update(state, energy, size, prior_logit)
    after = paper.update_precision(state, energy, size)
    fall = real.objective(state, energy, size, prior_logit) - real.objective(after, energy, size, prior_logit)
    assert (fall > 0.01).all()


@pytest.mark.parametrize(
    "groups", [SharedPrecision("weight"), SharedPrecision("tile", (2, 2)), PatternCoupled(0.8)], ids=str
)
@pytest.mark.parametrize(
    "support", [MarkovChain(0.1, 0.3), HiddenMarkov(0.1, 0.3, 0.05, 0.9), MarkovTree(0.4, 0.05, 0.3)], ids=str
)
def test_modules_a_and_b_together_never_lower_the_marginal_posterior(support: Support, groups: object) -> None:
    """Where Module B is exact the turbo loop is EM on ln p(D|w) + ln sum_s p(w|s) p(s)."""
    g = torch.Generator().manual_seed(8)
    target = torch.randn(6, 8, generator=g) * (torch.rand(6, 8, generator=g) < 0.4)
    weight, h = torch.randn(6, 8, generator=g), 20.0
    family, size = Collapsed(), groups.size((6, 8), weight)  # type: ignore[attr-defined]

    def objective() -> float:
        energy = groups.energy(weight)  # type: ignore[attr-defined]
        evidence = family.prior.evidence_logit(energy, size)
        assert family.prior.inactive is not None
        dead = family.prior.inactive.log_density(energy, size).sum()
        data = -h / 2 * (weight - target).square().sum()
        return float(data + dead) + support.log_evidence(evidence, batch_dims=1)

    before = objective()
    for _ in range(40):
        energy = groups.energy(weight)  # type: ignore[attr-defined]
        evidence = family.prior.evidence_logit(energy, size)
        prior_logit = support.extrinsic(evidence, batch_dims=1).logit  # Module B
        posterior = family.posterior(family.start(energy, size, prior_logit), energy, size)  # Module A
        torch.testing.assert_close(message_to_supports(posterior, prior_logit), evidence)
        precision = groups.weight_precision(posterior.expected_precision, weight.shape)  # type: ignore[attr-defined]
        weight = h * target / (h + precision)
        after = objective()
        assert after >= before - 1e-9 * abs(before)
        before = after


# ---------------------------------------------------------------- the paper's equations, number by number


@pytest.mark.parametrize("k", [1, 6])
def test_equations_25_to_29_number_by_number(k: int) -> None:
    a, b, abar, bbar = 1.3, 0.8, 1.1, 1e-3
    mu, var, q, pi = 0.21, 0.04, 0.37, 0.15
    family = MeanField(SpikeSlab(Gamma(a, b), Gamma(abar, bbar)), convention="complex")
    state = MeanFieldPosterior(*(torch.tensor([v]) for v in (math.log(q / (1 - q)), 0.0, 0.0, var)))
    energy = torch.tensor([k * mu**2 / 2])
    state = family.update_precision(state, energy, float(k))
    shape = q * a + (1 - q) * abar + k  # (25), once for each of the K weights of a group
    rate = k * (mu**2 + var) + q * b + (1 - q) * bbar  # (26)
    assert float(state.shape) == pytest.approx(shape)
    assert float(state.rate) == pytest.approx(rate)
    mean_rho, mean_log = shape / rate, digamma(shape) - math.log(rate)
    assert float(state.expected_precision) == pytest.approx(mean_rho)
    assert float(state.expected_log_precision) == pytest.approx(mean_log)
    assert float(family.precision_mode(state, energy, k)) == pytest.approx((shape - 1) / rate)
    c1 = pi * b**a / math.gamma(a) * math.exp((a - 1) * mean_log - b * mean_rho)  # (28)
    c2 = (1 - pi) * bbar**abar / math.gamma(abar) * math.exp((abar - 1) * mean_log - bbar * mean_rho)  # (29)
    state = family.update_support(state, torch.tensor([math.log(pi / (1 - pi))]))
    assert float(torch.sigmoid(state.active_logit)) == pytest.approx(c1 / (c1 + c2))  # (27)
    state = family.update_variance(state)
    assert float(state.variance) == pytest.approx(1 / mean_rho)  # (35)
    real = MeanField(SpikeSlab(Gamma(a, b), Gamma(abar, bbar)))
    other = real.update_precision(state._replace(active_logit=torch.tensor([0.0])), energy, float(k))
    assert float(other.shape) == pytest.approx((a + abar) / 2 + k / 2)
    assert float(other.rate) == pytest.approx(k * (mu**2 + 1 / mean_rho) / 2 + (b + bbar) / 2)


def test_the_constant_dropped_in_equation_32() -> None:
    """The prior part of the ELBO is -KL (33) - (ln<rho> - <ln rho>)/2: the last term depends on q(rho)."""
    family = MeanField()
    state = MeanFieldPosterior(torch.zeros(5), torch.rand(5) + 1, torch.rand(5) + 0.1, torch.rand(5) + 0.1)
    mean = torch.randn(5)
    whole = family.objective(state, mean**2 / 2, 1.0, torch.zeros(5))
    a, b = state.shape, state.rate
    rest = 0.5 * sum(
        p.log_normaliser + (p.shape - 1) * state.expected_log_precision - p.rate * state.expected_precision
        for p in (Gamma(1.0, 1.0), Gamma(1.0, 1e-3))
    ) + (a - b.log() + torch.lgamma(a) + (1 - a) * torch.digamma(a))
    kl = gaussian_kl(mean, state.variance, state.expected_precision)
    dropped = (state.expected_precision.log() - state.expected_log_precision) / 2
    torch.testing.assert_close(whole, rest - kl - dropped)


# ---------------------------------------------------------------- Remark 1


def penalty(prior: SpikeSlab, groups: SharedPrecision, weight: Tensor) -> float:
    energy, size = groups.energy(weight), groups.size(weight.shape, weight)
    state = Collapsed(prior).start(energy, size, torch.zeros_like(energy))
    return -float(Collapsed(prior).objective(state, energy, size, torch.zeros_like(energy)).sum())


def group_horseshoe(weight: Tensor) -> float:
    """-ln of the integral over half-Cauchy z of prod Normal(w; 0, z^2) for every output unit, by quadrature."""
    from scipy.integrate import quad

    total = 0.0
    for unit in weight.numpy():
        k, squares = unit.size, float((unit**2).sum())

        def density(t: float, k: int = k, squares: float = squares) -> float:  # z = e^t
            z = math.exp(t)
            return (
                math.exp(-k * t - k / 2 * math.log(2 * math.pi) - squares / (2 * z * z)) * 2 / math.pi / (1 + z * z) * z
            )

        total -= math.log(quad(density, -20, 20, limit=500, points=[math.log(math.sqrt(squares / k))])[0])
    return total


@pytest.mark.parametrize(
    ("prior", "groups", "textbook"),
    [
        (lasso(1.7), SharedPrecision("weight"), lambda w: 1.7 * float(w.abs().sum())),
        (log_uniform(1e-30), SharedPrecision("weight"), lambda w: float(w.abs().log().sum())),
        (
            log_uniform(1e-30),
            SharedPrecision("unit"),
            lambda w: w.shape[1] * float(w.norm(dim=1).log().sum()),
        ),
        (horseshoe(), SharedPrecision("unit"), group_horseshoe),
        (lasso(1.7), SharedPrecision("unit"), lambda w: 1.7 * float(w.norm(dim=1).sum())),
    ],
    ids=["lasso", "log-uniform", "group log-uniform", "group horseshoe", "group lasso"],
)
def test_special_cases_agree_with_their_textbook_penalties_up_to_a_constant(
    prior: SpikeSlab, groups: SharedPrecision, textbook: Callable[[Tensor], float]
) -> None:
    g = torch.Generator().manual_seed(9)
    weights = [torch.randn(5, 4, generator=g) * scale for scale in (0.01, 0.3, 1.0, 5.0)]
    differences = [penalty(prior, groups, w) - textbook(w) for w in weights]
    np.testing.assert_allclose(differences, differences[0], rtol=0, atol=1e-6)
    assert np.ptp([textbook(w) for w in weights]) > 1  # so the agreement says something


# ---------------------------------------------------------------- bistability


def settled_mean_field(mean: Tensor, start: float, convention: str = "real", curvature: float = 0.0) -> Tensor:
    family = MeanField(initial_active=start, convention=convention, curvature=curvature)  # type: ignore[arg-type]
    energy, undecided = mean**2 / 2, torch.zeros_like(mean)
    state = family.start(energy, 1.0, undecided)
    for _ in range(3000):
        state = family.update(state, energy, 1.0, undecided)
    return torch.sigmoid(state.active_logit)


@pytest.mark.parametrize("convention", ["real", "complex"])
def test_the_papers_support_depends_on_its_start_not_on_the_weight(convention: str) -> None:
    mean = torch.tensor([0.0, 0.1, 0.2])
    assert (settled_mean_field(mean, 0.5, convention) > 0.99).all()  # even a weight of exactly 0 stays alive
    assert (settled_mean_field(mean, 0.01, convention) < 0.01).all()
    large = torch.tensor([0.5, 1.0])
    assert (settled_mean_field(large, 0.01, convention) > 0.99).all()


def test_curvature_does_not_cure_mean_field() -> None:
    zero = torch.zeros(1)
    assert float(settled_mean_field(zero, 0.5, curvature=1000.0)) > 0.99
    assert float(settled_mean_field(zero, 0.01, curvature=1000.0)) < 0.01


def half_collapsed(start: float) -> tuple[float, float]:
    """rho integrated out of the evidence, but sigma^2 = 1/E[rho] kept in <w^2>: q(s) and the bound at mu = 0."""
    family, undecided = Collapsed(), torch.zeros(1)
    state = torch.tensor([math.log(start / (1 - start))])
    energy = torch.zeros(1)
    for _ in range(3000):
        variance = 1 / family.posterior(state, energy, 1.0).expected_precision
        energy = variance / 2
        state = family.update(state, energy, 1.0, undecided)
    bound = family.objective(state, energy, 1.0, undecided) + (1 + torch.log(2 * math.pi * variance)) / 2
    return float(torch.sigmoid(state)), float(bound)


def test_the_half_collapsed_variant_is_bistable_too() -> None:
    dead, dead_bound = half_collapsed(0.01)
    alive, alive_bound = half_collapsed(0.99)
    assert dead == pytest.approx(0.0573, abs=1e-3)
    assert alive == pytest.approx(0.9948, abs=1e-3)
    assert dead_bound == pytest.approx(-0.8645, abs=1e-3)
    assert alive_bound == pytest.approx(-0.9169, abs=1e-3)


def test_collapsed_is_monotone_in_the_weight_and_has_no_memory() -> None:
    family = Collapsed()
    energy = torch.linspace(0, 2, 200) ** 2 / 2
    undecided = torch.zeros(200)
    active = torch.sigmoid(family.start(energy, 1.0, undecided))
    assert (active[1:] > active[:-1]).all()
    assert float(active[0]) < 0.05
    assert float(active[-1]) > 0.99
    for start in (-9.0, 0.0, 9.0):
        again = family.update(torch.full((200,), start), energy, 1.0, undecided)
        assert torch.equal(torch.sigmoid(again), active)


# ---------------------------------------------------------------- one protocol for both families


@pytest.mark.parametrize("family", [Collapsed(), MeanField(), MeanField(convention="complex")], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_family_keeps_the_protocol(family: Collapsed, dtype: torch.dtype) -> None:
    weight = torch.randn(6, 5, 3, 3, dtype=dtype)
    for groups in (SharedPrecision("weight"), SharedPrecision("kernel"), SharedPrecision("tile", (2, 2))):
        energy, size = groups.energy(weight), groups.size(weight.shape, weight)
        prior_logit = torch.zeros_like(energy)
        state = family.start(energy, size, prior_logit)
        for _ in range(3):
            state = family.update(state, energy, size, prior_logit)
        posterior = family.posterior(state, energy, size)
        log_precision = family.expected_log_precision(state, energy, size)
        mode = family.precision_mode(state, energy, size)
        objective = family.objective(state, energy, size, prior_logit)
        for value in (*posterior, posterior.active, log_precision, mode, objective):
            assert value.shape == energy.shape
            assert value.dtype == dtype
            assert torch.isfinite(value).all()
        assert (posterior.expected_precision > 0).all()
        assert (log_precision < posterior.expected_precision.log()).all()  # Jensen
        assert torch.equal(posterior.alive, posterior.active > 0.5)


def test_errors() -> None:
    with pytest.raises(ValueError, match="convention must be 'real' or 'complex', got 'imaginary'"):
        MeanField(convention="imaginary")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs Gamma priors"):
        MeanField(lasso())
    with pytest.raises(ValueError, match="initial_active must be strictly between 0 and 1"):
        MeanField(initial_active=0.0)


def test_sparse_priors_are_cheap_on_single_weights() -> None:
    """A quarter of a million weights: the lasso has closed forms, the horseshoe is integrated in pieces."""
    energy = torch.rand(1, 512, 512, dtype=torch.float32)
    posterior = Collapsed(lasso()).posterior(torch.zeros_like(energy), energy, 1.0)
    torch.testing.assert_close(posterior.expected_precision, 1 / (2 * energy).sqrt())
    piece = Collapsed(horseshoe()).posterior(energy[:, :40], energy[:, :40], 1.0).expected_precision
    assert torch.isfinite(piece).all()
