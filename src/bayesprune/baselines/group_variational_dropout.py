"""Group variational dropout: BC-GNJ and BC-GHS of Louizos, Ullrich and Welling (2017), arXiv:1705.08665.

Every input of a Linear and every filter of a conv has a random scale z, w = z w~, w~ ~ N(0, 1) a priori.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.baselines.running import Masks, Run
from bayesprune.baselines.swapping import Prunable, Swapped, Wrapper, along
from bayesprune.baselines.variational_dropout import (
    Logarithms,
    log_alpha_of,
    log_uniform_kl_and_slopes,
    noisy_output,
    summed_kl,
)

FIRST_LOG_VARIANCE, FIRST_SPREAD = -9.0, 0.01
GLOBAL_SCALE = 1e-5  # tau_0 of the horseshoe
# A valley between useful and useless scales lies between these log alphas; without one, alpha = 1 decides: as much
# noise as signal.
LOWEST_VALLEY, HIGHEST_VALLEY, NO_VALLEY = -4.0, 3.0, 0.0
SMALLEST_GAP = 0.5  # nats without a score that make a valley


def gaussian_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL of N(mean, variance) from N(0, 1), of each entry, eq. (8) there."""
    return 0.5 * (torch.exp(log_variance) + mean.square() - log_variance - 1)


def gamma_kl(mean: Tensor, log_variance: Tensor, scale: float) -> Tensor:
    """KL of LogNormal(mean, variance) from Gamma(shape 1/2, scale), of each entry (appendix A there)."""
    expected = torch.exp(mean + 0.5 * torch.exp(log_variance)) / scale
    return expected - 0.5 * mean + 0.5 * math.log(scale) - 0.5 * (1 + math.log(2) + log_variance)


