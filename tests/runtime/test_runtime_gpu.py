"""The Triton kernel against torch, on a GPU."""

import contextlib
import importlib.util

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bayesprune import models
from bayesprune.runtime import Choice, Compiled, UnsupportedError, compile, compiled, gpu
from bayesprune.runtime.fused import fused
from bayesprune.runtime.gpu import GpuProgram, Tile, tiles_for
from bayesprune.runtime.lowered import Buffer, Lowered, View
from bayesprune.runtime.lowering import lower
from random_layers import INSTALL_TRITON, TILES, check_kernels, convolutions, linear_layers

MOST = 65535  # programs along the second and the third axis of a grid of CUDA
any_tile = st.sampled_from([None, *TILES])
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason=f"needs Triton; {INSTALL_TRITON}")


@pytest.mark.gpu
@pytest.mark.parametrize("examples", [1, 100, 1000])
@pytest.mark.parametrize("density", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("name", ["mlp", "lenet5", "alexnet-small"])
def test_networks_give_what_torch_gives(name, density, examples):
    generator = torch.Generator().manual_seed(0)
    shape = (3, 32, 32) if name == "alexnet-small" else (1, 28, 28)
    network = models.create(name, shape, 10, generator=generator).eval()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.weight.mul_(torch.rand(module.weight.shape, generator=generator) < density)
        x = torch.randn(examples, *shape, generator=generator)
        expected = network(x)
        found = GpuProgram(lower(network, shape), examples, torch.device("cuda"))(x.cuda()).cpu()
    scale = max(1.0, float(expected.abs().max()))
    assert float((found - expected).abs().max()) <= 1e-5 * scale


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lenet5", "vgg11"])
def test_every_way_on_a_gpu_gives_the_same(name):
    """Torch, its graphs and the Triton kernels; other inputs of the same size; more sizes than there are graphs."""
    shape = (3, 32, 32) if name == "vgg11" else (1, 28, 28)
    network = models.create(name, shape, 10, generator=torch.Generator().manual_seed(0)).eval().cuda()
    fast = compile(network, torch.zeros(1, *shape, device="cuda"))
    for size in (64, 64, 3, *range(10, 20)):
        x = torch.randn(size, *shape, device="cuda")
        with torch.inference_mode():
            expected = network(x)
            scale = float(expected.abs().max())
            for way in fast._ways(x) if size == 64 else []:
                assert float((fast._way(way)(x) - expected).abs().max()) <= 2e-3 * scale  # torch may use TF32
            assert float((fast(x) - expected).abs().max()) <= 2e-3 * scale


@pytest.mark.gpu
@settings(max_examples=60, deadline=None)
@given(
    case=linear_layers(st.sampled_from([1, 3, 17, 130, 500]), st.sampled_from([1, 2, 17, 100, 1000])),
    tile=any_tile,
)
def test_any_linear_layer(case, tile):
    check_kernels(*case, "cuda", tile)


@pytest.mark.gpu
@settings(max_examples=60, deadline=None)  # of few sizes: others are other kernels to compile
@given(
    case=convolutions(st.sampled_from([1, 3, 8]), st.sampled_from([9, 16, 31]), st.sampled_from([1, 21, 1000])),
    tile=any_tile,
)
def test_any_convolution(case, tile):
    check_kernels(*case, "cuda", tile)


@pytest.mark.gpu
@pytest.mark.parametrize("tile", [None, Tile(1, False), Tile(16, True)], ids=str)
def test_large_images(tile):
    """More sites than a grid has programs along its second axis, in and out."""
    network = nn.Sequential(nn.Conv2d(5, 3, 3, padding=1), nn.ReLU()).eval()
    check_kernels(network, torch.randn(2, 5, 1000, 900), "cuda", tile)


@pytest.mark.gpu
@pytest.mark.parametrize("examples", [1, 5, 300])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile_gives_what_torch_gives(tile, examples):
    """Borders, strides, pooling, rows that do not fill a panel, and a row without a weight."""
    generator = torch.Generator().manual_seed(1)
    network = nn.Sequential(
        *(nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 70, 2, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(70 * 4, 20), nn.ReLU(), nn.Linear(20, 3)),
    ).eval()
    with torch.no_grad():
        for module in network:
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.weight.mul_(torch.rand(module.weight.shape, generator=generator) < 0.3)
                module.weight[1] = 0
        x = torch.randn(examples, 2, 8, 8, generator=generator)
        expected = network(x)
        found = GpuProgram(lower(network, (2, 8, 8)), examples, torch.device("cuda"), tiles=[tile] * 4)(x.cuda()).cpu()
    assert float((found - expected).abs().max()) <= 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize(
    ("rows", "density", "heights"),
    [
        (1, 1.0, [1]),
        (3, 1.0, [4, 2]),  # alike: all rows at once
        (17, 1.0, [8, 16, 16, 32]),
        (200, 0.02, [1, 2, 16, 32]),  # unlike: each for itself
    ],
)
def test_what_is_tried_for_a_layer(rows, density, heights):
    live = torch.rand(rows, 400, generator=torch.Generator().manual_seed(0)) < density
    tiles = tiles_for(live)
    assert [tile.height for tile in tiles] == heights
    assert [tile.products for tile in tiles] == sorted(tile.products for tile in tiles)
    assert len(set(tiles)) == len(tiles)


@pytest.mark.gpu
@pytest.mark.parametrize("multiple", [1, 8, 32])
@pytest.mark.parametrize("name", ["lenet5", "vgg11"])
def test_joined_operations_are_exact_without_tf32(name, multiple):
    """Against float64, channels of cuDNN's own Conv with ReLU among them."""
    shape = (3, 32, 32) if name == "vgg11" else (1, 28, 28)
    network = models.create(name, shape, 10, generator=torch.Generator().manual_seed(0)).eval().cuda()
    x = torch.randn(64, *shape, device="cuda")
    precision = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    try:
        with torch.inference_mode():
            found = fused(network, shape, multiple)(x.contiguous(memory_format=torch.channels_last))
            expected = network.double()(x.double())
    finally:
        torch.backends.cudnn.conv.fp32_precision = precision
    assert float((found - expected).abs().max()) <= 1e-5 * max(1.0, float(expected.abs().max()))


def test_sums_of_padded_values_are_refused():
    """A buffer is smaller than what is read of it there; added as it is, a single pixel would be spread over all."""

    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3, padding=1)

        def forward(self, x):
            y = self.conv(x)
            return y + nn.functional.pad(nn.functional.max_pool2d(y, 4), (0, 3, 0, 3))

    lowered = lower(Padded().eval(), (1, 4, 4))
    lowered.steps = [step for step in lowered.steps if step.kind != "maximum"]
    with pytest.raises(UnsupportedError, match="no sum of padded values"):
        GpuProgram(lowered, 2, torch.device("cpu"), tiles=[Tile(1, False)])


