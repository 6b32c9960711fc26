"""The report: one HTML file that needs nothing else, neither network nor other files."""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from bayesprune.report import canvas, svg
from bayesprune.report.charts import Bars, Cell, Details, Frames, Lines, Matrices, Part, Points, Section, Table, Text
from bayesprune.report.findings import (
    Findings,
    find,
    in_words,
    milliseconds,
    percent,
    ratio_in_words,
    score_in_words,
    times,
    why_not_faster,
)
from bayesprune.report.markup import escape, prose
from bayesprune.report.reading import Frontier, Run
from bayesprune.report.sections import same_data, sections


def render(runs: Sequence[Run], frontiers: Sequence[Frontier] = ()) -> str:
    """The whole page."""
    chapters = sections(runs, frontiers)
    style, script = (
        files("bayesprune.report").joinpath(name).read_text("utf-8") for name in ("style.css", "script.js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Only this very script may run, and nothing may be fetched, whatever a file has put into the page.
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    subject = _subject(runs, frontiers)
    links = "".join(f'<li><a href="#{one.identity}">{escape(one.title)}</a></li>' for one in chapters)
    body = "".join(_chapter(one) for one in chapters)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="bayesprune">
<title>{escape(subject)}: bayesprune report</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#summary">Skip to the summary</a>
<header class="bar"><span class="brand">bayesprune report</span>
<button type="button" id="theme"><span aria-hidden="true">◐</span> Theme</button></header>
<div class="layout">
<nav aria-label="Contents"><ol>{links}</ol></nav>
<main>
<noscript><p class="note">Matrices, messages and values under the pointer need JavaScript.</p></noscript>
<section id="summary" aria-labelledby="summary-title">
{_summary(runs, frontiers, subject)}
</section>
{body}
<footer><p>Made by <code>bayesprune report</code>. This file holds everything and loads nothing.</p></footer>
</main>
</div>
<div id="tip" role="status" hidden></div>
<script>{script}</script>
</body>
</html>
"""


def _subject(runs: Sequence[Run], frontiers: Sequence[Frontier]) -> str:
    subjects = list(dict.fromkeys(run.subject for run in runs))
    if not subjects:
        return ", ".join(found.name for found in frontiers)
    if len(runs) == 1:
        return subjects[0]
    return f"{len(runs)} networks: {subjects[0]}" if len(subjects) == 1 else f"{len(runs)} networks"


def _summary(runs: Sequence[Run], frontiers: Sequence[Frontier], subject: str) -> str:
    if len(runs) == 1:
        found = find(runs[0])
        where = f"{found.split} data" if found.score is not None else ""
        above = " · ".join(part for part in (runs[0].name, where) if part)
        reasons = "".join(f'<p class="note">{prose(text)}</p>' for text in why_not_faster(found))
        status = ""
        if found.status and found.status != "finished":
            status = f'<p class="note">Status: {prose(found.status)}</p>'
        return (
            f'<p class="eyebrow">{escape(above)}</p><h1 id="summary-title">{escape(subject)}</h1>'
            f'<p class="lead">{prose(in_words(found))}</p>{_cards(found)}{status}{reasons}'
        )
    if not runs:
        names = ", ".join(found.name for found in frontiers)
        return f'<h1 id="summary-title">{escape(names)}</h1><p class="lead">No network is shown; see below why.</p>'
    lines = "".join(f"<li><b>{escape(run.name)}</b> {prose(in_words(find(run)))}</li>" for run in runs)
    return (
        f'<p class="eyebrow">Comparison</p><h1 id="summary-title">{escape(subject)}</h1>'
        f'<p class="lead">{prose(_best_of(runs))}</p><ul class="runs">{lines}</ul>'
    )


def _best_of(runs: Sequence[Run]) -> str:
    """Which run is the smallest, the fastest and the most accurate."""
    found = [(run.name, find(run)) for run in runs]
    sentences = []
    small = [(one.weights_left, name) for name, one in found if one.weights_left]
    if small:
        left, name = min(small)
        sentences.append(f"{name} has the fewest weights ({times(left)} times fewer)")
    fast = [(one.best_speed.ratio, name) for name, one in found if one.best_speed]
    if fast:
        ratio, name = max(fast)
        sentences.append(f"{name} gains the most speed ({ratio_in_words(ratio)} times as fast as its dense network)")
    right = [(one.score, name, one) for name, one in found if one.score is not None and one.score_name == "accuracy"]
    if right and same_data(runs):
        _, name, one = max(right, key=lambda item: item[0])
        sentences.append(f"{name} is the most accurate ({score_in_words(one)})")
    return "; ".join(sentences) + "." if sentences else "No figures were found."


def _cards(found: Findings) -> str:
    weights = (
        f"{percent(found.weights_left)} of the weights are left" if found.weights_left is not None else "not known"
    )
    if found.live is not None and found.weights is not None:
        weights = f"{found.live:,} of {found.weights:,} live"
    macs = "not known"
    if found.macs_left is not None:
        macs = f"{percent(found.macs_left)} of the multiplications are left"
    if found.macs is not None and found.macs_dense is not None:
        macs = f"{found.macs:,.0f} of {found.macs_dense:,.0f} for an example"
    cards = [
        _card("Weights", *_fewer(found.weights_left), weights),
        _card("Multiplications", *_fewer(found.macs_left), macs),
        _speed_card(found),
        _score_card(found),
    ]
    size = ""
    if found.bytes is not None:
        size = f"The file has {found.bytes:,.0f} bytes"
        if found.bytes_dense:
            size += f", {times(found.bytes / found.bytes_dense)} times fewer than that of the dense network"
        size = f'<p class="aside">{size}.</p>'
    return f'<dl class="cards">{"".join(cards)}</dl>{size}'


def _fewer(left: float | None) -> tuple[str, str]:
    if left is None:
        return "–", ""
    return (times(left), "times fewer") if left > 0 else ("0", "left")


def _speed_card(found: Findings) -> str:
    best = found.best_speed
    if best is None:
        return _card("Speed", "–", "", "not compared" if found.measured else "not measured")
    others = [f"batch {one.batch}: {ratio_in_words(one.ratio)}" for one in found.speeds if one is not best]
    text = f"batch {best.batch}: {milliseconds(best.before)} to {milliseconds(best.after)}"
    return _card("Speed", ratio_in_words(best.ratio), "times as fast", "; ".join([text, *others]))


def _score_card(found: Findings) -> str:
    name = "Accuracy" if found.score_name == "accuracy" else "Error (rmse)"
    if found.score is None:
        return _card(name, "–", "", "not known")
    text = "unpruned not known"
    if found.score_before is not None:
        change = found.score - found.score_before
        points = f", {change:+.1f} points" if found.score_name == "accuracy" else ""
        text = f"was {score_in_words(found, found.score_before)}{points}".replace("-", "−")
    value = score_in_words(found)
    number, _, unit = value.partition(" ")
    return _card(name, number, unit, text)


def _card(name: str, value: str, unit: str, text: str) -> str:
    return (
        f'<div class="card"><dt>{escape(name)}</dt><dd><span class="number">{escape(value)}</span> '
        f'<span class="unit">{escape(unit)}</span><span class="text">{escape(text)}</span></dd></div>'
    )


def _chapter(chapter: Section) -> str:
    body = "".join(_part(part) for part in chapter.parts)
    identity = escape(chapter.identity)
    return (
        f'<section id="{identity}" aria-labelledby="{identity}-title"><h2 id="{identity}-title">'
        f"{escape(chapter.title)}</h2>{body}</section>\n"
    )


def _part(part: Part) -> str:
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Text):
        return _text(part)
    if isinstance(part, Details):
        lines = "".join(
            f"<tr><th scope='row'>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in part.rows
        )
        return (
            f'<details><summary>{escape(part.title)}</summary><div class="scroll" tabindex="0" role="region" '
            f'aria-label="{escape(part.title)}"><table class="settings"><tbody>{lines}</tbody></table></div></details>'
        )
    caption = f"<figcaption>{prose(part.caption)}</figcaption>" if part.caption else ""
    if isinstance(part, Matrices):
        inner = canvas.matrices_html(part)
        if part.folded is not None:
            state = "" if part.folded else " open"
            return (
                f'<details class="figure"{state}><summary>{prose(part.title)}</summary>'
                f"<figure>{inner}{caption}</figure></details>"
            )
        return f"<figure><h3>{prose(part.title)}</h3>{inner}{caption}</figure>"
    drawn = (
        canvas.frames_html(part)
        if isinstance(part, Frames)
        else svg.lines_html(part)
        if isinstance(part, Lines)
        else svg.bars_html(part)
        if isinstance(part, Bars)
        else _points(part)
    )
    return f"<figure><h3>{prose(part.title)}</h3>{drawn}{caption}</figure>"


def _points(part: Points) -> str:
    return svg.points_html(part)


def _text(part: Text) -> str:
    if part.kind == "heading":
        return f'<h3 class="run">{escape(part.text)}</h3>'
    return f'<p class="{"note" if part.kind == "note" else "text"}">{prose(part.text)}</p>'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in table.headings)
    rows = ""
    for place, row in enumerate(table.rows):
        total = ' class="total"' if place >= len(table.rows) - table.totals else ""
        cells = f'<th scope="row">{prose(row[0].text)}</th>' + "".join(_cell(one) for one in row[1:])
        rows += f"<tr{total}>{cells}</tr>"
    return (
        f'<p class="caption">{prose(table.caption)}</p><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(table.caption)}"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _cell(cell: Cell) -> str:
    text = f"<b>{prose(cell.text)}</b>" if cell.strong else prose(cell.text)
    if cell.share is None:
        return f"<td>{text}</td>"
    wide = min(100.0, max(0.0, 100 * cell.share))
    return f'<td><span class="share"><span class="meter"><i style="width:{wide:.1f}%"></i></span>{text}</span></td>'
