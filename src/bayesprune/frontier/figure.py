"""The picture of a frontier."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from bayesprune.frontier.members import FINISHED
from bayesprune.frontier.pareto import best_accuracy, front

# Of Okabe and Ito, distinct for the colour-blind; shapes differ as well.
FRONT, OTHERS, UNPRUNED = "#0072b2", "#999999", "#d55e00"
WIDE = 10  # times the smallest share of nonzeros, above which its axis is logarithmic


def draw(records: Sequence[Mapping[str, Any]], title: str) -> bytes:
    """A PNG: validation accuracy against nonzero weights and against MACs removed; records: of `Member.record`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("drawing needs matplotlib; try pip install 'bayesprune[figures]'") from error
    on_front = set(front(records))
    groups = {
        "on the front": [records[place] for place in sorted(on_front)],
        "dominated": [r for place, r in enumerate(records) if r["status"] == FINISHED and place not in on_front],
    }
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name, label in zip(
        panels, ("nonzero_fraction", "macs_removed"), ("nonzero weights, %", "MACs removed, %"), strict=True
    ):
        for text, marker, colour, order in (("dominated", "o", OTHERS, 1), ("on the front", "D", FRONT, 2)):
            group = groups[text]
            axes.scatter(
                [100 * r[name] for r in group],
                [100 * r["validation"]["accuracy"] for r in group],
                marker=marker,
                facecolors=colour if text == "on the front" else "none",
                edgecolors=colour,
                label=text,
                zorder=order,
            )
        best = 100 * best_accuracy(records)
        axes.axhline(best, color=UNPRUNED, linestyle="--", zorder=0, label="best of all, also unpruned")
        axes.set(xlabel=label)
        axes.grid(alpha=0.3)
    shares = [r["nonzero_fraction"] for group in groups.values() for r in group]
    if shares and max(shares) > WIDE * min(shares) > 0:
        panels[0].set_xscale("log")
    panels[0].set(ylabel="validation accuracy, %")
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)  # points are everywhere
    figure.suptitle(title)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    return content.getvalue()
