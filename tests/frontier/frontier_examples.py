"""Networks, data and settings that the tests of the frontier share."""

import dataclasses
from collections import OrderedDict

import torch
from torch import nn

from bayesprune import data, models
from bayesprune.data import DataSet, Split
from bayesprune.turbo import Settings

QUICK = Settings(
    warmup_epochs=2,
    prune_epochs=5,
    finetune_epochs=2,
    batch_size=32,
    learning_rate=6e-3,
    unit_strength=300.0,
    weight_strength=1.5,
    weight_start=0.05,
    weight_ramp=(0.2, 0.6),
    refresh_every=7,
)
VARIED = [
    QUICK,
    dataclasses.replace(
        QUICK, seed=1, weight_strength=3.0, learning_rate=3e-3, unit_strength=500.0, spike_rate=1e-2, cost_mix=0.9
    ),
    dataclasses.replace(
        QUICK, seed=2, unit_strength=100.0, slab_rate=0.3, activity=0.3, weight_decay=1e-4, unit_ramp=(0.1, 0.5)
    ),
]
ORDER = 5


def with_values(settings, **values):
    return [dataclasses.replace(one, **values) for one in settings]


def in_double(loaded):
    def split(one):
        return Split(one.x.double(), one.y)

    return dataclasses.replace(
        loaded, train=split(loaded.train), validation=split(loaded.validation), test=split(loaded.test)
    )


def digits(count=400):
    loaded = data.load("digits", validation=0.1, seed=0)
    return dataclasses.replace(loaded, train=Split(loaded.train.x[:count], loaded.train.y[:count]))


def mlp(settings):
    generator = torch.Generator().manual_seed(settings.seed)
    return models.create("mlp", (1, 8, 8), 10, generator=generator, widths=(32, 16))


def lenet5(settings):
    return models.create("lenet5", (1, 8, 8), 10, generator=torch.Generator().manual_seed(settings.seed))


def normed(settings):
    """Convs with BatchNorm, one of them without trained scale, on coloured images."""
    torch.manual_seed(settings.seed)
    layers = OrderedDict(
        conv1=nn.Conv2d(3, 6, 3, padding=1, bias=False),
        norm1=nn.BatchNorm2d(6),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(6, 6, 3, padding=1, bias=False),
        norm2=nn.BatchNorm2d(6, affine=False),
        relu2=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(1),
        flat=nn.Flatten(),
        out=nn.Linear(6, 4),
    )
    return nn.Sequential(layers)


def coloured_images(count=240):
    """Images (3, 8, 8) of four classes that differ in the brightness of their quarters."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (count,), generator=generator)
    x = torch.randn(count, 3, 8, 8, generator=generator)
    for i, label in enumerate(y.tolist()):
        x[i, label % 3, 4 * (label // 2) : 4 * (label // 2) + 4] += 2.0
    return DataSet.from_tensors(x, y, test=0.2, validation=0.2)


class Recording:
    """Keeps rows and states; stops after `stop_after` epochs."""

    def __init__(self, stop_after=None):
        self.rows, self.notes, self.saved = [], [], None
        self._left = stop_after

    def row(self, row):
        self.rows.append(row)
        if self._left is not None:
            self._left -= 1

    def step(self, done, total):
        pass

    def note(self, text):
        self.notes.append(text)

    def checkpoint(self, state, *, must=False):
        self.saved = state()

    def should_stop(self):
        return self._left is not None and self._left <= 0
