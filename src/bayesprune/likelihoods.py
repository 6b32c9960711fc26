"""What the data say about a network's output: the likelihoods of paper section III-A, eqs. (7) to (9)."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional


class Likelihood(nn.Module, ABC):
    """The probability of targets given outputs, eq. (7): examples are independent."""

    @abstractmethod
    def negative_log_likelihood(self, output: Tensor, target: Tensor, variance: Tensor | None = None) -> Tensor:
        """Return -log p(target | output) in nats, the mean over the n examples: a scalar with gradient.

        Multiply by the number of training examples for the data term of the bound.
        """

    def divergence(self, output: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
        """Return KL(p(. | teacher) || p(. | output)) in nats, the mean over the n examples: a scalar with gradient.

        teacher: the output of another network for the same examples.
        """
        raise ValueError(f"{type(self).__name__} does not say how far two outputs are apart; leave distil at 0")

    def predictions(self, target: Tensor) -> int:
        """Over how many predictions the mean of these targets is: the number of examples, but for maps of classes."""
        return len(target)

    @abstractmethod
    def score(self, output: Tensor, target: Tensor) -> dict[str, float]:
        """Return the figures people report, for the examples given; pass the whole set, not batches."""


@final
class Classification(Likelihood):
    """Class probabilities softmax(output), eq. (9): the negative log-likelihood is the cross-entropy.

    Label smoothing replaces the target by (1 - s) of it and s spread over all classes.  It is a regulariser:
    with s > 0 the value is no longer a likelihood.
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}; try 0.1")
        self.label_smoothing = label_smoothing

    def negative_log_likelihood(self, output: Tensor, target: Tensor, variance: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy in nats of logits (n, classes) and class indices (n,).

        Of maps, logits (n, classes, ...) and class indices (n, ...), every place is a prediction.
        """
        _check_classes(output, target)
        if variance is not None:
            raise ValueError("classification has no noise variance, got one; leave it out")
        return functional.cross_entropy(output, target, label_smoothing=self.label_smoothing)

    def divergence(self, output: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
        """Return the mean of KL(softmax(teacher / T) || softmax(output / T)) times T^2; both are (n, classes, ...).

        T^2 keeps the gradient's size: that of the KL alone falls with 1 / T^2 (Hinton 2015).
        """
        _check_same_shape(output, teacher)
        precision = torch.promote_types(output.dtype, torch.float32)  # of half precision too few digits are left
        own, taught = (functional.log_softmax(one.to(precision) / temperature, 1) for one in (output, teacher))
        nats = (taught.exp() * (taught - own)).sum(1)
        return nats.mean() * temperature**2

    def predictions(self, target: Tensor) -> int:
        """The number of class indices."""
        return target.numel()

    def score(self, output: Tensor, target: Tensor) -> dict[str, float]:
        """Return the accuracy, the share of predictions whose highest logit is that of the target."""
        _check_classes(output, target)
        return {"accuracy": (output.argmax(1) == target).double().mean().item()}


@dataclass(frozen=True)
class KnownNoise:
    """One noise variance for all examples, known beforehand."""

    variance: float

    def __post_init__(self) -> None:
        _check_positive(self.variance)


@dataclass(frozen=True)
class PerExampleNoise:
    """A noise variance for each example, passed with the batch: sigma_d^2 of eq. (8)."""


@dataclass(frozen=True)
class LearnedNoise:
    """A noise variance learned with the weights, one for all outputs or one for each of `outputs`."""

    initial_variance: float = 1.0
    outputs: int | None = None

    def __post_init__(self) -> None:
        _check_positive(self.initial_variance)
        if self.outputs is not None and self.outputs < 1:
            raise ValueError(f"outputs must be at least 1, got {self.outputs}; None shares one variance")


@final
class GaussianRegression(Likelihood):
    """Targets are Gaussian around the output, eq. (8), independent between outputs.

    `noise` is a variance (a plain number means `KnownNoise`), `PerExampleNoise()` or `LearnedNoise()`.
    Learned noise is the parameter `log_variance` () or (outputs,): give it to the optimiser with the weights.
    """

    log_variance: Tensor | None

    def __init__(self, noise: float | KnownNoise | PerExampleNoise | LearnedNoise = 1.0) -> None:
        super().__init__()
        self.noise = KnownNoise(noise) if isinstance(noise, int | float) else noise
        if isinstance(self.noise, PerExampleNoise):
            self.register_buffer("log_variance", None)
        elif isinstance(self.noise, KnownNoise):
            # float64 costs nothing: a tensor without dimensions takes the dtype of what it meets
            known = torch.tensor(math.log(self.noise.variance), dtype=torch.float64)
            self.register_buffer("log_variance", known, persistent=False)
        else:
            shape = () if self.noise.outputs is None else (self.noise.outputs,)
            initial = torch.full(shape, math.log(self.noise.initial_variance))
            self.log_variance = nn.Parameter(initial)

    def negative_log_likelihood(self, output: Tensor, target: Tensor, variance: Tensor | None = None) -> Tensor:
        """Return 1/2 [ln(2 pi variance) + (target - output)^2 / variance], summed over outputs, in the mean.

        `output` and `target` are (n,) or (n, outputs); so is `variance`, which only `PerExampleNoise` takes.
        """
        _check_targets(output, target)
        log_variance = self._log_variance(output, variance)
        squares = (target - output).square() * torch.exp(-log_variance)
        nats = 0.5 * (math.log(2 * math.pi) + log_variance + squares)
        return nats.sum() / output.shape[0]

    def divergence(self, output: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
        """Return (teacher - output)^2 / (2 variance), summed over outputs, in the mean; a temperature changes nothing.

        The KL of Gaussians of one variance.  `PerExampleNoise` counts as a variance of 1 here.
        """
        _check_same_shape(output, teacher)
        variance = torch.ones(()) if self.log_variance is None else self.log_variance.detach().exp()
        return ((teacher - output).square() / (2 * variance.to(output.device))).sum() / output.shape[0]

    def score(self, output: Tensor, target: Tensor) -> dict[str, float]:
        """Return the root of the mean squared error and r2, the share of the targets' variance explained.

        Both pool all outputs; the variance is that around each output's mean.  Constant targets have r2 nan.
        """
        _check_targets(output, target)
        residual = (target.double() - output.double()).square()
        spread = (target.double() - target.double().mean(0)).square().sum().item()
        r2 = 1 - residual.sum().item() / spread if spread > 0 else math.nan
        return {"rmse": residual.mean().sqrt().item(), "r2": r2}

    def _log_variance(self, output: Tensor, variance: Tensor | None) -> Tensor:
        """Return the log variance in a shape that broadcasts with `output` (n, ...)."""
        if (variance is None) == isinstance(self.noise, PerExampleNoise):
            rule = "needs" if variance is None else "takes no"
            raise ValueError(
                f"{type(self.noise).__name__} {rule} variance with the batch; "
                "pass one number per example with PerExampleNoise() and none otherwise"
            )
        if variance is None:
            assert self.log_variance is not None
            if self.log_variance.ndim and self.log_variance.shape != output.shape[1:]:
                raise ValueError(
                    f"LearnedNoise has {len(self.log_variance)} outputs, got output {tuple(output.shape)}; "
                    "set outputs to its last dimension"
                )
            return self.log_variance
        if variance.shape not in (output.shape, output.shape[:1]):
            raise ValueError(
                f"variance must have the output's shape {tuple(output.shape)} or {tuple(output.shape[:1])}, "
                f"got {tuple(variance.shape)}; give one number per example"
            )
        # Only on the CPU: a GPU would have to stop for this.
        if variance.device.type == "cpu" and not bool((variance > 0).all()):
            lowest = variance.min().item()
            raise ValueError(f"variance must be positive, got {lowest}; try a floor such as 1e-6")
        return variance.log().reshape(*variance.shape, *[1] * (output.ndim - variance.ndim))


def _check_positive(variance: float) -> None:
    if not 0 < variance < math.inf:
        raise ValueError(f"a noise variance must be positive and finite, got {variance}; try 1.0")


def _check_classes(output: Tensor, target: Tensor) -> None:
    expected = (*output.shape[:1], *output.shape[2:])
    if output.ndim < 2 or target.shape != expected or target.dtype != torch.int64:
        remedy = "make the targets (n,) integers, or (n, ...) for maps (n, classes, ...)"
        if target.is_floating_point():
            remedy = "for regression pass likelihood=GaussianRegression(LearnedNoise())"
        raise ValueError(
            "classification needs logits (n, classes) and int64 class indices (n,), got "
            f"{tuple(output.shape)} and {target.dtype} {tuple(target.shape)}; {remedy}"
        )


def _check_same_shape(output: Tensor, teacher: Tensor) -> None:
    if output.shape != teacher.shape:
        raise ValueError(
            f"a network can learn from outputs of its own shape {tuple(output.shape)} only, got {tuple(teacher.shape)}"
        )


def _check_targets(output: Tensor, target: Tensor) -> None:
    # (n, 1) against (n,) would broadcast to (n, n) and train on nonsense
    if output.shape != target.shape or output.ndim not in (1, 2) or not output.shape[0]:
        raise ValueError(
            "regression needs output and target of one shape, (n,) or (n, outputs), got "
            f"{tuple(output.shape)} and {tuple(target.shape)}; try target.reshape(output.shape)"
        )
