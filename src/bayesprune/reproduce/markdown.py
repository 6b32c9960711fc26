"""A row of Table II as Markdown: our figures beside the paper's, who wins and who loses."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bayesprune.reproduce.averaging import (
    ACCURACY,
    AREA,
    BYTES,
    COUNT,
    DENSE,
    DROP,
    INDEX,
    LARGER,
    LARGEST_DROP,
    MACS,
    MAIN_AXES,
    NONZERO,
    OTHER_AXES,
    RECTANGLES,
    STEPS,
    WINDOWS,
    Axis,
    Mean,
)
from bayesprune.reproduce.comparing import MethodGroup, best, dominated_by, groups, usable, with_drops
from bayesprune.reproduce.jobs import Row
from bayesprune.reproduce.methods import OURS, UNPRUNED
from bayesprune.reproduce.paper import SOURCE, TABLE2, Printed
from bayesprune.reproduce.tables import NONE, cell, cells, epochs, heading, provenance, seeds, table, unusual

PROTOCOL_NOTES = {
    "best": (
        "Every method with the best recipe that we know for it, and as many epochs in total as `ours`."
        "  `unpruned` is dense training for as many epochs; drops are measured against it, seed by seed."
        "  `magnitude` and `group-norm`, which are not in the paper, are asked for about the nonzeros and the MACs of"
        " `ours`.  `ours-macs` is `ours` with a weak prior on single weights, to be compared with `group-norm`, which"
        " removes units only; `group-norm-small` is asked for the MACs of `ours-macs`, where those are fewer."
        "  `magnitude` ranks all weights by the score of LAMP and removes them step by step while training goes on."
        "  With `-distilled` the unpruned network is a teacher in fine-tuning (70 % of the loss);"
        " its epochs count, so ours then warms up for longer and prunes for less."
    ),
    "long": (
        "As `best`, with twice the epochs for all, and a teacher in fine-tuning for the pruned ones: what more training"
        " is worth to ours, to the strongest baseline at equal MACs, and to the unpruned network.  The prior of ours on"
        " single weights is a little stronger, for its size."
    ),
    "paper": (
        "What the paper gives: learning rate 0.01, batches of 64 (LeNet-5) or 128, fine-tuning for 15 (LeNet-5) or 30"
        " epochs, none for SNIP.  What it leaves open is our choice: the optimiser (SGD with momentum; for `ours` that"
        " of its config; Adam at a rate of 0.001 in the pruning epochs of group variational dropout, of variational"
        " dropout on VGG-11 and of polarization on the other two), the rate at which fine-tuning begins, epochs"
        " before it (as many for all methods), p01 and p10, penalties, thresholds and ramps, BatchNorm and augmentation"
        " (VGG-11 only), a validation split held out of the training data."
        "  `ours-paper-prior` is Algorithm 1 to the letter."
    ),
}


def method_and_seed(row: Mapping[str, Any]) -> str:
    """What a row is called in remarks."""
    return f"`{row['method']}` with seed {row['seed']}"


def markdown(row: Row, rows: Iterable[Mapping[str, Any]], *, epochs_scale: float = 1.0) -> str:
    """The whole file."""
    rows = with_drops(rows)
    lines = heading(row.title, epochs_scale)
    lines += [f"Mean ± standard deviation over seeds.  The paper's figures: {SOURCE}.  Nonzero: weights that are not"]
    lines += ["zero, of all prunable ones; dense: the weights of the remaining structure, kept densely.", ""]
    everyone = groups(rows)
    printed = TABLE2.get(row.name, {})
    for protocol in dict.fromkeys(group.protocol for group in everyone):
        mine = [group for group in everyone if group.protocol == protocol]
        lines += [f"## Protocol `{protocol}`", "", PROTOCOL_NOTES[protocol], ""]
        lines += [*main_table(mine, printed), "", *regularity_table(mine), ""]
        lines += [f"### Who wins under `{protocol}`", "", *verdict(mine, printed), ""]
    lines += ["## Provenance", "", *provenance(rows), ""]
    return "\n".join(lines)


def main_table(found: Sequence[MethodGroup], printed: Mapping[str, Printed]) -> list[str]:
    """Our figures beside the paper's."""
    axes = (ACCURACY, DROP, NONZERO, MACS, DENSE, BYTES)
    head = ["method", "seeds", "epochs", *(axis.title for axis in axes)]
    head += ["structures", "paper: accuracy / nonzero / MACs removed", "paper's structure"]
    lines = []
    for group in found:
        paper = printed.get(group.method)
        theirs = [" / ".join(f"{figure:.2f}" for figure in paper.figures), paper.structure] if paper else [NONE, NONE]
        structures = ", ".join("-".join(map(str, row["structure"])) for row in group.rows) or NONE
        lines.append([f"`{group.method}`", seeds(group), epochs(group), *cells(group, axes), structures, *theirs])
    return table(head, lines)


