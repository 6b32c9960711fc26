"""Images changed so that a network errs: the fast gradient sign method (paper Fig. 12) and projected gradient ascent.

Strengths are in pixels between 0 and 1, whatever the data were normalised by.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from bayesprune.data import DataSet
from bayesprune.likelihoods import Likelihood

WHITE: Final = {"digits": 16.0}  # the largest raw value; that of all other data sets is 255
LARGEST_BYTE: Final = 255.0
STEPS: Final = 10
STRIDE: Final = 2.5  # all steps together are this many epsilons long: the whole ball can be reached


@dataclass(frozen=True, eq=False)
class Bounds:
    """Where black (pixel 0) and white (pixel 1) lie in the normalised domain: `lower` and `upper`.

    Both broadcast to an image (c, h, w): (c, 1, 1), or () where all channels are alike.
    """

    lower: Tensor
    upper: Tensor

    def __post_init__(self) -> None:
        if not bool((self.lower < self.upper).all()):
            raise ValueError(f"lower must be below upper, got {self.lower} and {self.upper}; swap them")

    @property
    def pixel(self) -> Tensor:
        """How long one pixel unit is in the normalised domain."""
        return self.upper - self.lower

    def clip(self, x: Tensor) -> Tensor:
        """The nearest valid images to `x` (n, c, h, w)."""
        return torch.minimum(torch.maximum(x, self.lower), self.upper)

    @classmethod
    def of(cls, data: DataSet) -> "Bounds":
        """Those of a data set by name, normalised as x = (raw - mean) / std, on the device of its mean."""
        shape = (-1, *[1] * (len(data.input_shape) - 1))
        mean, std = data.mean.reshape(shape), data.std.reshape(shape)
        white = WHITE.get(data.name, LARGEST_BYTE)
        # The same operations in the same order as for the images: black and white pixels lie on the bounds exactly.
        return cls((0.0 - mean) / std, (white - mean) / std)


def fgsm(
    model: nn.Module, likelihood: Likelihood, x: Tensor, y: Tensor, epsilon: float | Tensor, bounds: Bounds
) -> Tensor:
    """Every pixel moved by epsilon in the direction in which the loss grows, then clipped: (n, ...) as `x`.

    x + epsilon sign(grad_x -log p(y | x)) with the model in evaluation mode.  Parameters, their gradients and the mode
    of every module stay as they are.

    Args:
        model: returns the outputs that `likelihood` takes.
        likelihood: whose negative logarithm is the loss.
        x: images (n, ...) in the normalised domain, within `bounds`.
        y: their targets (n, ...).
        epsilon: strength in pixel units; one number, or one for each image (n,).
        bounds: black and white.
    """
    _check(epsilon)
    if not isinstance(epsilon, Tensor) and epsilon == 0:
        return x.detach().clone()
    return step_along(x.detach(), ascent(model, likelihood, x, y), epsilon, bounds)


def pgd(
    model: nn.Module,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    epsilon: float,
    bounds: Bounds,
    *,
    steps: int = STEPS,
    step_size: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Projected gradient ascent: several signed steps, after each back into the ball of epsilon and the valid range.

    Args:
        model, likelihood, x, y, epsilon, bounds: as for `fgsm`.
        steps: how many.
        step_size: of one step in pixel units; by default 2.5 epsilon / steps.
        generator: draws the start from the ball, on its own device, so that a CPU generator gives the same start
            everywhere; None starts at the images.
    """
    _check(epsilon)
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}; try {STEPS}")
    x = x.detach()
    if epsilon == 0:
        return x.clone()
    step_size = STRIDE * epsilon / steps if step_size is None else step_size
    radius = epsilon * bounds.pixel
    lowest, highest = bounds.clip(x - radius), bounds.clip(x + radius)
    moved = x
    if generator is not None:
        start = torch.rand(x.shape, generator=generator, device=generator.device, dtype=x.dtype).to(x.device)
        moved = bounds.clip(x + (2 * start - 1) * radius)
    for _ in range(steps):
        moved = moved + step_size * bounds.pixel * ascent(model, likelihood, moved, y)
        moved = torch.minimum(torch.maximum(moved, lowest), highest)
    return moved


def ascent(model: nn.Module, likelihood: Likelihood, x: Tensor, y: Tensor) -> Tensor:
    """The sign of the loss's gradient at `x`, shaped as it; the model in evaluation mode."""
    with evaluating(model), torch.enable_grad():
        x = x.detach().requires_grad_()
        loss = likelihood.negative_log_likelihood(model(x), y)
        (gradient,) = torch.autograd.grad(loss, x)
    return gradient.sign()


def step_along(x: Tensor, direction: Tensor, epsilon: float | Tensor, bounds: Bounds) -> Tensor:
    """`x` moved by epsilon pixels along `direction`, both (n, ...), and clipped."""
    if isinstance(epsilon, Tensor):
        epsilon = epsilon.reshape(-1, *[1] * (x.ndim - 1))
    return bounds.clip(x + epsilon * bounds.pixel * direction)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module has the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _check(epsilon: float | Tensor) -> None:
    """A tensor is taken as it is: to look into one, a GPU would have to stop."""
    if not isinstance(epsilon, Tensor) and not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon must be between 0 and 1 pixels, got {epsilon}; try 0.05")
