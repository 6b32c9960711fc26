"""The native engine against torch: layers, whole networks, every instruction set."""

import itertools
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from bayesprune import models
from bayesprune.runtime import UnsupportedError, native
from bayesprune.runtime.lowering import lower
from bayesprune.runtime.native import SETS, Program
from bayesprune.runtime.panels import _pairs, _saved, even_panels, panels, parts
from random_layers import convolutions, linear_layers, thinned

SOURCE = Path(native.__file__).with_name("engine.c")
needs_engine = pytest.mark.skipif(native.library() is None, reason="the native engine is not built: no C compiler")


def instruction_sets():
    engine = native.library()
    return [] if engine is None else [name for name, number in SETS.items() if engine.instruction_set(number) >= 0]


def run(network, x, lanes=16, threads=1, instruction_set="best"):
    lowered = lower(network, tuple(x.shape[1:]))
    result = Program(lowered, lanes, instruction_set)(x.reshape(len(x), -1).contiguous(), threads)
    view = lowered.output
    return result if view.flat else result.reshape(len(x), view.channels, view.rows, view.columns)


def check(network, x, **options):
    network = network.eval()
    with torch.no_grad():
        expected = network(x)
    found = run(network, x, **options)
    assert found.shape == expected.shape
    scale = max(1.0, float(expected.abs().max()))
    assert float((found - expected).abs().max()) <= 1e-5 * scale


@needs_engine
@pytest.mark.parametrize("instruction_set", ["best", "avx512", "avx2", "portable"])
@pytest.mark.parametrize("name", ["mlp", "lenet5", "alexnet-small", "vgg11", "resnet20"])
def test_networks_give_what_torch_gives(name, instruction_set):
    if instruction_set not in instruction_sets():
        pytest.skip(f"this processor has no {instruction_set}")
    generator = torch.Generator().manual_seed(0)
    shape = (1, 28, 28) if name in ("lenet5", "mlp") else (3, 32, 32)
    network = thinned(models.create(name, shape, 10, generator=generator), 0.1, generator)
    x = torch.randn(19, *shape, generator=generator)
    check(network, x, instruction_set=instruction_set, lanes=16, threads=2)
    check(network, x, instruction_set=instruction_set, lanes=32)
    check(network, x[:3], instruction_set=instruction_set, lanes=1, threads=2)


@needs_engine
@settings(max_examples=150, deadline=None)
@given(
    case=linear_layers(),
    lanes=st.sampled_from([1, 16, 32, 64]),
    kind=st.sampled_from(instruction_sets() or ["best"]),
)
def test_any_linear_layer(case, lanes, kind):
    check(*case, lanes=lanes, instruction_set=kind)


@needs_engine
@settings(max_examples=150, deadline=None)
@given(
    case=convolutions(),
    near=st.sampled_from([native.NEAR, 6000, 1]),  # all channels together, some, one at a time
    lanes=st.sampled_from([1, 16, 32, 64]),
    kind=st.sampled_from(instruction_sets() or ["best"]),
)
def test_any_convolution(case, near, lanes, kind):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "NEAR", near)
        patch.setattr(native, "FEW_PRODUCTS", 9.0)
        check(*case, instruction_set=kind, lanes=lanes)


class Branches(nn.Module):
    """Values that are read twice, sums, means, crops and views."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 5, 3, padding=1), nn.Conv2d(5, 5, 3, padding=1, bias=False)
        self.norm, self.alone = nn.BatchNorm2d(5), nn.BatchNorm2d(5)
        self.crop = nn.Sequential(nn.ZeroPad2d((0, 1, 2, 0)), nn.Conv2d(5, 4, (3, 2)))
        self.pool, self.last = nn.MaxPool2d(3, stride=2), nn.Linear(4 * 3 * 3, 6)
        self.head = nn.Linear(4, 6)

    def forward(self, x):
        first = self.first(x)
        kept = functional.relu(first)
        inner = self.norm(self.second(kept)) + first  # `first` is read twice, so nothing may be folded into it
        inner = torch.relu(self.alone(inner))
        cropped = self.crop(inner)
        pooled = self.pool(cropped)
        return self.last(torch.flatten(pooled, 1)) + self.head(cropped.mean((2, 3)))


@needs_engine
def test_values_that_are_read_twice():
    generator = torch.Generator().manual_seed(0)
    network = thinned(Branches(), 0.7, generator)
    check(network, torch.randn(20, 2, 8, 8, generator=generator))
    check(network, torch.randn(1, 2, 8, 8, generator=generator), lanes=64)
    check(network, torch.randn(2, 2, 8, 8, generator=generator), lanes=1)


@needs_engine
@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("size", [2, 36])  # of single values, and of whole vectors
def test_what_is_not_a_number_stays_so(lanes, size):
    pool = nn.MaxPool2d(2)
    last = nn.Linear(size * size // 4, 1)
    network = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), pool, nn.Flatten(), last).eval()
    for row, column in itertools.product((0, 1, size - 1), repeat=2):
        x = torch.zeros(3, 1, size, size)
        x[1, 0, row, column] = float("nan")
        assert run(network, x, lanes=lanes).isnan().flatten().tolist() == [False, True, False]


@needs_engine
@pytest.mark.parametrize("lanes", [1, 16])
def test_examples_do_not_see_those_before_them(lanes):
    """The engine's memory is used again: after infinite values everywhere a network must say what it said before."""
    generator = torch.Generator().manual_seed(0)
    network = thinned(Branches(), 0.7, generator).eval()
    x = torch.randn(4, 2, 8, 8, generator=generator)
    program = Program(lower(network, (2, 8, 8)), lanes)
    before = program(x.flatten(1).contiguous(), 1)
    program(torch.full((20, 128), float("inf")), 1)
    assert torch.equal(program(x.flatten(1).contiguous(), 1), before)


