"""Sums over the weights of each unit, and sizes of what remains when units are removed."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from bayesprune.structure.units import Layer, Structure, check_units, check_values


def macs(structure: Structure, alive: Tensor | None = None) -> int:
    """Multiply-accumulates per example of all layers and transposed convs; with alive, of the dense remainder.

    alive: (unit_count,) bool.  The remainder of a layer is its live rows times its live columns, of a grouped conv
    group by group.  Norms, embeddings, and attention but for its out_proj do not count.
    """
    return sum(count * layer.positions for layer, count in _remaining(structure, alive))


def weights(structure: Structure, alive: Tensor | None = None, *, transposed: bool = True) -> int:
    """Weights of what `macs` counts, without biases; with alive (unit_count,) bool, of the dense remainder.

    transposed: with those of transposed convs, which the priors do not prune.
    """
    left_out = () if transposed else [id(layer) for layer in structure.transposed]
    return sum(count for layer, count in _remaining(structure, alive) if id(layer) not in left_out)


def widths(structure: Structure, alive: Tensor | None = None) -> list[int]:
    """Live outputs of every layer but those that make the network's output: 6-16-120-84 for LeNet-5.

    Without transposed convs: the widths are those of what the priors prune.
    """
    alive = _alive(structure, alive)
    hidden = [layer for layer in structure.layers if not bool(structure.outputs[layer.out_units].all())]
    return [int(alive[layer.out_units].sum()) for layer in hidden]


def unit_sums(structure: Structure, values: Mapping[str, Tensor]) -> Tensor:
    """The sum of a quantity of each weight over the weights into and out of each unit, (unit_count,).

    values: one tensor of the shape of the weight per layer; a layer that is not there adds nothing.  A weight of a
    per_channel layer counts once for its unit; one that leads from a unit to itself counts twice.  Transposed convs and
    slots are not part of it: for a head of attention the sum is over the columns of out_proj.
    """
    check_values(structure, values, "values")
    return _scatter(structure, _sides(structure, values))


def unit_sizes(structure: Structure) -> Tensor:
    """The number of weights into and out of each unit, (unit_count,) float64: `unit_sums` of ones."""
    return _scatter(structure, ((layer, *_constant(layer, 1)) for layer in structure.layers))


def unit_costs(structure: Structure, mix: float) -> Tensor:
    """What the weights into and out of each unit cost, (unit_count,) float64; 0 for units that stay.

    mix * (share of the network's multiply-accumulates) + (1 - mix) * (share of its weights), of what `macs` counts: the
    weights of transposed convs cost something, too, although `unit_sums` leaves them out.
    """
    if not 0 <= mix <= 1:
        raise ValueError(f"mix must be in [0, 1], got {mix}; 1 counts multiply-accumulates only, 0 weights only")
    # Shares of nothing are 0: a network without layers that run.
    all_macs, all_weights = max(macs(structure), 1), max(weights(structure), 1)
    sides = (
        (layer, *_constant(layer, mix * layer.positions / all_macs + (1 - mix) / all_weights))
        for layer in (*structure.layers, *structure.transposed)
    )
    return _scatter(structure, sides) * structure.removable


def to_weights(structure: Structure, per_unit: Tensor) -> dict[str, Tensor]:
    """The value of the unit it makes plus that of the unit it reads, for every weight: the adjoint of `unit_sums`.

    per_unit: (unit_count,).  Returns (out, in_per_group, 1, ...) per layer, which broadcasts to the weight; for
    per_channel layers the value of their unit once.
    """
    check_units(structure, per_unit, "per_unit")
    return {
        layer.name: pair_sums(layer, per_unit).reshape(*layer.shape[:2], *(1,) * (len(layer.shape) - 2))
        for layer in structure.layers
    }


def pair_sums(layer: Layer, per_unit: Tensor) -> Tensor:
    """The value of the unit of every row plus that of every column, (groups, out / groups, in_per_group).

    per_unit: (unit_count,).  For per_channel layers the value of their unit once.
    """
    rows = per_unit[layer.out_units].reshape(layer.groups, -1, 1)
    return rows if layer.per_channel else rows + per_unit[layer.in_units].unsqueeze(1)


def _alive(structure: Structure, alive: Tensor | None) -> Tensor:
    if alive is None:
        return torch.ones_like(structure.removable)
    check_units(structure, alive, "alive")
    return alive.to(structure.device, torch.bool)


def _remaining(structure: Structure, alive: Tensor | None) -> list[tuple[Layer, int]]:
    """The weights between live units of every layer and transposed conv."""
    alive = _alive(structure, alive)
    result = []
    for layer in (*structure.layers, *structure.transposed):
        rows = alive[layer.out_units].reshape(layer.groups, -1).sum(1)
        columns = alive[layer.in_units].sum(1)
        result.append((layer, int((rows * columns).sum()) * layer.kernel))
    return result


Sides = tuple[Layer, Tensor, Tensor]
"""A layer, its sums over rows (out,), and over columns (groups, in_per_group)."""


def _sides(structure: Structure, values: Mapping[str, Tensor]) -> Iterable[Sides]:
    for layer in structure.layers:
        if layer.name in values:
            pairs = values[layer.name].flatten(2).sum(2) if len(layer.shape) > 2 else values[layer.name]
            yield layer, pairs.sum(1), pairs.reshape(layer.groups, -1, layer.shape[1]).sum(1)


def _constant(layer: Layer, value: float) -> tuple[Tensor, Tensor]:
    """The sums of a layer whose weights all have the same value."""
    make = layer.out_units.new_full
    rows = make((len(layer.out_units),), value * layer.shape[1] * layer.kernel, dtype=torch.float64)
    per_group = layer.shape[0] // layer.groups
    return rows, make(tuple(layer.in_units.shape), value * per_group * layer.kernel, dtype=torch.float64)


def _scatter(structure: Structure, sides: Iterable[Sides]) -> Tensor:
    indices, sums = [structure.removable.new_empty(0, dtype=torch.long)], []
    for layer, rows, columns in sides:
        indices.append(layer.out_units)
        sums.append(rows)
        if not layer.per_channel:
            indices.append(layer.in_units.flatten())
            sums.append(columns.flatten())
    total = torch.cat(sums) if sums else torch.zeros(0, dtype=torch.float64, device=structure.device)
    return total.new_zeros(structure.unit_count).index_add(0, torch.cat(indices), total)
