"""Small networks with one habit each, and what happens to their outputs when units fall silent."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayesprune.structure import Structure


class Net(nn.Module):
    """Named modules and a function of them."""

    def __init__(self, forward: Callable[["Net", Tensor], object], **modules: nn.Module) -> None:
        super().__init__()
        self.steps = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> object:
        return self.steps(self, x)


def conv(inputs: int, outputs: int, kernel: int = 3, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups)


def chain() -> Net:
    def forward(net, x):
        x = net.pool(net.act(net.norm(net.one(x))))
        x = net.two(x).relu()
        return net.out(x.mean((2, 3)))

    return Net(
        forward,
        one=conv(3, 5),
        norm=nn.BatchNorm2d(5),
        act=nn.PReLU(5),
        pool=nn.MaxPool2d(2),
        two=conv(5, 6),
        out=nn.Linear(6, 4),
    )


def flattened() -> Net:
    def forward(net, x):
        x = functional.max_pool2d(functional.relu(net.one(x)), 2)
        x = torch.flatten(functional.avg_pool2d(net.two(x), 2), 1)
        return net.out(functional.dropout(functional.relu(net.hidden(x)), 0.5, net.training))

    return Net(forward, one=conv(3, 5), two=conv(5, 4), hidden=nn.Linear(4 * 2 * 2, 7), out=nn.Linear(7, 4))


def viewed() -> Net:
    def forward(net, x):
        x = functional.adaptive_avg_pool2d(torch.relu(net.one(x)), 2)
        x = x.view(x.size(0), -1)
        x = net.hidden(x).relu().reshape(-1, 6, 1, 1)
        return net.out(x.squeeze(3).squeeze(2))

    return Net(forward, one=conv(3, 5), hidden=nn.Linear(20, 6), out=nn.Linear(6, 4))


def residual() -> Net:
    def forward(net, x):
        x = net.stem(x)
        x = x + net.b1(net.a1(x).relu())
        x = torch.add(x, net.b2(net.a2(x).relu()))
        return net.out(functional.adaptive_max_pool2d(x, 1).flatten(1))

    return Net(
        forward,
        stem=conv(3, 6),
        a1=conv(6, 4),
        b1=conv(4, 6),
        a2=conv(6, 5),
        b2=conv(5, 6),
        out=nn.Linear(6, 4),
    )


def projected() -> Net:
    def forward(net, x):
        x = net.stem(x).relu()
        x = (net.norm(net.b(net.a(x).relu())) + net.shortcut(x)).clamp(min=0)
        return net.out(x.mean(dim=(-1, -2)))

    return Net(
        forward,
        stem=conv(3, 4),
        a=conv(4, 5),
        b=conv(5, 6),
        norm=nn.BatchNorm2d(6),
        shortcut=conv(4, 6, 1),
        out=nn.Linear(6, 4),
    )


def joined() -> Net:
    def forward(net, x):
        one, two = net.one(x).relu(), net.two(x).relu()
        x = net.three(torch.cat([one, x, two], dim=1)).relu()
        x = torch.cat((x, x), 1)
        return net.out(net.four(x).mean((2, 3)))

    return Net(forward, one=conv(3, 4), two=conv(3, 2), three=conv(9, 5), four=conv(10, 3), out=nn.Linear(3, 4))


def chunked() -> Net:
    def forward(net, x):
        first, second = net.one(x).relu().chunk(2, dim=1)
        third, fourth = net.split(x).relu().split([2, 3], 1)
        wide = net.sliced(x).relu()
        total = net.a(first) + net.b(second) + net.c(third) + net.d(fourth) + net.e(wide[:, :2]) + net.f(wide[:, 2:])
        return net.out(total.mean((2, 3)))

    return Net(
        forward,
        one=conv(3, 6),
        split=conv(3, 5),
        sliced=conv(3, 5),
        a=conv(3, 4),
        b=conv(3, 4, 1),
        c=conv(2, 4),
        d=conv(3, 4, 1),
        e=conv(2, 4),
        f=conv(3, 4),
        out=nn.Linear(4, 4),
    )


def separable() -> Net:
    def forward(net, x):
        x = functional.relu6(net.norm(net.expand(x)))
        x = functional.relu6(net.deep(x))
        x = net.project(x)
        return net.out(net.twice(x).relu().mean((2, 3)))

    return Net(
        forward,
        expand=conv(3, 6, 1),
        norm=nn.BatchNorm2d(6),
        deep=conv(6, 6, groups=6),
        project=conv(6, 4, 1),
        twice=conv(4, 8, groups=4),
        out=nn.Linear(8, 4),
    )


def excited() -> Net:
    def forward(net, x):
        x = net.one(x).relu()
        gate = net.up(net.down(x.mean((2, 3), keepdim=True)).relu()).sigmoid()
        return net.out((x * gate).flatten(2).mean(-1))

    return Net(forward, one=conv(3, 6), down=conv(6, 3, 1), up=conv(3, 6, 1), out=nn.Linear(6, 4))


def grouped() -> Net:
    def forward(net, x):
        x = net.two(net.one(x).relu()).relu()
        return net.out(x.mean((2, 3)))

    return Net(forward, one=conv(3, 6), two=conv(6, 4, groups=2), out=nn.Linear(4, 4))


def permuted() -> Net:
    def forward(net, x):
        x = net.one(x).relu().permute(0, 2, 3, 1)
        x = net.two(x).relu().flatten(1, 2).transpose(1, 2)
        x = functional.interpolate(x.contiguous(), scale_factor=2)
        return net.out(net.line(x).relu().amax(-1))

    return Net(forward, one=conv(3, 5), two=nn.Linear(5, 6), line=nn.Conv1d(6, 3, 3), out=nn.Linear(3, 4))


def tokens() -> Net:
    def forward(net, x):
        x = net.two(torch.nn.functional.gelu(net.one(x.flatten(2).mT)))
        return net.out(x.relu().flatten(1))

    return Net(forward, one=nn.Linear(3, 5), two=nn.Linear(5, 2), out=nn.Linear(2 * 64, 4))


def repeated() -> Net:
    def forward(net, x):
        x = net.stem(x).relu()
        for _ in range(2):
            x = net.norm(net.same(x)).relu()
        return net.out(x.mean((2, 3)))

    return Net(forward, stem=conv(3, 5), same=conv(5, 5), norm=nn.BatchNorm2d(5), out=nn.Linear(5, 4))


def gated() -> Net:
    def forward(net, x):
        x = functional.glu(net.one(x), 1)
        x = net.two(x).relu()
        x = functional.pad(x, (1, 1, 1, 1))
        return net.out(torch.stack([x, net.three(x)], 1).sum(1).mean((2, 3)))

    return Net(forward, one=conv(3, 8), two=conv(4, 5), three=conv(5, 5), out=nn.Linear(5, 4))


def padded() -> Net:
    def forward(net, x):
        x = net.stem(x)
        short = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 2))
        x = net.narrow(x) + short
        return net.out(x.relu().mean((2, 3)))

    return Net(forward, stem=conv(3, 4), narrow=nn.Conv2d(4, 7, 3, 2, 1), out=nn.Linear(7, 4))


def upsampled() -> Net:
    def forward(net, x):
        x = net.norm(net.one(x)).relu()
        x = net.two(net.up(x).relu()).relu()
        x = net.again(net.last(x))
        return net.out(x.mean((2, 3)))

    return Net(
        forward,
        one=conv(3, 5),
        norm=nn.BatchNorm2d(5),
        up=nn.ConvTranspose2d(5, 4, 2, 2),
        two=conv(4, 6),
        last=nn.ConvTranspose2d(6, 3, 3, 2, 1, bias=False),
        again=nn.ConvTranspose2d(3, 5, 1),
        out=nn.Linear(5, 4),
    )


def group_normed() -> Net:
    def forward(net, x):
        x = net.norm(net.one(x)).relu()
        x = net.deep(x) + net.skip(x)
        x = net.instance(net.two(x)).relu()
        return net.out(x.mean((2, 3)))

    return Net(
        forward,
        one=conv(3, 6),
        norm=nn.GroupNorm(3, 6),
        deep=conv(6, 6, groups=6),
        skip=conv(6, 6, 1),
        two=conv(6, 4),
        instance=nn.GroupNorm(4, 4),
        out=nn.Linear(4, 4),
    )


def embedded() -> Net:
    def forward(net, x):
        x = net.embed((x[:, 0, 0] * 8 + 4).long()) + net.position
        x = net.hidden(x * net.scale).relu()
        return net.out(x.mean(1) * net.whole)

    net = Net(forward, embed=nn.Embedding(8, 6, padding_idx=0), hidden=nn.Linear(6, 5), out=nn.Linear(5, 4))
    net.position = nn.Parameter(torch.ones(1, 8, 6))
    net.scale = nn.Parameter(torch.ones(6))
    net.whole = nn.Parameter(torch.ones(1))
    return net


def attended() -> Net:
    def forward(net, x):
        x = x.flatten(2)[:, :, :12]
        x, _ = net.attention(x, x, x)
        return net.out(net.hidden(x).relu().flatten(1))

    return Net(
        forward,
        attention=nn.MultiheadAttention(12, 3, batch_first=True),
        hidden=nn.Linear(12, 5),
        out=nn.Linear(15, 4),
    )


# The number of removable units, counted by hand.
NETWORKS: dict[str, tuple[Callable[[], Net], int]] = {
    "chain": (chain, 5 + 6),
    "flattened": (flattened, 5 + 4 + 7),
    "viewed": (viewed, 5 + 6),
    "residual": (residual, 6 + 4 + 5),
    "projected": (projected, 4 + 5 + 6),
    "joined": (joined, 4 + 2 + 5 + 3),
    "chunked": (chunked, 6 + 5 + 5 + 4),
    "separable": (separable, 6 + 4),
    "excited": (excited, 6 + 3),
    "grouped": (grouped, 6 + 4),
    "permuted": (permuted, 5 + 6 + 3),
    "tokens": (tokens, 5 + 2),
    "repeated": (repeated, 5),
    "gated": (gated, 4 + 5),
    "padded": (padded, 4),
    "upsampled": (upsampled, 5 + 4 + 6 + 3 + 5),
    "group_normed": (group_normed, 3 + 4),
    "embedded": (embedded, 6 + 5),
    "attended": (attended, 3 + 12 + 5),
}


def randomise(model: nn.Module, seed: int = 0, *, biases: bool = True) -> nn.Module:
    """Double precision and eval mode, every parameter and statistic random; without biases zeros stay zeros."""
    generator = torch.Generator().manual_seed(seed)
    model.double().eval()
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * 2 - 1)
                if name.endswith("running_var"):
                    tensor.add_(2)
                if not biases and name.endswith(("bias", "running_mean")):
                    tensor.zero_()
    return model


def silenced_into(model: nn.Module, structure: Structure, units: Tensor) -> nn.Module:
    """A copy with all parameters that lead into these units at zero."""
    return _with_makers(model, structure, units, lambda entries: 0 * entries)


def scrambled_into(model: nn.Module, structure: Structure, units: Tensor, seed: int = 0) -> nn.Module:
    """A copy with all parameters that lead into these units at random."""
    generator = torch.Generator().manual_seed(seed)
    return _with_makers(
        model, structure, units, lambda entries: torch.rand(entries.shape, generator=generator, dtype=entries.dtype)
    )


def _with_makers(
    model: nn.Module, structure: Structure, units: Tensor, change: Callable[[Tensor], Tensor]
) -> nn.Module:
    model = copy.deepcopy(model)
    modules = dict(model.named_modules())
    readers = {layer.name for layer in structure.transposed}
    with torch.no_grad():
        for layer in structure.layers:
            rows = units[layer.out_units]
            for parameter in modules[layer.name].parameters():
                parameter[rows] = change(parameter[rows])
        for name, channels in structure.norms.items():
            for key, tensor in (*modules[name].named_parameters(), *modules[name].named_buffers()):
                if key in ("weight", "bias", "running_mean"):
                    tensor[units[channels]] = change(tensor[units[channels]])
        for slot in structure.slots:
            if (slot.tensor, slot.dim) != ("weight", 0) or slot.module not in readers:
                entries = getattr(modules[slot.module], slot.tensor).transpose(0, slot.dim)
                entries[units[slot.units]] = change(entries[units[slot.units]])
    return model


def silenced_out_of(model: nn.Module, structure: Structure, units: Tensor) -> nn.Module:
    """A copy with all weights that read these units at zero."""
    model = copy.deepcopy(model)
    modules = dict(model.named_modules())
    with torch.no_grad():
        for layer in structure.layers:
            if not layer.per_channel:
                weight = modules[layer.name].weight
                per_group = layer.shape[0] // layer.groups
                for group, columns in enumerate(layer.in_units):
                    weight[group * per_group : (group + 1) * per_group, units[columns]] = 0
        transposed = {layer.name for layer in structure.transposed}
        for slot in structure.slots:
            if slot.module in transposed and (slot.tensor, slot.dim) == ("weight", 0):
                modules[slot.module].weight[units[slot.units]] = 0
    return model


def weight_shapes(structure: Structure) -> dict[str, tuple[int, ...]]:
    """The shape of the weight of every layer and every transposed conv."""
    shapes = {layer.name: layer.shape for layer in structure.layers}
    for layer in structure.transposed:
        shapes[layer.name] = (layer.in_units.numel(), layer.shape[0] // layer.groups, *layer.shape[2:])
    return shapes


def random_masks(structure: Structure, seed: int, density: float) -> dict[str, Tensor]:
    """Masks of all weights."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(shape, generator=generator) < density for name, shape in weight_shapes(structure).items()}


def masked(model: nn.Module, masks: dict[str, Tensor]) -> nn.Module:
    """A copy with the weights outside the masks at zero."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, mask in masks.items():
            model.get_submodule(name).weight.mul_(mask)
    return model
