"""The part of a row that says how regular the live weights are, and how regular chance would make them."""

import functools
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bayesprune.regularity import Figures, Regularity, regularity, shuffled

DRAWS = 4  # shuffled masks that the figures of chance are of


def regularity_figures(masks: Mapping[str, Tensor], seed: int = 0, *, by_layer: bool = False) -> dict[str, Any]:
    """How regular the live weights of a network are, dead units left out, weights as matrices (out, in * kernel).

    in_rectangles, in_larger_rectangles: share of the live weights in disjoint rectangles of 3x3 or more, and of more;
    rectangles, mean_area: how many there are, and their mean number of weights.  in_kernels: share of the live weights
    in such rectangles within single kernels, in Linear layers anywhere.
    index_bytes_per_nonzero: of the cluster format; decode_steps: per row in it, mean and most, and for single weights.
    cluster_along_rows, gap_along_rows, ..._columns: mean lengths of runs of live and of dead weights.
    smaller_windows: share of the live kernels whose taps fit a smaller window.

    by_layer: `layers` has the same for every layer, and `chance` for masks of the same densities shuffled with `seed`.
    """
    measured = regularity(masks)
    figures = _figures(measured.network) | {"all": measured.network.as_dict()}
    if not by_layer:
        return figures
    generator = torch.Generator().manual_seed(seed)
    drawn = [regularity(shuffled(masks, generator)) for _ in range(DRAWS)]
    return figures | {
        "layers": {name: _figures(layer) for name, layer in measured.layers.items()},
        "chance": _of_draws([one.network for one in drawn]) | {"layers": _layers_of_draws(drawn)},
    }


def _layers_of_draws(drawn: list[Regularity]) -> dict[str, dict[str, Any]]:
    return {name: _of_draws([one.layers[name] for one in drawn]) for name in drawn[0].layers}


def _of_draws(drawn: list[Figures]) -> dict[str, Any]:
    """Shares and means over all draws together; counts per draw."""
    figures = _figures(functools.reduce(operator.add, drawn))
    return figures | {key: figures[key] / len(drawn) for key in ("weights", "live", "rectangles")}


def _figures(measured: Figures) -> dict[str, Any]:
    found = measured.as_dict()
    matrix = found["clusters"]["matrix"]
    return {
        "weights": found["weights"],
        "live": found["live"],
        "in_rectangles": matrix["share"],
        "in_larger_rectangles": matrix["share_larger"],
        "in_kernels": found["clusters"]["kernel"]["share"],
        "rectangles": matrix["rectangles"],
        "mean_area": matrix["mean_area"],
        "index_bytes_per_nonzero": matrix["index_bytes_per_nonzero"],
        "decode_steps": matrix["steps_per_row"],
        "decode_steps_of_weights": found["steps_per_row"]["weights"],
        "cluster_along_rows": found["along_rows"]["mean_cluster"],
        "gap_along_rows": found["along_rows"]["mean_gap"],
        "cluster_along_columns": found["along_columns"]["mean_cluster"],
        "gap_along_columns": found["along_columns"]["mean_gap"],
        "smaller_windows": found["kernels"]["share_smaller"],
    }
