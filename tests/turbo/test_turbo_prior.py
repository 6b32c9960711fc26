"""The prior of a network: its pull is the gradient of the objective that it claims, by autograd."""

import math

import pytest
import torch
from torch import nn
from turbo_examples import residual, small_mlp

from bayesprune.structure import live_units, trace, unit_costs
from bayesprune.supports import IsingGrid
from bayesprune.turbo import Compressor, Settings
from bayesprune.turbo.network_prior import NetworkPrior, PriorSettings
from bayesprune.variational import MeanField

EXAMPLES = 500
NETWORKS = {
    "mlp": (lambda: small_mlp(), torch.zeros(2, 1, 8, 8)),
    "residual": (lambda: residual(), torch.zeros(2, 3, 8, 8)),
}
SETTINGS = {
    "default": {},
    "no folding": {"fold_batchnorm": False},
    "mean field": {"family": "mean_field", "coupling": 0.3},
    "groups": {"groups": "row", "normalise_fan_in": False},
    "neighbours": {"groups": "pattern"},
}


def prior_of(network, example, **options):
    settings = Settings(**options).prior()
    return NetworkPrior(network, trace(network, example), settings, EXAMPLES)


def batchnorm_of(weight, network):
    """The BatchNorm behind a layer of `Residual`, by name."""
    name = {"stem": "stem_norm", "conv1": "norm1", "conv2": "norm2"}.get(weight.name)
    return getattr(network, name) if name else None


def effective(weight, network, folded, normalised, held=True):
    """The weight that the prior sees, written out anew; `held`: the BatchNorm's scale takes no gradient."""
    parameter = weight.weight
    factor = math.sqrt(parameter[0].numel() / 2) if normalised else 1.0
    norm = batchnorm_of(weight, network) if folded else None
    if norm is None:
        return parameter * factor
    scale = (norm.weight.detach() if held else norm.weight) / (norm.running_var + norm.eps).sqrt()
    return parameter * (factor * scale).reshape(-1, *(1,) * (parameter.ndim - 1))


def unit_means(structure, squares):
    """Mean square over the weights into and out of each unit, unit by unit."""
    means = []
    for unit in range(structure.unit_count):
        total, count = torch.zeros((), dtype=torch.float64), 0
        for layer in structure.layers:
            assert layer.groups == 1
            made = squares[layer.name][layer.out_units == unit]
            read = squares[layer.name][:, layer.in_units[0] == unit]
            total = total + made.double().sum() + read.double().sum()
            count += made.numel() + read.numel()
        means.append(total / max(count, 1))
    return torch.stack(means)


def objective(prior, network, options, weight_strength, unit_strength, held):
    """What a refresh claims to pull along: E[rho] w^2 / 2 with E[rho] fixed, and the log of the units' mean squares."""
    folded, normalised = options.get("fold_batchnorm", True), options.get("normalise_fan_in", True)
    seen = {w.name: effective(w, network, folded, normalised, held) for w in prior.weights}
    total = torch.zeros((), dtype=torch.float64)
    for weight, posterior in zip(prior.weights, prior.posteriors(), strict=True):
        energy = prior.settings.groups.energy(seen[weight.name])
        total = total + weight_strength * (posterior.expected_precision.detach() * energy).double().sum()
    means = unit_means(prior.structure, {name: value.square() for name, value in seen.items()})
    costs = unit_costs(prior.structure, prior.settings.cost_mix)
    return (total + unit_strength * (costs * (means + prior.settings.unit_floor).log()).sum()) / EXAMPLES


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_pull_is_the_gradient_of_the_objective(name, options):
    make, example = NETWORKS[name]
    network = make()
    prior = prior_of(network, example, **options)
    prior.refresh(0.7, 300.0)
    parameters = [w.weight for w in prior.weights]
    wanted = torch.autograd.grad(objective(prior, network, options, 0.7, 300.0, held=True), parameters)
    for weight, pull, gradient in zip(prior.weights, prior._pulls, wanted, strict=True):
        torch.testing.assert_close(pull * weight.weight.detach(), gradient, rtol=2e-4, atol=1e-8)
    if name == "residual" and options.get("fold_batchnorm", True):
        scales = [network.stem_norm.weight, network.norm1.weight, network.norm2.weight]
        wanted = torch.autograd.grad(objective(prior, network, options, 0.7, 300.0, held=False), scales)
        assert len(prior._norm_pulls) == 3
        for scale, pull, gradient in zip(scales, prior._norm_pulls, wanted, strict=True):
            torch.testing.assert_close(pull * scale.detach(), gradient, rtol=2e-4, atol=1e-8)
    else:
        assert prior._norm_pulls == []


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_and_decay_use_exactly_the_pull(name):
    make, example = NETWORKS[name]
    network = make()
    prior = prior_of(network, example)
    prior.refresh(1.0, 100.0)
    parameters, pulls = [w.weight for w in prior.weights] + prior._norms, prior._pulls + prior._norm_pulls
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = {p: p.grad.clone() for p in network.parameters()}
    prior.add_gradients()
    pulled = {id(p) for p in parameters}
    for parameter, pull in zip(parameters, pulls, strict=True):
        wanted = before[parameter] + pull * parameter.detach()
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-6, atol=1e-7)
    assert all(torch.equal(p.grad, g) for p, g in before.items() if id(p) not in pulled)

    weights = {p: p.detach().clone() for p in network.parameters()}
    prior.decay(0.05)
    for parameter, pull in zip(parameters, pulls, strict=True):
        # The proximal step: argmin over v of (v - w)^2 / 2 + lr pull v^2 / 2, from its optimality condition.
        new, old = parameter.detach().double(), weights[parameter].double()
        torch.testing.assert_close(new - old + 0.05 * pull.double() * new, torch.zeros_like(new), rtol=0, atol=1e-6)
    assert all(torch.equal(p.detach(), w) for p, w in weights.items() if id(p) not in pulled)


