"""One training step of all members, eager or as one CUDA graph that serves all epochs."""

import torch
from torch import Tensor
from torch.func import vmap

from bayesprune.frontier.stack import Stack
from bayesprune.likelihoods import Likelihood
from bayesprune.turbo.training import EAGER_STEPS

BETAS, EPSILON = (0.9, 0.999), 1e-8  # those of torch.optim.Adam


class EnsembleStep:
    """Forward, backward, the prior's pull, Adam, masks: called with a batch, returns the members' losses, (members,).

    Everything that changes between epochs is a tensor like `stack.flat`, changed in place: rates (learning rates), pull
    (of the prior, 0 without), decay (L2, through Adam as in torch.optim.Adam), mask (1 where a parameter lives).
    """

    def __init__(self, stack: Stack, likelihood: Likelihood, decay: Tensor) -> None:
        self.stack, self.likelihood, self.decay = stack, likelihood, decay
        flat = stack.flat.detach()
        self.rates, self.pull, self.mask = torch.zeros_like(flat), torch.zeros_like(flat), torch.ones_like(flat)
        self.first, self.second = torch.zeros_like(flat), torch.zeros_like(flat)
        self.steps = torch.zeros((), dtype=torch.float64, device=flat.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._done = 0
        self._x = self._y = self._losses = torch.empty(0)

    def forget(self) -> None:
        """Start Adam anew."""
        for moment in (self.first, self.second, self.steps):
            moment.zero_()

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        self._done += 1
        if not x.is_cuda or self._done <= EAGER_STEPS:
            return self._step(x, y)
        if self._graph is None:
            self._capture(x, y)
        assert self._graph is not None
        self._x.copy_(x)
        self._y.copy_(y)
        self._graph.replay()
        return self._losses

    def _capture(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x.clone(), y.clone()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._losses = self._step(self._x, self._y)

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        flat = self.stack.flat
        outputs = self.stack.outputs(self.stack.views(flat), x)
        losses = member_losses(self.likelihood, outputs, y)
        # The members share nothing, so the gradient of the sum is that of each.
        (gradient,) = torch.autograd.grad(losses.sum(), flat)
        with torch.no_grad():
            self._adam(gradient.addcmul_(self.pull + self.decay, flat))
            flat.mul_(self.mask)
        return losses.detach()

    def _adam(self, gradient: Tensor) -> None:
        self.steps.add_(1)
        self.first.lerp_(gradient, 1 - BETAS[0])
        self.second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        correction = (1 - BETAS[0] ** self.steps, (1 - BETAS[1] ** self.steps).sqrt())
        size = self.second.sqrt().div_(correction[1]).add_(EPSILON)
        self.stack.flat.addcdiv_(self.rates * self.first / correction[0], size, value=-1)


def member_losses(likelihood: Likelihood, outputs: Tensor, y: Tensor) -> Tensor:
    """The negative log-likelihood of every member, (members,); outputs: (members, n, classes)."""

    def one(output: Tensor) -> Tensor:
        return likelihood.negative_log_likelihood(output, y)

    losses: Tensor = vmap(one)(outputs)
    return losses
