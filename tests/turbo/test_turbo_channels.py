"""Convolutions that lie channel by channel while they train: the same network, and as it was afterwards."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from turbo_examples import QUICK

from bayesprune.baselines import BaselineSettings, run
from bayesprune.data import DataSet
from bayesprune.likelihoods import Classification
from bayesprune.turbo import compress
from bayesprune.turbo.channels import channels_last, lies_channels_last
from bayesprune.turbo.training import TrainStep, make_optimiser

IMAGES = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(64) % 4


class Viewing(nn.Module):
    """Convs, then a view that only the usual layout allows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 32, 3, padding=1)
        self.out = nn.Linear(32 * 8 * 8, 4)

    def forward(self, x):
        x = self.second(torch.relu(self.first(x)))
        return self.out(torch.relu(x).view(x.shape[0], -1))


def flattening():
    """The same network without the view."""
    own = Viewing()
    return nn.Sequential(own.first, nn.ReLU(), own.second, nn.ReLU(), nn.Flatten(), own.out)


def layouts(network):
    return [one.weight.is_contiguous() for one in network.modules() if isinstance(one, nn.Conv2d)]


def test_weights_lie_channel_by_channel_and_then_as_before():
    network = flattening()
    before = {name: one.clone() for name, one in network.state_dict().items()}
    with channels_last(network, IMAGES[:2]):
        assert lies_channels_last(network)
        assert layouts(network) == [False, False]
        torch.testing.assert_close(network(IMAGES), flattening()(IMAGES))
    assert layouts(network) == [True, True]
    for name, one in network.state_dict().items():
        assert torch.equal(one, before[name])


def test_an_error_while_training_brings_the_layout_back():
    network = flattening()
    with pytest.raises(KeyboardInterrupt), channels_last(network, IMAGES[:2]):
        raise KeyboardInterrupt
    assert layouts(network) == [True, True]


@pytest.mark.parametrize(
    ("network", "example"),
    [
        (Viewing(), IMAGES[:2]),
        (nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)), torch.randn(2, 3)),
        (nn.Sequential(nn.Conv2d(3, 31, 3)), IMAGES[:2]),
        (nn.Sequential(nn.Conv1d(3, 32, 3)), torch.randn(2, 3, 8)),
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 32, 3)), IMAGES[:2]),
    ],
    ids=["view", "linear", "few channels", "one dimension", "computed weight"],
)
def test_what_does_not_bear_it_or_has_nothing_to_gain_stays(network, example):
    with channels_last(network, example):
        assert not lies_channels_last(network)
        network(example)


def test_trying_it_out_neither_draws_random_numbers_nor_touches_statistics():
    network = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.Dropout(), nn.Flatten(), nn.Linear(1152, 4))
    state, statistics = torch.get_rng_state(), network[1].running_mean.clone()
    with channels_last(network, IMAGES[:2]):
        assert network.training
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(network[1].running_mean, statistics)
        assert int(network[1].num_batches_tracked) == 0


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_step_is_the_same_step(optimiser):
    results = []
    for last in (False, True):
        network = flattening().double()
        with channels_last(network, IMAGES[:2].double()) if last else torch.enable_grad():
            settings = replace(QUICK, optimiser=optimiser, learning_rate=1e-2)
            step = TrainStep(network, Classification(), make_optimiser(network.parameters(), settings))
            step.set_learning_rate(1e-2)
            losses = [float(step(IMAGES.double(), LABELS)) for _ in range(5)]
        results.append((losses, network.state_dict()))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-9)
    for name, one in results[0][1].items():
        torch.testing.assert_close(one, results[1][1][name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("make", [flattening, Viewing])
def test_networks_come_back_in_the_usual_layout(make):
    data = DataSet.from_tensors(IMAGES, LABELS, test=0.25, validation=0.25)
    epochs = {"warmup_epochs": 1, "prune_epochs": 1, "finetune_epochs": 1, "batch_size": 8}
    compressed = compress(make(), data, settings=replace(QUICK, **epochs))
    pruned = run("magnitude", make(), data, settings=BaselineSettings(**epochs, target_nonzero=0.5))
    for result in (compressed, pruned):
        assert layouts(result.network) == [True, True]
        assert all(layouts(result.shrunk))
