"""Matrices, axes, messages and charts as data, against plain loops."""

import math

import numpy as np
import pytest
import torch

from bayesprune.regularity import cover
from bayesprune.report import read_sources
from bayesprune.report.charts import Bars, Frames, Lines, Matrices, Points
from bayesprune.report.matrices import (
    GAP,
    encode,
    kernel_matrix,
    kernels_in_words,
    largest_in_blocks,
    layer_matrices,
    overview,
    rows_within,
)
from bayesprune.report.message_frames import message_frames, thinned
from bayesprune.report.reading import Layer
from bayesprune.report.scales import label, scale
from bayesprune.report.sections import MATRIX_BUDGET, drawings
from report.small_run import ITERATIONS, LAYERS, messages_of


def test_codes_give_the_weights_back():
    weights = torch.randn(30, 40, generator=torch.Generator().manual_seed(0))
    weights[weights.abs() < 0.3] = 0
    weights[0, 0] = 1e-9  # live, however small
    codes, largest = encode(weights.numpy())
    assert largest == pytest.approx(float(weights.abs().max()))
    assert np.array_equal(codes != 0, weights.numpy() != 0)
    back = np.sign(codes) * (codes / 127.0) ** 2 * largest
    # Half a step of the code: d|w| = 2 sqrt(|w| largest) / 127 / 2.
    allowed = np.sqrt(np.abs(weights.numpy()) * largest) / 127 + largest / 127**2
    assert (np.abs(back - weights.numpy()) <= allowed + 1e-6).all()


def test_blocks_keep_the_largest_with_its_sign():
    weights = torch.randn(7, 11, generator=torch.Generator().manual_seed(1))
    found = largest_in_blocks(weights, (2, 3))
    assert found.shape == (4, 4)
    for row in range(4):
        for column in range(4):
            block = weights[2 * row : 2 * row + 2, 3 * column : 3 * column + 3].flatten()
            assert found[row, column] == block[block.abs().argmax()]


def test_an_overview_is_small():
    matrix = overview(torch.ones(512, 4608), "x")
    assert matrix.cells.shape == (256, 512)
    assert matrix.block == (2, 9)
    assert matrix.whole == (512, 4608)
    for panels in (1, 30, 300):
        rows = rows_within(MATRIX_BUDGET, panels)
        assert 2 * rows * rows * panels <= MATRIX_BUDGET
    assert rows_within(MATRIX_BUDGET, 30) == 256  # VGG-11 is shown at the full size


def test_layer_shows_before_after_and_its_clusters():
    live = torch.zeros(8, 4, 3, 3, dtype=torch.bool)
    live[2:6, 1] = True
    live[7, 3, 0, 0] = True
    weights = torch.ones(8, 4, 3, 3) * live
    layer = Layer("c", weights, live, torch.ones(8, 4, 3, 3), (8, 4, 3, 3))
    figure = layer_matrices(layer, "n", "t", folded=False)
    before, after, left = figure.panels
    assert (before.cells != 0).all()
    assert np.array_equal(after.cells != 0, live.flatten(1).numpy())
    cells = live.flatten(1)[live.flatten(1).any(1)][:, live.flatten(1).any(0)]
    assert left.cells.shape == (5, 10)
    assert [list(one) for one in left.rectangles] == cover(cells).rectangles.tolist() == [[0, 0, 4, 9]]
    assert "37 live weights in 5 rows and 10 columns, 97 % of them in 1 all-live" in figure.caption


def test_kernels_lie_side_by_side():
    weight = torch.zeros(3, 2, 2, 2)
    weight[1, 0] = 1.0
    weight[2, 1, 0, 1] = -1.0
    layer = Layer("c", weight, weight != 0, dense_shape=(3, 2, 2, 2))
    matrix = kernel_matrix(layer, "t")
    expected = [
        [0, 0, GAP, 127, 127, GAP, 0, 0],
        [0, 0, GAP, 127, 127, GAP, 0, 0],
        [GAP] * 8,
        [0, 0, GAP, 0, 0, GAP, 0, -127],
        [0, 0, GAP, 0, 0, GAP, 0, 0],
    ]
    assert matrix.cells.tolist() == expected
    assert kernels_in_words(layer) == "2 of 6 kernels of 2 x 2 live, 5 weights"
    many = torch.ones(64, 3, 3, 3)
    shown = kernel_matrix(Layer("c", many, many != 0), "t")
    assert shown.cells.shape == (4 * (3 * 4 + 1) - 2, 16 * 4 - 1)
    assert int((shown.cells == 127).sum()) == many.numel()


