"""How much of a mask lies in disjoint all-live rectangles."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bayesprune.regularity.rectangles import Cells, greedy, in_windows, times_covered

SMALLEST = (3, 3)  # the paper records clusters from this size on as a whole (VI-D)


@dataclass(frozen=True)
class Cover:
    """Disjoint all-live rectangles of a mask.

    rectangles: (n, 4) int64, each (row, column, height, width), largest first.
    leftover: (rows, columns) bool, the live weights outside all of them.
    live: live weights of the mask.  coverable: those in at least one all-live window of `smallest`, which no set of
    rectangles can exceed.
    """

    rectangles: Tensor = field(repr=False)
    leftover: Tensor = field(repr=False)
    live: int
    coverable: int
    smallest: tuple[int, int] = SMALLEST

    @property
    def areas(self) -> Tensor:
        """Weights of every rectangle, (n,) int64."""
        return self.rectangles[:, 2] * self.rectangles[:, 3]

    @property
    def count(self) -> int:
        """Number of rectangles."""
        return len(self.rectangles)

    @property
    def covered(self) -> int:
        """Live weights in rectangles."""
        return int(self.areas.sum())

    @property
    def covered_larger(self) -> int:
        """Live weights in rectangles strictly larger than `smallest` (the paper's rule with 3x3)."""
        return int(self.areas[self.areas > self.smallest[0] * self.smallest[1]].sum())

    @property
    def leftovers(self) -> int:
        """Live weights outside all rectangles."""
        return self.live - self.covered

    @property
    def share(self) -> float:
        """Share of the live weights in rectangles; NaN where nothing lives."""
        return ratio(self.covered, self.live)

    @property
    def share_larger(self) -> float:
        """Share of the live weights in rectangles strictly larger than `smallest`; NaN where nothing lives."""
        return ratio(self.covered_larger, self.live)

    @property
    def share_bound(self) -> float:
        """What `share` cannot exceed; NaN where nothing lives."""
        return ratio(self.coverable, self.live)

    @property
    def mean_area(self) -> float:
        """Mean number of weights of a rectangle; NaN where there is none."""
        return ratio(self.covered, self.count)


def cover(mask: Tensor, smallest: tuple[int, int] = SMALLEST, *, tile: tuple[int, int] | None = None) -> Cover:
    """Cover live weights by disjoint all-live rectangles of at least `smallest`, greedily by largest area.

    Exactly: as long as there is an all-live rectangle of enough height and width among the weights not yet covered,
    take the largest; of equal ones the topmost, then the leftmost, then the flattest.

    mask: (rows, columns) bool.  tile: rectangles stay inside the tiles of this size (height, width), e.g. the kernels
    of a convolution; rows and columns must be multiples of it.

    All m maximal rectangles are found in O(rows * columns); choosing among them takes O((m + p) log(m + p)), where p
    is the number of their parts that are looked at because something else took the rest.  A random mask of 512 x 4608
    takes under a second up to 70 % density; long diagonal bands, a million overlapping rectangles, half a minute.
    """
    if mask.ndim != 2 or mask.dtype != torch.bool:
        raise ValueError(
            f"mask must be a bool matrix, got {mask.dtype} of shape {tuple(mask.shape)}; try mask.bool().flatten(1)"
        )
    if len(smallest) != 2 or min(smallest) < 1:
        raise ValueError(f"smallest must be a height and a width of at least 1, got {smallest}; try (3, 3)")
    live: Cells = mask.detach().cpu().numpy()
    separated = live if tile is None else _separate(live, tile)
    rectangles = greedy(separated, smallest)
    if tile is not None:  # each tile was followed by one dead line
        rectangles[:, 0] -= rectangles[:, 0] // (tile[0] + 1)
        rectangles[:, 1] -= rectangles[:, 1] // (tile[1] + 1)
    rows, columns = live.shape
    leftover = live & (times_covered(rectangles, (rows, columns)) == 0)
    coverable = int(in_windows(separated, smallest).sum())
    return Cover(torch.from_numpy(rectangles), torch.from_numpy(leftover), int(live.sum()), coverable, smallest)


def _separate(live: Cells, tile: tuple[int, int]) -> Cells:
    """A dead row below and a dead column right of every tile."""
    (rows, columns), (height, width) = live.shape, tile
    if min(tile) < 1 or rows % height or columns % width:
        raise ValueError(f"tile must divide the mask of shape {(rows, columns)}, got {tile}; try None")
    down, across = rows // height, columns // width
    separated = np.zeros((down, height + 1, across, width + 1), bool)
    separated[:, :height, :, :width] = live.reshape(down, height, across, width)
    return separated.reshape(down * (height + 1), across * (width + 1))


def ratio(part: int, whole: int) -> float:
    """part / whole; NaN where whole is 0."""
    return part / whole if whole else float("nan")
