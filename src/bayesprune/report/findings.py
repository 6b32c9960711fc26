"""The answer in a sentence and four numbers: smaller by, fewer multiplications by, faster by, accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bayesprune.latency.report import NOTICEABLE
from bayesprune.report.reading import Run, number

DENSE, SHRUNK, ROUNDED = "dense", "shrunk", "shrunk x"
LARGE = 10  # from here on no decimals


@dataclass(frozen=True)
class Speed:
    """A smaller network over the dense one at a batch size.

    network: `shrunk`, or `shrunk x16` with widths rounded up to multiples of 16.
    ratio: how many times as fast, with its 95 % interval (low, high).  before, after: milliseconds.
    reason: why it is not faster.
    """

    network: str
    batch: int
    ratio: float
    low: float
    high: float
    before: float
    after: float
    reason: str

    @property
    def faster(self) -> bool:
        """At least 5 % faster, and the interval agrees."""
        return self.ratio >= NOTICEABLE and self.low > 1


@dataclass(frozen=True)
class Findings:
    """Figures of a run, None where they are not known.

    score, score_before: accuracy in percent, or the root mean squared error.  split: on which data.
    weights_left, macs_left: shares of the dense network's.  bytes, bytes_dense: of the files.
    speeds: of the smaller network.  rounded: of those with rounded widths.  measured: whether there are any times.
    """

    score_name: str
    score: float | None
    score_before: float | None
    split: str
    live: int | None
    weights: int | None
    weights_left: float | None
    macs: float | None
    macs_dense: float | None
    macs_left: float | None
    bytes: float | None
    bytes_dense: float | None
    speeds: tuple[Speed, ...]
    rounded: tuple[Speed, ...]
    measured: bool
    device: str
    status: str

    @property
    def best_speed(self) -> Speed | None:
        """At the largest batch that was measured, where the arithmetic counts most."""
        return max(self.speeds, key=lambda one: one.batch, default=None)


def find(run: Run) -> Findings:
    """The figures of a run, from its metrics, or from its weights where those are silent."""
    metrics = run.metrics
    name = "accuracy" if "accuracy" in metrics or "rmse" not in metrics else "rmse"
    scale = 100 if name == "accuracy" else 1
    score = number(metrics, name)
    before = number(metrics, f"{name}_unpruned")
    if before is None:
        before = number(metrics, f"{name}_after_warmup")
    total = [layer.weights for layer in run.layers]
    weights = sum(one for one in total if one) if total and None not in total else None
    live = sum(layer.alive for layer in run.layers) if run.layers else None
    left = number(metrics, "nonzero_fraction")
    if left is None and weights and live is not None:
        left = live / weights
    dense = number(metrics, "macs_dense")
    shrunk = number(metrics, "macs_shrunk")
    macs = shrunk if shrunk is not None else number(metrics, "macs")
    removed = number(metrics, "macs_removed")
    macs_left = macs / dense if macs is not None and dense else 1 - removed if removed is not None else None
    status = metrics.get("status")
    compared = speeds(run.latency)
    return Findings(
        name,
        None if score is None else scale * score,
        None if before is None else scale * before,
        str(metrics.get("accuracy_split", "test")),
        live,
        weights,
        left,
        macs,
        dense,
        macs_left,
        float(run.file.size) if run.file is not None else number(metrics, "bytes"),
        number(metrics, "bytes_dense"),
        tuple(one for one in compared if one.network == SHRUNK),
        tuple(one for one in compared if one.network.startswith(ROUNDED)),
        run.latency is not None,
        device_in_words(run.latency),
        status if isinstance(status, str) else "",
    )


def speeds(latency: dict[str, Any] | None) -> tuple[Speed, ...]:
    """The comparisons of the dense network with smaller ones, by batch size."""
    found = []
    comparisons = (latency or {}).get("comparisons")
    for one in comparisons if isinstance(comparisons, list) else ():
        try:
            low, high = one["interval"]
            found.append(
                Speed(
                    network=str(one["network"]["name"]),
                    batch=int(one["batch"]),
                    ratio=float(one["ratio"]),
                    low=float(low),
                    high=float(high),
                    before=float(one["baseline"]["median"]),
                    after=float(one["network"]["median"]),
                    reason=str(one["reason"] or ""),
                )
            )
        except (KeyError, TypeError, ValueError):  # a file may hold anything
            continue
    return tuple(sorted(found, key=lambda one: one.batch))


def device_in_words(latency: dict[str, Any] | None) -> str:
    """Where it was measured: "2 CPU threads"."""
    settings = (latency or {}).get("settings")
    if not isinstance(settings, dict):
        return ""
    if str(settings.get("device", "")).startswith("cuda"):
        return "a GPU"
    threads = settings.get("threads")
    if not isinstance(threads, int):
        return "a CPU"
    return "one CPU thread" if threads == 1 else f"{threads} CPU threads"


def in_words(found: Findings) -> str:
    """One sentence: "25 times fewer weights, 3.2 times fewer multiplications, ..."."""
    parts = [_fewer(found.weights_left, "weights"), _fewer(found.macs_left, "multiplications"), _speed(found)]
    sentence = ", ".join(part for part in parts if part)
    score = score_in_words(found)
    if found.score is not None:
        sentence += f"; {found.score_name} {score}" if sentence else f"{found.score_name} {score}"
        if found.score_before is not None:
            sentence += f" (was {score_in_words(found, found.score_before)})"
    if not sentence:
        return "No figures were found."
    return sentence[0].upper() + sentence[1:] + "."


def why_not_faster(found: Findings) -> list[str]:
    """A text for every batch size at which the smaller network is not faster."""
    return [
        f"Not faster at batch {one.batch} ({milliseconds(one.before)} before, {milliseconds(one.after)} after): "
        f"{one.reason or 'no reason was found'}.{_rounded(found, one.batch)}"
        for one in found.speeds
        if not one.faster
    ]


def _rounded(found: Findings, batch: int) -> str:
    """Whether rounded widths help."""
    faster = [one for one in found.rounded if one.batch == batch and one.faster]
    if not faster:
        return ""
    best = max(faster, key=lambda one: one.ratio)
    multiple = best.network.removeprefix(ROUNDED)
    return (
        f"  With widths rounded up to multiples of {multiple} it is {ratio_in_words(best.ratio)} times as fast: "
        "`bayesprune compress --round-widths`."
    )


def score_in_words(found: Findings, score: float | None = None) -> str:
    """98.6 %, or the error with four digits."""
    value = found.score if score is None else score
    if value is None:
        return "unknown"
    return f"{value:.1f} %" if found.score_name == "accuracy" else f"{value:.4g}"


def times(left: float | None) -> str:
    """How many times fewer where a share is left: 25, 3.2."""
    if left is None:
        return "unknown"
    return ratio_in_words(1 / left) if left > 0 else "all gone"


def ratio_in_words(ratio: float) -> str:
    """Two digits that count: 25, 3.2, 0.91."""
    if ratio >= LARGE - 0.05:
        return f"{ratio:,.0f}"
    return f"{ratio:.1f}" if ratio >= NOTICEABLE else f"{ratio:.2f}"


def percent(share: float) -> str:
    """Three digits that count: 64.0 %, 3.74 %, 0.123 %."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 100 else f"{value:.1f} %" if value >= LARGE else f"{value:.3g} %"


