"""Figures of regularity as sums, so that those of a network are the sums of its layers."""

import math
from dataclasses import dataclass, fields
from typing import Any, Self

from bayesprune.regularity.covering import ratio


@dataclass(frozen=True)
class Sums:
    """Integers that add up field by field; fields named `most` by their maximum."""

    def __add__(self, other: Self) -> Self:
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return type(self)(**{name: max(a, b) if name == "most" else a + b for name, a, b in pairs})


@dataclass(frozen=True)
class Steps(Sums):
    """Steps to decode the rows of a matrix one by one (paper Fig. 2a): mean, and the row that all others wait for."""

    rows: int = 0
    total: int = 0
    most: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain types."""
        return {"mean": plain(ratio(self.total, self.rows)), "most": self.most}


@dataclass(frozen=True)
class Runs(Sums):
    """Runs of live and of dead weights along an axis."""

    live: int = 0
    clusters: int = 0
    dead: int = 0
    gaps: int = 0

    @property
    def mean_cluster(self) -> float:
        """Mean length of a run of live weights; NaN where there is none."""
        return ratio(self.live, self.clusters)

    @property
    def mean_gap(self) -> float:
        """Mean length of a run of dead weights; NaN where there is none."""
        return ratio(self.dead, self.gaps)

    def as_dict(self) -> dict[str, Any]:
        """Plain types."""
        return {"mean_cluster": plain(self.mean_cluster), "mean_gap": plain(self.mean_gap)}


@dataclass(frozen=True)
class Kernels(Sums):
    """The smallest windows that hold the live taps of each kernel (paper Fig. 8); kernels of one tap are left out.

    smaller: live kernels whose window is smaller than the kernel.  window_taps, taps: of the live kernels.
    """

    kernels: int = 0
    live: int = 0
    smaller: int = 0
    live_taps: int = 0
    window_taps: int = 0
    taps: int = 0

    @property
    def share_smaller(self) -> float:
        """Share of the live kernels that fit a smaller window; NaN where none lives."""
        return ratio(self.smaller, self.live)

    @property
    def mean_window(self) -> float:
        """Mean taps of the windows; NaN where no kernel lives."""
        return ratio(self.window_taps, self.live)

    def as_dict(self) -> dict[str, Any]:
        """Plain types."""
        return {
            "kernels": self.kernels,
            "live": self.live,
            "share_smaller": plain(self.share_smaller),
            "mean_window": plain(self.mean_window),
            "mean_taps": plain(ratio(self.taps, self.live)),
            "mean_live_taps": plain(ratio(self.live_taps, self.live)),
        }


@dataclass(frozen=True)
class Clusters(Sums):
    """Disjoint all-live rectangles of one layout; `smallest` and larger, or strictly larger."""

    live: int = 0
    rectangles: int = 0
    covered: int = 0
    covered_larger: int = 0
    coverable: int = 0
    index_bytes: int = 0
    steps: Steps = Steps()

    @property
    def share(self) -> float:
        """Share of the live weights in rectangles; NaN where nothing lives."""
        return ratio(self.covered, self.live)

    @property
    def share_larger(self) -> float:
        """Share of the live weights in rectangles strictly larger than the smallest; NaN where nothing lives."""
        return ratio(self.covered_larger, self.live)

    @property
    def share_bound(self) -> float:
        """What `share` cannot exceed: the live weights in any all-live window of the smallest size."""
        return ratio(self.coverable, self.live)

    @property
    def mean_area(self) -> float:
        """Mean number of weights of a rectangle; NaN where there is none."""
        return ratio(self.covered, self.rectangles)

    @property
    def index_bytes_per_nonzero(self) -> float:
        """Bytes of the cluster format (`formats`) without values; NaN where nothing lives."""
        return ratio(self.index_bytes, self.live)

    def as_dict(self) -> dict[str, Any]:
        """Plain types; steps: a rectangle that crosses a row is one, a weight outside all rectangles is one."""
        return {
            "rectangles": self.rectangles,
            "mean_area": plain(self.mean_area),
            "share": plain(self.share),
            "share_larger": plain(self.share_larger),
            "share_bound": plain(self.share_bound),
            "leftovers": self.live - self.covered,
            "index_bytes": self.index_bytes,
            "index_bytes_per_nonzero": plain(self.index_bytes_per_nonzero),
            "steps_per_row": self.steps.as_dict(),
        }


@dataclass(frozen=True)
class Elements(Sums):
    """What the formats without clusters need, bytes of positions and steps per row; all of the layout `matrix`.

    lines: bytes to say which rows and columns were left out, a bit for each, where any was.  All formats share them, no
    other figure has them, and lines that surgery removes for good do not need them.
    """

    coo: int = 0
    csr: int = 0
    bitmask: int = 0
    delta: int = 0
    lines: int = 0
    weights: Steps = Steps()
    runs: Steps = Steps()


@dataclass(frozen=True)
class Figures:
    """How regular the live weights of a layer, or of all layers together, are.

    weights, live: all of the layer, and those that live.  clusters: by layout.  along_rows, along_columns: runs in the
    layout `matrix`.
    """

    weights: int
    live: int
    clusters: dict[str, Clusters]
    elements: Elements
    along_rows: Runs
    along_columns: Runs
    kernels: Kernels

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.weights + other.weights,
            self.live + other.live,
            {layout: clusters + other.clusters[layout] for layout, clusters in self.clusters.items()},
            self.elements + other.elements,
            self.along_rows + other.along_rows,
            self.along_columns + other.along_columns,
            self.kernels + other.kernels,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain types; what is undefined (the mean of nothing) is None."""
        return {
            "weights": self.weights,
            "live": self.live,
            "density": plain(ratio(self.live, self.weights)),
            "clusters": {layout: clusters.as_dict() for layout, clusters in self.clusters.items()},
            "index_bytes_per_nonzero": {
                name: plain(ratio(getattr(self.elements, name), self.live))
                for name in ("coo", "csr", "bitmask", "delta", "lines")
            },
            "steps_per_row": {"weights": self.elements.weights.as_dict(), "runs": self.elements.runs.as_dict()},
            "along_rows": self.along_rows.as_dict(),
            "along_columns": self.along_columns.as_dict(),
            "kernels": self.kernels.as_dict(),
        }


def plain(value: float) -> float | None:
    """None for NaN, which JSON does not have."""
    return None if math.isnan(value) else value
