"""Figures to compare rows by, and their means over seeds."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self


@dataclass(frozen=True)
class Axis:
    """A figure to compare by.  value: out of a row, None where it has none.  sign: +1 where more is better."""

    title: str
    value: Callable[[Mapping[str, Any]], float | None]
    sign: int
    form: str = "{:.2f}"


def _share(key: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda row: None if row.get(key) is None else 100 * row[key]


def regular(*keys: str, factor: float = 1.0) -> Callable[[Mapping[str, Any]], float | None]:
    """A figure of the regularity of a row, by the keys that lead to it."""

    def value(row: Mapping[str, Any]) -> float | None:
        found: Any = row.get("regularity")
        for key in keys:
            found = (found or {}).get(key)
        return None if found is None else factor * found

    return value


ACCURACY: Final = Axis("accuracy %", _share("accuracy"), +1)
VALIDATION: Final = Axis("validation %", lambda row: _share("accuracy")(row.get("validation") or {}), +1)
NONZERO: Final = Axis("nonzero %", _share("nonzero_fraction"), -1)
MACS: Final = Axis("MACs removed %", _share("macs_removed"), +1)
MAIN_AXES: Final = (ACCURACY, NONZERO, MACS)  # of Table II: dominance is judged by these
DROP: Final = Axis("drop, points", _share("accuracy_drop"), -1)
DENSE: Final = Axis("dense %", _share("dense_fraction"), -1)
BYTES: Final = Axis("file, kB", lambda row: None if row.get("bytes") is None else row["bytes"] / 1000, -1, "{:.1f}")
RECTANGLES: Final = Axis("in 3x3 %", regular("in_rectangles", factor=100), +1, "{:.1f}")
LARGER: Final = Axis("larger %", regular("in_larger_rectangles", factor=100), +1, "{:.1f}")
COUNT: Final = Axis("rectangles", regular("rectangles"), -1, "{:.0f}")
AREA: Final = Axis("mean size", regular("mean_area"), +1, "{:.1f}")
INDEX: Final = Axis("index B/nonzero", regular("index_bytes_per_nonzero"), -1)
STEPS: Final = Axis("decode steps", regular("decode_steps", "mean"), -1, "{:.1f}")
WINDOWS: Final = Axis("smaller windows %", regular("smaller_windows", factor=100), +1, "{:.1f}")
LARGEST_DROP: Final = 10.0  # points; a network that has forgotten more wins nothing by being small
OTHER_AXES: Final = (DROP, DENSE, BYTES, RECTANGLES, LARGER, INDEX, STEPS, WINDOWS)


@dataclass(frozen=True)
class Mean:
    """Mean and spread (standard deviation of a sample; None for one) of a figure over `count` seeds."""

    mean: float
    spread: float | None
    count: int


@dataclass(frozen=True)
class Group:
    """The rows of the same thing, one for each seed; those that failed apart."""

    rows: tuple[Mapping[str, Any], ...]
    failed: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], **named: Any) -> Self:
        """A group of rows, in the order of their seeds."""
        ordered = sorted(rows, key=lambda row: int(row["seed"]))
        done = tuple(row for row in ordered if row["accuracy"] is not None)
        return cls(done, tuple(row for row in ordered if row["accuracy"] is None), **named)

    @property
    def everyone(self) -> tuple[Mapping[str, Any], ...]:
        """All rows."""
        return (*self.rows, *self.failed)

    def mean(self, axis: Axis) -> Mean | None:
        """Over the seeds; None where no row has the figure."""
        values = [value for value in map(axis.value, self.rows) if value is not None and math.isfinite(value)]
        if not values:
            return None
        return Mean(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))
