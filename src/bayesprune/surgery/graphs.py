"""Rewrite a traced graph for smaller modules."""

import operator
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Node
from torch.nn import functional

from bayesprune.structure import Structure

DROPOUTS: Final[dict[Any, type[nn.Module]]] = {
    functional.dropout: nn.Dropout,
    functional.dropout1d: nn.Dropout1d,
    functional.dropout2d: nn.Dropout2d,
    functional.dropout3d: nn.Dropout3d,
    functional.alpha_dropout: nn.AlphaDropout,
    functional.feature_alpha_dropout: nn.FeatureAlphaDropout,
}


def rewrite_sizes(
    network: nn.Module, graph: fx.Graph, structure: Structure, kept: Tensor, dims: Mapping[str, int]
) -> None:
    """Write the number of kept units wherever the graph names a number of units.

    dims: the number of dimensions of the tensor that a node makes, by its name.
    """
    nodes = {node.name: node for node in graph.nodes}
    for resize in structure.resizes:
        counts = [int(((piece < 0) | kept[piece.clamp_min(0)]).sum()) for piece in resize.pieces]
        if counts == [len(piece) for piece in resize.pieces]:
            continue
        node = nodes[resize.node]
        if resize.kind == "split":
            _rewrite_split(node, resize.dim, counts)
        elif resize.kind == "slice":
            _rewrite_slice(node, resize.dim, counts, dims)
        else:
            _rewrite_size(network, node, resize.dim, counts[0], dims)


def _rewrite_split(node: Node, dim: int, counts: list[int]) -> None:
    given = node.args[0] if node.args else node.kwargs["input"]
    node.op, node.target, node.args, node.kwargs = "call_function", torch.split, (given, counts, dim), {}


def _rewrite_slice(node: Node, dim: int, counts: list[int], dims: Mapping[str, int]) -> None:
    """x[:, a:b] and narrow."""
    start, length, _ = counts
    if node.target is not operator.getitem:
        given = node.args[0] if node.args else node.kwargs["input"]
        node.op, node.target, node.args, node.kwargs = (
            "call_function",
            torch.narrow,
            (given, dim, start, length),
            {},
        )
        return
    given, index = node.args
    assert isinstance(given, Node)
    entries = list(index) if isinstance(index, tuple) else [index]
    named = [entry for entry in entries if entry is not None and entry is not Ellipsis]
    # Dimensions behind an ellipsis are counted from the last.
    skipped = dims[given.name] - len(named) if Ellipsis in entries else 0
    at = 0
    for place, entry in enumerate(entries):
        if entry is Ellipsis:
            at += skipped
        elif entry is not None:
            if at == dim:
                entries[place] = slice(start, start + length)
            at += 1
    node.args = (given, tuple(entries))


def _rewrite_size(network: nn.Module, node: Node, dim: int, count: int, dims: Mapping[str, int]) -> None:
    """view, reshape, expand and unflatten; -1 and sizes that are computed follow by themselves."""
    if node.op == "call_module":
        module = network.get_submodule(str(node.target))
        assert isinstance(module, nn.Unflatten)
        start = int(module.dim) % dims[node.all_input_nodes[0].name]
        module.unflattened_size = tuple(_with(module.unflattened_size, dim - start, count))
        return
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    args = list(node.args)
    if name == "unflatten":
        key, first = "sizes", 2
        dim -= _argument(node, 1, "dim", 0) % dims[node.all_input_nodes[0].name]
    else:
        key, first = ("size" if "size" in node.kwargs else "shape"), 1
    if key in node.kwargs:
        node.kwargs = {**node.kwargs, key: _with(node.kwargs[key], dim, count)}
    elif isinstance(args[first], tuple | list):
        args[first] = _with(args[first], dim, count)
        node.args = tuple(args)
    else:
        node.args = (*args[:first], *_with(args[first:], dim, count))


def _with(sizes: Any, dim: int, count: int) -> list[Any]:
    """The sizes with another one at `dim`, unless that is -1 or computed."""
    result = list(sizes)
    if isinstance(result[dim], int) and result[dim] != -1:
        result[dim] = count
    return result


def insert_pads(graph: fx.Graph, pads: Mapping[str, list[int]]) -> None:
    """Pad or crop the input of these modules."""
    for node in list(graph.nodes):
        if node.op == "call_module" and node.target in pads:
            given = node.all_input_nodes[0]
            with graph.inserting_before(node):
                padded = graph.call_function(functional.pad, (given, list(pads[node.target])))
            node.replace_input_with(given, padded)


def find_dropouts(graph: fx.Graph, training: fx.Graph) -> tuple[list[Node], list[str]]:
    """The dropouts that are off in `graph` and on in `training`, the graph of training mode, and notes.

    The notes tell what else differs between the two.
    """
    pairs = list(zip(graph.nodes, training.nodes, strict=False))
    if len(graph.nodes) != len(training.nodes) or any(a.op != b.op or a.target != b.target for a, b in pairs):
        return [], ["the network does other operations in training mode; the result does those of eval mode"]
    dropouts, notes = [], []
    for node, other in pairs:
        if node.target in DROPOUTS and _argument(node, 2, "training", True) != _argument(other, 2, "training", True):
            dropouts.append(node)
        elif repr((node.args, node.kwargs)) != repr((other.args, other.kwargs)):
            notes.append(f"{node.name}: has other arguments in training mode; the result has those of eval mode")
    return dropouts, notes


def free_dropouts(network: nn.Module, graph: fx.Graph, dropouts: list[Node]) -> None:
    """Make modules of functions, so that they follow the mode of the network."""
    for node in dropouts:
        _make_dropout(network, graph, node)


def _make_dropout(network: nn.Module, graph: fx.Graph, node: Node) -> None:
    share = _argument(node, 1, "p", 0.5)
    name = node.name
    while hasattr(network, name):
        name += "_"
    network.add_module(name, DROPOUTS[node.target](share))
    given = node.args[0] if node.args else node.kwargs["input"]
    with graph.inserting_before(node):
        new = graph.call_module(name, (given,))
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _argument(node: Node, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)
