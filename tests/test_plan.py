"""The plan: curves whose answer is known, nested logs, the price, the sentence, and one run through the engine."""

import dataclasses
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dubnb
from dubnb._check import InputError
from dubnb._random import generator
from dubnb.data.partition import PARTS, Partition
from dubnb.theory import plan as plans
from dubnb.theory.curves import EXPONENTS, basis, fit_power_law
from dubnb.theory.plan import Budget, Curve
from dubnb.theory.selection import clustered_rate
from tests.naive import biased_log, small_partition


@pytest.fixture(scope="module")
def data():
    return biased_log(80, 50, 900, 20)


def noisy(sizes, curve, sigma, seed, each=4):
    n = np.repeat(sizes, each)
    return n, curve(n) + sigma * np.random.default_rng(seed).standard_normal(len(n))


def test_the_basis_is_a_power_and_the_logarithm_between():
    n = np.array([0.5, 1.0, 4.0])
    np.testing.assert_allclose(basis(n, np.full(3, 0.5)), (1 - n**-0.5) / 0.5)
    np.testing.assert_allclose(basis(n, np.zeros(3)), np.log(n))
    np.testing.assert_allclose(basis(n, np.full(3, 1e-6)), np.log(n), atol=1e-5)
    np.testing.assert_allclose(basis(n, np.full(3, -1.0)), n - 1)
    assert (np.abs(EXPONENTS) < 1e-9).any()


@pytest.mark.parametrize("c", [-0.5, 0.0, 0.5, 1.0])
def test_a_curve_of_known_shape_is_found_and_covered(c):
    def curve(n):
        return 0.6 + 0.05 * basis(n / 1000, np.full(len(n), c))

    held = 0
    for seed in range(20):
        law = fit_power_law(*noisy([250, 500, 1000, 2000, 4000], curve, 0.003, seed), seed=seed)
        _, low, high = law.band([8000.0])
        held += low[0] <= curve(np.array([8000.0]))[0] <= high[0]
        assert 0.001 < law.sigma < 0.006
    assert held >= 14  # 90 % bands


def naive_law(sizes, values, level_error, seed):
    """(a, b, c, offset, sigma) of every draw by the formulas of `fit_power_law`, exponent by exponent."""
    unit, n = max(sizes), len(values)
    fits = []
    for c in EXPONENTS:
        x = [basis(np.array([size / unit]), np.array([c]))[0] for size in sizes]
        offset = sum(x) / n
        sxx = sum((each - offset) ** 2 for each in x)
        slope = sum((each - offset) * y for each, y in zip(x, values, strict=True)) / sxx
        left = [y - np.mean(values) - slope * (each - offset) for each, y in zip(x, values, strict=True)]
        fits.append((c, offset, sxx, slope, sum(each**2 for each in left)))
    _, offsets, sxx, slopes, sse = (np.array(column) for column in zip(*fits, strict=True))
    posterior = sxx**-0.5 * (sse / sse.min()) ** (-(n - 2) / 2)
    rng = generator(seed, "power-law")
    k = rng.choice(len(EXPONENTS), 4000, p=posterior / posterior.sum())
    sigma = np.sqrt(sse[k] / rng.chisquare(n - 2, 4000))
    a = np.mean(values) + np.sqrt(sigma**2 / n + level_error**2) * rng.standard_normal(4000)
    b = slopes[k] + sigma / np.sqrt(sxx[k]) * rng.standard_normal(4000)
    return a, np.where(b > 0, b, 0.0), EXPONENTS[k], offsets[k], sigma, rng