def regularity_table(found: Sequence[MethodGroup]) -> list[str]:
    """How regular the live weights are."""
    axes = (RECTANGLES, LARGER, COUNT, AREA, INDEX, STEPS, WINDOWS)
    return [
        "Regularity of the live weights once dead units are gone: share in disjoint rectangles of at least 3x3, and",
        "of more; their number and mean size; bytes of positions per nonzero; mean decoding steps per row; kernels",
        "that fit a smaller window.",
        "",
        *table(
            ["method", *(axis.title for axis in axes)],
            ([f"`{group.method}`", *cells(group, axes)] for group in found if group.rows),
        ),
    ]


def verdict(found: Sequence[MethodGroup], printed: Mapping[str, Printed]) -> list[str]:
    """Where `ours` wins and loses under one protocol, from the means."""
    pruned = [group for group in found if group.method != UNPRUNED and group.rows]
    lines = []
    serious = usable(pruned)
    for axis in (*MAIN_AXES, *OTHER_AXES):
        winners = best(serious, axis)
        if winners:
            mean = winners[0].mean(axis)
            names = ", ".join(f"`{group.method}`" for group in winners)
            lines.append(f"- best {axis.title}: {names} ({cell(mean, axis)})")
    for group in pruned:
        if above := dominated_by(group, pruned):
            names = ", ".join(f"`{one.method}`" for one in above)
            lines.append(f"- `{group.method}` is dominated in accuracy, nonzeros and MACs by {names}")
        else:
            lines.append(f"- `{group.method}` is dominated by nobody")
    ours = next((group for group in pruned if group.method == OURS), None)
    if ours is not None:
        lines += [_against(ours, other) for other in pruned if other is not ours]
        if OURS in printed:
            lines.append(against_paper(ours, printed[OURS]))
    if left_out := [f"`{group.method}`" for group in pruned if group not in serious]:
        lines.insert(
            0, f"- {', '.join(left_out)}: more than {LARGEST_DROP:g} points lost, not a candidate for best below"
        )
    return lines + unusual((row for group in found for row in group.everyone), method_and_seed)


def _against(ours: MethodGroup, other: MethodGroup) -> str:
    return f"- `{ours.method}` against `{other.method}`: " + wins(
        {axis: (ours.mean(axis), other.mean(axis)) for axis in MAIN_AXES}
    )


def against_paper(ours: MethodGroup, paper: Printed) -> str:
    """Where the measured line is above and below the printed one."""
    return f"- `{ours.method}` against the paper's proposed: " + wins(
        {axis: (ours.mean(axis), Mean(value, None, 1)) for axis, value in zip(MAIN_AXES, paper.figures, strict=True)}
    )


def wins(pairs: Mapping[Axis, tuple[Mean | None, Mean | None]]) -> str:
    """wins on ..., loses on ..., equal on ..."""
    outcomes: dict[str, list[str]] = {"wins on": [], "loses on": [], "equal on": []}
    for axis, (mine, their) in pairs.items():
        if mine is None or their is None:
            continue
        gap = axis.sign * (mine.mean - their.mean)
        kind = "wins on" if gap > 0 else "loses on" if gap < 0 else "equal on"
        outcomes[kind].append(f"{axis.title} ({mine.mean - their.mean:+.2f})")
    return "; ".join(f"{kind} {', '.join(named)}" for kind, named in outcomes.items() if named)
