"""Joined operations and widths filled up with zeros: the same answer from other shapes."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from bayesprune import models
from bayesprune.runtime import UnsupportedError
from bayesprune.runtime.fused import ConvReLU, fused
from bayesprune.runtime.widths import filled_up


def network_like(name, classes=10):
    """With BatchNorm statistics and signs as a trained network has them."""
    shape = (1, 28, 28) if name == "lenet5" else (3, 32, 32)
    generator = torch.Generator().manual_seed(0)
    network = models.create(name, shape, classes, generator=generator).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean):
                tensor.copy_(torch.randn(tensor.shape, generator=generator))
            module.running_var.copy_(torch.rand(module.running_var.shape, generator=generator) + 0.5)
    return network, shape


def outputs(network, shape, count=3):
    x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return network(x)


@pytest.mark.parametrize(
    ("name", "multiple"), [("lenet5", 8), ("lenet5", 24), ("alexnet-small", 24), ("vgg11", 8), ("resnet20", 24)]
)
def test_zeros_beside_the_channels_change_nothing(name, multiple):
    network, shape = network_like(name)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    twin = filled_up(network, shape, multiple)
    torch.testing.assert_close(outputs(twin, shape), outputs(network, shape), rtol=1e-4, atol=1e-4)
    layers = [module for module in twin.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert all(layer.weight.shape[0] % multiple == 0 for layer in layers[:-1])
    assert layers[-1].weight.shape[0] == 10  # the classes
    assert layers[0].weight.shape[1] == shape[0]
    for layer in layers:
        sizes = ("out_features", "in_features") if isinstance(layer, nn.Linear) else ("out_channels", "in_channels")
        assert tuple(getattr(layer, size) for size in sizes) == tuple(layer.weight.shape[:2])
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_flattened_channels_and_concatenations_keep_their_places():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(2, 5, 3, padding=1)
            self.norm, self.fc, self.out = nn.BatchNorm2d(8), nn.Linear(8 * 16, 7), nn.Linear(7, 2)

        def forward(self, x):
            x = self.norm(torch.cat([self.left(x), self.right(x)], dim=1)).relu()
            return self.out(self.fc(x.flatten(1)).relu())

    torch.manual_seed(0)
    network = Both().eval()
    twin = filled_up(network, (2, 4, 4), 4)
    assert twin.norm.weight.shape == (12,)
    assert twin.fc.weight.shape == (8, 12 * 16)
    torch.testing.assert_close(outputs(twin, (2, 4, 4)), outputs(network, (2, 4, 4)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (nn.Sequential(nn.Conv2d(2, 8, 3), nn.Flatten(), nn.Linear(32, 3)), "multiples of 8"),
        (nn.Sequential(nn.Conv2d(2, 6, 3), nn.Conv2d(6, 6, 1, groups=6), nn.Conv2d(6, 3, 1)), "without groups"),
        (nn.Sequential(nn.Conv2d(2, 6, 3), nn.GroupNorm(2, 6), nn.Conv2d(6, 3, 1)), "no BatchNorm"),
        (nn.Sequential(nn.Conv2d(2, 6, 3), nn.ConvTranspose2d(6, 6, 3), nn.Conv2d(6, 3, 1)), "more than Convs"),
    ],
)
def test_what_cannot_be_filled_up_is_refused(network, why):
    with pytest.raises(UnsupportedError, match=why):
        filled_up(network.eval(), (2, 4, 4), 8)


@pytest.mark.parametrize("multiple", [1, 8, 32])
@pytest.mark.parametrize("name", ["lenet5", "alexnet-small", "vgg11", "resnet20"])
def test_joined_operations_give_the_same(name, multiple):
    network, shape = network_like(name)
    if name == "resnet20" and multiple == 8:
        with pytest.raises(UnsupportedError, match="multiples of 8"):
            fused(network, shape, multiple)
        return
    twin = fused(network, shape, multiple)
    torch.testing.assert_close(outputs(twin, shape), outputs(network, shape), rtol=1e-4, atol=1e-4)
    modules = [twin.get_submodule(node.target) for node in twin.graph.nodes if node.op == "call_module"]
    assert not any(isinstance(module, nn.BatchNorm2d) for module in modules)
    assert any(isinstance(module, ConvReLU) for module in modules)
    assert all(parameter.dtype == torch.float32 for parameter in twin.parameters())


def test_a_relu_stays_where_others_read_the_conv():
    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.relu = nn.Conv2d(2, 4, 3), nn.ReLU()

        def forward(self, x):
            x = self.conv(x)
            return x - self.relu(x)

    network = Fork().eval()
    twin = fused(network, (2, 4, 4))
    torch.testing.assert_close(outputs(twin, (2, 4, 4)), outputs(network, (2, 4, 4)))
    assert isinstance(twin.conv, nn.Conv2d)


def test_a_conv_that_is_called_twice_keeps_its_weights():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.conv(self.norm(self.conv(x)))

    torch.manual_seed(0)
    network = Twice().eval()
    network.norm.running_var.fill_(3.0)
    twin = fused(network, (3, 5, 5))  # folding would change the second call, too
    torch.testing.assert_close(outputs(twin, (3, 5, 5)), outputs(network, (3, 5, 5)))


def test_channels_that_are_compared_with_each_other_are_refused():
    network = nn.Sequential(nn.Conv2d(2, 5, 3), nn.Softmax(1), nn.Flatten(), nn.Linear(20, 2)).eval()
    with pytest.raises(UnsupportedError):
        fused(network, (2, 4, 4), 8)


def test_a_single_channel_stays_single():
    """Flattened or squeezed, it is read as if it were none."""
    network = nn.Sequential(nn.Conv2d(2, 1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3), nn.Linear(3, 2)).eval()
    twin = filled_up(network, (2, 6, 6), 8)
    assert twin[0].weight.shape[0] == 1
    assert twin[3].weight.shape == (8, 16)
    torch.testing.assert_close(outputs(twin, (2, 6, 6)), outputs(network, (2, 6, 6)))


class Odd(nn.Module):
    """A conv, and whatever is done with it."""

    def __init__(self, forward):
        super().__init__()
        self.conv, self.norm, self.does = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), forward

    def forward(self, x):
        return self.does(self, x)


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: functional.conv_transpose2d(functional.relu(self.conv(x)), self.conv.weight),
        lambda self, x: functional.relu(self.conv(input=x)),
        lambda self, x: functional.relu(self.norm(self.conv(x)), inplace=True),
    ],
    ids=["the weight is read elsewhere", "named arguments", "a relu in place"],
)
def test_unusual_calls_are_left_alone(forward):
    torch.manual_seed(0)
    network = Odd(forward).eval()
    torch.testing.assert_close(outputs(fused(network, (4, 6, 6)), (4, 6, 6)), outputs(network, (4, 6, 6)))


def with_hook():
    network = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU())
    network[0].register_forward_hook(lambda module, inputs, output: output * 0.5)
    return network


@pytest.mark.parametrize(
    "make",
    [
        with_hook,
        lambda: nn.Sequential(weight_norm(nn.Conv2d(4, 4, 3)), nn.BatchNorm2d(4), nn.ReLU()),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding="same"), nn.ReLU()),
    ],
    ids=["hook", "computed weight", "padding by name"],
)
def test_a_conv_that_does_more_than_its_class_says_is_not_joined(make):
    torch.manual_seed(0)
    network = make().eval()
    twin = fused(network, (4, 6, 6))
    assert not any(isinstance(module, ConvReLU) for module in twin.modules())
    torch.testing.assert_close(outputs(twin, (4, 6, 6)), outputs(network, (4, 6, 6)))


def test_a_norm_over_another_axis_is_not_folded():
    """BatchNorm1d of (n, length, values) normalises the length; where both are equal only large inputs show it."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(4, 6, 3), nn.Flatten(2), nn.Linear(16, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)
    ).eval()
    network[3].bias.data.fill_(-20.0)
    network[3].running_mean.copy_(torch.randn(6))
    twin = fused(network, (4, 6, 6))
    x = 200 * torch.randn(3, 4, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(twin(x), network(x), rtol=1e-4, atol=1e-4)


class Choosy(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)

    def forward(self, x):
        return self.conv(x) if x.sum() > 0 else -self.conv(x)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)

    def forward(self, x):
        return self.conv(x), x


@pytest.mark.parametrize(
    ("network", "why"),
    [
        (Choosy(), "cannot be rewritten"),
        (Pair(), "cannot be rewritten"),
        (nn.Sequential(nn.ReLU(), nn.Flatten()), "cannot be rewritten"),
        (nn.Conv2d(2, 3, 3).bfloat16(), "not float32"),
    ],
    ids=["branches", "two results", "no parameters", "half precision"],
)
def test_what_cannot_be_rewritten_is_refused(network, why):
    with pytest.raises(UnsupportedError, match=why):
        fused(network, (2, 4, 4))


def test_a_network_in_training_mode_is_rewritten_as_it_is_in_eval_mode():
    network, shape = network_like("vgg11")
    expected = outputs(network, shape)
    twin = fused(network.train(), shape)
    assert network.training
    torch.testing.assert_close(outputs(twin, shape), expected, rtol=1e-4, atol=1e-4)
