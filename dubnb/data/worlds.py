"""Invented companies with a known truth: two logs of impressions, as a company has them, and P(like) of every pair.

2,000 users x 600 items over 28 days. Time runs from 0 to 1, and the truth is judged at 1, just after the log's end:

    logit P(like)_ui(time) = mu + a_u + c_i + s_i (time - 1) + <p_u(time), q_i>
    p_u(time) = p_u cos(w (1 - time)) + p'_u sin(w (1 - time))
    utility v_ui(time) = logit P(like)_ui(time) - logit U_ui,    liked at that time: v > 0

U_ui is uniform and drawn once per pair: a user who likes an item likes it again, unless the taste has moved. Only
`world-drift` has a rotation w and trends s.

| world | what people like | what the system shows |
|---|---|---|
| `world-popular` | quality differs much; busy users like less | famous items, which are the better ones |
| `world-niche` | the items of three of 30 niches | famous items, which are not better than others |
| `world-drift` | user factors rotate, items rise and fall | famous items, a little better than others |
| `world-promoted` | quality and taste | editors push 20 % of the items, which people like less |

**The biased log**: 80,000 impressions in sessions of 10 slots. A session's user is drawn by activity (log-normal). The
slots hold the 10 items with the highest

    fame_i + push_i + beta (<p_u(time), q_i> + s_i (time - 1)) + error_ui + kappa [v_ui > 0] + Gumbel noise,

best first. error_ui is the recommender's permanent error about a pair. kappa is self-selection: people also look for
what they like. A pair can occur again in later sessions.

**The randomized log**: 12,000 impressions in sessions of 5 slots, over the same days and by the same activity. Items
are uniform given the user. Pairs of the biased log are not left out, and a pair can occur again.

**Positions**: the impression at position k = 0, 1, ... is examined with probability 1 / (1 + .3 k).

| labels | column | a row of the biased log is | positive |
|---|---|---|---|
| `clicks` | click | an impression | 1: examined and liked |
| `stars` | stars, 1 to 5 | an impression that was rated | above 3: liked |
| `watch` | seconds | an impression | above 20: examined and liked, with noise |
| `clicks-only` | none | a click | every row |

`stars`: people rate 90 % of the examined impressions that they like and 60 % of the others; in the randomized log a
survey gets all of them rated. `watch`: 20 exp(v / 2 + N(0, .5^2)) seconds, at most 3,600; around 1.5 if not
examined. `clicks-only`: the randomized log is that of `clicks`, because a company that randomizes records what it
showed; with `clicks-only-both` it has clicks only, too.

**The estimand** is P(like | shown and examined) at the log's end, for all labels alike; y^t is the like itself. Neither
depends on positions. A click measures less: P(click) = P(like) / (1 + .3 k). In the randomized log,
positions do not depend on the pair. So its clicks rank pairs as the truth does, but a third of the likes are not
observed. In the biased log, positions follow the system's scores.

Bisection finds the mu for which 9 % of the randomized impressions are positive. So `clicks` has more likes (13 %)
than `stars` (9 %). Tastes, sessions and U are the same for all labels of a seed. A smaller log holds a part of the
impressions of a larger one. `redraw` draws people's reactions anew (U, examination, seconds, who rates) in the same
world with the same randomized impressions.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _check
from dubnb._random import generator
from dubnb.data.partition import Partition
from dubnb.data.simulate import LABEL, POLICY_LABEL, PROBABILITY, Truth, row_numbers

if TYPE_CHECKING:
    import pandas as pd

    from dubnb.data.simulate import RowNumbers

N_USERS, N_ITEMS = 2_000, 600
IMPRESSIONS, SLOTS = 80_000, 10
RANDOM_ROWS, RANDOM_SLOTS = 12_000, 5
POSITIVES = 0.09  # share in the randomized log
EXAMINATION = 0.3  # how fast attention falls with the position
START, SECONDS = 1_735_689_600, 28 * 86_400  # 2025-01-01, UTC
STAR_CUTS = (-2.5, -1.0, 0.0, 1.2)  # utilities between 1 and 2 stars, 2 and 3, ...
RATES_LIKED, RATES_OTHER = 0.9, 0.6  # P(rated | examined) in the biased log
LONG, GLANCE = 20.0, 1.5  # seconds above which a view is positive; median seconds of an item that is not examined
LONGEST = 3600.0  # seconds, at most
WATCH_SLOPE, WATCH_NOISE = 0.5, 0.5  # slope in v and noise of log seconds
NICHES_EACH = 3  # niches that a user follows
CALIBRATION_ROWS = 100_000
BLOCK = 500  # sessions that are ranked at a time


@dataclasses.dataclass(frozen=True)
class Company:
    """The parameters of a world, in the letters of the module's formulas; "sd" is a standard deviation."""

    rank: int = 8  # factors of p and q
    taste: float = 1.0  # sd of <p_u, q_i>
    niches: int = 0  # if above 0, an item is in one of them, and <p_u, q_i> is `taste` in three of them, else 0
    generosity: float = 0.9  # sd of a_u
    selective: float = 0.0  # correlation of -a_u and log activity
    quality: float = 0.6  # sd of c_i
    fame: float = 1.0  # sd of fame_i
    fame_quality: float = 0.0  # correlation of fame_i and c_i
    rotation: float = 0.0  # w
    trend: float = 0.0  # sd of s_i
    pushed: float = 0.0  # share of the items that editors push
    push: float = 0.0  # added to the fame of pushed items
    disliked: float = 0.0  # subtracted from the quality of pushed items
    beta: float = 1.0
    error: float = 0.5  # sd of error_ui
    kappa: float = 0.7
    activity: float = 0.7  # sd of log activity


