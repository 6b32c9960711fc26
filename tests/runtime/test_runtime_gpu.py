"""The Triton kernel against torch, on a GPU."""

import pytest
import torch
from torch import nn

from bayesprune import models
from bayesprune.runtime.gpu import GpuProgram
from bayesprune.runtime.lowering import lower


@pytest.mark.gpu
@pytest.mark.parametrize("examples", [1, 100, 1000])
@pytest.mark.parametrize("density", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("name", ["mlp", "lenet5", "alexnet-small"])
def test_networks_give_what_torch_gives(name, density, examples):
    generator = torch.Generator().manual_seed(0)
    shape = (3, 32, 32) if name == "alexnet-small" else (1, 28, 28)
    network = models.create(name, shape, 10, generator=generator).eval()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.weight.mul_(torch.rand(module.weight.shape, generator=generator) < density)
        x = torch.randn(examples, *shape, generator=generator)
        expected = network(x)
        found = GpuProgram(lower(network, shape), examples, torch.device("cuda"))(x.cuda()).cpu()
    scale = max(1.0, float(expected.abs().max()))
    assert float((found - expected).abs().max()) <= 1e-5 * scale
