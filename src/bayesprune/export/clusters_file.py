"""The whole network in the smallest file: packed for `bayesprune.load`, without config and metrics."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune import artefact
from bayesprune.export.checking import compare, random_inputs
from bayesprune.export.report import ExportError, ExportReport
from bayesprune.runs.atomic import sync_folder

BATCH = 16  # inputs on which rounded weights are tried


def to_clusters(
    network: nn.Module,
    example: Tensor,
    path: Path | str,
    *,
    values: str | None = None,
    classes: Sequence[str] | None = None,
) -> ExportReport:
    """Write `network`, its zeros left out, types as they are; `bayesprune.load` makes the network of it.

    example: a batch of inputs, (n, ...).  values: float16 or bfloat16 rounds the weights; the report then says how much
    the outputs changed.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ExportError(f"the folder {path.parent} does not exist; make it first or choose another one")
    described: dict[str, Any] = {"example_shape": list(example.shape[1:]), "classes": classes}
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".clusters-") as folder:
        fresh = Path(folder, path.name)
        artefact.save(fresh, network, storage="clusters", values=values, **described)
        report = _checked(network, example, fresh, path, values)
        fresh.replace(path)
    sync_folder(path.parent)
    return report


def _checked(network: nn.Module, example: Tensor, fresh: Path, path: Path, values: str | None) -> ExportReport:
    """The report, or ExportError where the file does not hold what it should."""
    loaded, size = artefact.load(fresh), fresh.stat().st_size
    state = loaded.state_dict()
    for name, tensor in network.state_dict().items():
        if values is not None and tensor.ndim > 1 and tensor.is_floating_point():
            continue  # rounded
        if not _same(state[name], tensor.cpu()):
            raise ExportError(f"{name} was not read back as it was written to {path.name}; nothing was left")
    if values is None:
        return ExportReport(path, "clusters", size, 0.0, 0.0)
    x = random_inputs(example, BATCH)
    with torch.no_grad():
        difference = compare(network(x), loaded(x))
    note = f"The weights are rounded to {values}, so the outputs are not quite the same."
    return ExportReport(path, "clusters", size, difference.absolute, difference.relative, (BATCH,), note=note)


def _same(left: Tensor, right: Tensor) -> bool:
    """Equal type, shape and bits."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(left.reshape(-1).view(torch.uint8), right.contiguous().reshape(-1).view(torch.uint8))
