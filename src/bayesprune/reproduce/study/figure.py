"""The study as a picture: accuracy over nonzeros, what regularity costs, and what coupling does."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bayesprune.reproduce.averaging import ACCURACY, NONZERO, RECTANGLES, Axis
from bayesprune.reproduce.jobs import Row
from bayesprune.reproduce.pictures import figure_title, nonzeros, plain, write_png
from bayesprune.reproduce.study.equal_nonzeros import IrregularNetworks, point_of
from bayesprune.reproduce.study.families import (
    CLUSTER_ROWS,
    FAMILIES,
    IRREGULAR,
    ISING,
    OTHER,
    PAPER,
    PATTERN,
    REGULAR,
    TILES,
    TRANSITIONS,
    UNITS,
    StudyGroup,
    by_chance,
    groups,
)
from bayesprune.reproduce.study.labels import Place, put_labels
from bayesprune.reproduce.study.markdown import study_title
from bayesprune.reproduce.study.sentences import coupled_from_zero

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with any kind of colour vision, and a marker of its own for every family.
STYLES: Final[dict[str, tuple[str, str]]] = {
    IRREGULAR: ("#000000", "o"),
    ISING: ("#0072B2", "s"),
    TRANSITIONS: ("#56B4E9", "D"),
    TILES: ("#009E73", "^"),
    PATTERN: ("#E69F00", "v"),
    REGULAR: ("#D55E00", "p"),
    UNITS: ("#CC79A7", "P"),
    PAPER: ("#B8A000", "X"),
    OTHER: ("#7F7F7F", "h"),
}
SMALLEST, LARGEST = 30.0, 260.0  # areas of the markers for none and all of the weights in rectangles
DEEPEST: Final = 12.0  # points of accuracy that are shown below the best


def draw_study(row: Row, rows: Iterable[Mapping[str, Any]], path: Path, *, epochs_scale: float = 1.0) -> None:
    """Write a PNG; ImportError where matplotlib is missing."""
    from matplotlib.figure import Figure

    found = [group for group in groups(rows) if point_of(group) is not None]
    lines = {
        ISING: coupled_from_zero(found),
        TRANSITIONS: [group for group in found if group.family == TRANSITIONS],
    }
    coupled = {family: mine for family, mine in lines.items() if len(mine) > 1}
    figure = Figure(figsize=(17 if coupled else 12, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, 3 if coupled else 2, width_ratios=[1.25, 1.25, 1][: 3 if coupled else 2])
    left, middle = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[:, 1])
    labels = ((left, _accuracies(left, found)), (middle, _prices(middle, found)))
    if coupled:
        upper, lower = figure.add_subplot(grid[0, 2]), figure.add_subplot(grid[1, 2])
        _over_coupling(upper, coupled, RECTANGLES, "in rectangles of 3x3 or more, %")
        _over_coupling(lower, coupled, CLUSTER_ROWS, "mean cluster along rows")
        lower.set_xlabel("coupling J, given or that of p01 and p10")
    figure.suptitle(figure_title(study_title(row), epochs_scale))
    _legend(figure, found)
    for axes, places in labels:
        put_labels(axes, places)
    write_png(figure, path)


def _accuracies(axes: "Axes", found: Sequence[StudyGroup]) -> list[Place]:
    """Accuracy over nonzeros, with the line that others are compared with; returns what to label."""
    points = IrregularNetworks.among(found).points
    axes.plot(*zip(*points, strict=True) if points else ((), ()), color=STYLES[IRREGULAR][0], linewidth=1, zorder=1)
    places = []
    for group in found:
        point = point_of(group)
        assert point is not None
        _marker(axes, group, *point, spread=(_spread(group, NONZERO), _spread(group, ACCURACY)))
        places.append((group.setting, *point))
    nonzeros(axes)
    top = max((y for _, _, y in places), default=100.0)
    bottom = min((y for _, _, y in places if y >= top - DEEPEST), default=0.0)
    if below := [f"{name} {y:.1f} %" for name, _, y in places if y < top - DEEPEST]:
        axes.set_ylim(bottom - 0.08 * (top - bottom + 1), top + 0.08 * (top - bottom + 1))
        axes.set_title("below the picture: " + ", ".join(below), fontsize=8, loc="left", wrap=True)
    axes.margins(0.1)
    axes.set_ylabel("test accuracy, %")
    plain(axes)
    return [place for place in places if place[2] >= top - DEEPEST]


def _prices(axes: "Axes", found: Sequence[StudyGroup]) -> list[Place]:
    """Points lost at equal nonzeros over the share in rectangles; returns what to label."""
    irregular = IrregularNetworks.among(found)
    places, missing = [], []
    for group in found:
        share, lost = group.mean(RECTANGLES), irregular.lost(group)
        if share is None or lost is None:
            missing.append(group.setting)
            continue
        _marker(axes, group, share.mean, -lost, spread=(_spread(group, RECTANGLES), _spread(group, ACCURACY)))
        if group.family != IRREGULAR:
            places.append((group.setting, share.mean, -lost))
    axes.axhline(0, color=STYLES[IRREGULAR][0], linewidth=1, zorder=1)
    axes.set_xlim(-4, 104)
    axes.margins(y=0.1)
    axes.set_xlabel("in rectangles of 3x3 or more, % (more regular: right)")
    axes.set_ylabel("accuracy at equal nonzeros, points above irregular networks")
    if missing:
        axes.set_title("outside the nonzeros of irregular networks: " + ", ".join(missing), fontsize=8, wrap=True)
    plain(axes)
    return places


def _over_coupling(axes: "Axes", lines: Mapping[str, Sequence[StudyGroup]], axis: Axis, title: str) -> None:
    """A figure and that of chance over the coupling."""
    for family, mine in lines.items():
        colour, marker = STYLES[family]
        for shown, face, dashes in ((axis, colour, "-"), (by_chance(axis), "white", ":")):
            means = [(group.coupling, mean) for group in mine if (mean := group.mean(shown)) is not None]
            axes.errorbar(
                [x for x, _ in means],
                [mean.mean for _, mean in means],
                yerr=[mean.spread or 0 for _, mean in means],
                color=colour,
                marker=marker,
                markerfacecolor=face,
                linestyle=dashes,
                linewidth=1.2,
            )
    axes.set_ylabel(title)
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
    plain(axes)


def _marker(axes: "Axes", group: StudyGroup, x: float, y: float, *, spread: tuple[float, float]) -> None:
    colour, marker = STYLES[group.family]
    axes.errorbar(x, y, xerr=spread[0], yerr=spread[1], color=colour, elinewidth=1, linestyle="", zorder=2)
    share = group.mean(RECTANGLES)
    axes.scatter(
        x,
        y,
        s=_area(share.mean if share else 0.0),
        color=colour,
        marker=marker,
        edgecolor="white",
        alpha=0.85,
        zorder=3,
    )


def _area(share: float) -> float:
    return SMALLEST + (LARGEST - SMALLEST) * share / 100


def _spread(group: StudyGroup, axis: Axis) -> float:
    mean = group.mean(axis)
    return 0.0 if mean is None else mean.spread or 0.0


def _legend(figure: "Figure", found: Sequence[StudyGroup]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=STYLES[family][0], marker=STYLES[family][1], linestyle="", label=title, markersize=9)
        for family, title in FAMILIES.items()
        if any(group.family == family for group in found)
    ]
    grey = {"color": "#7F7F7F", "marker": "o"}
    for share in (0, 50, 100):
        size = _area(share) ** 0.5
        handles.append(Line2D([], [], linestyle="", markersize=size, label=f"{share} % in rectangles", **grey))  # type: ignore[arg-type]
    if any(group.family in (ISING, TRANSITIONS) for group in found):
        handles.append(Line2D([], [], linestyle=":", markerfacecolor="white", label="hollow: by chance", **grey))  # type: ignore[arg-type]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
