"""The figures of a report as files, drawn by matplotlib."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bayesprune.report.charts import (
    COLOURS,
    BarGroup,
    Bars,
    Drawing,
    Frames,
    LayerFrames,
    Lines,
    Matrices,
    Matrix,
    Points,
)
from bayesprune.report.markup import plain, slug
from bayesprune.report.matrices import FULL, GAP
from bayesprune.report.message_frames import thinned
from bayesprune.runs.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
DOTS_PER_INCH = 150
MARKERS = ("o", "D", "s", "^", "h", "v", "P")
DASHES = ("-", "--", ":", "-.")
SHOWN_ITERATIONS = 5
WIDE, TALLEST = 5.2, 30.0  # inches of a matrix, and of all below each other
INK, SOFT, DEAD = "#1d2126", "#5b636d", "#f3f1ed"
# What a file says is never read as a formula; the same input gives the same file.
LOOK: dict[Any, Any] = {
    "text.parse_math": False,
    "svg.hashsalt": "bayesprune",
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "figure.titlesize": 12,
}


def write_figures(found: Sequence[Drawing], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write every figure in every format into the folder; ImportError without matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise ImportError("drawing needs matplotlib; try pip install 'bayesprune[figures]'") from error
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(LOOK):
        for drawing in found:
            for name, size, draw in _plates(drawing):
                figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1))
                draw(figure)
                for kind in formats:
                    path = folder / f"{slug(name)}.{kind}"
                    content = io.BytesIO()
                    metadata = {"Date": None} if kind == "svg" else {}
                    figure.savefig(content, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
                    write_atomically(path, [content.getvalue()])
                    written.append(path)
    return written


def _plates(drawing: Drawing) -> list[tuple[str, tuple[float, float], Any]]:
    """The files of a drawing: name, inches, and what draws on a figure."""
    if isinstance(drawing, Lines):
        return [(drawing.name, (8, 3.6), lambda figure: _lines(figure, drawing))]
    if isinstance(drawing, Points):
        return [(drawing.name, (7, 4.2), lambda figure: _points(figure, drawing))]
    if isinstance(drawing, Bars):
        count = sum(len(group.bars) for group in drawing.groups)
        return [(drawing.name, (8, 1.4 + 0.8 * len(drawing.groups) + 0.24 * count), lambda f: _bars(f, drawing))]
    if isinstance(drawing, Frames):
        return [
            (f"{drawing.name}-{number + 1:02d}-{slug(layer.layer)}", (11, 7), _frames_of(drawing, layer))
            for number, layer in enumerate(drawing.layers)
        ]
    panels = [*drawing.panels, *([_support(drawing.panels[-1])] if not drawing.panels[-1].square else [])]
    across = min(len(panels), 2)
    shapes = [one.whole[0] / max(1, one.whole[1]) if one.square else 0.5 for one in panels]
    high = sum(0.45 + WIDE * max(shapes[place : place + across]) for place in range(0, len(panels), across))
    size = (WIDE * across, 0.5 + min(high, TALLEST))
    return [(drawing.name, size, lambda figure: _matrices(figure, drawing, panels, across))]


def _support(matrix: Matrix) -> Matrix:
    """Live weights all alike, in the rectangles of the last panel."""
    cells = np.where(matrix.cells != 0, np.int8(FULL), np.int8(0))
    return Matrix("support", cells, matrix.whole, largest=1.0, block=matrix.block)


def _lines(figure: "Figure", chart: Lines) -> None:
    axes = figure.subplots()
    for place, one in enumerate(chart.series):
        y = [np.nan if value is None else value for value in one.y]
        dashes = DASHES[place // len(COLOURS) % len(DASHES)]
        axes.plot(one.x, y, dashes, color=COLOURS[place % len(COLOURS)], label=one.label, linewidth=1.6)
    for place, band in enumerate(chart.bands):
        if place % 2:
            axes.axvspan(band.begin, band.end, color="#f0eeea", zorder=0, linewidth=0)
        axes.annotate(
            band.label, (band.begin, 1.0), (3, 3), xycoords=("data", "axes fraction"), textcoords="offset points",
            fontsize=8, color=SOFT,
        )  # fmt: skip
    if chart.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    places = [value for one in chart.series for value in one.x]
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label, xlim=(min(places), max(max(places), min(places) + 1)))
    axes.grid(axis="y", alpha=0.3)
    if len(chart.series) > 1:
        figure.legend(loc="outside right upper", frameon=False)
    figure.suptitle(plain(chart.title), x=0.01, ha="left")


def _points(figure: "Figure", chart: Points) -> None:
    axes = figure.subplots()
    for place, one in enumerate(chart.series):
        colour = COLOURS[place % len(COLOURS)]
        axes.scatter(
            [point.x for point in one.points],
            [point.y for point in one.points],
            marker=MARKERS[place % len(MARKERS)],
            facecolors=colour if one.filled else "white",
            edgecolors=colour,
            label=one.label,
            zorder=3 - place / 100,
        )
    if chart.level:
        axes.axhline(chart.level[0], color=SOFT, linestyle="--", linewidth=1, label=chart.level[1])
    if chart.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    figure.suptitle(plain(chart.title), x=0.01, ha="left")


def _bars(figure: "Figure", chart: Bars) -> None:
    from matplotlib.patches import Patch

    heights = [len(group.bars) for group in chart.groups]
    panels = figure.subplots(len(chart.groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, group in zip(panels, chart.groups, strict=True):
        _bar_group(axes, group)
    panels[-1].set_xlabel(chart.x_label)
    handles = [Patch(color=COLOURS[place % len(COLOURS)], label=text) for place, text in enumerate(chart.legend)]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    figure.suptitle(plain(chart.title), x=0.01, ha="left")


def _bar_group(axes: "Axes", group: BarGroup) -> None:
    ticks: dict[str, list[float]] = {}
    place, before = 0.0, ""
    for bar in group.bars:
        place += 0.35 if before and bar.label != before else 0
        before = bar.label
        axes.barh(place, bar.value, 0.85, color=COLOURS[bar.colour % len(COLOURS)])
        axes.annotate(bar.text, (bar.value, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
        ticks.setdefault(bar.label, []).append(place)
        place += 1
    axes.set_yticks([sum(one) / len(one) for one in ticks.values()], list(ticks))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_title(group.label)


def _matrices(figure: "Figure", chart: Matrices, panels: Sequence[Matrix], across: int) -> None:
    grid = figure.subplots(-(-len(panels) // across), across, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, matrix in zip(grid.flat, panels, strict=False):
        _matrix(axes, matrix, chart)
    figure.suptitle(plain(chart.title), x=0.01, ha="left")


def _matrix(axes: "Axes", matrix: Matrix, chart: Matrices) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    signed = LinearSegmentedColormap.from_list("signed", [COLOURS[0], "#d9e6ef", "#f6e0d3", COLOURS[1]])
    if matrix.title == "support":
        signed = LinearSegmentedColormap.from_list("support", [INK, INK])
    codes = matrix.cells.astype(np.float32)
    shown = np.ma.masked_where((codes == GAP) | (codes == 0), codes)
    rows, columns = matrix.whole
    edges = (0, columns, rows, 0)
    dead = np.ma.masked_where(codes != 0, np.zeros_like(codes))
    grey = LinearSegmentedColormap.from_list("dead", [DEAD, DEAD])
    aspect: Literal["equal", "auto"] = "equal" if matrix.square else "auto"
    axes.imshow(dead, cmap=grey, extent=edges, aspect=aspect, interpolation="nearest")
    axes.imshow(shown, cmap=signed, vmin=-FULL, vmax=FULL, extent=edges, aspect=aspect, interpolation="nearest")
    frames = [Rectangle((left, top), wide, high) for top, left, high, wide in matrix.rectangles]
    axes.add_collection(PatchCollection(frames, facecolor="none", edgecolor=INK, linewidth=0.7))
    axes.set_title(plain(matrix.title))
    axes.spines[:].set_visible(not matrix.square)
    if matrix.square:
        axes.set(xticks=[], yticks=[])
    else:
        axes.set(xlabel=chart.x_label, ylabel=chart.y_label)


def _frames_of(chart: Frames, layer: LayerFrames) -> Any:
    def draw(figure: "Figure") -> None:
        chosen = thinned(len(chart.iterations), SHOWN_ITERATIONS)
        grid = figure.subplots(len(layer.parts), len(chosen), squeeze=False)
        for row, part in enumerate(layer.parts):
            for column, place in enumerate(chosen):
                axes = grid[row, column]
                image = axes.imshow(part[place], cmap="cividis", vmin=0, vmax=255, aspect="auto")
                axes.set(xticks=[], yticks=[])
                if row == 0:
                    axes.set_title(f"iteration {chart.iterations[place]}")
            grid[row, 0].set_ylabel(plain(chart.titles[row]).replace(": ", ":\n"), fontsize=8)
        bar = figure.colorbar(image, ax=grid, ticks=[0, 127.5, 255], shrink=0.6)
        bar.ax.set_yticklabels(["0", "0.5", "1"])
        figure.suptitle(f"{layer.layer}: {plain(chart.title).lower()}", x=0.01, ha="left")

    return draw
