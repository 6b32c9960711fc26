"""Networks with hidden widths filled up by zeros to a multiple: tensor cores do not like widths such as 49 or 153."""

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesprune.runtime.lowered import UnsupportedError
from bayesprune.structure import Structure, trace

FILL = -1  # the index of an entry that is new
NEW_ENTRY = {"running_var": 1.0}  # the others are 0


def filled_up(network: nn.Module, example_shape: tuple[int, ...], multiple: int) -> nn.Module:
    """A copy that computes the same, the hidden widths of its Convs and Linears rounded up to a multiple.

    network: in eval mode, with parameters.  Operations that mix channels otherwise, such as a softmax over them, would
    see the zeros: compare both networks.  example_shape: of one input, without the batch.  Inputs and outputs keep
    their widths.
    Raises UnsupportedError where nothing has to be filled up, and where channels are more than made, normalised and
    read by Convs and Linears: grouped, attended to, resized by numbers in the code.
    """
    twin = copy.deepcopy(network)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of units that are kept: they are refused here
        structure = trace(twin, torch.zeros(1, *example_shape, dtype=next(twin.parameters()).dtype)).to("cpu")
    _check(structure, twin)
    widths = _Widths(_blocks(structure), structure.removable, multiple)
    if not widths.changes:
        raise UnsupportedError(f"all hidden widths are multiples of {multiple}")
    for layer in structure.layers:
        module = twin.get_submodule(layer.name)
        assert isinstance(module, nn.Conv2d | nn.Linear)
        rows, columns = widths.index(layer.out_units), widths.index(layer.in_units[0])
        _fill(module, "weight", 0, rows)
        _fill(module, "weight", 1, columns)
        _fill(module, "bias", 0, rows)
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = len(rows), len(columns)
        else:
            module.out_channels, module.in_channels = len(rows), len(columns)
    for name, units in structure.norms.items():
        norm, index = twin.get_submodule(name), widths.index(units)
        for tensor in ("weight", "bias", "running_mean", "running_var"):
            _fill(norm, tensor, 0, index)
        norm.num_features = len(index)  # type: ignore[assignment]
    return twin


@dataclass(frozen=True)
class _Widths:
    """Where zeros go.

    blocks: the units of every width, in order.  removable: (unit_count,); blocks with others stay as they are.
    """

    blocks: list[list[int]]
    removable: Tensor
    multiple: int

    def missing(self, block: list[int]) -> int:
        """How many channels fill a block up; a single one may be read as none at all, by squeeze for instance."""
        return -len(block) % self.multiple if len(block) > 1 and bool(self.removable[block].all()) else 0

    @property
    def changes(self) -> bool:
        """Whether anything has to be filled up."""
        return any(map(self.missing, self.blocks))

    def index(self, units: Tensor) -> Tensor:
        """The index into the old entries, (units,), of every new one; FILL for those that are new."""
        return torch.tensor(list(self._index(units.tolist())), dtype=torch.int64)

    def _index(self, units: list[int]) -> Iterator[int]:
        """Blocks follow each other, every unit as often as its block's first: a flattened channel is many entries."""
        owner = {unit: block for block in self.blocks for unit in block}
        place = 0
        while place < len(units):
            block = owner.get(units[place], [units[place]])
            times = 1
            while len(block) > 1 and place + times < len(units) and units[place + times] == units[place]:
                times += 1
            count = times * len(block)
            if units[place : place + count] != [unit for unit in block for _ in range(times)]:
                raise UnsupportedError("channels are read in another order than they are made")
            yield from range(place, place + count)
            yield from [FILL] * (times * self.missing(block))
            place += count


def _check(structure: Structure, network: nn.Module) -> None:
    if structure.notes or structure.slots or structure.transposed or structure.resizes:
        raise UnsupportedError("more than Convs and Linears has the widths of this network")
    for layer in structure.layers:
        if layer.groups != 1 or not isinstance(network.get_submodule(layer.name), nn.Conv2d | nn.Linear):
            raise UnsupportedError(f"{layer.name} is neither a Linear nor a Conv2d without groups")
    for name in structure.norms:
        if not isinstance(network.get_submodule(name), _BatchNorm):
            raise UnsupportedError(f"{name} is no BatchNorm")


def _blocks(structure: Structure) -> list[list[int]]:
    """The units that a layer makes, once for layers whose results are added to each other."""
    blocks: dict[int, list[int]] = {}
    for layer in structure.layers:
        made = layer.out_units.tolist()
        known = next((blocks[unit] for unit in made if unit in blocks), made)
        if known != made or len(set(made)) < len(made):
            raise UnsupportedError(f"{layer.name} shares some of its channels, not all")
        blocks |= dict.fromkeys(made, made)
    return list({id(block): block for block in blocks.values()}.values())


def _fill(module: nn.Module, name: str, dim: int, index: Tensor) -> None:
    """Entries of a tensor along a dimension by their old index, and new ones that change nothing."""
    old = getattr(module, name, None)
    if old is None or not bool((index == FILL).any()):
        return
    new = old.detach().index_select(dim, index.clamp_min(0).to(old.device))
    new.movedim(dim, 0)[(index == FILL).to(old.device)] = NEW_ENTRY.get(name, 0.0)
    setattr(module, name, nn.Parameter(new, requires_grad=False) if isinstance(old, nn.Parameter) else new)
