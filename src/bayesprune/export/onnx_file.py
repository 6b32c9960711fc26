"""ONNX, checked in ONNX Runtime."""

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.export.checking import agree, first_line, ready, traced_input
from bayesprune.export.files import write_verified
from bayesprune.export.quiet import quiet
from bayesprune.export.report import ExportError, ExportReport

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
LARGEST = 2**31 - 1  # what one protobuf message holds


def to_onnx(network: nn.Module, example: Tensor, path: Path | str) -> ExportReport:
    """Write `network` as one ONNX file with input "input" and output "output", the batch size free.

    Args:
        network: any module that maps (n, ...) to (n, ...); it is copied and not changed.
        example: inputs (n, ...); only their shape and type count.
        path: the file; it appears, or is replaced, after ONNX Runtime gave the same outputs.
    """
    path = Path(path)
    copy = ready(network)
    content, opset = onnx_bytes(copy, example)
    onnxruntime_or_error()  # before anything is written

    def verify(file: Path) -> ExportReport:
        session = open_session(str(file))
        worst, batches = agree(copy, lambda x: run_session(session, x), example, f"the ONNX file for {path.name}")
        return ExportReport(path, "onnx", len(content), worst.absolute, worst.relative, batches, opset)

    return write_verified(path, [content], verify)


def onnx_bytes(network: nn.Module, example: Tensor) -> tuple[bytes, int]:
    """The ONNX file of a network that is `ready`, and the version of its operators."""
    _package("onnx")
    _package("onnxscript")
    try:
        with quiet():
            program: Any = torch.onnx.export(
                network,
                (traced_input(example),),
                input_names=["input"],
                output_names=["output"],
                dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
                external_data=False,
                verbose=False,
            )
            proto = program.model_proto
    except Exception as error:  # the exporter's errors have no common type
        raise ExportError(f"torch.onnx cannot export this network: {first_line(error)}") from error
    _tidy(proto)
    if proto.ByteSize() > LARGEST:
        raise ExportError(
            f"the network needs {proto.ByteSize():,} bytes, but one ONNX file holds at most {LARGEST:,}; "
            "use to_torch_export or to_safetensors"
        )
    opset = next(entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx"))
    return proto.SerializeToString(), int(opset)


def open_session(model: str | bytes, threads: int | None = None) -> Any:
    """An ONNX Runtime session on the CPU, for a file name or the content of a file."""
    runtime = onnxruntime_or_error()
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.inter_op_num_threads = 1
    if threads is not None:
        options.intra_op_num_threads = threads
    # Its threads otherwise keep a core busy after a call, at the cost of whatever runs next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run_session(session: Any, x: Tensor) -> Tensor:
    """The outputs for inputs (n, ...) on the CPU."""
    return torch.from_numpy(session.run(None, {"input": x.numpy()})[0])


def onnxruntime_or_error() -> Any:
    """The module onnxruntime, or ExportError that says how to get it."""
    return _package("onnxruntime")


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ExportError(f"ONNX needs the package {name}; get it with: pip install 'bayesprune[onnx]'") from error


def _tidy(proto: Any) -> None:
    """Call the free dimension "batch" and drop notes for debugging: they hold the names of folders on this machine."""
    graph = proto.graph
    free = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param == free:
                dimension.dim_param = "batch"
    parts = (graph.node, graph.input, graph.output, graph.value_info, graph.initializer)
    for item in (proto, graph, *(item for part in parts for item in part)):
        del item.metadata_props[:]
        item.doc_string = ""
