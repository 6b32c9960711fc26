"""What there is to run: a network and its data, how it is trained and pruned, and a seed."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import yaml

from bayesprune import baselines
from bayesprune.baselines import BaselineSettings
from bayesprune.turbo import Settings, SettingsError
from bayesprune.turbo.plain_settings import PlainSettings

PHASES: Final = ("warmup_epochs", "prune_epochs", "finetune_epochs")
CONFIGS: Final = Path(__file__).parent / "configs"  # those that come with the package
SettingsT = TypeVar("SettingsT", bound=PlainSettings)


@dataclass(frozen=True)
class Row:
    """A row of Table II: a network and its data.  keep_nonzero, keep_macs: shares that magnitude and group-norm keep.

    These two have no line in the table and are asked for about the size that `ours` has, to be compared at equal size.
    keep_macs_small: the share that group-norm keeps to have as few MACs as `ours-macs`, where that has fewer.
    """

    name: str
    title: str
    model: str
    data: str
    keep_nonzero: float
    keep_macs: float
    keep_macs_small: float | None = None


ROWS: Final[dict[str, Row]] = {
    row.name: row
    for row in (
        Row("lenet5", "LeNet-5 on Fashion-MNIST", "lenet5", "fashion-mnist", 0.01, 0.22, 0.17),
        Row("alexnet", "AlexNet-small on CIFAR-10", "alexnet-small", "cifar10", 0.0145, 0.346),
        Row("vgg11", "VGG-11 on CIFAR-100", "vgg11", "cifar100", 0.037, 0.25),
        Row("digits", "LeNet-5 on the embedded digits, not in the paper", "lenet5", "digits", 0.1, 0.5),
    )
}


@dataclass(frozen=True)
class Job(ABC):
    """One network to train, prune, fine-tune and evaluate.  epochs_scale: not 1 for trials.

    by_layer: whether its row has the regularity of every layer, and what chance gives.
    """

    by_layer: ClassVar[bool] = False

    row: Row
    method: str
    seed: int
    settings: Settings | BaselineSettings
    epochs_scale: float = 1.0

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What its row says about it beside network, data, seed and settings."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Of its file."""

    @property
    def epochs(self) -> int:
        """Of all phases together."""
        return total_epochs(self.settings)

    @property
    def algorithm(self) -> str:
        """The name of the method without what its settings add to it."""
        return self.method

    @property
    def revision(self) -> int:
        """Of the method: rows of an earlier one are stale."""
        known = baselines.METHODS.get(self.algorithm)
        return 1 if known is None else known.revision

    @property
    def description(self) -> dict[str, Any]:
        """What its row begins with: all that is known before it has run."""
        return {
            "row": self.row.name,
            "model": self.row.model,
            "data": self.row.data,
            "method": self.method,
            "revision": self.revision,
            **self.identity,
            "seed": self.seed,
            "epochs": self.epochs,
            "epochs_scale": self.epochs_scale,
            "settings": self.settings.as_dict(),
        }


def total_epochs(settings: Settings | BaselineSettings) -> int:
    """Of all phases together."""
    return sum(getattr(settings, phase) for phase in PHASES)


def read_values(path: Path, row: Row) -> dict[str, Any]:
    """The settings in a file by name, model and data left out."""
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(
            f"cannot read {path}: {error}; --configs names another folder, without it those of bayesprune are taken"
        ) from error
    if not isinstance(values, dict):
        raise SettingsError(f"{path} must hold `name: value` lines, found a {type(values).__name__}")
    for key, expected in (("model", row.model), ("data", row.data)):
        if values.pop(key, expected) != expected:
            raise SettingsError(f"{path} must have {key}: {expected}, which is that of the row {row.name}")
    return values


def scaled(settings: SettingsT, scale: float) -> SettingsT:
    """Fewer epochs, but at least one in every phase that has any."""
    if not 0 < scale <= 1:
        raise SettingsError(f"epochs_scale must be above 0 and at most 1, got {scale}; try 0.02")
    fewer: dict[str, Any] = {}
    for phase in PHASES:
        epochs = getattr(settings, phase)
        fewer[phase] = max(1, round(scale * epochs)) if epochs else 0
    return dataclasses.replace(settings, **fewer)


def check_known(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Raise SettingsError where a name is not known."""
    for one in given:
        if one not in known:
            raise SettingsError(f"unknown {what} {one!r}; choose from {', '.join(known)}")
