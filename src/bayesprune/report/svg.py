"""Charts as SVG; each in two widths, of which style.css shows the one that fits the screen."""

from collections.abc import Sequence

from bayesprune.report.charts import DASHES, MARKERS, Band, BarGroup, Bars, Lines, Points
from bayesprune.report.markup import data_block, escape, plain, prose
from bayesprune.report.scales import Scale, label, scale

WIDE, NARROW = 860, 360
HEIGHTS = {WIDE: 320, NARROW: 260}
BAR, GAP, HEAD = 20, 6, 30
COLOURS = 7
LEFT = 62  # of the plot: room for the axis
DIGITS = 5  # of the values that the pointer shows


def lines_html(chart: Lines) -> str:
    """The legend, the chart, and its values for the script."""
    names = [one.label for one in chart.series]
    values = {
        "x": [list(map(_short, one.x)) for one in chart.series],
        "y": [[None if value is None else _short(value) for value in one.y] for one in chart.series],
        "names": names,
        "axis": chart.x_label,
    }
    drawn = "".join(_lines(chart, width) for width in (WIDE, NARROW))
    legend = _line_legend(names) if len(names) > 1 else ""
    return f'{legend}<div class="plot" data-kind="lines">{drawn}{data_block(values)}</div>'


def bars_html(chart: Bars) -> str:
    """The legend and the chart."""
    drawn = "".join(_bars(chart, width) for width in (WIDE, NARROW))
    legend = "".join(
        f'<li><span class="key c{place % COLOURS}"></span>{escape(text)}</li>'
        for place, text in enumerate(chart.legend)
    )
    return f'<ul class="legend">{legend}</ul><div class="plot" data-kind="tips">{drawn}</div>'


def points_html(chart: Points) -> str:
    """The legend and the chart."""
    drawn = "".join(_points(chart, width) for width in (WIDE, NARROW))
    legend = "".join(
        f'<li><svg class="key-marker" viewBox="-7 -7 14 14" aria-hidden="true">{_marker(place, 0, 0, one.filled)}</svg>'
        f"{escape(one.label)}</li>"
        for place, one in enumerate(chart.series)
    )
    if chart.level:
        line = '<path class="level" d="M0 4L24 4"></path>'
        legend += f'<li><svg class="key-line" viewBox="0 0 24 8" aria-hidden="true">{line}</svg>'
        legend += f"{escape(chart.level[1])}</li>"
    return f'<ul class="legend">{legend}</ul><div class="plot" data-kind="tips">{drawn}</div>'


