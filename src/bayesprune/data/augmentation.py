"""Random flips and crops of whole batches, done in the one gather that also picks the images."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bayesprune.data.errors import DataError


class Placement(NamedTuple):
    """Where each image of an epoch is cut out: `row` and `column` (n,) int64 offsets, `flip` (n,) bool."""

    row: Tensor
    column: Tensor
    flip: Tensor

    def part(self, start: int, stop: int) -> "Placement":
        """Return the placements of images `start` to `stop` of the epoch."""
        return Placement(self.row[start:stop], self.column[start:stop], self.flip[start:stop])


@dataclass(frozen=True)
class FlipAndCrop:
    """Mirror half of the images left to right and shift each by up to `padding` pixels, zeros coming in.

    The zeros are zeros of the normalised images, that is the mean grey.
    """

    padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise DataError(f"padding must be 0 or more pixels, got {self.padding}; try 4")

    def draw(self, examples: int, generator: torch.Generator, device: torch.device) -> Placement:
        """Draw the placements of a whole epoch of `examples` images and bring them to `device`."""
        places = 2 * self.padding + 1
        shifts = torch.randint(places, (2, examples), generator=generator, device=generator.device)
        coins = torch.randint(2, (examples,), generator=generator, device=generator.device)
        row, column = (shifts - self.padding).to(device).unbind()
        return Placement(row, column, (coins == 1).to(device) & self.flip)

    def gather(self, images: Tensor, index: Tensor, placement: Placement) -> Tensor:
        """Return the images `index` (b,) of `images` (n, c, h, w), each placed as drawn: (b, c, h, w).

        One gather and one masking per batch; nothing waits for the device, so a CUDA graph can capture it.
        """
        _, channels, height, width = images.shape
        rows = torch.arange(height, device=images.device) + placement.row[:, None]
        columns = torch.arange(width, device=images.device) + placement.column[:, None]
        columns = torch.where(placement.flip[:, None], columns.flip(1), columns)
        rows, columns = rows[:, None, :, None], columns[:, None, None, :]
        outside = (rows < 0) | (rows >= height) | (columns < 0) | (columns >= width)
        channel = torch.arange(channels, device=images.device)[None, :, None, None]
        picked = images[index[:, None, None, None], channel, rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
        return picked.masked_fill_(outside, 0)
