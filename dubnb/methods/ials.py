"""iALS: factors for the positives, and a small weight on zeros everywhere else (Hu et al., 2008)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.data.partition import Partition, Triplets
from dubnb.data.pattern import Pattern, UnobservedPairs
from dubnb.methods._exact import LENGTH, ExactMethod, unless_lam
from dubnb.methods._fold_in import NewUser
from dubnb.methods._params import PAPER_RANKS, Settings, required
from dubnb.objective.all_pairs import NO_BIASES
from dubnb.objective.terms import ConstantTeacher, Observed, Term, Unobserved, over_S_c, randomized
from dubnb.train import Fit

CUTOFFS = (0.15, 0.2, 0.25, 0.35, 0.5)
ALPHAS = (0.003, 0.01, 0.03, 0.1, 0.3)


def positives(data: Partition, part: str) -> Triplets:
    """The positive pairs of S_c or S_t, in their order."""
    feedback = randomized(data) if part == "S_t" else data.triplets(part)
    return feedback.take(feedback.labels > 0)


def _liked(S_c: Triplets, _: Unobserved | None) -> Observed:
    return Observed.of("c", S_c.take(S_c.labels > 0))


@dataclass(kw_only=True, repr=False, eq=False)
class IALS(ExactMethod):
    """Factors for the positives of the biased log, with weak zeros everywhere else.

    Implicit-feedback alternating least squares (Hu et al., 2008), with the regularisation of Rendle et al. (2022): a
    rival that every comparison should have. It reads positives alone and corrects no bias.

    Parameters
    ----------
    alpha : float
        The weight of a pair without a positive; a positive weighs 1. Hu et al. write it 1 / (1 + alpha).

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.IALS(rank=8).fit(data)
    >>> items, scores = model.recommend([3], k=5)

    Notes
    -----
    The objective has no biases:

        sum over positives of (s - 1)^2  +  alpha sum over all other pairs of s^2  +  sum of lam_row / 2 |row|^2

    lam_row is proportional to the total weight of the row's pairs, n_u + alpha |I| (Rendle et al. with nu = 1), and lam
    on average; lam follows from `cutoff` and the noise in the log. Rows are solved exactly, in turn. Observed
    negatives count as other pairs. With terms="cd", the default, positives are those of S_c; with "acd" also those of
    S_t. Term d is the sum over other pairs.

    Hu, Koren, Volinsky: Collaborative Filtering for Implicit Feedback Datasets, ICDM 2008. Rendle, Krichene, Zhang,
    Koren: Revisiting the Performance of iALS on Item Recommendation Benchmarks, RecSys 2022.
    """

    alpha: float | None = None

    name = "ials"
    trains_on_gpu = False
    TERMS = "acd"
    decays_by_row = True
    bias_ridge = NO_BIASES
    SETTINGS = {
        ("mf", "exact"): Settings(
            defaults={
                "terms": "cd",
                "rank": 50,
                "alpha": 0.03,
                "cutoff": unless_lam(0.25),
                "loss": "squared",
                **LENGTH,
            },
            paper={"rank": PAPER_RANKS, "cutoff": CUTOFFS},
            wide={"rank": (20, 50, 100), "cutoff": CUTOFFS, "alpha": ALPHAS},
            even={"rank": PAPER_RANKS, "cutoff": CUTOFFS, "alpha": ALPHAS},
            near={"cutoff": 1.4, "alpha": 2.0, "rank": 2.0},
        )
    }
    CHECKS = {"alpha": _check.reals(open_low=True)}

    def chosen_solver(self) -> str:
        return "exact"

    def check(self) -> None:
        super().check()
        if not self.keeps("d") or self.terms == "d":
            raise InputError(
                f"terms={self.terms!r}: ials needs d, the zeros, and positives of c or a: use 'cd' or 'acd'"
            )
        if self.loss != "squared":
            raise InputError(f"ials needs loss='squared', not {self.loss!r}: leave it out")

    def reads_S_t(self) -> bool:
        return self.keeps("a")

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[Term]:
        data, n_users, n_items = fit.data, fit.data.n_users, fit.data.n_items
        terms: list[Term] = [Observed.of("a", positives(data, "S_t"))] if self.keeps("a") else []
        seen = [Pattern.of(term.users, term.items, n_users) for term in terms if isinstance(term, Observed)]
        if self.keeps("c"):
            terms.append(over_S_c("c", data, _liked))
            seen.append(data.biased_pattern(positives=True))
        others = UnobservedPairs(n_users, n_items, data.union_of(seen))
        return [*terms, Unobserved(others, data.size("S_c"), required(self.alpha), ConstantTeacher(0.0))]

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        return self.minimise(fit, self.all_terms(fit, None), self.random_rows(fit))[0], None

    def fold_in(self, items: Any, labels: Any = None) -> NewUser:
        """A new user from the positives of a short history, see `Method.fold_in`; negatives are not listed again."""
        items = np.atleast_1d(np.asarray(items))
        liked = np.ones(len(items), bool) if labels is None else np.atleast_1d(np.asarray(labels)) > 0
        user = super().fold_in(items[liked])
        return NewUser(user.weights, user.item_ids, self.item_ids_.rows(items, "item"))
