"""Networks with one habit each, and inputs for them."""

import math
import operator

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayesprune.models import create


class Net(nn.Module):
    """Named modules and a function of them."""

    def __init__(self, steps, **modules):
        super().__init__()
        self.steps = steps
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x):
        return self.steps(self, x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 8, padding_idx=0)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, kdim=6, vdim=6, add_bias_kv=True)
        self.narrow = nn.Linear(8, 6)
        self.norm = nn.LayerNorm(8)
        self.rms = nn.RMSNorm(8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.tokens.weight

    def forward(self, tokens, mask=None):
        x = self.tokens(tokens)
        narrow = self.narrow(x)
        y, _ = self.attention(x, narrow, narrow, need_weights=False)
        return self.out(self.rms(self.norm(x + y)))


class SelfMade(nn.Module):
    """Parameters and buffers that belong to no layer, a weight read around its layer, constants."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(1, 6, 1, 1))
        self.shift = nn.Parameter(torch.randn(6, 1, 1).double().float(), requires_grad=False)
        self.register_buffer("table", torch.randn(4, 6))
        self.register_buffer("mask", torch.rand(6) > 0.3, persistent=False)
        self.inner = nn.Module()
        self.inner.weights = nn.ParameterList([nn.Parameter(torch.randn(6, 6)) for _ in range(2)])
        self.conv = nn.Conv2d(3, 6, 3)
        self.last = nn.Linear(6, 4)

    def forward(self, x):
        x = self.conv(x) * self.scale + self.shift
        x = torch.where(x > 0, x, torch.full_like(x, -math.inf)).clamp(min=-2.0).mean((2, 3))
        for weight in self.inner.weights:
            x = functional.softplus(x @ weight)
        x = x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        x = x.masked_fill(self.mask, 0.25)
        x = functional.linear(x, self.last.weight) + self.last(x) + functional.linear(x, self.table)
        return x.masked_fill(x.isnan(), 0.5).to(torch.float64) + math.sqrt(2)


class Several(nn.Module):
    """Two inputs and one with a default; a dict, a tuple and a number as output."""

    def __init__(self):
        super().__init__()
        self.left = nn.Conv1d(3, 4, 3, padding="same", padding_mode="circular")
        self.right = nn.Linear(5, 4)
        self.both = nn.Bilinear(4, 4, 3)

    def forward(self, x, y, scale=2.0):
        a, b = self.left(x).mean(-1), self.right(y)
        return {"both": self.both(a, b) * scale, "parts": (a, [b, x.shape[0]]), "none": None}


class Transposed(nn.Module):
    """Weights that are not row by row in memory."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 16, 3).to(memory_format=torch.channels_last)
        self.one = nn.Conv2d(16, 8, 1).to(memory_format=torch.channels_last)
        self.linear = nn.Linear(8, 64)
        self.linear.weight = nn.Parameter(torch.randn(8, 64).t())
        self.sliced = nn.Linear(64, 4)
        self.sliced.weight = nn.Parameter(torch.randn(4, 128)[:, ::2])
        self.sliced.bias = nn.Parameter(torch.randn(1).expand(4))

    def forward(self, x):
        return self.sliced(self.linear(self.one(self.conv(x)).amax((2, 3))))


def images() -> nn.Module:
    def forward(net, x):
        x = net.prelu(net.norm(net.conv(net.pad(x))))
        x = net.shrink(net.instance(net.up(x)))
        one, two, _ = net.grow(x).split([3, 4, 5], dim=1)
        x = torch.cat([functional.gelu(one), two.tanh(), functional.adaptive_avg_pool2d(x, x.shape[-2:])], 1)
        x = functional.avg_pool2d(functional.max_pool2d(x, 3, 2), 2, count_include_pad=False)
        x = functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        x = x[:, ::2, ..., 1:].flip(-1).permute(0, 2, 3, 1).contiguous()
        x = functional.layer_norm(x, (x.size(-1),)).flatten(1)
        return functional.log_softmax(x[:, : x.shape[1] // 2], dim=-1)

    return Net(
        forward,
        pad=nn.ConstantPad2d((1, 2, 0, 1), 0.25),
        conv=nn.Conv2d(3, 6, 3, 2, dilation=2, groups=3),
        norm=nn.GroupNorm(3, 6),
        prelu=nn.PReLU(6),
        up=nn.ConvTranspose2d(6, 4, 3, 2, output_padding=1),
        instance=nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        shrink=nn.Softshrink(0.1),
        grow=nn.Conv2d(4, 12, 1),
    )


def arithmetic() -> nn.Module:
    def forward(net, x):
        a, b, c = x.chunk(3, dim=1)
        x = (a + 1.5) * b - c / 2 + (-a) ** 2 + torch.einsum("bi,bi->b", a, b).unsqueeze(1)
        x = torch.stack([x, x.abs().sqrt(), torch.minimum(a, b)], dim=0).sum(0)
        x = torch.bmm(x.unsqueeze(2), x[:, None, :]).mT
        x = net.softmax(net.unflatten(x.reshape(x.size(0), -1)))
        return operator.getitem(x, (slice(None), 0)).topk(2, dim=-1)[0], x.dtype, x.ndim

    return Net(forward, softmax=nn.Softmax(-1), unflatten=nn.Unflatten(1, (2, 8)))


def every_dtype() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double(), nn.Linear(4, 4).bfloat16(), nn.Linear(4, 4).half())

    def forward(net, x):
        x = net.layers[0](x).double()
        x = net.layers[1](x).bfloat16()
        x = net.layers[2](x).half()
        x = net.layers[3](x).float() * net.int8 + net.scalar
        return torch.cat([x, net.empty], 1) * net.flags + net.int64

    made = Net(forward, layers=net)
    for name, value in {
        "int8": torch.randint(-5, 5, (4,), dtype=torch.int8),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.empty(3, 0),
        "flags": torch.tensor([True, False, True, True]),
        "int64": torch.tensor([2**40, 1, 2, 3]),
    }.items():
        made.register_parameter(name, nn.Parameter(value, requires_grad=False))
    return made


def no_units() -> nn.Module:
    """What is left when every unit of a layer was removed."""
    net = nn.Sequential(nn.Linear(4, 1), nn.ReLU(), nn.Linear(1, 3))
    net[0].weight = nn.Parameter(torch.empty(0, 4))
    net[0].bias = nn.Parameter(torch.empty(0))
    net[2].weight = nn.Parameter(torch.empty(3, 0))
    net[0].out_features = net[2].in_features = 0
    return net


def volumes() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 4, 2, bias=False),
        nn.BatchNorm3d(4, momentum=None),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Dropout3d(0.3),
        nn.AdaptiveMaxPool3d((2, None, 1)),
        nn.Flatten(2),
        nn.Upsample(size=7),
        nn.Hardtanh(-0.5, 0.5),
        nn.LPPool1d(2, 3),
        nn.Identity(),
        nn.Flatten(),
        nn.GLU(),
    )


