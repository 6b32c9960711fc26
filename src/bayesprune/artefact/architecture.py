"""The architecture of a network as data, and the network of that data.

    {"modules":    {"conv1": {"class": "Conv2d", "arguments": {"in_channels": 3, ...}}, ...},
     "attributes": {"scale": "parameter", "table": "buffer", "mask": "temporary"},
     "frozen":     ["conv1.weight"],
     "layouts":    {"conv1.weight": [0, 2, 3, 1]},
     "nodes":      [{"op": "placeholder", "target": "x"}, {"op": "call_module", "target": "conv1",
                     "args": [{"node": 0}]}, ..., {"op": "output", "args": [{"node": 7}]}]}

`modules` are those that the graph calls, `attributes` the tensors that it reads and no module owns ("temporary" is a
buffer outside the state dict), `frozen` the parameters without gradient, `layouts` the order of the dimensions in
memory where it is not the usual one.  Nodes are the operations of torch.fx in the order of execution and refer to
earlier ones by number.  Every name is looked up in the closed list.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.fx.graph import CodeGen

from bayesprune.artefact.closed_list import ATTRIBUTES, FUNCTION_NAMES, FUNCTIONS, METHODS
from bayesprune.artefact.container import Entry
from bayesprune.artefact.errors import ArtefactError, UnlistedError
from bayesprune.artefact.modules import build_module, describe_module, has_hooks
from bayesprune.artefact.names import check_path, is_argument, is_identifier, shorten
from bayesprune.artefact.values import decode, encode
from bayesprune.structure.tracing import trace_graph

PARTS: Final = frozenset({"modules", "attributes", "frozen", "layouts", "nodes"})
KINDS: Final = frozenset({"parameter", "buffer", "temporary"})
MOST_NODES: Final = 20_000
MOST_ITEMS: Final = 200_000


@dataclass(frozen=True)
class Described:
    """A network as data: its architecture and the tensors that belong to it."""

    architecture: dict[str, Any]
    tensors: dict[str, Tensor]


def describe(network: nn.Module, inputs: int) -> Described:
    """The network as data, or UnlistedError where it has something that is not in the closed list.

    inputs: how many arguments of `forward` are tensors, for a network that is not a graph yet.
    """
    if has_hooks(network):
        raise UnlistedError("the network has hooks")
    with _traced(network, inputs) as graph:
        if type(graph._codegen) is not CodeGen:
            raise UnlistedError("the network takes its arguments in a structure other than a list of tensors")
        nodes = _describe_nodes(graph)
        called = _targets(graph, "call_module")
        modules = {name: describe_module(_find(network, name), name) for name in called}
        tensors = {f"{name}.{inner}": one for name in called for inner, one in tensors_of(_find(network, name)).items()}
        read = [name for name in _targets(graph, "get_attr") if name not in tensors]
        attributes = {name: _kind(network, name) for name in read}
        tensors |= {name: _find(network, name) for name in read}
    architecture = {
        "modules": modules,
        "attributes": attributes,
        "frozen": [name for name, one in tensors.items() if isinstance(one, nn.Parameter) and not one.requires_grad],
        "layouts": {name: order for name, one in tensors.items() if (order := _memory_order(one))},
        "nodes": nodes,
    }
    return Described(architecture, tensors)


def build(architecture: Any, entries: Mapping[str, Entry]) -> fx.GraphModule:
    """The network of its data, on the meta device, with the shapes of `entries`.

    entries: every tensor of the network; tied ones have one entry under each of their names.
    """
    if not isinstance(architecture, dict) or architecture.keys() != PARTS:
        raise ArtefactError(f"the architecture is {shorten(architecture)}; it needs {sorted(PARTS)}")
    network = fx.GraphModule(nn.Module(), fx.Graph())
    modules = {name: build_module(described, name) for name, described in _items(architecture, "modules")}
    for path, module in modules.items():
        owner, name = _owner(network, path)
        owner.add_module(name, module)
    _build_attributes(network, architecture, entries)
    _check_tensors(network, entries)
    _freeze(network, architecture, entries)
    for name, order in _items(architecture, "layouts"):
        _check_layout(name, order, entries)
    graph = _build_graph(architecture["nodes"], modules, tensors_of(network))
    _check_all_used(graph, architecture)
    try:
        network.graph = graph
        graph.lint()
    except Exception as error:  # torch.fx compiles the source it generates
        raise ArtefactError(f"torch.fx refuses the architecture: {shorten(str(error))}") from error
    return network


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers of a module, tied ones under each of their names."""
    parameters: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    return parameters | dict(module.named_buffers(remove_duplicate=False))


