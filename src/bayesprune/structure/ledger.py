"""The book of units while a network is traced: which are the same, and which must stay."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayesprune.structure.units import Layer, Resize, Slot, Structure

NO_UNIT = -1
"""The id of what belongs to no removable unit: inputs, parameters, results of operations not understood."""


@dataclass(frozen=True, eq=False)
class Made:
    """The ids on both sides of a layer, before it is known which of them are the same; fields as in `Layer`."""

    shape: tuple[int, ...]
    out_ids: Tensor
    in_ids: Tensor
    per_channel: bool


@dataclass(eq=False)
class Ledger:
    """Ids of units with union-find, and reasons why units stay."""

    parents: list[int] = field(default_factory=list)
    layers: dict[str, Made] = field(default_factory=dict)
    transposed: dict[str, Made] = field(default_factory=dict)
    norms: dict[str, Tensor] = field(default_factory=dict)
    slots: dict[tuple[str, str, int], Tensor] = field(default_factory=dict)
    makers: set[tuple[str, str, int]] = field(default_factory=set)
    resizes: list[Resize] = field(default_factory=list)
    reads: list[tuple[Tensor, frozenset[str]]] = field(default_factory=list)
    ends: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    given: list[Tensor] = field(default_factory=list)
    stuck: list[tuple[Tensor, str]] = field(default_factory=list)
    remarks: set[str] = field(default_factory=set)

    def new(self, count: int) -> Tensor:
        """Ids of `count` new units."""
        start = len(self.parents)
        self.parents.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def fixed(self, count: int) -> Tensor:
        """Ids of new units that stay, for what is an end of the network or as good as one."""
        ids = self.new(count)
        self.ends.append(ids)
        return ids

    def are_ends(self, ids: Tensor) -> bool:
        """Whether none of these units came from a layer."""
        return bool(self.ends) and bool(torch.isin(ids, torch.cat(self.ends)).all())

    def freeze(self, ids: Tensor, why: str) -> None:
        """Keep these units; `why` becomes a note if they could have gone otherwise."""
        self.stuck.append((ids[ids >= 0].unique(), why))

    def remark(self, why: str) -> None:
        """A note in any case."""
        self.stuck.append((torch.empty(0, dtype=torch.long), why))
        self.remarks.add(why)

    def unite(self, first: Tensor, second: Tensor, why: str) -> Tensor:
        """Make two tensors of ids the same, entry by entry; a unit joined to no unit stays.  Returns the ids."""
        first, second = torch.broadcast_tensors(first, second)
        pairs = torch.stack([first.flatten(), second.flatten()])
        lonely = (pairs < 0).any(0)
        if bool(lonely.any()):
            self.freeze(pairs[:, lonely], why)
        for one, other in pairs[:, ~lonely].unique(dim=1).T.tolist():
            self.parents[max(self.find(one), self.find(other))] = min(self.find(one), self.find(other))
        return torch.where(first >= 0, first, second)

    def slot(self, module: str, tensor: str, dim: int, ids: Tensor, *, makes: bool = False) -> None:
        """A dimension of a parameter has an entry for each of these units; `makes` as in `Slot`."""
        key = module, tensor, dim
        self.unite(self.slots.setdefault(key, ids), ids, f"{module}: {tensor}")
        if makes:
            self.makers.add(key)

    def units_of(self, module: str, tensor: str) -> Tensor:
        """The ids of the entries of a tensor; where they are not known one by one, those of its module."""
        made = [book[module] for book in (self.layers, self.transposed) if module in book]
        found = [ids for one in made for ids in (one.out_ids, one.in_ids.flatten())]
        found += [self.norms[module]] if module in self.norms else []
        found += [ids for key, ids in self.slots.items() if key[:2] == (module, tensor)]
        return torch.cat([torch.empty(0, dtype=torch.long), *found])

    def find(self, unit: int) -> int:
        """The smallest id of the same unit."""
        while self.parents[unit] != unit:
            self.parents[unit] = self.parents[self.parents[unit]]
            unit = self.parents[unit]
        return unit

    def settle(self, positions: dict[str, int]) -> Structure:
        """Number the units from 0 and write down the structure."""
        roots = torch.tensor([self.find(unit) for unit in range(len(self.parents))], dtype=torch.long)
        kept, number = roots.unique(return_inverse=True)
        count = len(kept)

        def chosen(groups: list[Tensor]) -> Tensor:
            flags = torch.zeros(count, dtype=torch.bool)
            if groups:
                flags[number[torch.cat([ids[ids >= 0].flatten() for ids in groups])]] = True
            return flags

        outputs = chosen(self.outputs)
        ends = chosen(self.ends) | outputs
        notes = [
            why for ids, why in self.stuck if why in self.remarks or (len(ids) and not bool(ends[number[ids]].all()))
        ]

        def settled(name: str, made: Made) -> Layer:
            gates = torch.zeros(len(made.in_ids), dtype=torch.bool)
            if made.per_channel:
                around = chosen([ids for ids, through in self.reads if name not in through])
                gates = ~around[number[made.in_ids[:, 0]]]
            sides = number[made.out_ids], number[made.in_ids]
            return Layer(name, made.shape, *sides, positions[name], made.per_channel, gates)

        resizes = [
            Resize(one.node, one.kind, one.dim, tuple(_numbered(piece, number) for piece in one.pieces))
            for one in self.resizes
        ]
        return Structure(
            layers=tuple(settled(name, self.layers[name]) for name in positions if name in self.layers),
            unit_count=count,
            removable=~(ends | chosen([ids for ids, _ in self.stuck])),
            outputs=outputs,
            given=chosen([*self.given, *[self.slots[key] for key in self.makers]]),
            norms={name: number[ids] for name, ids in self.norms.items()},
            resizes=tuple(resizes),
            notes=tuple(dict.fromkeys(notes)),
            slots=tuple(Slot(*key, number[ids], key in self.makers) for key, ids in self.slots.items()),
            transposed=tuple(settled(name, self.transposed[name]) for name in positions if name in self.transposed),
        )


def _numbered(ids: Tensor, number: Tensor) -> Tensor:
    return torch.where(ids >= 0, number[ids.clamp_min(0)], NO_UNIT) if len(number) else ids
