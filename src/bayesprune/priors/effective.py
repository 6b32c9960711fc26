"""The weight that the prior sees: BatchNorm folded in, fan-in normalised (design: effective weights)."""

import copy
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx, nn

Prunable = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


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
        factor = weight.new_full((1,), math.sqrt(fan_in / 2) if self.normalised else 1.0)
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
    found: dict[int, PrunableWeight] = {}
    for name, module in model.named_modules():
        if not isinstance(module, Prunable):
            continue
        if isinstance(module.weight, nn.UninitializedParameter):
            raise ValueError(f"{name} is a lazy layer without weights yet; run the network once on an example first")
        if id(module.weight) in found:  # a tied weight has one prior, and no BatchNorm of its own
            found[id(module.weight)] = replace(found[id(module.weight)], batchnorm=None)
        else:
            found[id(module.weight)] = PrunableWeight(name, module, after.get(name), normalise_fan_in)
    return list(found.values())


class _Leaves(fx.Tracer):
    """Descend to the modules that matter here, whoever wrote the ones around them."""

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return isinstance(module, Prunable | BatchNorm) or super().is_leaf_module(module, qualified_name)


def _batchnorm_after(model: nn.Module) -> dict[str, BatchNorm]:
    """Map the name of each Linear or Conv to the BatchNorm that is the only reader of its output.

    A BatchNorm1d behind a Linear is taken to normalise features, as it does on inputs (n, features).
    """
    modules = dict(model.named_modules())
    if not any(isinstance(module, BatchNorm) for module in modules.values()):
        return {}
    prefix, inner = _unwrapped(model)
    try:
        # The tracer runs the user's forward with stand-ins for tensors, which may end up in buffers and attributes.
        twin = copy.deepcopy(inner, {id(p): p for p in inner.parameters()})
        graph = _Leaves().trace(twin)
    except Exception as error:  # the user's forward may raise anything
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
        layer = modules.get(prefix + str(node.target)) if node.op == "call_module" else None
        if not isinstance(layer, Prunable) or len(node.users) != 1:
            continue
        reader = next(iter(node.users))
        follower = modules.get(prefix + str(reader.target)) if reader.op == "call_module" else None
        shared = calls.count(str(node.target)) > 1 or calls.count(str(reader.target)) > 1
        if _foldable(layer, follower) and not shared:
            assert isinstance(follower, BatchNorm)
            pairs[prefix + str(node.target)] = follower
    return pairs


def _foldable(layer: Prunable, follower: nn.Module | None) -> bool:
    if not isinstance(follower, BatchNorm):
        return False
    return follower.track_running_stats and follower.num_features == layer.weight.shape[0]


def _unwrapped(model: nn.Module) -> tuple[str, nn.Module]:
    """The network inside DataParallel, DistributedDataParallel or torch.compile, and the prefix of its names."""
    prefix = ""
    while True:
        for attribute in ("module", "_orig_mod"):
            inner = getattr(model, attribute, None)
            if isinstance(inner, nn.Module) and len(list(model.children())) == 1:
                prefix, model = f"{prefix}{attribute}.", inner
                break
        else:
            return prefix, model


def _neighbours_in_sequentials(model: nn.Module) -> Iterator[tuple[str, BatchNorm]]:
    names = {module: name for name, module in model.named_modules()}
    sequentials = [m for m in model.modules() if isinstance(m, nn.Sequential)]
    places = [child for sequential in sequentials for child in sequential]
    for sequential in sequentials:
        for first, second in zip(sequential, list(sequential)[1:], strict=False):
            if isinstance(first, Prunable) and places.count(first) == 1 and _foldable(first, second):
                assert isinstance(second, BatchNorm)
                yield names[first], second
