"""Units sorted while a network is being pruned: everything that is kept of it follows."""

import copy
from dataclasses import replace

import pytest
import torch
from turbo_examples import QUICK, coloured_images, digits, residual, small_mlp

from bayesprune import models
from bayesprune.data import Batches
from bayesprune.likelihoods import Classification
from bayesprune.regularity import regularity
from bayesprune.surgery import ProofError
from bayesprune.turbo import PRESETS, Compressor, Settings, compress
from bayesprune.turbo.loop import Loop, Silent
from bayesprune.turbo.parallel import World
from bayesprune.turbo.training import masked

PANELS = replace(QUICK, groups="panel", tile=(4, 4), reorder_at=0.3)

SHORT_DIGITS = {
    **{"warmup_epochs": 10, "prune_epochs": 40, "finetune_epochs": 10, "batch_size": 64, "learning_rate": 0.006},
    **{"unit_strength": 200, "unit_ramp": [0.02, 0.2], "weight_strength": 0.25, "weight_start": 0.01},
    **{"weight_ramp": [0.43, 0.74], "spike_rate": 1e-4, "refresh_every": 20},
}


def live_runs(alive):
    """How many runs of live units there are."""
    alive = alive.long()
    return int(alive[0]) + int((alive.diff() == 1).sum())


def test_live_units_come_first():
    """Rows that live or die one by one are scattered; sorted, they stand together."""
    settings, runs = replace(QUICK, groups="unit", unit_strength=700.0), {}
    for at in (None, 0.9):
        result = compress(small_mlp(), digits(), settings=replace(settings, reorder_at=at))
        rows = result.masks["fc1"].any(1)
        assert 4 < int(rows.sum()) < 32
        runs[at] = live_runs(rows)
    assert runs[None] > 2
    assert runs[0.9] == 1


@pytest.mark.parametrize(("make", "load"), [(small_mlp, digits), (residual, coloured_images)])
def test_the_loop_computes_the_same_before_and_after(make, load):
    """Model, kept networks and their masks all follow; so does what comes after, but for the groups."""
    data = load()
    loop = Loop(make(), data, Classification(), replace(PANELS, batch_size=48), Silent(), World())
    loop.unpruned_weights = copy.deepcopy(loop.model.state_dict())
    loop.phase = 1
    loop.step = loop._new_step()
    loop._one_epoch()
    generator = torch.Generator().manual_seed(0)
    masks = {w.name: torch.rand(w.weight.shape, generator=generator) < 0.5 for w in loop.compressor.prior.weights}
    loop.good = copy.deepcopy(loop.model.state_dict())
    loop.on_target = {"nll": 1.0, **loop._snapshot(masks)}
    loop.front.consider(0.5, 1.0, lambda: loop._snapshot({name: ~mask for name, mask in masks.items()}))
    snapshots = [loop.on_target, *loop.front.kept.values()]

    def outputs():
        twin = copy.deepcopy(loop.model).eval()
        found = [twin(data.test.x)]
        for state in (loop.unpruned_weights, loop.good):
            twin.load_state_dict(state)
            found.append(twin(data.test.x))
        for snapshot in snapshots:
            twin.load_state_dict(snapshot["model"])
            with masked(twin, snapshot["masks"]):
                found.append(twin(data.test.x))
        return [one.detach() for one in found]

    before, weights = outputs(), copy.deepcopy(loop.model.state_dict())
    loop._reorder()
    assert any(not torch.equal(tensor, weights[name]) for name, tensor in loop.model.state_dict().items())
    for one, other in zip(before, outputs(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_network_that_cannot_be_sorted_goes_on(monkeypatch):
    def refuse(*_):
        raise ProofError("in another order of its units the network differs by 1; they stay")

    monkeypatch.setattr("bayesprune.turbo.compressor.reorder", refuse)
    result = compress(small_mlp(), digits(), settings=replace(PANELS, prune_epochs=3, finetune_epochs=0))
    assert result.summary["notes"] == ["in another order of its units the network differs by 1; they stay"]


def test_a_loop_of_ones_own():
    data, network = digits(), small_mlp()
    settings = replace(PANELS, weight_strength=3.0)
    compressor = Compressor(network, data.train.x[:1], examples=len(data.train), epochs=12, settings=settings)
    optimiser = torch.optim.Adam(network.parameters(), 6e-3)
    generator, due = torch.Generator().manual_seed(1), []
    for epoch in range(12):
        for x, y in Batches(data.train, 64, generator):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(x), y).backward()
            compressor.add_gradients()
            optimiser.step()
        compressor.update()
        if compressor.reorder_due:
            due.append(epoch)
            before = network(data.test.x).detach()
            moves = compressor.reorder(optimiser)
            assert set(moves) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "out.weight"}
            torch.testing.assert_close(network(data.test.x), before, rtol=1e-4, atol=1e-4)
            strength = compressor.prior.unit_means()[compressor.structure.layers[0].out_units]
            assert torch.equal(strength, strength.sort(descending=True)[0])
    assert due == [3]
    masks = compressor.finish()
    assert 0 < sum(int(mask.sum()) for mask in masks.values()) < 0.5 * sum(mask.numel() for mask in masks.values())
    accuracy = (network(data.test.x).argmax(1) == data.test.y).double().mean()
    assert accuracy > 0.8


def test_the_regular_preset_leaves_rectangles():
    network = models.create("lenet5", (1, 8, 8), 10, generator=torch.Generator().manual_seed(0))
    result = compress(network, digits(), settings=Settings.from_dict({**SHORT_DIGITS, **PRESETS["regular"]}))
    found = regularity(result.masks).network.clusters["matrix"]
    assert found.share > 0.8
    assert found.index_bytes_per_nonzero < 0.3
    assert result.summary["nonzero_fraction"] < 0.25
    assert result.summary["accuracy"] > 0.9
