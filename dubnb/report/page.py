"""A report as one self-contained HTML page, and as Markdown, from one description.

Nothing is fetched: style, script and figures stand inside the page, and its content policy allows this style and this
script by their hashes and forbids the rest. All text is escaped, because names come from anyone's data; figures are SVG
that dubnb drew itself (`dubnb.report.figures`).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import importlib.resources
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dubnb.report import tables
from dubnb.report.figures import Drawing, variable

POLICY = "default-src 'none'; style-src '{style}'; script-src '{script}'; img-src data:"
STYLE_ATTRIBUTE = re.compile(r' style="([^"]*)"')  # text never holds a plain quote: it is escaped
WIDE = 10  # columns beyond which a table is set smaller
LONG_TEXT = 50  # characters beyond which a cell is wrapped


class Value(NamedTuple):
    """A number in a table: how it is shown, the spread behind it, whether it is the best of its column."""

    value: float | None
    text: str | None = None
    spread: str = ""
    best: bool = False


class Label(NamedTuple):
    """A name in a table with a remark below it."""

    text: str
    remark: str = ""


Cell = str | int | float | Value | Label | None


class Table(NamedTuple):
    """Rows of text, numbers, Values and Labels.

    `heat`: columns whose cells are tinted by their value; `groups`: {row: heading that stands above it}, so that rows
    are sorted within their group only.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    heat: tuple[int, ...] = ()
    groups: Mapping[int, str] = {}


class Figure(NamedTuple):
    """A drawing with its caption."""

    title: str
    drawing: Drawing
    caption: str


class Gallery(NamedTuple):
    """Figures side by side where there is room."""

    figures: Sequence[Figure]


class Finding(NamedTuple):
    """A question with its verdict, the reason below it, and a remark such as a p-value.

    `tone` is what colours the verdict: "good", "bad", "open" or "plain".
    """

    verdict: str
    tone: str
    question: str
    reason: str
    remark: str = ""


class Findings(NamedTuple):
    """Findings below each other, with all their text visible at any width."""

    title: str
    findings: Sequence[Finding]
    note: str = ""


class Link(NamedTuple):
    """Another page: where it is (None: nowhere yet), whether it is complete, what it answers, and a picture of it."""

    title: str
    href: str | None
    complete: bool
    answer: Sequence[str]
    drawing: Drawing | None = None


Part = Table | Figure | Gallery | Findings | Link


class Section(NamedTuple):
    """A heading with tables, figures or links below."""

    title: str
    parts: Sequence[Part]


class Page(NamedTuple):
    """A whole report."""

    kicker: str  # what this is, in a word or two
    title: str
    question: str
    answer: Sequence[str]  # sentences computed from the numbers
    facts: Sequence[tuple[str, str]]  # what was run, on what data, with which budget and protocol
    sections: Sequence[Section]
    command: str  # what makes this page again
    versions: Mapping[str, str]
    warnings: Sequence[str] = ()
    unfinished: str | None = None  # what is missing


# ---- HTML ----------------------------------------------------------------------------------------------------------


@functools.cache
def asset(name: str) -> str:
    """The text of a file beside this one: page.css or page.js."""
    return importlib.resources.files("dubnb.report").joinpath(name).read_text(encoding="utf-8")


