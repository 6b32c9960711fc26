"""The gradient of the data term: at the mean (paper (34), Taylor) against Monte Carlo samples w = mu + xi sigma."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.likelihoods import Classification, Likelihood
from bayesprune.provenance import hardware, versions

TIMED = 20  # gradients that the time is the mean of


def gradient_study(
    network: nn.Module,
    batch: tuple[Tensor, Tensor],
    sigma: float | Mapping[str, Tensor],
    samples: int,
    *,
    likelihood: Likelihood | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure bias, variance and cost of both estimates of d/dmu E_q[-log p(y | x, w)], q = N(mu, sigma^2).

    network: its Linear and Conv weights are mu; left as it was.  batch: x (n, ...) and y (n, ...), on its device.
    sigma: the deviation of every weight, a number or tensors in the weights' shapes by layer name.

    The row is plain JSON.  All norms are over all weights:
    deterministic_norm: |g(mu)|, of the Taylor estimate, whose variance for a given batch is zero.
    mean_norm, difference: |m| and |m - g(mu)|, m the mean of the samples.
    standard_error: sqrt(variance / samples), what chance alone puts between m and its expectation.
    variance: trace of the covariance of one sample.  noise_to_signal: sqrt(variance) / |m|.
    cosine: mean cosine of the angle between one sample and m.
    seconds_deterministic, seconds_sampled: of one gradient.
    """
    if samples < 2:
        raise ValueError(f"samples must be at least 2, got {samples}; the variance needs them, try 100")
    weights = {
        name: module.weight
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    }
    deviations = _deviations(weights, sigma)
    objective = likelihood or Classification()
    was_training = network.training
    network.eval()  # dropout and BatchNorm's counting would be noise of another kind
    means = [weight.detach().clone() for weight in weights.values()]
    generator = torch.Generator(means[0].device).manual_seed(seed)
    x, y = batch

    def gradient() -> Tensor:
        loss = objective.negative_log_likelihood(network(x), y)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(weights.values()))])

    @torch.no_grad()
    def draw() -> None:
        for weight, mean, deviation in zip(weights.values(), means, deviations, strict=True):
            noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
            weight.copy_(mean + noise * deviation)

    def sample() -> Tensor:
        draw()
        return gradient()

    try:
        exact = gradient().double()
        seconds_deterministic = _seconds(gradient, x.device)
        drawn = torch.stack([sample().double() for _ in range(samples)])
        seconds_sampled = _seconds(sample, x.device)
    finally:
        with torch.no_grad():
            for weight, mean in zip(weights.values(), means, strict=True):
                weight.copy_(mean)
        network.train(was_training)
    mean = drawn.mean(0)
    variance = float(drawn.var(0).sum())
    return {
        "samples": samples,
        "seed": seed,
        "examples": len(x),
        "weights": exact.numel(),
        "sigma": sigma if isinstance(sigma, int | float) else None,
        "deterministic_norm": float(exact.norm()),
        "mean_norm": float(mean.norm()),
        "difference": float((mean - exact).norm()),
        "standard_error": math.sqrt(variance / samples),
        "variance": variance,
        "noise_to_signal": math.sqrt(variance) / float(mean.norm()) if mean.any() else None,
        "cosine": float(nn.functional.cosine_similarity(drawn, mean, dim=1).mean()),
        "seconds_deterministic": seconds_deterministic,
        "seconds_sampled": seconds_sampled,
        "versions": versions(),
        "hardware": hardware(x.device),
    }


def _deviations(weights: Mapping[str, Tensor], sigma: float | Mapping[str, Tensor]) -> list[Tensor]:
    """sigma of each weight, in its shape."""
    if isinstance(sigma, int | float):
        if not 0 <= sigma < math.inf:
            raise ValueError(f"sigma must be a finite number of at least 0, got {sigma}; try 0.01")
        return [torch.full_like(weight.detach(), sigma) for weight in weights.values()]
    for name, weight in weights.items():
        if name not in sigma or sigma[name].shape != weight.shape:
            got = tuple(sigma[name].shape) if name in sigma else "none"
            raise ValueError(f"sigma of {name} must have its weight's shape {tuple(weight.shape)}, got {got}")
    return [sigma[name].to(weight.detach()) for name, weight in weights.items()]


def _seconds(work: Callable[[], Tensor], device: torch.device) -> float:
    """Of one call, the mean of several."""
    work()
    _wait(device)
    started = time.perf_counter()
    for _ in range(TIMED):
        work()
    _wait(device)
    return (time.perf_counter() - started) / TIMED


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
