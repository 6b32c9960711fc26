"""Create a network by name."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import nn

from bayesprune.models.alexnet import alexnet_small
from bayesprune.models.initialise import initialise
from bayesprune.models.lenet import lenet5
from bayesprune.models.mlp import mlp
from bayesprune.models.resnet import ResNet20
from bayesprune.models.vgg import vgg11

BUILDERS: Final[dict[str, Callable[..., nn.Module]]] = {
    "mlp": mlp,
    "lenet5": lenet5,
    "alexnet-small": alexnet_small,
    "vgg11": vgg11,
    "resnet20": ResNet20,
}
MODELS: Final[tuple[str, ...]] = tuple(BUILDERS)


def create(
    name: str,
    input_shape: Sequence[int],
    classes: int = 10,
    *,
    generator: torch.Generator | None = None,
    **options: Any,
) -> nn.Module:
    """Return a new network on the CPU, in training mode, that maps (n, *input_shape) to (n, classes).

    Args:
        name: one of `MODELS`.
        input_shape: the shape of one input, (channels, height, width) for images.
        classes: the number of classes, or of outputs for regression.
        generator: draws the first weights and is the only random state used; None takes torch's global one.
        options: what the network has besides, such as widths=(300, 100) of mlp.
    """
    if name not in BUILDERS:
        raise ValueError(f"unknown model {name!r}; choose one of {', '.join(MODELS)}")
    if classes < 1:
        raise ValueError(f"classes must be at least 1, got {classes}; for regression it is the number of outputs")
    build = BUILDERS[name]
    _, _, *known = inspect.signature(build).parameters
    if unknown := sorted(set(options) - set(known)):
        raise ValueError(f"{name} has no option {', '.join(unknown)}; its options are: {', '.join(known) or 'none'}")
    # Layers fill themselves from the global generator when built; on the meta device there is none.
    with torch.device("meta"):
        network = build(input_shape, classes, **options)
    return initialise(network.to_empty(device="cpu"), generator)
