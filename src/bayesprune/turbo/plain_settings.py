"""Settings as plain data: checked against their annotations, read from YAML, written as JSON."""

import contextlib
import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args, get_type_hints

FEWEST_PRUNE_STEPS = 3000
NONE = type(None)
EPOCHS = ("warmup_epochs", "prune_epochs", "finetune_epochs")


class SettingsError(ValueError):
    """A setting has a value that cannot be."""


@dataclass(frozen=True)
class PlainSettings:
    """The epochs of the three phases, what they learn from, and what all settings can do.

    distil: in pruning and fine-tuning, or from `distil_from` on, this share of the loss is how far the network's
    predictions are from those of the unpruned network, both softened by `distil_temperature`; the labels have the rest.
    """

    warmup_epochs: int = 15
    prune_epochs: int = 45
    finetune_epochs: int = 20
    batch_size: int = 128
    distil: float = 0.0
    distil_temperature: float = 4.0
    distil_from: Literal["prune", "finetune"] = "prune"

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            _check_kind(name, getattr(self, name), kind)
        for name in EPOCHS:
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.batch_size < 1:
            raise SettingsError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.distil <= 1:
            raise SettingsError(f"distil must be a share between 0 and 1, got {self.distil}; try 0.7")
        if not self.distil_temperature > 0:
            raise SettingsError(f"distil_temperature must be above 0, got {self.distil_temperature}; try 4")

    def has_teacher(self, phase: str) -> bool:
        """Whether the unpruned network teaches in a phase."""
        return self.distil > 0 and phase in (self.distil_from, "finetune")

    def for_examples(self, examples: int) -> Self:
        """The same with enough epochs for a small training set: pruning needs thousands of steps, not epochs."""
        steps = max(1, examples // self.batch_size) * max(1, self.prune_epochs)
        factor = max(1.0, FEWEST_PRUNE_STEPS / steps)
        return dataclasses.replace(self, **{name: math.ceil(factor * getattr(self, name)) for name in EPOCHS})

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse; an unknown name is an error that lists the nearest ones."""
        known = get_type_hints(cls)
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, 3, 0.4)
                raise SettingsError(
                    f"unknown setting {name!r}" + (f"; did you mean {', '.join(near)}?" if near else "")
                )
        return cls(**{name: _from_yaml(value, known[name]) for name, value in values.items()})


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the settings that are not the same in all of these."""
    first = settings[0] if settings else {}
    return [name for name in first if any(other[name] != first[name] for other in settings)]


def _from_yaml(value: Any, kind: Any) -> Any:
    """Lists are tuples; YAML reads 1e-3 as text."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, str) and kind in (float, float | None):
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def _check_kind(name: str, value: Any, kind: Any) -> None:
    """Raise unless a value is of the kind that its annotation says."""
    if NONE in get_args(kind):
        if value is None:
            return
        kind = next(one for one in get_args(kind) if one is not NONE)
    choices = get_args(kind)
    if kind is bool:
        fits, rule = isinstance(value, bool), "true or false"
    elif kind is int:
        fits, rule = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    elif kind is float:
        fits, rule = _is_number(value), "a finite number"
    elif float in choices or int in choices:
        fits = isinstance(value, tuple) and len(value) == len(choices) and all(map(_is_number, value))
        rule = f"{len(choices)} numbers"
    else:
        fits, rule = value in choices, f"one of {', '.join(choices)}"
    if not fits:
        raise SettingsError(f"{name} must be {rule}, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
