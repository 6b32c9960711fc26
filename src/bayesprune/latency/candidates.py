"""The ways to run a network: by eager PyTorch, compiled, in ONNX Runtime, in the native engine, as a CUDA graph."""

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType

import torch
from torch import Tensor, nn

from bayesprune.export.checking import random_inputs, ready
from bayesprune.export.onnx_file import onnx_bytes, open_session, run_session
from bayesprune.export.quiet import quiet
from bayesprune.runtime import FixedWay, fastest_fused, fastest_native, fastest_triton
from bayesprune.runtime.capture import Captured

RUNTIMES = ("eager", "compile", "onnx", "native", "cuda_graph", "fused", "triton")
ON_CPU, ON_CUDA = (
    frozenset(("onnx", "native")),
    frozenset(("cuda_graph", "fused", "triton")),
)  # the others run everywhere
OWN_LAYOUT = ON_CPU | {"fused", "triton"}  # those that lay out images as they like
LAYOUTS = ("contiguous", "channels_last")
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}

_numbers = itertools.count()


@dataclass(frozen=True)
class Kind:
    """A way to run a network."""

    runtime: str
    layout: str

    def __str__(self) -> str:
        return self.runtime if self.runtime in OWN_LAYOUT else f"{self.runtime} {self.layout}"


@dataclass
class Copies:
    """Copies of one network for one device, made when they are first needed; the network itself is never run."""

    network: nn.Module
    example: Tensor
    device: torch.device
    by_layout: dict[str, nn.Module] = field(default_factory=dict)
    onnx: bytes | None = None

    def module(self, layout: str) -> nn.Module:
        """In evaluation mode, float32, on the device, with that memory format."""
        if layout not in self.by_layout:
            module = copy.deepcopy(self.network).eval().to(self.device, torch.float32).requires_grad_(False)
            self.by_layout[layout] = _in_format(module, layout)
        return self.by_layout[layout]

    def elsewhere(self) -> "Copies":
        """The same network at other places in memory."""
        return Copies(self.network, self.example, self.device, onnx=self.onnx)

    def onnx_content(self) -> bytes:
        """The ONNX file, exported once for all batch sizes."""
        if self.onnx is None:
            self.onnx, _ = onnx_bytes(ready(self.network), self.example)
        return self.onnx


def kinds(runtimes: Sequence[str], layouts: Sequence[str], device: torch.device, dimensions: int) -> list[Kind]:
    """Those that make sense on a device, with channels_last for images (n, c, h, w)."""
    chosen = []
    for runtime in runtimes:
        if (runtime in ON_CPU and device.type != "cpu") or (runtime in ON_CUDA and device.type != "cuda"):
            continue
        for layout in layouts if runtime not in OWN_LAYOUT else ("contiguous",):
            if layout != "channels_last" or dimensions == 4:
                chosen.append(Kind(runtime, layout))
    return chosen


def inputs(example: Tensor, batch: int, device: torch.device) -> Tensor:
    """The inputs (batch, ...) that every candidate gets."""
    return random_inputs(example, batch).to(device)


def prepare(kind: Kind, copies: Copies, x: Tensor) -> Callable[[], Tensor]:
    """A function that runs the network on `x` (batch, ...) once; call it under torch.inference_mode.

    Compilers may run at its first call.  The input is in place before: a CUDA graph has no copy in it.
    """
    if kind.runtime == "onnx":
        session = open_session(copies.onnx_content(), threads=torch.get_num_threads())
        return lambda: run_session(session, x)
    if kind.runtime == "native":
        return fastest_native(copies.module("contiguous"), x)
    if kind.runtime == "fused":
        return fastest_fused(copies.module("contiguous"), x)
    if kind.runtime == "triton":
        return fastest_triton(copies.module("contiguous"), x)
    module = copies.module(kind.layout)
    if kind.layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    if kind.runtime == "compile":
        compiled = torch.compile(_own_function(module), dynamic=False, fullgraph=True)
        return lambda: compiled(x)
    if kind.runtime == "cuda_graph":
        return Captured(module, x).again
    return lambda: module(x)


def elsewhere(kind: Kind, copies: Copies, x: Tensor, run: Callable[[], Tensor]) -> Callable[[], Tensor] | None:
    """What `run` does, with weights at other places in memory; None where that would take a compiler or is a GPU's."""
    if copies.device.type != "cpu" or kind.runtime == "compile":
        return None
    if isinstance(run, FixedWay):
        return run.elsewhere()
    return prepare(kind, copies.elsewhere(), x)


def held_bytes(copies: Copies, run: Callable[[], Tensor]) -> int:
    """Of a copy's weights, and of the engine's programs; not what runtimes need for activations."""
    tensors = (*copies.network.parameters(), *copies.network.buffers())
    return sum(tensor.nbytes for tensor in tensors) + (run.bytes if isinstance(run, FixedWay) else 0)


def first_call(run: Callable[[], Tensor]) -> Tensor:
    """The outputs of the first call, in which compilers run."""
    with quiet(), torch.inference_mode():
        return run()


def _in_format(module: nn.Module, layout: str) -> nn.Module:
    """All weights and buffers of four dimensions in the memory format."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.ndim == 4:
            tensor.data = tensor.data.contiguous(memory_format=FORMATS[layout])
    return module


def _own_function(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """`module` as a function with a code object of its own.

    The compiler keeps its results per code object and goes back to eager silently when there are too many.
    """

    def forward(x: Tensor) -> Tensor:
        return module(x)  # type: ignore[no-any-return]

    code = forward.__code__.replace(co_name=f"forward_{next(_numbers)}")
    return FunctionType(code, forward.__globals__, code.co_name, None, forward.__closure__)
