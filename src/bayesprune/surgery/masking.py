"""Masks of a network's layers, and the network with its dead weights at zero."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bayesprune.structure.operations import Prunable, Transposed

Maskable = Prunable | Transposed


def maskable_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that a mask can belong to, by name: Linear, Conv and ConvTranspose."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Maskable)}


def is_plain(module: nn.Module) -> bool:
    """Whether the weight is a parameter of the module, not computed from others at every call."""
    return "weight" in module._parameters


def check_masks(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless every mask belongs to a layer, has the shape of its weight, and is 0 or 1."""
    layers = maskable_layers(model)
    for name, mask in masks.items():
        if name not in layers:
            known = ", ".join(map(repr, layers)) or "none"
            raise ValueError(f"masks has a layer {name!r} that the network has not; its layers are {known}")
        if not is_plain(layers[name]):
            raise ValueError(
                f"masks[{name!r}]: the weight is computed from other parameters and cannot be masked; "
                "remove the parametrisation first (torch.nn.utils.parametrize.remove_parametrizations, or "
                "torch.nn.utils.prune.remove)"
            )
        shape = tuple(layers[name].weight.shape)  # type: ignore[arg-type]
        if tuple(mask.shape) != shape:
            raise ValueError(f"masks[{name!r}] must have the shape of the weight, {shape}, got {tuple(mask.shape)}")
        if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
            raise ValueError(
                f"masks[{name!r}] must be 0 for dead and 1 for live weights, got other values; try mask > 0"
            )


def masked_network(model: nn.Module, masks: Mapping[str, Tensor]) -> nn.Module:
    """A deep copy whose dead weights are zero; biases and everything else are as they were.

    masks: bool, or 0 and 1, of the shape of the weight per layer; a layer that is not there is fully live.
    """
    check_masks(model, masks)
    network = copy.deepcopy(model)
    with torch.no_grad():
        for name, mask in masks.items():
            weight = network.get_parameter(f"{name}.weight" if name else "weight")
            weight.masked_fill_(~mask.to(weight.device, torch.bool), 0)
    return network


def live_weights(model: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The live weights of every layer, bool of the shape of the weight, on the CPU; a shared one has all masks."""
    joint: dict[int, Tensor] = {}
    layers = {name: module for name, module in maskable_layers(model).items() if is_plain(module)}
    for name, module in layers.items():
        weight = module.weight
        assert isinstance(weight, Tensor)
        mask = joint.setdefault(id(weight), torch.ones(weight.shape, dtype=torch.bool))
        if name in masks:
            mask &= masks[name].to("cpu", torch.bool)
    return {name: joint[id(module.weight)] for name, module in layers.items()}
