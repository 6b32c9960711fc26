"""Samples mean what the parameters say, and learning finds the parameters back."""

import warnings

import numpy as np
import pytest
import torch

import enumeration
from bayesprune.supports import (
    Bernoulli,
    HiddenMarkov,
    IsingGrid,
    MarkovChain,
    MarkovTree,
    Support,
    learn,
    run_lengths,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("p01", "p10"), [(0.05, 0.1), (0.2, 0.05), (0.3, 0.6)])
def test_clusters_and_gaps_of_a_chain_are_one_over_the_transitions(p01: float, p10: float) -> None:
    """Paper II-B: smaller p01, larger gaps; smaller p10, larger clusters."""
    alive = MarkovChain(p01, p10).sample((400, 1000), generator())
    measured = run_lengths(alive)
    assert measured.cluster == pytest.approx(1 / p10, rel=0.05)
    assert measured.gap == pytest.approx(1 / p01, rel=0.05)
    assert measured.density == pytest.approx(p01 / (p01 + p10), rel=0.05)
    columns = MarkovChain(p01, p10, axis=0).sample((1000, 400), generator())
    assert run_lengths(columns, axis=0).cluster == pytest.approx(1 / p10, rel=0.05)
    assert run_lengths(columns, axis=1).cluster == pytest.approx((p01 + p10) / p10, rel=0.05)


def test_run_lengths_of_a_known_pattern() -> None:
    alive = torch.tensor([[1, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0]]).bool()
    measured = run_lengths(alive)
    assert measured.cluster == 1.5
    assert measured.gap == 4.5
    assert measured.density == 0.25
    assert np.isnan(run_lengths(torch.ones(2, 2)).gap)


@pytest.mark.parametrize(
    ("support", "prior"),
    [
        (HiddenMarkov(0.3, 0.2, 0.1, 0.8), enumeration.hidden_prior(0.3, 0.2, 0.1, 0.8)),
        (MarkovTree(0.4, 0.1, 0.3), enumeration.tree_prior(0.4, 0.1, 0.3, (1,))),
    ],
    ids=lambda x: type(x).__name__,
)
def test_pairs_of_neighbours_appear_as_often_as_enumeration_says(support: Support, prior: enumeration.LogPrior) -> None:
    states = enumeration.all_states((2, 3))
    weights = np.exp(prior(states) - enumeration.log_sum(prior(states)))
    g = generator(2)
    drawn = np.stack([support.sample((2, 3), g).numpy() for _ in range(4000)])
    for left, right in (((0, 0), (0, 1)), ((0, 0), (0, 2)), ((0, 0), (1, 0))):
        expected = (weights * states[:, *left] * states[:, *right]).sum()
        assert (drawn[:, *left] & drawn[:, *right]).mean() == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(
    "support", [IsingGrid(0.4, (0.5, 0.2), sweeps=12), IsingGrid.from_transitions(0.3, (0.4, 0.2), sweeps=12)], ids=str
)
def test_gibbs_samples_of_a_grid_match_enumeration(support: IsingGrid) -> None:
    tables = [np.log(np.array(t).reshape(2, 2)) for t in support.tables]
    states = enumeration.all_states((2, 3))
    prior = enumeration.grid_prior(support.unary_logit, tables)(states)
    weights = np.exp(prior - enumeration.log_sum(prior))
    g = generator(3)
    drawn = support.sample((20_000, 2, 3), g).numpy()  # one value per axis, so the first dimension is a batch
    np.testing.assert_allclose(drawn.mean(0), np.tensordot(weights, states, 1), atol=0.015)
    both = (drawn[:, 0, 0] & drawn[:, 0, 1]).mean()
    assert both == pytest.approx((weights * states[:, 0, 0] * states[:, 0, 1]).sum(), abs=0.015)


def test_sampling_is_reproducible() -> None:
    for support in (Bernoulli(0.3), MarkovChain(0.1, 0.2), MarkovTree(0.4, 0.1, 0.3), IsingGrid(0.4, 0.3)):
        assert torch.equal(support.sample((6, 7), generator(5)), support.sample((6, 7), generator(5)))


def noisy_evidence(alive: torch.Tensor) -> torch.Tensor:
    """The log likelihood ratio of Normal(+-1, 0.8^2) observations."""
    observed = torch.where(alive, 1.0, -1.0) + 0.8 * torch.randn(alive.shape, generator=generator(7))
    return 2 * observed / 0.8**2