def test_a_linear_first_layer_and_one_dimension_work():
    for shape in ((5, 7), (4, 3, 5), (4, 3, 2, 2, 2)):
        weight = torch.ones(shape)
        matrix = kernel_matrix(Layer("l", weight, weight != 0), "t")
        assert int((matrix.cells == 127).sum()) == weight.numel()


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (97.2, 98.6), (-3.0, 5e6), (5.0, 5.0), (1e-9, 2e-9)])
@pytest.mark.parametrize("log", [False, True])
def test_axes(low, high, log):
    if log and low <= 0:
        low = high / 1e6
    axis = scale([low, high], 300.0, 20.0, log=log)
    ticks = axis.ticks(6)
    assert 1 <= len(ticks) <= 9
    assert ticks == sorted(set(ticks))
    places = [axis(value) for value in (low, *ticks, high)]
    assert all(20 - 1e-6 <= place <= 300 + 1e-6 for place in places)
    assert axis(low) >= axis(high)
    assert len({label(tick) for tick in ticks}) == len(ticks)


def test_axis_is_linear_and_logarithmic():
    axis = scale([0, 10], 0, 110)
    assert (axis.low, axis.high) == (-0.5, 10.5)
    assert axis(5) == pytest.approx(55)
    assert axis.ticks(6) == [0, 2.5, 5, 7.5, 10]
    axis = scale([1, 100], 0, 100, log=True)
    assert axis(10) == pytest.approx(50)
    assert {1, 10, 100} <= set(axis.ticks(8))


def test_messages_are_thinned_to_the_budget(run_folder):
    run = read_sources([run_folder])[0][0]
    one_iteration = len(LAYERS) * 3 * 30 * 40
    all_of_them = message_frames(run, 10 * one_iteration)
    assert all_of_them.iterations == tuple(range(1, ITERATIONS + 1))
    few = message_frames(run, 3 * one_iteration)
    assert len(few.iterations) == 3
    assert (few.iterations[0], few.iterations[-1]) == (1, ITERATIONS)
    sent = messages_of(few.iterations[1]).layers["fc1"]
    layer = next(one for one in few.layers if one.layer == "fc1")
    for part, name in zip(layer.parts, ("to_supports", "from_supports", "posterior"), strict=True):
        assert np.array_equal(part[1], getattr(sent, name).numpy())


def test_thinned():
    for count in (1, 2, 7, 100):
        for most in (2, 3, 10):
            places = thinned(count, most)
            assert len(places) == min(count, most)
            assert places[0] == 0
            assert places[-1] == count - 1
            gaps = np.diff(places)
            assert not len(gaps) or gaps.max() - gaps.min() <= 1


def test_every_figure_of_a_run(run_folder):
    found = {one.name: one for one in drawings(*read_sources([run_folder]))}
    assert set(found) == {
        *("latency", "kernels", "accuracy", "size", "convergence", "convergence-evidence", "messages", "layers"),
        *(f"weights-{place:02d}-{name}" for place, name in enumerate(LAYERS, start=1)),
    }
    bars = found["latency"]
    assert isinstance(bars, Bars)
    # The better layout of the dense network, and no bar for what was not measured.
    assert [[bar.value for bar in group.bars] for group in bars.groups] == [[0.4, 0.4], [6.0, 2.0]]
    lines = found["convergence"]
    assert isinstance(lines, Lines)
    assert [one.label for one in lines.series] == list(LAYERS)
    assert lines.series[1].y == pytest.approx([0.5**epoch / 2 for epoch in range(1, ITERATIONS + 1)])
    assert [band.label for band in found["accuracy"].bands] == ["warm-up", "pruning", "fine-tuning"]
    size = {one.label: one.y for one in found["size"].series}
    assert size["weights left"][0] is None
    assert size["weights left"][1] == pytest.approx(60)
    assert size["multiplications left"][-1] is None
    assert isinstance(found["kernels"], Matrices)
    assert isinstance(found["messages"], Frames)
    density = found["layers"].groups[0].bars[2].value
    assert density == pytest.approx(100 * float(read_sources([run_folder])[0][0].layers[2].live.float().mean()))


def test_comparison(run_folder):
    found = {one.name: one for one in drawings(*read_sources([run_folder, run_folder / "network.safetensors"]))}
    assert isinstance(found["comparison"], Points)
    assert len(found["kernels"].panels) == 2
    assert all(math.isclose(one.points[0].y, 89.1) for one in found["comparison"].series)
