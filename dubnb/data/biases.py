"""Worlds of different bias: one simulator whose mechanisms are declared, so that each bias can be studied alone.

1,000 users x 300 items. All worlds of one seed share the same people, items and likes:

    logit P(like)_ui = mu + a_u + c_i + <p_u, q_i>,    utility v_ui = logit P(like)_ui - logit U_ui,    liked: v_ui > 0

with a ~ N(0, .5^2), c ~ N(0, .7^2), <p_u, q_i> of standard deviation 1.5 over 4 factors, and U_ui uniform, drawn once.
Bisection finds the mu for which 10 % of all pairs are liked. fame_i ~ N(0, 1) is unrelated to everything above.

**The biased log** has 40,000 rows in 10 rounds. A session's user is drawn by activity (log-normal, sd .3). Its 10 slots
hold the items with the highest exposure score + Gumbel noise, best first. No pair is shown twice. Without a mechanism
the exposure score is 0: items are uniform and every label is a like.

| world | mechanism and strength s | what it changes |
|---|---|---|
| `bias-none` | - | nothing: the control |
| `bias-popularity` | popularity 1.5 | the exposure score is s fame_i |
| `bias-selection` | selection .5 | a pair that is not liked is recorded with probability exp(s v_ui) |
| `bias-position` | position .5 | slots are sorted by fame; slot k is examined with probability 1 / (1 + s k) |
| `bias-conformity` | conformity 1 | the label is v_ui + s crowd_i > 0, with the public opinion crowd_i |
| `bias-loop` | loop 3 | the exposure score is s times the score of a recommender |
| `bias-growth` | growth .7 | this share of the items enters the catalogue later, at uniform times |
| `bias-all` | all of them, weaker | - |

- position: k is 0, 1, ... from the top. A row is positive if its slot is examined and its item liked.
- crowd_i is the standardised logit of the item's share of positives so far. Every item begins with 20 invented rows,
  whose share of positives grows with its fame.
- The recommender of `loop` is retrained after each round on its own log. Its score is the item's share of positives,
  plus a rank-4 approximation of the centred 0/1 matrix, standardised. In the first round items are uniform.

**The randomized log** has 8,000 distinct pairs, uniform over the pairs outside the biased log, collected after the last
round. Its labels are likes. The estimand is P(like), and y^t is the like itself.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb._jit import one_blas_thread
from dubnb._random import generator
from dubnb.data.partition import Partition
from dubnb.data.worlds import KnownTruth, Logs

N_USERS, N_ITEMS, RANK = 1_000, 300, 4
ROWS, RANDOM_ROWS, ROUNDS, SLOTS = 40_000, 8_000, 10, 10
LIKED = 0.1  # share of all pairs
GENEROSITY, QUALITY, TASTE, ACTIVITY = 0.5, 0.7, 1.5, 0.3
EARLY_ROWS = 20  # of public opinion before the first round
SHRINK = 10.0  # rows at the mean rate that the recommender adds to an item
BATCH = 400  # sessions that are drawn at a time
MOST_SHOWN = 0.9  # share of all pairs


class Mechanisms(NamedTuple):
    """The strength of each mechanism, see the module's table; 0 switches it off."""

    popularity: float = 0.0
    selection: float = 0.0
    position: float = 0.0
    conformity: float = 0.0
    loop: float = 0.0
    growth: float = 0.0


BIASES = {
    "bias-none": Mechanisms(),
    "bias-popularity": Mechanisms(popularity=1.5),
    "bias-selection": Mechanisms(selection=0.5),
    "bias-position": Mechanisms(position=0.5),
    "bias-conformity": Mechanisms(conformity=1.0),
    "bias-loop": Mechanisms(loop=3.0),
    "bias-growth": Mechanisms(growth=0.7),
    "bias-all": Mechanisms(0.75, 0.25, 0.3, 0.5, 1.5, 0.5),
}


