"""Fig. 12 again: accuracy over the strength of the attack, and over noise."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bayesprune.reproduce.figure import STYLES
from bayesprune.reproduce.pictures import plain, write_png
from bayesprune.reproduce.robustness_claims import Records
from bayesprune.reproduce.robustness_markdown import parts, robustness_title
from bayesprune.runs.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours without their yellow, which is too light for lines; markers tell them apart in grey, too.
PALETTE: Final = (
    *(("#D55E00", "o"), ("#0072B2", "s"), ("#009E73", "^"), ("#CC79A7", "D")),
    *(("#E69F00", "v"), ("#56B4E9", "P"), ("#000000", "X"), ("#7F7F7F", "h")),
)
DASHES: Final = {"before": "-", "after": "--"}
MARKER: Final = 5.0
PGD_MARKERS: Final = {"before": "x", "after": "+"}
TITLES: Final = {"before": "as it is", "after": "after adversarial\nfine-tuning"}
Style = tuple[str, str]


def draw_robustness(records: Records, path: Path) -> list[Path]:
    """Write PATH as PNG and as SVG; ImportError where matplotlib is missing."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(12.5, 5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    styles = styles_of(records)
    for record, part, found in parts(records):
        style = styles[label_of(record, records)]
        _line(left, found, "fgsm", "epsilon", style, DASHES[part])
        _line(right, found, "noise", "sigma", style, DASHES[part])
        _points(left, found["pgd"], style[0], PGD_MARKERS[part])
    left.set(xlabel="ε of FGSM, pixels between 0 and 1", ylabel="test accuracy, %", title="attacked")
    right.set(xlabel="standard deviation of Gaussian noise, pixels between 0 and 1", title="in noise")
    for axes in (left, right):
        axes.set_ylim(0, 100)
        plain(axes)
    handles = [Line2D([], [], color=c, marker=m, markersize=MARKER, label=label) for label, (c, m) in styles.items()]
    for part in dict.fromkeys(part for _, part, _ in parts(records)):
        keys: list[dict[str, Any]] = [{"linestyle": DASHES[part], "label": TITLES[part]}]
        if records[0]["settings"]["pgd_epsilons"]:
            keys.append({"linestyle": "", "marker": PGD_MARKERS[part], "label": f"PGD, {TITLES[part]}"})
        handles += [Line2D([], [], color="black", **one) for one in keys]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    figure.suptitle(robustness_title(records))
    write_png(figure, path.with_suffix(".png"))
    _write_svg(figure, path.with_suffix(".svg"))
    return [path.with_suffix(".png"), path.with_suffix(".svg")]


def label_of(record: Mapping[str, Any], records: Records) -> str:
    """The name of a network; where there are more than colours, that of its method."""
    return str(record["method"] if len(records) > len(PALETTE) else record["name"])


def styles_of(records: Records) -> dict[str, Style]:
    """Colour and marker of every label; a method has its own everywhere, as long as each is there once."""
    labels = {label_of(one, records): one["method"] for one in records}
    if len(set(labels.values())) == len(labels) and all(method in STYLES for method in labels.values()):
        return {label: ("#000000", ".") if method == "unpruned" else STYLES[method] for label, method in labels.items()}
    return {label: PALETTE[place % len(PALETTE)] for place, label in enumerate(labels)}


def _line(axes: "Axes", found: Mapping[str, Any], kind: str, key: str, style: Style, dashes: str) -> None:
    """Accuracy over the strength of one kind of harm, from the clean images on."""
    points = sorted(({0.0: found["clean"]["accuracy"]} | {one[key]: one["accuracy"] for one in found[kind]}).items())
    colour, marker = style
    line: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": dashes, "markersize": MARKER}
    axes.plot([x for x, _ in points], [100 * y for _, y in points], linewidth=1.5, **line)


def _points(axes: "Axes", found: list[Mapping[str, Any]], colour: str, marker: str) -> None:
    for one in found:
        style: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": "", "clip_on": False, "zorder": 3}
        axes.plot(one["epsilon"], 100 * one["accuracy"], markeredgewidth=1.5, **style)


def _write_svg(figure: "Figure", path: Path) -> None:
    """The same picture gives the same file: no date, no random names."""
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(content, format="svg", metadata={"Date": None})
    write_atomically(path, [content.getvalue()])
