"""The jobs of the study: every setting, a file ROW/NAME.yaml, with every seed."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from bayesprune.reproduce.jobs import Job, Row, check_known, read_values, scaled
from bayesprune.reproduce.methods import OURS
from bayesprune.reproduce.study.families import FAMILIES, family_of
from bayesprune.turbo import PRESETS, Settings, SettingsError

BASE: Final = "base"  # the file whose values all settings of a row begin with
IDENTITY: Final = ("setting", "title", "preset")


@dataclass(frozen=True, kw_only=True)
class StudyJob(Job):
    """A setting of the study.  preset: the name of the preset that it is based on, if any."""

    by_layer: ClassVar[bool] = True

    setting: str
    title: str
    preset: str | None

    @property
    def identity(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in IDENTITY}

    @property
    def name(self) -> str:
        return f"{self.setting}-{self.seed}"


@dataclass(frozen=True)
class StudyPlan:
    """What there is to run.

    jobs: those of the first seed first, by family.  waiting: settings that cannot run yet, and what they lack.
    """

    jobs: list[StudyJob]
    waiting: dict[str, str]


def setting_names(row: Row, configs: Path) -> list[str]:
    """Of all settings of a row, in alphabetical order."""
    names = sorted(path.stem for path in (configs / row.name).glob("*.yaml") if path.stem != BASE)
    if not names:
        raise SettingsError(
            f"{configs / row.name} holds no settings; --configs names another folder, without it those of bayesprune "
            "are taken"
        )
    return names


def study_plan(
    row: Row, names: Sequence[str] | None, seeds: Iterable[int], configs: Path, *, epochs_scale: float = 1.0
) -> StudyPlan:
    """The jobs of these settings, None for all.  configs: the folder with ROW/NAME.yaml."""
    known = setting_names(row, configs)
    check_known("setting", names or (), known)
    waiting: dict[str, str] = {}
    resolved: list[tuple[str, str, str | None, Settings]] = []
    for name in known if names is None else [one for one in known if one in names]:
        values = read_values(configs / row.name / f"{name}.yaml", row)
        title, preset = values.pop("title", name), values.pop("preset", None)
        if preset is not None and preset not in PRESETS:
            waiting[name] = f"the preset {preset!r} is not there yet, only {', '.join(PRESETS)}"
        else:
            resolved.append((name, title, preset, _settings(row, configs, name, preset, values)))
    order = list(FAMILIES)  # the irregular networks first: all others are compared with them
    resolved.sort(key=lambda one: order.index(family_of(one[3].as_dict(), one[2])))
    jobs = []
    for seed in seeds:
        for name, title, preset, settings in resolved:
            own = dataclasses.replace(settings, seed=seed)
            own = own if epochs_scale == 1 else scaled(own, epochs_scale)
            jobs.append(StudyJob(row, OURS, seed, own, epochs_scale, setting=name, title=title, preset=preset))
    return StudyPlan(jobs, waiting)


def _settings(row: Row, configs: Path, name: str, preset: str | None, values: dict[str, Any]) -> Settings:
    """base.yaml, then the preset, then the file of the setting, later ones winning."""
    path = configs / row.name / f"{BASE}.yaml"
    base = read_values(path, row) if path.exists() else {}
    try:
        return Settings.from_dict(base | (PRESETS[preset] if preset else {}) | values)
    except SettingsError as error:
        raise SettingsError(f"{path.with_stem(name)}: {error}") from error
