"""From masks to a physically smaller network that computes the same.

surgery = operate(model, masks, example)  # or: network = shrink(model, masks, example)
prove(masked_network(model, masks), surgery.network, batches)  # how equal they are, in float32 and float64
optimiser.load_state_dict(carry_over(old_optimiser, model, surgery))  # training goes on
moves = reorder(model, structure, score, example)  # the same network, its units sorted
"""

from bayesprune.surgery.masking import masked_network
from bayesprune.surgery.operation import Surgery, operate, shrink
from bayesprune.surgery.optimisers import carry_over
from bayesprune.surgery.proof import Proof, ProofError, prove
from bayesprune.surgery.reordering import Moves, move_optimiser, moved_masks, moved_state, reorder

__all__ = [
    "Moves",
    "Proof",
    "ProofError",
    "Surgery",
    "carry_over",
    "masked_network",
    "move_optimiser",
    "moved_masks",
    "moved_state",
    "operate",
    "prove",
    "reorder",
    "shrink",
]
