"""`python -m bench.evaluation`: full-ranking top-50 against torch.topk and np.argpartition, AUC against scikit-learn.

One thread. To reach: 3x torch.topk, 15x scikit-learn. Top-50 contenders rank the same score blocks, made beforehand.
"""

import importlib.util

import numpy as np

from bench._timing import at_least, measure, skipped, table
from dubnb._random import generator
from dubnb.evaluation import BLOCK_PAIRS, top_k
from dubnb.metrics import auc

USERS, ITEMS, RANK, K = 15_400, 1_000, 50, 50
AUC_PAIRS, POSITIVES = (43_200, 1_000_000), 0.09


def score_blocks():
    """Scores of random factors in Yahoo! R3's shape, cut as the evaluator cuts them."""
    rng = generator(0, "bench-evaluation")
    P, Q = (rng.standard_normal((rows, RANK), dtype=np.float32) for rows in (USERS, ITEMS))
    size = BLOCK_PAIRS // ITEMS
    return [P[start : start + size] @ Q.T for start in range(0, USERS, size)]


def argpartition(scores):
    top = np.argpartition(scores, ITEMS - K, axis=1)[:, ITEMS - K :]
    order = np.argsort(-np.take_along_axis(scores, top, axis=1), axis=1)
    return np.take_along_axis(top, order, axis=1)


def bench_top_k():
    blocks = score_blocks()
    contenders = {
        "dubnb top_k": lambda: [top_k(block, K) for block in blocks],
        "np.argpartition": lambda: [argpartition(block) for block in blocks],
    }
    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(1)
        contenders["torch.topk"] = lambda: [torch.topk(torch.from_numpy(block), K) for block in blocks]
    else:
        skipped("torch.topk", "torch is not installed")
    title = f"Top-{K}, {USERS:,} x {ITEMS:,}"
    table(title, measure(contenders, repeats=5), "dubnb top_k", {"torch.topk": at_least(3)})


def bench_auc():
    if not importlib.util.find_spec("sklearn"):
        return skipped("scikit-learn's roc_auc_score", "scikit-learn is not installed")
    from sklearn.metrics import roc_auc_score

    for n in AUC_PAIRS:
        rng = generator(0, "bench-auc", n)
        scores = rng.standard_normal(n, dtype=np.float32)
        labels = (rng.random(n) < POSITIVES).astype(np.float32)
        contenders = {
            "dubnb auc": lambda s=scores, y=labels: auc(s, y),
            "scikit-learn roc_auc_score": lambda s=scores, y=labels: roc_auc_score(y, s),
        }
        goals = {"scikit-learn roc_auc_score": at_least(15)}
        table(f"AUC, {n:,} pairs", measure(contenders), "dubnb auc", goals)


if __name__ == "__main__":
    bench_top_k()
    bench_auc()
