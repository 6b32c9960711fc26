"""The closed list: every function, method, attribute and module that an architecture may name.

All of them compute with tensors and nothing else.  Left out on purpose: what touches files, processes or raw memory
(load, from_file, as_strided, set_, resize_, storage, share_memory_, empty), what runs other code (apply_, map_,
register_hook) and what leaves torch (numpy).
"""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.fx import _symbolic_trace
from torch.nn import functional

from bayesprune.artefact.slim_attention import ARGUMENTS as SLIM_ARGUMENTS
from bayesprune.artefact.slim_attention import make_slim_attention
from bayesprune.surgery.attention import SlimAttention


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Functions of `torch` that are methods of tensors as well.
SHARED: Final = _names(
    """
    abs absolute acos add addcdiv addcmul addmm addmv all allclose amax amin aminmax any argmax argmin argsort asin atan
    atan2 baddbmm bmm broadcast_to ceil chunk clamp clamp_max clamp_min clip clone conj copysign cos cosh count_nonzero
    cross cummax cummin cumprod cumsum deg2rad detach diag diag_embed diagonal diff dist div divide dot dsplit eq equal
    erf erfc erfinv exp exp2 expm1 flatten flip fliplr flipud floor floor_divide fmax fmin fmod frac gather ge greater
    greater_equal gt heaviside hsplit hypot index_add index_copy index_fill index_select inner isclose isfinite
    isinf isnan kron kthvalue le lerp less less_equal log log10 log1p log2 logaddexp logcumsumexp logical_and
    logical_not logical_or logical_xor logit logsumexp lt masked_fill masked_scatter masked_select matmul max maximum
    mean median min minimum mm mode moveaxis movedim msort mul multiply mv nan_to_num nanmean nansum narrow ne neg
    negative nonzero norm not_equal numel outer permute positive pow prod quantile rad2deg ravel reciprocal
    relu relu_ remainder renorm repeat_interleave reshape roll rot90 round rsqrt scatter scatter_add select sigmoid
    sigmoid_ sign sin sinc sinh softmax log_softmax sort split split_with_sizes sqrt square squeeze std sub subtract sum
    swapaxes swapdims t take take_along_dim tan tanh tanh_ tensor_split tile topk trace transpose tril triu true_divide
    trunc unbind unflatten unsqueeze var vdot vsplit where xlogy is_floating_point is_complex hardshrink prelu
    bitwise_and bitwise_not bitwise_or bitwise_xor
    """
)
TORCH: Final = SHARED | _names(
    """
    arange atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors bucketize cartesian_prod cat cdist
    column_stack concat concatenate dstack einsum eye full full_like hstack linspace logspace meshgrid ones ones_like
    row_stack searchsorted stack std_mean tensordot var_mean vstack zeros zeros_like rand_like randn_like scalar_tensor
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool2d max_pool3d avg_pool1d
    adaptive_avg_pool1d adaptive_max_pool1d batch_norm layer_norm group_norm instance_norm rms_norm dropout
    alpha_dropout feature_alpha_dropout feature_dropout embedding cosine_similarity pairwise_distance bilinear celu
    celu_ selu selu_ rrelu threshold threshold_ pixel_shuffle pixel_unshuffle channel_shuffle clamp_ clamp_max_
    clamp_min_ clip_ exp_ get_device imag neg_ real sqrt_ square_ _assert
    """
)
FUNCTIONAL: Final = _names(
    """
    relu relu_ relu6 gelu silu sigmoid tanh hardtanh hardtanh_ hardswish hardsigmoid leaky_relu leaky_relu_ elu elu_
    selu selu_ celu celu_ softplus softsign mish logsigmoid tanhshrink hardshrink softshrink threshold threshold_ rrelu
    rrelu_ prelu glu softmax log_softmax softmin normalize dropout dropout1d dropout2d dropout3d alpha_dropout
    feature_alpha_dropout linear bilinear embedding embedding_bag one_hot
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
    max_unpool1d max_unpool2d max_unpool3d avg_pool1d avg_pool2d avg_pool3d lp_pool1d lp_pool2d lp_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices
    adaptive_max_pool3d_with_indices fractional_max_pool2d fractional_max_pool3d
    batch_norm instance_norm layer_norm group_norm rms_norm local_response_norm pad unfold fold
    interpolate upsample upsample_nearest upsample_bilinear pixel_shuffle pixel_unshuffle channel_shuffle grid_sample
    affine_grid cosine_similarity pairwise_distance scaled_dot_product_attention
    """
)
OPERATORS: Final = _names(
    """
    abs add and_ concat eq floordiv ge getitem gt invert le lt matmul mod mul ne neg not_ or_ pos pow sub truediv xor
    iadd iand ifloordiv imatmul imod imul ior ipow isub itruediv ixor
    """
)
MATH: Final = _names("ceil cos exp fabs floor isqrt log log10 log2 prod sin sqrt tanh trunc")

FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    **{f"operator.{name}": getattr(operator, name) for name in sorted(OPERATORS)},
    **{f"torch.{name}": getattr(torch, name) for name in sorted(TORCH)},
    **{f"torch.nn.functional.{name}": getattr(functional, name) for name in sorted(FUNCTIONAL)},
    **{f"math.{name}": getattr(math, name) for name in sorted(MATH)},
    # What torch.fx writes where an argument of `forward` was fixed to its default.
    "torch.fx.assert_is_none": _symbolic_trace._assert_is_none,
    "getattr": getattr,
}
FUNCTION_NAMES: Final[dict[Callable[..., Any], str]] = {function: name for name, function in FUNCTIONS.items()}

