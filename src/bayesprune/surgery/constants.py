"""Which inputs of layers do not depend on the network's input, and their values.

The masked network runs once with NaN for everything that is not known.  What comes out as a number depends on nothing
unknown, provided that every operation passes NaN on, or is known to depend on nothing: that is the closed list below.
Layers are the exception: a dead weight stops NaN.
"""

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.fx.node import Node, map_aggregate
from torch.nn import functional

from bayesprune.structure import operations as ops
from bayesprune.surgery.masking import Maskable

NAN: Final = float("nan")
UNIFORM: Final = 1e-12
"""The relative difference, in float64, below which the entries of a channel count as equal."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Smooth enough that rounding does not matter, deterministic, and NaN in gives NaN out.
POINTWISE: Final = _names(
    """
    relu relu_ relu6 gelu silu sigmoid sigmoid_ tanh tanh_ hardtanh hardtanh_ leaky_relu leaky_relu_
    elu elu_ selu selu_ celu celu_ softplus softsign mish logsigmoid tanhshrink
    clamp clamp_ clip clip_ clamp_min clamp_max abs absolute neg negative positive pos exp expm1 log log1p log2 log10
    sqrt rsqrt square reciprocal erf sin cos contiguous clone detach
    add add_ sub sub_ subtract mul mul_ multiply div div_ divide truediv true_divide iadd isub imul itruediv
    maximum minimum lerp to type_as
    """
)
DROPOUTS: Final = _names("dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout")
REDUCTIONS: Final = _names("mean sum amax amin max min std var")
POOLS: Final = frozenset(name for name in ops.POOLS if not name.startswith(("fractional", "lp")))
NORMS: Final = _names("softmax log_softmax softmin normalize layer_norm group_norm glu")
SAFE: Final = (
    POINTWISE | DROPOUTS | REDUCTIONS | POOLS | NORMS | ops.MOVES | ops.JOINS | ops.RESAMPLING | frozenset({"pad"})
)
SAFE_FUNCTIONS: Final = {
    getattr(space, name): name
    for space in (operator, torch, functional)
    for name in SAFE
    if callable(getattr(space, name, None))
}
NEW_TENSORS: Final = (
    torch.zeros,
    torch.ones,
    torch.full,
    torch.arange,
    torch.tensor,
    torch.zeros_like,
    torch.ones_like,
)
SAFE_MODULES: Final = (
    tuple(
        getattr(nn, name)
        for name in _names("""
        Identity ReLU ReLU6 GELU SiLU Sigmoid Tanh Hardtanh LeakyReLU ELU SELU CELU Softplus Softsign Mish LogSigmoid
        Tanhshrink Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout
        Flatten Unflatten PReLU GLU LayerNorm GroupNorm Upsample UpsamplingNearest2d UpsamplingBilinear2d
        """)
    )
    + ops.SOFTMAX_MODULES
    + tuple(ops.PAD_MODULES)
    + tuple(ops.INSTANCE_NORMS)
    + tuple(kind for kind in ops.POOL_MODULES if not kind.__name__.startswith(("Fractional", "LP")))
)


@dataclass(frozen=True, eq=False)
class Columns:
    """What a layer gets.

    known: (in,) bool, the channels that are constant over examples and places.  value: (in,) float64, the constants.
    size: the smallest spatial size of its inputs over all calls.
    """

    known: Tensor
    value: Tensor
    size: tuple[int, ...]

    def merged(self, other: "Columns") -> "Columns":
        """What holds in this call and in another one."""
        same = (self.value - other.value).abs() <= UNIFORM * self.value.abs()
        size = tuple(map(min, self.size, other.size))
        return Columns(self.known & other.known & same, self.value, size)


@dataclass(frozen=True, eq=False)
class Findings:
    """What a run told.

    columns: what every layer gets, by name.  dims: the number of dimensions of what every node makes, by name.
    """

    columns: dict[str, Columns] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)


def find_constants(
    network: nn.Module, graph: fx.Graph, live: Mapping[str, Tensor], inputs: tuple[Tensor, ...], dtype: torch.dtype
) -> Findings:
    """What every layer of the graph gets.

    network: masked, of this dtype and in eval mode; this run may change its buffers.  live: bool, of the shape of the
    weight per layer.
    """
    run = _UnknownInputs(network, graph, live)
    with torch.no_grad():
        run.run(*[one.to(dtype) if one.is_floating_point() else one for one in inputs])
    return run.findings


class _UnknownInputs(fx.Interpreter):
    """Interpret the graph with NaN for what depends on the input."""

    def __init__(self, network: nn.Module, graph: fx.Graph, live: Mapping[str, Tensor]) -> None:
        super().__init__(network, graph=graph)
        self.live = live
        self.findings = Findings()
        self.hidden: set[Node] = set()
        """Nodes whose results depend on the input and cannot be NaN: whole numbers, truth values, collections."""

    def run_node(self, n: Node) -> Any:
        """Run one operation."""
        result = self._run(n)
        if isinstance(result, Tensor):
            self.findings.dims[n.name] = result.ndim
        return result

    def _run(self, n: Node) -> Any:
        """Forget what is not known to be independent of the input."""
        if n.op == "placeholder":
            return self._forgotten(n, super().run_node(n))
        if n.op in ("get_attr", "output"):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        operands = _tensors((args, kwargs))
        unseen = any(node in self.hidden for node in n.all_input_nodes)
        module = self.submodules[str(n.target)] if n.op == "call_module" else None
        if isinstance(module, Maskable) and str(n.target) in self.live and not unseen:
            return self._layer(str(n.target), module, args, kwargs)
        result = super().run_node(n)
        if _name(n) in ops.QUERIES or (not operands and not _tensors(result) and not unseen):
            return result
        if unseen or not _passes_nan(n, module, operands):
            return self._forgotten(n, result)
        unknown = any(bool(one.isnan().any()) for one in operands if one.is_floating_point())
        if unknown and not all(one.is_floating_point() for one in _tensors(result)):
            self.hidden.add(n)
        return result

    def _forgotten(self, node: Node, result: Any) -> Any:
        """The result with NaN in all its tensors."""

        def forget(one: Any) -> Any:
            if isinstance(one, Tensor) and one.is_floating_point():
                return torch.full_like(one, NAN)
            if one is not None:
                self.hidden.add(node)
            return one

        return map_aggregate(result, forget)

    def _layer(self, name: str, module: Maskable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        given: Tensor = args[0] if args else kwargs["input"]
        more = args[1:]
        dim = given.ndim - (1 if isinstance(module, nn.Linear) else module.weight.ndim - 1)
        columns = _columns(given, dim)
        before = self.findings.columns.get(name)
        self.findings.columns[name] = columns if before is None else before.merged(columns)
        unknown = given.isnan()
        options = {key: value for key, value in kwargs.items() if key != "input"}
        result: Tensor = module(given.masked_fill(unknown, 0), *more, **options)
        ones = {"weight": self.live[name].to(given)}
        if module.bias is not None:
            ones["bias"] = torch.zeros_like(module.bias)
        reached = functional_call(module, ones, (unknown.to(given.dtype), *more), options)
        return result.masked_fill(reached > 0.5, NAN)


def _columns(given: Tensor, dim: int) -> Columns:
    """What is known of a tensor's channels along `dim`."""
    channels = given.movedim(dim, 0).reshape(given.shape[dim], -1)
    low, high = channels.amin(1), channels.amax(1)
    known = (high - low) <= UNIFORM * torch.maximum(low.abs(), high.abs())
    value = torch.where(known, channels[:, 0], 0)
    return Columns(known.cpu(), value.double().cpu(), tuple(given.shape[dim + 1 :]))


