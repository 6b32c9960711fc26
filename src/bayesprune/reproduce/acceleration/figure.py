"""Fig. 9 again: how many times faster every method is, as bars."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bayesprune.reproduce.acceleration.markdown import entry_title, mark, way_of
from bayesprune.reproduce.figure import STYLES
from bayesprune.reproduce.methods import OURS, UNPRUNED
from bayesprune.reproduce.pictures import figure_title, plain, write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS: Final = 2
WIDTH, BAR, MARGIN = 7.2, 0.3, 1.5  # inches: of a panel, a bar, and around the bars
PALE: Final = 0.45
TITLE_WIDTH: Final = 64  # letters


def draw_entries(entries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a PNG with a panel for every measurement; ImportError where matplotlib is missing."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(entries))
    lines = -(-len(entries) // columns)
    most = max(len(bars(entry)) for entry in entries)
    figure = Figure(figsize=(WIDTH * columns, (BAR * most + MARGIN) * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, entry in zip(panels, entries, strict=False):
        _panel(axes, entry)
    for axes in panels[len(entries) :]:
        axes.set_visible(False)
    write_png(figure, path)


def bars(entry: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any], bool]]:
    """Label, method, its ratio and interval, and whether it is `ours` in one of its ways; from top to bottom."""
    methods = {name: one for name, one in entry["methods"].items() if name != UNPRUNED}
    found = [(f"{name}{mark(one)} ({way_of(one['best'])})", name, one, False) for name, one in methods.items()]
    ways = [one for one in entry["ways"] if one["network"] == OURS and not one["error"]]
    return found + [(f"{OURS} only in {way_of(one)}", OURS, one, True) for one in ways]


def _panel(axes: "Axes", entry: Mapping[str, Any]) -> None:
    shown = bars(entry)
    for place, (_, method, one, single) in enumerate(shown):
        ratio, (low, high) = one["ratio"], one["interval"]
        spread = [[max(ratio - low, 0)], [max(high - ratio, 0)]]
        style: dict[str, Any] = {"color": STYLES[method][0], "alpha": PALE} if single else {"color": STYLES[method][0]}
        axes.barh(place, ratio, height=0.72, **style)
        axes.errorbar(ratio, place, xerr=spread, color="black", linewidth=1, capsize=2.5, linestyle="")
        text: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # the lines across must not strike it out
        axes.annotate(f"{ratio:.2f}", (max(ratio, high), place), bbox=box, **text)
    axes.axvline(1, color="black", linewidth=1, label=f"dense ({way_of(entry['methods'][UNPRUNED]['best'])})")
    if entry.get("paper"):
        axes.axvline(entry["paper"], color="black", linewidth=1, linestyle="--", label=f"paper {entry['paper']:.2f}")
    axes.set_yticks(range(len(shown)), [label for label, *_ in shown], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max([1.0, entry.get("paper") or 0, *(one["interval"][1] for _, _, one, _ in shown)]))
    axes.set_xlabel("times as fast as dense in its best way, with 95 % interval: right is better", fontsize=9)
    axes.set_title(textwrap.fill(figure_title(entry_title(entry), entry["epochs_scale"]), TITLE_WIDTH), fontsize=10)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, fontsize=8, frameon=False)
    plain(axes)
    axes.grid(visible=False, axis="y")
