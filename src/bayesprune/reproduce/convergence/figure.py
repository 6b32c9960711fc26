"""Fig. 10 and Fig. 11 again: how much messages change, and what they look like on the way."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bayesprune.reproduce.convergence.markdown import groups
from bayesprune.reproduce.convergence.settling import ALL, TOLERANCES, changes
from bayesprune.reproduce.jobs import Row
from bayesprune.reproduce.pictures import plain, write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, and dashes from the eighth layer on.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B8A000")
SYMBOLS: Final = {"message": r"$v_{h\to s}$, Module B to A", "evidence": r"$v_{\eta\to s}$, Module A to B"}
PARTS: Final = {"from_supports": SYMBOLS["message"], "to_supports": SYMBOLS["evidence"], "posterior": "$q(s=1)$"}
PANEL: Final = (3.3, 2.9)  # inches
SMALLEST: Final = 1e-6  # changes below it, 0 too, are drawn here
PAPER: Final = 15  # iterations in which the paper's messages settle
STRIP: Final = 3.0  # columns over rows from which on windows are stacked


def draw_convergence(row: Row, rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write two PNGs, the second with -messages in its name; ImportError where matplotlib is missing."""
    found = groups(rows)
    if found:
        _draw_changes(row, found, path)
        _draw_messages(row, found, path.with_stem(f"{path.stem}-messages"))


def _draw_changes(row: Row, found: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    from matplotlib.figure import Figure

    size = (PANEL[0] * len(found) + 1.6, 2 * PANEL[1] + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(2, len(found), squeeze=False, sharex=True, sharey=True)
    for column, group in enumerate(found.values()):
        for line, message in enumerate(SYMBOLS):
            _changes_panel(panels[line][column], group, message)
        panels[0][column].set_title(group[0]["title"], fontsize=10)
        panels[1][column].set_xlabel("outer iteration")
    for line, symbol in enumerate(SYMBOLS.values()):
        panels[line][0].set_ylabel(f"mean |change| of {symbol}", fontsize=9)
    handles, labels = panels[1][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=9, frameon=False)
    starts = max(len(group) for group in found.values())
    figure.suptitle(
        f"{row.title}: messages from {starts} random start{'s' if starts > 1 else ''} (faint), and their mean"
    )
    write_png(figure, path)


def _changes_panel(axes: "Axes", group: Sequence[Mapping[str, Any]], message: str) -> None:
    by_start = [changes(row, message) for row in group]
    iterations = range(1, len(by_start[0][ALL]) + 1)
    for number, layer in enumerate(by_start[0]):
        style: dict[str, Any] = {"color": "black", "linewidth": 2.0, "zorder": 3}
        if layer != ALL:
            colour, dashed = COLOURS[(number - 1) % len(COLOURS)], number > len(COLOURS)
            style = {"color": colour, "linewidth": 1.3, "linestyle": "--" if dashed else "-"}
        values = np.maximum([one[layer] for one in by_start], SMALLEST)
        if len(values) > 1:
            axes.plot(iterations, values.T, **style | {"linewidth": 0.8, "alpha": 0.3})
        axes.plot(
            iterations, np.maximum(values.mean(0), SMALLEST), label="all layers" if layer == ALL else layer, **style
        )
    for tolerance in TOLERANCES:
        axes.axhline(tolerance, color="grey", linewidth=0.8, linestyle=":")
    axes.axvline(PAPER, color="grey", linewidth=0.8, linestyle=":")
    axes.set_yscale("log")
    axes.set_ylim(SMALLEST / 1.5, 1)
    axes.set_yticks([1, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, SMALLEST], ["1", *(f"$10^{{-{k}}}$" for k in range(1, 6)), "0"])
    axes.minorticks_off()
    plain(axes)


def _draw_messages(row: Row, found: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Both messages of one layer and q(s) at a few iterations, from the first start."""
    from matplotlib.figure import Figure

    shown = {group[0]["title"]: group[0]["windows"] for group in found.values() if group[0].get("windows")}
    if not shown:
        return
    first = next(iter(shown.values()))
    iterations = list(first["iterations"])
    height, width = _pixels(first["iterations"][iterations[0]]["posterior"]).shape
    strips = width >= STRIP * height
    blocks = len(shown)
    lines, columns = (len(iterations), len(PARTS)) if strips else (len(PARTS), len(iterations))
    cell = (3.4, 3.4 * height / width + 0.08) if strips else (1.35, 1.35 * height / width + 0.08)
    figure = Figure(figsize=(cell[0] * columns + 1.4, (cell[1] * lines + 0.75) * blocks + 0.4), layout="constrained")
    figure.suptitle(f"{row.title}: messages of {first['layer']}, {height} outputs x {width} inputs, white 0, black 1")
    parts = figure.subfigures(blocks, 1, squeeze=False)[:, 0]
    for part, (title, windows) in zip(parts, shown.items(), strict=True):
        part.suptitle(title, fontsize=10, x=0.01, ha="left", fontweight="bold")
        panels = part.subplots(lines, columns, squeeze=False)
        for i, iteration in enumerate(iterations):
            for j, (name, symbol) in enumerate(PARTS.items()):
                axes = panels[i][j] if strips else panels[j][i]
                pixels = _pixels(windows["iterations"][iteration][name])
                axes.imshow(pixels, cmap="Greys", vmin=0, vmax=255, aspect="auto", interpolation="nearest")
                axes.set_xticks([])
                axes.set_yticks([])
                if strips:
                    _name(axes, symbol if i == 0 else "", iteration if j == 0 else "")
                else:
                    _name(axes, iteration if j == 0 else "", symbol if i == 0 else "")
    write_png(figure, path)


def _name(axes: "Axes", above: str, beside: str) -> None:
    if above:
        axes.set_title(above, fontsize=9)
    if beside:
        axes.set_ylabel(beside, fontsize=9, rotation=0, ha="right", va="center")


def _pixels(lines: Sequence[str]) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """(rows, columns) of hexadecimal lines."""
    return np.stack([np.frombuffer(bytes.fromhex(line), dtype=np.uint8) for line in lines])
