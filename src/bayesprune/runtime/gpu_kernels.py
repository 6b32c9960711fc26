"""The Triton kernels of the sparse runtime.

Buffers are (values, stride): values as in `native/engine.h`, [channel][row][column] with a border of zeros, and the
examples of a batch side by side, stride of them with those that only fill up.
A layer is some panels of HEIGHT rows of its matrix, each with the taps that at least one of its rows reads.  panels: by
panel the first tap, how many, then its rows, or -1.  taps: offsets of values.  biases: by panel and row.
sites: (site_count * POOL,) where a result begins to read.  places: (site_count,) where it is written in its channel.
Counts are not specialised: other numbers would be other kernels to compile.
"""

import triton
import triton.language as tl


@triton.jit
def larger(a, b):
    """As torch has it: what is not a number stays so."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit(do_not_specialize=["value_count", "examples"])
def spread_kernel(given, target, places, value_count, examples, stride, VALUES: tl.constexpr, EXAMPLES: tl.constexpr):
    """Write inputs (examples, value_count) into a buffer.  places: (value_count,) where a value is written.

    Blocks of values lie along two axes of the grid, as one would be too short for large images.
    """
    example = tl.program_id(0) * EXAMPLES + tl.arange(0, EXAMPLES)
    value = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * VALUES + tl.arange(0, VALUES)
    inside = (example < examples)[:, None] & (value < value_count)[None, :]
    reads = given + example[:, None].to(tl.int64) * value_count + value[None, :]
    found = tl.load(reads, mask=inside, other=0.0)
    place = tl.load(places + value, mask=value < value_count, other=0).to(tl.int64)
    writes = target + place[None, :] * stride + example[:, None]
    tl.store(writes, found.to(target.dtype.element_ty), mask=inside)


@triton.jit
def sums_at(
    sites, first, last, source, taps, weights, biases, tap, count, stride, example, inside, HEIGHT: tl.constexpr
):
    """What the rows of a panel give at the sites `first`, those before `last`, (HEIGHT, sites, examples)."""
    begin = tl.load(sites + first, mask=first < last, other=0)
    reads = source + begin[:, None].to(tl.int64) * stride + example[None, :]
    row = tl.arange(0, HEIGHT)
    bias = tl.load(biases + tl.program_id(2) * HEIGHT + row)
    total = tl.zeros((HEIGHT, first.shape[0], example.shape[0]), tl.float32) + bias[:, None, None]
    for k in tl.range(0, count, loop_unroll_factor=4):
        offset = tl.load(taps + tap + k).to(tl.int64)
        factor = tl.load(weights + (tap + k) * HEIGHT + row)
        value = tl.load(reads + offset * stride, mask=inside[None, :], other=0.0).to(tl.float32)
        total += factor[:, None, None] * value[None, :, :]
    return total


@triton.jit(do_not_specialize=["site_count", "target_plane"])
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
    stride,
    HEIGHT: tl.constexpr,
    POOL: tl.constexpr,
    RELU: tl.constexpr,
    HELD: tl.constexpr,
    SITES: tl.constexpr,
    EXAMPLES: tl.constexpr,
):
    """A panel at SITES results, each the maximum over POOL sites, for EXAMPLES examples.  weights: by tap and row.

    HELD: how many of them are computed at once: POOL, where that is a power of two, or 1, one after another.
    """
    example = tl.program_id(0) * EXAMPLES + tl.arange(0, EXAMPLES)
    inside = example < stride
    result = tl.program_id(1) * SITES + tl.arange(0, SITES)
    first = tl.program_id(1) * SITES * POOL + tl.arange(0, SITES * HELD) * (POOL // HELD)
    panel = panels + tl.program_id(2) * (2 + HEIGHT)
    tap = tl.load(panel)
    count = tl.load(panel + 1)
    last = site_count * POOL
    if HELD == POOL:
        total = sums_at(sites, first, last, source, taps, weights, biases, tap, count, stride, example, inside, HEIGHT)
    else:
        total = tl.full((HEIGHT, SITES, EXAMPLES), float("-inf"), tl.float32)
        for site in range(POOL):
            sums = sums_at(
                sites + site, first, last, source, taps, weights, biases, tap, count, stride, example, inside, HEIGHT
            )
            total = larger(total, sums)
    if HELD > 1:
        total = tl.reduce(tl.reshape(total, (HEIGHT, SITES, POOL, EXAMPLES)), 2, larger)
    if RELU:
        total = larger(total, 0.0)
    row = tl.arange(0, HEIGHT)
    channel = tl.load(panel + 2 + row).to(tl.int64)
    place = tl.load(places + result, mask=result < site_count, other=0)
    address = channel[:, None, None] * target_plane + place[None, :, None]
    writes = target + address * stride + example[None, None, :]
    real = (channel >= 0)[:, None, None] & (result < site_count)[None, :, None]
    tl.store(writes, total.to(target.dtype.element_ty), mask=real & inside[None, None, :])


@triton.jit(do_not_specialize=["site_count", "target_plane"])
def products_kernel(
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
    stride,
    HEIGHT: tl.constexpr,
    POOL: tl.constexpr,
    RELU: tl.constexpr,
    DEPTH: tl.constexpr,
    EXAMPLES: tl.constexpr,
):
    """A panel at one result, by matrix products over DEPTH taps at a time.  weights: by row and tap.

    The tensor cores multiply the leading parts of two numbers and both mixed parts (tf32x3), as exact as float32.
    The leading parts alone (tf32) were slower: 4.7 instead of 2.9 ms for a pruned VGG-11.
    """
    example = tl.program_id(0) * EXAMPLES + tl.arange(0, EXAMPLES)
    inside = example < stride
    result = tl.program_id(1)
    panel = panels + tl.program_id(2) * (2 + HEIGHT)
    tap = tl.multiple_of(tl.load(panel), DEPTH)
    count = tl.multiple_of(tl.load(panel + 1), DEPTH)
    row = tl.arange(0, HEIGHT)
    depth = tl.arange(0, DEPTH)
    bias = tl.load(biases + tl.program_id(2) * HEIGHT + row)
    total = tl.full((EXAMPLES, HEIGHT), float("-inf"), tl.float32)
    for window in range(POOL):
        begin = tl.load(sites + result * POOL + window).to(tl.int64)
        sums = tl.zeros((EXAMPLES, HEIGHT), tl.float32)
        for k in range(0, count, DEPTH):
            offset = begin + tl.load(taps + tap + k + depth).to(tl.int64)
            factor = tl.load(weights + tap * HEIGHT + row[None, :] * count + (k + depth)[:, None])
            reads = source + offset[None, :] * stride + example[:, None]
            value = tl.load(reads, mask=inside[:, None], other=0.0).to(tl.float32)
            sums = tl.dot(value, factor, sums, input_precision="tf32x3")
        total = larger(total, sums)
    total += bias[None, :]
    if RELU:
        total = larger(total, 0.0)
    channel = tl.load(panel + 2 + row).to(tl.int64)
    address = channel * target_plane + tl.load(places + result)
    writes = target + address[None, :] * stride + example[:, None]
    tl.store(writes, total.to(target.dtype.element_ty), mask=(channel >= 0)[None, :] & inside[:, None])
