"""The C engine through ctypes: built with the package, optional."""

import ctypes
import functools
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bayesprune.runtime.lowered import Buffer, Lowered, Step, UnsupportedError, borders, view_size
from bayesprune.runtime.panels import MOST_ROWS, Panel, Parts, parts

LIBRARY = Path(__file__).with_name("engine.so")
KINDS = {"panels": 0, "maximum": 1, "mean": 2, "sum": 3, "copy": 4}
ALIGNMENT = 64
FLOAT = 4  # bytes
VERSION = 3  # of engine.h
SETS = {"best": 0, "avx512": 1, "avx2": 2, "portable": 3}
WIDTHS = {1: 16, 2: 8, 3: 4}  # floats of a vector, by instruction set
ENOUGH_VECTORS = 16  # as in engine.c
MOST_BYTES = 512 << 20  # that a thread may work in
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

    lanes: examples that are computed side by side, a multiple of 16; or 1, where neighbouring results of one example
    are.
    Raises UnsupportedError where a thread would need more than MOST_BYTES.
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
        view = lowered.output
        assert (view.rows, view.columns) == (buffers[view.buffer].rows, buffers[view.buffer].columns)
        operations: list[list[int]] = []
        tables = [_Tables.empty()]
        for step, whole in zip(lowered.steps, lowered.panels, strict=True):
            source, first = buffers[step.source], sum(len(table.panels) for table in tables)
            in_parts = False
            if step.kind == "panels":
                together = _channels_together(step, whole, source, lanes, WIDTHS[self._set])
                in_parts = together < source.channels
                tables.append(_tables(step, whole, parts(whole, step.reads[:, 0] // together), _strides(source, lanes)))
            operations.append(
                [
                    *(KINDS[step.kind], step.source, step.source2, step.target, step.rows, step.columns),
                    *(*step.stride, source.top + step.first[0], source.left + step.first[1], *step.window),
                    *(int(step.relu), step.pool, int(in_parts), first, len(tables[-1].panels) if whole else 0),
                ]
            )
        joined = _joined(tables)
        shapes = [[b.channels, b.rows, b.columns, b.top, b.left, b.bottom, b.right] for b in buffers]
        self._parts = (
            _integers(operations),
            _integers(shapes),
            joined.panels,
            joined.taps,
            torch.cat([_places(buffers[number], lanes) for number in (lowered.input, lowered.output.buffer)]),
            joined.weights.float(),
            joined.biases.float(),
        )
        pointers = [ctypes.c_void_p(part.data_ptr()) for part in self._parts]
        counts = (len(operations), len(shapes), lanes, self.inputs, self.outputs)
        self._program = _Program(*counts, *pointers, lowered.input, lowered.output.buffer)

        self._bytes = int(engine.space_bytes(ctypes.byref(self._program), self._set))
        if self._bytes > MOST_BYTES:
            raise UnsupportedError(
                f"{lanes} lanes need {self._bytes >> 20} MiB for every thread, more than {MOST_BYTES >> 20}; take fewer"
            )
        self._lanes = lanes
        self._spaces: list[tuple[int, Tensor]] = []  # for how many threads; those that no call is using

    @property
    def bytes(self) -> int:
        """Of the tables, and of what the calls so far have needed to work in."""
        return sum(part.nbytes for part in self._parts) + sum(space.nbytes for _, space in self._spaces)

    def __call__(self, x: Tensor, threads: int) -> Tensor:
        """What the network says of x (n, inputs) float32, contiguous; (n, outputs)."""
        engine = library()
        assert engine is not None
        result = torch.empty(len(x), self.outputs, dtype=torch.float32)
        threads = max(1, min(threads, -(-len(x) // self._lanes)))  # others would find nothing to do
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


class _Tables(NamedTuple):
    """What the engine reads of one or more layers.

    panels: (m, 6 + MOST_ROWS) int64, see engine.h; where taps and weights begin is counted from the first of the layer.
    taps: int64.  weights: by tap and row.  biases: (m * MOST_ROWS,).
    """

    panels: Tensor
    taps: Tensor
    weights: Tensor
    biases: Tensor

    @classmethod
    def empty(cls) -> "_Tables":
        numbers = torch.zeros(0, dtype=torch.float64)
        return cls(torch.zeros(0, 6 + MOST_ROWS, dtype=torch.int64), numbers.long(), numbers, numbers)


def _tables(step: Step, whole: list[Panel], found: Parts, strides: Tensor) -> _Tables:
    heights = torch.tensor([len(panel.rows) for panel in whole])
    rows = _integers([[*panel.rows, *[0] * (MOST_ROWS - len(panel.rows))] for panel in whole])
    height = heights[found.panel]
    each = [height, _starts(found.counts), found.counts, _starts(found.counts * height), found.begins, found.ends]
    tall = heights[found.owner]  # every column of a part has a weight for every row of its panel
    entry = torch.repeat_interleave(tall)
    row = rows[found.owner[entry], torch.arange(len(entry)) - _starts(tall)[entry]]
    used = torch.arange(MOST_ROWS) < height[:, None]
    return _Tables(
        torch.cat([torch.stack([one.long() for one in each], 1), rows[found.panel]], 1),
        step.reads[found.columns] @ strides,
        step.matrix[row, found.columns[entry]],
        (step.bias[rows[found.panel]] * used).flatten(),
    )


def _joined(tables: list[_Tables]) -> _Tables:
    """One after the other, and a zero at the end, so that nothing is empty."""
    taps = weights = 0
    for table in tables:
        table.panels[:, 1] += taps
        table.panels[:, 3] += weights
        taps, weights = taps + len(table.taps), weights + len(table.weights)
    panels, *others = (torch.cat(one) for one in zip(*tables, strict=True))
    return _Tables(panels.contiguous(), *(torch.cat([one, one.new_zeros(1)]) for one in others))


def _starts(counts: Tensor) -> Tensor:
    """Where each begins when they follow each other."""
    return counts.cumsum(0) - counts


def _channels_together(step: Step, whole: list[Panel], source: Buffer, lanes: int, width: int) -> int:
    """Input channels that all panels read before they go on to the next: all, or what the nearest cache holds."""
    loads = sum(len(panel.columns) for panel in whole)
    if lanes == 1 or sum(len(panel.rows) * len(panel.columns) for panel in whole) > FEW_PRODUCTS * loads:
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
