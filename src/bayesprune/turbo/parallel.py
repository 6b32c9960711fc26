"""Several processes that train one network: who am I, what is my share, do we still agree."""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
PATIENCE = timedelta(minutes=10)  # until a silent process counts as dead


class RanksDisagreeError(RuntimeError):
    """Processes that should hold the same state do not."""


@dataclass(frozen=True)
class World:
    """The processes of a run; a run of one process is a world of size 1."""

    rank: int = 0
    size: int = 1

    @property
    def writes(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, batch: Tensor) -> Tensor:
        """This process's part of a global batch, (n, ...) -> (n / size, ...)."""
        return batch if self.size == 1 else batch[self.rank :: self.size]

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged over processes, its BatchNorms normalising the global batch until `unwrap`.

        SyncBatchNorm does the same, but not on the CPU.
        """
        if self.size == 1:
            return model
        for module in model.modules():
            if isinstance(module, BatchNorm):
                module.forward = _GlobalBatchNorm(module, self.size)  # type: ignore[assignment,method-assign]
        device = next(model.parameters()).device
        devices = [device.index] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=devices)

    def unwrap(self, model: nn.Module) -> None:
        """Undo what `wrap` did to the model itself."""
        for module in model.modules():
            if isinstance(module.__dict__.get("forward"), _GlobalBatchNorm):
                del module.forward

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Average the gradients of parameters that are not part of the wrapped model."""
        if self.size > 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= self.size

    def mean(self, value: Tensor) -> Tensor:
        """Average of a scalar over processes."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value)
            value /= self.size
        return value

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        if self.size == 1:
            return flag
        votes: list[bool] = [False] * self.size
        dist.all_gather_object(votes, flag)
        return any(votes)

    def from_first(self, make: Callable[[], str]) -> str:
        """Let the first process make something, and tell the others its name; they wait."""
        if self.size == 1:
            return make()
        made: list[str | None] = [make() if self.rank == 0 else None]
        dist.broadcast_object_list(made)
        assert made[0] is not None
        return made[0]

    def check_equal(self, tensors: Iterable[Tensor], when: str) -> None:
        """Raise unless every process holds bitwise the same tensors."""
        if self.size == 1:
            return
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        digests: list[str] = [""] * self.size
        dist.all_gather_object(digests, digest.hexdigest())
        if any(other != digests[0] for other in digests):
            raise RanksDisagreeError(
                f"the {self.size} processes hold different states {when}; this is a bug or a hardware fault, "
                "go on from the last checkpoint"
            )


class _Mean(torch.autograd.Function):
    """The mean of a tensor over processes, in both directions."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        value = value.clone()
        dist.all_reduce(value)
        return value / dist.get_world_size()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient / dist.get_world_size()


class _GlobalBatchNorm:
    """The forward of a BatchNorm whose statistics are those of all processes' shares, which are of equal size."""

    def __init__(self, module: BatchNorm, size: int) -> None:
        self.module, self.size = module, size

    def __call__(self, x: Tensor) -> Tensor:
        module = self.module
        if not module.training:
            return type(module).forward(module, x)
        others = [dim for dim in range(x.ndim) if dim != 1]
        shape = (-1, *(1,) * (x.ndim - 2))
        mean: Tensor = _Mean.apply(x.mean(others))  # type: ignore[no-untyped-call]
        variance: Tensor = _Mean.apply((x - mean.reshape(shape)).square().mean(others))  # type: ignore[no-untyped-call]
        if module.running_mean is not None and module.running_var is not None:
            assert module.num_batches_tracked is not None
            module.num_batches_tracked.add_(1)
            share = 1 / float(module.num_batches_tracked) if module.momentum is None else module.momentum
            count = self.size * x.numel() // x.shape[1]
            with torch.no_grad():
                module.running_mean.lerp_(mean.detach(), share)
                module.running_var.lerp_(variance.detach() * count / max(1, count - 1), share)
        normalised = (x - mean.reshape(shape)) * torch.rsqrt(variance + module.eps).reshape(shape)
        if module.weight is not None:
            normalised = normalised * module.weight.reshape(shape) + module.bias.reshape(shape)
        return normalised


def join_world(device: torch.device) -> World:
    """Join the processes that torchrun has started, if it has."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    return World(dist.get_rank(), dist.get_world_size())


def leave_world(world: World) -> None:
    """Say goodbye; a process that ends without it looks dead to the others."""
    if world.size > 1 and dist.is_initialized():
        dist.destroy_process_group()
