"""A network as a list of operations that the native engine runs in one call.

BatchNorm is folded into the layer before it, ReLU and max-pooling become part of it; flattening and padding are views.
What is not understood raises UnsupportedError, which names it.
"""

import copy
import operator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

Kind = Literal["panels", "maximum", "mean", "sum", "copy"]
PASSES_ON = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
BATCHNORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class UnsupportedError(ValueError):
    """The engine has no operation for something in the network."""


@dataclass
class Buffer:
    """Activations of one example, (channels, rows, columns), and the zeros that its readers need around them."""

    channels: int
    rows: int
    columns: int
    top: int = 0
    left: int = 0
    bottom: int = 0
    right: int = 0


@dataclass
class Step:
    """One operation.

    reads: of a layer, (n, 3) int64, the channel, row and column that each column of its matrix reads, relative to
    where the first result begins.  matrix: (out, n) float32.  bias: (out,).
    first: row and column of the input where the first result begins, without border; may be negative.
    rows, columns: of the result, before the pooling of a layer.
    """

    kind: Kind
    source: int
    target: int
    rows: int
    columns: int
    stride: tuple[int, int] = (1, 1)
    first: tuple[int, int] = (0, 0)
    window: tuple[int, int] = (1, 1)
    relu: bool = False
    pool: int = 1
    source2: int = -1
    matrix: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    reads: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    bias: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)


@dataclass(frozen=True)
class View:
    """What a value of the graph is: a part of a buffer, which may reach into its border.

    first: row and column where it begins.  flat: whether its (channels, rows, columns) count as one axis.
    step: the operation that makes it, where nothing but this value has been made of it.
    """

    buffer: int
    channels: int
    rows: int
    columns: int
    first: tuple[int, int] = (0, 0)
    flat: bool = False
    step: Step | None = None


@dataclass
class Lowered:
    """Buffers and operations in order; input and output are numbers of buffers."""

    buffers: list[Buffer]
    steps: list[Step]
    input: int
    output: View


def lower(network: nn.Module, example_shape: tuple[int, ...]) -> Lowered:
    """The operations of a network in eval mode, on one input of (channels, rows, columns) or (features,).

    The network stays as it is.  Raises UnsupportedError.
    """
    try:
        traced = fx.symbolic_trace(copy.deepcopy(network).eval())
    except Exception as error:
        raise UnsupportedError(f"{type(network).__name__} cannot be traced: {error}") from error
    return _Lowering(traced, example_shape).run()


