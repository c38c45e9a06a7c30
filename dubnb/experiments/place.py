"""The directory of a report: what it may hold, and whose it is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from dubnb._check import InputError
from dubnb._files import atomic_write, quote_path

WORK = "work"  # the directory of fits and pre-trained models
ABOUT = "about.json"  # what a directory's reports are of


def check(out: str | os.PathLike[str]) -> None:
    """Refuse a directory that holds something else than an earlier run."""
    if not os.path.lexists(out):
        return
    if not os.path.isdir(out):
        raise InputError(f"--out {quote_path(out)} is a file: give a directory, which need not exist")
    if os.listdir(out) and not os.path.isdir(os.path.join(out, WORK)):
        raise InputError(f"--out {quote_path(out)} holds other files and no earlier run: give a new or empty directory")


def claim(out: str | os.PathLike[str], asked: Mapping[str, Any]) -> None:
    """Note what the directory's reports are of, or refuse one whose reports are of something else."""
    path = os.path.join(out, ABOUT)
    try:
        with open(path, encoding="utf-8") as file:
            held = json.load(file)
    except FileNotFoundError:
        with atomic_write(path) as new:
            new.write((json.dumps(asked, indent=2) + "\n").encode())
        return
    except (OSError, ValueError):
        raise InputError(f"{quote_path(path)} cannot be read: remove it if the reports beside it may go") from None
    for name, value in asked.items():
        if held.get(name) != value:
            was = f"{name} {json.dumps(held.get(name))}, not {json.dumps(value)}"
            raise InputError(
                f"--out {quote_path(out)} holds a report of {was}: give another --out, or ask for the same"
            )
