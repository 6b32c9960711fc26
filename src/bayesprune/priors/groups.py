"""Which weights share one support and one precision (design: groups).

A group structure turns a weight tensor (out, in, *kernel) into energies on a lattice of groups, on which a support
model can sit, and carries precisions and decisions back to the single weights.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from bayesprune.layouts import Layout

Kind = Literal["weight", "tile", "panel", "strip", "kernel", "row", "column", "unit"]
Shape = torch.Size | tuple[int, ...]


class Groups(ABC):
    """The map from weights to group energies and its way back."""

    @abstractmethod
    def energy(self, weight: Tensor) -> Tensor:
        """x = sum w^2 / 2 of every group: (out, in, *kernel) -> (batch, *groups)."""

    @abstractmethod
    def size(self, shape: Shape, like: Tensor | None = None) -> Tensor:
        """K, the number of weights in every group of a weight of `shape`: (batch, *groups)."""

    @abstractmethod
    def weight_precision(self, precision: Tensor, shape: Shape) -> Tensor:
        """Group precisions (batch, *groups) -> what multiplies w^2 / 2 of each weight in sum_g rho_g x_g."""

    @abstractmethod
    def to_weights(self, values: Tensor, shape: Shape) -> Tensor:
        """Values of groups (q(s), masks) -> the same value for each weight of the group, in the weight's shape."""


@dataclass(frozen=True)
class SharedPrecision(Groups):
    """Disjoint groups that tile the lattice; every weight belongs to one.

    kind: `weight`  each its own group (the paper);
          `tile`    blocks of `tile` = (height, width) on the last two axes of the layout; smaller at the borders;
          `panel`   `tile` = (outputs, inputs): the kernels of one input channel in that many output channels; in Linear
                    layers and kernels of one tap outputs x inputs weights; smaller at the borders;
          `strip`   the same with one row of taps, those along the last axis, instead of the whole kernel;
                    panels and strips are rectangles of the matrix (out, in * taps);
          `kernel`  all taps between one input and one output channel (a single weight in Linear layers);
          `row`     everything that reads one input unit (the paper's rows), or in a grouped convolution one position of
                    every group;
          `column`  everything that makes one output unit; `unit` is another name for it.
    layout: of the lattice, for `weight` and `tile`.  The groups of the other kinds form (1, out, in) for kernels and
    panels of convolutions, (1, out, in, *rows of taps) for strips, (1, in, out) for all three of Linear layers,
    (1, in) for rows and (1, out) for columns.
    """

    kind: Kind = "weight"
    tile: tuple[int, int] = (4, 4)
    layout: Layout = field(default_factory=Layout)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"the kind of a group must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if len(self.tile) != 2 or min(self.tile) < 1:
            raise ValueError(f"a tile must be (height, width), both at least 1, got {self.tile}; try (4, 4)")

    def _layout_and_block(self, shape: Shape) -> tuple[Layout, tuple[int, ...]]:
        """The lattice (batch, *axes) of a weight and how many sites a group takes along each axis after the batch."""
        if self.kind in ("weight", "tile"):
            axes = self.layout.to_lattice(torch.empty(shape, device="meta")).ndim - 1
            block = self.tile if self.kind == "tile" else (1, 1)
            return self.layout, (1,) * (axes - 2) + block[max(0, 2 - axes) :]
        out, inputs, *kernel = shape
        linear = len(shape) == 2
        panel = (self.tile[0], self.tile[1] if math.prod(kernel) == 1 else 1)
        whole = {"kernel": (1, 1), "panel": panel, "strip": panel, "row": (out, 1)}.get(self.kind, (1, inputs))
        if linear:  # Linear lattices are (in, out)
            return Layout("lattice"), (whole[1], whole[0])
        if self.kind == "strip":
            kernel[:-1] = [1] * (len(kernel) - 1)
        return Layout("lattice"), (*whole, *kernel)

    def _axes_left(self, shape: Shape) -> tuple[int, ...]:
        """Axes of the lattice, after the batch, along which there is more than one group by design."""
        axes = len(self._layout_and_block(shape)[1])
        if self.kind in ("weight", "tile"):
            return tuple(range(axes))
        linear = len(shape) == 2
        if self.kind == "strip":
            return tuple(range(max(2, axes - 1)))
        if self.kind in ("kernel", "panel"):
            return 0, 1
        return (0,) if (self.kind == "row") == linear else (1,)

    def _pooled(self, values: Tensor) -> Tensor:
        layout, block = self._layout_and_block(values.shape)
        sums = _block_sum(layout.to_lattice(values), block)
        return sums.reshape(len(sums), *(sums.shape[axis + 1] for axis in self._axes_left(values.shape)))

    def energy(self, weight: Tensor) -> Tensor:
        return self._pooled(_single(weight).square() / 2)

    def size(self, shape: Shape, like: Tensor | None = None) -> Tensor:
        return self._pooled(_ones(shape, like))

    def weight_precision(self, precision: Tensor, shape: Shape) -> Tensor:
        return self.to_weights(precision, shape)

    def to_weights(self, values: Tensor, shape: Shape) -> Tensor:
        layout, block = self._layout_and_block(shape)
        sites = layout.to_lattice(torch.empty(shape, device="meta")).shape
        left = iter(values.shape[1:])
        full = [next(left) if axis in self._axes_left(shape) else 1 for axis in range(len(block))]
        values = values.reshape(len(values), *full)
        for axis, length in enumerate(block, start=1):
            if length > 1:
                values = values.repeat_interleave(length, dim=axis).narrow(axis, 0, sites[axis])
        return layout.to_weight(values, shape)