class _Lowering:
    def __init__(self, traced: fx.GraphModule, example_shape: tuple[int, ...]) -> None:
        self.modules = dict(traced.named_modules())
        self.graph, self.example_shape = traced.graph, example_shape
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self.views: dict[fx.Node, View] = {}
        self.users: dict[fx.Node, int] = {node: len(node.users) for node in traced.graph.nodes}

    def run(self) -> Lowered:
        """Go through the graph once."""
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        if len(inputs) != 1:
            raise UnsupportedError(f"the engine takes networks of one input, this one has {len(inputs)}")
        for node in self.graph.nodes:
            if node.op == "output":
                return self._finish(node, self.views[inputs[0]].buffer)
            self.views[node] = self._view(node)
        raise UnsupportedError("the network has no output")

    def _finish(self, node: fx.Node, source: int) -> Lowered:
        (result,) = node.args
        if not isinstance(result, fx.Node):
            raise UnsupportedError(f"the engine returns one tensor, the network {type(result).__name__}")
        view = self.views[result]
        if view.first != (0, 0) or view.buffer == source:
            view = self._copied(view, relu=False)
        return Lowered(self.buffers, self.steps, source, view)

    def _view(self, node: fx.Node) -> View:
        if node.op == "placeholder":
            if len(self.example_shape) not in (1, 3):
                raise UnsupportedError(f"inputs must be (features,) or (channels, h, w), got {self.example_shape}")
            channels, rows, columns = (*self.example_shape, 1, 1)[:3]
            return self._new(channels, rows, columns, flat=len(self.example_shape) == 1)
        if node.op == "call_module":
            return self._module(node, self.modules[str(node.target)])
        if node.op in ("call_function", "call_method"):
            return self._function(node)
        raise UnsupportedError(f"{node.name}: the engine has no {node.op}")

    def _new(self, channels: int, rows: int, columns: int, flat: bool = False, step: Step | None = None) -> View:
        self.buffers.append(Buffer(channels, rows, columns))
        return View(len(self.buffers) - 1, channels, rows, columns, flat=flat, step=step)

    def _input(self, node: fx.Node, place: int = 0) -> View:
        given = node.args[place] if len(node.args) > place else node.kwargs.get("input")
        if not isinstance(given, fx.Node):
            raise UnsupportedError(f"{node.name}: the engine needs a tensor, got {given!r}")
        return self.views[given]

    def _alone(self, node: fx.Node) -> bool:
        """Whether nothing else reads the input of a node."""
        given = node.args[0] if node.args else node.kwargs.get("input")
        return isinstance(given, fx.Node) and self.users[given] == 1

    # ------------------------------------------------------------------ layers

    def _module(self, node: fx.Node, module: nn.Module) -> View:
        view = self._input(node)
        if isinstance(module, PASSES_ON):
            return view
        if isinstance(module, nn.Linear):
            return self._linear(node, view, module)
        if type(module) is nn.Conv2d:
            return self._conv(node, view, module)
        if isinstance(module, BATCHNORMS):
            return self._norm(node, view, module)
        if isinstance(module, nn.ReLU):
            return self._relu(node, view)
        if isinstance(module, nn.MaxPool2d):
            return self._max_pool(node, view, module)
        if isinstance(module, nn.AvgPool2d):
            kernel, stride, padding = map(_pair, (module.kernel_size, module.stride, module.padding))
            return self._mean(node, view, kernel, stride, padding, module)
        if isinstance(module, nn.AdaptiveAvgPool2d) and _pair(module.output_size) == (1, 1):
            size = (view.rows, view.columns)
            return self._mean(node, view, size, size, (0, 0), None)
        if isinstance(module, nn.ZeroPad2d):
            left, right, top, bottom = module.padding
            return self._padded(node, view, left, right, top, bottom)
        if isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1:
            return _flat(view)
        raise UnsupportedError(f"{node.target}: the engine has no {module}")

    def _linear(self, node: fx.Node, view: View, module: nn.Linear) -> View:
        if not view.flat:
            raise UnsupportedError(f"{node.target}: the engine needs (n, features) before a Linear")
        sites = torch.cartesian_prod(*map(torch.arange, (view.channels, view.rows, view.columns))).reshape(-1, 3)
        return self._layer(view, module.weight, sites, module.bias, 1, 1, first=view.first, flat=True)

    def _conv(self, node: fx.Node, view: View, module: nn.Conv2d) -> View:
        if view.flat or module.padding_mode != "zeros":
            raise UnsupportedError(f"{node.target}: the engine has no {module} here")
        kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
        around = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if module.padding == "same":
            before, after = [a // 2 for a in around], [a - a // 2 for a in around]
        else:
            padding = (0, 0) if module.padding == "valid" else module.padding
            before = after = [int(p) for p in padding]
        size = (view.rows, view.columns)
        rows, columns = (
            (s + b + a - r - 1) // t + 1 for s, b, a, r, t in zip(size, before, after, around, stride, strict=True)
        )
        if min(rows, columns) < 1:
            raise UnsupportedError(f"{node.target}: nothing is left of {size} under {module}")
        inputs, outputs = module.in_channels // module.groups, module.out_channels
        taps = torch.cartesian_prod(torch.arange(inputs), torch.arange(kernel[0]), torch.arange(kernel[1]))
        taps = taps.reshape(-1, 3) * torch.tensor([1, dilation[0], dilation[1]])
        weight = module.weight.detach().flatten(1)
        if module.groups > 1:  # every group reads channels of its own
            shift = torch.arange(module.groups) * inputs
            taps = taps.repeat(module.groups, 1)
            taps[:, 0] += shift.repeat_interleave(len(taps) // module.groups)
            weight = torch.block_diag(*weight.unflatten(0, (module.groups, -1)))
        first = (view.first[0] - before[0], view.first[1] - before[1])
        assert len(weight) == outputs
        return self._layer(view, weight, taps, module.bias, rows, columns, stride=_pair(stride), first=first)

    def _layer(
        self,
        view: View,
        weight: Tensor,
        reads: Tensor,
        bias: Tensor | None,
        rows: int,
        columns: int,
        *,
        stride: tuple[int, int] = (1, 1),
        first: tuple[int, int] = (0, 0),
        flat: bool = False,
    ) -> View:
        matrix = weight.detach().double().cpu()
        offset = torch.zeros(len(matrix), dtype=torch.float64) if bias is None else bias.detach().double().cpu()
        made = self._new(len(matrix), rows, columns, flat=flat)
        step = Step("panels", view.buffer, made.buffer, rows, columns, stride, first)
        step.matrix, step.reads, step.bias = matrix, reads, offset
        self.steps.append(step)
        return View(made.buffer, made.channels, rows, columns, flat=flat, step=step)

    def _norm(self, node: fx.Node, view: View, module: nn.modules.batchnorm._BatchNorm) -> View:
        if module.running_mean is None or module.running_var is None:
            raise UnsupportedError(f"{node.target}: the engine needs the running statistics of a BatchNorm")
        scale = torch.rsqrt(module.running_var.detach().double().cpu() + module.eps)
        if module.weight is not None:
            scale = scale * module.weight.detach().double().cpu()
        shift = -module.running_mean.detach().double().cpu() * scale
        if module.bias is not None:
            shift = shift + module.bias.detach().double().cpu()
        step = view.step
        if step is not None and step.kind == "panels" and not step.relu and step.pool == 1 and self._alone(node):
            step.matrix = step.matrix * scale[:, None]
            step.bias = step.bias * scale + shift
            return view
        if len(scale) != view.channels:
            raise UnsupportedError(f"{node.target}: the engine has no BatchNorm over flattened channels")
        channel = torch.zeros(view.channels, 3, dtype=torch.int64)
        channel[:, 0] = torch.arange(view.channels)
        weight = torch.diag(scale)
        return self._layer(view, weight, channel, shift, view.rows, view.columns, first=view.first, flat=view.flat)

    # ------------------------------------------------------------------ everything else

    def _function(self, node: fx.Node) -> View:
        target, view = node.target, self._input(node)
        if target in (torch.relu, functional.relu, "relu", torch.relu_, "relu_"):
            return self._relu(node, view)
        if target in (torch.add, operator.add, operator.iadd, "add", "add_"):
            if node.kwargs or len(node.args) != 2:
                raise UnsupportedError(f"{node.name}: the engine adds two tensors")
            return self._sum(node, view, self._input(node, 1))
        if target in (torch.flatten, "flatten") and _arguments(node)[1:] in ((1,), (1, -1)):
            return _flat(view)
        if target in ("view", "reshape", torch.reshape) and _arguments(node)[2:] in ((-1,), (view_size(view),)):
            return _flat(view)
        if target is functional.pad and len(node.args) > 1 and node.kwargs.get("mode", "constant") == "constant":
            amounts = list(node.args[1])  # type: ignore[arg-type]
            if len(amounts) == 4 and len(node.args) == 2 and not node.kwargs.get("value"):
                return self._padded(node, view, *amounts)
        if target in (torch.mean, "mean") and _mean_of_image(node):
            made = self._mean(node, view, (view.rows, view.columns), (1, 1), (0, 0), None)
            return made if node.kwargs.get("keepdim") else _flat(made)
        if target is getattr or target in ("size", "contiguous", operator.getitem, "detach"):
            return view
        raise UnsupportedError(f"{node.name}: the engine has no {target}")

    def _relu(self, node: fx.Node, view: View) -> View:
        if view.step is not None and self._alone(node):
            view.step.relu = True
            return view
        return self._copied(view, relu=True)

    def _copied(self, view: View, *, relu: bool) -> View:
        if view.first != (0, 0):
            raise UnsupportedError("the engine has no padding here")
        made = self._new(view.channels, view.rows, view.columns, flat=view.flat)
        step = Step("copy", view.buffer, made.buffer, view.rows, view.columns, relu=relu)
        self.steps.append(step)
        return View(made.buffer, view.channels, view.rows, view.columns, flat=view.flat, step=step)

    def _sum(self, node: fx.Node, a: View, b: View) -> View:
        same = (a.channels, a.rows, a.columns, a.flat) == (b.channels, b.rows, b.columns, b.flat)
        if not same or a.first != (0, 0) or b.first != (0, 0):
            raise UnsupportedError(f"{node.name}: the engine adds tensors of one shape")
        made = self._new(a.channels, a.rows, a.columns, flat=a.flat)
        step = Step("sum", a.buffer, made.buffer, a.rows, a.columns, source2=b.buffer)
        self.steps.append(step)
        return View(made.buffer, a.channels, a.rows, a.columns, flat=a.flat, step=step)

    def _max_pool(self, node: fx.Node, view: View, module: nn.MaxPool2d) -> View:
        kernel, stride = _pair(module.kernel_size), _pair(module.stride)
        plain = _pair(module.padding) == (0, 0) and _pair(module.dilation) == (1, 1) and not module.ceil_mode
        if view.flat or not plain or module.return_indices:
            raise UnsupportedError(f"{node.target}: the engine has no {module}")
        rows, columns = (
            (size - k) // s + 1 for size, k, s in zip((view.rows, view.columns), kernel, stride, strict=True)
        )
        step = view.step
        square = kernel == stride == (kernel[0], kernel[0]) and view.first == (0, 0)
        if step is not None and step.kind == "panels" and step.pool == 1 and square and self._alone(node):
            step.pool = kernel[0]
            buffer = self.buffers[view.buffer]
            buffer.rows, buffer.columns = rows, columns
            return View(view.buffer, view.channels, rows, columns, step=step)
        return self._windows("maximum", view, kernel, stride, rows, columns)

    def _mean(
        self,
        node: fx.Node,
        view: View,
        kernel: tuple[int, int],
        stride: tuple[int, int],
        padding: tuple[int, int],
        module: nn.AvgPool2d | None,
    ) -> View:
        plain = module is None or (not module.ceil_mode and module.divisor_override is None)
        if view.flat or padding != (0, 0) or not plain:
            raise UnsupportedError(f"{node.name}: the engine has no {module}")
        rows, columns = (
            (size - k) // s + 1 for size, k, s in zip((view.rows, view.columns), kernel, stride, strict=True)
        )
        return self._windows("mean", view, kernel, stride, rows, columns)

    def _windows(
        self, kind: Kind, view: View, kernel: tuple[int, int], stride: tuple[int, int], rows: int, columns: int
    ) -> View:
        made = self._new(view.channels, rows, columns)
        step = Step(kind, view.buffer, made.buffer, rows, columns, stride, view.first, kernel)
        self.steps.append(step)
        return View(made.buffer, view.channels, rows, columns, step=step)

    def _padded(self, node: fx.Node, view: View, left: int, right: int, top: int, bottom: int) -> View:
        if view.flat or min(left, right, top, bottom) < 0:
            raise UnsupportedError(f"{node.name}: the engine pads images with zeros")
        first = (view.first[0] - top, view.first[1] - left)
        return View(view.buffer, view.channels, view.rows + top + bottom, view.columns + left + right, first)


def view_size(view: View) -> int:
    """Values of one example."""
    return view.channels * view.rows * view.columns


def _flat(view: View) -> View:
    return View(view.buffer, view.channels, view.rows, view.columns, view.first, True, view.step)


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    """The positional arguments with start_dim and end_dim of flatten among them."""
    extra = tuple(node.kwargs[name] for name in ("start_dim", "end_dim") if name in node.kwargs)
    return (*node.args, *extra)


def _mean_of_image(node: fx.Node) -> bool:
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return isinstance(dims, list | tuple) and sorted(int(d) % 4 for d in dims) == [2, 3]


def _pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[1]))


def borders(lowered: Lowered) -> list[Buffer]:
    """The buffers with as many zeros around them as their readers reach for."""
    buffers = [copy.copy(buffer) for buffer in lowered.buffers]
    for step in lowered.steps:
        buffer = buffers[step.source]
        reach = _reach(step)
        buffer.top, buffer.left = max(buffer.top, -step.first[0]), max(buffer.left, -step.first[1])
        buffer.bottom = max(buffer.bottom, reach[0] - buffer.rows)
        buffer.right = max(buffer.right, reach[1] - buffer.columns)
    return buffers


def _reach(step: Step) -> tuple[int, int]:
    """The row and column after the last that an operation reads."""
    window = step.window
    if step.kind == "panels":
        window = (int(step.reads[:, 1].max()) + 1, int(step.reads[:, 2].max()) + 1)
    elif step.kind in ("sum", "copy"):
        return step.rows, step.columns
    return (
        step.first[0] + (step.rows - 1) * step.stride[0] + window[0],
        step.first[1] + (step.columns - 1) * step.stride[1] + window[1],
    )
