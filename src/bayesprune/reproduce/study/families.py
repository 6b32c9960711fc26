"""Which kind of prior a setting has, how strong its coupling is, and its figures over seeds."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bayesprune.reproduce.averaging import Axis, Group, regular

IRREGULAR, ISING, TRANSITIONS, TILES, PATTERN, UNITS, REGULAR, PAPER, OTHER = (
    *("irregular", "ising", "transitions", "tiles", "pattern", "units", "regular", "paper", "other"),
)
FAMILIES: Final[dict[str, str]] = {
    IRREGULAR: "irregular: independent supports",
    ISING: "coupled supports: J",
    TRANSITIONS: "coupled supports: p01, p10",
    TILES: "shared by tiles",
    PATTERN: "pattern-coupled precisions",
    REGULAR: "preset regular",
    UNITS: "units only",
    PAPER: "preset paper",
    OTHER: "other groups",
}

CLUSTER_ROWS: Final = Axis("cluster along rows", regular("cluster_along_rows"), +1)
CLUSTER_COLUMNS: Final = Axis("cluster along columns", regular("cluster_along_columns"), +1)
GAP_ROWS: Final = Axis("gap along rows", regular("gap_along_rows"), +1, "{:.1f}")
GAP_COLUMNS: Final = Axis("gap along columns", regular("gap_along_columns"), +1, "{:.1f}")
KERNELS: Final = Axis("in 3x3 of kernels %", regular("in_kernels", factor=100), +1, "{:.1f}")


def by_chance(axis: Axis) -> Axis:
    """The same figure of shuffled masks."""

    def value(row: Mapping[str, Any]) -> float | None:
        return axis.value({"regularity": (row.get("regularity") or {}).get("chance")})

    return Axis(f"{axis.title} by chance", value, axis.sign, axis.form)


def of_layer(axis: Axis, layer: str) -> Axis:
    """The same figure of one layer."""

    def value(row: Mapping[str, Any]) -> float | None:
        return axis.value({"regularity": (row.get("regularity") or {}).get("layers", {}).get(layer)})

    return Axis(f"{axis.title} of {layer}", value, axis.sign, axis.form)


@dataclass(frozen=True, kw_only=True)
class StudyGroup(Group):
    """The rows of a setting.

    coupling: J between neighbours, given or that of the transitions.  transitions: p01 and p10 where they are given.
    """

    setting: str
    title: str
    family: str
    weight_strength: float
    coupling: float
    transitions: tuple[float, float] | None


def groups(rows: Iterable[Mapping[str, Any]]) -> list[StudyGroup]:
    """Rows by setting: families in the order of FAMILIES, then by coupling and weight strength."""
    by_setting: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_setting.setdefault(row["setting"], []).append(row)
    found = []
    for setting, mine in by_setting.items():
        settings = mine[0]["settings"]
        both = (settings["p01"], settings["p10"]) if settings["p01"] is not None else None
        found.append(
            StudyGroup.of(
                mine,
                setting=setting,
                title=mine[0]["title"],
                family=family_of(settings, mine[0]["preset"]),
                weight_strength=settings["weight_strength"],
                coupling=settings["coupling"] if both is None else implied_coupling(*both),
                transitions=both,
            )
        )
    order = list(FAMILIES)
    return sorted(found, key=lambda g: (order.index(g.family), g.coupling, g.weight_strength, g.setting))


def family_of(settings: Mapping[str, Any], preset: str | None) -> str:
    """One of FAMILIES."""
    if preset in (REGULAR, PAPER):
        return preset
    if settings.get("linear_groups") is not None:  # rows may be older than this setting
        return OTHER
    if settings["groups"] != "weight":
        return {"tile": TILES, "pattern": PATTERN}.get(settings["groups"], OTHER)
    if settings["weight_strength"] == 0:
        return UNITS
    if settings["p01"] is not None:
        return TRANSITIONS
    return ISING if settings["coupling"] else IRREGULAR


def implied_coupling(p01: float, p10: float) -> float:
    """J of the Ising model whose chains have these transition probabilities."""
    return math.log((1 - p01) * (1 - p10) / (p01 * p10)) / 4
