"""A method's settings on one backbone with one solver: defaults, and the grids that sweeps and experiments search.

Defaults follow from the log, so that a method suits logs of any size without tuning, and are the paper's (or the
prototype's) numbers at Yahoo! R3's size:

- Mini-batches are as large as gives some 300 steps an epoch on S_c (42 on S_t), a power of two from 16 to 1,024 (8 to
  128). Adam moves a weight by about lr a step, whatever the gradient, so that steps are what an epoch of training is.
- lam grows as the batch shrinks, lam x batch size being constant: a row that a batch touches once meets lam, and 1 over
  the batch size of its sample's gradient.
- bridge and dub have 100 factors, and 50 where S_c has fewer than 100,000 pairs.
- dub's M_c is pre-trained on S_c, and on S_t too where that is 3 % of S_c or more: then `combine` is where it starts.
- The rarer S_t's pairs, the more each has to weigh in dub-x: 5 where S_t is 1.7 % of S_c or less, as at Yahoo! R3,
  beyond that in proportion to the root of |S_c| / |S_t|, but no less than 2.
- The exact solvers' lam is `cutoff` times the scale of noise in the log, see `exposure.noise_scale`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dubnb.data.grades import RANKS

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

PAPER_RANKS, PAPER_STRENGTHS = (50, 100, 200), (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # the paper's lambda and gamma
WIDE_RANKS = (10, 20, 50, 100, 200)
WIDE_GAMMAS = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 1.5, 2.0, 4.0)
FINE_LAMS = tuple(
    float(f"{10 ** (-5 + k / 6):.3g}") for k in range(25)
)  # the paper's lambdas and five between each two
S_C_STEPS, S_C_BATCHES = 304, (16, 1024)  # steps of an epoch that a batch size aims at, and its range
S_T_STEPS, S_T_BATCHES = 42, (8, 128)
FEW_PAIRS = 100_000  # of S_c
S_T_SHARE = 0.03  # |S_t| / |S_c| from which M_c's pre-training reads S_t too
S_T_WEIGHTS = (2.0, 5.0)  # of a pair of S_t in dub-x, where S_t is large and where it is small
NEGATIVES = 4  # drawn for each positive of a log without negatives


@dataclass(frozen=True)
class LogFacts:
    """What defaults may depend on."""

    n_users: int
    n_items: int
    n_c: int  # pairs of S_c
    n_t: int  # pairs of S_t
    graded: bool
    click_only: bool = False  # S_c holds positives alone
    has_rates: bool = False  # grades are the shares of a pair's impressions that are positive
    ranked: bool = False  # grades are ranks of labels such as seconds

    @classmethod
    def of(cls, data: Partition) -> LogFacts:
        """Those of a Partition."""
        n_c, n_t = (len(data.triplets(part).users) for part in ("S_c", "S_t"))
        return cls(
            data.n_users, data.n_items, n_c, n_t, data.graded, data.click_only, data.has_rates, data.grading == RANKS
        )


YAHOO_R3 = LogFacts(15_400, 1_000, 311_704, 5_400, graded=False)  # the log that defaults without data are for

Rule = Callable[[LogFacts, Mapping[str, Any]], Any]  # (the log, parameters that are known already) -> value


class Times(tuple[float, ...]):
    """Values of a grid as multiples of the parameter's default on the log at hand."""


Grid = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Settings:
    """Defaults and named grids.

    defaults: values, or rules by which they follow from the log; paper: the paper's grid, or the nearest thing where
    its numbers mean nothing; wide: for quality; even: as many points as the paper's grid has for a method with a gamma,
    so that searches cost every method the same; near: the parameters of a small search around the defaults, the more
    telling first, each with the factor between neighbours.
    """

    defaults: Mapping[str, Any]
    paper: Grid
    wide: Grid
    even: Grid
    near: Mapping[str, float] = field(default_factory=lambda: {"lam": 3.0, "rank": 2.0})

    def grid(self, name: str) -> Grid:
        """A grid by its name."""
        return {"paper": self.paper, "wide": self.wide, "even": self.even}[name]


def _batch_size(n: int, steps: int, sizes: tuple[int, int]) -> int:
    low, high = sizes
    return min(high, max(low, 2 ** round(math.log2(n / steps)))) if n else low


def batch_of_S_c(log: LogFacts, known: Mapping[str, Any]) -> int:
    """A power of two with some 304 steps an epoch."""
    return _batch_size(log.n_c, S_C_STEPS, S_C_BATCHES)


def batch_of_S_t(log: LogFacts, known: Mapping[str, Any]) -> int:
    """A power of two with some 42 steps an epoch, and no larger than the other batches."""
    own = _batch_size(log.n_t, S_T_STEPS, S_T_BATCHES)
    return min(own, known.get("batch_size") or own)


def negatives_of(log: LogFacts, known: Mapping[str, Any]) -> int:
    """Negatives drawn for each positive: none where the log has some."""
    return NEGATIVES if log.click_only else 0


def rank_of(many: int, few: int) -> Rule:
    """`many` factors, `few` on a small log."""
    return lambda log, known: few if log.n_c < FEW_PAIRS else many


def letters_of_pretraining(log: LogFacts, known: Mapping[str, Any]) -> str:
    """What M_c is pre-trained on: c, and with mf also a where it is kept and S_t is no small share of the logs."""
    enough = log.n_t >= S_T_SHARE * log.n_c
    return "ac" if enough and "a" in known["terms"] and known["backbone"] == "mf" else "c"


def weight_of_S_t(log: LogFacts, known: Mapping[str, Any]) -> float:
    """A pair's weight where S_c's weigh 1, by the root of |S_c| / |S_t|."""
    low, high = S_T_WEIGHTS
    rarity = (log.n_c / max(log.n_t, 1)) / (YAHOO_R3.n_c / YAHOO_R3.n_t)
    return min(high, max(low, high * math.sqrt(rarity)))


def lam_of_S_c(lam: float) -> Rule:
    """`lam` with batches of 1,024, more with smaller ones."""
    return lambda log, known: lam * S_C_BATCHES[1] / known["batch_size"]


def lam_of_S_t(lam: float, batch_size: str = "teacher_batch_size") -> Rule:
    """`lam` with batches of 128, more with smaller ones."""
    return lambda log, known: lam * S_T_BATCHES[1] / known[batch_size]


def of_lam(defaults: Mapping[str, Any], wide: Grid | None = None) -> Settings:
    """For methods that tune rank and lam."""
    return Settings(
        defaults,
        paper={"rank": PAPER_RANKS, "lam": PAPER_STRENGTHS},
        wide={"rank": WIDE_RANKS, "lam": Times((0.1, 0.3, 1.0, 3.0, 10.0))} | dict(wide or {}),
        even={"rank": PAPER_RANKS, "lam": FINE_LAMS},
    )


def of_gamma(defaults: Mapping[str, Any], wide: Grid | None = None) -> Settings:
    """For methods that tune rank, lam and gamma."""
    paper = {"rank": PAPER_RANKS, "lam": PAPER_STRENGTHS, "gamma": PAPER_STRENGTHS}
    return Settings(
        defaults,
        paper=paper,
        wide={"rank": WIDE_RANKS, "lam": Times((0.25, 1.0, 2.5, 10.0, 25.0)), "gamma": WIDE_GAMMAS} | dict(wide or {}),
        even=paper,
        near={"lam": 3.0, "gamma": 3.0, "rank": 2.0},
    )
