"""The C engine through ctypes: built with the package, optional, equal to the torch one."""

import ctypes
import functools
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from bayesprune.messages.schedule import CHECK_EVERY, Schedule
from bayesprune.messages.table import Table

LIBRARY = Path(__file__).with_name("kernel.so")
MAX_AXES = 5  # as in kernel.c
# Grids laid side by side: enough of them to fill vectors, few enough to keep their messages in a 1 MiB cache.
BLOCK_BYTES = 512 * 1024
MOST_SIDE_BY_SIDE = 1024
# A thread with less to do than this waits longer for the others than it works.
SITES_PER_THREAD = 16384


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        reason = f"cannot be loaded ({error})" if LIBRARY.exists() else "is not built"
        warnings.warn(
            f"the native message-passing kernel {reason}, using the torch version (same result, about ten times "
            "slower on CPU); install a C compiler and reinstall bayesprune to get it",
            stacklevel=5,
        )
        return None


def is_built() -> bool:
    """Whether the compiled kernel is there; says once, as a warning, when it is not."""
    return _library() is not None


def _function(name: str, dtype: torch.dtype) -> "ctypes._NamedFuncPointer":
    library = _library()
    assert library is not None
    return getattr(library, f"{name}_{'f32' if dtype == torch.float32 else 'f64'}")  # type: ignore[no-any-return]


def _tables(tables: Sequence[Table], dtype: torch.dtype) -> Tensor:
    return torch.tensor([list(t) for t in tables], dtype=dtype)


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    assert tensor.is_contiguous()
    return ctypes.c_void_p(tensor.data_ptr())


def chains(evidence: Tensor, table: Table, first: float) -> Tensor:
    """Odds received from both sides, (length, chains) -> (length, chains)."""
    length, count = evidence.shape
    received = torch.empty_like(evidence)
    packed = _tables([table], evidence.dtype)
    _function("chains", evidence.dtype)(
        _pointer(evidence),
        _pointer(received),
        ctypes.c_long(length),
        ctypes.c_long(count),
        _pointer(packed),
        ctypes.c_double(first),
        ctypes.c_int(_threads(evidence.numel())),
    )
    return received


def grids(
    evidence: Tensor, tables: Sequence[Table], schedule: Schedule, messages: Tensor | None
) -> tuple[Tensor, int, float]:
    """Product of the messages into each site, iterations done and last change.

    evidence: odds, (batch, *sizes) with every axis of `sizes` coupled by its table; the result has the same shape.
    messages: None, or (2 * axes, batch, *sizes), filled with the last messages (lower neighbour's, higher one's).
    """
    batch, *sizes = evidence.shape
    axes, threads = len(sizes), _threads(evidence.numel())
    stops = (schedule.iterations, CHECK_EVERY, ctypes.c_double(schedule.tolerance), ctypes.c_double(schedule.damping))
    done, change = ctypes.c_int(), ctypes.c_double()
    outcome = (ctypes.byref(change), ctypes.byref(done))
    many, one = _function("many_grids", evidence.dtype), _function("one_grid", evidence.dtype)

    # Small grids go side by side through the vector unit.
    block = BLOCK_BYTES // ((4 * axes + 2) * evidence[0].numel() * evidence.element_size()) // 16 * 16
    if min(block, batch) >= 16:
        side_by_side = evidence.movedim(0, -1).contiguous()
        received, packed = torch.empty_like(side_by_side), _tables(tables, evidence.dtype)
        kept = None if messages is None else evidence.new_empty((2 * axes, *side_by_side.shape))
        failed = many(
            *(_pointer(side_by_side), _pointer(received), None if kept is None else _pointer(kept)),
            *(ctypes.c_long(batch), ctypes.c_long(min(block, MOST_SIDE_BY_SIDE))),
            *(axes, _longs(sizes), _pointer(packed), *stops, threads, *outcome),
        )
        _raise_if_no_memory(failed, evidence)
        if messages is not None and kept is not None:
            messages.copy_(kept.movedim(-1, 1))
        return received.movedim(-1, 0), done.value, change.value

    # A large grid fills the vector unit by its longest axis, which comes last.
    order = sorted(range(axes), key=lambda axis: sizes[axis])
    permutation = (0, *(axis + 1 for axis in order))
    inverse = [permutation.index(i) for i in range(axes + 1)]
    permuted = evidence.permute(permutation).contiguous()
    received, packed = torch.empty_like(permuted), _tables([tables[axis] for axis in order], evidence.dtype)
    described = (axes, _longs([sizes[axis] for axis in order]), _pointer(packed), *stops, threads, *outcome)
    kept = None if messages is None else evidence.new_empty((batch, 2 * axes, *permuted.shape[1:]))
    most_iterations, largest_change = 0, 0.0
    if batch >= 2 * threads:  # a grid for each thread, rather than threads that share a grid
        kept_pointer = None if kept is None else _pointer(kept)
        counts = (ctypes.c_long(batch), ctypes.c_long(0))
        failed = many(_pointer(permuted), _pointer(received), kept_pointer, *counts, *described)
        _raise_if_no_memory(failed, evidence)
        most_iterations, largest_change = done.value, change.value
    else:
        for item in range(batch):
            kept_pointer = None if kept is None else _pointer(kept[item])
            failed = one(_pointer(permuted[item]), _pointer(received[item]), kept_pointer, *described)
            _raise_if_no_memory(failed, evidence)
            most_iterations, largest_change = max(most_iterations, done.value), max(largest_change, change.value)
    if messages is not None and kept is not None:
        for place, axis in enumerate(order):
            for side in (0, 1):
                messages[2 * axis + side] = kept[:, 2 * place + side].permute(inverse)
    return received.permute(inverse), most_iterations, largest_change


def _threads(sites: int) -> int:
    return max(1, min(torch.get_num_threads(), sites // SITES_PER_THREAD))


def _longs(values: Sequence[int]) -> "ctypes.Array[ctypes.c_long]":
    return (ctypes.c_long * len(values))(*values)


def _raise_if_no_memory(failed: int, evidence: Tensor) -> None:
    if failed:
        raise MemoryError(f"no memory for the messages of evidence of shape {tuple(evidence.shape)}")
