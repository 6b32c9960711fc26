"""Multi-head attention that has lost heads."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class SlimAttention(nn.Module):
    """nn.MultiheadAttention with fewer heads, or fewer outputs, than its inputs are wide.

    in_proj_weight: (3 heads head_dim, embed_dim), out_proj: (heads head_dim) to the outputs; names and call as in
    nn.MultiheadAttention, but there are no attention weights among the results.
    """

    def __init__(self, attention: "nn.MultiheadAttention | SlimAttention") -> None:
        """Take over the parameters, which have lost rows and columns already."""
        super().__init__()
        self.head_dim: int = attention.head_dim
        self.num_heads = attention.out_proj.in_features // attention.head_dim
        self.batch_first: bool = attention.batch_first
        self.dropout: float = attention.dropout
        self.in_proj_weight: nn.Parameter = attention.in_proj_weight
        self.in_proj_bias: nn.Parameter | None
        self.register_parameter("in_proj_bias", attention.in_proj_bias)
        self.out_proj: nn.Linear = attention.out_proj
        self.training = attention.training

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Map queries (n, l, e), keys and values (n, s, e) to (n, l, outputs), sequence first unless batch_first."""
        weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        queries, keys, values = (
            self._split(functional.linear(one, weight, bias))
            for one, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
        # `is_causal` only promises that attn_mask is causal, so the masks say it all.
        mask = self._joint_mask(query, key_padding_mask, attn_mask)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout)
        return self.out_proj(self._join(mixed, query.ndim)), None

    def _split(self, projected: Tensor) -> Tensor:
        """(n, heads, length, head_dim) of what a projection gives."""
        if projected.ndim == 2:
            projected = projected.unsqueeze(0)
        elif not self.batch_first:
            projected = projected.transpose(0, 1)
        heads: Tensor = projected.unflatten(2, (self.num_heads, self.head_dim))
        return heads.transpose(1, 2)

    def _join(self, mixed: Tensor, ndim: int) -> Tensor:
        """The reverse of `_split`."""
        joined = mixed.transpose(1, 2).flatten(2)
        if ndim == 2:
            return joined.squeeze(0)
        return joined if self.batch_first else joined.transpose(0, 1)

    def _joint_mask(self, query: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
        """What both masks add to the scores, broadcast to (n, heads, l, s)."""
        total = None if attn_mask is None else _additive(attn_mask, query)
        if key_padding_mask is not None:
            padding = _additive(key_padding_mask, query)
            padding = padding[None, None, None] if padding.ndim == 1 else padding[:, None, None]
            total = padding if total is None else total + padding
        return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """True, which hides a key, as -inf."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, float("-inf"))
