import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from structure_networks import (
    NETWORKS,
    Net,
    chunked,
    conv,
    masked,
    padded,
    randomise,
    silenced_into,
    silenced_out_of,
)
from torch import nn
from torch.nn import functional

from bayesprune.models import create
from bayesprune.structure import close, live_units, macs, trace, trace_graph, unit_costs, weights, widths

IMAGES = torch.rand(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 0.5


def build(name):
    return NETWORKS[name][0]()


def quiet_trace(model, example):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trace(model, example)


def some_units(structure, seed):
    draws = torch.rand(structure.unit_count, generator=torch.Generator().manual_seed(seed))
    return structure.removable & (draws < 0.4)


def assert_exact(model, structure, example, seeds=5):
    """Silence into units is silence out of them."""
    for seed in range(seeds):
        units = some_units(structure, seed)
        into, out_of = (f(model, structure, units)(example) for f in (silenced_into, silenced_out_of))
        torch.testing.assert_close(into, out_of, rtol=1e-12, atol=1e-12)
        if bool(units.any()):
            assert not torch.allclose(into, model(example))


@pytest.mark.parametrize("name", NETWORKS)
def test_units_are_read_where_the_structure_says(name):
    model = randomise(build(name))
    structure = quiet_trace(model, IMAGES)
    assert int(structure.removable.sum()) == NETWORKS[name][1]
    assert structure.notes == () or name == "padded"
    assert_exact(model, structure, IMAGES)


@pytest.mark.parametrize("name", NETWORKS)
def test_closing_does_not_change_networks_without_biases(name):
    model = randomise(build(name), biases=False)
    structure = quiet_trace(model, IMAGES)
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        masks = {layer.name: torch.rand(layer.shape, generator=generator) < 0.08 for layer in structure.layers}
        closed = close(structure, masks)
        torch.testing.assert_close(masked(model, closed)(IMAGES), masked(model, masks)(IMAGES), rtol=1e-12, atol=1e-12)


KNOWN = [
    ("lenet5", (1, 28, 28), 10, 416_520, [6, 16, 120, 84]),
    ("alexnet-small", (3, 32, 32), 10, 1_298_088, [6, 16, 32, 64, 128, 120, 84]),
    ("vgg11", (3, 32, 32), 100, 152_825_616, [64, 128, 256, 256, 512, 512, 512, 512, 100]),
    ("resnet20", (3, 32, 32), 10, 40_813_184, [16] * 7 + [32] * 7 + [64] * 7),
]


@pytest.mark.parametrize(("name", "shape", "classes", "multiplications", "widths_"), KNOWN)
def test_known_networks(name, shape, classes, multiplications, widths_):
    model = create(name, shape, classes, generator=torch.Generator().manual_seed(0))
    structure = trace(model, torch.zeros(1, *shape))
    assert structure.notes == ()
    assert macs(structure) == multiplications
    assert widths(structure) == widths_
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert weights(structure) == sum(module.weight.numel() for module in layers)
    # Streams of ResNet-20 count once: three of them, and one inner layer per block.
    free = 112 + 336 if name == "resnet20" else sum(widths_)
    assert int(structure.removable.sum()) == free
    if name != "vgg11":
        assert_exact(randomise(model), structure, torch.rand(2, *shape, dtype=torch.float64), seeds=2)


@pytest.mark.parametrize("name", NETWORKS)
def test_macs_are_those_of_hooks(name):
    model = randomise(build(name))
    counts = []

    def hook(module, inputs, output):
        channels = module.in_features if isinstance(module, nn.Linear) else module.weight[0].numel()
        counts.append(output[0].numel() * channels)

    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            module.register_forward_hook(hook)
    model(IMAGES)
    expected = sum(counts)
    assert macs(quiet_trace(model, IMAGES)) == expected
    # Another batch size, the same count.
    assert macs(quiet_trace(model, IMAGES[:1])) == expected


def test_trace_leaves_the_network_as_it_was():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.Dropout(), conv(4, 2))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return functional.dropout(self.inner(x), 0.5, training=True)

    model = Counting().train()
    model.inner[1].eval()
    model.inner[0].weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    grads = [parameter.requires_grad for parameter in model.parameters()]
    state = torch.get_rng_state()
    trace(model, IMAGES.float())
    assert modes == [module.training for module in model.modules()]
    assert grads == [parameter.requires_grad for parameter in model.parameters()]
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_depthwise_layers_share_the_units_of_their_input():
    structure = trace(randomise(build("separable")), IMAGES)
    layers = {layer.name: layer for layer in structure.layers}
    assert [name for name, layer in layers.items() if layer.per_channel] == ["deep", "twice"]
    assert torch.equal(layers["deep"].out_units, layers["expand"].out_units)
    assert torch.equal(layers["twice"].out_units, layers["project"].out_units.repeat_interleave(2))
    assert bool(layers["deep"].gates.all())
    assert torch.equal(structure.norms["norm"], layers["expand"].out_units)


