"""A unit without incoming or without outgoing weights is dead and takes its other side with it."""

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesprune.structure.counting import pair_sums, to_weights
from bayesprune.structure.units import Layer, Structure, check_values, transposed_shape


def live_units(structure: Structure, masks: Mapping[str, Tensor]) -> Tensor:
    """The units, (unit_count,) bool, that are left when the dead ones have taken their weights with them.

    masks: live weights, bool of the shape of the weight per layer or transposed conv; one that is not there is fully
    live.  A removable unit lives when live weights lead to it from a unit that stays, over live units, and from it to
    one that stays; units that only make and read each other are dead.  So is a unit for which a per_channel layer that
    all its readers depend on has no live weight.  Other units never die.  Units that are given (an embedding, the heads
    of attention, what a broadcast tensor is added to) need no weights into them and die only for want of readers.

    Biases, norms and numbers do not count: a unit that only they feed is constant, and its removal is exact only if
    the constant is 0 or goes into the next bias.
    """
    check_values(structure, masks, "masks", transposed=True)
    paths = [(layer, _paths(structure, layer, masks.get(layer.name))) for layer in structure.layers]
    for layer in structure.transposed:
        mask = masks.get(layer.name)
        paths.append((layer, _paths(structure, layer, None if mask is None else _turned(layer, mask))))
    stays = ~structure.removable
    usable = torch.ones_like(stays)
    for layer, path in paths:
        if layer.per_channel:
            usable &= stays | ~_blocked(layer, path, len(stays))
    joined = [(layer, path) for layer, path in paths if not layer.per_channel]
    made = _reached(stays | (structure.given & usable), usable, joined, forward=True)
    read = _reached(stays, usable, joined[::-1], forward=False)
    return made & read


def _reached(start: Tensor, usable: Tensor, paths: list[tuple[Layer, Tensor]], *, forward: bool) -> Tensor:
    """The units, (unit_count,) bool, that live weights join to those of `start` over usable ones."""
    reached, usable = start.float(), usable.float()
    while True:
        before = reached.clone()
        # In the order of execution, or against it, so that one round nearly always is enough.
        for layer, path in paths:
            rows, columns = layer.out_units, layer.in_units
            # Sums of products of zeros and ones: positive in any precision if one path is live.
            if forward:
                sums = torch.bmm(path, reached[columns].unsqueeze(2))
                target = rows
            else:
                sums = torch.bmm(reached[rows].reshape(layer.groups, 1, -1), path)
                target = columns.flatten()
            reached.scatter_reduce_(0, target, (sums.flatten() > 0) * usable[target], "amax")
        if torch.equal(reached, before):
            return reached > 0


def close(structure: Structure, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The masks without the weights of dead units (see `live_units`); it only removes, and once is enough.

    masks: live weights, bool of the shape of the weight per layer or transposed conv.  Returns the same ones.
    """
    dead_units = (~live_units(structure, masks)).float()
    dead = to_weights(structure, dead_units)
    for layer in structure.transposed:
        pairs = pair_sums(layer, dead_units).transpose(1, 2)
        dead[layer.name] = pairs.reshape(*transposed_shape(layer)[:2], *(1,) * (len(layer.shape) - 2))
    return {name: mask.bool() & (dead[name].to(mask.device) == 0) for name, mask in masks.items()}


def _turned(layer: Layer, mask: Tensor) -> Tensor:
    """The mask of a transposed conv, (in, out / groups, *kernel), as that of a conv, (out, in_per_group, *kernel)."""
    return mask.reshape(layer.groups, -1, *mask.shape[1:]).transpose(1, 2).reshape(layer.shape)


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
