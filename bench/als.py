"""`python -m bench.als [--large [--out FILE]]`: row solves (dub-x) against Cholesky, implicit's ALS, and base.

Yahoo! R3's shape. Contenders start from the same rows and end at the same objective, which is printed. implicit solves
another objective on the same pairs, by three steps of conjugate gradients per row (its default), on one thread.
--large times whole fits instead, on 5 M rows of 200,000 users and 5,000 items with random labels: dub-x with its choice
on S_va, and 15 iterations of implicit's ALS, each once, in CPU seconds on one thread. Kernels are compiled before. With
--out it writes a record that has the machine and its load, since CPU seconds grow on a busy machine.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np

from bench._logs import partition
from bench._report import machine
from bench._timing import interleave, measure, table
from dubnb._random import generator
from dubnb.backbones.mf import MF
from dubnb.data.pattern import Pattern, UnobservedPairs
from dubnb.methods.base import Base
from dubnb.methods.dub_x import DubX
from dubnb.objective import all_pairs, als
from dubnb.objective.terms import ConstantTeacher, Observed, Unobserved

USERS, ITEMS, PAIRS = 15_400, 1_000, 311_704
LARGE = {"n_users": 200_000, "n_items": 5_000, "sizes": (5_000_000, 50_000, 50_000, 50_000)}
LARGE_ITERATIONS = 15  # of implicit's ALS, its default
RANKS = (50, 200)
SWEEPS = 1
STEPS = 3  # of conjugate gradients in implicit's ALS, its default; ours go on to a relative residual of 1e-6


def problem():
    """Random feedback with busy users and popular items, weights and decays as in dub-x."""
    rng = generator(0, "bench-als")
    users, items = (np.minimum(rng.exponential(n / 5, PAIRS), n - 1).astype(np.int64) for n in (USERS, ITEMS))
    keys = np.unique(users * ITEMS + items)
    users, items = keys // ITEMS, (keys % ITEMS).astype(np.int32)
    c = Observed("c", users, items, rng.random(len(keys)) < 0.4, np.ones(len(keys)))
    d = Unobserved(
        UnobservedPairs(USERS, ITEMS, Pattern.of(users, items, USERS)), len(keys), 0.05, ConstantTeacher(0.0)
    )
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
        als.sweep_rows(ready, *rows["sweep"])
        cholesky_sweep(ready, *rows["cholesky"])
    contenders = {
        "als.sweep_rows": lambda: als.sweep_rows(ready, *rows["sweep"]),
        "Cholesky (BLAS, LAPACK)": lambda: cholesky_sweep(ready, *rows["cholesky"]),
        "Gram products alone": lambda: gram_products(ready, *rows["sweep"]),
        "objective": lambda: als.objective(ready, *rows["sweep"]),
    }
    contenders |= implicit_sweep(ready, rank)
    table(f"One sweep, rank {rank}", interleave(contenders, repeats=2), "als.sweep_rows")
    ends = {name: als.objective(ready, *pair) for name, pair in rows.items()}
    print("objective at the end:", ", ".join(f"{name} {value:.6g}" for name, value in ends.items()))


def implicit_sweep(ready, rank, steps=STEPS):
    """implicit's ALS in its conjugate-gradient form: one iteration over both sides."""
    try:
        import implicit
    except ModuleNotFoundError:
        return {}
    from scipy.sparse import csr_matrix

    pairs = len(ready.users.partners)
    indices, indptr = ready.users.partners.copy(), ready.users.indptr.copy()  # implicit refuses read-only arrays
    matrix = csr_matrix((np.ones(pairs, np.float32), indices, indptr), (USERS, ITEMS))
    model = implicit.als.AlternatingLeastSquares(factors=rank, iterations=1, num_threads=1, use_gpu=False, use_cg=True)
    model.cg_steps = steps
    model.fit(matrix, show_progress=False)
    return {f"implicit ALS, {steps} steps": lambda: model.fit(matrix, show_progress=False)}


def bench_fit():
    from dubnb.data.datasets import load_dataset

    data = load_dataset("yahoo-like")
    contenders = {"dub-x": lambda: DubX().fit(data), "base": lambda: Base().fit(data)}
    table("Time to the final model, yahoo-like, rank 50", interleave(contenders, repeats=2), "dub-x")


def bench_large(out=None):
    from implicit.als import AlternatingLeastSquares

    data = partition(LARGE)
    liked = data.S_c.astype(np.float32)  # a copy: implicit refuses read-only arrays
    liked.eliminate_zeros()
    als_model = AlternatingLeastSquares(factors=50, iterations=LARGE_ITERATIONS, num_threads=1, random_state=0)
    fitted = {}

    def fit_dub_x():
        fitted["dub-x"] = DubX().fit(data, threads=1)

    contenders = {"dub-x": fit_dub_x, "implicit ALS": lambda: als_model.fit(liked, show_progress=False)}
    DubX().fit(partition(LARGE, scale=100), threads=1)  # compiles
    load_before, seconds = os.getloadavg()[0], measure(contenders, repeats=1, warm=False)
    table("Time to the final model, 5 M rows, rank 50", seconds, "dub-x")
    stages = fitted["dub-x"].history_["stage"]
    stages = stages[~stages.str.startswith("head")]
    print(f"dub-x: {stages.nunique()} stages, {len(stages)} sweeps")
    if out is not None:
        found = {"cpu_seconds": {name: round(times[0], 1) for name, times in seconds.items()}}
        found |= {"stages": int(stages.nunique()), "sweeps": len(stages), "rows": len(data.triplets("S_c").users)}
        found |= {"load": [round(load_before, 1), round(os.getloadavg()[0], 1)], "machine": machine()}
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    from threadpoolctl import threadpool_limits

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--out", type=Path, help="with --large: the file of the record")
    args = parser.parse_args()
    with threadpool_limits(1):
        if args.large:
            bench_large(args.out)
        else:
            ready = problem()
            for rank in RANKS:
                bench_sweep(ready, rank)
            bench_fit()
