"""How regular the live weights of a whole network are (paper II-B, Fig. 2 and Fig. 8)."""

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesprune.regularity import formats
from bayesprune.regularity.covering import SMALLEST, Cover, cover
from bayesprune.regularity.figures import Clusters, Elements, Figures, Kernels, Runs, Steps
from bayesprune.regularity.views import LAYOUTS, Layout, check_layout, check_masks, view


@dataclass(frozen=True)
class Regularity:
    """Figures of every layer, in the order of the masks, and of the network: the sums of its layers."""

    layers: dict[str, Figures]
    network: Figures
    compact: bool
    smallest: tuple[int, int]

    def as_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return {
            "compact": self.compact,
            "smallest": list(self.smallest),
            "network": self.network.as_dict(),
            "layers": {name: figures.as_dict() for name, figures in self.layers.items()},
        }


def regularity(
    masks: Mapping[str, Tensor],
    *,
    layouts: Sequence[Layout] = LAYOUTS,
    compact: bool = True,
    smallest: tuple[int, int] = SMALLEST,
) -> Regularity:
    """Measure how regular the live weights of a network are.

    masks: bool, or 0 and 1, (out, in, *kernel) by layer name.  layouts, compact: see `view`; compact measures what is
    left after surgery.  smallest: the least height and width of a rectangle that is kept as a whole.
    """
    check_masks(masks)
    for layout in layouts:
        check_layout(layout)
    layers = {name: _layer(mask, layouts, compact, smallest) for name, mask in masks.items()}
    return Regularity(layers, functools.reduce(operator.add, layers.values()), compact, smallest)


def _layer(mask: Tensor, layouts: Sequence[Layout], compact: bool, smallest: tuple[int, int]) -> Figures:
    mask = mask.detach().to("cpu", torch.bool)
    cells = view(mask, "matrix", compact=compact).cells
    clusters: dict[str, Clusters] = {}
    for layout in layouts:
        if mask.ndim == 2 and clusters:  # all layouts are the same
            clusters[layout] = next(iter(clusters.values()))
        else:
            seen = view(mask, layout, compact=compact)
            clusters[layout] = _clusters(cover(seen.cells, smallest, tile=seen.tile))
    return Figures(
        mask.numel(),
        int(mask.sum()),
        clusters,
        _elements(cells, mask.flatten(1).shape),
        _runs(cells),
        _runs(cells.t()),
        kernel_windows(mask),
    )


def _clusters(found: Cover) -> Clusters:
    return Clusters(
        found.live,
        found.count,
        found.covered,
        found.covered_larger,
        found.coverable,
        formats.cluster_bytes(found),
        _steps(_rectangles_per_row(found) + found.leftover.sum(1)),
    )


def _elements(cells: Tensor, shape: Sequence[int]) -> Elements:
    """cells: (rows, columns) bool.  shape: of the matrix before lines were left out."""
    return Elements(
        formats.coo_bytes(cells),
        formats.csr_bytes(cells),
        formats.bitmask_bytes(cells),
        formats.delta_bytes(cells),
        sum(math.ceil(before / 8) for before, after in zip(shape, cells.shape, strict=True) if before != after),
        _steps(cells.sum(1)),
        _steps(_begins(cells).sum(1)),
    )


def _steps(per_row: Tensor) -> Steps:
    return Steps(len(per_row), int(per_row.sum()), int(per_row.max()) if len(per_row) else 0)


def _rectangles_per_row(found: Cover) -> Tensor:
    """How many rectangles cross each row, (rows,)."""
    rows = len(found.leftover)
    top, _, height, _ = found.rectangles.t()
    return (torch.bincount(top, minlength=rows + 1) - torch.bincount(top + height, minlength=rows + 1)).cumsum(0)[:rows]


def _runs(cells: Tensor) -> Runs:
    """Along the last axis of (rows, columns)."""
    live, dead = int(cells.sum()), int((~cells).sum())
    return Runs(live, int(_begins(cells).sum()), dead, int(_begins(~cells).sum()))


def _begins(cells: Tensor) -> Tensor:
    """Where a run begins along the last axis of (rows, columns)."""
    begins = cells.clone()
    begins[:, 1:] &= ~cells[:, :-1]
    return begins


def kernel_windows(mask: Tensor) -> Kernels:
    """The smallest window that holds the live taps of each kernel, for a mask (out, in, *kernel)."""
    kernels = mask.detach().to("cpu", torch.bool).flatten(0, 1)
    taps = mask.shape[2:].numel()
    if taps == 1:
        return Kernels()
    kernels = kernels[kernels.flatten(1).any(1)]
    windows = torch.ones(len(kernels), dtype=torch.int64)
    for axis, size in enumerate(mask.shape[2:]):
        lines = kernels.movedim(axis + 1, -1).reshape(len(kernels), taps // size, size)
        used = lines.any(1).long()  # (kernels, size)
        windows *= size - used.argmax(1) - used.flip(1).argmax(1)
    return Kernels(
        mask.shape[:2].numel(),
        len(kernels),
        int((windows < taps).sum()),
        int(kernels.sum()),
        int(windows.sum()),
        taps * len(kernels),
    )
