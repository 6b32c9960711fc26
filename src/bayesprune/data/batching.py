"""Batches of a data set, shuffled and gathered on the device that holds it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesprune.data.augmentation import FlipAndCrop, Placement
from bayesprune.data.dataset import Split
from bayesprune.data.errors import DataError

# On a GPU a batch of small images is a matter of launching kernels (22 with augmentation), so many are gathered by the
# same ones; a processor wants what it gathers in its cache.
BYTES_AT_ONCE = {"cuda": 2**26}


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches (x, y) of `split`: every iteration is one epoch, in an order drawn from `generator`.

    All random numbers of an epoch are drawn when it begins, so the epoch is a function of the generator's
    state at that moment.  To resume inside an epoch, restore that state and call `epoch(start=batches done)`.
    A CPU generator gives the same batches on every device.  On a GPU batches of small examples are parts of one larger
    tensor; clone what is to be kept.

    Args:
        split: the examples.
        batch_size: examples per batch.
        generator: draws the order; None keeps the order of `split`, as evaluation wants.
        augment: random flips and crops, for images (n, c, h, w).
        drop_last: leave out a last batch that is smaller; CUDA graphs need equal sizes.
    """

    split: Split
    batch_size: int
    generator: torch.Generator | None = None
    augment: FlipAndCrop | None = None
    drop_last: bool = False

    def __post_init__(self) -> None:
        examples = len(self.split)
        if self.batch_size < 1 or (self.drop_last and self.batch_size > examples):
            raise DataError(
                f"batch_size must be at least 1, and at most the {examples} examples with drop_last, "
                f"got {self.batch_size}; try 128 or drop_last=False"
            )
        if self.augment is not None and self.generator is None:
            raise DataError("augment draws random numbers, got generator None; pass a torch.Generator")
        if self.augment is not None and self.split.x.ndim != 4:
            raise DataError(f"augment needs images (n, c, h, w), got x {tuple(self.split.x.shape)}; leave augment out")

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        whole, rest = divmod(len(self.split), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch()

    def epoch(self, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Draw a new epoch now and return its batches from number `start` on."""
        if not 0 <= start <= len(self):
            raise DataError(f"start must be in 0..{len(self)}, the batches of an epoch, got {start}; try 0")
        device, examples = self.split.x.device, len(self.split)
        if self.generator is None:
            return self._gather(torch.arange(examples, device=device), None, start)
        order = torch.randperm(examples, generator=self.generator, device=self.generator.device).to(device)
        placement = self.augment.draw(examples, self.generator, device) if self.augment is not None else None
        return self._gather(order, placement, start)

    def _gather(self, order: Tensor, placement: Placement | None, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        end = min(len(self) * self.batch_size, len(self.split))
        together = self._batches_at_once() * self.batch_size
        for first in range(start * self.batch_size, end, together):
            stop = min(first + together, end)
            index = order[first:stop]
            if self.augment is not None and placement is not None:
                x = self.augment.gather(self.split.x, index, placement.part(first, stop))
            else:
                x = self.split.x.index_select(0, index)
            y = self.split.y.index_select(0, index)
            if len(index) <= self.batch_size:
                yield x, y  # not a view of something larger
            else:
                yield from zip(x.split(self.batch_size), y.split(self.batch_size), strict=True)

    def _batches_at_once(self) -> int:
        x = self.split.x
        batch_bytes = self.batch_size * x[:1].numel() * x.element_size()
        return max(1, BYTES_AT_ONCE.get(x.device.type, 0) // max(1, batch_bytes))