def render(page: Page) -> str:
    """The page as HTML text."""
    shown = [_top(page), *(_section(section) for section in page.sections), _bottom(page)]
    body, own_style = _without_style_attributes("\n".join(part for part in shown if part))
    style, script = asset("page.css") + own_style, asset("page.js")
    policy = POLICY.format(style=_hash_source(style), script=_hash_source(script))
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<link rel="icon" href="data:,">',
        f"<title>{_escape(page.kicker)}: {_escape(page.title)}</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body><main>",
        body,
        "</main>",
        f"<script>{script}</script>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _hash_source(text: str) -> str:
    """What names an inlined style or script in a content policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _without_style_attributes(body: str) -> tuple[str, str]:
    """(body, style): each style attribute, which a hash cannot allow, as a rule of the style instead."""
    numbers: dict[str, int] = {}

    def mark(match: re.Match[str]) -> str:
        return f' data-style="{numbers.setdefault(html.unescape(match.group(1)), len(numbers))}"'

    body = STYLE_ATTRIBUTE.sub(mark, body)
    # Three times the attribute: the rule must win over those for classes, as a style attribute would.
    rules = (f'[data-style="{number}"][data-style][data-style] {{ {own} }}\n' for own, number in numbers.items())
    return body, "".join(rules)


def _top(page: Page) -> str:
    answer = "".join(f"<p>{_escape(sentence)}</p>" for sentence in page.answer)
    facts = "".join(f"<div><dt>{_escape(name)}</dt><dd>{_escape(value)}</dd></div>" for name, value in page.facts)
    return "\n".join(
        [
            f'<header class="top"><div class="kicker">{_escape(page.kicker)}</div>',
            f"<h1>{_escape(page.title)}</h1>",
            f'<p class="question">{_escape(page.question)}</p></header>',
            _unfinished(page.unfinished),
            f'<div class="answer"><b class="label">Answer</b>{answer}</div>' if answer else "",
            _warnings(page.warnings),
            f'<dl class="facts">{facts}</dl>',
        ]
    )


def _unfinished(missing: str | None) -> str:
    if missing is None:
        return ""
    return f'<div class="unfinished" role="alert"><strong>UNFINISHED</strong><p>{_escape(missing)}</p></div>'


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{_escape(warning)}</li>" for warning in warnings)
    n = "1 warning" if len(warnings) == 1 else f"{len(warnings)} warnings"
    return f'<details class="warnings" open><summary>{n}</summary><ul>{items}</ul></details>'


def _section(section: Section) -> str:
    return f"<section><h2>{_escape(section.title)}</h2>\n" + "\n".join(map(_part, section.parts)) + "</section>"


def _part(part: Part) -> str:
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Figure):
        return _figure(part)
    if isinstance(part, Gallery):
        return f'<div class="gallery">{"".join(map(_figure, part.figures))}</div>'
    return _findings(part) if isinstance(part, Findings) else _link(part)


def _findings(part: Findings) -> str:
    title = f"<h3>{_escape(part.title)}</h3>" if part.title else ""
    note = f'<p class="note">{_escape(part.note)}</p>' if part.note else ""
    items = []
    for verdict, tone, question, reason, remark in part.findings:
        small = f" <small>{_escape(remark)}</small>" if remark else ""
        items.append(
            f'<li><b class="verdict {_escape(tone)}">{_escape(verdict)}</b><div><p><strong>{_escape(question)}</strong>'
            f"{small}</p><p>{_escape(reason)}</p></div></li>"
        )
    return f'<div class="part">{title}<ul class="findings">{"".join(items)}</ul>{note}</div>'


def _link(link: Link) -> str:
    title, href = _escape(link.title), _escape(link.href)
    linked = f'<a href="{href}">{title}</a>' if link.href else title
    state = '<b class="state">COMPLETE</b>' if link.complete else '<b class="state stop">UNFINISHED</b>'
    answer = "".join(f"<p>{_escape(sentence)}</p>" for sentence in link.answer)
    drawn = f'<a class="thumbnail" href="{href}">{link.drawing.svg}</a>' if link.drawing and link.href else ""
    return f'<article class="part"><h3>{linked}</h3><div class="finding">{answer}{state}</div>{drawn}</article>'


def _figure(figure: Figure) -> str:
    title = f"<h3>{_escape(figure.title)}</h3>" if figure.title else ""
    caption = f"<figcaption>{_escape(figure.caption)}</figcaption>"
    return f'<figure class="part">{title}{figure.drawing.svg}{caption}</figure>'


def _table(table: Table) -> str:
    texts = _text_columns(table)
    heads = "".join(
        f'<th scope="col" aria-sort="none"{_class("text" if is_text else "")}>'
        f'<button type="button">{_escape(name)}</button></th>'
        for name, is_text in zip(table.header, texts, strict=True)
    )
    heat, wide = _heat(table), " wide" if len(table.header) > WIDE else ""
    rows = []
    for r, row in enumerate(table.rows):
        if r in table.groups:
            rows.append(_group(table.groups[r], len(table.header), is_first=r == 0))
        cells = (_cell(cell, texts[c], heat.get((r, c)), c == 0) for c, cell in enumerate(row))
        rows.append(f"<tr>{''.join(cells)}</tr>\n")
    title = f"<h3>{_escape(table.title)}</h3>" if table.title else ""
    note = f'<p class="note">{_escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="part">{title}<div class="frame"><p class="hint" aria-hidden="true">scroll sideways →</p>'
        f'<div class="scroll" tabindex="0"><table class="sortable{wide}"><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>{''.join(rows)}</tbody></table></div></div>{note}</div>"
    )


def _group(heading: str, width: int, is_first: bool) -> str:
    start = "" if is_first else "</tbody><tbody>"
    return f'{start}<tr class="group"><th scope="rowgroup" colspan="{width}">{_escape(heading)}</th></tr>\n'


def _cell(cell: Cell, is_text: bool, heat: float | None, is_first: bool) -> str:
    number, text = _number(cell), _shown(cell)
    key = text if is_text else ("" if number is None else repr(number))
    flags = (("text", is_text), ("long", len(text) > LONG_TEXT), ("best", isinstance(cell, Value) and cell.best))
    classes = " ".join(name for name, on in flags if on)
    style = "" if heat is None else f' data-heat style="--heat:{heat:.3f}"'
    own = variable(text) if is_first else None
    dot = f'<span class="dot" style="background:var(--{own})"></span>' if own else ""
    below = cell.spread if isinstance(cell, Value) else cell.remark if isinstance(cell, Label) else ""
    small = f"<small>{_escape(below)}</small>" if below else ""
    return f'<td{_class(classes)}{style} data-value="{_escape(key)}">{dot}{_escape(text)}{small}</td>'


def _bottom(page: Page) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in page.versions.items())
    has_table = any(isinstance(part, Table) for section in page.sections for part in section.parts)
    sort = "Tables can be sorted: click a heading, or reach it with Tab and press Enter. " if has_table else ""
    return (
        f"<section><h2>Make this again</h2><pre><code>{_escape(page.command)}</code></pre></section>"
        f"<footer>{_escape(versions)}. {sort}This page is one file and fetches nothing.</footer>"
    )


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def _escape(value: object) -> str:
    return html.escape(tables.printable(value), quote=True)


# ---- cells ---------------------------------------------------------------------------------------------------------


def _number(cell: Cell) -> float | None:
    """A cell's finite number, or None."""
    value = cell.value if isinstance(cell, Value) else cell
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        return None
    return value


