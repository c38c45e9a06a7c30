"""Progress bars: on terminals and in notebooks, and nowhere else, so that no log file fills up with them."""

from __future__ import annotations

import sys
import warnings
from typing import Any

AFTER = 2.0  # seconds until a bar appears


def watched() -> bool:
    """Whether somebody may be looking: stderr is a terminal, or this is a notebook."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


def bar(steps: Any = None, *, quiet: bool, **options: Any) -> Any:
    """tqdm's bar, in the form that suits where it is shown, gone when done; `steps` is what it counts, if anything."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a notebook without widgets gets a bar of text, and need not hear of it
        from tqdm.auto import tqdm

    return tqdm(steps, leave=False, delay=AFTER, disable=quiet or not watched(), **options)
