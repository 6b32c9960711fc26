"""A run folder or an artefact, whichever a person names."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune import artefact, models
from bayesprune.artefact import Artefact, ArtefactError
from bayesprune.runs import RunError, load_newest, read_config
from bayesprune.runs.disk_errors import reading, resume_command
from bayesprune.runs.folder import NETWORK
from bayesprune.surgery import shrink


@dataclass(frozen=True)
class Source:
    """What was found.

    path: as it was given.  folder: the run folder, None for a file.  plan: the config of the run, or what the file
    holds of it.  file: the artefact; None in a run that has none (yet).
    """

    path: Path
    folder: Path | None
    plan: dict[str, Any]
    file: Artefact | None

    def text(self, key: str) -> str | None:
        """The model or the data set by name; a file may hold anything or nothing."""
        value = self.plan.get(key)
        return value if isinstance(value, str) else None

    @property
    def artefact(self) -> Artefact:
        """The artefact, or RunError that says how to get it."""
        if self.file is None:
            raise RunError(
                f"{self.path} holds no {NETWORK}: it is not finished, or older than this file; "
                f"make it with: {resume_command(self.path)}"
            )
        return self.file

    def network(self, device: torch.device | str = "cpu") -> nn.Module:
        """The smaller network."""
        return artefact.load(self.artefact.path, device=device)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        shape = self.artefact.example_shape
        if not shape or not all(type(one) is int and one > 0 for one in shape):
            raise RunError(
                f"{self.artefact.path} does not say the shape of an input; "
                "save it again with artefact.save(..., example_shape=...)"
            )
        return tuple(shape)

    @property
    def example(self) -> Tensor:
        """Two inputs, (2, ...), all zero."""
        return torch.zeros(2, *self.input_shape)

    def fresh_dense(self) -> nn.Module | None:
        """A new network of the same name and size as the dense one, None where that is not known."""
        name, classes = self.text("model"), self.artefact.classes
        if name not in models.MODELS or not classes:
            return None
        try:
            return models.create(name, self.input_shape, len(classes), generator=torch.Generator().manual_seed(0))
        except ValueError:
            return None

    def dense(self) -> tuple[nn.Module | None, str]:
        """The dense network, None where it is not known, and what it is, in words."""
        network = self.fresh_dense()
        if network is None:
            return None, "the dense network is not known: only the smaller one is measured"
        state = load_newest(self.folder)[0] if self.folder is not None else None
        if state is None or not state["unpruned_weights"]:
            return network, f"dense is a new {self.text('model')}: the same work as the unpruned one, other weights"
        network.load_state_dict(state["unpruned_weights"])
        return network, "dense is the network of this run before pruning"

    def rounded(self, multiple: int) -> nn.Module:
        """The smaller network with widths rounded up to a multiple; only a run still has the dead units for that."""
        network = self.fresh_dense()
        state = load_newest(self.folder)[0] if self.folder is not None else None
        if network is None or state is None or not state["masks"]:
            raise RunError(f"{self.path} has no dead units to keep; --multiple needs the run folder, not a file")
        network.load_state_dict(state["model"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what stays dense was said when the run ended
            return shrink(network.eval(), state["masks"], self.example, multiple=multiple)


def open_source(path: Path) -> Source:
    """What `path` names, or RunError."""
    with reading(path):
        if path.is_dir():
            plan = read_config(path)
            return Source(path, path, plan, _artefact_of_run(path))
        if not path.exists():
            raise RunError(
                f"there is no {path}; give a run folder, such as runs/lenet5-digits-1, or the {NETWORK} in one"
            )
        try:
            found = artefact.read(path)
        except ArtefactError as error:
            raise RunError(f"{path} is neither a run folder nor an artefact: {error}") from error
    return Source(path, None, found.config or {}, found)


def _artefact_of_run(folder: Path) -> Artefact | None:
    file = folder / NETWORK
    try:
        return artefact.read(file) if file.exists() else None
    except ArtefactError as error:
        raise RunError(f"{error}; write it again with: {resume_command(folder)}") from error
