"""Measure that two networks compute the same."""

import copy
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import map_aggregate

ROUNDING = "folded_rounding"
"""The attribute of a layer that tells what its bias lost when constants in float64 went into it, (out,) float64."""


class ProofError(AssertionError):
    """Two networks that should compute the same do not."""


@dataclass(frozen=True)
class Proof:
    """The largest differences between the outputs of two networks, in float32 and in float64.

    Relative: max |a - b| / max |a| over the output for a batch.  examples: how many were compared.
    """

    max_abs_32: float
    max_rel_32: float
    max_abs_64: float
    max_rel_64: float
    examples: int

    def as_dict(self) -> dict[str, float | int]:
        """The figures by name."""
        return asdict(self)


def prove(
    masked: nn.Module,
    shrunk: nn.Module,
    batches: Iterable[Tensor | tuple[Tensor, ...]],
    *,
    tolerance32: float = 1e-5,
    tolerance64: float = 1e-10,
) -> Proof:
    """Compare two networks on batches, or raise ProofError when a relative difference is above its tolerance.

    batches: the network's input, or a tuple of its inputs, batch first.  Copies run, in eval mode, on the device of the
    masked network; the networks stay as they are.  Entries that are not finite in `masked` are left out.  In float64
    the biases that hold folded constants are taken before their rounding to the network's precision, so that the
    figure tells what the operation did, not what float32 cannot hold.
    """
    device = next((one.device for one in (*masked.parameters(), *masked.buffers())), torch.device("cpu"))
    figures = {torch.float32: (0.0, 0.0), torch.float64: (0.0, 0.0)}
    copies = {dtype: [_prepared(one, dtype, device) for one in (masked, shrunk)] for dtype in figures}
    examples = 0
    for batch in batches:
        inputs = batch if isinstance(batch, tuple) else (batch,)
        examples += len(inputs[0])
        for dtype, pair in copies.items():
            found = largest_difference(*[outputs(one, inputs, dtype, device) for one in pair])
            figures[dtype] = tuple(map(max, figures[dtype], found))  # type: ignore[assignment]
    if not examples:
        raise ValueError("batches must hold at least one example, got none; pass some inputs of the network")
    proof = Proof(*figures[torch.float32], *figures[torch.float64], examples)
    limits = (("float32", proof.max_rel_32, tolerance32), ("float64", proof.max_rel_64, tolerance64))
    for name, figure, limit in limits:
        if figure > limit:
            raise ProofError(
                f"the networks differ by {figure:.3g} relative to the largest output in {name}, above the tolerance "
                f"{limit:.3g}; they do not compute the same, or the network amplifies rounding (then raise it)"
            )
    return proof


def _prepared(network: nn.Module, dtype: torch.dtype, device: torch.device) -> nn.Module:
    prepared = copy.deepcopy(network).to(device=device, dtype=dtype).eval()
    for module in prepared.modules():
        if dtype == torch.float64 and hasattr(module, ROUNDING):
            module.bias.detach().add_(getattr(module, ROUNDING).to(device))  # type: ignore[operator]
    return prepared


def outputs(network: nn.Module, inputs: tuple[Tensor, ...], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """All tensors of the result, in float64."""
    moved = [one.to(device, dtype) if one.is_floating_point() else one.to(device) for one in inputs]
    found: list[Tensor] = []

    def collect(one: Any) -> Any:
        if isinstance(one, Tensor):
            found.append(one.double())
        return one

    with torch.no_grad():
        map_aggregate(network(*moved), collect)
    return found


def largest_difference(expected: list[Tensor], given: list[Tensor]) -> tuple[float, float]:
    """The largest absolute and relative difference; ProofError where forms differ or numbers are missing."""
    if [one.shape for one in expected] != [one.shape for one in given]:
        shapes = [[tuple(one.shape) for one in side] for side in (expected, given)]
        raise ProofError(f"the outputs have shapes {shapes[1]} instead of {shapes[0]}; pass networks of one task")
    absolute = relative = 0.0
    for one, other in zip(expected, given, strict=True):
        finite = one.isfinite()
        if not bool(other[finite].isfinite().all()):
            raise ProofError("the shrunk network gives infinities or NaN where the masked one gives numbers")
        if bool(finite.any()):
            largest = float(one[finite].abs().max())
            difference = float((one - other)[finite].abs().max())
            absolute = max(absolute, difference)
            relative = max(relative, difference / largest if largest else difference)
    return absolute, relative
