"""Networks as operations: what is understood computes the same, what is not is refused, however it is written."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayesprune.runtime import UnsupportedError, compile, native
from bayesprune.runtime.lowered import compute
from bayesprune.runtime.lowering import _Lowering, lower
from bayesprune.runtime.native import Program

SHAPE = (3, 8, 8)


class Written(nn.Module):
    """Layers, and a forward that a test writes."""

    def __init__(self, forward):
        super().__init__()
        self.conv, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.single, self.over_pixels = nn.Conv2d(3, 1, 2), nn.BatchNorm1d(49)
        self.norm, self.dropout, self.identity = nn.BatchNorm2d(8), nn.Dropout(), nn.Identity()
        self.relu, self.any_size = nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((None, 7))
        self.last, self.other = nn.Linear(512, 5), nn.Linear(512, 5)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)
        self.written = forward

    def forward(self, x):
        return self.written(self, x)


def written(forward):
    torch.manual_seed(0)
    return Written(forward).eval()


def shared(read):
    """`read` of a conv's result, which something else reads, too."""

    def forward(net, x):
        a = net.conv(x)
        return net.second(read(net, a)) + a

    return forward


def in_place_twice(net, x):
    a = net.second(net.conv(x))
    b = a
    b += net.conv(x)
    return a + b


def pooled_two_ways(net, x):
    a = net.conv(x)
    return F.max_pool2d(a.contiguous(), 2) + F.avg_pool2d(a, 2)


def flattened_two_ways(net, x):
    a = net.conv(x)
    return net.last(a.flatten(1).relu()) + net.other(a.flatten(1))


def added_to_padded(net, x):
    return net.conv(x) + F.pad(F.max_pool2d(net.conv(x), 2), (0, 4, 0, 4))


def sizes_by_name(net, x):
    y = net.conv(x)
    examples, channels, rows, columns = y.size()
    return net.second(y.view(examples, channels, rows, columns))


def with_own_size(net, x):
    y = net.conv(x)
    return y + y.shape[1]


