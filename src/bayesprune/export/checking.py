"""Copies of a network that are ready for export, inputs to try them on, and the comparison of outputs."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesprune.export.report import ExportError

TOLERANCE = 1e-4  # of the largest output; float32 programs differ by the order of their sums
SEED = 0


@dataclass(frozen=True)
class Difference:
    """Largest difference of two outputs, and the same over the largest output of the network."""

    absolute: float
    relative: float


def ready(network: nn.Module) -> nn.Module:
    """A copy of `network` in evaluation mode, float32 on the CPU, without gradients."""
    return copy.deepcopy(network).eval().to("cpu", torch.float32).requires_grad_(False)


def random_inputs(example: Tensor, batch: int) -> Tensor:
    """Inputs (batch, ...) of the shape of `example` (n, ...): Gaussian, or rows of `example` where it holds integers.

    The same values at every call.
    """
    if example.ndim < 1 or len(example) < 1:
        raise ValueError(f"the example must be a batch with at least one row, got shape {tuple(example.shape)}")
    if example.is_floating_point():
        return torch.randn((batch, *example.shape[1:]), generator=torch.Generator().manual_seed(SEED))
    return example.detach().cpu()[torch.arange(batch) % len(example)]


def compare(expected: Tensor, got: Tensor) -> Difference:
    """Difference of two outputs of equal shape; infinite where the shapes differ or a value is not finite."""
    if expected.shape != got.shape:
        return Difference(math.inf, math.inf)
    expected, got = expected.detach().double().cpu(), got.detach().double().cpu()
    absolute = float((expected - got).abs().max()) if expected.numel() else 0.0
    if not math.isfinite(absolute):
        return Difference(math.inf, math.inf)
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    return Difference(absolute, absolute / largest if largest else (math.inf if absolute else 0.0))


def agree(
    network: nn.Module, written: Callable[[Tensor], Tensor], example: Tensor, what: str
) -> tuple[Difference, tuple[int, ...]]:
    """Largest differences of `network` and of the program read back from `what`, and the batch sizes tried.

    Batch sizes are 1, 3 and that of `example`, on random inputs.  ExportError where they differ by more than TOLERANCE.
    """
    worst = Difference(0.0, 0.0)
    batches = tuple(sorted({1, 3, len(example)}))
    for batch in batches:
        x = random_inputs(example, batch)
        with torch.no_grad():
            # Clones, because a network may begin with an operation in place.
            expected = network(x.clone())
        check_output(expected, batch)
        try:
            got = written(x.clone())
        except Exception as error:  # the reader's own errors have no common type
            raise ExportError(f"{what} cannot be run at batch size {batch}: {first_line(error)}") from error
        difference = compare(expected, got)
        if not difference.relative <= TOLERANCE:
            raise ExportError(
                f"{what} differs from the network by {difference.absolute:.3g} at batch size {batch}, "
                f"{difference.relative:.3g} of the largest output; allowed is {TOLERANCE:g}.  "
                "Nothing was written; try another format"
            )
        worst = Difference(max(worst.absolute, difference.absolute), max(worst.relative, difference.relative))
    return worst, batches


def check_output(output: object, batch: int) -> None:
    """Raise ExportError unless `output` is one finite tensor with a row per example."""
    if not isinstance(output, Tensor):
        raise ExportError(f"the network must return one tensor, got {type(output).__name__}; wrap it to return one")
    if output.ndim < 1 or len(output) != batch:
        raise ExportError(
            f"the network must return one row per example, got shape {tuple(output.shape)} for {batch} examples"
        )
    if not bool(torch.isfinite(output).all()):
        raise ExportError("the network returns values that are not finite; look at its weights before exporting it")


def traced_input(example: Tensor) -> Tensor:
    """What the exporters see: two rows at least, because they take a batch of one for a constant."""
    return random_inputs(example, max(2, len(example)))


def first_line(error: BaseException, length: int = 200) -> str:
    """Type and first line of an error; those of compilers are pages long."""
    lines: Sequence[str] = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:length]}".rstrip(": ")
