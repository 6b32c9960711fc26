"""Networks for surgery with one habit each, and random masks."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from structure.structure_networks import Net, conv

Layers = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d


def weight_masks(model: nn.Module, live: float, seed: int) -> dict[str, Tensor]:
    """Every weight alive with the same probability."""
    generator = torch.Generator().manual_seed(seed)
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, Layers)]
    return {name: torch.rand(module.weight.shape, generator=generator) < live for name, module in layers}


def unit_masks(model: nn.Module, live: float, seed: int) -> dict[str, Tensor]:
    """Rows, columns and single weights die, together down to about the given share."""
    generator = torch.Generator().manual_seed(seed)
    masks = weight_masks(model, live**0.3, seed)
    for mask in masks.values():
        for dim in (0, 1):
            size = [1] * mask.ndim
            size[dim] = mask.shape[dim]
            mask &= torch.rand(size, generator=generator) < live**0.35
    return masks


def full_masks(model: nn.Module) -> dict[str, Tensor]:
    return {name: ~mask for name, mask in weight_masks(model, 0.0, 0).items()}


def depthwise() -> Net:
    def forward(net, x):
        x = net.first(x).relu()
        x = net.norm(net.twice(net.once(x))).relu()
        return net.out(net.last(x).mean((2, 3)))

    return Net(
        forward,
        first=conv(3, 5, 1),
        once=nn.Conv2d(5, 5, 3, padding=1, groups=5, bias=False),
        twice=nn.Conv2d(5, 10, 3, groups=5),
        norm=nn.BatchNorm2d(10),
        last=nn.Conv2d(10, 6, 3, padding=2, dilation=2),
        out=nn.Linear(6, 4),
    )


def odd_convs() -> Net:
    def forward(net, x):
        x = net.two(net.one(x).relu())
        x = net.four(functional.gelu(net.three(x)))
        return net.out(net.pool(x.relu()).flatten(1))

    return Net(
        forward,
        one=nn.Conv2d(3, 6, (3, 5), stride=(1, 2), padding=(1, 3), dilation=(2, 1)),
        two=nn.Conv2d(6, 8, 3, padding="same", groups=2),
        three=nn.Conv2d(8, 6, 2, padding=1, padding_mode="reflect"),
        four=nn.Conv2d(6, 4, 3, padding=1, padding_mode="circular", bias=False),
        pool=nn.AdaptiveMaxPool2d(2),
        out=nn.Linear(16, 3),
    )


def sequences() -> Net:
    def forward(net, x):
        x = x.flatten(2)
        x = net.act(net.norm(net.one(x)))
        x = functional.avg_pool1d(x, 3, 2, 1)
        return net.out(net.two(x).flatten(1))

    return Net(
        forward,
        one=nn.Conv1d(3, 6, 5, padding=2),
        norm=nn.InstanceNorm1d(6, affine=True, track_running_stats=True),
        act=nn.PReLU(6),
        two=nn.Conv1d(6, 2, 3, stride=3),
        out=nn.Linear(2 * 10, 3),
    )


def autoencoder() -> Net:
    def forward(net, x):
        x = net.down(x).relu()
        x = net.norm(net.up(x)).relu()
        return net.line(net.out(x).flatten(2)).tanh()

    return Net(
        forward,
        down=nn.Conv2d(3, 6, 3, 2, 1),
        up=nn.ConvTranspose2d(6, 5, 4, 2, 1),
        norm=nn.BatchNorm2d(5, affine=False),
        out=nn.ConvTranspose2d(5, 3, 3, padding=1, bias=False),
        line=nn.ConvTranspose1d(3, 2, 2, 2),
    )


def normed() -> Net:
    def forward(net, x):
        x = net.group(net.one(x)).relu()
        x = net.batch(net.two(x)).relu().mean((2, 3))
        return net.out(net.hidden(net.layer(net.wide(x))).relu())

    return Net(
        forward,
        one=conv(3, 8),
        group=nn.GroupNorm(4, 8),
        two=conv(8, 6),
        batch=nn.BatchNorm2d(6, track_running_stats=False),
        wide=nn.Linear(6, 7),
        layer=nn.LayerNorm(7),
        hidden=nn.Linear(7, 5),
        out=nn.Linear(5, 3),
    )


def hard_coded() -> Net:
    def forward(net, x):
        n = x.shape[0]
        x = torch.reshape(net.one(x).relu(), (n, 6 * 8 * 8))
        x = net.hidden(x).relu().view(-1, 8, 1)
        x = net.fold(x.reshape(n, 8))
        x = x.expand(n, 8, 1, 1).reshape(shape=(-1, 8))
        x = net.wide(x).relu().unflatten(-1, (5, 1))
        return net.out(x[..., 0])

    return Net(
        forward,
        one=conv(3, 6),
        hidden=nn.Linear(6 * 64, 8),
        fold=nn.Unflatten(-1, (8, 1, 1)),
        wide=nn.Linear(8, 5),
        out=nn.Linear(5, 3),
    )


def nested() -> Net:
    def forward(net, x):
        one = net.one(x).relu()
        both = torch.cat([x, one, torch.cat([one, net.two(one)], 1)], 1)
        x = net.three(both).relu()
        return net.out(torch.cat((x, x), 1).amax((2, 3)))

    return Net(forward, one=conv(3, 4), two=conv(4, 3), three=conv(14, 5), out=nn.Linear(10, 4))


def pieces() -> Net:
    def forward(net, x):
        x = net.one(x).relu()
        left, right = x.chunk(2, 1)
        first, second, third = net.two(x).relu().split(3, dim=1)
        x = net.a(left) * net.b(right).sigmoid() + net.c(first) + net.d(torch.cat([second, third], 1))
        return net.out(x.relu()[:, 1:6].mean((2, 3))) + net.rest(x.narrow(1, 2, 4)[..., 0, 0])

    return Net(
        forward,
        one=conv(3, 8),
        two=conv(8, 9),
        a=conv(4, 6),
        b=conv(4, 6, 1),
        c=conv(3, 6),
        d=conv(6, 6, 1),
        out=nn.Linear(5, 3),
        rest=nn.Linear(4, 3),
    )


def shortcut() -> Net:
    def forward(net, x):
        x = net.stem(x).relu()
        short = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))
        return net.out((net.norm(net.two(net.one(x).relu())) + short).relu().mean((2, 3)))

    return Net(
        forward,
        stem=conv(3, 4),
        one=nn.Conv2d(4, 8, 3, 2, 1),
        two=conv(8, 8),
        norm=nn.BatchNorm2d(8),
        out=nn.Linear(8, 3),
    )


def attention() -> Net:
    def forward(net, x):
        x = net.embed(x.flatten(2).mT)
        x = net.layer(x + net.one(x, x, x, need_weights=False)[0])
        y, _ = net.two(x, net.memory(x), net.memory(x))
        return net.out(net.down(functional.gelu(net.up(x + y))).mean(1))

    return Net(
        forward,
        embed=nn.Linear(3, 8),
        layer=nn.LayerNorm(8),
        one=nn.MultiheadAttention(8, 4, batch_first=True),
        two=nn.MultiheadAttention(8, 2, batch_first=True, bias=False),
        memory=nn.Linear(8, 8),
        up=nn.Linear(8, 12),
        down=nn.Linear(12, 8),
        out=nn.Linear(8, 3),
    )


def dropped() -> Net:
    def forward(net, x):
        x = functional.dropout2d(net.one(x).relu(), 0.3, net.training)
        x = functional.dropout(net.two(x.mean((2, 3))).relu(), training=net.training)
        return net.out(net.drop(x))

    return Net(forward, one=conv(3, 6), two=nn.Linear(6, 8), drop=nn.Dropout(), out=nn.Linear(8, 3))


def shared() -> Net:
    def forward(net, x):
        x = net.one(x).relu()
        x = net.same(net.same(x).relu()).relu() + x
        return net.out(net.norm(x).mean((2, 3)))

    return Net(forward, one=conv(3, 6), same=conv(6, 6), norm=nn.BatchNorm2d(6), out=nn.Linear(6, 3))


NETWORKS: dict[str, Callable[[], Net]] = {
    one.__name__: one
    for one in (
        depthwise,
        odd_convs,
        sequences,
        autoencoder,
        normed,
        hard_coded,
        nested,
        pieces,
        shortcut,
        attention,
        dropped,
        shared,
    )
}

STEPS = ("conv", "bare", "relu", "norm", "add", "cat", "deep", "split", "group", "max", "average", "stride", "excite")


class Random(nn.Module):
    """A network from a list of steps and the numbers that steer them; all maps have the same size."""

    def __init__(self, steps: list[tuple[str, int]]) -> None:
        super().__init__()
        self.plan: list[tuple[str, int]] = []
        self.parts = nn.ModuleList()
        widths = [3]
        for step, number in steps:
            last, other = widths[-1], number % len(widths)
            part, width = self._part(step, number, last, widths[other])
            self.parts.append(part)
            self.plan.append((step, other))
            widths.append(width)
        self.out = nn.Linear(widths[-1] * 4, 3)

    def _part(self, step: str, number: int, last: int, other: int) -> tuple[nn.Module, int]:
        width = 2 + number % 4
        if step == "conv":
            return conv(last, width, 1 + 2 * (number % 2)), width
        if step == "bare":
            return nn.Conv2d(last, width, 3, padding=2, dilation=2, bias=False), width
        if step == "stride":
            return nn.Sequential(nn.Conv2d(last, width, 3, 2, 1), nn.ConvTranspose2d(width, width, 2, 2)), width
        if step == "norm":
            return nn.BatchNorm2d(last), last
        if step == "add":
            return nn.Identity() if last == other else conv(last, other, 1), other
        if step == "cat":
            return nn.Identity(), last + other
        if step == "deep":
            return conv(last, last * (1 + number % 2), groups=last), last * (1 + number % 2)
        if step == "split":
            return nn.ModuleList([conv(1, width), conv(last - 1, width, 1)]), width
        if step == "group":
            return nn.Sequential(conv(last, 6, 1), nn.GroupNorm(3, 6), conv(6, 4, groups=2)), 4
        if step == "excite":
            return nn.Sequential(conv(last, 2, 1), nn.ReLU(), conv(2, last, 1), nn.Sigmoid()), last
        pools = {"relu": nn.ReLU(), "max": nn.MaxPool2d(3, 1, 1), "average": nn.AvgPool2d(3, 1, 1)}
        return pools[step], last

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for (step, other), part in zip(self.plan, self.parts, strict=True):
            if step == "add":
                x = part(x) + values[other]
            elif step == "cat":
                x = torch.cat([x, values[other]], 1)
            elif step == "split":
                first, second = x.split([1, x.shape[1] - 1], 1)
                x = part[0](first) + part[1](second)
            elif step == "excite":
                x = x * part(x.mean((2, 3), keepdim=True))
            else:
                x = part(x)
            values.append(x)
        return self.out(functional.adaptive_avg_pool2d(x, 2).flatten(1))
