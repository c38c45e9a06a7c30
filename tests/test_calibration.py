"""Platt scaling against SciPy's optimum, measures of calibration against plain loops, and calibrated models."""

import numpy as np
import pytest

import dubnb
from dubnb import calibration
from dubnb.calibration import Calibration


def draw(n, seed=0, slope=1.5, intercept=-2.0):
    rng = np.random.default_rng(seed)
    scores = 3.0 + 0.2 * rng.standard_normal(n)
    p = 1 / (1 + np.exp(-(slope * (scores - 3.0) / 0.2 + intercept)))
    return scores, (rng.random(n) < p).astype(np.float32), rng.uniform(0.5, 2.0, n)


@pytest.mark.parametrize("n,slope", [(20, 1.5), (500, 1.5), (500, 0.4)])
def test_minimises_the_log_loss_against_platt_s_targets(n, slope):
    from scipy.optimize import minimize

    scores, labels, weights = draw(n, slope=slope)
    positives, negatives = weights[labels == 1].sum(), weights[labels == 0].sum()
    targets = np.where(labels == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))

    def loss(theta):
        s = theta[0] * (scores - 3.0) + theta[1]
        return weights @ (np.logaddexp(0, s) - targets * s)

    best = minimize(loss, [1.0, -2.0], method="BFGS", options={"gtol": 1e-9})
    found = Calibration.fit(scores, labels, weights)
    assert found.slope == pytest.approx(best.x[0], rel=1e-4)
    assert found.intercept + 3.0 * found.slope == pytest.approx(best.x[1], rel=1e-4)


@pytest.mark.parametrize("n", [20, 500])
def test_the_minimum_is_reached_whatever_the_weights_sum_to(n, monkeypatch):
    """To rounding and in few steps: Newton's last double the digits; progress is judged against the loss itself."""
    solve, solved = np.linalg.solve, []
    monkeypatch.setattr(np.linalg, "solve", lambda *arguments: solved.append(1) or solve(*arguments))
    scores, labels, weights = draw(n)
    z, targets = (scores - 3.0) / 0.2, np.where(labels == 1, 0.97, 0.02)
    found = [calibration._newton(z, targets, times * weights, -1.0) for times in (1.0, 1e-9, 1e9)]
    p = calibration.logistic(found[0][0] * z + found[0][1])
    for cause in (z, np.ones(n)):
        assert abs(weights @ ((p - targets) * cause)) < 1e-9 * weights.sum()
    assert found[1] == pytest.approx(found[0], rel=1e-7) and found[2] == pytest.approx(found[0], rel=1e-7)
    assert len(solved) <= 3 * 8


def test_weights_count_as_repetitions():
    scores, labels, _ = draw(60)
    times = np.arange(60) % 3 + 1
    repeated = Calibration.fit(np.repeat(scores, times), np.repeat(labels, times))
    weighted = Calibration.fit(scores, labels, times)
    assert weighted.slope == pytest.approx(repeated.slope) and weighted.intercept == pytest.approx(repeated.intercept)


def test_few_positives_never_end_in_certainty():
    separable = Calibration.fit(np.arange(100.0), np.arange(100) >= 95)
    p = separable(np.arange(100.0))
    assert np.isfinite([separable.slope, separable.intercept]).all() and p.min() > 0 and p.max() < 1
    assert (np.diff(p) >= 0).all()


def test_scores_that_say_nothing_or_the_contrary_give_the_rate():
    labels = np.repeat([0, 1], [90, 10])
    contrary = (10 * 11 / 12 + 90 * 1 / 92) / 100  # the mean of Platt's targets
    for scores, rate in ((np.ones(100), 11 / 102), (-np.arange(100.0), contrary)):
        found = Calibration.fit(scores, labels)
        assert found.slope == 0
        assert found(scores) == pytest.approx(rate, rel=1e-9)
    assert Calibration.fit(1e6 + 1e-5 * np.arange(100.0), labels).slope == 0  # rounding, no spread
    assert Calibration.fit(1e-5 * np.arange(100.0), labels).slope > 0
    nearly = np.arange(100.0) / np.arange(100.0).std()  # about 0, where 1 is the scale
    assert Calibration.fit(0.9e-9 * nearly, labels).slope == 0 and Calibration.fit(1.1e-9 * nearly, labels).slope > 0


def test_causes_that_are_alike_share_what_they_explain():
    """Scores without spread beside the constant: the curvature has no inverse, the rate is found all the same."""
    targets, weights = np.linspace(0.1, 0.4, 20), np.linspace(0.5, 2.0, 20)
    a, b = calibration._newton(np.ones(20), targets, weights, 0.0)
    mean = np.average(targets, weights=weights)
    assert (calibration.logistic(a + b) if a > 0 else calibration.logistic(b)) == pytest.approx(mean, rel=1e-6)


def test_fifty_positives_suffice():
    """A tenth of 500 pairs: predictions of unseen pairs are off by a hundredth or two."""
    scores, labels, _ = draw(500, seed=1)
    unseen, _, _ = draw(20_000, seed=2)
    truth = 1 / (1 + np.exp(-(1.5 * (unseen - 3.0) / 0.2 - 2.0)))
    assert calibration.expected_calibration_error(Calibration.fit(scores, labels)(unseen), truth) < 0.03


def test_measures_against_plain_loops():
    rng = np.random.default_rng(0)
    p, y = rng.random(100), rng.integers(0, 2, 100)
    assert calibration.brier(p, y) == pytest.approx(sum((a - b) ** 2 for a, b in zip(p, y, strict=True)) / 100)
    terms = [-np.log(a if b else 1 - a) for a, b in zip(p, y, strict=True)]
    assert calibration.log_loss(p, y) == pytest.approx(sum(terms) / 100)
    order, off = np.argsort(p), 0.0
    for group in np.array_split(order, 15):
        off += len(group) * abs(p[group].mean() - y[group].mean())
    assert calibration.expected_calibration_error(p, y) == pytest.approx(off / 100)
    assert np.isfinite(calibration.log_loss(np.array([0.0, 1.0]), np.array([1, 0])))


@pytest.mark.needs_jit
@pytest.mark.parametrize("method", ["base", "combine", "dub", "dub-x"])
def test_probabilities_of_default_models_are_near_the_truth(method, tmp_path):
    data = dubnb.load_dataset("simulated", seed=3)
    model = dubnb.make(method).fit(data)
    users, items = np.divmod(np.arange(data.n_users * data.n_items), data.n_items)
    unseen = ~np.isin(users * data.n_items + items, np.concatenate([_pairs(data, "S_c"), _pairs(data, "S_t")]))
    users, items = users[unseen], items[unseen]
    p, truth = model.predict(users, items), data.truth.probability(users, items)
    assert calibration.expected_calibration_error(p, truth) < 0.02
    if method in ("base", "dub"):
        raw = dubnb.make(method, calibrate=False).fit(data)
        assert np.array_equal(raw.decision_function(users, items), model.decision_function(users, items))
        assert calibration.expected_calibration_error(raw.predict(users, items), truth) > 0.05
    model.save(tmp_path / "m.npz")
    assert np.array_equal(dubnb.load(tmp_path / "m.npz").predict(users[:99], items[:99]), p[:99])


def _pairs(data, part):
    log = data.triplets(part)
    return log.users.astype(np.int64) * data.n_items + log.items
