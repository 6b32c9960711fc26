"""Networks of one architecture as one: parameters and buffers with a leading dimension for the members."""

import copy
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bayesprune.frontier.members_at_once import for_many_members
from bayesprune.turbo import SettingsError

Snapshot = dict[str, Tensor]


class Stack:
    """The members of an ensemble.

    flat: (elements,) all trained parameters, one block (members, *shape) after the other, so that an optimiser's step
    is a few operations on one tensor.  buffers: (members, *shape) by name, with the parameters that are not trained.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self.members = len(networks)
        self.template = copy.deepcopy(networks[0])
        self._together = for_many_members(self.template)
        _check_modules(self.template)
        kinds = [_kinds(network) for network in networks]
        if any(kind != kinds[0] for kind in kinds):
            raise SettingsError(
                "the members of an ensemble must have one architecture, got networks whose parameters differ in name "
                "or shape; train them one after another"
            )
        trained = {name: p for name, p in self.template.named_parameters() if p.requires_grad}
        if not trained:
            raise SettingsError(f"{type(self.template).__name__} has no parameter to train; set requires_grad")
        self.shapes = {name: (self.members, *p.shape) for name, p in trained.items()}
        tensors = [{**dict(network.named_parameters()), **dict(network.named_buffers())} for network in networks]
        stacked = {name: torch.stack([one[name].detach() for one in tensors]) for name in tensors[0]}
        self.flat = torch.cat([stacked[name].flatten() for name in self.shapes]).requires_grad_()
        self.buffers = {name: tensor for name, tensor in stacked.items() if name not in self.shapes}

    def train(self, mode: bool = True) -> None:
        """Switch all members between training and evaluation."""
        self._together.train(mode)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The blocks of a tensor like `flat`, (members, *shape) by name; they share its memory."""
        blocks = flat.split([math.prod(shape) for shape in self.shapes.values()])
        return {name: block.view(shape) for (name, shape), block in zip(self.shapes.items(), blocks, strict=True)}

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The trained parameters, (members, *shape) by name; changing them changes the members."""
        return self.views(self.flat.detach())

    def per_member(self, values: Tensor | Sequence[float]) -> Tensor:
        """One number per member, (members,), as a tensor like `flat`."""
        numbers = torch.as_tensor(values, dtype=self.flat.dtype, device=self.flat.device)
        return torch.cat([numbers.repeat_interleave(math.prod(shape[1:])) for shape in self.shapes.values()])

    def outputs(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """What every member says of the same inputs, (members, n, classes)."""

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            result: Tensor = functional_call(self._together, (parameters, buffers), (x,))
            return result

        result: Tensor = vmap(one)(dict(parameters), self.buffers)
        return result

    def finite(self) -> Tensor:
        """Which members have neither NaN nor infinity, (members,) bool."""
        tensors = [*self.parameters.values(), *self.buffers.values()]
        return torch.stack([one.reshape(self.members, -1).isfinite().all(1) for one in tensors]).all(0)

    def snapshot(self) -> Snapshot:
        """A copy of everything, by name."""
        return {name: one.clone() for name, one in {**self.parameters, **self.buffers}.items()}

    @torch.no_grad()
    def keep(self, snapshot: Snapshot, which: Tensor) -> None:
        """Write the members of `which`, (members,) bool, into a snapshot."""
        _copy_members(snapshot, {**self.parameters, **self.buffers}, which)

    @torch.no_grad()
    def restore(self, snapshot: Snapshot, which: Tensor) -> None:
        """Set the members of `which`, (members,) bool, back to a snapshot."""
        _copy_members({**self.parameters, **self.buffers}, snapshot, which)

    @torch.no_grad()
    def network(self, member: int) -> nn.Module:
        """A network of its own with the values of a member, in eval mode."""
        network = copy.deepcopy(self.template)
        own = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        for name, stacked in {**self.parameters, **self.buffers}.items():
            own[name].copy_(stacked[member])
        return network.eval()


def _copy_members(into: Mapping[str, Tensor], source: Mapping[str, Tensor], which: Tensor) -> None:
    for name, tensor in into.items():
        tensor.copy_(torch.where(which.reshape(-1, *(1,) * (tensor.ndim - 1)), source[name], tensor))


def _kinds(network: nn.Module) -> dict[str, tuple[object, ...]]:
    """What must be the same in all members."""
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return {name: (tuple(t.shape), t.dtype, t.device, t.requires_grad) for name, t in tensors.items()}


def _check_modules(network: nn.Module) -> None:
    for name, module in network.named_modules():
        random = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        # A mean over all batches divides by a count that would have to be read back in every step.
        counting = isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is None
        if random or counting or isinstance(module, nn.SyncBatchNorm):
            raise SettingsError(
                f"{name}, a {type(module).__name__}, cannot be trained in an ensemble (dropout, BatchNorm with "
                "momentum=None and SyncBatchNorm cannot); train the settings one after another"
            )
