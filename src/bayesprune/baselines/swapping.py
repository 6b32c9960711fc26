"""A version of a network for training, some of whose layers are wrapped; and back to the plain network."""

import copy
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from torch import Tensor, nn
from torch.nn import functional

Prunable = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


class Wrapper(nn.Module):
    """A layer inside another module; `forward` decides what becomes of it."""

    def __init__(self, layer: Prunable) -> None:
        super().__init__()
        self.layer = layer


W = TypeVar("W", bound=Wrapper)


class Swapped(Generic[W]):
    """A copy of a network in which layers are wrapped; everything else, BatchNorm too, is as it was.

    network: the copy.  wrappers: by the layer's name.  Layers that attention reads without calling them stay plain.
    """

    def __init__(self, model: nn.Module, names: Iterable[str], wrap: Callable[[str, Prunable], W]) -> None:
        self.network: nn.Module = copy.deepcopy(model)
        modules = dict(self.network.named_modules())
        uncalled = {id(m.out_proj) for m in modules.values() if isinstance(m, nn.MultiheadAttention)}
        self.wrappers: dict[str, W] = {}
        for name in names:
            layer = modules[name]
            assert isinstance(layer, Prunable)
            if id(layer) not in uncalled:
                self.wrappers[name] = wrap(name, layer).to(layer.weight.device)
        self._replace({id(wrapper.layer): wrapper for wrapper in self.wrappers.values()})

    def plain(self) -> nn.Module:
        """Take the wrappers off, for good, and return a network of the user's class."""
        self._replace({id(wrapper): wrapper.layer for wrapper in self.wrappers.values()})
        return self.network

    def _replace(self, others: dict[int, nn.Module]) -> None:
        self.network = others.get(id(self.network), self.network)
        for parent in list(self.network.modules()):
            if id(parent) in others or any(parent is other for other in others.values()):
                continue  # the inside of a wrapper
            for attribute, child in parent._modules.items():
                if id(child) in others:
                    parent._modules[attribute] = others[id(child)]


def apply(layer: Prunable, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What the layer would compute with this weight and bias."""
    if isinstance(layer, nn.Linear):
        return functional.linear(x, weight, bias)
    output: Tensor = layer._conv_forward(x, weight, bias)
    return output


def along(vector: Tensor, dim: int, ndim: int) -> Tensor:
    """A vector (n,) in a shape that broadcasts along one dimension of a tensor with ndim dimensions."""
    shape = [1] * ndim
    shape[dim] = -1
    return vector.reshape(shape)
