"""The mask of a layer as one matrix, with or without its dead lines."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Layout = Literal["matrix", "kernel"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


class View(NamedTuple):
    """cells: (rows, columns) bool, on the CPU.  tile: what a rectangle must not leave, (height, width), or None."""

    cells: Tensor
    tile: tuple[int, int] | None


def view(mask: Tensor, layout: Layout = "matrix", *, compact: bool = True) -> View:
    """One matrix for the mask of a layer, (out, in, *kernel).

    `matrix`: (out, in * taps), as a matrix multiplication sees it; compact: without dead rows and columns.
    `kernel`: (out * height, in * width), every kernel a tile; compact: without dead output and input channels.
    Linear layers, (out, in), are the same in both.  Unlike `bayesprune.layouts`, outputs are rows.
    """
    check_layout(layout)
    mask = mask.detach().to("cpu", torch.bool)
    if mask.ndim == 2 or layout == "matrix":
        cells = mask.flatten(1)
        return View(_without_dead_lines(cells) if compact else cells, None)
    if compact:
        mask = mask[mask.flatten(1).any(1)]
        mask = mask[:, mask.transpose(0, 1).flatten(1).any(1)]
    outputs, inputs = mask.shape[:2]
    height, width = mask.shape[-2] if mask.ndim > 3 else 1, mask.shape[-1]
    depth = mask.shape[2:].numel() // (height * width)
    planes = mask.reshape(outputs, inputs, depth * height, width).transpose(1, 2)
    return View(planes.reshape(outputs * depth * height, inputs * width), (height, width))


def _without_dead_lines(cells: Tensor) -> Tensor:
    return cells[cells.any(1)][:, cells.any(0)]


def check_layout(layout: str) -> None:
    """Raise ValueError where there is no such layout."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")


def check_masks(masks: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless there are masks, each 0 or 1 and of the shape of a weight."""
    if not masks:
        raise ValueError("masks must hold at least one layer, got none; give {name: bool of the shape of its weight}")
    for name, mask in masks.items():
        if mask.ndim < 2:
            raise ValueError(
                f"masks[{name!r}] must be (out, in, *kernel), got shape {tuple(mask.shape)}; leave biases out"
            )
        if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
            raise ValueError(f"masks[{name!r}] must be 0 for dead and 1 for live weights; try mask != 0")
