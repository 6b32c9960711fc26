"""Random first weights, from an explicit generator."""

import math

import torch
from torch import nn


def initialise(network: nn.Module, generator: torch.Generator | None = None) -> nn.Module:
    """Give every layer its first values and return `network`.

    Weights of Linear and Conv2d are Gaussian with variance 2 / fan-in (Kaiming), which keeps the size of
    signals through ReLUs; the last Linear gets 1 / fan-in, because no ReLU follows it.  Biases are 0,
    BatchNorm is the identity.  None takes torch's global generator.
    """
    layers = [module for module in network.modules() if not list(module.children())]
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for layer in layers:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            fan_in = layer.weight[0].numel()
            gain = 1 if linears and layer is linears[-1] else 2
            nn.init.normal_(layer.weight, 0, math.sqrt(gain / fan_in), generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()
        else:
            assert not list(layer.parameters()), f"no rule for the first values of {type(layer).__name__}"
    return network
