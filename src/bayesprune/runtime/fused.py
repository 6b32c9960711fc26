"""Networks with fewer passes over their activations: BatchNorm folded into the Conv before it, ReLU a part of it."""

import copy
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from bayesprune.runtime.lowered import UnsupportedError
from bayesprune.runtime.proving import inputs, says_the_same
from bayesprune.runtime.widths import filled_up
from bayesprune.structure import traced_module

ALIGNED = 4  # channels of 16 bytes: for others cuDNN's Conv with ReLU can be far slower than one after the other


def fused(network: nn.Module, example_shape: tuple[int, ...], multiple: int = 1) -> nn.Module:
    """A copy that computes the same with fewer kernels and, where `multiple` is above 1, with widths filled up to it.

    network: float32; its eval mode counts.  Images go in and through the copy channels last.
    example_shape: of one input, without the batch.
    Raises UnsupportedError where the network cannot be rewritten, or does not say the same afterwards.
    """
    if any(one.dtype != torch.float32 for one in network.parameters()):
        raise UnsupportedError("the network is not float32")
    try:
        return _fused(network, example_shape, multiple)
    except UnsupportedError:
        raise
    except Exception as error:  # the code of the network is not ours: torch.fx and torch may say anything
        raise UnsupportedError(f"the network cannot be rewritten ({type(error).__name__}: {error})") from error


def _fused(network: nn.Module, example_shape: tuple[int, ...], multiple: int) -> nn.Module:
    exact = copy.deepcopy(network).eval().double()  # so that folding does not round, and both can be compared
    joined = traced_module(filled_up(exact, example_shape, multiple) if multiple > 1 else exact)
    for join in (_folded, _with_relu):
        _join(joined, join)
    twin: nn.Module = joined.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _prove(exact, twin, example_shape)
    return twin.float()


def conv_relu(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """relu(conv(x)), on a GPU in one kernel where cuDNN has a good one."""
    if x.dtype == torch.float32 and x.is_cuda and conv.groups == 1 and x.shape[1] % ALIGNED == 0:
        assert not isinstance(conv.padding, str)
        return torch.cudnn_convolution_relu(
            x, conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation, conv.groups
        )
    return F.relu_(conv(x))


class ConvReLU(nn.Module):
    """A Conv2d and the ReLU behind it."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        """relu(conv(x)), (n, out, h, w)."""
        return conv_relu(x, self.conv)


def _join(network: fx.GraphModule, join: Callable[[nn.Module, object], nn.Module | None]) -> None:
    """Replace modules by one that does what the operation behind them does, too, where `join` has one.

    join: gets the module and the operation, a module or a function; nothing else may read what the module gives.
    """
    calls = Counter(node.target for node in network.graph.nodes)
    read = [str(node.target) for node in network.graph.nodes if node.op == "get_attr"]
    for node in list(network.graph.nodes):
        before = node.args[0] if node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module":
            continue
        if len(before.users) > 1 or calls[before.target] > 1 or node.op not in ("call_module", "call_function"):
            continue
        name = str(before.target)
        if before.kwargs or any(one.startswith(f"{name}.") for one in read):
            continue
        operation = network.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        if (one := join(network.get_submodule(name), operation)) is not None:
            network.set_submodule(name, one)
            node.replace_all_uses_with(before)
            network.graph.erase_node(node)
    network.recompile()


def _folded(layer: nn.Module, operation: object) -> nn.Module | None:
    """A Conv2d with the BatchNorm behind it."""
    if _is_plain(layer, nn.Conv2d) and _is_plain(operation, nn.BatchNorm2d):
        assert isinstance(layer, nn.Conv2d)
        assert isinstance(operation, nn.BatchNorm2d)
        return fuse_conv_bn_eval(layer, operation) if operation.track_running_stats else None
    return None


def _with_relu(conv: nn.Module, operation: object) -> nn.Module | None:
    if not isinstance(conv, nn.Conv2d) or not _is_plain(conv, nn.Conv2d):
        return None
    if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        return None
    is_relu = _is_plain(operation, nn.ReLU) or operation in (torch.relu, F.relu)
    return ConvReLU(conv) if is_relu else None


def _is_plain(module: object, kind: type[nn.Module]) -> bool:
    """Whether a module does what its class says and nothing else: no subclass, hook or computed weight."""
    if type(module) is not kind:
        return False
    assert isinstance(module, nn.Module)
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return not any(hooks) and (not hasattr(module, "weight") or "weight" in module._parameters)


def _prove(network: nn.Module, twin: nn.Module, example_shape: tuple[int, ...]) -> None:
    """Raise UnsupportedError unless both, in float64, say the same."""
    x = inputs(example_shape, next(network.parameters()).device)
    with torch.no_grad():
        found = twin(x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x)
        if not says_the_same(network(x), found):
            raise UnsupportedError(
                "the network says something else with its operations joined and its widths filled up"
            )
