"""Sparse variational dropout: Molchanov, Ashukha and Vetrov (2017), arXiv:1701.05369."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayesprune.baselines.running import Masks, Run
from bayesprune.baselines.swapping import Prunable, Swapped, Wrapper, apply

K1, K2, K3 = 0.63576, 1.87320, 1.48695
SMALLEST_SQUARE = 1e-8  # of a weight, so that its logarithm is finite
FIRST_LOG_VARIANCE = -10.0


def log_uniform_kl(log_alpha: Tensor) -> Tensor:
    """KL of N(theta, alpha theta^2) from the log-uniform prior, of each entry, eq. (14) there: 0 for large alpha.

    An approximation whose error is below 0.01 nats for log alpha in [-8, 8].
    """
    return K1 + 0.5 * functional.softplus(-log_alpha) - K1 * torch.sigmoid(K2 + K3 * log_alpha)


def log_alpha_of(log_variance: Tensor, mean: Tensor) -> Tensor:
    """log alpha = log sigma^2 - log mean^2, of each entry.

    Not clipped to [-8, 8] as in the authors' code: what begins below -8 would have no gradient and never learn its
    noise.
    """
    return log_variance - torch.log(mean.square() + SMALLEST_SQUARE)


class Logarithms(nn.Module):
    """Log-variances, or other logarithms, that learn `rate` times as fast as other parameters.

    Under Adam, whose steps have a fixed size; they have far to go.
    """

    def __init__(self, first: Tensor, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.scaled = nn.Parameter(first / rate)

    def forward(self) -> Tensor:
        """Their values, in the shape of `first`."""
        return self.rate * self.scaled

    def clamp_(self, largest: float) -> None:
        """Keep them below a value."""
        self.scaled.clamp_(max=largest / self.rate)


# What follows has its gradients written out: a network with noise is a matter of launching kernels on a GPU, and
# autograd's own take about one and a half times as many of them.


class Moments(torch.autograd.Function):
    """x -> (x, x^2), each of x's shape: what a mean and a variance are computed from."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        return x.view_as(x), x.square()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,), (to_x, to_square) = ctx.saved_tensors, gradients
        return torch.addcmul(to_x, to_square, x, value=2)


