"""Off-policy value against a plain twin, against a log that judges everything, and its refusals."""

import numpy as np
import pytest
from scipy.stats import chi2

import dubnb
from dubnb import InputError, stats
from dubnb.calibration import Calibration
from dubnb.data.partition import PARTS, Partition
from dubnb.data.simulate import epsilon_greedy_chances
from dubnb.evaluation import CalibratedScorer
from dubnb.theory.value import FEWEST_JUDGED, value
from tests.naive import LogOddsTable

N_USERS, N_ITEMS, K, SHOWN = 40, 12, 3, 20


@pytest.fixture(scope="module")
def world():
    """(labels of all pairs, a scorer, S_c's pairs)."""
    rng = np.random.default_rng(5)
    labels = (rng.random((N_USERS, N_ITEMS)) < 0.4).astype(float)
    scorer = LogOddsTable((labels + rng.standard_normal(labels.shape)).astype(np.float32))
    biased = rng.random(labels.shape).argsort(axis=1)[:, :2]
    return labels, scorer, (np.repeat(np.arange(N_USERS), 2), biased.ravel())


def partition(world, chosen):
    """A Partition whose S_te holds the `chosen` pairs (a mask) that S_c lacks."""
    labels, _, S_c = world
    chosen = chosen.copy()
    chosen[S_c] = False
    S_te = np.nonzero(chosen)
    none = (np.empty(0, int), np.empty(0, int))
    parts = {"S_c": S_c, "S_t": none, "S_va": none, "S_te": S_te}
    return Partition({name: (*pairs, labels[pairs]) for name, pairs in parts.items()}, (N_USERS, N_ITEMS))


def top_lists(world):
    _, scorer, S_c = world
    scores = scorer.scores.astype(float).copy()
    scores[S_c] = -np.inf
    return np.argsort(-scores, axis=1, kind="stable")[:, :K]


def by_estimator(found, policy="model"):
    return {each.estimator: each for each in found.estimates if each.policy == policy}


def test_a_log_that_judges_every_candidate_gives_the_truth(world):
    data = partition(world, np.ones((N_USERS, N_ITEMS), bool))
    truth = world[0][np.arange(N_USERS)[:, None], top_lists(world)].mean()
    for each in by_estimator(value(world[1], data, K)).values():
        assert each.value == pytest.approx(truth)
        assert each.low <= truth <= each.high


def test_estimates_equal_a_plain_program(world):
    labels, scorer, _ = world
    data = partition(world, np.random.default_rng(1).random((N_USERS, N_ITEMS)) < 0.5)
    top, q = top_lists(world), scorer.probabilities(scorer.scores.astype(float))
    ips, dr, above, below = [], [], 0.0, 0.0
    for u in np.unique(data.triplets("S_te").users):
        judged = data.triplets("S_te").items[data.triplets("S_te").users == u]
        chance = len(judged) / (N_ITEMS - 2)
        ips.append(sum(labels[u, i] / chance for i in judged if i in top[u]) / K)
        dr.append((q[u, top[u]].sum() + sum((labels[u, i] - q[u, i]) / chance for i in judged if i in top[u])) / K)
        above += sum(labels[u, i] / chance for i in judged if i in top[u])
        below += sum(1 / chance for i in judged if i in top[u])
    found = by_estimator(value(scorer, data, K))
    assert found["ips"].value == pytest.approx(np.mean(ips))
    assert found["dr"].value == pytest.approx(np.mean(dr))
    assert found["snips"].value == pytest.approx(above / below)
    own = stats.mean_interval(np.array(dr))
    assert (found["dr"].low, found["dr"].high) == pytest.approx((own.low, own.high))


def test_ips_and_dr_are_unbiased_over_many_logs(world):
    rng = np.random.default_rng(2)
    values, truths = {"ips": [], "dr": []}, []
    for _ in range(200):
        chosen = rng.random((N_USERS, N_ITEMS)).argsort(axis=1) < 6
        data = partition(world, chosen)
        users = np.unique(data.triplets("S_te").users)
        truths.append(world[0][users[:, None], top_lists(world)[users]].mean())
        found = by_estimator(value(world[1], data, K))
        for name, each in values.items():
            each.append(found[name].value)
    for each in values.values():
        errors = np.array(each) - truths
        assert abs(errors.mean()) < 3 * errors.std(ddof=1) / np.sqrt(len(errors))


