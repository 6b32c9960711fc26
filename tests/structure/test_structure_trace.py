import copy
import math
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
    random_masks,
    randomise,
    scrambled_into,
    silenced_into,
    silenced_out_of,
)
from torch import nn
from torch.nn import functional

from bayesprune.models import create
from bayesprune.structure import close, live_units, macs, trace, trace_graph, unit_costs, unit_sums, weights, widths

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
def test_what_makes_a_unit_that_nothing_reads_does_not_matter(name):
    model = randomise(build(name))
    structure = quiet_trace(model, IMAGES)
    for unit in structure.removable.nonzero().flatten():
        alone = torch.arange(structure.unit_count) == unit
        unread = silenced_out_of(model, structure, alone)
        scrambled = scrambled_into(unread, structure, alone)
        torch.testing.assert_close(scrambled(IMAGES), unread(IMAGES), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_closing_does_not_change_networks_without_biases(name):
    model = randomise(build(name), biases=False)
    structure = quiet_trace(model, IMAGES)
    for seed in range(5):
        masks = random_masks(structure, seed, 0.08)
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
        if isinstance(module, nn.MultiheadAttention):
            counts.append(output[0][0].numel() * module.embed_dim)
        elif isinstance(module, nn.ConvTranspose2d):
            counts.append(inputs[0][0].numel() * module.weight[0].numel())
        else:
            channels = module.in_features if isinstance(module, nn.Linear) else module.weight[0].numel()
            counts.append(output[0].numel() * channels)

    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d | nn.MultiheadAttention):
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


def test_trace_removes_what_forward_and_tracer_leave_behind():
    class Untidy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
            self.out = nn.Linear(4, 2)
            self.calls, self.history = 0, []
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            self.count = self.count + 1
            x = self.inner(x + torch.tensor([1.0, 2.0, 3.0]))
            self.last = x
            self.history.append(x)
            self.inner[0].seen = True
            return self.out(x) * torch.ones(2)

    model = Untidy()
    before = [(module, dict(vars(module))) for module in model.modules()]
    names, count = list(model.state_dict()), model.count
    structure = trace(model, torch.rand(2, 3))
    assert int(structure.removable.sum()) == 4
    assert all(vars(module) == attributes for module, attributes in before)
    assert list(model.state_dict()) == names
    assert model.count is count
    assert (model.calls, model.history, float(count)) == (0, [], 0.0)


def test_parameters_without_a_size_are_refused():
    with pytest.raises(ValueError, match=r"0\.weight has no size yet; run the network on an example first"):
        trace(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)), torch.rand(2, 3))


FED = {
    "sum": lambda net, x: net.one(x) + x[:, :1],
    "difference": lambda net, x: x[:, :1] - net.one(x),
    "maximum": lambda net, x: torch.maximum(net.one(x), x.mean(1, keepdim=True)),
    "one channel": lambda net, x: net.one(x).add_(net.single(x)),
    "behind a filter": lambda net, x: net.deep(net.one(x)) + x[:, :1],
    "number": lambda net, x: net.one(x) + net.number,
    "map": lambda net, x: net.one(x) + net.map,
    "quotient": lambda net, x: (1 + x[:, :1] ** 2) / (1 + net.one(x) ** 2),
    "fill": lambda net, x: net.one(x).masked_fill(x[:, :1] > 0, 1.0),
}
NOT_FED = {
    "product": lambda net, x: net.one(x) * x[:, :1],
    "factor": lambda net, x: net.number * net.one(x),
    "divisor": lambda net, x: net.one(x) / net.number,
    "zeros": lambda net, x: net.one(x).masked_fill(x[:, :1] > 0, 0.0),
    "filter of a sum": lambda net, x: net.deep(net.one(x) * x[:, :1]),
}


def fed_network(function):
    def forward(net, x):
        return net.out(net.two(function(net, x)).mean((2, 3)))

    parts = {"one": conv(3, 5), "single": conv(3, 1), "deep": conv(5, 5, groups=5), "two": conv(5, 4)}
    model = Net(forward, **parts, out=nn.Linear(4, 3))
    model.number = nn.Parameter(torch.ones(()))
    model.map = nn.Parameter(torch.ones(8, 1))
    return randomise(model, biases=False)


