"""The networks: sizes counted by hooks, tracing, and where their randomness comes from."""

import math

import pytest
import torch
from torch import fx, nn

from bayesprune.models import MODELS, create

SHAPES = {"mlp": (1, 28, 28), "lenet5": (1, 28, 28)}


def made(name, classes=10, seed=0, shape=None, **options):
    generator = torch.Generator().manual_seed(seed)
    return create(name, shape or SHAPES.get(name, (3, 32, 32)), classes, generator=generator, **options)


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


def weights(network):
    return sum(m.weight.numel() for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d))


def multiplications(network, shape):
    """Count the multiplications of one image by looking at what every layer really puts out."""
    total = 0

    def count(layer, _inputs, output):
        nonlocal total
        total += layer.weight.numel() * (output[0, 0].numel() if isinstance(layer, nn.Conv2d) else 1)

    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(count)
    network.eval()(torch.zeros(1, *shape))
    return total


def test_sizes_are_those_documented():
    lenet, alexnet, vgg = made("lenet5"), made("alexnet-small"), made("vgg11", classes=100)
    assert parameters(lenet) == 61_706
    assert multiplications(lenet, (1, 28, 28)) == 416_520
    assert lenet.fc1.in_features == 400
    assert parameters(alexnet) == 124_534
    assert multiplications(alexnet, (3, 32, 32)) == 1_298_088
    assert alexnet.fc1.in_features == 128
    assert weights(vgg) == 9_278_928
    assert multiplications(vgg, (3, 32, 32)) == 152_825_616
    assert vgg.fc1.in_features == 512
    assert parameters(made("resnet20")) == 272_474
    assert parameters(made("mlp")) == 266_610
    assert parameters(made("mlp", shape=(5,), widths=())) == 60


def test_vgg_convs_work_at_the_sizes_of_the_paper():
    network, sizes = made("vgg11"), []
    for layer in network:
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda _layer, _inputs, output: sizes.append(output.shape[-1]))
    network.eval()(torch.zeros(1, 3, 32, 32))
    assert sizes == [32, 16, 8, 8, 4, 4, 2, 2]


@pytest.mark.parametrize("name", MODELS)
def test_fx_traces_the_network_exactly(name):
    network = made(name).eval()
    x = torch.randn(2, *SHAPES.get(name, (3, 32, 32)), generator=torch.Generator().manual_seed(1))
    output = network(x)
    assert output.shape == (2, 10)
    assert torch.equal(fx.symbolic_trace(network)(x), output)


@pytest.mark.parametrize("name", MODELS)
def test_the_generator_is_the_only_random_state(name):
    before = torch.get_rng_state()
    first, same, other = made(name), made(name), made(name, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    for (key, a), b, c in zip(
        first.state_dict().items(), same.state_dict().values(), other.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), key
        assert a.is_floating_point() is False or a.isfinite().all(), key
        if a.ndim > 1:
            assert not torch.equal(a, c), key
    assert first.training
    assert all(parameter.device.type == "cpu" for parameter in first.parameters())


def test_without_generator_the_global_seed_counts():
    torch.manual_seed(3)
    first = create("lenet5", (1, 28, 28))
    torch.manual_seed(3)
    assert torch.equal(first.conv1.weight, create("lenet5", (1, 28, 28)).conv1.weight)


@pytest.mark.parametrize("name", ["vgg11", "resnet20", "alexnet-small"])
def test_first_weights_have_the_kaiming_variance(name):
    network = made(name)
    layers = [m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    for layer in layers:
        wanted = (1 if layer is network.out else 2) / layer.weight[0].numel()
        spread = 5 * math.sqrt(2 / layer.weight.numel())
        assert abs(layer.weight.var().item() / wanted - 1) < spread
        assert layer.bias is None or not layer.bias.any()
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            assert (norm.running_mean == 0).all()
            assert (norm.running_var == 1).all()
            assert norm.num_batches_tracked == 0
            assert (norm.weight == 1).all()


@pytest.mark.parametrize("shape", [(1, 4, 4), (1, 8, 8), (1, 11, 30), (1, 12, 12), (3, 32, 32), (2, 13, 17)])
def test_lenet_adapts_to_the_image(shape):
    network = made("lenet5", shape=shape, classes=7)
    assert network(torch.zeros(2, *shape)).shape == (2, 7)


def test_other_sizes_work_where_they_can():
    assert made("resnet20", shape=(1, 8, 8))(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert made("alexnet-small", shape=(1, 64, 40))(torch.zeros(2, 1, 64, 40)).shape == (2, 10)
    assert made("vgg11", shape=(1, 64, 33)).eval()(torch.zeros(1, 1, 64, 33)).shape == (1, 10)
    assert made("mlp", shape=(13,), classes=1)(torch.zeros(2, 13)).shape == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (("resnet18", (3, 32, 32)), {}, "choose one of mlp, lenet5, alexnet-small, vgg11, resnet20"),
        (("lenet5", (1, 3, 28)), {}, "at least 4x4 pixels, got 3x28"),
        (("vgg11", (3, 28, 28)), {}, "at least 32x32 pixels, got 28x28"),
        (("alexnet-small", (1, 31, 64)), {}, "at least 32x32 pixels"),
        (("lenet5", (784,)), {}, "for vectors use mlp"),
        (("resnet20", (0, 8, 8)), {}, "all at least 1"),
        (("mlp", (4,)), {"widths": (3, 0)}, "sizes of at least 1"),
        (("mlp", ()), {}, "sizes of at least 1"),
        (("mlp", (4,), 0), {}, "classes must be at least 1"),
        (("vgg11", (3, 32, 32)), {"widths": (3,)}, "vgg11 has no option widths; its options are: none"),
        (("mlp", (4,)), {"width": 3}, "mlp has no option width; its options are: widths"),
    ],
)
def test_errors_name_the_rule_and_the_remedy(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        create(*arguments, **options)
