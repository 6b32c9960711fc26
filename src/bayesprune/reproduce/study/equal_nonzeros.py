"""What regularity costs: accuracy against that of irregular networks with as many nonzeros."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bayesprune.reproduce.averaging import ACCURACY, MACS, NONZERO, Axis
from bayesprune.reproduce.study.families import IRREGULAR, StudyGroup


@dataclass(frozen=True)
class IrregularNetworks:
    """The frontier to compare with: nonzeros and accuracy in percent, one point for each irregular setting.

    points: by nonzeros.  removed: of the same settings, nonzeros and the share of MACs removed in percent.  axis: the
    accuracy, on test or validation data.
    """

    points: tuple[tuple[float, float], ...]
    removed: tuple[tuple[float, float], ...] = ()
    axis: Axis = ACCURACY

    @classmethod
    def among(cls, groups: Iterable[StudyGroup], axis: Axis = ACCURACY) -> "IrregularNetworks":
        """Of the irregular groups; of settings with the same nonzeros the best."""
        best: dict[float, tuple[float, StudyGroup]] = {}
        for group in groups:
            if group.family == IRREGULAR and (point := point_of(group, axis)) is not None:
                place, accuracy = point
                if place not in best or accuracy > best[place][0]:
                    best[place] = accuracy, group
        order = sorted(best)
        removed = ((place, best[place][1].mean(MACS)) for place in order)
        return cls(
            tuple((place, best[place][0]) for place in order),
            tuple((place, mean.mean) for place, mean in removed if mean is not None),
            axis,
        )

    def accuracy(self, nonzero: float) -> float | None:
        """At a share of nonzeros; None outside the range of the points."""
        return _between(self.points, nonzero)

    def macs_removed(self, nonzero: float) -> float | None:
        """At a share of nonzeros; None outside the range of the points."""
        return _between(self.removed, nonzero)

    def lost(self, group: StudyGroup) -> float | None:
        """Points of accuracy below the irregular networks with as many nonzeros; None where there are none."""
        point = point_of(group, self.axis)
        level = None if point is None else self.accuracy(point[0])
        return None if point is None or level is None else level - point[1]


def _between(points: Sequence[tuple[float, float]], nonzero: float) -> float | None:
    """Linear in the logarithm of the nonzeros between neighbouring points."""
    for (before, low), (after, high) in pairwise(points):
        if before <= nonzero <= after:
            return low + (high - low) * math.log(nonzero / before) / math.log(after / before)
    return next((value for place, value in points if place == nonzero), None)


def point_of(group: StudyGroup, axis: Axis = ACCURACY) -> tuple[float, float] | None:
    """Nonzeros and accuracy in percent; None where there is no network, or one without weights."""
    nonzero, accuracy = group.mean(NONZERO), group.mean(axis)
    if nonzero is None or accuracy is None or nonzero.mean <= 0:
        return None
    return nonzero.mean, accuracy.mean
