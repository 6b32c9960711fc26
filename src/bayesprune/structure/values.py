"""What is known of the tensors of a network, and of one call of an operation on them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import Node, map_aggregate

from bayesprune.structure.ledger import NO_UNIT


@dataclass(frozen=True, eq=False)
class Value:
    """What is known of a tensor.

    ids: the unit of every entry, with as many dimensions as the tensor and size 1 where the unit does not change:
    (1, c, 1, 1) for a feature map.  through: the per_channel layers that everything in it has passed.
    parameter: its name if the tensor is a parameter as it stands, else empty.
    """

    shape: torch.Size
    ids: Tensor
    through: frozenset[str] = frozenset()
    parameter: str = ""

    @property
    def dims(self) -> list[int]:
        """The dimensions along which the unit changes."""
        return [dim for dim, size in enumerate(self.ids.shape) if size > 1]

    def line(self, dim: int) -> Tensor:
        """The ids with all entries along `dim`."""
        return self.ids.expand(*[self.shape[dim] if one == dim else size for one, size in enumerate(self.ids.shape)])

    def aligned(self, count: int) -> "Value":
        """The same with `count` dimensions, new ones in front."""
        return self if len(self.shape) == count else self.stretched(0).aligned(count)

    def stretched(self, dim: int) -> "Value":
        """The same with a new dimension at `dim`."""
        shape = [*self.shape]
        shape.insert(dim, 1)
        return Value(torch.Size(shape), self.ids.unsqueeze(dim), self.through)


def along(shape: torch.Size, dim: int, ids: Tensor, through: frozenset[str] = frozenset()) -> Value:
    """A tensor with the units `ids`, (shape[dim],), along one dimension."""
    size = [1] * len(shape)
    size[dim] = -1
    return Value(shape, ids.reshape(size), through)


Flow = Any
"""A Value for a tensor, a collection of flows for a collection, anything else as it is."""


def without_units(tensor: Tensor) -> Value:
    """A tensor in which nothing can be removed."""
    return Value(tensor.shape, torch.full((1,) * tensor.ndim, NO_UNIT))


def compact(shape: torch.Size, ids: Tensor, through: frozenset[str]) -> Value:
    """A value from its ids, with size 1 wherever the unit does not change."""
    if ids.numel() == 0:
        return Value(shape, torch.full((1,) * len(shape), NO_UNIT), through)
    for dim in range(ids.ndim):
        first = ids.narrow(dim, 0, 1)
        if ids.shape[dim] > 1 and (ids.stride(dim) == 0 or bool((ids == first).all())):
            ids = first
    return Value(shape, ids, through)


@dataclass(frozen=True, eq=False)
class Call:
    """One operation of the graph: its operands as flows, its result as it came out."""

    node: Node
    args: tuple[Flow, ...]
    kwargs: dict[str, Flow]
    result: Any

    @property
    def values(self) -> list[Value]:
        """All tensors among the operands."""
        found: list[Value] = []

        def collect(given: Any) -> Any:
            if isinstance(given, Value):
                found.append(given)
            return given

        map_aggregate((self.args, self.kwargs), collect)
        return found

    @property
    def first(self) -> Flow:
        """The operand that the operation works on."""
        return self.args[0] if self.args else self.kwargs.get("input")

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An operand by position or name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def mapped(self, function: Callable[[Tensor], Value]) -> Flow:
        """The result with `function` of every tensor in its place."""

        def replaced(one: Any) -> Any:
            return function(one) if isinstance(one, Tensor) else one

        return map_aggregate(self.result, replaced)

    def without_units(self) -> Flow:
        """The result without units."""
        return self.mapped(without_units)

    def again(self, module: nn.Module | None) -> Any:
        """The same operation on the ids of the operands; contiguous, because `view` worked on the tensors."""

        def entries(one: Any) -> Any:
            return one.ids.expand(one.shape).contiguous() if isinstance(one, Value) else one

        args: Any = map_aggregate(self.args, entries)
        kwargs: Any = map_aggregate(self.kwargs, entries)
        if module is not None:
            return module(*args, **kwargs)
        if self.node.op == "call_method":
            return getattr(args[0], str(self.node.target))(*args[1:], **kwargs)
        assert callable(self.node.target)
        return self.node.target(*args, **kwargs)
