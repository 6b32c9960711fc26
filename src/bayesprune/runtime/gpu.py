"""Lowered networks on a GPU: a Triton kernel per layer, examples side by side in memory, all in one CUDA graph."""

import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesprune.runtime.lowered import Buffer, Lowered, Step, UnsupportedError, borders, view_size
from bayesprune.runtime.panels import even_panels

BLOCK = 128  # examples of a program
SUMS, MOST_SITES = 4096, 8  # a program of panels_kernel holds height * sites * held * examples sums in registers
HELD = (1, 4, 16)  # windows of a maximum whose sites are computed at once; those of others follow each other
MOST_PROGRAMS = 65520  # along an axis of a grid: CUDA has 65535, and pieces of a multiple of 16 stay aligned
DEPTH = 16  # taps of a matrix product
SPREAD = 64  # examples and values of a program of spread_kernel
FEW_ROWS, MANY_ROWS = (1, 2, 4, 8, 16), (16, 32)
LOAD = 5  # a tap of a panel costs its rows, and this much to load
FILL = 16  # aligned rows are read faster
TURNS = 3
HOPELESS = 1.5  # times as slow as the fastest


@functools.cache
def is_available() -> bool:
    """Whether Triton is installed; CUDA builds of torch bring it."""
    return importlib.util.find_spec("triton") is not None


@dataclass(frozen=True)
class Tile:
    """How a layer is computed: height rows at once, on the tensor cores (products) or weight by weight."""

    height: int
    products: bool


@dataclass
class _Layer:
    """The panels of a layer, on the device; see gpu_kernels."""

    tile: Tile
    panels: Tensor
    taps: Tensor
    weights: Tensor
    biases: Tensor
    sites: Tensor
    places: Tensor