class Society(NamedTuple):
    """Users and items, the same in all worlds of a seed."""

    logits: np.ndarray  # (users, items) logit P(like)
    draws: np.ndarray  # (users, items) U
    fame: np.ndarray  # (items,)
    activity: np.ndarray  # (users,) share of the sessions
    entry: np.ndarray  # (items,) uniform: decides when an item enters a growing catalogue

    def utility(self) -> np.ndarray:
        """The utility v of every pair of a user and an item."""
        return np.asarray(self.logits - (np.log(self.draws) - np.log1p(-self.draws)))


def make_society(seed: int = 0) -> Society:
    """The people, items and likes of a seed."""

    def normal(name: str, *size: int) -> np.ndarray:
        return generator(seed, "bias", name).standard_normal(size)

    taste = TASTE / math.sqrt(RANK) * normal("p", N_USERS, RANK) @ normal("q", N_ITEMS, RANK).T
    logits = taste + GENEROSITY * normal("a", N_USERS, 1) + QUALITY * normal("c", N_ITEMS)
    low, high = -20.0, 20.0
    for _ in range(50):
        mu = 0.5 * (low + high)
        low, high = (mu, high) if (1.0 / (1.0 + np.exp(-mu - logits))).mean() < LIKED else (low, mu)
    activity = np.exp(ACTIVITY * normal("activity", N_USERS))
    draws = generator(seed, "bias", "likes").random((N_USERS, N_ITEMS))
    entry = generator(seed, "bias", "entry").random(N_ITEMS)
    return Society(mu + logits, draws, normal("fame", N_ITEMS), activity / activity.sum(), entry)


@one_blas_thread()  # the same bytes on any number of cores
def make_biased(
    mechanisms: Mechanisms, seed: int = 0, *, rows: int = ROWS, random_rows: int = RANDOM_ROWS, rounds: int = ROUNDS
) -> Logs:
    """The two logs of a society under some mechanisms, and their truth. The same arguments give the same bytes.

    Parameters
    ----------
    mechanisms : Mechanisms
        Which biases the system has, and how strong they are.
    seed : int
        Seed of everything.
    rows, random_rows : int
        Rows of either log.
    rounds : int
        How often the simulated recommender and public opinion are renewed.
    """
    import pandas as pd

    _check.whole("random_rows", random_rows)
    rows, rounds = _check.whole("rows", rows), _check.whole("rounds", rounds)
    if rows + random_rows > N_USERS * N_ITEMS // 2:
        most = f"must be at most {N_USERS * N_ITEMS // 2:,} together"
        raise InputError(f"rows={rows} and random_rows={random_rows} {most}: ask for less")
    society = make_society(_check.whole("seed", seed, low=0))
    log = _biased_log(society, mechanisms, seed, rows, rounds)
    free = np.ones(N_USERS * N_ITEMS, dtype=bool)
    free[log["user"] * N_ITEMS + log["item"]] = False
    pairs = generator(seed, "bias", "random").permutation(N_USERS * N_ITEMS)
    users, items = np.divmod(pairs[free[pairs]][:random_rows], N_ITEMS)
    likes = (society.utility()[users, items] > 0).astype(np.int64)
    uniform = {"user": users, "item": items, "label": likes, "position": np.zeros_like(users)}
    uniform["timestamp"] = np.full_like(users, rounds)
    biased, random = (pd.DataFrame(each | {n: each[n] + 1 for n in ("user", "item")}) for each in (log, uniform))
    truth = KnownTruth(society.logits, society.draws)
    return Logs(biased, random, truth, {"label": "label", "timestamp": "timestamp"})


def load(name: str, seed: int = 0) -> Partition:
    """The Partition of a world such as "bias-loop"."""
    return make_biased(BIASES[_check.choice("world", name, tuple(BIASES))], seed).partition(name)