@needs_engine
def test_threads_without_a_block_get_no_memory():
    program = Program(lower(nn.Linear(8, 3).eval(), (8,)), 16)
    tables = program.bytes
    program(torch.randn(16, 8), 64)
    assert 0 < program.bytes - tables < 2 * program._bytes
    program(torch.randn(17, 8), 64)
    assert 2 * program._bytes <= program.bytes - tables < 3 * program._bytes


@needs_engine
@pytest.mark.parametrize(
    ("network", "shape", "words"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid()), (1, 8, 8), "Sigmoid"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect")), (1, 8, 8), "reflect"),
        (nn.Sequential(nn.MaxPool2d(2, padding=1)), (1, 8, 8), "MaxPool2d"),
        (nn.Sequential(nn.Linear(8, 2)), (1, 8, 8), "features"),
    ],
)
def test_what_the_engine_has_not_is_named(network, shape, words):
    with pytest.raises(UnsupportedError, match=words):
        lower(network, shape)


@pytest.mark.parametrize("height", [1, 2, 8, 32])
@pytest.mark.parametrize("rows", [1, 5, 16, 41])
def test_even_panels_are_full_but_the_last(rows, height):
    live = torch.rand(rows, 30, generator=torch.Generator().manual_seed(rows)) < 0.2
    found = even_panels(live, height)
    assert sorted(row for panel in found for row in panel.rows) == list(range(rows))
    assert [len(panel.rows) for panel in found[:-1]] == [height] * (len(found) - 1)
    assert 1 <= len(found[-1].rows) <= height
    for panel in found:
        assert panel.columns.tolist() == live[panel.rows].any(0).nonzero().flatten().tolist()


def test_even_panels_join_rows_that_read_the_same():
    patterns = torch.rand(4, 50, generator=torch.Generator().manual_seed(0)) < 0.3
    live = patterns.repeat(4, 1)
    assert sorted(sorted(panel.rows) for panel in even_panels(live, 4)) == [[i, i + 4, i + 8, i + 12] for i in range(4)]


def test_panels_hold_every_row_once_and_all_it_reads():
    generator = torch.Generator().manual_seed(0)
    for density in (0.0, 0.05, 0.5, 1.0):
        live = torch.rand(37, 50, generator=generator) < density
        found = panels(live)
        assert sorted(row for panel in found for row in panel.rows) == list(range(37))
        for panel in found:
            assert len(panel.rows) in (1, 2, 4, 8)
            assert panel.columns.tolist() == live[panel.rows].any(0).nonzero().flatten().tolist()


@needs_engine
def test_an_engine_of_another_version_is_not_used(monkeypatch):
    monkeypatch.setattr(native, "VERSION", native.VERSION + 1)
    assert native.library.__wrapped__() is None


