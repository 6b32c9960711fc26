"""Time networks in turns, so that whatever slows the machine down slows all of them."""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.export.checking import compare, first_line
from bayesprune.latency.candidates import (
    LAYOUTS,
    RUNTIMES,
    Copies,
    Kind,
    elsewhere,
    first_call,
    held_bytes,
    inputs,
    kinds,
    prepare,
)
from bayesprune.latency.clocks import seconds_of, warm_up
from bayesprune.latency.reasons import overhead_ms, reason
from bayesprune.latency.report import Comparison, Latency, Row
from bayesprune.latency.statistics import ENOUGH, ratio_of_medians, summarise
from bayesprune.latency.work import Work, count_work
from bayesprune.provenance import hardware, versions

Progress = Callable[[str, int, int], None]

BLOCK_SECONDS = 0.005  # short calls are timed many in a row: the clock and the caches then cost nothing
LONG_CALL = 0.1  # seconds; longer calls fill the caches by themselves
FEWEST_ROUNDS = 3
# Copies of one network differ by per cents, for good: where one lies in memory decides what it shares caches with.
MOST_PLACES = 10
MOST_BYTES = 2**28  # of all copies of a network
TOLERANCE, TF32_TOLERANCE = 1e-3, 1e-2  # of the largest output


@dataclass(frozen=True)
class Limits:
    """How long a way is measured: seconds per network, on average, and rounds at most, but `fewest_calls` at least."""

    seconds: float
    repeats: int
    fewest_calls: int = 0


class LatencyError(ValueError):
    """Nothing can be measured; the message says why and what to do."""


@dataclass
class _Lane:
    """One candidate at one batch size: its row, and how its copies at different places are run and timed."""

    row: Row
    runs: Sequence[Callable[[], Tensor]] = ()
    settle: bool = True  # one call before every sample, to fill the caches with what it needs
    samples: list[float] | None = None
    short: bool = False  # short enough for copies to be worth their time


