"""FGSM and PGD against closed forms in numpy, and by their properties."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bayesprune import data
from bayesprune.likelihoods import Classification, GaussianRegression
from bayesprune.robustness import Bounds, fgsm, pgd

CLASSES, SHAPE = 4, (2, 3, 3)
BOUNDS = Bounds(torch.tensor([-1.0, -0.5]).reshape(2, 1, 1), torch.tensor([2.0, 0.75]).reshape(2, 1, 1))
DOUBLE = Bounds(BOUNDS.lower.double(), BOUNDS.upper.double())
PIXEL = DOUBLE.pixel.numpy()


def examples(seed, n=7, bounds=DOUBLE):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.rand((n, *SHAPE), generator=generator, dtype=bounds.lower.dtype)
    return bounds.lower + pixels * bounds.pixel, torch.randint(CLASSES, (n,), generator=generator)


def linear(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(18, CLASSES)).double()


def two_layers(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(18, 12), nn.Tanh(), nn.Linear(12, CLASSES)).double()


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def numpy_clip(x):
    return np.clip(x, DOUBLE.lower.numpy(), DOUBLE.upper.numpy())


def gradient_of_linear(model, x, y):
    w, b = (p.detach().numpy() for p in model[1].parameters())
    return ((softmax(x.reshape(len(x), -1) @ w.T + b) - np.eye(CLASSES)[y]) @ w).reshape(x.shape)


def gradient_of_two_layers(model, x, y):
    w1, b1, w2, b2 = (p.detach().numpy() for p in model.parameters())
    hidden = np.tanh(x.reshape(len(x), -1) @ w1.T + b1)
    back = (softmax(hidden @ w2.T + b2) - np.eye(CLASSES)[y]) @ w2 * (1 - hidden**2)
    return (back @ w1).reshape(x.shape)


def loss_of(model, x, y):
    return float(Classification().negative_log_likelihood(model(x), y).detach())


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.7])
def test_fgsm_of_a_linear_model_is_the_closed_form(epsilon):
    model, (x, y) = linear(0), examples(1)
    expected = numpy_clip(x.numpy() + epsilon * PIXEL * np.sign(gradient_of_linear(model, x.numpy(), y.numpy())))
    got = fgsm(model, Classification(), x, y, epsilon, DOUBLE)
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-12)


def test_fgsm_of_a_regression_follows_the_sign_of_the_residual():
    model = nn.Sequential(nn.Flatten(), nn.Linear(18, 1), nn.Flatten(0)).double()
    x, _ = examples(2)
    y = torch.linspace(-1, 1, len(x), dtype=torch.float64)
    residual = (model(x) - y).detach().numpy()[:, None]
    direction = np.sign(residual * model[1].weight.detach().numpy()).reshape(x.shape)
    got = fgsm(model, GaussianRegression(1.0), x, y, 0.05, DOUBLE)
    np.testing.assert_allclose(got.numpy(), numpy_clip(x.numpy() + 0.05 * PIXEL * direction), rtol=0, atol=1e-12)


def test_every_image_may_have_an_epsilon_of_its_own():
    model, (x, y) = two_layers(0), examples(3)
    epsilons = torch.linspace(0, 0.2, len(x), dtype=torch.float64)
    together = fgsm(model, Classification(), x, y, epsilons, DOUBLE)
    one_by_one = [
        fgsm(model, Classification(), x[i : i + 1], y[i : i + 1], float(epsilons[i]), DOUBLE) for i in range(7)
    ]
    assert torch.equal(together[0], x[0])
    torch.testing.assert_close(together, torch.cat(one_by_one), rtol=0, atol=1e-14)


@pytest.mark.parametrize("random_start", [False, True])
@pytest.mark.parametrize(("steps", "step_size"), [(10, None), (3, 0.02)])
def test_pgd_is_the_plain_loop(random_start, steps, step_size):
    epsilon, model, (x, y) = 0.08, two_layers(4), examples(5)
    size = 2.5 * epsilon / steps if step_size is None else step_size
    moved = x.numpy()
    if random_start:
        start = torch.rand(x.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64).numpy()
        moved = numpy_clip(moved + (2 * start - 1) * epsilon * PIXEL)
    for _ in range(steps):
        moved = moved + size * PIXEL * np.sign(gradient_of_two_layers(model, moved, y.numpy()))
        moved = np.clip(moved, x.numpy() - epsilon * PIXEL, x.numpy() + epsilon * PIXEL)
        moved = numpy_clip(moved)
    generator = torch.Generator().manual_seed(6) if random_start else None
    got = pgd(model, Classification(), x, y, epsilon, DOUBLE, steps=steps, step_size=step_size, generator=generator)
    np.testing.assert_allclose(got.numpy(), moved, rtol=0, atol=1e-12)


@given(epsilon=st.floats(0, 1), seed=st.integers(0, 1000), steps=st.integers(1, 4), attack=st.sampled_from("fp"))
@settings(max_examples=60, deadline=None)
def test_attacks_stay_within_epsilon_and_the_valid_range(epsilon, seed, steps, attack):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, CLASSES))
    x, y = examples(seed, bounds=BOUNDS)
    if attack == "f":
        moved = fgsm(model, Classification(), x, y, epsilon, BOUNDS)
    else:
        generator = torch.Generator().manual_seed(seed)
        moved = pgd(model, Classification(), x, y, epsilon, BOUNDS, steps=steps, generator=generator)
    pixels = (moved - x) / BOUNDS.pixel
    assert float(pixels.abs().max()) <= epsilon + 1e-6
    assert bool((moved >= BOUNDS.lower).all())
    assert bool((moved <= BOUNDS.upper).all())
    assert moved.shape == x.shape
    assert not moved.requires_grad
    if epsilon == 0:
        assert torch.equal(moved, x)


@given(epsilon=st.floats(0, 0.5), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_fgsm_never_lowers_the_loss_of_a_logistic_model(epsilon, seed):
    """Its loss is convex in x, and a step along the sign of the gradient goes up all the way, clipped or not."""
    torch.manual_seed(seed)
    model, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(18, 2)).double(), examples(seed)
    y = y % 2
    assert loss_of(model, fgsm(model, Classification(), x, y, epsilon, DOUBLE), y) >= loss_of(model, x, y) - 1e-12


def test_pgd_is_stronger_than_fgsm_on_average():
    gains = []
    for seed in range(10):
        model, (x, y) = two_layers(seed), examples(seed, n=20)
        for parameter in model.parameters():
            parameter.data *= 3  # far from linear
        single = fgsm(model, Classification(), x, y, 0.2, DOUBLE)
        generator = torch.Generator().manual_seed(seed)
        several = pgd(model, Classification(), x, y, 0.2, DOUBLE, generator=generator)
        gains.append(loss_of(model, several, y) - loss_of(model, single, y))
    assert np.mean(gains) > 0


def test_the_model_stays_as_it_is():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, CLASSES))
    x, y = examples(0, bounds=BOUNDS)
    Classification().negative_log_likelihood(model(x), y).backward()
    model[1].eval()  # one frozen module in a model that trains
    before = copy.deepcopy(model.state_dict())
    gradients = [(p.grad, p.grad.clone()) for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    given_x = x.clone()
    with torch.no_grad():  # as some callers do
        first = fgsm(model, Classification(), x, y, 0.1, BOUNDS)
        again = fgsm(model, Classification(), x, y, 0.1, BOUNDS)
        pgd(model, Classification(), x, y, 0.1, BOUNDS)
    assert torch.equal(first, again)  # no dropout in the gradient
    assert torch.equal(x, given_x)
    assert not x.requires_grad
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    for parameter, (kept, value) in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is kept
        assert torch.equal(kept, value)
        assert parameter.requires_grad


def test_the_mode_comes_back_after_an_error():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("no")

    model, (x, y) = Broken().train(), examples(0)
    with pytest.raises(RuntimeError, match="no"):
        fgsm(model, Classification(), x, y, 0.1, DOUBLE)
    assert model.training


def test_bounds_of_a_data_set_are_black_and_white():
    digits = data.load("digits", validation=0.2, seed=3)
    raw = torch.from_numpy(data.read("digits").raw.test.images).float()
    bounds = Bounds.of(digits)
    assert torch.equal(bounds.clip(digits.test.x), digits.test.x)
    assert bool((digits.test.x[raw == 0] == bounds.lower).all())
    assert bool((digits.test.x[raw == 16] == bounds.upper).all())
    pixels = (digits.test.x - bounds.lower) / bounds.pixel
    torch.testing.assert_close(pixels, raw / 16)


def test_bounds_of_colour_images_are_those_of_every_channel():
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(256, (40, 3, 4, 4), generator=generator, dtype=torch.uint8)
    raw[:, 1] //= 2
    made = data.DataSet.from_tensors(raw, torch.arange(40) % 4, test=10, validation=0)
    bounds = Bounds.of(made)
    assert bounds.lower.shape == (3, 1, 1)
    recovered = (made.train.x - bounds.lower) / bounds.pixel * 255
    assert {round(float(v)) for v in recovered[:, 1].unique()} <= set(range(128))
    torch.testing.assert_close(recovered, recovered.round(), rtol=0, atol=1e-3)


@pytest.mark.parametrize("epsilon", [-0.1, 1.5, float("nan")])
def test_a_wrong_epsilon_is_refused(epsilon):
    model, (x, y) = linear(0), examples(0)
    for attack in (fgsm, pgd):
        with pytest.raises(ValueError, match="epsilon must be between 0 and 1"):
            attack(model, Classification(), x, y, epsilon, DOUBLE)


def test_wrong_steps_and_bounds_are_refused():
    model, (x, y) = linear(0), examples(0)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        pgd(model, Classification(), x, y, 0.1, DOUBLE, steps=0)
    with pytest.raises(ValueError, match="lower must be below upper"):
        Bounds(DOUBLE.upper, DOUBLE.lower)
