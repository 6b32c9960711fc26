"""Groups: energies add up, sizes count, precisions come back as the derivative of the energies."""

import itertools

import pytest
import torch

from bayesprune.layouts import Layout
from bayesprune.priors import Groups, PatternCoupled, PerKind, SharedPrecision
from bayesprune.priors.groups import Kind

GROUPS: list[Groups] = [
    *(SharedPrecision(kind) for kind in ("weight", "kernel", "row", "column", "unit")),
    *(SharedPrecision("tile", (2, 3), Layout(conv)) for conv in ("kernel", "matrix", "lattice")),
    *(SharedPrecision("panel", tile) for tile in ((2, 3), (3, 1), (8, 8))),
    SharedPrecision("strip", (2, 3)),
    PerKind(SharedPrecision("kernel"), SharedPrecision("panel", (2, 3))),
    SharedPrecision("weight", layout=Layout("lattice")),
    *(PatternCoupled(0.8, Layout(conv)) for conv in ("kernel", "matrix", "lattice")),
    PatternCoupled(0.0),
]
SHAPES = [(5, 7), (4, 3, 5, 3), (4, 3, 5), (1, 1)]


@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weight_precision_is_the_adjoint_of_energy(groups: Groups, shape: tuple[int, ...]) -> None:
    """d (sum_g rho_g x_g) / d (w^2/2), by autograd."""
    generator = torch.Generator().manual_seed(0)
    squares = torch.rand(shape, generator=generator, dtype=torch.float64).requires_grad_()
    energy = groups.energy((2 * squares).sqrt())
    precision = torch.rand(energy.shape, generator=generator, dtype=torch.float64)
    (expected,) = torch.autograd.grad((precision * energy).sum(), squares)
    torch.testing.assert_close(groups.weight_precision(precision, shape), expected)


@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes_count_all_weights(groups: Groups, shape: tuple[int, ...]) -> None:
    weight = torch.ones(shape)
    size = groups.size(shape)
    assert size.shape == groups.energy(weight).shape
    assert int(size.sum()) == weight.numel()
    if isinstance(groups, SharedPrecision):
        torch.testing.assert_close(groups.energy(weight), size / 2)
    back = groups.to_weights(torch.arange(size.numel()).reshape(size.shape), shape)
    assert back.shape == shape
    torch.testing.assert_close(torch.bincount(back.flatten()).float(), size.flatten())


def test_members_of_groups() -> None:
    linear = torch.arange(12.0).reshape(3, 4)  # 3 outputs, 4 inputs
    torch.testing.assert_close(SharedPrecision("row").energy(linear).flatten(), linear.square().sum(0) / 2)
    torch.testing.assert_close(SharedPrecision("column").energy(linear).flatten(), linear.square().sum(1) / 2)
    torch.testing.assert_close(SharedPrecision("kernel").energy(linear)[0], linear.t().square() / 2)
    conv = torch.randn(4, 3, 5, 2)
    torch.testing.assert_close(
        SharedPrecision("kernel").energy(conv).flatten(), conv.square().sum((2, 3)).flatten() / 2
    )
    torch.testing.assert_close(SharedPrecision("unit").energy(conv).flatten(), conv.square().sum((1, 2, 3)) / 2)
    torch.testing.assert_close(SharedPrecision("row").energy(conv).flatten(), conv.square().sum((0, 2, 3)) / 2)
    tiles = SharedPrecision("tile", (2, 2)).energy(linear)[0]  # lattice 4 inputs x 3 outputs
    assert tiles.shape == (2, 2)
    assert float(tiles[1, 1]) == pytest.approx(float(linear[2, 2:].square().sum() / 2))


def panels_one_by_one(weight: torch.Tensor, kind: str, height: int, width: int) -> list[list[tuple[int, ...]]]:
    """The places (output, input, *tap) of the weights of every panel or strip, in the order of the lattice."""
    out, inputs, *kernel = weight.shape
    width = width if weight[0, 0].numel() == 1 else 1
    rows, columns = range(0, out, height), range(0, inputs, width)
    corners = [(r, c) for r in rows for c in columns] if kernel else [(r, c) for c in columns for r in rows]
    lines = [()] if kind == "panel" or not kernel else list(itertools.product(*map(range, kernel[:-1])))
    panels: list[list[tuple[int, ...]]] = []
    for top, left in corners:
        places = torch.ones_like(weight[top : top + height, left : left + width]).nonzero().tolist()
        for line in lines:
            chosen = [(r, c, *tap) for r, c, *tap in places if tuple(tap[: len(line)]) == line]
            panels.append([(top + r, left + c, *tap) for r, c, *tap in chosen])
    return panels


