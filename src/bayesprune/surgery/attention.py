"""Multi-head attention that has lost heads; the structure knows it, so that it can lose more."""

from bayesprune.structure.attention import SlimAttention

__all__ = ["SlimAttention"]