def test_parameters_without_gradient_are_left_alone():
    network = residual()
    network.norm1.weight.requires_grad_(False)
    network.conv2.weight.requires_grad_(False)
    prior = prior_of(network, torch.zeros(2, 3, 8, 8))
    prior.refresh(1.0, 100.0)
    assert [w.name for w in prior.weights] == ["stem", "conv1", "head"]
    assert [id(norm) for norm in prior._norms] == [id(network.stem_norm.weight)]
    kept = network.norm1.weight.clone(), network.conv2.weight.clone()
    prior.add_gradients()  # no gradients yet: nothing to add to
    prior.decay(0.1)
    assert torch.equal(network.norm1.weight, kept[0])
    assert torch.equal(network.conv2.weight, kept[1])


def test_masks_are_the_more_probable_support_and_closing_only_removes():
    network = residual()
    compressor = Compressor(network, torch.zeros(2, 3, 8, 8), examples=EXAMPLES, epochs=3)
    with torch.no_grad():
        network.conv1.weight[2] = 0.0
    compressor.update()
    raw, closed = compressor.prior.masks(), compressor.masks()
    for weight, posterior in zip(compressor.prior.weights, compressor.prior.posteriors(), strict=True):
        assert raw[weight.name].shape == weight.weight.shape
        chosen = compressor.prior.settings.groups.to_weights(posterior.active, weight.weight.shape) > 0.5
        assert torch.equal(raw[weight.name], chosen)
        assert not (closed[weight.name] & ~raw[weight.name]).any()
    assert not raw["conv1"][2].any()
    assert not closed["conv2"][:, 2].any()  # nobody makes what it reads
    alive = live_units(compressor.structure, closed)
    for layer in compressor.structure.layers:
        dead = ~alive[layer.out_units][:, None] | ~alive[layer.in_units[0]][None]
        assert not closed[layer.name].reshape(*dead.shape, -1).any(2)[dead].any()
    size = compressor.size(closed)
    assert size.live_weights == sum(int(m.sum()) for m in closed.values())
    assert size.weights == sum(w.weight.numel() for w in compressor.prior.weights)


@pytest.mark.parametrize("family", ["collapsed", "mean_field"])
def test_a_prior_is_restored_to_the_bit(family):
    def fresh():
        network = small_mlp()
        options = {"family": family, "coupling": 0.4, "random_start": True}
        return network, prior_of(network, torch.zeros(2, 1, 8, 8), **options)

    def go_on(network, prior):
        for _ in range(3):
            change, _ = prior.pass_messages()
            prior.refresh(1.0, 50.0)
            prior.decay(0.1)
        return [p.detach().clone() for p in network.parameters()], change

    network, prior = fresh()
    prior.pass_messages()
    prior.refresh(1.0, 50.0)
    kept, weights = prior.state(), {k: v.clone() for k, v in network.state_dict().items()}
    wanted, change = go_on(network, prior)
    other_network, other = fresh()
    other_network.load_state_dict(weights)
    other.load(kept)
    found, other_change = go_on(other_network, other)
    assert change == other_change
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(prior.prior_logits, other.prior_logits, strict=True))
    for one, two in zip(prior.posteriors(), other.posteriors(), strict=True):
        assert torch.equal(one.active_logit, two.active_logit)
        assert torch.equal(one.expected_precision, two.expected_precision)


def test_the_first_messages_are_the_supports_own_or_drawn():
    network = small_mlp()
    structure = trace(network, torch.zeros(2, 1, 8, 8))
    plain = NetworkPrior(network, structure, PriorSettings(support=IsingGrid(0.3, 0.5)), EXAMPLES)
    assert all(logit.unique().numel() < logit.numel() for logit in plain.prior_logits)
    drawn = PriorSettings(family=MeanField(), support=IsingGrid(0.3, 0.5), random_start=True)
    one, two, three = (NetworkPrior(network, structure, drawn, EXAMPLES, seed) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one.prior_logits, two.prior_logits, strict=True))
    assert not torch.equal(one.prior_logits[0], three.prior_logits[0])
    pi = torch.sigmoid(one.prior_logits[0])
    assert 0.45 < float(pi.mean()) < 0.55


def test_a_network_without_weights_is_refused():
    network = nn.Sequential(nn.Flatten(), nn.ReLU())
    with pytest.raises(ValueError, match="nothing to compress"):
        prior_of(network, torch.zeros(2, 1, 8, 8))
