"""Keep your own training loop: a `Compressor` beside it.

    python examples/own_loop.py

Ten seconds on one core.
"""

import torch
from torch import Tensor
from torch.nn import functional

from bayesprune import Compressor, Settings, models
from bayesprune.data import Split, load
from bayesprune.turbo import apply_masks


def accuracy(split: Split) -> float:
    """Share of a part of the data that the network gets right."""
    with torch.no_grad():
        return float((network.eval()(split.x).argmax(1) == split.y).float().mean())


torch.manual_seed(0)
data = load("digits")
network = models.create("lenet5", data.input_shape)
optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
settings = Settings(unit_strength=200, weight_strength=0.25, weight_start=0.01, spike_rate=1e-4, refresh_every=20)

compressor = Compressor(network, data.train.x[:2], examples=len(data.train), epochs=80, settings=settings)
masks: dict[str, Tensor] = {}  # which weights live, once that is decided

for epoch in range(1, 111):  # 80 to prune, 30 to fine-tune
    network.train()
    for batch in torch.randperm(len(data.train)).split(64):
        loss = functional.cross_entropy(network(data.train.x[batch]), data.train.y[batch])
        optimiser.zero_grad()
        loss.backward()
        if not masks:
            compressor.add_gradients()  # with SGD instead, after its step: compressor.decay(learning_rate)
        optimiser.step()
        apply_masks(network, masks)  # the optimiser would move dead weights
    if epoch <= 80:
        size = compressor.update().size  # Module B, once an epoch
    if epoch == 80:
        masks = compressor.finish()  # decides, and sets dead weights to zero
    if epoch % 10 == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}, {size.nonzero_fraction:.1%} of the weights live")

print(f"accuracy {accuracy(data.test):.2%}, {size.nonzero_fraction:.1%} of the weights live, widths {size.structure}")
print(f"{1 - size.macs_fraction:.1%} of the MACs removed")
