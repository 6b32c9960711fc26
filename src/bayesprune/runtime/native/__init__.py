"""The C engine through ctypes: built with the package, optional."""

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from bayesprune.runtime.lowering import Buffer, Lowered, Step, borders, view_size
from bayesprune.runtime.panels import MOST_ROWS, Panel, panels, parts

LIBRARY = Path(__file__).with_name("engine.so")
KINDS = {"panels": 0, "maximum": 1, "mean": 2, "sum": 3, "copy": 4}
ALIGNMENT = 64
FLOAT = 4  # bytes
VERSION = 2  # of engine.h
SETS = {"best": 0, "avx512": 1, "avx2": 2, "portable": 3}
WIDTHS = {1: 16, 2: 8, 3: 4}  # floats of a vector, by instruction set
ENOUGH_VECTORS = 16  # as in engine.c
# Where a load is for few products, panels come in parts: input that all of them read, and that stays in the nearest
# cache meanwhile.
NEAR = 28 * 1024  # bytes of input
FEW_PRODUCTS = 2.0  # for a load
FEWEST_SITES = 8  # below that sums would be stored and loaded for few products


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled engine, or None where it was not built, is that of another version or cannot be loaded."""
    try:
        engine = ctypes.CDLL(str(LIBRARY))
        if engine.engine_version() != VERSION:
            return None
    except (OSError, AttributeError):
        return None
    engine.space_bytes.restype = ctypes.c_int64
    return engine


class _Program(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("operations", "buffers", "lanes", "inputs", "outputs")),
        *((name, ctypes.c_void_p) for name in ("operation", "buffer", "panels", "taps", "places", "weights", "biases")),
        *((name, ctypes.c_int64) for name in ("input", "output")),
    )


class Program:
    """A lowered network as the engine reads it; safe to use from several threads.

    lanes: examples that are computed side by side, a multiple of 16.
    """

    def __init__(self, lowered: Lowered, lanes: int = 64, instruction_set: str = "best") -> None:
        engine = library()
        if engine is None:
            raise RuntimeError("the native engine is not built; install a C compiler and reinstall bayesprune")
        self._set = engine.instruction_set(SETS[instruction_set])
        if self._set < 0:
            raise RuntimeError(f"this processor has no {instruction_set}")
        buffers = borders(lowered)
        self.inputs = buffers[lowered.input].channels * buffers[lowered.input].rows * buffers[lowered.input].columns
        self.outputs = view_size(lowered.output)
        operations: list[list[int]] = []
        rows: list[list[int]] = []
        taps: list[Tensor] = []
        weights: list[Tensor] = []
        biases: list[Tensor] = []
        tap_count = weight_count = 0
        self.products = 0  # per example, zeros of panels counted
        for step in lowered.steps:
            source, first = buffers[step.source], len(rows)
            in_parts = False
            if step.kind == "panels":
                whole = panels(step.matrix != 0)
                together = _channels_together(step, whole, source, lanes, WIDTHS[self._set])
                in_parts = together < source.channels
                for part in parts(whole, step.reads[:, 0] // together):
                    height, count = len(part.rows), len(part.columns)
                    ends = (int(part.begins), int(part.ends))
                    rows.append(
                        [height, tap_count, count, weight_count, *ends, *part.rows, *[0] * (MOST_ROWS - height)]
                    )
                    taps.append(step.reads[part.columns] @ _strides(source, lanes))
                    weights.append(step.matrix[part.rows][:, part.columns].T.reshape(-1))
                    biases.append(torch.cat([step.bias[part.rows], torch.zeros(MOST_ROWS - height).double()]))
                    tap_count, weight_count = tap_count + count, weight_count + height * count
                    self.products += height * count * step.rows * step.columns
            operations.append(
                [
                    *(KINDS[step.kind], step.source, step.source2, step.target, step.rows, step.columns),
                    *(*step.stride, source.top + step.first[0], source.left + step.first[1], *step.window),
                    *(int(step.relu), step.pool, int(in_parts), first, len(rows) - first),
                ]
            )
        shapes = [[b.channels, b.rows, b.columns, b.top, b.left, b.bottom, b.right] for b in buffers]
        self._parts = (
            _integers(operations),
            _integers(shapes),
            _integers(rows),
            torch.cat([*taps, torch.zeros(1, dtype=torch.int64)]),
            torch.cat([_places(buffers[number], lanes) for number in (lowered.input, lowered.output.buffer)]),
            torch.cat([*weights, torch.zeros(1).double()]).float(),
            torch.cat([*biases, torch.zeros(1).double()]).float(),
        )
        pointers = [ctypes.c_void_p(part.data_ptr()) for part in self._parts]
        counts = (len(operations), len(shapes), lanes, self.inputs, self.outputs)
        self._program = _Program(*counts, *pointers, lowered.input, lowered.output.buffer)

        self._bytes = int(engine.space_bytes(ctypes.byref(self._program), self._set))
        self._spaces: list[tuple[int, Tensor]] = []  # for how many threads; those that no call is using

    def __call__(self, x: Tensor, threads: int) -> Tensor:
        """What the network says of x (n, inputs) float32, contiguous; (n, outputs)."""
        engine = library()
        assert engine is not None
        result = torch.empty(len(x), self.outputs)
        try:
            room, space = self._spaces.pop()
        except IndexError:
            room, space = 0, torch.empty(0)
        if room < threads:
            room, space = threads, torch.zeros(threads * self._bytes + ALIGNMENT, dtype=torch.uint8)
        start = -space.data_ptr() % ALIGNMENT
        engine.run_program(
            *(ctypes.byref(self._program), _pointer(x), _pointer(result), ctypes.c_int64(len(x))),
            *(self._set, threads, ctypes.c_void_p(space.data_ptr() + start)),
        )
        self._spaces.append((room, space))
        return result


def _channels_together(step: Step, whole: list[Panel], source: Buffer, lanes: int, width: int) -> int:
    """Input channels that all panels read before they go on to the next: all, or what the nearest cache holds."""
    loads = sum(len(panel.columns) for panel in whole)
    if sum(len(panel.rows) * len(panel.columns) for panel in whole) > FEW_PRODUCTS * loads:
        return source.channels
    rows = step.pool
    while rows < step.rows and rows * step.columns * (lanes // width) < ENOUGH_VECTORS:
        rows += step.pool
    if rows * step.columns < FEWEST_SITES:
        return source.channels
    read = (rows - 1) * step.stride[0] + int(step.reads[:, 1].max()) + 1
    wide = source.left + source.columns + source.right
    return min(max(1, NEAR // (read * wide * lanes * FLOAT)), source.channels)


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _strides(buffer: Buffer, lanes: int) -> Tensor:
    """Floats from one channel, row and column to the next."""
    wide = buffer.left + buffer.columns + buffer.right
    return torch.tensor([(buffer.top + buffer.rows + buffer.bottom) * wide * lanes, wide * lanes, lanes])


def _places(buffer: Buffer, lanes: int) -> Tensor:
    """Where each value of an example is in a buffer, (channels * rows * columns,)."""
    axes = (buffer.channels, buffer.rows, buffer.columns)
    sites = torch.cartesian_prod(*map(torch.arange, axes)).reshape(-1, 3)
    return (sites + torch.tensor([0, buffer.top, buffer.left])) @ _strides(buffer, lanes)


def _integers(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64).contiguous()
