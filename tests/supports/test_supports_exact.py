"""Exact supports against the sum over all states, on every shape up to 4x4 and on 2x2x2x2."""

import itertools

import numpy as np
import pytest
import torch

import enumeration
from bayesprune.supports import Bernoulli, HiddenMarkov, MarkovChain, MarkovTree, Support

SHAPES = [*itertools.product(range(1, 5), repeat=2), (2, 2, 2, 2)]


def random_case(name: str, rng: np.random.Generator, ndim: int) -> tuple[Support, enumeration.LogPrior]:
    p01, p10, off, on = (float(p) for p in rng.uniform(0.05, 0.95, 4))
    if name == "bernoulli":
        log_odds = np.log(p01 / (1 - p01))
        return Bernoulli(p01), lambda s: log_odds * s.reshape(len(s), -1).sum(1)
    if name == "chain":
        axis = int(rng.integers(-ndim, ndim))
        return MarkovChain(p01, p10, axis), enumeration.chain_prior(p01, p10, axis)
    if name == "hidden":
        axis = int(rng.integers(-ndim, ndim))
        return HiddenMarkov(p01, p10, off, on, axis), enumeration.hidden_prior(p01, p10, off, on, axis)
    choices: list[tuple[int, ...]] = [(0,), (1,), (0, 1)] if ndim == 2 else [(1, 2), (0, 2), (0, 1, 3), (2, 3), (3,)]
    levels = choices[int(rng.integers(len(choices)))]
    return MarkovTree(off, p01, p10, levels), enumeration.tree_prior(off, p01, p10, levels)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["bernoulli", "chain", "hidden", "tree"])
def test_extrinsic_and_log_evidence_equal_enumeration(name: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng([len(name), *shape])
    for scale in (1.0, 8.0):
        support, log_prior = random_case(name, rng, len(shape))
        evidence = rng.normal(0, scale, shape)
        expected = enumeration.extrinsic(log_prior, evidence)
        result = support.extrinsic(torch.from_numpy(evidence))
        assert result.converged
        assert result.change == 0
        np.testing.assert_allclose(result.logit.numpy(), expected, rtol=0, atol=1e-9)
        single = support.extrinsic(torch.from_numpy(evidence).float())
        np.testing.assert_allclose(single.logit.numpy(), expected, rtol=1e-6, atol=1e-6)
        log_evidence = support.log_evidence(torch.from_numpy(evidence))
        assert log_evidence == pytest.approx(enumeration.log_evidence(log_prior, evidence), abs=1e-9)


@pytest.mark.parametrize(
    "support",
    [
        Bernoulli(0.2),
        MarkovChain(0.1, 0.3, 0),
        MarkovChain(0.1, 0.3),
        HiddenMarkov(0.1, 0.2, 0.05, 0.9),
        MarkovTree(0.3, 0.05, 0.4),
    ],
    ids=str,
)
def test_own_evidence_has_no_influence_on_own_output(support: Support) -> None:
    generator = torch.Generator().manual_seed(0)
    evidence = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    before = support.extrinsic(evidence).logit
    changes_elsewhere = False
    for site in itertools.product(range(5), range(6)):
        changed = evidence.clone()
        changed[site] += 4.0
        after = support.extrinsic(changed).logit
        assert after[site] == pytest.approx(float(before[site]), abs=1e-12)
        changes_elsewhere |= bool((after - before).abs().max() > 1e-3)
    assert changes_elsewhere == (not isinstance(support, Bernoulli))


def test_tree_levels_default_to_unit_kernel_weight() -> None:
    evidence = torch.randn(3, 2, 2, 2, generator=torch.Generator().manual_seed(1))
    default = MarkovTree(0.4, 0.05, 0.3).extrinsic(evidence).logit
    explicit = MarkovTree(0.4, 0.05, 0.3, levels=(1, 2)).extrinsic(evidence).logit
    flat = MarkovTree(0.4, 0.05, 0.3, levels=(1,)).extrinsic(evidence).logit
    torch.testing.assert_close(default, explicit)
    assert (default - flat).abs().max() > 1e-2


def test_a_tree_with_thousands_of_children_stays_exact() -> None:
    evidence = torch.randn(3, 5000, generator=torch.Generator().manual_seed(2)) * 3
    double = MarkovTree(0.4, 0.05, 0.3).extrinsic(evidence.double()).logit
    single = MarkovTree(0.4, 0.05, 0.3).extrinsic(evidence).logit
    torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Bernoulli(0.0), "activity must be a probability strictly between 0 and 1, got 0.0"),
        (lambda: MarkovChain(1.2, 0.1), "p01 must be a probability"),
        (lambda: HiddenMarkov(0.1, 0.1, 0.1, 1.0), "activity_on"),
        (lambda: HiddenMarkov(0.1, -0.1, 0.1, 0.9), "p10"),
        (lambda: MarkovTree(0.5, 0.1, 0.1, levels=(2, 1)), "levels must be growing"),
        (lambda: MarkovTree(0.5, 0.1, 0.1, levels=(2,)).extrinsic(torch.zeros(2, 2)), "leave no leaves"),
        (
            lambda: MarkovChain(0.1, 0.1, axis=2).extrinsic(torch.zeros(2, 2)),
            "axis 2 is not one of the 2 axes",
        ),
    ],
)
def test_bad_parameters_are_named(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


def test_transitions_too_rare_to_compute_are_refused() -> None:
    with pytest.raises(ValueError, match="too rare to be computed"):
        MarkovChain(1e-190, 0.3).extrinsic(torch.zeros(3))
    rare = MarkovChain(0.5, 1e-17).extrinsic(torch.zeros(3, dtype=torch.float64)).logit
    assert float(rare[0]) == pytest.approx(np.log(0.5 / 1e-17), rel=1e-6)