def inverse_gamma_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL of LogNormal(mean, variance) from InverseGamma(1/2, 1), of each entry: that of 1/x from Gamma(1/2, 1)."""
    return gamma_kl(-mean, log_variance, 1.0)


class SampledScale(torch.autograd.Function):
    """(examples, rate, mean, log variance / rate) with two tensors (units,) -> samples (examples, units)."""

    @staticmethod
    def forward(ctx: Any, examples: int, rate: float, mean: Tensor, scaled: Tensor) -> Tensor:
        deviation = (scaled * (0.5 * rate)).exp_()
        noise = torch.randn(examples, len(mean), device=mean.device, dtype=mean.dtype)
        ctx.rate = rate
        ctx.save_for_backward(deviation, noise)
        return torch.addcmul(mean, deviation, noise)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        deviation, noise = ctx.saved_tensors
        (gradient,) = gradients
        to_deviation = (gradient * noise).sum(0)
        return None, None, gradient.sum(0), to_deviation.mul_(deviation).mul_(0.5 * ctx.rate)


def gaussian_kl_and_slopes(means: list[Tensor], scaled: list[Tensor], rate: float) -> tuple[Tensor, list[Tensor]]:
    """`gaussian_kl`, as `KlAndSlopes`."""
    log_variances = torch._foreach_mul(scaled, rate)
    slopes = torch._foreach_exp(log_variances)
    torch._foreach_sub_(slopes, 1.0)
    values = torch._foreach_sub(slopes, log_variances)
    torch._foreach_addcmul_(values, means, means)
    total = 0.5 * torch.stack([value.sum() for value in values]).sum()
    torch._foreach_mul_(slopes, 0.5 * rate)
    return total, [*means, *slopes]


class LogUniformScale(nn.Module):
    """q(z) = N(mean, variance) per unit under the log-uniform prior (normal-Jeffreys, BC-GNJ)."""

    lowest, highest, otherwise = LOWEST_VALLEY, HIGHEST_VALLEY, NO_VALLEY

    def __init__(self, units: int, rate: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(1 + FIRST_SPREAD * torch.randn(units))
        self.log_variance = Logarithms(FIRST_LOG_VARIANCE + FIRST_SPREAD * torch.randn(units), rate)

    def sample(self, examples: int) -> Tensor:
        """z for every example, (examples, units)."""
        sample: Tensor = SampledScale.apply(examples, self.log_variance.rate, self.mean, self.log_variance.scaled)  # type: ignore[no-untyped-call]
        return sample

    def noise(self) -> Tensor:
        """How useless each unit is, (units,): log alpha."""
        return log_alpha_of(self.log_variance(), self.mean)

    def expected(self) -> Tensor:
        """E[z], (units,)."""
        return self.mean


class HorseshoeScale(nn.Module):
    """z^2 = s_a s_b a_u b_u, all log-normal: Gamma and inverse Gamma halves of two half-Cauchys (BC-GHS, eq. (10)).

    s is one for the layer, of scale tau_0; a_u b_u is that of unit u.  `layer`, `unit`: means of the logarithms.
    """

    lowest, highest, otherwise = -math.inf, math.inf, math.inf  # scores have no natural zero: without a valley all live

    def __init__(self, units: int, rate: float) -> None:
        super().__init__()
        layer = 2 * math.log(GLOBAL_SCALE) - math.log(2)  # where the Gamma prior wants s_a; s_b makes z = 1 of it
        self.layer = Logarithms(torch.tensor([layer, -layer]), rate)
        self.unit = Logarithms(FIRST_SPREAD * torch.randn(2, units), rate)
        self.layer_log_variance = Logarithms(torch.full((2,), FIRST_LOG_VARIANCE), rate)
        self.unit_log_variance = Logarithms(torch.full((2, units), FIRST_LOG_VARIANCE), rate)

    def _log_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of log z, (units,) each."""
        mean = 0.5 * (self.layer().sum() + self.unit().sum(0))
        variance = torch.exp(self.layer_log_variance()).sum() + torch.exp(self.unit_log_variance()).sum(0)
        return mean, 0.25 * variance

    def sample(self, examples: int) -> Tensor:
        """z for every example, (examples, units); the layer's factor is drawn once."""
        mean, _ = self._log_moments()
        units, layer = torch.exp(self.unit_log_variance()).sum(0), torch.exp(self.layer_log_variance()).sum()
        noise = torch.randn(examples, len(mean), device=mean.device)
        shared = torch.randn(1, 1, device=mean.device)
        return torch.exp(mean + 0.5 * (units.sqrt() * noise + layer.sqrt() * shared))

    def kl(self) -> Tensor:
        """KL from the prior, summed over the layer's and the units' factors."""
        (s_a, s_b), (a, b) = self.layer(), self.unit()
        layer, unit = self.layer_log_variance(), self.unit_log_variance()
        total = gamma_kl(s_a, layer[0], GLOBAL_SCALE**2) + inverse_gamma_kl(s_b, layer[1])
        return total + (gamma_kl(a, unit[0], 1.0) + inverse_gamma_kl(b, unit[1])).sum()

    def noise(self) -> Tensor:
        """How useless each unit is, (units,): minus the logarithm of the mode of q(z)."""
        mean, variance = self._log_moments()
        return variance - mean

    def expected(self) -> Tensor:
        """E[z], (units,)."""
        mean, variance = self._log_moments()
        return torch.exp(mean + 0.5 * variance)


def valley(scores: Tensor, lowest: float, highest: float, otherwise: float) -> float:
    """The threshold between two heaps of scores (n,): the middle of the widest gap that lies in a range.

    Gaps below half a nat are no valley; then it is `otherwise`.
    """
    ordered = scores.double().sort().values
    gaps, middles = ordered.diff(), (ordered[1:] + ordered[:-1]) / 2
    gaps = torch.where((middles >= lowest) & (middles <= highest), gaps, 0)
    if not len(gaps) or float(gaps.max()) < SMALLEST_GAP:
        return otherwise
    return float(middles[gaps.argmax()])


