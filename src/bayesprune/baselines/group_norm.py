"""Group-norm pruning at a target of MACs, with the criterion and sparse training of Torch-Pruning's GroupNormPruner.

Fang et al., DepGraph, CVPR 2023, arXiv:2301.12900.  The groups are the units of `bayesprune.structure`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bayesprune.baselines.running import Masks, Run
from bayesprune.structure import Structure, macs, to_weights, unit_sums

SPREAD = 2.0**4  # the least important unit of a layer is pulled this much more than the most important
GIVE_BACK = 64  # units to look at for what is left of the budget
SPARSE_SHARE = 0.5  # of the pruning epochs for sparse training, before units go


def siblings(structure: Structure) -> Tensor:
    """The number of the first layer that makes each unit, (unit_count,); -1 for units that no layer makes."""
    found = torch.full((structure.unit_count,), -1, dtype=torch.long, device=structure.device)
    for number in range(len(structure.layers) - 1, -1, -1):
        if not structure.layers[number].per_channel:
            found[structure.layers[number].out_units] = number
    return found


def importances(
    structure: Structure, weights: Mapping[str, Tensor], norms: Mapping[str, Tensor], dead: Tensor | None = None
) -> Tensor:
    """The squared L2 norm of all weights of each unit over the mean of its live siblings, (unit_count,).

    weights: by layer.  norms: scales of BatchNorms by name, (channels,); they belong to their units.
    dead: (unit_count,) bool, units that are gone; they have none.
    """
    sums = unit_sums(structure, {name: weight.double().square() for name, weight in weights.items()})
    for name, scale in norms.items():
        sums = sums.index_add(0, structure.norms[name], scale.double().square())
    family, live = siblings(structure), torch.ones_like(structure.removable) if dead is None else ~dead
    sums = sums * live
    for number in family.unique().tolist():
        mine = family == number
        mean = sums[mine].sum() / live[mine].sum().clamp_min(1)
        sums[mine] /= mean.clamp_min(torch.finfo(sums.dtype).tiny)
    return sums


def pulls(structure: Structure, importance: Tensor) -> Tensor:
    """How much stronger sparse training pulls each unit, (unit_count,): SPREAD^((max - i) / (max - min)), i = norm.

    Maximum and minimum are those of its siblings; units that stay are not pulled.
    """
    norm, family = importance.clamp_min(0).sqrt(), siblings(structure)
    result = torch.zeros_like(norm)
    for number in family.unique().tolist():
        mine = norm[family == number]
        width = (mine.max() - mine.min()).clamp_min(torch.finfo(norm.dtype).tiny)
        result[family == number] = SPREAD ** ((mine.max() - mine) / width)
    return result * structure.removable


def live_at(
    structure: Structure, importance: Tensor, target: float, dead: Tensor | None = None, largest_cut: float = 1.0
) -> Tensor:
    """The units that stay, (unit_count,) bool, when the least important go until at most `target` of the MACs is left.

    dead: (unit_count,) bool, units that are gone already, and stay so.
    largest_cut: of the units of a layer at most this share goes (Torch-Pruning's max_pruning_ratio).
    The most important unit of every layer always stays, so a small target may be out of reach.  Where a dear unit was
    the last to go, cheaper ones that went before it come back as far as the target allows, the most important first.
    """
    family = siblings(structure)
    may_go = structure.removable & (family >= 0)
    for layer in structure.layers:
        candidates = layer.out_units[structure.removable[layer.out_units]]
        width = len(layer.out_units)
        staying = max(1, width - int(largest_cut * width)) - (width - len(candidates))
        if staying > 0:
            may_go[candidates[importance[candidates].topk(staying).indices]] = False
    gone = torch.zeros_like(may_go) if dead is None else dead
    may_go &= ~gone
    order = importance.masked_fill(~may_go, torch.inf).argsort(stable=True)[: int(may_go.sum())]
    allowed = target * macs(structure)

    def alive(count: int) -> Tensor:
        result = ~gone
        result[order[:count]] = False
        return result

    few, many = 0, len(order)  # MACs fall with every unit, so the number to remove is found by bisection
    while few < many:
        middle = (few + many) // 2
        if macs(structure, alive(middle)) <= allowed:
            many = middle
        else:
            few = middle + 1
    result = alive(few)
    for unit in order[max(0, few - GIVE_BACK) : few].flip(0):
        result[unit] = True
        if macs(structure, result) > allowed:
            result[unit] = False
    return result


def prune(run: Run) -> Masks:
    """Pull unimportant units towards zero, then remove them in equal steps of MACs while training goes on."""
    s, structure = run.settings, run.structure
    weights = {name: module.weight for name, module in run.layers.items()}
    scales = _norm_scales(run.model, structure)
    masks = {name: torch.ones_like(weight) for name, weight in run.weights().items()}
    weight_pulls = {name: torch.zeros_like(weight) for name, weight in run.weights().items()}
    scale_pulls = {name: torch.zeros_like(scale) for name, scale in scales.items()}
    sparse = SPARSE_SHARE if run.strength > 0 else 0.0
    dead = torch.zeros_like(structure.removable)
    steps_done = 0

    def importance() -> Tensor:
        return importances(structure, run.weights(), {name: scale.detach() for name, scale in scales.items()}, dead)

    def penalty() -> Tensor:
        parts = [(weight_pulls[name] * weight.square()).sum() for name, weight in weights.items()]
        parts += [(scale_pulls[name] * scale.square()).sum() for name, scale in scales.items()]
        return 0.5 * torch.stack(parts).sum()

    def pull(strength: float) -> None:
        per_unit = strength * pulls(structure, importance())
        for name, value in to_weights(structure, per_unit).items():
            if name in weight_pulls:
                weight_pulls[name].copy_(value)
        for name, scale_pull in scale_pulls.items():
            scale_pull.copy_(per_unit[structure.norms[name]])

    def cut(step: int) -> None:
        target = 1 - (1 - s.target_macs) * step / s.pruning_steps
        dead.copy_(~live_at(structure, importance(), target, dead, s.largest_cut))
        for name, value in to_weights(structure, dead.double()).items():
            if name in masks:
                masks[name].copy_((value == 0).expand(masks[name].shape))
                run.weights()[name].mul_(masks[name])

    def on_epoch(done: float, _: float) -> None:
        nonlocal steps_done
        pull(run.strength if done < sparse else 0.0)
        due = 0 if done < sparse else min(s.pruning_steps, 1 + int(s.pruning_steps * (done - sparse) / (1 - sparse)))
        if due > steps_done:
            steps_done = due
            cut(due)

    run.train("prune", s.prune_epochs, penalty=penalty, masks=masks, on_epoch=on_epoch, current=lambda: masks)
    if steps_done < s.pruning_steps:
        cut(s.pruning_steps)
    return masks


def _norm_scales(model: nn.Module, structure: Structure) -> dict[str, Tensor]:
    """The trained scales of BatchNorms, by name; other norms have no place in Torch-Pruning's criterion."""
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if name in structure.norms and isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:
            found[name] = module.weight
    return found
