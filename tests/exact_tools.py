"""Random exact problems with their dense twins, for tests of the sums over all pairs and of the row solves."""

import numpy as np

from dubnb.objective import all_pairs
from tests import naive_all_pairs as naive

TIGHT = 1e-10
SHAPE = (9, 7)


def close(found, expected, tolerance=TIGHT):
    """The error, relative to the largest expected entry."""
    return np.abs(np.asarray(found) - expected).max() <= tolerance * np.abs(expected).max()


def rows_of(rng, shape=SHAPE, rank=3, scale=0.5):
    tables = [rng.normal(0, scale, size) for size in ((shape[0], rank), shape[0], (shape[1], rank), shape[1])]
    return naive.extend(*tables)


def stream(rng, count, shape=SHAPE, weights=None):
    keys = rng.choice(shape[0] * shape[1], count, replace=False)
    weights = rng.random(count) * 2 if weights is None else weights
    return keys // shape[1], keys % shape[1], rng.normal(size=count), weights


def case(seed, teacher="low-rank", rank=3, dtype=np.float64, shape=SHAPE):
    """A random problem, its dense twin (terms, decays) and rows P, Q."""
    rng = np.random.default_rng(seed)
    # three overlapping streams, as c, a and e.2 are; the last only marks pairs as observed
    streams = [stream(rng, 20, shape), stream(rng, 12, shape, 1.0), stream(rng, 6, shape, 0.0)]
    A, C = rng.random(shape[0]) + 0.1, rng.random(shape[1]) + 0.1
    wd_u, wd_i = rng.random(shape[0]), rng.random(shape[1])
    if teacher == "low-rank":
        teacher = tuple(rng.normal(0, 0.4, (count, 4)) for count in shape)
        t = teacher[0] @ teacher[1].T
    else:
        teacher = t = 0.083
    options = {"strength": 0.3, "A": A, "C": C}
    problem = naive.exact_problem(shape, streams, teacher=teacher, decays=(wd_u, wd_i), dtype=dtype, **options)
    terms = naive.dense_terms(shape, streams, t=t, **options)
    P, Q = (rows.astype(dtype) for rows in rows_of(rng, shape, rank))
    return problem, (terms, wd_u, wd_i), P, Q


def dense(twin, function, P, Q):
    terms, wd_u, wd_i = twin
    return function(terms, P.astype(np.float64), Q.astype(np.float64), wd_u, wd_i)


def slopes(problem, P, Q):
    """The gradient from the steps of both sides: step / step size, which the twin computes too."""
    moved_P, moved_Q = P.copy(), Q.copy()
    all_pairs.descend(problem, moved_P, moved_Q)
    return P - moved_P, Q - moved_Q


def dense_slopes(twin, P, Q):
    """What `slopes` must give: eta times gradient."""
    gradients, etas = (dense(twin, function, P, Q) for function in (naive.gradient, naive.step_sizes))
    return [eta[:, None] * gradient for gradient, eta in zip(gradients, etas, strict=True)]


def spread(seed, teacher="low-rank", rank=3, **options):
    """A random problem whose rows have decay, with its dense twin."""
    problem, (terms, wd_u, wd_i), P, Q = case(seed, teacher, rank=rank, **options)
    problem = problem._replace(wd_u=problem.wd_u + 0.2, wd_i=problem.wd_i + 0.2)
    return problem, (terms, wd_u + 0.2, wd_i + 0.2), P, Q