@pytest.mark.parametrize(
    "shape", [(5, 7), (8, 6), (2, 2), (6, 3, 5, 3), (5, 2, 3), (5, 6, 1, 1), (3, 2, 2, 2, 2)], ids=str
)
@pytest.mark.parametrize("tile", [(4, 4), (2, 3), (1, 5), (8, 1)], ids=str)
@pytest.mark.parametrize("kind", ["panel", "strip"])
def test_panels_and_strips(kind: Kind, shape: tuple[int, ...], tile: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    panels, groups = panels_one_by_one(weight, kind, *tile), SharedPrecision(kind, tile)
    energy, size = groups.energy(weight), groups.size(shape)
    assert energy.shape == size.shape
    expected = torch.stack([sum(weight[place] ** 2 / 2 for place in panel) for panel in panels])
    torch.testing.assert_close(energy.flatten(), expected)
    assert size.flatten().tolist() == [len(panel) for panel in panels]
    values = groups.to_weights(torch.arange(energy.numel()).reshape(energy.shape), shape)
    for number, panel in enumerate(panels):
        assert {int(values[place]) for place in panel} == {number}
    # In the matrix (out, in * taps) each is a full rectangle.
    for number in range(len(panels)):
        cells = (values.flatten(1) == number).nonzero()
        height, width = (cells.max(0)[0] - cells.min(0)[0] + 1).tolist()
        assert height * width == len(cells)


def test_each_kind_of_layer_may_have_groups_of_its_own() -> None:
    groups = PerKind(conv=SharedPrecision("kernel"), linear=SharedPrecision("panel", (4, 2)))
    conv, linear = torch.randn(6, 5, 3, 3), torch.randn(6, 5)
    assert torch.equal(groups.energy(conv), SharedPrecision("kernel").energy(conv))
    assert torch.equal(groups.energy(linear), SharedPrecision("panel", (4, 2)).energy(linear))
    assert groups.energy(linear).shape == (1, 3, 2)


def test_pattern_coupling_averages_the_neighbourhood() -> None:
    weight = torch.zeros(5, 5)
    weight[2, 2] = 2.0
    energy = PatternCoupled(0.5).energy(weight)[0]
    assert float(energy[2, 2]) == pytest.approx(2 / 5)  # 1 + 8 * 0.5
    assert float(energy[1, 1]) == pytest.approx(0.5 * 2 / 5)
    assert float(energy[0, 0]) == 0
    torch.testing.assert_close(PatternCoupled(0.3).energy(torch.ones(4, 6)), torch.full((1, 6, 4), 0.5))


def test_errors() -> None:
    with pytest.raises(ValueError, match="kind of a group must be one of"):
        SharedPrecision("block")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a tile must be"):
        SharedPrecision("tile", (0, 3))
    with pytest.raises(ValueError, match=r"beta must be in \[0, 1\], got 2"):
        PatternCoupled(2)


def test_group_lattices_have_the_axes_that_the_documentation_names() -> None:
    conv, linear = torch.randn(4, 3, 5, 2), torch.randn(4, 3)
    shapes = {
        "kernel": ((1, 4, 3), (1, 3, 4)),
        "panel": ((1, 1, 3), (1, 1, 1)),
        "strip": ((1, 1, 3, 5), (1, 1, 1)),
        "row": ((1, 3), (1, 3)),
        "column": ((1, 4), (1, 4)),
        "unit": ((1, 4), (1, 4)),
    }
    for kind, (of_conv, of_linear) in shapes.items():
        groups = SharedPrecision(kind)  # type: ignore[arg-type]
        assert groups.energy(conv).shape == of_conv
        assert groups.energy(linear).shape == of_linear


@pytest.mark.parametrize("groups", [SharedPrecision("weight"), SharedPrecision("unit"), PatternCoupled(0.8)], ids=str)
def test_half_precision_weights_neither_overflow_nor_vanish(groups: Groups) -> None:
    weight = torch.tensor([[500.0, 1e-4], [500.0, 1e-4]], dtype=torch.float16)
    energy = groups.energy(weight)
    assert energy.dtype == torch.float32
    assert groups.size(weight.shape, weight).dtype == torch.float32
    torch.testing.assert_close(energy, groups.energy(weight.float()))
    assert (energy > 0).all()
