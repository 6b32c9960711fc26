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


def ratio_of_medians(
    slow: Sequence[float], fast: Sequence[float], paired: bool = True, places: tuple[int, int] = (1, 1)
) -> tuple[float, float, float]:
    """median(slow) / median(fast) with a 95 % interval (ratio, low, high).

    Bootstrap over places in memory, and over the rounds of each.  Of times taken in the same rounds (paired) both are
    drawn together, so that what slowed down both cancels.  With fewer than 6 rounds the interval spans the ratios of
    any two times.

    Args:
        places: of how many copies the times are, of each of the two; they took turns.
    """
    a, b = np.asarray(slow, dtype=np.float64), np.asarray(fast, dtype=np.float64)
    if not len(a) or not len(b) or (paired and len(a) != len(b)):
        raise ValueError(f"both need a time for every round, got {len(a)} and {len(b)} times")
    ratio = float(np.median(a) / np.median(b))
    if min(len(a), len(b)) < ENOUGH:
        return ratio, float(a.min() / b.max()), float(a.max() / b.min())
    generator = np.random.default_rng(SEED)
    together = paired and places[0] == places[1]
    of_a = _drawn(len(a), places[0], generator)
    of_b = of_a if together else _drawn(len(b), places[1], generator)
    ratios = np.median(a[of_a], axis=1) / np.median(b[of_b], axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return ratio, float(low), float(high)


def _drawn(rounds: int, places: int, generator: np.random.Generator) -> np.ndarray:
    """Rounds (RESAMPLES, rounds) of places that are drawn with replacement, as are the rounds of each."""
    places = min(places, rounds)
    place = generator.integers(places, size=(RESAMPLES, places))[:, np.arange(rounds) % places]
    of_place = (rounds - place + places - 1) // places  # how many rounds each place has
    found: np.ndarray = place + places * generator.integers(of_place)
    return found
