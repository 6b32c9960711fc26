"""Numbers of units that a network computes with."""

from typing import Any

import torch
from torch import Tensor
from torch.fx.node import Node, map_aggregate

from bayesprune.structure import operations as ops
from bayesprune.structure.values import Call, Value

NOTHING = torch.empty(0, dtype=torch.long)


class Sizes:
    """Which numbers of a network follow the number of its units.

    In a shape they are harmless: it follows the units.  In anything else the result changes with them.
    """

    def __init__(self) -> None:
        self.counted: dict[Node, Tensor | tuple[Tensor, ...]] = {}
        """The units that a number counts; of a shape, for each of its numbers."""

    def misused(self, call: Call, name: str) -> Tensor:
        """The units whose number this operation, called `name`, uses for anything but a shape."""
        on_tensor = isinstance(call.first, Value)
        if on_tensor and name in ops.QUERIES:
            self.counted[call.node] = _asked(call, name)
            return NOTHING
        given = [self.counted[node] for node in call.node.all_input_nodes if node in self.counted]
        if not given or (on_tensor and name in ops.MOVES):
            return NOTHING
        if call.node.op == "output" or _has_tensors(call.result):
            return _joined(given)
        # Numbers of numbers.
        index = call.args[1] if name == "getitem" else None
        whole = given[0]
        taken = isinstance(whole, tuple) and isinstance(index, int | slice)
        self.counted[call.node] = whole[index] if taken else _joined(given)  # type: ignore[index]
        return NOTHING


def _asked(call: Call, name: str) -> Tensor | tuple[Tensor, ...]:
    """The units that the result of a query counts."""
    value = call.first
    by_dim = tuple(value.ids.flatten() if dim in value.dims else NOTHING for dim in range(len(value.shape)))
    if name in ("shape", "size"):
        dim = call.argument(1, "dim") if name == "size" else None
        return by_dim if dim is None else by_dim[dim]
    return _joined([by_dim]) if name in ("numel", "nelement", "stride") else NOTHING


def _joined(given: list[Tensor | tuple[Tensor, ...]]) -> Tensor:
    flat = [ids for one in given for ids in (one if isinstance(one, tuple) else (one,))]
    return torch.cat([NOTHING, *flat])


def _has_tensors(result: Any) -> bool:
    found: list[Tensor] = []

    def collect(one: Any) -> Any:
        if isinstance(one, Tensor):
            found.append(one)
        return one

    map_aggregate(result, collect)
    return bool(found)
