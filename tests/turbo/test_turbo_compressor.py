"""The compressor beside a training loop of one's own: any optimiser, fewer weights, little lost."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy
from turbo_examples import QUICK, digits, residual, small_mlp

from bayesprune.data import Batches
from bayesprune.turbo import Compressor, Settings

OPTIMISERS = {
    "adam": lambda p: torch.optim.Adam(p, 3e-3),
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, 3e-3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3),
}


def accuracy(network, split):
    with torch.no_grad():
        return (network(split.x).argmax(1) == split.y).double().mean().item()


def train(network, data, optimiser, epochs, compressor=None, decoupled=False):
    generator = torch.Generator().manual_seed(1)
    updates = []
    for _ in range(epochs):
        for x, y in Batches(data.train, 64, generator):
            loss = cross_entropy(network(x), y)
            optimiser.zero_grad()
            loss.backward()
            if compressor and not decoupled:
                compressor.add_gradients()
            optimiser.step()
            if compressor and decoupled:
                compressor.decay(optimiser.param_groups[0]["lr"])
        if compressor:
            updates.append(compressor.update())
    return updates


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_loop_of_ones_own_loses_weights_and_little_accuracy(name):
    data, network = digits(), small_mlp()
    train(network, data, OPTIMISERS[name](network.parameters()), 10)
    before = accuracy(network, data.validation)
    settings = replace(QUICK, weight_strength=10.0, unit_strength=1000.0) if name == "sgd" else QUICK
    compressor = Compressor(network, data.train.x[:1], examples=len(data.train), epochs=12, settings=settings)
    updates = train(network, data, OPTIMISERS[name](network.parameters()), 12, compressor, name == "sgd")
    kept = {w.name: w.weight.detach().clone() for w in compressor.prior.weights}
    masks = compressor.finish()
    assert sorted(masks) == ["fc1", "fc2", "out"]
    for weight in compressor.prior.weights:
        assert torch.equal(weight.weight.detach(), kept[weight.name] * masks[weight.name])
        assert torch.equal(weight.weight != 0, masks[weight.name])
    nonzeros = sum(int((w.weight != 0).sum()) for w in compressor.prior.weights)
    size = compressor.size(masks)
    assert size.live_weights == nonzeros
    assert nonzeros < 0.5 * size.weights
    assert accuracy(network, data.validation) > before - 0.05
    assert [u.weight_strength for u in updates] == sorted(u.weight_strength for u in updates)
    assert updates[-1].weight_strength == settings.weight_strength
    assert updates[-1].unit_strength == settings.unit_strength
    assert updates[-1].size.live_weights == nonzeros
    assert all(u.converged for u in updates)


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("decoupled", [False, True], ids=["gradients", "decay"])
def test_any_optimiser_runs(name, decoupled):
    data, network = digits(), small_mlp(widths=(8,))
    settings = Settings(
        unit_strength=1.0, weight_start=0.0, weight_strength=0.1
    )  # stronger pulls through the gradients of SGD overshoot, as they must
    compressor = Compressor(network, data.train.x[:1], examples=len(data.train), epochs=1, settings=settings)
    train(network, data, OPTIMISERS[name](network.parameters()), 1, compressor, decoupled)
    masks = compressor.finish()
    assert all(torch.isfinite(p).all() for p in network.parameters())
    assert all(mask.any() for mask in masks.values())


def test_the_size_counts_what_a_dense_remainder_would_cost():
    network = residual()
    compressor = Compressor(network, torch.zeros(1, 3, 8, 8), examples=10, epochs=1)
    dense = compressor.size({w.name: torch.ones_like(w.weight, dtype=torch.bool) for w in compressor.prior.weights})
    layers = [network.stem, network.conv1, network.conv2]
    assert dense.macs_dense == dense.macs == 64 * sum(layer.weight.numel() for layer in layers) + 6 * 4
    assert dense.nonzero_fraction == dense.dense_fraction == dense.macs_fraction == 1.0
    assert dense.structure == [6, 6, 6]
    assert dense.empty_layers == []
    masks = compressor.prior.masks()
    masks["conv1"] = torch.ones_like(masks["conv1"])
    masks["conv1"][1:] = False  # one channel left inside the block
    masks = {name: mask if name == "conv1" else torch.ones_like(mask) for name, mask in masks.items()}
    masks["conv2"][:, 1:] = False
    size = compressor.size(masks)
    assert size.structure == [6, 1, 6]
    assert size.macs == 64 * (3 * 6 * 9 + 6 * 9 + 6 * 9) + 24
    assert size.dense_weights == 3 * 6 * 9 + 6 * 9 + 6 * 9 + 24


def test_strengths_follow_their_ramps():
    settings = Settings(
        weight_strength=8.0, weight_start=0.5, weight_ramp=(0.5, 1.0), unit_strength=10.0, unit_ramp=(0.0, 0.5)
    )
    compressor = Compressor(small_mlp(), torch.zeros(1, 1, 8, 8), examples=10, epochs=4, settings=settings)
    seen = [compressor.strengths]
    for _ in range(3):
        compressor.update()
        seen.append(compressor.strengths)
    assert seen == [(0.25, 5.0), (0.5, 10.0), (4.0, 10.0), (8.0, 10.0)]
    compressor.weaken()
    assert compressor.strengths == (4.0, 5.0)  # also without a budget


def test_a_budget_makes_the_pull_grow_and_lost_accuracy_makes_it_retreat():
    settings = Settings(max_accuracy_drop=0.5)
    compressor = Compressor(small_mlp(), torch.zeros(1, 1, 8, 8), examples=10, epochs=4, settings=settings)
    first = compressor.strengths
    compressor.update(accuracy_lost=0.4)
    grown = compressor.strengths
    assert sum(grown) > sum(first)
    assert all(b >= a for a, b in zip(first, grown, strict=True))
    compressor.update(accuracy_lost=0.6)
    assert all(b < a for a, b in zip(grown, compressor.strengths, strict=True))


def test_a_compressor_is_restored_to_the_bit():
    def fresh():
        network = small_mlp()
        return network, Compressor(network, data.train.x[:1], examples=len(data.train), epochs=4, settings=QUICK)

    def go_on(network, compressor):
        train(network, data, torch.optim.SGD(network.parameters(), 0.05), 2, compressor, decoupled=True)
        return compressor.finish()

    data = digits()
    network, compressor = fresh()
    train(network, data, torch.optim.SGD(network.parameters(), 0.05), 1, compressor, decoupled=True)
    weights, state = {k: v.clone() for k, v in network.state_dict().items()}, compressor.state()
    wanted = go_on(network, compressor)
    other_network, other = fresh()
    other_network.load_state_dict(weights)
    other.load(state)
    found = go_on(other_network, other)
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), other_network.parameters(), strict=True))