def test_a_dead_depthwise_filter_kills_its_unit_unless_a_skip_leads_around():
    def forward(net, x):
        x = net.one(x).relu()
        return net.out((x + net.deep(x) if net.skip else net.deep(x)).mean((2, 3)))

    for skip in (False, True):
        model = Net(forward, one=conv(3, 4), deep=conv(4, 4, groups=4), out=nn.Linear(4, 2)).double()
        model.skip = skip
        structure = trace(model, IMAGES)
        masks = {layer.name: torch.ones(layer.shape, dtype=torch.bool) for layer in structure.layers}
        masks["deep"][1] = False
        alive = live_units(structure, masks)
        assert bool(alive[structure.layers[0].out_units[1]]) is skip
        assert int((~alive).sum()) == (0 if skip else 1)


def test_a_module_called_twice_counts_twice():
    structure = trace(randomise(build("repeated")), IMAGES)
    assert [layer.name for layer in structure.layers] == ["stem", "same", "out"]
    assert structure.layers[1].positions == 2 * 64
    assert torch.equal(structure.layers[1].in_units[0], structure.layers[1].out_units)


def test_sizes_that_follow_the_units_are_written_down():
    model = randomise(chunked())
    structure = trace(model, IMAGES)
    layers = {layer.name: layer for layer in structure.layers}
    nodes = {node.name for node in trace_graph(model).nodes}
    assert [(one.kind, one.dim) for one in structure.resizes] == [("split", 1)] * 2 + [("slice", 1)] * 2
    assert all(one.node in nodes for one in structure.resizes)
    for one, readers in zip(structure.resizes[:2], (("a", "b"), ("c", "d")), strict=True):
        assert all(torch.equal(p, layers[r].in_units[0]) for p, r in zip(one.pieces, readers, strict=True))
    before, taken, after = structure.resizes[3].pieces
    assert torch.equal(taken, layers["f"].in_units[0])
    assert torch.equal(torch.cat([before, taken, after]), layers["sliced"].out_units)
    (view, _) = trace(randomise(build("viewed")), IMAGES).resizes
    assert view.kind == "size"
    assert len(view.pieces[0]) == 20


def test_channels_joined_with_padding_stay():
    model = randomise(padded())
    with pytest.warns(UserWarning, match="joins units with something that has none"):
        structure = trace(model, IMAGES)
    narrow = structure.layers[1]
    assert structure.removable[narrow.out_units].tolist() == [False] + [True] * 4 + [False] * 2


CONSERVATIVE = {
    "layer norm": (lambda: nn.LayerNorm([4, 8, 8]), "its statistics go across units"),
    "group norm": (lambda: nn.GroupNorm(2, 4), "its statistics go across units"),
    "softmax": (lambda: nn.Softmax(1), "its statistics go across units"),
    "pixel shuffle": (lambda: nn.PixelShuffle(2), "not understood"),
    "transposed conv": (lambda: nn.ConvTranspose2d(4, 4, 1), "not understood"),
    "view": (lambda: Net(lambda net, x: x.view(-1, 2, 2, 64).sum(1)), "several dimensions"),
    "shuffle": (
        lambda: Net(lambda net, x: x.view(-1, 2, 2, 8, 8).transpose(1, 2).flatten(1, 2)),
        "several dimensions",
    ),
    "roll": (lambda: Net(lambda net, x: x.roll(1, 1)), "turns the units around"),
    "matmul": (lambda: Net(lambda net, x: x @ x), "not understood"),
    "mean": (lambda: Net(lambda net, x: x * x.mean(1, keepdim=True)), "combines units"),
    "step": (lambda: Net(lambda net, x: x[:, ::2]), "picks single units"),
    "index": (lambda: Net(lambda net, x: x[:, 1]), "picks single units"),
    "other dimension": (lambda: nn.Linear(8, 8), "works across another dimension"),
}


@pytest.mark.parametrize("name", CONSERVATIVE)
def test_what_is_not_understood_keeps_its_units(name):
    make, note = CONSERVATIVE[name]

    def forward(net, x):
        x = net.odd(net.two(net.one(x)).relu())
        return net.out(x.flatten(1)[:, :64])

    model = randomise(Net(forward, one=conv(3, 5), two=conv(5, 4), odd=make(), out=nn.Linear(64, 3)))
    with pytest.warns(UserWarning, match=note) as caught:
        structure = trace(model, IMAGES)
    assert len(caught) == 1
    assert any(note in one for one in structure.notes)
    layers = {layer.name: layer for layer in structure.layers}
    assert bool(structure.removable[layers["one"].out_units].all())
    assert not bool(structure.removable[layers["two"].out_units].any())
    assert_exact(model, structure, IMAGES)


