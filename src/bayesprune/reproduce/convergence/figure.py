"""Fig. 10 and Fig. 11 again: how much messages change, and what they look like on the way."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bayesprune.reproduce.convergence.jobs import trial_of
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
PANEL: Final = (3.6, 2.3)  # inches
COLUMNS: Final = 3
SMALLEST: Final = 1e-6  # changes below it, 0 too, are drawn here
PAPER: Final = 15  # iterations in which the paper's messages settle
STRIP: Final = 3.0  # columns over rows from which on windows are stacked
CELL: Final = (2.5, 1.2)  # inches across: of a strip, of another window
BLOCKS: Final = 2  # settings side by side


def draw_convergence(row: Row, rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write two PNGs, the second with -messages in its name; ImportError where matplotlib is missing."""
    found = groups(rows)
    if found:
        _draw_changes(row, found, path)
        _draw_messages(row, found, path.with_stem(f"{path.stem}-messages"))


def _draw_changes(row: Row, found: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(found))
    lines = -(-len(found) // columns)
    figure = Figure(figsize=(PANEL[0] * columns + 1.4, 2 * PANEL[1] * lines + 0.4), layout="constrained")
    panels = figure.subplots(2 * lines, columns, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat:
        axes.set_visible(False)
    for number, group in enumerate(found.values()):
        line, column = divmod(number, columns)
        for axes, (message, symbol) in zip(panels[2 * line : 2 * line + 2, column], SYMBOLS.items(), strict=True):
            axes.set_visible(True)
            _changes_panel(axes, group, message)
            if column == 0:
                axes.set_ylabel("mean |change| of\n" + symbol, fontsize=9)
        panels[2 * line][column].set_title(group[0]["title"], fontsize=10, fontweight="bold")
        panels[2 * line + 1][column].set_xlabel("outer iteration")
        panels[2 * line + 1][column].tick_params(labelbottom=True)
    handles, labels = panels[1][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=9, frameon=False)
    starts = max(len(group) for group in found.values())
    several = f"{starts} random starts (faint), and their mean" if starts > 1 else "a random start"
    figure.suptitle(f"{_title(row, found)}: messages from {several}")
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
    axes.set_yticks(
        [1, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, SMALLEST], ["1", *(f"$10^{{-{k}}}$" for k in range(1, 6)), "less"]
    )
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
    across = min(BLOCKS, len(shown))
    down = -(-len(shown) // across)
    lines, columns = (len(iterations), len(PARTS)) if strips else (len(PARTS), len(iterations))
    cell = CELL[0] if strips else CELL[1]
    size = (cell * columns + (0.6 if strips else 1.6), (cell * height / width + 0.06) * lines + 0.65)
    figure = Figure(figsize=(size[0] * across, size[1] * down + 0.4), layout="constrained")
    whole = first["shape"] == [height, width]
    cut = f"{height} outputs x {width} inputs" + ("" if whole else " of {} x {}".format(*first["shape"]))
    figure.suptitle(f"{_title(row, found)}: messages of {first['layer']} at outer iterations, {cut}, black 1")
    parts = figure.subfigures(down, across, squeeze=False).flat
    for part, (title, windows) in zip(parts, shown.items(), strict=False):
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


def _title(row: Row, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    trial = trial_of(next(iter(found.values()))[0])
    return row.title + (f", {trial.upper()}" if trial else "")


def _name(axes: "Axes", above: str, beside: str) -> None:
    if above:
        axes.set_title(above, fontsize=9)
    if beside:
        axes.set_ylabel(beside, fontsize=9, rotation=0, ha="right", va="center")


def _pixels(lines: Sequence[str]) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """(rows, columns) of hexadecimal lines."""
    return np.stack([np.frombuffer(bytes.fromhex(line), dtype=np.uint8) for line in lines])
