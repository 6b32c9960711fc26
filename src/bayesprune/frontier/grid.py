"""Lists of settings: every combination of some values."""

import itertools
import math
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from bayesprune.turbo import Settings, SettingsError

MOST_MEMBERS = 10_000
# From hardly pruned to beyond the paper's row of LeNet-5 on Fashion-MNIST, for its 54,000 training examples.
EXAMPLES = 54_000
EPOCHS = {"warmup_epochs": 15, "prune_epochs": 65, "finetune_epochs": 25}
AXES: Mapping[str, tuple[float, ...]] = {
    "unit_strength": (500, 1500, 3500, 6000),
    "weight_strength": (0.5, 3, 8),
    "spike_rate": (1e-4, 1e-3),
    "seed": (0, 1),
}


def default_grid(examples: int) -> dict[str, Any]:
    """48 settings for a training set of this size: all strengths are measured against the data."""

    def scaled(value: float) -> float:
        return float(f"{value * examples / EXAMPLES:.3g}")

    strengths = {name: [scaled(value) for value in AXES[name]] for name in ("unit_strength", "weight_strength")}
    axes = {name: list(values) for name, values in AXES.items()} | strengths
    return {**EPOCHS, "weight_start": scaled(Settings().weight_start), **axes}


def expand(grid: Mapping[str, Any]) -> list[Settings]:
    """Every combination of the values in `grid`; the last name varies fastest.

    A list is several values; for settings that are pairs (the ramps, tile) a list of lists is.
    """
    kinds = get_type_hints(Settings)
    axes = {name: value if _is_axis(value, kinds.get(name)) else [value] for name, value in grid.items()}
    for name, values in axes.items():
        if not values:
            raise SettingsError(f"{name} must have at least one value, got an empty list")
    count = math.prod(map(len, axes.values()))
    if count > MOST_MEMBERS:
        raise SettingsError(f"a grid may have at most {MOST_MEMBERS} members, got {count}; give fewer values")
    return [Settings.from_dict(dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())]


def _is_axis(value: Any, kind: Any) -> bool:
    if not isinstance(value, list):
        return False
    is_pair = float in get_args(kind) or int in get_args(kind)
    return not is_pair or kind == float | None or all(isinstance(one, list) for one in value)
