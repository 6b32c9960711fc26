"""Training goes on where it was."""

import copy
import warnings

import pytest
import torch
from surgery_networks import full_masks, unit_masks
from torch import nn
from torch.nn import functional

from bayesprune.models import create
from bayesprune.surgery import carry_over, masked_network, operate
from structure.structure_networks import Net, conv, randomise

IMAGES = torch.rand(8, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 0.5
LABELS = torch.arange(8) % 3

OPTIMISERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, nesterov=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01, amsgrad=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01, weight_decay=0.1),
}


def trained_network():
    """Every unit has live inputs, so that nothing is a constant; some are not read, one kernel is cropped."""

    def forward(net, x):
        x = net.norm(net.one(x)).relu()
        x = net.deep(x).relu() + x
        x = net.two(x).relu().flatten(1)
        return net.out(net.hidden(x).relu())

    parts = {"one": conv(3, 6), "norm": nn.BatchNorm2d(6), "deep": conv(6, 6, groups=6)}
    model = Net(forward, **parts, two=conv(6, 4), hidden=nn.Linear(4 * 64, 7), out=nn.Linear(7, 3))
    model = randomise(model)
    masks = full_masks(model)
    masks["two"][:, [1, 5]] = masks["hidden"].reshape(7, 4, 64)[:, 2] = masks["out"][:, 3] = False
    masks["two"][..., 0] = False
    masks["one"][0, 1] = False
    return model, masks


def step(network, optimiser, masks=None):
    optimiser.zero_grad()
    loss = functional.cross_entropy(network(IMAGES), LABELS)
    loss.backward()
    for name, mask in (masks or {}).items():
        weight = network.get_parameter(f"{name}.weight")
        # The small network has lost weights, its masks likewise.
        weight.grad.mul_(mask)
    optimiser.step()
    return float(loss.detach())


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_go_on(name):
    model, masks = trained_network()
    model = masked_network(model, masks).train()
    optimiser = OPTIMISERS[name](model.parameters())
    for _ in range(3):
        step(model, optimiser, masks)
    surgery = operate(model, masks, IMAGES)
    network = surgery.network
    assert surgery.removed_units == 4
    assert tuple(network.two.weight.shape) == (3, 4, 3, 2)
    successor = OPTIMISERS[name](network.parameters())
    successor.load_state_dict(carry_over(optimiser, model, surgery))
    small = {key: mask.flatten()[surgery.kept[f"{key}.weight"]] for key, mask in masks.items()}
    for _ in range(4):
        assert step(network, successor, small) == pytest.approx(step(model, optimiser, masks), rel=1e-9)
    for key, parameter in network.named_parameters():
        expected = model.get_parameter(key).flatten()[surgery.kept[key]]
        torch.testing.assert_close(parameter, expected, rtol=1e-8, atol=1e-10)


def test_groups_and_new_biases():
    model = randomise(Net(lambda net, x: net.out(net.one(x).sigmoid()), one=nn.Linear(8, 5), out=nn.Linear(5, 3)))
    model.out.register_parameter("bias", None)
    groups = [{"params": [model.one.weight], "lr": 0.1}, {"params": [model.out.weight, model.one.bias], "lr": 0.2}]
    optimiser = torch.optim.SGD(groups, momentum=0.9)
    model(IMAGES).sum().backward()
    optimiser.step()
    masks = full_masks(model)
    masks["one"][2] = False
    surgery = operate(model, masks, IMAGES)
    state = carry_over(optimiser, model, surgery)
    network = surgery.network
    successor = torch.optim.SGD(
        [{"params": [network.one.weight]}, {"params": [network.one.bias, network.out.weight, network.out.bias]}],
        lr=1,
        momentum=0.9,
    )
    successor.load_state_dict(state)
    assert [group["lr"] for group in successor.param_groups] == [0.1, 0.2]
    alive = [0, 1, 3, 4]
    momentum = optimiser.state[model.out.weight]["momentum_buffer"]
    assert torch.equal(successor.state[network.out.weight]["momentum_buffer"], momentum[:, alive])
    assert network.out.bias not in successor.state


def test_states_that_cannot_follow():
    model, masks = trained_network()
    surgery = operate(model, masks, IMAGES)
    optimiser = torch.optim.Adafactor(model.parameters())
    step(model, optimiser)
    with pytest.raises(ValueError, match="cannot follow it; start a new optimiser"):
        carry_over(optimiser, model, surgery)
    with pytest.raises(ValueError, match="no parameter of the model"):
        carry_over(torch.optim.SGD(copy.deepcopy(model).parameters()), model, surgery)


@pytest.mark.parametrize("name", ["lenet5", "resnet20"])
def test_the_result_learns(name):
    shape = (3, 12, 12)
    model = create(name, shape, 3, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = operate(model, unit_masks(model, 0.5, 0), torch.zeros(1, *shape)).network
    images = torch.rand(16, *shape, generator=torch.Generator().manual_seed(1))
    optimiser = torch.optim.SGD(network.parameters(), 0.01)
    losses = []
    for _ in range(5):
        loss = functional.cross_entropy(network(images), torch.arange(16) % 3)
        optimiser.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in network.parameters())
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
