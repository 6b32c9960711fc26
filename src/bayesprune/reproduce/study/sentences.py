"""What the study found, in sentences that are computed from its rows."""

from collections.abc import Sequence
from itertools import combinations

from bayesprune.reproduce.averaging import ACCURACY, MACS, NONZERO, RECTANGLES, VALIDATION, Axis
from bayesprune.reproduce.study.equal_nonzeros import IrregularNetworks, point_of
from bayesprune.reproduce.study.families import (
    CLUSTER_ROWS,
    GAP_ROWS,
    IRREGULAR,
    ISING,
    TRANSITIONS,
    StudyGroup,
    by_chance,
)
from bayesprune.reproduce.tables import NONE, cell

HALF = 50.0  # percent of the live weights in rectangles from which on a network is called mostly regular


def prices(found: Sequence[StudyGroup]) -> list[str]:
    """For every setting but the irregular ones, what its accuracy is worth at equal nonzeros."""
    irregular = IrregularNetworks.among(found)
    others = [group for group in found if group.family != IRREGULAR]
    return [
        *_summary(irregular, IrregularNetworks.among(found, VALIDATION), others),
        *(f"- {_price(irregular, group)}" for group in others),
    ]


def _summary(irregular: IrregularNetworks, on_validation: IrregularNetworks, others: Sequence[StudyGroup]) -> list[str]:
    """Which mostly regular setting is the best, by validation data, and what it costs on test data."""
    lost = {g.setting: points for g in others if (points := irregular.lost(g)) is not None}
    regular = {g.setting: g for g in others if g.setting in lost and (_mean(g, RECTANGLES) or 0) >= HALF}
    if not lost:
        return []
    if not regular:
        return [f"- No network that can be compared has {HALF:g} % or more of its weights in rectangles."]
    seen = {name: points for name, g in regular.items() if (points := on_validation.lost(g)) is not None}
    if not seen:
        return []
    cheapest = min(seen, key=lambda name: seen[name])
    there = _lost_or_gained(seen[cheapest], regular[cheapest], VALIDATION)
    return [
        f"- Of the networks that can be compared and have {HALF:g} % or more of their weights in rectangles, "
        f"`{cheapest}` is the most accurate at equal nonzeros on validation data: it {there} there, and on test data "
        f"{_lost_or_gained(lost[cheapest], regular[cheapest])}."
    ]


def _price(irregular: IrregularNetworks, group: StudyGroup) -> str:
    name, point = f"`{group.setting}`", point_of(group)
    if point is None:
        return f"{name} has no network to compare."
    has = f"{name} has {cell(group.mean(ACCURACY), ACCURACY)} % with {cell(group.mean(NONZERO), NONZERO)} % nonzero"
    share = (
        f"{_text(group, RECTANGLES)} % of its weights in rectangles ({_text(group, by_chance(RECTANGLES))} % by chance)"
    )
    if not irregular.points:
        return f"{has} and {share}; it cannot be compared: there is no irregular network."
    level = irregular.accuracy(point[0])
    if level is None:
        least, most = irregular.points[0][0], irregular.points[-1][0]
        return f"{has} and {share}; it cannot be compared: the irregular networks have {least:.2f} to {most:.2f} %."
    outcome = _lost_or_gained(level - point[1], group)
    removed, theirs = _mean(group, MACS), irregular.macs_removed(point[0])
    known = removed is not None and theirs is not None
    macs = f"; of the MACs {removed:.1f} % are removed, of theirs {theirs:.1f} %" if known else ""
    return f"{has}, irregular networks {level:.2f} % with as many: it {outcome} and has {share}{macs}."


def _lost_or_gained(points: float, group: StudyGroup, axis: Axis = ACCURACY) -> str:
    """points: of accuracy that the group lost."""
    mean = group.mean(axis)
    noise = mean is not None and mean.spread is not None and abs(points) <= mean.spread
    what = f"{'loses' if points > 0 else 'gains'} {abs(points):.2f} points"
    return f"{what} (within its spread over seeds)" if noise else what


def coupled_from_zero(found: Sequence[StudyGroup]) -> list[StudyGroup]:
    """The settings with a coupling J, by J; first the irregular ones that differ from them in the coupling only."""
    coupled = [group for group in found if group.family == ISING]
    strengths = {group.weight_strength for group in coupled}
    return [g for g in found if g.family == IRREGULAR and g.weight_strength in strengths] + coupled


def couplings(found: Sequence[StudyGroup]) -> list[str]:
    """What stronger coupling does, and whether p01 and p10 set gaps and clusters as the paper says (II-B)."""
    lines = []
    transitions = [group for group in found if group.family == TRANSITIONS]
    for name, mine in (("J", coupled_from_zero(found)), ("the J of p01 and p10", transitions)):
        mine = [group for group in mine if group.rows]
        if len(mine) > 1:
            lines.append(f"- {_from_weak_to_strong(name, mine[0], mine[-1])}")
    for place, name, axis, what in ((1, "p10", CLUSTER_ROWS, "cluster"), (0, "p01", GAP_ROWS, "gap")):
        agree, beyond_chance, pairs = _longer_where_smaller(transitions, place, axis)
        if pairs:
            lines.append(
                f"- The smaller {name}, the longer the mean {what} along rows: true in {agree} of {pairs} pairs of "
                f"settings that differ in {name}, and in {beyond_chance} once lengths are divided by those of chance."
            )
    return lines


def _from_weak_to_strong(name: str, weak: StudyGroup, strong: StudyGroup) -> str:
    axes = (
        ("share in rectangles", RECTANGLES, " %"),
        ("mean cluster along rows", CLUSTER_ROWS, ""),
        ("nonzeros", NONZERO, " %"),
        ("accuracy", ACCURACY, " %"),
    )
    changes = []
    for words, axis, unit in axes:
        chance = by_chance(axis)
        beside = (
            f" (by chance {_text(weak, chance)} to {_text(strong, chance)})"
            if axis in (RECTANGLES, CLUSTER_ROWS)
            else ""
        )
        changes.append(f"{words} {_text(weak, axis)} to {_text(strong, axis)}{unit}{beside}")
    return f"From {name} = {weak.coupling:.2f} to {strong.coupling:.2f}: {', '.join(changes)}."


def _longer_where_smaller(found: Sequence[StudyGroup], place: int, axis: Axis) -> tuple[int, int, int]:
    """Of the pairs that differ in p01 (place 0) or p10 (1): those in which the smaller has the longer runs, and all.

    In between: those in which it has the longer runs in units of what chance gives.
    """
    known = []
    for group in found:
        length, usual = _mean(group, axis), _mean(group, by_chance(axis))
        if group.transitions is not None and length is not None and usual:
            known.append((group.transitions[place], length, length / usual))
    pairs = [sorted(pair) for pair in combinations(known, 2) if pair[0][0] != pair[1][0]]
    agree, beyond_chance = (sum(smaller[i] > larger[i] for smaller, larger in pairs) for i in (1, 2))
    return agree, beyond_chance, len(pairs)


def _mean(group: StudyGroup, axis: Axis) -> float | None:
    mean = group.mean(axis)
    return None if mean is None else mean.mean


def _text(group: StudyGroup, axis: Axis) -> str:
    mean = _mean(group, axis)
    return NONE if mean is None else axis.form.format(mean)
