"""What notebooks and terminals show: progress bars and small HTML tables."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from html import escape
from typing import Any

AFTER = 2.0  # seconds until a bar appears


def watched() -> bool:
    """Whether a bar would be seen: stderr is a terminal, or this is a notebook."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


def bar(steps: Any = None, *, quiet: bool, **options: Any) -> Any:
    """A tqdm bar for a terminal or notebook that disappears when done; `steps` is the iterable to count, if any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tqdm warns in a notebook without widgets and then shows a text bar
        from tqdm.auto import tqdm

    return tqdm(steps, leave=False, delay=AFTER, disable=quiet or not watched(), **options)


LEFT = 'style="text-align:left;vertical-align:top"'


def html_table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """A table of names and values with a title."""
    body = "".join(f"<tr><th {LEFT}>{escape(name)}</th><td {LEFT}>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table><caption {LEFT}><b>{escape(title)}</b></caption><tbody>{body}</tbody></table>"
