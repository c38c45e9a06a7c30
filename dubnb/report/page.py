"""A report as one self-contained HTML page, and as Markdown, from one description.

The page loads nothing: its style and figures are inside it. Its content policy allows this style by its hash and
forbids everything else, scripts too. All text is escaped, because names come from users' data; figures are SVG that
dubnb drew itself (`dubnb.report.figures`).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import importlib.resources
import platform
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dubnb._version import VERSION
from dubnb.report import tables
from dubnb.report.figures import Drawing, css_colour

POLICY = "default-src 'none'; style-src '{style}'; img-src data:"
STYLE_ATTRIBUTE = re.compile(r' style="([^"]*)"')  # escaped text has no plain quotes
WIDE = 10  # columns beyond which a table is set smaller
LONG_TEXT = 50  # characters beyond which a cell is wrapped


class Value(NamedTuple):
    """A number in a table: its text, the spread below it, and whether it is the best of its column."""

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
    """Rows of text, numbers, Values and Labels. `groups`: {row: heading above it}."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    groups: Mapping[int, str] = {}


class Figure(NamedTuple):
    """A drawing with its caption."""

    title: str
    drawing: Drawing
    caption: str


class Gallery(NamedTuple):
    """Figures, side by side if the page is wide enough."""

    figures: Sequence[Figure]


class CheckedQuestion(NamedTuple):
    """A question with its verdict, the reason below it, and a remark such as a p-value.

    `tone` selects the verdict's colour: "good", "bad", "open" or "plain".
    """

    verdict: str
    tone: str
    question: str
    reason: str
    remark: str = ""


class Checklist(NamedTuple):
    """Questions with their verdicts, one below the other."""

    title: str
    questions: Sequence[CheckedQuestion]
    note: str = ""


class Link(NamedTuple):
    """A link to another page: its path (None if it does not exist yet), its answer, and one of its figures."""

    title: str
    href: str | None
    complete: bool
    answer: Sequence[str]
    drawing: Drawing | None = None


PagePart = Table | Figure | Gallery | Checklist | Link


class Section(NamedTuple):
    """A heading and the parts below it."""

    title: str
    parts: Sequence[PagePart]


class Page(NamedTuple):
    """A whole report."""

    kicker: str  # the kind of page, in a word or two
    title: str
    question: str
    answer: Sequence[str]  # sentences computed from the numbers
    facts: Sequence[tuple[str, str]]  # (name, text): data, budget, protocol
    sections: Sequence[Section]
    command: str  # the command that makes this page
    warnings: Sequence[str] = ()
    unfinished: str | None = None  # what is missing


def package_versions() -> dict[str, str]:
    """The versions that a page's numbers depend on."""
    import numba
    import scipy

    packages = {"dubnb": VERSION, "numpy": np.__version__, "numba": numba.__version__, "scipy": scipy.__version__}
    return packages | {"python": platform.python_version()}


# ---- HTML ----------------------------------------------------------------------------------------------------------


@functools.cache
def stylesheet() -> str:
    """The text of page.css."""
    return importlib.resources.files("dubnb.report").joinpath("page.css").read_text(encoding="utf-8")


def render(page: Page) -> str:
    """The page as HTML text."""
    sections = [
        f"<section><h2>{_escape(section.title)}</h2>\n" + "\n".join(map(_part, section.parts)) + "</section>"
        for section in page.sections
    ]
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    bottom = (
        f"<section><h2>Make this again</h2><pre><code>{_escape(page.command)}</code></pre></section>"
        f"<footer>{_escape(versions)}. This page is one file and loads nothing.</footer>"
    )
    shown = [_top(page), *sections, bottom]
    body, own_style = _without_style_attributes("\n".join(part for part in shown if part))
    style = stylesheet() + own_style
    policy = POLICY.format(style="sha256-" + base64.b64encode(hashlib.sha256(style.encode()).digest()).decode())
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
        "</main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _without_style_attributes(body: str) -> tuple[str, str]:
    """(body, style): move style attributes, which a hash cannot allow, into rules of the style."""
    numbers: dict[str, int] = {}

    def mark(match: re.Match[str]) -> str:
        return f' data-style="{numbers.setdefault(html.unescape(match.group(1)), len(numbers))}"'

    body = STYLE_ATTRIBUTE.sub(mark, body)
    # Naming the attribute three times makes the rule win over rules for classes, as a style attribute would.
    rules = (f'[data-style="{number}"][data-style][data-style] {{ {own} }}\n' for own, number in numbers.items())
    return body, "".join(rules)


