"""The study as Markdown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from bayesprune.reproduce.convergence.jobs import NOISE, SETTINGS, trial_of
from bayesprune.reproduce.convergence.settling import ALL, MESSAGES, TOLERANCES, pairs
from bayesprune.reproduce.jobs import Row
from bayesprune.reproduce.tables import NONE, heading, provenance, table, unusual

Group = Sequence[Mapping[str, Any]]
INTRODUCTION: Final = (
    "Mean absolute change, from one outer iteration to the next, of the probabilities behind the messages: v_{h->s}"
    " from Module B to Module A (paper Fig. 10) and v_{eta->s} from A to B.  All starts share one warm network, the"
    " data and the order of examples, and differ in the random pi_n that Algorithm 1 begins with.  The change of the"
    " first iteration counts from there, and for v_{eta->s} from 1/2."
)
SETTLED: Final = (
    "First iteration from which on the change stays below the tolerance, of the starts in their order; – where the last"
    " change is above it.  Without coupling v_{h->s} is the same in every iteration: it settles at once, and v_{eta->s}"
    " alone says whether the network does."
)
AGREEMENT: Final = (
    "How near the end points of two starts are, means over all pairs of starts.  Difference: mean |difference| of"
    " q(s=1).  Equal: share of equal supports.  Live in common: live in both over live in any of the two, which says"
    " more where most supports are dead.  In brackets the control: the first start against itself with warm weights"
    f" changed by {NOISE:g} of their size.  Where the two are about equal, the start matters no more than that noise."
)


def convergence_markdown(row: Row, rows: Iterable[Mapping[str, Any]]) -> str:
    """The whole file."""
    rows = list(rows)
    lines = heading(f"How the messages settle: {row.title}")
    if trial := trial_of(rows[0]):
        lines += [f"**A {trial}: these are not results.**", ""]
    return "\n".join([*lines, *convergence_sections(rows, "##")])


def convergence_sections(rows: Group, marks: str) -> list[str]:
    """All tables; marks: those of a heading."""
    found = groups(rows)
    lines = [INTRODUCTION, ""]
    if found:
        lines += [*_settings_table(found), ""]
    for message, symbol in MESSAGES.items() if found else ():
        lines += [f"{marks} {symbol} settles", "", *([SETTLED, ""] if message == "message" else [])]
        for tolerance in TOLERANCES:
            lines += [f"Below {tolerance:g}:", "", *_settled_table(found, message, f"{tolerance:g}"), ""]
    if any(pairs(group) for group in found.values()):
        lines += [f"{marks} End points of different starts", "", AGREEMENT, "", *_agreement_table(found), ""]
    if notes := _notes(rows):
        lines += [*notes, ""]
    return [*lines, *provenance(rows), ""]


def groups(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The rows that did not fail by setting, starts in their order, without controls."""
    ordered = sorted((row for row in rows if not row["noise"]), key=lambda row: int(row["start"]))
    found = {name: [row for row in ordered if row["setting"] == name and row.get("settled")] for name in SETTINGS}
    return {name: group for name, group in found.items() if group}


def _title(group: Group) -> str:
    return str(group[0]["title"])


def _settings_table(found: Mapping[str, Group]) -> list[str]:
    head = (
        "setting",
        "",
        "starts",
        "iterations",
        "steps each",
        "nonzero %",
        "accuracy %",
        "last change: message, evidence",
    )
    lines = []
    for name, group in found.items():
        last = [row["outer_iterations"][-1] for row in group]
        lines.append(
            (
                f"`{name}`",
                _title(group),
                ", ".join(str(row["start"]) for row in group),
                str(group[0]["iterations"]),
                str(group[0]["steps_of_iteration"]),
                _each(f"{100 * row['nonzero_fraction']:.2f}" for row in group),
                _each(f"{100 * row['accuracy']:.2f}" for row in group),
                f"{_mean(one['message_change'] for one in last)}, {_mean(one['evidence_change'] for one in last)}",
            )
        )
    return table(head, lines)


def _settled_table(found: Mapping[str, Group], message: str, tolerance: str) -> list[str]:
    layers = list(next(iter(found.values()))[0]["settled"][message])
    lines = [
        [
            _title(group),
            *(_each(_iteration(row["settled"][message][layer][tolerance]) for row in group) for layer in layers),
        ]
        for group in found.values()
    ]
    return table(["", *layers], lines)


def _agreement_table(found: Mapping[str, Group]) -> list[str]:
    lines = []
    for group in found.values():
        both = pairs(group)
        if not both:
            continue
        layers = [layer for layer in both[0] if layer != ALL]
        lines.append(
            [
                _title(group),
                _mean(one[ALL]["difference"] for one in both) + _control(group, "difference", _mean),
                _percent(one[ALL]["equal"] for one in both) + _control(group, "equal", _percent),
                _percent(one[ALL]["live_in_common"] for one in both) + _control(group, "live_in_common", _percent),
                ", ".join(f"{layer} {_percent(one[layer]['equal'] for one in both)}" for layer in layers),
            ]
        )
    return table(("", "difference", "equal %", "live in common %", "equal % by layer"), lines)


def _control(group: Group, key: str, form: Callable[[Iterable[float]], str]) -> str:
    found = [row["control"][ALL][key] for row in group if "control" in row]
    return f" ({form(found)})" if found else ""


def _name(row: Mapping[str, Any]) -> str:
    return f"`{row['setting']}` from start {row['start']}{' with noise' if row['noise'] else ''}"


def _notes(rows: Group) -> list[str]:
    lines = unusual(rows, _name)
    for row in rows:
        unsettled = [one["iteration"] for one in row["outer_iterations"] or () if not one["messages_converged"]]
        if unsettled:
            lines.append(f"- {_name(row)}: no convergence inside Module B in iteration {_ranges(unsettled)}")
    if len({row["warm"] for row in rows}) > 1:
        lines.append("- Rows began with different warm networks; only those with the same one are compared.")
    return lines


def _each(texts: Iterable[str]) -> str:
    found = list(texts)
    return found[0] if len(set(found)) == 1 else " / ".join(found)


def _iteration(value: int | None) -> str:
    return NONE if value is None else str(value)


def _mean(values: Iterable[float]) -> str:
    found = list(values)
    return f"{sum(found) / len(found):.2g}"


def _percent(values: Iterable[float]) -> str:
    found = list(values)
    return f"{100 * sum(found) / len(found):.2f}"


def _ranges(numbers: Sequence[int]) -> str:
    """1-3, 7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
