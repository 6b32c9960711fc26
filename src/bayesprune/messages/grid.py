"""Loopy sum-product on an N-dimensional binary lattice, in odds: one contract, three engines.

All engines run the same flooding schedule: every message of an iteration is computed from the messages of the
iteration before, starting from 1.  So they agree to rounding after any number of iterations.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bayesprune.messages import gpu, native
from bayesprune.messages.evidence import ROOM, odds
from bayesprune.messages.schedule import Schedule
from bayesprune.messages.table import Table

Engine = Callable[[Tensor, Sequence[Table], Schedule, Tensor | None], tuple[Tensor, int, float]]


class GridMessages(NamedTuple):
    """What loopy sum-product ended with.

    received_logit: (batch, *sizes), log of the product of all messages into each site.
    iterations: done until the messages settled, the most over independent grids.
    change: largest |change| of a log message in the last iteration, in nats.
    messages: None, or odds (2 * axes, batch, *sizes): from the lower and from the higher neighbour along each axis.
    """

    received_logit: Tensor
    iterations: int
    change: float
    converged: bool
    messages: Tensor | None = None


def grid_messages(
    evidence_logit: Tensor,
    tables: Sequence[Table],
    *,
    iterations: int,
    tolerance: float,
    damping: float,
    keep_messages: bool = False,
    engine: Engine | None = None,
) -> GridMessages:
    """Run sum-product, paper (36) and (37), until no log message changes by more than `tolerance` (0: all iterations).

    evidence_logit: (batch, *sizes), all factors of one site; tables: one per axis of `sizes`.
    damping: share of the old message kept in the new one, mixed as odds.
    """
    shape, dtype = evidence_logit.shape, evidence_logit.dtype
    if len(tables) != evidence_logit.ndim - 1:
        raise ValueError(
            f"{len(tables)} tables do not fit evidence of shape {tuple(shape)}: one per axis after the batch"
        )
    coupled = [a for a, table in enumerate(tables) if shape[a + 1] > 1 and not table.is_flat]
    strength = sum(tables[a].strength for a in coupled)
    if strength > ROOM[torch.float64]:
        raise ValueError(
            f"the couplings add up to messages of {strength:.0f} nats at one site, at most {ROOM[torch.float64]:.0f} "
            "can be computed; such a coupling is a hard constraint: use a group (tile, row, column) instead"
        )
    if strength > ROOM[dtype]:
        evidence_logit = evidence_logit.double()
    if not coupled or evidence_logit.numel() == 0:
        messages = evidence_logit.new_ones((2 * len(tables), *shape)) if keep_messages else None
        return GridMessages(torch.zeros_like(evidence_logit, dtype=dtype), 0, 0.0, True, messages)

    # Axes that carry no message are independent grids: they join the batch.
    free = [a for a in range(len(tables)) if a not in coupled]
    permutation = (0, *(a + 1 for a in free), *(a + 1 for a in coupled))
    sizes = [shape[a + 1] for a in coupled]
    odds_in = odds(evidence_logit).permute(permutation).reshape(-1, *sizes)
    kept = torch.empty((2 * len(coupled), *odds_in.shape), dtype=odds_in.dtype, device=odds_in.device)
    run = engine or engine_for(odds_in)
    schedule = Schedule(iterations, tolerance, damping)
    received, done, change = run(odds_in, [tables[a] for a in coupled], schedule, kept if keep_messages else None)

    permuted_shape = [shape[i] for i in permutation]
    inverse = [permutation.index(i) for i in range(len(permutation))]
    received_logit = received.log().reshape(permuted_shape).permute(inverse).to(dtype)
    messages = None
    if keep_messages:
        messages = evidence_logit.new_ones((2 * len(tables), *shape))
        for place, axis in enumerate(coupled):
            for side in (0, 1):
                messages[2 * axis + side] = kept[2 * place + side].reshape(permuted_shape).permute(inverse)
    return GridMessages(received_logit, done, change, change <= tolerance, messages)


def engine_for(evidence: Tensor) -> Engine:
    """The fastest engine there is for a tensor's device and number of axes."""
    axes = evidence.ndim - 1
    if evidence.device.type == "cpu" and axes <= native.MAX_AXES and native.is_built():
        return native.grids
    if evidence.device.type == "cuda" and gpu.is_available():
        return gpu.grids
    return torch_grids


def torch_grids(
    evidence: Tensor, tables: Sequence[Table], schedule: Schedule, messages: Tensor | None
) -> tuple[Tensor, int, float]:
    """The engine in plain torch, for every device; evidence: odds (batch, *sizes)."""
    axes = len(tables)
    old = evidence.new_ones((2 * axes, *evidence.shape))
    new = old.clone()
    done, change = 0, float("inf")
    while done < schedule.iterations:
        done += 1
        product = evidence * old.prod(dim=0)
        for axis, (t00, t01, t10, t11) in enumerate(tables):
            lower, higher = old[2 * axis], old[2 * axis + 1]
            last = evidence.shape[axis + 1] - 1
            forward = (t01 * higher + t11 * product) / (t00 * higher + t10 * product)
            backward = (t10 * lower + t11 * product) / (t00 * lower + t01 * product)
            new[2 * axis].narrow(axis + 1, 1, last).copy_(forward.narrow(axis + 1, 0, last))
            new[2 * axis + 1].narrow(axis + 1, 0, last).copy_(backward.narrow(axis + 1, 1, last))
        if schedule.damping > 0:
            new.lerp_(old, schedule.damping)
        checked = schedule.looks_after(done)
        if checked:
            change = (new / old).log_().abs_().max().item()
        old, new = new, old
        if checked and change <= schedule.tolerance:
            break
    if messages is not None:
        messages.copy_(old)
    return old.prod(dim=0), done, change