@pytest.mark.parametrize("level_error", [0.0, 0.02])
def test_draws_are_those_of_the_posterior_s_formulas(level_error):
    n, y = noisy([250, 500, 2000], lambda n: 0.7 - 0.05 * (n / 1000) ** -0.5, 0.01, 5)
    law = fit_power_law(n, y, level_error, seed=3)
    a, b, c, offsets, sigma, _ = naive_law(n, y, level_error, 3)
    for found, expected in ((law.a, a), (law.b, b), (law.c, c), (law.offsets, offsets)):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert law.sigma == pytest.approx(np.median(sigma), rel=1e-6) and law.unit == 2000
    assert not law.drifts.any()  # three sizes are needed for a law that could miss a fourth
    curve = a + b * (basis(np.full(4000, 5000 / 2000), c) - offsets)
    np.testing.assert_allclose(law.at([5000.0])[:, 0], np.minimum(curve, 1.0), rtol=1e-6)
    low, middle, high = np.quantile(np.minimum(curve, 1.0), [0.05, 0.5, 0.95])
    assert [float(each[0]) for each in law.band([5000.0])] == pytest.approx([middle, low, high], rel=1e-6)
    assert law.band([5000.0], level=0.5)[1][0] == pytest.approx(np.quantile(np.minimum(curve, 1.0), 0.25), rel=1e-6)


def test_many_fits_of_little_noise_are_no_trouble():
    """The posterior's weights, some 10^400 before they are scaled, are compared as logarithms."""
    n, y = noisy([250, 500, 2000], lambda n: 0.6 + 0.02 * np.log(n / 250), 1e-5, 4, each=40)
    law = fit_power_law(n, y, seed=1)
    assert law.b.mean() == pytest.approx(0.02, rel=1e-3) and np.abs(law.c).max() < 1e-9


def test_what_the_law_of_smaller_sizes_misses_drifts_beyond_the_largest():
    sizes = [250, 500, 1000, 2000]
    n, y = noisy(sizes, lambda n: np.where(n < 2000, 0.6, 0.7), 0.001, 6)
    law = fit_power_law(n, y, seed=2)
    small = fit_power_law(n[n < 2000], y[n < 2000], seed=2)
    miss = abs(small.band([2000.0])[0][0] - y[n == 2000].mean()) / np.log(2)
    rng = naive_law(n, y, 0.0, 2)[-1]
    np.testing.assert_allclose(law.drifts, miss * rng.standard_normal(4000), rtol=1e-5)
    still = dataclasses.replace(law, drifts=np.zeros(4000))
    np.testing.assert_array_equal(law.at([1500.0, 2000.0]), still.at([1500.0, 2000.0]))
    expected = np.minimum(
        still.a + still.b * (basis(np.full(4000, 2.0), law.c) - law.offsets) + law.drifts * np.log(2), 1
    )
    np.testing.assert_allclose(law.at([4000.0])[:, 0], expected, rtol=1e-9)


def test_bands_widen_beyond_the_data_and_with_the_error_of_the_level():
    n, y = noisy([250, 500, 1000, 2000], lambda n: 0.7 - 0.05 * (n / 1000) ** -0.5, 0.003, 1)
    law, shared = fit_power_law(n, y), fit_power_law(n, y, level_error=0.05)
    widths = [float(np.diff(law.band([size])[1:], axis=0)[0, 0]) for size in (1000.0, 4000.0, 20000.0)]
    assert widths[0] < widths[1] < widths[2]
    assert np.diff(shared.band([1000.0])[1:], axis=0)[0, 0] > 0.1
    np.testing.assert_allclose(shared.gain(1000, 4000), law.gain(1000, 4000), atol=2e-3)


def test_curves_never_fall_and_never_pass_one():
    n, y = noisy([250, 500, 1000], lambda n: 0.8 - 0.05 * np.log(n / 250), 0.001, 2)
    law = fit_power_law(n, y)
    assert law.gain(250, 1000) == (0.0, 0.0, 0.0) and law.band([500.0])[0][0] == pytest.approx(y.mean(), abs=0.02)
    steep = fit_power_law(*noisy([250, 500, 1000], lambda n: 0.3 + 0.6 * n / 1000, 0.001, 3))
    assert steep.at([1e5]).max() <= 1.0


