"""Whether two networks say the same: in float64, of small and of large inputs."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

ALLOWED: Final = 1e-9  # of the largest output for an input
SCALES: Final = (0.01, 1.0, 10.0, 1000.0)  # of the inputs: what is behind a ReLU must have its say


def inputs(example_shape: Sequence[int], device: torch.device) -> Tensor:
    """Random inputs of every scale, (scales, *example_shape) float64; the same ones every time."""
    x = torch.randn(len(SCALES), *example_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scales = torch.tensor(SCALES, dtype=torch.float64).reshape(-1, *(1,) * len(example_shape))
    return (x * scales).to(device)


def says_the_same(expected: object, found: Tensor) -> bool:
    """Whether two outputs (n, ...) for the same inputs are equal, each measured by its input's largest."""
    if not isinstance(expected, Tensor):
        raise TypeError(f"the network gives {type(expected).__name__}, not one tensor")
    if expected.shape != found.shape:
        return False
    off, largest = (value.flatten(1).abs().amax(1) for value in (expected - found, expected))
    return bool((off <= ALLOWED * largest).all())  # what is not a number is not the same
