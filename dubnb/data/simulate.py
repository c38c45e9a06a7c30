"""Simulated logs with a known R^t: `simulated` (small), `yahoo-like`, `product-like` and `indifferent`.

The generative model of the first three:

1. Taste t_ui = <p_u, q_i> over K factors; p_uk = sx w_k N(0, 1), w_k ~ k^-decay with sum w^2 = 1; q_i Gaussian,
   rescaled so that sum_k (w_k q_ik)^2 = 1: the standard deviation of t_ui over users is sx for every item.
2. User generosity a_u: Laplace with standard deviation su.
3. Item: e_i ~ Exp(1), hit_i = max(e_i - 1.5, 0); availability pop_i = N(0, pop_n^2) + pop_e e_i; quality
   c_i = N(0, si^2) + cq hit_i.
4. Truth R^t = sigmoid(mu + a_u + c_i + t_ui) and its label y^t (see below).
5. Feedback under the policy y^c, shifted by h_i = N(0, sh^2) - eta c_i; a positive turns into a pseudo-negative with
   probability nu.
6. Activity n_u = act_min + floor(k med exp(act_sd N(0, 1))), k such that the total is |S_c|; users of the randomized
   log are more active where their med is larger.
7. S_c: n_u items without replacement, log-weight pop_i + beta t_ui + (kappa + sk z_u - tau pop_i) y^c, where y^c is
   taken before pseudo-negatives (a lost click was still a chosen item).
8. Randomized log: the first `random_users` users, `random_each` items each, uniform over the items outside their S_c;
   in the order of users, then permuted by RandomState(0): 10 % S_t, 10 % S_va, the rest S_te.
9. mu and kappa by bisection, so that both logs get the wanted P/N (positives over negatives).
10. Grades: five levels of the utility behind a label (see below). The cuts within the negatives (1 to 3)
   and the positives (4, 5) of either log give each level its share in Yahoo! R3. Level k is the grade (k - 1) / 4.
   `product-like` has clicks, so it has no grades.

What `yahoo-like` gets right: P/N of both logs, the items' popularity, and how well users' and items' means in S_c
predict the randomized labels (`python -m bench.simulator` prints them next to the real figures).

What it gets wrong:

- The gain of dub over base is about half the real one, and the top of the list is weaker (nDCG).
- With gamma .1 and lambda 1e-5 bridge falls below base; on real data it does not.
- Items' positive rates are too correlated between the two logs.
- The spread over seeds exceeds the difference between bridge and dub: compare within a seed, over many seeds.
- `product-like` matches sizes and P/N only. One pair per randomized user is an assumption. With 217 items a single hit
  can dominate a seed's log and turn kappa negative. `simulated` uses the P/N of Yahoo! R3.
- Conclusions hold for this world, not for every log. A prototype with other settings lost dub's advantage on a denser
  log (40,000 rows), and reversed it with a flat taste spectrum, sx = beta = 1 and sk = 0.

`indifferent` is a graded log in which popularity is unrelated to what people like. On Yahoo! R3 popular items are
better, so a missing pair carries information; on other data it need not.

1. Taste U_u . V_i over 8 factors, U = N(0, I) / sqrt(8), V = N(0, I) / 8^(1/4); quality b_i = N(0, .4^2).
2. Rating = round(2.4 + 1.2 U.V + b_i + noise) within 1..5, positive above 3; the noise is logistic with standard
   deviation .6, so that R^t is a sigmoid as in the other worlds.
3. S_c: draws of (user by activity, item by availability), kept with probability sigmoid(2 U.V), the first 200,000, each
   pair once. Activity is Pareto(1.5) + .2, availability Pareto(1.2) + .1, independent of quality.
4. Randomized log: 8,000 pairs drawn uniformly and split as above.

**The truth** is computed on demand. A label compares a probability with a hash U_ui of (seed, u, i), so two million
users times 217 items need no storage:

    R^t_ui = sigmoid(mu + a_u + c_i + t_ui),  t_ui = <p_u, q_i>
    y^t_ui = [U_ui < R^t_ui]
    y^c_ui = [U_ui < sigmoid(logit R^t_ui + h_i)], turned from 1 into 0 with probability nu

So a label is positive where the utility v = logit R^t - logit U (in S_c plus h_i) is above 0. A grade is v in levels;
the noise of v around logit R^t is logistic.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb import _progress
from dubnb._check import InputError, choice, whole
from dubnb._jit import njit
from dubnb._random import generator, key, uniform
from dubnb.data.partition import Partition, Triplets

if TYPE_CHECKING:
    from collections.abc import Sequence

    RowNumbers = np.ndarray | Sequence[int] | int  # row numbers of users or of items


_TINY = 2.0**-54  # below the least positive uniform number
HIT_FROM = 1.5  # e_i above which an item is a hit
PROBABILITY, LABEL, POLICY_LABEL, UTILITY, POLICY_UTILITY = range(5)  # what `_evaluate` computes


class World(NamedTuple):
    """The parameters of one simulated world, in the letters of the module's formulas."""

    p: np.ndarray  # (n_users, K) float32, taste
    q: np.ndarray  # (n_items, K) float32
    a: np.ndarray  # user generosity
    z: np.ndarray  # how strongly a user selects liked items, N(0, 1)
    c: np.ndarray  # item quality
    h: np.ndarray  # shift of an item's feedback under the policy
    pop: np.ndarray  # item availability, in logs
    mu: float
    kappa: float
    beta: float
    tau: float
    sk: float
    nu: float
    label_key: np.uint64
    pseudo_key: np.uint64


