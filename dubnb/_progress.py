"""Progress bars, shown on terminals and in notebooks only, so that log files stay readable."""

from __future__ import annotations

import sys
import warnings
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
