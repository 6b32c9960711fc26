"""networks/NAME.json of every network, so that a study which was stopped goes on: what fits is kept."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayesprune.robustness.hardening import HardenSettings
from bayesprune.robustness.measuring import MeasureSettings
from bayesprune.runs import RunError
from bayesprune.runs.atomic import remove_temporary_files, write_atomically
from bayesprune.runs.disk_errors import starting
from bayesprune.runs.plain_json import read_json, to_json


@dataclass(frozen=True)
class Subject:
    """A network to study.

    name: of its line and its file.  method: how it was pruned, as far as known.  sha256: of its file.
    model, data: by name.  validation, split_seed: of the split that it was trained with, which its images are
    normalised by.  facts: what its file says about it.
    """

    name: str
    method: str
    sha256: str
    model: str | None
    data: str
    validation: float
    split_seed: int
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """What figures depend on, and what to say about them; plain JSON data."""
        split = {"validation": self.validation, "split_seed": self.split_seed}
        about = {"name": self.name, "method": self.method, "model": self.model, "data": self.data}
        return about | split | {"sha256": self.sha256, "facts": self.facts}


@dataclass(frozen=True)
class Plan:
    """What is asked for; hardening with 0 epochs: no adversarial fine-tuning."""

    measuring: MeasureSettings
    hardening: HardenSettings


class RecordFiles:
    """The folder of a study: networks/NAME.json, and NAME-hardened.safetensors after adversarial fine-tuning."""

    def __init__(self, output: Path) -> None:
        self.folder = output / "networks"

    def path(self, subject: Subject) -> Path:
        """The figures of a network."""
        return self.folder / f"{subject.name}.json"

    def hardened(self, subject: Subject) -> Path:
        """The network after adversarial fine-tuning."""
        return self.folder / f"{subject.name}-hardened.safetensors"

    def read(self, subject: Subject, plan: Plan) -> dict[str, Any]:
        """The parts of a record that are still right: `before`, and `after` with `history`.

        `before` is stale when the network's file, its data or what to measure have changed, `after` also when the
        settings of fine-tuning have, or the network is not there.  A damaged file has nothing.
        """
        path = self.path(subject)
        try:
            found = read_json(path)
        except (OSError, RunError):
            return {}
        expected = subject.as_dict() | {"settings": plan.measuring.as_dict()}
        known = ("sha256", "data", "validation", "split_seed", "settings")
        if not isinstance(found.get("before"), dict) or any(found.get(key) != expected[key] for key in known):
            return {}
        record = {"before": found["before"]}
        same = found.get("adversarial") == plan.hardening.as_dict() and self.hardened(subject).exists()
        if same and isinstance(found.get("after"), dict):
            record |= {key: found.get(key) for key in ("after", "history", "adversarial")}
        return record

    def write(self, subject: Subject, plan: Plan, parts: dict[str, Any]) -> dict[str, Any]:
        """Write and return the record of a network."""
        record = subject.as_dict() | {"settings": plan.measuring.as_dict()} | parts
        path = self.path(subject)
        with starting(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_temporary_files(path)
            write_atomically(path, [to_json(record, path, indent=1).encode() + b"\n"])
        return record