def draw_world(config: Config, seed: int) -> World:
    """A world for a `dubnb.data.simulate.Config`, each parameter from its own stream; mu and kappa are still 0."""

    def normal(name: str, size: int | tuple[int, int]) -> np.ndarray:
        return generator(seed, "simulate", name).standard_normal(size)

    w = np.arange(1, config.K + 1) ** -config.decay
    w /= math.sqrt((w**2).sum())
    q = normal("q", (config.n_items, config.K))
    q /= np.sqrt(((w * q) ** 2).sum(axis=1, keepdims=True))
    p = generator(seed, "simulate", "p").standard_normal((config.n_users, config.K), dtype=np.float32)
    p *= (config.sx * w).astype(np.float32)
    e = generator(seed, "simulate", "e").standard_exponential(config.n_items)
    c = config.si * normal("c", config.n_items) + config.cq * np.maximum(e - HIT_FROM, 0.0)
    return World(
        p=p,
        q=q.astype(np.float32),
        a=generator(seed, "simulate", "a").laplace(scale=config.su / math.sqrt(2.0), size=config.n_users),
        z=normal("z", config.n_users),
        c=c,
        h=config.sh * normal("h", config.n_items) - config.eta * c,
        pop=config.pop_n * normal("pop", config.n_items) + config.pop_e * e,
        mu=0.0,
        kappa=0.0,
        beta=config.beta,
        tau=config.tau,
        sk=config.sk,
        nu=config.nu,
        label_key=key(seed, "simulate", "label"),
        pseudo_key=key(seed, "simulate", "pseudo"),
    )


@njit
def sigmoid64(x):
    """1 / (1 + exp(-x)), in float64."""
    return 1.0 / (1.0 + math.exp(-x))


@njit
def taste(world, user, item):
    """t_ui = <p_u, q_i>."""
    total = np.float32(0.0)
    for k in range(world.p.shape[1]):
        total += world.p[user, k] * world.q[item, k]
    return float(total)


@njit
def logit_truth(world, user, item, t):
    """logit R^t_ui, given t = t_ui."""
    return world.mu + world.a[user] + world.c[item] + t


@njit
def liked_under_policy(world, user, item, t):
    """y^c_ui before pseudo-negatives, given t = t_ui: what drives self-selection."""
    pair = user * world.q.shape[0] + item
    return uniform(world.label_key, pair) < sigmoid64(logit_truth(world, user, item, t) + world.h[item])


