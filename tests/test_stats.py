"""dubnb.stats against SciPy and brute force."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from dubnb import stats
from dubnb._check import InputError
from dubnb._random import generator
from dubnb.metrics import auc


@pytest.fixture
def samples():
    rng = generator(0, "test-stats")
    return rng.normal(0.75, 0.01, 12), rng.normal(0.74, 0.03, 9)


@pytest.mark.parametrize("equal_var", [True, False])
def test_two_sample_t_is_scipys(samples, equal_var):
    ours, theirs = stats.two_sample_t(*samples, equal_var), scipy_stats.ttest_ind(*samples, equal_var=equal_var)
    assert ours.statistic == pytest.approx(theirs.statistic, rel=1e-12)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-10)
    assert ours.df == pytest.approx(theirs.df, rel=1e-12)
    assert ours.difference == samples[0].mean() - samples[1].mean()


def test_paired_t_is_scipys(samples):
    x, y = samples[0][:9], samples[1]
    ours, theirs = stats.paired_t(x, y), scipy_stats.ttest_rel(x, y)
    assert (ours.statistic, ours.p) == (pytest.approx(theirs.statistic, rel=1e-12), pytest.approx(theirs.pvalue))


def test_no_spread_is_certain_or_nothing():
    assert stats.two_sample_t([1, 1], [1, 1]).p == 1.0
    assert stats.paired_t([2, 2, 2], [1, 1, 1]).p == 0.0
    assert stats.two_sample_t([1, 1], [2, 2], equal_var=False).statistic == -np.inf


def test_paired_bootstrap_agrees_with_scipy():
    rng = generator(1, "test-stats")
    x = rng.normal(0.1, 1, 400)
    y = x - rng.normal(0.05, 0.4, 400)
    ours = stats.paired_bootstrap(x, y, n=4000, seed=3)
    theirs = scipy_stats.bootstrap((x - y,), np.mean, n_resamples=4000, method="percentile", rng=rng)
    assert ours.difference == pytest.approx((x - y).mean())
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.004)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.004)
    assert ours.p == pytest.approx(scipy_stats.ttest_rel(x, y).pvalue, abs=0.02)


def test_bootstraps_repeat_by_key():
    x, y = np.arange(20.0), np.arange(20.0) ** 1.1
    assert stats.paired_bootstrap(x, y, n=50, seed=4) == stats.paired_bootstrap(x, y, n=50, seed=4)
    assert stats.paired_bootstrap(x, y, n=50, seed=4) != stats.paired_bootstrap(x, y, n=50, seed=5)


def _log(n_users=30, n_each=8):
    rng = generator(2, "test-stats")
    users = np.repeat(np.arange(n_users) * 7, n_each)
    labels = (rng.random(len(users)) < 0.3).astype(float)
    good = np.round(labels + rng.normal(0, 1.0, len(users)), 1)  # rounded: ties
    return users, labels, good, np.round(rng.normal(0, 1, len(users)), 1)


def test_auc_bootstrap_is_that_of_repeated_users():
    """Brute force: write each drawn user's pairs out as often as the user was drawn, and take the plain AUC."""
    users, labels, good, bad = _log()
    n = 40
    ours = stats.auc_bootstrap(good, bad, labels, users, n=n, seed=6)
    rng, names, draws = generator(6, "cluster-bootstrap"), np.unique(users), []
    for _ in range(n):
        pairs = np.concatenate([np.flatnonzero(users == names[k]) for k in rng.integers(len(names), size=len(names))])
        draws.append(auc(good[pairs], labels[pairs]) - auc(bad[pairs], labels[pairs]))
    assert ours.difference == pytest.approx(auc(good, labels) - auc(bad, labels), rel=1e-12)
    assert (ours.low, ours.high) == (pytest.approx(np.quantile(draws, 0.025)), pytest.approx(np.quantile(draws, 0.975)))
    assert ours.p == pytest.approx(2 * (min(np.sum(np.array(draws) <= 0), n) + 1) / (n + 1))


def test_auc_bootstrap_averages_seeds():
    users, labels, good, bad = _log()
    one = stats.auc_bootstrap(good, bad, labels, users, n=20)
    several = stats.auc_bootstrap([good, good], [bad, bad], labels, users, n=20)
    assert one == several


def test_cluster_bootstrap_is_wider_than_one_over_pairs():
    """Users whose pairs agree are one observation each: pretending otherwise makes intervals too narrow."""
    rng = generator(7, "test-stats")
    values = np.repeat(rng.normal(0, 1, 40), 25)
    rows = np.repeat(np.arange(40), 25)
    by_user = stats.cluster_bootstrap(lambda counts: np.average(values, weights=counts[rows]), 40, n=400)
    by_pair = stats.paired_bootstrap(values, np.zeros(len(values)), n=400)
    assert by_user.high - by_user.low > 3 * (by_pair.high - by_pair.low)


def test_cluster_bootstrap_counts():
    seen = []
    stats.cluster_bootstrap(lambda counts: seen.append(counts) or float(counts[0]), 5, n=10)
    assert len(seen) == 11 and all(counts.sum() == 5 for counts in seen)


def test_holm_by_hand_and_against_its_definition():
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    p = generator(8, "test-stats").random(7) / 5
    smallest_alpha = []
    for k in range(7):  # the smallest alpha at which Holm's procedure rejects hypothesis k
        order = np.argsort(p)
        place = int(np.flatnonzero(order == k)[0])
        smallest_alpha.append(min(1, max(p[order[j]] * (7 - j) for j in range(place + 1))))
    assert stats.holm(p) == pytest.approx(smallest_alpha)


def test_summary():
    assert stats.summary([1.0, 2.0, 3.0]) == (2.0, 1.0, 3)
    assert np.isnan(stats.summary([1.0]).sd)


@pytest.mark.parametrize(
    "call",
    [
        lambda: stats.two_sample_t([1.0], [1.0, 2.0]),
        lambda: stats.paired_t([1.0, 2.0], [1.0, 2.0, 3.0]),
        lambda: stats.paired_t([1.0, np.nan], [1.0, 2.0]),
        lambda: stats.holm([0.5, 1.5]),
        lambda: stats.holm([]),
        lambda: stats.auc_bootstrap([1.0, 2.0], [1.0], [0, 1], [0, 1]),
        lambda: stats.summary([]),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(InputError):
        call()
