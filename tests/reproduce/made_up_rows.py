"""Rows that nobody has measured, and where the configs are."""

import random

from bayesprune.reproduce import CONFIGS as PACKAGED
from bayesprune.turbo import Settings

CONFIGS = PACKAGED / "table2"
STUDY_CONFIGS = PACKAGED / "regularity"


def a_row(method, accuracy, nonzero, macs_removed, *, protocol="best", seed=0, row="lenet5", **values):
    """A finished row with these shares."""
    return {
        "row": row,
        "model": "lenet5",
        "data": "fashion-mnist",
        "method": method,
        "protocol": protocol,
        "seed": seed,
        "epochs": 172,
        "epochs_scale": 1.0,
        "settings": {},
        "status": "finished",
        "accuracy": accuracy,
        "validation": {"accuracy": accuracy, "nll": 0.3},
        "nonzero_fraction": nonzero,
        "dense_fraction": 2 * nonzero,
        "macs_removed": macs_removed,
        "structure": [3, 5, 16, 17 + seed],
        "bytes": 12345,
        "regularity": {
            "in_rectangles": 0.1,
            "in_larger_rectangles": 0.05,
            "index_bytes_per_nonzero": 1.5,
            "decode_steps": {"mean": 3.0, "most": 9},
            "smaller_windows": 0.6,
        },
        "seconds": 10.0,
        "versions": {"python": "3.11"},
        "hardware": {"machine": "none"},
    } | values


def study_row(setting, accuracy, nonzero, share, *, chance=0.02, cluster=2.0, gap=8.0, seed=0, preset=None, **settings):
    """A finished row of the study; cluster and gap along rows, whose chance is 1.5 and 6."""

    def figures(in_rectangles, mean_cluster, mean_gap):
        return {
            "weights": 1000,
            "live": 100,
            "in_rectangles": in_rectangles,
            "in_larger_rectangles": in_rectangles / 2,
            "in_kernels": in_rectangles,
            "rectangles": 3,
            "mean_area": 12.0,
            "index_bytes_per_nonzero": 0.5,
            "decode_steps": {"mean": 4.0, "most": 9},
            "cluster_along_rows": mean_cluster,
            "gap_along_rows": mean_gap,
            "cluster_along_columns": 1.2,
            "gap_along_columns": 7.0,
            "smaller_windows": 0.6,
        }

    measured = figures(share, cluster, gap)
    measured |= {"layers": {"conv1": figures(share, cluster, gap)}, "chance": figures(chance, 1.5, 6.0)}
    identity = {"setting": setting, "title": f"title of {setting}", "preset": preset}
    own = {"settings": Settings(**settings).as_dict(), "regularity": measured}
    return a_row("ours", accuracy, nonzero, 0.7, seed=seed) | identity | own


def failed_row(method, **values):
    """A row of a job that failed."""
    figures = ("accuracy", "nonzero_fraction", "dense_fraction", "macs_removed", "structure", "bytes", "regularity")
    row = a_row(method, 0, 0, 0, **values)
    return row | dict.fromkeys(figures) | {"status": "failed: the loss became nan"}


def random_rows(methods, seeds=(0, 1, 2), protocols=("best",), seed=0):
    """Rows on a coarse grid, so that some are equal."""
    draw = random.Random(seed)
    grid = [0.1, 0.2, 0.3]
    return [
        a_row(method, draw.choice(grid), draw.choice(grid), draw.choice(grid), protocol=protocol, seed=s)
        for method in methods
        for protocol in protocols
        for s in seeds
    ]
