"""The Triton kernels on a machine without a GPU: run by Triton's interpreter, compiled for a GPU that is not there."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from random_layers import INSTALL_TRITON

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason=f"needs Triton; {INSTALL_TRITON}")
TESTS = Path(__file__).parents[1]

PROBE = """
import torch, triton
import triton.language as tl

@triton.jit
def repeat(number, found):
    total = 0
    for _ in range(tl.load(number)):
        total += 2
    tl.store(found, total)

found = torch.zeros(1, dtype=torch.int32)
repeat[(1,)](torch.tensor([3], dtype=torch.int32), found)
assert found.item() == 6
"""

INTERPRETED = """
import random, sys, torch
from torch import nn
from bayesprune.runtime.gpu import GpuProgram, Tile
from bayesprune.runtime.lowering import lower

choose, generator = random.Random(int(sys.argv[1])), torch.Generator().manual_seed(int(sys.argv[1]))
for tile in [*(Tile(height, False) for height in (1, 2, 4, 8, 16)), Tile(16, True), Tile(32, True)]:
    kernel, stride, padding, width = map(choose.choice, ((1, 2, 3), (1, 2), (0, 1), (3, 21)))
    head = [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, width, kernel, stride, padding)]
    features = nn.Sequential(*head, nn.ReLU(), nn.Flatten())
    shape = (2, choose.randint(8, 11), choose.randint(8, 11))
    with torch.no_grad():
        network = nn.Sequential(*features, nn.Linear(features(torch.zeros(1, *shape)).shape[1], 5)).eval()
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.mul_(torch.rand(parameter.shape, generator=generator) < choose.choice((0.05, 0.3, 1.0)))
                parameter[1] = 0
        x = torch.randn(choose.choice((1, 5, 17)), *shape, generator=generator)
        expected = network(x)
        found = GpuProgram(lower(network, shape), len(x), torch.device("cpu"), tiles=[tile] * 3)(x)
    off = float((found - expected).abs().max()) / max(1.0, float(expected.abs().max()))
    assert off <= 1e-5, (tile, shape, off)
print("equal")
"""

POOLED = """
import torch
from torch import nn
from bayesprune.runtime import gpu
from bayesprune.runtime.gpu import Tile
from random_layers import check_kernels, thinned

tiles = (Tile(1, False), 65520), (Tile(4, False), 4), (Tile(16, False), 4), (Tile(16, True), 4)
generator = torch.Generator().manual_seed(0)
# Windows that are powers of two and others, even and odd numbers of results, rows that none of them reads.
for pool in (2, 3, 5, 8):
    for padding, size in ((1, (11, 13)), (0, (19, 17))):
        layers = nn.Conv2d(2, 5, 3, padding=padding), nn.ReLU(), nn.MaxPool2d(pool), nn.Conv2d(5, 17, 1), nn.Flatten()
        network = thinned(nn.Sequential(*layers), 0.5, generator).eval()
        for tile, gpu.MOST_PROGRAMS in tiles:  # in one launch, in pieces
            check_kernels(network, torch.randn(3, 2, *size, generator=generator), "cpu", tile)
print("equal")
"""

DRAWN = """
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layers import TILES, check_kernels, convolutions, linear_layers

linear = linear_layers(st.sampled_from([1, 3, 17, 40]), st.sampled_from([1, 2, 17, 1000]))
convolution = convolutions(st.integers(1, 3), st.integers(8, 13), st.sampled_from([1, 5, 130]))
for cases in (linear, convolution):
    @settings(max_examples=30, deadline=None, database=None)
    @given(case=cases, tile=st.sampled_from(TILES))
    def check(case, tile):
        check_kernels(*case, "cpu", tile)

    check()
print("equal")
"""

COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from bayesprune.runtime import gpu_kernels

NUMBERS = ("value_count", "site_count", "target_plane", "stride", "examples")
TABLES = ("taps", "panels", "sites", "places")


def kind(name):
    if name.isupper():
        return "constexpr"
    return "i32" if name in NUMBERS else "*i32" if name in TABLES else "*fp32"


def check(kernel, **constants):
    source = triton.compiler.ASTSource(kernel, {name: kind(name) for name in kernel.arg_names}, constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert ".target sm_90" in made.asm["ptx"], made.asm["ptx"][:200]
    return made.asm["ptx"]


check(gpu_kernels.spread_kernel, VALUES=64, EXAMPLES=64)
for height in (1, 4, 16):
    for pool, relu in ((1, False), (4, False), (1, True), (4, True)):
        ptx = check(gpu_kernels.panels_kernel, HEIGHT=height, POOL=pool, RELU=relu, HELD=pool, SITES=2, EXAMPLES=128)
        assert ("max.NaN" in ptx) == (pool > 1 or relu)
    for pool in (9, 25, 64):
        ptx = check(gpu_kernels.panels_kernel, HEIGHT=height, POOL=pool, RELU=False, HELD=1, SITES=2, EXAMPLES=128)
        assert "max.NaN" in ptx
for height in (16, 32):
    ptx = check(gpu_kernels.products_kernel, HEIGHT=height, POOL=4, RELU=True, DEPTH=16, EXAMPLES=128)
    assert "max.NaN" in ptx and "mma" in ptx
print("compiled")
"""


def run(code: str, *arguments: str, **environment: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory) -> None:
    """Skip where Triton's interpreter fails on a loop of its own; with some versions of NumPy it does."""
    probe = tmp_path_factory.mktemp("triton") / "probe.py"  # Triton reads the code of its kernels from files
    probe.write_text(PROBE)
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, probe], capture_output=True, text=True, env=environment, timeout=600)
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        pytest.skip(f"Triton's interpreter does not work here; {INSTALL_TRITON} ({reason})")


@needs_triton
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("seed", range(3))
def test_kernels_give_what_torch_gives_in_the_interpreter(seed: int) -> None:
    assert run(INTERPRETED, str(seed), TRITON_INTERPRET="1") == "equal"


@needs_triton
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("code", [POOLED, DRAWN], ids=["pools and pieces", "random layers"])
def test_more_layers_in_the_interpreter(code: str) -> None:
    assert run(code, TRITON_INTERPRET="1") == "equal"


@needs_triton
def test_kernels_compile_for_a_gpu(tmp_path) -> None:
    assert run(COMPILED, TRITON_CACHE_DIR=str(tmp_path)) == "compiled"
