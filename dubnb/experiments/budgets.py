"""How much is searched: the same number of candidates for every method, whatever it has to tune."""

import math
from typing import NamedTuple

from dubnb import _check

SMALL_LOG = 100_000  # pairs of S_c below which a log gets small batches and ranks
PAPER_RANKS = (50, 100, 200)
PAPER_STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # the paper's range of lambda and of gamma
FINE_LAMS = tuple(float(f"{10 ** (-5 + k / 6):.3g}") for k in range(25))  # its lambdas and five between each two
SMALL = {"batch_size": 64}  # what methods share on small logs
TWO_MODELS = {"pretrain_lam": 1e-3}  # M_c's own, on small logs

# The centre of the searches on a small log, by (method, backbone); on others it is each method's default.
SMALL_CENTRES = {
    ("base", None): {"rank": 40, "lam": 1e-3},
    ("unif", None): {"rank": 40, "lam": 1e-2},
    ("combine", None): {"rank": 40, "lam": 1e-3},
    ("ips", None): {"rank": 40, "lam": 1e-3},
    ("cause", None): {"rank": 20, "lam": 1e-3, "gamma": 1e-2},
    ("bridge", "mf"): {"rank": 20, "lam": 1e-3, "gamma": 3.0} | TWO_MODELS,
    ("bridge", "ncf"): {"rank": 20, "lam": 3e-4, "gamma": 1.0} | TWO_MODELS,
    ("dub", "mf"): {"rank": 20, "lam": 1e-3, "gamma": 3.0} | TWO_MODELS,
    ("dub", "ncf"): {"rank": 20, "lam": 3e-4, "gamma": 1.0} | TWO_MODELS,
    ("autodebias", "mf"): {"rank": 20, "lam": 20.0, "alpha": 0.2},
    ("autodebias", "ncf"): {"rank": 20, "lam": 3e-4, "alpha": 0.03, "batch_size": 512},
}


class Budget(NamedTuple):
    """What an experiment may spend."""

    name: str
    points: int  # candidates per method, backbone and search
    seeds: int  # fits of each winner
    epochs: int | None  # at most; None: the methods' own
    search_everywhere: bool  # search under every condition of rq4, not once on the whole data
    bootstraps: int
    description: str


BUDGETS = {
    budget.name: budget
    for budget in (
        Budget("smoke", 3, 2, 8, False, 1000, "a check that everything runs, not a result: very few epochs"),
        Budget("quick", 9, 3, None, False, 2000, "a small search around each method's default"),
        Budget(
            "full", 75, 10, None, True, 2000, "the paper's whole grid, and as many points where a method has no gamma"
        ),
    )
}


def axes(method, backbone, budget, data, terms="acde"):
    """(grid, fixed): what is searched, `budget.points` points of it, and what all candidates share.

    Without term d gamma does nothing, and searching it would be no search: `terms` says whether it is there.
    """
    has_gamma = method in ("cause", "bridge", "dub") and "d" in terms
    fixed = _shared(method, backbone, budget, data)
    if budget.name == "full":
        fixed = {name: value for name, value in fixed.items() if name in ("batch_size", "pretrain_lam")}
        return _whole_grid(method, backbone, has_gamma), fixed
    centre = _centre(method, backbone, data)
    second = "gamma" if has_gamma else "alpha" if method == "autodebias" else "rank"
    step = 2 if method == "autodebias" and backbone == "mf" else 3  # its lam is an absolute decay
    grid = {"lam": _around(centre["lam"], step)}
    if budget.name == "quick":
        grid[second] = (
            [max(1, round(x)) for x in _around(centre[second], 2)]
            if second == "rank"
            else _around(centre[second], step)
        )
    return grid, {name: value for name, value in fixed.items() if name not in grid}


def is_small(data):
    """Whether batches of 1,024 would be few: S_c has less than 100,000 pairs."""
    return len(data.triplets("S_c").users) < SMALL_LOG


def edges(grid, point):
    """Where the chosen point is the smallest or largest of three or more values: [(parameter, "low" or "high")]."""
    found = []
    for name, values in grid.items():
        if len(values) >= 3 and point[name] in (min(values), max(values)):
            found.append((name, "low" if point[name] == min(values) else "high"))
    return found


def _shared(method, backbone, budget, data):
    """Parameters that are not searched."""
    fixed = dict(_centre(method, backbone, data)) if is_small(data) else {}
    if is_small(data) and method != "unif" and (method, backbone) != ("autodebias", "mf"):
        fixed = SMALL | fixed
    if budget.epochs is not None:
        exact = (method, backbone) == ("autodebias", "mf")
        fixed["epochs"] = 8 * budget.epochs if exact else budget.epochs  # an exact epoch is one step
    return fixed


def _centre(method, backbone, data):
    """Where a small search begins: the method's default, or on a small log what suits it."""
    from dubnb.methods import make

    if is_small(data):
        return SMALL_CENTRES.get((method, None)) or SMALL_CENTRES[method, backbone]
    params = make(method, backbone=backbone).resolved_params()
    return {name: params[name] for name in ("rank", "lam", "gamma", "alpha") if name in params}


def _around(centre, step):
    return [float(f"{centre * factor:.3g}") for factor in (1 / step, 1, step)]


def _whole_grid(method, backbone, has_gamma):
    """The paper's grid; a method without gamma has as many points, by a finer lambda or by alpha."""
    _check.choice("backbone", backbone, ("mf", "ncf"))
    if has_gamma:
        return {"rank": PAPER_RANKS, "lam": PAPER_STRENGTHS, "gamma": PAPER_STRENGTHS}
    if method == "autodebias":
        exact = {"lam": (10.0, 20.0, 40.0, 80.0, 160.0), "alpha": (0.025, 0.05, 0.1, 0.2, 0.4)}
        sampled = {"lam": PAPER_STRENGTHS, "alpha": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)}
        return {"rank": PAPER_RANKS} | (exact if backbone == "mf" else sampled)
    return {"rank": PAPER_RANKS, "lam": FINE_LAMS}


def n_points(grid):
    """How many candidates a grid has."""
    return math.prod(len(values) for values in grid.values())