def test_parts_of_panels_have_all_columns_once():
    live = torch.rand(9, 40, generator=torch.Generator().manual_seed(0)) < 0.2
    live[3] = False
    live[4, 10:] = False
    number = torch.arange(40) // 10
    whole = panels(live)
    found = parts(whole, number)
    assert int(found.counts.sum()) == len(found.columns) == sum(len(panel.columns) for panel in whole)
    columns, owner = found.columns.split(found.counts.tolist()), found.owner.split(found.counts.tolist())
    assert all(len(set(number[some].tolist())) <= 1 for some in columns)
    assert all(set(some.tolist()) <= {panel} for some, panel in zip(owner, found.panel.tolist(), strict=True))
    for one, panel in enumerate(whole):
        mine = (found.panel == one).nonzero().flatten().tolist()
        assert torch.equal(torch.cat([columns[part] for part in mine]), panel.columns)
        assert found.begins[mine].tolist() == [True] + [False] * (len(mine) - 1)
        assert found.ends[mine].tolist() == [False] * (len(mine) - 1) + [True]
        assert all(len(columns[part]) for part in mine[1:-1])
    ends = found.ends.tolist()
    assert ends == sorted(ends)  # part after part, not panel after panel
    undivided = parts(whole, torch.zeros(40, dtype=torch.int64))
    assert undivided.panel.tolist() == list(range(len(whole)))
    assert bool(undivided.begins.all())
    assert bool(undivided.ends.all())


def greedy(live, height):
    """The pairs of rows that save most, one after another, in plain Python."""
    reads = [set(row.nonzero().flatten().tolist()) for row in live]
    saved = {
        (a, b): (len(reads[a]) + len(reads[b])) * (height + 0.6) - len(reads[a] | reads[b]) * (2 * height + 0.6)
        for a, b in itertools.combinations(range(len(reads)), 2)
    }
    total, free = 0.0, set(range(len(reads)))
    for (a, b), worth in sorted(saved.items(), key=lambda one: -one[1]):
        if worth > 0 and {a, b} <= free:
            free -= {a, b}
            total += worth
    return total


@pytest.mark.parametrize("density", [0.1, 0.4, 0.8])
def test_pairs_save_as_much_as_the_best_pair_first(density):
    live = torch.rand(60, 80, generator=torch.Generator().manual_seed(1)) < density
    live[:20] |= live[20:40]
    saved = _saved(live.float(), 1)
    found = _pairs(live.float(), 1)
    assert len({row for pair in found for row in pair}) == 2 * len(found)
    total = sum(float(saved[a, b]) for a, b in found)
    assert total == pytest.approx(greedy(live, 1), rel=0.02, abs=1)  # equals may be taken in another order


def test_many_equal_rows_are_paired_quickly():
    live = torch.zeros(3000, 16, dtype=torch.bool)
    live[:, :8] = True
    started = time.perf_counter()
    assert [len(panel.rows) for panel in panels(live)] == [8] * 375
    assert time.perf_counter() - started < 20


def test_rows_that_read_the_same_share_a_panel():
    live = torch.zeros(16, 32, dtype=torch.bool)
    live[::2, :16] = True  # interleaved, so order does not help
    live[1::2, 16:] = True
    assert sorted(tuple(sorted(panel.rows)) for panel in panels(live)) == [
        tuple(range(0, 16, 2)),
        tuple(range(1, 16, 2)),
    ]


SANITIZED = """
import sys, torch
from pathlib import Path
from torch import nn
from bayesprune.runtime import native
native.LIBRARY = Path(sys.argv[1])
from bayesprune import models
from bayesprune.runtime.lowering import lower
g = torch.Generator().manual_seed(0)
for name, shape, density in (("lenet5", (1, 28, 28), 1), ("lenet5", (1, 28, 28), 0.2), ("resnet20", (3, 32, 32), 0.2)):
    network = models.create(name, shape, 10, generator=g).eval()
    for parameter in network.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(torch.rand(parameter.shape, generator=g) < density)
    x = torch.randn(17, *shape, generator=g)
    with torch.no_grad():
        y = network(x)
    for kind in ("best", "avx2", "portable"):
        if native.library().instruction_set(native.SETS[kind]) >= 0:
            for lanes, native.NEAR in ((16, 28000), (16, 4000), (1, 28000)):
                z = native.Program(lower(network, shape), lanes, kind)(x.flatten(1).contiguous(), 2)
                assert torch.allclose(y, z, atol=1e-4), (kind, lanes)
print("clean")
"""


@needs_engine
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc and its sanitizers")
def test_the_engine_is_clean_under_sanitizers(tmp_path):
    """Address and undefined-behaviour sanitizers, in a process of its own."""
    library = tmp_path / "engine.so"
    flags = ["-O1", "-g", "-fPIC", "-shared", "-std=gnu11", "-fopenmp", "-Wno-psabi"]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    built = subprocess.run(["gcc", *flags, *checks, str(SOURCE), "-o", str(library)], capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"the sanitizers are not installed: {built.stderr[-200:]}")
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    environment = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "2", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED, str(library)], capture_output=True, text=True, env=environment, timeout=300
    )
    assert (done.returncode, done.stdout.strip()) == (0, "clean"), done.stderr[-2000:]
