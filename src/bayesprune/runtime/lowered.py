"""A network as a list of operations on buffers, and what they give, computed slowly."""

import copy
import functools
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from bayesprune.runtime.panels import Panel, panels

Kind = Literal["panels", "maximum", "mean", "sum", "copy"]
MOST_PICKED = 1 << 24  # numbers that `compute` gathers at a time


class UnsupportedError(ValueError):
    """There is no operation for something in the network."""


@dataclass
class Buffer:
    """Activations of one example, (channels, rows, columns), and the zeros that its readers need around them."""

    channels: int
    rows: int
    columns: int
    top: int = 0
    left: int = 0
    bottom: int = 0
    right: int = 0


@dataclass
class Step:
    """One operation.

    reads: of a layer, (n, 3) int64, the channel, row and column that each column of its matrix reads, relative to
    where the first result begins.  matrix: (out, n) float64.  bias: (out,).
    first: row and column of the input where the first result begins, without border; may be negative.
    rows, columns: of the result, before the pooling of a layer.
    """

    kind: Kind
    source: int
    target: int
    rows: int
    columns: int
    stride: tuple[int, int] = (1, 1)
    first: tuple[int, int] = (0, 0)
    window: tuple[int, int] = (1, 1)
    relu: bool = False
    pool: int = 1
    source2: int = -1
    matrix: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    reads: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    bias: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)


@dataclass(frozen=True)
class View:
    """What a value of the graph is: a part of a buffer, which may reach into its border.

    first: row and column where it begins.  flat: whether its (channels, rows, columns) count as one axis.
    step: the operation that makes it, where nothing but this value has been made of it.
    """

    buffer: int
    channels: int
    rows: int
    columns: int
    first: tuple[int, int] = (0, 0)
    flat: bool = False
    step: Step | None = None


@dataclass
class Lowered:
    """Buffers and operations in order; input and output are numbers of buffers."""

    buffers: list[Buffer]
    steps: list[Step]
    input: int
    output: View

    @functools.cached_property
    def panels(self) -> list[list[Panel]]:
        """The rows of every layer in panels, in the order of the steps; nothing for other operations."""
        return [panels(step.matrix != 0) if step.kind == "panels" else [] for step in self.steps]


def view_size(view: View) -> int:
    """Values of one example."""
    return view.channels * view.rows * view.columns


def borders(lowered: Lowered) -> list[Buffer]:
    """The buffers with as many zeros around them as their readers reach for."""
    buffers = [copy.copy(buffer) for buffer in lowered.buffers]
    for step in lowered.steps:
        reach = _reach(step)
        for buffer in (buffers[number] for number in (step.source, step.source2) if number >= 0):
            buffer.top, buffer.left = max(buffer.top, -step.first[0]), max(buffer.left, -step.first[1])
            buffer.bottom = max(buffer.bottom, reach[0] - buffer.rows)
            buffer.right = max(buffer.right, reach[1] - buffer.columns)
    return buffers


def _reach(step: Step) -> tuple[int, int]:
    """The row and column after the last that an operation reads."""
    window = step.window
    if step.kind == "panels":
        window = (int(step.reads[:, 1].max()) + 1, int(step.reads[:, 2].max()) + 1)
    elif step.kind in ("sum", "copy"):
        return step.rows, step.columns
    return (
        step.first[0] + (step.rows - 1) * step.stride[0] + window[0],
        step.first[1] + (step.columns - 1) * step.stride[1] + window[1],
    )


def compute(lowered: Lowered, x: Tensor) -> Tensor:
    """What the operations give for x (n, ...) float64, (n, ...): the reference that engine and kernels are held to."""
    buffers, held = borders(lowered), {}
    held[lowered.input] = _with_border(x.reshape(len(x), *_size(buffers[lowered.input])), buffers[lowered.input])
    for step in lowered.steps:
        found = _result(step, held, buffers)
        held[step.target] = _with_border(found.relu() if step.relu else found, buffers[step.target])
    view = lowered.output
    buffer = buffers[view.buffer]
    assert _size(buffer) == (view.channels, view.rows, view.columns)
    result = held[view.buffer][:, :, buffer.top : buffer.top + view.rows, buffer.left : buffer.left + view.columns]
    return result.flatten(1) if view.flat else result


def _size(buffer: Buffer) -> tuple[int, int, int]:
    return buffer.channels, buffer.rows, buffer.columns


def _with_border(values: Tensor, buffer: Buffer) -> Tensor:
    assert values.shape[1:] == _size(buffer)
    return functional.pad(values, (buffer.left, buffer.right, buffer.top, buffer.bottom))


def _result(step: Step, held: dict[int, Tensor], buffers: list[Buffer]) -> Tensor:
    """The results of one operation, (n, channels, rows, columns), without its ReLU."""
    values, buffer = held[step.source], buffers[step.source]
    top, left = buffer.top + step.first[0], buffer.left + step.first[1]
    if step.kind == "panels":
        down = top + torch.arange(step.rows) * step.stride[0]
        right = left + torch.arange(step.columns) * step.stride[1]
        made = torch.stack([_products(step, image, down, right) for image in values])
        return functional.max_pool2d(made, step.pool) if step.pool > 1 else made
    if step.kind in ("maximum", "mean"):
        pool = functional.max_pool2d if step.kind == "maximum" else functional.avg_pool2d
        made = pool(values[:, :, top:, left:], step.window, step.stride)
        return made[:, :, : step.rows, : step.columns]
    made = values[:, :, top : top + step.rows, left : left + step.columns]
    if step.kind == "sum":
        other, second = held[step.source2], buffers[step.source2]
        made = made + other[:, :, second.top : second.top + step.rows, second.left : second.left + step.columns]
    return made


def _products(step: Step, image: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """A layer's results for one example (channels, rows, columns); down, right: where the inputs of each begin."""
    live = (step.matrix != 0).any(0)
    matrix, reads = step.matrix[:, live], step.reads[live]
    at_a_time = max(1, MOST_PICKED // max(1, len(reads) * len(right)))
    rows = []
    for some in down.split(at_a_time):
        picked = image[
            reads[:, 0, None, None], reads[:, 1, None, None] + some[:, None], reads[:, 2, None, None] + right
        ]
        rows.append((matrix @ picked.flatten(1)).unflatten(1, (len(some), len(right))))
    return torch.cat(rows, 1) + step.bias[:, None, None]
