"""Global magnitude pruning: at once, or gradually as Zhu and Gupta (2017), arXiv:1710.01878."""

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesprune.baselines.running import Masks, Run
from bayesprune.baselines.scoring import top
from bayesprune.structure import Structure, close

ROUNDS = 20  # to find weights on paths through the network; a few are enough


def scores_of(weight: Tensor, score: str) -> Tensor:
    """The score of each weight, of the weight's shape.

    magnitude: |w|.  normalised: |w| over the layer's root mean square.  lamp: w^2 over the sum of the layer's squares
    that are not smaller (Lee et al. 2021, arXiv:2010.07611).
    """
    if score == "magnitude":
        return weight.abs()
    if score == "normalised":
        return weight.abs() / weight.square().mean().sqrt().clamp_min(torch.finfo(weight.dtype).tiny)
    ordered, places = weight.double().square().flatten().sort(descending=True, stable=True)
    ratios = ordered / ordered.cumsum(0).clamp_min(torch.finfo(torch.float64).tiny)
    return torch.empty_like(ratios).scatter_(0, places, ratios).view(weight.shape)


def kept_share(done: float, target: float) -> float:
    """The share of weights that is left when a share `done` of pruning is over: target + (1 - target)(1 - done)^3."""
    return target + (1 - target) * (1 - min(done, 1.0)) ** 3


def top_connected(structure: Structure, scores: Mapping[str, Tensor], share: float) -> Masks:
    """As `top`, but weights on no path from input to output, which do nothing, leave their places to others.

    At one weight in a hundred such weights are a tenth of what `top` chooses.
    """
    scores = {name: score.clone() for name, score in scores.items()}
    found = top(scores, share)
    for _ in range(ROUNDS):
        closed = close(structure, found)
        lost = {name: found[name] & ~closed[name] & (scores[name] > 0) for name in found}
        if not any(bool(one.any()) for one in lost.values()):
            break
        for name, one in lost.items():
            scores[name][one] = 0
        found = top(scores, share)
    return found


def prune(run: Run) -> Masks:
    """Remove the lowest scores while training goes on; once dead, a weight stays at zero."""
    s = run.settings
    masks = {name: torch.ones_like(weight) for name, weight in run.weights().items()}

    def lower(share: float) -> None:
        scores = {name: scores_of(weight * masks[name], s.score) for name, weight in run.weights().items()}
        for name, live in top_connected(run.structure, scores, share).items():
            masks[name].copy_(live)
            run.weights()[name].mul_(masks[name])

    def on_epoch(done: float, _: float) -> None:
        # The last cut is made before the last epoch: in it the network has its final size already.
        if s.gradual or done == 0:
            lower(kept_share(done + 1 / s.prune_epochs, s.target_nonzero) if s.gradual else s.target_nonzero)

    if not s.prune_epochs:
        lower(s.target_nonzero)
    run.train("prune", s.prune_epochs, masks=masks, on_epoch=on_epoch, current=lambda: masks)
    return masks
