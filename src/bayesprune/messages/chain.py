"""Exact forward-backward along one axis, in odds."""

import math

import torch
from torch import Tensor

from bayesprune.messages import gpu, native
from bayesprune.messages.evidence import ROOM, odds
from bayesprune.messages.table import Table


def chain_messages(evidence_logit: Tensor, table: Table, first_logit: float, axis: int) -> Tensor:
    """Log-odds that each site receives from the prior of the first site and from both sides of its chain.

    evidence_logit: any shape, chains along `axis`.  Exact: the own evidence of a site is not in its output.
    """
    if table.strength > ROOM[torch.float64]:
        raise ValueError(
            f"transitions {table} are too rare to be computed: their messages reach {table.strength:.0f} nats, at most "
            f"{ROOM[torch.float64]:.0f} can be; try probabilities above 1e-60"
        )
    if table.strength > ROOM[evidence_logit.dtype]:
        return chain_messages(evidence_logit.double(), table, first_logit, axis).to(evidence_logit.dtype)
    along_first = evidence_logit.movedim(axis, 0)
    shape = along_first.shape
    evidence = odds(along_first.reshape(shape[0], -1))  # (length, chains)
    received = _received(evidence.contiguous(), table, math.exp(first_logit))
    return received.log_().reshape(shape).movedim(0, axis)


def _received(evidence: Tensor, table: Table, first: float) -> Tensor:
    """Odds received by each site, (length, chains) -> (length, chains), on the fastest engine for the device."""
    if evidence.device.type == "cpu" and native.is_built():
        return native.chains(evidence, table, first)
    if evidence.device.type == "cuda" and gpu.is_available():
        return gpu.chains(evidence, table, first)
    return chain_received_torch(evidence, table, first)


def chain_received_torch(evidence: Tensor, table: Table, first: float) -> Tensor:
    """The engine in plain torch: one vectorised step per site of a chain."""
    t00, t01, t10, t11 = table
    forward = torch.empty_like(evidence)
    forward[0] = first
    for i in range(len(evidence) - 1):
        r = evidence[i] * forward[i]
        forward[i + 1] = (t01 + t11 * r) / (t00 + t10 * r)
    backward = torch.ones_like(evidence[0])
    for i in range(len(evidence) - 2, -1, -1):
        r = evidence[i + 1] * backward
        backward = (t10 + t11 * r) / (t00 + t01 * r)
        forward[i] *= backward
    return forward
