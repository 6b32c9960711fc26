"""Whether a network is as sure as it is right."""

from typing import Any, Final

import torch
from torch import Tensor

BINS: Final = 15


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """The mean distance of confidence from accuracy over bins of confidence, each weighted by its examples.

    sum_b n_b / n |accuracy_b - confidence_b|, with bins ((b - 1) / bins, b / bins] of the highest probability.

    Args:
        probabilities: of the classes, (n, classes).
        labels: the right classes, int64 (n,).
        bins: how many, of equal width.
    """
    curve = reliability(probabilities, labels, bins)
    return float(sum(one["count"] * abs(one["accuracy"] - one["confidence"]) for one in curve)) / len(labels)


def reliability(probabilities: Tensor, labels: Tensor, bins: int = BINS) -> list[dict[str, Any]]:
    """Count, mean confidence and accuracy of every bin that has examples, as it is: no temperature is fitted."""
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}; try {BINS}")
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not len(labels):
        raise ValueError(
            "calibration needs probabilities (n, classes) and labels (n,) of at least one example, got "
            f"{tuple(probabilities.shape)} and {tuple(labels.shape)}; pass softmax(outputs, 1)"
        )
    confidence, chosen = probabilities.double().max(1)
    right = (chosen == labels).double()
    place = (torch.ceil(confidence * bins).long() - 1).clamp(0, bins - 1)
    count = torch.bincount(place, minlength=bins)
    sums = [
        torch.zeros(bins, dtype=torch.float64, device=place.device).index_add_(0, place, v) for v in (confidence, right)
    ]
    return [
        {
            "from": number / bins,
            "to": (number + 1) / bins,
            "count": int(count[number]),
            "confidence": float(sums[0][number] / count[number]),
            "accuracy": float(sums[1][number] / count[number]),
        }
        for number in range(bins)
        if count[number]
    ]