WORLDS = {
    "world-popular": Company(taste=0.8, quality=1.1, fame=1.2, fame_quality=0.8, generosity=0.7, selective=0.6),
    "world-niche": Company(niches=30, taste=2.8, quality=0.3, fame=1.2),
    "world-drift": Company(taste=1.3, fame_quality=0.3, rotation=1.4, trend=1.5),
    "world-promoted": Company(taste=1.1, quality=0.8, fame=0.8, pushed=0.2, push=2.8, disliked=1.6),
}


class LabelKind(NamedTuple):
    """How reactions are recorded."""

    column: str
    threshold: float | None = None  # labels above it are positive; None: they are 0 or 1
    clicks_alone: tuple[str, ...] = ()  # the logs that contain only clicks


LABELS = {
    "clicks": LabelKind("click"),
    "stars": LabelKind("stars", 3),
    "watch": LabelKind("seconds", LONG),
    "clicks-only": LabelKind("click", clicks_alone=("biased",)),
    "clicks-only-both": LabelKind("click", clicks_alone=("biased", "random")),
}


class KnownTruth(Truth):
    """P(like) and y^t at the log's end, from two dense arrays: logits, and the uniform draws behind the likes."""

    def __init__(self, logits: np.ndarray, draws: np.ndarray) -> None:
        self.logits, self.draws = logits, draws
        self.n_users, self.n_items = logits.shape

    def of(self, users: np.ndarray, items: np.ndarray) -> KnownTruth:
        """The truth of some users and items, renumbered from 0."""
        pairs = np.ix_(users, items)
        return KnownTruth(self.logits[pairs], self.draws[pairs])

    def _pairs(self, users: RowNumbers, items: RowNumbers, what: int) -> np.ndarray:
        return self._values((row_numbers("user", users, self.n_users), row_numbers("item", items, self.n_items)), what)

    def _rows(self, users: RowNumbers, what: int) -> np.ndarray:
        return self._values(np.atleast_1d(row_numbers("user", users, self.n_users)), what)

    def _values(self, places: Any, what: int) -> np.ndarray:
        """P(like), y^t or the utility. The policy does not change what people like: y^c = y^t."""
        logits = self.logits[places]
        if what == PROBABILITY:
            return np.asarray(1.0 / (1.0 + np.exp(-logits)))
        utility = np.asarray(logits - _logit(self.draws[places]))
        return np.asarray(utility > 0, dtype=np.float64) if what in (LABEL, POLICY_LABEL) else utility


