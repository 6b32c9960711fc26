"""How a weight tensor becomes a lattice of sites for a support model, and back.

PyTorch keeps Linear weights as (out, in) and Conv weights as (out, in, *kernel).  The paper draws the matrix of a
layer as inputs x outputs (Fig. 1) and gives no layout for convolutions; the three below are this library's reading.
Every layout turns a tensor into (batch, *lattice): grids of the batch do not touch each other.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

ConvLayout = Literal["kernel", "matrix", "lattice"]


@dataclass(frozen=True)
class Layout:
    """A bijection between a weight tensor and a batch of lattices.

    conv: `kernel`   each kernel its own grid, (out * in, *kernel);
          `matrix`   one grid, (1, in * height, out * width) for 2-D kernels, rows and columns of kernels interleaved;
          `lattice`  one grid, (1, out, in, *kernel), every axis with its own coupling.
    Linear weights are always one grid (1, in, out).
    """

    conv: ConvLayout = "kernel"

    def __post_init__(self) -> None:
        if self.conv not in get_args(ConvLayout):
            raise ValueError(f"layout must be one of {', '.join(get_args(ConvLayout))}, got {self.conv!r}")

    def to_lattice(self, weight: Tensor) -> Tensor:
        """Weight (out, in, *kernel) -> (batch, *lattice)."""
        if weight.ndim < 2:
            raise ValueError(f"a weight tensor needs at least (out, in), got shape {tuple(weight.shape)}")
        if weight.ndim == 2:
            return weight.t().unsqueeze(0)
        if self.conv == "kernel":
            return weight.flatten(0, 1)
        if self.conv == "lattice":
            return weight.unsqueeze(0)
        out, inputs, *kernel = weight.shape
        rows = weight.reshape(out, inputs, -1, kernel[-1]).permute(1, 2, 0, 3)  # (in, height, out, width)
        return rows.reshape(1, inputs * rows.shape[1], out * kernel[-1])

    def to_weight(self, lattice: Tensor, shape: torch.Size | tuple[int, ...]) -> Tensor:
        """The inverse: (batch, *lattice) -> weight of `shape`."""
        if len(shape) == 2:
            return lattice[0].t()
        if self.conv == "kernel" or self.conv == "lattice":
            return lattice.reshape(shape)
        out, inputs, *kernel = shape
        height = lattice.shape[1] // inputs
        return lattice.reshape(inputs, height, out, kernel[-1]).permute(2, 0, 1, 3).reshape(shape)
