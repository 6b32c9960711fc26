"""ResNet-20 for small images."""

from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from bayesprune.models.shapes import image_shape

WIDTHS = (16, 32, 64)
BLOCKS = 3


@final
class BasicBlock(nn.Module):
    """relu(bn(conv(relu(bn(conv(x))))) + shortcut(x)); a 1x1 conv with BatchNorm where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        changes = stride != 1 or inputs != outputs
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if changes
            else nn.Identity()
        )
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs, h, w) to (n, outputs, h / stride, w / stride), sizes rounded up."""
        inner = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        return self.relu2(inner + self.shortcut(x))  # type: ignore[no-any-return]


@final
class ResNet20(nn.Module):
    """A 3x3 conv, three stages of three basic blocks with 16, 32 and 64 channels, mean over pixels, a Linear.

    On colour images with 10 classes: 272,474 parameters.  Images of any size.
    """

    def __init__(self, input_shape: Sequence[int], classes: int) -> None:
        super().__init__()
        channels, _, _ = image_shape(input_shape, "resnet20")
        self.conv = nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(WIDTHS[0])
        self.relu = nn.ReLU()
        self.stage1 = _stage(WIDTHS[0], WIDTHS[0], stride=1)
        self.stage2 = _stage(WIDTHS[0], WIDTHS[1], stride=2)
        self.stage3 = _stage(WIDTHS[1], WIDTHS[2], stride=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.out = nn.Linear(WIDTHS[2], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, c, h, w) to logits (n, classes)."""
        x = self.relu(self.norm(self.conv(x)))
        x = self.stage3(self.stage2(self.stage1(x)))
        return self.out(self.flatten(self.pool(x)))  # type: ignore[no-any-return]


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride)
    return nn.Sequential(first, *[BasicBlock(outputs, outputs, 1) for _ in range(BLOCKS - 1)])