@njit
def _value(world, user, item, what):
    """One number about one pair: R^t, y^t, y^c, or the utility behind y^t or y^c."""
    t = taste(world, user, item)
    pair = user * world.q.shape[0] + item
    if what in (UTILITY, POLICY_UTILITY):
        u = uniform(world.label_key, pair)
        u = u if u > _TINY else _TINY
        shift = world.h[item] if what == POLICY_UTILITY else 0.0
        return logit_truth(world, user, item, t) + shift - math.log(u / (1.0 - u))
    if what == PROBABILITY:
        return sigmoid64(logit_truth(world, user, item, t))
    if what == LABEL:
        return 1.0 if uniform(world.label_key, pair) < sigmoid64(logit_truth(world, user, item, t)) else 0.0
    kept = liked_under_policy(world, user, item, t) and uniform(world.pseudo_key, pair) >= world.nu
    return 1.0 if kept else 0.0


@njit
def _evaluate(world, users, items, step, what, out):
    """out[r, j] = `what` of (users[r], items[r * step + j]): step 1 and one column for pairs, step 0 for whole rows."""
    for r in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[r, j] = _value(world, users[r], items[r * step + j], what)


class Truth:
    """R^t and the labels of any pair of a simulated log; `users` and `items` are row numbers, not ids."""

    def __init__(self, world: World):
        self.world = world
        self.n_users, self.n_items = len(world.p), len(world.q)

    def probability(self, users: RowNumbers, items: RowNumbers) -> np.ndarray:
        """R^t, the probability of a positive label under the uniform policy (float64)."""
        return self._pairs(users, items, PROBABILITY)

    def label(self, users: RowNumbers, items: RowNumbers) -> np.ndarray:
        """y^t in {0, 1} (float32): the labels of S_t, S_va and S_te."""
        return self._pairs(users, items, LABEL).astype(np.float32)

    def policy_label(self, users: RowNumbers, items: RowNumbers) -> np.ndarray:
        """y^c in {0, 1} (float32), with pseudo-negatives: the labels of S_c, also for pairs that it lacks."""
        return self._pairs(users, items, POLICY_LABEL).astype(np.float32)

    def utility(self, users: RowNumbers, items: RowNumbers, policy: bool = False) -> np.ndarray:
        """v (float64), positive where y^t is 1; with `policy`, where y^c is 1 before pseudo-negatives."""
        return self._pairs(users, items, POLICY_UTILITY if policy else UTILITY)

    def probability_rows(self, users: RowNumbers) -> np.ndarray:
        """R^t of all items, (len(users), n_items) float64."""
        return self._rows(users, PROBABILITY)

    def label_rows(self, users: RowNumbers) -> np.ndarray:
        """y^t of all items, (len(users), n_items) float32."""
        return self._rows(users, LABEL).astype(np.float32)

    def _pairs(self, users: RowNumbers, items: RowNumbers, what: int) -> np.ndarray:
        users, items = np.broadcast_arrays(
            row_numbers("user", users, self.n_users), row_numbers("item", items, self.n_items)
        )
        out = np.empty((users.size, 1))
        _evaluate(self.world, users.ravel(), items.ravel(), 1, what, out)
        return out.reshape(users.shape)

    def _rows(self, users: RowNumbers, what: int) -> np.ndarray:
        users = np.atleast_1d(row_numbers("user", users, self.n_users))
        out = np.empty((users.size, self.n_items))
        _evaluate(self.world, users, np.arange(self.n_items), 0, what, out)
        return out


def row_numbers(what: str, rows: RowNumbers, size: int) -> np.ndarray:
    """Row numbers as int64, all within 0 .. size-1."""
    rows = np.asarray(rows)
    if rows.size and rows.dtype.kind not in "iu":
        raise InputError(f"{what} rows of dtype {rows.dtype} must be whole numbers: pass rows, not original ids")
    if rows.size and (rows.min() < 0 or rows.max() >= size):
        bad = rows[(rows < 0) | (rows >= size)].flat[0]
        raise InputError(f"{what} row {bad} is outside 0..{size - 1}: this simulation has {size:,} {what}s")
    return np.array(rows, dtype=np.int64)


# ---- logs of the simulated datasets ----------------------------------------------------------------------------------


SPLIT_SEED = 0  # the paper's split of the randomized log is one fixed permutation
COARSE_PAIRS, FINE_PAIRS = 2_000_000, 24_000_000  # pairs in the draws that mu and kappa are fitted on
LEVELS_BIASED = (0.3139, 0.1272, 0.1576, 0.1555, 0.2457)  # shares of the ratings 1..5 in Yahoo! R3's logs
LEVELS_RANDOM = (0.5262, 0.2419, 0.1439, 0.0624, 0.0255)
POSITIVE_LEVELS = 2  # 4 and 5
CALIBRATION_EXPOSURE = 20  # randomized pairs per user while mu is fitted coarsely


