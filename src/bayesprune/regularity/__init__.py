"""How regular the live weights of a network are, for masks of any method.

    measured = regularity(masks)  # masks: {layer name: bool (out, in, *kernel)}
    measured.network.clusters["matrix"].share  # share of the live weights in disjoint rectangles of 3x3 or more
    regularity(shuffled(masks, generator)).network.clusters["matrix"].share  # what chance gives

`measured.as_dict()` is plain JSON, `cover` does one matrix, `draw` shows it.
"""

from bayesprune.regularity.chance import Shuffle, shuffled
from bayesprune.regularity.covering import Cover, cover
from bayesprune.regularity.drawing import draw
from bayesprune.regularity.figures import Clusters, Elements, Figures, Kernels, Runs, Steps
from bayesprune.regularity.measuring import Regularity, kernel_windows, regularity
from bayesprune.regularity.views import Layout, View, view

__all__ = [
    "Clusters",
    "Cover",
    "Elements",
    "Figures",
    "Kernels",
    "Layout",
    "Regularity",
    "Runs",
    "Shuffle",
    "Steps",
    "View",
    "cover",
    "draw",
    "kernel_windows",
    "regularity",
    "shuffled",
    "view",
]
