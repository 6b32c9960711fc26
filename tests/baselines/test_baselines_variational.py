"""Variational dropout and its group version: KLs by integration and sampling, layers by sampling their weights."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from baseline_examples import a_run, small_mlp
from scipy import integrate, special, stats
from torch import nn

from bayesprune.baselines import group_variational_dropout as group
from bayesprune.baselines import variational_dropout as dropout
from bayesprune.baselines.swapping import Swapped

CONVS = {
    "linear": (lambda: nn.Linear(5, 4), (5,)),
    "conv": (lambda: nn.Conv2d(2, 4, 3, padding=1, stride=2), (2, 5, 5)),
    "grouped": (lambda: nn.Conv2d(4, 4, 3, groups=2, padding_mode="circular", padding=1), (4, 4, 4)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3), (2, 6)),
}


def expected_log_square(alpha):
    """E log (1 + sqrt(alpha) n)^2 by its series: (.)^2 / alpha is a non-central chi-squared variable."""
    centre = 0.5 / alpha
    width = 40 * math.sqrt(centre + 1) + 50
    j = np.arange(max(0, int(centre - width)), int(centre + width))
    return math.log(2 * alpha) + float(np.sum(stats.poisson.pmf(j, centre) * special.digamma(0.5 + j)))


def true_kl(log_alpha):
    """KL of N(1, alpha) from the log-uniform prior, with the constant that makes it 0 for large alpha."""
    limit = 0.5 * (math.log(2) + float(special.digamma(0.5)))
    return 0.5 * (expected_log_square(math.exp(log_alpha)) - log_alpha) - limit


@pytest.mark.parametrize("log_alpha", [-6.0, -1.0, 0.0, 2.0])
def test_the_series_of_the_reference_is_the_integral(log_alpha):
    alpha = math.exp(log_alpha)

    def integrand(n):
        return stats.norm.pdf(n) * math.log((1 + math.sqrt(alpha) * n) ** 2)

    pole = -1 / math.sqrt(alpha)
    edges = sorted({-9.0, 9.0, *([pole] if abs(pole) < 9 else [])})
    parts = [integrate.quad(integrand, a, b, limit=500)[0] for a, b in pairwise(edges)]
    assert expected_log_square(alpha) == pytest.approx(sum(parts), abs=1e-6)


def test_the_kl_is_the_true_one_up_to_a_hundredth():
    grid = torch.linspace(-8, 8, 161, dtype=torch.float64)
    truth = torch.tensor([true_kl(float(x)) for x in grid])
    assert (dropout.log_uniform_kl(grid) - truth).abs().max() < 0.01


def test_the_kl_goes_to_zero_with_noise_and_grows_without_it():
    kl = dropout.log_uniform_kl(torch.tensor([30.0, -30.0]))
    assert kl[0] == pytest.approx(0, abs=1e-6)
    assert kl[1] == pytest.approx(dropout.K1 + 15, abs=1e-3)


@pytest.mark.parametrize("name", CONVS)
def test_local_reparametrisation_has_the_moments_of_sampled_weights(name):
    make, shape = CONVS[name]
    torch.manual_seed(0)
    layer = dropout.NoisyLayer(make().double(), 3.0, 10.0)
    with torch.no_grad():
        layer.log_variance.scaled.copy_(torch.rand_like(layer.layer.weight) * 0.2 - 0.3)
    x = torch.randn(1, *shape, dtype=torch.float64)
    count = 40_000
    with torch.no_grad():
        local = torch.cat([layer(x.expand(1000, *shape)) for _ in range(count // 1000)]).flatten(1)
        deviation, theta = torch.exp(0.5 * layer.log_variance()), layer.layer.weight.detach().clone()
        sampled = []
        for _ in range(8000):
            layer.layer.weight.copy_(theta + deviation * torch.randn_like(theta))
            sampled.append(layer.layer(x).flatten())
    sampled = torch.stack(sampled)
    error = sampled.std(0) / math.sqrt(len(sampled)) + local.std(0) / math.sqrt(count)
    assert ((local.mean(0) - sampled.mean(0)).abs() < 5 * error).all()
    assert torch.allclose(local.std(0), sampled.std(0), rtol=0.05)


def test_without_training_weights_of_large_alpha_are_left_out():
    torch.manual_seed(0)
    layer = dropout.NoisyLayer(nn.Linear(3, 2), 3.0, 10.0).eval()
    with torch.no_grad():
        layer.layer.weight.fill_(1.0)
        layer.log_variance.scaled.copy_(torch.tensor([[0.2, 0.4, 0.0], [0.29, 0.31, 9.0]]))
    kept = torch.tensor([[True, False, True], [True, False, False]])
    assert torch.equal(layer.live(), kept)
    x = torch.randn(4, 3)
    assert torch.allclose(layer(x), x @ kept.float().T + layer.layer.bias)


def test_log_variances_learn_faster_under_adam():
    variance = dropout.Logarithms(torch.zeros(2), 10.0)
    optimiser = torch.optim.Adam(variance.parameters(), 0.01)
    variance().sum().backward()
    optimiser.step()
    assert variance().tolist() == pytest.approx([-0.1, -0.1], rel=1e-4)
    with torch.no_grad():
        variance.clamp_(-0.5)
    assert variance().tolist() == pytest.approx([-0.5, -0.5])


def a_few_tensors():
    torch.manual_seed(0)
    shapes = [(3, 4), (5,), (2, 1, 2)]
    means = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    logarithms = [dropout.Logarithms(3 * torch.randn(shape, dtype=torch.float64), 10.0) for shape in shapes]
    return means, logarithms, [*means, *(one.scaled for one in logarithms)]


def log_uniform(mean, log_variance):
    return dropout.log_uniform_kl(dropout.log_alpha_of(log_variance, mean))


@pytest.mark.parametrize(
    ("summed", "single"),
    [(dropout.log_uniform_kl_and_slopes, log_uniform), (group.gaussian_kl_and_slopes, group.gaussian_kl)],
)
def test_summed_kls_are_the_sum_with_autograds_gradient(summed, single):
    means, logarithms, leaves = a_few_tensors()
    total = dropout.summed_kl(summed, means, logarithms)
    expected = sum(single(mean, log()).sum() for mean, log in zip(means, logarithms, strict=True))
    assert total.item() == pytest.approx(expected.item(), rel=1e-12)
    found, wanted = torch.autograd.grad(3 * total, leaves), torch.autograd.grad(3 * expected, leaves)
    assert all(torch.allclose(a, b, rtol=1e-10) for a, b in zip(found, wanted, strict=True))


def test_the_summed_kl_of_weights_almost_without_noise_is_finite():
    logarithms = [dropout.Logarithms(torch.tensor([-300.0, 300.0]), 10.0)]
    total = dropout.summed_kl(dropout.log_uniform_kl_and_slopes, [torch.ones(2, requires_grad=True)], logarithms)
    assert total.item() == pytest.approx(dropout.K1 + 150, rel=1e-5)


def test_moments_have_autograds_gradient():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(dropout.Moments.apply, (x,))


def test_local_noise_has_the_gradient_of_its_own_noise():
    torch.manual_seed(0)
    mean, variance = torch.randn(50, dtype=torch.float64), torch.rand(50, dtype=torch.float64) + 0.1
    mean.requires_grad_()
    variance.requires_grad_()
    sample, weight = dropout.LocalNoise.apply(mean, variance), torch.randn(50, dtype=torch.float64)
    noise = ((sample - mean) / torch.sqrt(variance + dropout.SMALLEST_SQUARE)).detach()
    found = torch.autograd.grad(sample @ weight, (mean, variance))
    again = mean + torch.sqrt(variance + dropout.SMALLEST_SQUARE) * noise
    wanted = torch.autograd.grad(again @ weight, (mean, variance))
    assert all(torch.allclose(a, b, rtol=1e-10) for a, b in zip(found, wanted, strict=True))


# ------------------------------------------------------------------------------------------------ groups


def test_sampled_scales_have_the_gradient_of_their_own_noise():
    torch.manual_seed(0)
    scale = group.LogUniformScale(5, 10.0).double()
    leaves = (scale.mean, scale.log_variance.scaled)
    sample, weight = scale.sample(7), torch.randn(7, 5, dtype=torch.float64)
    noise = ((sample - scale.mean) / torch.exp(0.5 * scale.log_variance())).detach()
    found = torch.autograd.grad((sample * weight).sum(), leaves)
    again = scale.mean + torch.exp(0.5 * scale.log_variance()) * noise
    wanted = torch.autograd.grad((again * weight).sum(), leaves)
    assert all(torch.allclose(a, b, rtol=1e-8) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (0.7, 0.3), (-2.0, 0.05)])
def test_gaussian_kl_is_that_of_torch(mean, deviation):
    q, p = torch.distributions.Normal(mean, deviation), torch.distributions.Normal(0.0, 1.0)
    found = group.gaussian_kl(torch.tensor(mean), torch.tensor(2 * math.log(deviation)))
    assert found == pytest.approx(float(torch.distributions.kl_divergence(q, p)), abs=1e-5)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (-1.5, 0.2), (1.0, 0.6)])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_horseshoe_kls_are_the_integrals(mean, deviation, scale):
    q = stats.lognorm(s=deviation, scale=math.exp(mean))

    def kl(prior):
        def integrand(u):  # over u = log x
            x = math.exp(u)
            return stats.norm.pdf(u, mean, deviation) * (q.logpdf(x) - prior.logpdf(x))

        return integrate.quad(integrand, mean - 9 * deviation, mean + 9 * deviation, limit=300)[0]

    mu, log_variance = torch.tensor(mean).double(), torch.tensor(2 * math.log(deviation)).double()
    found = group.gamma_kl(mu, log_variance, scale)
    assert float(found) == pytest.approx(kl(stats.gamma(0.5, scale=scale)), abs=1e-6)
    found = group.inverse_gamma_kl(mu, log_variance)
    assert float(found) == pytest.approx(kl(stats.invgamma(0.5)), abs=1e-6)


def test_the_group_kl_is_that_of_a_sample():
    """log q - log p of scales and weights, the log-uniform prior with its constant, by Monte Carlo."""
    torch.manual_seed(0)
    layer = group.GroupNoisyLayer(nn.Linear(3, 2).double(), "log-uniform", 10.0).double()
    with torch.no_grad():
        layer.scale.mean.copy_(torch.tensor([1.0, 0.5, -0.3]))
        layer.scale.log_variance.scaled.copy_(torch.tensor([-0.3, -0.1, 0.1]))
        layer.log_variance.scaled.copy_(torch.rand(2, 3) * 0.2 - 0.3)
    count = 400_000
    z = layer.scale.sample(count).detach()
    deviation = torch.exp(0.5 * layer.scale.log_variance()).detach()
    log_q = torch.distributions.Normal(layer.scale.mean.detach(), deviation).log_prob(z)
    entropy_limit = -0.5 * math.log(2 * math.pi * math.e)
    # As alpha grows, E log q - E log p for p(z) = 1 / |z| tends to the constant that is taken off.
    constant = entropy_limit + 0.5 * (math.log(2) + float(special.digamma(0.5)))
    scales = (log_q + z.abs().log() - constant).mean(0).sum()
    weight = torch.distributions.Normal(layer.layer.weight.detach(), torch.exp(0.5 * layer.log_variance()).detach())
    w = weight.sample((count // 4,))
    weights = (weight.log_prob(w) - torch.distributions.Normal(0.0, 1.0).log_prob(w)).mean(0).sum()
    assert float(group.total_kl([layer]).detach()) == pytest.approx(float(scales + weights), abs=0.05)


def test_the_horseshoe_starts_at_one_and_its_samples_have_the_expected_mean():
    torch.manual_seed(0)
    scale = group.HorseshoeScale(4, 10.0)
    assert scale.expected().tolist() == pytest.approx([1.0] * 4, abs=0.05)
    with torch.no_grad():
        scale.layer_log_variance.scaled.fill_(-0.5)
        scale.unit_log_variance.scaled.fill_(-0.1)
        samples = torch.stack([scale.sample(20).mean(0) for _ in range(4000)]).mean(0)
    assert torch.allclose(samples, scale.expected(), rtol=0.02)
    assert torch.isfinite(scale.kl())


@pytest.mark.parametrize("prior", ["log-uniform", "horseshoe"])
@pytest.mark.parametrize("name", CONVS)
def test_folding_the_scales_leaves_what_evaluation_saw(name, prior):
    make, shape = CONVS[name]
    torch.manual_seed(0)
    layer = group.GroupNoisyLayer(make().double(), prior, 10.0).double().eval()
    with torch.no_grad():
        if prior == "log-uniform":
            layer.scale.log_variance.scaled[0] = 0.5  # a unit that dies
        else:
            layer.scale.unit.scaled[:, 0] -= 0.6
    assert not layer.live()[0]
    assert layer.live()[1:].all()
    x = torch.randn(3, *shape, dtype=torch.float64)
    before, mask = layer(x), layer.mask(None)
    layer.fold()
    assert torch.allclose(layer.layer(x), before, atol=1e-12)
    assert (layer.layer.weight[~mask] == 0).all()
    assert (layer.layer.weight[mask] != 0).all()


@pytest.mark.parametrize("name", ["linear", "conv"])
def test_group_noise_has_the_moments_of_sampled_scales_and_weights(name):
    make, shape = CONVS[name]
    torch.manual_seed(0)
    layer = group.GroupNoisyLayer(make().double(), "log-uniform", 10.0).double()
    with torch.no_grad():
        layer.log_variance.scaled.fill_(-0.35)
        layer.scale.log_variance.scaled.fill_(-0.25)
        x = torch.randn(1, *shape, dtype=torch.float64)
        local = torch.cat([layer(x.expand(1000, *shape)) for _ in range(30)]).flatten(1)
        plain, weight = layer.layer, layer.layer.weight.detach().clone()
        sampled = []
        for _ in range(8000):
            plain.weight.copy_(weight + torch.exp(0.5 * layer.log_variance()) * torch.randn_like(weight))
            z = layer.scale.sample(1)[0]
            y = plain(x * z) if name == "linear" else plain(x) * z[:, None, None]
            sampled.append(y.flatten())
    sampled = torch.stack(sampled)
    error = sampled.std(0) / math.sqrt(8000) + local.std(0) / math.sqrt(len(local))
    assert ((local.mean(0) - sampled.mean(0)).abs() < 5 * error).all()
    assert torch.allclose(local.std(0), sampled.std(0), rtol=0.05)


def test_the_valley_lies_in_the_widest_gap_of_the_range():
    heaps = torch.tensor([-6.0, -5.8, -5.5, 4.0, 4.1, 5.0])
    assert group.valley(heaps, -4, 3, 0) == pytest.approx(-0.75)
    wide_elsewhere = torch.tensor([-20.0, -6.0, -1.0, 1.0, 2.5])
    assert group.valley(wide_elsewhere, -4, 3, 0) == pytest.approx(-3.5)
    assert group.valley(torch.linspace(-5, 5, 50), -4, 3, 0.5) == 0.5
    assert group.valley(torch.tensor([1.0]), -4, 3, 0.5) == 0.5


def test_a_layer_of_noise_keeps_its_best_unit():
    layer = group.GroupNoisyLayer(nn.Linear(4, 2), "log-uniform", 10.0)
    with torch.no_grad():
        layer.scale.log_variance.scaled.copy_(torch.tensor([0.9, 0.7, 0.8, 0.9]))
    assert layer.live().tolist() == [False, True, False, False]


def test_single_weights_can_be_pruned_by_their_own_noise():
    layer = group.GroupNoisyLayer(nn.Linear(2, 2), "log-uniform", 10.0)
    with torch.no_grad():
        layer.layer.weight.fill_(0.1)
        layer.log_variance.scaled.copy_(torch.tensor([[-0.9, 0.0], [-0.9, -0.9]]))
    assert layer.mask(None).all()
    assert layer.mask(3.0).tolist() == [[True, False], [True, True]]


# ------------------------------------------------------------------------------------------------ swapping


def test_a_swapped_network_goes_back_to_the_plain_one():
    network = small_mlp()
    swapped = Swapped(network, ["fc1", "out"], lambda _, layer: dropout.NoisyLayer(layer, 3.0, 10.0))
    assert isinstance(swapped.network.fc1, dropout.NoisyLayer)
    assert isinstance(swapped.network.fc2, nn.Linear)
    assert isinstance(network.fc1, nn.Linear)
    plain = swapped.plain()
    assert list(plain.state_dict()) == list(network.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), network.parameters(), strict=True))
    assert type(plain) is type(network)


def test_a_single_layer_and_a_layer_used_twice_can_be_swapped():
    swapped = Swapped(nn.Linear(2, 2), [""], lambda _, layer: dropout.NoisyLayer(layer, 3.0, 10.0))
    assert isinstance(swapped.network, dropout.NoisyLayer)
    assert isinstance(swapped.plain(), nn.Linear)
    shared = nn.Linear(3, 3)
    swapped = Swapped(nn.Sequential(shared, shared), ["0"], lambda _, layer: dropout.NoisyLayer(layer, 3.0, 10.0))
    assert swapped.network[0] is swapped.network[1]
    assert isinstance(swapped.network[0], dropout.NoisyLayer)
    plain = swapped.plain()
    assert plain[0] is plain[1]
    assert isinstance(plain[0], nn.Linear)


def test_attention_keeps_its_projection():
    network = nn.MultiheadAttention(4, 2)
    swapped = Swapped(network, ["out_proj"], lambda _, layer: dropout.NoisyLayer(layer, 3.0, 10.0))
    assert not swapped.wrappers


def test_scales_are_not_folded_into_tied_weights():
    network = small_mlp(widths=(10, 10))
    network.out.weight = network.fc2.weight
    with pytest.warns(UserWarning, match="shares its weight with fc2"):
        run = a_run(network=network)
    assert list(run.layers) == ["fc1", "fc2"]
    assert run.untied == ["fc1"]
