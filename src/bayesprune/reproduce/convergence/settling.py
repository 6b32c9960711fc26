"""When the messages of a row settle, and how far rows from different starts end at the same point."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from bayesprune.reproduce.merging import Rows

TOLERANCES: Final = (1e-2, 1e-3)
MESSAGES: Final = {"message": "v_{h->s}", "evidence": "v_{eta->s}"}  # Module B to A, and A to B
ALL: Final = "all"
LIVE: Final = 128  # round(255 p) of p > 1/2


def changes(row: Mapping[str, Any], message: str) -> dict[str, list[float]]:
    """Mean |change| of a message in every outer iteration, by layer and of all supports; message: of MESSAGES."""
    iterations = row["outer_iterations"]
    layers = iterations[0][f"{message}_change_by_layer"]
    found = {layer: [one[f"{message}_change_by_layer"][layer] for one in iterations] for layer in layers}
    return {ALL: [one[f"{message}_change"] for one in iterations], **found}


def settled(values: Sequence[float], tolerance: float) -> int | None:
    """The first iteration, counted from 1, from which on all changes are below the tolerance; None if there is none."""
    above = [iteration for iteration, value in enumerate(values, start=1) if not value < tolerance]
    first = above[-1] + 1 if above else 1
    return first if first <= len(values) else None


def agreement(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """How near two end points are, by layer and of all supports, each layer counted with all its supports.

    difference: mean |difference| of q(s=1).  equal: share of equal supports s*.  live_in_common: live in both over live
    in any, 1 where none is.
    """
    found: dict[str, dict[str, float]] = {}
    for layer in one["end"]:
        a, b = (np.frombuffer(bytes.fromhex(row["end"][layer]), dtype=np.uint8).astype(int) for row in (one, other))
        any_live = int(((a >= LIVE) | (b >= LIVE)).sum())
        found[layer] = {
            "difference": float(np.abs(a - b).mean()) / 255,
            "equal": float(((a >= LIVE) == (b >= LIVE)).mean()),
            "live_in_common": int(((a >= LIVE) & (b >= LIVE)).sum()) / any_live if any_live else 1.0,
            "live": any_live / len(a),
        }
    sites = one["sites"]
    total = sum(sites.values())
    whole = {
        key: sum(found[layer][key] * sites[layer] for layer in found) / total for key in ("difference", "equal", "live")
    }
    common = sum(found[layer]["live_in_common"] * found[layer]["live"] * sites[layer] for layer in found) / total
    whole["live_in_common"] = common / whole["live"] if whole["live"] else 1.0
    return {ALL: whole, **found}


def with_settling(rows: Rows) -> Rows:
    """Rows with `settled`, and with `agreement` by the other starts of their setting; the end points are left out.

    The first start gets `control`, too: its agreement with the same start and a little noise in the weights.
    """
    found = []
    for row in rows:
        completed = {key: value for key, value in row.items() if key != "end"}
        if row["outer_iterations"] is not None:
            completed["settled"] = {
                message: {
                    layer: {f"{tolerance:g}": settled(values, tolerance) for tolerance in TOLERANCES}
                    for layer, values in changes(row, message).items()
                }
                for message in MESSAGES
            }
            others = [other for other in rows if _comparable(row, other)]
            completed["agreement"] = {
                str(other["start"]): agreement(row, other) for other in others if other["start"] != row["start"]
            }
            for other in others:
                if other["noise"] and not row["noise"] and other["start"] == row["start"]:
                    completed["control"] = agreement(row, other)
        found.append(completed)
    return found


def _comparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rows differ in their start or in the noise only."""
    same = all(one[key] == other[key] for key in ("setting", "warm"))
    apart = (one["start"] == other["start"]) != (one["noise"] == other["noise"])
    return same and apart and other["outer_iterations"] is not None


def pairs(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, dict[str, float]]]:
    """The agreements of all pairs of the rows of a setting."""
    by_start = {str(row["start"]): row for row in rows if row.get("agreement")}
    both = itertools.combinations(sorted(by_start, key=int), 2)
    return [by_start[a]["agreement"][b] for a, b in both if b in by_start[a]["agreement"]]
