"""Which weights of all layers together have the highest scores."""

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesprune.baselines.running import Masks


def top(scores: Mapping[str, Tensor], share: float) -> Masks:
    """The share of all weights with the highest scores, bool by layer: exactly round(share * weights) of them.

    Every layer keeps its best weight, because a network with an empty layer is dead; what that adds is taken from the
    lowest of the others.
    """
    flat = torch.cat([score.flatten() for score in scores.values()])
    sizes = [score.numel() for score in scores.values()]
    count = max(round(share * len(flat)), len(sizes))
    first, protected = 0, flat.clone()
    for size in sizes:
        protected[first + int(flat[first : first + size].argmax())] = torch.inf
        first += size
    live = torch.zeros_like(flat, dtype=torch.bool)
    live[protected.argsort(descending=True, stable=True)[:count]] = True
    return {name: part.view(scores[name].shape) for name, part in zip(scores, live.split(sizes), strict=True)}
