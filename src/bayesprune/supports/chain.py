"""Markov chains along one axis (paper (2), (3)), visible or behind noisy emissions; inference is exact."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayesprune.messages import Table, chain_messages, through_table
from bayesprune.supports.base import Extrinsic, Kind, Support, checked_probability, uniform


@dataclass(frozen=True)
class MarkovChain(Support):
    """Rows (or columns) of supports as Markov chains, the first site from the stationary distribution.

    p01 = p(next alive | this dead): the mean gap between clusters is 1 / p01.
    p10 = p(next dead | this alive): the mean cluster is 1 / p10 long.
    axis: counted without batch dimensions.
    """

    p01: float
    p10: float
    axis: int = -1
    learnable: ClassVar[Mapping[str, Kind]] = {"p01": "probability", "p10": "probability"}

    def __post_init__(self) -> None:
        checked_probability("p01", self.p01)
        checked_probability("p10", self.p10)

    @property
    def activity(self) -> float:
        """Stationary probability that a weight is alive."""
        return self.p01 / (self.p01 + self.p10)

    def _dimension(self, evidence: Tensor) -> int:
        """The chains' dimension in (batch, *sites)."""
        dimensions = evidence.ndim - 1
        if not -dimensions <= self.axis < dimensions:
            raise ValueError(f"axis {self.axis} is not one of the {dimensions} axes of the evidence")
        return self.axis % dimensions + 1

    def _extrinsic(self, evidence: Tensor) -> Extrinsic:
        table = Table.from_transitions(self.p01, self.p10)
        received = chain_messages(evidence, table, math.log(self.p01) - math.log(self.p10), self._dimension(evidence))
        return Extrinsic(received, 1, 0.0, True)

    def _log_evidence(self, evidence: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        p01, p10 = values["p01"], values["p10"]
        predicted = torch.log(p01 / p10)
        total = torch.zeros((), dtype=evidence.dtype)
        for seen in evidence.unbind(self._dimension(evidence)):
            total = total + (softplus(seen + predicted) - softplus(predicted)).expand_as(seen).sum()
            predicted = _predict(seen + predicted, p01, p10)
        return total

    def _sample(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        drawn = uniform(shape, generator)
        dimension = self._dimension(drawn)
        first, *others = drawn.unbind(dimension)
        alive = [first < self.activity]
        for u in others:
            alive.append(torch.where(alive[-1], u >= self.p10, u < self.p01))
        return torch.stack(alive, dimension)


@dataclass(frozen=True)
class HiddenMarkov(Support):
    """Supports emitted independently by a hidden chain: clusters with holes and stray weights between them.

    p01, p10, axis: the hidden chain, as in MarkovChain.
    activity_off, activity_on: probability that a weight is alive where the hidden state is 0 or 1.
    """

    p01: float
    p10: float
    activity_off: float
    activity_on: float
    axis: int = -1
    learnable: ClassVar[Mapping[str, Kind]] = {
        "p01": "probability",
        "p10": "probability",
        "activity_off": "probability",
        "activity_on": "probability",
    }

    def __post_init__(self) -> None:
        checked_probability("activity_off", self.activity_off)
        checked_probability("activity_on", self.activity_on)
        _ = self._hidden

    @property
    def _hidden(self) -> MarkovChain:
        return MarkovChain(self.p01, self.p10, self.axis)

    def _extrinsic(self, evidence: Tensor) -> Extrinsic:
        emission = Table(1 - self.activity_off, self.activity_off, 1 - self.activity_on, self.activity_on)
        about_hidden = through_table(evidence, emission.reversed)
        return Extrinsic(through_table(self._hidden._extrinsic(about_hidden).logit, emission), 1, 0.0, True)

    def _log_evidence(self, evidence: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        off, on = torch.logit(values["activity_off"]), torch.logit(values["activity_on"])
        if_off = softplus(evidence + off) - softplus(off)  # ln of the evidence each state explains
        if_on = softplus(evidence + on) - softplus(on)
        return if_off.sum() + self._hidden._log_evidence(if_on - if_off, values)

    def _sample(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        hidden = self._hidden._sample(shape, generator)
        drawn = uniform(shape, generator)
        return torch.where(hidden, drawn < self.activity_on, drawn < self.activity_off)


def _predict(belief_logit: Tensor, p01: Tensor, p10: Tensor) -> Tensor:
    """Log-odds of the next site given those of this one."""
    alive = torch.logaddexp(torch.log(p01), torch.log1p(-p10) + belief_logit)
    dead = torch.logaddexp(torch.log1p(-p01), torch.log(p10) + belief_logit)
    return alive - dead
