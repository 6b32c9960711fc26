"""What users of pruning tools complain about most, and that it does not happen here."""

import copy
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import prune

from bayesprune import artefact
from bayesprune.latency.work import count_work
from bayesprune.surgery import masked_network, operate, prove, shrink
from bayesprune.surgery.attention import SlimAttention
from surgery.complaint_networks import CONNECTIONS, OPERATIONS, Steps, attention_head, conv, random_values, residual
from surgery.surgery_networks import full_masks, unit_masks

IMAGES = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)) - 0.5


def network() -> nn.Sequential:
    """A residual block would do as well; this one has a norm, a flattening and a hidden layer."""
    torch.manual_seed(0)
    layers = [conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 16), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(16, 3)).eval()


def seconds(model, x):
    """The fastest of several calls, which a busy machine disturbs least."""
    times = []
    with torch.no_grad():
        for _ in range(12):
            start = time.perf_counter()
            model(x)
            times.append(time.perf_counter() - start)
    return min(times)


def test_the_result_is_smaller_and_faster(tmp_path):
    """The pruned network has as many parameters as before, is as slow, and only holds zeros."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).eval()
    masks = full_masks(model)
    masks["2"][:, 64:] = masks["2"][64:] = masks["4"][:, 64:] = False
    x = torch.randn(256, 512)
    small = shrink(model, masks, x[:1])
    prove(masked_network(model, masks), small, [x])
    assert [tuple(small.get_parameter(f"{i}.weight").shape) for i in (0, 2, 4)] == [(64, 512), (64, 64), (10, 64)]
    sizes, works, times = [], [], []
    for name, one in (("dense", model), ("small", small)):
        artefact.save(tmp_path / f"{name}.safetensors", one)
        sizes.append((tmp_path / f"{name}.safetensors").stat().st_size)
        works.append(count_work(one, x[:1]).macs)
        times.append(seconds(one, x))
    assert works == [2 * 512 * 512 + 5120, 64 * (512 + 64 + 10)]
    assert sizes[1] < sizes[0] / 10
    assert times[1] * 1.5 < times[0]


def test_masks_of_torch_can_be_made_real():
    """torch.nn.utils.prune leaves a mask and a full weight behind, and nothing makes a smaller network of them."""
    model = network()
    pruned = {name: model.get_submodule(name) for name in ("0", "4")}
    for module in pruned.values():
        prune.ln_structured(module, "weight", 0.5, n=2, dim=0)
        prune.random_unstructured(module, "weight", 0.2)
    expected = model(IMAGES).detach()
    masks = {name: module.weight_mask for name, module in pruned.items()}
    with pytest.raises(ValueError, match=r"the weight is computed .*torch\.nn\.utils\.prune\.remove"):
        shrink(model, masks, IMAGES)
    for module in pruned.values():
        prune.remove(module, "weight")
    found = {name: module.weight != 0 for name, module in pruned.items()}
    for given in (masks, found):
        small = shrink(model, given, IMAGES)
        assert len(small.get_parameter("4.weight")) == 8
        torch.testing.assert_close(small(IMAGES), expected, rtol=1e-5, atol=1e-6)


LOADING = """
import sys
import torch
from safetensors.torch import load_file, save_file
from bayesprune import artefact

folder = sys.argv[1]
network = artefact.load(f"{folder}/network.safetensors")
x = load_file(f"{folder}/x.safetensors")["x"].clone()  # aligned in memory like any tensor: the last bit depends on it
with torch.no_grad():
    save_file({"y": network(x)}, f"{folder}/y.safetensors")
