"""Which members no other one beats, and which of them to take.  Only figures of the validation split decide."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bayesprune.frontier.members import FINISHED
from bayesprune.runs import RunError

EPSILON = 1e-9  # points, against rounding in differences of accuracies


def pareto(points: Sequence[tuple[float, float, float]]) -> list[int]:
    """The indices of the points (accuracy, nonzeros, MACs) that are not dominated.

    A point is dominated by another that is at least as accurate and at most as large in both, and better in one of the
    three; of equal points all stay.
    """
    if not points:
        return []
    costs = torch.tensor([(-accuracy, nonzero, macs) for accuracy, nonzero, macs in points], dtype=torch.float64)
    no_worse = (costs[:, None] <= costs[None]).all(2)  # [i, j]: i is as good as j or better in everything
    better = (costs[:, None] < costs[None]).any(2)
    return torch.nonzero(~(no_worse & better).any(0)).flatten().tolist()


def front(records: Sequence[Mapping[str, Any]]) -> list[int]:
    """The places of the finished members that are not dominated; records: of `Member.record`."""
    finished = [place for place, record in enumerate(records) if record["status"] == FINISHED]
    points = [(r["validation"]["accuracy"], r["nonzero_fraction"], r["macs"]) for r in (records[i] for i in finished)]
    return [finished[i] for i in pareto(points)]


def best_accuracy(records: Sequence[Mapping[str, Any]]) -> float:
    """The highest validation accuracy of any network that was seen, unpruned or pruned."""
    scores = [r["validation_unpruned"] for r in records]
    scores += [r["validation"] for r in records if r["status"] == FINISHED]
    found = [score["accuracy"] for score in scores if score.get("accuracy") is not None]
    if not found:
        raise RunError("no member of this frontier has a result; try weaker priors or a smaller learning rate")
    return float(max(found))


def pick(records: Sequence[Mapping[str, Any]], max_drop: float) -> int:
    """The place of the smallest member of the front that is at most `max_drop` points below the best accuracy.

    Small is the sum of the shares of nonzero weights and of MACs that are left.
    """
    if not max_drop >= 0:
        raise RunError(f"the largest drop must be at least 0 points, got {max_drop}; try 0.5")
    best = best_accuracy(records)
    drops = {place: 100 * (best - records[place]["validation"]["accuracy"]) for place in front(records)}
    if not drops:
        raise RunError("no member of this frontier is finished; try weaker priors or a smaller learning rate")
    within = [place for place, drop in drops.items() if drop <= max_drop + EPSILON]
    if not within:
        raise RunError(
            f"no member is within {max_drop:g} points of the best validation accuracy, {best:.2%}; "
            f"the closest has lost {min(drops.values()):.2f}: try a larger --max-drop, or weaker priors"
        )
    return min(within, key=lambda place: _cost(records[place]))


def _cost(record: Mapping[str, Any]) -> float:
    return float(record["nonzero_fraction"] + 1 - record["macs_removed"])
