"""Names beside the points of a picture, none over another."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

Place = tuple[str, float, float]
"""A name and its point."""

DISTANCES = (9, 15, 22, 30)  # of a name from its point, in points
DIRECTIONS = ((1, 0), (0, 1), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
FONT = 7.5
MARK = 7  # half the side of the square that a marker takes, in points


def put_labels(axes: "Axes", places: Sequence[Place]) -> None:
    """Write names near their points, each where it covers no point, name or line; one without room is left out.

    The scales and limits of the axes must be final.
    """
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    figure = axes.figure.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # only now it is known where the points are
    pixels = figure.dpi / 72
    centres = [axes.transData.transform((x, y)) for _, x, y in places]
    half = MARK * pixels
    taken = [Bbox.from_bounds(x - half, y - half, 2 * half, 2 * half) for x, y in centres]
    for name, x, y in places:
        label = axes.annotate(name, (x, y), textcoords="offset points", xytext=(0, 0), fontsize=FONT, zorder=4)
        label.set_path_effects([withStroke(linewidth=2, foreground="white")])  # whiskers may pass behind it
        label.set_in_layout(False)
        for distance in DISTANCES:
            if any(_fits(label, (distance * across, distance * up), taken, axes) for across, up in DIRECTIONS):
                break
        else:
            label.remove()


def _fits(label: "Annotation", offset: tuple[float, float], taken: list["Bbox"], axes: "Axes") -> bool:
    """Move a label to an offset from its point; whether it is free there, which is then taken."""
    across, up = offset
    label.set(
        position=offset,
        horizontalalignment="left" if across > 0 else "right" if across < 0 else "center",
        verticalalignment="bottom" if up > 0 else "top" if up < 0 else "center",
    )
    box = label.get_window_extent()
    inside = axes.bbox
    if box.x0 < inside.x0 or box.x1 > inside.x1 or box.y0 < inside.y0 or box.y1 > inside.y1:
        return False
    lines = (line.get_path().transformed(line.get_transform()) for line in axes.lines)
    if any(box.overlaps(other) for other in taken) or any(line.intersects_bbox(box, filled=False) for line in lines):
        return False
    taken.append(box)
    return True
