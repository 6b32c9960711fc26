"""Accuracy against size: of the members of a frontier, and of the runs that are compared."""

from collections.abc import Sequence
from typing import Any

from bayesprune.frontier import best_accuracy, front
from bayesprune.frontier.members import FINISHED
from bayesprune.report.charts import Point, Points, PointSeries
from bayesprune.report.findings import Findings
from bayesprune.report.reading import Frontier
from bayesprune.runs import RunError

WIDE = 10  # times the smallest share of weights, above which its axis is logarithmic
AXES = {"nonzero_fraction": "weights left, %", "macs_left": "multiplications left, %"}


def frontier_points(found: Frontier, name: str = "frontier") -> list[Points]:
    """Validation accuracy against weights and against multiplications; [] where nothing is finished."""
    try:
        on_front = set(front(found.members))
        done = [(place, _figures(one)) for place, one in enumerate(found.members) if one.get("status") == FINISHED]
        best = 100 * best_accuracy(found.members)
    except (RunError, KeyError, TypeError, AttributeError):
        return []
    charts = []
    for key, label in AXES.items():
        series = []
        for text, inside in (("on the front", True), ("beaten by another", False)):
            points = tuple(
                Point(figures[key], figures["accuracy"], _tip(place, figures))
                for place, figures in done
                if (place in on_front) is inside
            )
            if points:
                series.append(PointSeries(text, points, filled=inside))
        if series:
            charts.append(
                Points(
                    f"{name}-{'weights' if key == 'nonzero_fraction' else 'multiplications'}",
                    f"Accuracy against {label.removesuffix(' left, %')}",
                    "Every point is a network; up and to the left is better.",
                    label,
                    "validation accuracy, %",
                    tuple(series),
                    log_x=_wide([point.x for one in series for point in one.points]),
                    level=(best, "best of all, also unpruned"),
                )
            )
    return charts


def comparison_points(names: Sequence[str], findings: Sequence[Findings]) -> Points | None:
    """Accuracy of the runs that are compared, against the weights that are left."""
    known = [
        (name, found.weights_left, found.score)
        for name, found in zip(names, findings, strict=True)
        if found.weights_left and found.score is not None and found.score_name == "accuracy"
    ]
    if len(known) < 2:
        return None
    series = tuple(
        PointSeries(name, (Point(100 * x, y, f"{name}: {y:.2f} % accuracy with {100 * x:.2f} % of the weights"),))
        for name, x, y in known
    )
    return Points(
        "comparison",
        "Accuracy against weights",
        "Up and to the left is better.",
        "weights left, %",
        "accuracy, %",
        series,
        log_x=_wide([100 * x for _, x, _ in known]),
    )


def _figures(record: dict[str, Any]) -> dict[str, float]:
    return {
        "accuracy": 100 * float(record["validation"]["accuracy"]),
        "nonzero_fraction": 100 * float(record["nonzero_fraction"]),
        "macs_left": 100 * (1 - float(record["macs_removed"])),
    }


def _tip(place: int, figures: dict[str, float]) -> str:
    return (
        f"member {place}: {figures['accuracy']:.2f} % accuracy, {figures['nonzero_fraction']:.2f} % of the weights, "
        f"{figures['macs_left']:.1f} % of the multiplications"
    )


def _wide(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) > WIDE * min(values)
