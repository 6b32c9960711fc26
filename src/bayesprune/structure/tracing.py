"""Trace a network and find its units."""

import copy
import inspect
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.nn.parameter import is_lazy

from bayesprune.structure import operations as ops
from bayesprune.structure.ledger import Ledger, Made
from bayesprune.structure.one_thread import OneThread
from bayesprune.structure.operations import Prunable, Transposed
from bayesprune.structure.propagation import Propagation
from bayesprune.structure.units import Structure

CONTAINERS = (dict, OrderedDict, list, set)


def trace(model: nn.Module, example: Tensor | tuple[Tensor, ...]) -> Structure:
    """Find the units of a network: which weights make them, which read them, and which can be removed.

    example: the network's input, or a tuple of its inputs, batch first; only the shapes matter.  The network runs
    twice on it, in eval mode and without gradients, and is left as it was, on its device, where the result is too.

    Whatever is not understood keeps its units, and one warning names it; a network that torch.fx cannot trace
    keeps all of them.
    """
    inputs = tuple(example) if isinstance(example, tuple | list) else (example,)
    if not inputs or not all(isinstance(one, Tensor) and one.ndim > 0 for one in inputs):
        raise ValueError(f"example must be a tensor or a tuple of tensors, batch first, got {type(example).__name__}")
    if lazy := [name for name, one in model.named_parameters() if is_lazy(one)]:
        raise ValueError(f"the parameter {lazy[0]} has no size yet; run the network on an example first")
    device = _device(model)
    inputs = tuple(one.to(device) for one in inputs)
    with _undisturbed(model, device):
        state = torch.get_rng_state()
        with _positions(model, len(inputs[0])) as positions:
            expected = model(*inputs)
        torch.set_rng_state(state)
        ledger = _propagated(model, inputs, expected)
    _complete(ledger, model, positions)
    structure = ledger.settle(positions).to(device)
    if structure.notes:
        warnings.warn(
            "parts of the network keep their units: " + "; ".join(structure.notes),
            stacklevel=2,
        )
    return structure


def trace_graph(model: nn.Module, inputs: int = 1) -> fx.Graph:
    """The graph in which `Structure.resizes` names nodes, as the network is in its present mode.

    inputs: how many arguments of `forward` are tensors; the others have their defaults.  Tensors that `forward` makes
    from nothing become attributes `_tensor_constant0`, ... of the model, where the graph finds them.
    """
    parameters = list(inspect.signature(model.forward).parameters.values())[inputs:]
    defaults = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
    return _Leaves().trace(model, concrete_args=defaults or None)


class _Leaves(OneThread):
    """Descend to the modules whose effect on units is known, whoever wrote the ones around them."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return ops.is_leaf(m) or super().is_leaf_module(m, module_qualified_name)


def _device(model: nn.Module) -> torch.device:
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


@contextmanager
def _undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode without gradients; afterwards modes, attributes, buffers and random state are as before."""
    modes = [(module, module.training) for module in model.modules()]
    attributes = [_Attributes(module) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        for module, _ in modes:
            module.training = False
        # The fast path of transformer layers goes around the modules inside them.
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, training in modes:
            module.training = training
        for before_all in attributes:
            before_all.restore()
        with torch.no_grad():
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)


class _Attributes:
    """What a module holds: the tracer adds constants, and a forward may keep what it computes."""

    def __init__(self, module: nn.Module) -> None:
        self.held = vars(module)
        self.values = dict(self.held)
        self.contents = {name: copy.copy(one) for name, one in self.held.items() if type(one) in CONTAINERS}

    def restore(self) -> None:
        """Put everything back, into the same containers."""
        self.held.clear()
        self.held.update(self.values)
        for name, content in self.contents.items():
            container = self.values[name]
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(content)


