"""HTML tables for notebooks; all text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

LEFT = 'style="text-align:left;vertical-align:top"'


def html_table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """A table of names and values with a title."""
    body = "".join(f"<tr><th {LEFT}>{escape(name)}</th><td {LEFT}>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table><caption {LEFT}><b>{escape(title)}</b></caption><tbody>{body}</tbody></table>"
