"""What was measured: rows, comparisons, and both as text."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bayesprune.latency.candidates import Kind
from bayesprune.latency.statistics import Summary, summarise
from bayesprune.latency.work import Work

NOTICEABLE = 1.05  # a smaller gain is not called one
UNSTEADY = 1.5  # the 90 % quantile over the median
UNSURE = (
    "the times vary too much to be sure; measure longer (seconds), with fewer threads, or while nothing else uses the "
    "machine"
)


@dataclass(frozen=True)
class Row:
    """One network in one runtime and layout at one batch size.

    Args:
        samples: milliseconds of a call in every round, in order; () where there is an error.
        calls: calls in a row that make one sample.
        places: copies at different places in memory that took turns at the samples; where weights lie may make per
            cents of difference.
        preparation_seconds: export, compilation and first call, not part of the samples.
        error: why it was not measured.
    """

    network: str
    batch: int
    kind: Kind
    samples: tuple[float, ...] = ()
    summary: Summary | None = None
    calls: int = 0
    preparation_seconds: float = 0.0
    error: str | None = None
    places: int = 1

    @property
    def median(self) -> float:
        """Milliseconds of a call; infinite where there is an error."""
        return self.summary.median if self.summary else float("inf")

    @property
    def unsteady(self) -> bool:
        """Every tenth round takes far longer than the median."""
        return self.summary is not None and self.summary.p90 > UNSTEADY * self.summary.median

    @property
    def examples_per_second(self) -> float:
        """At the median; 0 where there is an error."""
        return 1e3 * self.batch / self.median

    def as_dict(self, samples: bool = True) -> dict[str, Any]:
        """Plain types, times in milliseconds; `samples`: with the times of all rounds."""
        return {
            "network": self.network,
            "batch": self.batch,
            "runtime": self.kind.runtime,
            "layout": self.kind.layout,
            "milliseconds": asdict(self.summary) if self.summary else None,
            "examples_per_second": self.examples_per_second if self.summary else None,
            "rounds": len(self.samples),
            "calls_per_round": self.calls,
            "places": self.places,
            "preparation_seconds": self.preparation_seconds,
            "error": self.error,
        } | ({"samples": list(self.samples)} if samples else {})

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Row":
        """The row of which `as_dict` has made plain types, with its samples."""
        samples = tuple(plain["samples"])
        return cls(
            network=plain["network"],
            batch=plain["batch"],
            kind=Kind(plain["runtime"], plain["layout"]),
            samples=samples,
            summary=summarise(samples) if samples else None,
            calls=plain["calls_per_round"],
            preparation_seconds=plain["preparation_seconds"],
            error=plain["error"],
            places=plain.get("places", 1),
        )


@dataclass(frozen=True)
class Comparison:
    """The best row of the first network over the best row of another one, by medians, at one batch size.

    Args:
        ratio: how many times faster `network` is; (low, high) is its 95 % interval.
        reason: why it is not faster; "" where it is.
    """

    batch: int
    baseline: Row
    network: Row
    ratio: float
    low: float
    high: float
    reason: str = ""

    @property
    def faster(self) -> bool:
        """At least 5 % faster, and the interval agrees."""
        return self.ratio >= NOTICEABLE and self.low > 1

    @property
    def slower(self) -> bool:
        """At least 5 % slower, and the interval agrees."""
        return self.ratio <= 1 / NOTICEABLE and self.high < 1

    def as_dict(self) -> dict[str, Any]:
        """Plain types, times in milliseconds."""
        return {
            "batch": self.batch,
            "baseline": _best(self.baseline),
            "network": _best(self.network),
            "ratio": self.ratio,
            "interval": [self.low, self.high],
            "faster": self.faster,
            "reason": self.reason,
        }

    def in_words(self) -> str:
        """A clause without a subject: "3.2 times faster at batch 256 (...)"."""
        before = _way(self.baseline) if self.baseline.kind != self.network.kind else f"{_ms(self.baseline.median)} ms"
        change = f"{before} -> {_way(self.network)}; 95 % interval {self.low:.2f} to {self.high:.2f}"
        if self.faster:
            return f"{self.ratio:.2f} times faster at batch {self.batch} ({change})"
        if self.slower:
            return f"slower at batch {self.batch}, {1 / self.ratio:.2f} times as long ({change}): {self.reason}"
        if self.reason == UNSURE:
            return f"probably faster at batch {self.batch} (ratio {self.ratio:.2f}, {change}), but {self.reason}"
        return f"not faster at batch {self.batch} (ratio {self.ratio:.2f}, {change}): {self.reason}"


@dataclass(frozen=True)
class Latency:
    """Times of networks on one device.

    Args:
        rows: every network, batch size and way to run it.
        comparisons: the first network against each other one, at every batch size.
        work: what each network does for one example.
        settings: what holds for all rows: device, threads, TF32 and so on.
        hardware, versions: from `bayesprune.provenance`.
    """

    rows: tuple[Row, ...]
    comparisons: tuple[Comparison, ...]
    work: dict[str, Work]
    settings: dict[str, Any]
    hardware: dict[str, Any]
    versions: dict[str, str]

    def best(self, network: str, batch: int) -> Row | None:
        """The row with the smallest median, None where nothing was measured."""
        measured = [r for r in self.rows if (r.network, r.batch, r.error) == (network, batch, None)]
        return min(measured, key=lambda r: r.median, default=None)

    def as_dict(self, samples: bool = True) -> dict[str, Any]:
        """Plain types only, for JSON; times in milliseconds; `samples`: with the times of all rounds."""
        return {
            "settings": self.settings,
            "hardware": self.hardware,
            "versions": self.versions,
            "work": {name: asdict(work) for name, work in self.work.items()},
            "rows": [row.as_dict(samples) for row in self.rows],
            "comparisons": [comparison.as_dict() for comparison in self.comparisons],
            "words": self.in_words(),
        }

    def table(self) -> str:
        """One line per row, milliseconds of a call; * marks the best of a network at a batch size."""
        head = (
            "",
            "batch",
            "network",
            "runtime",
            "layout",
            "median",
            "mean",
            "sd",
            "min",
            "p90",
            "examples/s",
            "rounds",
        )
        lines: list[tuple[str, ...]] = [head]
        for row in self.rows:
            mark = "*" if row is self.best(row.network, row.batch) else ""
            start = (mark, str(row.batch), row.network, row.kind.runtime, row.kind.layout)
            if row.summary is None:
                lines.append((*start, f"not measured: {row.error}"))
                continue
            s = row.summary
            times = (_ms(value) for value in (s.median, s.mean, s.deviation, s.smallest, s.p90))
            lines.append((*start, *times, f"{row.examples_per_second:,.0f}", str(len(row.samples))))
        whole = [line for line in lines if len(line) == len(head)]
        short = [line[:5] for line in lines]
        widths = [max(len(line[i]) for line in (short if i < 5 else whole)) for i in range(len(head))]
        return "\n".join(_aligned(line, widths) for line in lines)

    def in_words(self) -> str:
        """How much faster, a line per batch size; where there is no gain, why."""
        place = "on the GPU" if str(self.settings["device"]).startswith("cuda") else _cpu(self.settings["threads"])
        if not self.comparisons:
            return "\n".join(
                f"{name} takes {_way(row)} at batch {batch} {place}."
                for name in self.work
                for batch in self.settings["batches"]
                if (row := self.best(name, batch))
            )
        lines = []
        for name in dict.fromkeys(c.network.network for c in self.comparisons):
            mine = [c for c in self.comparisons if c.network.network == name]
            lines += [f"{name} beside {mine[0].baseline.network}, {place}:", *(f"  {c.in_words()}." for c in mine)]
        for own in ("native", "fused", "triton"):
            if any(c.network.kind.runtime == own for c in self.comparisons):
                lines.append(f"{own}: bayesprune.runtime.compile(network, x).")
        if any(row.unsteady for c in self.comparisons for row in (c.baseline, c.network)):
            hint = "" if self.settings["threads"] == 1 else ", try threads=1"
            lines.append(f"The times vary much from round to round: other programs use this machine{hint}.")
        return "\n".join(lines)


def _best(row: Row) -> dict[str, Any]:
    return {"name": row.network, "runtime": row.kind.runtime, "layout": row.kind.layout, "median": row.median}


def _cpu(threads: int) -> str:
    return f"on the CPU with {threads} {'thread' if threads == 1 else 'threads'}"


def _ms(value: float) -> str:
    """Three digits that count."""
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _way(row: Row) -> str:
    return f"{_ms(row.median)} ms in {row.kind}"


def _aligned(line: tuple[str, ...], widths: list[int]) -> str:
    """Words to the left, numbers to the right; a message takes the rest of its line."""
    cells = [
        c.rjust(w) if i in (1, *range(5, 12)) else c.ljust(w)
        for i, (c, w) in enumerate(zip(line, widths, strict=False))
    ]
    if len(line) < len(widths):
        cells[-1] = line[-1]
    return "  ".join(cells).rstrip()