def _biased_log(society: Society, own: Mechanisms, seed: int, rows: int, rounds: int) -> dict[str, np.ndarray]:
    """The columns of the biased log; users and items are rows of the society."""
    stream, utility = generator(seed, "bias", "system"), society.utility()
    shown = np.zeros((N_USERS, N_ITEMS), dtype=bool)
    recorded = np.full((N_USERS, N_ITEMS), np.nan)  # labels so far
    enters = np.where(society.entry < own.growth, rounds * society.entry / max(own.growth, 1e-9), 0.0)
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("user", "item", "label", "position", "timestamp")}
    n = 0
    for number in range(rounds):
        exposure = np.where(enters <= number, own.popularity * society.fame, -np.inf) + np.zeros((N_USERS, 1))
        if own.loop and n:
            exposure = exposure + own.loop * _recommender_scores(recorded)
        crowd = own.conformity * _opinion(recorded, society.fame) if own.conformity else np.zeros(N_ITEMS)
        while n < rows * (number + 1) // rounds:
            if shown.mean() > MOST_SHOWN:
                raise InputError(f"rows={rows}: {n} are recorded after showing almost every pair; ask for fewer rows")
            users = np.unique(stream.choice(N_USERS, BATCH, p=society.activity))
            users = stream.permutation(users)
            items = _slots(np.where(shown[users], -np.inf, exposure[users]), stream)
            if own.position:  # another order of the same items
                order = np.argsort(np.where(items >= 0, -society.fame[items], np.inf), axis=1, kind="stable")
                items = np.take_along_axis(items, order, axis=1)
            who, slot = np.nonzero(items >= 0)
            user, item = users[who], items[who, slot]
            shown[user, item] = True
            v = utility[user, item]
            examined = stream.random(len(v)) < 1.0 / (1.0 + own.position * slot)
            kept = stream.random(len(v)) < np.exp(np.minimum(own.selection * v, 0.0))
            label = (v + crowd[item] > 0) & examined
            kept &= np.cumsum(kept) <= rows * (number + 1) // rounds - n
            recorded[user[kept], item[kept]] = label[kept]
            n += int(kept.sum())
            batch = (user, item, label.astype(np.int64), slot, np.full(len(user), number))
            for column, values in zip(columns.values(), batch, strict=True):
                column.append(values[kept])
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _slots(scores: np.ndarray, stream: np.random.Generator) -> np.ndarray:
    """(sessions, SLOTS) items with the highest score + Gumbel noise, best first; -1 where no item is left."""
    scores = scores + stream.gumbel(size=scores.shape)
    best = np.argpartition(-scores, SLOTS, axis=1)[:, :SLOTS]
    own = np.take_along_axis(scores, best, axis=1)
    order = np.argsort(-own, axis=1)
    return np.where(np.isfinite(np.take_along_axis(own, order, axis=1)), np.take_along_axis(best, order, axis=1), -1)


def _recommender_scores(recorded: np.ndarray) -> np.ndarray:
    """Standardised scores of a recommender that is trained on the labels so far (nan: not recorded)."""
    known, labels = ~np.isnan(recorded), np.nan_to_num(recorded)
    mean = labels.sum() / known.sum()
    share = (labels.sum(axis=0) + SHRINK * mean) / (known.sum(axis=0) + SHRINK)
    residual = np.where(known, labels - share, 0.0)
    axes = np.linalg.eigh(residual.T @ residual)[1][:, -RANK:]
    scores = share + residual @ axes @ axes.T
    return np.asarray((scores - scores.mean()) / scores.std())


def _opinion(recorded: np.ndarray, fame: np.ndarray) -> np.ndarray:
    """Each item's public opinion: the standardised logit of its share of positives, which early rows influence."""
    known, labels = ~np.isnan(recorded), np.nan_to_num(recorded)
    mean = labels.sum() / known.sum() if known.any() else LIKED
    early = 1.0 / (1.0 + np.exp(-(math.log(mean / (1 - mean)) + fame)))
    share = (labels.sum(axis=0) + EARLY_ROWS * early) / (known.sum(axis=0) + EARLY_ROWS)
    logit = np.log(share) - np.log1p(-share)
    return np.asarray((logit - logit.mean()) / logit.std())
