"""Triton kernels: one flooding iteration on a grid, the product of its messages, exact chains.

The arithmetic is that of `native/kernel.c`, which explains it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesprune.messages.table import Table

BLOCK = 512
CHAINS_PER_PROGRAM = 64


@triton.jit
def _flood_kernel(
    evidence,
    old,
    new,
    tables,
    ratio,
    total,
    damping,
    sizes,
    strides,
    AXES: tl.constexpr,
    DAMPED: tl.constexpr,
    CHECKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    site = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = total.to(tl.int64)  # several message arrays of a large grid pass 2^31
    inside = site < total
    product = tl.load(evidence + site, mask=inside, other=1.0)
    for k in tl.static_range(2 * AXES):
        product *= tl.load(old + k * total + site, mask=inside, other=1.0)
    largest = tl.full((BLOCK,), 1.0, product.dtype)
    for a in tl.static_range(AXES):
        t00 = tl.load(tables + 4 * a)
        t01 = tl.load(tables + 4 * a + 1)
        t10 = tl.load(tables + 4 * a + 2)
        t11 = tl.load(tables + 4 * a + 3)
        from_lower = 2 * a * total
        from_higher = from_lower + total
        lower = tl.load(old + from_lower + site, mask=inside, other=1.0)
        higher = tl.load(old + from_higher + site, mask=inside, other=1.0)
        place = (site // strides[a]) % sizes[a]
        has_next = inside & (place + 1 < sizes[a])
        has_previous = inside & (place > 0)
        forward = (t01 * higher + t11 * product) / (t00 * higher + t10 * product)
        backward = (t10 * lower + t11 * product) / (t00 * lower + t01 * product)
        to_next = from_lower + site + strides[a]
        to_previous = from_higher + site - strides[a]
        if DAMPED or CHECKED:
            forward_before = tl.load(old + to_next, mask=has_next, other=1.0)
            backward_before = tl.load(old + to_previous, mask=has_previous, other=1.0)
            if DAMPED:
                forward += damping * (forward_before - forward)
                backward += damping * (backward_before - backward)
            if CHECKED:
                q = tl.where(has_next, forward / forward_before, 1.0)
                largest = tl.maximum(largest, tl.maximum(q, 1.0 / q))
                q = tl.where(has_previous, backward / backward_before, 1.0)
                largest = tl.maximum(largest, tl.maximum(q, 1.0 / q))
        tl.store(new + to_next, forward, mask=has_next)
        tl.store(new + to_previous, backward, mask=has_previous)
    if CHECKED:
        tl.atomic_max(ratio, tl.max(largest, axis=0))


@triton.jit
def _collect_kernel(messages, result, total, ARRAYS: tl.constexpr, BLOCK: tl.constexpr):
    site = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = site < total
    product = tl.load(messages + site, mask=inside, other=1.0)
    for k in tl.static_range(1, ARRAYS):
        product *= tl.load(messages + k * total + site, mask=inside, other=1.0)
    tl.store(result + site, product, mask=inside)


@triton.jit
def _chain_kernel(evidence, result, table, first, length, count, BLOCK: tl.constexpr):
    t00, t01, t10, t11 = tl.load(table), tl.load(table + 1), tl.load(table + 2), tl.load(table + 3)
    chain = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = chain < count
    heard = tl.load(first) + tl.zeros((BLOCK,), t00.dtype)
    for i in range(length):
        at = i * count + chain
        tl.store(result + at, heard, mask=inside)
        r = heard * tl.load(evidence + at, mask=inside, other=1.0)
        heard = (t01 + t11 * r) / (t00 + t10 * r)
    heard = tl.full((BLOCK,), 1.0, t00.dtype)
    for back in range(1, length):
        at = (length - back) * count + chain
        r = heard * tl.load(evidence + at, mask=inside, other=1.0)
        heard = (t10 + t11 * r) / (t00 + t01 * r)
        at -= count
        tl.store(result + at, heard * tl.load(result + at, mask=inside, other=1.0), mask=inside)


def flood(
    evidence: Tensor,
    old: Tensor,
    new: Tensor,
    tables: Tensor,
    ratio: Tensor,
    total: int,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    damping: float,
    checked: bool,
) -> None:
    """One iteration: old messages (2 * axes, batch, *sizes) -> new; raises `ratio` to the largest change if checked."""
    programs = (triton.cdiv(total, BLOCK),)
    with torch.cuda.device_of(evidence):
        _flood_kernel[programs](
            *(evidence, old, new, tables, ratio, total, damping, sizes, strides),
            AXES=len(sizes),
            DAMPED=damping > 0,
            CHECKED=checked,
            BLOCK=BLOCK,
        )


def collect(messages: Tensor, like: Tensor) -> Tensor:
    """Product of all messages into each site: (2 * axes, batch, *sizes) -> (batch, *sizes)."""
    result = torch.empty_like(like)
    with torch.cuda.device_of(like):
        _collect_kernel[(triton.cdiv(like.numel(), BLOCK),)](
            messages, result, like.numel(), ARRAYS=len(messages), BLOCK=BLOCK
        )
    return result


def chains(evidence: Tensor, table: Table, first: float) -> Tensor:
    """Odds received from both sides on every chain, (length, chains) -> (length, chains)."""
    length, count = evidence.shape
    result = torch.empty_like(evidence)
    packed = torch.tensor([*table], dtype=evidence.dtype, device=evidence.device)
    start = torch.tensor([first], dtype=evidence.dtype, device=evidence.device)
    with torch.cuda.device_of(evidence):
        _chain_kernel[(triton.cdiv(count, CHAINS_PER_PROGRAM),)](
            evidence, result, packed, start, length, count, BLOCK=CHAINS_PER_PROGRAM
        )
    return result
