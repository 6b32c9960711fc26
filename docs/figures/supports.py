"""One sample of every support model: the pictures of docs/structures.md.

    python docs/figures/supports.py

Writes supports.png and the share of live weights in each picture, supports.json, beside this file.
"""

import json
from pathlib import Path

import matplotlib
import torch

from bayesprune.provenance import versions
from bayesprune.supports import Bernoulli, HiddenMarkov, IsingGrid, MarkovChain, MarkovTree, Support

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.colors import ListedColormap
from matplotlib.layout_engine import ConstrainedLayoutEngine

SEED = 0
PICTURE = (40, 60)  # rows, columns
DEAD, ALIVE, INK = "#f3f5f7", "#0b4f8a", "#24292f"
SAMPLES: dict[str, Support] = {
    "Bernoulli(0.3)": Bernoulli(0.3),
    "MarkovChain(p01=0.06, p10=0.15)": MarkovChain(0.06, 0.15),
    "HiddenMarkov(0.04, 0.08, 0.04, 0.8)": HiddenMarkov(0.04, 0.08, 0.04, 0.8),
    "MarkovTree(0.35, p01=0.01, p10=0.15)": MarkovTree(0.35, 0.01, 0.15),
    "IsingGrid(0.47, coupling=0.35)": IsingGrid(0.47, 0.35),
    "IsingGrid.from_transitions(0.3, 0.3)": IsingGrid.from_transitions(0.3, 0.3),
}


def main() -> None:
    """Sample, draw and keep."""
    here = Path(__file__).parent
    generator = torch.Generator().manual_seed(SEED)
    figure, axes = plt.subplots(2, 3, figsize=(9.6, 5.0), layout=ConstrainedLayoutEngine(h_pad=0.09, w_pad=0.06))
    colours = ListedColormap([DEAD, ALIVE])
    live: dict[str, float] = {}
    for axis, (title, support) in zip(axes.flat, SAMPLES.items(), strict=True):
        alive = support.sample(PICTURE, generator)
        live[title] = round(float(alive.float().mean()), 4)
        axis.imshow(alive, cmap=colours, vmin=0, vmax=1, interpolation="nearest")
        axis.set_title(title, fontsize=9, color=INK, family="monospace")
        axis.set(xticks=[], yticks=[])
        axis.set_xlabel(f"{live[title]:.0%} live", fontsize=9, color=INK)
    figure.savefig(here / "supports.png", dpi=100)
    result = {"seed": SEED, "shape": PICTURE, "live": live, "versions": versions()}
    (here / "supports.json").write_text(json.dumps(result, indent=1) + "\n")
    print(live)


if __name__ == "__main__":
    main()
