"""The bar that shows how far the reading of a log has come."""

from __future__ import annotations

from typing import Any


def bar(name: str, total: int | None, unit: str, quiet: bool) -> Any:
    """A progress bar that appears after two seconds, on terminals only, and is gone when done."""
    from tqdm import tqdm

    off = True if quiet else None  # None: unless stderr is a terminal
    return tqdm(total=total, desc=f"reading {name}", unit=unit, unit_scale=True, leave=False, delay=2, disable=off)