def _shown(cell: Cell) -> str:
    if isinstance(cell, Label):
        return tables.printable(cell.text)
    if isinstance(cell, Value):
        return tables.cell(cell.value) if cell.text is None else cell.text
    return tables.cell(cell)


def _text_columns(table: Table) -> list[bool]:
    """Per column: does it hold text?"""
    columns = [[row[c] for row in table.rows] for c in range(len(table.header))]
    return [any(isinstance(cell, str | Label) for cell in column) or not column for column in columns]


def _heat(table: Table) -> dict[tuple[int, int], float]:
    """{(row, column): 0..1}: where a value stands between its column's smallest and largest."""
    warmth: dict[tuple[int, int], float] = {}
    for column in table.heat:
        numbers = {r: number for r, row in enumerate(table.rows) if (number := _number(row[column])) is not None}
        low, high = min(numbers.values(), default=0.0), max(numbers.values(), default=0.0)
        if high > low:
            warmth |= {(r, column): (number - low) / (high - low) for r, number in numbers.items()}
    return warmth


# ---- Markdown ------------------------------------------------------------------------------------------------------


def markdown(page: Page) -> str:
    """The page as Markdown text; its figures are links to `figures/NAME.svg` (see `figures.standalone`)."""
    lines = [f"# {_plain(page.title)}", "", _plain(page.question), ""]
    if page.unfinished is not None:
        lines += [f"**UNFINISHED.** {_plain(page.unfinished)}", ""]
    lines += [*(f"**{_plain(sentence)}**\n" for sentence in page.answer)]
    lines += [f"- Warning: {_plain(warning)}" for warning in page.warnings] + [""]
    lines += [f"- {_plain(name)}: {_plain(value)}" for name, value in page.facts] + [""]
    for section in page.sections:
        lines += [f"## {_plain(section.title)}", ""]
        for part in section.parts:
            lines += _markdown_part(part)
    lines += ["## Make this again", "", "```", tables.printable(page.command), "```", ""]
    lines += [", ".join(f"{name} {version}" for name, version in page.versions.items())]
    return "\n".join(lines) + "\n"