def test_nested_logs_share_everything_but_S_t(data):
    logs = plans.nested_logs(data, Budget(2, 4, None), 0)
    sizes = sorted({size for size, _ in logs})
    n_t, n_te = (len(data.triplets(part).users) for part in ("S_t", "S_te"))
    assert len(sizes) == 4 and sizes[0] == n_t // 4 and sizes[-1] == n_t + n_te // 2

    def pairs(log, part):
        own = log.triplets(part)
        return set(zip(own.users.tolist(), own.items.tolist(), own.labels.tolist(), strict=True))

    lent = pairs(data, "S_te") - pairs(logs[sizes[0], 0], "S_te")
    for k in range(2):
        for small, large in itertools.pairwise(sizes):
            assert pairs(logs[small, k], "S_t") < pairs(logs[large, k], "S_t")
        assert pairs(logs[sizes[0], k], "S_t") < pairs(data, "S_t")
        assert pairs(logs[sizes[-1], k], "S_t") == pairs(data, "S_t") | lent
    assert pairs(logs[sizes[0], 0], "S_t") != pairs(logs[sizes[0], 1], "S_t")
    for log in logs.values():
        assert not pairs(log, "S_t") & pairs(log, "S_te")
        assert pairs(log, "S_c") == pairs(data, "S_c") and pairs(log, "S_va") == pairs(data, "S_va")


def everything(data):
    """Users and labels of the whole randomized log."""
    parts = [data.triplets(part) for part in PARTS[1:]]
    return np.concatenate([part.users for part in parts]), np.concatenate([part.labels for part in parts])


def test_the_price_is_the_difference_of_positive_rates(data):
    price = plans.price_of(data)
    randomized = np.concatenate([data.triplets(part).labels for part in PARTS[1:]])
    assert price.policy_rate == pytest.approx(data.triplets("S_c").labels.mean(), abs=1e-6)
    assert price.forgone == pytest.approx(price.policy_rate - randomized.mean(), abs=1e-6)
    assert price.low < price.forgone < price.high and price.share == pytest.approx(price.forgone / price.policy_rate)
    assert price.high - price.forgone == pytest.approx(price.forgone - price.low) and price.random_rate < 1
    log = data.triplets("S_c")
    rates = [clustered_rate(log.users, log.labels), clustered_rate(*everything(data))]
    half = np.hypot(*(rate.high - rate.rate for rate in rates))
    assert price.high == pytest.approx(price.forgone + half)
    assert f"{price.share:.0%}" in plans.price_text(price)


def curve_of(function, sizes=(250, 500, 1000, 2000), sigma=0.002):
    n, y = noisy(sizes, function, sigma, 0, each=3)
    table = tuple(tuple(y[n == size]) for size in sizes)
    return Curve("dub", "auc", sizes, table, fit_power_law(n, y))


def test_the_sentence_says_the_gain_and_where_it_ends():
    fading = curve_of(lambda n: 0.8 - 0.1 * (n / 250) ** -1.0)
    sentence = plans._sentence(fading, 1000, 1000)
    gain = fading.law.gain(1000, 2000)[0]
    assert f"With 1,000 more random impressions expect {gain:+.4f}" in sentence and "extrapolated" not in sentence
    end = plans.beyond_noise(fading, 1000)
    assert f"beyond {end:,.0f} in all" in sentence
    # 0.1 / n' - 0.1 / 2n' < .002 with n' = n / 250: n > 25 x 250
    assert 3000 < end < 12000
    assert "(extrapolated)" in plans._sentence(fading, 1000, 5000)
    growing = curve_of(lambda n: 0.6 + 0.02 * np.log(n / 250))
    assert plans.beyond_noise(growing, 1000) is None and "bring more than" in plans._sentence(growing, 1000, 10)