UNDERSTOOD = {
    "dropout of a shared value": shared(lambda net, a: torch.relu(net.dropout(a))),
    "norm of a shared value": shared(lambda net, a: net.norm(net.identity(a))),
    "relu of a shared value": shared(lambda net, a: a.contiguous().relu()),
    "pooled in two ways": pooled_two_ways,
    "flattened in two ways": flattened_two_ways,
    "the same twice": lambda net, x: torch.relu(net.conv(x) + net.conv(x)),
    "a layer twice": lambda net, x: net.second(F.relu(net.second(torch.relu(net.conv(x))))),
    "norm after relu": lambda net, x: net.norm(torch.relu(net.conv(x))),
    "relu in place of one reader": lambda net, x: net.second(net.relu(net.conv(x))),
    "view with -1 first": lambda net, x: net.last(net.conv(x).view(-1, 512)),
    "view by size": lambda net, x: net.last(net.conv(x).view(x.size(0), -1)),
    "view by shape": lambda net, x: net.last(net.conv(x).reshape((x.shape[0], 512))),
    "sizes by name": sizes_by_name,
    "flatten by name": lambda net, x: net.last(torch.flatten(net.conv(x), start_dim=1)),
    "mean with its axes": lambda net, x: net.conv(x).mean((2, 3), True),
    "mean with its axes by name": lambda net, x: net.conv(x).mean(dim=[-1, -2], keepdim=True),
    "mean": lambda net, x: net.conv(x).mean((2, 3)),
    "adaptive mean": lambda net, x: F.adaptive_avg_pool2d(net.conv(x), (1, 1)).flatten(1),
    "dropout as a function": lambda net, x: net.last(F.dropout(net.conv(x), training=net.training).flatten(1)),
    "added to what is padded": added_to_padded,
    "padded result": lambda net, x: F.pad(net.conv(x), (0, 1, 0, 2)),
    "padded result, flat": lambda net, x: F.pad(net.conv(x), (0, 1, 0, 2)).flatten(1),
    "padded before a linear": lambda net, x: net.last(F.pad(F.max_pool2d(net.conv(x), 2), (2, 2, 2, 2)).flatten(1)),
    "pooled with padding": lambda net, x: F.max_pool2d(torch.relu(net.conv(x)), 3, stride=2, padding=1),
    "pooled with a step": lambda net, x: F.max_pool2d(net.conv(x), 3, stride=2),
    "nothing": lambda net, x: x,
}
REFUSED = {
    "in place on a shared value": (shared(lambda net, a: net.relu(a)), "in place"),
    "in place on a copy": (shared(lambda net, a: net.relu(a.flatten(1).view(-1, 8, 8, 8))), "no view"),
    "added in place": (in_place_twice, "says something else"),
    "some channels": (lambda net, x: net.conv(x)[:, :3], "parts of a tensor"),
    "every other pixel": (lambda net, x: net.conv(x)[:, :, ::2, ::2], "parts of a tensor"),
    "one example": (lambda net, x: net.conv(x)[0], "parts of a tensor"),
    "a size as a value": (with_own_size, "needs a tensor"),
    "a number": (lambda net, x: net.conv(x) + 1, "needs a tensor"),
    "a factor": (lambda net, x: torch.add(net.conv(x), net.conv(x), alpha=2), "two tensors"),
    "a shape as the result": (lambda net, x: net.conv(x).shape, "needs a tensor"),
    "transposed": (lambda net, x: net.conv(x).flatten(1).T, "no T"),
    "examples as channels": (lambda net, x: net.conv(x).view(x.size(1), -1), "no view"),
    "all in one": (lambda net, x: net.conv(x).view(1, -1), "no view"),
    "examples flattened": (lambda net, x: net.conv(x).flatten(end_dim=1), "all but the examples"),
    "norm over pixels": (lambda net, x: net.over_pixels(net.single(x).flatten(1)), "flattened channels"),
    "dropout in eval mode": (lambda net, x: F.dropout(net.conv(x)), "drops values"),
    "a size that stays": (lambda net, x: net.any_size(net.conv(x)), "AdaptiveAvgPool2d"),
    "padded all around": (lambda net, x: F.pad(net.conv(x), (1, 1, 1, 1)), "padding"),
    "padded with ones": (lambda net, x: net.second(F.pad(net.conv(x), (1, 1, 1, 1), value=1.0)), "zeros"),
    "pooled with padding": (lambda net, x: F.max_pool2d(net.conv(x), 3, stride=2, padding=1), "no MaxPool2d"),
    "two results": (lambda net, x: (net.conv(x), x), "needs a tensor"),
    "random": (lambda net, x: net.conv(x) + torch.rand(1), "get_attr"),
}


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_what_is_understood_computes_the_same(name):
    network, x = written(UNDERSTOOD[name]), torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = network(x)
    lowered = lower(network, SHAPE)
    torch.testing.assert_close(compute(lowered, x.double()).float(), expected, rtol=1e-5, atol=1e-5)
    if native.library() is not None:
        found = Program(lowered, 16)(x.reshape(5, -1), 1)
        torch.testing.assert_close(found, expected.reshape(5, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused(name):
    forward, why = REFUSED[name]
    with pytest.raises(UnsupportedError, match=why):
        lower(written(forward), SHAPE)


@pytest.mark.parametrize(
    ("network", "shape"),
    [(nn.Linear(7, 4), (7,)), (nn.Conv2d(3, 4, 3), SHAPE), (nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1))), SHAPE)],
)
def test_a_single_layer_is_a_network(network, shape):
    x = torch.randn(4, *shape, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(compute(lower(network, shape), x), network.double()(x))


def doubled(network):
    network.conv.register_forward_hook(lambda module, args, output: 2 * output)


def doubled_before(network):
    network.register_forward_pre_hook(lambda module, args: (2 * args[0],))


def with_another_forward(network):
    network.conv.forward = lambda x: 2 * nn.Conv2d.forward(network.conv, x)


@pytest.mark.parametrize("change", [doubled, doubled_before, with_another_forward])
def test_what_is_done_beside_a_forward_is_refused(change):
    network = written(lambda net, x: net.second(net.conv(x)))
    change(network)
    with pytest.raises(UnsupportedError, match=r"hooks|forward of its own"):
        lower(network, SHAPE)
    x = torch.randn(2, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(compile(network, x)(x), network(x))


def test_a_lowering_that_is_wrong_is_noticed(monkeypatch):
    monkeypatch.setattr(_Lowering, "_relu", lambda self, node, view: view)
    with pytest.raises(UnsupportedError, match="says something else"):
        lower(written(lambda net, x: torch.relu(net.conv(x))), SHAPE)


def test_the_default_dtype_does_not_matter():
    network, x = written(lambda net, x: net.last(torch.relu(net.conv(x)).flatten(1))), torch.randn(5, *SHAPE)
    with torch.no_grad():
        expected = network(x)
    torch.set_default_dtype(torch.float64)
    try:
        fast = compile(network, x)
        torch.testing.assert_close(fast(x), expected, rtol=1e-5, atol=1e-5)
        for way in fast._ways(x):
            torch.testing.assert_close(fast._way(way)(x), expected, rtol=1e-5, atol=1e-5)
    finally:
        torch.set_default_dtype(torch.float32)
