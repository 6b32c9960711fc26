"""Inputs that users really have: extreme, tiny, equal, empty, half precision, batched, broken."""

import math

import pytest
import torch

from bayesprune.supports import Bernoulli, HiddenMarkov, IsingGrid, MarkovChain, MarkovTree, Support

SUPPORTS = [
    Bernoulli(0.2),
    MarkovChain(0.1, 0.3),
    HiddenMarkov(0.1, 0.2, 0.05, 0.9),
    MarkovTree(0.3, 0.05, 0.4),
    IsingGrid(0.4, 0.5),
    IsingGrid.from_transitions(0.2, 0.3),
]
every_support = pytest.mark.parametrize("support", SUPPORTS, ids=lambda s: type(s).__name__)


@every_support
def test_extreme_evidence_saturates(support: Support) -> None:
    signs = torch.where(torch.rand(8, 8, generator=torch.Generator().manual_seed(0)) < 0.5, -1.0, 1.0)
    results = [support.extrinsic(signs * size) for size in (1000.0, 100.0, math.inf)]
    for result in results:
        assert torch.isfinite(result.logit).all()
        assert result.converged
        torch.testing.assert_close(result.logit, results[0].logit, rtol=1e-5, atol=1e-5)
    moderate = support.extrinsic(signs.double() * 40).logit
    torch.testing.assert_close(results[0].logit.double(), moderate, rtol=1e-5, atol=1e-5)


@every_support
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 9), (9, 1)], ids=str)
def test_small_shapes(support: Support, shape: tuple[int, ...]) -> None:
    result = support.extrinsic(torch.full(shape, 0.7))
    assert result.logit.shape == shape
    assert torch.isfinite(result.logit).all()


@every_support
def test_a_single_weight_gets_the_prior_without_evidence(support: Support) -> None:
    alone = support.extrinsic(torch.tensor([[3.0]])).logit
    expected = {
        Bernoulli: 0.2,
        MarkovChain: 0.25,
        HiddenMarkov: 0.05 * 2 / 3 + 0.9 / 3,
        MarkovTree: 0.3 * 0.6 + 0.7 * 0.05,
        IsingGrid: 0.4,
    }.get(type(support), 0.5)
    assert float(torch.sigmoid(alone)) == pytest.approx(expected, rel=1e-5)


@every_support
@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3)], ids=str)
def test_empty_tensors_pass(support: Support, shape: tuple[int, ...]) -> None:
    result = support.extrinsic(torch.empty(shape))
    assert result.logit.shape == shape
    assert result.converged


def test_an_all_equal_grid_keeps_its_symmetry() -> None:
    logit = IsingGrid(0.4, 0.5).extrinsic(torch.full((6, 6), 0.3)).logit
    torch.testing.assert_close(logit, logit.flip(0))
    torch.testing.assert_close(logit, logit.flip(1))
    torch.testing.assert_close(logit, logit.t())


@every_support
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_result_has_the_dtype_of_the_evidence(support: Support, dtype: torch.dtype) -> None:
    evidence = (torch.randn(7, 7, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    result = support.extrinsic(evidence)
    assert result.logit.dtype == dtype
    reference = support.extrinsic(evidence.double()).logit
    precision = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-4)
    torch.testing.assert_close(result.logit.double(), reference, rtol=precision, atol=precision)


@every_support
def test_nan_is_an_error_that_says_where(support: Support) -> None:
    evidence = torch.zeros(3, 4)
    evidence[1, 2] = evidence[2, 3] = torch.nan
    with pytest.raises(ValueError, match=r"2 NaN of 12 values, the first at index \(1, 2\)"):
        support.extrinsic(evidence)


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="must be floating point"):
        Bernoulli(0.2).extrinsic(torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"must be a torch\.Tensor, got list"):
        Bernoulli(0.2).extrinsic([0.0])  # type: ignore[arg-type]


@every_support
def test_an_ensemble_goes_through_at_once(support: Support) -> None:
    evidence = torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 2
    together = support.extrinsic(evidence, batch_dims=2).logit
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(together[i, j], support.extrinsic(evidence[i, j]).logit, rtol=0, atol=1e-4)
    total = sum(support.log_evidence(e) for e in evidence.flatten(0, 1))
    assert support.log_evidence(evidence, batch_dims=2) == pytest.approx(total, abs=1e-3)


def test_one_coupling_per_axis_makes_the_other_dimensions_a_batch() -> None:
    evidence = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(3))
    per_axis = IsingGrid(0.4, (0.2, 0.5))
    torch.testing.assert_close(per_axis.extrinsic(evidence).logit, per_axis.extrinsic(evidence, batch_dims=1).logit)
    assert (IsingGrid(0.4, 0.3).extrinsic(evidence).logit - per_axis.extrinsic(evidence).logit).abs().max() > 0.05
    with pytest.raises(ValueError, match="batch_dims must leave at least one dimension"):
        per_axis.extrinsic(evidence, batch_dims=3)


@every_support
def test_input_is_not_changed_and_may_be_strided(support: Support) -> None:
    evidence = torch.randn(6, 8, generator=torch.Generator().manual_seed(4))
    view = evidence.t()[1:, ::2]
    before = evidence.clone()
    torch.testing.assert_close(support.extrinsic(view).logit, support.extrinsic(view.contiguous()).logit)
    torch.testing.assert_close(evidence, before, rtol=0, atol=0)


def test_gradients_are_not_tracked() -> None:
    evidence = torch.zeros(3, 3, requires_grad=True)
    assert not IsingGrid(0.4, 0.3).extrinsic(evidence).logit.requires_grad
