"""Carry the state of an optimiser over to a smaller network."""

from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.surgery.operation import Surgery


def carry_over(optimiser: torch.optim.Optimizer, model: nn.Module, surgery: Surgery) -> dict[str, Any]:
    """The state_dict for an optimiser of the same class over `surgery.network.parameters()`.

    Momentum, squared gradients and so on keep the entries that their parameters kept; numbers stay; entries of
    parameters that `model` has not (a bias for folded constants) have no state.  With several parameter groups the new
    optimiser needs the same groups: every parameter of the new network, in the order of `parameters()`, in the group
    of its namesake, and a new bias in that of its layer's weight.
    """
    old = dict(model.named_parameters(remove_duplicate=False))
    groups = optimiser.param_groups
    places = {id(parameter): place for place, group in enumerate(groups) for parameter in group["params"]}
    if not any(id(parameter) in places for parameter in old.values()):
        raise ValueError("the optimiser has no parameter of the model; pass the model that it trains")
    names: list[list[str]] = [[] for _ in groups]
    for name, _ in surgery.network.named_parameters():
        namesake = old.get(name, old.get(f"{name.rpartition('.')[0]}.weight".lstrip(".")))
        place = 0 if len(groups) == 1 else places.get(id(namesake))
        if place is not None:
            names[place].append(name)
    order = [name for group in names for name in group]
    numbers = {name: number for number, name in enumerate(order)}
    state = {
        numbers[name]: _sliced(name, optimiser.state[old[name]], old[name], surgery.kept[name])
        for name in order
        if name in old and old[name] in optimiser.state
    }
    settings = [{key: value for key, value in group.items() if key != "params"} for group in groups]
    packed = [
        {**setting, "params": [numbers[name] for name in group]} for setting, group in zip(settings, names, strict=True)
    ]
    return {"state": state, "param_groups": packed}


def _sliced(name: str, state: dict[str, Any], old: Tensor, index: Tensor) -> dict[str, Any]:
    result = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == old.shape:
            result[key] = value.detach().flatten()[index.to(value.device)].clone()
        elif isinstance(value, Tensor) and value.numel() > 1:
            raise ValueError(
                f"the optimiser's {key!r} of {name} has shape {tuple(value.shape)}, not {tuple(old.shape)} of the "
                "parameter, and cannot follow it; start a new optimiser"
            )
        else:
            result[key] = value.clone() if isinstance(value, Tensor) else value
    return result
