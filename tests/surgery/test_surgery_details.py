"""What stays, what goes, and how."""

import copy

import pytest
import torch
from surgery_networks import full_masks, hard_coded, unit_masks, weight_masks
from torch import nn
from torch.nn import functional

from bayesprune.surgery import masked_network, operate, prove, shrink
from bayesprune.surgery.constants import POINTWISE, SAFE_FUNCTIONS, SAFE_MODULES
from structure.structure_networks import Net, conv, randomise

IMAGES = torch.rand(3, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 0.5


def proven(model, masks, example=IMAGES, **options):
    surgery = operate(model, masks, example[:2], **options)
    assert isinstance(surgery.network, torch.fx.GraphModule), surgery.notes
    prove(masked_network(model, masks), surgery.network, [example, example[:1]])
    return surgery


def shape(surgery, name):
    return tuple(surgery.network.get_parameter(f"{name}.weight").shape)


def test_unread_units_go():
    model = randomise(Net(lambda net, x: net.out(net.norm(net.one(x)).relu().flatten(1)), **plain_parts()))
    masks = full_masks(model)
    masks["out"].reshape(3, 6, 64)[:, [1, 4, 5]] = False
    masks["out"].reshape(3, 6, 64)[:, 2, 7] = False
    surgery = proven(model, masks)
    network = surgery.network
    assert surgery.removed_units == 3
    assert (shape(surgery, "one"), shape(surgery, "out")) == ((3, 3, 3, 3), (3, 3 * 64))
    assert torch.equal(network.one.weight, model.one.weight[[0, 2, 3]])
    assert torch.equal(network.norm.running_var, model.norm.running_var[[0, 2, 3]])
    assert (network.one.out_channels, network.norm.num_features, network.out.in_features) == (3, 3, 192)
    assert not bool(network.out.weight.reshape(3, 3, 64)[:, 1, 7].any())
    assert list(network.state_dict()) == list(model.state_dict())
    for name, parameter in network.named_parameters():
        index = surgery.kept[name]
        assert index.shape == parameter.shape
        expected = masked_network(model, masks).get_parameter(name).flatten()[index]
        assert torch.equal(expected, parameter)


def plain_parts():
    return {"one": conv(3, 6), "norm": nn.BatchNorm2d(6), "out": nn.Linear(6 * 64, 3)}


def constant_network(padding, **options):
    """The first conv's unit 1 has no live inputs, so that its bias decides."""

    def forward(net, x):
        return net.out(net.two(net.norm(net.one(x)).sigmoid()).relu().mean((2, 3)))

    parts = {"one": conv(3, 5), "norm": nn.BatchNorm2d(5), "two": nn.Conv2d(5, 4, 3, padding=padding, **options)}
    model = randomise(Net(forward, **parts, out=nn.Linear(4, 3)))
    masks = full_masks(model)
    masks["one"][1] = False
    return model, masks


def test_constants_are_folded_where_there_is_no_padding():
    for options in ({}, {"bias": False}, {"padding_mode": "replicate"}):
        model, masks = constant_network(1 if "padding_mode" in options else 0, **options)
        surgery = proven(model, masks)
        assert surgery.removed_units == 1
        assert shape(surgery, "two") == (4, 4, 3, 3)
        assert surgery.network.two.bias is not None
        assert bool((surgery.kept["two.bias"] == -1).all()) is ("bias" in options)


def test_constants_under_zero_padding_stay():
    model, masks = constant_network(1)
    surgery = proven(model, masks)
    assert surgery.removed_units == 0
    assert shape(surgery, "one") == (5, 3, 3, 3)
    # The same with taps that never see the padding.
    masks["two"][:, 1] = False
    masks["two"][:, 1, 1, 1] = True
    surgery = proven(model, masks)
    assert surgery.removed_units == 1
    # And with a constant of zero, which padding does not change.
    model, masks = constant_network(1)
    with torch.no_grad():
        model.norm.bias[1] = -1e5
    surgery = proven(model, masks)
    assert surgery.removed_units == 1


def test_constants_through_a_residual_need_all_makers_to_be_constant():
    def forward(net, x):
        x = net.stem(x)
        return net.out((x + net.branch(x)).relu().mean((2, 3)))

    model = randomise(Net(forward, stem=conv(3, 5), branch=conv(5, 5), out=nn.Linear(5, 3)))
    masks = full_masks(model)
    masks["branch"][2] = False
    assert proven(model, masks).removed_units == 0
    masks["stem"][2] = False
    # The branch reads the constant under zero padding.
    assert proven(model, masks).removed_units == 0
    masks["branch"][:, 2] = False
    assert proven(model, masks).removed_units == 1


def test_average_pooling_that_counts_padding_makes_no_constants():
    for counts in (True, False):
        parts = {"one": conv(3, 4), "pool": nn.AvgPool2d(3, 2, 1, count_include_pad=counts), "out": nn.Conv2d(4, 3, 2)}
        model = randomise(Net(lambda net, x: net.out(net.pool(net.one(x))), **parts))
        masks = full_masks(model)
        masks["one"][0] = False
        assert proven(model, masks).removed_units == (0 if counts else 1)


def test_chance_is_no_constant():
    def forward(net, x):
        x = functional.dropout(net.one(x).sigmoid(), 0.5, True)
        return net.out(x.mean((2, 3)))

    model = randomise(Net(forward, one=conv(3, 4), out=nn.Linear(4, 3)))
    masks = full_masks(model)
    masks["one"][0] = False
    assert operate(model, masks, IMAGES).removed_units == 0


ARGUMENTS = {
    "lerp": 3,
    "add": 2,
    "sub": 2,
    "mul": 2,
    "div": 2,
    "clamp": -1,
    "clip": -1,
    "clamp_min": -2,
    "clamp_max": -2,
}
TWO = {
    "subtract",
    "multiply",
    "divide",
    "truediv",
    "true_divide",
    "iadd",
    "isub",
    "imul",
    "itruediv",
    "maximum",
    "minimum",
}


def test_listed_operations_pass_nan_on():
    given = torch.tensor([float("nan"), 0.5], dtype=torch.float64)
    other = torch.tensor([0.25, 0.75], dtype=torch.float64)
    checked = 0
    for function, name in SAFE_FUNCTIONS.items():
        if name not in POINTWISE:
            continue
        kind = ARGUMENTS.get(name.rstrip("_"), 2 if name in TWO else 1)
        more = {3: (other, 0.5), 2: (other,), 1: (), -1: (-1.0, 1.0), -2: (0.6,)}[kind]
        result = function(given.clone(), *more)
        assert result.isnan().tolist() == [True, False], name
        checked += 1
    assert checked > 60
    generator = torch.Generator().manual_seed(3)
    for kind in SAFE_MODULES:
        name = kind.__name__
        dims = int(name[-2]) if name.endswith("d") and name[-2].isdigit() else 2
        module = build(kind, name).double().eval()
        one, other, unknown = (
            torch.rand(1, 3, *[6] * dims, dtype=torch.float64, generator=generator) for _ in range(3)
        )
        other[:, 1:] = unknown[:, 1:] = one[:, 1:]
        unknown[:, 0] = float("nan")
        depends = module(one) != module(other)
        assert bool(depends.any()), name
        assert bool(module(unknown)[depends].isnan().all()), name


def build(kind, name):
    if "Pool" in name:
        return kind(2)
    if "Pad" in name:
        return kind(1, 0.5) if "Constant" in name else kind(1)
    if "InstanceNorm" in name:
        return kind(3, track_running_stats=True)
    special = {
        "GroupNorm": (1, 3),
        "LayerNorm": ([3, 6, 6],),
        "Unflatten": (1, (3, 1)),
        "Softmax": (1,),
        "LogSoftmax": (1,),
        "Softmin": (1,),
        "GLU": (-1,),
    }
    if "Upsamp" in name:
        return kind(scale_factor=2)
    return kind(*special.get(name, ()))


CROPS = {
    "centre": ((slice(1, 4), slice(1, 4)), (3, 3)),
    "corner": ((slice(0, 2), slice(0, 3)), (2, 3)),
    "one tap": ((slice(4, 5), slice(0, 1)), (1, 1)),
    "a row": ((slice(2, 3), slice(0, 5)), (1, 5)),
}


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"dilation": 2}, {"stride": 2, "dilation": 2}])
@pytest.mark.parametrize("padding", [0, 2, 4, (1, 3), "same"])
@pytest.mark.parametrize("name", CROPS)
def test_crops(name, padding, options):
    if padding == "same" and "stride" in options:
        return
    places, kernel = CROPS[name]
    images = torch.rand(3, 3, 12, 11, dtype=torch.float64) - 0.5
    parts = {"one": nn.Conv2d(3, 4, 5, padding=padding, **options), "out": conv(4, 2, 1)}
    model = randomise(Net(lambda net, x: net.out(net.one(x).relu()), **parts))
    masks = full_masks(model)
    masks["one"][:] = False
    masks["one"][(slice(None), slice(None), *places)] = True
    surgery = proven(model, masks, images)
    assert shape(surgery, "one") == (4, 3, *kernel)
    assert surgery.network.one.kernel_size == kernel
    pads = [node for node in surgery.network.graph.nodes if node.target is functional.pad]
    if name == "centre" and padding in (2, "same") and "dilation" not in options:
        assert not pads
        assert surgery.network.one.padding == (1, 1)
    assert shape(proven(model, masks, images, crop=False), "one") == (4, 3, 5, 5)


