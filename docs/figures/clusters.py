"""What p01, p10 and J mean: samples of the priors and their cluster and gap lengths (paper II-B).

    python docs/figures/clusters.py

Writes clusters.png and the numbers behind it, clusters.json, beside this file.
"""

import json
from pathlib import Path

import matplotlib
import torch

from bayesprune.provenance import versions
from bayesprune.supports import IsingGrid, MarkovChain, Support, run_lengths

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SEED = 0
PICTURE = (48, 64)
SAMPLES: dict[str, Support] = {
    "chain, p01 .05, p10 .1": MarkovChain(0.05, 0.1),
    "grid, p01 .3, p10 .3": IsingGrid.from_transitions(0.3, 0.3),
    "Ising, activity .4, J .2": IsingGrid(0.4, 0.2),
    "Ising, activity .49, J .4": IsingGrid(0.49, 0.4),
}


def main() -> None:
    """Sample, measure, draw and keep."""
    here = Path(__file__).parent
    generator = torch.Generator().manual_seed(SEED)
    figure, axes = plt.subplots(
        1, len(SAMPLES) + 1, figsize=(16, 3.2), layout="constrained", width_ratios=[1] * 4 + [1.5]
    )
    table = []
    for axis, (title, support) in zip(axes, SAMPLES.items(), strict=False):
        alive = support.sample(PICTURE, generator)
        axis.imshow(alive, cmap="Greys", interpolation="nearest")
        axis.set(title=title, xticks=[], yticks=[])
    values = [0.02, 0.05, 0.1, 0.2, 0.4]
    for p10 in values:
        measured = []
        for p01 in values:
            lengths = run_lengths(MarkovChain(p01, p10).sample((400, 2000), generator))
            measured.append(lengths)
            table.append({"p01": p01, "p10": p10, "cluster": lengths.cluster, "gap": lengths.gap})
        axes[-1].plot([m.gap for m in measured], [m.cluster for m in measured], "o-", label=f"p10 = {p10}")
    axes[-1].set(xscale="log", yscale="log", xlabel="mean gap (about 1 / p01)", ylabel="mean cluster (about 1 / p10)")
    axes[-1].set_title("rows of a chain, measured")
    ticks = [3, 10, 30]
    axes[-1].set_xticks(ticks, labels=[str(t) for t in ticks], minor=False)
    axes[-1].set_yticks(ticks, labels=[str(t) for t in ticks], minor=False)
    axes[-1].minorticks_off()
    axes[-1].grid(alpha=0.3)
    axes[-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(here / "clusters.png", dpi=110)
    result = {"seed": SEED, "chains": table, "versions": versions()}
    (here / "clusters.json").write_text(json.dumps(result, indent=1) + "\n")
    worst = max(max(abs(r["cluster"] * r["p10"] - 1), abs(r["gap"] * r["p01"] - 1)) for r in table)
    print(f"largest relative difference from 1/p10 and 1/p01: {worst:.3f}")


if __name__ == "__main__":
    main()
