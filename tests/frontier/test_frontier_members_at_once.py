"""Convolutions and pooling of many members, against one member after another."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from bayesprune.frontier.members_at_once import MemberConv2d, MemberMaxPool2d, for_many_members

MEMBERS = 3
SHAPES = {
    "kernel 5": nn.Conv2d(2, 4, 5),
    "padding": nn.Conv2d(2, 4, 3, padding=1),
    "unequal": nn.Conv2d(2, 5, (3, 2), padding=(0, 1)),
    "no bias": nn.Conv2d(2, 4, 3, bias=False),
    "one tap": nn.Conv2d(2, 4, 1),
    "pooling": nn.MaxPool2d(2),
    "pooling with overlap": nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
    "wide padding, not replaced": nn.Conv2d(2, 4, 1, padding=1),
    "stride, not replaced": nn.Conv2d(2, 4, 3, stride=2),
    "groups, not replaced": nn.Conv2d(2, 4, 3, groups=2),
    "same, not replaced": nn.Conv2d(2, 4, 3, padding="same"),
}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_members_convolve_as_each_would_alone(name, shared):
    """Outputs, and the gradients of weights, biases and inputs, in float64."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    plain = nn.Sequential(SHAPES[name]).double()
    together = for_many_members(plain)
    assert (type(together[0]) in (MemberConv2d, MemberMaxPool2d)) == ("not replaced" not in name)
    assert type(plain[0]) in (nn.Conv2d, nn.MaxPool2d)
    parameters = {key: random(MEMBERS, *value.shape) for key, value in plain.named_parameters()}
    shared = shared and bool(parameters)  # without parameters there would be nothing to map over
    x = random(6, 2, 7, 8) if shared else random(MEMBERS, 6, 2, 7, 8)
    dims = (0, None) if shared else (0, 0)

    def outputs(parameters, x):
        return vmap(lambda p, one: functional_call(together, p, (one,)), dims)(parameters, x)

    given = [*parameters.values(), x]
    found = outputs(parameters, x)
    expected = torch.stack(
        [
            functional_call(plain, {key: value[i] for key, value in parameters.items()}, (x if shared else x[i],))
            for i in range(MEMBERS)
        ]
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), given),
        torch.autograd.grad((expected * weights).sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, stride=2, padding=1)])
def test_bias_and_relu_come_after_pooling(pool):
    """Outputs and gradients as in the order given, by the same names of parameters."""
    generator = torch.Generator().manual_seed(0)
    shared = nn.Conv2d(3, 3, 3, padding=1)
    plain = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(2, 3, 3, padding=1),
            relu1=nn.ReLU(),
            pool1=pool,
            again1=shared,
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(1),
            again2=shared,
            conv2=nn.Conv2d(3, 4, 2, bias=False),
            relu3=nn.ReLU(),
            pool3=nn.MaxPool2d(2),
        )
    ).double()
    together = for_many_members(plain)
    names = [name for name, _ in together.named_children()]
    assert names.index("pool1") < names.index("relu1")
    assert names.index("pool3") < names.index("relu3")
    assert names.index("relu2") < names.index("pool2")  # its convolution is used twice
    assert list(plain._modules) == [
        "conv1",
        "relu1",
        "pool1",
        "again1",
        "relu2",
        "pool2",
        "again2",
        "conv2",
        "relu3",
        "pool3",
    ]
    assert dict(together.named_parameters()).keys() == dict(plain.named_parameters()).keys()
    parameters = {
        name: torch.randn((MEMBERS, *value.shape), generator=generator, dtype=torch.float64).requires_grad_()
        for name, value in plain.named_parameters()
    }
    x = torch.randn(5, 2, 9, 9, generator=generator, dtype=torch.float64)
    found = vmap(lambda p: functional_call(together, p, (x,)))(parameters)
    each = [{name: value[i] for name, value in parameters.items()} for i in range(MEMBERS)]
    expected = torch.stack([functional_call(plain, one, (x,)) for one in each])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    given, weights = list(parameters.values()), torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), given),
        torch.autograd.grad((expected * weights).sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
