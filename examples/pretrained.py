"""Take a network that is trained already and compress it, losing at most one point of accuracy.

    python examples/pretrained.py

Nothing in the class or its training knows of bayesprune.  Fifteen seconds on one core.
"""

import torch
from torch import nn
from torch.nn import functional

from bayesprune import Settings, compress
from bayesprune.data import load


class Digits(nn.Module):
    """Your own network, written as you like it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 64, 3, padding=1)
        self.hidden = nn.Linear(64 * 2 * 2, 128)
        self.out = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.first(x)), 2)
        x = functional.max_pool2d(functional.relu(self.second(x)), 2)
        scores: torch.Tensor = self.out(functional.relu(self.hidden(x.flatten(1))))
        return scores


torch.manual_seed(0)
data = load("digits")
network = Digits()
optimiser = torch.optim.Adam(network.parameters(), 2e-3)
for _ in range(20):  # your own training
    for batch in torch.randperm(len(data.train)).split(64):
        optimiser.zero_grad()
        functional.cross_entropy(network(data.train.x[batch]), data.train.y[batch]).backward()
        optimiser.step()

settings = Settings(
    warmup_epochs=0,  # it is trained already
    prune_epochs=60,
    finetune_epochs=20,
    batch_size=64,
    max_accuracy_drop=1.0,  # points of accuracy on the validation part
    refresh_every=20,
)
result = compress(network, data, settings=settings)

figures = result.summary
print(f"accuracy {figures['accuracy']:.2%}, before compression {figures['accuracy_unpruned']:.2%}")
print(f"{figures['nonzero_fraction']:.1%} of the weights, {figures['macs_removed']:.1%} of the MACs removed")
print(f"widths {figures['structure']}")
