"""What is known of a run, the file of a network or a frontier; what is missing is said, not guessed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesprune import artefact, frontier, models
from bayesprune.artefact import Artefact, ArtefactError
from bayesprune.runs import (
    Messages,
    RunError,
    load_newest,
    read_config,
    read_history,
    read_messages,
    read_summary,
)
from bayesprune.runs.disk_errors import reading
from bayesprune.runs.folder import NETWORK
from bayesprune.runs.plain_json import read_json
from bayesprune.storage import Integers

BENCH = "bench.json"
FRONTIER = "frontier.json"
WEIGHT = ".weight"
PICKED_DROP = 0.5  # points of validation accuracy that the network shown of a frontier may lose
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Layer:
    """The weights of a layer, (out, in, *kernel).

    after: dead ones are zero; of the dense size in a run, without dead units in a file.  live: bool, of the same shape.
    before: before pruning, None where it is not kept.  dense_shape: before surgery, None where it is not known.
    """

    name: str
    after: Tensor = field(repr=False)
    live: Tensor = field(repr=False)
    before: Tensor | None = field(repr=False, default=None)
    dense_shape: tuple[int, ...] | None = None

    @property
    def weights(self) -> int | None:
        """How many the dense layer has."""
        return math.prod(self.dense_shape) if self.dense_shape is not None else None

    @property
    def alive(self) -> int:
        """How many weights live."""
        return int(self.live.sum())

    @property
    def density(self) -> float | None:
        """The share of the dense layer's weights that live."""
        return self.alive / self.weights if self.weights else None

    @property
    def outputs(self) -> int:
        """Units with at least one live weight."""
        return int(self.live.flatten(1).any(1).sum())

    @property
    def inputs(self) -> int:
        """Inputs with at least one live weight."""
        return int(self.live.transpose(0, 1).flatten(1).any(1).sum())


