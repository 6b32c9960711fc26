"""What a network has to do for one example, counted while it runs."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Work:
    """Of one network.

    Args:
        operations: operations that compute something, not views and allocations.
        macs: multiplications with an addition, per example.
        weight_bytes: read once per call.
        activation_bytes: results of operations, written per example.
    """

    operations: int
    macs: int
    weight_bytes: int
    activation_bytes: int

    def bytes(self, batch: int) -> int:
        """Weights read and activations written in a call."""
        return self.weight_bytes + batch * self.activation_bytes


class _Counter(TorchDispatchMode):
    """Counts operations and the bytes they return."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket is not torch.ops.aten.empty:
            self.operations += 1
            results = out if isinstance(out, tuple | list) else (out,)
            self.bytes += sum(t.numel() * t.element_size() for t in results if isinstance(t, Tensor))
        return out


def count_work(network: nn.Module, x: Tensor) -> Work:
    """Run `network` once on `x` (1, ...) and count."""
    counter = _Counter()
    flops = FlopCounterMode(display=False)
    x = x.clone()  # the network may change its input
    with torch.no_grad(), flops, counter:
        network(x)
    weights = sum(t.numel() * t.element_size() for t in (*network.parameters(), *network.buffers()))
    return Work(counter.operations, flops.get_total_flops() // 2, weights, counter.bytes)
