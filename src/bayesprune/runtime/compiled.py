"""A network that runs as the fastest of what was measured for its batch size; plain torch is always among it.

On the CPU a way is torch or the native engine; on a GPU it is torch, or as a CUDA graph torch, torch with joined
operations and widths filled up, or the Triton kernels.
"""

import contextlib
import copy
import itertools
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import torch
from torch import Tensor, nn

from bayesprune.runtime import gpu, native
from bayesprune.runtime.capture import Captured, ordinary_tensors
from bayesprune.runtime.fused import fused
from bayesprune.runtime.lowered import Lowered, UnsupportedError
from bayesprune.runtime.lowering import lower
from bayesprune.runtime.weights import Weights

TORCH, CHANNELS_LAST = "torch", "torch, channels last"
ALONE = 1  # lanes of a single example
LANES = (16, 32, 64)
STEPS = 8  # sizes on the CPU that are measured between one power of two and the next
MULTIPLES = (1, 8, 32)  # to which widths are filled up on a GPU
MOST_SIZES = 8  # batch sizes with a CUDA graph, each of which has memory of its own
IDLE = 10_000  # calls of other sizes after which a size gives its CUDA graph up where a new one needs it
GRAPHS, EAGER = 0, -1  # in place of the number of threads, on a GPU
SECONDS = 0.05  # of measurement for each way
FEWEST_TURNS = 3
HOPELESS = 1.5  # times as slow as the fastest
SETTLED = 0.005  # seconds that a way has had before it is hopeless: its first runs may be slow for other reasons
CLOSE = 1.15  # times as slow as the fastest, where another look decides
SHORT = 0.005  # seconds of a run that feels what another way has left in the caches
# Another way than torch has to be this much faster: noise must not choose.
MARGIN = 0.97
ORDINARY: Final = (Tensor, nn.Parameter)


@dataclass(frozen=True)
class Choice:
    """How a batch size is run, and the seconds that a batch took in each way.

    left_out: why ways that could not run were left out.
    """

    way: str
    seconds: dict[str, float] = field(compare=False)
    left_out: dict[str, str] = field(compare=False, default_factory=dict)


def compile(network: nn.Module, example: Tensor) -> "Compiled":
    """A network for inference that computes what `network` does in eval mode, as fast as this machine can.

    network: stays as it is; what becomes of its weights afterwards does not count.  example: an input, batch first; its
    device is where the network will run.
    The first batch of every size is measured in all ways, which takes some tenths of a second, or seconds where kernels
    are compiled; on the CPU sizes above 16 share eight measurements between one power of two and the next.  Float32
    images and features go through the native engine on the CPU, and through Triton on a GPU, where those have all
    operations of the network; otherwise, and whenever torch is faster, the network runs in torch.
    Other threads may run networks meanwhile, unless torch.compile made them: those refuse while torch.fx reads another.
    """
    try:
        with torch.inference_mode(False):  # torch counts no changes of tensors that are made in it
            twin = copy.deepcopy(network).eval()
    except RuntimeError as error:
        raise ValueError(
            f"{type(network).__name__} cannot be copied: {error}; after torch.nn.utils.prune make its masks part of "
            "the weights with prune.remove"
        ) from error
    return Compiled(twin, tuple(example.shape[1:]))


