"""Calls that are no plain inference: autocast, tracing, transforms; modes, files and odd tensors."""

import pytest
import torch
from runtime_networks import always, compiled_small_network, expect_the_same, images, small_network
from torch import nn

import bayesprune
from bayesprune.artefact import ArtefactError
from bayesprune.runtime import Compiled, compile, native

needs_engine = pytest.mark.skipif(native.library() is None, reason="the native engine is not built: no C compiler")


@pytest.fixture(params=["native, 1 lane", "native, 16 lanes", "torch, channels last"])
def fast(request, monkeypatch):
    """A compiled network that is run in one of its ways already."""
    if request.param.startswith("native") and native.library() is None:
        pytest.skip("the native engine is not built: no C compiler")
    monkeypatch.setattr(Compiled, "_measure", always(request.param))
    made = compiled_small_network()
    made(images(4))
    return made


def test_autocast_chooses_the_dtype(fast):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fast(images(4)).dtype == torch.bfloat16
    assert fast(images(4)).dtype == torch.float32


def test_nothing_is_measured_under_autocast():
    fast, x = compiled_small_network(), images(4)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert torch.equal(fast(x), small_network()(x))
    assert fast.explain()["choices"] == {}


def test_negative_views_are_resolved(fast):
    expect_the_same(fast, small_network(), torch._neg_view(images(4)))
    expect_the_same(fast, small_network(), torch.complex(images(4), images(4)).conj().imag)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_trace_is_of_the_network(fast):
    traced = torch.jit.trace(fast, images(4))
    expect_the_same(traced, small_network(), images(8)[4:])


def test_a_compiler_reads_the_network(fast):
    expect_the_same(torch.compile(fast, backend="eager", fullgraph=True), small_network(), images(4))
    exported = torch.export.export(fast, (images(4),)).module()
    expect_the_same(exported, small_network(), images(8)[4:])
    expect_the_same(fast, small_network(), images(4))


def test_transforms_go_through_torch(fast):
    x, network = images(6), small_network()
    with torch.no_grad():
        found = torch.vmap(fast)(x.unflatten(0, (3, 2)))
        torch.testing.assert_close(found.flatten(0, 1), network(x), rtol=1e-5, atol=1e-5)


def test_a_kind_of_tensor_of_its_own_goes_through_torch(fast):
    class Marked(torch.Tensor):
        pass

    assert type(fast(images(4).as_subclass(Marked))) is Marked


@needs_engine
def test_infinite_inputs_at_dead_weights_do_not_count(monkeypatch):
    """As documented: torch makes 0 * inf, the engine leaves the product out."""
    monkeypatch.setattr(Compiled, "_measure", always("native, 16 lanes"))
    layer = nn.Linear(2, 1, bias=False).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.0]]))
    x = torch.tensor([[3.0, float("inf")]])
    assert layer(x).isnan().all()
    assert compile(layer, x)(x).item() == 3.0


def test_it_says_that_it_is_in_eval_mode():
    fast = compile(small_network().train(), images(1))
    parent = nn.Sequential(fast, nn.Dropout())
    for train in (fast.train, fast.eval, parent.train, parent.eval):
        train()
        assert not any(module.training for module in fast.modules())
    assert parent.train().training


def test_a_network_that_is_set_to_training_mode_is_set_back(fast):
    fast.network.train()
    expect_the_same(fast, small_network(), images(4))
    assert not any(module.training for module in fast.modules())


def test_files_are_for_the_network_itself(fast, tmp_path):
    path = tmp_path / "small.safetensors"
    for network in (fast, nn.Sequential(fast)):
        with pytest.raises(ArtefactError, match=r"save its \.network instead"):
            bayesprune.save(path, network)
    assert not path.exists()
    bayesprune.save(path, fast.network)
    expect_the_same(compile(bayesprune.load(path), images(1)), small_network(), images(4))
