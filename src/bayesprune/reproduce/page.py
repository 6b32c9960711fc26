"""docs/results.md: all results on one page, from their JSON and from remarks that people wrote."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bayesprune.reproduce.acceleration.entries import read_entries
from bayesprune.reproduce.acceleration.markdown import TITLE, acceleration_sections, digits, place_of
from bayesprune.reproduce.averaging import ACCURACY, MAIN_AXES, OTHER_AXES, Mean
from bayesprune.reproduce.comparing import MethodGroup, best, dominated_by, groups, usable
from bayesprune.reproduce.convergence.markdown import convergence_sections
from bayesprune.reproduce.jobs import ROWS, Row
from bayesprune.reproduce.markdown import (
    PROTOCOL_NOTES,
    against_paper,
    main_table,
    method_and_seed,
    regularity_table,
    wins,
)
from bayesprune.reproduce.merging import Rows
from bayesprune.reproduce.methods import OURS, UNPRUNED
from bayesprune.reproduce.paper import SOURCE, TABLE2, Printed
from bayesprune.reproduce.robustness_markdown import robustness_sections, robustness_title
from bayesprune.reproduce.study.markdown import study_sections, study_title
from bayesprune.reproduce.tables import NONE, cell, made_with, provenance, table, unusual
from bayesprune.runs import RunError
from bayesprune.runs.atomic import write_atomically
from bayesprune.runs.plain_json import read_json
from bayesprune.turbo.plain_settings import differing

COMMAND: Final = "bayesprune reproduce page"
FEWEST_SEEDS: Final = 3  # below which a spread says little


def write_results_page(results: Path, docs: Path) -> list[Path]:
    """Write DOCS/results.md from what there is in RESULTS.

    That is table2, regularity, acceleration, convergence, robustness and frontier.json.
    Pictures are copied to DOCS/figures.  Every section begins with the hand-written DOCS/remarks/SECTION.md, if there
    is one: results, table2-ROW, regularity-ROW, acceleration, frontier, convergence-ROW, robustness.  Returns what was
    written.
    """
    page = _Page(results, docs)
    page.add("# Results", "", f"Written by `{COMMAND}`; hand-written remarks are in `docs/remarks`.", "")
    page.remark("results")
    entries = read_entries(results / "acceleration")
    for row in ROWS.values():
        if (rows := _read_rows(results / "table2" / f"{row.name}.json")) is not None:
            _table2(page, row, rows, entries)
    for row in ROWS.values():
        if (rows := _read_rows(results / "regularity" / f"{row.name}.json")) is not None:
            _regularity(page, row, rows)
    if entries:
        page.section("acceleration", TITLE, Path("acceleration.png"))
        page.add(*acceleration_sections(entries, "###"))
    if (results / "frontier.json").exists():
        _frontier(page, read_json(results / "frontier.json"))
    for row in ROWS.values():
        if (rows := _read_rows(results / "convergence" / f"{row.name}.json")) is not None:
            _convergence(page, row, rows)
    if (results / "robustness" / "robustness.json").exists():
        _robustness(page, read_json(results / "robustness" / "robustness.json")["networks"])
    if not page.sections:
        raise RunError(
            f"{results} holds no table2/ROW.json, regularity/ROW.json, acceleration/*.json, frontier.json, "
            "convergence/ROW.json or robustness/robustness.json; "
            "make some with: bayesprune reproduce table2 --row lenet5"
        )
    return page.write()


class _Page:
    """Lines, and the pictures that go with them."""

    def __init__(self, results: Path, docs: Path) -> None:
        self._results, self._docs = results, docs
        self._lines: list[str] = []
        self._pictures: dict[Path, Path] = {}
        self.sections = 0

    def add(self, *lines: str) -> None:
        self._lines += lines

    def section(self, name: str, title: str, picture: Path) -> None:
        """Begin a section: its title, remarks and picture."""
        self.sections += 1
        self.add(f"## {title}", "")
        self.remark(name)
        if (self._results / picture).exists():
            self._pictures[self._results / picture] = self._docs / "figures" / f"{name}.png"
            self.add(f"![{title}](figures/{name}.png)", "")

    def remark(self, name: str) -> None:
        """What a person wrote about a section, if there is something."""
        path = self._docs / "remarks" / f"{name}.md"
        if path.exists():
            self.add(path.read_text().strip(), "")

    def write(self) -> list[Path]:
        page = self._docs / "results.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        for source, target in self._pictures.items():
            target.parent.mkdir(exist_ok=True)
            write_atomically(target, [source.read_bytes()])
        write_atomically(page, [("\n".join(self._lines).rstrip() + "\n").encode()])
        return [page, *self._pictures.values()]


def _read_rows(path: Path) -> Rows | None:
    """The rows that `merge` wrote; None where there is no such file."""
    if not path.exists():
        return None
    try:
        rows = json.loads(path.read_bytes())
    except ValueError as error:
        raise RunError(f"{path} is not JSON: {error}; write it again with --merge") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RunError(f"{path} must hold a list of rows; write it again with --merge")
    return rows


def _table2(page: _Page, row: Row, rows: Rows, entries: Sequence[Mapping[str, Any]]) -> None:
    printed = TABLE2.get(row.name, {})
    page.section(f"table2-{row.name}", f"Table II: {row.title}", Path("table2") / f"{row.name}.png")
    page.add(f"Mean ± standard deviation over seeds.  The paper's figures: {SOURCE}.", "")
    everyone = groups(rows)
    for protocol in dict.fromkeys(group.protocol for group in everyone):
        mine = [group for group in everyone if group.protocol == protocol]
        page.add(f"### Protocol `{protocol}`", "", PROTOCOL_NOTES[protocol], "")
        page.add(*main_table(mine, printed), "", *regularity_table(mine), "")
        page.add(
            *latency_table(mine, [one for one in entries if (one["row"], one["protocol"]) == (row.name, protocol)])
        )
        page.add(*remarks(mine, printed), "")
    page.add("### How it was made", "", *provenance(rows), "")


def latency_table(found: Sequence[MethodGroup], entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """How fast the networks of a row are, where the measured network is that of its line.

    entries: measurements of that row.  A network is known by its accuracy and nonzeros, which both keep.
    """
    lines = []
    for group in found:
        cells_of_entries = [_latency(group, entry) for entry in entries]
        if any(one != NONE for one in cells_of_entries):
            lines.append([f"`{group.method}`", *cells_of_entries])
    if not lines:
        return []
    heads = [f"{place_of(entry)}, batch {entry['batch']:,}: ms" for entry in entries]
    return [
        "Latency of a forward pass, median, in the best way of those measured, and in brackets how many times faster "
        "than the dense network in its best way; which ways, and how they vary, is in the section on acceleration.  "
        "Networks that were not kept were not measured.",
        "",
        *table(["method", *heads], lines),
        "",
    ]


def _latency(group: MethodGroup, entry: Mapping[str, Any]) -> str:
    """The median of a method's network and its ratio; a dash where another network was measured."""
    one = entry["methods"].get(group.method)
    figures = ("accuracy", "nonzero_fraction")
    mine = [[row[key] for key in figures] for row in group.rows if row["seed"] == entry["seed"]]
    if one is None or [one.get(key) for key in figures] not in mine:
        return NONE
    return f"{digits(one['best']['milliseconds']['median'])} ({one['ratio']:.2f})"


