"""Markov random fields on N-dimensional lattices: blocks of live weights (paper II-C)."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayesprune.messages import Table, grid_messages
from bayesprune.supports.base import Extrinsic, Kind, Support, checked_probability, logit, uniform

PerAxis = float | tuple[float, ...]
LogTables = list[tuple[Tensor, ...]]  # ln (T00, T01, T10, T11) of each axis


@dataclass(frozen=True)
class PairwiseGrid(Support):
    """A lattice with one unary logit and one 2x2 table of potentials per axis; inference is loopy sum-product.

    iterations, tolerance, damping: message passing stops when no log message changes by more than `tolerance` nats, or
    after `iterations`; `damping` is the share of the old message kept.  The result says which of the two it was.
    sweeps: of Gibbs sampling when a sample is drawn.
    """

    iterations: int = field(default=200, kw_only=True)
    tolerance: float = field(default=1e-5, kw_only=True)
    damping: float = field(default=0.2, kw_only=True)
    sweeps: int = field(default=200, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("iterations", "sweeps"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value}")
        if not 0 <= self.damping < 1:
            raise ValueError(f"damping must be in [0, 1), got {self.damping}; try 0.5")
        if not self.tolerance >= 0:
            raise ValueError(f"tolerance must be at least 0 nats, got {self.tolerance}; try 1e-5")

    @property
    @abstractmethod
    def unary_logit(self) -> float:
        """The prior's own factor at every site."""

    @property
    @abstractmethod
    def tables(self) -> Table | tuple[Table, ...]:
        """Potentials between neighbours: one table for every axis alike, or one for each."""

    @abstractmethod
    def _log_factors(self, values: Mapping[str, Tensor], axes: int) -> tuple[Tensor, LogTables]:
        """Unary logit and ln (T00, T01, T10, T11) of each axis as functions of the learnable values."""

    def _site_dims(self, evidence: Tensor) -> int | None:
        return None if isinstance(self.tables, Table) else len(self.tables)

    def _tables(self, axes: int) -> Sequence[Table]:
        return [self.tables] * axes if isinstance(self.tables, Table) else self.tables

    def _extrinsic(self, evidence: Tensor) -> Extrinsic:
        result = grid_messages(
            evidence + self.unary_logit,
            self._tables(evidence.ndim - 1),
            iterations=self.iterations,
            tolerance=self.tolerance,
            damping=self.damping,
        )
        received = result.received_logit + self.unary_logit
        return Extrinsic(received, result.iterations, result.change, result.converged)

    def _log_evidence(self, evidence: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        nothing = torch.zeros_like(evidence[:1])  # the prior's normaliser, the same for every tensor of the batch
        return self._bethe(evidence, values) - len(evidence) * self._bethe(nothing, values)

    def _bethe(self, evidence: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """Bethe's ln Z.  It is stationary in the messages, so its gradient in `values` may take them as given."""
        axes = evidence.ndim - 1
        unary, log_tables = self._log_factors(values, axes)
        tables = [Table(*(t.detach().exp().item() for t in table)) for table in log_tables]
        settled = grid_messages(
            evidence + unary.item(),
            tables,
            iterations=self.iterations,
            tolerance=self.tolerance,
            damping=self.damping,
            keep_messages=True,
        )
        assert settled.messages is not None
        messages = settled.messages.log()  # (2 * axes, batch, *sites)
        belief = evidence + unary + messages.sum(0)
        neighbours = torch.zeros_like(belief)
        total = torch.zeros((), dtype=belief.dtype)
        for axis, (t00, t01, t10, t11) in enumerate(log_tables):
            dim, edges = axis + 1, belief.shape[axis + 1] - 1
            if edges < 1:
                continue
            from_lower = (belief - messages[2 * axis + 1]).narrow(dim, 0, edges)  # cavities at both ends of an edge
            from_higher = (belief - messages[2 * axis]).narrow(dim, 1, edges)
            states = (
                t00.expand_as(from_lower),
                t01 + from_higher,
                t10 + from_lower,
                t11 + from_lower + from_higher,
            )
            total = total + torch.logsumexp(torch.stack(states), 0).sum()
            neighbours.narrow(dim, 0, edges).add_(1)
            neighbours.narrow(dim, 1, edges).add_(1)
        return total + ((1 - neighbours) * softplus(belief)).sum()

    def _sample(self, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
        """Gibbs sampling in a checkerboard order; `sweeps` should grow near or above the critical coupling."""
        unary, log_tables = self._log_factors(self._values(), len(shape) - 1)
        device = generator.device if generator is not None else None
        log_tables = [tuple(t.to(device) for t in table) for table in log_tables]
        alive = uniform(shape, generator) < torch.sigmoid(unary.to(device))
        return gibbs(alive, unary.to(device), log_tables, self.sweeps, generator)


def conditional_logits(alive: Tensor, unary: Tensor, log_tables: LogTables) -> Tensor:
    """Log-odds of every site given all others, (batch, *sites); `unary` a number or a tensor like `alive`."""
    logits = unary.expand(alive.shape)
    for dim, (t00, t01, t10, t11) in enumerate(log_tables, start=1):
        edges = alive.shape[dim] - 1
        lower, higher = alive.narrow(dim, 0, edges), alive.narrow(dim, 1, edges)
        border = torch.zeros_like(alive.narrow(dim, 0, 1), dtype=logits.dtype)
        from_lower = torch.where(lower, t11 - t10, t01 - t00)
        from_higher = torch.where(higher, t11 - t01, t10 - t00)
        logits = logits + torch.cat((border, from_lower), dim) + torch.cat((from_higher, border), dim)
    return logits


def gibbs(
    alive: Tensor, unary: Tensor, log_tables: LogTables, sweeps: int, generator: torch.Generator | None
) -> Tensor:
    """Resample supports (batch, *sites) `sweeps` times, even and odd sites in turn."""
    odd = torch.zeros(alive.shape[1:], dtype=torch.long, device=alive.device)
    for axis, size in enumerate(odd.shape):
        odd = odd + torch.arange(size, device=alive.device).reshape(-1, *(1,) * (odd.ndim - axis - 1))
    for half_sweep in range(2 * sweeps):
        probability = torch.sigmoid(conditional_logits(alive, unary, log_tables))
        drawn = uniform(tuple(alive.shape), generator) < probability
        alive = torch.where(odd % 2 == half_sweep % 2, drawn, alive)
    return alive


@dataclass(frozen=True)
class IsingGrid(PairwiseGrid):
    """Ising model: field logit(activity), factor exp(J) between equal and exp(-J) between different neighbours.

    coupling: one J for all axes of the evidence, or a tuple with one per axis (further leading dimensions of the
    evidence are then a batch).  Each neighbour's message is bounded by 2 |J| nats.
    """

    activity: float
    coupling: PerAxis
    learnable: ClassVar[Mapping[str, Kind]] = {"activity": "probability", "coupling": "real"}

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_probability("activity", self.activity)
        _check_per_axis("coupling", self.coupling)
        for value in _each(self.coupling):
            if not abs(value) <= 50:
                raise ValueError(f"coupling must be a number of nats between -50 and 50, got {value}; try 0.5")

    @classmethod
    def from_transitions(
        cls,
        p01: PerAxis,
        p10: PerAxis,
        *,
        iterations: int = 200,
        tolerance: float = 1e-5,
        damping: float = 0.2,
        sweeps: int = 200,
    ) -> "TransitionGrid":
        """The paper's grid: the product of row and column chains with their transition probabilities."""
        return TransitionGrid(p01, p10, iterations=iterations, tolerance=tolerance, damping=damping, sweeps=sweeps)

    @property
    def unary_logit(self) -> float:
        return logit(self.activity)

    @property
    def tables(self) -> Table | tuple[Table, ...]:
        if isinstance(self.coupling, tuple):
            return tuple(Table.from_coupling(j) for j in self.coupling)
        return Table.from_coupling(self.coupling)

    def _log_factors(self, values: Mapping[str, Tensor], axes: int) -> tuple[Tensor, LogTables]:
        couplings = values["coupling"].expand(axes)
        return torch.logit(values["activity"]), [(j, -j, -j, j) for j in couplings]


@dataclass(frozen=True)
class TransitionGrid(PairwiseGrid):
    """The product of Markov chains along every axis, normalised: paper (2) and (3) as pairwise factors.

    p01, p10: one for all axes, or a tuple with one per axis.  The paper's Module B has pairwise factors only
    (paper IV-C), so the first sites carry no factor of their own here.  Multiplying chains counts the density twice:
    without evidence fewer weights are alive than p01 / (p01 + p10); IsingGrid keeps density and clustering apart.
    """

    p01: PerAxis
    p10: PerAxis
    learnable: ClassVar[Mapping[str, Kind]] = {"p01": "probability", "p10": "probability"}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("p01", "p10"):
            _check_per_axis(name, getattr(self, name))
            for value in _each(getattr(self, name)):
                checked_probability(name, value)
        lengths = {len(value) for value in (self.p01, self.p10) if isinstance(value, tuple)}
        if len(lengths) > 1:
            raise ValueError(f"p01 {self.p01} and p10 {self.p10} must have one value per axis, the same number of each")

    @property
    def unary_logit(self) -> float:
        return 0.0

    @property
    def tables(self) -> Table | tuple[Table, ...]:
        if not isinstance(self.p01, tuple) and not isinstance(self.p10, tuple):
            return Table.from_transitions(self.p01, self.p10)
        axes = max(len(_each(self.p01)), len(_each(self.p10)))
        pairs = zip(_each(self.p01, axes), _each(self.p10, axes), strict=True)
        return tuple(Table.from_transitions(p01, p10) for p01, p10 in pairs)

    def _log_factors(self, values: Mapping[str, Tensor], axes: int) -> tuple[Tensor, LogTables]:
        transitions = zip(values["p01"].expand(axes), values["p10"].expand(axes), strict=True)
        tables: LogTables = [
            (torch.log1p(-p01), torch.log(p01), torch.log(p10), torch.log1p(-p10)) for p01, p10 in transitions
        ]
        return torch.zeros((), dtype=torch.float64), tables


def _check_per_axis(name: str, value: object) -> None:
    if not isinstance(value, int | float) and not (isinstance(value, tuple) and value):
        raise ValueError(f"{name} must be a number or a tuple with one number per axis, got {value!r}")


def _each(value: PerAxis, axes: int = 1) -> tuple[float, ...]:
    """A value per axis: a single one is repeated."""
    return value if isinstance(value, tuple) else (value,) * axes
