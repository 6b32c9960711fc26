"""Adversarial fine-tuning: a network learns from its own adversarial examples, and stays as sparse as it was."""

import copy
import math
import time
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Protocol

import torch
from torch import Tensor, nn

from bayesprune.data import Batches, FlipAndCrop, Split
from bayesprune.likelihoods import Classification, Likelihood
from bayesprune.robustness.attacks import Bounds, fgsm
from bayesprune.turbo import DivergedError, Interrupted, SettingsError
from bayesprune.turbo.training import TrainStep, evaluate, make_optimiser

LARGEST_EPSILON: Final = 0.1  # the largest of paper Fig. 12


@dataclass(frozen=True)
class HardenSettings:
    """How a network is fine-tuned with adversarial examples.

    epsilon: (least, most) pixels, drawn for every image; a fixed one where both are equal.
    learning_rate falls by a cosine.  augment: random flips and crops, for photographs.
    """

    epochs: int
    epsilon: tuple[float, float] = (0.0, LARGEST_EPSILON)
    batch_size: int = 128
    optimiser: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 3e-3
    momentum: float = 0.9
    weight_decay: float = 0.0
    augment: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        least, most = self.epsilon
        if not 0 <= least <= most <= 1:
            raise SettingsError(f"epsilon must be growing and between 0 and 1 pixels, got {least, most}; try (0, 0.1)")
        if self.epochs < 0:
            raise SettingsError(f"epochs must be at least 0, got {self.epochs}; try 10")
        if self.batch_size < 2:
            raise SettingsError(f"batch_size must be at least 2, half of it clean, got {self.batch_size}; try 128")
        if not 0 < self.learning_rate < math.inf:
            raise SettingsError(f"learning_rate must be above 0, got {self.learning_rate}; try 1e-3")

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self) | {"epsilon": list(self.epsilon)}


class Watcher(Protocol):
    """Sees how the work goes, and may stop it."""

    def row(self, row: dict[str, Any]) -> None:
        """An epoch has ended with these figures."""

    def step(self, done: int, total: int) -> None:
        """`done` of `total` batches are done."""

    def should_stop(self) -> bool:
        """Whether to stop after this batch."""


@dataclass(frozen=True, eq=False)
class Hardened:
    """The fine-tuned copy, in evaluation mode, and a row for every epoch."""

    network: nn.Module
    history: list[dict[str, Any]]


def harden(
    network: nn.Module,
    train: Split,
    bounds: Bounds,
    settings: HardenSettings,
    *,
    validation: Split | None = None,
    likelihood: Likelihood | None = None,
    watcher: Watcher | None = None,
) -> Hardened:
    """Fine-tune a copy of a network with adversarial examples; dead weights stay dead.

    In each step the second half of the batch is replaced by FGSM examples against the network as it is in this step.
    No test data can come in: only the two splits given are seen, and `validation` only for the rows.

    Args:
        network: stays as it is.
        train: the examples to learn from.
        bounds: of the images.
        settings: how.
        validation: for the accuracy after every epoch.
        likelihood: whose loss the attack raises and the training lowers; by default the cross-entropy.
        watcher: told about the progress.
    """
    s, likelihood, device = settings, likelihood or Classification(), train.x.device
    student = copy.deepcopy(network).train()
    generator = torch.Generator().manual_seed(s.seed)
    strengths = torch.Generator().manual_seed(s.seed + 1)
    batches = Batches(
        train, min(s.batch_size, len(train)), generator, FlipAndCrop() if s.augment else None, drop_last=True
    )
    step = TrainStep(student, likelihood, make_optimiser(student.parameters(), s), masks=live_weights(student))
    half = batches.batch_size // 2
    history: list[dict[str, Any]] = []
    for epoch in range(s.epochs):
        started = time.perf_counter()
        step.set_learning_rate(s.learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / s.epochs)))
        drawn = torch.rand((len(batches), batches.batch_size - half), generator=strengths)
        epsilon = (s.epsilon[0] + (s.epsilon[1] - s.epsilon[0]) * drawn).to(device)
        losses = torch.zeros((), device=device)
        for done, (x, y) in enumerate(batches):
            hostile = fgsm(student, likelihood, x[half:], y[half:], epsilon[done], bounds)
            losses += step(torch.cat([x[:half], hostile]), y)
            if watcher is not None:
                watcher.step(done + 1, len(batches))
                if watcher.should_stop():
                    raise Interrupted(f"adversarial fine-tuning was stopped in epoch {epoch + 1} of {s.epochs}")
        loss = float(losses) / len(batches)
        if not math.isfinite(loss):
            raise DivergedError(
                f"the loss became {loss} in epoch {epoch + 1} of adversarial fine-tuning; "
                f"try a learning rate below {s.learning_rate:g}"
            )
        row: dict[str, Any] = {"epoch": epoch + 1, "loss": round(loss, 6)}
        row["seconds"] = round(time.perf_counter() - started, 3)
        if validation is not None:
            row["validation_accuracy"] = round(evaluate(student, likelihood, validation)["accuracy"], 6)
        history.append(row)
        if watcher is not None:
            watcher.row(row)
    return Hardened(student.eval(), history)


def live_weights(network: nn.Module) -> dict[str, Tensor]:
    """Masks, bool by layer name: the weights of Linear and Conv layers that are not exactly zero."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return {name: layer.weight.detach() != 0 for name, layer in network.named_modules() if isinstance(layer, kinds)}