@contextmanager
def _positions(model: nn.Module, batch: int) -> Iterator[dict[str, int]]:
    """How often the weights of each layer are used per example, in the order of execution."""
    counts: dict[str, int] = {}

    def hook(name: str, channels: int) -> Any:
        def count(module: nn.Module, inputs: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            # Rounded up: what does not depend on the batch is computed once for all.
            counts[name] = counts.get(name, 0) - (-tensor.numel() // (channels * max(batch, 1)))

        return count

    def transposed_hook(name: str, channels: int) -> Any:
        def count(module: nn.Module, inputs: Any, named: Any, output: Any) -> None:
            tensor = inputs[0] if inputs else named["input"]
            counts[name] = counts.get(name, 0) - (-tensor.numel() // (channels * max(batch, 1)))

        return count

    handles = []
    for name, module in model.named_modules():
        if isinstance(module, Transposed):
            hooked = transposed_hook(name, module.in_channels)
            handles.append(module.register_forward_hook(hooked, with_kwargs=True))
        elif isinstance(module, Prunable):
            handles.append(module.register_forward_hook(hook(name, module.weight.shape[0])))
        elif isinstance(module, nn.MultiheadAttention):
            # It uses the weight of this Linear without calling it.
            inner = f"{name}.out_proj" if name else "out_proj"
            handles.append(module.register_forward_hook(hook(inner, module.embed_dim)))
    try:
        yield counts
    finally:
        for handle in handles:
            handle.remove()


def _propagated(model: nn.Module, inputs: tuple[Tensor, ...], expected: Any) -> Ledger:
    """The units as far as they can be found."""
    if isinstance(model, Prunable | Transposed):
        return Ledger()
    try:
        propagation = Propagation(model, trace_graph(model, len(inputs)))
        result = propagation.run(*inputs)
        if not _same(result, expected):
            raise ValueError("its graph computes something else than the network")
    except Exception as error:  # the tracer runs the user's forward, which may raise anything
        reason = (str(error).splitlines() or [""])[0]
        ledger = Ledger()
        ledger.remark(
            f"{type(model).__name__}: cannot be traced ({type(error).__name__}: {reason}); all units stay dense"
        )
        return ledger
    propagation.finish()
    return propagation.ledger


def _same(result: Any, expected: Any) -> bool:
    """Whether two results hold the same tensors, up to rounding."""
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    for tensors, given in zip(found, (result, expected), strict=True):

        def collect(one: Any, tensors: list[Tensor] = tensors) -> Any:
            if isinstance(one, Tensor):
                tensors.append(one)
            return one

        map_aggregate(given, collect)
    return len(found[0]) == len(found[1]) and all(
        one.shape == other.shape and torch.allclose(one.double(), other.double(), 1e-3, 1e-5, equal_nan=True)
        for one, other in zip(*found, strict=True)
    )


def _complete(ledger: Ledger, model: nn.Module, positions: dict[str, int]) -> None:
    """Give the layers that the graph does not show units of their own, and join the units of tied weights."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Prunable | Transposed)}
    for name in layers.keys() - positions.keys():
        ledger.remark(f"{name}: is never called on the example; stays dense and counts no multiply-accumulates")
    positions.update({name: 0 for name in layers if name not in positions})
    nothing_found = not ledger.layers
    for name in positions:
        module = layers[name]
        book = ledger.transposed if isinstance(module, Transposed) else ledger.layers
        if name not in book:
            shape, groups = ops.shape_of(module), ops.groups_of(module)
            ids = ledger.fixed(groups * shape[1]).reshape(groups, -1)
            book[name] = Made(shape, ledger.fixed(shape[0]), ids, False)
    called = [name for name, count in positions.items() if count]
    if nothing_found and called:
        # Without a graph, the layer that ran last is taken for the one that makes the output.
        ledger.outputs.append((ledger.layers | ledger.transposed)[called[-1]].out_ids)
    owners: dict[int, list[tuple[str, str]]] = {}
    for name, part in model.named_modules():
        for tensor, parameter in part.named_parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((name, tensor))
    for sharing in owners.values():
        if len(sharing) > 1:
            _tie(ledger, sharing)


def _tie(ledger: Ledger, sharing: list[tuple[str, str]]) -> None:
    """Tell the ledger that these tensors, (module, tensor), are one.

    Embeddings, alone or with one Linear that turns their units into logits, share their units; others keep theirs.
    """
    # Of one shape with an embedding or a Linear, whatever makes units along dimension 1 is used like an embedding.
    slots = [(name, tensor, 1) for name, tensor in sharing if (name, tensor, 1) in ledger.makers]
    layers = [name for name, tensor in sharing if name in ledger.layers and tensor == "weight"]
    readers = [name for name in layers if len(ledger.layers[name].in_ids) == 1]
    if slots and len(readers) <= 1 and len(slots) + len(readers) == len(sharing):
        units = ledger.slots[slots[0]]
        for slot in slots[1:]:
            ledger.unite(units, ledger.slots[slot], slot[0])
        for name in readers:
            made = ledger.layers[name]
            ledger.unite(units, made.in_ids.flatten(), name)
            ledger.freeze(made.out_ids, f"{name}: its outputs are the entries of {slots[0][0]}; they stay dense")
        return
    first = sharing[0]
    for name, tensor in sharing[1:]:
        ids = torch.cat([ledger.units_of(*first), ledger.units_of(name, tensor)])
        ledger.freeze(ids, f"{name}: shares its {tensor} with {first[0]}; the units of both stay dense")
