"""Small networks, data and recorders that the tests of the turbo loop share."""

import copy
from collections import OrderedDict

import torch
from torch import nn

from bayesprune import data, models
from bayesprune.data import DataSet
from bayesprune.turbo import Settings

# Reaches a quarter of the weights of an mlp on digits in seconds.
QUICK = Settings(
    warmup_epochs=5,
    prune_epochs=10,
    finetune_epochs=2,
    batch_size=64,
    learning_rate=6e-3,
    unit_strength=300.0,
    weight_strength=1.5,
    weight_start=0.05,
    weight_ramp=(0.2, 0.6),
    spike_rate=1e-3,
    refresh_every=7,
)


def digits(seed=0):
    return data.load("digits", validation=0.1, seed=seed)


def small_mlp(seed=0, widths=(32, 16)):
    return models.create("mlp", (1, 8, 8), 10, generator=torch.Generator().manual_seed(seed), widths=widths)


class Residual(nn.Module):
    """A residual network with BatchNorm, small enough to trace by eye."""

    def __init__(self, channels=6, classes=4):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        x = torch.relu(self.stem_norm(self.stem(x)))
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return self.head(torch.relu(x + y).mean((2, 3)))


def residual(seed=0):
    torch.manual_seed(seed)
    network = Residual()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):  # as if it had been trained
            with torch.no_grad():
                module.weight.uniform_(0.5, 1.5)
                module.running_var.uniform_(0.5, 2.0)
    return network


def coloured_images(count=240, seed=0):
    """Images (3, 8, 8) of four classes that differ in the brightness of their quarters."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (count,), generator=generator)
    x = torch.randn(count, 3, 8, 8, generator=generator)
    for i, label in enumerate(y.tolist()):
        x[i, label % 3, 4 * (label // 2) : 4 * (label // 2) + 4] += 2.0
    return DataSet.from_tensors(x, y, test=0.2, validation=0.2, seed=seed)


def with_dropout(seed=0):
    torch.manual_seed(seed)
    layers = OrderedDict(
        flat=nn.Flatten(), fc1=nn.Linear(64, 24), relu=nn.ReLU(), drop=nn.Dropout(0.2), out=nn.Linear(24, 10)
    )
    return nn.Sequential(layers)


class Recording:
    """Keeps rows and checkpoints as a run folder would; stops after `stop_after` epochs of this process."""

    def __init__(self, stop_after=None):
        self.rows, self.notes, self.steps = [], [], []
        self.saved = None
        self._left = stop_after

    def row(self, row):
        self.rows.append(row)
        if self._left is not None:
            self._left -= 1

    def step(self, done, total):
        self.steps.append((done, total))

    def note(self, text):
        self.notes.append(text)

    def checkpoint(self, state, *, must=False):
        self.saved = copy.deepcopy(state())

    def should_stop(self):
        return self._left is not None and self._left <= 0


def without_seconds(rows):
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
