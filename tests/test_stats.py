"""dubnb.stats against SciPy and brute force."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from dubnb import stats
from dubnb._check import InputError
from dubnb._random import generator
from dubnb.metrics import auc
from tests import naive


@pytest.fixture
def samples():
    rng = generator(0, "test-stats")
    return rng.normal(0.75, 0.01, 12), rng.normal(0.74, 0.03, 9)


def test_student_t_pools_variances(samples):
    """Student's, by its formula, and not Welch's, which differs where sizes and variances do."""
    x, y = samples
    m, n = len(x), len(y)
    pooled = ((m - 1) * x.var(ddof=1) + (n - 1) * y.var(ddof=1)) / (m + n - 2)
    t = (x.mean() - y.mean()) / np.sqrt(pooled * (1 / m + 1 / n))
    assert stats.student_t(x, y) == pytest.approx(2 * scipy_stats.t.sf(abs(t), m + n - 2), rel=1e-10)
    assert abs(stats.student_t(x, y) - scipy_stats.ttest_ind(x, y, equal_var=False).pvalue) > 1e-3


@pytest.mark.parametrize("level", [0.95, 0.8])
def test_interval_of_a_mean_is_student_s(samples, level):
    x = samples[0]
    low, high = scipy_stats.t.interval(level, len(x) - 1, x.mean(), scipy_stats.sem(x))
    assert stats.mean_interval(x, level) == pytest.approx((x.mean(), low, high, len(x)), rel=1e-10)
    assert stats.mean_interval(x) == stats.mean_interval(x, 0.95)


@pytest.mark.parametrize(
    "interval",
    [
        lambda level: stats.mean_interval([1.0, 2.0, 4.0], level),
        lambda level: stats.binomial_rate(3, 12, level),
        lambda level: stats.paired_bootstrap([1.0, 2.0, 4.0], [0.0, 1.0, 2.0], n=9, level=level),
        lambda level: stats.cluster_bootstrap(lambda counts: float(counts[0]), 3, n=9, level=level),
    ],
)
def test_a_level_is_a_share(interval):
    for level in (1.01, -0.01):
        with pytest.raises(InputError, match="level="):
            interval(level)
    none = interval(0.0)
    assert none.low == pytest.approx(none.high, abs=0.2)


@pytest.mark.parametrize("successes, n", [(0, 12), (12, 12), (1, 12), (5, 12), (3, 400)])
def test_interval_of_a_share_is_clopper_and_pearson_s(successes, n):
    test = scipy_stats.binomtest(successes, n)
    for options, level in (({}, 0.95), ({"level": 0.8}, 0.8)):
        low, high = test.proportion_ci(level, method="exact")
        assert stats.binomial_rate(successes, n, **options) == pytest.approx((successes / n, low, high, n), rel=1e-9)


def test_one_constant_sample_still_leaves_the_other_s_spread():
    """As over seeds, where a baseline has one value: t = 4/3 / sqrt(7/3 / 2 (1/3 + 1/3)), 4 degrees, no warning."""
    expected = 2 * scipy_stats.t.sf(np.sqrt(16 / 7), 4)
    assert stats.student_t([1.0, 1.0, 1.0], [1.0, 2.0, 4.0]) == pytest.approx(expected, rel=1e-10)
    assert stats.student_t([1.0, 2.0, 4.0], [1.0, 1.0, 1.0]) == pytest.approx(expected, rel=1e-10)


def test_paired_t_is_scipys(samples):
    x, y = samples[0][:9], samples[1]
    assert stats.paired_t(x, y) == pytest.approx(scipy_stats.ttest_rel(x, y).pvalue, rel=1e-10)


def test_t_tests_without_spread_give_0_or_1():
    assert stats.student_t([1, 1], [1, 1]) == 1.0 and stats.student_t([1, 1], [2, 2]) == 0.0
    assert stats.paired_t([2, 2, 2], [1, 1, 1]) == 0.0 and stats.paired_t([2, 2, 2], [2, 2, 2]) == 1.0


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


def test_auc_bootstrap_of_several_seeds_is_that_of_their_mean():
    users, labels, good, bad = _log()
    first, second = [good, bad, good + bad], [bad, np.round(good / 3, 1)]
    ours = stats.auc_bootstrap(first, second, labels, users, n=25, seed=6)
    rng, names, draws = generator(6, "cluster-bootstrap"), np.unique(users), []

    def difference(pairs):
        one, other = (np.mean([auc(row[pairs], labels[pairs]) for row in each]) for each in (first, second))
        return one - other

    for _ in range(25):
        drawn = names[rng.integers(len(names), size=len(names))]
        draws.append(difference(np.concatenate([np.flatnonzero(users == name) for name in drawn])))
    assert ours.difference == pytest.approx(difference(np.arange(len(users))))
    assert (ours.low, ours.high) == pytest.approx(tuple(np.quantile(draws, (0.025, 0.975))))


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


def test_draws_without_a_value_do_not_count():
    """A cluster that decides whether there is a value at all."""
    found = stats.cluster_bootstrap(lambda counts: 1.0 if counts[0] else np.nan, 3, n=60)
    assert (found.low, found.high) == (1.0, 1.0) and found.p == pytest.approx(2 / 43, abs=0.03)


@pytest.mark.parametrize("level", [0.95, 0.8])
def test_a_bootstraps_interval_holds_the_middle_of_its_draws(level):
    values, draws = np.arange(12.0) ** 2, []

    def statistic(counts):
        draws.append(float(counts @ values))
        return draws[-1]

    found = stats.cluster_bootstrap(statistic, 12, n=101, level=level)
    assert found.difference == draws[-1] == values.sum()  # asked last, with every cluster once
    tail = (1 - level) / 2
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(draws[:-1], [tail, 1 - tail])))


def test_p_is_twice_the_share_beyond_zero_on_the_nearer_side():
    sure = stats.paired_bootstrap([2.0, 3.0, 4.0], [1.0, 1.0, 1.0], n=99)
    assert sure.p == stats.paired_bootstrap([1.0, 1.0, 1.0], [2.0, 3.0, 4.0], n=99).p == 2 / 100
    assert stats.paired_bootstrap([1.0, 1.0], [1.0, 1.0], n=99).p == 1.0  # every draw on both sides
    draws = iter([-1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 0.5])
    assert stats.cluster_bootstrap(lambda counts: next(draws), 3, n=6).p == pytest.approx(2 * 3 / 7)


def test_without_both_labels_there_is_no_interval():
    users, labels = np.arange(6), np.ones(6)
    found = stats.auc_bootstrap(np.arange(6.0), np.arange(6.0), labels, users, n=5)
    assert np.isnan([found.difference, found.low, found.high]).all()


def test_the_fewest_values_that_can_be_compared():
    assert 0 < stats.student_t([1.0, 2.0], [2.0, 4.0]) < 1
    assert stats.cluster_bootstrap(lambda counts: 1.0, 2, n=1).low == 1.0
    with pytest.raises(InputError, match="n_clusters=1"):
        stats.cluster_bootstrap(lambda counts: 1.0, 1)
    with pytest.raises(InputError, match=r"x of shape \(1, 2\) must be a list of at least 2"):
        stats.student_t([[1.0, 2.0]], [1.0, 2.0])


def test_holm_is_at_most_one_and_takes_the_ends():
    assert stats.holm([0.7, 0.8]).tolist() == [1.0, 1.0]
    assert stats.holm([1.0, 0.0]).tolist() == [1.0, 0.0]


def test_holm_by_hand_and_against_its_definition():
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    p = generator(8, "test-stats").random(7) / 5
    smallest_alpha = []
    for k in range(7):  # the smallest alpha at which Holm's procedure rejects hypothesis k
        order = np.argsort(p)
        place = int(np.flatnonzero(order == k)[0])
        smallest_alpha.append(min(1, max(p[order[j]] * (7 - j) for j in range(place + 1))))
    assert stats.holm(p) == pytest.approx(smallest_alpha)


@pytest.mark.parametrize(
    "call",
    [
        lambda: stats.student_t([1.0], [1.0, 2.0]),
        lambda: stats.paired_t([1.0, 2.0], [1.0, 2.0, 3.0]),
        lambda: stats.paired_t([1.0, np.nan], [1.0, 2.0]),
        lambda: stats.holm([0.5, 1.5]),
        lambda: stats.holm([]),
        lambda: stats.auc_bootstrap([1.0, 2.0], [1.0], [0, 1], [0, 1]),
        lambda: stats.auc_bootstrap([1.0, 2.0], [1.0, 2.0], [0, 1], [0, 1, 2]),
        lambda: stats.auc_bootstrap([1.0, 2.0], [1.0, 2.0], [0, 1, 1], [0, 1]),
        lambda: stats.weighted_share(np.zeros(2), np.ones(2), np.arange(2)),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(InputError):
        call()


def test_ten_equal_samples_of_a_user_tell_as_much_as_one():
    values, users = np.arange(40) % 4 == 0, np.arange(40)
    alone = stats.weighted_share(np.ones(40), values, users)
    repeated = stats.weighted_share(np.ones(400), np.repeat(values, 10), np.repeat(users, 10))
    assert repeated.rate == alone.rate and repeated.n == 400
    assert (repeated.low, repeated.high) == pytest.approx((alone.low, alone.high), abs=0.01)


# ---- liked@K ---------------------------------------------------------------------------------------------------------


def judged_lists(rng, n_users=80, n_items=100, k=10, shared=4, rates=(0.35, 0.2), traffic=(2, 5, 9)):
    """(w, (L, J) of two systems, their true shares): lists of k items with `shared` in common, judged uniformly."""
    of_one = np.repeat(rates[0], k - shared)
    of_other = np.repeat(rates[1], k - shared)
    chances = np.concatenate([np.repeat(np.mean(rates), shared), of_one, of_other])
    liked = rng.random((n_users, len(chances))) < chances * rng.uniform(0.3, 1.7, (n_users, 1))
    pairs = rng.choice(traffic, n_users)
    judged = rng.random((n_users, n_items)).argsort(axis=1).argsort(axis=1)[:, : len(chances)] < pairs[:, None]
    columns = np.arange(k), np.concatenate([np.arange(shared), np.arange(k, len(chances))])
    counts = [((liked & judged)[:, own].sum(axis=1), judged[:, own].sum(axis=1)) for own in columns]
    return n_items / pairs, counts, [liked[:, own].mean() for own in columns]


def test_the_share_of_liked_items_equals_the_twin():
    weights, ((liked, judged), _), _ = judged_lists(np.random.default_rng(0))
    found = stats.liked_share(weights, liked, judged)
    assert found.rate == pytest.approx((weights * liked).sum() / (weights * judged).sum())
    assert (found.low, found.high) == pytest.approx(naive.liked_interval(weights, liked, judged))
    assert 0 < found.low < found.rate < found.high < 1 and found.n == judged.sum()
    wider = stats.liked_share(weights, liked, judged, level=0.99)
    assert wider.low < found.low and wider.high > found.high
    same = stats.liked_share(weights, np.array([liked] * 3), np.array([judged] * 3))  # three seeds with the same lists
    assert same == pytest.approx(found)


def test_a_share_of_none_and_of_all_still_has_an_interval():
    weights, ((_, judged), _), _ = judged_lists(np.random.default_rng(1))
    none, every = stats.liked_share(weights, 0 * judged, judged), stats.liked_share(weights, judged, judged)
    assert none.rate == none.low == 0 and 0.01 < none.high < 0.3
    assert every.rate == every.high == 1 and every.low == pytest.approx(1 - none.high)


def test_a_comparison_of_shares_is_paired_and_agrees_with_itself():
    rng = np.random.default_rng(2)
    weights, (first, second), _ = judged_lists(rng, n_users=600)
    found = stats.compare_liked(weights, first, second)
    assert found.first == stats.liked_share(weights, *first) and found.second == stats.liked_share(weights, *second)
    assert found.difference == pytest.approx(found.first.rate - found.second.rate)
    assert found.low < found.difference < found.high and found.ratio_low < found.ratio < found.ratio_high
    back = stats.compare_liked(weights, second, first)
    assert (back.low, back.high, back.p) == pytest.approx((-found.high, -found.low, found.p))
    assert (back.ratio_low, back.ratio_high) == pytest.approx((1 / found.ratio_high, 1 / found.ratio_low))
    for _ in range(20):  # at the level 1 - p the difference's interval ends at 0 and the ratio's at 1
        weights, (first, second), _ = judged_lists(rng, rates=(0.3, 0.25))
        each = stats.compare_liked(weights, first, second)
        at_p = stats.compare_liked(weights, first, second, level=min(1 - each.p, 1 - 1e-9))
        ends = ((at_p.low, at_p.ratio_low), (at_p.high, at_p.ratio_high))
        assert min(abs(d) + abs(r - 1) for d, r in ends) < 1e-3 or each.difference == 0
        assert (each.low <= 0 <= each.high) == (each.ratio_low <= 1 <= each.ratio_high) == (each.p >= 0.05)
    alike = stats.compare_liked(weights, first, first)
    assert alike.difference == 0 and alike.ratio == pytest.approx(1) and alike.p == 1
    apart = judged_lists(rng, n_users=600, shared=0)
    together = judged_lists(rng, n_users=600, shared=9, rates=(0.3, 0.25))
    widths = [
        found.high - found.low for found in (stats.compare_liked(w, *counts) for w, counts, _ in (apart, together))
    ]
    assert widths[1] < 0.8 * widths[0]  # what both list cannot tell them apart


def test_a_system_without_likes_leaves_the_ratio_open():
    weights, (first, (liked, judged)), _ = judged_lists(np.random.default_rng(3))
    found = stats.compare_liked(weights, first, (0 * liked, judged))
    assert np.isnan(found.ratio) and found.ratio_low > 0 and found.ratio_high == np.inf and found.low > 0
    found = stats.compare_liked(weights, (0 * liked, judged), first)
    assert found.ratio == found.ratio_low == 0 and 0 < found.ratio_high < 1


def test_comparisons_of_shares_hold_the_truth_as_often_as_they_say():
    """A small version of bench/coverage_evaluate.py, which has the figures."""
    rng, held, ratios = np.random.default_rng(4), [], []
    for _ in range(300):
        weights, counts, (one, other) = judged_lists(rng)
        found = stats.compare_liked(weights, *counts)
        held.append((found.low <= one - other <= found.high, found.ratio_low <= one / other <= found.ratio_high))
        held[-1] += (found.first.low <= one <= found.first.high,)
        ratios.append((found.ratio / (one / other), found.first.rate / found.second.rate / (one / other)))
    assert (np.mean(held, axis=0) > 0.92).all()
    corrected, plain = np.mean(ratios, axis=0)
    assert abs(corrected - 1) < 0.06 < plain - 1


def test_shares_refuse_what_does_not_fit():
    for wrong in (([1.0, 1.0], [1], [1]), ([1.0], [1], [1]), ([1.0, 1.0], [0, 0], [0, 0])):
        with pytest.raises(InputError, match=r"at least two users|no recommended pair"):
            stats.liked_share(*map(np.array, wrong))
    pairs, three = (np.ones(2), np.ones(2)), (np.ones(3), np.ones(3))
    with pytest.raises(InputError, match="one number per user"):
        stats.compare_liked(np.ones(2), pairs, three)
