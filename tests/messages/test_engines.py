"""The engines of message passing are one function: C, torch and (on a GPU) Triton agree to rounding."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bayesprune.messages import Table, chain_messages, gpu, grid_messages, native
from bayesprune.messages.chain import chain_received_torch
from bayesprune.messages.grid import Engine, torch_grids

SHAPES = [
    (1, 40, 30),
    (1, 400, 120),  # more than one thread
    (3, 7, 5, 6),
    (1, 1, 30),
    (1, 2, 2),
    (100, 3, 3),  # side by side
    (1037, 5, 5),  # side by side, the last block shorter
    (50, 4, 3, 3, 3),
    (9, 60, 50),  # one grid per thread
    (2, 17),
    (2, 3, 2, 3, 2, 3),
]


def problem(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, list[Table]]:
    generator = torch.Generator().manual_seed(sum(shape))
    evidence = (torch.randn(shape, generator=generator, dtype=torch.float64) * 3).to(dtype)
    return evidence, [Table.from_transitions(0.2 + 0.05 * a, 0.35) for a in range(len(shape) - 1)]


def run(engine: Engine, shape: tuple[int, ...], dtype: torch.dtype, damping: float, device: str = "cpu") -> list:
    evidence, tables = problem(shape, dtype)
    result = grid_messages(evidence.to(device), tables, iterations=7, tolerance=0.0, damping=damping, engine=engine)
    kept = grid_messages(
        evidence.to(device),
        tables,
        iterations=7,
        tolerance=0.0,
        damping=damping,
        engine=engine,
        keep_messages=True,
    )
    assert result.iterations == kept.iterations == 7
    assert kept.messages is not None
    torch.testing.assert_close(kept.received_logit, result.received_logit)
    return [result.received_logit.cpu(), kept.messages.cpu(), torch.tensor(result.change)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_native_equals_torch(shape: tuple[int, ...], dtype: torch.dtype, damping: float) -> None:
    assert native.is_built(), "the C kernel must be there in the tests; is a compiler installed?"
    precision = 5e-6 if dtype == torch.float32 else 1e-12
    pairs = zip(run(native.grids, shape, dtype, damping), run(torch_grids, shape, dtype, damping), strict=True)
    for fast, plain in pairs:
        torch.testing.assert_close(fast, plain, rtol=precision, atol=precision)


def test_the_number_of_threads_does_not_matter() -> None:
    shape = (1, 300, 200)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(run(native.grids, shape, torch.float32, 0.2)[0])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_stopping_early_stays_within_the_tolerance() -> None:
    evidence, tables = problem((64, 5, 5), torch.float64)
    exact = grid_messages(evidence, tables, iterations=2000, tolerance=0.0, damping=0.2)
    early = grid_messages(evidence, tables, iterations=2000, tolerance=1e-6, damping=0.2)
    assert early.converged
    assert early.iterations % 5 == 0
    assert early.iterations < exact.iterations
    torch.testing.assert_close(early.received_logit, exact.received_logit, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 5), (2, 300), (33, 7), (200, 513)], ids=str)
def test_native_chains_equal_torch(shape: tuple[int, int], dtype: torch.dtype) -> None:
    evidence = (torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3).exp()
    table = Table.from_transitions(0.1, 0.45)
    fast = native.chains(evidence.to(dtype), table, 0.25)
    plain = chain_received_torch(evidence.to(dtype), table, 0.25)
    torch.testing.assert_close(fast, plain, rtol=5e-6 if dtype == torch.float32 else 1e-12, atol=0)


def test_a_chain_with_transitions_too_rare_for_float32_is_computed_in_float64() -> None:
    evidence = torch.randn(4, 9, generator=torch.Generator().manual_seed(0)) * 20
    rare = Table.from_transitions(1e-9, 1e-9)
    single = chain_messages(evidence, rare, 0.0, 1)
    double = chain_messages(evidence.double(), rare, 0.0, 1)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-5)


def test_without_the_library_the_torch_engine_is_used_and_says_so_once(tmp_path: Path) -> None:
    """In a process of its own, because the library is looked up once."""
    script = tmp_path / "without.py"
    script.write_text(
        "import sys, warnings, torch\n"
        "from pathlib import Path\n"
        "from bayesprune.messages import native\n"
        "from bayesprune.supports import IsingGrid, MarkovChain\n"
        "if sys.argv[1] == 'without':\n"
        "    native.LIBRARY = Path('not-there.so')\n"
        "if sys.argv[1] == 'broken':\n"
        "    native.LIBRARY = Path(__file__)\n"
        "evidence = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    results = [s.extrinsic(evidence).logit for s in (IsingGrid(.4, .3), MarkovChain(.1, .2)) * 2]\n"
        "print(len(said), *(str(w.message)[:42] for w in said), sep='|')\n"
        "print(torch.stack(results).double().numpy().tobytes().hex())\n"
    )
    answers = {}
    said_once = {
        "with": "0",
        "without": "1|the native message-passing kernel is not",
        "broken": "1|the native message-passing kernel cannot",
    }
    for how, expected in said_once.items():
        done = subprocess.run([sys.executable, str(script), how], capture_output=True, text=True, check=True)
        said, values = done.stdout.splitlines()
        answers[how] = torch.frombuffer(bytearray.fromhex(values), dtype=torch.float64)
        assert said[: len(expected)] == expected
    torch.testing.assert_close(answers["with"], answers["without"], rtol=0, atol=1e-5)
    assert torch.equal(answers["without"], answers["broken"])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_triton_equals_torch(shape: tuple[int, ...], dtype: torch.dtype, damping: float) -> None:
    precision = 5e-6 if dtype == torch.float32 else 1e-7  # the damping factor travels as a float32
    triton, plain = (
        run(gpu.grids, shape, dtype, damping, "cuda"),
        run(torch_grids, shape, dtype, damping),
    )
    for fast, slow in zip(triton, plain, strict=True):
        torch.testing.assert_close(fast, slow, rtol=precision, atol=precision)


@pytest.mark.gpu
def test_triton_chains_equal_torch() -> None:
    evidence = (torch.randn(200, 513, generator=torch.Generator().manual_seed(0)) * 3).exp()
    table = Table.from_transitions(0.1, 0.45)
    fast = gpu.chains(evidence.cuda(), table, 0.25).cpu()
    torch.testing.assert_close(fast, chain_received_torch(evidence, table, 0.25), rtol=5e-6, atol=0)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:the native message-passing kernel")
def test_supports_run_on_the_gpu() -> None:
    from bayesprune.supports import HiddenMarkov, IsingGrid, MarkovChain, MarkovTree

    evidence = torch.randn(30, 40, generator=torch.Generator().manual_seed(0)) * 3
    for support in (
        IsingGrid(0.4, 0.5),
        MarkovChain(0.1, 0.3),
        MarkovTree(0.3, 0.05, 0.4),
        HiddenMarkov(0.1, 0.2, 0.05, 0.9),
    ):
        here, there = support.extrinsic(evidence).logit, support.extrinsic(evidence.cuda()).logit
        assert there.is_cuda
        torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-4)
        assert support.log_evidence(evidence.cuda()) == pytest.approx(support.log_evidence(evidence), rel=1e-6)
        generator = torch.Generator("cuda").manual_seed(0)
        assert support.sample((5, 6), generator).is_cuda
