"""An L1 penalty on the weights, as a proximal step after the optimiser's: weights become exactly zero."""

import torch
from torch import Tensor

from bayesprune.baselines.running import Masks, Run


def shrink_(weight: Tensor, by: Tensor) -> None:
    """Soft-threshold in place: the minimiser over v of (v - w)^2 / 2 + by |v|, of each entry."""
    weight.copy_(weight.sign() * (weight.abs() - by).clamp_min(0))


def prune(run: Run) -> Masks:
    """Train under the penalty; what is zero at the end, or as small as noise (`l1_threshold`), stays zero.

    The step is learning rate * strength * |w|, where |w| of a layer is measured by its root mean square at the
    beginning if `normalise` is on: one strength then means the same in every layer.
    """
    weights = run.weights()
    units = {
        name: weight.square().mean().sqrt() if run.settings.normalise else weight.new_ones(())
        for name, weight in weights.items()
    }
    steps = {name: torch.zeros_like(unit) for name, unit in units.items()}

    def on_epoch(done: float, rate: float) -> None:
        for name, step in steps.items():
            step.copy_(rate * run.ramped_strength(done) * units[name])

    def after() -> None:
        for name, weight in weights.items():
            shrink_(weight, steps[name])

    def masks() -> Masks:
        return {name: weight.abs() > run.settings.l1_threshold for name, weight in weights.items()}

    run.train("prune", run.settings.prune_epochs, after=after, on_epoch=on_epoch, current=masks)
    return masks()