def _top(page: Page) -> str:
    answer = "".join(f"<p>{_escape(sentence)}</p>" for sentence in page.answer)
    facts = "".join(f"<div><dt>{_escape(name)}</dt><dd>{_escape(value)}</dd></div>" for name, value in page.facts)
    missing, warnings, n = "", "", len(page.warnings)
    if page.unfinished is not None:
        text = f"<strong>UNFINISHED</strong><p>{_escape(page.unfinished)}</p>"
        missing = f'<div class="unfinished" role="alert">{text}</div>'
    if page.warnings:
        items = "".join(f"<li>{_escape(warning)}</li>" for warning in page.warnings)
        summary = f"<summary>{n} warning{'s' if n > 1 else ''}</summary>"
        warnings = f'<details class="warnings" open>{summary}<ul>{items}</ul></details>'
    return "\n".join(
        [
            f'<header class="top"><div class="kicker">{_escape(page.kicker)}</div>',
            f"<h1>{_escape(page.title)}</h1>",
            f'<p class="question">{_escape(page.question)}</p></header>',
            missing,
            f'<div class="answer"><b class="label">Answer</b>{answer}</div>' if answer else "",
            warnings,
            f'<dl class="facts">{facts}</dl>',
        ]
    )


def _part(part: PagePart) -> str:
    if isinstance(part, Table):
        return _table_html(part)
    if isinstance(part, Figure):
        return _figure_html(part)
    if isinstance(part, Gallery):
        return f'<div class="gallery">{"".join(map(_figure_html, part.figures))}</div>'
    return _checklist(part) if isinstance(part, Checklist) else _link(part)


def _checklist(part: Checklist) -> str:
    items = []
    for verdict, tone, question, reason, remark in part.questions:
        small = f" <small>{_escape(remark)}</small>" if remark else ""
        items.append(
            f'<li><b class="verdict {_escape(tone)}">{_escape(verdict)}</b><div><p><strong>{_escape(question)}</strong>'
            f"{small}</p><p>{_escape(reason)}</p></div></li>"
        )
    items_text = "".join(items)
    return f'<div class="part">{_title(part)}<ul class="checklist">{items_text}</ul>{_footnote(part)}</div>'


def _title(part: Table | Checklist | Figure) -> str:
    return f"<h3>{_escape(part.title)}</h3>" if part.title else ""


def _footnote(part: Table | Checklist) -> str:
    return f'<p class="note">{_escape(part.note)}</p>' if part.note else ""


def _link(link: Link) -> str:
    title, href = _escape(link.title), _escape(link.href)
    linked = f'<a href="{href}">{title}</a>' if link.href else title
    state = '<b class="state">COMPLETE</b>' if link.complete else '<b class="state stop">UNFINISHED</b>'
    answer = "".join(f"<p>{_escape(sentence)}</p>" for sentence in link.answer)
    drawn = f'<a class="thumbnail" href="{href}">{link.drawing.svg}</a>' if link.drawing and link.href else ""
    return f'<article class="part"><h3>{linked}</h3><div class="finding">{answer}{state}</div>{drawn}</article>'


def _figure_html(figure: Figure) -> str:
    caption = f"<figcaption>{_escape(figure.caption)}</figcaption>"
    return f'<figure class="part">{_title(figure)}{figure.drawing.svg}{caption}</figure>'


def _table_html(table: Table) -> str:
    texts = _text_columns(table)
    heads = "".join(
        f'<th scope="col"{_class("text" if is_text else "")}>{_escape(name)}</th>'
        for name, is_text in zip(table.header, texts, strict=True)
    )
    rows = []
    for r, row in enumerate(table.rows):
        if r in table.groups:
            heading = f'<th scope="rowgroup" colspan="{len(table.header)}">{_escape(table.groups[r])}</th>'
            rows.append(f'{"</tbody><tbody>" if r else ""}<tr class="group">{heading}</tr>\n')
        rows.append(f"<tr>{''.join(_cell(cell, texts[c], c == 0) for c, cell in enumerate(row))}</tr>\n")
    wide = _class("wide" if len(table.header) > WIDE else "")
    return (
        f'<div class="part">{_title(table)}<div class="scroll" tabindex="0"><table{wide}><thead><tr>{heads}</tr>'
        f"</thead>\n<tbody>{''.join(rows)}</tbody></table></div>{_footnote(table)}</div>"
    )


