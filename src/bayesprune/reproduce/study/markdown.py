"""The study as Markdown: tables, and what they say."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bayesprune.reproduce.averaging import (
    ACCURACY,
    AREA,
    COUNT,
    INDEX,
    LARGER,
    MACS,
    NONZERO,
    RECTANGLES,
    STEPS,
    VALIDATION,
    WINDOWS,
)
from bayesprune.reproduce.jobs import Row
from bayesprune.reproduce.study.families import (
    CLUSTER_COLUMNS,
    CLUSTER_ROWS,
    FAMILIES,
    GAP_COLUMNS,
    GAP_ROWS,
    KERNELS,
    StudyGroup,
    by_chance,
    groups,
    of_layer,
)
from bayesprune.reproduce.study.sentences import couplings, prices
from bayesprune.reproduce.tables import NONE, cell, cells, epochs, heading, provenance, seeds, table, unusual

INTRODUCTION = (
    "Mean ± standard deviation over seeds.  All figures of regularity are of the weights as matrices (outputs, inputs x"
    " kernel) without dead rows and columns.  In 3x3: share of the live weights in disjoint all-live rectangles of 3x3"
    " or more; larger: of more than 3x3; in 3x3 of kernels: within single kernels of convolutions.  By chance: the same"
    " number of live weights, shuffled within the live rows and columns of every layer."
)
EQUAL_NONZEROS = (
    "Accuracies are compared at equal nonzeros: between the irregular networks with fewer and with more nonzeros the"
    " accuracy is taken to be linear in the logarithm of the nonzeros; outside their range nothing is said."
)
CLUSTERS = (
    "Mean lengths of runs of live weights (clusters) and of dead weights (gaps), in brackets those of chance; along"
    " rows are the inputs and taps of one output, along columns the outputs.  A single chain of supports would have"
    " clusters of 1/p10 and gaps of 1/p01; J is the coupling, given or that of p01 and p10."
)
LAYERS = "Share of the live weights in rectangles of 3x3 or more, %."


def study_markdown(row: Row, rows: Iterable[Mapping[str, Any]], *, epochs_scale: float = 1.0) -> str:
    """The whole file."""
    return "\n".join([*heading(study_title(row), epochs_scale), *study_sections(list(rows), "##")])


def study_title(row: Row) -> str:
    """What the study of a row is called."""
    return f"What regularity costs: {row.title}"


def study_sections(rows: Sequence[Mapping[str, Any]], marks: str) -> list[str]:
    """All tables and sentences; marks: those of a heading."""
    found = groups(rows)
    lines = [INTRODUCTION, "", *networks_table(found), ""]
    if notes := unusual(rows, lambda one: f"`{one['setting']}` with seed {one['seed']}"):
        lines += [*notes, ""]
    lines += [f"{marks} Accuracy at equal nonzeros", "", EQUAL_NONZEROS, "", *prices(found), ""]
    lines += [f"{marks} Clusters and gaps", "", CLUSTERS, "", *clusters_table(found), "", *couplings(found), ""]
    lines += [f"{marks} Layers", "", LAYERS, "", *layers_table(found), ""]
    return [*lines, f"{marks} How it was made", "", *provenance(rows), ""]


def networks_table(found: Sequence[StudyGroup]) -> list[str]:
    """The figures of every setting."""
    axes = (
        VALIDATION,
        ACCURACY,
        NONZERO,
        MACS,
        RECTANGLES,
        by_chance(RECTANGLES),
        LARGER,
        KERNELS,
        COUNT,
        AREA,
        INDEX,
        STEPS,
    )
    return table(
        ["setting", "what", "family", "seeds", "epochs", *(axis.title for axis in axes)],
        (
            [
                f"`{group.setting}`",
                group.title,
                FAMILIES[group.family],
                seeds(group),
                epochs(group),
                *cells(group, axes),
            ]
            for group in found
        ),
    )


def clusters_table(found: Sequence[StudyGroup]) -> list[str]:
    """Runs along both axes and kernels, beside what the prior and what chance would give."""
    axes = (CLUSTER_ROWS, CLUSTER_COLUMNS, GAP_ROWS, GAP_COLUMNS, WINDOWS)
    lines = []
    for group in (one for one in found if one.rows):
        p01, p10 = group.transitions or (None, None)
        prior = [f"{group.coupling:.2f}", _inverse(p10), _inverse(p01)]
        measured = [
            f"{cell(group.mean(axis), axis)} ({cell(group.mean(by_chance(axis)), by_chance(axis))})" for axis in axes
        ]
        lines.append([f"`{group.setting}`", *prior, *measured])
    return table(["setting", "J", "1/p10", "1/p01", *(axis.title for axis in axes)], lines)


def layers_table(found: Sequence[StudyGroup]) -> list[str]:
    """The share in rectangles of every layer."""
    measured = [row["regularity"].get("layers", {}) for group in found for row in group.rows]
    names = list(dict.fromkeys(name for layers in measured for name in layers))
    axes = [of_layer(RECTANGLES, name) for name in names]
    return table(["setting", *names], ([f"`{group.setting}`", *cells(group, axes)] for group in found if group.rows))


def _inverse(probability: float | None) -> str:
    return NONE if not probability else f"{1 / probability:.1f}"