@pytest.mark.parametrize("name", [*FED, *NOT_FED])
def test_units_with_content_from_elsewhere(name):
    model = fed_network((FED | NOT_FED)[name])
    structure = quiet_trace(model, IMAGES)
    units = structure.layers[0].out_units
    assert bool(structure.removable[units].all())
    assert structure.given[units].tolist() == [name in FED] * 5
    for seed in range(8):
        masks = random_masks(structure, seed, 0.5)
        kept = torch.rand(2, 5, generator=torch.Generator().manual_seed(seed)) < 0.5
        masks["one"] &= kept[0].reshape(5, 1, 1, 1)
        masks["deep"] |= kept[0].reshape(5, 1, 1, 1)
        masks["deep"] &= kept[1].reshape(5, 1, 1, 1)
        alive = live_units(structure, masks)
        closed = masked(model, close(structure, masks))(IMAGES)
        torch.testing.assert_close(closed, masked(model, masks)(IMAGES), rtol=1e-12, atol=1e-12)
        # By brute force: a unit lives if its weights, in or out, matter; all readers are alive here.
        for channel, unit in enumerate(units):
            alone = torch.arange(structure.unit_count) == unit
            unread = silenced_out_of(masked(model, masks), structure, alone)(IMAGES)
            matters = not torch.allclose(unread, masked(model, masks)(IMAGES), rtol=1e-12, atol=1e-12)
            assert bool(alive[unit]) == matters, channel


def test_units_that_only_make_each_other_are_dead():
    model = randomise(build("residual"), biases=False)
    structure = trace(model, IMAGES)
    layers = {layer.name: layer for layer in structure.layers}
    masks = random_masks(structure, 0, 1)
    masks["stem"][2] = masks["b1"][2] = masks["b2"][2] = False
    masks["b1"][2, 3] = True
    masks["a1"][3] = False
    masks["a1"][3, 2] = True
    alive = live_units(structure, masks)
    dead = [int(layers["stem"].out_units[2]), int(layers["a1"].out_units[3])]
    assert (~alive).nonzero().flatten().tolist() == dead
    closed = masked(model, close(structure, masks))(IMAGES)
    torch.testing.assert_close(closed, masked(model, masks)(IMAGES), rtol=1e-12, atol=1e-12)