@dataclasses.dataclass(frozen=True)
class Config:
    """All parameters of a simulated log, in the letters of the module's formulas."""

    name: str
    n_users: int
    n_items: int
    n_biased: int  # |S_c|
    random_users: int
    random_each: int
    ratio_biased: float  # P/N of S_c
    ratio_random: float  # P/N of the randomized log
    K: int
    beta: float
    nu: float
    act_min: int
    med_random: float  # median activity of the users of the randomized log, in units of k
    med_rest: float
    decay: float = 0.75
    su: float = 1.5
    si: float = 0.8
    cq: float = 1.1
    sx: float = 1.65
    sh: float = 0.40
    eta: float = 0.25
    pop_n: float = 0.38
    pop_e: float = 1.03
    tau: float = 0.15
    sk: float = 1.3
    act_sd: float = 1.08
    graded: bool = True


# fmt: off
_SIMULATED = Config(
    "simulated", n_users=1_000, n_items=300, n_biased=15_000, random_users=1_000, random_each=20, ratio_biased=0.6702,
    ratio_random=0.0964, K=4, beta=1.3, nu=0.0, act_min=6, med_random=8.5, med_rest=8.5)
_YAHOO = Config(
    "yahoo-like", n_users=15_400, n_items=1_000, n_biased=311_704, random_users=5_400, random_each=10,
    ratio_biased=0.6702, ratio_random=0.0964, K=20, beta=1.15, nu=0.0, act_min=10, med_random=8.5, med_rest=4.5)
_PRODUCT = Config(
    "product-like", n_users=2_000_000, n_items=217, n_biased=4_798_776, random_users=347_553, random_each=1,
    ratio_biased=0.1297, ratio_random=0.0087, K=8, beta=1.15, nu=0.3, act_min=1, med_random=1.0, med_rest=1.0,
    graded=False)
# fmt: on
CONFIGS = {config.name: config for config in (_SIMULATED, _YAHOO, _PRODUCT)}


def simulate(name: str | Config, seed: int = 0, quiet: bool = False) -> Partition:
    """A simulated log as a Partition, with R^t in its `truth`. `name` is a key of CONFIGS, or a Config of your own.

    The same name and seed give the same bytes. `quiet` hides the progress bar, which appears after two seconds.
    """
    config = name if isinstance(name, Config) else CONFIGS[choice("name", name, tuple(CONFIGS))]
    whole("seed", seed, low=0)
    plan = _plan(config, seed)
    world = _calibrated(draw_world(config, seed), config, plan)
    truth = Truth(world)
    items_c, items_t = _draw(world, plan, np.arange(config.n_users), quiet)
    users_c = np.repeat(np.arange(config.n_users), plan.activity)
    users_t = np.repeat(np.arange(config.n_users), plan.exposure)
    random, biased = _feedback(truth, users_t, items_t), _feedback(truth, users_c, items_c, policy=True)
    if config.graded:
        random, biased = _graded(truth, random, LEVELS_RANDOM), _graded(truth, biased, LEVELS_BIASED, policy=True)
    parts = {"S_c": biased, **split_randomized(random)}
    return Partition(parts, (config.n_users, config.n_items), truth=truth, name=config.name)


class Quotas(NamedTuple):
    """The number of items of each user in either log, and the keys of the draws."""

    activity: np.ndarray  # int64, pairs of S_c per user
    exposure: np.ndarray  # int64, pairs of the randomized log per user
    race_key: np.uint64
    random_key: np.uint64


def _plan(config: Config, seed: int) -> Quotas:
    exposure = np.zeros(config.n_users, dtype=np.int64)
    exposure[: config.random_users] = config.random_each
    return Quotas(_activity(config, seed), exposure, key(seed, "simulate", "race"), key(seed, "simulate", "random"))


