"""The options of commands that search and fit many systems: how much, which, and where the report goes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dubnb.cli._values import listed

if TYPE_CHECKING:
    from dubnb.experiments.systems import Choice


def add_options(parser: argparse.ArgumentParser, backbones: str) -> None:
    """--out, --budget, --systems, --backbone and --n-jobs; `backbones`: which are taken by default."""
    parser.add_argument("--out", required=True, metavar="DIR", help="where reports go; run again, it resumes")
    parser.add_argument("--budget", default="quick", metavar="NAME", help="smoke, quick (default) or full, see below")
    parser.add_argument(
        "--systems", metavar="NAMES", help="systems or groups with commas between (default: all groups)"
    )
    parser.add_argument("--backbone", metavar="NAME", help=f"mf, ncf or mf,ncf (default: {backbones})")
    parser.add_argument(
        "--n-jobs", type=int, default=1, metavar="N", help="worker processes (default 1, -1: all cores)"
    )


def notes(per_system: str, example: str) -> list[str]:
    """Budgets and systems, from the registries, and an example."""
    from dubnb.experiments.budgets import BUDGETS, went_on
    from dubnb.experiments.systems import GROUPS

    lines = ["budgets:"]
    for each in BUDGETS.values():
        sizes = f"{each.points} candidates per {per_system}{went_on(each)}, {each.seeds} seeds"
        lines.append(f"  {each.name:<6} {sizes}; {each.description}")
    lines += ["", "systems:", *(f"  {group:<10} {', '.join(names) or '-'}" for group, names in GROUPS.items())]
    return [*lines, "", "example:", f"  {example}", ""]


def choice(args: argparse.Namespace) -> Choice:
    """The systems and backbones that were asked for."""
    from dubnb.experiments.systems import Choice

    names = listed(args.systems)
    return Choice(Choice().names if names is None else names, listed(args.backbone))
