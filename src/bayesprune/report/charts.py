"""What is drawn, as data: the page draws it as SVG and canvas, `bayesprune figures` with matplotlib."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# Okabe and Ito's colours, told apart with any kind of colour vision; style.css has the same for both themes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A7A7A")
DASHES = ("", "6 3", "2 3", "9 3 2 3")  # another one for every round through the colours
MARKERS = ("circle", "diamond", "square", "triangle", "hexagon", "down", "plus")

Codes = NDArray[np.int8] | NDArray[np.uint8]


@dataclass(frozen=True)
class Series:
    """A line; y: None where there is no value."""

    label: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]


@dataclass(frozen=True)
class Band:
    """A part of the horizontal axis with a name, such as a phase of the training."""

    begin: float
    end: float
    label: str


@dataclass(frozen=True)
class Lines:
    """Lines over a common horizontal axis; name: of the file."""

    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    bands: tuple[Band, ...] = ()
    log_y: bool = False


@dataclass(frozen=True)
class Bar:
    """value: its length.  colour: the place in COLOURS.  text: beside it.  tip: more, on request."""

    label: str
    value: float
    colour: int
    text: str
    tip: str


@dataclass(frozen=True)
class BarGroup:
    """Bars on a scale of their own."""

    label: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Bars:
    """Horizontal bars; legend: what the colours mean."""

    name: str
    title: str
    caption: str
    x_label: str
    groups: tuple[BarGroup, ...]
    legend: tuple[str, ...] = ()


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    tip: str


@dataclass(frozen=True)
class PointSeries:
    """Points of one kind; the place in the chart gives colour and marker.  filled: or only an outline."""

    label: str
    points: tuple[Point, ...]
    filled: bool = True


@dataclass(frozen=True)
class Points:
    """A scatter plot; level: a line across with its label."""

    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    series: tuple[PointSeries, ...]
    log_x: bool = False
    level: tuple[float, str] | None = None


@dataclass(frozen=True)
class Matrix:
    """A matrix as codes, (rows, columns).

    kind: `signed`: int8, sign(w) * 127 * sqrt(|w| / largest), 0 only for dead weights, GAP where there is no cell;
        `share`: uint8, 255 p.
    whole: rows and columns of the matrix it stands for.  block: weights per cell, down and across; a cell is the one
    with the largest magnitude.  rectangles: (row, column, height, width) in the whole matrix.
    taps: of a kernel, where columns are (input, tap).  square: cells are squares.
    """

    title: str
    cells: Codes = field(repr=False)
    whole: tuple[int, int]
    kind: Literal["signed", "share"] = "signed"
    largest: float = 1.0
    block: tuple[int, int] = (1, 1)
    rectangles: tuple[tuple[int, int, int, int], ...] = field(repr=False, default=())
    taps: tuple[int, ...] = ()
    square: bool = False


@dataclass(frozen=True)
class Matrices:
    """Matrices side by side; linked: they zoom together.  folded: shown on request; summary: what its line says."""

    name: str
    title: str
    caption: str
    panels: tuple[Matrix, ...]
    linked: bool = False
    folded: bool | None = None
    x_label: str = "inputs x taps"
    y_label: str = "outputs"


@dataclass(frozen=True)
class LayerFrames:
    """Messages of a layer over the iterations, each uint8 (iterations, rows, columns); shape: of the whole view."""

    layer: str
    shape: tuple[int, int]
    parts: tuple[NDArray[np.uint8], ...] = field(repr=False)


@dataclass(frozen=True)
class Frames:
    """Messages of all layers at some iterations; titles: of the parts."""

    name: str
    title: str
    caption: str
    iterations: tuple[int, ...]
    titles: tuple[str, ...]
    layers: tuple[LayerFrames, ...]


Drawing = Lines | Bars | Points | Matrices | Frames


@dataclass(frozen=True)
class Cell:
    """A number or text in a table; share: a bar behind it, 0 to 1; strong: the best of its column."""

    text: str
    share: float | None = None
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """The first column is a heading of its row; the last `totals` rows are set apart."""

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    totals: int = 0


@dataclass(frozen=True)
class Text:
    """A paragraph; `code` between backticks."""

    text: str
    kind: Literal["plain", "note", "heading"] = "plain"


@dataclass(frozen=True)
class Details:
    """Text that is shown on request, as it is."""

    title: str
    rows: tuple[tuple[str, str], ...]


Part = Drawing | Table | Text | Details


@dataclass(frozen=True)
class Section:
    """A chapter of the report; identity: its anchor."""

    identity: str
    title: str
    parts: tuple[Part, ...]
