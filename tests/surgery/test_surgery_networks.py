"""The shrunk network is the masked one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from surgery_networks import NETWORKS, STEPS, Random, unit_masks, weight_masks
from torch import nn

from bayesprune.models import create
from bayesprune.structure import close, live_units, trace, widths
from bayesprune.surgery import masked_network, operate, prove
from structure.structure_networks import NETWORKS as STRUCTURE_NETWORKS
from structure.structure_networks import randomise

IMAGES = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(1)) - 0.5
MASKS = {"weights": weight_masks, "units": unit_masks}


def size(network):
    return sum(parameter.numel() for parameter in network.parameters())


def operated(model, masks, example, **options):
    """The result, after proof; the last resort, a copy of the masked network, is not good enough."""
    surgery = operate(model, masks, example[:2], **options)
    assert isinstance(surgery.network, torch.fx.GraphModule), surgery.notes
    prove(masked_network(model, masks), surgery.network, [example, example[:1]])
    return surgery


def realistic(name, shape):
    """A network in float32 with random biases and norms."""
    generator = torch.Generator().manual_seed(0)
    model = create(name, shape, 10, generator=generator).eval()
    with torch.no_grad():
        for key, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.ndim == 1:
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)
                if key.endswith(("weight", "running_var")):
                    tensor.abs_().add_(0.5)
    return model


MODELS = [("lenet5", (1, 28, 28)), ("alexnet-small", (3, 32, 32)), ("vgg11", (3, 32, 32)), ("resnet20", (3, 32, 32))]


@pytest.mark.parametrize("live", [0.5, 0.1, 0.02])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("name", "shape"), MODELS)
def test_models(name, shape, kind, live):
    model = realistic(name, shape)
    masks = MASKS[kind](model, live, seed=0)
    images = torch.randn(3, *shape, generator=torch.Generator().manual_seed(2))
    surgery = operated(model, masks, images)
    assert surgery.notes == ()
    if kind == "units":
        assert surgery.removed_units > 0
        assert size(surgery.network) < (0.9 if live == 0.5 else 0.4) * size(model)


@pytest.mark.parametrize(("kind", "live"), [("weights", 0.1), ("units", 0.3)])
@pytest.mark.parametrize(("name", "shape"), MODELS)
def test_closed_masks_lose_exactly_the_dead_units(name, shape, kind, live):
    model = realistic(name, shape)
    images = torch.randn(2, *shape, generator=torch.Generator().manual_seed(2))
    structure = trace(model, images)
    masks = close(structure, MASKS[kind](model, live, seed=0))
    alive = live_units(structure, masks)
    for layer in structure.layers:
        # Nothing leads into a dead unit and nothing out of it, so that its bias does not matter.
        assert not bool(masks[layer.name][~alive[layer.out_units]].any())
        assert not bool(masks[layer.name][:, ~alive[layer.in_units[0]]].any())
    surgery = operated(model, masks, images)
    assert surgery.removed_units == int((~alive).sum())
    assert hidden_widths(structure, surgery.network) == widths(structure, alive)


@pytest.mark.parametrize(("kind", "live"), [("weights", 0.02), ("weights", 0.005), ("units", 0.1), ("units", 0.01)])
def test_streams_never_keep_more_than_the_live_units(kind, live):
    """What reads a unit of a residual stream before the first layer that makes it gets a constant, and may go, too."""
    model = realistic("resnet20", (3, 32, 32))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    structure = trace(model, images)
    masks = close(structure, MASKS[kind](model, live, seed=0))
    kept = hidden_widths(structure, operated(model, masks, images).network)
    live_widths = widths(structure, live_units(structure, masks))
    assert all(one <= max(1, other) for one, other in zip(kept, live_widths, strict=True))


def hidden_widths(structure, network):
    hidden = [layer for layer in structure.layers if not bool(structure.outputs[layer.out_units].all())]
    return [len(network.get_parameter(f"{layer.name}.weight")) for layer in hidden]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NETWORKS)
def test_habits(name, dtype):
    for seed in range(6):
        model = randomise(NETWORKS[name](), seed).to(dtype)
        live = (0.7, 0.3, 0.1)[seed % 3]
        masks = (weight_masks, unit_masks)[seed // 3](model, live, seed)
        surgery = operated(model, masks, IMAGES.to(dtype), multiple=1 + seed % 2, crop=seed != 1)
        assert not any("training mode" in note for note in surgery.notes)


@pytest.mark.parametrize("name", STRUCTURE_NETWORKS)
def test_networks_of_the_structure(name):
    for seed in range(4):
        model = randomise(STRUCTURE_NETWORKS[name][0](), seed)
        operated(model, (weight_masks, unit_masks)[seed % 2](model, (0.5, 0.1)[seed // 2], seed), IMAGES.double())


PLANS = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 100)), min_size=2, max_size=8)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(PLANS, st.integers(0, 1000), st.sampled_from([0.6, 0.25, 0.05]), st.booleans())
def test_random_networks(steps, seed, live, units):
    model = randomise(Random(steps), seed)
    masks = (unit_masks if units else weight_masks)(model, live, seed)
    operated(model, masks, IMAGES.double()[:, :, :4, :4], multiple=1 + seed % 3)


def test_attention_with_masks_and_sequence_first():
    class Attending(nn.Module):
        def __init__(self, batch_first):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 4, batch_first=batch_first)
            self.out = nn.Linear(8, 3)

        def forward(self, x, padding, causal):
            return self.out(self.attention(x, x, x, key_padding_mask=padding, attn_mask=causal)[0])

    for batch_first in (False, True):
        model = randomise(Attending(batch_first))
        x = torch.rand(2, 2, 8, dtype=torch.float64)
        padding = torch.tensor([[False, True], [False, False]])
        causal = torch.ones(2, 2, dtype=torch.bool).triu(1)
        masks = {"attention.out_proj": torch.ones(8, 8, dtype=torch.bool)}
        masks["attention.out_proj"][:, 2:6] = False
        surgery = operate(model, masks, (x, padding, causal))
        assert tuple(surgery.network.attention.in_proj_weight.shape) == (12, 8)
        assert tuple(surgery.network.attention.out_proj.weight.shape) == (8, 4)
        prove(masked_network(model, masks), surgery.network, [(x, padding, causal)])
        assert surgery.network.state_dict().keys() == model.state_dict().keys()


def test_tied_embedding_stays_tied():
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(11, 6)
            self.up, self.down = nn.Linear(6, 9), nn.Linear(9, 6)
            self.out = nn.Linear(6, 11, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, x):
            x = self.embed(x)
            return self.out(x + self.down(self.up(x).relu()))

    model = randomise(Language())
    masks = {"out": torch.ones(11, 6, dtype=torch.bool), "up": torch.ones(9, 6, dtype=torch.bool)}
    masks["out"][:, [1, 4]] = masks["up"][:, [1, 4]] = masks["up"][3] = False
    tokens = torch.arange(10).reshape(2, 5)
    surgery = operate(model, masks, tokens)
    network = surgery.network
    prove(masked_network(model, masks), network, [tokens, tokens[:1]])
    assert network.embed.weight is network.out.weight
    assert tuple(network.out.weight.shape) == (11, 4)
    assert tuple(network.down.weight.shape) == (4, 8)
