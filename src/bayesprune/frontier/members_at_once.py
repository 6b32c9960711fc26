"""Convolution and pooling of many members at once, without what makes them slow under vmap on a GPU.

A convolution of all members is a grouped one, (n, members * channels, height, width).  Its gradient with respect to the
input launches a kernel per group; as a convolution of the output's gradient with mirrored kernels it is one.  Pooling
joins the members with the channels, where they already are, instead of with the examples, which copies everything.
Bias and ReLU come after the pooling of a convolution, where there is less to do: all are monotone, so nothing else
changes.
"""

import copy
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d

Pair = tuple[int, int]


def for_many_members(network: nn.Module) -> nn.Module:
    """A copy of a network that computes the same, and fast under vmap; the names of its parameters stay."""
    network = copy.deepcopy(network)
    for module in network.modules():
        if type(module) is nn.Conv2d and _is_plain(module):
            module.__class__ = MemberConv2d
        elif type(module) is nn.MaxPool2d and not module.return_indices:
            module.__class__ = MemberMaxPool2d
    uses = Counter(id(module) for _, module in network.named_modules(remove_duplicate=False))
    for module in network.modules():
        if type(module) is nn.Sequential:
            _pool_first(module, uses)
    return network


def _pool_first(sequential: nn.Sequential, uses: Mapping[int, int]) -> None:
    """Make conv, pool, bias and ReLU of conv, bias, ReLU and pool; only where each is used once."""
    order = list(sequential._modules)
    for place in range(len(order) - 2):
        conv, relu, pool = (sequential._modules[name] for name in order[place : place + 3])
        if type(conv) is not MemberConv2d or type(relu) is not nn.ReLU or type(pool) is not MemberMaxPool2d:
            continue
        if all(uses[id(one)] == 1 for one in (conv, relu, pool)):
            conv.adds_bias, pool.convs = False, (conv,)
            order[place + 1], order[place + 2] = order[place + 2], order[place + 1]
    sequential._modules = {name: sequential._modules[name] for name in order}


def _is_plain(conv: nn.Conv2d) -> bool:
    """Whether a convolution has neither groups nor steps, and few zeros around it."""
    if conv.stride != (1, 1) or conv.dilation != (1, 1) or conv.groups != 1 or conv.padding_mode != "zeros":
        return False
    return not isinstance(conv.padding, str) and all(p < k for p, k in zip(conv.padding, conv.kernel_size, strict=True))


class MemberConv2d(nn.Conv2d):
    """A Conv2d without groups, stride or dilation, for use under vmap.  adds_bias: or the pooling after it does."""

    adds_bias = True

    def forward(self, input: Tensor) -> Tensor:
        assert not isinstance(self.padding, str)
        output: Tensor = _Conv.apply(input, self.weight, self.padding, 1)  # type: ignore[no-untyped-call]
        return output if self.bias is None or not self.adds_bias else output + self.bias[:, None, None]


class MemberMaxPool2d(nn.MaxPool2d):
    """A MaxPool2d for use under vmap.  convs: the convolution whose bias it adds, if any, kept from its parameters."""

    convs: tuple[MemberConv2d, ...] = ()

    def forward(self, input: Tensor) -> Tensor:
        options = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        output: Tensor = _Pool.apply(input, options)  # type: ignore[no-untyped-call]
        for conv in self.convs:
            output = output if conv.bias is None else output + conv.bias[:, None, None]
        return output


class _Conv(torch.autograd.Function):
    """Groups of a conv2d, x (n, in, h, w) and weight (out, in / groups, *kernel).

    Under vmap: the members as groups, or as more outputs where they share their input.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, padding: Pair, groups: int) -> Tensor:
        return conv2d(x, weight, padding=padding, groups=groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, ctx.padding, ctx.groups = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        arguments = (None, (1, 1), ctx.padding, (1, 1), False, (0, 0), ctx.groups, (False, True, False))
        dw = torch.ops.aten.convolution_backward(grad, x, weight, *arguments)[1]
        if not ctx.needs_input_grad[0]:
            return None, dw, None, None
        mirrored = weight.unflatten(0, (ctx.groups, -1)).transpose(1, 2).flatten(0, 1).flip(2, 3)
        around = [k - 1 - p for k, p in zip(weight.shape[2:], ctx.padding, strict=True)]
        return conv2d(grad, mirrored, padding=around, groups=ctx.groups), dw, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, padding: Pair, groups: int
    ) -> tuple[Tensor, int]:
        members = info.batch_size
        weight = weight.expand(members, *weight.shape) if in_dims[1] is None else weight.movedim(in_dims[1], 0)
        stacked = weight.flatten(0, 1)
        if in_dims[0] is None:
            together = conv2d(x, stacked, padding=padding)
        else:
            joined = x.movedim(in_dims[0], 1).flatten(1, 2)
            together = _Conv.apply(joined, stacked, padding, members)  # type: ignore[no-untyped-call]
        return together.unflatten(1, (members, -1)), 1


class _Pool(torch.autograd.Function):
    """max_pool2d of x (n, channels, h, w); under vmap the members count as channels."""

    @staticmethod
    def forward(x: Tensor, options: tuple[Any, ...]) -> Tensor:
        pooled: Tensor = max_pool2d(x, *options)
        return pooled

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.options = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            (dx,) = torch.autograd.grad(max_pool2d(again, *ctx.options), again, grad)
        return dx, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, options: tuple[Any, ...]) -> tuple[Tensor, int]:
        if in_dims[0] is None:
            return max_pool2d(x, *options), None  # type: ignore[return-value]
        pooled = max_pool2d(x.movedim(in_dims[0], 1).flatten(1, 2), *options)
        return pooled.unflatten(1, (info.batch_size, -1)), 1
