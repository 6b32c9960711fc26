"""Units in another order: the same outputs, and every kind of network keeps what it cannot move."""

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from surgery_networks import NETWORKS, STEPS, Random
from torch import nn
from torch.nn.functional import cross_entropy

from bayesprune import models
from bayesprune.structure import trace
from bayesprune.surgery import ProofError, move_optimiser, moved_masks, moved_state, reorder
from structure.structure_networks import NETWORKS as STRUCTURE_NETWORKS
from structure.structure_networks import Net, conv, randomise

MODELS = {"lenet5": (1, 28, 28), "alexnet-small": (3, 32, 32), "vgg11": (3, 32, 32), "resnet20": (3, 32, 32)}


def grouped() -> Net:
    def forward(net, x):
        x = net.first(x).relu()
        both = torch.cat([net.halves(x).relu(), net.deep(x)], 1)
        return net.out(net.norm(both).relu().mean((2, 3)))

    return Net(
        forward,
        first=conv(3, 8),
        halves=nn.Conv2d(8, 6, 3, padding=1, groups=2),
        deep=nn.Conv2d(8, 16, 3, padding=1, groups=8),
        norm=nn.BatchNorm2d(22),
        out=nn.Linear(22, 4),
    )


SMALL = {"grouped": grouped, **{name: make for name, (make, _) in STRUCTURE_NETWORKS.items()}, **NETWORKS}


def create(name):
    """A network in double precision, its biases and norms different in every channel, and the shape of images."""
    torch.manual_seed(0)
    if name not in MODELS:
        return randomise(SMALL[name]()), (3, 8, 8)
    generator = torch.Generator().manual_seed(0)
    network = models.create(name, MODELS[name], 10, generator=generator).double().eval()
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.ndim == 1:
            tensor.detach().copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return network, MODELS[name]


def difference(one, two, x):
    """The largest, relative to the largest output."""
    with torch.no_grad():
        one, two = one(x), two(x)
    pairs = [(one, two)] if torch.is_tensor(one) else list(zip(one, two, strict=True))
    return max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs)


def check_same_in_another_order(network, x, seed=1, tolerance32=1e-5):
    """Reorder at random and compare; returns the moves.

    tolerance32: weights drawn at random amplify the rounding of sums.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        structure = trace(network, x[:1])
    score = torch.rand(structure.unit_count, generator=torch.Generator().manual_seed(seed))
    before = copy.deepcopy(network)
    moves = reorder(network, structure, score, x[:1])
    assert difference(before, network, x) < 1e-12
    assert difference(before.float(), network.float(), x.float()) < tolerance32
    assert all(torch.equal(index.flatten().sort()[0], torch.arange(index.numel())) for index in moves.values())
    return moves


@pytest.mark.parametrize("name", [*MODELS, *SMALL])
def test_the_outputs_stay_the_same(name):
    network, shape = create(name)
    x = torch.rand(4, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 0.5
    moves = check_same_in_another_order(network, x, tolerance32=1e-6 if name in MODELS else 1e-5)
    assert moves
    if name in MODELS:
        names = [name for name, module in network.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]
        assert all(f"{name}.weight" in moves for name in names)


PLANS = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 100)), min_size=2, max_size=8)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(PLANS, st.integers(0, 1000))
def test_random_networks(steps, seed):
    x = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 0.5
    check_same_in_another_order(randomise(Random(steps), seed), x, seed)


def test_units_are_sorted_in_every_layer():
    network = models.create("lenet5", (1, 28, 28), 10, generator=torch.Generator().manual_seed(0))
    structure = trace(network, torch.zeros(1, 1, 28, 28))
    norms = {layer.name: network.get_submodule(layer.name).weight.detach() for layer in structure.layers}
    score = torch.zeros(structure.unit_count)
    for layer in structure.layers[:-1]:
        score[layer.out_units] = norms[layer.name].flatten(1).norm(dim=1)
    inputs, last = network.conv1.weight.detach().clone(), network.out.weight.detach().clone()
    reorder(network, structure, score, torch.zeros(1, 1, 28, 28))
    for layer in structure.layers[:-1]:
        sizes = network.get_submodule(layer.name).weight.detach().flatten(1).norm(dim=1)
        assert torch.equal(sizes, sizes.sort(descending=True)[0])
    order = inputs.flatten(1).norm(dim=1).argsort(descending=True)
    assert torch.equal(network.conv1.weight, inputs[order])  # its input pixels stay in their place
    assert torch.equal(network.out.weight.detach().sort(1)[0], last.sort(1)[0])  # and so do the classes


def test_groups_and_parts_keep_their_units():
    torch.manual_seed(0)
    network = grouped()
    structure = trace(network, torch.zeros(1, 3, 8, 8))
    before = copy.deepcopy(network)
    moves = reorder(network, structure, -torch.arange(structure.unit_count).float(), torch.randn(1, 3, 8, 8))
    assert not moves  # sorted already
    reorder(network, structure, torch.arange(structure.unit_count).float(), torch.randn(1, 3, 8, 8))
    # A reader with two groups: channels change places inside their half.
    expected = before.first.weight[[3, 2, 1, 0, 7, 6, 5, 4]]
    assert torch.equal(network.first.weight, expected)
    assert torch.equal(network.halves.weight, before.halves.weight[[2, 1, 0, 5, 4, 3]].flip(1))


def test_what_was_kept_from_before_follows():
    torch.manual_seed(0)
    network = create("lenet5")[0]
    x = torch.randn(3, 1, 28, 28).double()
    structure = trace(network, x)
    twin = copy.deepcopy(network)
    masks = {name: torch.rand(getattr(network, name).weight.shape) < 0.3 for name in ("conv2", "fc1")}
    state = copy.deepcopy(network.state_dict())
    moves = reorder(network, structure, torch.rand(structure.unit_count), x)
    moved = moved_state(state, moves)
    assert all(torch.equal(moved[name], tensor) for name, tensor in network.state_dict().items())
    for name, mask in moved_masks(masks, moves).items():
        getattr(network, name).weight.data.mul_(mask)
        getattr(twin, name).weight.data.mul_(masks[name])
    torch.testing.assert_close(network(x), twin(x))


@pytest.mark.parametrize("make", [torch.optim.Adam, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)])
def test_training_goes_on_as_if_nothing_had_happened(make):
    def trained(sorts):
        torch.manual_seed(0)
        network = models.create("lenet5", (1, 28, 28), 10, generator=torch.Generator().manual_seed(0)).double()
        optimiser = make(network.parameters())
        x, y = torch.randn(8, 1, 28, 28).double(), torch.arange(8)
        for step in range(4):
            optimiser.zero_grad()
            cross_entropy(network(x), y).backward()
            optimiser.step()
            if sorts and step == 1:
                structure = trace(network, x)
                move_optimiser(optimiser, network, reorder(network, structure, torch.rand(structure.unit_count), x))
        return network(x)

    torch.testing.assert_close(trained(True), trained(False), rtol=1e-9, atol=1e-9)


def test_a_network_that_would_differ_is_left_alone(monkeypatch):
    network = models.create("lenet5", (1, 28, 28), 10, generator=torch.Generator().manual_seed(0))
    x = torch.randn(1, 1, 28, 28)
    structure = trace(network, x)
    object.__setattr__(structure, "layers", structure.layers[:-1])  # as if a reader had been overlooked
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(ProofError, match="in another order of its units the network differs"):
        reorder(network, structure, torch.rand(structure.unit_count), x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    with pytest.raises(ValueError, match="score must have one entry per unit"):
        reorder(network, structure, torch.rand(3), x)
