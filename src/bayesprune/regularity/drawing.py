"""A picture of a layer's live weights and their rectangles."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesprune.regularity.covering import SMALLEST, Cover, cover
from bayesprune.regularity.views import Layout, check_masks, view

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEAD, LEFTOVER, COVERED, BORDER = "#ffffff", "#e08214", "#9ecae1", "#08306b"


def draw(
    axes: "Axes",
    mask: Tensor,
    *,
    layout: Layout = "matrix",
    compact: bool = True,
    smallest: tuple[int, int] = SMALLEST,
) -> Cover:
    """Draw the mask of a layer, (out, in, *kernel), to matplotlib Axes; returns the cover that is drawn.

    Rectangles are blue with a border, live weights outside them orange, kernels of the layout `kernel` apart by lines.
    """
    try:
        from matplotlib.collections import PatchCollection
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Rectangle
    except ImportError as error:
        raise ImportError("drawing needs matplotlib; try pip install 'bayesprune[figures]'") from error
    check_masks({"mask": mask})
    cells, tile = view(mask, layout, compact=compact)
    found = cover(cells, smallest, tile=tile)
    kind = torch.where(found.leftover, 1, 2) * cells  # 0 dead, 1 leftover, 2 in a rectangle
    colours = ListedColormap([DEAD, LEFTOVER, COVERED])
    rows, columns = cells.shape
    # Cells are squares around whole numbers, so that borders lie at halves.
    if cells.numel():
        axes.imshow(kind.numpy(), cmap=colours, vmin=0, vmax=2, interpolation="nearest", aspect="auto")
    borders = [Rectangle((left - 0.5, top - 0.5), wide, high) for top, left, high, wide in found.rectangles.tolist()]
    axes.add_collection(PatchCollection(borders, facecolor="none", edgecolor=BORDER, linewidth=0.8))
    if tile is not None:
        axes.hlines(
            [row - 0.5 for row in range(0, rows + 1, tile[0])], -0.5, columns - 0.5, "0.8", linewidth=0.5, zorder=0.5
        )
        axes.vlines(
            [one - 0.5 for one in range(0, columns + 1, tile[1])], -0.5, rows - 0.5, "0.8", linewidth=0.5, zorder=0.5
        )
    share = f"{100 * found.share:.0f} %" if found.live else "none"
    axes.set(
        xlabel=f"{columns} columns",
        ylabel=f"{rows} rows",
        title=f"{found.live} live, {share} in {found.count} rectangles",
    )
    return found
