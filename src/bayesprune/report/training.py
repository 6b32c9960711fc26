"""Charts of the history of a run: accuracy and size over time, and the convergence of the messages (paper Fig. 10)."""

from collections.abc import Sequence
from typing import Any

from bayesprune.report.charts import Band, Drawing, Lines, Series
from bayesprune.report.reading import Run, number

PHASES = {"warmup": "warm-up", "prune": "pruning", "finetune": "fine-tuning"}
WIDE = 20  # times the smallest share, above which its axis is logarithmic


def training_charts(runs: Sequence[Run]) -> list[Drawing]:
    """Accuracy, weights and multiplications over the epochs of runs with a history."""
    if not runs:
        return []
    charts: list[Drawing] = []
    bands = _bands(runs[0].history) if len(runs) == 1 else ()
    score = "validation_accuracy" if any("validation_accuracy" in row for row in runs[0].history) else "validation_nll"
    label = "validation accuracy, %" if score == "validation_accuracy" else "validation loss"
    found = _series(runs, {score: label.removesuffix(", %")}, 100 if score == "validation_accuracy" else 1)
    if found:
        what = "Accuracy" if score == "validation_accuracy" else "Loss"
        caption = "Of the network with its dead weights zero, on the validation split, after every epoch."
        charts.append(Lines("accuracy", f"{what} over time", caption, "epoch", label, found, bands))
    sizes = {"nonzero_fraction": "weights left", "macs_fraction": "multiplications left"}
    groups = [sizes] if len(runs) == 1 else [{key: text} for key, text in sizes.items()]
    for group in groups:
        found = _series(runs, group, 100)
        if not found:
            continue
        text = " and ".join(text.removesuffix(" left") for text in group.values()) + " left"
        charts.append(
            Lines(
                "size" if len(groups) == 1 else next(iter(group)).split("_")[0] + "-left",
                f"{text[0].upper()}{text[1:]} over time",
                "Shares of the dense network's.",
                "epoch",
                "left, %",
                found,
                bands,
                log_y=_wide(found),
            )
        )
    return charts


def convergence_charts(run: Run, name: str = "") -> list[Drawing]:
    """How much the messages change from one outer iteration to the next, per layer; [] where that was not recorded."""
    rows = [row for row in run.history if "message_change" in row]
    charts: list[Drawing] = []
    for key, file, title, caption in (
        (
            "message_change_by_layer",
            "convergence",
            "Change of the messages from Module B to Module A, v_{h->s}",
            "Mean change of the probability from one outer iteration to the next; the loop has settled below 0.01.",
        ),
        (
            "evidence_change_by_layer",
            "convergence-evidence",
            "Change of the messages from Module A to Module B, v_{eta->s}",
            "Mean change of the probability from one outer iteration to the next.",
        ),
    ):
        series = _by_layer(rows, key)
        if not series and key == "message_change_by_layer":
            values = tuple(number(row, "message_change") for row in rows)
            series = (Series("all layers", _count(rows), values),) if any(values) else ()
        if any(value for one in series for value in one.y):
            positive = tuple(Series(s.label, s.x, tuple(v or None for v in s.y)) for s in series)
            wide = _wide(positive)
            shown = positive if wide else series
            charts.append(Lines(file + name, title, caption, "outer iteration", "mean change", shown, log_y=wide))
    return charts


def _by_layer(rows: Sequence[dict[str, Any]], key: str) -> tuple[Series, ...]:
    by_row: list[dict[str, Any]] = [row[key] if isinstance(row.get(key), dict) else {} for row in rows]
    layers = dict.fromkeys(layer for one in by_row for layer in one)
    return tuple(Series(layer, _count(rows), tuple(number(one, layer) for one in by_row)) for layer in layers)


def _count(rows: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(place) for place in range(1, len(rows) + 1))


def _series(runs: Sequence[Run], keys: dict[str, str], scale: float) -> tuple[Series, ...]:
    found = []
    for run in runs:
        for key, label in keys.items():
            values = [number(row, key) for row in run.history]
            if any(value is not None for value in values):
                y = tuple(None if value is None else scale * value for value in values)
                found.append(Series(label if len(runs) == 1 else run.name, _count(values), y))
    return tuple(found)


def _bands(history: Sequence[dict[str, Any]]) -> tuple[Band, ...]:
    """Consecutive epochs of one phase."""
    bands: list[Band] = []
    for place, row in enumerate(history, start=1):
        label = PHASES.get(str(row.get("phase")), str(row.get("phase", "")))
        if bands and bands[-1].label == label:
            bands[-1] = Band(bands[-1].begin, place + 0.5, label)
        else:
            bands.append(Band(place - 0.5, place + 0.5, label))
    return tuple(bands)


def _wide(series: Sequence[Series]) -> bool:
    values = [value for one in series for value in one.y if value is not None and value > 0]
    return bool(values) and max(values) > WIDE * min(values)
