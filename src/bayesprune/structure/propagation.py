"""Run a traced network once and carry the units of every tensor along."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Node, map_arg
from torch.nn import functional

from bayesprune.structure import operations as ops
from bayesprune.structure.ledger import NO_UNIT, Ledger, Made
from bayesprune.structure.operations import Prunable
from bayesprune.structure.units import Resize
from bayesprune.structure.values import Call, Flow, Value, compact, without_units

MEMBERS = {"values": 0, "indices": 1}
"""Names of the results of `max` and the like."""


class Propagation(fx.Interpreter):
    """Interpret the graph with tensors, and with their units beside them."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        super().__init__(model, graph=graph)
        self.ledger = Ledger()
        self.flows: dict[Node, Flow] = {}
        self.borrowed: set[str] = set()

    def run_node(self, n: Node) -> Any:
        """Run one operation, then note what it did to units."""
        result = super().run_node(n)
        args: Any = map_arg(n.args, self.flows.__getitem__)
        kwargs: Any = map_arg(n.kwargs, self.flows.__getitem__)
        call = Call(n, args, kwargs, result)
        if n.op == "output":
            self.ledger.outputs.extend(value.ids for value in call.values)
            flow = None
        elif n.op == "get_attr":
            flow = call.without_units()
            self.borrowed.add(str(n.target).rpartition(".")[0])
        elif n.op == "call_module":
            flow = self._module(call, str(n.target), self.submodules[str(n.target)])
        elif not call.values:
            # Numbers, new tensors, and members of the collections that other operations returned.
            flow = call.without_units()
        else:
            flow = self._function(call, _name(n))
        self.flows[n] = flow
        if n.op == "call_method" and str(n.target).endswith("_") and isinstance(flow, Value):
            # In place: the operand is the result from now on.
            self.flows.update({given: flow for given in n.all_input_nodes[:1]})
        return result

    def finish(self) -> None:
        """Keep the units of layers and norms whose parameters something else uses, too."""
        made = {name: torch.cat([one.out_ids, one.in_ids.flatten()]) for name, one in self.ledger.layers.items()}
        for owner, units in (made | self.ledger.norms).items():
            if owner in self.borrowed:
                why = f"{owner}: its parameters are also used outside of its own forward; its units stay dense"
                self.ledger.freeze(units, why)

    # Modules

    def _module(self, call: Call, name: str, module: nn.Module) -> Flow:
        value = call.values[0] if len(call.values) == 1 and isinstance(call.result, Tensor) else None
        where = f"{name} ({type(module).__name__})"
        kind = type(module)
        if value is None and kind not in ops.POOL_MODULES:
            return self._unknown(call, where, bool(list(module.parameters())))
        if value is None:
            return self._pool(call, where, ops.POOL_MODULES[kind])
        if isinstance(module, Prunable):
            return self._layer(call, value, name, module)
        if ops.keeps_forward(module, ops.BATCH_NORMS):
            return self._norm(value, name, where, 1)
        if kind in ops.INSTANCE_NORMS:
            return self._norm(value, name, where, len(value.shape) - 1 - ops.INSTANCE_NORMS[kind])
        if isinstance(module, nn.PReLU):
            return value if module.weight.numel() == 1 else self._norm(value, name, where, 1)
        if kind in ops.PASSING_MODULES:
            return value
        if kind in ops.POOL_MODULES:
            return self._pool(call, where, ops.POOL_MODULES[kind])
        if kind in ops.RESAMPLING_MODULES:
            return self._resample(call, where)
        if kind in ops.PAD_MODULES:
            return self._pad(call, where, range(len(value.shape) - ops.PAD_MODULES[kind], len(value.shape)))
        if kind in (nn.Flatten, nn.Unflatten):
            return self._move(call, where, kind.__name__.lower(), module)
        if isinstance(module, ops.SOFTMAX_MODULES) and module.dim is not None:
            return self._across(value, where, [module.dim])
        if isinstance(module, nn.LayerNorm | nn.RMSNorm) and kind.__module__.startswith("torch.nn"):
            return self._across(value, where, range(-len(module.normalized_shape), 0))
        if kind in (nn.GroupNorm, nn.LocalResponseNorm):
            return self._across(value, where, [1])
        if isinstance(module, nn.GLU):
            return self._glu(call, value, where, module.dim)
        return self._unknown(call, where, bool(list(module.parameters())))

    def _layer(self, call: Call, value: Value, name: str, module: Prunable) -> Value:
        where = f"{name} ({type(module).__name__})"
        shape = tuple(module.weight.shape)
        groups = 1 if isinstance(module, nn.Linear) else module.groups
        dim = len(value.shape) - (1 if isinstance(module, nn.Linear) else len(shape) - 1)
        ids = self._read(value, dim, where)
        # With one group even a conv of one channel mixes nothing, but it makes units of its own.
        per_channel = groups > 1 and groups == value.shape[dim]
        before = self.ledger.layers.get(name)
        if before is not None:
            self.ledger.unite(before.in_ids.flatten(), ids, where)
            if self.ledger.are_ends(before.in_ids) != self.ledger.are_ends(ids):
                self.ledger.remark(f"{where}: reads units in one call and none in another; they stay dense")
            made = before
        else:
            out_ids = ids.repeat_interleave(shape[0] // groups) if per_channel else self.ledger.new(shape[0])
            made = Made(shape, out_ids, ids.reshape(groups, -1), per_channel)
            self.ledger.layers[name] = made
        if not per_channel:
            self.ledger.reads.append((ids, value.through))
        if not ops.keeps_forward(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            self._keep(made, f"{where}: has a forward of its own; its units stay dense")
        elif "weight" not in module._parameters:
            self._keep(made, f"{where}: its weight is computed from other parameters; its units stay dense")
        size = [1] * len(value.shape)
        size[dim] = -1
        through = value.through | {name} if per_channel else frozenset()
        return Value(call.result.shape, made.out_ids.reshape(size), through)

    def _keep(self, made: Made, why: str) -> None:
        self.ledger.freeze(torch.cat([made.out_ids, made.in_ids.flatten()]), why)

    def _norm(self, value: Value, name: str, where: str, dim: int) -> Value:
        """One parameter or statistic per channel of `dim`."""
        ids = self._read(value, dim, where)
        if name in self.ledger.norms:
            self.ledger.unite(self.ledger.norms[name], ids, where)
        self.ledger.norms.setdefault(name, ids)
        return value

    def _read(self, value: Value, dim: int, where: str) -> Tensor:
        """The unit of every channel of `dim`; units along other dimensions stay."""
        count = value.shape[dim]
        if set(value.dims) - {dim}:
            self.ledger.freeze(
                value.ids, f"{where}: works across another dimension than that of the units it gets; they stay dense"
            )
            return self.ledger.fixed(count)
        ids = value.ids.flatten().expand(count)
        alone = ids < 0
        if bool(alone.any()):
            ids = ids.masked_scatter(alone, self.ledger.fixed(int(alone.sum())))
        return ids

    # Functions and methods

    def _function(self, call: Call, name: str) -> Flow:
        where = f"{call.node.name} ({name or getattr(call.node.target, '__name__', call.node.target)})"
        value = call.values[0]
        if isinstance(call.first, tuple | list) and (name == "getitem" or name in MEMBERS):
            return call.first[MEMBERS[name] if name in MEMBERS else call.args[1]]
        if name in ops.QUERIES:
            return call.result
        if name in ops.JOINS:
            return self._join(call, where, name)
        if name in ops.REDUCTIONS and len(call.values) == 1:
            return self._reduce(call, where)
        single = isinstance(call.result, Tensor)
        if single and name in ops.FIRST_ONLY:
            return Value(call.result.shape, value.ids, value.through)
        if single and (name in ops.ELEMENTWISE or name in ("max", "min")):
            return self._elementwise(call, where, name in ops.PRODUCTS)
        if name in ops.POOLS:
            return self._pool(call, where, ops.POOLS[name])
        if name in ops.MOVES and call.first is value and (len(call.values) == 1 or name.endswith("_as")):
            return self._move(call, where, name, None)
        if name in ops.RESAMPLING:
            return self._resample(call, where)
        if name == "pad":
            widths = list(call.argument(1, "pad"))
            padded = [len(value.shape) - 1 - i // 2 for i, width in enumerate(widths) if width != 0]
            return self._pad(call, where, padded)
        if name == "layer_norm" or name == "rms_norm":
            return self._across(value, where, range(-len(call.argument(1, "normalized_shape")), 0))
        if name == "group_norm" or name == "local_response_norm":
            return self._across(value, where, [1])
        if name in ops.ACROSS and len(call.values) == 1:
            default = 1 if name == "normalize" else None
            dim = call.argument(2 if name == "normalize" else 1, "dim", default)
            return self._across(value, where, range(len(value.shape)) if dim is None else [dim])
        if name == "glu":
            return self._glu(call, value, where, call.argument(1, "dim", -1))
        return self._unknown(call, where, False)

    def _elementwise(self, call: Call, where: str, product: bool) -> Value:
        """Operands of one layout have the same units; one that is spread over many units keeps its own."""
        shape = call.result.shape
        operands = [value.aligned(len(shape)) for value in call.values]
        changing = torch.broadcast_shapes(*[value.ids.shape for value in operands])
        ids: Tensor | None = None
        passed: list[frozenset[str]] = []
        for value in operands:
            spread = any(
                many > 1 and size == 1 and full > 1
                for many, size, full in zip(changing, value.shape, shape, strict=True)
            )
            if spread:
                self.ledger.freeze(value.ids, f"{where}: spreads a unit over others; it stays dense")
                continue
            why = f"{where}: joins units with something that has none; they stay dense"
            ids = value.ids if ids is None else self.ledger.unite(ids, value.ids, why)
            passed.append(value.through)
        if ids is None:
            return without_units(call.result)
        if len(Value(shape, ids).dims) > 1 >= max(len(value.dims) for value in operands):
            why = f"{where}: joins units along different dimensions; they stay dense"
            for value in operands:
                self.ledger.freeze(value.ids, why)
        through = frozenset.union(*passed) if product else frozenset.intersection(*passed)
        return Value(shape, ids, through)

    def _reduce(self, call: Call, where: str) -> Flow:
        value = call.values[0]
        dim = call.argument(1, "dim", call.kwargs.get("axis"))
        count = len(value.shape)
        given = range(count) if dim is None or isinstance(dim, bool) else [dim] if isinstance(dim, int) else dim
        dims = [one % count for one in given] if count else []
        if set(dims) & set(value.dims):
            self.ledger.freeze(value.ids, f"{where}: combines units; they stay dense")
            return call.without_units()

        def reduced(result: Tensor) -> Value:
            ids = value.ids
            if result.ndim != ids.ndim:
                ids = ids[tuple(0 if one in dims else slice(None) for one in range(count))]
            return Value(result.shape, ids, value.through)

        return call.mapped(reduced)

    def _across(self, value: Value, where: str, dims: Sequence[int]) -> Value:
        """Statistics over `dims` of entries that stay where they are."""
        if {dim % len(value.shape) for dim in dims} & set(value.dims):
            self.ledger.freeze(value.ids, f"{where}: its statistics go across units; they stay dense")
        return value

    def _pool(self, call: Call, where: str, dims: int) -> Flow:
        value = call.values[0]
        if len(call.values) > 1 or any(dim >= len(value.shape) - dims for dim in value.dims):
            return self._unknown(call, where, False)
        return call.mapped(lambda result: Value(result.shape, value.ids, value.through))

    def _resample(self, call: Call, where: str) -> Flow:
        value = call.values[0]
        if len(call.values) > 1 or any(dim >= 2 for dim in value.dims):
            return self._unknown(call, where, False)
        return Value(call.result.shape, value.ids, value.through)

    def _pad(self, call: Call, where: str, dims: Sequence[int]) -> Flow:
        """Borders around a unit belong to it; added channels belong to none."""
        value = call.values[0]
        if not set(dims) & set(value.dims) and value.ids.numel() > 1:
            return Value(call.result.shape, value.ids, value.through)
        if call.node.op != "call_function" or call.argument(2, "mode", "constant") != "constant":
            return self._unknown(call, where, False)
        widths = list(call.argument(1, "pad"))
        if bool((value.ids < 0).all()):
            return call.without_units()
        if value.ids.numel() == 1 or min(widths) < 0:
            return self._unknown(call, where, False)
        padded = [width if len(value.shape) - 1 - i // 2 in value.dims else 0 for i, width in enumerate(widths)]
        return Value(call.result.shape, functional.pad(value.ids, padded, value=NO_UNIT), value.through)

    def _glu(self, call: Call, value: Value, where: str, dim: int) -> Flow:
        """The two halves go together, so that half of what remains is still half."""
        if set(value.dims) - {dim % len(value.shape)}:
            return self._unknown(call, where, False)
        first, second = value.line(dim % len(value.shape)).chunk(2, dim)
        return compact(call.result.shape, self.ledger.unite(first, second, where), value.through)

    def _join(self, call: Call, where: str, name: str) -> Flow:
        dim = call.argument(1, "dim", call.kwargs.get("axis", 0)) % call.result.ndim
        values = call.values
        if name == "stack":
            values = [value.stretched(dim) for value in values]
        if any(len(value.shape) != call.result.ndim for value in values):
            return self._unknown(call, where, False)
        through = frozenset.intersection(*[value.through for value in values])
        if any(set(value.dims) - {dim} for value in values):
            # Joined along another dimension than that of the units: place by place they are the same.
            if any(dim in value.dims for value in values):
                return self._unknown(call, where, False)
            why = f"{where}: joins units with something that has none; they stay dense"
            ids = values[0].ids
            for value in values[1:]:
                ids = self.ledger.unite(ids, value.ids, why)
            return Value(call.result.shape, ids, through)
        pieces = [value.line(dim) for value in values]
        return compact(call.result.shape, torch.cat(pieces, dim), through)

    def _move(self, call: Call, where: str, name: str, module: nn.Module | None) -> Flow:
        """Do to the ids what is done to the entries."""
        value = call.values[0]
        try:
            moved = call.again(module)
        except (RuntimeError, TypeError, IndexError, ValueError):
            return self._unknown(call, where, False)
        results = moved if isinstance(moved, tuple | list) else [moved]
        wanted = call.result if isinstance(moved, tuple | list) else [call.result]
        if any(one.dtype != torch.long or one.shape != real.shape for one, real in zip(results, wanted, strict=True)):
            return self._unknown(call, where, False)
        flows = [compact(entries.shape, entries, value.through) for entries in results]
        for flow in flows:
            if len(flow.dims) > 1 >= len(value.dims):
                self.ledger.freeze(flow.ids, f"{where}: puts the units along several dimensions; they stay dense")
        if len(value.dims) == 1:
            self._resize(call, where, name, value, flows)
        return flows if isinstance(moved, tuple | list) else flows[0]

    def _resize(self, call: Call, where: str, name: str, value: Value, flows: list[Value]) -> None:
        """Write down sizes that follow the number of units, or keep the units where surgery could not follow."""
        (dim,) = value.dims
        ledger, node = self.ledger, call.node.name
        if name in ops.RESHAPES and len(flows[0].dims) == 1:
            ledger.resizes.append(Resize(node, "size", flows[0].dims[0], (flows[0].ids.flatten(),)))
        elif name in ops.SPLITS and any(flow.shape[dim] != value.shape[dim] for flow in flows):
            ledger.resizes.append(Resize(node, "split", dim, tuple(flow.line(dim).flatten() for flow in flows)))
        elif name in ops.SELECTIONS:
            taken = _taken(call, name, dim, len(value.shape))
            start, stop, step = taken.indices(value.shape[dim]) if isinstance(taken, slice) else (0, 0, 0)
            ids = value.ids.flatten()
            if step != 1:
                ledger.freeze(ids, f"{where}: picks single units; all of them stay dense")
            elif stop - start != len(ids):
                stop = max(start, stop)
                ledger.resizes.append(Resize(node, "slice", dim, (ids[:start], ids[start:stop], ids[stop:])))
        elif name == "roll" and not torch.equal(flows[0].ids, value.ids):
            ledger.freeze(value.ids, f"{where}: turns the units around; they stay dense")

    def _unknown(self, call: Call, where: str, parameters: bool) -> Flow:
        """Keep the units of the operands; the results have none."""
        text = f"{where}: not understood; "
        for value in call.values:
            self.ledger.freeze(value.ids, text + "the units it gets and gives stay dense")
        if parameters:
            self.ledger.remark(text + "the units it gets and gives stay dense")
        return call.without_units()


def _name(node: Node) -> str:
    """What the operation is called in `operations`; empty for an unknown function."""
    if node.op == "call_method":
        return str(node.target)
    if node.target is getattr:
        return str(node.args[1])
    return ops.FUNCTIONS.get(node.target, "")


def _taken(call: Call, name: str, dim: int, count: int) -> Any:
    """What getitem, narrow, select or unbind takes along `dim`: a slice, or anything else for single entries."""
    everything = slice(None)
    if name == "getitem":
        given = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
        index = [one for one in given if one is not None]
        if Ellipsis in index:
            place = index.index(Ellipsis)
            index[place : place + 1] = [everything] * (count - len(index) + 1)
        return index[dim] if dim < len(index) else everything
    if call.argument(1, "dim", 0) % count != dim:
        return everything
    if name == "narrow":
        start, length = call.argument(2, "start"), call.argument(3, "length")
        return slice(start, start + length)
    return None
