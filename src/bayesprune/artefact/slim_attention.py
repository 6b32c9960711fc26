"""Attention that has lost heads, by its sizes: the one module of the closed list that is not torch's."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from bayesprune.surgery.attention import SlimAttention

ARGUMENTS: Final[dict[str, Callable[[SlimAttention], Any]]] = {
    "embed_dim": lambda module: module.in_proj_weight.shape[1],
    "head_dim": lambda module: module.head_dim,
    "num_heads": lambda module: module.num_heads,
    "outputs": lambda module: module.out_proj.out_features,
    "bias": lambda module: module.in_proj_bias is not None,
    "out_bias": lambda module: module.out_proj.bias is not None,
    "dropout": lambda module: module.dropout,
    "batch_first": lambda module: module.batch_first,
}


def make_slim_attention(
    embed_dim: int,
    head_dim: int,
    num_heads: int,
    outputs: int,
    bias: bool,
    out_bias: bool,
    dropout: float,
    batch_first: bool,
) -> SlimAttention:
    """The module of these sizes, its parameters without values."""
    # One head of the right size, whose parameters are replaced as surgery does it.
    whole = nn.MultiheadAttention(head_dim, 1, dropout, batch_first=batch_first)
    inner = num_heads * head_dim
    whole.in_proj_weight = nn.Parameter(torch.empty(3 * inner, embed_dim))
    whole.register_parameter("in_proj_bias", nn.Parameter(torch.empty(3 * inner)) if bias else None)
    whole.out_proj = NonDynamicallyQuantizableLinear(inner, outputs, bias=out_bias)
    slim = SlimAttention(whole)
    # What the constructor derives from the weights; without any it cannot.
    slim.num_heads = num_heads
    return slim
