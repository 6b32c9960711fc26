"""No structure: every weight is alive with the same probability."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayesprune.supports.base import Extrinsic, Kind, Support, checked_probability, logit, uniform


@dataclass(frozen=True)
class Bernoulli(Support):
    """Independent supports, p(s_n = 1) = activity."""

    activity: float
    learnable: ClassVar[Mapping[str, Kind]] = {"activity": "probability"}

    def __post_init__(self) -> None:
        checked_probability("activity", self.activity)

    def _extrinsic(self, evidence: Tensor) -> Extrinsic:
        return Extrinsic(torch.full_like(evidence, logit(self.activity)), 1, 0.0, True)

    def _log_evidence(self, evidence: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        field = torch.logit(values["activity"])
        return (softplus(evidence + field) - softplus(field)).sum()

    def _sample(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        return uniform(shape, generator) < self.activity