def _passes_nan(node: Node, module: nn.Module | None, operands: list[Tensor]) -> bool:
    """Whether the operation is on the closed list: without chance, and NaN wherever an unknown entry matters."""
    if module is not None:
        return type(module) in SAFE_MODULES or ops.keeps_forward(module, ops.BATCH_NORMS)
    name = _name(node)
    if node.target in NEW_TENSORS:
        return True
    if name in DROPOUTS:
        training = node.args[2] if len(node.args) > 2 else node.kwargs.get("training", True)
        return training is False
    if name in REDUCTIONS and len(operands) == 1:
        # What goes across the batch may depend on its size.
        dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis"))
        given: Iterable[Any] = dims if isinstance(dims, tuple | list) else [dims]
        return all(type(one) is int and one % operands[0].ndim != 0 for one in given)
    return name in SAFE


def _name(node: Node) -> str:
    """What the operation is called in the lists; empty for functions that are not on them."""
    if node.op == "call_method":
        return str(node.target)
    if node.target is getattr:
        return str(node.args[1])
    return SAFE_FUNCTIONS.get(node.target, "") if node.op == "call_function" else ""


def _tensors(given: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def collect(one: Any) -> Any:
        if isinstance(one, Tensor):
            found.append(one)
        return one

    map_aggregate(given, collect)
    return found
