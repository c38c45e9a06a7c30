"""A report as one self-contained HTML page, and as Markdown, from one description.

Nothing is fetched: style, script and figures stand inside the page, and its content policy allows this style and this
script by their hashes and forbids the rest. All text is escaped, because names come from anyone's data; figures are SVG
that dubnb drew itself (`dubnb.report.figures`).
"""

import base64
import hashlib
import html
import re
from typing import NamedTuple

from dubnb.report import tables
from dubnb.report.assets import SCRIPT, STYLE

POLICY = "default-src 'none'; style-src '{style}'; script-src '{script}'; img-src data:"
STYLE_ATTRIBUTE = re.compile(r' style="([^"]*)"')  # text never holds a plain quote: it is escaped
WIDE = 10  # columns beyond which a table is set smaller
LONG_TEXT = 50  # characters beyond which a cell is wrapped
COLOURED = (
    "base",
    "unif",
    "combine",
    "ips",
    "cause",
    "bridge",
    "autodebias",
    "dub",
)  # systems the style has colours for


class Value(NamedTuple):
    """A number in a table: how it is shown, the spread behind it, whether it is the best of its column."""

    value: float | None
    text: str | None = None
    spread: str = ""
    best: bool = False


class Table(NamedTuple):
    """Rows of text, numbers and Values. `heat`: columns whose cells are tinted by their value."""

    title: str
    header: list
    rows: list
    note: str = ""
    heat: tuple = ()


class Figure(NamedTuple):
    """An SVG element with its caption."""

    title: str
    svg: str
    caption: str


class Gallery(NamedTuple):
    """Figures side by side where there is room."""

    figures: list


class Entry(NamedTuple):
    """Another page: where it is (None: nowhere yet), whether it is complete, and what it answers."""

    title: str
    href: str | None
    complete: bool
    answer: list


class Section(NamedTuple):
    """A heading with tables, figures or entries below."""

    title: str
    parts: list


class Page(NamedTuple):
    """A whole report."""

    kicker: str  # what this is, in a word or two
    title: str
    question: str
    answer: list  # sentences computed from the numbers
    facts: list  # (name, value): what was run, on what data, with which budget and protocol
    sections: list
    command: str  # what makes this page again
    versions: dict
    warnings: tuple = ()
    unfinished: str | None = None  # what is missing


# ---- HTML ----------------------------------------------------------------------------------------------------------


def render(page):
    """The page as HTML text."""
    shown = [_top(page), *(_section(section) for section in page.sections), _bottom(page)]
    body, own_style = _without_style_attributes("\n".join(part for part in shown if part))
    style = STYLE + own_style
    policy = POLICY.format(style=_hash_source(style), script=_hash_source(SCRIPT))
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
        f"<script>{SCRIPT}</script>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _hash_source(text):
    """What names an inlined style or script in a content policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _without_style_attributes(body):
    """(body, style): each style attribute, which a hash cannot allow, as a rule of the style instead."""
    numbers = {}

    def mark(match):
        return f' data-style="{numbers.setdefault(html.unescape(match.group(1)), len(numbers))}"'

    body = STYLE_ATTRIBUTE.sub(mark, body)
    # Three times the attribute: the rule must win over those for classes, as a style attribute would.
    rules = (f'[data-style="{number}"][data-style][data-style] {{ {own} }}\n' for own, number in numbers.items())
    return body, "".join(rules)


def _top(page):
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


def _unfinished(missing):
    if missing is None:
        return ""
    return f'<div class="unfinished" role="alert"><strong>UNFINISHED</strong><p>{_escape(missing)}</p></div>'


def _warnings(warnings):
    if not warnings:
        return ""
    items = "".join(f"<li>{_escape(warning)}</li>" for warning in warnings)
    n = "1 warning" if len(warnings) == 1 else f"{len(warnings)} warnings"
    return f'<details class="warnings" open><summary>{n}</summary><ul>{items}</ul></details>'


def _section(section):
    return f"<section><h2>{_escape(section.title)}</h2>\n" + "\n".join(map(_part, section.parts)) + "</section>"


def _part(part):
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Figure):
        return _figure(part)
    if isinstance(part, Gallery):
        return f'<div class="gallery">{"".join(map(_figure, part.figures))}</div>'
    return _entry(part)


def _entry(entry):
    title = _escape(entry.title)
    linked = f'<a href="{_escape(entry.href)}">{title}</a>' if entry.href else title
    state = '<b class="state">COMPLETE</b>' if entry.complete else '<b class="state stop">UNFINISHED</b>'
    answer = "".join(f"<p>{_escape(sentence)}</p>" for sentence in entry.answer)
    return f'<article class="part"><h3>{linked}</h3>{state}{answer}</article>'


def _figure(figure):
    title = f"<h3>{_escape(figure.title)}</h3>" if figure.title else ""
    return f'<figure class="part">{title}{figure.svg}<figcaption>{_escape(figure.caption)}</figcaption></figure>'


def _table(table):
    texts = _text_columns(table)
    heads = "".join(
        f'<th scope="col" aria-sort="none"{_class("text" if is_text else "")}>'
        f'<button type="button">{_escape(name)}</button></th>'
        for name, is_text in zip(table.header, texts, strict=True)
    )
    heat, wide = _heat(table), " wide" if len(table.header) > WIDE else ""
    rows = "".join(
        "<tr>" + "".join(_cell(cell, texts[c], heat.get((r, c)), c == 0) for c, cell in enumerate(row)) + "</tr>\n"
        for r, row in enumerate(table.rows)
    )
    title = f"<h3>{_escape(table.title)}</h3>" if table.title else ""
    note = f'<p class="note">{_escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="part">{title}<div class="scroll"><table class="sortable{wide}"><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>{note}</div>"
    )


def _cell(cell, is_text, heat, is_first):
    number = _number(cell)
    key = _shown(cell) if is_text else ("" if number is None else repr(number))
    flags = (("text", is_text), ("long", len(_shown(cell)) > LONG_TEXT), ("best", getattr(cell, "best", False)))
    classes = " ".join(name for name, on in flags if on)
    style = "" if heat is None else f' data-heat style="--heat:{heat:.3f}"'
    dot = f'<span class="dot" style="background:var(--{cell})"></span>' if is_first and cell in COLOURED else ""
    spread = f"<small>{_escape(cell.spread)}</small>" if isinstance(cell, Value) and cell.spread else ""
    return f'<td{_class(classes)}{style} data-value="{_escape(key)}">{dot}{_escape(_shown(cell))}{spread}</td>'


def _bottom(page):
    versions = ", ".join(f"{name} {version}" for name, version in page.versions.items())
    has_table = any(isinstance(part, Table) for section in page.sections for part in section.parts)
    sort = "Tables can be sorted: click a heading, or reach it with Tab and press Enter. " if has_table else ""
    return (
        f"<section><h2>Make this again</h2><pre><code>{_escape(page.command)}</code></pre></section>"
        f"<footer>{_escape(versions)}. {sort}This page is one file and fetches nothing.</footer>"
    )


def _class(names):
    return f' class="{names}"' if names else ""


def _escape(value):
    return html.escape(tables.printable(value), quote=True)


# ---- cells ---------------------------------------------------------------------------------------------------------


def _number(cell):
    """A cell's finite number, or None."""
    value = cell.value if isinstance(cell, Value) else cell
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        return None
    return value