def measure(
    networks: Mapping[str, nn.Module],
    example: Tensor,
    *,
    batches: Sequence[int] = (1, 256),
    device: torch.device | str = "cpu",
    threads: int | None = None,
    runtimes: Sequence[str] = RUNTIMES,
    layouts: Sequence[str] = LAYOUTS,
    seconds: float = 1.0,
    repeats: int = 100,
    fewest_calls: int = 0,
    tf32: bool = False,
    progress: Progress | None = None,
) -> Latency:
    """Time the networks in turns, in every runtime and layout; compare the best of each with that of the first.

    Copies in evaluation mode and float32 are timed, all on the same random inputs.  Before that, the outputs of each
    are compared with those of eager PyTorch; a way that fails or is wrong becomes a row with an error.

    Args:
        networks: by name, the first one is what the others are compared with: {"dense": ..., "shrunk": ...}.
        example: inputs (n, ...); only the shape of a row counts.
        batches: batch sizes.
        device: cpu or a CUDA device.
        threads: threads on the CPU, for PyTorch and ONNX Runtime alike; None keeps those of PyTorch.
        runtimes: of "eager", "compile", "onnx", "native" (on the CPU), "cuda_graph", "fused" and "triton" (on CUDA).
            Compiling takes from seconds to a minute each; it is reported but not part of the times.
        layouts: of "contiguous" and "channels_last"; the latter for inputs (n, c, h, w) only.
        seconds: time per network, way and batch size, on average; three rounds are made in any case.  On the CPU up to
            half as much again goes into copies at other places in memory, which take turns.
        repeats: most rounds.
        fewest_calls: of every network in every way; they are made even where they take more seconds and rounds.
        tf32: on CUDA, let all of them use TF32.
        progress: called with what is being done, steps done and all steps.
    """
    place = torch.device(device)
    ways = kinds(runtimes, layouts, place, example.ndim)
    _check(networks, example, batches, threads, runtimes, layouts, seconds, repeats, ways)
    tell = progress or (lambda text, done, total: None)
    steps = 2 * len(ways) * len(networks)
    rows: list[Row] = []
    with conditions(threads, place, tf32):
        everything = {name: Copies(network, example, place) for name, network in networks.items()}
        one = inputs(example, 1, place)
        work = {}
        for name, copies in everything.items():
            _reference(name, copies, one)  # says what is wrong with a network that cannot be run
            work[name] = count_work(copies.module("contiguous"), one)
        for number, batch in enumerate(batches):
            step = partial(_within_batch, tell, batch, number * steps, len(batches) * steps)
            limits = Limits(seconds, repeats, fewest_calls)
            activations = {name: batch * one.activation_bytes for name, one in work.items()}
            tolerance = TF32_TOLERANCE if tf32 else TOLERANCE
            rows += _at_batch(batch, everything, activations, ways, limits, tolerance, step)
        settings: dict[str, Any] = {
            "device": str(place),
            "threads": torch.get_num_threads(),
            "batches": list(batches),
            "dtype": "float32",
            "seconds": seconds,
            "repeats": repeats,
            "fewest_calls": fewest_calls,
            "tf32": tf32 and place.type == "cuda",
            "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        }
        latency = Latency(tuple(rows), (), work, settings, hardware(place), versions("onnxruntime"))
        return replace(latency, comparisons=tuple(_comparisons(latency, list(networks), batches, place)))


def _within_batch(tell: Progress, batch: int, before: int, total: int, text: str, done: int) -> None:
    """Progress at one batch size, as progress of everything."""
    tell(f"batch {batch}: {text}", before + done, total)


def _at_batch(
    batch: int,
    everything: dict[str, Copies],
    activations: Mapping[str, int],
    ways: Sequence[Kind],
    limits: Limits,
    tolerance: float,
    step: Callable[[str, int], None],
) -> list[Row]:
    """Rows of one batch size; activations: bytes of each network's."""
    copies = next(iter(everything.values()))
    x = inputs(copies.example, batch, copies.device)
    expected = {name: _reference(name, c, x) for name, c in everything.items()}
    rows: list[Row] = []
    for kind in ways:
        # One way after the other: the threads of two runtimes are in each other's way for a while after a call.
        lanes: list[_Lane] = []
        for name, c in everything.items():
            step(f"preparing {name}, {kind}", 2 * len(rows) + len(lanes))
            lane = _lane(Row(name, batch, kind), c, x, expected[name], limits.seconds, tolerance)
            _add_places(lane, c, x, expected[name], activations[name], limits, tolerance)
            lanes.append(lane)
        timed = partial(_within_kind, step, str(kind), 2 * len(rows) + len(lanes))
        _as_many_places(lanes)
        _take_turns(lanes, limits, copies.device, timed)
        rows += [_finished(lane) for lane in lanes]
    return rows


def _within_kind(step: Callable[[str, int], None], what: str, before: int, text: str, done: int) -> None:
    """Progress of one way to run the networks, as progress at the batch size."""
    step(f"{what}, {text}", before + done)


def _reference(name: str, copies: Copies, x: Tensor) -> Tensor:
    """Outputs of eager PyTorch, that every other way must give."""
    try:
        with torch.inference_mode():
            out: object = copies.module("contiguous")(x.clone())
    except Exception as error:
        raise LatencyError(
            f"{name} cannot take inputs of shape {tuple(x.shape)}: {first_line(error)}; "
            "give an example that fits, or a smaller batch size"
        ) from error
    if not isinstance(out, Tensor):
        raise LatencyError(f"{name} must return one tensor, got {type(out).__name__}; wrap it to return one")
    return out


def _lane(row: Row, copies: Copies, x: Tensor, expected: Tensor, seconds: float, tolerance: float) -> _Lane:
    """Make a candidate ready to be timed, or note why that fails."""
    start = time.perf_counter()
    try:
        run = prepare(row.kind, copies, x)
        got = first_call(run)
        took = time.perf_counter() - start
        difference = compare(expected, got)
        if not difference.relative <= tolerance:
            wrong = f"wrong outputs, off by {difference.relative:.2g} of the largest; allowed is {tolerance:g}"
            return _Lane(replace(row, preparation_seconds=took, error=wrong))
        call = warm_up(run, copies.device, seconds)
    except Exception as error:  # compilers and runtimes have their own types of errors
        return _Lane(replace(row, preparation_seconds=time.perf_counter() - start, error=first_line(error)))
    calls = max(1, int(min(BLOCK_SECONDS, seconds / FEWEST_ROUNDS) / call))
    return _Lane(
        replace(row, preparation_seconds=took, calls=calls), [run], call < LONG_CALL, [], ENOUGH * call < seconds
    )


def _add_places(
    lane: _Lane, copies: Copies, x: Tensor, expected: Tensor, activations: int, limits: Limits, tolerance: float
) -> None:
    """The same elsewhere in memory, as often as there is time and room for; one that fails is the end of it."""
    runs, start = list(lane.runs), time.perf_counter()
    room = MOST_BYTES // max(1, held_bytes(copies, runs[0]) + activations) if lane.short else 1
    most = min(MOST_PLACES, limits.repeats, room)
    while most >= ENOUGH and len(runs) < most and time.perf_counter() - start < limits.seconds / 2:
        try:
            another = elsewhere(lane.row.kind, copies, x, runs[0])
            if another is None or not compare(expected, first_call(another)).relative <= tolerance:
                break
        except Exception:  # of runtimes that have their own types of errors
            break
        runs.append(another)
    lane.runs = runs


def _as_many_places(lanes: Sequence[_Lane]) -> None:
    """As many for all, so that rounds can be compared; one where they are too few for an interval."""
    able = [lane for lane in lanes if lane.runs]
    places = min((len(lane.runs) for lane in able), default=1)
    for lane in able:
        lane.runs = lane.runs[: places if places >= ENOUGH else 1]


def _take_turns(lanes: Sequence[_Lane], limits: Limits, device: torch.device, step: Callable[[str, int], None]) -> None:
    """Time every lane once a round, forwards and backwards in turn, until the time is used up."""
    able = [lane for lane in lanes if lane.runs]
    if not able:
        return
    needed = max(FEWEST_ROUNDS, *(-(-limits.fewest_calls // lane.row.calls) for lane in able))
    rounds, places = max(needed, limits.repeats), len(able[0].runs)
    budget, start = limits.seconds * len(able), time.perf_counter()
    with _no_collection():
        for number in range(rounds):
            done = min(number / needed, max(number / rounds, (time.perf_counter() - start) / budget))
            if done >= 1:
                break
            step(f"round {number + 1} of at most {rounds}", int(len(lanes) * done))
            backwards = (number + number // places) % 2  # of every copy as often as forwards
            for lane in reversed(able) if backwards else able:
                assert lane.samples is not None
                run = lane.runs[number % len(lane.runs)]
                if lane.settle:
                    seconds_of(run, 1, device)
                lane.samples.append(1e3 * seconds_of(run, lane.row.calls, device))
    step("done", len(lanes))


def _finished(lane: _Lane) -> Row:
    if not lane.samples:
        return lane.row
    places = min(len(lane.runs), len(lane.samples))
    return replace(lane.row, samples=tuple(lane.samples), summary=summarise(lane.samples), places=places)


def _comparisons(
    latency: Latency, names: Sequence[str], batches: Sequence[int], device: torch.device
) -> Iterator[Comparison]:
    """The first network beside every other one."""
    for batch in batches:
        baseline = latency.best(names[0], batch)
        for name in names[1:]:
            best = latency.best(name, batch)
            if baseline is None or best is None:
                continue
            together = baseline.kind == best.kind  # only then were they timed in the same rounds
            places = baseline.places, best.places
            ratio = ratio_of_medians(baseline.samples, best.samples, paired=together, places=places)
            found = Comparison(batch, baseline, best, *ratio)
            if not found.faster:
                before, after = latency.work[names[0]], latency.work[name]
                found = replace(found, reason=reason(baseline, best, before, after, _overhead(after, best, device)))
            yield found


def _overhead(work: Work, row: Row, device: torch.device) -> float | None:
    """Milliseconds of the network's operations on a single number; None where that cannot be measured."""
    try:
        return overhead_ms(work.operations, row.kind.runtime, device)
    except Exception:  # only the explanation is poorer then
        return None


@contextlib.contextmanager
def conditions(threads: int | None, device: torch.device, tf32: bool) -> Iterator[None]:
    """The same threads and precision for everything; as before afterwards."""
    threads_before = torch.get_num_threads()
    cudnn: Any = torch.backends.cudnn  # its `conv` carries no annotation
    owners = (torch.backends.cuda.matmul, cudnn.conv) if device.type == "cuda" else ()
    precisions = [owner.fp32_precision for owner in owners]
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        for owner in owners:
            owner.fp32_precision = "tf32" if tf32 else "ieee"
        yield
    finally:
        torch.set_num_threads(threads_before)
        for owner, precision in zip(owners, precisions, strict=True):
            owner.fp32_precision = precision


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage is collected before the timing, not during it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _check(
    networks: Mapping[str, nn.Module],
    example: Tensor,
    batches: Sequence[int],
    threads: int | None,
    runtimes: Sequence[str],
    layouts: Sequence[str],
    seconds: float,
    repeats: int,
    ways: Sequence[Kind],
) -> None:
    """Raise LatencyError where an argument makes no sense."""
    if not networks:
        raise LatencyError('no network to measure; give at least one, such as {"dense": network}')
    if example.ndim < 1 or len(example) < 1:
        raise LatencyError(f"the example must be a batch with at least one row, got shape {tuple(example.shape)}")
    if not batches or min(batches) < 1 or len(set(batches)) < len(batches):
        raise LatencyError(f"batches must be different sizes of at least 1, got {tuple(batches)}; try (1, 256)")
    if threads is not None and threads < 1:
        raise LatencyError(f"threads must be at least 1, got {threads}")
    if not 0 < seconds < float("inf"):
        raise LatencyError(f"seconds must be above 0, got {seconds}; try 1")
    if repeats < FEWEST_ROUNDS:
        raise LatencyError(f"repeats must be at least {FEWEST_ROUNDS}, got {repeats}; try 100")
    for what, given, known in (("runtime", runtimes, RUNTIMES), ("layout", layouts, LAYOUTS)):
        if unknown := [name for name in given if name not in known]:
            raise LatencyError(f"unknown {what} {unknown[0]!r}; choose of {', '.join(known)}")
    if not ways:
        raise LatencyError(
            f"none of the runtimes {tuple(runtimes)} and layouts {tuple(layouts)} fits this device and an input of "
            f"{example.ndim} dimensions; try runtimes=('eager',), layouts=('contiguous',)"
        )
