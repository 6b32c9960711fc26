"""How long message passing goes on: the same for every engine."""

from typing import NamedTuple

# Looking whether the messages have settled costs as much as an iteration, so it is done after every fifth.
CHECK_EVERY = 5


class Schedule(NamedTuple):
    """At most `iterations`; fewer if no log message changes by more than `tolerance` (0: never fewer).

    damping: share of the old message kept in the new one, mixed as odds.
    """

    iterations: int
    tolerance: float
    damping: float

    def looks_after(self, done: int) -> bool:
        """Whether the change is measured after this many iterations."""
        return done == self.iterations or (self.tolerance > 0 and done % CHECK_EVERY == 0)