def _shown(cell):
    if isinstance(cell, Value):
        return tables.cell(cell.value) if cell.text is None else cell.text
    return tables.cell(cell)


def _text_columns(table):
    """Per column: does it hold text?"""
    columns = zip(*table.rows, strict=True) if table.rows else [()] * len(table.header)
    return [any(isinstance(cell, str) for cell in column) or not column for column in columns]


def _heat(table):
    """{(row, column): 0..1}: where a value stands between its column's smallest and largest."""
    found = {}
    for column in table.heat:
        numbers = {r: _number(row[column]) for r, row in enumerate(table.rows)}
        known = [number for number in numbers.values() if number is not None]
        if known and max(known) > min(known):
            span = max(known) - min(known)
            found |= {(r, column): (n - min(known)) / span for r, n in numbers.items() if n is not None}
    return found


# ---- Markdown ------------------------------------------------------------------------------------------------------


def markdown(page):
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


def _markdown_part(part):
    if isinstance(part, Entry):
        state = "complete" if part.complete else "UNFINISHED"
        return [f"- {_plain(part.title)}: {state}", *(f"  {_plain(sentence)}" for sentence in part.answer), ""]
    if isinstance(part, Gallery):
        return [line for figure in part.figures for line in _markdown_part(figure)]
    if isinstance(part, Figure):
        name = re.search(r'data-name="([A-Za-z0-9_-]*)"', part.svg).group(1)
        return [f"![{_plain(part.title)}](figures/{name}.svg)", "", _plain(part.caption), ""]
    align = "".join("<" if is_text else ">" for is_text in _text_columns(part))
    rows = [[_with_spread(cell) for cell in row] for row in part.rows]
    table = tables.markdown(part.header, rows, align)
    for mark in (_BOLD_ON, _BOLD_OFF):
        table = table.replace(mark, "**")
    found = [f"### {_plain(part.title)}", ""] if part.title else []
    return [*found, table, "", *([_plain(part.note), ""] if part.note else [])]


_BOLD_ON, _BOLD_OFF = "⟦", "⟧"  # stand for ** while cells are escaped


def _with_spread(cell):
    text = _shown(cell) if isinstance(cell, Value) else cell
    if not isinstance(cell, Value):
        return text
    text = f"{_BOLD_ON}{text}{_BOLD_OFF}" if cell.best else text
    spread = cell.spread if cell.spread.startswith("±") else f"({cell.spread})"
    return f"{text} {spread}" if cell.spread else text


def _plain(value):
    """Text that Markdown does not obey."""
    text = tables.printable(value).replace("\\", "\\\\")
    for sign in "*_`<[]#|":
        text = text.replace(sign, "\\" + sign if sign != "<" else "&lt;")
    return text
