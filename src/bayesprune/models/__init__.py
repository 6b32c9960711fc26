"""The networks of the paper and two more, by name.

    generator = torch.Generator().manual_seed(0)
    network = create("lenet5", input_shape=(1, 28, 28), classes=10, generator=generator)

They are plain modules that torch.fx can trace.
"""

from bayesprune.models.creation import MODELS, create

__all__ = ["MODELS", "create"]
