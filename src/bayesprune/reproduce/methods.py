"""The jobs of Table II: every method, protocol and seed of a row, with all its settings."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from bayesprune import baselines
from bayesprune.baselines import BaselineSettings, recipe, recipes
from bayesprune.reproduce.jobs import PHASES, Job, Row, check_known, read_values, scaled, total_epochs
from bayesprune.turbo import PRESETS, Settings, SettingsError

Protocol = Literal["best", "long", "paper"]
PROTOCOLS: Final[tuple[Protocol, ...]] = ("best", "long", "paper")
UNPRUNED, OURS, OURS_MACS, PAPER_PRIOR = "unpruned", "ours", "ours-macs", "ours-paper-prior"
OURS_DISTILLED, OURS_MACS_DISTILLED = "ours-distilled", "ours-macs-distilled"
GROUP_NORM_DISTILLED, GROUP_NORM_SMALL = "group-norm-distilled", "group-norm-small"
METHODS: Final[tuple[str, ...]] = (
    *(UNPRUNED, OURS, OURS_MACS, OURS_DISTILLED, OURS_MACS_DISTILLED, PAPER_PRIOR),
    *(*baselines.METHODS, GROUP_NORM_SMALL, GROUP_NORM_DISTILLED),
)
# Where single weights hardly matter, to be compared with methods that remove units only; group norm with as few MACs as
# that, where `ours` has more; Algorithm 1 to the letter; and what fine-tuning gains from the unpruned network as a
# teacher, for ours and for another method, on the rows that have the files ROW-ours-distilled-best.yaml and
# ROW-ours-macs-distilled-best.yaml.  `long` is `best` with more epochs, on the rows that have a file for it.
UNDER: Final[dict[str, tuple[Protocol, ...]]] = {
    UNPRUNED: PROTOCOLS,
    OURS_MACS: ("best",),
    PAPER_PRIOR: ("paper",),
    OURS_DISTILLED: ("best", "long"),
    OURS_MACS_DISTILLED: ("best",),
    GROUP_NORM_SMALL: ("best",),
    GROUP_NORM_DISTILLED: ("best", "long"),
}
LEADERS: Final[dict[Protocol, str]] = {"best": OURS, "long": OURS_DISTILLED, "paper": OURS}  # all get their epochs
RECIPES: Final[dict[Protocol, recipes.Protocol]] = {"best": "best", "long": "best", "paper": "paper"}
DISTILLED: Final = (OURS_DISTILLED, OURS_MACS_DISTILLED, GROUP_NORM_DISTILLED)
WITH_A_FILE: Final = (OURS_MACS, OURS_DISTILLED, OURS_MACS_DISTILLED)
BASELINE_OF: Final = {GROUP_NORM_SMALL: "group-norm", GROUP_NORM_DISTILLED: "group-norm"}
TEACHER: Final[dict[str, Any]] = {"distil": 0.7, "distil_temperature": 1.0, "distil_from": "finetune"}


@dataclass(frozen=True, kw_only=True)
class MethodJob(Job):
    """A method under a protocol."""

    protocol: Protocol

    @property
    def identity(self) -> dict[str, Any]:
        return {"protocol": self.protocol}

    @property
    def name(self) -> str:
        return f"{self.method}-{self.protocol}-{self.seed}"

    @property
    def algorithm(self) -> str:
        return BASELINE_OF.get(self.method, self.method)


def jobs(
    row: Row,
    methods: Sequence[str],
    protocols: Sequence[str],
    seeds: Iterable[int],
    configs: Path,
    *,
    epochs_scale: float = 1.0,
) -> list[MethodJob]:
    """All jobs, those of the first seed first, so that a whole table is there early.

    configs: the folder with ROW-ours-PROTOCOL.yaml, whose epochs all methods of that protocol get, and
    ROW-ours-macs-best.yaml.  Rows where distillation is looked at have ROW-ours-distilled-best.yaml and
    ROW-ours-macs-distilled-best.yaml, those that are trained for longer as well ROW-ours-distilled-long.yaml.
    """
    check_known("method", methods, METHODS)
    check_known("protocol", protocols, PROTOCOLS)
    if not any(is_under(method, protocol) for method in methods for protocol in protocols):
        raise SettingsError(
            f"no method of {', '.join(methods) or 'none'} is part of the protocol {', '.join(protocols) or 'none'}; "
            f"there are {_by_protocol()}"
        )
    found: list[MethodJob] = []
    chosen = [one for one in PROTOCOLS if one in protocols and (one != "long" or _is_long(row, configs))]
    ours = {protocol: read_ours(row, protocol, configs, LEADERS[protocol]) for protocol in chosen}
    for seed in seeds:
        for protocol in chosen:
            for method in (one for one in METHODS if one in methods):
                if not is_under(method, protocol) or not is_part(method, protocol, row, configs):
                    continue
                if method in WITH_A_FILE:
                    settings: Settings | BaselineSettings = read_ours(row, protocol, configs, method)
                else:
                    settings = settings_of(row, method, protocol, ours[protocol])
                settings = dataclasses.replace(settings, seed=seed)
                if epochs_scale != 1:
                    settings = scaled(settings, epochs_scale)
                found.append(MethodJob(row, method, seed, settings, epochs_scale, protocol=protocol))
    if not found:
        raise SettingsError(
            f"no method of {', '.join(methods)} is part of the row {row.name} under {', '.join(protocols)}: it has no "
            "file for them"
        )
    return found


def read_ours(row: Row, protocol: str, configs: Path, method: str = OURS) -> Settings:
    """The settings of `ours` or one of its variants, from its file."""
    return Settings.from_dict(read_values(_file(row, protocol, configs, method), row))


def is_under(method: str, protocol: str) -> bool:
    """Whether a protocol has a method."""
    return protocol in UNDER.get(method, ("best", "paper"))


def is_part(method: str, protocol: str, row: Row, configs: Path) -> bool:
    """Whether a method is part of a row; those with a teacher are where ours with one has a file."""
    if method == GROUP_NORM_SMALL:
        return row.keep_macs_small is not None
    ours = method if method in WITH_A_FILE else OURS_DISTILLED
    return method not in DISTILLED or _file(row, protocol, configs, ours).exists()


def _is_long(row: Row, configs: Path) -> bool:
    return _file(row, "long", configs, LEADERS["long"]).exists()


def _file(row: Row, protocol: str, configs: Path, method: str) -> Path:
    return configs / f"{row.name}-{method}-{protocol}.yaml"


def settings_of(row: Row, method: str, protocol: Protocol, ours: Settings) -> Settings | BaselineSettings:
    """The settings of a method: as many epochs, the same validation split and, with `paper`, fine-tuning as `ours`."""
    if method == OURS:
        return ours
    if method == PAPER_PRIOR:
        return _paper_prior(ours)
    if method == UNPRUNED:
        total = total_epochs(ours)
        return dataclasses.replace(
            recipe(UNPRUNED, RECIPES[protocol], row.model),
            warmup_epochs=total,
            prune_epochs=0,
            finetune_epochs=0,
            validation=ours.validation,
        )
    values: dict[str, Any] = {"validation": ours.validation} | (TEACHER if method in DISTILLED else {})
    keep_macs = row.keep_macs_small if method == GROUP_NORM_SMALL else row.keep_macs
    method = BASELINE_OF.get(method, method)
    settings = recipe(method, RECIPES[protocol], row.model)
    if method == "magnitude":
        values["target_nonzero"] = row.keep_nonzero
    if method == "group-norm":
        values["target_macs"] = keep_macs
    values |= dict(zip(PHASES, _phases(settings, method, protocol, ours), strict=True))
    return dataclasses.replace(settings, **values)


def _by_protocol() -> str:
    return "; ".join(f"under {one}: {', '.join(m for m in METHODS if is_under(m, one))}" for one in PROTOCOLS)


def _phases(settings: BaselineSettings, method: str, protocol: Protocol, ours: Settings) -> list[int]:
    """Epochs of the three phases, as many together as those of `ours`."""
    total, finetune = total_epochs(ours), ours.finetune_epochs
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
    kept = ("batch_size", "finetune_epochs", "augment", "label_smoothing", "bfloat16", "validation")
    return dataclasses.replace(
        preset,
        prune_epochs=total_epochs(ours) - ours.finetune_epochs - preset.warmup_epochs,
        **{name: getattr(ours, name) for name in kept},
    )
