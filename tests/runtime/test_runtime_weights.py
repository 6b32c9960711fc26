"""Weights that change behind the back of a compiled network."""

import copy
import time

import pytest
import torch
from runtime_networks import always, compiled_small_network, expect_the_same, images, small_network
from torch import nn

from bayesprune.runtime import Compiled, compile, native
from bayesprune.runtime.weights import Weights

needs_engine = pytest.mark.skipif(native.library() is None, reason="the native engine is not built: no C compiler")


def halved(network):
    return {name: value / 2 for name, value in network.state_dict().items()}


def load_into_the_parent(fast):
    nn.Sequential(fast).load_state_dict({f"0.network.{name}": one for name, one in halved(fast.network).items()})


def load_into_the_network(fast):
    fast.network.load_state_dict(halved(fast.network))


def in_place(fast):
    with torch.no_grad():
        for parameter in fast.parameters():
            parameter.div_(2)


def in_place_in_inference_mode(fast):
    with torch.inference_mode():
        for parameter in fast.parameters():
            parameter.div_(2)


def other_data(fast):
    for parameter in fast.parameters():
        parameter.data = parameter.data / 2


def other_parameters(fast):
    for module in fast.network.modules():
        for name, one in list(module._parameters.items()):
            setattr(module, name, nn.Parameter(one.detach() / 2))


def an_optimiser(fast):
    for parameter in fast.parameters():
        parameter.grad = parameter.detach() / 2
    torch.optim.SGD(fast.parameters(), lr=1.0).step()


def another_layer(fast):
    name, layer = [(name, one) for name, one in fast.network.named_modules() if isinstance(one, nn.Linear)][-1]
    other = copy.deepcopy(layer)
    nn.init.ones_(other.weight)
    fast.network.set_submodule(name, other)


@needs_engine
@pytest.mark.parametrize("way", ["native, 1 lane", "native, 16 lanes", "torch, channels last"])
@pytest.mark.parametrize(
    "change",
    [
        *(load_into_the_parent, load_into_the_network, in_place, in_place_in_inference_mode),
        *(other_data, other_parameters, an_optimiser, another_layer),
    ],
)
def test_changed_weights_are_seen(monkeypatch, change, way):
    monkeypatch.setattr(Compiled, "_measure", always(way))
    fast, x = compiled_small_network(), images(5)
    before = fast(x)
    change(fast)
    for _ in range(3):
        expect_the_same(fast, fast.network, x)
    assert not torch.allclose(fast(x), before)
    assert fast._choose(x).way == way


@needs_engine
def test_new_weights_are_prepared_at_their_second_call(monkeypatch):
    monkeypatch.setattr(Compiled, "_measure", always("native, 16 lanes"))
    fast, x = compiled_small_network(), images(5)
    fast(x)
    programs = fast._programs
    in_place(fast)
    fast(x)
    assert fast._programs is programs
    fast(x)
    assert fast._programs is not programs
    assert list(fast._programs) == [16]


@needs_engine
def test_weights_for_one_call_do_not_disturb(monkeypatch):
    monkeypatch.setattr(Compiled, "_measure", always("native, 16 lanes"))
    fast, network, x = compiled_small_network(), small_network(), images(5)
    fast(x)
    (program,) = fast._programs.values()
    for factor in (0.0, 2.0, 3.0):
        other = {name: factor * value for name, value in network.state_dict().items()}
        with torch.no_grad():
            expected = torch.func.functional_call(network, other, (x,))
            found = torch.func.functional_call(fast, {f"network.{name}": one for name, one in other.items()}, (x,))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        expect_the_same(fast, network, x)
    assert list(fast._programs.values()) == [program]


@needs_engine
def test_a_copy_has_the_weights_of_its_time(monkeypatch):
    monkeypatch.setattr(Compiled, "_measure", always("native, 16 lanes"))
    fast, x = compiled_small_network(), images(5)
    fast(x)
    in_place(fast)
    expect_the_same(copy.deepcopy(fast), fast.network, x)


@needs_engine
@pytest.mark.parametrize("way", ["native, 16 lanes", "torch, channels last"])
def test_a_network_that_was_made_in_inference_mode(monkeypatch, way):
    """Its tensors have no versions."""
    monkeypatch.setattr(Compiled, "_measure", always(way))
    with torch.inference_mode():
        network = small_network()
        fast = compile(network, images(1))
        assert not any(parameter.is_inference() for parameter in fast.parameters())
        fast(images(5))
    assert expect_the_same(fast, network, images(5))
    in_place(fast)
    for _ in range(3):
        expect_the_same(fast, fast.network, images(5))
    with torch.inference_mode():
        fast.double().float()
    assert not any(parameter.is_inference() for parameter in fast.parameters())
    as_it_is = Compiled(network, (1, 28, 28))
    expect_the_same(as_it_is, network, images(5))
    other_parameters(as_it_is)
    for _ in range(3):
        expect_the_same(as_it_is, as_it_is.network, images(5))


def test_memory_that_is_used_again_is_not_taken_for_the_old_one():
    """Of tensors that are gone, others get the place and the number."""
    layer = nn.Linear(300, 300)
    weights = Weights(layer)
    for _ in range(20):
        layer.weight.data = torch.randn(300, 300)
        assert not weights.are_the_same()
    weights = Weights(layer)
    for _ in range(20):
        del layer.weight
        layer.weight = nn.Parameter(torch.randn(300, 300))
        assert not weights.are_the_same()


def test_weights_without_a_place_are_compared_as_well():
    layer = nn.Linear(3, 3)
    layer.register_buffer("sparse", torch.eye(3).to_sparse())
    weights = Weights(layer)
    assert weights.are_the_same()
    layer.sparse.mul_(2)
    assert not weights.are_the_same()


def test_comparing_takes_microseconds():
    """Some 2 for LeNet-5; the bound is for busy machines."""
    weights = Weights(small_network())
    shortest = float("inf")
    for _ in range(200):
        started = time.perf_counter()
        weights.are_the_same()
        shortest = min(shortest, time.perf_counter() - started)
    assert shortest < 50e-6
