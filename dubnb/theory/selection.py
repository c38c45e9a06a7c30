"""Facts about the biased log: how far S_c is from uniform, and what selected it (popularity, activity, taste)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb import stats
from dubnb._random import generator, key
from dubnb.data.partition import PARTS, Partition
from dubnb.data.pattern import UnobservedPairs
from dubnb.theory.uniformity import randomized_log, randomized_weights

if TYPE_CHECKING:
    from dubnb.backbones import Scorer
EPOCHS = 20  # epochs of the model that predicts taste: it need not be the best
RANK = 20
AFFINITY_RANK = 5  # higher ranks fit noise on small logs
NEWTON_STEPS = 25
RIDGE = 1e-6  # ridge of the logistic regression, per pair
LARGEST_LOGIT = 30.0


@dataclass(frozen=True)
class Fact:
    """A number that describes the logs, with an interval where it is an estimate."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    meaning: str = ""


@dataclass(frozen=True)
class TasteModel:
    """A model of one half of S_c. `scorer` and `half` are None where labels of that half are all equal, or on disk."""

    scorer: Scorer | None
    half: Partition | None
    other: np.ndarray  # rows of S_c in the other half


def taste_model(data: Partition, seed: int) -> TasteModel:
    """Fit `base` on a random half of S_c, so that the other half can show whether taste selected it.

    S_t is not used: the audit asks whether S_t is independent of this model.
    """
    from dubnb.methods.base import Base

    if data.stored_in is not None:
        return TasteModel(None, None, np.zeros(0, np.int64))
    S_c = data.triplets("S_c")
    order = generator(seed, "audit", "half").permutation(len(S_c.users))
    first, other = np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
    labels = S_c.labels[first]
    if not len(first) or labels.min() == labels.max():
        return TasteModel(None, None, other)
    none = S_c.take(slice(0))
    parts = {part: none for part in PARTS} | {"S_c": S_c.take(first)._replace(grades=None)}
    half = Partition(parts, (data.n_users, data.n_items), user_ids=data.user_ids, item_ids=data.item_ids)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # no S_va on purpose: a fixed number of epochs
        scorer = Base(rank=RANK, epochs=EPOCHS, seed=seed).fit(half).weights_
    return TasteModel(scorer, half, other)


def selection_facts(data: Partition, model: TasteModel, seed: int) -> list[Fact]:
    """Gini, coverage, effective sample size, label shift, and the shares of selection explained."""
    return [*_shape(data), *_label_shift(data), *_explained(data, model, seed)]


def gini(counts: np.ndarray) -> float:
    """Gini coefficient of non-negative counts: 0 when all are equal, near 1 when one has all."""
    ordered, n = np.sort(counts), len(counts)
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * ordered.sum()))


