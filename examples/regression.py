"""Which inputs matter?  A network for regression, compressed until only the inputs that it needs are left.

    python examples/regression.py

The made-up target depends on 3 of 20 inputs.  Ten seconds on one core.
"""

import torch

from bayesprune import GaussianRegression, Settings, compress, models
from bayesprune.data import DataSet
from bayesprune.likelihoods import LearnedNoise

generator = torch.Generator().manual_seed(0)
x = torch.randn(5000, 20, generator=generator)
noise = 0.1 * torch.randn(5000, 1, generator=generator)
y = torch.sin(2 * x[:, [3]]) + x[:, [7]] * x[:, [11]] + noise  # inputs 3, 7 and 11 matter

data = DataSet.from_tensors(x, y, test=0.2, validation=0.1)
network = models.create("mlp", data.input_shape, 1, widths=(64, 64), generator=generator)
settings = Settings(
    warmup_epochs=20,
    prune_epochs=60,
    finetune_epochs=20,
    batch_size=64,
    learning_rate=0.01,
    unit_strength=1000,
    weight_strength=10,
    weight_start=0.01,
    refresh_every=20,
)
result = compress(network, data, settings=settings, likelihood=GaussianRegression(LearnedNoise()))

figures = result.summary
first = next(iter(result.masks.values()))  # (64, 20): which weights of the first layer live
alive = first.any(0).nonzero().flatten().tolist()
print(f"rmse {figures['rmse']:.3f}, before compression {figures['rmse_unpruned']:.3f} (the noise alone is 0.100)")
print(f"inputs that survive: {alive}")
print(f"{figures['nonzero_fraction']:.1%} of the weights, widths {figures['structure']}")
