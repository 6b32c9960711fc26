"""A row of Table II as a picture: accuracy over nonzeros and over MACs removed."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bayesprune.reproduce.averaging import ACCURACY, MACS, NONZERO, Axis
from bayesprune.reproduce.comparing import MethodGroup, groups
from bayesprune.reproduce.jobs import Row
from bayesprune.reproduce.methods import (
    GROUP_NORM_DISTILLED,
    GROUP_NORM_SMALL,
    METHODS,
    OURS,
    OURS_DISTILLED,
    OURS_MACS,
    OURS_MACS_DISTILLED,
    PAPER_PRIOR,
    UNPRUNED,
)
from bayesprune.reproduce.paper import TABLE2, Printed
from bayesprune.reproduce.pictures import figure_title, nonzeros, plain, write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart with any kind of colour vision, and a marker of its own for every method.
STYLES: Final[dict[str, tuple[str, str]]] = {
    UNPRUNED: ("#000000", "_"),
    OURS: ("#D55E00", "*"),
    OURS_MACS: ("#D55E00", "p"),
    OURS_DISTILLED: ("#D55E00", "d"),
    OURS_MACS_DISTILLED: ("#D55E00", ">"),
    PAPER_PRIOR: ("#D55E00", "X"),
    "variational-dropout": ("#0072B2", "o"),
    "group-variational-dropout": ("#56B4E9", "s"),
    "polarization": ("#009E73", "^"),
    "snip": ("#CC79A7", "D"),
    "magnitude": ("#7F7F7F", "v"),
    "l1": ("#B8A000", "P"),
    "group-norm": ("#E69F00", "h"),
    GROUP_NORM_SMALL: ("#E69F00", "s"),
    GROUP_NORM_DISTILLED: ("#E69F00", "<"),
}
# None: printed in the paper.
UNPRUNED_LINES: Final[dict[str | None, Any]] = {"best": "--", "long": (0, (8, 3)), "paper": "-.", None: ":"}
SIZES: Final = {"best": 11.0, "long": 11.0, "paper": 7.0}
FACE: Final = "white"
EDGES: Final = {"best": (FACE, 0.6), "long": ("black", 1.5), "paper": (FACE, 0.6)}  # colour and width
LARGER: Final = {"*": 1.35}  # stars look smaller than they are
DEEPEST: Final = 15.0  # points below the best that are shown: one method that fails must not flatten the others


def draw(row: Row, rows: Iterable[Mapping[str, Any]], path: Path, *, epochs_scale: float = 1.0) -> None:
    """Write a PNG; ImportError where matplotlib is missing."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    found = groups(rows)
    printed = TABLE2.get(row.name, {})
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, axis in ((left, NONZERO), (right, MACS)):
        for method, line in printed.items():
            _paper_point(axes, axis, method, line)
        for group in found:
            _our_point(axes, axis, group)
        plain(axes)
    nonzeros(left)
    _leave_out_the_lowest(left, found, printed.values())
    right.set_xlabel("MACs removed, % (more is better: right)")
    left.set_ylabel("test accuracy, %")
    figure.suptitle(figure_title(row.title, epochs_scale))

    levels = {
        UNPRUNED_LINES[group.protocol]: f"unpruned, protocol {group.protocol}" for group in found if _is_level(group)
    }
    levels |= {UNPRUNED_LINES[None]: "unpruned, printed in the paper"} if UNPRUNED in printed else {}
    handles = [Line2D([], [], color=STYLES[UNPRUNED][0], linewidth=1, linestyle=k, label=v) for k, v in levels.items()]
    shown = [m for m in METHODS if m in printed or any(group.method == m and group.rows for group in found)]
    handles += [
        Line2D([], [], color=STYLES[m][0], marker=STYLES[m][1], linestyle="", label=m) for m in shown if m != UNPRUNED
    ]
    filled = [
        ("filled, large: protocol best", SIZES["best"], "black"),
        ("filled, small: protocol paper", SIZES["paper"], "black"),
        ("hollow: printed in the paper", SIZES["best"], FACE),
    ]
    if any(group.protocol == "long" for group in found):
        filled.insert(1, ("filled, with a black edge: protocol long", SIZES["long"], "grey"))
    for label, size, face in filled:
        style = {"marker": "o", "linestyle": "", "markeredgecolor": "black", "markerfacecolor": face}
        handles.append(Line2D([], [], label=label, markersize=size, **style))  # type: ignore[arg-type]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    write_png(figure, path)


def _paper_point(axes: "Axes", axis: Axis, method: str, line: Printed) -> None:
    colour, marker = STYLES[method]
    if method == UNPRUNED:
        _level(axes, line.accuracy, None)
        return
    x = line.nonzero if axis is NONZERO else line.macs_removed
    axes.plot(
        *(x, line.accuracy),
        marker=marker,
        markersize=SIZES["best"] * LARGER.get(marker, 1),
        markeredgecolor=colour,
        markerfacecolor=FACE,
        markeredgewidth=1.5,
        linestyle="",
    )


def _our_point(axes: "Axes", axis: Axis, group: MethodGroup) -> None:
    x, y = group.mean(axis), group.mean(ACCURACY)
    if x is None or y is None:
        return
    colour, marker = STYLES[group.method]
    edge, width = EDGES[group.protocol]
    if group.method == UNPRUNED:
        _level(axes, y.mean, group.protocol)
        return
    axes.errorbar(
        x.mean,
        y.mean,
        xerr=x.spread or 0,
        yerr=y.spread or 0,
        color=colour,
        marker=marker,
        markersize=SIZES[group.protocol] * LARGER.get(marker, 1),
        markeredgecolor=edge,
        markeredgewidth=width,
        elinewidth=1,
        linestyle="",
        zorder=3,
    )


def _level(axes: "Axes", accuracy: float, protocol: str | None) -> None:
    """A line across; None for what the paper printed."""
    axes.axhline(accuracy, color=STYLES[UNPRUNED][0], linestyle=UNPRUNED_LINES[protocol], linewidth=1)


def _is_level(group: MethodGroup) -> bool:
    return group.method == UNPRUNED and group.mean(ACCURACY) is not None


def _leave_out_the_lowest(axes: "Axes", found: Sequence[MethodGroup], printed: Iterable[Printed]) -> None:
    """Cut what lies far below the rest, and say so in the picture."""
    means = {f"{g.method} ({g.protocol})": m.mean for g in found if (m := g.mean(ACCURACY)) is not None}
    top = max([*means.values(), *(line.accuracy for line in printed)], default=0.0)
    floor = top - DEEPEST
    below = [f"{name} {value:.1f} %" for name, value in means.items() if value < floor]
    if below:
        axes.set_ylim(floor, top + 0.05 * DEEPEST)
        text = textwrap.fill("below the picture: " + ", ".join(below), 90)
        axes.text(0.01, 0.01, text, transform=axes.transAxes, fontsize=7, va="bottom", in_layout=False)