class GroupNoisyLayer(Wrapper):
    """A layer with weights N(mu, sigma^2) and a random scale per input (Linear) or filter (conv)."""

    def __init__(self, layer: Prunable, scale_prior: str, rate: float) -> None:
        super().__init__(layer)
        weight = layer.weight.detach()
        self.by_input = isinstance(layer, nn.Linear)
        make = HorseshoeScale if scale_prior == "horseshoe" else LogUniformScale
        self.scale: LogUniformScale | HorseshoeScale = make(weight.shape[1 if self.by_input else 0], rate)
        first = FIRST_LOG_VARIANCE + FIRST_SPREAD * torch.randn(weight.shape)
        self.log_variance = Logarithms(first, rate)

    @torch.no_grad()
    def live(self) -> Tensor:
        """The units that stay, (units,) bool: the noise is below the valley; the best one always stays."""
        noise = self.scale.noise()
        threshold = valley(noise, self.scale.lowest, self.scale.highest, self.scale.otherwise)
        return (noise <= threshold) | (noise == noise.min())

    @torch.no_grad()
    def mask(self, element_threshold: float | None) -> Tensor:
        """The weights that stay, bool of the weight's shape; with a threshold also by each weight's log alpha."""
        weight = self.layer.weight
        mask = along(self.live(), 1 if self.by_input else 0, weight.ndim).expand(weight.shape)
        if element_threshold is not None:
            mask = mask & (log_alpha_of(self.log_variance(), weight) <= element_threshold)
        return mask.clone()

    def forward(self, x: Tensor) -> Tensor:
        """Map an input of the layer, batch first, to its output."""
        variance = torch.exp(self.log_variance())
        if not self.training:
            scale = self.scale.expected() * self.live()
            output: Tensor = self.layer(x * scale) if self.by_input else self.layer(x) * along(scale, 1, x.ndim)
            return output
        scale = self.scale.sample(x.shape[0]).to(x)
        if self.by_input:
            return noisy_output(self.layer, x * scale.reshape(x.shape[0], *(1,) * (x.ndim - 2), -1), variance)
        output = noisy_output(self.layer, x, variance)
        return output * scale.reshape(*scale.shape, *(1,) * (x.ndim - 2))

    @torch.no_grad()
    def fold(self) -> None:
        """Put the expected scales of live units into the layer, W = E[z] mu; a conv's bias is scaled, too."""
        scale = self.scale.expected() * self.live()
        self.layer.weight.mul_(along(scale, 1 if self.by_input else 0, self.layer.weight.ndim))
        if not self.by_input and self.layer.bias is not None:
            self.layer.bias.mul_(scale)


def total_kl(layers: Collection[GroupNoisyLayer]) -> Tensor:
    """KL from the prior, summed over weights and scales of all layers."""
    weights, logarithms = [layer.layer.weight for layer in layers], [layer.log_variance for layer in layers]
    of_weights = summed_kl(gaussian_kl_and_slopes, weights, logarithms)
    return scales_kl([layer.scale for layer in layers]) + of_weights


def scales_kl(scales: Sequence[LogUniformScale | HorseshoeScale]) -> Tensor:
    """KL from the prior, summed over the scales of all layers."""
    uniform = [scale for scale in scales if isinstance(scale, LogUniformScale)]
    others = [scale.kl() for scale in scales if isinstance(scale, HorseshoeScale)]
    if uniform:
        means, logarithms = [one.mean for one in uniform], [one.log_variance for one in uniform]
        others.append(summed_kl(log_uniform_kl_and_slopes, means, logarithms))
    return torch.stack(others).sum()


def prune(run: Run) -> Masks:
    """Train with noise and KL, drop the units behind the valley of every layer, deploy W = E[z] mu."""
    s = run.settings
    swapped = Swapped(run.model, run.untied, lambda _, layer: GroupNoisyLayer(layer, s.scale_prior, s.variance_rate))
    noisy = swapped.wrappers
    kl_weight = torch.zeros((), device=run.device)
    limit = 2 * math.log(s.largest_deviation)

    def penalty() -> Tensor:
        return kl_weight * total_kl(noisy.values())

    # Only where the input comes in, as the authors do: there too much noise is a local optimum from which training does
    # not return; elsewhere noisy weights are what makes useless units worthless.
    first = next(layer for layer in (noisy.get(one.name) for one in run.structure.layers) if layer is not None)

    def clamp() -> None:
        first.log_variance.clamp_(limit)

    def masks() -> Masks:
        plain = {name: torch.ones_like(w, dtype=torch.bool) for name, w in run.weights().items() if name not in noisy}
        threshold = s.log_alpha_threshold if s.element_sparsity else None
        return {name: layer.mask(threshold) for name, layer in noisy.items()} | plain

    def on_epoch(done: float, _: float) -> None:
        kl_weight.fill_(run.ramped_strength(done) / run.predictions)

    run.train(
        "prune",
        s.prune_epochs,
        network=swapped.network,
        penalty=penalty,
        after=clamp,
        on_epoch=on_epoch,
        current=masks,
        decay=False,
    )
    result = masks()
    for layer in noisy.values():
        layer.fold()
    run.model.load_state_dict(swapped.plain().state_dict())
    return result
