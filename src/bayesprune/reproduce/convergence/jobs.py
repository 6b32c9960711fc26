"""The jobs of the study: every setting from every start, all with the same warm network, data and order of examples."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bayesprune.reproduce.jobs import Job, Row, check_known
from bayesprune.reproduce.methods import OURS, PAPER_PRIOR, read_ours, settings_of
from bayesprune.turbo import Settings, SettingsError

ITERATIONS: Final = 30
SEED: Final = 0  # of the network, the split and the order of examples; starts differ in the first pi_n only
FIRST: Final = 0  # the start that the control shares
NOISE: Final = 1e-4  # of the weights of the control, relative
IDENTITY: Final = ("setting", "title", "start", "noise", "iterations", "steps")

P01, P10, COUPLING = 0.1, 0.3, 0.5  # neighbours attract each other: J of the chain is 0.76
CHAIN: Final[Mapping[str, Any]] = {"p01": P01, "p10": P10}
ISING: Final[Mapping[str, Any]] = {"coupling": COUPLING}
HELD: Final[Mapping[str, Any]] = {"coupling": COUPLING, "weight_ramp": (0.0, 0.0), "unit_ramp": (0.0, 0.0)}
# Name -> title, whose settings it begins with, and what is other.
SETTINGS: Final[dict[str, tuple[str, str, Mapping[str, Any]]]] = {
    "paper": ("Algorithm 1, p01 0.3, p10 0.7", PAPER_PRIOR, {}),
    "paper-chain": (f"Algorithm 1, p01 {P01:g}, p10 {P10:g}", PAPER_PRIOR, CHAIN),
    "ours": ("ours, independent", OURS, {}),
    "ours-chain": (f"ours, p01 {P01:g}, p10 {P10:g}", OURS, CHAIN),
    "ours-ising": (f"ours, J {COUPLING:g}", OURS, ISING),
    "ours-ising-held": (f"ours, J {COUPLING:g}, no ramps", OURS, HELD),
}


@dataclass(frozen=True, kw_only=True)
class ConvergenceJob(Job):
    """A setting from one start.

    settings: their seed draws the first pi_n (Algorithm 1, line 1).  steps: of an outer iteration, None for an epoch.
    warm_up: how the network is trained that all jobs of a row begin with.
    noise: whether its weights are changed a little before the first step: a control, for what differs between starts.
    """

    setting: str
    title: str
    start: int
    noise: bool
    iterations: int
    steps: int | None
    warm_up: Settings

    @property
    def identity(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in IDENTITY}

    @property
    def name(self) -> str:
        return f"{self.setting}-{'noise' if self.noise else self.start}"


def convergence_jobs(
    row: Row,
    names: Sequence[str] | None,
    starts: Iterable[int],
    configs: Path,
    *,
    iterations: int = ITERATIONS,
    steps: int | None = None,
) -> list[ConvergenceJob]:
    """The jobs of these settings, None for all; those of the first start first, and a control with its pi_n at the end.

    configs: the folder with ROW-ours-best.yaml, whose ramps run over the outer iterations here.
    """
    check_known("setting", names or (), tuple(SETTINGS))
    if iterations < 2:
        raise SettingsError(f"iterations must be at least 2, got {iterations}; try {ITERATIONS}")
    if steps is not None and steps < 1:
        raise SettingsError(f"steps must be at least 1, got {steps}; leave it out for an epoch")
    ours = read_ours(row, "best", configs)
    found = []
    given = [(start, False) for start in starts]
    for start, noise in [*given, *((start, True) for start, _ in given if start == FIRST)]:
        for name in SETTINGS if names is None else [one for one in SETTINGS if one in names]:
            title, method, other = SETTINGS[name]
            base = settings_of(row, method, "best", ours)
            assert isinstance(base, Settings)
            changes: dict[str, Any] = {
                "warmup_epochs": 0,
                "prune_epochs": iterations,
                "finetune_epochs": 0,
                "random_start": True,
                "validation": ours.validation,
                "seed": start,
            }
            settings = dataclasses.replace(base, **changes | dict(other))
            own: dict[str, Any] = {"setting": name, "title": title, "start": start, "noise": noise}
            found.append(
                ConvergenceJob(row, method, SEED, settings, iterations=iterations, steps=steps, warm_up=ours, **own)
            )
    return found


def expected_jobs(
    row: Row, configs: Path, iterations: int, steps: int | None, rows: Iterable[Mapping[str, Any]]
) -> list[ConvergenceJob]:
    """The jobs that the present configuration has for these rows."""
    return convergence_jobs(row, None, starts_of(rows), configs, iterations=iterations, steps=steps)


def trial_of(row: Mapping[str, Any]) -> str:
    """What is unusual about the length of a row, for a headline; empty where it is a result."""
    if row["iterations"] == ITERATIONS and row["steps"] is None:
        return ""
    return f"trial with {row['iterations']} iterations" + (f" of {row['steps']} steps" if row["steps"] else "")


def starts_of(rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """The starts of rows."""
    return sorted({row["start"] for row in rows})
