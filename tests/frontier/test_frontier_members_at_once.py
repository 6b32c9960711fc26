"""Convolutions and pooling of many members, against one member after another."""

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