"""


@pytest.mark.parametrize("case", [attention_head(), residual()], ids=lambda case: case.layer)
def test_the_file_can_be_loaded_without_the_class(case, tmp_path):
    """The pruned network has other shapes than its class, so that its state_dict cannot be loaded any more."""
    model = random_values(case.network)
    small = shrink(model, case.masks(), case.example)
    assert list(small.state_dict()) == list(model.state_dict())
    artefact.save(tmp_path / "network.safetensors", small)
    save_file({"x": case.example}, tmp_path / "x.safetensors")
    subprocess.run([sys.executable, "-c", LOADING, str(tmp_path)], check=True, cwd=tmp_path)
    with torch.no_grad():
        assert torch.equal(load_file(tmp_path / "y.safetensors")["y"], small(case.example))


def test_parts_of_the_result_can_be_used_elsewhere(tmp_path):
    """A pruned layer works inside the tool's own network only."""
    case = attention_head()
    small = shrink(random_values(case.network), case.masks(), case.example)
    assert isinstance(small.attention, SlimAttention)
    mine = Steps(lambda net, x: net.attention(x, x, x)[0].relu(), attention=small.attention)
    artefact.save(tmp_path / "mine.safetensors", mine)
    loaded = artefact.load(tmp_path / "mine.safetensors")
    assert torch.equal(loaded(case.example), mine(case.example))


@pytest.mark.parametrize("name", [*CONNECTIONS, *OPERATIONS])
def test_the_output_stays(name):
    """Skips, concatenations, groups and norms break the tool, or the output changes when channels are removed."""
    case = (CONNECTIONS | OPERATIONS)[name]()
    model, masks = random_values(case.network), case.masks()
    surgery = operate(model, masks, case.example)
    assert surgery.removed_units == case.removed
    prove(masked_network(model, masks), surgery.network, [case.example, case.example[:1]], tolerance64=1e-13)


@pytest.mark.parametrize("name", [*CONNECTIONS, *OPERATIONS])
def test_masks_at_random(name):
    """The tool works for the masks of its own criteria only."""
    for seed in range(4):
        case = (CONNECTIONS | OPERATIONS)[name]()
        model = random_values(case.network, seed)
        masks = unit_masks(model, (0.5, 0.1)[seed % 2], seed)
        surgery = operate(model, masks, case.example)
        prove(masked_network(model, masks), surgery.network, [case.example], tolerance64=1e-12)


@pytest.mark.parametrize("layer", ["0", "4", "7"])
def test_a_layer_without_live_weights(layer):
    """When every channel of a layer is pruned, the network is broken."""
    model = network()
    masks = full_masks(model)
    masks[layer][:] = False
    small = shrink(model, masks, IMAGES)
    prove(masked_network(model, masks), small, [IMAGES])
    assert all(parameter.numel() > 0 for parameter in small.parameters())
    assert sum(one.numel() for one in small.parameters()) < sum(one.numel() for one in model.parameters())
    small.train()(IMAGES).sum().backward()


def test_the_given_network_stays_as_it_was():
    """The tool leaves the network changed, in another mode, with hooks, or without gradients."""
    model = network().train()
    model[1].eval()
    model[0].weight.requires_grad_(False)
    model(IMAGES).sum().backward()
    before = [(module, dict(vars(module)), list(module._forward_hooks)) for module in model.modules()]
    tensors = copy.deepcopy(model.state_dict())
    gradients = [None if one.grad is None else one.grad.clone() for one in model.parameters()]
    state = torch.get_rng_state()
    small = shrink(model, unit_masks(model, 0.5, 0), IMAGES)
    assert all(vars(module) == attributes for module, attributes, _ in before)
    assert all(list(module._forward_hooks) == hooks for module, _, hooks in before)
    assert all(torch.equal(tensors[name], one) for name, one in model.state_dict().items())
    for one, gradient in zip(model.parameters(), gradients, strict=True):
        assert (one.grad is None) == (gradient is None)
        assert gradient is None or torch.equal(one.grad, gradient)
    assert torch.equal(state, torch.get_rng_state())
    old, new = dict(model.named_modules()), dict(small.named_modules())
    assert all(one.training == old[name].training for name, one in new.items())
    requires = {name: one.requires_grad for name, one in model.named_parameters()}
    assert {name: one.requires_grad for name, one in small.named_parameters()} == requires


def test_the_documented_example_runs(tmp_path):
    """The example in the documentation does not work."""
    text = (Path(__file__).parents[1] / "docs" / "surgery.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path, capture_output=True)