def remarks(found: Sequence[MethodGroup], printed: Mapping[str, Printed]) -> list[str]:
    """What must be said about the figures of one protocol, computed from them."""
    pruned = [group for group in found if group.method != UNPRUNED and group.rows]
    by_method = {group.method: group for group in found if group.rows}
    lines = []
    if OURS in by_method:
        lines += _where_ours_loses(by_method[OURS], pruned)
        if OURS in printed:
            lines.append(against_paper(by_method[OURS], printed[OURS]))
    if UNPRUNED in by_method and UNPRUNED in printed:
        lines += _unpruned(by_method[UNPRUNED], printed[UNPRUNED])
    for method, group in by_method.items():
        if method in printed and method not in (OURS, UNPRUNED):
            lines += _below_the_paper(group, printed[method])
    for count in range(1, FEWEST_SEEDS):
        few = [f"`{group.method}`" for group in by_method.values() if len(group.rows) == count]
        if few:
            lines.append(f"- {count} of {FEWEST_SEEDS} seeds, so that means say little: {', '.join(few)}")
    return lines + unusual((row for group in found for row in group.everyone), method_and_seed)


def _where_ours_loses(ours: MethodGroup, pruned: Sequence[MethodGroup]) -> list[str]:
    """A line for every axis on which another method is better, and for every method that is better on all."""
    lines = []
    for axis in (*MAIN_AXES, *OTHER_AXES):
        first, mine = best(usable(pruned), axis), ours.mean(axis)
        if first and ours not in first and mine is not None:
            names = ", ".join(f"`{group.method}`" for group in first)
            lines.append(
                f"- `{ours.method}` is not the best by {axis.title}: {cell(mine, axis)} against "
                f"{cell(first[0].mean(axis), axis)} of {names}"
            )
    if above := dominated_by(ours, pruned):
        names = ", ".join(f"`{group.method}`" for group in above)
        lines.append(f"- `{ours.method}` is dominated in accuracy, nonzeros and MACs by {names}")
    return lines or [f"- `{ours.method}` is the best on every axis"]


