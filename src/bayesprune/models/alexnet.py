"""The small AlexNet the paper's figures imply."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from bayesprune.models.shapes import check_smallest, image_shape

WIDTHS = (6, 16, 32, 64, 128)


def alexnet_small(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """Five 3x3 convs 6-16-32-64-128, each with ReLU and 2x2 max-pool, then Linears of 120, 84 and `classes`.

    On 32x32 colour images with 10 classes: 128-120-84-10, 124,534 parameters, 1,298,088 multiplications per
    image.
    """
    channels, height, width = image_shape(input_shape, "alexnet-small")
    smallest = 2 ** len(WIDTHS)
    check_smallest(height, width, smallest, "alexnet-small")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (inputs, outputs) in enumerate(zip((channels, *WIDTHS), WIDTHS, strict=False), start=1):
        layers[f"conv{number}"] = nn.Conv2d(inputs, outputs, 3, padding=1)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"pool{number}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["fc1"] = nn.Linear(WIDTHS[-1] * (height // smallest) * (width // smallest), 120)
    layers["relu6"] = nn.ReLU()
    layers["fc2"] = nn.Linear(120, 84)
    layers["relu7"] = nn.ReLU()
    layers["out"] = nn.Linear(84, classes)
    return nn.Sequential(layers)
