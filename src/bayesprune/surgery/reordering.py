"""Put the units of a network in another order; it computes the same.

Neurons and channels have no order of their own.  A group of neighbouring rows of a weight, such as a panel, can only
live or die as one if rows that live together stand together.
"""

import copy
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from bayesprune.structure import Layer, Structure
from bayesprune.surgery.proof import ProofError, largest_difference, outputs
from bayesprune.surgery.resizing import PER_CHANNEL

Moves = dict[str, Tensor]
"""For the name of a tensor in the state dict, of its shape: the flat index of the entry that moves to each place.

Tensors that are not there stay as they are.
"""
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}  # a wrong place differs by about 1, relative to the output


def reorder(model: nn.Module, structure: Structure, score: Tensor, example: Tensor | tuple[Tensor, ...]) -> Moves:
    """Sort the units of every layer by descending score, in place; equal ones keep their order.

    structure: of the model.  score: (unit_count,).  example: the network's input, or a tuple of its inputs.
    Units take each other's places where everything they belong to is the same: layers, groups of a grouped conv, norms,
    parts of a split.  Those that cannot be removed stay where they are.

    The outputs for the example are compared before the model is touched: raises ProofError where they would differ.
    """
    if tuple(score.shape) != (structure.unit_count,):
        raise ValueError(f"score must have one entry per unit, ({structure.unit_count},), got {tuple(score.shape)}")
    structure = structure.to("cpu")
    moves = _moves(model, structure, _sources(structure, score.detach().cpu()))
    if moves:
        inputs = tuple(example) if isinstance(example, tuple | list) else (example,)
        twin = copy.deepcopy(model)
        _move(twin, moves)
        _check(model, twin, inputs)
        _move(model, moves)
    return moves


def moved_state(state: Mapping[str, Tensor], moves: Moves) -> dict[str, Tensor]:
    """A state dict of the model from before `reorder` as one from after it."""
    return {name: _moved(tensor, moves[name]) if name in moves else tensor for name, tensor in state.items()}


def moved_masks(masks: Mapping[str, Tensor], moves: Moves) -> dict[str, Tensor]:
    """Masks by layer name, bool of the shape of the weight, from before `reorder` as those from after it."""
    named = moved_state({_name(layer, "weight"): mask for layer, mask in masks.items()}, moves)
    return {layer: named[_name(layer, "weight")] for layer in masks}


@torch.no_grad()
def move_optimiser(optimiser: torch.optim.Optimizer, model: nn.Module, moves: Moves) -> None:
    """Let momentum, squared gradients and so on follow their parameters, in place."""
    for name, parameter in model.named_parameters():
        if name in moves and parameter in optimiser.state:
            for value in optimiser.state[parameter].values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    value.copy_(_moved(value, moves[name]))


def _sources(structure: Structure, score: Tensor) -> Tensor:
    """The unit that moves to the place of each unit, (unit_count,)."""
    sources = torch.arange(structure.unit_count)
    counts = [units[units >= 0].bincount(minlength=structure.unit_count) for units in _roles(structure)]
    if not counts:
        return sources
    _, kind = torch.stack(counts).unique(dim=1, return_inverse=True)  # units of one kind have the same roles
    for number in range(int(kind.max()) + 1):
        units = ((kind == number) & structure.removable).nonzero().flatten()
        sources[units] = units[score[units].argsort(descending=True, stable=True)]
    return sources


def _roles(structure: Structure) -> Iterator[Tensor]:
    """The units along everything with places for units; those that occur equally often in each may change places."""
    for layer in (*structure.layers, *structure.transposed):
        if layer.per_channel:
            yield layer.out_units
        else:
            yield from layer.out_units.reshape(layer.groups, -1)
            yield from layer.in_units
    yield from structure.norms.values()
    yield from (slot.units for slot in structure.slots)
    yield from (piece for resize in structure.resizes for piece in resize.pieces)


def _places(units: Tensor, sources: Tensor) -> Tensor:
    """For every place along a dimension, the place of what moves there, (n,).

    units: (n,) the unit at each place.  The k-th place of a unit goes to the k-th place of the unit it replaces.
    """
    order = units.argsort(stable=True)
    counts = units.bincount(minlength=len(sources))
    first = counts.cumsum(0) - counts
    which = torch.empty_like(units)
    which[order] = torch.arange(len(units)) - first[units[order]]
    return order[first[sources[units]] + which]


def _moves(model: nn.Module, structure: Structure, sources: Tensor) -> Moves:
    moves: Moves = {}

    def select(module: str, tensor: str, dim: int, units: Tensor) -> None:
        owner = model.get_submodule(module)
        old = getattr(owner, tensor, None)
        if isinstance(old, Tensor):
            index = moves.get(_name(module, tensor), torch.arange(old.numel()).reshape(old.shape))
            moves[_name(module, tensor)] = index.index_select(dim, _places(units, sources))

    for layer in structure.layers:
        if "weight" in model.get_submodule(layer.name)._parameters:
            moves[_name(layer.name, "weight")] = _layer_index(layer, sources)
            select(layer.name, "bias", 0, layer.out_units)
    for name, units in structure.norms.items():
        for tensor in PER_CHANNEL:
            select(name, tensor, 0, units)
    for slot in structure.slots:
        select(slot.module, slot.tensor, slot.dim, slot.units)
    return {name: index for name, index in moves.items() if not _stays(index)}


def _layer_index(layer: Layer, sources: Tensor) -> Tensor:
    """The flat index of what moves to each place of a weight, (out, in_per_group, *kernel)."""
    index = torch.arange(len(layer.out_units) * layer.shape[1] * layer.kernel).reshape(layer.shape)
    if layer.per_channel:
        return index[_places(layer.out_units, sources)]
    rows = layer.out_units.reshape(layer.groups, -1)
    groups = zip(index.chunk(layer.groups), rows, layer.in_units, strict=True)
    return torch.cat([part[_places(out, sources)][:, _places(read, sources)] for part, out, read in groups])


def _stays(index: Tensor) -> bool:
    return torch.equal(index.flatten(), torch.arange(index.numel()))


def _name(module: str, tensor: str) -> str:
    return f"{module}.{tensor}" if module else tensor


def _moved(tensor: Tensor, index: Tensor) -> Tensor:
    return tensor.flatten()[index.to(tensor.device)]


@torch.no_grad()
def _move(model: nn.Module, moves: Moves) -> None:
    done: set[int] = set()
    for name, index in moves.items():
        module, _, attribute = name.rpartition(".")
        tensor: Tensor = getattr(model.get_submodule(module), attribute)
        if id(tensor) not in done:  # a tied one moves once
            done.add(id(tensor))
            tensor.copy_(_moved(tensor, index))


def _check(model: nn.Module, twin: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Raise ProofError unless both give the same, in float64 if the network can."""
    device = next(model.parameters()).device
    for dtype, tolerance in TOLERANCES.items():
        old, new = (copy.deepcopy(one).to(dtype).eval() for one in (model, twin))
        try:
            expected = outputs(old, inputs, dtype, device)
        except (RuntimeError, TypeError, ValueError, IndexError):
            continue  # a forward that names a dtype
        _, relative = largest_difference(expected, outputs(new, inputs, dtype, device))
        if relative > tolerance:
            raise ProofError(f"in another order of its units the network differs by {relative:.3g}; they stay")
        return