COUNTING = {
    "divided": (lambda net, x: x / x.shape[1], False),
    "size": (lambda net, x: x * x.size(1) ** -0.5, False),
    "size by name": (lambda net, x: x * x.size(dim=-3), False),
    "numel": (lambda net, x: x / (x.numel() // x.shape[0]), False),
    "slice of the shape": (lambda net, x: x * sum_of(x.shape[1:]), False),
    "new tensor": (lambda net, x: x + torch.full((1,), x.shape[1]), False),
    "other dimensions": (lambda net, x: x / (x.shape[0] * x.size(2)) * sum_of(x.shape[2:]), True),
    "shape": (lambda net, x: x.view(x.size(0), x.shape[1] * 64).reshape(x.shape), True),
    "split": (lambda net, x: torch.cat(x.split([2, x.shape[1] - 2], 1), 1), True),
}


def sum_of(sizes):
    return sizes[0] + sizes[1]


@pytest.mark.parametrize("name", COUNTING)
def test_units_whose_number_is_computed_with_stay(name):
    function, free = COUNTING[name]

    def forward(net, x):
        return net.out(function(net, net.two(net.one(x)).relu()).mean((2, 3)))

    model = randomise(Net(forward, one=conv(3, 5), two=conv(5, 4), out=nn.Linear(4, 3)))
    structure = quiet_trace(model, IMAGES)
    assert bool(structure.removable[structure.layers[0].out_units].all())
    assert structure.removable[structure.layers[1].out_units].tolist() == [free] * 4
    assert any("computes with the number of units" in note for note in structure.notes) is not free


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
    "group norm": (lambda: nn.GroupNorm(1, 4), "its statistics go across units"),
    "softmax": (lambda: nn.Softmax(1), "its statistics go across units"),
    "pixel shuffle": (lambda: nn.PixelShuffle(2), "not understood"),
    "transposed conv": (lambda: nn.ConvTranspose2d(4, 4, 1, groups=2), "not understood"),
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


def test_parameters_that_meet_units_have_slots():
    model = randomise(build("embedded"))
    structure = trace(model, IMAGES)
    hidden = structure.layers[0]
    assert [(slot.module, slot.tensor, slot.dim, slot.makes) for slot in structure.slots] == [
        ("embed", "weight", 1, True),
        ("", "position", 2, True),
        ("", "scale", 0, False),
    ]
    assert all(torch.equal(slot.units, hidden.in_units[0]) for slot in structure.slots)
    # An embedding is dead when nothing reads it, and only then.
    masks = random_masks(structure, 0, 1)
    masks["hidden"][:, 2] = False
    assert (~live_units(structure, masks)).nonzero().flatten().tolist() == [int(hidden.in_units[0, 2])]
    masks["out"][:] = False
    assert not bool((live_units(structure, masks) & structure.removable).any())

    def scaled(net, x):
        return net.out(net.one(x) * net.scale)

    model = Net(scaled, one=nn.Linear(3, 4), out=nn.Linear(4, 2))
    for size in (4, 1):
        model.scale = nn.Parameter(torch.ones(size))
        structure = trace(model, torch.zeros(1, 3))
        assert int(structure.removable.sum()) == 4
        assert len(structure.slots) == (size == 4)
    # A factor makes nothing: without weights into a unit it is dead.
    model.scale = nn.Parameter(torch.ones(4))
    structure = trace(model, torch.zeros(1, 3))
    masks = {"one": torch.tensor([True, False, True, True]).unsqueeze(1).expand(4, 3)}
    assert int((~live_units(structure, masks)).sum()) == 1


MISUSES = {
    "another dimension": lambda net, x: net.out(net.one(x) + net.scale + (net.one(x).mT + net.scale).mT),
    "no units": lambda net, x: net.out(net.one(x) * net.scale) + net.scale.sum(),
    "not directly": lambda net, x: net.out(net.one(x) * net.scale.exp()),
    "not at once": lambda net, x: net.out(net.one(x) * net.scale + net.act(net.scale)),
}


@pytest.mark.parametrize("name", MISUSES)
def test_parameters_that_do_not_follow_the_units_keep_them(name):
    model = Net(MISUSES[name], one=nn.Linear(3, 4), act=nn.ReLU(), out=nn.Linear(4, 2))
    model.scale = nn.Parameter(torch.rand(4, 4))
    with pytest.warns(UserWarning, match="they stay dense"):
        assert not bool(trace(model, torch.rand(1, 4, 3)).removable.any())


def test_parameters_used_elsewhere_keep_units():
    def borrowed(net, x):
        return net.out(net.one(x)) + net.one.weight.sum()

    with pytest.warns(UserWarning, match="used outside of its own forward"):
        assert not bool(
            trace(Net(borrowed, one=nn.Linear(3, 4), out=nn.Linear(4, 2)), torch.zeros(1, 3)).removable.any()
        )

    tied = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
    tied[3].weight = tied[1].weight
    with pytest.warns(UserWarning, match="3: shares its weight with 1"):
        assert not bool(trace(tied, torch.zeros(1, 3)).removable.any())
    biased = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
    biased[2].bias = biased[0].bias
    with pytest.warns(UserWarning, match="2: shares its bias with 0"):
        assert not bool(trace(biased, torch.zeros(1, 3)).removable.any())
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    with pytest.warns(UserWarning, match="computed from other parameters"):
        assert not bool(trace(normed, torch.zeros(1, 3)).removable.any())


def test_transposed_convs_have_slots():
    structure = trace(randomise(build("upsampled")), IMAGES)
    layers = {layer.name: layer for layer in (*structure.layers, *structure.transposed)}
    assert [layer.name for layer in structure.layers] == ["one", "two", "out"]
    assert [(layer.name, layer.shape, layer.positions) for layer in structure.transposed] == [
        ("up", (4, 5, 2, 2), 64),
        ("last", (3, 6, 3, 3), 256),
        ("again", (5, 3, 1, 1), 31 * 31),
    ]
    slots = {(slot.module, slot.tensor, slot.dim): slot.units for slot in structure.slots}
    assert not any(slot.makes for slot in structure.slots)
    for name, before, after in [("up", "one", "two"), ("last", "two", "again"), ("again", "last", "out")]:
        assert torch.equal(slots[name, "weight", 0], layers[before].out_units)
        assert torch.equal(slots[name, "weight", 1], layers[after].in_units[0])
    assert torch.equal(slots["up", "bias", 0], slots["up", "weight", 1])
    assert ("last", "bias", 0) not in slots
    assert weights(structure) == sum(math.prod(layer.shape) for layer in layers.values())


def test_units_between_layers_and_transposed_convs_die_from_either_side():
    structure = trace(randomise(build("upsampled")), IMAGES)
    layers = {layer.name: layer for layer in (*structure.layers, *structure.transposed)}

    def dead(masks):
        return set((~live_units(structure, masks)).nonzero().flatten().tolist())

    full = random_masks(structure, 0, 1)
    assert dead({}) == dead(full) == set()
    ends = {"one": (1, "out"), "two": (2, "in"), "up": (2, "out"), "again": (0, "in")}
    for name, (channel, side) in ends.items():
        masks = {name: full[name].clone()}
        # The weight of a transposed conv has its inputs first.
        first = (side == "out") != (name in ("up", "again"))
        masks[name].transpose(0, 0 if first else 1)[channel] = False
        units = layers[name].out_units if side == "out" else layers[name].in_units[0]
        assert dead(masks) == {int(units[channel])}
    # Nothing reads the last but one transposed conv, so that all before it is dead as well.
    nothing = {"out": torch.zeros_like(full["out"])}
    assert dead(nothing) == set(structure.removable.nonzero().flatten().tolist())


def test_transposed_convs_twice_and_of_a_users_class():
    class Mine(nn.ConvTranspose1d):
        pass

    def forward(net, x):
        x = net.one(x)
        return net.out(net.up(net.up(x)).mean(-1))

    model = randomise(Net(forward, one=nn.Conv1d(3, 4, 1), up=Mine(4, 4, 3), out=nn.Linear(4, 2)))
    example = torch.rand(2, 3, 5, dtype=torch.float64)
    structure = trace(model, example)
    assert int(structure.removable.sum()) == 4
    assert structure.transposed[0].positions == 5 + 7
    assert_exact(model, structure, example)
    alone = trace(nn.ConvTranspose1d(3, 4, 2), torch.rand(2, 3, 5))
    assert (macs(alone), weights(alone), alone.notes) == (3 * 4 * 2 * 5, 24, ())
    tied = nn.Sequential(nn.Conv1d(3, 4, 2), nn.ConvTranspose1d(4, 3, 2), nn.Conv1d(3, 1, 1))
    tied[1].weight = tied[0].weight
    with pytest.warns(UserWarning, match="1: shares its weight with 0"):
        assert not bool(trace(tied, torch.rand(2, 3, 5)).removable.any())


def test_the_channels_of_a_group_are_one_unit():
    structure = trace(randomise(build("group_normed")), IMAGES)
    layers = {layer.name: layer for layer in structure.layers}
    units = layers["one"].out_units
    assert torch.equal(units, units[::2].repeat_interleave(2))
    assert len(units.unique()) == 3
    assert torch.equal(structure.norms["norm"], units)
    assert len(structure.norms["instance"].unique()) == 4
    # All channels of a group must be dead.
    masks = random_masks(structure, 0, 1)
    for name in ("two", "skip"):
        masks[name][:, 2] = False
    assert bool(live_units(structure, masks).all())
    for name in ("two", "skip"):
        masks[name][:, 3] = False
    assert (~live_units(structure, masks)).nonzero().flatten().tolist() == [int(units[2])]


def test_groups_with_channels_of_no_unit_stay():
    def forward(net, x):
        return net.out(net.norm(torch.cat([net.one(x), x], 1)).mean((2, 3)))

    model = randomise(Net(forward, one=conv(3, 3), norm=nn.GroupNorm(3, 6), out=nn.Linear(6, 2)))
    with pytest.warns(UserWarning, match="something that has none"):
        structure = trace(model, IMAGES)
    assert structure.removable[structure.layers[0].out_units].tolist() == [True, True, False]
    assert_exact(model, structure, IMAGES)


def test_an_embedding_and_the_linear_with_its_weight_share_units():
    def language(net, x):
        x = net.embed(x)
        return net.out(x + net.down(net.up(x).relu()))

    example = torch.arange(6).reshape(2, 3)
    model = Net(language, embed=nn.Embedding(7, 5), up=nn.Linear(5, 4), down=nn.Linear(4, 5), out=nn.Linear(5, 7))
    model.out.weight = model.embed.weight
    randomise(model)
    structure = trace(model, example)
    assert int(structure.removable.sum()) == 5 + 4
    layers = {layer.name: layer for layer in structure.layers}
    assert torch.equal(layers["out"].in_units[0], structure.slots[0].units)
    assert not bool(structure.removable[layers["out"].out_units].any())
    assert_exact(model, structure, example)

    def inside(net, x):
        return net.last(language(net, x).relu())

    model = Net(
        inside,
        embed=nn.Embedding(7, 5),
        up=nn.Linear(5, 4),
        down=nn.Linear(4, 5),
        out=nn.Linear(5, 7),
        last=nn.Linear(7, 2),
    )
    model.out.weight = model.embed.weight
    with pytest.warns(UserWarning, match="out: its outputs are the entries of embed"):
        structure = trace(model, example)
    assert int(structure.removable.sum()) == 5 + 4

    def apart(net, x):
        return net.a(net.one(x)) + net.b(net.two(x))

    model = Net(apart, one=nn.Embedding(7, 5), two=nn.Embedding(7, 5), a=nn.Linear(5, 2), b=nn.Linear(5, 2))
    assert int(trace(model, example).removable.sum()) == 10
    model.two.weight = model.one.weight
    structure = trace(model, example)
    assert int(structure.removable.sum()) == 5
    assert_exact(randomise(model), structure, example)


def test_embeddings_that_stay():
    example = torch.arange(6).reshape(2, 3)
    model = nn.Sequential(nn.Embedding(7, 5, max_norm=1.0), nn.Linear(5, 4), nn.Linear(4, 2))
    with pytest.warns(UserWarning, match="not understood"):
        assert int(trace(model, example).removable.sum()) == 4

    def forward(net, x):
        return net.out(net.embed(x)) + net.embed.weight.sum()

    with pytest.warns(UserWarning, match="embed: its parameters are also used"):
        trace(Net(forward, embed=nn.Embedding(7, 5), out=nn.Linear(5, 2)), example)

    def rounded(net, x):
        return net.out(net.embed(net.one(x).abs().to(torch.long)))

    model = Net(rounded, one=nn.Linear(3, 4), embed=nn.Embedding(50, 5), out=nn.Linear(5, 2))
    with pytest.warns(UserWarning, match="takes units for indices"):
        assert int(trace(model, torch.rand(2, 3)).removable.sum()) == 5


def test_heads_are_units():
    structure = trace(randomise(build("attended")), IMAGES)
    project = structure.layers[0]
    assert project.name == "attention.out_proj"
    heads = project.in_units[0].unique(sorted=True)
    assert torch.equal(project.in_units[0], heads.repeat_interleave(4))
    assert [(slot.module, slot.tensor, slot.dim, slot.makes) for slot in structure.slots] == [
        ("attention", "in_proj_weight", 0, True),
        ("attention", "in_proj_bias", 0, False),
    ]
    assert all(torch.equal(slot.units, project.in_units[0].repeat(3)) for slot in structure.slots)
    assert torch.equal(project.out_units, structure.layers[1].in_units[0])
    sums = unit_sums(structure, {project.name: torch.ones(12, 12)})
    assert sums[heads].tolist() == [48] * 3
    masks = random_masks(structure, 0, 1)
    masks[project.name][:, 4:7] = False
    assert bool(live_units(structure, masks).all())
    masks[project.name][:, 7] = False
    assert (~live_units(structure, masks)).nonzero().flatten().tolist() == [int(heads[1])]


def attend(net, x, **options):
    return net.attention(x, x, x, **options)


HEADS = {
    "weights not asked for": (lambda net, x: attend(net, x, need_weights=False), True),
    "causal": (lambda net, x: (attend(net, x, attn_mask=net.causal)[0], None), True),
    "weights returned": (lambda net, x: attend(net, x), False),
    "mask per head": (lambda net, x: (attend(net, x, attn_mask=net.by_head)[0], None), False),
    "borrowed": (lambda net, x: (attend(net, x)[0] + net.attention.in_proj_weight.sum(), None), False),
    "borrowed inside": (lambda net, x: (attend(net, x)[0] + net.attention.out_proj.weight.sum(), None), False),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_heads_can_go_unless_something_depends_on_all_of_them(name, batch_first):
    function, free = HEADS[name]

    def forward(net, x):
        attended, weights = function(net, x)
        return net.out(attended), weights

    model = Net(
        forward, attention=nn.MultiheadAttention(6, 3, bias=False, batch_first=batch_first), out=nn.Linear(6, 2)
    )
    model.register_buffer("causal", torch.ones(4, 4).triu(1).bool())
    model.register_buffer("by_head", torch.zeros(12, 4, 4).bool())
    structure = quiet_trace(model, torch.rand(4, 4, 6))
    heads = structure.layers[0].in_units[0]
    assert structure.removable[heads].tolist() == [free] * 6
    assert (structure.notes == ()) is free


def test_attention_of_other_kinds_stays_dense():
    x = torch.rand(2, 5, 6)
    for options in ({"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 4, "vdim": 4}):
        other = x[..., : options.get("kdim", 6)]
        model = Net(lambda net, x: None, attention=nn.MultiheadAttention(6, 3, **options), out=nn.Linear(6, 2))
        model.steps = lambda net, x, size=other.shape[-1]: net.out(
            net.attention(x, x[..., :size], x[..., :size], need_weights=False)[0]
        )
        with pytest.warns(UserWarning, match="not understood"):
            assert not bool(trace(model, x).removable.any())


def test_attention_on_units_keeps_them():
    def forward(net, x):
        x = net.embed(x)
        for _ in range(2):
            x = x + net.attention(x, x, x)[0]
        return net.out(x)

    model = Net(forward, embed=nn.Embedding(7, 6), attention=nn.MultiheadAttention(6, 3), out=nn.Linear(6, 2))
    example = torch.arange(6).reshape(2, 3)
    with pytest.warns(UserWarning, match="its inputs stay dense"):
        structure = trace(randomise(model), example)
    assert int(structure.removable.sum()) == 3
    assert structure.layers[0].positions == 2 * 3
    assert_exact(model, structure, example)


def test_attention_to_the_input_and_the_feed_forward_layers_around_it():
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
    with pytest.warns(UserWarning, match=r"add \(add\): joins units with something that has none") as caught:
        structure = trace(model, torch.rand(2, 5, 8))
    assert int(structure.removable.sum()) == 2 + 12 + 8
    assert len(caught) == 1
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


STEPS = [
    "conv",
    "relu",
    "norm",
    "add",
    "cat",
    "deep",
    "skip",
    "split",
    "group",
    "excite",
    "pool",
    "up",
    "groups",
    "scale",
]


class Scale(nn.Module):
    """A factor and a summand per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(width, 1, 1))
        self.summand = nn.Parameter(torch.ones(1, width, 4, 4))

    def forward(self, x):
        return x * self.factor + self.summand


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
            elif step == "up":
                self.parts.append(nn.ConvTranspose2d(last, width, 3, padding=1, bias=bool(number % 2)))
            elif step == "groups":
                self.parts.append(nn.GroupNorm(last if number % 2 or last % 2 else last // 2, last))
            elif step == "scale":
                self.parts.append(Scale(last))
            if step in ("relu", "norm", "excite", "pool", "groups", "scale"):
                width = last
            if step in ("relu", "cat", "pool"):
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
    masks = random_masks(structure, len(steps), 0.3)
    closed = masked(model, close(structure, masks))(images)
    torch.testing.assert_close(closed, masked(model, masks)(images), rtol=1e-11, atol=1e-11)