def milliseconds(value: float) -> str:
    """Three digits that count."""
    return f"{value:.3f} ms" if value < LARGE else f"{value:.1f} ms" if value < LARGE**2 else f"{value:,.0f} ms"


def _fewer(left: float | None, what: str) -> str:
    if left is None:
        return ""
    if left <= 0:
        return f"no {what} left"
    return f"{times(left)} times fewer {what}" if 1 / left >= NOTICEABLE else f"as many {what} as before"


def _speed(found: Findings) -> str:
    if not found.speeds:
        return "speed not compared with the dense network" if found.measured else "speed not measured"
    where = f" on {found.device}" if found.device else ""
    faster = [one for one in found.speeds if one.faster]
    if not faster:
        return f"not faster{where}"
    if len(faster) == len(found.speeds):
        return f"{_range(faster)} times as fast{where}"
    slower = _batches([one for one in found.speeds if not one.faster])
    return f"{_range(faster)} times as fast{where} at {_batches(faster)} but not at {slower}"


def _range(found: Sequence[Speed]) -> str:
    low, high = min(one.ratio for one in found), max(one.ratio for one in found)
    ends = list(dict.fromkeys((ratio_in_words(low), ratio_in_words(high))))
    return " to ".join(ends)


def _batches(found: Sequence[Speed]) -> str:
    return "batch " + " and ".join(str(one.batch) for one in found)