@contextmanager
def _traced(network: nn.Module, inputs: int) -> Iterator[fx.Graph]:
    """The graph of the network in eval mode; the network is left as it was."""
    if isinstance(network, fx.GraphModule):
        yield network.graph
        return
    modes = [(module, module.training) for module in network.modules()]
    before = set(vars(network))
    try:
        for module, _ in modes:
            module.training = False
        try:
            graph = trace_graph(network, inputs)
        except Exception as error:  # the tracer runs the user's forward, which may raise anything
            raise UnlistedError(f"torch.fx cannot trace it ({type(error).__name__}: {shorten(str(error))})") from error
        yield graph
    finally:
        for module, training in modes:
            module.training = training
        # The tracer leaves constants of the graph on the network.
        for name in set(vars(network)) - before:
            delattr(network, name)


def _describe_nodes(graph: fx.Graph) -> list[dict[str, Any]]:
    numbers: dict[fx.Node, int] = {}
    nodes: list[dict[str, Any]] = []
    for number, node in enumerate(graph.nodes):
        described: dict[str, Any] = {"op": node.op}
        if node.op != "output":
            described["target"] = _describe_target(node, number)
        if node.args:
            described["args"] = [encode(one, numbers) for one in node.args]
        if node.kwargs:
            described["kwargs"] = {key: encode(one, numbers) for key, one in node.kwargs.items()}
        nodes.append(described)
        numbers[node] = number
    return nodes


def _describe_target(node: fx.Node, number: int) -> str:
    if callable(node.target):
        if node.target not in FUNCTION_NAMES:
            raise UnlistedError(f"the function {getattr(node.target, '__qualname__', node.target)} is not in the list")
        return FUNCTION_NAMES[node.target]
    if node.op == "call_method" and node.target not in METHODS:
        raise UnlistedError(f"the method {node.target} is not in the list")
    if node.op == "placeholder":
        if node.target.startswith("*"):
            raise UnlistedError(f"forward takes {node.target}")
        return node.target if is_argument(node.target) else f"input_{number}"
    return node.target


def _targets(graph: fx.Graph, op: str) -> list[str]:
    """What the nodes of one kind name, each once."""
    return list(dict.fromkeys(node.target for node in graph.nodes if node.op == op))


def _find(network: nn.Module, path: str) -> Any:
    return reduce(getattr, path.split("."), network)


def _kind(network: nn.Module, path: str) -> str:
    parent, _, name = path.rpartition(".")
    owner = _find(network, parent) if parent else network
    if not isinstance(getattr(owner, name), Tensor):
        raise UnlistedError(f"the graph reads {path}, which is not a tensor")
    if name in owner._parameters:
        return "parameter"
    return "buffer" if name in owner._buffers and name not in owner._non_persistent_buffers_set else "temporary"


def _memory_order(tensor: Tensor) -> list[int] | None:
    """The order of the dimensions in memory, slowest first, where it is not 0, 1, 2, ...

    Kernels are chosen by it, so the last bit of a result depends on it.
    """
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda dim: -strides[dim])
    usual = torch.empty(tensor.shape, device="meta").stride()
    permuted = torch.empty_permuted(tensor.shape, order, device="meta").stride()
    return order if usual != strides == permuted else None


def _items(architecture: dict[str, Any], part: str) -> list[tuple[str, Any]]:
    content = architecture[part]
    if not isinstance(content, dict):
        raise ArtefactError(f"{part} of the architecture is {shorten(content)}; it must be an object")
    if len(content) > MOST_NODES:
        raise ArtefactError(f"the architecture has {len(content)} {part}, the limit is {MOST_NODES}; this is absurd")
    return [(check_path(name, f"one of the {part}"), value) for name, value in content.items()]


