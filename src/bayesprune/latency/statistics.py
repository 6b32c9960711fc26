"""Figures of repeated measurements."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
SEED = 0
ENOUGH = 6  # fewer rounds hold no 95 % interval: the median lies outside all of them with chance 2 / 2**rounds


@dataclass(frozen=True)
class Summary:
    """Milliseconds of one call: mean, median, standard deviation (n - 1), smallest and 90 % quantile of the rounds."""

    mean: float
    median: float
    deviation: float
    smallest: float
    p90: float


def summarise(samples: Sequence[float]) -> Summary:
    """Figures of `samples` (rounds), at least one."""
    values = np.asarray(samples, dtype=np.float64)
    return Summary(
        mean=float(values.mean()),
        median=float(np.median(values)),
        deviation=float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        smallest=float(values.min()),
        p90=float(np.quantile(values, 0.9)),
    )


def ratio_of_medians(slow: Sequence[float], fast: Sequence[float], paired: bool = True) -> tuple[float, float, float]:
    """median(slow) / median(fast) with a 95 % interval (ratio, low, high).

    Bootstrap over rounds.  Of times taken in the same rounds (paired) both are drawn together, so that what slowed
    down both cancels.  With fewer than 6 rounds the interval spans the ratios of any two times.
    """
    a, b = np.asarray(slow, dtype=np.float64), np.asarray(fast, dtype=np.float64)
    if not len(a) or not len(b) or (paired and len(a) != len(b)):
        raise ValueError(f"both need a time for every round, got {len(a)} and {len(b)} times")
    ratio = float(np.median(a) / np.median(b))
    if min(len(a), len(b)) < ENOUGH:
        return ratio, float(a.min() / b.max()), float(a.max() / b.min())
    generator = np.random.default_rng(SEED)
    of_a = generator.integers(len(a), size=(RESAMPLES, len(a)))
    of_b = of_a if paired else generator.integers(len(b), size=(RESAMPLES, len(b)))
    ratios = np.median(a[of_a], axis=1) / np.median(b[of_b], axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return ratio, float(low), float(high)
