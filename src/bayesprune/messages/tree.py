"""Exact upward-downward passes on a tree whose nodes are the leading dimensions of a tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesprune.messages.table import Table, through_table


def tree_messages(evidence_logit: Tensor, root_logit: float, tables: Sequence[Table], levels: Sequence[int]) -> Tensor:
    """Log-odds that each leaf receives from the rest of its tree, the prior of the root included.

    evidence_logit: one leaf per element.  levels: for every level above the leaves, from the root down, how many
    leading dimensions index its nodes: (1, 2) on a (units, inputs, height, width) tensor is unit -> kernel -> weight.
    tables: one per edge from a level to the next one down, parent -> child.

    Products over thousands of children do not fit into odds, so this engine adds log-odds, in float64 because a
    parent's cavity is the small difference of large sums.
    """
    leaves = evidence_logit.double()
    sent: list[Tensor] = []  # what each node of a level sends to its parent
    gathered = leaves
    for level, table in zip(reversed(levels), reversed(tables), strict=True):
        sent.append(through_table(gathered, table.reversed))
        gathered = sent[-1].flatten(level).sum(-1)
    # Downward, a parent's cavity for one child leaves out what that child said.
    received = torch.full_like(gathered, root_logit)
    for level, table in zip(levels, tables, strict=True):
        up = sent.pop()
        missing = up.ndim - level
        belief = (received + gathered).reshape(*received.shape, *(1,) * missing)
        received = through_table(belief - up, table)
        if sent:
            gathered = sent[-1].flatten(up.ndim).sum(-1)
    return received.to(evidence_logit.dtype)
