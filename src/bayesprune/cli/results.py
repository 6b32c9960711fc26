"""The commands that look at a finished network: evaluate, info."""

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from bayesprune import data
from bayesprune.artefact import Artefact, read_arrays
from bayesprune.cli.networks import device_by_name, network_of_plan
from bayesprune.cli.sources import Source, open_source
from bayesprune.cli.storage_table import storage_table
from bayesprune.cli.words import in_words, printable
from bayesprune.likelihoods import Classification
from bayesprune.runs import RunError, load_newest, read_summary
from bayesprune.turbo.training import evaluate as evaluate_network

RunOrFile = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|FILE",
        help="A run folder, or the file of a network, such as network.safetensors.",
        show_default=False,
    ),
]


def evaluate(
    source: RunOrFile,
    data_set: Annotated[
        str | None, typer.Option("--data", help=f"Other test data than the run's: {', '.join(data.DATA_SETS)}.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Look for the data in this folder first.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
) -> None:
    """Load the smaller network and measure it on the test data again.

    The network comes from its file alone: neither its class nor the training is needed.

    Example: bayesprune evaluate runs/lenet5-digits-1
    """
    found = open_source(source)
    place = device_by_name(device)
    if data_set is not None and data_set not in data.DATA_SETS:
        raise typer.BadParameter(f"{data_set!r} is not one of {', '.join(data.DATA_SETS)}", param_hint="--data")
    name = data_set or found.text("data")
    if name not in data.DATA_SETS:
        raise RunError(f"{source} does not say on which data; add --data with one of {', '.join(data.DATA_SETS)}")
    loaded = data.load(name, data_dir, device=place)
    if found.file is not None:
        check_fit(found, loaded)
        network = found.network(place)
    else:
        network = _masked_network(found, loaded, place)
    score = evaluate_network(network, Classification(), loaded.test)
    typer.echo(json.dumps({k: round(v, 6) for k, v in score.items()}))


def check_fit(found: Source, loaded: data.DataSet) -> None:
    """Raise RunError unless the data fit the network."""
    if found.input_shape != loaded.input_shape:
        raise RunError(
            f"{found.path} takes inputs of shape {found.input_shape}, {loaded.name} has {loaded.input_shape}; "
            "choose other data with --data"
        )
    classes = found.artefact.classes
    if classes and len(classes) != len(loaded.classes):
        raise RunError(
            f"{found.path} knows {len(classes)} classes, {loaded.name} has {len(loaded.classes)}; "
            "choose other data with --data"
        )


def _masked_network(found: Source, loaded: data.DataSet, place: torch.device) -> torch.nn.Module:
    """The network of a run without an artefact: from its checkpoint, with zeros in place."""
    state, _ = load_newest(found.path)
    if state is None or state["masks"] is None:
        raise RunError(
            f"{found.path} holds no compressed network yet; go on with: bayesprune compress --resume {found.path}"
        )
    network = network_of_plan(found.plan | {"weights": None}, loaded).to(place)
    network.load_state_dict(state["model"])
    return network


def info(
    source: RunOrFile,
    storage: Annotated[
        bool, typer.Option("--storage", help="Show the bytes of every layer in other formats as well.")
    ] = False,
) -> None:
    """Show what a run or a file holds: model, data, figures, structure, size, and what wrote it.

    Of a file only its description is read and its checksum is verified; no network is built.  With --storage its
    weights are read too, and a table compares the bytes they take: **dense**; **coo** and **csr** with int32 indices;
    **bsr** in blocks of 4, 8 and 16; a **bitmask**; and **clusters**, our own.

    Example: bayesprune info runs/lenet5-digits-1/network.safetensors
    """
    found = open_source(source)
    lines = [f"{found.text('model') or 'a network'} on {found.text('data') or 'data that are not named'}"]
    if found.folder is not None:
        summary = read_summary(found.folder)
        if summary is None:
            lines.append(f"not finished; go on with: bayesprune compress --resume {source}")
        else:
            lines.append(in_words(summary))
    elif found.file is not None and found.file.metrics:
        lines.append(_metrics(found.file.metrics))
    if found.file is not None:
        lines += _description(found.file)
    if storage:
        lines += ["", storage_table(found.artefact, read_arrays(found.artefact.path))]
    typer.echo(printable("\n".join(lines)))


def _metrics(metrics: dict[str, Any]) -> str:
    try:
        return in_words(metrics)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):  # the file may hold anything
        return "figures    not those of a run of bayesprune"


def _description(file: Artefact) -> list[str]:
    lines = [f"file       {file.path}, {file.size:,} bytes, {len(file.tensors)} tensors, stored as {file.storage}"]
    if file.example_shape:
        classes = f", {len(file.classes)} classes" if file.classes else ""
        lines.append(f"input      {' x '.join(map(str, file.example_shape))}{classes}")
    if file.architecture is not None:
        lines.append("loads      without its class: bayesprune.load(file)")
    else:
        lines.append(f"loads      only into an instance of its class, load(file, network=...): {file.note}")
    return [*lines, "written by " + ", ".join(f"{name} {number}" for name, number in file.versions.items())]