@pytest.mark.gpu
@pytest.mark.parametrize("tile", [Tile(1, False), Tile(4, False), Tile(16, True)], ids=str)
@pytest.mark.parametrize("pool", [2, 3])
def test_what_is_not_a_number_stays_so(pool, tile):
    """Through sums, maxima and ReLU, where no dead weight leaves it out."""
    last = nn.Linear(4 * (4 // pool) ** 2, 3)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(pool), nn.Flatten(), last).eval()
    x = torch.randn(5, 1, 6, 6)
    x[2, 0, 3, 3] = float("nan")
    with torch.no_grad():
        found = GpuProgram(lower(network, (1, 6, 6)), 5, torch.device("cuda"), tiles=[tile] * 2)(x.cuda()).cpu()
        assert torch.equal(found.isnan(), network(x).isnan())


class Program(GpuProgram):
    """Without a GPU: tiles that `fails` names do, others take longer the higher they are."""

    fails: tuple[Tile, ...] = ()
    tried: list[Tile]

    def _run(self, step, layer):
        self.tried.append(layer.tile)
        if layer.tile in self.fails:
            raise Exception(f"at 3:5:\n    tl.arange(0, 9)\nno {layer.tile.height} here\n")  # like Triton's own

    def _milliseconds(self, step, layer, least):
        return float(layer.tile.height)


def tried(monkeypatch, fails):
    """Of two layers of 20 rows each: the program, and what it tried."""
    monkeypatch.setattr(Program, "fails", tuple(fails))
    monkeypatch.setattr(Program, "tried", [], raising=False)
    network = nn.Sequential(nn.Linear(4, 20), nn.Linear(20, 20)).eval()
    lowered = lower(network, (4,))
    return Program(lowered, 2, torch.device("cpu")), tiles_for(lowered.steps[0].matrix != 0)


def test_tiles_that_fail_are_left_out(monkeypatch):
    program, tiles = tried(monkeypatch, [])
    fastest = min(tiles, key=lambda tile: tile.height)
    assert program.tiles == [fastest] * 2
    program, _ = tried(monkeypatch, [fastest])
    assert Program.tried == tiles * 2
    assert fastest not in program.tiles
    assert len(program.tiles) == 2


def test_a_layer_whose_tiles_all_fail_is_unsupported(monkeypatch):
    with pytest.raises(UnsupportedError, match=r"20 rows; Tile\(height=8.*: Exception: no 8 here; Tile\(height=16"):
        tried(monkeypatch, TILES)


class Launches(list):
    """In place of a kernel: the grids and arguments that it was given."""

    def __getitem__(self, grid):
        return lambda *given, **constants: self.append((grid, given, constants))


@needs_triton
@pytest.mark.parametrize(("tile", "size"), [(Tile(16, True), (256, 257)), (Tile(16, False), (520, 510))], ids=str)
def test_no_grid_is_larger_than_cuda_has_it(tile, size, monkeypatch):
    """Launches that share the sites of a large image: every one once, each piece aligned."""
    from bayesprune.runtime import gpu_kernels

    launches = Launches()
    monkeypatch.setattr(gpu_kernels, "products_kernel" if tile.products else "panels_kernel", launches)
    monkeypatch.setattr(gpu_kernels, "spread_kernel", Launches())
    pool = nn.MaxPool2d(1 if tile.products else 2)
    lowered = lower(nn.Sequential(nn.Conv2d(1, 1, 1), pool).eval(), (1, *size))
    program = GpuProgram(lowered, 33, torch.device("cpu"), tiles=[tile])
    program(torch.zeros(33, 1, *size))
    places, sites = [], []
    for grid, arguments, constants in launches:
        count = arguments[8]
        assert max(grid[1:]) <= MOST
        assert grid[1] * constants.get("SITES", 1) >= count
        assert arguments[6].data_ptr() % 16 == arguments[7].data_ptr() % 16 == 0
        places.append(arguments[7][:count])
        sites.append(arguments[6][: count * constants["POOL"]])
    assert len(launches) > 1
    assert torch.equal(torch.cat(places), program.layers[0].places)
    assert torch.equal(torch.cat(sites), program.layers[0].sites)


@needs_triton
def test_the_grid_of_large_inputs_is_no_larger_either(monkeypatch):
    from bayesprune.runtime import gpu_kernels

    launches = Launches()
    monkeypatch.setattr(gpu_kernels, "spread_kernel", launches)
    image = Buffer(1, 2048, 2049)
    program = GpuProgram(Lowered([image], [], 0, View(0, 1, 2048, 2049)), 1, torch.device("cpu"))
    program(torch.zeros(1, 1, 2048, 2049))
    [(grid, _, constants)] = launches
    assert max(grid[1:]) <= MOST
    assert grid[1] * grid[2] * constants["VALUES"] >= 2048 * 2049


class OnGpu:
    """What `Compiled` asks of a batch before it runs it; there need not be a GPU."""

    is_cuda, device = True, torch.device("cuda", 1)

    def __init__(self, size, ndim=4):
        self.size, self.ndim = size, ndim

    def __len__(self):
        return self.size


def linear(monkeypatch, way="triton, graph"):
    def measure(self, x, with_graphs=True):
        return Choice(way if with_graphs else "torch", {})

    monkeypatch.setattr(Compiled, "_measure", measure)
    monkeypatch.setattr(compiled, "_wait", lambda x: None)
    return compile(nn.Linear(4, 3).eval(), torch.zeros(1, 4))


def test_sizes_for_which_there_is_no_graph_share_measurements_of_torch(monkeypatch):
    fast = linear(monkeypatch)
    assert [fast._choose(OnGpu(size)).way for size in range(1, 9)] == ["triton, graph"] * 8
    assert {fast._choose(OnGpu(size)).way for size in range(9, 400)} == {"torch"}
    assert len(fast._choices) == 8 + 8 + 5 * 8 - 3  # 9 to 16 one by one, and to 400 by eighths
    assert fast._ways(OnGpu(9), with_graphs=False) == ["torch", "torch, channels last"]
    assert set(fast._ways(OnGpu(9))) >= {"torch", "torch, channels last", "torch, graph"}
    names = fast.explain()["choices"]
    assert names["batch 8 on the GPU"]["way"] == "triton, graph"
    assert names["batch up to 18 on the GPU, without a graph"]["way"] == "torch"


def test_a_size_that_is_no_longer_used_gives_its_graph_up(monkeypatch):
    monkeypatch.setattr(compiled, "IDLE", 100)
    fast = linear(monkeypatch)
    for size in range(1, 9):
        fast._choose(OnGpu(size))
        fast._captured["triton, graph", size] = object()
    for _ in range(5):
        assert fast._choose(OnGpu(300)).way == "torch"
    for _ in range(20):
        for size in (1, 2, 4, 5, 6, 7, 8):  # all but 3
            fast._choose(OnGpu(size))
    assert fast._choose(OnGpu(300)).way == "triton, graph"
    assert {size for _, size in fast._captured} == {1, 2, 4, 5, 6, 7, 8}
    assert fast._choose(OnGpu(3)).way == "torch"  # its turn will come
    assert len(fast._used) == 8


def test_programs_are_made_as_ordinary_tensors_on_the_device_of_the_batch(monkeypatch):
    seen = []

    class Program:
        def __init__(self, lowered, examples, device):
            seen.append((examples, device, torch.is_inference_mode_enabled(), torch.is_grad_enabled()))

    @contextlib.contextmanager
    def device(chosen):
        seen.append(chosen)
        yield
        seen.append("left")

    monkeypatch.setattr(gpu, "GpuProgram", Program)
    monkeypatch.setattr(torch.cuda, "device", device)
    fast = linear(monkeypatch)
    with torch.inference_mode():
        fast._to_capture("triton, graph", OnGpu(5))
    assert seen == [OnGpu.device, (5, OnGpu.device, False, False), "left"]


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        y = self.first(x).relu()
        return (self.second(y) + y).relu()


@pytest.mark.gpu
def test_a_first_call_in_inference_mode_loses_no_way():
    """The sum is written into memory that was made before the capture."""
    network, x = Skip().eval().cuda(), torch.randn(5, 2, 6, 6, device="cuda")
    with torch.inference_mode():
        fast = compile(network, x)
        fast(x)
        (choice,) = fast.explain()["choices"].values()
        assert choice["left_out"] == {}
        for way in choice["seconds"]:
            torch.testing.assert_close(fast._way(way)(x), network(x), rtol=2e-3, atol=2e-3)  # torch may use TF32
    torch.testing.assert_close(fast(x), network(x).detach(), rtol=2e-3, atol=2e-3)