def test_crops_of_depthwise_and_line_convs_and_none_for_other_padding():
    parts = {
        "one": conv(3, 4, 1),
        "deep": nn.Conv2d(4, 4, 3, padding=1, groups=4),
        "round": nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        "line": nn.Conv1d(4, 3, 7, padding=3),
    }
    model = randomise(Net(lambda net, x: net.line(net.round(net.deep(net.one(x))).flatten(2)), **parts))
    masks = full_masks(model)
    masks["deep"][:, :, 0] = masks["round"][:, :, 0] = masks["line"][:, :, 4:] = False
    surgery = proven(model, masks)
    assert shape(surgery, "deep") == (4, 1, 2, 3)
    assert shape(surgery, "round") == (4, 4, 3, 3)
    assert shape(surgery, "line") == (3, 4, 4)


def test_taps_beyond_the_image_are_not_cropped():
    parts = {"one": nn.Conv2d(3, 4, 7, padding=5), "out": conv(4, 2, 1)}
    model = randomise(Net(lambda net, x: net.out(net.one(x)), **parts))
    masks = full_masks(model)
    masks["one"][:] = False
    masks["one"][..., 6] = True
    for side in (1, 2, 5):
        proven(model, masks, IMAGES[..., :side])


def test_groups_keep_equally_many_channels():
    def forward(net, x):
        return net.out(net.two(net.one(x).relu()).relu().mean((2, 3)))

    model = randomise(Net(forward, one=conv(3, 12), two=conv(12, 9, groups=3), out=nn.Linear(9, 2)))
    masks = full_masks(model)
    masks["two"][:3, [0, 2]] = masks["two"][3:6, 1] = False  # 2 and 3 of 4 columns live
    masks["out"][:, [4, 5]] = False  # 3 and 1 of 3 rows
    masks["out"][:, 6:] = False  # the last group is gone
    surgery = proven(model, masks)
    assert surgery.network.two.groups == 2
    assert shape(surgery, "two") == (6, 3, 3, 3)
    assert shape(surgery, "one") == (6, 3, 3, 3)


