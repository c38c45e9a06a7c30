"""A method's settings on one backbone with one solver: defaults, and the grids that sweeps and experiments search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PAPER_RANKS, PAPER_STRENGTHS = (50, 100, 200), (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # the paper's lambda and gamma
WIDE_RANKS, WIDE_LAMS = (10, 20, 50, 100, 200), (1e-5, 4e-5, 1e-4, 4e-4, 1e-3)
WIDE_GAMMAS = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 1.5, 2.0, 4.0)
FINE_LAMS = tuple(
    float(f"{10 ** (-5 + k / 6):.3g}") for k in range(25)
)  # the paper's lambdas and five between each two

Grid = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Settings:
    """Defaults and named grids.

    paper: the paper's grid, or the nearest thing where its numbers mean nothing; wide: for quality; even: as many
    points as the paper's grid has for a method with a gamma, so that searches cost every method the same; near: the
    parameters of a small search around the defaults, the more telling first, each with the factor between neighbours.
    """

    defaults: Mapping[str, Any]
    paper: Grid
    wide: Grid
    even: Grid
    near: Mapping[str, float] = field(default_factory=lambda: {"lam": 3.0, "rank": 2.0})

    def grid(self, name: str) -> Grid:
        """A grid by its name."""
        return {"paper": self.paper, "wide": self.wide, "even": self.even}[name]


def of_lam(defaults: Mapping[str, Any], wide: Grid | None = None) -> Settings:
    """For methods that tune rank and lam."""
    return Settings(
        defaults,
        paper={"rank": PAPER_RANKS, "lam": PAPER_STRENGTHS},
        wide={"rank": WIDE_RANKS, "lam": WIDE_LAMS} | dict(wide or {}),
        even={"rank": PAPER_RANKS, "lam": FINE_LAMS},
    )


def of_gamma(defaults: Mapping[str, Any], wide: Grid | None = None) -> Settings:
    """For methods that tune rank, lam and gamma."""
    paper = {"rank": PAPER_RANKS, "lam": PAPER_STRENGTHS, "gamma": PAPER_STRENGTHS}
    return Settings(
        defaults,
        paper=paper,
        wide={"rank": WIDE_RANKS, "lam": WIDE_LAMS, "gamma": WIDE_GAMMAS} | dict(wide or {}),
        even=paper,
        near={"lam": 3.0, "gamma": 3.0, "rank": 2.0},
    )
