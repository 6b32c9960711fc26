"""Networks with fewer passes over their activations: BatchNorm folded into Conv and Linear, ReLU a part of the Conv."""

import copy
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from bayesprune.runtime.lowering import UnsupportedError
from bayesprune.runtime.widths import filled_up

ALLOWED = 1e-9  # of the largest output, in float64
ALIGNED = 4  # channels of 16 bytes: for others cuDNN's Conv with ReLU can be far slower than one after the other


def fused(network: nn.Module, example_shape: tuple[int, ...], multiple: int = 1) -> nn.Module:
    """A copy that computes the same with fewer kernels and, where `multiple` is above 1, with widths filled up to it.

    network: in eval mode; images go in and through it channels last.  example_shape: of one input, without the batch.
    Raises UnsupportedError where the network cannot be traced, or does not say the same afterwards.
    """
    exact = copy.deepcopy(network).double()  # so that folding does not round, and both can be compared
    twin = filled_up(exact, example_shape, multiple) if multiple > 1 else exact
    try:
        joined = fx.symbolic_trace(twin)
    except Exception as error:  # the code of the network is not ours
        raise UnsupportedError(f"torch.fx cannot trace the network ({error})") from error
    for join in (_folded, _with_relu):
        _join(joined, join)
    _prove(exact, joined, example_shape)
    return joined.float().to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


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
    for node in list(network.graph.nodes):
        before = node.args[0] if node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module":
            continue
        if len(before.users) > 1 or calls[before.target] > 1 or node.op not in ("call_module", "call_function"):
            continue
        name = str(before.target)
        operation = network.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        if (one := join(network.get_submodule(name), operation)) is not None:
            network.set_submodule(name, one)
            node.replace_all_uses_with(before)
            network.graph.erase_node(node)
    network.recompile()


def _folded(layer: nn.Module, operation: object) -> nn.Module | None:
    """A Conv2d or Linear with the BatchNorm behind it."""
    if isinstance(layer, nn.Conv2d) and isinstance(operation, nn.BatchNorm2d) and operation.track_running_stats:
        return fuse_conv_bn_eval(layer, operation)
    if isinstance(layer, nn.Linear) and isinstance(operation, nn.BatchNorm1d) and operation.track_running_stats:
        return fuse_linear_bn_eval(layer, operation)
    return None


def _with_relu(conv: nn.Module, operation: object) -> nn.Module | None:
    if not isinstance(conv, nn.Conv2d) or conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        return None
    is_relu = isinstance(operation, nn.ReLU) or operation in (torch.relu, F.relu)
    return ConvReLU(conv) if is_relu else None


def _prove(network: nn.Module, twin: nn.Module, example_shape: tuple[int, ...]) -> None:
    """Raise UnsupportedError unless both, in float64, say the same of random inputs."""
    weight = next(network.parameters())
    x = torch.randn(2, *example_shape, dtype=weight.dtype, generator=torch.Generator().manual_seed(0)).to(weight.device)
    with torch.no_grad():
        one, other = network(x), twin(x)
    # Not a > b: what is not a number is not the same.
    if one.shape != other.shape or not float((one - other).abs().max()) <= ALLOWED * float(one.abs().max()):
        raise UnsupportedError("the network says something else with its operations joined and its widths filled up")
