"""What every operation of a network does to units: names by kind."""

import operator
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from bayesprune.structure.attention import SlimAttention


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


Prunable = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
Attention = nn.MultiheadAttention | SlimAttention

ELEMENTWISE: Final = _names(
    """
    relu relu_ relu6 gelu silu sigmoid sigmoid_ tanh tanh_ hardtanh hardtanh_ hardswish hardsigmoid leaky_relu
    leaky_relu_ elu elu_ selu selu_ celu celu_ softplus softsign mish logsigmoid tanhshrink hardshrink softshrink
    threshold threshold_ rrelu dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout
    clamp clamp_ clip clip_ clamp_min clamp_max abs absolute neg negative positive pos exp expm1 log log1p log2 log10
    sqrt rsqrt square reciprocal sign erf floor ceil round trunc sin cos nan_to_num pow
    contiguous clone detach float double half bfloat16 cpu cuda requires_grad_
    add add_ sub sub_ subtract mul mul_ multiply div div_ divide truediv true_divide iadd isub imul itruediv
    maximum minimum where masked_fill masked_fill_ lerp eq ne lt le gt ge logical_not logical_and logical_or
    """
)
PRODUCTS: Final = _names("mul mul_ multiply imul")
QUOTIENTS: Final = _names("div div_ divide truediv true_divide itruediv")
FIRST_ONLY: Final = frozenset({"to", "type", "type_as"})
REDUCTIONS: Final = _names("mean sum prod amax amin max min std var logsumexp median any all nanmean")
ACROSS: Final = _names("softmax log_softmax softmin cumsum cumprod normalize")
RESHAPES: Final = _names("view reshape unflatten expand")
SPLITS: Final = _names("chunk split split_with_sizes tensor_split")
SELECTIONS: Final = _names("getitem narrow select unbind")
MOVES: Final = (
    RESHAPES
    | SPLITS
    | SELECTIONS
    | _names(
        """
        flatten squeeze unsqueeze permute transpose transpose_ swapaxes swapdims movedim moveaxis t T mT flip
        repeat tile repeat_interleave roll expand_as view_as reshape_as
        """
    )
)
JOINS: Final = _names("cat concat concatenate stack")
POOLS: Final = {
    f"{kind}_pool{dims}d": dims
    for kind in ("max", "avg", "adaptive_max", "adaptive_avg", "lp", "fractional_max")
    for dims in (1, 2, 3)
}
RESAMPLING: Final = frozenset({"interpolate", "upsample", "upsample_nearest", "upsample_bilinear"})
# They tell a tensor's form, not its content.
QUERIES: Final = _names(
    "size dim ndimension numel nelement is_floating_point is_complex get_device stride element_size is_contiguous "
    "shape ndim dtype device is_cuda requires_grad layout"
)
NAMES: Final = (
    ELEMENTWISE
    | FIRST_ONLY
    | REDUCTIONS
    | ACROSS
    | MOVES
    | JOINS
    | RESAMPLING
    | QUERIES
    | frozenset(POOLS)
    | {"pad", "glu", "layer_norm", "rms_norm", "group_norm", "local_response_norm"}
)

PASSING_MODULES: Final = tuple(
    getattr(nn, name)
    for name in _names("""
    Identity ReLU ReLU6 GELU SiLU Sigmoid Tanh Hardtanh Hardswish Hardsigmoid LeakyReLU ELU SELU CELU Softplus Softsign
    Mish LogSigmoid Tanhshrink Hardshrink Softshrink Threshold RReLU Dropout Dropout1d Dropout2d Dropout3d AlphaDropout
    FeatureAlphaDropout
    """)
)
POOL_MODULES: Final = {
    getattr(nn, f"{kind}Pool{dims}d"): dims
    for kind in ("Max", "Avg", "AdaptiveMax", "AdaptiveAvg", "LP")
    for dims in (1, 2, 3)
} | {nn.FractionalMaxPool2d: 2, nn.FractionalMaxPool3d: 3}
PAD_MODULES: Final = {
    getattr(nn, f"{kind}Pad{dims}d"): dims
    for kind in ("Zero", "Constant", "Reflection", "Replication", "Circular")
    for dims in (1, 2, 3)
}
SOFTMAX_MODULES: Final = (nn.Softmax, nn.LogSoftmax, nn.Softmin)
RESAMPLING_MODULES: Final = (nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d)
BATCH_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
TRANSPOSED: Final = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
INSTANCE_NORMS: Final = {nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3}


def _functions(namespaces: Iterable[Any]) -> dict[Any, str]:
    """Map the functions themselves to their names: a user's function called `relu` is not torch's."""
    return {
        getattr(space, name): name for space in namespaces for name in NAMES if callable(getattr(space, name, None))
    }


FUNCTIONS: Final = _functions((operator, torch, functional))


def is_leaf(module: nn.Module) -> bool:
    """Whether the effect of the module on units is known even if it is of a user's class."""
    return isinstance(module, Prunable | SlimAttention) or keeps_forward(module, (*BATCH_NORMS, *TRANSPOSED))


def groups_of(module: Prunable | Transposed) -> int:
    """The number of groups; 1 for a Linear."""
    return 1 if isinstance(module, nn.Linear) else module.groups


def shape_of(module: Prunable | Transposed) -> tuple[int, ...]:
    """(out, in_per_group, *kernel): the shape of the weight, for a transposed conv with both sides exchanged."""
    shape = tuple(module.weight.shape)
    if isinstance(module, Transposed):
        return shape[1] * module.groups, shape[0] // module.groups, *shape[2:]
    return shape


def keeps_forward(module: nn.Module, kinds: Iterable[type[nn.Module]]) -> bool:
    """Whether the module computes what torch's class of it computes, even if a user's subclass."""
    return any(isinstance(module, kind) and type(module).forward is kind.forward for kind in kinds)
