"""The plan: curves whose answer is known, nested logs, the price, the sentence, and one run through the engine."""

import itertools
import json

import numpy as np
import pytest

import dubnb
from dubnb._check import InputError
from dubnb.data.partition import PARTS, Partition
from dubnb.data.simulate import CONFIGS, Config, simulate
from dubnb.theory import plan as plans
from dubnb.theory.curves import EXPONENTS, basis, fit_power_law
from dubnb.theory.plan import Budget, Curve


@pytest.fixture(scope="module")
def data():
    small = {"n_users": 80, "n_items": 50, "n_biased": 900, "random_users": 80, "random_each": 20}
    return simulate(Config(**(vars(CONFIGS["simulated"]) | small)), 0, quiet=True)


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


def test_the_price_is_the_difference_of_positive_rates(data):
    price = plans.price_of(data)
    randomized = np.concatenate([data.triplets(part).labels for part in PARTS[1:]])
    assert price.policy_rate == pytest.approx(data.triplets("S_c").labels.mean(), abs=1e-6)
    assert price.forgone == pytest.approx(price.policy_rate - randomized.mean(), abs=1e-6)
    assert price.low < price.forgone < price.high
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
