"""Whether the weights of a network are still those that they were."""

from itertools import chain
from operator import attrgetter
from typing import Any

from torch import Tensor, nn


class Weights:
    """The parameters and buffers of a network as they are now; to compare them takes microseconds.

    They are held, so that no other tensor can take the place of one.  Not seen are changes through `.data` and numpy,
    and changes in place of tensors that were made in inference mode: torch does not count them.
    """

    def __init__(self, network: nn.Module) -> None:
        members = [
            one for module in network.modules() for one in (module._parameters, module._buffers, module._modules)
        ]
        self._members: list[Any] = [one.values() for one in members if one]
        self._held = list(chain.from_iterable(self._members))
        self._ids = [id(one) for one in self._held]
        tensors = [one for one in self._held if isinstance(one, Tensor)]
        self._placed = [one for one in tensors if _has_place(one)]
        self._memory = [one.detach() for one in self._placed]  # `tensor.data = ...` lets go of the tensor's own
        self._counted = [one for one in tensors if not one.is_inference()]
        self._places, self._versions = self._find_places(), self._find_versions()

    def are_the_same(self) -> bool:
        """Whether the network has the same tensors with the same values."""
        if list(map(id, chain.from_iterable(self._members))) != self._ids:
            return False
        return self._find_versions() == self._versions and self._find_places() == self._places

    def _find_places(self) -> list[int]:
        return list(map(Tensor.data_ptr, self._placed))

    def _find_versions(self) -> list[int]:
        return list(map(attrgetter("_version"), self._counted))


def _has_place(tensor: Tensor) -> bool:
    try:
        tensor.data_ptr()
    except RuntimeError:  # sparse, or around other tensors
        return False
    return True