@dataclass(frozen=True)
class Run:
    """What is known of a network.

    name: to tell it from others.  config: how it was made.  metrics: what was measured.  history: a row per epoch.
    latency: what `bayesprune.latency` wrote.  messages: by outer iteration.  arrays: the bits of the tensors in its
    file.  missing: sentences.
    """

    path: Path
    name: str
    config: dict[str, Any]
    metrics: dict[str, Any]
    history: list[dict[str, Any]] = field(repr=False, default_factory=list)
    layers: list[Layer] = field(repr=False, default_factory=list)
    latency: dict[str, Any] | None = field(repr=False, default=None)
    messages: list[Messages] = field(repr=False, default_factory=list)
    file: Artefact | None = field(repr=False, default=None)
    arrays: dict[str, Integers] = field(repr=False, default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """Model and data in words."""
        model, data = (self.config.get(key) for key in ("model", "data"))
        named = model if isinstance(model, str) else "a network"
        return f"{named} on {data}" if isinstance(data, str) else named


@dataclass(frozen=True)
class Frontier:
    """A frontier folder: plan, a record for every member, and why no network of it is shown, if none is."""

    path: Path
    name: str
    plan: dict[str, Any]
    members: list[dict[str, Any]] = field(repr=False)
    finished: bool
    missing: tuple[str, ...] = ()


def read_sources(paths: Sequence[Path]) -> tuple[list[Run], list[Frontier]]:
    """All that `paths` name: run folders, files of networks and frontier folders, or RunError.

    Of a frontier, the smallest network within half a point of the best is read as well.
    """
    runs: list[Run] = []
    frontiers: list[Frontier] = []
    for path in paths:
        if path.is_dir() and (path / FRONTIER).exists():
            found, picked = _read_frontier(path)
            frontiers.append(found)
            runs += picked
        elif path.is_dir():
            runs.append(_read_run(path))
        else:
            runs.append(_read_file(path))
    return _distinct(runs), frontiers


def number(values: Mapping[str, Any], key: str) -> float | None:
    """A finite number under a key; files may hold anything."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _read_run(path: Path) -> Run:
    config = read_config(path)
    missing: list[str] = []
    summary = read_summary(path)
    if summary is None:
        missing.append("It has no summary: the run is not finished, or older than this version.")
    file, arrays = None, {}
    with reading(path):
        if (path / NETWORK).exists():
            try:
                file, arrays = artefact.read(path / NETWORK), artefact.read_arrays(path / NETWORK)
            except ArtefactError as error:
                missing.append(f"Its {NETWORK} cannot be read: {error}.")
        else:
            missing.append(f"It has no {NETWORK}: the sizes in other formats are not known.")
    history = read_history(path)
    if not history:
        missing.append("It has no history: how accuracy and size went is not known.")
    layers = _layers_of_checkpoint(path, missing) or (_layers_of_file(file, arrays) if file is not None else [])
    try:
        messages = read_messages(path)
    except RunError as error:
        messages = []
        missing.append(f"Its messages cannot be read: {error}.")
    metrics = summary if summary is not None else (file.metrics or {}) if file is not None else {}
    return Run(
        path,
        path.resolve().name,
        config,
        metrics,
        history,
        layers,
        _latency(path / BENCH) or _plain(metrics.get("latency")),
        messages,
        file,
        arrays,
        tuple(missing),
    )


def _read_file(path: Path) -> Run:
    with reading(path):
        if not path.exists():
            raise RunError(f"there is no {path}; give a run folder, a frontier folder or the {NETWORK} of a network")
        try:
            file, arrays = artefact.read(path), artefact.read_arrays(path)
        except ArtefactError as error:
            raise RunError(f"{path} is neither a run folder nor an artefact: {error}") from error
    config, metrics = file.config or {}, file.metrics or {}
    method = config.get("method")
    beside = _plain_file(path.with_suffix(".json"))
    return Run(
        path,
        method if isinstance(method, str) else path.stem if path.name != NETWORK else path.resolve().parent.name,
        config,
        metrics,
        layers=_layers_of_file(file, arrays),
        latency=_latency(path.with_suffix(f".{BENCH}"))
        or _plain(metrics.get("latency"))
        or _plain(beside.get("latency") if beside else None),
        file=file,
        arrays=arrays,
        missing=("It is a file, not a run folder: history, messages and the weights before pruning are not in it.",),
    )


def _read_frontier(path: Path) -> tuple[Frontier, list[Run]]:
    content = frontier.read_frontier(path)
    plan, members = content["plan"], content["members"]
    found = Frontier(path, path.resolve().name, plan, members, bool(content.get("finished")))
    try:
        record = members[frontier.pick(members, PICKED_DROP)]
        picked = _read_file(path / str(record["file"]))
    except (RunError, KeyError, TypeError, IndexError) as error:
        return replace(found, missing=(f"No network of {found.name} is shown: {error}.",)), []
    validation = record.get("validation")
    unpruned = record.get("validation_unpruned")
    score = dict(picked.metrics)
    if isinstance(validation, dict) and isinstance(unpruned, dict):
        score |= {"accuracy": validation.get("accuracy"), "accuracy_unpruned": unpruned.get("accuracy")}
        score["accuracy_split"] = "validation"
    return found, [replace(picked, name=f"{found.name}, member {record.get('number')}", metrics=score)]


def _layers_of_checkpoint(path: Path, missing: list[str]) -> list[Layer]:
    """The layers of a run at their full size, in the order of the network."""
    try:
        state, _ = load_newest(path)
    except RunError as error:
        missing.append(f"Its checkpoint cannot be read: {error}.")
        return []
    if state is None or not isinstance(state.get("model"), dict):
        missing.append("It has no checkpoint: dead units and the weights before pruning are not known.")
        return []
    masks, before = state.get("masks") or {}, state.get("unpruned_weights") or {}
    if not masks:
        missing.append("Its weights have not been decided on yet: the matrices show the last checkpoint.")
    if not before:
        missing.append("Its checkpoint does not hold the weights before pruning.")
    names = list(masks) or [key.removesuffix(WEIGHT) for key, one in state["model"].items() if _is_weight(key, one)]
    layers = []
    for name in names:
        weight = state["model"].get(name + WEIGHT)
        if weight is None:
            missing.append(f"The checkpoint has no weights of {name}.")
            continue
        live = masks[name].bool() if name in masks else weight != 0
        after = weight.float() * live
        first = before.get(name + WEIGHT)
        layers.append(Layer(name, after, live, None if first is None else first.float(), tuple(weight.shape)))
    return layers


def _layers_of_file(file: Artefact, arrays: Mapping[str, Integers]) -> list[Layer]:
    """The layers of the smaller network, in the order of its modules where that is known."""
    dense = _dense_shapes(file)
    layers = {}
    for key, array in arrays.items():
        kind = FLOATS.get(file.tensors[key].values or file.tensors[key].dtype)
        if kind is not None and key.endswith(WEIGHT) and array.ndim > 1:
            name = key.removesuffix(WEIGHT)
            weight = torch.from_numpy(array).view(kind).float()
            layers[name] = Layer(name, weight, weight != 0, dense_shape=dense.get(name))
    modules = (file.architecture or {}).get("modules")
    order = [name for name in modules if name in layers] if isinstance(modules, dict) else []
    return [layers[name] for name in dict.fromkeys([*order, *layers])]


def _dense_shapes(file: Artefact) -> dict[str, tuple[int, ...]]:
    """The shapes of a dense network of the same name; none where that is not known."""
    name, shape, classes = (file.config or {}).get("model"), file.example_shape, file.classes
    if name not in models.MODELS or not classes or not shape or not all(type(one) is int for one in shape):
        return {}
    try:
        network = models.create(name, shape, len(classes), generator=torch.Generator().manual_seed(0))
    except (ValueError, RuntimeError):
        return {}
    return {key.removesuffix(WEIGHT): tuple(one.shape) for key, one in network.named_parameters() if one.ndim > 1}


def _is_weight(key: str, value: object) -> bool:
    return key.endswith(WEIGHT) and isinstance(value, Tensor) and value.ndim > 1


def _latency(path: Path) -> dict[str, Any] | None:
    return _plain(_plain_file(path))


def _plain(value: object) -> dict[str, Any] | None:
    """What can be a measurement of speed."""
    return value if isinstance(value, dict) and isinstance(value.get("rows"), list) else None


def _plain_file(path: Path) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except (OSError, RunError):
        return None


def _distinct(runs: Sequence[Run]) -> list[Run]:
    """The same runs, with names that differ."""
    seen: dict[str, int] = {}
    named = []
    for run in runs:
        seen[run.name] = seen.get(run.name, 0) + 1
        times = seen[run.name]
        named.append(run if times == 1 else replace(run, name=f"{run.name} ({times})"))
    return named
