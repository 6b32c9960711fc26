"""Networks that pruning tools are known to stumble over, each with units that nothing reads.

They need torch only, so that other tools can be tried on them in an environment of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Steps(nn.Module):
    """Named modules and a function of them."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.steps = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.steps(self, x)


@dataclass(frozen=True)
class Case:
    """A network in float64, and the channels of a layer that nothing reads.

    unread: per reading layer, its dead columns, or (rows, columns).  removed: the units that surgery takes out; 0 where
    they have to stay.
    """

    network: nn.Module
    layer: str
    channels: list[int]
    unread: dict[str, Any]
    removed: int
    example: Tensor = field(default_factory=lambda: images())

    def masks(self) -> dict[str, Tensor]:
        result = {}
        for name, columns in self.unread.items():
            mask = torch.ones_like(self.network.get_submodule(name).weight, dtype=torch.bool)
            for rows, column in columns if isinstance(columns[0], tuple) else [(slice(None), columns)]:
                mask[rows, column] = False
            result[name] = mask
        return result


def images() -> Tensor:
    return torch.rand(3, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 0.5


def random_values(network: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    network.double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator) - 0.5)
    return network


def conv(inputs: int, outputs: int, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, groups=groups)


def residual() -> Case:
    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.stem(x)
        x = x + net.b(net.a(x).relu())
        return net.out(x.relu())

    network = Steps(forward, stem=conv(3, 8), a=conv(8, 6), b=conv(6, 8), out=conv(8, 3))
    return Case(network, "stem", [1, 4], {"a": [1, 4], "out": [1, 4]}, 2)


def concatenation() -> Case:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.out(torch.cat([net.one(x), net.two(x)], 1).relu())

    return Case(Steps(forward, one=conv(3, 4), two=conv(3, 5), out=conv(9, 3)), "two", [0, 2], {"out": [4, 6]}, 2)


def concatenation_with_the_input() -> Case:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.out(torch.cat([x, net.one(x).relu()], 1))

    return Case(Steps(forward, one=conv(3, 5), out=conv(8, 3)), "one", [1, 2], {"out": [4, 5]}, 2)


def chunk_for_two_readers() -> Case:
    def forward(net: Any, x: Tensor) -> Tensor:
        left, right = net.one(x).relu().chunk(2, 1)
        return net.a(left) + net.b(right)

    return Case(Steps(forward, one=conv(3, 8), a=conv(4, 3), b=conv(4, 3)), "one", [1], {"a": [1]}, 1)


def padded_shortcut() -> Case:
    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.stem(x).relu()
        short = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))
        return net.out((net.two(net.one(x).relu()) + short).relu())

    parts = {"stem": conv(3, 4), "one": nn.Conv2d(4, 8, 3, 2, 1), "two": conv(8, 8), "out": conv(8, 3)}
    return Case(Steps(forward, **parts), "stem", [1], {"one": [1], "out": [3]}, 1)


def groups_with_other_positions() -> Case:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.out(net.two(net.one(x).relu()).relu())

    network = Steps(forward, one=conv(3, 12), two=conv(12, 9, 3), out=conv(9, 3))
    return Case(network, "one", [0, 5, 10], {"two": [(slice(3), 0), (slice(3, 6), 1), (slice(6, 9), 2)]}, 3)


def depthwise() -> Case:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.out(net.deep(net.one(x)).relu())

    return Case(Steps(forward, one=conv(3, 6), deep=conv(6, 6, 6), out=conv(6, 3)), "one", [2, 3], {"out": [2, 3]}, 2)


def flattened() -> Case:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.out(net.one(x).relu().flatten(1))

    columns = [*range(64, 128)]
    return Case(Steps(forward, one=conv(3, 4), out=nn.Linear(256, 3)), "one", [1], {"out": columns}, 1)


def written_sizes() -> Case:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.out(net.one(x).relu().view(-1, 4 * 64))

    columns = [*range(64, 128)]
    return Case(Steps(forward, one=conv(3, 4), out=nn.Linear(256, 3)), "one", [1], {"out": columns}, 1)


def group_norm() -> Case:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.out(net.norm(net.one(x)).relu())

    network = Steps(forward, one=conv(3, 8), norm=nn.GroupNorm(4, 8), out=conv(8, 3))
    return Case(network, "one", [2, 3], {"out": [2, 3]}, 1)


def part_of_a_group() -> Case:
    return Case(group_norm().network, "one", [2], {"out": [2]}, 0)


def layer_norm() -> Case:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.out(net.norm(net.one(x)))

    network = Steps(forward, one=nn.Linear(8, 6), norm=nn.LayerNorm(6), out=nn.Linear(6, 3))
    return Case(network, "one", [2], {"out": [2]}, 0)


def attention_head() -> Case:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.out(net.attention(x, x, x, need_weights=False)[0])

    network = Steps(forward, attention=nn.MultiheadAttention(8, 4, batch_first=True), out=nn.Linear(8, 3))
    return Case(network, "attention", [2, 3], {"attention.out_proj": [2, 3]}, 1, images()[:, 0].contiguous())


def tied_embedding() -> Case:
    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.embed(x)
        return net.out(x + net.down(net.up(x).relu()))

    parts = {"embed": nn.Embedding(11, 6), "up": nn.Linear(6, 9), "down": nn.Linear(9, 6)}
    network = Steps(forward, **parts, out=nn.Linear(6, 11, bias=False))
    network.out.weight = network.embed.weight
    return Case(network, "embed", [1, 4], {"up": [1, 4], "out": [1, 4]}, 2, torch.arange(10).reshape(2, 5))


def channel_shuffle() -> Case:
    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.one(x).relu()
        return net.out(x.view(-1, 2, 4, 8, 8).transpose(1, 2).reshape(-1, 8, 8, 8))

    # Channel 4 a + b becomes channel 2 b + a.
    return Case(Steps(forward, one=conv(3, 8), out=conv(8, 3)), "one", [1], {"out": [2]}, 0)


def number_of_channels() -> Case:
    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.one(x).relu()
        return net.out(x / x.shape[1])

    return Case(Steps(forward, one=conv(3, 8), out=conv(8, 3)), "one", [1], {"out": [1]}, 0)


CONNECTIONS: dict[str, Callable[[], Case]] = {
    make.__name__: make
    for make in (
        residual,
        concatenation,
        concatenation_with_the_input,
        chunk_for_two_readers,
        padded_shortcut,
        groups_with_other_positions,
        depthwise,
        flattened,
        written_sizes,
    )
}
OPERATIONS: dict[str, Callable[[], Case]] = {
    make.__name__: make
    for make in (
        group_norm,
        part_of_a_group,
        layer_norm,
        attention_head,
        tied_embedding,
        channel_shuffle,
        number_of_channels,
    )
}
