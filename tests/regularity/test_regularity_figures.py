"""Figures of whole networks against hand-made rows, loops, and bytes that are really written and read back."""

import itertools
import json
import math

import matplotlib
import numpy as np
import pytest
import regularity_reference as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesprune.regularity import cover, draw, kernel_windows, regularity, shuffled, view
from bayesprune.regularity.formats import bitmask_bytes, cluster_bytes, coo_bytes, csr_bytes, delta_bytes, integer_bytes
from bayesprune.supports import run_lengths

matplotlib.use("Agg")


def random_mask(*shape: int, density: float = 0.5, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density


def network() -> dict[str, torch.Tensor]:
    masks = {"conv": random_mask(6, 4, 5, 5, density=0.4), "fc": random_mask(20, 30, density=0.6, seed=1)}
    masks["conv"][2] = False
    masks["conv"][:, 1] = False
    masks["fc"][::4] = False
    return masks


@pytest.mark.parametrize("density", [0.0005, 0.02, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("shape", [(7, 9), (40, 300), (300, 40), (256, 256), (257, 3)], ids=str)
def test_bytes_are_those_of_a_real_file(shape: tuple[int, int], density: float) -> None:
    mask = random_mask(*shape, density=density)
    mask[1:5, 2:8] = True
    found = cover(mask)
    written = reference.encode(found.rectangles.tolist(), found.leftover.numpy())
    assert cluster_bytes(found) == len(written)
    np.testing.assert_array_equal(reference.decode(written, shape), mask.numpy())
    gaps = reference.encode_gaps(mask.numpy())
    assert delta_bytes(mask) == len(gaps)
    np.testing.assert_array_equal(reference.decode_gaps(gaps, shape), mask.numpy())
    assert bitmask_bytes(mask) == np.packbits(mask.numpy()).nbytes
    sparse = mask.float().to_sparse_coo()
    assert coo_bytes(mask) == sparse.indices().int().numpy().nbytes
    rows = np.concatenate([[0], mask.sum(1).cumsum(0).numpy()]).astype(np.int32)
    assert csr_bytes(mask) == rows.nbytes + sparse.indices()[1].int().numpy().nbytes


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 700), st.floats(0, 1))
def test_bytes_of_any_mask(seed: int, rows: int, columns: int, density: float) -> None:
    mask = random_mask(rows, columns, density=density, seed=seed)
    mask[: rows // 2, : columns // 9] = True
    found = cover(mask)
    written = reference.encode(found.rectangles.tolist(), found.leftover.numpy())
    assert cluster_bytes(found) == (len(written) if mask.any() else 0)
    np.testing.assert_array_equal(reference.decode(written, (rows, columns)), mask.numpy())


def test_integers_are_minimal() -> None:
    assert [integer_bytes(n) for n in (0, 255, 256, 65535, 65536)] == [1, 1, 2, 2, 4]


def test_gaps_with_escapes() -> None:
    for gap, size in [(0, 1), (254, 1), (255, 2), (509, 2), (510, 3)]:
        mask = torch.zeros(1, 600, dtype=torch.bool)
        mask[0, gap] = True
        assert delta_bytes(mask) == size == len(reference.encode_gaps(mask.numpy()))


def test_decode_steps_of_hand_made_rows() -> None:
    lines = ["####..#.", "####..##", "####...#", "........", "#.#.#.#."]
    mask = torch.tensor([[letter == "#" for letter in line] for line in lines])
    figures = regularity({"fc": mask}, compact=False).network
    # One 3x4 rectangle; per row 4+1, 4+2, 4+1, 0, 4 weights, 2, 2, 2, 0, 4 runs, 1+1, 1+2, 1+1, 0, 4 clusters.
    assert figures.as_dict()["steps_per_row"] == {
        "weights": {"mean": 20 / 5, "most": 6},
        "runs": {"mean": 10 / 5, "most": 4},
    }
    assert figures.as_dict()["clusters"]["matrix"]["steps_per_row"] == {"mean": 11 / 5, "most": 4}
    compacted = regularity({"fc": mask}).network.elements
    assert (compacted.weights.rows, compacted.weights.total, compacted.runs.total) == (4, 20, 9)  # columns 5 fell
    assert compacted.lines == 1 + 1


@pytest.mark.parametrize("shape", [(6, 4, 5, 5), (3, 2, 3, 3), (4, 3, 7), (2, 2, 3, 2, 4), (5, 1, 1, 3)], ids=str)
@pytest.mark.parametrize("density", [0.0, 0.1, 0.3, 1.0])
def test_kernel_windows_against_loops(shape: tuple[int, ...], density: float) -> None:
    mask = random_mask(*shape, density=density)
    live = smaller = window_taps = 0
    for out, inputs in itertools.product(range(shape[0]), range(shape[1])):
        places = mask[out, inputs].nonzero()
        if len(places):
            sides = [max(p) - min(p) + 1 for p in zip(*places.tolist(), strict=True)]
            live += 1
            smaller += sides != list(shape[2:])
            window_taps += math.prod(sides)
    found = kernel_windows(mask)
    assert (found.kernels, found.live, found.smaller) == (shape[0] * shape[1], live, smaller)
    assert found.window_taps == window_taps
    assert found.live_taps == int(mask.sum())
    assert found.taps == live * math.prod(shape[2:])


def test_linear_and_one_tap_layers_have_no_kernels() -> None:
    assert kernel_windows(random_mask(4, 5)).kernels == 0
    assert kernel_windows(random_mask(4, 5, 1, 1)).kernels == 0


def test_paper_figure_8() -> None:
    """Three of six 5x5 kernels live, each in a 3x3 window."""
    mask = torch.zeros(6, 1, 5, 5, dtype=torch.bool)
    for kernel, (top, left) in {0: (0, 0), 2: (1, 2), 5: (2, 1)}.items():
        mask[kernel, 0, top : top + 3, left : left + 3] = True
    measured = regularity({"conv1": mask}).as_dict()["network"]
    assert measured["kernels"] == {
        "kernels": 6,
        "live": 3,
        "share_smaller": 1.0,
        "mean_window": 9.0,
        "mean_taps": 25.0,
        "mean_live_taps": 9.0,
    }
    assert measured["clusters"]["kernel"]["share"] == 1
    assert measured["clusters"]["kernel"]["share_larger"] == 0


def test_layers_against_their_covers_and_network_against_its_layers() -> None:
    masks = network()
    measured = regularity(masks)
    total = {"matrix": [0, 0, 0], "kernel": [0, 0, 0]}
    for name, mask in masks.items():
        live_rows = [r for r in range(len(mask)) if mask[r].any()]
        matrix = mask.reshape(len(mask), -1)[live_rows]
        matrix = matrix[:, [c for c in range(matrix.shape[1]) if matrix[:, c].any()]]
        expected = [reference.greedy(matrix.numpy())]
        if mask.ndim == 4:
            live_kernels = (kernel.numpy() for kernel in mask.flatten(0, 1))
            expected.append([r for kernel in live_kernels for r in reference.greedy(kernel)])
        for layout, rectangles in itertools.zip_longest(("matrix", "kernel"), expected, fillvalue=expected[0]):
            found = measured.layers[name].clusters[layout]
            areas = [h * w for _, _, h, w in rectangles]
            figures = [len(areas), sum(areas), sum(a for a in areas if a > 9)]
            assert [found.rectangles, found.covered, found.covered_larger] == figures
            assert found.live == int(mask.sum())
            total[layout] = [a + b for a, b in zip(total[layout], figures, strict=True)]
        layer = measured.layers[name]
        for runs, axis in ((layer.along_rows, 1), (layer.along_columns, 0)):
            lengths = run_lengths(matrix, axis)
            assert (runs.mean_cluster, runs.mean_gap) == pytest.approx((lengths.cluster, lengths.gap))
        assert layer.elements.coo == 8 * int(mask.sum())
    for layout, figures in total.items():
        found = measured.network.clusters[layout]
        assert [found.rectangles, found.covered, found.covered_larger] == figures
        assert found.share == figures[1] / sum(int(mask.sum()) for mask in masks.values())
    steps = [layer.elements.weights.most for layer in measured.layers.values()]
    assert measured.network.elements.weights.most == max(steps)


def test_kernel_view_is_a_picture_of_the_kernels() -> None:
    mask = random_mask(3, 2, 4, 5)
    cells, tile = view(mask, "kernel", compact=False)
    assert tile == (4, 5)
    for out, inputs in itertools.product(range(3), range(2)):
        assert torch.equal(cells[4 * out : 4 * out + 4, 5 * inputs : 5 * inputs + 5], mask[out, inputs])
    volume = random_mask(2, 3, 2, 4, 5)
    cells, tile = view(volume, "kernel", compact=False)
    assert torch.equal(cells[4:8, 5:10], volume[0, 1, 1])
    assert view(random_mask(2, 3, 7), "kernel", compact=False).tile == (1, 7)


def test_units_pruned_whole_are_one_rectangle() -> None:
    mask = torch.zeros(30, 40, dtype=torch.bool)
    mask[::3, ::2] = True
    figures = regularity({"fc": mask}).network.clusters["matrix"]
    assert (figures.rectangles, figures.share, figures.share_larger, figures.index_bytes) == (1, 1, 1, 9)
    assert regularity({"fc": mask}, compact=False).network.clusters["matrix"].share == 0


def test_json_without_nan_for_dead_and_live_layers() -> None:
    masks = network() | {"dead": torch.zeros(4, 3, 3, 3, dtype=torch.bool), "as numbers": torch.ones(5, 5)}
    measured = regularity(masks).as_dict()
    assert json.loads(json.dumps(measured, allow_nan=False)) == measured
    assert measured["layers"]["dead"]["clusters"]["kernel"]["share"] is None
    assert measured["layers"]["as numbers"]["clusters"]["matrix"]["share"] == 1
    assert regularity({"dead": masks["dead"]}, compact=False).network.live == 0


def test_one_layout_only() -> None:
    assert list(regularity(network(), layouts=["kernel"]).network.clusters) == ["kernel"]


@pytest.mark.parametrize("what", ["entries", "rows", "columns"])
def test_shuffled_masks_keep_what_they_should(what: str) -> None:
    masks = network()
    chance = shuffled(masks, torch.Generator().manual_seed(0), what)
    again = shuffled(masks, torch.Generator().manual_seed(0), what)
    for name, mask in masks.items():
        assert chance[name].shape == mask.shape
        assert chance[name].dtype == mask.dtype
        assert chance[name].sum() == mask.sum()
        assert torch.equal(chance[name], again[name])
        assert not torch.equal(chance[name], mask)
        before, after = mask.flatten(1), chance[name].flatten(1)
        if what == "entries":
            assert not after[~before.any(1)].any()
            assert not after[:, ~before.any(0)].any()
        else:
            assert sorted(before.sum(1).tolist()) == sorted(after.sum(1).tolist())
            assert sorted(before.sum(0).tolist()) == sorted(after.sum(0).tolist())
    assert torch.equal(masks["fc"], network()["fc"])  # unchanged


def test_clusters_are_above_chance() -> None:
    mask = torch.zeros(60, 60, dtype=torch.bool)
    for place in range(0, 60, 6):
        mask[place : place + 5, place : place + 5] = True
    generator = torch.Generator().manual_seed(0)
    ordered, chance = regularity({"fc": mask}), regularity(shuffled({"fc": mask}, generator))
    assert ordered.network.clusters["matrix"].share == 1
    assert chance.network.clusters["matrix"].share < 0.05


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: regularity({}), "at least one layer, got none"),
        (lambda: regularity({"b": torch.ones(3)}), r"masks\['b'\] must be .* got shape \(3,\)"),
        (lambda: regularity({"fc": torch.full((2, 2), 0.5)}), "0 for dead and 1 for live"),
        (lambda: regularity(network(), layouts=["lattice"]), "one of matrix, kernel, got 'lattice'"),
        (lambda: shuffled(network(), torch.Generator(), "units"), "one of entries, rows, columns, got 'units'"),
    ],
)
def test_errors(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("layout", ["matrix", "kernel"])
def test_draw(layout: str) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots()
    found = draw(axes, network()["conv"], layout=layout)
    (borders,) = (c for c in axes.collections if type(c).__name__ == "PatchCollection")
    assert len(borders.get_paths()) == found.count == regularity(network()).layers["conv"].clusters[layout].rectangles
    figure.canvas.draw()
    (picture,) = axes.images
    assert (np.asarray(picture.get_array()) == 1).sum() == found.leftovers
    assert (np.asarray(picture.get_array()) == 2).sum() == found.covered
    draw(axes, torch.zeros(3, 3, dtype=torch.bool))
    plt.close(figure)