def shared_layer() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Sequential(nn.Sigmoid(), layer))


def _models() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    generator = torch.Generator().manual_seed(7)
    shapes = {"mlp": (1, 8, 8), "lenet5": (1, 28, 28), "alexnet-small": (3, 32, 32)}
    shapes |= {"vgg11": (3, 32, 32), "resnet20": (3, 32, 32)}
    made = {}
    for name, shape in shapes.items():
        network = create(name, input_shape=shape, classes=10, generator=generator)
        made[name] = network, (torch.randn(2, *shape, generator=generator),)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(generator=generator)
    return made


def networks() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Every network with its inputs, by name."""
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        return _models() | {
            "attention": (Attention(), (torch.randint(0, 11, (2, 5)),)),
            "self_made": (SelfMade(), (torch.randn(2, 3, 6, 6),)),
            "several": (Several(), (torch.randn(2, 3, 9), torch.randn(2, 5))),
            "transposed": (Transposed(), (torch.randn(2, 8, 7, 7),)),
            "images": (images(), (torch.randn(2, 3, 13, 14),)),
            "arithmetic": (arithmetic(), (torch.randn(3, 12),)),
            "every_dtype": (every_dtype(), (torch.randn(3, 4),)),
            "no_units": (no_units(), (torch.randn(3, 4),)),
            "volumes": (volumes(), (torch.randn(2, 1, 5, 6, 7),)),
            "shared_layer": (shared_layer(), (torch.randn(2, 4),)),
            "one_layer": (nn.Linear(3, 2), (torch.randn(2, 3),)),
        }


def small() -> nn.Module:
    """A network whose file is small, with a bit of everything."""
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        return Net(
            lambda net, x: net.out(functional.relu(net.norm(net.conv(x))).mean(dim=(2, 3))).reshape(-1, 3),
            conv=nn.Conv2d(1, 4, 3, padding=1),
            norm=nn.BatchNorm2d(4),
            out=nn.Linear(4, 3),
        ).eval()


def clustered() -> nn.Module:
    """A small network with zeros: rectangles, a dead row, single weights."""
    with torch.random.fork_rng([]):
        torch.manual_seed(6)
        net = Net(
            lambda net, x: net.out(functional.relu(net.norm(net.conv(x))).mean(dim=(2, 3))).reshape(-1, 12),
            conv=nn.Conv2d(1, 8, 3, padding=1),
            norm=nn.BatchNorm2d(8),
            out=nn.Linear(8, 12),
        ).eval()
        live = torch.rand(12, 8) < 0.1
        live[1:5, 2:7] = live[7:11, 0:3] = True
        live[11] = False
        with torch.no_grad():
            net.out.weight.masked_fill_(~live, 0)
            net.conv.weight.masked_fill_(torch.rand(8, 1, 3, 3) < 0.6, 0)
        return net
