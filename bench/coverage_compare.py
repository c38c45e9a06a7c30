"""Whether what `dubnb compare` promises holds, on logs of the simulated worlds.

    python -m bench.coverage_compare run --logs 5 --minutes 5     # 5 seeds x 4 worlds x 2 labels; goes on where it stopped
    python -m bench.coverage_compare summary                      # writes both records

`compare` gets each log without its truth. Then three things are checked, for the same fitted models:

1. whether the 95 % interval of each gain that it prints holds the true gain;
2. whether the chosen system has at least 95 % of the true likes in the top 10 that the best compared system has;
3. how often it says "Take ...", and whether the chosen system is then truly better than its rival.

The true gain is conditional on the fits: users, candidates and models are those of the log, only the labels that S_te
drew are replaced by what is true of every candidate. With y_ui the share of the randomized log's days on which the user
likes the item (0 or 1 where tastes do not change), e the chance that an impression of the randomized log is examined (1
for stars) and a = e y the chance of a positive label:

    liked@10     mean of a over the top 10 of every user of S_te
    user_auc     per user, sum_ij a_i (1 - a_j) [s_i > s_j] / sum_ij a_i (1 - a_j) over candidates i != j
    percentile   per user, sum_ij a_i [s_i > s_j] / sum_ij a_i over candidates i != j

The last two are means over the same users as on S_te. In `world-drift` tastes change: what is true on the last day is
recorded too, as "end". No interval from the log promises that.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from dubnb.data import worlds
from dubnb.data.partition import Partition
from dubnb.ranking import top_k

FIRST_SEED = 1000
LABELS = ("clicks", "stars")
SYSTEMS = ("base", "combine", "bridge", "dub", "dub-x binary", "dub-x graded", "popularity", "popularity-t")
SIZES = {"impressions": 30_000, "random_rows": 6_000}
BUDGET = "quick"
LENGTH = 10
NEAR = 0.95  # of the best system's true likes
DAYS = 8  # times at which the truth is looked up
RESULTS = Path("bench/records/compare-worlds.json")
COVERAGE = Path("bench/records/coverage-compare.json")
LINES = Path("bench-results/compare-worlds.jsonl")


# ---- what is true --------------------------------------------------------------------------------------------------


def true_labels(logs: worlds.Logs, world: str, seed: int, data: Partition) -> dict[str, np.ndarray]:
    """{"during", "end"}: (users, items) share of the randomized log's days with a like, and the likes of the last day."""
    users, items = data.user_ids.values - 1, data.item_ids.values - 1
    company = worlds.WORLDS[world]
    end = logs.truth.of(users, items)
    likes = np.asarray(end.label_rows(np.arange(len(users))))
    if not company.rotation and not company.trend:
        return {"during": likes, "end": likes}
    people = worlds._people(company, worlds.Draw(seed, world, 0))
    now, cuts = people.logits(users, np.ones(len(users))), np.log(end.draws) - np.log1p(-end.draws)
    times = (np.arange(DAYS) + 0.5) / DAYS
    liked = [
        end.logits + (people.logits(users, np.full(len(users), each)) - now)[:, items] > cuts for each in times
    ]
    return {"during": np.mean(liked, axis=0), "end": likes}


def examined(labels: str) -> float:
    """e: the chance that an impression of the randomized log is looked at."""
    if labels == "stars":
        return 1.0
    return float(np.mean(1.0 / (1.0 + worlds.EXAMINATION * np.arange(worlds.RANDOM_SLOTS))))


def above(scores: np.ndarray, positive: np.ndarray, other: np.ndarray) -> float:
    """sum_ij p_i o_j [s_i > s_j] / sum_ij p_i o_j over i != j; a tie counts one half."""
    values, rank = np.unique(scores, return_inverse=True)
    p, o, own = (np.bincount(rank, weights, len(values)) for weights in (positive, other, positive * other))
    wins = float(p @ (np.cumsum(o) - o) + (p @ o - own.sum()) / 2)
    pairs = float(positive.sum() * other.sum() - own.sum())
    return wins / pairs if pairs > 0 else float("nan")


def true_values(scores: np.ndarray, chances: np.ndarray, data: Partition) -> dict[str, np.ndarray]:
    """Metric -> its true value for each user (row): liked@10, user_auc and percentile. `chances`: a."""
    every = np.arange(data.n_users)
    barred = data.everything_but("S_te").mask(every, data.n_items)
    top = top_k(scores, LENGTH, barred)
    listed = np.where(top >= 0, np.take_along_axis(chances, np.maximum(top, 0), axis=1), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of users without candidates
        found = {"liked@10": np.nanmean(listed, axis=1)}
    for metric in ("user_auc", "percentile"):
        found[metric] = np.full(data.n_users, np.nan)
        for user in np.unique(data.unseen("S_te").users):
            open_to = ~barred[user]
            a = chances[user, open_to]
            others = 1.0 - a if metric == "user_auc" else np.ones(len(a))
            found[metric][user] = above(scores[user, open_to], a, others)
    return found


def true_mean(study: Any, case: Any, metric: str, chances: np.ndarray, scores: list[np.ndarray]) -> float:
    """A metric's true value: the mean over the users that S_te judges it on, and over the seeds."""
    data, each = study.design.source, []
    for fit, own in zip(study.judged[case], scores, strict=True):
        judged = fit.judged_users["S_te"]
        users = judged.users
        if metric != "liked@10":
            users = users[~np.isnan(getattr(judged, metric))]
        each.append(np.nanmean(true_values(own, chances, data)[metric][users]))
    return float(np.mean(each))


def refitted(study: Any, case: Any) -> list[np.ndarray]:
    """(users, items) scores of the case's fits, seed by seed: fitted again, and found to be the same."""
    data = study.design.source
    S_te, found = data.triplets("S_te"), []
    for fit in study.judged[case]:
        model = case.system.method_class()(**study.winners[case].params, seed=fit.seed).fit(data)
        scores = np.asarray(model.weights_.score_rows(np.arange(data.n_users)))
        if not np.allclose(scores[S_te.users, S_te.items], fit.scores, rtol=1e-4, atol=1e-5):
            raise RuntimeError(f"{case} with seed {fit.seed} is not what compare judged")
        found.append(scores)
    return found


# ---- one log -------------------------------------------------------------------------------------------------------


def one_log(world: str, labels: str, seed: int, out: str) -> dict[str, Any]:
    """What `compare` says about one log, and what is true."""
    from dubnb.experiments.compare import compare
    from dubnb.experiments.systems import Choice
    from dubnb.sweeps.engine import Resources

    start = time.perf_counter()
    logs = worlds.make(world, labels, seed, **SIZES)
    data = logs.partition(f"{world}:{labels}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = compare(data, out, BUDGET, Choice(SYSTEMS), resources=Resources(quiet=True))
        return judged(done, true_labels(logs, world, seed, data), examined(labels)) | {
            "world": world,
            "labels": labels,
            "seed": seed,
            "seconds": round(time.perf_counter() - start, 1),
        }
