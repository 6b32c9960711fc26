"""Unit -> kernel -> weight: a dead parent takes its children with it (paper, closing remark of II-C)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayesprune.messages import Table, tree_messages
from bayesprune.supports.base import Extrinsic, Kind, Support, checked_probability, logit, uniform


@dataclass(frozen=True)
class MarkovTree(Support):
    """One tree for each unit of a weight tensor; inference is exact.

    activity: probability that a root (unit) is alive.
    p01 = p(child alive | parent dead), p10 = p(child dead | parent alive), the same on every edge.
    levels: how many leading dimensions index the nodes of each level above the leaves, from the root down.  By default
        (1,) for 2-D tensors, unit -> weight, and (1, 2) for convolutions, unit -> kernel -> weight.  On the lattices of
        `Layout("lattice")` the unit is a convolution's output channel and a Linear layer's input, the paper's row.
    """

    activity: float
    p01: float
    p10: float
    levels: tuple[int, ...] | None = None
    learnable: ClassVar[Mapping[str, Kind]] = {
        "activity": "probability",
        "p01": "probability",
        "p10": "probability",
    }

    def __post_init__(self) -> None:
        for name in self.learnable:
            checked_probability(name, getattr(self, name))
        if self.levels is not None and (
            not self.levels or self.levels[0] < 0 or list(self.levels) != sorted(set(self.levels))
        ):
            raise ValueError(f"levels must be growing numbers of leading dimensions, such as (1, 2), got {self.levels}")

    def _levels(self, evidence: Tensor) -> tuple[int, ...]:
        """Levels in (batch, *sites); the batch is one more dimension that indexes roots."""
        dimensions = evidence.ndim - 1
        levels = self.levels
        if levels is None:
            levels = {1: (0,), 2: (1,)}.get(dimensions, (1, 2))
        if levels[-1] >= dimensions:
            raise ValueError(f"levels {levels} leave no leaves in a tensor of {dimensions} dimensions")
        return tuple(level + 1 for level in levels)

    def _extrinsic(self, evidence: Tensor) -> Extrinsic:
        levels = self._levels(evidence)
        table = Table.from_transitions(self.p01, self.p10)
        received = tree_messages(evidence, logit(self.activity), [table] * len(levels), levels)
        return Extrinsic(received, 1, 0.0, True)

    def _log_evidence(self, evidence: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        p01, p10 = values["p01"], values["p10"]
        total = torch.zeros((), dtype=evidence.dtype)
        gathered = evidence
        for level in reversed(self._levels(evidence)):
            if_dead = torch.logaddexp(torch.log1p(-p01), torch.log(p01) + gathered)  # ln sum_child T[0][child] ...
            if_alive = torch.logaddexp(torch.log(p10), torch.log1p(-p10) + gathered)
            total = total + if_dead.sum()
            gathered = (if_alive - if_dead).flatten(level).sum(-1)
        root = torch.logit(values["activity"])
        return total + (softplus(gathered + root) - softplus(root)).sum()

    def _sample(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        levels = self._levels(torch.empty(shape, device="meta"))
        alive = uniform(shape[: levels[0]], generator) < self.activity
        for dimensions in [*levels[1:], len(shape)]:
            drawn = uniform(shape[:dimensions], generator)
            parent = alive.reshape(*alive.shape, *(1,) * (dimensions - alive.ndim))
            alive = torch.where(parent, drawn >= self.p10, drawn < self.p01)
        return alive
