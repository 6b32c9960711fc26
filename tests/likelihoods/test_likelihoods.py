"""Likelihoods against torch's own distributions and losses."""

import math

import pytest
import torch
from torch import distributions
from torch.nn import functional

from bayesprune.likelihoods import (
    Classification,
    GaussianRegression,
    KnownNoise,
    LearnedNoise,
    PerExampleNoise,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_classification_is_cross_entropy(smoothing):
    logits, target = normal(20, 5), torch.arange(20) % 5
    likelihood = Classification(smoothing)
    expected = functional.cross_entropy(logits, target, label_smoothing=smoothing)
    torch.testing.assert_close(likelihood.negative_log_likelihood(logits, target), expected)
    if not smoothing:
        exact = -distributions.Categorical(logits=logits).log_prob(target).mean()
        torch.testing.assert_close(likelihood.negative_log_likelihood(logits, target), exact)
    right = sum(int(row.argmax()) == int(label) for row, label in zip(logits, target, strict=True))
    assert likelihood.score(logits, target) == {"accuracy": right / 20}


@pytest.mark.parametrize("shape", [(9,), (9, 1), (9, 3)])
def test_known_noise_is_the_normal_distribution(shape):
    output, target = normal(*shape), normal(*shape, seed=1)
    log_prob = distributions.Normal(output, math.sqrt(0.3)).log_prob(target)
    for noise in (0.3, KnownNoise(0.3)):
        nll = GaussianRegression(noise).negative_log_likelihood(output, target)
        torch.testing.assert_close(nll, -log_prob.sum() / 9)
    single = GaussianRegression(0.3).negative_log_likelihood(output.float(), target.float())
    assert single.dtype == torch.float32


@pytest.mark.parametrize(("shape", "noise_shape"), [((9,), (9,)), ((9, 3), (9,)), ((9, 3), (9, 3)), ((3, 3), (3,))])
def test_per_example_noise_is_the_normal_distribution(shape, noise_shape):
    output, target = normal(*shape), normal(*shape, seed=1)
    variance = normal(*noise_shape, seed=2).exp()
    columns = variance if noise_shape == shape else variance[:, None].expand(shape)
    expected = -distributions.Normal(output, columns.sqrt()).log_prob(target).sum() / shape[0]
    nll = GaussianRegression(PerExampleNoise()).negative_log_likelihood(output, target, variance)
    torch.testing.assert_close(nll, expected)


@pytest.mark.parametrize("outputs", [None, 3])
def test_learned_noise_ends_at_the_mean_squared_residual(outputs):
    output, target = normal(50, 3), normal(50, 3, seed=1) * torch.tensor([0.1, 1.0, 4.0])
    likelihood = GaussianRegression(LearnedNoise(initial_variance=2.0, outputs=outputs)).double()
    assert [name for name, _ in likelihood.named_parameters()] == ["log_variance"]
    start = likelihood.negative_log_likelihood(output, target)
    torch.testing.assert_close(
        start, GaussianRegression(2.0).negative_log_likelihood(output, target), rtol=1e-6, atol=0
    )
    optimiser = torch.optim.LBFGS(
        likelihood.parameters(), max_iter=99, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        loss = likelihood.negative_log_likelihood(output, target)
        loss.backward()
        return loss

    for _ in range(5):
        optimiser.step(closure)
    squares = (target - output).square()
    expected = squares.mean() if outputs is None else squares.mean(0)
    torch.testing.assert_close(likelihood.log_variance.exp(), expected, rtol=1e-6, atol=0)


def test_gradients_reach_the_output():
    output = normal(6, 2).requires_grad_()
    likelihood = GaussianRegression(LearnedNoise()).double()
    assert torch.autograd.gradcheck(lambda o: likelihood.negative_log_likelihood(o, normal(6, 2, seed=1)), output)


def test_regression_scores():
    output, target = normal(40, 2), normal(40, 2, seed=1)
    score = GaussianRegression().score(output, target)
    assert score["rmse"] == pytest.approx(functional.mse_loss(output, target).sqrt().item())
    centred = target - target.mean(0)
    assert score["r2"] == pytest.approx(1 - ((target - output) ** 2).sum().item() / (centred**2).sum().item())
    assert GaussianRegression().score(target, target) == {"rmse": 0, "r2": 1}
    assert math.isnan(GaussianRegression().score(torch.zeros(3), torch.ones(3))["r2"])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Classification(1.0), r"label_smoothing must be in \[0, 1\), got 1.0"),
        (lambda: GaussianRegression(0.0), "positive and finite, got 0"),
        (lambda: GaussianRegression(float("nan")), "positive and finite"),
        (lambda: LearnedNoise(-1), "positive and finite"),
        (lambda: LearnedNoise(outputs=0), "at least 1, got 0"),
        (lambda: nll(Classification(), (4, 3), torch.zeros(4)), "GaussianRegression"),
        (lambda: nll(Classification(), (4, 3), torch.zeros(3, dtype=torch.long)), "class indices"),
        (lambda: nll(Classification(), (4,), torch.zeros(4, dtype=torch.long)), "logits"),
        (
            lambda: nll(Classification(), (4, 3), torch.zeros(4, dtype=torch.long), torch.ones(4)),
            "leave it out",
        ),
        (lambda: nll(GaussianRegression(), (4, 1), torch.zeros(4)), r"target.reshape\(output.shape\)"),
        (lambda: nll(GaussianRegression(), (0,), torch.zeros(0)), "one shape"),
        (
            lambda: nll(GaussianRegression(), (4,), torch.zeros(4), torch.ones(4)),
            "KnownNoise takes no variance",
        ),
        (
            lambda: nll(GaussianRegression(PerExampleNoise()), (4,), torch.zeros(4)),
            "PerExampleNoise needs variance",
        ),
        (
            lambda: nll(GaussianRegression(PerExampleNoise()), (4,), torch.zeros(4), torch.ones(3)),
            r"got \(3,\); give one number per example",
        ),
        (
            lambda: nll(GaussianRegression(PerExampleNoise()), (4,), torch.zeros(4), torch.zeros(4)),
            "must be positive, got 0",
        ),
        (lambda: nll(GaussianRegression(LearnedNoise(outputs=4)), (4,), torch.zeros(4)), "has 4 outputs"),
    ],
)
def test_errors_name_the_rule_and_the_remedy(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def nll(likelihood, shape, target, variance=None):
    return likelihood.negative_log_likelihood(torch.zeros(*shape), target, variance)


def test_maps_of_classes_are_many_predictions():
    """Against a loop over all places."""
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(2, 4, 3, 5, generator=generator)
    target = torch.randint(0, 4, (2, 3, 5), generator=generator)
    likelihood = Classification()
    places = [(n, i, j) for n in range(2) for i in range(3) for j in range(5)]
    losses = [-torch.log_softmax(output[n, :, i, j], 0)[target[n, i, j]] for n, i, j in places]
    right = [int(output[n, :, i, j].argmax()) == int(target[n, i, j]) for n, i, j in places]
    assert likelihood.predictions(target) == 30
    torch.testing.assert_close(likelihood.negative_log_likelihood(output, target), torch.stack(losses).mean())
    assert likelihood.score(output, target) == {"accuracy": pytest.approx(sum(right) / 30)}
    with pytest.raises(ValueError, match=r"got \(2, 4, 3, 5\) and torch.int64 \(2,\); make the targets"):
        likelihood.negative_log_likelihood(output, target[:, 0, 0])


def test_numbers_as_classes_lead_to_regression():
    with pytest.raises(ValueError, match=r"pass likelihood=GaussianRegression\(LearnedNoise\(\)\)"):
        Classification().negative_log_likelihood(torch.zeros(3, 2), torch.zeros(3))


@pytest.mark.parametrize("shape", [(20, 5), (4, 5, 3, 2)])
def test_the_divergence_of_classes_is_that_of_torch(shape):
    output, teacher = normal(*shape), normal(*shape, seed=1)
    exact = distributions.kl_divergence(
        distributions.Categorical(logits=teacher.movedim(1, -1)),
        distributions.Categorical(logits=output.movedim(1, -1)),
    )
    likelihood = Classification()
    torch.testing.assert_close(likelihood.divergence(output, teacher), exact.mean())
    softened = likelihood.divergence(3 * output, 3 * teacher, temperature=3.0)
    torch.testing.assert_close(softened, 9 * exact.mean())
    assert likelihood.divergence(teacher, teacher, 4.0) == pytest.approx(0, abs=1e-12)
    half = likelihood.divergence(output.bfloat16(), teacher.bfloat16(), 2.0)
    assert half.dtype == torch.float32


def test_the_gradient_of_a_softened_divergence_keeps_its_size():
    """At a high temperature it is that of the squared difference of centred logits, over the number of classes."""
    output, teacher = normal(6, 5).requires_grad_(), normal(6, 5, seed=1)
    (gradient,) = torch.autograd.grad(Classification().divergence(output, teacher, temperature=1e4), output)
    difference = output - teacher
    expected = (difference - difference.mean(1, keepdim=True)) / (5 * 6)
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("noise", [0.3, LearnedNoise(0.3), LearnedNoise(0.3, outputs=3)])
def test_the_divergence_of_regressions_is_that_of_torch(noise):
    output, teacher = normal(9, 3), normal(9, 3, seed=1)
    deviation = math.sqrt(0.3)
    exact = distributions.kl_divergence(
        distributions.Normal(teacher, deviation), distributions.Normal(output, deviation)
    )
    found = GaussianRegression(noise).divergence(output, teacher)
    torch.testing.assert_close(found, exact.sum() / 9, check_dtype=False, rtol=1e-6, atol=1e-6)
    one = GaussianRegression(PerExampleNoise()).divergence(output, teacher)
    torch.testing.assert_close(one, 0.3 * exact.sum() / 9)


def test_outputs_of_different_shapes_have_no_divergence():
    for likelihood in (Classification(), GaussianRegression()):
        with pytest.raises(ValueError, match=r"of its own shape \(6, 5\) only, got \(6, 4\)"):
            likelihood.divergence(normal(6, 5), normal(6, 4))
