"""How far a time is from what the machine reaches: arithmetic at the rate of a GEMM, bytes at that of a copy."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from bayesprune.latency.clocks import seconds_of, warm_up
from bayesprune.latency.measuring import conditions

FLOAT: Final = 4  # bytes of a float32
ROUNDS: Final = 15
SIDES: Final = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192)}  # of the matrices whose products show the peak
COPIED: Final = {"cpu": 2**28, "cuda": 2**30}  # bytes: more than any cache holds
WARM: Final = 0.5  # seconds


@dataclass(frozen=True)
class NetworkWork:
    """Of one network.

    live_macs: its nonzero weights times their uses, per example, without products with the zeros of padding.
    weight_bytes: of the nonzero weights and of all other parameters and buffers, once per call.
    example_bytes: of the input and output of an example.
    """

    live_macs: int
    weight_bytes: int
    example_bytes: int

    def flops(self, batch: int) -> int:
        """A multiplication and an addition for every MAC."""
        return 2 * batch * self.live_macs

    def bytes(self, batch: int) -> int:
        """That must be moved at least: the input, the output, and the weights once."""
        return batch * self.example_bytes + self.weight_bytes


@dataclass(frozen=True)
class Machine:
    """What a device reaches.  flops: float32 operations a second of a GEMM.  bandwidth: bytes a second of a copy."""

    flops: float
    bandwidth: float

    def as_dict(self) -> dict[str, Any]:
        """Plain types."""
        return asdict(self) | {"measured_by": "the fastest of square float32 GEMMs; a copy, bytes read and written"}

    def bound(self, work: NetworkWork, batch: int) -> tuple[float, str]:
        """max(FLOPs / peak, bytes / bandwidth) in seconds, and which of the two it is."""
        arithmetic, memory = work.flops(batch) / self.flops, work.bytes(batch) / self.bandwidth
        return (arithmetic, "arithmetic") if arithmetic >= memory else (memory, "memory")


def measure_machine(device: torch.device, threads: int | None = None, *, tf32: bool = False) -> Machine:
    """The peak and the bandwidth of a device.

    threads: on the CPU, None keeps those of PyTorch.  tf32: whether the GEMM may use it, on CUDA.
    """
    with conditions(threads, device, tf32):
        return Machine(peak_flops(device), bandwidth(device))


def peak_flops(device: torch.device, sides: Sequence[int] | None = None) -> float:
    """Operations a second of products of two float32 matrices (side, side), the most of all sides."""
    return max(_gemm(device, side) for side in sides or SIDES[device.type])


def _gemm(device: torch.device, side: int) -> float:
    a, b = (torch.rand(side, side, device=device) for _ in range(2))
    out = torch.empty_like(a)
    return float(2 * side**3 / _seconds(lambda: torch.mm(a, b, out=out), device))


def bandwidth(device: torch.device, size: int | None = None) -> float:
    """Bytes a second that a copy of `size` bytes reads and writes."""
    source = torch.rand((size or COPIED[device.type]) // FLOAT, device=device)
    target = torch.empty_like(source)
    return 2 * FLOAT * source.numel() / _seconds(lambda: target.copy_(source), device)


def work_of(network: nn.Module, example: Tensor) -> NetworkWork:
    """Count what a network has to do, by running it on an example (1, ...)."""
    layers = [one for one in network.modules() if isinstance(one, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    live_macs = 0

    def count(layer: Any, given: tuple[Tensor], _: Any) -> None:
        nonlocal live_macs
        ones, live = torch.ones_like(given[0]), (layer.weight != 0).to(given[0])
        made = (
            nn.functional.linear(ones, live) if isinstance(layer, nn.Linear) else layer._conv_forward(ones, live, None)
        )
        live_macs += int(made.double().sum())

    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        with torch.no_grad():
            out = network(example.clone())
    finally:
        for hook in hooks:
            hook.remove()
    zeros = sum(layer.weight.numel() - int(layer.weight.count_nonzero()) for layer in layers)
    held = sum(tensor.numel() for tensor in (*network.parameters(), *network.buffers()))
    return NetworkWork(live_macs, FLOAT * (held - zeros), FLOAT * (example.numel() + out.numel()))


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """Of a call, the shortest of some: other programs must not lower what the machine reaches."""
    warm_up(run, device, WARM)
    return min(seconds_of(run, 1, device) for _ in range(ROUNDS))