def test_units_along_different_dimensions_stay():
    def forward(net, x):
        x = net.embed(x)
        mixed = net.down(net.up(x.transpose(1, 2)).relu()).transpose(1, 2)
        return net.out((x + mixed).flatten(1))

    modules = {"embed": nn.Linear(3, 6), "up": nn.Linear(5, 7), "down": nn.Linear(7, 5), "out": nn.Linear(30, 2)}
    model = randomise(Net(forward, **modules))
    example = torch.rand(2, 5, 3, dtype=torch.float64)
    with pytest.warns(UserWarning, match="joins units along different dimensions"):
        structure = trace(model, example)
    assert int(structure.removable.sum()) == 7
    assert_exact(model, structure, example)


def test_a_recurrent_state_that_starts_at_zero_stays():
    def forward(net, x):
        state = torch.zeros(2, 6)
        for step in range(2):
            state = (net.state(state) + net.inputs(x[:, step])).tanh()
        return net.out(state)

    model = Net(forward, state=nn.Linear(6, 6), inputs=nn.Linear(5, 6), out=nn.Linear(6, 2))
    with pytest.warns(UserWarning, match="reads units in one call and none in another"):
        assert not bool(trace(model, torch.rand(2, 3, 5)).removable.any())


def test_softmax_at_the_end_costs_nothing():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.LogSoftmax(1))
    assert trace(model, torch.zeros(1, 3)).notes == ()


def test_parameters_used_elsewhere_keep_units():
    def scaled(net, x):
        return net.out(net.one(x) * net.scale)

    model = Net(scaled, one=nn.Linear(3, 4), out=nn.Linear(4, 2))
    model.scale = nn.Parameter(torch.ones(4))
    with pytest.warns(UserWarning, match="something that has none"):
        assert not bool(trace(model, torch.zeros(1, 3)).removable.any())
    model.scale = nn.Parameter(torch.ones(1))
    assert int(trace(model, torch.zeros(1, 3)).removable.sum()) == 4

    def borrowed(net, x):
        return net.out(net.one(x)) + net.one.weight.sum()

    with pytest.warns(UserWarning, match="used outside of its own forward"):
        assert not bool(
            trace(Net(borrowed, one=nn.Linear(3, 4), out=nn.Linear(4, 2)), torch.zeros(1, 3)).removable.any()
        )

    tied = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
    tied[3].weight = tied[1].weight
    with pytest.warns(UserWarning, match="shares its weight"):
        assert not bool(trace(tied, torch.zeros(1, 3)).removable.any())
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    with pytest.warns(UserWarning, match="computed from other parameters"):
        assert not bool(trace(normed, torch.zeros(1, 3)).removable.any())


def test_attention_stays_dense_and_the_feed_forward_layers_around_it_do_not():
    def forward(net, x):
        x = x + net.attention(x, x, x)[0]
        return net.out(net.down(functional.gelu(net.up(x))))

    model = Net(
        forward,
        attention=nn.MultiheadAttention(8, 2, batch_first=True),
        up=nn.Linear(8, 12),
        down=nn.Linear(12, 8),
        out=nn.Linear(8, 3),
    )
    with pytest.warns(UserWarning, match="attention"):
        structure = trace(model, torch.rand(2, 5, 8))
    assert int(structure.removable.sum()) == 12 + 8
    assert {layer.name: layer.positions for layer in structure.layers} == {
        "attention.out_proj": 5,
        "up": 5,
        "down": 5,
        "out": 5,
    }


def test_networks_that_cannot_be_traced_stay_dense():
    def forward(net, x):
        x = net.one(x)
        x = net.two(x) if x.sum() > 0 else net.two(-x)
        return net.out(x.mean((2, 3)))

    model = randomise(Net(forward, one=conv(3, 4), two=conv(4, 5), out=nn.Linear(5, 2)))
    with pytest.warns(UserWarning, match="cannot be traced"):
        structure = trace(model, IMAGES)
    assert not bool(structure.removable.any())
    assert macs(structure) == 64 * 9 * (3 * 4 + 4 * 5) + 10
    assert widths(structure) == [4, 5]
    masks = {layer.name: torch.zeros(layer.shape, dtype=torch.bool) for layer in structure.layers}
    assert bool(live_units(structure, masks).all())
    assert float(unit_costs(structure, 0.5).sum()) == 0


def test_graphs_that_compute_something_else_are_refused():
    def forward(net, x):
        x = net.one(x)
        kept = x
        x += 1  # torch.fx records a new tensor here, and `kept` without the 1
        return net.out(kept)

    model = Net(forward, one=nn.Linear(3, 4), out=nn.Linear(4, 2))
    with pytest.warns(UserWarning, match="something else than the network"):
        assert not bool(trace(model, torch.rand(2, 3)).removable.any())


