"""The .pt2 files of torch.export."""

import io
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesprune.export.checking import agree, first_line, ready, traced_input
from bayesprune.export.files import write_verified
from bayesprune.export.quiet import quiet
from bayesprune.export.report import ExportError, ExportReport

UNSAFE = "torch.export.load runs code that a file may bring along: open only .pt2 files that you trust."


def to_torch_export(network: nn.Module, example: Tensor, path: Path | str) -> ExportReport:
    """Write `network` with torch.export, the batch size free; `torch.export.load(path).module()` runs it.

    Not safe to share with strangers: torch.export.load runs code that a file may bring along, so open only files that
    you trust.  Here only the file just written is loaded, to compare its outputs.

    Args:
        network: any module that maps (n, ...) to (n, ...); it is copied and not changed.
        example: inputs (n, ...); only their shape and type count.
        path: the file, by custom ending in .pt2; it appears, or is replaced, after it gave the same outputs.
    """
    path = Path(path)
    copy = ready(network)
    content = _content(copy, example)

    def verify(file: Path) -> ExportReport:
        with quiet():
            loaded = torch.export.load(io.BytesIO(file.read_bytes())).module()
        with torch.no_grad():
            worst, batches = agree(copy, loaded, example, f"the torch.export file for {path.name}")
        return ExportReport(path, "torch-export", len(content), worst.absolute, worst.relative, batches, note=UNSAFE)

    return write_verified(path, [content], verify)


def _content(network: nn.Module, example: Tensor) -> bytes:
    buffer = io.BytesIO()
    try:
        with quiet():
            program = torch.export.export(
                network, (traced_input(example),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
            )
            for node in program.graph.nodes:
                node.meta.pop("stack_trace", None)  # it holds the names of folders on this machine
            torch.export.save(program, buffer)
    except Exception as error:  # the exporter's errors have no common type
        raise ExportError(f"torch.export cannot export this network: {first_line(error)}") from error
    return buffer.getvalue()
