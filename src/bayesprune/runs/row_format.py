"""Figures of a run as people read them: 91.20 %, 6-16-120-84, 1:23."""

import math
from collections.abc import Callable, Mapping
from typing import Any


def percent(value: float) -> str:
    """A fraction in percent, with at least three digits where it is small."""
    share = 100 * value
    digits = 2 if abs(share) >= 1 or share == 0 else min(1 - math.floor(math.log10(abs(share))), 5)
    return f"{share:.{digits}f} %"


def number(value: float) -> str:
    """Four significant digits; whole numbers complete, in groups of three."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if not 1e4 <= abs(value) < 1e9 else f"{value:,.0f}"


def significant(value: float) -> str:
    """Four significant digits, zeros at the end too: a column of them lines up."""
    return f"{value:#.4g}" if 1e-4 <= abs(value) < 1e4 else number(float(value))


def small(value: float) -> str:
    """A number whose size matters, not its digits."""
    return f"{value:.1e}" if value else "0"


def widths(value: Any) -> str:
    """The widths of a network's layers."""
    return value if isinstance(value, str) else "-".join(str(width) for width in value)


def duration(seconds: float) -> str:
    """Seconds as 0:07, 12:34, 3:04:05 or 2 d 03:04."""
    whole = max(math.ceil(seconds), 0)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    if not hours:
        return f"{minute}:{second:02d}"
    if hours < 48:
        return f"{hours}:{minute:02d}:{second:02d}"
    return f"{hours // 24} d {hours % 24:02d}:{minute:02d}"


def elapsed(seconds: float) -> str:
    """Time that has passed: 7.3 s, then as `duration`."""
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


# Key of a row -> label and how to write it, in the order in which they are shown; other keys follow.
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "loss": ("loss", significant),
    "accuracy": ("accuracy", percent),
    "validation_accuracy": ("accuracy", percent),
    "nonzero_fraction": ("nonzeros", percent),
    "macs_fraction": ("MACs", percent),
    "structure": ("structure", widths),
    "message_change": ("change", small),
    "seconds": ("time", elapsed),
}
PERCENT_ENDINGS = ("_fraction", "_accuracy", "_drop", "_removed")


def describe(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and text for every key of `row`: the known ones first, in their order, then the others in theirs.

    Figures by layer are left out: they are for files.
    """
    row = {key: value for key, value in row.items() if not isinstance(value, Mapping)}
    keys = [key for key in COLUMNS if key in row] + [key for key in row if key not in COLUMNS]
    labels = [COLUMNS[key][0] if key in COLUMNS else key.replace("_", " ") for key in keys]
    # Two keys with one label: both under their own names.
    return [
        (label if labels.count(label) == 1 else key.replace("_", " "), _text(key, row[key]))
        for key, label in zip(keys, labels, strict=True)
    ]


def _text(key: str, value: Any) -> str:
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if not math.isfinite(value):
            return str(value)
        if key in COLUMNS and key != "structure":
            return COLUMNS[key][1](value)
        if isinstance(value, float) and key.endswith(PERCENT_ENDINGS):
            return percent(value)
        return number(value)
    if isinstance(value, list | tuple):
        return widths(value) if key == "structure" else " ".join(_text("", item) for item in value)
    return " ".join(str(value).split())
