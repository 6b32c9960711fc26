"""LeNet-5 with ReLU and max-pooling."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from bayesprune.models.shapes import check_smallest, image_shape


def lenet5(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """Two 5x5 convs 6-16, each with ReLU and 2x2 max-pool, then Linears of 120, 84 and `classes`.

    The first conv has padding 2, the second none: on 28x28 grey images the Linears are 400-120-84-10, with
    61,706 parameters and 416,520 multiplications per image, as in the paper.  Images below 12 pixels would
    shrink to nothing, so there the second conv has padding 2 too (8x8: 64-120-84-10); 4x4 is the smallest.
    """
    channels, height, width = image_shape(input_shape, "lenet5")
    check_smallest(height, width, 4, "lenet5")
    padding = 0 if min(height, width) >= 12 else 2
    high, wide = ((size // 2 + 2 * padding - 4) // 2 for size in (height, width))
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 6, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5, padding=padding),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(16 * high * wide, 120),
            relu3=nn.ReLU(),
            fc2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
            out=nn.Linear(84, classes),
        )
    )
