"""Where q(s) ends as a function of the weight and of its start: the figure of docs/bistability.md.

    python docs/figures/bistability.py

Writes bistability.png and the numbers behind it, bistability.json, beside this file.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import matplotlib
import torch
from torch import Tensor

from bayesprune.provenance import versions
from bayesprune.variational import Collapsed, MeanField, optimal_variance

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STARTS = (0.01, 0.1, 0.5, 0.9, 0.99)
ROUNDS = 4000
MEANS = torch.linspace(0, 0.6, 121, dtype=torch.float64)
UNDECIDED = torch.zeros_like(MEANS)  # pi = 1/2


def mean_field(start: float, curvature: float = 0.0) -> Tensor:
    """The paper's family, real convention."""
    family = MeanField(initial_active=start, curvature=curvature)
    energy = MEANS**2 / 2
    state = family.start(energy, 1.0, UNDECIDED)
    for _ in range(ROUNDS):
        state = family.update(state, energy, 1.0, UNDECIDED)
    return torch.sigmoid(state.active_logit)


def half_collapsed(start: float, curvature: float = 0.0) -> Tensor:
    """rho integrated out of the evidence, but sigma^2 = 1/(<rho> + h) kept in <w^2>."""
    family = Collapsed()
    state = torch.full_like(MEANS, math.log(start / (1 - start)))
    energy = MEANS**2 / 2
    for _ in range(ROUNDS):
        precision = family.posterior(state, energy, 1.0).expected_precision
        energy = (MEANS**2 + optimal_variance(precision, curvature)) / 2
        state = family.update(state, energy, 1.0, UNDECIDED)
    return torch.sigmoid(state)


def collapsed(start: float) -> Tensor:
    """w a point: the start has no influence."""
    family = Collapsed()
    return torch.sigmoid(family.update(torch.full_like(MEANS, start), MEANS**2 / 2, 1.0, UNDECIDED))


PANELS: dict[str, Callable[[float], Tensor]] = {
    "mean_field (the paper's)": mean_field,
    "half-collapsed": half_collapsed,
    "half-collapsed, curvature h = 100": lambda start: half_collapsed(start, 100.0),
    "collapsed (the default)": collapsed,
}


def main() -> None:
    """Compute, draw and keep."""
    here = Path(__file__).parent
    figure, axes = plt.subplots(1, len(PANELS), figsize=(14, 3.4), sharey=True, layout="constrained")
    colours = plt.get_cmap("viridis")(torch.linspace(0, 0.9, len(STARTS)).numpy())
    kept: dict[str, dict[str, list[float]]] = {}
    for axis, (title, solve) in zip(axes, PANELS.items(), strict=True):
        kept[title] = {}
        for start, colour, width in zip(STARTS, colours, (7, 5.5, 4, 2.5, 1), strict=True):
            active = solve(start)
            kept[title][str(start)] = [round(v, 6) for v in active.tolist()]
            axis.plot(MEANS, active, color=colour, linewidth=width, label=f"{start}")
        axis.set(title=title, xlabel="posterior mean of the weight", ylim=(-0.03, 1.03))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("q(s = 1) after 4000 rounds")
    axes[-1].legend(title="q(s = 1) at the start", loc="lower right")
    figure.savefig(here / "bistability.png", dpi=110)
    result = {
        "prior": "a = b = abar = 1, bbar = 1e-3, pi = 1/2, no noise: nothing random",
        "mean": [round(v, 6) for v in MEANS.tolist()],
        "q_active": kept,
        "versions": versions(),
    }
    (here / "bistability.json").write_text(json.dumps(result) + "\n")
    for title, curves in kept.items():
        spread = max(abs(a - b) for a, b in zip(curves["0.01"], curves["0.99"], strict=True))
        print(f"{title}: largest difference between two starts {spread:.3f}")


if __name__ == "__main__":
    main()
