"""Layouts are bijections and put neighbours where the documentation says."""

import pytest
import torch

from bayesprune.layouts import ConvLayout, Layout


@pytest.mark.parametrize("conv", ["kernel", "matrix", "lattice"])
@pytest.mark.parametrize("shape", [(4, 7), (4, 3, 5), (4, 3, 5, 2), (2, 3, 2, 4, 5)], ids=str)
def test_round_trip(conv: ConvLayout, shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape)
    lattice = Layout(conv).to_lattice(weight)
    assert lattice.numel() == weight.numel()
    assert torch.equal(Layout(conv).to_weight(lattice, shape), weight)


def test_where_a_tap_goes() -> None:
    weight = torch.arange(4 * 3 * 5 * 2).reshape(4, 3, 5, 2)
    assert Layout("kernel").to_lattice(weight).shape == (12, 5, 2)
    assert Layout("kernel").to_lattice(weight)[3 * 2 + 1, 4, 1] == weight[2, 1, 4, 1]
    assert Layout("matrix").to_lattice(weight).shape == (1, 15, 8)
    assert Layout("matrix").to_lattice(weight)[0, 1 * 5 + 4, 2 * 2 + 1] == weight[2, 1, 4, 1]
    assert Layout("lattice").to_lattice(weight).shape == (1, 4, 3, 5, 2)
    linear = torch.arange(12).reshape(4, 3)
    assert Layout().to_lattice(linear).shape == (1, 3, 4)  # inputs x outputs
    assert Layout().to_lattice(linear)[0, 2, 1] == linear[1, 2]


def test_errors() -> None:
    with pytest.raises(ValueError, match="layout must be one of kernel, matrix, lattice, got 'rows'"):
        Layout("rows")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least"):
        Layout().to_lattice(torch.zeros(3))
