"""A small pruned network, its inputs, and a `Compiled` of it that takes one way."""

import torch
from torch import nn

from bayesprune import models
from bayesprune.runtime import Choice, compile


def small_network():
    network = models.create("lenet5", (1, 28, 28), 10, generator=torch.Generator().manual_seed(0)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.weight.mul_(torch.rand(module.weight.shape, generator=generator) < 0.05)
    return network


def images(count):
    return torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(2))


def always(way):
    """Instead of Compiled._measure: no clock decides."""
    return lambda self, x, with_graphs=True: Choice(way, {})


def expect_the_same(fast, network, x):
    with torch.no_grad():
        torch.testing.assert_close(fast(x), network(x), rtol=1e-5, atol=1e-5)
    return True


def compiled_small_network():
    return compile(small_network(), images(1))