def test_widths_are_multiples():
    def forward(net, x):
        return net.out(net.two(net.one(x).relu()).relu().mean((2, 3)))

    model = randomise(Net(forward, one=conv(3, 20), two=conv(20, 10), out=nn.Linear(10, 2)))
    masks = full_masks(model)
    masks["two"][:, 5:] = masks["out"][:, :1] = False
    assert shape(proven(model, masks), "two") == (9, 5, 3, 3)
    assert shape(proven(model, masks, multiple=4), "two") == (10, 8, 3, 3)
    assert shape(proven(model, masks, multiple=8), "one") == (8, 3, 3, 3)
    with pytest.raises(ValueError, match="multiple must be at least 1, got 0"):
        operate(model, masks, IMAGES, multiple=0)


def test_nothing_loses_all_its_width():
    for live in (True, False):
        model = randomise(hard_coded())
        masks = {name: torch.zeros_like(mask) for name, mask in full_masks(model).items()}
        masks["out"][:] = live
        surgery = proven(model, masks)
        assert min(min(parameter.shape) for parameter in surgery.network.parameters()) >= 1
        assert sum(parameter.numel() for parameter in surgery.network.parameters()) < 150
        output = surgery.network(IMAGES)
        assert torch.equal(output, output[:1].expand_as(output))


