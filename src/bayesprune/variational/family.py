"""What both families of Module A have in common: q(s), moments of rho, the message to Module B."""

from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import softplus


class Posterior(NamedTuple):
    """What Module A knows about every group; all tensors (batch, *groups).

    active_logit: ln q(s=1)/q(s=0).  expected_precision: <rho>, which multiplies w^2 / 2 in the loss.
    """

    active_logit: Tensor
    expected_precision: Tensor

    @property
    def active(self) -> Tensor:
        """q(s=1)."""
        return torch.sigmoid(self.active_logit)

    @property
    def alive(self) -> Tensor:
        """s* = argmax q(s), bool (Algorithm 1)."""
        return self.active_logit > 0


StateT = TypeVar("StateT")


class Family(Protocol[StateT]):
    """A way to approximate the posterior of (w, rho, s) under independent supports with given prior logits.

    energy: sum of squared posterior means / 2 of each group; size: its number of weights; prior_logit: v_{h->s} from
    Module B as ln pi/(1-pi) (paper (16)), finite; all (batch, *groups).  State is plain data, steps are pure functions.
    """

    def start(self, energy: Tensor, size: Tensor | float, prior_logit: Tensor) -> StateT:
        """The state before the first update."""
        ...

    def update(self, state: StateT, energy: Tensor, size: Tensor | float, prior_logit: Tensor) -> StateT:
        """One round of closed-form block updates of q(rho) and q(s); the objective never decreases."""
        ...

    def posterior(self, state: StateT, energy: Tensor, size: Tensor | float) -> Posterior:
        """What the turbo loop and Module B read."""
        ...

    def expected_log_precision(self, state: StateT, energy: Tensor, size: Tensor | float) -> Tensor:
        """<ln rho>."""
        ...

    def precision_mode(self, state: StateT, energy: Tensor, size: Tensor | float) -> Tensor:
        """argmax q(rho), the paper's rho* (Algorithm 1)."""
        ...

    def objective(self, state: StateT, energy: Tensor, size: Tensor | float, prior_logit: Tensor) -> Tensor:
        """The lower bound without its data term, one value per group, to be maximised."""
        ...


def message_to_supports(posterior: Posterior, prior_logit: Tensor) -> Tensor:
    """v_{eta->s} = q(s) / v_{h->s} as a logit, what Module A tells Module B (paper (17))."""
    return posterior.active_logit - prior_logit


def support_terms(active_logit: Tensor, prior_logit: Tensor) -> Tensor:
    """<ln p(s)> + H[q(s)] = -KL(q(s) || p(s)) of independent supports, per group."""
    q = torch.sigmoid(active_logit)
    # ln sigmoid(z) = -softplus(-z).  q = 0 or 1 must not meet an infinite logarithm.
    alive = q * (softplus(-active_logit) - softplus(-prior_logit))
    dead = (1 - q) * (softplus(active_logit) - softplus(prior_logit))
    return torch.where(q > 0, alive, 0.0) + torch.where(q < 1, dead, 0.0)
