"""`python -m bench.als`: alternating row solves (dub-x) against Cholesky, against their own parts, and against base.

Yahoo! R3's shape. Contenders start from the same rows and end at the same objective, which is printed.
"""

import numpy as np

from bench._timing import interleave, table
from dubnb._random import generator
from dubnb.backbones.mf import MF
from dubnb.data.pattern import Pattern
from dubnb.data.sampling import UnobservedPairs
from dubnb.methods.base import Base
from dubnb.methods.dub_x import DubX
from dubnb.objective import all_pairs, als
from dubnb.objective.teachers import Constant
from dubnb.objective.terms import Observed, Unobserved

USERS, ITEMS, PAIRS = 15_400, 1_000, 311_704
RANKS = (50, 200)
SWEEPS = 1


def problem():
    """Random feedback with busy users and popular items, weights and decays as in dub-x."""
    rng = generator(0, "bench-als")
    users, items = (np.minimum(rng.exponential(n / 5, PAIRS), n - 1).astype(np.int64) for n in (USERS, ITEMS))
    keys = np.unique(users * ITEMS + items)
    users, items = keys // ITEMS, (keys % ITEMS).astype(np.int32)
    c = Observed("c", users, items, rng.random(len(keys)) < 0.4, np.ones(len(keys)))
    d = Unobserved(UnobservedPairs(USERS, ITEMS, Pattern.of(users, items, USERS)), len(keys), 0.05, Constant(0.0))
    return als.prepare(all_pairs.exact_problem([c], d, decays=(20.0, 20.0)))


def cholesky_rows(rows, out, other, weights, teacher):
    """The same rows by their dense normal equations: BLAS and LAPACK, one row at a time."""
    G, H = all_pairs.gram(other, weights), all_pairs.gram(other, weights, teacher)
    free = [*range(other.shape[1] - 2), other.shape[1] + rows.bias]
    G_free, rank = G[np.ix_(free, free)], len(free) - 1
    Z_all = np.ascontiguousarray(other[:, free])
    for u in range(len(out)):
        pairs = slice(rows.indptr[u], rows.indptr[u + 1])
        partners, k = rows.partners[pairs], rows.curvature[pairs]
        Z, a = Z_all[partners], rows.weights[u]
        M = a * G_free + (Z * k[:, None]).T @ Z
        M[np.arange(rank), np.arange(rank)] += rows.ridge[u]
        M[rank, rank] += als.BIAS_RIDGE
        right = a * (H[free] @ rows.teacher[u] - G[free, rows.fixed])
        out[u, free] = np.linalg.solve(M, right + (rows.pull[pairs] - k * other[partners, rows.fixed]) @ Z)


def cholesky_sweep(ready, P, Q):
    cholesky_rows(ready.users, P, Q, ready.exact.C, ready.exact.teacher_Q)
    cholesky_rows(ready.items, Q, P, ready.exact.A, ready.exact.teacher_P)


def gram_products(ready, P, Q):
    """What a sweep spends before it solves for a row."""
    all_pairs.grams(ready.exact, P, Q)


def bench_sweep(ready, rank):
    start = MF.new((USERS, ITEMS), rank, 0, "c").extended()
    rows = {name: [side.copy() for side in start] for name in ("sweep", "cholesky")}
    for _ in range(SWEEPS):
        als.sweep(ready, *rows["sweep"])
        cholesky_sweep(ready, *rows["cholesky"])
    contenders = {
        "als.sweep": lambda: als.sweep(ready, *rows["sweep"]),
        "Cholesky (BLAS, LAPACK)": lambda: cholesky_sweep(ready, *rows["cholesky"]),
        "Gram products alone": lambda: gram_products(ready, *rows["sweep"]),
        "objective": lambda: als.objective(ready, *rows["sweep"]),
    }
    table(f"One sweep, rank {rank}", interleave(contenders, repeats=2), "als.sweep")
    ends = {name: als.objective(ready, *pair) for name, pair in rows.items()}
    print("objective at the end:", ", ".join(f"{name} {value:.6g}" for name, value in ends.items()))


def bench_fit():
    from dubnb.data.datasets import load_dataset

    data = load_dataset("yahoo-like")
    contenders = {"dub-x": lambda: DubX().fit(data), "base": lambda: Base().fit(data)}
    table("Time to the final model, yahoo-like, rank 50", interleave(contenders, repeats=2), "dub-x")


if __name__ == "__main__":
    from threadpoolctl import threadpool_limits

    ready = problem()
    with threadpool_limits(1):
        for rank in RANKS:
            bench_sweep(ready, rank)
    bench_fit()