def test_the_given_network_is_left_alone():
    def forward(net, x):
        return net.out(functional.dropout(net.norm(net.one(x)).relu(), 0.5, net.training).flatten(1))

    model = randomise(Net(forward, **plain_parts())).float().train()
    model.norm.eval()
    model.one.weight.requires_grad_(False)
    calls = []
    handle = model.norm.register_forward_hook(lambda *_: calls.append(1))
    model(IMAGES.float()).sum().backward()
    before, count = copy.deepcopy(model.state_dict()), len(calls)
    gradient = model.out.weight.grad.clone()
    attributes = set(vars(model))
    masks = unit_masks(model, 0.3, 0)
    with pytest.warns(UserWarning, match="norm: its hooks are not taken over"):
        network = shrink(model, masks, IMAGES.float())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert len(calls) == count
    assert handle.id in model.norm._forward_hooks
    assert set(vars(model)) == attributes
    assert torch.equal(gradient, model.out.weight.grad)
    assert [model.training, model.norm.training] == [network.training, network.norm.training] == [True, False]
    assert network.one.training
    assert not network.one.weight.requires_grad
    assert network.out.weight.requires_grad
    assert network.out.weight.grad is None
    assert not network.norm._forward_hooks
    assert network.one.weight.dtype == torch.float32


def test_functional_dropout_follows_the_mode():
    def forward(net, x):
        x = functional.dropout(net.one(x).relu(), 0.5, net.training)
        return net.out(x.mean((2, 3)))

    model = randomise(Net(forward, one=conv(3, 6), out=nn.Linear(6, 3)))
    for training in (True, False):
        surgery = operate(model.train(training), weight_masks(model, 0.5, 0), IMAGES)
        network = surgery.network
        (drop,) = [module for module in network.modules() if isinstance(module, nn.Dropout)]
        assert (network.training, drop.training, drop.p) == (training, training, 0.5)
        assert surgery.notes == ()
        assert not torch.equal(network.train()(IMAGES), network(IMAGES))
        assert torch.equal(network.eval()(IMAGES), network(IMAGES))


def test_what_differs_in_training_is_noted():
    def forward(net, x):
        return net.out(net.one(x)) * 2 if net.training else net.out(net.one(x))

    model = randomise(Net(forward, one=nn.Linear(8, 6), out=nn.Linear(6, 3)))
    with pytest.warns(UserWarning, match="does other operations in training mode"):
        shrink(model, {}, IMAGES)


def test_networks_that_cannot_be_traced_are_copied():
    def forward(net, x):
        return net.out(net.one(x) if x.sum() > 0 else -net.one(x))

    model = randomise(Net(forward, one=nn.Linear(8, 6), out=nn.Linear(6, 3)))
    masks = weight_masks(model, 0.3, 0)
    with pytest.warns(UserWarning, match="cannot be traced") as caught:
        network = shrink(model, masks, IMAGES)
    assert len(caught) == 1
    assert not isinstance(network, torch.fx.GraphModule)
    prove(masked_network(model, masks), network, [IMAGES, -IMAGES])


def test_sizes_in_the_arithmetic_are_noticed():
    def forward(net, x):
        x = net.one(x).relu()
        return net.out(x / x.shape[-1])

    model = randomise(Net(forward, one=nn.Linear(8, 6), out=nn.Linear(6, 3)))
    masks = full_masks(model)
    masks["out"][:, 2] = False
    surgery = operate(model, masks, IMAGES)
    assert surgery.notes == ("truediv: computes with the number of units; they stay dense",)
    prove(masked_network(model, masks), surgery.network, [IMAGES])


def test_constants_of_forward_stay_out_of_the_state_dict():
    def forward(net, x):
        x = net.one(x) * torch.tensor([1.0, 2.0, 3.0, 4.0]).sum() + net.table
        return net.out(functional.dropout(x, 0.5, net.training)) + torch.ones(3)

    model = randomise(Net(forward, one=nn.Linear(8, 6), out=nn.Linear(6, 3)))
    model.register_buffer("table", torch.ones(8, 1), persistent=False)
    attributes = set(vars(model))
    masks = full_masks(model)
    masks["out"][:, 2] = False
    surgery = proven(model, masks)
    assert surgery.notes == ()
    assert shape(surgery, "one") == (5, 8)
    assert list(surgery.network.state_dict()) == list(model.state_dict())
    assert set(vars(model)) == attributes


