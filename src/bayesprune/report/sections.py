"""The chapters of a report, from what is known of its runs."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import add
from typing import Any

from bayesprune.report.charts import Bar, BarGroup, Bars, Cell, Details, Drawing, Matrices, Part, Section, Table, Text
from bayesprune.report.findings import (
    Findings,
    find,
    milliseconds,
    percent,
    ratio_in_words,
    score_in_words,
    times,
    why_not_faster,
)
from bayesprune.report.markup import slug
from bayesprune.report.matrices import MOST_KERNELS, kernel_matrix, kernels_in_words, layer_matrices, rows_within
from bayesprune.report.message_frames import message_frames
from bayesprune.report.reading import Frontier, Layer, Run
from bayesprune.report.speed import latency_bars
from bayesprune.report.trade_offs import comparison_points, frontier_points
from bayesprune.report.training import convergence_charts, training_charts
from bayesprune.storage import FORMATS, Size, sizes

FRAMES_BUDGET = 2_500_000  # bytes of messages in a report; base64 makes a third more of them
MATRIX_BUDGET = 4_000_000  # cells of all overviews
PANELS = 3  # of a layer at most
MISSING = "not known"


def sections(runs: Sequence[Run], frontiers: Sequence[Frontier] = ()) -> list[Section]:
    """All chapters that there is something to say in."""
    makers: list[tuple[str, str, Callable[[], Iterable[Part]]]] = [
        ("comparison", "Side by side", lambda: _comparison(runs)),
        ("speed", "Speed", lambda: _speed(runs)),
        ("frontier", "Frontier", lambda: _frontier(frontiers)),
        ("layers", "Layer by layer", lambda: _layers(runs)),
        ("kernels", "Kernels of the first layer", lambda: _kernels(runs)),
        ("weights", "Weights and clusters", lambda: _weights(runs)),
        ("training", "Accuracy and size over time", lambda: _training(runs)),
        ("convergence", "Convergence of the messages", lambda: _convergence(runs)),
        ("messages", "Messages", lambda: _messages(runs)),
        ("storage", "Storage", lambda: _storage(runs)),
        ("configuration", "Configuration", lambda: _configuration(runs, frontiers)),
        ("missing", "Not in this report", lambda: _missing(runs, frontiers)),
    ]
    made = ((identity, title, tuple(make())) for identity, title, make in makers)
    return [Section(identity, title, parts) for identity, title, parts in made if parts]


def drawings(runs: Sequence[Run], frontiers: Sequence[Frontier] = ()) -> list[Drawing]:
    """Every figure of a report; the bars of its table of layers as a chart."""
    parts = [part for one in sections(runs, frontiers) for part in one.parts]
    found = [part for part in parts if not isinstance(part, Table | Text | Details)]
    known = [run for run in runs if any(layer.density is not None for layer in run.layers)]
    return [*found, *(_density_bars(run, place) for place, run in enumerate(known))]


def _density_bars(run: Run, place: int) -> Bars:
    """The share of every layer's weights that live."""
    bars = tuple(
        Bar(layer.name, 100 * layer.density, 0, f"{percent(layer.density)}, {layer.outputs} outputs", layer.name)
        for layer in run.layers
        if layer.density is not None
    )
    title = f"Live weights of every layer, {run.name}"
    return Bars(_numbered("layers", place), title, "", "weights left, %", (BarGroup("", bars),))


def _comparison(runs: Sequence[Run]) -> Iterable[Part]:
    if len(runs) < 2:
        return
    findings = [find(run) for run in runs]
    yield comparison_table(runs, findings)
    if not same_data(runs):
        yield Text("These networks were measured on different data: their accuracies cannot be compared.", "note")
        return
    chart = comparison_points([run.name for run in runs], findings)
    if chart is not None:
        yield chart


def same_data(runs: Sequence[Run]) -> bool:
    """Whether all runs name the same data."""
    return len({str(run.config.get("data")) for run in runs}) < 2