# The only names that `getattr` reads.
ATTRIBUTES: Final = _names("shape dtype device ndim T mT real imag is_cuda requires_grad layout")

METHODS: Final = SHARED | _names(
    """
    abs_ add_ addcmul_ bfloat16 bool ceil_ clamp_ clamp_max_ clamp_min_ clip_ contiguous copy_ cpu cuda cumsum_ dim div_
    double element_size exp_ expand expand_as fill_ float floor_ get_device half index_add_ index_copy_ index_fill_ int
    is_contiguous item log_ long masked_fill_ masked_scatter_ mul_ ndimension neg_ nelement new_full new_ones
    new_zeros pow_ reciprocal_ repeat requires_grad_ reshape_as round_ rsqrt_ scatter_ scatter_add_ size sqrt_ squeeze_
    stride sub_ sum_to_size t_ to tolist transpose_ tril_ triu_ type type_as unfold unsqueeze_ view view_as zero_ short
    """
)

# For each class the names of its constructor's arguments, which are the names of its attributes as well.  An argument
# with a question mark is stored only where it is not the default: not every version of torch has it.
_CONV = "in_channels out_channels kernel_size stride padding dilation groups bias padding_mode"
_NORM = "num_features eps momentum affine track_running_stats bias?"
_MAX_POOL = "kernel_size stride padding dilation return_indices ceil_mode"
_AVG_POOL = "kernel_size stride padding ceil_mode count_include_pad divisor_override"
_EMBEDDING = "num_embeddings embedding_dim padding_idx max_norm norm_type scale_grad_by_freq sparse"
_BY_DIMENSION: Final = {
    "Conv": _CONV,
    "ConvTranspose": f"{_CONV} output_padding",
    "BatchNorm": _NORM,
    "InstanceNorm": _NORM,
    "MaxPool": _MAX_POOL,
    "MaxUnpool": "kernel_size stride padding",
    "AvgPool": _AVG_POOL,
    "LPPool": "norm_type kernel_size stride ceil_mode",
    "AdaptiveAvgPool": "output_size",
    "AdaptiveMaxPool": "output_size return_indices",
    "ZeroPad": "padding",
    "ReflectionPad": "padding",
    "ReplicationPad": "padding",
    "CircularPad": "padding",
    "ConstantPad": "padding value",
    "Dropout": "p inplace",
}
_TORCH_MODULES: Final = {
    **{f"{kind}{dims}d": names for kind, names in _BY_DIMENSION.items() for dims in (1, 2, 3)},
    **dict.fromkeys(_names("ReLU ReLU6 SELU SiLU Mish Hardswish Hardsigmoid"), "inplace"),
    **dict.fromkeys(_names("Identity Sigmoid Tanh Softsign LogSigmoid Tanhshrink Softmax2d"), ""),
    **dict.fromkeys(_names("Softmax LogSoftmax Softmin GLU"), "dim"),
    **dict.fromkeys(_names("Hardshrink Softshrink"), "lambd"),
    **dict.fromkeys(_names("ELU CELU"), "alpha inplace"),
    **dict.fromkeys(_names("Dropout AlphaDropout FeatureAlphaDropout"), "p inplace"),
    **dict.fromkeys(_names("UpsamplingNearest2d UpsamplingBilinear2d"), "size scale_factor"),
    "AvgPool1d": "kernel_size stride padding ceil_mode count_include_pad",
    "Hardtanh": "min_val max_val inplace",
    "LeakyReLU": "negative_slope inplace",
    "GELU": "approximate",
    "Softplus": "beta threshold",
    "Threshold": "threshold value inplace",
    "RReLU": "lower upper inplace",
    "PReLU": "num_parameters",
    "Linear": "in_features out_features bias",
    "Bilinear": "in1_features in2_features out_features bias",
    "LayerNorm": "normalized_shape eps elementwise_affine bias",
    "RMSNorm": "normalized_shape eps elementwise_affine",
    "GroupNorm": "num_groups num_channels eps affine bias?",
    "LocalResponseNorm": "size alpha beta k",
    "Embedding": _EMBEDDING,
    "EmbeddingBag": f"{_EMBEDDING} mode include_last_offset",
    "MultiheadAttention": "embed_dim num_heads dropout bias add_bias_kv add_zero_attn kdim vdim batch_first",
    "Flatten": "start_dim end_dim",
    "Unflatten": "dim unflattened_size",
    "Upsample": "size scale_factor mode align_corners recompute_scale_factor",
    "PixelShuffle": "upscale_factor",
    "PixelUnshuffle": "downscale_factor",
    "ChannelShuffle": "groups",
    "Fold": "output_size kernel_size dilation padding stride",
    "Unfold": "kernel_size dilation padding stride",
    "CosineSimilarity": "dim eps",
}


@dataclass(frozen=True)
class Listed:
    """A class of modules: its constructor, or a function like it, with the names of the arguments."""

    kind: type[nn.Module]
    make: Callable[..., nn.Module]
    arguments: tuple[str, ...]


MODULES: Final = {
    **{
        name: Listed(getattr(nn, name), getattr(nn, name), tuple(arguments.split()))
        for name, arguments in _TORCH_MODULES.items()
    },
    "SlimAttention": Listed(SlimAttention, make_slim_attention, tuple(SLIM_ARGUMENTS)),
}
MODULE_NAMES: Final = {listed.kind: name for name, listed in MODULES.items()}
