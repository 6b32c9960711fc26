"""The weight that the prior sees: BatchNorm folded in, fan-in normalised (design: effective weights)."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

Prunable = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


@dataclass(frozen=True)
class PrunableWeight:
    """A weight of a network together with the factor that turns it into what the prior sees.

    name: of the module in the network.  batchnorm: the BatchNorm that alone consumes the module's output, or None.
    normalised: whether the factor sqrt(fan_in / 2) is applied, which makes weights of order 1 in every layer: without
    it the typical weight of a wide layer lies inside the spike, and the layer dies.
    """

    name: str
    module: Prunable
    batchnorm: BatchNorm | None
    normalised: bool

    @property
    def weight(self) -> Tensor:
        """The parameter itself, (out, in, *kernel)."""
        return self.module.weight

    def scale(self) -> Tensor:
        """The factor, (out, 1, ...) or (1, 1, ...), without gradient: gamma / sqrt(var + eps) * sqrt(fan_in / 2)."""
        weight = self.weight
        fan_in = math.prod(weight.shape[1:])
        factor = torch.full((1,), math.sqrt(fan_in / 2) if self.normalised else 1.0).to(weight)
        if self.batchnorm is not None:
            assert self.batchnorm.running_var is not None
            gain = torch.rsqrt(self.batchnorm.running_var + self.batchnorm.eps)
            factor = factor * (gain if self.batchnorm.weight is None else gain * self.batchnorm.weight.detach())
        return factor.reshape(-1, *(1,) * (weight.ndim - 1))

    def effective(self) -> Tensor:
        """The weight that the prior sees, (out, in, *kernel), differentiable in the weight."""
        return self.weight * self.scale()


def prunable_weights(
    model: nn.Module, *, fold_batchnorm: bool = True, normalise_fan_in: bool = True
) -> list[PrunableWeight]:
    """List every Linear and Conv weight of a network, each once, in the order of `named_modules`.

    fold_batchnorm: without it the prior of a layer in front of a BatchNorm is degenerate, since BatchNorm undoes any
    rescaling of the weights; it can be switched off for the paper's literal setting.
    """
    after = _batchnorm_after(model) if fold_batchnorm else {}
    return [
        PrunableWeight(name, module, after.get(name), normalise_fan_in)
        for name, module in model.named_modules()
        if isinstance(module, Prunable)
    ]


class _Leaves(fx.Tracer):
    """Descend to the modules that matter here, whoever wrote the ones around them."""

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return isinstance(module, Prunable | BatchNorm) or super().is_leaf_module(module, qualified_name)


def _batchnorm_after(model: nn.Module) -> dict[str, BatchNorm]:
    """Map the name of each Linear or Conv to the BatchNorm that is the only reader of its output."""
    modules = dict(model.named_modules())
    if not any(isinstance(module, BatchNorm) for module in modules.values()):
        return {}
    try:
        graph = _Leaves().trace(model)
    except Exception as error:  # the tracer runs the user's forward, which may raise anything
        warnings.warn(
            f"BatchNorm cannot be folded into the weights because {type(model).__name__} cannot be traced "
            f"({type(error).__name__}: {error}); BatchNorms that directly follow their layer inside an nn.Sequential "
            "are folded, the others are not",
            stacklevel=3,
        )
        return dict(_neighbours_in_sequentials(model))
    calls = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    pairs: dict[str, BatchNorm] = {}
    for node in graph.nodes:
        if node.op != "call_module" or not isinstance(modules[str(node.target)], Prunable) or len(node.users) != 1:
            continue
        reader = next(iter(node.users))
        follower = modules.get(str(reader.target)) if reader.op == "call_module" else None
        shared = calls.count(str(node.target)) > 1 or calls.count(str(reader.target)) > 1
        if isinstance(follower, BatchNorm) and follower.track_running_stats and not shared:
            pairs[str(node.target)] = follower
    return pairs


def _neighbours_in_sequentials(model: nn.Module) -> Iterator[tuple[str, BatchNorm]]:
    names = {module: name for name, module in model.named_modules()}
    for sequential in model.modules():
        if isinstance(sequential, nn.Sequential):
            for first, second in zip(sequential, list(sequential)[1:], strict=False):
                if isinstance(first, Prunable) and isinstance(second, BatchNorm) and second.track_running_stats:
                    yield names[first], second
