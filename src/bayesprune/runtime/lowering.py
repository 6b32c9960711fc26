"""A network as operations that the native engine runs in one call, and the GPU's kernels as one graph.

BatchNorm is folded into the layer before it, ReLU and max-pooling become part of it; flattening and padding are views.
What is not understood raises UnsupportedError, which names it; what is understood is compared with the network, in
float64, before anything runs it.
"""

import copy
import operator
from collections import Counter
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from bayesprune.runtime.lowered import Buffer, Kind, Lowered, Step, UnsupportedError, View, compute, view_size
from bayesprune.runtime.proving import inputs, says_the_same
from bayesprune.structure import traced_module

PASSES_ON = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
BATCHNORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
ADDITIONS = (torch.add, operator.add, operator.iadd, "add", "add_")
SAME_VALUES = ("contiguous", "detach", "clone", torch.clone, "flatten", torch.flatten, "view", "reshape", torch.reshape)
IN_PLACE = ("relu_", torch.relu_, functional.relu_, "add_", operator.iadd)
# Functions as the modules that do the same, with the names of their arguments.
POOLING = ("kernel_size", "stride", "padding")
FUNCTIONS: Final[dict[Any, tuple[type[nn.Module], tuple[str, ...]]]] = {
    functional.max_pool2d: (nn.MaxPool2d, (*POOLING, "dilation", "ceil_mode", "return_indices")),
    torch.max_pool2d: (nn.MaxPool2d, (*POOLING, "dilation", "ceil_mode")),
    functional.avg_pool2d: (nn.AvgPool2d, (*POOLING, "ceil_mode", "count_include_pad", "divisor_override")),
    functional.adaptive_avg_pool2d: (nn.AdaptiveAvgPool2d, ("output_size",)),
    functional.relu: (nn.ReLU, ("inplace",)),
    **dict.fromkeys((torch.relu, torch.relu_, functional.relu_, "relu", "relu_"), (nn.ReLU, ())),
}


class _Batch:
    """The number of examples, as a number in the network's code."""


class _Sizes:
    """The shape of a value: a tuple of numbers in the network's code."""

    def __init__(self, view: View) -> None:
        inner = (view_size(view),) if view.flat else (view.channels, view.rows, view.columns)
        self.sizes: tuple[Any, ...] = (_Batch(), *inner)


Value = View | _Batch | _Sizes | int


def lower(network: nn.Module, example_shape: tuple[int, ...]) -> Lowered:
    """The operations of a network in eval mode, on one input of (channels, rows, columns) or (features,).

    The network stays as it is.  Raises UnsupportedError.
    """
    try:
        return _lower(network, example_shape)
    except UnsupportedError:
        raise
    except Exception as error:  # the code of the network is not ours: torch.fx and torch may say anything
        raise UnsupportedError(
            f"{type(network).__name__} cannot be traced: {error} ({type(error).__name__})"
        ) from error


def _lower(network: nn.Module, example_shape: tuple[int, ...]) -> Lowered:
    _check_plain(network)
    exact = copy.deepcopy(network).cpu().eval().double()
    traced = traced_module(nn.Sequential(exact))  # around it, so that a single layer is one, too
    lowered = _Lowering(traced, example_shape).run()
    _prove(exact, lowered, example_shape)
    return lowered


def _check_plain(network: nn.Module) -> None:
    """Raise UnsupportedError where something happens beside a module's own forward, which tracing would not see."""
    for name, module in network.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise UnsupportedError(f"{name or type(network).__name__} has hooks; the engine would leave them out")
        if "forward" in vars(module):
            raise UnsupportedError(f"{name or type(network).__name__} has a forward of its own instance")


def _prove(exact: nn.Module, lowered: Lowered, example_shape: tuple[int, ...]) -> None:
    """Raise UnsupportedError unless the network, in float64, and the operations say the same."""
    x = inputs(example_shape, torch.device("cpu"))
    with torch.no_grad():
        if not says_the_same(exact(x.clone()), compute(lowered, x)):
            raise UnsupportedError(f"{type(exact).__name__} says something else than the operations made of it")


