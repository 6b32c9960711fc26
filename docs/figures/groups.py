"""Which weights of a convolution share one support: the picture of groups in docs/structures.md.

    python docs/figures/groups.py

Writes groups.png beside this file.  Nothing random: neighbouring groups get different colours.
"""

from pathlib import Path
from typing import get_args

import matplotlib
import torch
from torch import Tensor

from bayesprune import SharedPrecision
from bayesprune.priors.groups import Kind

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.colors import ListedColormap

SHAPE = (8, 6, 3, 3)  # outputs, inputs, kernel
# Colour-blind safe (Okabe and Ito), softened; 4 are enough for rectangles side by side.
COLOURS = ListedColormap(["#56b4e9", "#e69f00", "#009e73", "#f0e442"])
INK = "#24292f"
TILES = {"tile": (2, 2)}  # 4 x 4 would be the whole kernel
LEGEND = (
    "Rows are outputs, columns inputs x taps of a 3x3\nkernel.  A patch of one colour is one group; a tile\n"
    "is two by two taps, cut off at the kernel's border."
)


def groups(kind: Kind) -> Tensor:
    """The number of every weight's group, as the matrix (outputs, inputs * taps)."""
    shared = SharedPrecision(kind, TILES.get(kind, (4, 4)))
    lattice = shared.size(SHAPE)  # (batch, *groups)
    numbers = torch.arange(lattice.numel(), dtype=torch.float32).reshape(lattice.shape)
    return shared.to_weights(numbers, SHAPE).flatten(1)


def coloured(numbers: Tensor) -> Tensor:
    """A colour 0 to 3 for every group, another one than its neighbours': by the place of its first weight."""
    colours = torch.zeros_like(numbers)
    first_rows: dict[float, tuple[int, int]] = {}
    for row, values in enumerate(numbers.tolist()):
        for column, number in enumerate(values):
            first_rows.setdefault(number, (row, column))
    rows = sorted({row for row, _ in first_rows.values()})
    columns = sorted({column for _, column in first_rows.values()})
    for number, (row, column) in first_rows.items():
        colours[numbers == number] = 2 * (rows.index(row) % 2) + columns.index(column) % 2
    return colours


def main() -> None:
    """Draw every kind of group."""
    kinds = [kind for kind in get_args(Kind) if kind != "unit"]  # another name for column
    figure, axes = plt.subplots(4, 2, figsize=(9.6, 4.6), layout="constrained")
    for axis in axes.flat[len(kinds) :]:
        axis.set_axis_off()
        axis.text(0, 0.5, LEGEND, va="center", fontsize=10, color=INK)
    for axis, kind in zip(axes.flat, kinds, strict=False):
        numbers = groups(kind)
        axis.imshow(coloured(numbers), cmap=COLOURS, vmin=0, vmax=3, interpolation="nearest")
        outputs, inputs = numbers.shape
        for column in range(0, inputs + 1, 9):
            axis.axvline(column - 0.5, color=INK, linewidth=1.2)
        axis.set_xticks([4 + 9 * at for at in range(SHAPE[1])], [f"input {at}" for at in range(SHAPE[1])], fontsize=8)
        axis.set_yticks([0, outputs - 1], ["output 0", f"output {outputs - 1}"], fontsize=8)
        axis.tick_params(length=0)
        size = int(torch.unique(numbers, return_counts=True)[1].max())
        axis.set_title(
            f"{kind}: {'up to ' * (kind == 'tile')}{size} weight{'s' * (size > 1)} a group", fontsize=10, color=INK
        )
    figure.savefig(Path(__file__).parent / "groups.png", dpi=100)


if __name__ == "__main__":
    main()
