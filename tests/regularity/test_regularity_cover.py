"""Covers against the enumeration of all rectangles, known patterns, and the clock."""

import time

import numpy as np
import pytest
import regularity_reference as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bayesprune.regularity import Cover, cover
from bayesprune.regularity.rectangles import maximal


def check(mask: torch.Tensor, found: Cover, smallest: tuple[int, int] = (3, 3)) -> None:
    """All live, disjoint, large enough, and every count as painted cell by cell."""
    painted = torch.zeros(mask.shape, dtype=torch.int64)
    for top, left, high, wide in found.rectangles.tolist():
        assert high >= smallest[0]
        assert wide >= smallest[1]
        assert mask[top : top + high, left : left + wide].all()
        assert painted[top : top + high, left : left + wide].shape == (high, wide)
        painted[top : top + high, left : left + wide] += 1
    assert painted.max() <= 1 if painted.numel() else True
    assert torch.equal(found.leftover, mask & (painted == 0))
    assert found.covered == int(painted.sum())
    assert found.leftovers == int(found.leftover.sum())
    assert found.live == int(mask.sum())
    assert found.covered <= found.coverable <= found.live
    larger = [h * w for _, _, h, w in found.rectangles.tolist() if h * w > smallest[0] * smallest[1]]
    assert found.covered_larger == sum(larger)


@pytest.mark.parametrize("density", [0.3, 0.6, 0.75, 0.85, 0.95])
@pytest.mark.parametrize("smallest", [(3, 3), (1, 1), (2, 3), (4, 2)], ids=str)
def test_equals_enumeration(density: float, smallest: tuple[int, int]) -> None:
    rng = np.random.default_rng([int(100 * density), *smallest])
    for _ in range(15):
        live = rng.random(rng.integers(1, 11, 2)) < density
        found = cover(torch.from_numpy(live), smallest)
        assert [tuple(r) for r in found.rectangles.tolist()] == reference.greedy(live, smallest)
        assert found.coverable == reference.coverable(live, smallest)


@settings(max_examples=80, deadline=None)
@given(
    arrays(bool, st.tuples(st.integers(0, 9), st.integers(0, 9)), elements=st.sampled_from([True, True, True, False]))
)
def test_any_mask(live: np.ndarray) -> None:
    mask = torch.from_numpy(live)
    found = cover(mask)
    check(mask, found)
    assert [tuple(r) for r in found.rectangles.tolist()] == reference.greedy(live)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 60), st.floats(0.1, 1))