def _shape(data: Partition) -> list[Fact]:
    by_user, by_item, *_ = data.biased_counts
    size, tenth, met = data.size("S_c"), max(1, data.n_items // 10), by_item[by_item > 0]
    # (sum w)^2 / sum w^2: how many equally weighted pairs are as precise as the reweighted S_c
    sizes = {"by popularity": len(met) ** 2 / float((1 / met).sum())}  # w = 1 / the item's pairs
    if data.propensities is not None:
        w = 1 / data.propensities
        sizes["by the log's propensities"] = float(w.sum() ** 2 / (w**2).sum())
    return [
        Fact("Gini of the items' popularity", gini(by_item), meaning="0: all equal, 1: one item has all"),
        Fact("Gini of the users' activity", gini(by_user), meaning="0: all equal, 1: one user has all"),
        Fact("share of the most popular tenth", float(np.sort(by_item)[-tenth:].sum() / by_item.sum())),
        Fact("items with a pair in S_c", float((by_item > 0).mean()), meaning="share of all items"),
        Fact("coverage", size / (data.n_users * data.n_items), meaning="share of all pairs that S_c holds"),
        *(Fact(f"effective size {how}", n / size, meaning="share of |S_c|") for how, n in sizes.items()),
    ]


class PositiveRates(NamedTuple):
    """Positive rates of S_c, as it was logged, and of the randomized log; None for an empty log."""

    biased: stats.Rate | None
    randomized: stats.Rate | None

    def difference(self) -> tuple[float, float, float]:
        """The biased rate minus the randomized one, with a 95 % interval."""
        assert self.biased is not None and self.randomized is not None
        value = self.biased.rate - self.randomized.rate
        half = float(np.hypot(self.biased.high - self.biased.rate, self.randomized.high - self.randomized.rate))
        return value, value - half, value + half


def positive_rates(data: Partition) -> PositiveRates:
    """The positive rates of both logs, with users as clusters; with propensities, that of uniform traffic."""
    counts, overlap, log = data.biased_counts, data.overlap, randomized_log(data)
    pairs = counts.users + np.bincount(overlap.users, minlength=data.n_users)
    liked = counts.liked_by_users + np.bincount(overlap.users, overlap.policy_labels, data.n_users)
    return PositiveRates(rate_of_counts(pairs, liked), clustered_rate(log.users, log.labels, randomized_weights(data)))


def rate_of_counts(pairs: np.ndarray, liked: np.ndarray) -> stats.Rate | None:
    """`clustered_rate` from every user's pairs and positives."""
    n = int(pairs.sum())
    if not n:
        return None
    rate = float(liked.sum()) / n
    half = 1.96 * float(np.sqrt(((liked - rate * pairs) ** 2).sum())) / n
    return stats.Rate(rate, rate - half, rate + half, n)


def clustered_rate(users: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> stats.Rate | None:
    """The (weighted) share of positives with a normal 95 % interval whose variance is clustered by user."""
    if not len(users):
        return None
    if weights is not None:
        weights = weights / weights.mean()
    rate = float(labels.mean(dtype=np.float64) if weights is None else np.average(labels, weights=weights))
    sums = np.bincount(users, weights=labels - rate if weights is None else weights * (labels - rate))
    half = 1.96 * float(np.sqrt((sums**2).sum())) / len(users)
    return stats.Rate(rate, rate - half, rate + half, len(users))


def _label_shift(data: Partition) -> list[Fact]:
    rates = positive_rates(data)
    facts = [
        Fact(name, rate.rate, max(0.0, rate.low), min(1.0, rate.high))
        for name, rate in zip(("positives in S_c", "positives in the randomized log"), rates, strict=True)
        if rate is not None
    ]
    return (
        [*facts, Fact("label shift", *rates.difference(), "the first minus the second")] if len(facts) == 2 else facts
    )


# ---- what selected S_c ---------------------------------------------------------------------------------------------


def _explained(data: Partition, model: TasteModel, seed: int) -> list[Fact]:
    """Deviance explained by a logistic model of "is the pair in S_c?", adding one cause after the other.

    The causes are computed from one half of S_c. The model is fitted to the other half and as many pairs outside S_c,
    so that no pair explains itself.
    """
    if model.scorer is None or model.half is None or not len(model.other):
        return []
    outside = UnobservedPairs(data.n_users, data.n_items, data.pattern("S_c"))
    if outside.size == 0:
        return []
    S_c = data.triplets("S_c").take(model.other)
    users, items = (np.empty(len(S_c.users), np.int32) for _ in range(2))
    outside.draw(key(seed, "audit", "outside"), users, items)
    selected = np.repeat([1.0, 0.0], len(users))
    users, items = np.concatenate([S_c.users, users]), np.concatenate([S_c.items, items])
    facts: list[Fact] = []
    before, columns = 0.0, np.ones((len(users), 1))
    for name, values in causes(model.scorer, model.half, users, items).items():
        columns = np.column_stack([columns, values])
        share = deviance_explained(columns, selected)
        meaning = "of the deviance of selection" if not facts else "more"
        facts.append(Fact(f"selection explained by {name}", share - before, meaning=meaning))
        before = share
    meaning = "a lower limit: the rest is chance, or badly measured by these three"
    return [*facts, Fact("selection explained in all", before, meaning=meaning)]


def causes(scorer: Scorer, half: Partition, users: np.ndarray, items: np.ndarray) -> dict[str, np.ndarray]:
    """Activity, popularity (logs of counts in one half of S_c) and taste of some pairs, standardised.

    Taste has two columns: the scores of a model trained on the labels, and `affinities`.
    """
    S_c = half.triplets("S_c")
    scores = np.asarray(scorer.score_pairs(users, items), np.float64)
    values = {
        "activity": np.log1p(np.bincount(S_c.users, minlength=half.n_users))[users, None],
        "popularity": np.log1p(np.bincount(S_c.items, minlength=half.n_items))[items, None],
        "taste": np.column_stack([scores, affinities(half, users, items)]),
    }
    return {name: (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-12) for name, x in values.items()}


def affinities(half: Partition, users: np.ndarray, items: np.ndarray) -> np.ndarray:
    """How much more often a pair is selected than its margins predict: correspondence analysis of "is in S_c".

    The leading singular vectors of X_ui / sqrt(n_u n_i) reconstruct a pair, and the result is divided by sqrt(n_u n_i).
    The first vector is left out: it holds activity and popularity only.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.linalg import svds

    S_c = half.triplets("S_c")
    by_user = np.maximum(np.bincount(S_c.users, minlength=half.n_users), 1.0)
    by_item = np.maximum(np.bincount(S_c.items, minlength=half.n_items), 1.0)
    k = min(AFFINITY_RANK, half.n_users - 1, half.n_items - 1)
    if k < 2:
        return np.zeros(len(users))
    values = 1 / np.sqrt(by_user[S_c.users] * by_item[S_c.items])
    X = csr_matrix((values, (S_c.users, S_c.items)), shape=(half.n_users, half.n_items))
    U, sigma, Vt = svds(X, k=k, v0=np.ones(min(X.shape)))
    order = np.argsort(-sigma)[1:]
    score = np.einsum("jk,jk->j", U[users][:, order] * sigma[order], Vt.T[items][:, order])
    return np.asarray(score / np.sqrt(by_user[users] * by_item[items]) * len(S_c.users))


def deviance_explained(columns: np.ndarray, selected: np.ndarray) -> float:
    """1 - deviance / null deviance of a logistic regression (McFadden), fitted by Newton's method.

    A small ridge keeps the Hessian regular where columns are constant or separate the classes.
    """

    def probabilities() -> np.ndarray:
        return np.asarray(1 / (1 + np.exp(-np.clip(columns @ beta, -LARGEST_LOGIT, LARGEST_LOGIT))))

    beta, ridge = np.zeros(columns.shape[1]), RIDGE * len(selected)
    for _ in range(NEWTON_STEPS):
        p = probabilities()
        gradient = columns.T @ (selected - p) - ridge * beta
        hessian = (columns * (p * (1 - p))[:, None]).T @ columns + ridge * np.eye(len(beta))
        step = np.linalg.solve(hessian, gradient)
        beta += step
        if np.abs(step).max() < 1e-8:
            break
    p, mean = probabilities(), selected.mean()
    log_likelihood = (selected * np.log(p) + (1 - selected) * np.log1p(-p)).mean()
    null = mean * np.log(mean) + (1 - mean) * np.log1p(-mean)
    return float(1 - log_likelihood / null)