class _Lowering:
    def __init__(self, traced: fx.GraphModule, example_shape: tuple[int, ...]) -> None:
        self.modules = dict(traced.named_modules())
        self.graph, self.example_shape = traced.graph, example_shape
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self.values: dict[fx.Node, Value] = {}
        self.readers = Counter(
            self._origin(given)
            for node in self.graph.nodes
            if not self._is_same_value(node) and not _is_size(node)
            for given in _inputs(node)
        )

    def run(self) -> Lowered:
        """Go through the graph once."""
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        if len(inputs) != 1:
            raise UnsupportedError(f"the engine takes networks of one input, this one has {len(inputs)}")
        for node in self.graph.nodes:
            if node.op == "output":
                return self._finish(node, inputs[0])
            self.values[node] = self._value(node)
        raise UnsupportedError("the network has no output")

    def _finish(self, node: fx.Node, source: fx.Node) -> Lowered:
        view, given = self._input(node), self.values[source]
        assert isinstance(given, View)
        buffer = self.buffers[view.buffer]
        whole = view.first == (0, 0) and (view.rows, view.columns) == (buffer.rows, buffer.columns)
        if not whole or view.buffer == given.buffer:
            view = self._copied(view, relu=False)
        return Lowered(self.buffers, self.steps, given.buffer, view)

    def _value(self, node: fx.Node) -> Value:
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
        view = self.values[given] if isinstance(given, fx.Node) else given
        if not isinstance(view, View):
            raise UnsupportedError(f"{node.name}: the engine needs a tensor, got {given!r}")
        return view

    # ------------------------------------------------------------------ who reads what

    def _is_same_value(self, node: fx.Node) -> bool:
        """Whether a node only passes its input on, perhaps in another shape."""
        if node.op == "call_module":
            return isinstance(self.modules[str(node.target)], (*PASSES_ON, nn.Flatten))
        return node.op in ("call_function", "call_method") and node.target in (*SAME_VALUES, functional.dropout)

    def _origin(self, node: fx.Node) -> fx.Node:
        """The node that made a value."""
        while self._is_same_value(node) and (given := _inputs(node)):
            node = given[0]
        return node

    def _alone(self, node: fx.Node) -> bool:
        """Whether nothing else reads the input of a node, in whatever shape."""
        return self.readers[self._origin(_inputs(node)[0])] == 1

    def _check_in_place(self, node: fx.Node, module: nn.Module | None = None) -> None:
        """Raise UnsupportedError where a value changes that something else reads, too."""
        in_place = node.target in IN_PLACE or bool(getattr(module, "inplace", False))
        if in_place and not self._alone(node):
            raise UnsupportedError(f"{node.name}: the engine has no operation in place on a value that others read")

    # ------------------------------------------------------------------ layers

    def _module(self, node: fx.Node, module: nn.Module) -> View:
        view = self._input(node)
        self._check_in_place(node, module)
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
        if isinstance(module, nn.AdaptiveAvgPool2d) and module.output_size in (1, (1, 1), [1, 1]):
            size = (view.rows, view.columns)
            return self._mean(node, view, size, size, (0, 0), None)
        if isinstance(module, nn.ZeroPad2d):
            left, right, top, bottom = module.padding
            return self._padded(node, view, left, right, top, bottom)
        if isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1:
            return _flat(view)
        raise UnsupportedError(f"{_name(node)}: the engine has no {module}")

    def _linear(self, node: fx.Node, view: View, module: nn.Linear) -> View:
        if not view.flat:
            raise UnsupportedError(f"{_name(node)}: the engine needs (n, features) before a Linear")
        sites = torch.cartesian_prod(*map(torch.arange, (view.channels, view.rows, view.columns))).reshape(-1, 3)
        return self._layer(view, module.weight, sites, module.bias, 1, 1, first=view.first, flat=True)

    def _conv(self, node: fx.Node, view: View, module: nn.Conv2d) -> View:
        if view.flat or module.padding_mode != "zeros":
            raise UnsupportedError(f"{_name(node)}: the engine has no {module} here")
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
            raise UnsupportedError(f"{_name(node)}: nothing is left of {size} under {module}")
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
            raise UnsupportedError(f"{_name(node)}: the engine needs the running statistics of a BatchNorm")
        scale = torch.rsqrt(module.running_var.detach().double().cpu() + module.eps)
        if module.weight is not None:
            scale = scale * module.weight.detach().double().cpu()
        shift = -module.running_mean.detach().double().cpu() * scale
        if module.bias is not None:
            shift = shift + module.bias.detach().double().cpu()
        if len(scale) != view.channels or (view.flat and view.rows * view.columns > 1):
            raise UnsupportedError(f"{_name(node)}: the engine has no BatchNorm over flattened channels")
        step = view.step
        if step is not None and step.kind == "panels" and not step.relu and step.pool == 1 and self._alone(node):
            step.matrix = step.matrix * scale[:, None]
            step.bias = step.bias * scale + shift
            return view
        channel = torch.zeros(view.channels, 3, dtype=torch.int64)
        channel[:, 0] = torch.arange(view.channels)
        weight = torch.diag(scale)
        return self._layer(view, weight, channel, shift, view.rows, view.columns, first=view.first, flat=view.flat)

    # ------------------------------------------------------------------ everything else

    def _function(self, node: fx.Node) -> Value:
        target = node.target
        if target is operator.getitem:
            return self._number(node)
        view = self._input(node)
        if target in ("size", getattr):
            return self._sizes(node, view)
        if target in FUNCTIONS:
            return self._module(node, self._as_module(node))
        if target is functional.dropout:
            if self._arguments(node, ("p", "training", "inplace")).get("training", True):
                raise UnsupportedError(f"{node.name}: the network drops values in eval mode, too")
            return view
        if target in ADDITIONS:
            self._check_in_place(node)
            if node.kwargs or len(node.args) != 2:
                raise UnsupportedError(f"{node.name}: the engine adds two tensors")
            return self._sum(node, view, self._input(node, 1))
        if target in (torch.flatten, "flatten"):
            return self._flattened(node, view)
        if target in ("view", "reshape", torch.reshape):
            return self._reshaped(node, view)
        if target is functional.pad:
            return self._padded_by_function(node, view)
        if target in (torch.mean, "mean"):
            return self._mean_of_image(node, view)
        if target in SAME_VALUES and len(node.args) == 1 and not node.kwargs:
            return view
        raise UnsupportedError(f"{node.name}: the engine has no {target}")

    def _arguments(self, node: fx.Node, names: tuple[str, ...]) -> dict[str, Any]:
        """The arguments behind the first, by name; numbers that the code computes from shapes are known."""
        given: dict[str, Any] = dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
        if len(node.args) > 1 + len(names) or not set(given) <= {*names, "input"}:
            raise UnsupportedError(f"{node.name}: the engine does not know all arguments of {node.target}")
        return {name: self._known(node, value) for name, value in given.items() if name != "input"}

    def _known(self, node: fx.Node, value: Any) -> Any:
        if isinstance(value, fx.Node):
            value = self.values[value]
            if isinstance(value, View):
                raise UnsupportedError(f"{node.name}: the engine needs numbers, got a tensor")
            return value.sizes if isinstance(value, _Sizes) else value
        return tuple(self._known(node, one) for one in value) if isinstance(value, list | tuple) else value

    def _as_module(self, node: fx.Node) -> nn.Module:
        kind, names = FUNCTIONS[node.target]
        return kind(**self._arguments(node, names))

    def _number(self, node: fx.Node) -> Value:
        """An element of a shape."""
        sizes = self.values[node.args[0]] if isinstance(node.args[0], fx.Node) else None
        if not isinstance(sizes, _Sizes) or not isinstance(node.args[1], int):
            raise UnsupportedError(f"{node.name}: the engine cannot take parts of a tensor")
        found: Value = sizes.sizes[node.args[1]]
        return found

    def _sizes(self, node: fx.Node, view: View) -> Value:
        sizes = _Sizes(view)
        if node.target is getattr:
            if node.args[1] != "shape":
                raise UnsupportedError(f"{node.name}: the engine has no {node.args[1]} of a tensor")
            return sizes
        place = self._arguments(node, ("dim",)).get("dim")
        return sizes if place is None else sizes.sizes[place]

    def _flattened(self, node: fx.Node, view: View) -> View:
        given = self._arguments(node, ("start_dim", "end_dim"))
        last = 1 if view.flat else 3
        if given.get("start_dim", 0) not in (1, -last) or given.get("end_dim", -1) not in (-1, last):
            raise UnsupportedError(f"{node.name}: the engine flattens all but the examples")
        return _flat(view)

    def _reshaped(self, node: fx.Node, view: View) -> View:
        """(examples, values): one of the two may be -1, and the second may not be that of several examples."""
        given = [self._known(node, one) for one in node.args[1:]]
        shape = given[0] if len(given) == 1 and isinstance(given[0], tuple) else tuple(given)
        sizes = _Sizes(view).sizes
        if len(shape) == len(sizes) and isinstance(shape[0], _Batch) and shape[1:] == sizes[1:]:
            return view
        examples, values = shape if len(shape) == 2 else (0, 0)
        if node.kwargs or (isinstance(examples, _Batch) and values not in (-1, view_size(view))):
            raise UnsupportedError(f"{node.name}: the engine has no {node.target} to {shape}")
        if not isinstance(examples, _Batch) and (examples, values) != (-1, view_size(view)):
            raise UnsupportedError(f"{node.name}: the engine has no {node.target} to {shape}")
        return _flat(view)

    def _padded_by_function(self, node: fx.Node, view: View) -> View:
        given = self._arguments(node, ("pad", "mode", "value"))
        amounts = given.get("pad", ())
        if given.get("mode", "constant") != "constant" or given.get("value") or len(amounts) != 4:
            raise UnsupportedError(f"{node.name}: the engine pads images with zeros")
        return self._padded(node, view, *amounts)

    def _mean_of_image(self, node: fx.Node, view: View) -> View:
        given = self._arguments(node, ("dim", "keepdim"))
        dims = given.get("dim")
        if view.flat or not isinstance(dims, tuple) or sorted(int(d) % 4 for d in dims) != [2, 3]:
            raise UnsupportedError(f"{node.name}: the engine takes means over images")
        made = self._mean(node, view, (view.rows, view.columns), (1, 1), (0, 0), None)
        return made if given.get("keepdim", False) else _flat(made)

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
        kernel, stride, padding = map(_pair, (module.kernel_size, module.stride, module.padding))
        step = view.step
        # Padding of a maximum is minus infinity; behind a ReLU, where every window has a value, zeros do the same.
        may_pad = padding == (0, 0) or (step is not None and step.relu)
        plain = _pair(module.dilation) == (1, 1) and not module.ceil_mode and not module.return_indices
        if view.flat or not plain or not may_pad:
            raise UnsupportedError(f"{_name(node)}: the engine has no {module}")
        if padding != (0, 0):
            view = self._padded(node, view, padding[1], padding[1], padding[0], padding[0])
        rows, columns = (
            (size - k) // s + 1 for size, k, s in zip((view.rows, view.columns), kernel, stride, strict=True)
        )
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


def _flat(view: View) -> View:
    return View(view.buffer, view.channels, view.rows, view.columns, view.first, True, view.step)


def _inputs(node: fx.Node) -> list[fx.Node]:
    """The nodes that a node reads, as often as it does."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found


def _is_size(node: fx.Node) -> bool:
    """Whether a node asks for the shape of a value instead of reading it."""
    return node.target == "size" or (node.target is getattr and node.args[1] == "shape")


def _name(node: fx.Node) -> str:
    """As the user knows it: a module without the wrapper around the network, or the node's own name."""
    return str(node.target).removeprefix("0.") if node.op == "call_module" else node.name


def _pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[1]))
