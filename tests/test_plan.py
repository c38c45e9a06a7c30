"""The plan: curves whose answer is known, nested logs, the price, the sentence, and one run through the engine."""

import dataclasses
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats as scipy_stats

import dubnb
from bench import plan_coverage
from dubnb import metrics
from dubnb._check import InputError
from dubnb.choice import auc_influence
from dubnb.data.partition import PARTS, Partition
from dubnb.data.pattern import joined
from dubnb.evaluation import weights_of_users
from dubnb.theory import plan as plans
from dubnb.theory.plan import ACCELERATING, EXPONENTS, FORM_ERROR, Curve, PlanBudget, basis, fit_power_law
from tests.naive import biased_log, small_partition


@pytest.fixture(scope="module")
def data():
    return biased_log(80, 50, 900, 20)


def noisy(sizes, curve, sigma, seed, each=4):
    """(sizes, a row of values per size)."""
    sizes = np.asarray(sizes, dtype=float)
    noise = np.random.default_rng(seed).standard_normal((len(sizes), each))
    return sizes, curve(sizes)[:, None] + sigma * noise


def test_the_basis_is_a_power_and_the_logarithm_between():
    n = np.array([0.5, 1.0, 4.0])
    np.testing.assert_allclose(basis(n, np.full(3, 0.5)), (1 - n**-0.5) / 0.5)
    np.testing.assert_allclose(basis(n, np.zeros(3)), np.log(n))
    np.testing.assert_allclose(basis(n, np.full(3, 1e-6)), np.log(n), atol=1e-5)
    np.testing.assert_allclose(basis(n, np.full(3, -1.0)), n - 1)
    assert (np.abs(EXPONENTS) < 1e-9).any()


@pytest.mark.parametrize("c", [0.0, 0.5, 1.0])
def test_a_curve_of_known_shape_is_found_and_covered(c):
    def curve(n):
        return 0.6 + 0.05 * basis(n / 1000, np.full(len(n), c))

    held = []
    for seed in range(20):
        law = fit_power_law(*noisy([250, 500, 1000, 2000, 4000], curve, 0.003, seed), seed=seed)
        _, low, high = law.band([4000.0, 8000.0])
        held.append((low <= curve(np.array([4000.0, 8000.0]))) & (curve(np.array([4000.0, 8000.0])) <= high))
        assert 0.001 < law.sigma < 0.008
    assert (np.sum(held, axis=0) >= 16).all()  # 90 % bands


@pytest.mark.parametrize("shared", [0.0, 0.02])
def test_draws_are_those_of_generalised_least_squares(shared):
    """Each exponent by whitening with the covariance: its weight, and the mean and covariance of its draws."""
    n, y = noisy([250, 500, 2000], lambda n: 0.7 - 0.05 * (n / 1000) ** -0.5, 0.01, 5)
    test = shared**2 * np.array([[1.0, 0.9, 0.8], [0.9, 1.0, 0.9], [0.8, 0.9, 1.0]])
    law = fit_power_law(n, y, test, seed=3)
    pooled = np.sqrt(((y - y.mean(axis=1, keepdims=True)) ** 2).sum() / 9)
    sigma = pooled * scipy_stats.t.ppf(0.95, 9) / scipy_stats.norm.ppf(0.95)
    assert law.sigma == pytest.approx(sigma, rel=1e-6) and law.unit == 2000
    white = np.linalg.inv(np.linalg.cholesky(test + sigma**2 / 4 * np.eye(3)))
    log_weights = []
    for c in EXPONENTS:
        X = white @ np.column_stack([np.ones(3), basis(n / 2000, np.full(3, c))])
        best, *_ = np.linalg.lstsq(X, white @ y.mean(axis=1), rcond=None)
        left = white @ y.mean(axis=1) - X @ best
        log_weights.append(-0.5 * np.linalg.slogdet(X.T @ X)[1] - 0.5 * left @ left)
    weights = np.exp(np.array(log_weights) - max(log_weights))
    weights /= weights.sum()
    shares = np.array([(np.abs(law.c - c) < 1e-12).mean() for c in EXPONENTS])
    assert np.abs(shares - weights).max() < 4 * np.sqrt(weights.max() / 4000)
    k = int(np.argmax(weights))
    X = white @ np.column_stack([np.ones(3), basis(n / 2000, np.full(3, EXPONENTS[k]))])
    best, root, _ = plans._solve_exponent(n / 2000, y.mean(axis=1), np.linalg.inv(white.T @ white), EXPONENTS[k])
    np.testing.assert_allclose(best, np.linalg.lstsq(X, white @ y.mean(axis=1), rcond=None)[0], rtol=1e-6)
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(X.T @ X), rtol=1e-6)