def test_errors_of_the_metrics():
    errors = plans._Errors.__new__(plans._Errors)
    errors.n_positive, errors.n_negative, errors.n_users = 100, 900, 50
    rng = np.random.default_rng(0)
    from dubnb.metrics import auc

    labels = np.repeat([1.0, 0.0], [100, 900])
    values = [auc(rng.normal(size=1000) + labels, labels) for _ in range(400)]
    assert errors.of("auc", float(np.mean(values))) == pytest.approx(np.std(values), rel=0.25)
    assert errors.of("ndcg", 0.1) == pytest.approx(np.sqrt(0.09 / 50))


def test_errors_by_hand():
    """Hanley and McNeil's formula with A = .8, 3 positives and 5 negatives; users who are judged have a positive."""
    errors = plans._Errors.__new__(plans._Errors)
    errors.n_positive, errors.n_negative = 3, 5
    q1, q2 = 0.8 / 1.2, 2 * 0.64 / 1.8
    expected = np.sqrt((0.8 * 0.2 + 2 * (q1 - 0.64) + 4 * (q2 - 0.64)) / 15)
    assert errors.of("auc", 0.8) == pytest.approx(expected, rel=1e-12)
    log = ([0, 1, 2], [0, 0, 0], [1, 1, 0])
    tests = ([0, 1, 1, 2, 3], [1, 1, 2, 2, 3], [1, 0, 1, 0, 1])
    empty = ([], [], [])
    found = plans._Errors(Partition({"S_c": log, "S_t": empty, "S_va": empty, "S_te": tests}, (4, 4)))
    assert (found.n_positive, found.n_negative) == (3, 2)
    assert found.n_users == 2  # users 0 and 1: user 2 has no positive, user 3 nothing in S_c
    nobody = Partition({"S_c": log, "S_t": empty, "S_va": empty, "S_te": ([3], [3], [1])}, (4, 4))
    assert plans._Errors(nobody).n_users == 1  # not 0, by which is divided


def test_sizes_grow_by_half_at_least_and_end_with_the_pool():
    assert plans._sizes(400, 1600, 3) == [100, 400, 1600]
    assert plans._sizes(40, 1000, 3) == [20, 141, 1000]  # 20 at least
    few = plans._sizes(400, 500, 6)  # log(5) / log(1.5) = 3.97: no more than four
    assert len(few) == 4 and few[0] == 100 and few[-1] == 500
    assert len(plans._sizes(60, 30, 6)) == 3


def plan_of(curve, n_t, **change):
    price = plans.Price(0.4, 0.1, 0.3, 0.2, 0.35, 0.75)
    own = {
        "data": "x",
        "budget": "quick",
        "n_t": n_t,
        "n_test": 7,
        "price": price,
        "more": 5,
        "sentence": "S",
        "notes": ("N",),
    }
    curves = {("dub", "auc"): curve, ("dub", "ndcg"): dataclasses.replace(curve, metric="ndcg")}
    return plans.Plan(**own | {"curves": curves} | change)


def test_a_plan_in_text_and_json():
    curve = curve_of(lambda n: 0.8 - 0.1 * (n / 250) ** -1.0)
    plan = plan_of(curve, 1000)
    beyond = plan.beyond()
    assert beyond == pytest.approx([2000 * 5 ** (k / 4) for k in (1, 2, 3, 4)])  # to ten times S_t
    assert plan_of(curve, 200).beyond() == []
    found = plan.to_dict()
    assert [each["metric"] for each in found["curves"]] == ["auc", "ndcg"] and found["S_t"] == 1000
    bands = found["curves"][0]["bands"]
    assert [each["size"] for each in bands] == [250, 500, 1000, 2000, *beyond]
    assert [each["extrapolated"] for each in bands] == [False] * 4 + [True] * 4
    middle, low, high = curve.law.band([bands[5]["size"]])
    assert (bands[5]["expected"], bands[5]["low"], bands[5]["high"]) == pytest.approx((middle[0], low[0], high[0]))
    assert found["curves"][0]["measured"][1] == {"size": 500, "values": list(curve.values[1])}
    lines = plan.text().splitlines()
    header = lines[4].split()
    assert header == ["auc", "250", "500", "1,000", "2,000", *(f"{n:,.0f}*" for n in beyond)]
    row = lines[5].split()
    assert row[0] == "dub" and float(row[2]) == pytest.approx(np.mean(curve.values[1]), abs=1e-4)
    assert float(row[5]) == pytest.approx(float(curve.law.band([beyond[0]])[0][0]), abs=1e-4)
    assert "1,000 random impressions forgo 300 (200 to 350) positives, 75% of" in plan.text()
    assert "*" not in "".join(plan_of(curve, 200).text().splitlines()[4])


