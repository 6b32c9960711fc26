"""The 2x2 table of potentials on one edge, and what a message becomes when it passes through it."""

import math
from typing import NamedTuple

from torch import Tensor

from bayesprune.messages.evidence import odds


class Table(NamedTuple):
    """Potentials T[from][to] of an edge from a lower to a higher index, or from parent to child; all positive."""

    t00: float
    t01: float
    t10: float
    t11: float

    @classmethod
    def from_transitions(cls, p01: float, p10: float) -> "Table":
        """Transition probabilities of paper (2) and (3): p01 = p(next=1 | this=0), p10 = p(next=0 | this=1)."""
        return cls(1 - p01, p01, p10, 1 - p10)

    @classmethod
    def from_coupling(cls, coupling: float) -> "Table":
        """Ising factor exp(J) between equal and exp(-J) between different neighbours, scaled to at most 1."""
        same, different = math.exp(min(0.0, 2 * coupling)), math.exp(min(0.0, -2 * coupling))
        return cls(same, different, different, same)

    @property
    def reversed(self) -> "Table":
        """The same edge seen from its other end."""
        return Table(self.t00, self.t10, self.t01, self.t11)

    @property
    def is_flat(self) -> bool:
        """Whether the edge says nothing, so that its messages are 1."""
        return self.t00 == self.t01 == self.t10 == self.t11

    @property
    def strength(self) -> float:
        """Largest |log message| in nats that a site can receive through its two edges of this kind together."""

        def largest(t: "Table") -> float:
            return max(abs(math.log(t.t01 / t.t00)), abs(math.log(t.t11 / t.t10)))

        return largest(self) + largest(self.reversed)


def through_table(logit: Tensor, table: Table) -> Tensor:
    """Send log-odds through an edge, paper (37) with the sum over the sender's states; any shape.

    ln [(T01 + T11 r) / (T00 + T10 r)] with r = e^logit; bounded by the table, so saturated input is exact.
    """
    r = odds(logit)
    return ((table.t01 + table.t11 * r) / (table.t00 + table.t10 * r)).log_()