def test_beyond_the_data_growing_gains_mostly_keep_their_rate_and_the_rate_is_uncertain():
    n, y = noisy([250, 500, 1000, 2000], lambda n: 0.6 + 0.05 * n / 2000, 1e-4, 6)
    law = fit_power_law(n, y, seed=2)
    assert law.c.max() < -0.5 and law.at([2000.0]).mean() == pytest.approx(0.65, abs=1e-3)
    grows = law.c_beyond < 0  # as within the data; the others keep their rate
    assert grows.mean() == pytest.approx(ACCELERATING, abs=0.03) and (law.c_beyond[grows] == law.c[grows]).all()
    expected = law.a + law.b * law.factors * np.where(grows, basis(np.full(4000, 2.0), law.c), np.log(2))
    np.testing.assert_allclose(law.at([4000.0])[:, 0], expected)
    assert law.factors.mean() == pytest.approx(1.0, abs=0.05) and law.factors.std() == pytest.approx(
        FORM_ERROR, abs=0.05
    )
    fading = fit_power_law(*noisy([250, 500, 1000, 2000], lambda n: 0.8 - 0.1 * (n / 250) ** -1.0, 1e-4, 6), seed=2)
    assert fading.c.min() > 0.5
    expected = fading.a + fading.b * fading.factors * basis(np.full(4000, 2.0), fading.c)
    np.testing.assert_allclose(fading.at([4000.0])[:, 0], expected)


def test_a_band_of_a_gain_is_never_narrow_beside_the_gain():
    """Noiseless fits, no test pairs to err on: the form of the curve alone leaves more than half of the gain open."""
    law = fit_power_law([250, 500, 1000, 2000], np.tile(0.7 + 0.01 * np.arange(4.0)[:, None], (1, 3)))
    middle, low, high = law.gain(2000, 8000)
    assert middle == pytest.approx(0.02, rel=0.1) and low < 0.5 * middle and high > 1.5 * middle


def test_the_test_pairs_widen_a_gain_by_how_far_sizes_differ_on_them():
    n, y = noisy([250, 500, 1000, 2000], lambda n: 0.7 + 0.01 * np.log(n / 250), 1e-4, 1)
    level = 0.03**2 * np.ones((4, 4))
    tilt = 0.01**2 * np.outer(np.arange(4.0), np.arange(4.0))

    def width(covariance):
        _, low, high = fit_power_law(n, y, covariance).gain(2000, 8000)
        return high - low

    assert width(level) == pytest.approx(width(None), rel=0.1)  # what all sizes share cancels
    assert width(tilt) > 1.3 * width(None)
    law = fit_power_law(n, y, level)
    assert np.diff(law.band([1000.0])[1:], axis=0)[0, 0] > 2 * 1.5 * 0.03


def test_bands_widen_beyond_the_data():
    law = fit_power_law(*noisy([250, 500, 1000, 2000], lambda n: 0.7 - 0.05 * (n / 1000) ** -0.5, 0.003, 1))
    widths = [float(np.diff(law.band([size])[1:], axis=0)[0, 0]) for size in (1000.0, 4000.0, 20000.0)]
    assert widths[0] < widths[1] < widths[2]


def test_expected_curves_never_fall_and_never_pass_one():
    n, y = noisy([250, 500, 1000], lambda n: 0.8 - 0.05 * np.log(n / 250), 0.001, 2)
    law = fit_power_law(n, y)
    assert law.gain(250, 1000)[0] == 0.0 and law.b.max() < 1e-3
    steep = fit_power_law(*noisy([250, 500, 1000], lambda n: 0.3 + 0.6 * n / 1000, 0.001, 3))
    assert steep.at([1e5]).max() <= 1.0


