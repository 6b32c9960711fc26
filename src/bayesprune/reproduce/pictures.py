"""What all pictures of results share."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from bayesprune.runs.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 130


def figure_title(title: str, epochs_scale: float) -> str:
    """The title, or that it is a trial."""
    return title + (f": TRIAL with {epochs_scale:g} of the epochs" if epochs_scale != 1 else "")


def plain(axes: "Axes") -> None:
    """A light grid and no box."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def nonzeros(axes: "Axes") -> None:
    """Make the horizontal axis that of the share of nonzero weights."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("nonzero weights, % (fewer is better: left)")


def write_png(figure: "Figure", path: Path) -> None:
    """Write a picture, complete or not at all."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DOTS_PER_INCH)
    write_atomically(path, [content.getvalue()])