def _activity(config: Config, seed: int) -> np.ndarray:
    """n_u = act_min + floor(k med exp(act_sd N)), at most what the randomized log leaves; sums to |S_c| exactly."""
    room = config.n_items - config.random_each
    if not config.act_min * config.n_users <= config.n_biased <= room * config.n_users or config.act_min > room:
        raise InputError(
            f"n_biased={config.n_biased} must lie in {config.act_min * config.n_users}..{room * config.n_users}: "
            "change n_biased, act_min, n_users or n_items"
        )
    median = np.where(np.arange(config.n_users) < config.random_users, config.med_random, config.med_rest)
    extra = median * np.exp(config.act_sd * generator(seed, "simulate", "activity").standard_normal(config.n_users))
    most = room - config.act_min
    missing = config.n_biased - config.act_min * config.n_users
    k = _bisect(lambda k: np.minimum(np.floor(k * extra), most).sum(), missing + 0.5, 0.0, (most + 1) / extra.min(), 60)
    n = np.floor(k * extra)
    # One k rarely gives the exact sum: the users whose n_u was rounded most absorb the difference.
    rounding = k * extra - n
    n = np.minimum(n, most).astype(np.int64)
    off = missing - int(n.sum())
    movable = np.flatnonzero(n < most) if off > 0 else np.flatnonzero(n > 0)
    order = np.argsort(rounding[movable] * -np.sign(off), kind="stable")
    n[movable[order[: abs(off)]]] += np.sign(off)
    return config.act_min + n


def _bisect(function: Callable[[float], float], target: float, low: float, high: float, steps: int) -> float:
    """The x in [low, high] where the increasing `function` reaches `target`."""
    for _ in range(steps):
        middle = 0.5 * (low + high)
        if function(middle) < target:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def _calibrated(world: World, config: Config, plan: Quotas) -> World:
    """The world with the mu and kappa that give both P/N.

    mu and kappa change each other's target: the randomized log leaves out S_c, which self-selection fills with
    positives. So they are fitted in turn: three rounds on a sample of users, who get extra randomized pairs, then one
    on all.
    """
    spread = plan._replace(exposure=np.minimum(CALIBRATION_EXPOSURE, config.n_items - plan.activity))
    some_random = _every(config.random_users, config.n_items, COARSE_PAIRS)
    some = _every(config.n_users, config.n_items, COARSE_PAIRS)
    for reach, steps in ((10.0, 11), (3.0, 9), (1.0, 7)):
        world = _with_mu(world, config, spread, some_random)
        world = _with_kappa(world, config, plan, some, reach, steps)
    world = _with_mu(world, config, plan, np.arange(config.random_users))
    return _with_kappa(world, config, plan, _every(config.n_users, config.n_items, FINE_PAIRS), 0.3, 6)


