"""What there is to run: a job for every method, protocol and seed of a row, with all its settings."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from bayesprune import baselines
from bayesprune.baselines import BaselineSettings, recipe
from bayesprune.baselines.recipes import Protocol
from bayesprune.reproduce.paper import TABLE2
from bayesprune.turbo import PRESETS, Settings, SettingsError

PROTOCOLS: Final[tuple[Protocol, ...]] = ("best", "paper")
UNPRUNED, OURS, PAPER_PRIOR = "unpruned", "ours", "ours-paper-prior"
METHODS: Final[tuple[str, ...]] = (UNPRUNED, OURS, PAPER_PRIOR, *baselines.METHODS)
PHASES: Final = ("warmup_epochs", "prune_epochs", "finetune_epochs")


@dataclass(frozen=True)
class Row:
    """A row of Table II: a network and its data.  keep_nonzero, keep_macs: shares that magnitude and group-norm keep.

    These two have no line in the table and are asked for the size of the paper's network.
    """

    name: str
    title: str
    model: str
    data: str
    keep_nonzero: float
    keep_macs: float


def _row(name: str, title: str, model: str, data: str) -> Row:
    proposed = TABLE2[name]["ours"]
    return Row(name, title, model, data, proposed.nonzero / 100, 1 - proposed.macs_removed / 100)


ROWS: Final[dict[str, Row]] = {
    "lenet5": _row("lenet5", "LeNet-5 on Fashion-MNIST", "lenet5", "fashion-mnist"),
    "alexnet": _row("alexnet", "AlexNet-small on CIFAR-10", "alexnet-small", "cifar10"),
    "vgg11": _row("vgg11", "VGG-11 on CIFAR-100", "vgg11", "cifar100"),
    "digits": Row("digits", "LeNet-5 on the embedded digits, not in the paper", "lenet5", "digits", 0.1, 0.5),
}


@dataclass(frozen=True)
class Job:
    """One network to train, prune, fine-tune and evaluate.  epochs_scale: not 1 for trials."""

    row: Row
    method: str
    protocol: Protocol
    seed: int
    settings: Settings | BaselineSettings
    epochs_scale: float = 1.0

    @property
    def name(self) -> str:
        """METHOD-PROTOCOL-SEED."""
        return f"{self.method}-{self.protocol}-{self.seed}"

    @property
    def epochs(self) -> int:
        """Of all phases together."""
        return sum(getattr(self.settings, phase) for phase in PHASES)


def jobs(
    row: Row,
    methods: Sequence[str],
    protocols: Sequence[str],
    seeds: Iterable[int],
    configs: Path,
    *,
    epochs_scale: float = 1.0,
) -> list[Job]:
    """All jobs, those of the first seed first, so that a whole table is there early.

    configs: the folder with ROW-ours-PROTOCOL.yaml, whose epochs all methods get.
    The paper's own prior is there under the paper's protocol only: it is that protocol's method to the letter.
    """
    _check_known("method", methods, METHODS)
    _check_known("protocol", protocols, PROTOCOLS)
    if not 0 < epochs_scale <= 1:
        raise SettingsError(f"epochs_scale must be above 0 and at most 1, got {epochs_scale}; try 0.02")
    found: list[Job] = []
    chosen = [one for one in PROTOCOLS if one in protocols]
    ours = {protocol: read_ours(row, protocol, configs) for protocol in chosen}
    for seed in seeds:
        for protocol in chosen:
            for method in (one for one in METHODS if one in methods):
                if method == PAPER_PRIOR and protocol != "paper":
                    continue
                settings = dataclasses.replace(settings_of(row, method, protocol, ours[protocol]), seed=seed)
                if epochs_scale != 1:
                    settings = _scaled(settings, epochs_scale)
                found.append(Job(row, method, protocol, seed, settings, epochs_scale))
    return found


def read_ours(row: Row, protocol: str, configs: Path) -> Settings:
    """The settings of `ours`, from its file."""
    path = configs / f"{row.name}-ours-{protocol}.yaml"
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(
            f"cannot read {path}: {error}; name the folder of configs/table2 in the repository with --configs"
        ) from error
    if not isinstance(values, dict):
        raise SettingsError(f"{path} must hold `name: value` lines, found a {type(values).__name__}")
    for key, expected in (("model", row.model), ("data", row.data)):
        if values.pop(key, expected) != expected:
            raise SettingsError(f"{path} must have {key}: {expected}, which is that of the row {row.name}")
    return Settings.from_dict(values)


def settings_of(row: Row, method: str, protocol: Protocol, ours: Settings) -> Settings | BaselineSettings:
    """The settings of a method: as many epochs, the same validation split and, with `paper`, fine-tuning as `ours`."""
    if method == OURS:
        return ours
    if method == PAPER_PRIOR:
        return _paper_prior(ours)
    if method == UNPRUNED:
        plain = recipe("magnitude", protocol, row.model)  # how the network is trained where no method interferes
        total = _total(ours)
        return dataclasses.replace(
            plain, warmup_epochs=total, prune_epochs=0, finetune_epochs=0, validation=ours.validation
        )
    settings = recipe(method, protocol, row.model)
    values: dict[str, Any] = {"validation": ours.validation}
    if method == "magnitude":
        values["target_nonzero"] = row.keep_nonzero
    if method == "group-norm":
        values["target_macs"] = row.keep_macs
    values |= dict(zip(PHASES, _phases(settings, method, protocol, ours), strict=True))
    return dataclasses.replace(settings, **values)


def _phases(settings: BaselineSettings, method: str, protocol: Protocol, ours: Settings) -> list[int]:
    """Epochs of the three phases, as many together as those of `ours`."""
    total, finetune = _total(ours), ours.finetune_epochs
    if method == "snip":  # needs no warm-up: the dense network to compare with is a job of its own
        return [0, total - finetune if protocol == "paper" else total, 0]
    given = [getattr(settings, phase) for phase in PHASES]
    if protocol == "paper":
        return [*shared(total - finetune, given[:2]), finetune]
    return shared(total, given)


def shared(total: int, parts: Sequence[int]) -> list[int]:
    """Whole numbers in the proportions of `parts` whose sum is `total`."""
    ends = [round(total * sum(parts[: i + 1]) / sum(parts)) for i in range(len(parts))]
    return [end - begin for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def _paper_prior(ours: Settings) -> Settings:
    """Algorithm 1 to the letter (preset `paper`); the network, its data and the epochs are those of `ours`."""
    preset = Settings.from_dict(PRESETS["paper"])
    kept = ("batch_size", "finetune_epochs", "augment", "validation")
    return dataclasses.replace(
        preset,
        prune_epochs=_total(ours) - ours.finetune_epochs - preset.warmup_epochs,
        **{name: getattr(ours, name) for name in kept},
    )


def _total(settings: Settings) -> int:
    return sum(getattr(settings, phase) for phase in PHASES)


def _scaled(settings: Settings | BaselineSettings, scale: float) -> Settings | BaselineSettings:
    """Fewer epochs, but at least one in every phase that has any."""
    fewer: dict[str, Any] = {}
    for phase in PHASES:
        epochs = getattr(settings, phase)
        fewer[phase] = max(1, round(scale * epochs)) if epochs else 0
    return dataclasses.replace(settings, **fewer)


def _check_known(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    for one in given:
        if one not in known:
            raise SettingsError(f"unknown {what} {one!r}; choose from {', '.join(known)}")