def comparison_table(runs: Sequence[Run], findings: Sequence[Findings]) -> Table:
    """A row for every run; the best of a column is strong."""
    scores = [one.score for one in findings]
    lower = [one.score_name == "rmse" for one in findings]
    comparable = same_data(runs)
    best_score = (
        set()
        if not comparable
        else _best([-s if low and s is not None else s for s, low in zip(scores, lower, strict=True)])
    )
    best_weights = _best([None if one.weights_left is None else -one.weights_left for one in findings])
    best_macs = _best([None if one.macs_left is None else -one.macs_left for one in findings])
    best_bytes = _best([None if one.bytes is None else -one.bytes for one in findings])
    ratios = [one.best_speed.ratio if one.best_speed else None for one in findings]
    best_speed = _best(ratios)
    rows = []
    for place, (run, one) in enumerate(zip(runs, findings, strict=True)):
        speed = one.best_speed
        rows.append(
            (
                Cell(run.name),
                Cell(score_in_words(one) if one.score is not None else MISSING, strong=place in best_score),
                Cell(score_in_words(one, one.score_before) if one.score_before is not None else MISSING),
                Cell(_share(one.weights_left), strong=place in best_weights),
                Cell(_share(one.macs_left), strong=place in best_macs),
                Cell(MISSING if one.bytes is None else f"{one.bytes:,.0f}", strong=place in best_bytes),
                Cell(
                    "not measured" if speed is None else f"{ratio_in_words(speed.ratio)} times (batch {speed.batch})",
                    strong=place in best_speed,
                ),
            )
        )
    headings = ("network", "accuracy", "unpruned", "weights left", "multiplications left", "bytes", "as fast")
    return Table("The best of every column is bold.", headings, tuple(rows))