def _markdown_part(part: Part) -> list[str]:
    if isinstance(part, Link):
        state = "complete" if part.complete else "UNFINISHED"
        return [f"- {_plain(part.title)}: {state}", *(f"  {_plain(sentence)}" for sentence in part.answer), ""]
    if isinstance(part, Findings):
        title = [f"### {_plain(part.title)}", ""] if part.title else []
        lines = [
            f"- **{_plain(each.verdict)}** {_plain(each.question)} {_plain(each.reason)}"
            + (f" ({_plain(each.remark)})" if each.remark else "")
            for each in part.findings
        ]
        return [*title, *lines, "", *([_plain(part.note), ""] if part.note else [])]
    if isinstance(part, Gallery):
        return [line for figure in part.figures for line in _markdown_part(figure)]
    if isinstance(part, Figure):
        return [f"![{_plain(part.title)}](figures/{part.drawing.name}.svg)", "", _plain(part.caption), ""]
    title = [f"### {_plain(part.title)}", ""] if part.title else []
    return [*title, _markdown_table(part), "", *([_plain(part.note), ""] if part.note else [])]


_BOLD_ON, _BOLD_OFF = "⟦", "⟧"  # stand for ** while cells are escaped


def _markdown_table(table: Table) -> str:
    align = "".join("<" if is_text else ">" for is_text in _text_columns(table))
    rows: list[list[str]] = []
    for r, row in enumerate(table.rows):
        if r in table.groups and r > 0:
            rows.append([f"{_BOLD_ON}{_unmarked(table.groups[r])}{_BOLD_OFF}", *([""] * (len(row) - 1))])
        rows.append([_with_remark(cell) for cell in row])
    text = tables.markdown([_unmarked(name) for name in table.header], rows, align)
    for mark in (_BOLD_ON, _BOLD_OFF):
        text = text.replace(mark, "**")
    return text


def _with_remark(cell: Cell) -> str:
    text = _unmarked(_shown(cell))
    if isinstance(cell, Label):
        return f"{text} ({_unmarked(cell.remark)})" if cell.remark else text
    if not isinstance(cell, Value):
        return text
    text = f"{_BOLD_ON}{text}{_BOLD_OFF}" if cell.best else text
    spread = cell.spread if cell.spread.startswith("±") else f"({cell.spread})"
    return f"{text} {spread}" if cell.spread else text


def _unmarked(text: str) -> str:
    """Someone's text, in which the signs that stand for bold are shown by their numbers."""
    return text.replace(_BOLD_ON, "\\u27e6").replace(_BOLD_OFF, "\\u27e7")


def _plain(value: object) -> str:
    """Text that Markdown does not obey."""
    text = tables.printable(value).replace("\\", "\\\\")
    for sign in "*_`<[]#|":
        text = text.replace(sign, "\\" + sign if sign != "<" else "&lt;")
    return text