def _owner(network: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The container in which `path` is to be put, made where it is missing, and the name in it."""
    *parents, name = path.split(".")
    owner = network
    for part in parents:
        if part not in owner._modules:
            _check_free(owner, part, path)
            owner.add_module(part, nn.Module())
        owner = owner._modules[part]  # type: ignore[assignment]
        if type(owner) is not nn.Module:
            raise ArtefactError(f"{path} is inside {part}, which is a module of its own; names must not overlap")
    _check_free(owner, name, path)
    return owner, name


def _check_free(owner: nn.Module, name: str, path: str) -> None:
    if hasattr(owner, name):
        raise ArtefactError(f"{path} cannot be called so: {name} is taken already; rename it and save again")


def _build_attributes(network: nn.Module, architecture: dict[str, Any], entries: Mapping[str, Entry]) -> None:
    for path, kind in _items(architecture, "attributes"):
        if not isinstance(kind, str) or kind not in KINDS:
            raise ArtefactError(f"the attribute {path} is a {shorten(kind)}; it must be one of {sorted(KINDS)}")
        if path not in entries:
            raise ArtefactError(f"the file lacks the tensor {path}; save the network again")
        owner, name = _owner(network, path)
        tensor = torch.empty(entries[path].shape, dtype=entries[path].dtype, device="meta")
        if kind == "parameter":
            owner.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
        else:
            owner.register_buffer(name, tensor, persistent=kind == "buffer")


def _check_tensors(network: nn.Module, entries: Mapping[str, Entry]) -> None:
    expected = tensors_of(network)
    if missing := sorted(expected.keys() - entries.keys()):
        raise ArtefactError(f"the file lacks the tensors {shorten(missing)} of its architecture; save it again")
    if surplus := sorted(entries.keys() - expected.keys()):
        raise ArtefactError(
            f"the file has the tensors {shorten(surplus)}, which its architecture does not; save it again"
        )
    for name, tensor in expected.items():
        check_entry(name, tensor, entries[name])


def check_entry(name: str, tensor: Tensor, entry: Entry, *, exact: bool = False) -> None:
    """Raise ArtefactError where the tensor in the file does not fit; without `exact` all floating dtypes fit."""
    if tuple(tensor.shape) != entry.shape:
        raise ArtefactError(f"{name} has the shape {entry.shape} in the file, {tuple(tensor.shape)} in the network")
    fits = not exact and tensor.is_floating_point() and entry.dtype.is_floating_point
    if not fits and tensor.dtype != entry.dtype:
        raise ArtefactError(f"{name} has the dtype {entry.dtype} in the file, {tensor.dtype} in the network")


def _freeze(network: nn.Module, architecture: dict[str, Any], entries: Mapping[str, Entry]) -> None:
    frozen = architecture["frozen"]
    parameters = dict(network.named_parameters(remove_duplicate=False))
    if not isinstance(frozen, list) or not all(isinstance(name, str) and name in parameters for name in frozen):
        raise ArtefactError(f"frozen is {shorten(frozen)}; it must be a list of parameters of the network")
    trained = parameters.keys() - set(frozen)
    for name in trained:
        if not entries[name].dtype.is_floating_point:
            raise ArtefactError(f"{name} has {entries[name].dtype} and a gradient; integers must be among the frozen")
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in trained)


def _check_layout(name: str, order: Any, entries: Mapping[str, Entry]) -> None:
    dims = len(entries[name].shape) if name in entries else None
    numbers = isinstance(order, list) and all(type(one) is int for one in order)
    if dims is None or not numbers or sorted(order) != list(range(dims)):
        raise ArtefactError(f"the layout of {name} is {shorten(order)}; it must be an order of its {dims} dimensions")


def _build_graph(nodes: Any, modules: Mapping[str, nn.Module], tensors: Mapping[str, Tensor]) -> fx.Graph:
    if not isinstance(nodes, list) or not 0 < len(nodes) <= MOST_NODES:
        count = len(nodes) if isinstance(nodes, list) else shorten(nodes)
        raise ArtefactError(f"the architecture has {count} nodes; it must have 1 to {MOST_NODES}")
    graph = fx.Graph()
    built: list[fx.Node] = []
    inputs: set[str] = set()
    for number, node in enumerate(nodes):
        where = f"node {number}"
        if not isinstance(node, dict) or not {"op"} <= node.keys() <= {"op", "target", "args", "kwargs"}:
            raise ArtefactError(f"{where} is {shorten(node)}; it has op, target, args and kwargs")
        op = node["op"]
        if (op == "output") != (number == len(nodes) - 1):
            raise ArtefactError(f"{where} is {shorten(op)}; the last node is the output, and no other")
        args, kwargs = _arguments(node, built, where)
        target: Any
        if op == "call_module":
            target = _check_module(modules, node.get("target"), args, kwargs, where)
        elif op == "call_function":
            target = _check_function(node.get("target"), args, kwargs, where)
        elif op == "call_method":
            target = _check_method(node.get("target"), args, where)
        elif op == "get_attr":
            target = _check_attribute(tensors, node.get("target"), args, kwargs, where)
        elif op == "placeholder":
            target = _check_placeholder(node.get("target"), args, kwargs, inputs, where)
            inputs.add(target)
        elif op == "output":
            target = _check_output(node.get("target"), args, kwargs, where)
        else:
            raise ArtefactError(f"{where} has the op {shorten(op)}, which torch.fx does not know")
        built.append(graph.create_node(op, target, args, kwargs, name=f"node_{number}"))
    return graph


def _arguments(node: dict[str, Any], built: list[fx.Node], where: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = node.get("args", []), node.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise ArtefactError(f"{where} has args {shorten(args)} and kwargs {shorten(kwargs)}; they are list and object")
    for key in kwargs:
        # The generated source has these names as they are.
        if not is_identifier(key):
            raise ArtefactError(f"{where} has an argument called {shorten(key)}; it must be a plain identifier")
    return (
        tuple(decode(one, built, where) for one in args),
        {key: decode(one, built, where) for key, one in kwargs.items()},
    )


def _check_module(modules: Mapping[str, nn.Module], target: Any, args: Any, kwargs: Any, where: str) -> str:
    path = check_path(target, f"the module of {where}")
    if path not in modules:
        raise ArtefactError(f"{where} calls the module {path}, which the architecture does not declare")
    _check_call(type(modules[path]).forward, (modules[path], *args), kwargs, where)
    return path


def _check_function(target: Any, args: Any, kwargs: Any, where: str) -> Callable[..., Any]:
    if not isinstance(target, str) or target not in FUNCTIONS:
        raise ArtefactError(f"{where} calls the function {shorten(target)}, which is not in the closed list")
    if target == "getattr" and (len(args) != 2 or kwargs or not _is_attribute(args[1]) or not _is_node(args[0])):
        raise ArtefactError(f"{where} reads the attribute {shorten(args[1:])}; it may be one of {sorted(ATTRIBUTES)}")
    _check_call(FUNCTIONS[target], args, kwargs, where)
    return FUNCTIONS[target]


def _is_attribute(name: Any) -> bool:
    return isinstance(name, str) and name in ATTRIBUTES


def _is_node(value: Any) -> bool:
    return isinstance(value, fx.Node)


def _check_method(target: Any, args: Any, where: str) -> str:
    if not isinstance(target, str) or target not in METHODS:
        raise ArtefactError(f"{where} calls the method {shorten(target)}, which is not in the closed list")
    if not args or not _is_node(args[0]):
        raise ArtefactError(f"{where} calls the method {target} of nothing; its first argument must be a node")
    return target


def _check_attribute(tensors: Mapping[str, Tensor], target: Any, args: Any, kwargs: Any, where: str) -> str:
    path = check_path(target, f"the tensor of {where}")
    if path not in tensors or args or kwargs:
        raise ArtefactError(f"{where} reads {path}; it must be a tensor of the network, read without arguments")
    return path


def _check_placeholder(target: Any, args: Any, kwargs: Any, inputs: set[str], where: str) -> str:
    if not is_argument(target) or target in inputs:
        raise ArtefactError(f"{where} is an input called {shorten(target)}; it must be a plain identifier, once")
    plain = not args or args[0] is None or isinstance(args[0], bool | int | float | str)
    if kwargs or len(args) > 1 or not plain:
        raise ArtefactError(f"{where} is an input with the arguments {shorten(args)}; it may have one plain default")
    return str(target)


def _check_output(target: Any, args: Any, kwargs: Any, where: str) -> str:
    if target is not None or len(args) != 1 or kwargs:
        raise ArtefactError(f"{where} is the output with {len(args)} arguments; it needs exactly one, and no target")
    return "output"


def _check_call(function: Callable[..., Any], args: Any, kwargs: Any, where: str) -> None:
    """Raise ArtefactError where the number or names of the arguments are wrong, as far as Python can tell."""
    signature = _signature(function)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__qualname__", function)
        raise ArtefactError(f"{where} calls {name} with the wrong arguments: {error}") from None


@lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # most functions of torch are written in C++ and do not tell
        return None


def _check_all_used(graph: fx.Graph, architecture: dict[str, Any]) -> None:
    for part, op in (("modules", "call_module"), ("attributes", "get_attr")):
        if unused := sorted(architecture[part].keys() - set(_targets(graph, op))):
            raise ArtefactError(f"the graph never uses the {part} {shorten(unused)}; save the network again")
