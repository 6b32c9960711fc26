"""Sizes of feature maps, checked before a network is built."""

from collections.abc import Sequence


def image_shape(input_shape: Sequence[int], network: str) -> tuple[int, int, int]:
    """Return `input_shape` as (channels, height, width), or raise ValueError."""
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ValueError(
            f"{network} takes images, so input_shape must be (channels, height, width), all at least 1, "
            f"got {tuple(input_shape)}; for vectors use mlp"
        )
    channels, height, width = input_shape
    return channels, height, width


def check_smallest(height: int, width: int, smallest: int, network: str) -> None:
    """Raise ValueError unless the image is at least `smallest` pixels high and wide."""
    if min(height, width) < smallest:
        raise ValueError(
            f"{network} needs images of at least {smallest}x{smallest} pixels, got {height}x{width}; "
            "pad or enlarge them, or use mlp or resnet20"
        )