def _cell(cell: Cell, is_text: bool, is_first: bool) -> str:
    text = _cell_text(cell)
    flags = (("text", is_text), ("long", len(text) > LONG_TEXT), ("best", isinstance(cell, Value) and cell.best))
    colour = css_colour(text) if is_first else None
    dot = f'<span class="dot" style="background:{colour}"></span>' if colour else ""
    below = cell.spread if isinstance(cell, Value) else cell.remark if isinstance(cell, Label) else ""
    small = f"<small>{_escape(below)}</small>" if below else ""
    return f"<td{_class(' '.join(name for name, on in flags if on))}>{dot}{_escape(text)}{small}</td>"


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def _escape(value: object) -> str:
    return html.escape(tables.printable(value), quote=True)


# ---- cells ---------------------------------------------------------------------------------------------------------


def _cell_text(cell: Cell) -> str:
    if isinstance(cell, Label):
        return tables.printable(cell.text)
    if isinstance(cell, Value):
        return tables.cell(cell.value) if cell.text is None else cell.text
    return tables.cell(cell)


def _text_columns(table: Table) -> list[bool]:
    """Whether each column holds text."""
    columns = [[row[c] for row in table.rows] for c in range(len(table.header))]
    return [any(isinstance(cell, str | Label) for cell in column) or not column for column in columns]


# ---- Markdown ------------------------------------------------------------------------------------------------------


def render_markdown(page: Page) -> str:
    """The page as Markdown text; its figures are links to `figures/NAME.svg` (see `figures.standalone`)."""
    lines = [f"# {_markdown(page.title)}", "", _markdown(page.question), ""]
    if page.unfinished is not None:
        lines += [f"**UNFINISHED.** {_markdown(page.unfinished)}", ""]
    lines += [*(f"**{_markdown(sentence)}**\n" for sentence in page.answer)]
    lines += [f"- Warning: {_markdown(warning)}" for warning in page.warnings] + [""]
    lines += [f"- {_markdown(name)}: {_markdown(value)}" for name, value in page.facts] + [""]
    for section in page.sections:
        lines += [f"## {_markdown(section.title)}", ""]
        for part in section.parts:
            lines += _markdown_part(part)
    lines += ["## Make this again", "", "```", tables.printable(page.command), "```", ""]
    lines += [", ".join(f"{name} {version}" for name, version in package_versions().items())]
    return "\n".join(lines) + "\n"


def _markdown_part(part: PagePart) -> list[str]:
    if isinstance(part, Link):
        state = "complete" if part.complete else "UNFINISHED"
        return [
            f"- {_markdown(part.title)}: {state}",
            *(f"  {_markdown(sentence)}" for sentence in part.answer),
            "",
        ]
    if isinstance(part, Checklist):
        title = [f"### {_markdown(part.title)}", ""] if part.title else []
        lines = [
            f"- **{_markdown(each.verdict)}** {_markdown(each.question)} {_markdown(each.reason)}"
            + (f" ({_markdown(each.remark)})" if each.remark else "")
            for each in part.questions
        ]
        return [*title, *lines, "", *([_markdown(part.note), ""] if part.note else [])]
    if isinstance(part, Gallery):
        return [line for figure in part.figures for line in _markdown_part(figure)]
    if isinstance(part, Figure):
        return [
            f"![{_markdown(part.title)}](figures/{part.drawing.name}.svg)",
            "",
            _markdown(part.caption),
            "",
        ]
    title = [f"### {_markdown(part.title)}", ""] if part.title else []
    return [*title, _markdown_table(part), "", *([_markdown(part.note), ""] if part.note else [])]


_BOLD_ON, _BOLD_OFF = "⟦", "⟧"  # placeholders for ** while cells are escaped


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
    text = _unmarked(_cell_text(cell))
    if isinstance(cell, Label):
        return f"{text} ({_unmarked(cell.remark)})" if cell.remark else text
    if not isinstance(cell, Value):
        return text
    text = f"{_BOLD_ON}{text}{_BOLD_OFF}" if cell.best else text
    spread = cell.spread if cell.spread.startswith("±") else f"({cell.spread})"
    return f"{text} {spread}" if cell.spread else text


def _unmarked(text: str) -> str:
    """Text in which the placeholders for bold are escaped."""
    return text.replace(_BOLD_ON, "\\u27e6").replace(_BOLD_OFF, "\\u27e7")


def _markdown(value: object) -> str:
    """Text with Markdown's special characters escaped."""
    text = tables.printable(value).replace("\\", "\\\\")
    for sign in "*_`<[]#|":
        text = text.replace(sign, "\\" + sign if sign != "<" else "&lt;")
    return text