def test_large_masks_keep_the_rules(seed: int, rows: int, columns: int, density: float) -> None:
    rng = np.random.default_rng(seed)
    mask = torch.from_numpy(rng.random((rows, columns)) < density)
    mask[: rows // 2, columns // 3 :] = True
    found = cover(mask)
    check(mask, found)
    assert found.areas.tolist() == sorted(found.areas.tolist(), reverse=True)
    assert cover(found.leftover).count == 0  # nothing was forgotten
    best = maximal(mask.numpy(), (3, 3))
    assert found.count == 0 or int(found.areas[0]) == int((best[:, 2] * best[:, 3]).max())


def test_staircases_and_bands_equal_enumeration() -> None:
    """Many overlapping maximal rectangles: what is left of one is split again and again."""
    shapes = [np.tri(11, 13) > 0, np.add.outer(np.arange(10), np.arange(16)) % 8 < 5]
    shapes.append(np.abs(np.subtract.outer(np.arange(13), np.arange(13))) < 4)
    for live in [*shapes, *(shape.T for shape in shapes)]:
        found = cover(torch.from_numpy(live.copy()))
        assert [tuple(r) for r in found.rectangles.tolist()] == reference.greedy(live)


def pattern(*lines: str) -> torch.Tensor:
    return torch.tensor([[letter == "#" for letter in line] for line in lines])


@pytest.mark.parametrize(
    ("mask", "rectangles"),
    [
        (torch.ones(7, 5, dtype=torch.bool), [[0, 0, 7, 5]]),
        (torch.zeros(7, 5, dtype=torch.bool), []),
        (torch.ones(1, 50, dtype=torch.bool), []),
        (torch.ones(50, 1, dtype=torch.bool), []),
        (torch.ones(0, 4, dtype=torch.bool), []),
        (torch.ones(4, 0, dtype=torch.bool), []),
        (torch.block_diag(*[torch.ones(4, 4)] * 3).bool(), [[0, 0, 4, 4], [4, 4, 4, 4], [8, 8, 4, 4]]),
        (torch.block_diag(torch.ones(3, 3), torch.ones(4, 5)).bool(), [[3, 3, 4, 5], [0, 0, 3, 3]]),
        ((torch.arange(8)[:, None] + torch.arange(8)) % 2 == 0, []),
        (torch.arange(9).repeat(9, 1) % 3 < 2, []),
        (torch.arange(12).repeat(5, 1) % 4 < 3, [[0, 0, 5, 3], [0, 4, 5, 3], [0, 8, 5, 3]]),
        (pattern(".....", ".###.", ".###.", ".###.", "....."), [[1, 1, 3, 3]]),
        (pattern("###...", "###...", "###...", "######", "######", "######"), [[0, 0, 6, 3], [3, 3, 3, 3]]),
        (pattern("###..", "###..", "###..", "#####", "#####", "#####"), [[0, 0, 6, 3]]),
        (pattern("####", "####", "####", "###."), [[0, 0, 3, 4]]),  # equal areas, topmost leftmost: the flattest
    ],
)
def test_known_patterns(mask: torch.Tensor, rectangles: list[list[int]]) -> None:
    found = cover(mask)
    assert found.rectangles.tolist() == rectangles
    assert found.rectangles.dtype == torch.int64
    check(mask, found)


def test_figures_of_a_cover() -> None:
    mask = torch.zeros(12, 12, dtype=torch.bool)
    mask[:3, :3], mask[4:8, 4:8], mask[10, :5] = True, True, True
    found = cover(mask)
    assert (found.live, found.count, found.covered, found.leftovers, found.coverable) == (30, 2, 25, 5, 25)
    assert (found.share, found.share_larger, found.share_bound) == (25 / 30, 16 / 30, 25 / 30)
    assert found.mean_area == 12.5
    nothing = cover(torch.zeros(3, 3, dtype=torch.bool))
    assert np.isnan([nothing.share, nothing.share_larger, nothing.share_bound, nothing.mean_area]).all()


def test_rectangles_stay_inside_tiles() -> None:
    rng = np.random.default_rng(3)
    live = rng.random((12, 20)) < 0.9
    found = cover(torch.from_numpy(live), (2, 2), tile=(4, 5))
    check(torch.from_numpy(live), found, (2, 2))
    expected, inside = set(), 0
    for top in range(0, 12, 4):
        for left in range(0, 20, 5):
            part = live[top : top + 4, left : left + 5]
            expected |= {(top + r, left + c, h, w) for r, c, h, w in reference.greedy(part, (2, 2))}
            inside += reference.coverable(part, (2, 2))
    assert {tuple(r) for r in found.rectangles.tolist()} == expected
    assert found.coverable == inside


def test_transposed_and_strided_masks() -> None:
    mask = torch.rand(40, 30, generator=torch.Generator().manual_seed(0)) < 0.8
    assert cover(mask.t()).rectangles.tolist() == cover(mask.t().contiguous()).rectangles.tolist()
    assert cover(mask[::2]).live == int(mask[::2].sum())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.ones(3, 3),), "bool matrix, got torch.float32"),
        ((torch.ones(2, 3, 3, dtype=torch.bool),), r"got torch.bool of shape \(2, 3, 3\)"),
        ((torch.ones(3, 3, dtype=torch.bool), (0, 3)), r"at least 1, got \(0, 3\)"),
    ],
)
def test_errors(arguments: tuple[torch.Tensor], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cover(*arguments)


def test_tile_must_divide() -> None:
    with pytest.raises(ValueError, match=r"tile must divide the mask of shape \(4, 6\), got \(3, 3\)"):
        cover(torch.ones(4, 6, dtype=torch.bool), tile=(3, 3))


def blocks(shape: tuple[int, int], density: float, size: int, noise: float, seed: int = 0) -> torch.Tensor:
    """Random squares, and single live weights between them."""
    rng = np.random.default_rng(seed)
    live = rng.random(shape) < noise
    for top, left in rng.integers(0, np.array(shape) - size, (int(density * live.size / size**2), 2)):
        live[top : top + size, left : left + size] = True
    return torch.from_numpy(live)


@pytest.mark.parametrize(
    ("kind", "seconds"), [("blocks", 3), ("half", 10), ("dense", 30)], ids=["blocks", "half", "dense"]
)
def test_large_layers_are_fast(kind: str, seconds: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (512, 4608)
    mask = {
        "blocks": lambda: blocks(shape, 0.045, 4, 0.005),
        "half": lambda: torch.rand(shape, generator=generator) < 0.5,
        "dense": lambda: torch.rand(shape, generator=generator) < 0.8,
    }[kind]()
    begin = time.process_time()
    found = cover(mask)
    assert time.process_time() - begin < seconds
    check(mask, found)