def test_nested_logs_share_everything_except_S_t(data):
    logs = plans.nested_logs(data, PlanBudget(2, 4, None), 0)
    sizes = sorted({size for size, _ in logs})
    n_t, n_te = (len(data.triplets(part).users) for part in ("S_t", "S_te"))
    assert n_te > n_t and len(sizes) == 4 and sizes[-1] == n_t + n_te // 2 and sizes[0] == sizes[-1] // 16

    def pairs(log, part):
        own = log.triplets(part)
        return set(zip(own.users.tolist(), own.items.tolist(), own.labels.tolist(), strict=True))

    lent = pairs(data, "S_te") - pairs(logs[sizes[0], 0], "S_te")
    for k in range(2):
        for small, large in itertools.pairwise(sizes):
            assert pairs(logs[small, k], "S_t") < pairs(logs[large, k], "S_t")
        assert pairs(logs[sizes[-1], k], "S_t") == pairs(data, "S_t") | lent
    assert pairs(logs[sizes[0], 0], "S_t") != pairs(logs[sizes[0], 1], "S_t")
    for log in logs.values():
        assert not pairs(log, "S_t") & pairs(log, "S_te")
        assert pairs(log, "S_c") == pairs(data, "S_c") and pairs(log, "S_va") == pairs(data, "S_va")


def test_a_small_S_te_is_not_split_and_the_overlap_is_kept(data):
    S_te = data.triplets("S_te")
    few = data.replace(S_te=S_te.take(slice(30)))
    for log in plans.nested_logs(few, PlanBudget(1, 3, None), 0).values():
        assert len(log.triplets("S_te").users) == 30
    again = S_te.take(slice(5))
    S_c = joined(data.triplets("S_c"), again)
    shared = Partition({part: data.triplets(part) for part in PARTS} | {"S_c": S_c}, (data.n_users, data.n_items))
    for log in plans.nested_logs(shared, PlanBudget(1, 3, None), 0).values():
        inside = np.isin(again.users * data.n_items + again.items, _keys(log))
        assert shared.removed == 5 and len(log.overlap.users) == inside.sum()  # those are not judged


def _keys(log):
    parts = [log.triplets(part) for part in PARTS[1:]]
    return np.concatenate([part.users * log.n_items + part.items for part in parts])


def everything(data):
    """Users and labels of the whole randomized log."""
    parts = [data.triplets(part) for part in PARTS[1:]]
    return np.concatenate([part.users for part in parts]), np.concatenate([part.labels for part in parts])


def curve_of(function, sizes=(250, 500, 1000, 2000), sigma=0.002):
    n, y = noisy(sizes, function, sigma, 0, each=3)
    return Curve("dub", "auc", sizes, tuple(map(tuple, y.tolist())), fit_power_law(n, y))


def test_the_sentence_says_the_gain_and_where_it_ends():
    fading = curve_of(lambda n: 0.8 - 0.1 * (n / 250) ** -1.0)
    sentence = plans._sentence(fading, 3000, 1000)
    gain, low, high = fading.law.gain(3000, 4000)
    assert f"With 1,000 more random impressions, on top of today's 3,000, expect {gain:+.4f}" in sentence
    assert f"({low:+.4f} to {high:+.4f}) AUC of dub" in sentence
    end = plans.beyond_noise(fading, 3000)
    # 0.1 / n' - 0.1 / 2n' < .002 with n' = n / 250: n > 25 x 250
    assert 3000 < end < 12000 and f"beyond {end:,.0f} in all" in sentence
    assert "already now, doubling gains less" in plans._sentence(fading, 20_000, 1000)
    growing = curve_of(lambda n: 0.6 + 0.02 * np.log(n / 250))
    assert plans.beyond_noise(growing, 1000) is None and "still gains more than" in plans._sentence(growing, 1000, 10)


