"""Means over seeds, and who wins: the best on each axis, dominance."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bayesprune.reproduce.jobs import METHODS, PROTOCOLS, UNPRUNED


@dataclass(frozen=True)
class Axis:
    """A figure to compare by.  value: out of a row, None where it has none.  sign: +1 where more is better."""

    title: str
    value: Callable[[Mapping[str, Any]], float | None]
    sign: int
    form: str = "{:.2f}"


def _share(key: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda row: None if row.get(key) is None else 100 * row[key]


def _regular(key: str, factor: float = 1.0) -> Callable[[Mapping[str, Any]], float | None]:
    def value(row: Mapping[str, Any]) -> float | None:
        found = (row.get("regularity") or {}).get(key)
        return None if found is None else factor * found

    return value


ACCURACY: Final = Axis("accuracy %", _share("accuracy"), +1)
NONZERO: Final = Axis("nonzero %", _share("nonzero_fraction"), -1)
MACS: Final = Axis("MACs removed %", _share("macs_removed"), +1)
MAIN_AXES: Final = (ACCURACY, NONZERO, MACS)  # of Table II: dominance is judged by these
DROP: Final = Axis("drop, points", _share("accuracy_drop"), -1)
DENSE: Final = Axis("dense %", _share("dense_fraction"), -1)
BYTES: Final = Axis("file, kB", lambda row: None if row.get("bytes") is None else row["bytes"] / 1000, -1, "{:.1f}")
RECTANGLES: Final = Axis("in 3x3 %", _regular("in_rectangles", 100), +1, "{:.1f}")
LARGER: Final = Axis("larger %", _regular("in_larger_rectangles", 100), +1, "{:.1f}")
INDEX: Final = Axis("index B/nonzero", _regular("index_bytes_per_nonzero"), -1)
STEPS: Final = Axis(
    "decode steps", lambda row: ((row.get("regularity") or {}).get("decode_steps") or {}).get("mean"), -1, "{:.1f}"
)
WINDOWS: Final = Axis("smaller windows %", _regular("smaller_windows", 100), +1, "{:.1f}")
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
    """The rows of a method under a protocol, one for each seed; those that failed apart."""

    method: str
    protocol: str
    rows: tuple[Mapping[str, Any], ...]
    failed: tuple[Mapping[str, Any], ...] = ()

    def mean(self, axis: Axis) -> Mean | None:
        """Over the seeds; None where no row has the figure."""
        values = [value for value in map(axis.value, self.rows) if value is not None and math.isfinite(value)]
        if not values:
            return None
        return Mean(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def with_drops(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with accuracy_unpruned and accuracy_drop, from the dense network of the same protocol and seed."""
    rows = list(rows)
    dense = {(row["protocol"], row["seed"]): row["accuracy"] for row in rows if row["method"] == UNPRUNED}
    result = []
    for row in rows:
        unpruned = dense.get((row["protocol"], row["seed"]))
        known = unpruned is not None and row["accuracy"] is not None
        drop = unpruned - row["accuracy"] if known else None
        result.append({**row, "accuracy_unpruned": unpruned, "accuracy_drop": drop})
    return result


def groups(rows: Iterable[Mapping[str, Any]]) -> list[Group]:
    """Rows by protocol and method, in the order in which they are listed."""
    rows = list(rows)
    found = []
    for protocol in PROTOCOLS:
        for method in METHODS:
            mine = [row for row in rows if (row["method"], row["protocol"]) == (method, protocol)]
            mine.sort(key=lambda row: row["seed"])
            done = tuple(row for row in mine if row["accuracy"] is not None)
            failed = tuple(row for row in mine if row["accuracy"] is None)
            if mine:
                found.append(Group(method, protocol, done, failed))
    return found


def usable(candidates: Sequence[Group]) -> list[Group]:
    """The groups whose mean drop is at most LARGEST_DROP; without a dense network to compare with, all."""
    return [group for group in candidates if (drop := group.mean(DROP)) is None or drop.mean <= LARGEST_DROP]


def best(candidates: Sequence[Group], axis: Axis) -> list[Group]:
    """The groups with the best mean on an axis; several where they are equal, none where nobody has the figure."""
    scored = [(axis.sign * mean.mean, group) for group in candidates if (mean := group.mean(axis)) is not None]
    top = max((score for score, _ in scored), default=None)
    return [group for score, group in scored if score == top]


def scores(group: Group) -> tuple[float, ...] | None:
    """The means on the main axes, more is better; None where all rows have failed."""
    means = [(axis, group.mean(axis)) for axis in MAIN_AXES]
    return tuple(axis.sign * mean.mean for axis, mean in means if mean is not None) if group.rows else None


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """At least as good everywhere and better somewhere."""
    pairs = list(zip(one, other, strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def dominated_by(group: Group, others: Iterable[Group]) -> list[Group]:
    """Those of the others that dominate the group in the means of accuracy, nonzeros and MACs."""
    mine = scores(group)
    return [o for o in others if o is not group and mine and (their := scores(o)) and dominates(their, mine)]