@dataclass(frozen=True)
class PerKind(Groups):
    """One group structure for convolutions, weights (out, in, *kernel), and another for Linear layers, (out, in)."""

    conv: Groups
    linear: Groups

    def _of(self, shape: Shape) -> Groups:
        return self.linear if len(shape) == 2 else self.conv

    def energy(self, weight: Tensor) -> Tensor:
        return self._of(weight.shape).energy(weight)

    def size(self, shape: Shape, like: Tensor | None = None) -> Tensor:
        return self._of(shape).size(shape, like)

    def weight_precision(self, precision: Tensor, shape: Shape) -> Tensor:
        return self._of(shape).weight_precision(precision, shape)

    def to_weights(self, values: Tensor, shape: Shape) -> Tensor:
        return self._of(shape).to_weights(values, shape)


@dataclass(frozen=True)
class PatternCoupled(Groups):
    """Overlapping neighbourhoods: every weight has its own support, but hears its neighbours' energy.

    The energy of a site is the weighted mean over itself (weight 1) and the neighbours that touch it, corners
    included (weight beta).  Its group counts as one weight, so the evidence keeps the scale of a single weight.
    """

    beta: float = 0.8
    layout: Layout = field(default_factory=Layout)

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta must be in [0, 1], got {self.beta}; try 0.8")

    def energy(self, weight: Tensor) -> Tensor:
        sites = self.layout.to_lattice(_single(weight).square() / 2)
        return self._weighted_sum(sites) / self._total_weight(sites)

    def size(self, shape: Shape, like: Tensor | None = None) -> Tensor:
        return self.layout.to_lattice(_ones(shape, like))

    def weight_precision(self, precision: Tensor, shape: Shape) -> Tensor:
        """The transpose of `energy`: a weight is held by every neighbourhood that it is part of."""
        return self.layout.to_weight(self._weighted_sum(precision / self._total_weight(precision)), shape)

    def to_weights(self, values: Tensor, shape: Shape) -> Tensor:
        return self.layout.to_weight(values, shape)

    def _weighted_sum(self, sites: Tensor) -> Tensor:
        near = sites
        for axis in range(1, sites.ndim):
            padded = pad(near, (0, 0) * (sites.ndim - 1 - axis) + (1, 1))
            near = sum((padded.narrow(axis, k, sites.shape[axis]) for k in range(3)), torch.zeros_like(sites))
        return sites + self.beta * (near - sites)

    def _total_weight(self, sites: Tensor) -> Tensor:
        return self._weighted_sum(torch.ones_like(sites[:1]))


def _block_sum(sites: Tensor, block: tuple[int, ...]) -> Tensor:
    """Sum over blocks of an array (batch, *axes); blocks at the far borders may be smaller."""
    for axis, length in enumerate(block, start=1):
        if length > 1:
            missing = -sites.shape[axis] % length
            padded = pad(sites, (0, 0) * (sites.ndim - 1 - axis) + (0, missing))
            sites = padded.unflatten(axis, (-1, length)).sum(axis + 1)
    return sites


def _single(weight: Tensor) -> Tensor:
    """At least float32: squares of half-precision weights overflow and vanish."""
    return weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight


def _ones(shape: Shape, like: Tensor | None) -> Tensor:
    return torch.ones(shape) if like is None else _single(torch.ones(shape, dtype=like.dtype, device=like.device))
