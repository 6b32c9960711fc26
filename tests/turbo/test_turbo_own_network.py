"""What happens with networks, data and likelihoods of the user's own."""

import pytest
import torch
from torch import nn
from turbo_examples import digits

from bayesprune import Compressor, Settings, compress
from bayesprune.data import DataSet
from bayesprune.likelihoods import Classification, Likelihood
from bayesprune.turbo import SettingsError
from bayesprune.turbo.loop import Loop, Silent
from bayesprune.turbo.parallel import World


class TinyUNet(nn.Module):
    """Two levels and a concatenation; three classes for every pixel."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16), nn.ReLU())
        self.up = nn.Upsample(scale_factor=2)
        self.last = nn.Conv2d(24, 3, 3, padding=1)

    def forward(self, x):
        first = self.first(x)
        return self.last(torch.cat([first, self.up(self.deep(first))], 1))


def blobs(count=240, size=8):
    """Images of noise with a bright and a dark square; the class of every pixel: none, bright, dark."""
    generator = torch.Generator().manual_seed(0)
    x = 0.3 * torch.randn(count, 1, size, size, generator=generator)
    y = torch.zeros(count, size, size, dtype=torch.int64)
    for kind, shift in ((1, 2.0), (2, -2.0)):
        corners = torch.randint(0, size - 3, (count, 2), generator=generator)
        for image, (row, column) in enumerate(corners.tolist()):
            x[image, 0, row : row + 3, column : column + 3] += shift
            y[image, row : row + 3, column : column + 3] = kind
    return DataSet.from_tensors(x, y, test=0.2, classes=("none", "bright", "dark"))


def test_a_class_for_every_pixel():
    torch.manual_seed(0)
    data = blobs()
    settings = Settings(
        warmup_epochs=8, prune_epochs=16, finetune_epochs=4, batch_size=16, refresh_every=5,
        unit_strength=500, weight_strength=2, weight_start=0.1, learning_rate=5e-3,
    )  # fmt: skip
    result = compress(TinyUNet(), data, settings=settings)
    majority = float(data.test.y.flatten().bincount().max()) / data.test.y.numel()
    assert majority < 0.8
    assert result.summary["accuracy"] > 0.9
    assert result.summary["nonzero_fraction"] < 0.6
    with torch.no_grad():
        outputs = result.shrunk(data.test.x)
        difference = (outputs - result.network.eval()(data.test.x)).abs().max()
    assert outputs.shape == (len(data.test), 3, 8, 8)
    assert float(difference) < 1e-4
    # By hand, pixel by pixel.
    right = sum(
        int(outputs[n, :, i, j].argmax()) == int(data.test.y[n, i, j])
        for n in range(len(data.test))
        for i in range(8)
        for j in range(8)
    )
    assert result.summary["accuracy"] == pytest.approx(right / data.test.y.numel())


def test_the_prior_is_weighed_against_all_pixels():
    data = blobs(40)
    loop = Loop(TinyUNet(), data, Classification(), Settings(), Silent(), World())
    assert loop.compressor.prior.examples == data.train.y.numel() == len(data.train) * 64
    assert loop.guesses({"accuracy": float(loop.validation.y.flatten().bincount().max()) / loop.validation.y.numel()})
    assert not loop.guesses({"accuracy": 0.99})


def test_transposed_convs_are_no_prunable_weights():
    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2, stride=2))
    compressor = Compressor(network, torch.zeros(2, 1, 4, 4), examples=10, epochs=1)
    size = compressor.size({"0": torch.ones(4, 1, 3, 3, dtype=torch.bool)})
    assert (size.live_weights, size.weights, size.dense_weights) == (36, 36, 36)
    assert size.macs == 16 * 36 + 16 * 4 * 2 * 4
    assert size.dense_fraction == 1


class WithScore(Likelihood):
    """Cross-entropy with a score of another name."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def negative_log_likelihood(self, output, target, variance=None):
        return nn.functional.cross_entropy(output, target)

    def score(self, output, target):
        return {self.name: float((output.argmax(1) == target).float().mean())}


def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def test_a_budget_of_accuracy_needs_a_figure_that_it_knows():
    settings = Settings(max_accuracy_drop=0.5, warmup_epochs=1, prune_epochs=1, finetune_epochs=0)
    with pytest.raises(SettingsError, match=r"`accuracy` or `r2`.* has precision; name one of them so"):
        compress(small(), digits(), settings=settings, likelihood=WithScore("precision"))
    assert compress(small(), digits(), settings=settings, likelihood=WithScore("accuracy")).summary["status"]


def test_what_is_no_data_set_or_likelihood_is_named():
    with pytest.raises(TypeError, match=r"data must be a DataSet, got tuple; try DataSet\.from_tensors"):
        compress(small(), (torch.zeros(2, 1), torch.zeros(2)))
    with pytest.raises(TypeError, match=r"must be a Likelihood, got MSELoss; for regression try GaussianRegression"):
        compress(small(), digits(), likelihood=nn.MSELoss())


def test_layers_that_die_in_an_own_loop_are_said():
    data = digits()
    network = small()
    settings = Settings(unit_strength=0, weight_strength=1e6, weight_start=1e6)
    compressor = Compressor(network, data.train.x[:2], examples=len(data.train), epochs=2, settings=settings)
    with torch.no_grad():
        network[1].weight.mul_(1e-6)
    with pytest.warns(UserWarning, match="no live weight is left in 1; try smaller strengths"):
        compressor.update()
    with pytest.warns(UserWarning, match="mean negative log-likelihood over `examples` predictions"):
        compressor.finish()


class Detour(nn.Module):
    """A branch without any effect, beside a way around it."""

    def __init__(self):
        super().__init__()
        self.first, self.down, self.up, self.out = (
            nn.Linear(64, 24),
            nn.Linear(24, 8),
            nn.Linear(8, 24),
            nn.Linear(24, 10),
        )
        nn.init.constant_(self.down.bias, -100.0)  # its ReLU never wakes

    def forward(self, x):
        first = self.first(x.flatten(1)).relu()
        return self.out(first + self.up(self.down(first).relu()))


def test_a_branch_may_die_where_there_is_a_way_around_it():
    settings = Settings(
        **{"warmup_epochs": 5, "prune_epochs": 20, "finetune_epochs": 2, "batch_size": 64, "refresh_every": 10},
        **{"unit_strength": 100, "weight_strength": 0.25, "weight_start": 0.01, "learning_rate": 5e-3},
    )
    torch.manual_seed(0)
    result = compress(Detour(), digits(), settings=settings)
    assert not result.masks["down"].any()
    assert not result.masks["up"].any()
    assert result.masks["first"].any()
    assert result.summary["status"] == "finished"
    assert result.summary["notes"] == []  # nothing was taken back
    assert result.summary["accuracy"] > 0.85
    test = digits().test.x
    with torch.no_grad():
        torch.testing.assert_close(result.shrunk(test), result.network(test), rtol=1e-5, atol=1e-5)
