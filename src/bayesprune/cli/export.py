"""The command `bayesprune export`: the smaller network for other programs."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from torch import Tensor, nn

from bayesprune.artefact import VALUES
from bayesprune.cli.results import RunOrFile
from bayesprune.cli.sources import Source, open_source
from bayesprune.cli.words import size_in_words
from bayesprune.export import ExportError, ExportReport, to_clusters, to_onnx, to_safetensors, to_torch_export
from bayesprune.runs.disk_errors import starting

ENDINGS = {"onnx": ".onnx", "torch-export": ".pt2", "safetensors": ".weights.safetensors"}
DENSE, CLUSTERS = "dense", "clusters"
CLUSTERS_ENDING = ".clusters.safetensors"


def export(
    source: RunOrFile,
    to: Annotated[str, typer.Option(help=f"The format: {', '.join(ENDINGS)}.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option(help="The file to write; by default beside the network.", show_default=False)
    ] = None,
    storage: Annotated[
        str, typer.Option(help="For safetensors: dense for any reader, clusters packed for bayesprune.load.")
    ] = "dense",
    values: Annotated[
        str | None,
        typer.Option(help=f"With clusters, round the weights to {' or '.join(VALUES)}.", show_default=False),
    ] = None,
) -> None:
    """Write the smaller network for other programs, and check that the file computes the same.

    **onnx** is read by ONNX Runtime, browsers and phones (needs `pip install 'bayesprune[onnx]'`); **torch-export**
    (.pt2) by PyTorch without this package; **safetensors** holds the weights alone, for those who have the network's
    code.  The batch size stays free.  With --storage clusters, safetensors is the smallest file there is: the whole
    network, its zeros left out, for bayesprune.load, without the settings and figures of the run; --values float16
    halves it again, and is not exact.

    The file appears only after it has been read back and has given the same outputs.

    Example: bayesprune export runs/lenet5-digits-1 --to onnx
    """
    if to not in ENDINGS:
        raise typer.BadParameter(f"{to!r} is not one of {', '.join(ENDINGS)}", param_hint="--to")
    _check_storage(to, storage, values)
    found = open_source(source)
    file = found.artefact.path
    path = output or file.with_name(file.stem + (CLUSTERS_ENDING if storage == CLUSTERS else ENDINGS[to]))
    if path.resolve() == file.resolve():
        raise ExportError(f"{path} is the network itself and would be overwritten; choose another --output")
    with starting(path):
        if storage == CLUSTERS:
            report = to_clusters(found.network(), found.example, path, values=values, classes=found.artefact.classes)
        else:
            report = _write(found.network(), found.example, path, to)
    typer.echo(report.in_words())
    dense = _dense_size(found, to)
    if dense is not None:
        how = "as dense safetensors" if storage == CLUSTERS else "the same way"
        typer.echo(f"size: {size_in_words(report.bytes, dense)}, exported {how}")
    typer.echo(f"written to {path}")


def _check_storage(to: str, storage: str, values: str | None) -> None:
    if storage not in (DENSE, CLUSTERS):
        raise typer.BadParameter(f"{storage!r} is not one of {DENSE}, {CLUSTERS}", param_hint="--storage")
    if storage == CLUSTERS and to != "safetensors":
        raise typer.BadParameter(f"{to} cannot hold clusters; use --to safetensors", param_hint="--storage")
    if values is not None and (values not in VALUES or storage != CLUSTERS):
        raise typer.BadParameter(
            f"{values!r} is not one of {', '.join(VALUES)}, with --storage {CLUSTERS}", param_hint="--values"
        )


def _write(network: nn.Module, example: Tensor, path: Path, to: str) -> ExportReport:
    if to == "onnx":
        return to_onnx(network, example, path)
    if to == "torch-export":
        return to_torch_export(network, example, path)
    return to_safetensors(network, path)


def _dense_size(found: Source, to: str) -> int | None:
    """Bytes of the dense network in the same format; None where it is not known or cannot be written."""
    dense = found.fresh_dense()
    if dense is None:
        return None
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _write(dense, found.example, Path(folder, f"dense{ENDINGS[to]}"), to).bytes
    except (OSError, ExportError):  # the file that was asked for is there
        return None
