"""Small tables as aligned text and as Markdown. Cells may hold users' data: control characters are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def text(header: Sequence[Any], rows: Iterable[Sequence[Any]], align: str) -> str:
    """Columns aligned by `align` ("<" or ">" for each), two spaces between, one line per row."""
    lines = [[cell(value) for value in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{value:{side}{width}}" for value, side, width in zip(line, align, widths, strict=True)).rstrip()
        for line in lines
    )


def markdown(header: Sequence[Any], rows: Iterable[Sequence[Any]], align: str) -> str:
    """The same as a Markdown table."""
    rule = [{"<": ":--", ">": "--:"}[side] for side in align]
    lines = [[_markdown_cell(value) for value in row] for row in (header, *rows)]
    lines.insert(1, rule)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: Any) -> str:
    """A value as text on one line: four decimals for floats, "-" for None and nan."""
    if value is None or value != value:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else printable(value)


def printable(value: object) -> str:
    """`value` as text with control, format and line-breaking characters escaped, so that they have no effect."""
    characters = str(value)
    if characters.isprintable():
        return characters
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in characters)


def mark_best(values: Iterable[float]) -> list[str]:
    """Numbers as text, a star after the largest; all have the same width, so that decimals are aligned."""
    shown = [cell(float(value)) for value in values]
    known = [text for text in shown if text != "-"]
    best = max(known, key=float) if known else None  # by text: values that print alike are equally good
    return [text + ("*" if text == best else " ") for text in shown]


def _markdown_cell(value: Any) -> str:
    escaped = cell(value).strip().replace("\\", "\\\\").replace("|", "\\|")
    return escaped.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("`", "\\`")