def test_what_was_in_S_c_has_no_part_in_a_fit_s_influences():
    S_c = ([0, 0, 1, 2], [0, 1, 2, 3], [1, 0, 1, 0])
    S_te = ([0, 0, 1, 2], [0, 2, 0, 0], [1, 0, 1, 0])  # the first is in both logs
    none = ([], [], [])
    log = Partition({"S_c": S_c, "S_t": ([3], [3], [1]), "S_va": none, "S_te": S_te}, (4, 4))
    scores = np.array([9.0, 1.0, 2.0, 3.0])
    shown = SimpleNamespace(scores=scores, users=np.array([0, 1]), per_user={"ndcg": np.array([0.2, 0.6])})
    found = plans.judged_metrics({"auc": 0.5, "ndcg": 0.4}, shown, log)
    by_pair = auc_influence(scores[1:], np.array([0.0, 1.0, 0.0]), np.arange(3), 3).of_users
    assert found["auc"].value == 0.5 and found["auc"].influences.tolist() == pytest.approx([*by_pair, 0.0])
    assert found["ndcg"].influences.tolist() == pytest.approx([-0.1, 0.1, 0.0, 0.0])


def explored(p):
    """A log of 40 users x 12 items whose randomized part is S_te alone; item 0 is liked and shown most often."""
    users, items = np.divmod(np.arange(480), 12)
    labels = ((items == 0) | (users % 4 == 1)).astype(float)
    taken = (items + users) % 3 > 0
    own = users[taken], items[taken], labels[taken], None, None, None if p is None else p[items[taken]]
    none = ([], [], [])
    S_c = users[~taken], items[~taken], labels[~taken]
    return Partition({"S_c": S_c, "S_t": none, "S_va": none, "S_te": own}, (40, 12))


def test_influences_are_how_weighted_metrics_move_with_a_user_s_weight():
    log = explored(np.where(np.arange(12) == 0, 0.8, 0.02 * (1 + np.arange(12))))
    S_te, w = log.unseen("S_te"), log.judging_weights("S_te")
    rng = np.random.default_rng(3)
    listed = np.unique(S_te.users[S_te.labels > 0])  # the users that nDCG counts
    scores, ndcg = rng.integers(8, size=len(w)).astype(float), rng.random(len(listed))
    shown = SimpleNamespace(scores=scores, users=listed, per_user={"ndcg": ndcg})
    found = plans.judged_metrics({"auc": 0.5, "ndcg": 0.4}, shown, log)
    of_lists = weights_of_users(log, "S_te", "lists")[listed]
    for user in listed[[1, 7, 20]]:
        more = 1 + 1e-6 * (np.arange(40) == user)
        auc = [metrics.auc(scores, S_te.labels, own) for own in (w * more[S_te.users], w)]
        mean = [np.average(ndcg, weights=own) for own in (of_lists * more[listed], of_lists)]
        for name, (moved, before) in {"auc": auc, "ndcg": mean}.items():
            assert found[name].influences[user] == pytest.approx((moved - before) / 1e-6, abs=1e-6)


def test_the_price_and_the_strata_are_those_of_uniform_traffic():
    """The policy favours item 0, which everyone likes; its rate must not count as that of uniform traffic."""
    p = np.where(np.arange(12) == 0, 0.8, 0.02)
    log, plain, equal = explored(p), explored(None), explored(np.full(12, 0.1))
    S_te = log.unseen("S_te")
    rate = np.average(S_te.labels, weights=1 / p[S_te.items])
    assert plans.price_of(log).random_rate == pytest.approx(rate, rel=1e-4)
    assert rate < S_te.labels.mean() - 0.02
    assert plans.price_of(equal) == plans.price_of(plain)
    assert plans._strata_of_items(equal) == plans._strata_of_items(plain)
    assert plans._strata_of_items(log) != plans._strata_of_items(plain)


def test_sizes_grow_by_half_at_least_and_end_with_the_pool():
    assert plans._sample_sizes(1600, 3) == [100, 400, 1600]
    assert plans._sample_sizes(160, 3) == [20, 57, 160]  # 20 at least
    few = plans._sample_sizes(100, 6)  # log(5) / log(1.5) = 3.97: no more than four
    assert len(few) == 4 and few[0] == 20 and few[-1] == 100
    assert plans._sample_sizes(40, 6)[0] == 13  # a third of a small pool


def plan_of(curve, n_random, **change):
    price = plans.Price(0.4, 0.1, 0.3, 0.2, 0.35, 0.75)
    own = {
        "data": "x",
        "budget": "quick",
        "n_t": 10,
        "n_random": n_random,
        "n_test": 7,
        "price": price,
        "more": 5,
        "sentence": "S",
        "caveat": "C",
        "notes": ("N",),
    }
    curves = {("dub", "auc"): curve, ("dub", "ndcg"): dataclasses.replace(curve, metric="ndcg")}
    return plans.Plan(**own | {"curves": curves} | change)


