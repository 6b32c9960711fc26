"""Multi-layer perceptron."""

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(input_shape: Sequence[int], classes: int, widths: Sequence[int] = (300, 100)) -> nn.Sequential:
    """Flatten the input, then one Linear and ReLU per entry of `widths`, then a Linear to the classes.

    On 28x28 images the default is LeNet-300-100 with 266,610 parameters.
    """
    if not input_shape or min((*input_shape, *widths)) < 1:
        raise ValueError(
            f"mlp needs sizes of at least 1, got input {tuple(input_shape)} and widths {tuple(widths)}; "
            "try widths=(300, 100)"
        )
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    sizes = [math.prod(input_shape), *widths]
    for number, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
        layers[f"fc{number}"] = nn.Linear(inputs, outputs)
        layers[f"relu{number}"] = nn.ReLU()
    layers["out"] = nn.Linear(sizes[-1], classes)
    return nn.Sequential(layers)