def test_ours_is_spoken_of_where_it_is_there_and_else_the_best():
    good = curve_of(lambda n: 0.7 + 0.0 * n)
    curves = {("base", "auc"): curve_of(lambda n: 0.6 + 0.0 * n), ("unif", "auc"): good, ("dub-x", "auc"): good}
    assert plans._best(curves, ("base", "unif")) == "unif"
    assert plans._best(curves, ("unif", "dub-x")) == plans.BEST == "dub-x"


def test_a_curve_takes_every_size_and_seed_and_the_error_of_its_end():
    values = {(size, k): {"auc": size / 1000 + k / 100} for size in (100, 200, 400) for k in (0, 1)}

    class Errors:
        def of(self, metric, value):
            assert metric == "auc" and value == pytest.approx(0.405)
            return 0.03

    curve = plans._curve("dub", "auc", values, Errors(), 4)
    assert curve.sizes == (100, 200, 400) and np.ravel(curve.values) == pytest.approx([0.1, 0.11, 0.2, 0.21, 0.4, 0.41])
    assert curve.means() == pytest.approx([0.105, 0.205, 0.405])
    law = fit_power_law(np.repeat([100, 200, 400], 2), np.ravel(curve.values), 0.03, 4)
    np.testing.assert_array_equal(law.a, curve.law.a)


def test_bad_input_is_one_line(data):
    parts = {part: data.triplets(part) for part in PARTS}
    shape = (data.n_users, data.n_items)
    with pytest.raises(InputError, match="S_va is empty"):
        dubnb.plan(Partition(parts | {"S_va": parts["S_va"].take(slice(0))}, shape))
    one_class = parts["S_t"].take(parts["S_t"].labels == 0)
    with pytest.raises(InputError, match="S_t has labels of one class only"):
        dubnb.plan(Partition(parts | {"S_t": one_class}, shape))
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
def engine(monkeypatch):
    """What is asked of the sweeps' engine; its fits have an AUC that names their log and seed."""
    asked = []

    def planned(method, log, params):
        return method.name, len(log.triplets("S_t").users), tuple(sorted(params.items()))

    def run_fits(trials, logs, out, resources):
        asked.append(SimpleNamespace(trials=list(trials), logs=list(logs), out=Path(out), resources=resources))
        assert asked[-1].out.is_dir()
        values = {(name, size, own): size / 10_000 + dict(own)["seed"] / 100 for name, size, own in asked[-1].trials}
        return {
            trial: SimpleNamespace(done=trial[0] != "combine", reason="diverged", metrics={"auc": value, "ndcg": 0.1})
            for trial, value in values.items()
        }

    monkeypatch.setattr("dubnb.sweeps.fits.planned", planned)
    monkeypatch.setattr("dubnb.sweeps.fits.run_fits", run_fits)
    return asked


def test_every_method_is_fitted_on_every_log_but_base_once_per_seed(data, engine, tmp_path):
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
    assert plan.sentence == plans._sentence(plan.curves["base", "auc"], n_t, 70)
    assert plan.notes[0].startswith("2 fits per size and method") and "too few epochs" in plan.notes[1]


