"""What regularity costs: accuracy against that of irregular networks with as many nonzeros."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from bayesprune.reproduce.averaging import ACCURACY, NONZERO
from bayesprune.reproduce.study.families import IRREGULAR, StudyGroup


@dataclass(frozen=True)
class IrregularNetworks:
    """The frontier to compare with: nonzeros and accuracy in percent, one point for each irregular setting.

    points: by nonzeros.
    """

    points: tuple[tuple[float, float], ...]

    @classmethod
    def among(cls, groups: Iterable[StudyGroup]) -> "IrregularNetworks":
        """Of the irregular groups; of settings with the same nonzeros the best."""
        best: dict[float, float] = {}
        for group in groups:
            if group.family == IRREGULAR and (point := point_of(group)) is not None:
                best[point[0]] = max(point[1], best.get(point[0], -math.inf))
        return cls(tuple(sorted(best.items())))

    def accuracy(self, nonzero: float) -> float | None:
        """At a share of nonzeros, linear in its logarithm between neighbouring points; None outside their range."""
        for (before, low), (after, high) in pairwise(self.points):
            if before <= nonzero <= after:
                return low + (high - low) * math.log(nonzero / before) / math.log(after / before)
        return next((accuracy for place, accuracy in self.points if place == nonzero), None)

    def lost(self, group: StudyGroup) -> float | None:
        """Points of accuracy below the irregular networks with as many nonzeros; None where there are none."""
        point = point_of(group)
        level = None if point is None else self.accuracy(point[0])
        return None if point is None or level is None else level - point[1]


def point_of(group: StudyGroup) -> tuple[float, float] | None:
    """Nonzeros and accuracy in percent; None where there is no network, or one without weights."""
    nonzero, accuracy = group.mean(NONZERO), group.mean(ACCURACY)
    if nonzero is None or accuracy is None or nonzero.mean <= 0:
        return None
    return nonzero.mean, accuracy.mean
