"""The part of a conv's kernel that is alive, and the padding that goes with it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True)
class Window:
    """A smaller kernel that gives the same result, per spatial dimension.

    first: the first tap that stays.  size: the number of taps.  before, after: the zero padding that it needs,
    negative where borders of the input are not read.
    """

    first: tuple[int, ...]
    size: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def inside(self) -> bool:
        """Whether no padding is ever read."""
        return max((*self.before, *self.after)) <= 0


def outer_padding(module: Conv) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The padding in front of and behind the input, per spatial dimension."""
    if module.padding == "valid":
        before = after = (0,) * len(module.kernel_size)
    elif module.padding == "same":
        total = [gap * (size - 1) for gap, size in zip(module.dilation, module.kernel_size, strict=True)]
        before = tuple(one // 2 for one in total)
        after = tuple(one - one // 2 for one in total)
    else:
        before = after = tuple(int(one) for one in module.padding)
    return before, after


def window(module: Conv, taps: Tensor) -> Window:
    """The smallest window around the live taps; taps: bool of the shape of the kernel.

    Output i reads x[i * stride + t * dilation - padding] with tap t, so without the first taps the padding is smaller
    by their number times the dilation; likewise behind.
    """
    first, size = [], []
    for dim, count in enumerate(taps.shape):
        others = [one for one in range(taps.ndim) if one != dim]
        live = taps.amax(others) if others else taps
        places = live.nonzero().flatten().tolist() or [(count - 1) // 2]
        first.append(places[0])
        size.append(places[-1] - places[0] + 1)
    left, right = outer_padding(module)
    gaps = [int(one) for one in module.dilation]
    before = tuple(pad - gap * start for pad, gap, start in zip(left, gaps, first, strict=True))
    after = tuple(
        pad - gap * (count - start - width)
        for pad, gap, count, start, width in zip(right, gaps, taps.shape, first, size, strict=True)
    )
    return Window(tuple(first), tuple(size), before, after)


def crop_to(module: Conv, chosen: Window) -> list[int]:
    """Give a conv whose weight is already cropped its sizes; returns what F.pad has to do in front, if anything.

    What is symmetric is the conv's own padding.
    """
    own: list[int] = []
    extra: list[int] = []
    for before, after in zip(chosen.before, chosen.after, strict=True):
        symmetric = before == after >= 0
        own.append(before if symmetric else 0)
        # F.pad counts dimensions from the last.
        extra[:0] = [0, 0] if symmetric else [before, after]
    module.kernel_size = chosen.size
    module.padding = tuple(own)
    module._reversed_padding_repeated_twice = [one for size in reversed(own) for one in (size, size)]
    return extra if any(extra) else []


def fits(chosen: Window, size: tuple[int, ...]) -> bool:
    """Whether the crops of the window leave something of an input of this size."""
    pairs = zip(chosen.before, chosen.after, size, strict=True)
    return all(length + min(before, 0) + min(after, 0) > 0 for before, after, length in pairs)


def live_taps(live: Tensor) -> Tensor:
    """The taps, bool of the shape of the kernel, of which any weight is alive; live: (out, in_per_group, *kernel)."""
    return torch.as_tensor(live.flatten(0, 1).any(0))
