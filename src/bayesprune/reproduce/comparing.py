"""Who wins in Table II: the best on each axis, dominance."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayesprune.reproduce.averaging import DROP, LARGEST_DROP, MAIN_AXES, Axis, Group
from bayesprune.reproduce.methods import METHODS, PROTOCOLS, UNPRUNED


@dataclass(frozen=True, kw_only=True)
class MethodGroup(Group):
    """The rows of a method under a protocol."""

    method: str
    protocol: str


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


def groups(rows: Iterable[Mapping[str, Any]]) -> list[MethodGroup]:
    """Rows by protocol and method, in the order in which they are listed."""
    rows = list(rows)
    found = []
    for protocol in PROTOCOLS:
        for method in METHODS:
            mine = [row for row in rows if (row["method"], row["protocol"]) == (method, protocol)]
            if mine:
                found.append(MethodGroup.of(mine, method=method, protocol=protocol))
    return found


def usable(candidates: Sequence[MethodGroup]) -> list[MethodGroup]:
    """The groups whose mean drop is at most LARGEST_DROP; without a dense network to compare with, all."""
    return [group for group in candidates if (drop := group.mean(DROP)) is None or drop.mean <= LARGEST_DROP]


def best(candidates: Sequence[MethodGroup], axis: Axis) -> list[MethodGroup]:
    """The groups with the best mean on an axis; several where they are equal, none where nobody has the figure."""
    scored = [(axis.sign * mean.mean, group) for group in candidates if (mean := group.mean(axis)) is not None]
    top = max((score for score, _ in scored), default=None)
    return [group for score, group in scored if score == top]


def scores(group: MethodGroup) -> tuple[float, ...] | None:
    """The means on the main axes, more is better; None where all rows have failed."""
    means = [(axis, group.mean(axis)) for axis in MAIN_AXES]
    return tuple(axis.sign * mean.mean for axis, mean in means if mean is not None) if group.rows else None


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """At least as good everywhere and better somewhere."""
    pairs = list(zip(one, other, strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def dominated_by(group: MethodGroup, others: Iterable[MethodGroup]) -> list[MethodGroup]:
    """Those of the others that dominate the group in the means of accuracy, nonzeros and MACs."""
    mine = scores(group)
    return [o for o in others if o is not group and mine and (their := scores(o)) and dominates(their, mine)]
