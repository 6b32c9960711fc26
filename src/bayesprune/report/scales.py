"""From values to places on an axis, and the round numbers beside it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

ROUND = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`, drawn from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value."""
        low, high, at = (_log(one) if self.log else one for one in (self.low, self.high, value))
        return self.begin + (self.end - self.begin) * (at - low) / (high - low)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values on the axis."""
        if self.log and len(found := _log_ticks(self.low, self.high, most)) > 1:
            return found
        step = _round_step((self.high - self.low) / max(1, most - 1))
        first = math.ceil(self.low / step - 1e-9)
        return [float(f"{step * place:.12g}") for place in range(first, math.floor(self.high / step + 1e-9) + 1)]


def scale(values: Iterable[float], begin: float, end: float, *, log: bool = False, zero: bool = False) -> Scale:
    """An axis that holds all `values`, with some room; zero: it begins at 0."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(known), max(known)) if known else (0.1 if log else 0.0, 1.0)
    if log:
        room = (high / low) ** 0.05 if high > low else 2.0
        return Scale(low / room, high * room, begin, end, log=True)
    if zero:
        return Scale(0.0, high or 1.0, begin, end)
    room = 0.05 * (high - low) if high > low else 0.05 * abs(high) or 1.0
    return Scale(low - room, high + room, begin, end)


def label(value: float) -> str:
    """A number beside an axis: 0.01, 2.5, 1,000."""
    if value and not 1e-3 <= abs(value) < 1e6:
        digits, _, power = f"{value:.4e}".partition("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:,.10g}"


def _log(value: float) -> float:
    return math.log10(max(value, 1e-300))


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in ROUND if step * power >= rough * (1 - 1e-9))


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten, fewer where there are many, with 2 and 5 between them where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors, every in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 3), ((1,), 5)):
        values = [factor * 10.0**power for power in range(first, last + 1) if power % every == 0 for factor in factors]
        inside = [float(f"{value:.6g}") for value in values if low <= value <= high]
        if len(inside) <= most + 2:
            return inside
    return [low, high]