class GpuProgram:
    """A lowered network for batches of one size.

    examples: of a batch.  dtype: in which values are kept between layers; sums are float32.
    tiles: one for every layer; by default the fastest of `tiles_for`, each of which is tried.
    """

    def __init__(
        self,
        lowered: Lowered,
        examples: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        tiles: Sequence[Tile] | None = None,
    ) -> None:
        unknown = [step.kind for step in lowered.steps if step.kind not in ("panels", "sum", "copy")]
        if unknown:
            raise UnsupportedError(f"the GPU runtime has no {unknown[0]} of its own")
        for step in lowered.steps:
            read = [lowered.buffers[one] for one in (step.source, step.source2) if one >= 0 and step.kind != "panels"]
            if any((buffer.rows, buffer.columns) != (step.rows, step.columns) for buffer in read):
                raise UnsupportedError(f"the GPU runtime has no {step.kind} of padded values")
        self.lowered, self.examples, self.device = lowered, examples, device
        self.stride = -(-examples // FILL) * FILL
        self.shapes = borders(lowered)
        self.buffers = [torch.zeros(_values(b), self.stride, dtype=dtype, device=device) for b in self.shapes]
        self._images = [self._inner(number) for number in range(len(self.shapes))]
        given = self.shapes[lowered.input]
        channel, row, column = torch.meshgrid(
            *map(torch.arange, (given.channels, given.rows, given.columns)), indexing="ij"
        )
        places = channel * _plane(given) + (given.top + row) * _wide(given) + given.left + column
        self._places = places.flatten().int().to(device)
        layers = [step for step in lowered.steps if step.kind == "panels"]
        self.layers = [
            self._fastest(step) if tiles is None else self._layer(step, tiles[i]) for i, step in enumerate(layers)
        ]

    @property
    def tiles(self) -> list[Tile]:
        """Of the layers, in their order."""
        return [layer.tile for layer in self.layers]

    def _inner(self, number: int) -> Tensor:
        """A buffer without its border, (channels, rows, columns, stride)."""
        b = self.shapes[number]
        whole = self.buffers[number].view(b.channels, b.top + b.rows + b.bottom, _wide(b), self.stride)
        return whole[:, b.top : b.top + b.rows, b.left : b.left + b.columns]

    def _layer(self, step: Step, tile: Tile) -> _Layer:
        source, target = self.shapes[step.source], self.shapes[step.target]
        wide = _wide(source)
        strides = torch.tensor([_plane(source), wide, 1])
        rows, columns = step.rows // step.pool, step.columns // step.pool
        # A result is the maximum over the sites of its window, which follow each other.
        y, x, i, j = torch.meshgrid(*map(torch.arange, (rows, columns, step.pool, step.pool)), indexing="ij")
        down = source.top + step.first[0] + (y * step.pool + i) * step.stride[0]
        right = source.left + step.first[1] + (x * step.pool + j) * step.stride[1]
        sites = (down * wide + right).flatten()
        places = ((target.top + y[..., 0, 0]) * _wide(target) + target.left + x[..., 0, 0]).flatten()
        table: list[list[int]] = []
        taps: list[Tensor] = []
        weights: list[Tensor] = []
        biases: list[Tensor] = []
        tap = 0
        for panel in even_panels(step.matrix != 0, tile.height):
            missing = tile.height - len(panel.rows)
            count = -(-len(panel.columns) // DEPTH) * DEPTH if tile.products else len(panel.columns)
            block = torch.zeros(tile.height, count, dtype=torch.float32)
            block[: len(panel.rows), : len(panel.columns)] = step.matrix[panel.rows][:, panel.columns].float()
            offsets = torch.zeros(count, dtype=torch.int64)
            offsets[: len(panel.columns)] = step.reads[panel.columns] @ strides
            table.append([tap, count, *panel.rows, *[-1] * missing])
            taps.append(offsets)
            weights.append((block if tile.products else block.T).reshape(-1))
            biases.append(torch.nn.functional.pad(step.bias[panel.rows].float(), (0, missing)))
            tap += count
        nothing = torch.zeros(1, dtype=torch.float32)  # a layer without a live weight has neither taps nor weights
        parts = (torch.tensor(table), torch.cat([*taps, nothing.long()]), torch.cat([*weights, nothing]))
        kept = [
            part.int() if part.dtype == torch.int64 else part for part in (*parts, torch.stack(biases), sites, places)
        ]
        return _Layer(tile, *(part.contiguous().to(self.device) for part in kept))

    def _fastest(self, step: Step) -> _Layer:
        """The layer in the tile that takes least time on what is in the buffers; those that fail are left out.

        Raises UnsupportedError where all do.
        """
        best, least, failures = None, float("inf"), []
        for tile in tiles_for(step.matrix != 0):
            layer = self._layer(step, tile)
            try:
                self._run(step, layer)  # compiles
                taken = self._milliseconds(step, layer, least)
            except Exception as error:  # Triton's, ptxas's, the C compiler's and the driver's have no class in common
                failures.append(f"{tile}: {type(error).__name__}: {_last_line(error)}")
                continue
            if taken < least:
                best, least = layer, taken
        if best is None:
            raise UnsupportedError(f"no kernel runs a layer of {len(step.matrix)} rows; {'; '.join(failures)}")
        return best

    def _milliseconds(self, step: Step, layer: _Layer, least: float) -> float:
        shortest = float("inf")
        for _ in range(TURNS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            self._run(step, layer)
            end.record()
            end.synchronize()
            shortest = min(shortest, begin.elapsed_time(end))
            if shortest > HOPELESS * least:
                break
        return shortest

    def __call__(self, x: Tensor) -> Tensor:
        """What the network says of x, (examples, ...); (examples, outputs) float32."""
        self._spread(x.reshape(self.examples, -1).contiguous())
        layers = iter(self.layers)
        for step in self.lowered.steps:
            if step.kind == "panels":
                self._run(step, next(layers))
                continue
            result = self._images[step.source]
            if step.kind == "sum":
                result = result + self._images[step.source2]
            self._images[step.target].copy_(result.relu() if step.relu else result)
        outputs = self._images[self.lowered.output.buffer][..., : self.examples].permute(3, 0, 1, 2)
        return outputs.reshape(self.examples, view_size(self.lowered.output)).float()

    def _spread(self, x: Tensor) -> None:
        import triton

        from bayesprune.runtime.gpu_kernels import spread_kernel

        values = x.shape[1]
        blocks = triton.cdiv(values, SPREAD)
        grid = (triton.cdiv(self.examples, SPREAD), min(blocks, MOST_PROGRAMS), triton.cdiv(blocks, MOST_PROGRAMS))
        target = self.buffers[self.lowered.input]
        spread_kernel[grid](x, target, self._places, values, self.examples, self.stride, VALUES=SPREAD, EXAMPLES=SPREAD)

    def _run(self, step: Step, layer: _Layer) -> None:
        import triton

        from bayesprune.runtime.gpu_kernels import panels_kernel, products_kernel

        pool = step.pool * step.pool
        count = len(layer.places)
        block = min(BLOCK, triton.next_power_of_2(self.stride))
        held = pool if pool in HELD else 1
        most = SUMS // (layer.tile.height * held * block)
        sites = 1 if layer.tile.products else max(1, min(MOST_SITES, most, triton.next_power_of_2(count)))
        kernel = products_kernel if layer.tile.products else panels_kernel
        piece = MOST_PROGRAMS * sites
        for first in range(0, count, piece):
            some = min(piece, count - first)
            kernel[triton.cdiv(self.stride, block), triton.cdiv(some, sites), len(layer.panels)](
                self.buffers[step.source],
                self.buffers[step.target],
                layer.taps,
                layer.weights,
                layer.biases,
                layer.panels,
                layer.sites[first * pool :],
                layer.places[first:],
                some,
                _plane(self.shapes[step.target]),
                self.stride,
                HEIGHT=layer.tile.height,
                POOL=pool,
                RELU=step.relu,
                EXAMPLES=block,
                **({"DEPTH": DEPTH} if layer.tile.products else {"SITES": sites, "HELD": held}),
            )


def tiles_for(live: Tensor) -> list[Tile]:
    """What is tried for a layer, its matrix (rows, columns) bool: the two heights that should be fastest, and products.

    Every one has to be compiled, so they are few.
    """

    def cost(height: int) -> int:
        return (height + LOAD) * sum(len(panel.columns) for panel in even_panels(live, height))

    rows = len(live)
    few = sorted((height for height in FEW_ROWS if height < 2 * rows), key=cost)[:2]
    many = [height for height in MANY_ROWS if 2 * rows > height]
    return [Tile(height, False) for height in few] + [Tile(height, True) for height in many]


def _last_line(error: Exception) -> str:
    """What Triton's errors say after the code that they show."""
    return str(error).strip().rpartition("\n")[2].strip()


def _wide(buffer: Buffer) -> int:
    return buffer.left + buffer.columns + buffer.right


def _plane(buffer: Buffer) -> int:
    return (buffer.top + buffer.rows + buffer.bottom) * _wide(buffer)


def _values(buffer: Buffer) -> int:
    return buffer.channels * _plane(buffer)
