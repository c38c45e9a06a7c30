"""DUB-X: exposure-weighted exact dub, by alternating row solves."""

from dataclasses import dataclass

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.methods._exact import PRETRAINING, low_rank_rows, observed_streams, solve
from dubnb.methods._method import PAPER_RANKS, PAPER_STRENGTHS, Method, check_sample_weighting
from dubnb.objective import all_pairs, exposure
from dubnb.objective.terms import Teacher, randomized

TEACHERS = ("constant", "item", "model")
LAMS = (5.0, 7.0, 10.0, 15.0, 20.0)


@dataclass(kw_only=True, repr=False, eq=False)
class DubX(Method):
    """Eq. 2 with the squared loss, term d over all of S_u with weights A_u C_i, solved exactly, row by row.

        sum over S_c of (s - r)^2  +  w_t sum over S_t of (s - r_t)^2  +  gamma sum over S_u of A_u C_i (s - t)^2
        +  sum over rows of lam_row |row|^2  +  .1 |biases|^2,        mf without b0, labels 0 and 1

    Derivation: term d of Eq. 2 is the loss between M_c's and the teacher's predictions, averaged over S_u, where
    every pair counts alike. Weighing pair (u, i) by A_u C_i, A_u = (n_u + 1)^p and C_i = (n_i + 1)^p over their
    means, n = counts in S_c, says that an absence tells the more, the more chances there were to be seen: a product
    of activity and popularity stands in for exposure. Weights of mean 1 leave gamma its meaning; their product form
    leaves the sum exact.

    Not known: why p below 1 ranks best (p = 1 lost on nDCG wherever we measured it, even where it won on AUC). And the
    theorem does not cover it: weighting changes the objective that the theorem bounds, and with the squared loss Eq. 2
    is no proven bound to begin with.

    gamma: weight of term d; exposure_power: p, one number or (for users, for items); 0 weighs all pairs alike,
    which is the exact dub; randomized_weight: w_t, also of term e.2 where `terms` has it; lam: regularisation of
    the average row, lam_row = lam x row weight / mean row weight, a row's weight being that of its samples plus
    gamma A_u sum C. Beware: it multiplies |row|^2, not |row|^2 / 2 as in other methods. teacher: "constant" (t =
    teacher_value), "item" (t_i = an empirical-Bayes rate from S_t) or "model" (t_ui = shrink x mean + (1 - shrink) x
    score of M_t, a low-rank model trained on S_t with teacher_lam; mean = S_t's mean label), the last two shifted by
    teacher_value - mean, so that an average pair sits at teacher_value; shrink: .8, as a weak M_t misleads (AUC on
    S_va, yahoo-like, one seed: shrink 0 .755, .5 .784, .8 .795; constant .796); teacher_value: 0 by default, below
    S_t's mean label; epochs: sweeps over all users, then all items (30 at most, patience 2).
    """

    loss: str = "squared"
    gamma: float = 0.05
    exposure_power: float | tuple = 0.75
    randomized_weight: float = 5.0
    teacher: str = "constant"
    teacher_value: float = 0.0
    shrink: float = 0.8
    teacher_lam: float = 1e-2

    name = "dub-x"
    TERMS = "acde"
    BACKBONES = ("mf",)
    DEFAULTS = {"mf": {"rank": 50, "lam": 10.0, "epochs": 30, "patience": 2, "terms": "acd"}}
    GRIDS = {  # lam is an absolute decay per row, so the paper's range of lambda means nothing
        "paper": {"rank": PAPER_RANKS, "lam": LAMS, "gamma": PAPER_STRENGTHS},
        "wide": {
            "rank": (20, 50, 100),
            "lam": LAMS,
            "gamma": (0.0125, 0.025, 0.05, 0.1),
            "exposure_power": (0.0, 0.5, 0.75, 1.0),
        },
    }

    def _own_defaults(self):
        if self.backbone not in self.BACKBONES or self.loss != "squared":
            raise InputError(
                f"dub-x needs backbone='mf' and loss='squared', not {self.backbone!r} and {self.loss!r}: "
                "set them, or give exposure_power= to dub"
            )
        return super()._own_defaults()

    def _check_params(self, params):
        super()._check_params(params)
        check_sample_weighting(params)
        exposure.powers(params["exposure_power"])
        _check.choice("teacher", params["teacher"], TEACHERS)
        _check.real("shrink", params["shrink"], high=1.0)
        _check.real("lam", params["lam"], open_low=True)  # without it a row solve may have no unique answer
        _check.real("randomized_weight", params["randomized_weight"])
        _check.real("teacher_value", params["teacher_value"], low=-np.inf)

    def recipe(self, run):
        p = run.params
        M_t = run.fit_t(p.teacher_lam, **PRETRAINING) if p.teacher == "model" and p.shrink < 1 else None
        problem = _problem(run.data, p, _teacher_rows(run, M_t))
        return solve(run, problem), M_t


def _problem(data, p, teacher):
    """The objective as an exact all-pairs problem; teacher: its rows (P', Q')."""
    S_c, S_t = data.triplets("S_c"), randomized(data) if {"a", "e"} & set(p.terms) else data.triplets("S_t")
    t = np.einsum("kj,kj->k", teacher[0][S_t.users], teacher[1][S_t.items])
    w_t = p.randomized_weight
    terms = (("c", S_c, S_c.labels, 1.0), ("a", S_t, S_t.labels, w_t), ("e", S_t, S_t.labels - t, w_t))
    streams = observed_streams(terms, p.terms)
    gamma = p.gamma if "d" in p.terms else 0.0
    A, C = exposure.row_weights(data, p.exposure_power)
    decays = exposure.scaled_decays(p.lam, streams, gamma, A, C)
    return all_pairs.exact_problem(
        (data.n_users, data.n_items),
        streams,
        strength=gamma,
        teacher=teacher,
        A=A,
        C=C,
        wd_u=2 * decays[0],  # all_pairs halves it
        wd_i=2 * decays[1],
    )


def _teacher_rows(run, M_t=None):
    """(P', Q') with t = P'_u . Q'_i: those of M_t, or the product 1 . t_i."""
    data, p = run.data, run.params
    if M_t is not None:
        teacher = Teacher(data, M_t, run.loss, p.shrink)
        P, Q = low_rank_rows(teacher)
        P[:, -2] += p.teacher_value - teacher.mean
        return P, Q
    if p.teacher == "item":
        randomized(data)  # must not be empty
        t = exposure.item_teacher(data, p.teacher_value)
    else:
        t = np.full(data.n_items, float(p.teacher_value))
    return np.ones((data.n_users, 1)), t[:, None]
