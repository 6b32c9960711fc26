"""Sparse variational dropout: Molchanov, Ashukha and Vetrov (2017), arXiv:1701.05369."""

from collections.abc import Collection, Iterable

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


def add_noise(mean: Tensor, variance: Tensor) -> Tensor:
    """A sample of N(mean, variance), the local reparametrisation; the variance's root has a finite slope at 0."""
    return mean + torch.sqrt(variance.float() + SMALLEST_SQUARE).to(mean) * torch.randn_like(mean)


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
        variance = apply(self.layer, x.square(), torch.exp(self.log_variance()), None)
        return add_noise(self.layer(x), variance)


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All entries in a row, (n,): many small layers are then the work of one, in fewer kernels on a GPU."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def total_kl(layers: Collection[NoisyLayer]) -> Tensor:
    """KL from the prior, summed over the weights of all layers."""
    log_variance = flat(layer.log_variance() for layer in layers)
    return log_uniform_kl(log_alpha_of(log_variance, flat(layer.layer.weight for layer in layers))).sum()


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

    run.train("prune", s.prune_epochs, network=swapped.network, penalty=penalty, on_epoch=on_epoch, current=masks)
    result = masks()
    run.model.load_state_dict(swapped.plain().state_dict())
    return result
