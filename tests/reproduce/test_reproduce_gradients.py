"""The Monte Carlo gradient against closed forms and quadrature."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from bayesprune import models
from bayesprune.likelihoods import GaussianRegression
from bayesprune.reproduce import gradient_study

SIGMA, NOISE = 0.3, 0.5


def regression(examples=40, inputs=3):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(examples, inputs, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)[:inputs]
    network = nn.Linear(inputs, 1, bias=False).double()
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[0.3, 0.2, -0.4]])[:, :inputs])
    return network, x, y


def test_linear_gaussian_in_closed_form():
    """The loss is quadratic: E g(w) = g(mu) = H mu - X^T y / (n v), cov g = sigma^2 H H^T, H = X^T X / (n v)."""
    network, x, y = regression()
    found = gradient_study(network, (x, y), SIGMA, 4000, likelihood=GaussianRegression(NOISE))
    hessian = (x.T @ x) / (len(x) * NOISE)
    gradient = hessian @ network.weight[0].detach() - (x.T @ y)[:, 0] / (len(x) * NOISE)
    assert found["deterministic_norm"] == pytest.approx(float(gradient.norm()), rel=1e-10)
    assert found["variance"] == pytest.approx(SIGMA**2 * float(hessian.square().sum()), rel=0.1)
    assert found["difference"] < 3 * found["standard_error"]  # the mean converges to the expectation
    few = gradient_study(network, (x, y), SIGMA, 10, likelihood=GaussianRegression(NOISE))
    assert found["difference"] < few["difference"]


def test_the_mean_converges_to_the_expectation_where_taylor_does_not():
    """Logistic regression with one weight: E g by Gauss-Hermite quadrature; g(mu) is another number."""
    sigma = 1.5
    network = nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[0.0], [1.0]]))
    x, y = torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([0])
    deviations = {"": torch.tensor([[0.0], [sigma]])}
    found = gradient_study(network, (x, y), deviations, 6000)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    probability = 1 / (1 + np.exp(-2 * (1 + sigma * nodes)))  # of class 1; d loss / d w = (-2 p, 2 p)
    expected = float(2 * np.sqrt(2) * (weights @ probability) / weights.sum())
    assert abs(found["mean_norm"] - expected) < 4 * found["standard_error"]
    assert abs(found["deterministic_norm"] - expected) > 20 * found["standard_error"]


def test_without_noise_both_are_the_same():
    network, x, y = regression()
    found = gradient_study(network, (x, y), 0.0, 3, likelihood=GaussianRegression(NOISE))
    assert found["difference"] == pytest.approx(0, abs=1e-12)
    assert found["variance"] == pytest.approx(0, abs=1e-20)
    assert found["cosine"] == pytest.approx(1)


def test_lenet_is_left_as_it_was_and_the_result_is_json():
    network = models.create("lenet5", (1, 28, 28), 10, generator=torch.Generator().manual_seed(0)).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    batch = (torch.randn(16, 1, 28, 28), torch.arange(16) % 10)
    found = gradient_study(network, batch, 0.05, 4)
    json.dumps(found, allow_nan=False)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert network.training
    assert all(p.grad is None for p in network.parameters())
    assert found["weights"] == sum(p.numel() for n, p in network.named_parameters() if n.endswith("weight"))
    assert found["seconds_sampled"] > 0
    again = gradient_study(network, batch, 0.05, 4)
    assert again["variance"] == found["variance"]


def test_arguments_that_cannot_be():
    network, x, y = regression()
    for sigma, samples, message in (
        (0.1, 1, "samples must be at least 2, got 1"),
        (-1.0, 5, "sigma must be a finite number of at least 0"),
        ({"": torch.ones(2)}, 5, r"must have its weight's shape \(1, 3\), got \(2,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            gradient_study(network, (x, y), sigma, samples, likelihood=GaussianRegression())
