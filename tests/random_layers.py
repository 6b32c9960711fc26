"""Random layers on which engine and kernels are compared with torch, for hypothesis."""

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from bayesprune.runtime.gpu import GpuProgram, Tile
from bayesprune.runtime.lowering import lower

Case = tuple[nn.Module, Tensor]  # a network in eval mode, and inputs
Numbers = st.SearchStrategy[int]
SEEDS, FEATURES, CHANNELS, SIDES = (st.integers(*ends) for ends in ((0, 2**31), (1, 40), (1, 9), (8, 37)))
BATCHES, FEW = st.sampled_from([1, 2, 15, 16, 17, 64, 100, 1000]), st.sampled_from([1, 3, 16, 21])
PATTERNS = st.sampled_from(["scattered", "cluster", "empty rows", "single"])
AFTER = st.sampled_from(["nothing", "relu", "norm relu", "pool", "relu pool", "norm relu pool", "pool relu"])
INSTALL_TRITON = "try: pip install triton==3.9.0"  # whose interpreter works with NumPy 2.4
TILES = [*(Tile(height, False) for height in (1, 2, 4, 8, 16)), Tile(16, True), Tile(32, True)]


def linear_layers(features: Numbers = FEATURES, batches: Numbers = BATCHES) -> st.SearchStrategy[Case]:
    densities = st.sampled_from([0.0, 0.02, 0.2, 0.7, 1.0])
    return st.builds(linear_layer, SEEDS, features, features, densities, PATTERNS, batches)


def linear_layer(seed: int, inputs: int, outputs: int, density: float, pattern: str, batch: int) -> Case:
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(inputs, outputs, bias=seed % 3 > 0)
    draw(layer, density, pattern, generator)
    return nn.Sequential(layer).eval(), torch.randn(batch, inputs, generator=generator)


def convolutions(
    channels: Numbers = CHANNELS, sides: Numbers = SIDES, batches: Numbers = FEW
) -> st.SearchStrategy[Case]:
    """With what comes behind them; pools of 3 and 5 are no powers of two."""
    kernels, strides, paddings = (
        st.tuples(*[st.integers(least, most)] * 2) for least, most in ((1, 4), (1, 3), (0, 3))
    )
    numbers = st.tuples(channels, channels), kernels, strides, paddings, st.integers(1, 2), st.tuples(sides, sides)
    pools, densities = st.sampled_from([2, 3, 4, 5]), st.sampled_from([0.0, 0.1, 1.0])
    return st.builds(convolution, SEEDS, *numbers, AFTER, pools, st.booleans(), densities, PATTERNS, batches).filter(
        has_a_result
    )


def convolution(
    seed: int,
    channels: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: int,
    size: tuple[int, int],
    after: str,
    pool: int,
    grouped: bool,
    density: float,
    pattern: str,
    batch: int,
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    groups = channels[0] if grouped else 1
    inputs, outputs = channels[0], channels[1] * groups
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups)]
    draw(layers[0], density, pattern, generator)
    for word in after.split():
        made = {"relu": nn.ReLU(), "norm": nn.BatchNorm2d(outputs), "pool": nn.MaxPool2d(pool)}.get(word)
        layers += [made] if made is not None else []
    network = thinned(nn.Sequential(*layers), 1.0, generator).eval()
    return network, torch.randn(batch, inputs, *size, generator=generator)


def has_a_result(case: Case) -> bool:
    """Whether neither a kernel nor a pool is larger than the image."""
    network, x = case
    try:
        with torch.no_grad():
            network(x[:1])
    except RuntimeError:
        return False
    return True


def draw(layer: nn.Module, density: float, pattern: str, generator: torch.Generator) -> None:
    """Random weights, those of a pattern alive."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter[0].numel() ** -0.5)
            if parameter.ndim > 1:
                parameter.mul_(alive(parameter.flatten(1), density, pattern, generator).view_as(parameter))


def alive(matrix: Tensor, density: float, pattern: str, generator: torch.Generator) -> Tensor:
    """Which weights of a matrix live, bool of its shape."""
    found = torch.rand(matrix.shape, generator=generator) < density
    row, column, height, width = (int(torch.randint(end, (), generator=generator)) for end in (*matrix.shape, 24, 17))
    if pattern == "empty rows":
        found[row % 2 :: 2] = False
    if pattern == "cluster":  # a rectangle anywhere, and nothing else
        found[:] = False
        found[row : row + 1 + height, column : column + 1 + width] = True
    if pattern == "single":
        found[:] = False
        found[row, column] = True
    return found


def thinned(network, density, generator):
    """Random weights dead, and BatchNorms that do something."""
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.weight.mul_(torch.rand(module.weight.shape, generator=generator) < density)
            if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
                module.running_mean.copy_(0.1 * torch.randn(module.running_mean.shape, generator=generator))
                module.running_var.copy_(0.5 + torch.rand(module.running_var.shape, generator=generator))
                module.weight.copy_(0.5 + torch.rand(module.weight.shape, generator=generator))
                module.bias.copy_(0.1 * torch.randn(module.bias.shape, generator=generator))
    return network


def check_kernels(network: nn.Module, x: Tensor, device: str, tile: Tile | None = None) -> None:
    """The Triton kernels, all layers in one tile or each in its fastest, say what torch says."""
    with torch.no_grad():
        expected = network(x).flatten(1)
    lowered = lower(network, tuple(x.shape[1:]))
    tiles = None if tile is None else [tile] * len(lowered.steps)
    found = GpuProgram(lowered, len(x), torch.device(device), tiles=tiles)(x.to(device)).cpu()
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= 1e-5 * max(1.0, float(expected.abs().max()))