class Logs(NamedTuple):
    """The two logs of a company, the truth about its pairs, and the options that read the logs."""

    biased: pd.DataFrame  # user, item, the label, position, timestamp
    random: pd.DataFrame
    truth: KnownTruth  # row and column k belong to the user and the item with the id k + 1
    options: dict[str, Any]  # options of `Partition.from_frames`

    def partition(self, name: str) -> Partition:
        """The Partition of these logs, with the truth of its users and items."""
        with warnings.catch_warnings():  # repeated pairs and click-only logs are intended here
            warnings.simplefilter("ignore", UserWarning)
            data = Partition.from_frames(self.biased, self.random, **self.options, name=name)
        data.truth = self.truth.of(data.user_ids.values - 1, data.item_ids.values - 1)
        return data


def make_world(
    world: str,
    labels: str = "clicks",
    seed: int = 0,
    *,
    impressions: int = IMPRESSIONS,
    random_rows: int = RANDOM_ROWS,
    redraw: int = 0,
) -> Logs:
    """The logs of a world and its truth. The same arguments give the same bytes.

    Parameters
    ----------
    world : str
        One of WORLDS.
    labels : str
        One of LABELS.
    seed : int
        Seed of everything: tastes, sessions and reactions.
    impressions, random_rows : int
        Impressions of either log. Rows are fewer where not every impression becomes one (stars, clicks alone).
    redraw : int
        Number of the draw of people's reactions.
    """
    company = WORLDS[_check.choice("world", world, tuple(WORLDS))]
    kind = LABELS[_check.choice("labels", labels, tuple(LABELS))]
    draw = WorldStreams(_check.whole("seed", seed, low=0), world, _check.whole("redraw", redraw, low=0))
    people = _people(company, draw)
    likes = draw.reactions("likes").random((N_USERS, N_ITEMS))
    mu = _mu_by_bisection(people, kind, draw)

    n_sessions = -(-_check.whole("impressions", impressions) // SLOTS)
    users, times = _sessions(people, "biased", n_sessions, draw)
    items = _recommended_items(company, people, users, times, mu, likes, draw)
    biased = _log(ShownItems.of(users, times, items, impressions), "biased", people, kind, mu, likes, draw)

    n_sessions = -(-_check.whole("random_rows", random_rows) // RANDOM_SLOTS)
    users, times = _sessions(people, "random", n_sessions, draw)
    items = np.argsort(draw.design("uniform items").random((n_sessions, N_ITEMS)), axis=1)[:, :RANDOM_SLOTS]
    random = _log(ShownItems.of(users, times, items, random_rows), "random", people, kind, mu, likes, draw)

    truth = KnownTruth(mu + people.logits(np.arange(N_USERS), np.ones(N_USERS)), likes)
    options: dict[str, Any] = {"timestamp": "timestamp"}
    if kind.column in random or kind.column in biased:
        options["label"] = kind.column
    if kind.threshold is not None:
        options["threshold"] = kind.threshold
    return Logs(biased, random, truth, options)


def load(name: str, seed: int = 0) -> Partition:
    """The Partition of `name`, a world such as "world-niche", or with its labels "world-niche:stars"."""
    world, _, labels = name.partition(":")
    return make_world(world, labels or "clicks", seed).partition(name)


def write_world(
    directory: str | Path, world: str, labels: str = "clicks", seed: int = 0, form: str = "csv", **sizes: int
) -> tuple[Path, Path, dict[str, Any]]:
    """Write the logs of `make_world` into a directory as log.csv and random.csv, or as .parquet with form="parquet".

    Returns both paths and the options of `Partition.from_frames` that read them.
    """
    _check.choice("form", form, ("csv", "parquet"))
    logs = make_world(world, labels, seed, **sizes)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"log.{form}", folder / f"random.{form}"
    for path, frame in zip(paths, (logs.biased, logs.random), strict=True):
        if form == "csv":
            frame.to_csv(path, index=False)
        else:
            frame.to_parquet(path, index=False)
    return *paths, logs.options


# ---- the world -----------------------------------------------------------------------------------------------------


class WorldStreams(NamedTuple):
    """The random streams of one world."""

    seed: int
    world: str
    redraw: int

    def design(self, name: str) -> np.random.Generator:
        """A stream for the world's parameters, or for what is shown."""
        return generator(self.seed, self.world, name)

    def reactions(self, name: str) -> np.random.Generator:
        """A stream for people's reactions."""
        return generator(self.seed, self.world, name, self.redraw)


class People(NamedTuple):
    """The parameters of every user and item, in the letters of the module's formulas."""

    p: np.ndarray
    p_before: np.ndarray  # p'
    q: np.ndarray
    a: np.ndarray
    c: np.ndarray
    s: np.ndarray
    shown: np.ndarray  # fame_i + push_i
    shares: np.ndarray  # cumulated share of the sessions, by user
    rotation: float

    def tastes(self, users: np.ndarray, times: np.ndarray) -> np.ndarray:
        """<p_u(time), q_i> + s_i (time - 1) for all items, a row per user."""
        angle = self.rotation * (1.0 - times)[:, None]
        p = self.p[users] * np.cos(angle) + self.p_before[users] * np.sin(angle)
        return np.asarray(p @ self.q.T + self.s * (times - 1.0)[:, None])

    def logits(self, users: np.ndarray, times: np.ndarray) -> np.ndarray:
        """logit P(like) - mu for all items, a row per user."""
        return np.asarray(self.tastes(users, times) + self.a[users][:, None] + self.c)


def _people(company: Company, draw: WorldStreams) -> People:
    def normal(name: str, *size: int) -> np.ndarray:
        return draw.design(name).standard_normal(size)

    if company.niches:
        q = np.eye(company.niches)[draw.design("niche of an item").integers(company.niches, size=N_ITEMS)]
        p, p_before = (
            company.taste * (np.argsort(draw.design(name).random((N_USERS, company.niches)), axis=1) < NICHES_EACH)
            for name in ("p", "p before")
        )
    else:
        q = normal("q", N_ITEMS, company.rank)
        p, p_before = (
            company.taste / math.sqrt(company.rank) * normal(name, N_USERS, company.rank) for name in ("p", "p before")
        )
    fame, own = normal("fame", N_ITEMS), normal("quality", N_ITEMS)
    c = company.quality * (company.fame_quality * fame + math.sqrt(1.0 - company.fame_quality**2) * own)
    pushed = draw.design("pushed").random(N_ITEMS) < company.pushed
    active, generous = normal("activity", N_USERS), normal("a", N_USERS)
    activity = np.exp(company.activity * active)
    return People(
        p=p,
        p_before=p_before,
        q=q,
        a=company.generosity * (math.sqrt(1.0 - company.selective**2) * generous - company.selective * active),
        c=c - company.disliked * pushed,
        s=company.trend * normal("trend", N_ITEMS),
        shown=company.fame * fame + company.push * pushed,
        shares=np.cumsum(activity) / activity.sum(),
        rotation=company.rotation,
    )


def _mu_by_bisection(people: People, kind: LabelKind, draw: WorldStreams) -> float:
    """The mu that makes the share of positives POSITIVES, on a large separate sample of randomized impressions."""
    users, times = _sessions(people, "calibration", CALIBRATION_ROWS // RANDOM_SLOTS, draw)
    places = draw.design("calibration items")
    items = places.integers(N_ITEMS, size=(len(users), RANDOM_SLOTS))
    slots = ShownItems.of(users, times, items, CALIBRATION_ROWS)
    logits = slots.logits(people)
    utility = logits - _logit(places.random(CALIBRATION_ROWS))
    examined = slots.examined(places)
    noise = places.standard_normal(CALIBRATION_ROWS)
    low, high = -20.0, 20.0
    for _ in range(40):
        mu = 0.5 * (low + high)
        labels = _labels(kind, mu + utility, examined, noise)
        if (labels > (kind.threshold or 0)).mean() < POSITIVES:
            low = mu
        else:
            high = mu
    return 0.5 * (low + high)


# ---- what is shown -------------------------------------------------------------------------------------------------


def _sessions(people: People, log: str, n: int, draw: WorldStreams) -> tuple[np.ndarray, np.ndarray]:
    """Users, by activity, and times from 0 to 1 of n sessions."""
    users = np.searchsorted(people.shares, draw.design(f"users, {log}").random(n))
    return np.minimum(users, N_USERS - 1), draw.design(f"times, {log}").random(n)


def _recommended_items(
    company: Company,
    people: People,
    users: np.ndarray,
    times: np.ndarray,
    mu: float,
    likes: np.ndarray,
    draw: WorldStreams,
) -> np.ndarray:
    """The items of each session of the biased log, best first."""
    error = company.error * draw.design("error").standard_normal((N_USERS, N_ITEMS)) + people.shown
    cuts = _logit(likes)
    noise = draw.design("noise of the system")
    items = np.empty((len(users), SLOTS), dtype=np.int64)
    for start in range(0, len(users), BLOCK):
        block = slice(start, start + BLOCK)
        who = users[block]
        tastes = people.tastes(who, times[block])
        liked = mu + tastes + people.a[who][:, None] + people.c > cuts[who]
        score = error[who] + company.beta * tastes + company.kappa * liked + noise.gumbel(size=liked.shape)
        best = np.argpartition(-score, SLOTS, axis=1)[:, :SLOTS]
        order = np.argsort(-np.take_along_axis(score, best, axis=1), axis=1)
        items[block] = np.take_along_axis(best, order, axis=1)
    return items


class ShownItems(NamedTuple):
    """Impressions, one per row, session after session."""

    users: np.ndarray
    items: np.ndarray
    positions: np.ndarray
    times: np.ndarray  # from 0 to 1

    @classmethod
    def of(cls, users: np.ndarray, times: np.ndarray, items: np.ndarray, n: int) -> ShownItems:
        """The first n impressions of sessions."""
        each = items.shape[1]
        positions = np.tile(np.arange(each), len(users))
        return cls(*(column[:n] for column in (users.repeat(each), items.ravel(), positions, times.repeat(each))))

    def logits(self, people: People) -> np.ndarray:
        """logit P(like) - mu of each impression, at its time."""
        angle = people.rotation * (1.0 - self.times)[:, None]
        p = people.p[self.users] * np.cos(angle) + people.p_before[self.users] * np.sin(angle)
        taste = np.einsum("jk,jk->j", p, people.q[self.items]) + people.s[self.items] * (self.times - 1.0)
        return np.asarray(taste + people.a[self.users] + people.c[self.items])

    def examined(self, stream: np.random.Generator) -> np.ndarray:
        """Which impressions are examined: each with probability 1 / (1 + .3 position)."""
        return np.asarray(stream.random(len(self.users)) < 1.0 / (1.0 + EXAMINATION * self.positions))


# ---- what people do ------------------------------------------------------------------------------------------------


def _log(
    slots: ShownItems, log: str, people: People, kind: LabelKind, mu: float, likes: np.ndarray, draw: WorldStreams
) -> pd.DataFrame:
    """The table of one log, sorted by time."""
    import pandas as pd

    utility = mu + slots.logits(people) - _logit(likes[slots.users, slots.items])
    examined = slots.examined(draw.reactions(f"examined, {log}"))
    noise = draw.reactions(f"noise, {log}").standard_normal(len(utility))
    frame = pd.DataFrame(
        {
            "user": slots.users + 1,
            "item": slots.items + 1,
            kind.column: _labels(kind, utility, examined, noise),
            "position": slots.positions,
            "timestamp": START + (SECONDS * slots.times).astype(np.int64),
        }
    )
    kept = np.ones(len(frame), dtype=bool)
    if kind.column == "stars" and log == "biased":
        rates = np.where(utility > 0, RATES_LIKED, RATES_OTHER)
        kept = examined & (draw.reactions("rated").random(len(frame)) < rates)
    if log in kind.clicks_alone:
        kept = frame.pop(kind.column).to_numpy() > 0
    order = np.argsort(slots.times, kind="stable")
    return frame.iloc[order[kept[order]]].reset_index(drop=True)


def _labels(kind: LabelKind, utility: np.ndarray, examined: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The label of each impression from its utility v; `noise` is standard normal."""
    if kind.column == "stars":
        return 1 + np.searchsorted(STAR_CUTS, utility)
    if kind.column == "seconds":
        middle = np.where(examined, math.log(LONG) + WATCH_SLOPE * utility, math.log(GLANCE))
        return np.asarray(np.round(np.minimum(np.exp(middle + WATCH_NOISE * noise), LONGEST), 1))
    return np.asarray(examined & (utility > 0), dtype=np.int64)


def _logit(draws: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(draws) - np.log1p(-draws))
