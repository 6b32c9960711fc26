"""A unit without incoming or without outgoing weights is dead and takes its other side with it."""

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesprune.structure.counting import to_weights
from bayesprune.structure.units import Layer, Structure, check_values


def live_units(structure: Structure, masks: Mapping[str, Tensor]) -> Tensor:
    """The units, (unit_count,) bool, that are left when the dead ones have taken their weights with them.

    masks: live weights, bool of the shape of the weight per layer; a layer that is not there is fully live.  A
    removable unit is dead when no live weight from a live unit makes it, when no live weight to a live unit reads it,
    or when a per_channel layer that all its readers depend on has no live weight for it.  Other units never die.

    Biases and norms do not count: a unit that only they feed is constant, and its removal is exact only if the
    constant is 0 or goes into the next bias.
    """
    check_values(structure, masks, "masks")
    paths = [(layer, _paths(structure, layer, masks.get(layer.name))) for layer in structure.layers]
    alive = torch.ones_like(structure.removable)
    while True:
        strength = alive.float()
        made, read = torch.zeros_like(strength), torch.zeros_like(strength)
        blocked = torch.zeros_like(alive)
        for layer, path in paths:
            if layer.per_channel:
                blocked |= _blocked(layer, path, len(alive))
                continue
            rows = strength[layer.out_units].reshape(layer.groups, -1)
            columns = strength[layer.in_units]
            # Sums of products of zeros and ones: positive in any precision if one path is live.
            into = torch.bmm(path, columns.unsqueeze(2)).squeeze(2) * rows
            out_of = torch.bmm(rows.unsqueeze(1), path).squeeze(1) * columns
            made.index_add_(0, layer.out_units, into.flatten())
            read.index_add_(0, layer.in_units.flatten(), out_of.flatten())
        after = alive & (~structure.removable | ((made > 0) & (read > 0) & ~blocked))
        if torch.equal(after, alive):
            return alive
        alive = after


def close(structure: Structure, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The masks without the weights of dead units (see `live_units`); it only removes, and once is enough.

    masks: live weights, bool of the shape of the weight per layer.  Returns the same layers.
    """
    dead = to_weights(structure, (~live_units(structure, masks)).float())
    return {name: mask.bool() & (dead[name].to(mask.device) == 0) for name, mask in masks.items()}


def _paths(structure: Structure, layer: Layer, mask: Tensor | None) -> Tensor:
    """1 where a live weight joins a row and a column, (groups, out / groups, in_per_group) float."""
    size = (layer.groups, layer.shape[0] // layer.groups, layer.shape[1])
    if mask is None:
        return torch.ones(size, device=structure.device)
    taps = mask.to(structure.device, torch.bool).reshape(*layer.shape[:2], -1).unbind(2)
    joined = taps[0]
    # Tap by tap: `any` over a short last dimension is several times slower on the CPU.
    for tap in taps[1:]:
        joined = joined | tap
    return joined.reshape(size).float()


def _blocked(layer: Layer, path: Tensor, unit_count: int) -> Tensor:
    """The units, (unit_count,) bool, that have no live filter in a per_channel layer where they need one."""
    units = layer.in_units.flatten()
    live = path.new_zeros(unit_count).index_add_(0, units, path.sum((1, 2)))
    needed = path.new_zeros(unit_count).index_add_(0, units, layer.gates.float())
    return (live == 0) & (needed > 0)