class LocalNoise(torch.autograd.Function):
    """(mean, variance) -> a sample of N(mean, variance), all of one shape; the variance's root has a finite slope."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor) -> Tensor:
        deviation = (variance + SMALLEST_SQUARE).sqrt_()
        half_noise = torch.empty_like(mean).normal_(std=0.5)
        ctx.save_for_backward(deviation, half_noise)
        return torch.addcmul(mean, deviation, half_noise, value=2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        deviation, half_noise = ctx.saved_tensors
        (gradient,) = gradients
        return gradient, (gradient * half_noise).div_(deviation)


KlAndSlopes = Callable[[list[Tensor], list[Tensor], float], tuple[Tensor, list[Tensor]]]
"""Means, logarithms of the variances / rate (tensors of the same shapes), rate -> the KL summed over all entries, and
its gradients, first by the means and then by the logarithms."""


class TotalKl(torch.autograd.Function):
    """(a function that gives the KL and its slopes, rate, *means, *logarithms of the variances / rate) -> the KL."""

    @staticmethod
    def forward(ctx: Any, kl: KlAndSlopes, rate: float, *tensors: Tensor) -> Tensor:
        count = len(tensors) // 2
        total, slopes = kl(list(tensors[:count]), list(tensors[count:]), rate)
        ctx.save_for_backward(*slopes)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *torch._foreach_mul(list(ctx.saved_tensors), gradients[0])


def summed_kl(kl: KlAndSlopes, means: Sequence[Tensor], log_variances: Sequence[Logarithms]) -> Tensor:
    """A KL summed over the entries of all tensors; all logarithms have one rate."""
    scaled = [one.scaled for one in log_variances]
    total: Tensor = TotalKl.apply(kl, log_variances[0].rate, *means, *scaled)  # type: ignore[no-untyped-call]
    return total


def log_uniform_kl_and_slopes(means: list[Tensor], scaled: list[Tensor], rate: float) -> tuple[Tensor, list[Tensor]]:
    """`log_uniform_kl`, as `KlAndSlopes`."""
    squares = torch._foreach_mul(means, means)
    torch._foreach_add_(squares, SMALLEST_SQUARE)
    log_alphas = torch._foreach_mul(scaled, rate)
    torch._foreach_sub_(log_alphas, torch._foreach_log(squares))
    signals = torch._foreach_sigmoid(log_alphas)
    steps = torch._foreach_mul(log_alphas, K3)
    torch._foreach_add_(steps, K2)
    torch._foreach_sigmoid_(steps)
    # softplus(-x) = max(-x, 0) + log(1 + exp(-|x|)): the logarithm of the sigmoid itself would become infinite
    values = torch._foreach_abs(log_alphas)
    torch._foreach_neg_(values)
    torch._foreach_exp_(values)
    torch._foreach_log1p_(values)
    torch._foreach_sub_(values, torch._foreach_clamp_max(log_alphas, 0.0))
    torch._foreach_mul_(values, 0.5)
    torch._foreach_sub_(values, torch._foreach_mul(steps, K1))
    total = torch.stack([value.sum() for value in values]).sum() + K1 * sum(mean.numel() for mean in means)
    # d/d log alpha = (signal - 1) / 2 - K1 K3 step (1 - step)
    slopes = torch._foreach_sub(signals, 1.0)
    torch._foreach_mul_(slopes, 0.5)
    torch._foreach_addcmul_(slopes, steps, steps, K1 * K3)
    torch._foreach_sub_(slopes, torch._foreach_mul(steps, K1 * K3))
    by_means = torch._foreach_mul(slopes, means)
    torch._foreach_div_(by_means, squares)
    torch._foreach_mul_(by_means, -2.0)
    torch._foreach_mul_(slopes, rate)
    return total, [*by_means, *slopes]


class NoisyLayer(Wrapper):
    """A layer whose weights are N(theta, sigma^2): noise in training, weights of large alpha left out otherwise."""

    def __init__(self, layer: Prunable, threshold: float, rate: float) -> None:
        super().__init__(layer)
        self.threshold = threshold
        self.log_variance = Logarithms(torch.full_like(layer.weight.detach(), FIRST_LOG_VARIANCE), rate)

    def log_alpha(self) -> Tensor:
        """Noise to signal, of the weight's shape."""
        return log_alpha_of(self.log_variance(), self.layer.weight)

    @torch.no_grad()
    def live(self) -> Tensor:
        """The weights that stay, bool of the weight's shape."""
        return self.log_alpha() <= self.threshold

    def forward(self, x: Tensor) -> Tensor:
        """Map an input of the layer to its output."""
        if not self.training:
            return apply(self.layer, x, self.layer.weight * self.live(), self.layer.bias)
        return noisy_output(self.layer, x, torch.exp(self.log_variance()))


def noisy_output(layer: Prunable, x: Tensor, variance: Tensor) -> Tensor:
    """The layer's output under weights N(weight, variance): the local reparametrisation."""
    x, square = Moments.apply(x)  # type: ignore[no-untyped-call]
    output: Tensor = LocalNoise.apply(layer(x), apply(layer, square, variance, None))  # type: ignore[no-untyped-call]
    return output


def total_kl(layers: Collection[NoisyLayer]) -> Tensor:
    """KL from the prior, summed over the weights of all layers."""
    weights, logarithms = [layer.layer.weight for layer in layers], [layer.log_variance for layer in layers]
    return summed_kl(log_uniform_kl_and_slopes, weights, logarithms)


def prune(run: Run) -> Masks:
    """Train with noise and KL, drop the weights that are all noise, deploy theta."""
    s = run.settings
    swapped = Swapped(run.model, run.layers, lambda _, layer: NoisyLayer(layer, s.log_alpha_threshold, s.variance_rate))
    noisy = swapped.wrappers
    kl_weight = torch.zeros((), device=run.device)

    def penalty() -> Tensor:
        return kl_weight * total_kl(noisy.values())

    def masks() -> Masks:
        plain = {name: torch.ones_like(w, dtype=torch.bool) for name, w in run.weights().items() if name not in noisy}
        return {name: layer.live() for name, layer in noisy.items()} | plain

    def on_epoch(done: float, _: float) -> None:
        kl_weight.fill_(run.ramped_strength(done) / run.predictions)

    run.train(
        "prune",
        s.prune_epochs,
        network=swapped.network,
        penalty=penalty,
        on_epoch=on_epoch,
        current=masks,
        decay=False,
    )
    result = masks()
    run.model.load_state_dict(swapped.plain().state_dict())
    return result
