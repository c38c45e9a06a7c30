"""How far S_c is from a uniform log, and what selected it: popularity, activity, taste."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb import stats
from dubnb._random import generator, key
from dubnb.data.partition import PARTS, Partition
from dubnb.data.sampling import UnobservedPairs
from dubnb.theory.facts import Fact
from dubnb.theory.uniformity import randomized_log

if TYPE_CHECKING:
    from dubnb.backbones import Scorer
EPOCHS = 20  # at most, of the model that predicts taste: it need not be the best
RANK = 20
AFFINITY_RANK = 5  # more tell less on small logs
NEWTON_STEPS = 25
RIDGE = 1e-6  # of the logistic regression, per pair
LARGEST_LOGIT = 30.0


@dataclass(frozen=True)
class TasteModel:
    """M_c of one half of S_c (None where it cannot be told apart from noise), and the other half's rows."""

    scorer: Scorer | None
    half: Partition | None
    other: np.ndarray


def taste_model(data: Partition, seed: int) -> TasteModel:
    """`base` on a random half of S_c, so that the other half can say whether taste selected it.

    S_t has no part in it, which the question of taste needs.
    """
    from dubnb.methods.base import Base

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


def facts(data: Partition, model: TasteModel, seed: int) -> list[Fact]:
    """Gini, coverage, effective sample size, label shift, and the shares of selection explained."""
    return [*_shape(data), *_effective_sizes(data), *_label_shift(data), *_explained(data, model, seed)]


def gini(counts: np.ndarray) -> float:
    """Gini coefficient of non-negative counts: 0 when all are equal, near 1 when one has all."""
    ordered, n = np.sort(counts), len(counts)
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * ordered.sum()))


