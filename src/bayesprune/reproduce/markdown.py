"""A row of Table II as Markdown: our figures beside the paper's, who wins and who loses."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bayesprune.reproduce.comparing import (
    ACCURACY,
    BYTES,
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
    Group,
    Mean,
    best,
    dominated_by,
    groups,
    usable,
    with_drops,
)
from bayesprune.reproduce.jobs import OURS, UNPRUNED, Row
from bayesprune.reproduce.paper import SOURCE, TABLE2, Printed

NONE = "–"
FINISHED = "finished"  # the status of a row about which there is nothing to say
PROTOCOL_NOTES = {
    "best": (
        "Every method with the best recipe that we know for it, and as many epochs in total as `ours`."
        "  `unpruned` is dense training for as many epochs; drops are measured against it, seed by seed."
        "  `magnitude` and `group-norm`, which are not in the paper, are asked for the nonzeros and for the MACs of the"
        " paper's proposed network."
    ),
    "paper": (
        "What the paper gives: learning rate 0.01, batches of 64 (LeNet-5) or 128, fine-tuning for 15 (LeNet-5) or 30"
        " epochs, none for SNIP.  What it leaves open is our choice: the optimiser (Adam for the variational methods"
        " except on AlexNet-small, otherwise SGD with momentum; for `ours` that of its config), epochs before"
        " fine-tuning (as many for all"
        " methods), p01 and p10, penalties, thresholds and ramps, BatchNorm and augmentation (VGG-11 only), a"
        " validation split held out of the training data.  `ours-paper-prior` is Algorithm 1 to the letter."
    ),
}


def markdown(row: Row, rows: Iterable[Mapping[str, Any]], *, epochs_scale: float = 1.0) -> str:
    """The whole file."""
    rows = with_drops(rows)
    lines = [f"# {row.title}", ""]
    if epochs_scale != 1:
        lines += [f"**A trial with {epochs_scale:g} of the epochs: these are not results.**", ""]
    lines += [f"Mean ± standard deviation over seeds.  The paper's figures: {SOURCE}.  Nonzero: weights that are not"]
    lines += ["zero, of all prunable ones; dense: the weights of the remaining structure, kept densely.", ""]
    everyone = groups(rows)
    printed = TABLE2.get(row.name, {})
    for protocol in dict.fromkeys(group.protocol for group in everyone):
        mine = [group for group in everyone if group.protocol == protocol]
        lines += [f"## Protocol `{protocol}`", "", PROTOCOL_NOTES[protocol], ""]
        lines += [*_main_table(mine, printed), "", *_regularity_table(mine), ""]
        lines += [f"### Who wins under `{protocol}`", "", *verdict(mine, printed), ""]
    lines += ["## Provenance", "", *_provenance(rows), ""]
    return "\n".join(lines)


def _main_table(found: Sequence[Group], printed: Mapping[str, Printed]) -> list[str]:
    head = ["method", "seeds", "epochs", *(axis.title for axis in (ACCURACY, DROP, NONZERO, MACS, DENSE, BYTES))]
    head += ["structures", "paper: accuracy / nonzero / MACs removed", "paper's structure"]
    lines = [_line(head), _line(["---"] * len(head))]
    for group in found:
        cells = [f"`{group.method}`", _seeds(group), _numbers(row["epochs"] for row in (*group.rows, *group.failed))]
        cells += [_cell(group.mean(axis), axis) for axis in (ACCURACY, DROP, NONZERO, MACS, DENSE, BYTES)]
        cells.append(", ".join("-".join(map(str, row["structure"])) for row in group.rows) or NONE)
        paper = printed.get(group.method)
        cells += [_printed(paper), paper.structure if paper else NONE]
        lines.append(_line(cells))
    return lines


def _regularity_table(found: Sequence[Group]) -> list[str]:
    axes = (RECTANGLES, LARGER, INDEX, STEPS, WINDOWS)
    head = ["method", *(axis.title for axis in axes)]
    lines = [
        "Regularity of the live weights once dead units are gone: share in disjoint rectangles of at least 3x3, and"
    ]
    lines += [
        "of more; bytes of positions per nonzero; mean decoding steps per row; kernels that fit a smaller window.",
        "",
    ]
    lines += [_line(head), _line(["---"] * len(head))]
    return lines + [_line([f"`{g.method}`", *(_cell(g.mean(axis), axis) for axis in axes)]) for g in found if g.rows]


def verdict(found: Sequence[Group], printed: Mapping[str, Printed]) -> list[str]:
    """Where `ours` wins and loses under one protocol, from the means."""
    pruned = [group for group in found if group.method != UNPRUNED and group.rows]
    lines = []
    serious = usable(pruned)
    for axis in (*MAIN_AXES, *OTHER_AXES):
        winners = best(serious, axis)
        if winners:
            mean = winners[0].mean(axis)
            names = ", ".join(f"`{group.method}`" for group in winners)
            lines.append(f"- best {axis.title}: {names} ({_cell(mean, axis)})")
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
            lines.append(_against_paper(ours, printed[OURS]))
    if left_out := [f"`{group.method}`" for group in pruned if group not in serious]:
        lines.insert(
            0, f"- {', '.join(left_out)}: more than {LARGEST_DROP:g} points lost, not a candidate for best below"
        )
    rows = [row for group in found for row in (*group.rows, *group.failed) if row["status"] != FINISHED]
    return lines + [f"- `{row['method']}` with seed {row['seed']}: {row['status']}" for row in rows]


def _against(ours: Group, other: Group) -> str:
    return f"- `{ours.method}` against `{other.method}`: " + _wins(
        {axis: (ours.mean(axis), other.mean(axis)) for axis in MAIN_AXES}
    )


def _against_paper(ours: Group, paper: Printed) -> str:
    values = zip(MAIN_AXES, (paper.accuracy, paper.nonzero, paper.macs_removed), strict=True)
    return f"- `{ours.method}` against the paper's proposed: " + _wins(
        {axis: (ours.mean(axis), Mean(value, None, 1)) for axis, value in values}
    )


def _wins(pairs: Mapping[Axis, tuple[Mean | None, Mean | None]]) -> str:
    """wins on ..., loses on ..., equal on ..."""
    outcomes: dict[str, list[str]] = {"wins on": [], "loses on": [], "equal on": []}
    for axis, (mine, their) in pairs.items():
        if mine is None or their is None:
            continue
        gap = axis.sign * (mine.mean - their.mean)
        kind = "wins on" if gap > 0 else "loses on" if gap < 0 else "equal on"
        outcomes[kind].append(f"{axis.title} ({mine.mean - their.mean:+.2f})")
    return "; ".join(f"{kind} {', '.join(named)}" for kind, named in outcomes.items() if named)


def _provenance(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def described(key: str) -> list[str]:
        texts = (", ".join(f"{k} {v}" for k, v in row.get(key, {}).items()) for row in rows)
        return sorted(set(texts))

    seconds = sum(row.get("seconds") or 0 for row in rows)
    lines = [f"- {len(rows)} networks, {seconds / 3600:.2f} hours of computing in all"]
    lines += [f"- versions: {text}" for text in described("versions")]
    return lines + [f"- hardware: {text}" for text in described("hardware")]


def _seeds(group: Group) -> str:
    seeds = _numbers((row["seed"] for row in group.rows), each=True)
    return seeds + (f" ({len(group.failed)} failed)" if group.failed else "")


def _numbers(values: Iterable[int], *, each: bool = False) -> str:
    return ", ".join(map(str, values if each else sorted(set(values)))) or NONE


def _cell(mean: Mean | None, axis: Axis) -> str:
    if mean is None:
        return NONE
    text = axis.form.format(mean.mean)
    return text if mean.spread is None else f"{text} ± {axis.form.format(mean.spread)}"


def _printed(paper: Printed | None) -> str:
    return f"{paper.accuracy:.2f} / {paper.nonzero:.2f} / {paper.macs_removed:.2f}" if paper else NONE


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
