"""Bridge and DUB with the squared loss and term d over *all* of S_u, by Gram matrices instead of a sample."""

from dubnb import _check
from dubnb._check import InputError
from dubnb.methods._method import PAPER_RANKS, PAPER_STRENGTHS, check_sample_weighting
from dubnb.objective import all_pairs, als, exposure
from dubnb.objective.terms import Teacher

SOLVERS = ("sampled", "exact")
PRETRAINING = {"epochs": 200, "patience": 5}
# lam is an absolute decay per row here, so the paper's range of lambda means nothing; rank and gamma keep the paper's.
EXACT_LAMS = (5.0, 10.0, 15.0, 20.0, 40.0)
EXACT_GRIDS = {
    "paper": {"rank": PAPER_RANKS, "lam": EXACT_LAMS, "gamma": PAPER_STRENGTHS},
    "wide": {"rank": (50, 100, 200), "lam": EXACT_LAMS, "gamma": (0.0125, 0.025, 0.05, 0.1, 0.2)},
}
EXACT_DEFAULTS = {"rank": 100, "gamma": 0.05, "lam": 15.0, "shrink": 1.0, "epochs": 30, "patience": 2}


def check_solver(params):
    """`solver`, `shrink` and `exposure_power` as bridge and dub take them."""
    exposure.powers(params["exposure_power"])
    _check.choice("solver", params["solver"], SOLVERS)
    _check.real("shrink", params["shrink"], high=1.0)
    if params["solver"] == "exact":
        check_sample_weighting(params)
    if params["solver"] == "exact" and (params["backbone"], params["loss"]) != ("mf", "squared"):
        given = f"backbone={params['backbone']!r} and loss={params['loss']!r}"
        raise InputError(f"solver='exact' needs backbone='mf' and loss='squared', not {given}: or solver='sampled'")


def refine_exactly(run):
    """Terms a, c, e.2 on their pairs and d on all of S_u; returns (M_c, M_t)."""
    p = run.params
    # A constant teacher needs no M_t; another is trained in mini-batches, which need more epochs than row solves.
    M_t = run.fit_t(p.teacher_lam, **PRETRAINING) if p.shrink < 1 else None
    problem = _problem(run.data, Teacher(run.data, M_t, run.loss, p.shrink), p)
    return solve(run, problem), M_t


def solve(run, problem):
    """The minimum of an exact problem by alternating row solves from random rows, with S_va's best sweep kept.

    An epoch is a sweep over all users, then all items. Full-batch gradient steps end at the same objective: on
    yahoo-like they needed 500 to 1,000 of them, seven times as long as twenty sweeps.
    """
    ready = als.prepare(problem)

    def sweep(P, Q, number):
        als.sweep(ready, P, Q)
        return als.objective(ready, P, Q)

    return run.descend(sweep)


def _problem(data, teacher, p):
    S_c, S_t = data.triplets("S_c"), data.triplets("S_t")
    residuals = S_t.labels - teacher.predict(S_t.users, S_t.items)
    terms = (("a", S_t, S_t.labels, 1.0), ("c", S_c, S_c.labels, 1.0), ("e", S_t, residuals, 1.0))
    streams = observed_streams(terms, p.terms)
    gamma = p.gamma if "d" in p.terms else 0.0
    shape = (data.n_users, data.n_items)
    A, C = exposure.row_weights(data, p.exposure_power)
    return all_pairs.exact_problem(
        shape, streams, strength=gamma, teacher=_rows(teacher), A=A, C=C, wd_u=p.lam, wd_i=p.lam
    )


def observed_streams(terms, kept):
    """[(users, items, targets, weights)] of `terms`, each (letter, pairs, targets, weight).

    A term that is not kept weighs 0: it still marks its pairs as observed, so that they stay out of S_u.
    """
    return [
        (pairs.users, pairs.items, targets, pairs.weights * (weight if letter in kept else 0.0))
        for letter, pairs, targets, weight in terms
    ]


def _rows(teacher):
    """The teacher as a constant, or as low-rank rows."""
    return teacher.mean if teacher.shrink == 1 else low_rank_rows(teacher)


def low_rank_rows(teacher):
    """(P', Q') with P'_u . Q'_i = t = shrink * mean + (1 - shrink) * M_t's score (mf, no link)."""
    P, Q = teacher.M_t.extended()
    P[:, :-1] *= 1 - teacher.shrink
    P[:, -2] += teacher.shrink * teacher.mean
    Q[:, -1] *= 1 - teacher.shrink
    return P, Q
