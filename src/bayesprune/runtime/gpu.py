"""Lowered networks on a GPU: a Triton kernel per layer, examples side by side in memory, all in one CUDA graph."""

import functools
import importlib.util
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesprune.runtime.lowering import Buffer, Lowered, Step, UnsupportedError, borders, view_size
from bayesprune.runtime.panels import panels

# Registers hold HEIGHT * SITES * POOL * EXAMPLES sums of a program.
SUMS, MOST_SITES = 4096, 8


@functools.cache
def is_available() -> bool:
    """Whether Triton is installed; CUDA builds of torch bring it."""
    return importlib.util.find_spec("triton") is not None


@dataclass
class _Layer:
    """The panels of one height of a layer, on the device."""

    height: int
    panels: Tensor
    taps: Tensor
    weights: Tensor
    biases: Tensor
    sites: Tensor
    places: Tensor


class GpuProgram:
    """A lowered network for batches of one size.

    examples: of a batch.  dtype: in which values are kept between layers; sums are float32.
    """

    def __init__(
        self,
        lowered: Lowered,
        examples: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        block: int = 128,
    ) -> None:
        unknown = [step.kind for step in lowered.steps if step.kind not in ("panels", "sum", "copy")]
        if unknown:
            raise UnsupportedError(f"the GPU runtime has no {unknown[0]} of its own")
        self.lowered, self.examples, self.block = lowered, examples, block
        self.shapes = borders(lowered)
        self.buffers = [torch.zeros(_values(b), examples, dtype=dtype, device=device) for b in self.shapes]
        self.layers = [self._layers(step, device) if step.kind == "panels" else [] for step in lowered.steps]
        self._images = [self._inner(number) for number in range(len(self.shapes))]

    def _inner(self, number: int) -> Tensor:
        """A buffer without its border, (channels, rows, columns, examples)."""
        b = self.shapes[number]
        whole = self.buffers[number].view(b.channels, b.top + b.rows + b.bottom, _wide(b), self.examples)
        return whole[:, b.top : b.top + b.rows, b.left : b.left + b.columns]

    def _layers(self, step: Step, device: torch.device) -> list[_Layer]:
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
        found = panels(step.matrix != 0)
        layers = []
        for height in sorted({len(panel.rows) for panel in found}):
            table: list[list[int]] = []
            taps: list[Tensor] = [torch.zeros(1, dtype=torch.int64)]
            weights: list[Tensor] = [torch.zeros(1, dtype=torch.float64)]
            tap, weight = 1, 1
            chosen = [panel for panel in found if len(panel.rows) == height]
            for panel in chosen:
                table.append([tap, len(panel.columns), weight, *panel.rows])
                taps.append(step.reads[panel.columns] @ strides)
                weights.append(step.matrix[panel.rows][:, panel.columns].T.reshape(-1))
                tap, weight = tap + len(panel.columns), weight + height * len(panel.columns)
            biases = torch.stack([step.bias[panel.rows] for panel in chosen])
            parts = (torch.tensor(table), torch.cat(taps), torch.cat(weights).float(), biases.float(), sites, places)
            kept = [part.int() if part.dtype == torch.int64 else part for part in parts]
            layers.append(_Layer(height, *(part.contiguous().to(device) for part in kept)))
        return layers

    def __call__(self, x: Tensor) -> Tensor:
        """What the network says of x, (examples, ...); (examples, outputs) float32."""
        given = self.shapes[self.lowered.input]
        shape = (self.examples, given.channels, given.rows, given.columns)
        self._images[self.lowered.input].copy_(x.reshape(shape).permute(1, 2, 3, 0))
        for step, layers in zip(self.lowered.steps, self.layers, strict=True):
            if step.kind == "panels":
                for layer in layers:
                    self._run(step, layer)
                continue
            result = self._images[step.source]
            if step.kind == "sum":
                result = result + self._images[step.source2]
            self._images[step.target].copy_(result.relu() if step.relu else result)
        outputs = self._images[self.lowered.output.buffer].permute(3, 0, 1, 2)
        return outputs.reshape(self.examples, view_size(self.lowered.output)).float()

    def _run(self, step: Step, layer: _Layer) -> None:
        import triton

        from bayesprune.runtime.gpu_kernels import panels_kernel

        pool = step.pool * step.pool
        count = len(layer.places)
        block = min(self.block, triton.next_power_of_2(self.examples))
        sites = max(1, min(MOST_SITES, SUMS // (layer.height * pool * block), triton.next_power_of_2(count)))
        grid = (triton.cdiv(self.examples, block), triton.cdiv(count, sites), len(layer.panels))
        panels_kernel[grid](
            self.buffers[step.source],
            self.buffers[step.target],
            layer.taps,
            layer.weights,
            layer.biases,
            layer.panels,
            layer.sites,
            layer.places,
            count,
            _plane(self.shapes[step.target]),
            self.examples,
            HEIGHT=layer.height,
            POOL=pool,
            RELU=step.relu,
            SITES=sites,
            EXAMPLES=block,
        )


def _wide(buffer: Buffer) -> int:
    return buffer.left + buffer.columns + buffer.right


def _plane(buffer: Buffer) -> int:
    return (buffer.top + buffer.rows + buffer.bottom) * _wide(buffer)


def _values(buffer: Buffer) -> int:
    return buffer.channels * _plane(buffer)
