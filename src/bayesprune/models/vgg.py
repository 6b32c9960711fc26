"""VGG-11 with BatchNorm for small images."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from bayesprune.models.shapes import check_smallest, image_shape

WIDTHS = (64, 128, 256, 256, 512, 512, 512, 512)
POOL_AFTER = frozenset({1, 2, 4, 6, 8})


def vgg11(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """Eight 3x3 convs with BatchNorm and ReLU, five 2x2 max-pools, then Linears of 100 and `classes`.

    On 32x32 images the convs work at 32, 16, 8, 8, 4, 4, 2 and 2 pixels.  With three colours and 100 classes
    there are 9,278,928 weights in convs and Linears and 152,825,616 multiplications per image.  The convs
    have no bias because BatchNorm has one.
    """
    channels, height, width = image_shape(input_shape, "vgg11")
    smallest = 2 ** len(POOL_AFTER)
    check_smallest(height, width, smallest, "vgg11")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (inputs, outputs) in enumerate(zip((channels, *WIDTHS), WIDTHS, strict=False), start=1):
        layers[f"conv{number}"] = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        layers[f"norm{number}"] = nn.BatchNorm2d(outputs)
        layers[f"relu{number}"] = nn.ReLU()
        if number in POOL_AFTER:
            layers[f"pool{number}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["fc1"] = nn.Linear(WIDTHS[-1] * (height // smallest) * (width // smallest), 100)
    layers["relu9"] = nn.ReLU()
    layers["out"] = nn.Linear(100, classes)
    return nn.Sequential(layers)
