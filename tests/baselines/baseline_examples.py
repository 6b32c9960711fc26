"""Small networks, data and settings that the tests of the baselines share."""

from collections import OrderedDict

import torch
from torch import nn

from bayesprune import data, models
from bayesprune.baselines import METHODS, BaselineSettings, recipe
from bayesprune.baselines.running import Run
from bayesprune.data import DataSet
from bayesprune.likelihoods import Classification

NAMES = tuple(METHODS)


def digits(seed=0):
    return data.load("digits", validation=0.1, seed=seed)


def small_mlp(seed=0, widths=(32, 16)):
    return models.create("mlp", (1, 8, 8), 10, generator=torch.Generator().manual_seed(seed), widths=widths)


def lenet(seed=0):
    return models.create("lenet5", (1, 8, 8), 10, generator=torch.Generator().manual_seed(seed))


def normed(seed=0):
    """A conv with BatchNorm, one without, and a hidden Linear."""
    torch.manual_seed(seed)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 8, 3, padding=1, bias=False),
            norm1=nn.BatchNorm2d(8),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(8, 8, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(32, 16),
            relu3=nn.ReLU(),
            out=nn.Linear(16, 10),
        )
    )


class Residual(nn.Module):
    """Two convs around which a shortcut leads, with BatchNorm."""

    def __init__(self, channels=6):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels * 16, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.stem_norm(self.stem(x))), 2)
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return self.head(torch.relu(x + y).flatten(1))


def residual(seed=0):
    torch.manual_seed(seed)
    return Residual()


def quick(name, **values):
    """Settings that reach something on digits in a second or two."""
    epochs = {"warmup_epochs": 8, "prune_epochs": 20, "finetune_epochs": 5}
    if name == "snip":
        epochs = {"warmup_epochs": 8, "prune_epochs": 25, "finetune_epochs": 0}
    plain = {"batch_size": 64, "learning_rate": 4e-3, **epochs}
    if name == "polarization":
        plain["strength"] = 0.01
    return BaselineSettings.from_dict(recipe(name).as_dict() | plain | values)


def a_run(name="magnitude", network=None, dataset=None, **values):
    """A run that has not begun."""
    dataset = dataset if dataset is not None else digits()
    network = network if network is not None else small_mlp()
    return Run(name, network, dataset, Classification(), quick(name, **values))


def in_float64(dataset):
    """The same data in float64."""
    split = type(dataset.train)
    parts = {p: split(getattr(dataset, p).x.double(), getattr(dataset, p).y) for p in ("train", "validation", "test")}
    return DataSet(dataset.name, dataset.classes, mean=dataset.mean, std=dataset.std, **parts)
