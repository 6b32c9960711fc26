"""Loopy grids against an independently written sum-product and against the sum over all states."""

import itertools

import numpy as np
import pytest
import torch

import enumeration
from bayesprune.messages import Table, grid_messages
from bayesprune.supports import IsingGrid, MarkovChain, PairwiseGrid

SHAPES = [*itertools.product(range(1, 5), repeat=2), (2, 2, 2, 2)]


def ising(activity: float, couplings: tuple[float, ...]) -> tuple[PairwiseGrid, float, list[np.ndarray]]:
    support = IsingGrid(activity, couplings, tolerance=1e-13, iterations=5000)
    tables = [np.array([[j, -j], [-j, j]]) for j in couplings]
    return support, float(np.log(activity / (1 - activity))), tables


def transitions(p01: tuple[float, ...], p10: tuple[float, ...]) -> tuple[PairwiseGrid, float, list[np.ndarray]]:
    support = IsingGrid.from_transitions(p01, p10, tolerance=1e-13, iterations=5000)
    return support, 0.0, [np.log([[1 - a, a], [b, 1 - b]]) for a, b in zip(p01, p10, strict=True)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["ising", "transitions"])
def test_equals_independent_sum_product(kind: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng([len(kind), *shape])
    evidence = rng.normal(0, 2, shape)
    if kind == "ising":
        support, unary, tables = ising(rng.uniform(0.2, 0.8), tuple(rng.uniform(-0.4, 0.8, len(shape))))
    else:
        support, unary, tables = transitions(*(tuple(rng.uniform(0.1, 0.7, len(shape))) for _ in range(2)))
    expected = enumeration.dictionary_sum_product(evidence, unary, tables, iterations=400)
    result = support.extrinsic(torch.from_numpy(evidence))
    assert result.converged
    np.testing.assert_allclose(result.logit.numpy(), expected, rtol=0, atol=1e-9)
    single = support.extrinsic(torch.from_numpy(evidence).float())
    np.testing.assert_allclose(single.logit.numpy(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("coupling", [-0.15, 0.05, 0.1, 0.15])
def test_weak_couplings_are_close_to_enumeration(coupling: float, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng([int(100 * abs(coupling)), *shape])
    evidence = rng.normal(0, 2, shape)
    support, unary, tables = ising(float(rng.uniform(0.2, 0.8)), (coupling,) * len(shape))
    exact = enumeration.extrinsic(enumeration.grid_prior(unary, tables), evidence)
    loopy = support.extrinsic(torch.from_numpy(evidence)).logit.numpy()
    marginal, exact_marginal = 1 / (1 + np.exp(-(loopy + evidence))), 1 / (1 + np.exp(-(exact + evidence)))
    assert np.abs(marginal - exact_marginal).max() < 0.02


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (6,), (1, 2), (1, 1, 5, 1)], ids=str)
def test_grids_without_loops_are_exact(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape))
    evidence = rng.normal(0, 3, shape)
    p01, p10 = (tuple(rng.uniform(0.05, 0.9, len(shape))) for _ in range(2))
    support, unary, tables = transitions(p01, p10)
    prior = enumeration.grid_prior(unary, tables)
    exact = enumeration.extrinsic(prior, evidence)
    np.testing.assert_allclose(support.extrinsic(torch.from_numpy(evidence)).logit.numpy(), exact, atol=1e-10)
    assert support.log_evidence(torch.from_numpy(evidence)) == pytest.approx(
        enumeration.log_evidence(prior, evidence), abs=1e-9
    )
    for n in range(evidence.size):  # no loop, so nothing comes back
        changed = evidence.copy()
        changed.flat[n] += 5
        again = support.extrinsic(torch.from_numpy(changed)).logit.numpy()
        assert again.flat[n] == pytest.approx(exact.flat[n], abs=1e-10)


def test_forward_and_backward_messages_differ_as_they_should() -> None:
    """Two neighbours: p(s2 | evidence of s1) and p(s1 | evidence of s2), written out."""
    p01, p10, e = 0.1, 0.4, np.log(3.0)
    t00, t01, t10, t11 = 1 - p01, p01, p10, 1 - p10
    support = IsingGrid.from_transitions(p01, p10, tolerance=1e-13)
    only_first = support.extrinsic(torch.tensor([[e, 0.0]], dtype=torch.float64)).logit
    assert float(only_first[0, 1].exp()) == pytest.approx((t01 + 3 * t11) / (t00 + 3 * t10), rel=1e-9)
    only_second = support.extrinsic(torch.tensor([[0.0, e]], dtype=torch.float64)).logit
    assert float(only_second[0, 0].exp()) == pytest.approx((t10 + 3 * t11) / (t00 + 3 * t01), rel=1e-9)
    assert float(only_first[0, 1]) != pytest.approx(float(only_second[0, 0]), abs=0.05)


def test_one_row_equals_the_chain_with_the_first_site_prior_as_evidence() -> None:
    chain = MarkovChain(0.15, 0.35)
    evidence = torch.randn(1, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with_prior = evidence.clone()
    with_prior[0, 0] += np.log(0.15 / 0.35)
    grid = IsingGrid.from_transitions(0.15, 0.35, tolerance=1e-13).extrinsic(with_prior).logit
    grid[0, 0] += np.log(0.15 / 0.35)
    torch.testing.assert_close(grid, chain.extrinsic(evidence).logit, rtol=0, atol=1e-10)


def test_a_message_is_bounded_by_two_j() -> None:
    evidence = torch.full((3, 3), -1000.0)
    evidence[1, 1] = 0.0
    surrounded = IsingGrid(0.5, 0.7).extrinsic(evidence).logit[1, 1]
    assert float(surrounded) == pytest.approx(-4 * 2 * 0.7, rel=1e-5)


def test_not_converged_is_said_with_a_remedy() -> None:
    evidence = torch.randn(12, 12, generator=torch.Generator().manual_seed(0)) * 0.1
    result = IsingGrid(0.5, -1.5, damping=0.0, iterations=40).extrinsic(evidence)
    assert not result.converged
    assert result.iterations == 40
    assert result.change > 0.1
    assert "damping=0.5" in result.status
    settled = IsingGrid(0.5, 0.2).extrinsic(evidence)
    assert settled.converged
    assert settled.change <= 1e-5
    assert settled.iterations < 200
    assert settled.status == f"converged after {settled.iterations} iterations"


def test_damping_does_not_move_the_fixed_point() -> None:
    evidence = torch.randn(9, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    solutions = [
        IsingGrid(0.3, 0.5, damping=d, tolerance=1e-12, iterations=2000).extrinsic(evidence).logit
        for d in (0.0, 0.3, 0.7)
    ]
    torch.testing.assert_close(solutions[0], solutions[1], rtol=0, atol=1e-9)
    torch.testing.assert_close(solutions[0], solutions[2], rtol=0, atol=1e-9)


@pytest.mark.parametrize("coupling", [6.0, 15.0, -6.0])
def test_couplings_too_strong_for_float32_are_computed_in_float64(coupling: float) -> None:
    evidence = torch.randn(1, 6, generator=torch.Generator().manual_seed(6)) * 30
    support, unary, tables = ising(0.3, (0.0, coupling))
    exact = enumeration.extrinsic(enumeration.grid_prior(unary, tables), evidence.double().numpy())
    result = support.extrinsic(evidence)
    assert result.logit.dtype == torch.float32
    np.testing.assert_allclose(result.logit.numpy(), exact, rtol=1e-5, atol=1e-5)


def test_impossible_requests_name_the_value_and_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"damping must be in \[0, 1\), got 1.2; try 0.5"):
        IsingGrid(0.5, 0.1, damping=1.2)
    with pytest.raises(ValueError, match="iterations must be a whole number of at least 1, got 0"):
        IsingGrid(0.5, 0.1, iterations=0)
    with pytest.raises(ValueError, match="coupling must be a number of nats between"):
        IsingGrid(0.5, float("nan"))
    with pytest.raises(ValueError, match=r"coupling must be a number or a tuple.*got \[0.1, 0.2\]"):
        IsingGrid(0.5, [0.1, 0.2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="hard constraint"):
        IsingGrid(0.5, 40.0).extrinsic(torch.zeros(3, 3, 3))
    with pytest.raises(ValueError, match="same number of each"):
        IsingGrid.from_transitions((0.1, 0.1), (0.1, 0.1, 0.1))
    with pytest.raises(ValueError, match="has 2 axes"):
        IsingGrid(0.5, (0.1, 0.2)).extrinsic(torch.zeros(5))
    with pytest.raises(ValueError, match="one per axis after the batch"):
        grid_messages(torch.zeros(1, 2, 2), [Table.from_coupling(0.1)], iterations=1, tolerance=0.0, damping=0.0)


def test_axes_without_neighbours_do_not_count_as_couplings() -> None:
    lonely = IsingGrid(0.5, 40.0).extrinsic(torch.zeros(3, 1, 1))
    assert lonely.converged
    assert torch.isfinite(lonely.logit).all()