def test_a_plan_in_text_and_json():
    curve = curve_of(lambda n: 0.8 - 0.1 * (n / 250) ** -1.0)
    plan = plan_of(curve, 2000)
    beyond = plan.beyond()
    assert beyond == pytest.approx([2000 * 5 ** (k / 4) for k in (1, 2, 3, 4)])  # to five times the randomized log
    assert plan_of(curve, 400).beyond() == []
    found = plan.to_dict()
    assert [each["metric"] for each in found["curves"]] == ["auc", "ndcg"] and found["randomized_pairs"] == 2000
    assert found["S_t"] == 10 and found["caveat"] == "C"
    bands = found["curves"][0]["bands"]
    assert [each["size"] for each in bands] == [250, 500, 1000, 2000, *beyond]
    assert [each["extrapolated"] for each in bands] == [False] * 4 + [True] * 4
    middle, low, high = curve.law.band([bands[5]["size"]])
    assert (bands[5]["expected"], bands[5]["low"], bands[5]["high"]) == pytest.approx((middle[0], low[0], high[0]))
    assert found["curves"][0]["measured"][1] == {"size": 500, "values": list(curve.values[1])}
    lines = plan.text().splitlines()
    assert lines[0].startswith("plan for x: 2,000") and lines[2:4] == ["S", "C"]
    assert lines[5].split() == ["auc", "250", "500", "1,000", "2,000", *(f"{n:,.0f}*" for n in beyond)]
    row = lines[6].split()
    assert row[0] == "dub" and float(row[2]) == pytest.approx(np.mean(curve.values[1]), abs=1e-4)
    assert float(row[5]) == pytest.approx(float(curve.law.band([beyond[0]])[0][0]), abs=1e-4)
    assert "1,000 random impressions forgo 300 (200 to 350) positives, 75% of" in plan.text()
    assert "*" not in "".join(plan_of(curve, 400).text().splitlines()[5])


def test_bad_input_is_one_line(data):
    parts = {part: data.triplets(part) for part in PARTS}
    shape = (data.n_users, data.n_items)
    positive = np.flatnonzero(parts["S_t"].labels)[:1]
    few = parts["S_t"].take(np.concatenate([positive, np.flatnonzero(parts["S_t"].labels == 0)[:5]]))
    with pytest.raises(InputError, match="S_t has 6 pairs"):
        dubnb.plan(Partition(parts | {"S_t": few}, shape))
    with pytest.raises(InputError, match="method='dob' is unknown"):
        dubnb.plan(data, methods=("dob",))
    with pytest.raises(InputError, match="budget='large' is unknown"):
        dubnb.plan(data, budget="large")


@pytest.mark.parametrize("part", ["S_t", "S_va", "S_te"])
def test_every_randomized_part_needs_both_classes(data, part):
    parts, shape = {part: data.triplets(part) for part in PARTS}, (data.n_users, data.n_items)
    own = parts[part]
    for taken, why in (
        (slice(0), "is empty"),
        (own.labels == 0, r"has labels of one class only \(0\)"),
        (own.labels == 1, r"has labels of one class only \(1\)"),
    ):
        with pytest.raises(InputError, match=f"{part} {why}"):
            dubnb.plan(Partition(parts | {part: own.take(taken)}, shape))


@pytest.fixture
def engine(data, monkeypatch):
    """What is asked of the sweeps' engine; its fits have an AUC that names their log and seed."""
    asked = []

    def planned(method, log, params):
        return method.name, len(log.triplets("S_t").users), tuple(sorted(params.items()))

    def run_fits(trials, logs, out, resources, list_length):
        asked.append(SimpleNamespace(trials=list(trials), logs=list(logs), out=Path(out), resources=resources))
        assert asked[-1].out.is_dir() and list_length == 1  # scores of S_te are needed, lists are not
        test_output = lambda: filed  # noqa: E731
        values = {(name, size, own): size / 10_000 + dict(own)["seed"] / 100 for name, size, own in asked[-1].trials}
        return {
            trial: SimpleNamespace(
                done=trial[0] != "combine",
                reason="diverged",
                metrics={"auc": value, "ndcg": 0.1},
                test_output=test_output,
            )
            for trial, value in values.items()
        }

    kept = next(iter(plans.nested_logs(data, PlanBudget(1, 3, None), 0).values())).triplets("S_te")
    scores = np.random.default_rng(0).random(len(kept.users))
    filed = SimpleNamespace(scores=scores, users=np.arange(3), per_user={"ndcg": np.array([0.1, 0.2, 0.0])})
    monkeypatch.setattr("dubnb.sweeps.runner.planned", planned)
    monkeypatch.setattr("dubnb.sweeps.runner.run_fits", run_fits)
    return asked


