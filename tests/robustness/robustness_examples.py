"""A small network on digits with half of its weights dead, trained in a second."""

import torch
from torch import nn
from torch.nn import functional

from bayesprune import data


def small_network(seed=0, epochs=8, validation=0.1):
    """A network (8x8 images to ten classes) that is right nine times of ten, and the data."""
    loaded = data.load("digits", validation=validation)
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 10))
    masks = {name: torch.rand(network[int(name)].weight.shape) > 0.5 for name in ("1", "4")}
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for x, y in data.Batches(loaded.train, 64, generator):
            optimiser.zero_grad()
            functional.cross_entropy(network(x), y).backward()
            optimiser.step()
            with torch.no_grad():
                for name, mask in masks.items():
                    network[int(name)].weight.mul_(mask)
    return network.eval(), loaded