def test_a_plan_by_default(data, engine):
    """Three seeds from 0 on, five sizes, each method's own epochs, and as much more traffic as there is."""
    plan = dubnb.plan(data, methods=("unif",))
    (asked,) = engine
    assert {own for _, _, own in asked.trials} == {(("seed", seed),) for seed in (0, 1, 2)}
    assert len(plan.curves["unif", "auc"].sizes) == 5 and len(plan.notes) == 1
    assert plan.more == plan.n_t == len(data.triplets("S_t").users) and plan.budget == "quick"
    assert asked.resources.n_jobs == 1 and asked.resources.quiet and not asked.out.exists()
    with pytest.raises(InputError, match="seed=-1"):
        dubnb.plan(data, methods=("unif",), seed=-1)
    with pytest.raises(InputError, match=r"methods=\(\) must name at least one"):
        dubnb.plan(data, methods=())
    with pytest.raises(InputError, match="none twice"):
        dubnb.plan(data, methods=("unif", "base", "unif"))
    with pytest.raises(InputError, match=r"combine with 40 randomized pairs failed: diverged; leave it out"):
        dubnb.plan(data, methods=("unif", "combine"))
    with pytest.raises(InputError, match="data is a str"):
        dubnb.plan("simulated")


def test_budgets_grow():
    smoke, quick, full = (plans.BUDGETS[name] for name in ("smoke", "quick", "full"))
    assert (smoke, quick, full) == (Budget(2, 3, 2), Budget(3, 5, None), Budget(6, 6, None))


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


def test_joined_logs_have_grades_where_both_have(data):
    first, second = data.triplets("S_t").take(slice(3)), data.triplets("S_te").take(slice(2))
    joined = plans._joined(first, second)
    for name in joined._fields:
        np.testing.assert_array_equal(getattr(joined, name), [*getattr(first, name), *getattr(second, name)])
    bare = second._replace(grades=None)
    assert plans._joined(first, bare).grades is None and plans._joined(bare, first).grades is None


def test_nested_logs_keep_ids_propensities_and_say_their_size():
    base = small_partition(n_t=8, n_te=9, ids="str")
    parts = {part: base.triplets(part) for part in PARTS}
    chances = np.linspace(0.1, 0.9, len(parts["S_c"].users))
    ids = {"user_ids": base.user_ids, "item_ids": base.item_ids}
    data = Partition(parts, (base.n_users, base.n_items), propensities=chances, name="shop", **ids)
    for (size, _), log in plans.nested_logs(data, Budget(1, 3, None), 0).items():
        assert len(log.triplets("S_t").users) == min(size, 12) and len(log.triplets("S_te").users) == 5
        assert log.user_ids is data.user_ids and log.item_ids is data.item_ids
        np.testing.assert_array_equal(log.propensities, data.propensities)
        assert log.name == f"shop, {size} randomized pairs"


def test_the_gain_ends_at_the_first_size_whose_doubling_brings_less_than_the_noise():
    def law(sigma):
        return SimpleNamespace(gain=lambda start, end: (1 / start, (end - start) / 1e9, 1.0), sigma=sigma)

    tried = np.geomspace(10, 100 * 50, 60)
    curve = Curve("dub", "auc", (10, 20), ((0.5,), (0.6,)), law(1 / tried[30]))
    assert plans.beyond_noise(curve, 50) == tried[31]
    assert plans.beyond_noise(dataclasses.replace(curve, law=law(0.11)), 50) == pytest.approx(10)
    assert plans.beyond_noise(dataclasses.replace(curve, law=law(1e-5)), 50) is None
    doubling = SimpleNamespace(gain=lambda start, end: (abs(end / start - 2), 0.0, 0.0), sigma=1e-6)
    assert plans.beyond_noise(dataclasses.replace(curve, law=doubling), 50) == pytest.approx(10)


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