def _shape(data: Partition) -> list[Fact]:
    S_c = data.triplets("S_c")
    by_item = np.bincount(S_c.items, minlength=data.n_items)
    by_user = np.bincount(S_c.users, minlength=data.n_users)
    tenth = max(1, data.n_items // 10)
    return [
        Fact("Gini of the items' popularity", gini(by_item), meaning="0: all alike, 1: one has all"),
        Fact("Gini of the users' activity", gini(by_user), meaning="0: all alike, 1: one has all"),
        Fact("share of the most popular tenth", float(np.sort(by_item)[-tenth:].sum() / by_item.sum())),
        Fact("items with a pair in S_c", float((by_item > 0).mean()), meaning="share of all items"),
        Fact("coverage", len(S_c.users) / (data.n_users * data.n_items), meaning="share of all pairs that S_c holds"),
    ]


def _effective_sizes(data: Partition) -> list[Fact]:
    """(sum w)^2 / sum w^2 over |S_c|, w the inverse propensities: what is left of S_c once it is reweighted."""
    S_c = data.triplets("S_c")
    by_item = np.bincount(S_c.items, minlength=data.n_items).astype(np.float64)
    weights = {"by popularity": 1 / by_item[S_c.items]}
    if data.propensities is not None:
        weights["by the log's propensities"] = 1 / data.propensities
    return [
        Fact(f"effective size {how}", float(w.sum() ** 2 / (w**2).sum() / len(w)), meaning="share of |S_c|")
        for how, w in weights.items()
    ]


def _label_shift(data: Partition) -> list[Fact]:
    """Positive rates of both logs, S_c as it was logged, and their difference; users are the clusters."""
    S_c, overlap, log = data.triplets("S_c"), data.overlap, randomized_log(data)
    users = np.concatenate([S_c.users, overlap.users])
    logged = clustered_rate(users, np.concatenate([S_c.labels, overlap.policy_labels]))
    rates = [logged, clustered_rate(log.users, log.labels)]
    names = ("positives in S_c", "positives in the randomized log")
    shares = [
        Fact(name, rate.rate, max(0.0, rate.low), min(1.0, rate.high))
        for name, rate in zip(names, rates, strict=True)
        if rate is not None
    ]
    first, second = rates
    if first is None or second is None:
        return shares
    half = float(np.hypot(first.high - first.rate, second.high - second.rate))
    difference = first.rate - second.rate
    return [
        *shares,
        Fact("label shift", difference, difference - half, difference + half, "the first minus the second"),
    ]


def clustered_rate(users: np.ndarray, labels: np.ndarray) -> stats.Rate | None:
    """The share of positives, with the normal interval whose variance takes a user's labels together."""
    if not len(users):
        return None
    rate = float(labels.mean(dtype=np.float64))
    sums = np.bincount(users, weights=labels - rate)
    half = 1.96 * float(np.sqrt((sums**2).sum())) / len(users)
    return stats.Rate(rate, rate - half, rate + half, len(users))


# ---- what selected S_c ---------------------------------------------------------------------------------------------


def _explained(data: Partition, model: TasteModel, seed: int) -> list[Fact]:
    """Deviance explained by a logistic model of "is the pair in S_c?", adding one cause after the other.

    All that it knows comes from one half of S_c; it is asked about the other half and as many pairs outside S_c, so
    that nothing explains itself.
    """
    if model.scorer is None or model.half is None or not len(model.other):
        return []
    pairs = _asked_pairs(data, model, seed)
    if pairs is None:
        return []
    causes = _causes(model, pairs.users, pairs.items)
    explained: list[Fact] = []
    before, columns = 0.0, np.ones((len(pairs.users), 1))
    for name, values in causes.items():
        columns = np.column_stack([columns, values])
        share = deviance_explained(columns, pairs.chosen)
        about = "of the deviance of selection" if not explained else "more"
        explained.append(Fact(f"selection explained by {name}", share - before, meaning=about))
        before = share
    return [
        *explained,
        Fact(
            "selection explained in all",
            before,
            meaning="at least: the rest is chance, or what these three measure badly",
        ),
    ]


class _Asked(NamedTuple):
    users: np.ndarray
    items: np.ndarray
    chosen: np.ndarray  # 1 in S_c, 0 outside


def _asked_pairs(data: Partition, model: TasteModel, seed: int) -> _Asked | None:
    S_c = data.triplets("S_c").take(model.other)
    pairs = UnobservedPairs(data.n_users, data.n_items, data.pattern("S_c"))
    if pairs.size == 0:
        return None
    users, items = (np.empty(len(S_c.users), np.int32) for _ in range(2))
    pairs.draw(key(seed, "audit", "outside"), users, items)
    chosen = np.repeat([1.0, 0.0], len(users))
    return _Asked(np.concatenate([S_c.users, users]), np.concatenate([S_c.items, items]), chosen)


def _causes(model: TasteModel, users: np.ndarray, items: np.ndarray) -> dict[str, np.ndarray]:
    """Activity, popularity (logs of counts in the first half) and taste, of some pairs, standardised.

    Taste has two columns: what M_c predicts from labels, and what is chosen together (`_affinities`).
    """
    assert model.half is not None and model.scorer is not None
    S_c = model.half.triplets("S_c")
    by_user = np.bincount(S_c.users, minlength=model.half.n_users)
    by_item = np.bincount(S_c.items, minlength=model.half.n_items)
    scores = np.asarray(model.scorer.score_pairs(users, items), np.float64)
    values = {
        "activity": np.log1p(by_user)[users, None],
        "popularity": np.log1p(by_item)[items, None],
        "taste": np.column_stack([scores, _affinities(model.half, users, items)]),
    }
    return {name: (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-12) for name, x in values.items()}


def _affinities(half: Partition, users: np.ndarray, items: np.ndarray) -> np.ndarray:
    """How well pairs go with what else is chosen together: correspondence analysis of "is in S_c".

    The leading singular vectors of X_ui / sqrt(n_u n_i), without the first, which says activity and popularity alone;
    the reconstruction of a pair over sqrt(n_u n_i) is by how much it is chosen more often than its margins say.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.linalg import svds

    S_c = half.triplets("S_c")
    by_user, by_item = (np.maximum(np.bincount(x, minlength=n), 1.0) for x, n in _sides(half))
    k = min(AFFINITY_RANK, half.n_users - 1, half.n_items - 1)
    if k < 2:
        return np.zeros(len(users))
    values = 1 / np.sqrt(by_user[S_c.users] * by_item[S_c.items])
    X = csr_matrix((values, (S_c.users, S_c.items)), shape=(half.n_users, half.n_items))
    U, sigma, Vt = svds(X, k=k, v0=np.ones(min(X.shape)))
    order = np.argsort(-sigma)[1:]
    score = np.einsum("jk,jk->j", U[users][:, order] * sigma[order], Vt.T[items][:, order])
    return np.asarray(score / np.sqrt(by_user[users] * by_item[items]) * len(S_c.users))


def _sides(data: Partition) -> tuple[tuple[np.ndarray, int], tuple[np.ndarray, int]]:
    S_c = data.triplets("S_c")
    return (S_c.users, data.n_users), (S_c.items, data.n_items)


def deviance_explained(columns: np.ndarray, chosen: np.ndarray) -> float:
    """1 - deviance / null deviance of a logistic regression (McFadden), fitted by Newton's method.

    The trace of a ridge keeps the Hessian regular where columns are constant or separate the classes.
    """
    beta, ridge = np.zeros(columns.shape[1]), RIDGE * len(chosen)
    for _ in range(NEWTON_STEPS):
        p = _probabilities(columns, beta)
        gradient = columns.T @ (chosen - p) - ridge * beta
        hessian = (columns * (p * (1 - p))[:, None]).T @ columns + ridge * np.eye(len(beta))
        step = np.linalg.solve(hessian, gradient)
        beta += step
        if np.abs(step).max() < 1e-8:
            break
    p = _probabilities(columns, beta)
    mean = chosen.mean()
    log_likelihood = (chosen * np.log(p) + (1 - chosen) * np.log1p(-p)).mean()
    null = mean * np.log(mean) + (1 - mean) * np.log1p(-mean)
    return float(1 - log_likelihood / null)


def _probabilities(columns: np.ndarray, beta: np.ndarray) -> np.ndarray:
    logits = np.clip(columns @ beta, -LARGEST_LOGIT, LARGEST_LOGIT)
    return np.asarray(1 / (1 + np.exp(-logits)))