@pytest.mark.parametrize(
    ("true", "start"),
    [
        (Bernoulli(0.2), Bernoulli(0.6)),
        (MarkovChain(0.1, 0.3), MarkovChain(0.5, 0.5)),
        (HiddenMarkov(0.1, 0.2, 0.05, 0.8), HiddenMarkov(0.2, 0.2, 0.3, 0.7)),
        (MarkovTree(0.4, 0.02, 0.3), MarkovTree(0.5, 0.3, 0.5)),
        (IsingGrid(0.45, 0.3), IsingGrid(0.3, 0.0)),
        (IsingGrid(0.45, (0.4, 0.1)), IsingGrid(0.3, (0.0, 0.0))),
        (IsingGrid.from_transitions(0.3, 0.4), IsingGrid.from_transitions(0.5, 0.5)),
    ],
    ids=lambda s: type(s).__name__,
)
def test_empirical_bayes_finds_the_parameters_back(true: Support, start: Support) -> None:
    alive = true.sample((300, 120), generator(6))
    learned = learn(start, noisy_evidence(alive))
    assert type(learned) is type(true)
    for name in true.learnable:
        expected, got = (np.atleast_1d(getattr(s, name)) for s in (true, learned))
        np.testing.assert_allclose(got, expected, rtol=0.15, atol=0.03)


def test_learning_is_off_by_default_and_leaves_the_support_alone() -> None:
    support = MarkovChain(0.5, 0.5)
    evidence = noisy_evidence(MarkovChain(0.1, 0.3).sample((20, 30), generator()))
    support.extrinsic(evidence)
    learned = learn(support, evidence)
    assert support == MarkovChain(0.5, 0.5)
    assert learned.log_evidence(evidence) > support.log_evidence(evidence)
    assert learn(support, evidence) == learned
    assert learn(support, torch.empty(0, 3)) == support


def test_the_gradient_of_the_bethe_free_energy_is_its_derivative() -> None:
    """Messages are held fixed in the gradient; finite differences run them anew."""
    evidence = torch.randn(6, 5, generator=generator(8), dtype=torch.float64)
    settings = {"tolerance": 1e-13, "iterations": 3000}
    batched = evidence[None]
    support = IsingGrid(0.4, 0.2, **settings)
    values = {k: v.requires_grad_() for k, v in support._values().items()}
    support._log_evidence(batched, values).backward()
    step = 1e-5
    for name, lower, upper in (
        ("activity", IsingGrid(0.4 - step, 0.2, **settings), IsingGrid(0.4 + step, 0.2, **settings)),
        ("coupling", IsingGrid(0.4, 0.2 - step, **settings), IsingGrid(0.4, 0.2 + step, **settings)),
    ):
        difference = (upper.log_evidence(evidence) - lower.log_evidence(evidence)) / (2 * step)
        assert float(values[name].grad) == pytest.approx(difference, rel=1e-5)  # type: ignore[arg-type]
    exact = enumeration.log_evidence(
        enumeration.grid_prior(np.log(2 / 3), [np.array([[0.1, -0.1], [-0.1, 0.1]])] * 2),
        evidence[:3, :4].numpy(),
    )
    assert IsingGrid(0.4, 0.1, **settings).log_evidence(evidence[:3, :4]) == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("support", [MarkovChain(0.1, 0.3), MarkovTree(0.4, 0.1, 0.3), IsingGrid(0.4, 0.3)], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (3, 0), (1, 4), (2, 1, 3)], ids=str)
def test_samples_of_odd_shapes(support: Support, shape: tuple[int, ...]) -> None:
    drawn = support.sample(shape, generator())
    assert drawn.shape == shape
    assert drawn.dtype == torch.bool


@pytest.mark.parametrize(
    "evidence",
    [
        torch.zeros(16, 16),
        torch.full((40, 40), -1000.0),
        torch.randn(60, 60, generator=torch.Generator().manual_seed(0)) - 4,
    ],
    ids=len,
)
def test_learning_from_evidence_that_says_nothing_does_not_run_away(evidence: torch.Tensor) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        learned = learn(IsingGrid(0.4, 0.3), evidence)
    assert isinstance(learned.coupling, float)
    assert abs(learned.coupling) < 1.2
    assert (learned == IsingGrid(0.4, 0.3)) == any("too few of one kind" in str(w.message) for w in said)


def test_learning_leaves_a_start_outside_the_borders_and_says_where_it_ends() -> None:
    with pytest.warns(UserWarning, match="activity of Bernoulli ran to its border"):
        learned = learn(Bernoulli(1e-6), torch.full((50, 50), 5.0))
    assert learned.activity > 0.99
    with pytest.raises(ValueError, match="steps must be at least 1"):
        learn(Bernoulli(0.2), torch.zeros(3), steps=0)


def test_infinite_evidence_has_a_finite_log_evidence() -> None:
    evidence = torch.zeros(4, 5)
    evidence[1, 2], evidence[3, 3] = torch.inf, -torch.inf
    for support in (Bernoulli(0.2), MarkovChain(0.1, 0.3), MarkovTree(0.4, 0.1, 0.3), IsingGrid(0.4, 0.3)):
        assert np.isfinite(support.log_evidence(evidence))
