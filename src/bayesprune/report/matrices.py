"""Weights as matrices that fit a screen: before, after, without dead lines and with their rectangles, and kernels."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesprune.regularity import cover
from bayesprune.report.charts import Matrices, Matrix
from bayesprune.report.reading import Layer

MOST_ROWS = 256  # cells of an overview, and twice as many columns
LEAST_ROWS = 48  # where a network has many layers
MOST_RECTANGLES = 1500  # drawn of a layer, the largest ones
FULL = 127  # the code of the largest magnitude
GAP = -128  # no cell: between kernels
MOST_KERNELS = 192  # shown of the first layer
KERNELS_ACROSS = 16


def rows_within(budget: int, panels: int) -> int:
    """How many rows an overview may have, and twice as many columns, for `panels` of them in `budget` bytes."""
    return max(LEAST_ROWS, min(MOST_ROWS, math.isqrt(budget // max(1, 2 * panels))))


def layer_matrices(layer: Layer, name: str, title: str, *, folded: bool, most: int = MOST_ROWS) -> Matrices:
    """The weights of a layer as a matrix multiplication sees them, (out, in * taps); most: rows of an overview."""
    taps = tuple(layer.after.shape[2:])
    full = layer.dense_shape == tuple(layer.after.shape)
    panels = []
    if layer.before is not None:
        panels.append(overview(layer.before.flatten(1), "before pruning", taps=taps, most=most))
    if full:
        panels.append(overview(layer.after.flatten(1), "after, dead weights empty", taps=taps, most=most))
    weights, live = layer.after.flatten(1), layer.live.flatten(1)
    rows, columns = live.any(1), live.any(0)
    left, cells = weights[rows][:, columns], live[rows][:, columns]
    caption = ""
    if cells.numel():
        found = cover(cells)
        shown = tuple((r, c, h, w) for r, c, h, w in found.rectangles[:MOST_RECTANGLES].tolist())
        panels.append(overview(left, "what is left, with its clusters", rectangles=shown, most=most))
        share = f"{100 * found.share:.0f} % of them in {found.count:,} all-live rectangles of 3 x 3 or more"
        caption = f"{found.live:,} live weights in {cells.shape[0]} rows and {cells.shape[1]} columns, {share}."
        if found.count > len(shown):
            caption += f" The {len(shown):,} largest are drawn."
    reduced = [panel for panel in panels if panel.block != (1, 1)]
    if reduced:
        down, across = reduced[0].block
        caption += f" Overview: a cell is the largest magnitude of up to {down} x {across} weights."
    return Matrices(
        name,
        title,
        caption.strip(),
        tuple(panels),
        linked=True,
        folded=folded,
        x_label="inputs x taps" if taps else "inputs",
    )


def overview(
    weights: Tensor,
    title: str,
    *,
    rectangles: tuple[tuple[int, int, int, int], ...] = (),
    taps: tuple[int, ...] = (),
    most: int = MOST_ROWS,
) -> Matrix:
    """Weights (rows, columns) as at most (most, 2 most) codes, each the weight of largest magnitude in its block."""
    rows, columns = weights.shape
    block = math.ceil(rows / most), math.ceil(columns / (2 * most))
    codes, largest = encode(largest_in_blocks(weights, block))
    return Matrix(
        title,
        codes,
        (rows, columns),
        largest=largest,
        block=block,
        rectangles=rectangles,
        taps=taps,
    )


def largest_in_blocks(weights: Tensor, block: tuple[int, int]) -> NDArray[np.float32]:
    """The weight of largest magnitude, with its sign, in every block of (rows, columns); blocks at the ends are cut."""
    values: NDArray[np.float32] = weights.detach().to("cpu", torch.float32).numpy()
    if block == (1, 1):
        return values
    (rows, columns), (high, wide) = values.shape, block
    down, across = math.ceil(rows / high), math.ceil(columns / wide)
    padded = np.zeros((down * high, across * wide), np.float32)
    padded[:rows, :columns] = values
    blocks = padded.reshape(down, high, across, wide).transpose(0, 2, 1, 3).reshape(down, across, -1)
    place = np.abs(blocks).argmax(2)
    found: NDArray[np.float32] = np.take_along_axis(blocks, place[..., None], 2)[..., 0]
    return found


def encode(values: NDArray[np.float32]) -> tuple[NDArray[np.int8], float]:
    """Codes, sign(w) 127 sqrt(|w| / largest), and the largest magnitude; whatever is not 0 keeps a code that is not."""
    magnitude = np.abs(np.nan_to_num(values, posinf=0.0, neginf=0.0)).astype(np.float64)
    largest = float(magnitude.max(initial=0.0))
    if not largest:
        return np.zeros(values.shape, np.int8), 1.0
    codes = np.rint(FULL * np.sqrt(magnitude / largest))
    codes[(magnitude > 0) & (codes == 0)] = 1
    return (np.sign(np.nan_to_num(values)) * codes).astype(np.int8), largest


def kernel_matrix(layer: Layer, title: str) -> Matrix:
    """The kernels of a layer side by side, a column for every output (paper Fig. 8); a Linear layer as it is."""
    weight = layer.after
    if weight.ndim < 3:
        return overview(weight, title)
    if weight.ndim == 3:
        weight = weight.unsqueeze(2)
    weight = weight.flatten(2, -2)  # (out, in, height, width)
    outputs, inputs, high, wide = weight.shape
    codes, largest = encode(weight.detach().float().numpy().reshape(outputs * inputs, high * wide))
    kernels = codes.reshape(outputs, inputs, high, wide)[: max(1, MOST_KERNELS // inputs), :MOST_KERNELS]
    count, depth = kernels.shape[:2]
    across = min(count, max(1, KERNELS_ACROSS))
    bands = math.ceil(count / across)
    band = depth * (high + 1) + 1  # a further gap between bands
    cells = np.full((bands * band - 2, across * (wide + 1) - 1), GAP, np.int8)
    for output in range(count):
        for source in range(depth):
            top, left = (output // across) * band + source * (high + 1), (output % across) * (wide + 1)
            cells[top : top + high, left : left + wide] = kernels[output, source]
    return Matrix(title, cells, (cells.shape[0], cells.shape[1]), largest=largest, square=True)


def kernels_in_words(layer: Layer) -> str:
    """How many kernels live: "5 of 6 kernels of 5 x 5 live"."""
    if layer.after.ndim < 3:
        return f"{layer.outputs} x {layer.inputs} live rows and columns"
    alive = int(layer.live.flatten(0, 1).flatten(1).any(1).sum())
    shape = layer.dense_shape or tuple(layer.after.shape)
    size = " x ".join(str(one) for one in shape[2:])
    return f"{alive} of {math.prod(shape[:2])} kernels of {size} live, {layer.alive} weights"
