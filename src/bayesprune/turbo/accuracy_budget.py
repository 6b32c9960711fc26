"""A budget of accuracy: what a network may lose, what it has lost, and which of the networks seen may be chosen."""

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

# Points of accuracy beyond the budget that a network may lose while it is being pruned: fine-tuning brings some back.
SLACK = 0.5
LOOKING = 0.1  # share of the pruning epochs under the first strengths
SAME_COST = 1.25  # networks whose costs differ by a smaller factor are about the same
EPSILON = 1e-9  # points, against rounding in differences of accuracies


class AccuracyBudget:
    """Points of validation accuracy, for regression of r2.

    drop: the budget, None without one.  examples: of the validation split.  epochs: of pruning.
    unpruned: the score of the unpruned network.  losses: points lost in every epoch of pruning so far.
    """

    def __init__(self, drop: float | None, examples: int, epochs: int) -> None:
        self.drop, self.examples = drop, examples
        self._first_epochs = math.ceil(LOOKING * epochs)
        self.unpruned: dict[str, float] = {}
        self.losses: list[float] = []

    @property
    def figure(self) -> str:
        """What is counted."""
        return "accuracy" if "accuracy" in self.unpruned else "r2"

    def lost(self, score: Mapping[str, float]) -> float | None:
        """Points below the unpruned network."""
        name = self.figure
        return 100 * (self.unpruned[name] - score[name]) if name in score and name in self.unpruned else None

    @property
    def allowed(self) -> float | None:
        """The budget, rounded up to whole examples of the validation split; for regression as is."""
        if self.drop is None or self.figure != "accuracy":
            return self.drop
        one = 100 / self.examples
        return one * math.ceil(self.drop / one - EPSILON)

    def allows(self, lost: float) -> bool:
        """Whether a network that lost this is within the budget; without one every network is."""
        return self.allowed is None or lost <= self.allowed + EPSILON

    @property
    def looking(self) -> bool:
        """Whether pruning is in its first epochs, which show what its learning rate alone costs."""
        return self.allowed is not None and len(self.losses) <= self._first_epochs

    def tolerated(self, rate: float) -> float | None:
        """Points that a network may lose while it is being pruned; rate: the learning rate over the full one.

        Budget, what the learning rate of pruning costs by itself (the unpruned network was trained to a rate of zero),
        slack, and the noise of the measure.
        """
        if self.allowed is None:
            return None
        first = self.losses[: self._first_epochs]
        usual = max(0.0, statistics.median(first)) if first else 0.0
        # Add one right and one wrong answer: no error among a few examples does not mean that there is no noise.
        accuracy = (self.unpruned.get("accuracy", 1.0) * self.examples + 1) / (self.examples + 2)
        binomial = 100 * math.sqrt(accuracy * (1 - accuracy) / self.examples)
        noise = max(binomial, statistics.pstdev(first) if first else 0.0)
        return self.allowed + usual * rate + SLACK + noise

    @property
    def recently_lost(self) -> float | None:
        """Median of the last three epochs: single ones are noisy."""
        return statistics.median(self.losses[-3:]) if self.losses else None


class Front:
    """Networks that may be chosen, none of them both larger and worse than another.

    kept: by cost, about; each with its cost, the points it had lost, and whatever its snapshot holds.
    """

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}

    def consider(self, cost: float, lost: float, snapshot: Callable[[], dict[str, Any]]) -> None:
        """Keep a network unless one is as good; of networks of about the same cost keep the one that lost least."""
        if any(one["cost"] <= cost and one["lost"] <= lost for one in self.kept.values()):
            return
        self.kept = {k: one for k, one in self.kept.items() if one["cost"] < cost or one["lost"] < lost}
        about = str(round(math.log(cost) / math.log(SAME_COST)))
        if about not in self.kept or lost < self.kept[about]["lost"]:
            self.kept[about] = {"cost": cost, "lost": lost, **snapshot()}

    def larger(self, cost: float, lost_at_most: float) -> dict[str, Any] | None:
        """The smallest network above a cost that lost no more than that; if none did, the one that lost least."""
        larger = [one for one in self.kept.values() if one["cost"] > cost]
        promising = [one for one in larger if one["lost"] <= lost_at_most + EPSILON]
        if promising:
            return min(promising, key=lambda one: float(one["cost"]))
        return min(larger, key=lambda one: float(one["lost"]), default=None)
