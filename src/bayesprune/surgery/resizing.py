"""Make the modules of a network smaller, in place."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bayesprune.structure import Layer, Structure
from bayesprune.structure.operations import Attention, Transposed
from bayesprune.surgery.attention import SlimAttention
from bayesprune.surgery.proof import ROUNDING
from bayesprune.surgery.survivors import Path, folded, without_dead
from bayesprune.surgery.windows import Conv, crop_to, fits, live_taps, window

PER_CHANNEL = ("weight", "bias", "running_mean", "running_var")
NEW = -1
"""The index of an entry that the old network has not."""


@dataclass(eq=False)
class Resizing:
    """What stays of the tensors of a network.

    indices: for the name of a module and of its tensor, the flat index into the old tensor of every entry of the new
    one.  pads: by module, what F.pad has to do with its input.
    """

    network: nn.Module
    kept: Tensor
    indices: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    pads: dict[str, list[int]] = field(default_factory=dict)

    def select(self, module: str, tensor: str, dim: int, units: Tensor) -> None:
        """Keep the entries of kept units along a dimension of a tensor."""
        index = self.index(module, tensor)
        self.indices[module, tensor] = index.index_select(dim, self.kept[units].nonzero().flatten())

    def index(self, module: str, tensor: str) -> Tensor:
        """The index of what stays so far."""
        old = getattr(self.network.get_submodule(module), tensor)
        return self.indices.get((module, tensor), torch.arange(old.numel()).reshape(old.shape))

    def apply(self) -> None:
        """Give the modules their smaller tensors; what was one tensor stays one."""
        done: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        for (name, tensor), index in self.indices.items():
            module = self.network.get_submodule(name)
            old = getattr(module, tensor)
            if id(old) not in done:
                # The old tensor is kept so that no new one can have its id.
                done[id(old)] = old, index, _picked(old, index)
            _, first, new = done[id(old)]
            if not torch.equal(first, index):
                raise ValueError(f"{name}.{tensor} is shared with a module that keeps other entries of it")
            setattr(module, tensor, new)


def resize(
    network: nn.Module,
    structure: Structure,
    paths: Mapping[str, Path],
    needed: Tensor,
    kept: Tensor,
    croppable: Mapping[str, tuple[int, ...]],
) -> Resizing:
    """Remove from the modules everything that belongs to other than the kept units.

    network: masked; its modules change in place.  needed, kept: (unit_count,) bool; the weights of units that are
    kept without need become zero.  croppable: the smallest input of the convs whose kernels may be cropped, by name.
    """
    plan = Resizing(network, kept)
    closed = {name: without_dead(path, needed) for name, path in paths.items()}
    biases = {}
    for layer in structure.layers:
        module = network.get_submodule(layer.name)
        weight = module._parameters.get("weight")
        if weight is None:
            continue
        biases[layer.name] = folded(paths[layer.name], weight, needed)
        plan.indices[layer.name, "weight"] = _layer_index(layer, kept)
        if module.bias is not None:
            plan.select(layer.name, "bias", 0, layer.out_units)
        if layer.name in croppable and isinstance(module, Conv):
            _crop(plan, closed[layer.name], module, croppable[layer.name])
    for name, units in structure.norms.items():
        module = network.get_submodule(name)
        for tensor in PER_CHANNEL:
            if isinstance(getattr(module, tensor, None), Tensor):
                plan.select(name, tensor, 0, units)
    for slot in structure.slots:
        plan.select(slot.module, slot.tensor, slot.dim, slot.units)
    for path in closed.values():
        _clear(network.get_submodule(path.layer.name), path)
    plan.indices = {key: index for key, index in plan.indices.items() if _changes(network, key, index)}
    plan.apply()
    for layer in structure.layers:
        if layer.name in biases:
            _add_bias(plan, layer, biases[layer.name])
            _update_layer(network.get_submodule(layer.name), layer, kept)
    for name, units in structure.norms.items():
        _update_norm(network.get_submodule(name), int(kept[units].sum()), len(units))
    for slot in structure.slots:
        _update_other(network, slot.module)
    _replace_attention(network, plan)
    return plan


def _layer_index(layer: Layer, kept: Tensor) -> Tensor:
    """The entries of the weight between kept units, group by group."""
    rows, columns = kept[layer.out_units].reshape(layer.groups, -1), kept[layer.in_units]
    entries = torch.arange(layer.out_units.numel() * layer.shape[1] * layer.kernel)
    groups = entries.reshape(*rows.shape, *layer.shape[1:])
    blocks = [
        group[row][:, column] for group, row, column in zip(groups, rows, columns, strict=True) if bool(row.any())
    ]
    return torch.cat(blocks)


def _clear(module: nn.Module, path: Path) -> None:
    """Set the dead weights to zero."""
    weight = module._parameters.get("weight")
    if weight is not None:
        live = path.live.transpose(1, 2) if isinstance(module, Transposed) else path.live
        weight.detach().masked_fill_(~live.reshape(weight.shape).to(weight.device), 0)


def _crop(plan: Resizing, path: Path, module: Conv, size: tuple[int, ...]) -> None:
    """Cut the kernel to its live taps."""
    index = plan.indices[path.layer.name, "weight"]
    chosen = window(module, live_taps(path.live.flatten()[index]))
    if chosen.size == tuple(index.shape[2:]) or not fits(chosen, size):
        return
    for dim, (first, count) in enumerate(zip(chosen.first, chosen.size, strict=True), start=2):
        index = index.narrow(dim, first, count)
    plan.indices[path.layer.name, "weight"] = index
    if pads := crop_to(module, chosen):
        plan.pads[path.layer.name] = pads


def _changes(network: nn.Module, key: tuple[str, str], index: Tensor) -> bool:
    old: Tensor = getattr(network.get_submodule(key[0]), key[1])
    return index.shape != old.shape


def _picked(old: Tensor, index: Tensor) -> Tensor:
    new = old.detach().flatten()[index.to(old.device)]
    return nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else new


def _add_bias(plan: Resizing, layer: Layer, constants: Tensor) -> None:
    """Add constants, (out,) float64 of the old outputs, to the bias; a layer without one gets one."""
    module = plan.network.get_submodule(layer.name)
    constants = constants[plan.kept[layer.out_units]]
    if not bool(constants.any()):
        return
    weight, bias = (module._parameters[tensor] for tensor in ("weight", "bias"))
    assert weight is not None
    if bias is None:
        plan.indices[layer.name, "bias"] = torch.full(constants.shape, NEW)
        total, like = constants.to(weight.device), weight
    else:
        total, like = bias.detach().double() + constants.to(bias.device), bias
    module.bias = nn.Parameter(total.to(like.dtype), requires_grad=like.requires_grad)
    setattr(module, ROUNDING, total - module.bias.detach().double())


def _update_layer(module: nn.Module, layer: Layer, kept: Tensor) -> None:
    """The sizes that a layer writes down beside its weight."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, Conv):
        module.groups = int(kept[layer.out_units].reshape(layer.groups, -1).any(1).sum())
        module.out_channels, module.in_channels = weight.shape[0], weight.shape[1] * module.groups


def _update_norm(module: nn.Module, width: int, before: int) -> None:
    if hasattr(module, "num_features"):
        module.num_features = width  # type: ignore[assignment]
    elif isinstance(module, nn.PReLU):
        module.num_parameters = width
    elif isinstance(module, nn.GroupNorm):
        module.num_groups = module.num_groups * width // before
        module.num_channels = width


def _update_other(network: nn.Module, name: str) -> None:
    module = network.get_submodule(name)
    if isinstance(module, Transposed):
        module.in_channels, module.out_channels = module.weight.shape[0], module.weight.shape[1] * module.groups
    elif isinstance(module, nn.Embedding):
        module.embedding_dim = module.weight.shape[1]


def _replace_attention(network: nn.Module, plan: Resizing) -> None:
    """Attention of other sizes than torch's own module can have."""
    for name, module in list(network.named_modules()):
        if isinstance(module, Attention) and any(
            key in plan.indices for key in ((name, "in_proj_weight"), (f"{name}.out_proj", "weight"))
        ):
            parent, _, child = name.rpartition(".")
            setattr(network.get_submodule(parent), child, SlimAttention(module))
