"""The units of a network and the layers that make and read them, as plain data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Layer:
    """One Linear or Conv and the units on both sides of its weight.

    name: of the module.  shape: of its weight, (out, in_per_group, *kernel).
    out_units: (out,) the unit that each output channel makes.
    in_units: (groups, in_per_group) the unit that each column of each group reads.
    positions: how often each weight is used per example: the pixels of a conv's output, the tokens of a Linear's.
    per_channel: a depthwise conv, whose output units are its input units: it neither makes nor reads them.
    gates: (groups,) whether every reader of a unit of a per_channel layer sees it through this layer only, so that the
    unit is dead once its filters are (False where a skip connection leads around); all False for other layers.
    """

    name: str
    shape: tuple[int, ...]
    out_units: Tensor
    in_units: Tensor
    positions: int
    per_channel: bool
    gates: Tensor

    @property
    def groups(self) -> int:
        """The number of groups of the conv; 1 for a Linear."""
        return len(self.in_units)

    @property
    def kernel(self) -> int:
        """The number of weights between two channels; 1 for a Linear."""
        return math.prod(self.shape[2:])

    def to(self, device: torch.device | str) -> "Layer":
        """The same layer with its tensors on `device`."""
        return replace(
            self,
            out_units=self.out_units.to(device),
            in_units=self.in_units.to(device),
            gates=self.gates.to(device),
        )


@dataclass(frozen=True, eq=False)
class Resize:
    """An operation whose sizes must be rewritten when units are removed, for surgery.

    node: its name in the graph of `trace_graph`.  dim: the dimension with the units.
    kind: "split" (chunk, split: one piece per result), "slice" (x[:, a:b], narrow: what lies before, what is taken,
    what lies after) or "size" (view, reshape, unflatten, expand: one piece, the new dimension).
    pieces: the unit of every entry of each piece; -1 where an entry belongs to no unit.
    """

    node: str
    kind: str
    dim: int
    pieces: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Slot:
    """A dimension of a parameter with one entry per unit, in a module that is neither a Layer nor a norm.

    module, tensor: their names, such as "up" (a ConvTranspose2d) and "weight"; the module "" is the network itself.
    units: (size of dim,).
    makes: whether the entries alone give the unit content, so that it is not dead without weights into it: those of an
    embedding, of attention's in_proj, of a parameter that is added to the units.
    """

    module: str
    tensor: str
    dim: int
    units: Tensor
    makes: bool = False


@dataclass(frozen=True, eq=False)
class Structure:
    """The units of a network.

    layers: in the order of execution, each module once.  unit_count: units are numbered from 0.
    removable: (unit_count,) False for the network's inputs and outputs and for what an operation that is not
    understood touches.  outputs: (unit_count,) True for the units of the network's outputs.
    given: (unit_count,) True for the units with content from elsewhere than a layer: those that slots make, and those
    to which something is added that is spread over them, as in conv(x) + x[:, :1].
    norms: the units of the channels, (channels,), of every module with one parameter or statistic per channel
    (BatchNorm, InstanceNorm, PReLU, GroupNorm; the channels of a group of a GroupNorm are one unit).
    resizes: the operations whose sizes follow the number of units.
    slots: the parameters of other modules (ConvTranspose, Embedding, MultiheadAttention) that have entries per unit,
    and the parameters that are added to units or multiplied with them.
    transposed: every ConvTranspose, as the conv that leads the same way: `shape` is (out, in_per_group, *kernel)
    although its weight is (in, out_per_group, *kernel), `positions` are the pixels of its input.  They make and read
    units like layers, but the priors leave them alone.
    notes: what was not understood, and what that costs.
    """

    layers: tuple[Layer, ...]
    unit_count: int
    removable: Tensor
    outputs: Tensor
    given: Tensor
    norms: Mapping[str, Tensor]
    resizes: tuple[Resize, ...]
    notes: tuple[str, ...]
    slots: tuple[Slot, ...] = ()
    transposed: tuple[Layer, ...] = ()

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.removable.device

    def to(self, device: torch.device | str) -> "Structure":
        """The same structure with its tensors on `device`."""
        return replace(
            self,
            layers=tuple(layer.to(device) for layer in self.layers),
            removable=self.removable.to(device),
            outputs=self.outputs.to(device),
            given=self.given.to(device),
            norms={name: units.to(device) for name, units in self.norms.items()},
            resizes=tuple(
                replace(resize, pieces=tuple(piece.to(device) for piece in resize.pieces)) for resize in self.resizes
            ),
            slots=tuple(replace(slot, units=slot.units.to(device)) for slot in self.slots),
            transposed=tuple(layer.to(device) for layer in self.transposed),
        )


def transposed_shape(layer: Layer) -> tuple[int, ...]:
    """The shape of the weight of an entry of `Structure.transposed`: (in, out_per_group, *kernel)."""
    return layer.in_units.numel(), layer.shape[0] // layer.groups, *layer.shape[2:]


def check_values(structure: Structure, values: Mapping[str, Tensor], what: str, *, transposed: bool = False) -> None:
    """Raise ValueError unless every value belongs to a layer and has the shape of its weight.

    transposed: whether values of transposed convs are welcome, too.
    """
    shapes = {layer.name: layer.shape for layer in structure.layers}
    if transposed:
        shapes |= {layer.name: transposed_shape(layer) for layer in structure.transposed}
    for name, value in values.items():
        if name not in shapes:
            raise ValueError(f"{what} has a layer {name!r} that the structure has not; trace the same network again")
        if tuple(value.shape) != shapes[name]:
            raise ValueError(
                f"{what}[{name!r}] must have the shape of the weight, {shapes[name]}, got {tuple(value.shape)}"
            )


def check_units(structure: Structure, per_unit: Tensor, what: str) -> None:
    """Raise ValueError unless there is one value per unit."""
    if tuple(per_unit.shape) != (structure.unit_count,):
        raise ValueError(f"{what} must have one entry per unit, ({structure.unit_count},), got {tuple(per_unit.shape)}")