def _every(n_users: int, n_items: int, pairs: int) -> np.ndarray:
    """Evenly spaced users whose rows hold about `pairs` pairs."""
    return np.arange(0, n_users, max(1, n_users * n_items // pairs))


def _with_mu(world: World, config: Config, plan: Quotas, users: np.ndarray) -> World:
    """The world with the mu that gives the randomized log of `users`, drawn outside of S_c, the wanted P/N."""
    _, items = _draw(world, plan, users, quiet=True)
    drawn = users.repeat(plan.exposure[users])

    def ratio(mu: float) -> float:
        return _ratio(Truth(world._replace(mu=mu)).label(drawn, items))

    return world._replace(mu=_bisect(ratio, config.ratio_random, -25.0, 15.0, 24))


def _with_kappa(world: World, config: Config, plan: Quotas, users: np.ndarray, reach: float, steps: int) -> World:
    """The world with the kappa, at most `reach` from the current one, that gives the S_c of `users` the wanted P/N."""
    unexposed = plan._replace(exposure=np.zeros_like(plan.exposure))
    drawn = users.repeat(plan.activity[users])

    def ratio(kappa: float) -> float:
        trial = world._replace(kappa=kappa)
        items, _ = _draw(trial, unexposed, users, quiet=True)
        return _ratio(Truth(trial).policy_label(drawn, items))

    low, high = world.kappa - reach, world.kappa + reach
    return world._replace(kappa=_bisect(ratio, config.ratio_biased, low, high, steps))


def _ratio(labels: np.ndarray) -> float:
    """P/N, positives over negatives."""
    positives = float(labels.sum())
    return positives / max(len(labels) - positives, 1.0)


def _draw(
    world: World, plan: Quotas, users: np.ndarray, quiet: bool, chunks: int = 50
) -> tuple[np.ndarray, np.ndarray]:
    """The items of S_c and of the randomized log for `users`, user by user, in the order of the draws."""
    starts_c, starts_t = (np.concatenate([[0], np.cumsum(n[users])]) for n in (plan.activity, plan.exposure))
    items_c, items_t = np.empty(starts_c[-1], dtype=np.int32), np.empty(starts_t[-1], dtype=np.int32)
    edges = np.linspace(0, len(users), chunks + 1).astype(np.int64)
    room = DrawScratch(*(np.zeros(len(world.q), dtype) for dtype in (np.float64, np.int32, np.bool_)))
    with _progress.bar(quiet=quiet, total=len(users), desc="simulating", unit=" users", unit_scale=True) as bar:
        for first, last in itertools.pairwise(edges):
            out_c = items_c[starts_c[first] : starts_c[last]]
            out_t = items_t[starts_t[first] : starts_t[last]]
            _draw_users(world, plan, users[first:last], room, out_c, out_t)
            bar.update(int(last - first))
    return items_c, items_t


class DrawScratch(NamedTuple):
    """Scratch space for one user's draws, one entry per item."""

    keys: np.ndarray
    chosen: np.ndarray
    taken: np.ndarray  # false between users


@njit
def _draw_users(world, plan, users, room, items_c, items_t):
    """Fill items_c and items_t with the draws of `users`, one user after the other.

    Plain loops compile seconds faster than slices and array methods.
    """
    keys, chosen, taken = room
    scarcest = np.inf
    for item in range(len(world.q)):
        if world.pop[item] < scarcest:
            scarcest = world.pop[item]
    at_c = at_t = 0
    for r in range(len(users)):
        user = users[r]
        _race(world, plan, user, scarcest, keys, chosen)
        for j in range(plan.activity[user]):
            items_c[at_c + j] = chosen[j]
            taken[chosen[j]] = True
        if plan.exposure[user] > 0:
            _uniform_race(plan, user, taken, keys, chosen)
        for j in range(plan.exposure[user]):
            items_t[at_t + j] = chosen[j]
        for j in range(plan.activity[user]):
            taken[items_c[at_c + j]] = False
        at_c += plan.activity[user]
        at_t += plan.exposure[user]


@njit
def _race(world, plan, user, scarcest, keys, chosen):
    """The n_u items of S_c: the smallest E_i / weight_i, E_i ~ Exp(1), are draws without replacement by weight.

    E = -log(1 - V) >= V for V uniform, and y^c raises a weight at most by the factor `ceiling`. This bound excludes
    most items before y^c is computed.
    """
    n = plan.activity[user]
    drive = world.kappa + world.sk * world.z[user]
    ceiling = math.exp(drive - world.tau * scarcest) if drive > world.tau * scarcest else 1.0
    filled = 0
    limit = np.inf
    for item in range(len(world.q)):
        t = taste(world, user, item)
        v = uniform(plan.race_key, user * len(world.q) + item)
        weight = math.exp(world.pop[item] + world.beta * t)
        if v >= limit * weight * ceiling:
            continue
        if liked_under_policy(world, user, item, t):
            weight *= math.exp(drive - world.tau * world.pop[item])
        entry = -math.log1p(-v) / weight
        if entry < limit:
            filled = _insert(keys, chosen, filled, n, entry, item)
            limit = keys[n - 1] if filled == n else np.inf


@njit
def _uniform_race(plan, user, taken, keys, chosen):
    """The user's randomized items: uniform draws without replacement from the items that are not taken."""
    n = plan.exposure[user]
    filled = 0
    for item in range(len(taken)):
        entry = uniform(plan.random_key, user * len(taken) + item)
        if not taken[item] and (filled < n or entry < keys[n - 1]):
            filled = _insert(keys, chosen, filled, n, entry, item)


@njit
def _insert(keys, chosen, filled, n, entry, item):
    """Insert (entry, item) into the sorted n smallest, dropping the largest if full; return how many there are."""
    place = filled if filled < n else n - 1
    while place > 0 and keys[place - 1] > entry:
        keys[place] = keys[place - 1]
        chosen[place] = chosen[place - 1]
        place -= 1
    keys[place] = entry
    chosen[place] = item
    return filled + 1 if filled < n else n


def _feedback(truth: Truth, users: np.ndarray, items: np.ndarray, policy: bool = False) -> Triplets:
    """Pairs with their labels: y^t, or y^c under the policy."""
    labels = truth.policy_label(users, items) if policy else truth.label(users, items)
    return Triplets(users, items, labels, np.ones(len(labels), dtype=np.float32))


def _graded(truth: Truth, log: Triplets, shares: Sequence[float], policy: bool = False) -> Triplets:
    """`log` with grades: each level has its share among the negatives or the positives."""
    utility, levels = truth.utility(log.users, log.items, policy), np.empty(len(log.users))
    n_negative = len(shares) - POSITIVE_LEVELS
    for own, first, part in (
        (log.labels == 0, 0, shares[:n_negative]),
        (log.labels == 1, n_negative, shares[n_negative:]),
    ):
        cuts = np.quantile(utility[own], np.cumsum(part)[:-1] / sum(part)) if own.any() else []
        levels[own] = first + np.searchsorted(cuts, utility[own])
    return log._replace(grades=levels / (len(shares) - 1))


def split_randomized(log: Triplets) -> dict[str, Triplets]:
    """The paper's split of a randomized log: permuted, 10 % S_t, 10 % S_va, the rest S_te."""
    order = np.random.RandomState(SPLIT_SEED).permutation(len(log.users))
    tenth = len(log.users) // 10
    rows = {"S_t": order[:tenth], "S_va": order[tenth : 2 * tenth], "S_te": order[2 * tenth :]}
    return {part: log.take(row) for part, row in rows.items()}


# ---- exploration with logged propensities ---------------------------------------------------------------------------


def softmax_chances(scores: np.ndarray, temperature: float = 1.0, eligible: np.ndarray | None = None) -> np.ndarray:
    """P(item shown | user) proportional to exp(score / temperature) over a user's eligible items; (users, items)."""
    scores = np.where(eligible if eligible is not None else True, np.asarray(scores, np.float64) / temperature, -np.inf)
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(chances / chances.sum(axis=1, keepdims=True))


def epsilon_greedy_chances(
    scores: np.ndarray, epsilon: float = 0.1, top: int = 1, eligible: np.ndarray | None = None
) -> np.ndarray:
    """P(item shown | user): with probability epsilon any eligible item, else one of the `top` best; (users, items)."""
    eligible = np.ones(scores.shape, dtype=bool) if eligible is None else eligible
    best = np.argsort(np.where(eligible, -np.asarray(scores, np.float64), np.inf), axis=1, kind="stable")[:, :top]
    chances = epsilon * eligible / eligible.sum(axis=1, keepdims=True)
    np.put_along_axis(chances, best, np.take_along_axis(chances, best, axis=1) + (1 - epsilon) / top, axis=1)
    return np.asarray(chances)


def explore(data: Partition, chances: np.ndarray, impressions: int, seed: int = 0) -> Partition:
    """Simulated data with another randomized log: impressions of an exploration policy, with their propensities.

    A user is drawn uniformly for every impression, then an item by the user's row of `chances` (users, items). A pair
    that was shown n times becomes one row that weighs n. The split is the paper's.
    """
    truth = data.truth
    if truth is None:
        raise InputError(f"{data.name} has no truth: only simulated data can be explored")
    users = generator(seed, "explore", "users").integers(0, data.n_users, impressions)
    drawn = generator(seed, "explore", "items").random(impressions)
    items = np.empty(impressions, np.int64)
    order = np.argsort(users, kind="stable")
    for own in np.split(order, np.flatnonzero(np.diff(users[order])) + 1):
        shares = np.cumsum(chances[users[own[0]]])
        items[own] = np.minimum(np.searchsorted(shares, drawn[own] * shares[-1], "right"), data.n_items - 1)
    pairs, counts = np.unique(users * data.n_items + items, return_counts=True)
    rows, columns = np.divmod(pairs, data.n_items)
    log = Triplets(rows, columns, truth.label(rows, columns), counts, None, chances[rows, columns])
    bare = {"S_c": data.triplets("S_c")._replace(grades=None), **split_randomized(log)}
    return Partition(
        bare,
        (data.n_users, data.n_items),
        user_ids=data.user_ids,
        item_ids=data.item_ids,
        truth=truth,
        name=f"{data.name}, explored",
    )


# ---- indifferent ---------------------------------------------------------------------------------------------------

INDIFFERENT = "indifferent"
N_USERS, N_ITEMS, N_FACTORS = 5_000, 800, 8
N_DRAWN, N_KEPT, N_RANDOM = 600_000, 200_000, 8_000
CENTRE, TASTE, QUALITY, NOISE = 2.4, 1.2, 0.4, 0.6
POSITIVE_FROM = 3.5  # before rounding
UNIT = NOISE * math.sqrt(3) / math.pi  # scale of the logistic noise, in ratings
SELECTION = 2.0  # how strongly taste selects


def simulate_indifferent(seed: int = 0) -> Partition:
    """The log `indifferent`; the same seed gives the same bytes."""
    world = _indifferent_world(seed)
    truth = Truth(world)
    users, items = _biased_pairs(world, seed)
    chosen = generator(seed, INDIFFERENT, "random").choice(N_USERS * N_ITEMS, N_RANDOM, replace=False)
    parts = {
        "S_c": _rated_pairs(truth, users, items),
        **split_randomized(_rated_pairs(truth, *np.divmod(chosen, N_ITEMS))),
    }
    return Partition(parts, (N_USERS, N_ITEMS), truth=truth, name=INDIFFERENT)


def _indifferent_world(seed: int) -> World:
    """The world in units of the noise, so that R^t = sigmoid(mu + c_i + t_ui)."""

    def normal(name: str, *size: int) -> np.ndarray:
        return generator(seed, INDIFFERENT, name).standard_normal(size)

    return World(
        p=(TASTE / UNIT * normal("U", N_USERS, N_FACTORS) / math.sqrt(N_FACTORS)).astype(np.float32),
        q=(normal("V", N_ITEMS, N_FACTORS) / N_FACTORS**0.25).astype(np.float32),
        a=np.zeros(N_USERS),
        z=np.zeros(N_USERS),
        c=QUALITY / UNIT * normal("b", N_ITEMS),
        h=np.zeros(N_ITEMS),
        pop=np.log(generator(seed, INDIFFERENT, "availability").pareto(1.2, N_ITEMS) + 0.1),
        mu=(CENTRE - POSITIVE_FROM) / UNIT,
        kappa=0.0,
        beta=0.0,
        tau=0.0,
        sk=0.0,
        nu=0.0,
        label_key=key(seed, INDIFFERENT, "label"),
        pseudo_key=key(seed, INDIFFERENT, "pseudo"),
    )


def _biased_pairs(world: World, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct pairs of S_c."""
    activity = generator(seed, INDIFFERENT, "activity").pareto(1.5, N_USERS) + 0.2
    availability = np.exp(world.pop)
    users = generator(seed, INDIFFERENT, "users").choice(N_USERS, N_DRAWN, p=activity / activity.sum())
    items = generator(seed, INDIFFERENT, "items").choice(N_ITEMS, N_DRAWN, p=availability / availability.sum())
    taste = UNIT / TASTE * np.einsum("jk,jk->j", world.p[users], world.q[items], dtype=np.float64)
    kept = generator(seed, INDIFFERENT, "selection").random(N_DRAWN) < 1.0 / (1.0 + np.exp(-SELECTION * taste))
    pairs = np.unique(users[kept][:N_KEPT] * N_ITEMS + items[kept][:N_KEPT])
    return np.divmod(pairs, N_ITEMS)


def _rated_pairs(truth: Truth, users: np.ndarray, items: np.ndarray) -> Triplets:
    """Pairs with their labels, and their ratings as grades."""
    labels = truth.label(users, items)
    ratings = np.round(POSITIVE_FROM + UNIT * truth.utility(users, items)).clip(1, 5)
    ratings = np.where(labels > 0, np.maximum(ratings, 4), np.minimum(ratings, 3))  # np.round rounds halves to even
    return Triplets(users, items, labels, np.ones(len(labels), dtype=np.float32), (ratings - 1) / 4)