def test_single_layers_and_layers_never_called():
    model = nn.Linear(3, 4)
    masks = {"": torch.rand(4, 3) < 0.5}
    prove(masked_network(model, masks), operate(model, masks, torch.rand(2, 3)).network, [torch.rand(2, 3)])
    parts = {"one": nn.Linear(8, 6), "spare": nn.Linear(6, 6), "out": nn.Linear(6, 3)}
    model = randomise(Net(lambda net, x: net.out(net.one(x)), **parts))
    masks = full_masks(model)
    masks["out"][:, 0] = False
    surgery = proven(model, masks)
    assert shape(surgery, "one") == (5, 8)
    assert any("never called" in note for note in surgery.notes)


def test_shared_weights_stay_shared():
    parts = {"one": nn.Linear(8, 5), "a": nn.Linear(5, 5), "b": nn.Linear(5, 5), "out": nn.Linear(5, 3)}
    model = randomise(Net(lambda net, x: net.out(net.b(net.a(net.one(x)).relu()).relu()), **parts))
    model.b.weight = model.a.weight
    masks = weight_masks(model, 0.5, 0)
    network = proven(model, masks).network
    assert network.a.weight is network.b.weight
    assert torch.equal(network.a.weight != 0, masks["a"] & masks["b"])


def test_the_result_can_be_shrunk_again_saved_and_copied():
    model = randomise(Net(lambda net, x: net.out(net.norm(net.one(x)).relu().flatten(1)), **plain_parts()))
    masks = full_masks(model)
    masks["out"].reshape(3, 6, 64)[:, :2] = masks["one"][:, :, 0] = False
    first = proven(model, masks)
    again = full_masks(first.network)
    again["out"].reshape(3, 4, 64)[:, 1] = False
    second = proven(first.network, again)
    assert (shape(first, "one"), shape(second, "one")) == ((4, 3, 2, 3), (3, 3, 2, 3))
    restored = copy.deepcopy(second.network)
    restored.load_state_dict(second.network.state_dict())
    assert torch.equal(restored(IMAGES), second.network(IMAGES))


def test_heads_can_go_twice():
    def forward(net, x):
        x = net.attention(x, x, x, need_weights=False)[0]
        return net.out(net.wide(x).relu())

    parts = {"attention": nn.MultiheadAttention(8, 4, batch_first=True), "wide": nn.Linear(8, 6)}
    model = randomise(Net(forward, **parts, out=nn.Linear(6, 3)))
    masks = full_masks(model)
    masks["attention.out_proj"][:, :2] = masks["wide"][:, 3] = False
    first = proven(model, masks, IMAGES[:, 0])
    again = full_masks(first.network)
    again["attention.out_proj"][:, 2:4] = again["wide"][:, 0] = again["out"][:, 5] = False
    second = proven(first.network, again, IMAGES[:, 0])
    assert (first.notes, second.notes) == ((), ())
    assert [one.network.attention.num_heads for one in (first, second)] == [3, 2]
    assert [shape(one, "attention.out_proj") for one in (first, second)] == [(7, 6), (6, 4)]
    assert tuple(second.network.attention.in_proj_weight.shape) == (3 * 4, 8)
    assert second.network.attention is not first.network.attention
    assert list(second.network.state_dict()) == list(model.state_dict())


def test_unreadable_masks():
    model = Net(lambda net, x: net.out(net.one(x)), one=nn.Linear(3, 4), out=nn.Linear(4, 2))
    example = torch.rand(2, 3)
    with pytest.raises(ValueError, match="'two' that the network has not; its layers are 'one', 'out'"):
        shrink(model, {"two": torch.ones(4, 3)}, example)
    with pytest.raises(ValueError, match=r"shape of the weight, \(4, 3\), got \(3, 4\)"):
        shrink(model, {"one": torch.ones(3, 4)}, example)
    with pytest.raises(ValueError, match="must be 0 for dead and 1 for live"):
        shrink(model, {"one": torch.full((4, 3), 0.5)}, example)
    model.one = nn.utils.parametrizations.weight_norm(model.one)
    with pytest.raises(ValueError, match="remove the parametrisation first"):
        masked_network(model, {"one": torch.ones(4, 3)})
    with pytest.warns(UserWarning, match="computed from other parameters"):
        shrink(model, {"out": torch.ones(2, 4)}, example)