def test_every_method_is_fitted_on_every_log_and_base_once_per_seed(data, engine, tmp_path):
    plan = dubnb.plan(data, budget="smoke", methods=("base", "unif"), seed=5, more=70, out=tmp_path, n_jobs=3)
    (asked,) = engine
    sizes = plan.curves["unif", "auc"].sizes
    expected = {("unif", size, (("epochs", 2), ("seed", seed))) for size in sizes for seed in (5, 6)}
    expected |= {("base", sizes[-1], (("epochs", 2), ("seed", seed))) for seed in (5, 6)}
    assert len(sizes) == 3 and len(asked.trials) == len(expected) and set(asked.trials) == expected
    assert len(asked.logs) == 6 and asked.out == tmp_path
    assert asked.resources.n_jobs == 3 and asked.resources.quiet
    assert list(plan.curves) == [("base", "auc"), ("base", "ndcg"), ("unif", "auc"), ("unif", "ndcg")]
    for (method, metric), curve in plan.curves.items():
        reads = [sizes[-1]] * 3 if method == "base" else sizes
        values = [[n / 10_000 + 0.05, n / 10_000 + 0.06] if metric == "auc" else [0.1, 0.1] for n in reads]
        assert (curve.method, curve.metric) == (method, metric)
        assert np.array(curve.values) == pytest.approx(np.array(values))
    n_t, n_te = (len(data.triplets(part).users) for part in ("S_t", "S_te"))
    assert (plan.data, plan.budget, plan.n_t, plan.n_test, plan.more) == ("biased", "smoke", n_t, n_te // 2, 70)
    assert plan.price == plans.price_of(data)
    assert plan.n_random == n_t + n_te + len(data.triplets("S_va").users)
    assert plan.sentence == plans._sentence(plan.curves["base", "auc"], plan.n_random, 70)
    assert f"from fits with {sizes[0]} to {sizes[-1]} randomized pairs to {plan.n_random + 70:,}" in plan.caveat
    assert "too few epochs" in plan.caveat
    assert plan.notes[0].startswith("2 fits per size and method") and "too few epochs" in plan.notes[1]


def test_a_plan_by_default(data, engine):
    """Three seeds from 0 on, five sizes, each method's own epochs, and as much more traffic as there is."""
    plan = dubnb.plan(data, methods=("unif",))
    (asked,) = engine
    assert "AUC of unif" in plan.sentence and "too few epochs" not in plan.caveat
    assert "AUC of dub-x" in dubnb.plan(data, methods=("dub-x", "unif")).sentence  # our best system where it is fitted
    assert {own for _, _, own in asked.trials} == {(("seed", seed),) for seed in (0, 1, 2)}
    assert len(plan.curves["unif", "auc"].sizes) == 5 and len(plan.notes) == 1
    assert plan.more == plan.n_random == len(everything(data)[0]) and plan.budget == "quick"
    assert asked.resources.n_jobs == 1 and asked.resources.quiet and not asked.out.exists()
    with pytest.raises(InputError, match="seed=-1"):
        dubnb.plan(data, methods=("unif",), seed=-1)
    with pytest.raises(InputError, match=r"methods=\(\) must name at least one"):
        dubnb.plan(data, methods=())
    with pytest.raises(InputError, match="none twice"):
        dubnb.plan(data, methods=("unif", "base", "unif"))
    with pytest.raises(InputError, match=r"combine with 50 randomized pairs failed: diverged; leave it out"):
        dubnb.plan(data, methods=("unif", "combine"))
    with pytest.raises(InputError, match="data is a str"):
        dubnb.plan("simulated")


def test_the_price_counts_pairs_of_both_policies_for_both():
    """User 0 clicked 2 of 3 that the policy showed, one of which was shown at random too, without a click."""
    S_c = ([0, 0, 0, 1], [0, 1, 2, 3], [1, 1, 0, 0])
    S_t = ([0, 1, 2, 3], [0, 0, 1, 1], [0, 1, 0, 0])
    parts = {"S_c": S_c, "S_t": S_t, "S_va": ([], [], []), "S_te": ([], [], [])}
    price = plans.price_of(Partition(parts, (4, 4)))
    assert (price.policy_rate, price.random_rate, price.forgone, price.share) == (0.5, 0.25, 0.25, 0.5)
    # residuals: users 0 and 1 have 1/2 and -1/2 under the policy; users 0 ... 3 have -1/4, 3/4, -1/4, -1/4 at random
    half = 1.96 * np.hypot(np.sqrt(1 / 2), np.sqrt(12 / 16)) / 4
    assert (price.low, price.high) == pytest.approx((0.25 - half, 0.25 + half))
    nothing = plans.price_of(Partition(parts | {"S_c": (*S_c[:2], [0, 0, 0, 0])}, (4, 4)))
    assert (nothing.policy_rate, nothing.share, nothing.forgone) == (0.0, 0.0, -0.25)


def test_nested_logs_keep_ids_propensities_and_say_their_size():
    base = small_partition(n_t=8, n_te=9, ids="str")
    parts = {part: base.triplets(part) for part in PARTS}
    chances = np.linspace(0.1, 0.9, len(parts["S_c"].users))
    ids = {"user_ids": base.user_ids, "item_ids": base.item_ids}
    data = Partition(parts, (base.n_users, base.n_items), propensities=chances, name="shop", **ids)
    for (size, _), log in plans.nested_logs(data, PlanBudget(1, 3, None), 0).items():
        assert len(log.triplets("S_t").users) == min(size, 12) and len(log.triplets("S_te").users) == 5
        assert log.user_ids is data.user_ids and log.item_ids is data.item_ids
        np.testing.assert_array_equal(log.propensities, data.propensities)
        assert log.name == f"shop, {size} randomized pairs"


@pytest.mark.needs_jit
def test_a_plan_runs_through_the_engine_and_resumes(data, tmp_path):
    options = {"budget": "smoke", "methods": ("base", "unif"), "out": tmp_path / "fits"}
    plan = dubnb.plan(data, **options)
    base = plan.curves["base", "auc"]
    assert len({own for own in base.values}) == 1  # base never reads S_t: fitted once per seed
    assert len(base.values) == len(base.sizes) == 3 and len(base.values[0]) == 2
    json.dumps(plan.to_dict())
    assert "Price:" in plan.text() and "smoke checks" in plan.text()
    assert dubnb.plan(data, **options).curves["unif", "auc"].values == plan.curves["unif", "auc"].values
    from dubnb.report import page, theory

    html = page.render(theory.plan_page(plan, data, "dubnb plan"))
    assert "extrapolated" in html and plan.sentence.split(";")[0][:40] in html


@pytest.mark.needs_jit
@pytest.mark.filterwarnings("ignore")
def test_logs_of_the_coverage_bench_with_propensities_are_nested():
    """What the company has is in S_t of both trained logs; the later one has four times the impressions."""
    has, now, later = plan_coverage.exploring_company(1)
    n = plan_coverage.IMPRESSIONS[1]
    keys = [
        log.users.astype(int) * has.n_items + log.items
        for log in (has.random, *(x.triplets("S_t") for x in (now, later)))
    ]
    assert set(keys[0]) == set(keys[1]) <= set(keys[2])
    assert now.triplets("S_t").weights.sum() == n and later.triplets("S_t").weights.sum() == plan_coverage.TIMES * n
    p = later.triplets("S_t").propensities
    assert has.random.propensities is not None and p.min() < 0.002 < 0.1 < p.max()
    assert min(len(log.triplets(part).users) for log in (now, later) for part in ("S_va", "S_te")) > 100


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_bands_of_gains_hold_what_four_times_the_log_brings():
    """Eight simulated logs; with bands that hold in 85 % of them, fewer than five have a probability of .02."""
    held = []
    for draw in range(8):
        (_, low, high, real), _ = plan_coverage.measured(draw, ["dub-x"])["dub-x"]
        held.append(low <= real <= high)
    assert sum(held) >= 5


def test_impressions_are_spent_uniformly_or_by_epsilon_greedy_at_the_same_price(data):
    curve = curve_of(lambda n: 0.8 - 0.1 * (n / 250) ** -1.0)
    price = plans.Price(0.5, 0.2, 0.3, 0.2, 0.4, 0.6)
    ways, strata, (advice, about) = plans.spend(data, curve, price, 2000, 10_000, plans.pairs_per_uniform(data))
    by_name = {each.design: each for each in ways}
    every = by_name["uniform, all"]
    assert (every.impressions, every.effective) == (10_000, 10_000) and every.forgone == pytest.approx(3_000)
    assert (every.forgone_low, every.forgone_high) == pytest.approx((2_000, 4_000))
    assert every[6:] == pytest.approx(curve.law.gain(2000, 12_000))
    p = np.where(np.arange(12) == 0, 0.8, 0.02)
    uniform = plans.pairs_per_uniform(explored(p))  # today's pairs are worth less than uniform ones
    own = plans.spend(explored(p), curve, price, 2000, 10_000, uniform)[0][0]
    worth = 10_000 * len(explored(p).random.users) / explored(p).effective_sample_size("S_te")
    assert worth > 10_500 and own[6:] == pytest.approx(curve.law.gain(2000, 2000 + worth))
    greedy = by_name["epsilon-greedy, 0.3"]
    M = data.n_items - plans.uniformity.logged(data).sizes().mean()
    chances = np.full(round(M), 0.3 / M)
    chances[0] += 0.7
    w = 1 / (chances * M)
    assert greedy.effective == pytest.approx(10_000 / (chances @ w**2), rel=0.05)
    assert greedy.effective / greedy.forgone == pytest.approx(every.effective / every.forgone, rel=0.1)
    assert sum(each.share for each in strata) == pytest.approx(1) and [each.pairs > 0 for each in strata] == [True] * 3
    end = plans.beyond_noise(curve, 2000)
    spent = min(10_000, round(end) - 2000) if end is not None else 10_000
    assert ("Spend none" in advice) == (spent <= 0) and ("stay uniform" in about or "log the stratum" in about)
    if 0 < spent < 10_000:
        assert f"spend {spent:,} uniformly" in advice


def test_a_plan_of_impressions_says_how_to_spend_them(data, engine):
    plan = dubnb.plan(data, methods=("unif",), impressions=5_000)
    assert plan.more == 5_000 and {each.impressions for each in plan.spendings} >= {5_000}
    text = plan.text()
    assert "epsilon-greedy, 0.1" in text and "most popular third" in text and "5,000 impressions" in text
    assert [each["design"] for each in plan.to_dict()["spendings"]] == [each.design for each in plan.spendings]
    with pytest.raises(InputError, match="more= and impressions= are given: keep one"):
        dubnb.plan(data, methods=("unif",), more=3, impressions=3)
    with pytest.raises(InputError, match="impressions=0"):
        dubnb.plan(data, methods=("unif",), impressions=0)


@pytest.mark.filterwarnings("ignore")
def test_the_sentence_is_the_row_of_uniform_impressions_also_with_propensities(data, tmp_path):
    parts = {part: data.triplets(part) for part in ("S_t", "S_va", "S_te")}
    p = np.where(np.arange(data.n_items) % 5, 0.01, 0.04)
    log = data.replace(**{part: own._replace(propensities=p[own.items]) for part, own in parts.items()})
    plan = dubnb.plan(log, budget="smoke", methods=("unif",), impressions=500, out=tmp_path)
    row = plan.spendings[0]
    assert row.design == "uniform, all" and plans.pairs_per_uniform(log) > 1.05
    worth = 500 * plans.pairs_per_uniform(log)
    assert f"With 500 more uniform impressions (worth {worth:,.0f} pairs like today's)" in plan.sentence
    assert f"expect {row.gain:+.4f} ({row.gain_low:+.4f} to {row.gain_high:+.4f}) AUC" in plan.sentence
    assert f"randomized pairs to {plan.n_random + worth:,.0f}." in plan.caveat
    assert dubnb.plan(log, budget="smoke", methods=("unif",), more=500, out=tmp_path).sentence == plan.sentence