def _best(values: Sequence[float | None]) -> set[int]:
    """The places of the largest value, if there is more than one to choose from."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return set()
    return {place for place, value in enumerate(values) if value == max(known)}


def _speed(runs: Sequence[Run]) -> Iterable[Part]:
    measured = [run for run in runs if run.latency is not None]
    for place, run in enumerate(measured):
        chart = latency_bars(run, _numbered("latency", place))
        if chart is None:
            continue
        yield from _heading(run, runs)
        yield chart
        found = find(run)
        for one in found.speeds:
            if one.faster:
                yield Text(
                    f"Batch {one.batch}: {ratio_in_words(one.ratio)} times as fast, {milliseconds(one.before)} before "
                    f"and {milliseconds(one.after)} after (the best way to run either; 95 % interval "
                    f"{one.low:.2f} to {one.high:.2f})."
                )
        for sentence in why_not_faster(found):
            yield Text(sentence, "note")


def _frontier(frontiers: Sequence[Frontier]) -> Iterable[Part]:
    for place, found in enumerate(frontiers):
        charts = frontier_points(found, _numbered("frontier", place))
        if not charts:
            continue
        count = f"{len(found.members)} settings of {found.plan.get('model')} on {found.plan.get('data')}"
        on_front = len(charts[0].series[0].points)
        state = "" if found.finished else "  It is not finished."
        yield Text(
            f"{found.name}: {count}, of which {on_front} are on the front: no other one is at least as good in "
            "accuracy, weights and multiplications.  The smallest within half a point of the best accuracy is the one "
            f"that this report shows.{state}"
        )
        yield from charts


def _layers(runs: Sequence[Run]) -> Iterable[Part]:
    shown = [run for run in runs if run.layers]
    if len(shown) > 1:
        yield _layers_side_by_side(shown)
        return
    for run in shown:
        yield _layer_table(run)


def _layer_table(run: Run) -> Table:
    rows = []
    for layer in run.layers:
        dense = layer.dense_shape
        rows.append(
            (
                Cell(layer.name),
                Cell(" x ".join(map(str, dense or tuple(layer.after.shape)))),
                Cell(_of(layer.outputs, dense[0] if dense else None)),
                Cell(_of(layer.inputs, dense[1] if dense else None)),
                Cell(_of(layer.alive, layer.weights)),
                Cell(MISSING if layer.density is None else percent(layer.density), layer.density),
            )
        )
    live = sum(layer.alive for layer in run.layers)
    known = [layer.weights for layer in run.layers if layer.weights is not None]
    total = sum(known) if len(known) == len(run.layers) else None
    share = live / total if total else None
    rows.append(
        (
            Cell("all"),
            *(Cell(""),) * 3,
            Cell(_of(live, total)),
            Cell(MISSING if share is None else percent(share), share),
        )
    )
    headings = ("layer", "shape", "outputs left", "inputs left", "weights left", "density")
    return Table("Outputs and inputs count while they have a live weight.", headings, tuple(rows), totals=1)


def _layers_side_by_side(runs: Sequence[Run]) -> Table:
    names = dict.fromkeys(layer.name for run in runs for layer in run.layers)
    by_run = [{layer.name: layer for layer in run.layers} for run in runs]

    def cell(layer: Layer | None) -> Cell:
        if layer is None:
            return Cell("")
        density = f" · {percent(layer.density)}" if layer.density is not None else ""
        return Cell(f"{layer.outputs}{density}", layer.density)

    rows = tuple((Cell(name), *(cell(layers.get(name)) for layers in by_run)) for name in names)
    headings = ("layer", *(run.name for run in runs))
    return Table("Outputs with a live weight, and the share of the weights that live.", headings, rows)


def _kernels(runs: Sequence[Run]) -> Iterable[Part]:
    first = [(run, _first_layer(run)) for run in runs]
    shown = [(run, layer) for run, layer in first if layer is not None]
    if not shown or (len(runs) == 1 and shown[0][1].after.ndim < 3):  # the weights below show the same
        return
    panels = []
    for run, layer in shown:
        before = f"{run.name}: " if len(runs) > 1 else ""
        if len(shown) == 1 and layer.before is not None:
            unpruned = Layer(layer.name, layer.before, layer.before != 0, dense_shape=layer.dense_shape)
            panels.append(kernel_matrix(unpruned, "before pruning"))
        panels.append(kernel_matrix(layer, f"{before}{kernels_in_words(layer)}"))
    caption = "Every column is an output, every row of kernels an input channel."
    if any(layer.after.ndim < 3 for _, layer in shown):
        caption = "The first layer has no kernels: outputs are rows, inputs columns."
    if any(layer.after.ndim > 2 and layer.after.shape[:2].numel() > MOST_KERNELS for _, layer in shown):
        caption += f" Of large layers the first {MOST_KERNELS} kernels."
    names = ", ".join(dict.fromkeys(layer.name for _, layer in shown))
    yield Matrices("kernels", f"The first layer, {names}", caption, tuple(panels))


def _first_layer(run: Run) -> Layer | None:
    """The first convolution, or the first layer where there is none."""
    return next((layer for layer in run.layers if layer.after.ndim > 2), next(iter(run.layers), None))


def _weights(runs: Sequence[Run]) -> Iterable[Part]:
    shown = [run for run in runs if run.layers]
    if not shown:
        return
    most = rows_within(MATRIX_BUDGET, PANELS * sum(len(run.layers) for run in shown))
    yield Text(
        "Blue is negative, orange positive, the stronger the larger (the square root of the magnitude).  Frames are "
        "clusters, rectangles in which every weight lives; shaded where they are too small for a frame.  Wheel or "
        "pinch zooms after a click, dragging moves."
    )
    for place, run in enumerate(shown):
        yield from _heading(run, runs)
        for number, layer in enumerate(run.layers):
            shape = " x ".join(map(str, layer.dense_shape or tuple(layer.after.shape)))
            density = f", {percent(layer.density)} live" if layer.density is not None else ""
            name = _numbered(f"weights-{number + 1:02d}-{slug(layer.name)}", place)
            title = f"{layer.name}, {shape}{density}"
            yield layer_matrices(layer, name, title, folded=bool(number or place), most=most)


def _training(runs: Sequence[Run]) -> Iterable[Part]:
    shown = [run for run in runs if run.history]
    if len(shown) == 1:
        yield from _heading(shown[0], runs)
    yield from training_charts(shown)


def _convergence(runs: Sequence[Run]) -> Iterable[Part]:
    shown = [run for run in runs if any("message_change" in row for row in run.history)]
    for place, run in enumerate(shown):
        yield from _heading(run, runs)
        charts = convergence_charts(run, "" if not place else f"-{place + 1}")
        if not any(chart.name.startswith("convergence") and "evidence" not in chart.name for chart in charts):
            yield Text(
                "The messages v_{h->s} did not change: the prior of this run has no coupling between neighbours, so "
                "Module B always says the same."
            )
        yield from charts


def _messages(runs: Sequence[Run]) -> Iterable[Part]:
    shown = [run for run in runs if run.messages]
    for place, run in enumerate(shown):
        frames = message_frames(run, FRAMES_BUDGET // len(shown), _numbered("messages", place))
        if frames is not None:
            yield from _heading(run, runs)
            yield frames


def _storage(runs: Sequence[Run]) -> Iterable[Part]:
    shown = [run for run in runs if any(array.ndim > 1 for array in run.arrays.values())]
    for run in shown:
        yield from _heading(run, runs)
        found = sizes({name: array for name, array in run.arrays.items() if array.ndim > 1})
        total = reduce(add, found.values())
        rows = [_storage_row(name.removesuffix(".weight"), size) for name, size in found.items()]
        rows.append(_storage_row("all weights", total))
        headings = ("weights of", "values", "live", *FORMATS)
        caption = "Bytes of the smaller network's weights in every format, values and positions; the smallest is bold."
        yield Table(caption, headings, tuple(rows), totals=1)
        if run.file is not None:
            one = find(run)
            dense = (
                f", {times(one.bytes / one.bytes_dense)} times smaller than the dense one's"
                if (one.bytes and one.bytes_dense)
                else ""
            )
            yield Text(f"Its file has {run.file.size:,} bytes, stored as {run.file.storage}{dense}.")


def _storage_row(name: str, size: Size) -> tuple[Cell, ...]:
    least = min(size.bytes.values())
    formats = (Cell(f"{size.bytes[one]:,}", strong=size.bytes[one] == least) for one in FORMATS)
    return (Cell(name), Cell(f"{size.values:,}"), Cell(f"{size.live:,}"), *formats)


def _configuration(runs: Sequence[Run], frontiers: Sequence[Frontier]) -> Iterable[Part]:
    for run in runs:
        rows = [*_flat(run.config)]
        for key in ("versions", "hardware", "seed", "seconds", "status", "notes", "surgery_notes", "proof"):
            if key in run.metrics:
                rows += _flat({key: run.metrics[key]})
        if run.file is not None and "versions" not in run.metrics:
            rows += _flat({"versions": run.file.versions})
        yield Details(f"{run.name}: {run.subject}", tuple(rows))
    for found in frontiers:
        plan = {key: value for key, value in found.plan.items() if key != "settings"}
        yield Details(found.name, tuple(_flat(plan)))


def _flat(content: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Nested settings as lines: settings.learning_rate, 0.006."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)


def _missing(runs: Sequence[Run], frontiers: Sequence[Frontier]) -> Iterable[Part]:
    for run in runs:
        sentences = list(run.missing)
        if run.latency is None:
            sentences.append(f"Its speed was not measured: `bayesprune bench {run.path.name}`.")
        if run.history and not run.messages:
            sentences.append("It has kept no messages: they cannot be shown over the iterations.")
        if sentences:
            yield Text(f"{run.name}: {' '.join(sentences)}")
    for found in frontiers:
        for sentence in found.missing:
            yield Text(sentence)


def _heading(run: Run, runs: Sequence[Run]) -> Iterable[Part]:
    """The name of the run where there are several."""
    if len(runs) > 1:
        yield Text(run.name, "heading")


def _of(part: int, whole: int | None) -> str:
    return f"{part:,}" if whole is None else f"{part:,} of {whole:,}"


def _share(left: float | None) -> str:
    return MISSING if left is None else f"{percent(left)} ({times(left)} times fewer)"


def _numbered(name: str, place: int) -> str:
    return name if not place else f"{name}-{place + 1}"
