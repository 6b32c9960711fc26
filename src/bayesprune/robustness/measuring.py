"""All figures of one network: clean, attacked, in noise, and how well it knows what it knows."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from bayesprune.data import Batches, Split
from bayesprune.likelihoods import Classification, Likelihood
from bayesprune.robustness.attacks import STEPS, Bounds, ascent, evaluating, pgd, step_along
from bayesprune.robustness.calibration import BINS, expected_calibration_error, reliability
from bayesprune.turbo import SettingsError

BATCH: Final = 250  # the same on all devices, so that they draw the same random numbers
EPSILONS: Final = tuple(round(0.01 * number, 2) for number in range(11))


@dataclass(frozen=True)
class MeasureSettings:
    """What is measured.

    epsilons: of FGSM; pgd_epsilons: of PGD, with pgd_steps from a random start; noise: standard deviations of Gaussian
    noise; all of them in pixel units.  bins: of the calibration error.  seed: draws noise and starts.
    """

    epsilons: tuple[float, ...] = EPSILONS
    pgd_epsilons: tuple[float, ...] = (0.05, 0.1)
    pgd_steps: int = STEPS
    noise: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2)
    bins: int = BINS
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epsilons", "pgd_epsilons", "noise"):
            for value in getattr(self, name):
                if not 0 <= value <= 1:
                    raise SettingsError(f"{name} must be between 0 and 1 pixels, got {value}; try 0.05")
        for name in ("pgd_steps", "bins"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, got {getattr(self, name)}; try 10")

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def measure(
    network: nn.Module,
    split: Split,
    bounds: Bounds,
    settings: MeasureSettings,
    *,
    likelihood: Likelihood | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Attack every example of a split and return what the network makes of them.

    The gradient at the clean images is computed once: FGSM of every epsilon goes along it.

    Args:
        network: returns logits (n, classes).  It stays as it is.
        split: the test part: images and classes.
        bounds: of the images.
        settings: what to measure.
        likelihood: whose loss the attacks raise; by default the cross-entropy.
        progress: called with the batches done and their number.
    """
    s, likelihood = settings, likelihood or Classification()
    started = time.perf_counter()
    starts = {epsilon: torch.Generator().manual_seed(s.seed) for epsilon in s.pgd_epsilons}
    noise = {sigma: torch.Generator().manual_seed(s.seed) for sigma in s.noise}
    clean: list[Tensor] = []
    fgsm_outputs: dict[float, list[Tensor]] = {epsilon: [] for epsilon in s.epsilons}
    pgd_outputs: dict[float, list[Tensor]] = {epsilon: [] for epsilon in s.pgd_epsilons}
    noise_outputs: dict[float, list[Tensor]] = {sigma: [] for sigma in s.noise}
    batches = Batches(split, BATCH)
    with evaluating(network):
        for done, (x, y) in enumerate(batches, start=1):
            clean.append(_outputs(network, x))
            direction = ascent(network, likelihood, x, y)
            for epsilon, outputs in fgsm_outputs.items():
                outputs.append(_outputs(network, step_along(x, direction, epsilon, bounds)))
            for epsilon, outputs in pgd_outputs.items():
                generator = starts[epsilon]
                moved = pgd(network, likelihood, x, y, epsilon, bounds, steps=s.pgd_steps, generator=generator)
                outputs.append(_outputs(network, moved))
            for sigma, outputs in noise_outputs.items():
                outputs.append(_outputs(network, with_noise(x, sigma, bounds, noise[sigma])))
            if progress is not None:
                progress(done, len(batches))
    return {
        "examples": len(split),
        "clean": _figures(clean, split.y, s.bins),
        "reliability": reliability(torch.cat(clean).softmax(1), split.y, s.bins),
        "fgsm": [{"epsilon": epsilon} | _figures(found, split.y, s.bins) for epsilon, found in fgsm_outputs.items()],
        "pgd": [{"epsilon": epsilon} | _figures(found, split.y, s.bins) for epsilon, found in pgd_outputs.items()],
        "noise": [{"sigma": sigma} | _figures(found, split.y, s.bins) for sigma, found in noise_outputs.items()],
        "seconds": round(time.perf_counter() - started, 2),
    }


def with_noise(x: Tensor, sigma: float, bounds: Bounds, generator: torch.Generator) -> Tensor:
    """`x` (n, ...) with Gaussian noise of `sigma` pixels, clipped; drawn where the generator lives."""
    drawn = torch.randn(x.shape, generator=generator, device=generator.device).to(x)
    return bounds.clip(x + sigma * bounds.pixel * drawn)


@torch.no_grad()
def _outputs(network: nn.Module, x: Tensor) -> Tensor:
    outputs: Tensor = network(x)
    return outputs.float()


def _figures(outputs: list[Tensor], labels: Tensor, bins: int) -> dict[str, float]:
    logits = torch.cat(outputs)
    likelihood = Classification()
    figures = {
        **likelihood.score(logits, labels),
        "nll": float(likelihood.negative_log_likelihood(logits, labels)),
        "ece": expected_calibration_error(logits.softmax(1), labels, bins),
    }
    return {key: round(value, 6) if math.isfinite(value) else value for key, value in figures.items()}
