"""Pieces of Markdown that all reports are made of."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bayesprune.reproduce.averaging import Axis, Group, Mean

NONE = "–"
FINISHED = "finished"  # the status of a row about which there is nothing to say


def heading(title: str, epochs_scale: float = 1.0) -> list[str]:
    """Of a file; trials are named as such."""
    lines = [f"# {title}", ""]
    if epochs_scale != 1:
        lines += [f"**A trial with {epochs_scale:g} of the epochs: these are not results.**", ""]
    return lines


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """A table with a head."""
    return [_line(head), _line(["---"] * len(head)), *map(_line, lines)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def cell(mean: Mean | None, axis: Axis) -> str:
    """Mean ± spread."""
    if mean is None:
        return NONE
    text = axis.form.format(mean.mean)
    return text if mean.spread is None else f"{text} ± {axis.form.format(mean.spread)}"


def cells(group: Group, axes: Iterable[Axis]) -> list[str]:
    """The means of a group on some axes; of how many seeds, where not all have the figure."""
    means = [(group.mean(axis), axis) for axis in axes]
    some = (
        f" ({mean.count} of {len(group.rows)})" if mean and mean.count < len(group.rows) else "" for mean, _ in means
    )
    return [cell(*one) + count for one, count in zip(means, some, strict=True)]


def seeds(group: Group) -> str:
    """Those of the rows that have figures, and how many failed."""
    found = ", ".join(str(row["seed"]) for row in group.rows) or NONE
    return found + (f" ({len(group.failed)} failed)" if group.failed else "")


def epochs(group: Group) -> str:
    """How many epochs the networks of a group were trained for."""
    return ", ".join(map(str, sorted({row["epochs"] for row in group.everyone})))


def unusual(rows: Iterable[Mapping[str, Any]], name: Callable[[Mapping[str, Any]], str]) -> list[str]:
    """A line for every row that is not simply finished, or is stale; name: what a row is called there."""
    lines = []
    for row in rows:
        about = f"- {name(row)}: "
        if row["status"] != FINISHED:
            lines.append(about + row["status"])
        if "stale" in row:
            lines.append(f"{about}stale, not run with the present configuration ({row['stale']})")
    return lines


def provenance(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many networks, how long, and with what."""
    seconds = sum(row.get("seconds") or 0 for row in rows)
    return [f"- {len(rows)} networks, {seconds / 3600:.2f} hours of computing in all", *made_with(rows)]


def made_with(contents: Iterable[Mapping[str, Any]]) -> list[str]:
    """The versions and the hardware of results."""
    contents = list(contents)
    lines = []
    for key in ("versions", "hardware"):
        texts = {", ".join(f"{k} {v}" for k, v in content.get(key, {}).items()) for content in contents}
        lines += [f"- {key}: {text}" for text in sorted(texts)]
    return lines