def _lines(chart: Lines, width: int) -> str:
    height = HEIGHTS[width]
    every = [value for one in chart.series for value in one.y if value is not None]
    xs = [value for one in chart.series for value in one.x]
    low, high = (min(xs), max(xs)) if xs else (0.0, 1.0)
    across = Scale(low, high if high > low else low + 1, LEFT, width - 14)
    up = scale(every, height - 44, 22, log=chart.log_y)
    body = _bands_svg(chart.bands, across, up, width) + _axes(across, up, chart.x_label, chart.y_label, width)
    for place, one in enumerate(chart.series):
        path = _path(one.x, one.y, across, up)
        dash = DASHES[place // COLOURS % len(DASHES)]
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        body += f'<path class="line c{place % COLOURS}" d="{path}"{dashes}><title>{escape(one.label)}</title></path>'
    body += f'<g class="pick" hidden="hidden"><line y1="{up.end}" y2="{up.begin}"></line></g>'
    frame = f"{across.begin} {across.end} {across.low} {across.high} {up.begin} {up.end} {up.low} {up.high}"
    return _svg(body, width, height, chart.title, f' data-frame="{frame} {int(up.log)}"')


def _path(x: Sequence[float], y: Sequence[float | None], across: Scale, up: Scale) -> str:
    """Lines between neighbours; a value that is missing makes a gap."""
    pieces, begun = [], False
    for at, value in zip(x, y, strict=True):
        if value is None:
            begun = False
            continue
        pieces.append(f"{'L' if begun else 'M'}{across(at):.1f} {up(value):.1f}")
        begun = True
    return "".join(pieces)


def _bands_svg(bands: Sequence[Band], across: Scale, up: Scale, width: int) -> str:
    body = ""
    for place, band in enumerate(bands):
        left, right = (min(max(across(one), across.begin), across.end) for one in (band.begin, band.end))
        body += (
            f'<rect class="band b{place % 2}" x="{left:.1f}" y="{up.end}" width="{right - left:.1f}" '
            f'height="{up.begin - up.end}"><title>{escape(band.label)}</title></rect>'
        )
        if right - left > 6.5 * len(band.label):
            body += f'<text class="band-name" x="{left + 5:.1f}" y="{up.end - 6}">{escape(band.label)}</text>'
    return body


def _axes(across: Scale, up: Scale, x_label: str, y_label: str, width: int) -> str:
    body = ""
    for value in up.ticks(6):
        y = f"{up(value):.1f}"
        body += f'<line class="grid" x1="{across.begin}" x2="{across.end}" y1="{y}" y2="{y}"></line>'
        body += f'<text class="tick" x="{across.begin - 7}" y="{y}" dy="0.35em" text-anchor="end">{label(value)}</text>'
    for value in across.ticks(9 if width == WIDE else 5):
        x = f"{across(value):.1f}"
        body += f'<line class="mark" x1="{x}" x2="{x}" y1="{up.begin}" y2="{up.begin + 4}"></line>'
        body += f'<text class="tick" x="{x}" y="{up.begin + 18}" text-anchor="middle">{label(value)}</text>'
    body += f'<line class="axis" x1="{across.begin}" x2="{across.end}" y1="{up.begin}" y2="{up.begin}"></line>'
    middle = (across.begin + across.end) / 2
    body += f'<text class="name" x="{middle}" y="{up.begin + 38}" text-anchor="middle">{escape(x_label)}</text>'
    centre = (up.begin + up.end) / 2
    return body + (
        f'<text class="name" transform="translate(12 {centre}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )


def _bars(chart: Bars, width: int) -> str:
    names = max((len(bar.label) for group in chart.groups for bar in group.bars), default=0)
    left = min(7.0 * names + 14, width * 0.4)
    right = width - 84
    body, top = "", 4.0
    for group in chart.groups:
        body += f'<text class="group" x="0" y="{top + 16}">{escape(group.label)}</text>'
        top += HEAD
        drawn, top = _group(group, left, right, top)
        body += drawn
        top += 10
    return _svg(body, width, int(top), chart.title)


def _group(group: BarGroup, left: float, right: float, top: float) -> tuple[str, float]:
    across = scale([bar.value for bar in group.bars], left, right, zero=True)
    body, before = "", ""
    for bar in group.bars:
        if before and bar.label != before:
            top += GAP
        if bar.label != before:
            body += f'<text class="tick" x="{left - 8}" y="{top + BAR / 2}" dy="0.35em" text-anchor="end">'
            body += f"{escape(bar.label)}</text>"
        before = bar.label
        wide = max(1.0, across(bar.value) - left)
        body += (
            f'<g data-tip="{escape(bar.tip)}"><rect class="bar c{bar.colour % COLOURS}" x="{left}" y="{top + 1}" '
            f'width="{wide:.1f}" height="{BAR - 3}" rx="2"></rect><text class="value" x="{left + wide + 6:.1f}" '
            f'y="{top + BAR / 2}" dy="0.35em">{escape(bar.text)}</text><title>{escape(bar.tip)}</title></g>'
        )
        top += BAR
    return body, top


def _points(chart: Points, width: int) -> str:
    height = HEIGHTS[width]
    points = [point for one in chart.series for point in one.points]
    across = scale([point.x for point in points], LEFT, width - 18, log=chart.log_x)
    heights = [point.y for point in points] + ([chart.level[0]] if chart.level else [])
    up = scale(heights, height - 44, 22)
    body = _axes(across, up, chart.x_label, chart.y_label, width)
    if chart.level:
        y = f"{up(chart.level[0]):.1f}"
        body += f'<line class="level" x1="{across.begin}" x2="{across.end}" y1="{y}" y2="{y}"></line>'
    for place, one in reversed(list(enumerate(chart.series))):
        for point in one.points:
            body += f'<g data-tip="{escape(point.tip)}">{_marker(place, across(point.x), up(point.y), one.filled)}'
            body += f"<title>{escape(point.tip)}</title></g>"
    return _svg(body, width, height, chart.title)


def _marker(place: int, x: float, y: float, filled: bool) -> str:
    kind = MARKERS[place % len(MARKERS)]
    look = f'class="point c{place % COLOURS}{"" if filled else " hollow"}"'
    if kind == "circle":
        return f'<circle {look} cx="{x:.1f}" cy="{y:.1f}" r="5"></circle>'
    corners = {
        "diamond": ((0, -6), (6, 0), (0, 6), (-6, 0)),
        "square": ((-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)),
        "triangle": ((0, -6), (5.5, 4.5), (-5.5, 4.5)),
        "hexagon": ((-6, 0), (-3, -5.2), (3, -5.2), (6, 0), (3, 5.2), (-3, 5.2)),
        "down": ((0, 6), (5.5, -4.5), (-5.5, -4.5)),
        "plus": (
            *((-2, -6), (2, -6), (2, -2), (6, -2), (6, 2), (2, 2)),
            *((2, 6), (-2, 6), (-2, 2), (-6, 2), (-6, -2), (-2, -2)),
        ),
    }[kind]
    return f'<polygon {look} points="{" ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in corners)}"></polygon>'


def _line_legend(names: Sequence[str]) -> str:
    items = ""
    for place, name in enumerate(names):
        dash = DASHES[place // COLOURS % len(DASHES)]
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        items += (
            f'<li><svg class="key-line" viewBox="0 0 24 8" aria-hidden="true"><path class="line c{place % COLOURS}" '
            f'd="M0 4L24 4"{dashes}></path></svg>{prose(name)}</li>'
        )
    return f'<ul class="legend">{items}</ul>'


def _svg(body: str, width: int, height: int, title: str, more: str = "") -> str:
    kind = "wide" if width == WIDE else "narrow"
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" tabindex="0" role="img" '
        f'aria-label="{escape(plain(title))}.  Arrow keys show the values."{more}>{body}</svg>'
    )


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