class Compiled(nn.Module):
    """See `compile`.  Threads may share it; gradients do not flow through it; it is always in eval mode.

    lowered: the network's operations, where they are known already.  fuse: whether torch with joined operations is
    among the ways on a GPU.
    """

    save_instead = "network"  # see artefact.save

    def __init__(
        self,
        network: nn.Module,
        example_shape: tuple[int, ...],
        *,
        lowered: Lowered | UnsupportedError | None = None,
        fuse: bool = True,
    ) -> None:
        super().__init__()
        self.training = False
        self.network = network
        self.example_shape = example_shape
        self._fuse = fuse
        self._lock = threading.RLock()  # of what is prepared, measured and captured
        self._clock = itertools.count()
        self._prepare(lowered)

    def _prepare(self, lowered: Lowered | UnsupportedError | None = None) -> None:
        """Everything that depends on the weights."""
        with self._lock, torch.inference_mode(False):
            weights = Weights(self)
            self._lowered = _lowered(self.network, self.example_shape) if lowered is None else lowered
            self._fused = self._joined()  # by the multiple of its widths; no parts of this module
            self._programs: dict[int, native.Program] = {}
            self._choices: dict[tuple[int, int], Choice] = {}
            self._used: dict[int, int] = {}  # when a size with a CUDA graph was last run
            self._channels_last: nn.Module | None = None
            self._captured: dict[tuple[str, int], Captured] = {}
            self.reason: str | None = None
            if isinstance(self._lowered, UnsupportedError):
                self.reason = str(self._lowered)
            elif native.library() is None and next(self.network.parameters(), torch.empty(0)).device.type == "cpu":
                self.reason = "the native engine is not built; install a C compiler and reinstall bayesprune"
                warnings.warn(f"{self.reason}; running in torch", stacklevel=4)
            self._new_weights: Weights | None = None
            self._weights = weights  # last: until then other threads see that it is not up to date

    def train(self, mode: bool = True) -> Self:
        """Eval mode, whatever is asked for: the ways that were measured are those of eval mode."""
        return super().train(False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        with torch.inference_mode(False):  # as in `compile`
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._prepare()
        return self

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        """Other weights; what was made of the old ones is made again."""
        found = super().load_state_dict(*args, **options)
        self._prepare()
        return found

    def _joined(self) -> dict[int, nn.Module]:
        found: dict[int, nn.Module] = {}
        if self._fuse and next(self.network.parameters(), torch.empty(0)).is_cuda and len(self.example_shape) == 3:
            for multiple in MULTIPLES:
                with contextlib.suppress(UnsupportedError):
                    found[multiple] = fused(self.network, self.example_shape, multiple)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> "Compiled":
        network = copy.deepcopy(self.network, memo)
        if not self._weights.are_the_same():
            return Compiled(network, self.example_shape, fuse=self._fuse)
        twin = Compiled(network, self.example_shape, lowered=self._lowered, fuse=self._fuse)
        twin._choices, twin._used = dict(self._choices), dict(self._used)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a compiled network is of this machine; save the network itself, see bayesprune.save")

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """What the network says of x, batch first."""
        if self.network.training:
            self.network.eval()
        if _is_special(x) or not self._fits(x) or torch.is_autocast_enabled(x.device.type):
            return self._in_torch(x)
        return self._way(self._choose(x).way)(x) if self._is_up_to_date() else self._in_torch(x)

    def _in_torch(self, x: Tensor) -> Tensor:
        result: Tensor = self.network(x)
        return result

    def _fits(self, x: Tensor) -> bool:
        usual = x.dtype == torch.float32 and tuple(x.shape[1:]) == self.example_shape and len(x) > 0
        return usual and (x.is_cuda or (self.reason is None and x.device.type == "cpu"))

    def _is_up_to_date(self) -> bool:
        """Whether all was made of the weights that are there; for new ones it is made again at their second call.

        At the first the network runs in torch: torch.func.functional_call brings weights for one call.
        """
        if self._weights.are_the_same():
            if self._new_weights is not None:  # a module is slow to set what it holds
                self._new_weights = None
            return True
        seen = self._new_weights
        if seen is None or not seen.are_the_same():
            self._new_weights = Weights(self)
            return False
        with self._lock:
            if not self._weights.are_the_same():
                self._prepare()
        return True

    def _choose(self, x: Tensor) -> Choice:
        key = self._key(x)
        choice = self._choices.get(key)
        if choice is None:
            with self._lock:
                key = self._key(x)  # another thread may have been here
                choice = self._choices.get(key)
                if choice is None:
                    choice = self._add_choice(key, x)
        if key[1] == GRAPHS:
            self._used[key[0]] = next(self._clock)
        return choice

    def _key(self, x: Tensor) -> tuple[int, int]:
        """Batches with the same key share a choice.  A CUDA graph is for one size."""
        size = len(x)
        if not x.is_cuda:
            return rounded_up(size), torch.get_num_threads()
        return (size, GRAPHS) if (size, GRAPHS) in self._choices or self._has_room() else (rounded_up(size), EAGER)

    def _has_room(self) -> bool:
        """Whether one more size may have a CUDA graph."""
        used = tuple(self._used.values())
        return len(used) < MOST_SIZES or next(self._clock) - min(used) > IDLE

    def _add_choice(self, key: tuple[int, int], x: Tensor) -> Choice:
        if key[1] == GRAPHS and len(self._used) >= MOST_SIZES:
            _wait(x)  # for graphs that are running
            oldest = min(tuple(self._used), key=self._used.__getitem__)
            del self._used[oldest]
            self._choices.pop((oldest, GRAPHS), None)
            self._let_go()
        choice = self._choices[key] = self._measure(x, with_graphs=key[1] != EAGER)
        if key[1] == GRAPHS:
            self._used[key[0]] = next(self._clock)
        self._let_go()
        return choice

    def _let_go(self) -> None:
        """Of what no size has chosen."""
        chosen = {choice.way for choice in self._choices.values()}
        self._programs = {lanes: one for lanes, one in self._programs.items() if _native_way(lanes) in chosen}
        if CHANNELS_LAST not in chosen:
            self._channels_last = None
        graphs = {(choice.way, size) for (size, kind), choice in self._choices.items() if kind == GRAPHS}
        self._captured = {key: one for key, one in self._captured.items() if key in graphs}

    def _ways(self, x: Tensor, with_graphs: bool = True) -> list[str]:
        torch_ways = [TORCH, *([CHANNELS_LAST] if x.ndim == 4 else [])]
        if not x.is_cuda:
            return [*torch_ways, *_native_ways(len(x))]
        if not with_graphs:
            return torch_ways
        graphs = [f"{way}, graph" for way in torch_ways]
        graphs += self._fused_ways()
        return [*torch_ways, *graphs, *(["triton, graph"] if self._is_lowered and gpu.is_available() else [])]

    @property
    def _is_lowered(self) -> bool:
        return not isinstance(self._lowered, UnsupportedError)

    def _fused_ways(self) -> list[str]:
        return [f"fused, widths of {multiple}, graph" for multiple in self._fused]

    def _measure(self, x: Tensor, with_graphs: bool = True) -> Choice:
        x = x.clone()  # a network may write into its input
        if not isinstance(self.network(x), Tensor):
            return Choice(TORCH, {})
        names = self._ways(x, with_graphs)
        possible: dict[str, Callable[[Tensor], Tensor]] = {}
        left_out: dict[str, str] = {}
        for name in names:
            try:
                way = self._way(name)
                way(x)
            except Exception as error:  # not all networks can be captured, and compilers have errors of their own
                if name == TORCH:
                    raise
                left_out[name] = f"{type(error).__name__}: {error}"
            else:
                possible[name] = way
        seconds = dict.fromkeys(names, float("inf")) | _seconds_twice(possible, x)
        plain = min((way for way in seconds if way.startswith("torch")), key=seconds.__getitem__)
        fastest = min(seconds, key=seconds.__getitem__)
        return Choice(fastest if seconds[fastest] < MARGIN * seconds[plain] else plain, seconds, left_out)

    def _way(self, name: str) -> Callable[[Tensor], Tensor]:
        if name == TORCH:
            return self.network
        if name == CHANNELS_LAST:
            return _channels_last(self._channels_last or self._channels_last_network())
        if name.endswith(", graph"):
            return lambda x: self._run_captured(name, x)
        if name.startswith("fused"):
            return _channels_last(self._fused[int(name.split()[-1])])
        lanes = int(name.split()[1])
        return lambda x: self._native(x, lanes)

    def _channels_last_network(self) -> nn.Module:
        with self._lock, torch.inference_mode(False):
            if self._channels_last is None:
                twin = copy.deepcopy(self.network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                object.__setattr__(self, "_channels_last", twin)  # not a part of the network
            assert self._channels_last is not None
            return self._channels_last

    def _run_captured(self, name: str, x: Tensor) -> Tensor:
        captured = self._captured.get((name, len(x)))
        if captured is None:
            with self._lock:
                captured = self._captured.get((name, len(x)))
                if captured is None:
                    captured = self._captured[name, len(x)] = Captured(self._to_capture(name, x), x)
        return captured(x)

    def _to_capture(self, name: str, x: Tensor) -> Callable[[Tensor], Tensor]:
        if name != "triton, graph":
            return self._way(name.removesuffix(", graph"))
        assert not isinstance(self._lowered, UnsupportedError)
        with ordinary_tensors(x.device):
            program = gpu.GpuProgram(self._lowered, len(x), x.device)
        return lambda x: self._shaped(program(x))

    def _shaped(self, result: Tensor) -> Tensor:
        """Outputs (n, values) as the network has them."""
        assert not isinstance(self._lowered, UnsupportedError)
        view = self._lowered.output
        return result if view.flat else result.reshape(len(result), view.channels, view.rows, view.columns)

    def _native(self, x: Tensor, lanes: int) -> Tensor:
        program = self._programs.get(lanes) or self._new_program(lanes)
        # What torch calculates later, such as a sign, has to be in the memory that the engine reads.
        return self._shaped(program(x.resolve_neg().reshape(len(x), -1).contiguous(), torch.get_num_threads()))

    def _new_program(self, lanes: int) -> native.Program:
        with self._lock:
            assert not isinstance(self._lowered, UnsupportedError)
            if lanes not in self._programs:
                self._programs[lanes] = native.Program(self._lowered, lanes)
            return self._programs[lanes]

    def explain(self) -> dict[str, Any]:
        """For every batch size seen, the way that was chosen, what all took and why some were left out; plain data."""
        return {
            "lowered": self.reason or "yes",
            "choices": {
                _size_name(*key): {
                    "way": choice.way,
                    "seconds": dict(choice.seconds),
                    "left_out": dict(choice.left_out),
                }
                for key, choice in list(self._choices.items())
            },
        }


def _is_special(x: Tensor) -> bool:
    """Whether a call is for torch alone: its operations are read or transformed, not only computed."""
    read = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return read or type(x) not in ORDINARY or torch._C._are_functorch_transforms_active()


def rounded_up(size: int) -> int:
    """The largest size that shares its measurement on the CPU.

    Each of the few has its own, where examples run one by one or leave lanes empty; the time of larger ones is within
    an eighth.
    """
    if size <= LANES[0]:
        return size
    step = (1 << (size - 1).bit_length()) // (2 * STEPS)
    return -(-size // step) * step


def _size_name(size: int, threads: int) -> str:
    if threads == GRAPHS:
        return f"batch {size} on the GPU"
    name = f"batch {'up to ' if size > LANES[0] else ''}{size}"
    return f"{name} on the GPU, without a graph" if threads == EAGER else f"{name}, {threads} threads"


def _channels_last(network: nn.Module) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        result: Tensor = network(x.contiguous(memory_format=torch.channels_last))
        return result

    return run


def _native_way(lanes: int) -> str:
    return f"native, {lanes} lane{'s' * (lanes > ALONE)}"


def _native_ways(examples: int) -> list[str]:
    """With as many lanes as there are examples to fill more than half of them, or the fewest; few also one by one."""
    several = [_native_way(lanes) for lanes in LANES if lanes == LANES[0] or lanes < 2 * examples]
    return [_native_way(ALONE), *several] if examples <= LANES[0] else several


def _lowered(network: nn.Module, example_shape: tuple[int, ...]) -> Lowered | UnsupportedError:
    try:
        return lower(network, example_shape)
    except UnsupportedError as error:
        return error


class FixedWay:
    """A compiled network on one input, in one way."""

    def __init__(self, compiled: Compiled, way: str, x: Tensor) -> None:
        self._compiled, self._way, self._x = compiled, way, x
        self._run = compiled._way(way)

    def __call__(self) -> Tensor:
        return self._run(self._x)

    @property
    def bytes(self) -> int:
        """Of the engine's programs."""
        return sum(program.bytes for program in self._compiled._programs.values())

    def elsewhere(self) -> "FixedWay":
        """The same with weights at other places in memory."""
        return FixedWay(copy.deepcopy(self._compiled), self._way, self._x)


def fastest_native(network: nn.Module, x: Tensor) -> FixedWay:
    """A function that runs a network on x (n, ...) float32 in the native engine, with the fastest number of lanes.

    Raises UnsupportedError where the engine is not built or has not all operations of the network.
    """
    compiled = Compiled(network, tuple(x.shape[1:]))
    if x.is_cuda or not compiled._fits(x):
        raise UnsupportedError(compiled.reason or f"the engine takes float32 on the CPU, got {x.dtype} on {x.device}")
    ways, why = {}, ""
    with torch.no_grad():
        for name in _native_ways(len(x)):
            try:
                compiled._way(name)(x)
            except UnsupportedError as error:
                why = str(error)
            else:
                ways[name] = compiled._way(name)
        if not ways:
            raise UnsupportedError(why)
        seconds = _seconds(ways, x)
    fastest = min(seconds, key=seconds.__getitem__)
    compiled._programs = {lanes: one for lanes, one in compiled._programs.items() if _native_way(lanes) == fastest}
    return FixedWay(compiled, fastest, x)


def fastest_fused(network: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """A function that runs a network with joined operations as a CUDA graph; x: images (n, c, h, w) float32 on a GPU.

    In the fastest of the multiples to which widths are filled up.  Raises UnsupportedError where there is none.
    """
    if not x.is_cuda or x.ndim != 4:
        raise UnsupportedError(f"joined operations are for images on a GPU, got {tuple(x.shape)} on {x.device}")
    x = x.contiguous(memory_format=torch.channels_last)
    compiled, ways = Compiled(network, tuple(x.shape[1:])), {}
    for name in compiled._fused_ways():
        with contextlib.suppress(RuntimeError):  # what cannot be captured
            ways[name] = Captured(compiled._to_capture(name, x), x)
    if not ways:
        raise UnsupportedError("the operations of this network cannot be joined")
    with torch.no_grad():
        seconds = _seconds(ways, x)
    return ways[min(seconds, key=seconds.__getitem__)].again


def fastest_triton(network: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """A function that runs a network on x (n, ...) float32, on a GPU, in the Triton kernels as a CUDA graph.

    Raises UnsupportedError where Triton is missing or the kernels have not all operations of the network.
    """
    compiled = Compiled(network, tuple(x.shape[1:]), fuse=False)
    if not compiled._is_lowered or not x.is_cuda or not gpu.is_available():
        raise UnsupportedError(compiled.reason or f"the kernels need Triton and a GPU, got {x.device}")
    captured = Captured(compiled._to_capture("triton, graph", x), x)
    return captured.again


def _seconds_twice(ways: Mapping[str, Callable[[Tensor], Tensor]], x: Tensor) -> dict[str, float]:
    """What a run of every way takes; those that are close are looked at again later, and the shorter time counts."""
    first = _seconds(ways, x)
    close = {name: way for name, way in ways.items() if first[name] <= CLOSE * min(first.values())}
    again = _seconds(close, x) if len(close) > 1 else {}
    return {name: min(taken, again.get(name, taken)) for name, taken in first.items()}


def _seconds(ways: Mapping[str, Callable[[Tensor], Tensor]], x: Tensor) -> dict[str, float]:
    """What a run of every way takes, as the lower quartile of some; all have run before.

    They take turns, so that what disturbs the machine disturbs all.  Those that cannot win any more leave their time to
    the others.  Not the shortest run: among hundreds of some microseconds each that is chance.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    running, turns, begun = list(ways), 0, time.perf_counter()
    while turns < FEWEST_TURNS or time.perf_counter() - begun < SECONDS * len(ways):
        for name in running:
            if times[name] and times[name][-1] < SHORT:
                ways[name](x)
            _wait(x)
            started = time.perf_counter()
            ways[name](x)
            _wait(x)
            times[name].append(time.perf_counter() - started)
        turns += 1
        if turns >= FEWEST_TURNS:
            shortest = {name: min(times[name]) for name in running}
            bound = HOPELESS * min(shortest.values())
            running = [name for name in running if shortest[name] <= bound or sum(times[name]) < SETTLED]
            if len(running) == 1:
                break
    return {name: lower_quartile(taken) for name, taken in times.items()}


def lower_quartile(values: Sequence[float]) -> float:
    """The value that a quarter of them do not exceed; of up to four the smallest."""
    return sorted(values)[(len(values) - 1) // 4]


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
