"""Run a traced network once and carry the units of every tensor along."""

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, fx, nn
from torch.fx.node import Node, map_arg
from torch.nn import functional

from bayesprune.structure import operations as ops
from bayesprune.structure.ledger import NO_UNIT, Ledger, Made
from bayesprune.structure.operations import Attention, Prunable, Transposed
from bayesprune.structure.sizes import Sizes
from bayesprune.structure.units import Resize
from bayesprune.structure.values import Call, Flow, Value, along, compact, without_units

MEMBERS = {"values": 0, "indices": 1}
"""Names of the results of `max` and the like."""


class Propagation(fx.Interpreter):
    """Interpret the graph with tensors, and with their units beside them."""

    def __init__(self, model: nn.Module, graph: fx.Graph) -> None:
        super().__init__(model, graph=graph)
        self.ledger = Ledger()
        self.flows: dict[Node, Flow] = {}
        self.borrowed: dict[str, None] = {}
        self.followed: dict[str, dict[Node, int]] = {}
        self.sizes = Sizes()

    def run_node(self, n: Node) -> Any:
        """Run one operation, then note what it did to units."""
        result = super().run_node(n)
        args: Any = map_arg(n.args, self.flows.__getitem__)
        kwargs: Any = map_arg(n.kwargs, self.flows.__getitem__)
        call = Call(n, args, kwargs, result)
        counted = self.sizes.misused(call, _name(n))
        self.ledger.freeze(counted, f"{n.name}: computes with the number of units; they stay dense")
        if n.op == "output":
            self.ledger.outputs.extend(value.ids for value in call.values)
            flow = None
        elif n.op == "get_attr":
            flow = self._attribute(call, str(n.target))
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
        """Keep the units of parameters that something else uses, too."""
        for target in self.borrowed:
            owner, _, tensor = target.rpartition(".")
            why = f"{owner}: its parameters are also used outside of its own forward; its units stay dense"
            if target in self.followed:
                nodes = [node for node in self.graph.nodes if node.op == "get_attr" and node.target == target]
                users = {user for node in nodes for user in node.users}
                if users == self.followed[target].keys() and len(set(self.followed[target].values())) == 1:
                    continue
                why = f"{target}: is also used where its entries do not follow the units; they stay dense"
            self.ledger.freeze(self.ledger.units_of(owner, tensor), why)

    # Modules

    def _attribute(self, call: Call, target: str) -> Flow:
        """Parameters of modules that are no leaves of the graph can follow the units they meet."""
        self.borrowed[target] = None
        if not isinstance(call.result, nn.Parameter):
            return call.without_units()
        owner = self.module.get_submodule(target.rpartition(".")[0])
        leaf = ops.is_leaf(owner) or type(owner).__module__.startswith("torch.nn")
        return replace(without_units(call.result), parameter="" if leaf else target)

    def _module(self, call: Call, name: str, module: nn.Module) -> Flow:
        value = call.values[0] if len(call.values) == 1 and isinstance(call.result, Tensor) else None
        where = f"{name} ({type(module).__name__})"
        kind = type(module)
        if isinstance(module, Attention) and kind in get_args(Attention):
            return self._attention(call, name, where, module)
        if value is None and kind not in ops.POOL_MODULES:
            return self._unknown(call, where, bool(list(module.parameters())))
        if value is None:
            return self._pool(call, where, ops.POOL_MODULES[kind])
        if isinstance(module, Prunable):
            return self._layer(call, value, name, module)
        if isinstance(module, Transposed) and ops.keeps_forward(module, ops.TRANSPOSED):
            return self._transposed(call, value, name, module)
        if isinstance(module, nn.Embedding) and kind is nn.Embedding:
            return self._embedding(call, value, name, module)
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
        if isinstance(module, nn.GroupNorm) and kind is nn.GroupNorm and module.num_groups > 1:
            return self._group_norm(value, name, where, module.num_groups)
        if kind in (nn.GroupNorm, nn.LocalResponseNorm):
            return self._across(value, where, [1])
        if isinstance(module, nn.GLU):
            return self._glu(call, value, where, module.dim)
        return self._unknown(call, where, bool(list(module.parameters())))

    def _layer(self, call: Call, value: Value, name: str, module: Prunable) -> Value:
        where = f"{name} ({type(module).__name__})"
        shape, groups = ops.shape_of(module), ops.groups_of(module)
        dim = len(value.shape) - (1 if isinstance(module, nn.Linear) else len(shape) - 1)
        ids = self._read(value, dim, where)
        # With one group even a conv of one channel mixes nothing, but it makes units of its own.
        per_channel = groups > 1 and groups == value.shape[dim]
        before = self.ledger.layers.get(name)
        if before is not None:
            self._read_again(before, ids, where)
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
        through = value.through | {name} if per_channel else frozenset()
        return along(call.result.shape, dim, made.out_ids, through)

    def _transposed(self, call: Call, value: Value, name: str, module: Transposed) -> Flow:
        """It reads and makes units; the slots say where."""
        where = f"{name} ({type(module).__name__})"
        if module.groups > 1 or "weight" not in module._parameters:
            return self._unknown(call, where, True)
        shape = ops.shape_of(module)
        dim = len(value.shape) - (len(shape) - 1)
        ids = self._read(value, dim, where)
        made = self.ledger.transposed.get(name)
        if made is None:
            made = Made(shape, self.ledger.new(shape[0]), ids.reshape(1, -1), False)
            self.ledger.transposed[name] = made
        else:
            self._read_again(made, ids, where)
        self.ledger.reads.append((ids, value.through))
        self.ledger.slot(name, "weight", 0, made.in_ids.flatten())
        self.ledger.slot(name, "weight", 1, made.out_ids)
        if module.bias is not None:
            self.ledger.slot(name, "bias", 0, made.out_ids)
        return along(call.result.shape, dim, made.out_ids)

    def _embedding(self, call: Call, value: Value, name: str, module: nn.Embedding) -> Flow:
        """Every component of the vectors is a unit."""
        where = f"{name} ({type(module).__name__})"
        # max_norm scales the vectors by a norm that goes across the units.
        if module.max_norm is not None or "weight" not in module._parameters:
            return self._unknown(call, where, True)
        self.ledger.freeze(value.ids, f"{where}: takes units for indices; they stay dense")
        before = self.ledger.slots.get((name, "weight", 1))
        ids = self.ledger.new(module.embedding_dim) if before is None else before
        self.ledger.slot(name, "weight", 1, ids, makes=True)
        return along(call.result.shape, -1, ids)

    def _attention(self, call: Call, name: str, where: str, module: Attention) -> Flow:
        """Every head is a unit that in_proj makes and out_proj reads; the units of the inputs stay."""
        plain = "in_proj_weight" in module._parameters and "weight" in module.out_proj._parameters
        if isinstance(module, nn.MultiheadAttention):
            plain &= bool(module._qkv_same_embed_dim) and module.bias_k is None and not module.add_zero_attn
        if not plain:
            return self._unknown(call, where, True)
        for value in call.values:
            self.ledger.freeze(value.ids, f"{where}: its inputs stay dense")
        inner = f"{name}.out_proj"
        made = self.ledger.layers.get(inner)
        if made is None:
            heads = self.ledger.new(module.num_heads).repeat_interleave(module.head_dim)
            shape = ops.shape_of(module.out_proj)
            made = Made(shape, self.ledger.new(shape[0]), heads.reshape(1, -1), False)
            self.ledger.layers[inner] = made
        heads = made.in_ids.flatten()
        self.ledger.reads.append((heads, frozenset()))
        # The rows of queries, keys and values, each head by head.
        self.ledger.slot(name, "in_proj_weight", 0, heads.repeat(3), makes=True)
        if module.in_proj_bias is not None:
            self.ledger.slot(name, "in_proj_bias", 0, heads.repeat(3))
        mask = call.argument(5, "attn_mask")
        if isinstance(mask, Value) and len(mask.shape) == 3:
            self.ledger.freeze(heads, f"{where}: its attn_mask has an entry per head; the heads stay dense")
        if call.result[1] is not None and not _only_first_used(call.node):
            self.ledger.freeze(heads, f"{where}: its attention weights depend on all heads; they stay dense")
        first, *others = call.without_units()
        return along(first.shape, -1, made.out_ids), *others

    def _read_again(self, before: Made, ids: Tensor, where: str) -> None:
        """A module that is called again reads the same units."""
        self.ledger.unite(before.in_ids.flatten(), ids, where)
        if self.ledger.are_ends(before.in_ids) != self.ledger.are_ends(ids):
            self.ledger.remark(f"{where}: reads units in one call and none in another; they stay dense")

    def _keep(self, made: Made, why: str) -> None:
        self.ledger.freeze(torch.cat([made.out_ids, made.in_ids.flatten()]), why)

    def _norm(self, value: Value, name: str, where: str, dim: int) -> Value:
        """One parameter or statistic per channel of `dim`."""
        ids = self._read(value, dim, where)
        if name in self.ledger.norms:
            self.ledger.unite(self.ledger.norms[name], ids, where)
        self.ledger.norms.setdefault(name, ids)
        return value

    def _group_norm(self, value: Value, name: str, where: str, groups: int) -> Value:
        """A whole group can go without a change to the statistics of the others, so its channels are one unit."""
        if not set(value.dims) - {1}:
            ids = value.line(1).reshape(groups, -1)
            why = f"{where}: joins units with something that has none; they stay dense"
            self.ledger.unite(ids[:, :1], ids, why)
        return self._norm(value, name, where, 1)

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
            return self._elementwise(call, where, name)
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

    def _elementwise(self, call: Call, where: str, name: str) -> Value:
        """Operands of one layout have the same units; one that is spread over many units keeps its own."""
        shape, product = call.result.shape, name in ops.PRODUCTS
        changing = torch.broadcast_shapes((1,) * len(shape), *[value.ids.shape for value in call.values])
        # A dead unit stays 0 times a parameter; one that is added to it gives it content.
        operands = [self._follow(call, value, changing, not product).aligned(len(shape)) for value in call.values]
        ids: Tensor | None = None
        passed: list[frozenset[str]] = []
        fed = False
        for place, value in enumerate(operands):
            spread = any(
                many > 1 and size == 1 and full > 1
                for many, size, full in zip(changing, value.shape, shape, strict=True)
            )
            if spread:
                self.ledger.freeze(value.ids, f"{where}: spreads a unit over others; it stays dense")
                if not _keeps_zero(call, name, place):
                    fed = True
                    passed.append(frozenset())
                continue
            why = f"{where}: joins units with something that has none; they stay dense"
            ids = value.ids if ids is None else self.ledger.unite(ids, value.ids, why)
            passed.append(value.through)
        if ids is None:
            return without_units(call.result)
        if fed:
            self.ledger.given.append(ids)
        if len(Value(shape, ids).dims) > 1 >= max(len(value.dims) for value in operands):
            why = f"{where}: joins units along different dimensions; they stay dense"
            for value in operands:
                self.ledger.freeze(value.ids, why)
        through = frozenset.union(*passed) if product else frozenset.intersection(*passed)
        return Value(shape, ids, through)

    def _follow(self, call: Call, value: Value, changing: torch.Size, makes: bool) -> Value:
        """A parameter with an entry for every unit of the other operands has their units.

        changing: the shape of the ids of all operands.
        """
        unit_dims = [dim for dim, size in enumerate(changing) if size > 1]
        if not value.parameter or len(unit_dims) != 1:
            return value
        dim = unit_dims[0] - (len(changing) - len(value.shape))
        if dim < 0 or value.shape[dim] == 1:
            return value
        owner, _, tensor = value.parameter.rpartition(".")
        before = self.ledger.slots.get((owner, tensor, dim))
        ids = self.ledger.new(value.shape[dim]) if before is None else before
        self.ledger.slot(owner, tensor, dim, ids, makes=makes)
        self.followed.setdefault(value.parameter, {})[call.node] = dim
        return along(value.shape, dim, ids)

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


def _keeps_zero(call: Call, name: str, place: int) -> bool:
    """Whether a unit that is zero stays zero, whatever is spread over it as the operand number `place`."""
    if name in ("masked_fill", "masked_fill_"):
        value = call.argument(2, "value")
        return isinstance(value, int | float) and value == 0
    return name in ops.PRODUCTS or (name in ops.QUOTIENTS and place > 0)


def _only_first_used(node: Node) -> bool:
    """Whether nothing depends on the results of an operation but the first."""
    return all(user.target is operator.getitem and (user.args[1] == 0 or not user.users) for user in node.users)


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
