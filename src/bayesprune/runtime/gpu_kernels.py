"""The Triton kernel of the sparse runtime: panels of rows at tiles of sites, for blocks of examples.

Buffers are (values, examples), values as in `native/engine.h`: [channel][row][column] with a border of zeros.
"""

import triton
import triton.language as tl


@triton.jit
def panels_kernel(
    source,
    target,
    taps,
    weights,
    biases,
    panels,
    sites,
    places,
    site_count,
    target_plane,
    examples,
    HEIGHT: tl.constexpr,
    POOL: tl.constexpr,
    RELU: tl.constexpr,
    SITES: tl.constexpr,
    EXAMPLES: tl.constexpr,
):
    """One panel of HEIGHT rows at SITES results, each the maximum over POOL sites, for EXAMPLES examples.

    taps: offsets of values by tap.  panels: by panel the first tap, how many, the first weight, then its rows.
    weights: by tap and row.  biases: by panel and row.  sites: (site_count * POOL,) where a result begins to read.
    places: (site_count,) where it is written in its channel.
    """
    example = tl.program_id(0) * EXAMPLES + tl.arange(0, EXAMPLES)
    inside = example < examples
    result = tl.program_id(1) * SITES + tl.arange(0, SITES)
    first = tl.program_id(1) * SITES * POOL + tl.arange(0, SITES * POOL)
    panel = panels + tl.program_id(2) * (3 + HEIGHT)
    tap = tl.load(panel)
    count = tl.load(panel + 1)
    weight = tl.load(panel + 2)
    begin = tl.load(sites + first, mask=first < site_count * POOL, other=0)
    examples64 = tl.cast(examples, tl.int64)  # a batch of one is a constant of the kernel, which has no `to`
    reads = source + begin[:, None].to(tl.int64) * examples64 + example[None, :]
    row = tl.arange(0, HEIGHT)
    bias = tl.load(biases + tl.program_id(2) * HEIGHT + row)
    total = tl.zeros((HEIGHT, SITES * POOL, EXAMPLES), tl.float32) + bias[:, None, None]
    for k in range(count):
        offset = tl.load(taps + tap + k).to(tl.int64)
        factor = tl.load(weights + weight + k * HEIGHT + row)
        value = tl.load(reads + offset * examples64, mask=inside[None, :], other=0.0).to(tl.float32)
        total += factor[:, None, None] * value[None, :, :]
    if POOL > 1:
        total = tl.max(tl.reshape(total, (HEIGHT, SITES, POOL, EXAMPLES)), axis=2)
    if RELU:
        total = tl.maximum(total, 0.0)
    channel = tl.load(panel + 3 + row).to(tl.int64)
    place = tl.load(places + result, mask=result < site_count, other=0)
    address = channel[:, None, None] * target_plane + place[None, :, None]
    writes = target + address * examples64 + example[None, None, :]
    tl.store(
        writes, total.to(target.dtype.element_ty), mask=(result < site_count)[None, :, None] & inside[None, None, :]
    )
