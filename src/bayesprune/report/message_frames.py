"""The messages between the modules over the outer iterations (paper Fig. 11)."""

import numpy as np

from bayesprune.report.charts import Frames, LayerFrames
from bayesprune.report.reading import Run
from bayesprune.runs.messages import WINDOW

TITLES = ("v_{eta->s}: what the weights say", "v_{h->s}: what the neighbours say", "q(s=1): both together")
PARTS = ("to_supports", "from_supports", "posterior")


def message_frames(run: Run, budget: int, name: str = "messages") -> Frames | None:
    """All layers at as many iterations as fit `budget` bytes, the first and the last among them."""
    if not run.messages:
        return None
    first = run.messages[0]
    size = sum(getattr(layer, part).numel() for layer in first.layers.values() for part in PARTS)
    chosen = thinned(len(run.messages), max(2, budget // max(1, size)))
    sent = [run.messages[place] for place in chosen]
    layers = tuple(
        LayerFrames(
            layer,
            found.shape,
            tuple(np.stack([getattr(one.layers[layer], part).numpy() for one in sent]) for part in PARTS),
        )
        for layer, found in first.layers.items()
    )
    caption = "The probability that a weight lives, in three messages."
    if any(max(one.shape) > WINDOW for one in layers):
        caption += f" Of large layers the first {WINDOW} rows and columns."
    if len(sent) < len(run.messages):
        caption += f" {len(sent)} of {len(run.messages)} iterations, evenly spaced."
    iterations = tuple(one.iteration for one in sent)
    return Frames(name, "Messages over the outer iterations", caption, iterations, TITLES, layers)


def thinned(count: int, most: int) -> list[int]:
    """At most `most` of `count` places, evenly spaced, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(one) for one in np.linspace(0, count - 1, most)})
