"""What methods with an exact solver share: a decay that follows from the log, and alternating row solves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.backbones.extended import Extended
from dubnb.backbones.mf import rows_of
from dubnb.methods._method import Method
from dubnb.methods._params import required
from dubnb.methods._settings import PAPER_RANKS, PAPER_STRENGTHS, Rule, Settings
from dubnb.objective import exposure
from dubnb.objective.all_pairs import ExactProblem, exact_problem
from dubnb.objective.terms import Observed, Term, Unobserved
from dubnb.train import EarlyStopping, Fit

PRETRAINING = {"epochs": 200, "patience": 5}  # of a teacher
LENGTH = {"epochs": 30, "patience": 2}  # of the row solves, in sweeps
NO_DECAY = {"lam": 0.0}  # of a stage of row solves, whose problem has its own decays
CONVERGED = 1e-4  # a sweep that lowers the objective by less than this share is the last
CUTOFFS = (0.07, 0.14, 0.2, 0.28, 0.4)
GAMMAS = (0.0125, 0.025, 0.05, 0.1, 0.2)


def unless_lam(cutoff: float) -> Rule:
    """The default of `cutoff`: none where lam is given."""
    return lambda log, known: cutoff if known["lam"] is None else None


EXACT = Settings(  # cutoff takes lam's place, so the paper's range of lambda means nothing; rank and gamma keep it
    defaults={"rank": 100, "gamma": 0.05, "cutoff": unless_lam(0.2), "shrink": 1.0, "loss": "squared", **LENGTH},
    paper={"rank": PAPER_RANKS, "cutoff": CUTOFFS, "gamma": PAPER_STRENGTHS},
    wide={"rank": (50, 100, 200), "cutoff": CUTOFFS, "gamma": GAMMAS},
    even={"rank": PAPER_RANKS, "cutoff": CUTOFFS, "gamma": GAMMAS},
    near={"cutoff": 1.4, "gamma": 2.0, "rank": 2.0},
)


@dataclass(kw_only=True, repr=False, eq=False)
class ExactlySolved(Method):
    """A method with an exact solver, whose decay follows from `cutoff` and the log unless lam is given.

    Parameters
    ----------
    cutoff : float
        c: with solver="exact", and where lam is not given, lam is 2 c times the scale of noise in the log, see
        `dubnb.objective.exposure.noise_scale`.
    """

    cutoff: float | None = None

    decays_by_row: ClassVar[bool] = False  # rows decay in proportion to their weights, by lam on average
    CHECKS = {"lam": _check.optional(_check.reals()), "cutoff": _check.optional(_check.reals(open_low=True))}

    def check(self) -> None:
        super().check()
        if self.cutoff is not None and self.chosen_solver() != "exact":
            raise InputError(f"cutoff={self.cutoff!r} is for solver='exact': set lam instead")
        if self.cutoff is not None and self.lam is not None:
            raise InputError(f"lam={self.lam!r} and cutoff={self.cutoff!r} both set the decay: give one of them")
        if self.lam == 0 and self.chosen_solver() == "exact":  # a row solve might have no unique answer
            raise InputError("lam=0.0 must be above 0 with solver='exact': raise it, or leave it to cutoff")

    def regularisation(self) -> str:
        return super().regularisation() if self.cutoff is None else f"cutoff (now {self.cutoff:g})"

    def exact_lam(self, weight: float, shape: tuple[int, int], label_range: float = 1.0) -> float:
        """lam, or what `cutoff` makes of the total weight of all pairs and the distance between the two labels."""
        if self.cutoff is None:
            return required(self.lam)
        return 2 * self.cutoff * label_range * exposure.noise_scale(weight, shape)

    def exact_problem(self, terms: Sequence[Term]) -> ExactProblem:
        """The kept terms as one problem."""
        weighed = [term if self.keeps(term.name) else term.times(0.0) for term in terms]
        observed = [term for term in weighed if isinstance(term, Observed)]
        (d,) = (term for term in weighed if isinstance(term, Unobserved))
        of_users, of_items = exposure.total_weights(observed, d)
        lam = self.exact_lam(of_users.sum(), (len(of_users), len(of_items)))
        if self.decays_by_row:
            return exact_problem(
                observed, d, decays=(lam * of_users / of_users.mean(), lam * of_items / of_items.mean())
            )
        return exact_problem(observed, d, decays=(lam, lam))

    def random_rows(self, fit: Fit) -> Extended:
        """Where row solves begin."""
        return rows_of(fit.new(self.stage("M_c", **NO_DECAY)))

    def minimise(self, fit: Fit, problem: ExactProblem, rows: Extended, name: str = "refine") -> Weights:
        """The minimum by alternating row solves from `rows`, which are changed; S_va's best sweep is returned.

        An epoch is a sweep over all users, then all items. Full-batch gradient steps end at the same objective: on
        yahoo-like they needed 500 to 1,000 of them, seven times as long as twenty sweeps.
        """
        solver = fit.device.row_solver(problem, rows, fit.threads)
        M_c = fit.descend(
            self.stage(name, **NO_DECAY), solver, EarlyStopping(required(self.patience), enough=CONVERGED)
        )
        solver.fetch(rows)
        return M_c