def _unpruned(group: MethodGroup, paper: Printed) -> list[str]:
    mean = group.mean(ACCURACY)
    if mean is None:
        return []
    gap = mean.mean - paper.accuracy
    where = "above" if gap > 0 else "below"
    return [
        f"- our unpruned network is {abs(gap):.2f} points {where} the paper's ({mean.mean:.2f} against "
        f"{paper.accuracy:.2f} %): compare drops as well as accuracies"
    ]


def _below_the_paper(group: MethodGroup, paper: Printed) -> list[str]:
    """A line where a baseline is worse than the paper's line for it on all main axes."""
    pairs = {
        axis: (group.mean(axis), Mean(value, None, 1)) for axis, value in zip(MAIN_AXES, paper.figures, strict=True)
    }
    below = all(mine is not None and axis.sign * (mine.mean - their.mean) < 0 for axis, (mine, their) in pairs.items())
    if not below:
        return []
    return [f"- the baseline `{group.method}` is below the paper's line for it on all axes: it {wins(pairs)}"]


def _regularity(page: _Page, row: Row, rows: Rows) -> None:
    page.section(f"regularity-{row.name}", study_title(row), Path("regularity") / f"{row.name}.png")
    page.add(*study_sections(rows, "###"))


def _convergence(page: _Page, row: Row, rows: Rows) -> None:
    title = f"How the messages settle: {row.title}"
    page.section(f"convergence-{row.name}", title, Path("convergence") / f"{row.name}.png")
    page.add(*convergence_sections(rows, "###"))


def _robustness(page: _Page, networks: Rows) -> None:
    page.section("robustness", robustness_title(networks), Path("robustness") / "robustness.png")
    page.add(*robustness_sections(networks, "###"))


def _frontier(page: _Page, content: Mapping[str, Any]) -> None:
    plan, members = content["plan"], content["members"]
    page.section("frontier", f"A frontier: {plan['model']} on {plan['data']}", Path("frontier.png"))
    shown = sorted((one for one in members if one.get("front")), key=lambda one: float(one["nonzero_fraction"]))
    own = differing([one["settings"] for one in members])
    page.add(
        f"{len(members)} networks were trained at once in {content['seconds']:.0f} s, {len(shown)} of them are on the "
        "front: no other one is better in accuracy, nonzeros and MACs.  Accuracies are those of the validation split; "
        "the last columns are the settings that members differ in.",
        "",
        *table(
            ["member", "accuracy %", "nonzero %", "MACs removed %", "structure", *own],
            (
                [
                    str(one["number"]),
                    f"{100 * one['validation']['accuracy']:.2f}",
                    f"{100 * one['nonzero_fraction']:.2f}",
                    f"{100 * one['macs_removed']:.2f}",
                    "-".join(map(str, one["structure"])),
                    *(str(one["settings"][name]) for name in own),
                ]
                for one in shown
            ),
        ),
        "",
        *made_with([content]),
        "",
    )