def explored(world, rng, by_user=False):
    """(a log of SHOWN impressions per user by an epsilon-greedy policy with propensities, the policy's chances)."""
    labels, scorer, S_c = world
    chances = epsilon_greedy_chances(-scorer.scores, 0.8, 2)
    items = np.array([rng.choice(N_ITEMS, SHOWN, p=row) for row in chances])
    pairs, counts = np.unique(np.arange(N_USERS)[:, None] * N_ITEMS + items, return_counts=True)
    users, items = np.divmod(pairs, N_ITEMS)
    part = users % 3 if by_user else rng.integers(0, 3, len(users))
    parts = {"S_c": (*S_c, labels[S_c])}
    for number, name in enumerate(("S_t", "S_va", "S_te")):
        u, i = users[part == number], items[part == number]
        parts[name] = u, i, labels[u, i], counts[part == number], None, chances[u, i]
    return Partition(parts, (N_USERS, N_ITEMS)), chances


def lists(data, scorer, users):
    """Each user's first K candidates."""
    scores = np.where(data.everything_but("S_te").mask(users, N_ITEMS), -np.inf, scorer.scores[users].astype(float))
    return [[i for i in np.argsort(-row, kind="stable")[:K] if row[i] > -np.inf] for row in scores]


@pytest.mark.parametrize("by_user", [False, True])
def test_estimates_from_propensities_equal_a_plain_program(world, by_user):
    labels, scorer, _ = world
    data, chances = explored(world, np.random.default_rng(3), by_user)
    S_te, q = data.unseen("S_te"), scorer.probabilities(scorer.scores.astype(float))
    shown = {(u, i): w for u, i, w in zip(S_te.users, S_te.items, S_te.weights, strict=True)}
    share = 1.0 if by_user else len(data.triplets("S_te").users) / sum(len(data.triplets(p).users) for p in PARTS[1:])
    users = np.unique(data.triplets("S_te").users) if by_user else np.arange(N_USERS)
    ips, dr, above, below = [], [], 0.0, 0.0
    for u, top in zip(users, lists(data, scorer, users), strict=True):
        v, residual = 0.0, 0.0
        for i in top:
            p = chances[u, i]
            chance = share * SHOWN * p / (1 - (1 - share) * (1 - (1 - p) ** SHOWN))
            weight = shown.get((u, i), 0.0) / chance / len(top)
            v, residual = v + weight * labels[u, i], residual + weight * (labels[u, i] - q[u, i])
            above, below = above + weight * labels[u, i], below + weight
        ips.append(v)
        dr.append(np.mean([q[u, i] for i in top]) + residual if top else 0.0)
    found = by_estimator(value(scorer, data, K))
    assert found["ips"].value == pytest.approx(np.mean(ips), rel=1e-5)
    assert found["dr"].value == pytest.approx(np.mean(dr), rel=1e-5)
    assert found["snips"].value == pytest.approx(above / below, rel=1e-5)
    others = {each.policy: each.value for each in value(scorer, data, K).estimates if each.estimator == "mean"}
    p = chances[S_te.users, S_te.items]
    one_over_c = S_te.weights * (1 - (1 - share) * (1 - (1 - p) ** SHOWN)) / (share * SHOWN * p)
    size = N_ITEMS - data.everything_but("S_te").sizes()[S_te.users]
    assert others["exploration"] == pytest.approx(np.average(S_te.labels, weights=p * one_over_c), rel=1e-5)
    assert others["random"] == pytest.approx(np.average(S_te.labels, weights=one_over_c / size), rel=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_estimates_from_propensities_are_unbiased_over_many_logs(world):
    """liked@K of `evaluate` too: a candidate that is often shown is nearly always judged, a rare one is not."""
    names = ("ips", "dr", "liked", "random", "exploration")
    rng, errors, held = np.random.default_rng(4), {name: [] for name in names}, []
    for _ in range(200):
        data, chances = explored(world, rng)
        users = np.arange(N_USERS)
        pairs = zip(users, lists(data, world[1], users), strict=True)
        truth = np.mean([np.mean([world[0][u, i] for i in top]) if top else 0.0 for u, top in pairs])
        found = by_estimator(value(world[1], data, K))
        for name in ("ips", "dr"):
            errors[name].append(found[name].value - truth)
        new = ~data.everything_but("S_te").mask(users, N_ITEMS)
        others = {"random": new / np.maximum(new.sum(axis=1, keepdims=True), 1), "exploration": new * chances}
        for name, shown in others.items():
            rate = by_estimator(value(world[1], data, K), name)["mean"].value
            errors[name].append(rate - np.average(world[0], weights=shown))
        judged = np.unique(data.unseen("S_te").users)
        labels = [world[0][u, i] for u, top in zip(judged, lists(data, world[1], judged), strict=True) for i in top]
        result, share = dubnb.evaluate(world[1], data, ks=(K,)), np.mean(labels)
        errors["liked"].append(result[f"liked@{K}"] - share)
        held.append(result[f"liked@{K}_low"] <= share <= result[f"liked@{K}_high"])
    for each in errors.values():
        assert abs(np.mean(each)) < 3 * np.std(each, ddof=1) / np.sqrt(len(each))
    assert np.mean(held) >= 0.93


def test_scores_from_elsewhere_are_calibrated_on_S_va(world):
    data, _ = explored(world, np.random.default_rng(6))
    scores = world[1].scores.astype(float)
    S_va = data.triplets("S_va")
    fitted = Calibration.fit(scores[S_va.users, S_va.items], S_va.labels, S_va.weights * data.importance("S_va"))
    theirs = CalibratedScorer(world[1], fitted)
    assert value(lambda users, items: scores[users, items], data, K) == value(theirs, data, K)
    part = value(lambda users, items: scores[users, items], data, K, part="S_va")
    assert set(by_estimator(part)) == {"ips", "snips"}  # S_va cannot calibrate and judge


def test_few_judged_pairs_give_no_estimate(world):
    chosen = np.zeros((N_USERS, N_ITEMS), bool)
    chosen[:3] = True
    found = value(world[1], partition(world, chosen), K)
    assert by_estimator(found)["ips"].judged < FEWEST_JUDGED and np.isnan(by_estimator(found)["ips"].value)
    assert found.gain is None and "too few" in found.text()


def rarely_shown(world, shown_rarely):
    """A log in which each user is nearly always shown her first item, and `shown_rarely` users another one once."""
    labels, scorer, _ = world
    best = np.argsort(-scorer.scores, axis=1, kind="stable")
    users, p = np.arange(N_USERS), 0.99
    rare = np.arange(shown_rarely)
    u, i = np.concatenate([users, rare]), np.concatenate([best[:, 0], best[rare, 1]])
    chances = np.concatenate([np.full(N_USERS, p), np.full(shown_rarely, (1 - p) / (N_ITEMS - 1))])
    weights = np.concatenate([np.full(N_USERS, 20.0), np.ones(shown_rarely)])
    none = ([], [], [], [], None, [])
    S_c = (users, best[:, -1], labels[users, best[:, -1]])
    parts = {"S_c": S_c, "S_t": none, "S_va": none, "S_te": (u, i, labels[u, i], weights, None, chances)}
    return Partition(parts, (N_USERS, N_ITEMS))


@pytest.mark.parametrize("shown_rarely", [1, 3])
def test_lists_of_which_rare_pairs_decide_get_no_estimate(world, shown_rarely):
    found = value(world[1], rarely_shown(world, shown_rarely), K)
    for each in by_estimator(found).values():
        assert each.judged >= FEWEST_JUDGED and np.isnan([each.value, each.low, each.high]).all()
    assert found.gain is None and "too few: pairs that the policy rarely shows decide" in found.text()


@pytest.mark.filterwarnings("ignore")
def test_notes_say_what_the_rows_are_about(world):
    data, _ = explored(world, np.random.default_rng(3))
    assert value(world[1], data, K).notes == (
        "All rows but the log's leave out what S_t, S_va or the biased log showed to the user.",
    )
    users, items = np.nonzero(np.random.default_rng(0).random((N_USERS, N_ITEMS)) < 0.8)
    bucket, labels = users >= N_USERS // 2, world[0][users, items]
    none = ([], [], [])
    parts = {"S_c": (users[~bucket], items[~bucket], labels[~bucket]), "S_t": none, "S_va": none}
    parts["S_te"] = users[bucket], items[bucket], labels[bucket]
    found = value(world[1], Partition(parts, (N_USERS, N_ITEMS)), K)
    assert "The row of the log is about other users" in found.text() and len(found.to_dict()["notes"]) == 1


def test_intervals_of_shares_lie_within_0_and_1(world):
    labels = np.ones((N_USERS, N_ITEMS))
    labels[:, ::2] = 0
    S_te = np.nonzero(np.random.default_rng(0).random(labels.shape) < 0.3)
    none = ([], [], [])
    parts = {"S_c": ([0], [0], [1.0]), "S_t": none, "S_va": none, "S_te": (*S_te, labels[S_te])}
    scorer = LogOddsTable((labels * 4 - 2).astype(np.float32))
    for each in by_estimator(value(scorer, Partition(parts, (N_USERS, N_ITEMS)), K)).values():
        assert 0 <= each.low <= each.high <= 1


def test_a_list_is_as_long_as_there_are_candidates(world):
    """Every user has 10 of 12 items left, user 0 only 9."""
    labels, scorer, S_c = world
    data = partition(world, np.ones((N_USERS, N_ITEMS), bool))
    found, longest = value(scorer, data, 1_000), value(scorer, data, N_ITEMS - 2)
    assert (
        found.estimates == longest.estimates
        and found.k == longest.k == N_ITEMS - 2
        and "share of 10 shown items" in found.text()
    )
    free = np.setdiff1d(np.arange(N_ITEMS), S_c[1][S_c[0] == 0])[0]
    more = np.append(S_c[0], 0), np.append(S_c[1], free)
    found = value(scorer, partition((labels, scorer, more), np.ones((N_USERS, N_ITEMS), bool)), 1_000)
    assert found.k == N_ITEMS - 2 and found.notes == (
        "No user has 1,000 candidates: lists have 10 items, those of 1 of 40 users fewer.",
    )


def test_a_model_trained_on_the_judging_pairs_is_refused():
    data = dubnb.load_dataset("simulated", seed=1)
    model = dubnb.Base(rank=2, epochs=1).fit(data)
    assert value(model, data, 5).to_dict()["estimates"][0]["policy"] == "model"
    with pytest.raises(InputError, match="trained on S_t"):
        value(model, data, 5, part="S_t")
    with pytest.raises(InputError, match="trained on S_te"):
        value(dubnb.Base(rank=2, epochs=1).fit(data, refit="all"), data, 5)
    other = dubnb.load_dataset("simulated", seed=2)
    with pytest.raises(InputError, match="fit it on this log"):
        value(model, other, 5)


def test_shares_of_pairs_equal_shares_of_users():
    rng = np.random.default_rng(3)
    users, weights = np.repeat(np.arange(30), 4), rng.random(30) + 0.5
    alike = np.repeat(rng.random(30) < 0.3, 4)  # users like all their pairs or none
    for liked in (rng.random(120) < 0.3, alike):
        counts = np.bincount(users, weights=liked), np.bincount(users)
        found = stats.weighted_share(weights[users], liked, users)
        assert found[:3] == pytest.approx(stats.liked_share(weights, *counts)[:3])


def test_the_interval_of_a_rare_mean_is_fay_and_feuers():
    values = np.array([0, 0, 3.0, 0, 1.5, 0, 0, 2.0])
    y, v, w = values.mean(), values.var(ddof=1) / 8, 3.0 / 8
    found = stats.rare_mean_interval(values, 3.0)
    assert found.low == pytest.approx(v / (2 * y) * chi2.ppf(0.025, 2 * y * y / v))
    assert found.high == pytest.approx((v + w * w) / (2 * (y + w)) * chi2.ppf(0.975, 2 * (y + w) ** 2 / (v + w * w)))
    assert stats.rare_mean_interval(np.zeros(5), 1.0)[:2] == (0.0, 0.0)
