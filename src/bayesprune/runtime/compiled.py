"""A network that runs as the fastest of what was measured for its batch size; plain torch is always among it."""

import copy
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.runtime import native
from bayesprune.runtime.lowering import Lowered, UnsupportedError, lower

LANES = (16, 32, 64)
SECONDS = 0.03  # of measurement for each way, at least
FEWEST_RUNS = 3
# Another way than torch has to be this much faster: noise must not choose.
MARGIN = 0.97


@dataclass(frozen=True)
class Choice:
    """How a batch size is run, and the seconds that a batch took in each way."""

    way: str
    seconds: dict[str, float] = field(compare=False)


def compile(network: nn.Module, example: Tensor) -> "Compiled":
    """A network for inference that computes what `network` does in eval mode, as fast as this machine can.

    network: stays as it is.  example: an input, batch first; its device is where the network will run.
    The first batch of every size (rounded up to a power of two) is measured in all ways, which takes some tenths of a
    second.  On CPU, float32 images and features go through the native engine where it has all operations of the
    network; otherwise, and whenever torch is faster, the network runs in torch.
    """
    return Compiled(copy.deepcopy(network).eval(), tuple(example.shape[1:]))


class Compiled(nn.Module):
    """See `compile`.  Threads may share it; gradients do not flow through it."""

    def __init__(self, network: nn.Module, example_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.network = network
        self.example_shape = example_shape
        self.reason: str | None = None
        self._lowered: Lowered | None = None
        self._programs: dict[int, native.Program] = {}
        self._choices: dict[tuple[int, int], Choice] = {}
        self._channels_last: nn.Module | None = None
        self._lower()

    def _lower(self) -> None:
        if native.library() is None:
            self.reason = "the native engine is not built; install a C compiler and reinstall bayesprune"
            warnings.warn(f"{self.reason}; running in torch", stacklevel=4)
            return
        try:
            self._lowered = lower(self.network, self.example_shape)
        except UnsupportedError as error:
            self.reason = str(error)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Compiled":
        twin = Compiled(copy.deepcopy(self.network, memo), self.example_shape)
        twin._choices = dict(self._choices)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a compiled network is of this machine; save the network itself, see bayesprune.save")

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        """What the network says of x, batch first."""
        if not self._fits(x):
            result: Tensor = self.network(x)
            return result
        return self._way(self._choose(x).way)(x)

    def _fits(self, x: Tensor) -> bool:
        return (
            self._lowered is not None
            and x.device.type == "cpu"
            and x.dtype == torch.float32
            and tuple(x.shape[1:]) == self.example_shape
            and len(x) > 0
        )

    def _choose(self, x: Tensor) -> Choice:
        key = (1 << (len(x) - 1).bit_length(), torch.get_num_threads())
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choices[key] = self._measure(x)
        return choice

    def _measure(self, x: Tensor) -> Choice:
        ways = ["torch", *(["torch, channels last"] if x.ndim == 4 else []), *(f"native, {n} lanes" for n in LANES)]
        seconds = {way: _seconds(self._way(way), x) for way in ways}
        plain = min((way for way in ways if way.startswith("torch")), key=seconds.__getitem__)
        fastest = min(ways, key=seconds.__getitem__)
        return Choice(fastest if seconds[fastest] < MARGIN * seconds[plain] else plain, seconds)

    def _way(self, name: str) -> Callable[[Tensor], Tensor]:
        if name == "torch":
            return self.network
        if name == "torch, channels last":
            if self._channels_last is None:
                twin = copy.deepcopy(self.network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                object.__setattr__(self, "_channels_last", twin)  # not a part of the network
            last = self._channels_last
            assert last is not None
            return lambda x: last(x.contiguous(memory_format=torch.channels_last))
        lanes = int(name.split()[1])
        return lambda x: self._native(x, lanes)

    def _native(self, x: Tensor, lanes: int) -> Tensor:
        assert self._lowered is not None
        program = self._programs.get(lanes)
        if program is None:
            program = self._programs[lanes] = native.Program(self._lowered, lanes)
        result = program(x.reshape(len(x), -1).contiguous(), torch.get_num_threads())
        view = self._lowered.output
        return result if view.flat else result.reshape(len(x), view.channels, view.rows, view.columns)

    def explain(self) -> dict[str, Any]:
        """For every batch size seen, the way that was chosen and what all took; plain data."""
        sizes = {
            f"batch up to {batch}, {threads} threads": {"way": choice.way, "seconds": dict(choice.seconds)}
            for (batch, threads), choice in self._choices.items()
        }
        return {"native": self.reason or "yes", "choices": sizes}


def fastest_native(network: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """A function that runs a network on x (n, ...) float32 in the native engine, with the fastest number of lanes.

    Raises UnsupportedError where the engine is not built or has not all operations of the network.
    """
    compiled = Compiled(network, tuple(x.shape[1:]))
    if not compiled._fits(x):
        raise UnsupportedError(compiled.reason or f"the engine takes float32 on the CPU, got {x.dtype} on {x.device}")
    with torch.inference_mode():
        lanes = min(LANES, key=lambda lanes: _seconds(lambda x: compiled._native(x, lanes), x))
    return lambda: compiled._native(x, lanes)


def _seconds(way: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The shortest of some runs."""
    way(x)
    best, total, runs = float("inf"), 0.0, 0
    while total < SECONDS or runs < FEWEST_RUNS:
        started = time.perf_counter()
        way(x)
        last = time.perf_counter() - started
        best, total, runs = min(best, last), total + last, runs + 1
    return best