def test_layers_never_called_and_single_layers():
    model = Net(lambda net, x: net.out(net.one(x)), one=nn.Linear(3, 4), aux=nn.Linear(4, 5), out=nn.Linear(4, 2))
    with pytest.warns(UserWarning, match="aux: is never called"):
        structure = trace(model, torch.rand(2, 3))
    assert macs(structure) == 20
    assert weights(structure) == 40
    alone = trace(nn.Linear(3, 4), torch.rand(2, 3))
    assert (macs(alone), widths(alone), alone.notes) == (12, [], ())


def test_optional_arguments_and_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.out = nn.Linear(3, 4), nn.Linear(5, 4), nn.Linear(4, 2)

        def forward(self, x, y, mask=None, scale=2.0):
            z = self.one(x).relu() + scale * self.two(y)
            return {"logits": self.out(z if mask is None else z * mask)}

    structure = trace(Two(), (torch.rand(2, 3), torch.rand(2, 5)))
    assert int(structure.removable.sum()) == 4
    assert widths(structure) == [4, 4]
    with pytest.raises(ValueError, match="example must be a tensor"):
        trace(Two(), "x")


STEPS = ("conv", "relu", "norm", "add", "cat", "deep", "skip", "split", "group", "excite", "pool")


class Random(nn.Module):
    """A network from a list of steps and the numbers that steer them."""

    def __init__(self, steps: list[tuple[str, int]]) -> None:
        super().__init__()
        self.plan = []
        self.parts = nn.ModuleList()
        widths = [3]
        for step, number in steps:
            last, other = widths[-1], number % len(widths)
            width = 2 + number % 4
            if step == "conv":
                self.parts.append(conv(last, width, 1 + 2 * (number % 2)))
            elif step == "norm":
                self.parts.append(nn.BatchNorm2d(last))
            elif step == "add":
                width = widths[other]
                self.parts.append(nn.Identity() if width == last else conv(last, width, 1))
            elif step == "cat":
                width = last + widths[other]
            elif step in ("deep", "skip"):
                width = last * (1 + number % 2) if step == "deep" else last
                self.parts.append(conv(last, width, groups=last))
            elif step == "split":
                self.parts.append(nn.ModuleList([conv(1, width), conv(last - 1, width, 1)]))
            elif step == "group":
                width = 4
                self.parts.append(nn.Sequential(conv(last, 6, 1), conv(6, 4, groups=2)))
            elif step == "excite":
                self.parts.append(nn.Sequential(conv(last, 2, 1), nn.ReLU(), conv(2, last, 1), nn.Sigmoid()))
            if step in ("relu", "norm", "excite", "pool"):
                width = last
            if step not in ("conv", "norm", "add", "deep", "skip", "split", "group", "excite"):
                self.parts.append(nn.Identity())
            widths.append(width)
            self.plan.append((step, other))
        self.out = nn.Linear(widths[-1] * 4, 3)

    def forward(self, x):
        values = [x]
        for (step, other), part in zip(self.plan, self.parts, strict=True):
            if step == "relu":
                x = x.relu()
            elif step == "add":
                x = part(x) + values[other]
            elif step == "cat":
                x = torch.cat([x, values[other]], 1)
            elif step == "skip":
                x = x + part(x)
            elif step == "split":
                first, second = x.split([1, x.shape[1] - 1], 1)
                x = part[0](first) + part[1](second)
            elif step == "excite":
                x = x * part(x.mean((2, 3), keepdim=True))
            elif step == "pool":
                x = functional.avg_pool2d(x, 3, 1, 1)
            else:
                x = part(x)
            values.append(x)
        return self.out(functional.adaptive_avg_pool2d(x, 2).flatten(1))


PLANS = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 100)), min_size=2, max_size=9)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(PLANS)
def test_random_networks(steps):
    model = randomise(Random(steps))
    images = IMAGES[:, :, :4, :4]
    structure = quiet_trace(model, images)
    assert not any("cannot be traced" in note or "not understood" in note for note in structure.notes)
    for seed in range(2):
        units = some_units(structure, seed)
        into, out_of = (f(model, structure, units)(images) for f in (silenced_into, silenced_out_of))
        torch.testing.assert_close(into, out_of, rtol=1e-11, atol=1e-11)
    model = randomise(model, biases=False)
    generator = torch.Generator().manual_seed(len(steps))
    masks = {layer.name: torch.rand(layer.shape, generator=generator) < 0.3 for layer in structure.layers}
    closed = masked(model, close(structure, masks))(images)
    torch.testing.assert_close(closed, masked(model, masks)(images), rtol=1e-11, atol=1e-11)
