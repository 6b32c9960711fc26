"""Module B's engine: sum-product message passing on arrays of odds, paper (36) and (37).

Nothing here knows of networks or named priors: the engines take evidence and tables of potentials.
`bayesprune.supports` names the priors and calls them.
"""

from bayesprune.messages.chain import chain_messages
from bayesprune.messages.evidence import checked_evidence
from bayesprune.messages.grid import GridMessages, grid_messages
from bayesprune.messages.table import Table, through_table
from bayesprune.messages.tree import tree_messages

__all__ = [
    "GridMessages",
    "Table",
    "chain_messages",
    "checked_evidence",
    "grid_messages",
    "through_table",
    "tree_messages",
]
