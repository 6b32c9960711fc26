"""What every support model offers, and what inference on it returns."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bayesprune.messages import checked_evidence


@dataclass(frozen=True)
class Extrinsic:
    """v_{h->s}: what the structure says about each weight, its own evidence left out (paper (16), (36)).

    logit: same shape and dtype as the evidence, ln v(1)/v(0), the prior's unary term included.
    iterations: of message passing; 1 where inference is exact.
    change: largest change of a log message in the last iteration, in nats; 0 where inference is exact.
    """

    logit: Tensor
    iterations: int
    change: float
    converged: bool

    @property
    def status(self) -> str:
        """One line for people, with a remedy if there is something to remedy."""
        if self.converged:
            return f"converged after {self.iterations} iteration{'s' if self.iterations != 1 else ''}"
        return (
            f"not converged after {self.iterations} iterations (a message still changes by {self.change:.2g} nats); "
            "try more iterations, damping=0.5, or a weaker coupling"
        )


Kind = Literal["probability", "real"]
LARGEST_EVIDENCE = 1e4  # nats; infinite evidence would make a log evidence infinite


def uniform(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Uniform numbers on the generator's device."""
    return torch.rand(shape, generator=generator, device=generator.device if generator is not None else None)


class Support(ABC):
    """A structured distribution p(s) over the binary supports of a tensor (paper II-C)."""

    # Which fields empirical Bayes may change, and on what scale: see `bayesprune.supports.learn`.
    learnable: ClassVar[Mapping[str, Kind]]

    def extrinsic(self, evidence_logit: Tensor, *, batch_dims: int | None = None) -> Extrinsic:
        """Return v_{h->s} for evidence v_{eta->s}, given as ln v(1)/v(0) (paper (17)).

        evidence_logit: any shape and floating dtype; the first `batch_dims` dimensions count independent tensors (an
        ensemble).  Values may be as large as +-1000 nats or infinite; NaN is an error.
        """
        evidence = checked_evidence(evidence_logit)
        batched, shape = self._batched(evidence, batch_dims)
        if evidence.numel() == 0:
            return Extrinsic(evidence_logit.detach().clone(), 0, 0.0, True)
        result = self._extrinsic(batched)
        logit = result.logit.reshape(shape).to(evidence_logit.dtype)
        return Extrinsic(logit, result.iterations, result.change, result.converged)

    def log_evidence(self, evidence_logit: Tensor, *, batch_dims: int | None = None) -> float:
        """ln sum_s p(s) exp(sum_n s_n evidence_n): what empirical Bayes maximises; Bethe's value on loopy grids."""
        return float(self._log_evidence(self._evidence_in_double(evidence_logit, batch_dims), self._values()))

    def sample(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        """Draw supports of a shape from the prior, bool, on the generator's device, to look at what a setting means."""
        blank = torch.empty(shape, device="meta")
        batched, _ = self._batched(blank, None)
        if blank.numel() == 0:
            return torch.empty(shape, dtype=torch.bool)
        return self._sample(tuple(batched.shape), generator).reshape(shape)

    @abstractmethod
    def _sample(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Draw (batch, *sites), none of them 0."""

    @abstractmethod
    def _extrinsic(self, evidence: Tensor) -> Extrinsic:
        """Inference on (batch, *sites), float32 or float64, not empty, free of NaN."""

    @abstractmethod
    def _log_evidence(self, evidence: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """The log evidence of (batch, *sites) as a differentiable function of the learnable `values`."""

    def _site_dims(self, evidence: Tensor) -> int | None:
        """How many trailing dimensions belong to one tensor, where the parameters say so."""
        return None

    def _batched(self, evidence: Tensor, batch_dims: int | None) -> tuple[Tensor, torch.Size]:
        """Merge the batch dimensions into one: (*batch, *sites) -> (batch, *sites), with the shape to go back to."""
        shape = evidence.shape
        site_dims = self._site_dims(evidence)
        if batch_dims is None:
            batch_dims = 0 if site_dims is None else max(0, evidence.ndim - site_dims)
        if not 0 <= batch_dims <= max(0, evidence.ndim - 1):
            raise ValueError(
                f"batch_dims must leave at least one dimension of evidence of shape {tuple(shape)}, got {batch_dims}"
            )
        if site_dims is not None and evidence.ndim - batch_dims != site_dims:
            raise ValueError(
                f"this {type(self).__name__} has {site_dims} axes, but evidence of shape {tuple(shape)} with "
                f"batch_dims={batch_dims} leaves {evidence.ndim - batch_dims}; give one value per axis or a single one"
            )
        sites = shape[batch_dims:] if evidence.ndim else (1,)
        return evidence.reshape(math.prod(shape[:batch_dims]), *sites), shape

    def _evidence_in_double(self, evidence_logit: Tensor, batch_dims: int | None) -> Tensor:
        """Evidence (batch, *sites) for sums over all states: float64 on the CPU, infinite values made large."""
        evidence = checked_evidence(evidence_logit).double().cpu().clamp(-LARGEST_EVIDENCE, LARGEST_EVIDENCE)
        return self._batched(evidence, batch_dims)[0]

    def _values(self) -> dict[str, Tensor]:
        return {name: torch.tensor(getattr(self, name), dtype=torch.float64) for name in self.learnable}


def checked_probability(name: str, value: float) -> float:
    """Return the value, or raise ValueError if it is not strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(
            f"{name} must be a probability strictly between 0 and 1, got {value}; "
            "for a certain outcome use a value near the border, such as 1e-6"
        )
    return value


def logit(probability: float) -> float:
    """ln p/(1-p)."""
    return math.log(probability) - math.log1p(-probability)
