"""The audit: null draws that keep what they must, planted distortions that are found, answers that stay unknown."""

import itertools
import json

import numpy as np
import pytest
from scipy import optimize
from scipy import stats as scipy_stats

import dubnb
from bench import coverage_audit
from dubnb._check import InputError
from dubnb._jit import JIT_ENABLED
from dubnb._random import key, uniform
from dubnb.data.partition import PARTS, RANDOMIZED, Partition, Triplets
from dubnb.data.pattern import Pattern, UnobservedPairs
from dubnb.data.simulate import simulate
from dubnb.theory import selection, uniformity
from dubnb.theory.audit import INFORMATION, NO, UNKNOWN, YES, PendingAnswer, _exposures, _p_mean_zero, _with_holm
from dubnb.theory.uniformity import STATISTICS
from tests.naive import biased_log, small_partition

N_USERS, N_ITEMS, EACH = 60, 40, 8


@pytest.fixture(scope="module")
def data():
    data = biased_log(N_USERS, N_ITEMS, 600, EACH)
    parts = {part: data.triplets(part)._replace(grades=None) for part in PARTS}
    return Partition(parts, (N_USERS, N_ITEMS), name=data.name)


@pytest.fixture(scope="module")
def design(data):
    return uniformity.uniform_policy(data, uniformity.randomized_log(data))


def with_items(data, items):
    """The log with other items in its randomized parts, in the order of users."""
    log = uniformity.randomized_log(data)
    labels, parts = np.arange(len(items)) % 5 == 0, {"S_c": data.triplets("S_c")}
    for k, part in enumerate(RANDOMIZED):
        rows = np.arange(k, len(items), len(RANDOMIZED))
        parts[part] = Triplets(log.users[rows], items[rows], labels[rows].astype(float), np.ones(len(rows)))
    return Partition(parts, (data.n_users, data.n_items))


def by_name(audit):
    return {answer.name: answer for answer in audit.answers}


def test_halved_propensities_do_not_fit_and_right_ones_do(data):
    """60 impressions a user outside S_c, in which every second item is shown twice as often as the others."""
    p = ~data.pattern("S_c").mask(np.arange(N_USERS), N_ITEMS) * (1.0 + np.arange(N_ITEMS) % 2)
    p /= p.sum(axis=1, keepdims=True)
    counts = np.array([np.random.default_rng(u).multinomial(60, own) for u, own in enumerate(p)], dtype=float)
    users, items = np.nonzero(counts)
    logs = {}
    for factor in (1.0, 0.5):
        log = Triplets(users, items, (users + items) % 3 == 0, counts[users, items], None, factor * p[users, items])
        parts = {part: log.take(slice(k, None, 3)) for k, part in enumerate(RANDOMIZED)}
        logs[factor] = Partition(parts | {"S_c": data.triplets("S_c")}, data.S_c.shape)
    assert dubnb.audit(logs[1.0], n_draws=99).uniform is True
    assert dubnb.audit(logs[0.5], n_draws=99).uniform is False


def test_shared_clicks_of_two_click_only_logs_are_not_evidence():
    """People click the same items in both logs, so that these share more pairs than chance."""
    random = np.random.default_rng(0)
    liked = random.random((N_USERS, N_ITEMS)) < 0.15
    clicks = [np.nonzero(liked & (random.random(liked.shape) < share)) for share in (0.7, 0.5)]
    ones = [(users, items, np.ones(len(users))) for users, items in clicks]
    thirds = {part: tuple(column[k::3] for column in ones[1]) for k, part in enumerate(RANDOMIZED)}
    both = Partition({"S_c": ones[0], **thirds}, liked.shape)
    answer = by_name(dubnb.audit(both, n_draws=99))["overlap"]
    assert answer.verdict == UNKNOWN and "both logs hold clicks only" in answer.reason


def test_draws_keep_users_and_leave_S_c_out(data, design):
    items = design.draw(0, 1)
    pairs = set(zip(design.users.tolist(), items.tolist(), strict=True))
    S_c = data.triplets("S_c")
    assert len(pairs) == len(items) == N_USERS * EACH
    assert not pairs & set(zip(S_c.users.tolist(), S_c.items.tolist(), strict=True))
    assert not np.array_equal(items, design.draw(0, 2)) and np.array_equal(items, design.draw(0, 1))


def test_expected_counts_are_shares_of_open_items_and_the_mean_of_draws(data, design):
    open_to = ~data.pattern("S_c").mask(np.arange(N_USERS), N_ITEMS)
    shares = np.bincount(design.users, minlength=N_USERS) / open_to.sum(axis=1)
    np.testing.assert_allclose(design.expected, shares @ open_to)
    n = 400 if JIT_ENABLED else 30
    counts = sum(np.bincount(design.draw(0, "mean", k), minlength=N_ITEMS) for k in range(n)) / n
    assert design.expected.sum() == pytest.approx(N_USERS * EACH)
    assert np.abs(counts - design.expected).max() < 5 * np.sqrt(design.expected.max() / n)


def naive_draw(design, stream, below):
    """A design's draw: number after number of the stream, until one is wanted and open to the user."""
    closed = [set(design.excluded.mask(np.array([user]), design.n_items)[0].nonzero()[0]) for user in range(4)]
    counter, items = 0, []
    for user in design.users:
        item = None
        while item is None:
            item = int(uniform(stream, counter) * design.n_items)
            if uniform(stream, counter + 1) >= below[item] or (item in closed[user] and len(closed[user]) < 6):
                item = None
            counter += 2
        closed[user].add(item)
        items.append(item)
    return items


def test_draws_are_those_of_a_plain_loop():
    """Six items: user 1, who comes first, has two closed ones; user 3 more pairs than open items."""
    excluded = Pattern.of(np.array([1, 1, 3, 3, 3]), np.array([0, 4, 1, 2, 5]), 4)
    users = np.array([1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3])
    design = uniformity.UniformPolicy(users, 6, excluded, np.ones(6), np.arange(6), None)
    weights = np.array([1.0, 2.0, 4.0, 1.0, 0.5, 3.0])
    for k in range(20):
        found = design.draw(5, "some", k)
        assert found.tolist() == naive_draw(design, key(5, "audit", "some", k), np.ones(6))
        assert sorted(found[:4]) == [1, 2, 3, 5] and len(set(found[4:7])) == 3 and sorted(found[7:10]) == [0, 3, 4]
        drawn = design.draw(5, "some", k, weights=weights)
        assert drawn.tolist() == naive_draw(design, key(5, "audit", "some", k), weights / 4.0)


def test_null_draws_are_the_statistics_of_one_draw_after_the_other(design):
    null = uniformity.null_draws(design, 3, 7)
    np.testing.assert_array_equal(null, [design.statistics(design.draw(7, "null", k)) for k in range(3)])


def test_the_randomized_log_is_all_its_parts_in_the_order_of_users():
    parts = {"S_c": ([0], [0], [1]), "S_t": ([2, 0], [1, 2], [1, 0]), "S_va": ([1, 2], [0, 0], [0, 1])}
    log = uniformity.randomized_log(Partition(parts | {"S_te": ([0], [1], [1])}, (3, 3)))
    assert log.users.tolist() == [0, 0, 1, 2, 2] and log.items.tolist() == [2, 1, 0, 1, 0]
    assert log.labels.tolist() == [0, 1, 0, 1, 1]


def test_the_null_hypothesis_by_hand():
    """Three users x four items: in S_c they have three, one and four, at random one, two and none."""
    S_c = ([0, 0, 0, 1, 2, 2, 2, 2], [0, 1, 2, 3, 0, 1, 2, 3], [1, 0, 1, 0, 1, 1, 0, 0])
    none, S_t = ([], [], []), ([0, 1, 1], [3, 0, 2], [1, 0, 0])
    data = Partition({"S_c": S_c, "S_t": S_t, "S_va": none, "S_te": none}, (3, 4))
    log = uniformity.randomized_log(data)
    assert uniformity.expected_overlap(data, log) == (1 * 3 + 2 * 1) / 4
    assert uniformity.tested_pairs(data, log).all()
    design = uniformity.uniform_policy(data, log)
    assert design.by_popularity.tolist() == [0, 1, 2, 3] and design.taste is None
    # user 0 has item 3 alone, user 1 the others
    np.testing.assert_allclose(design.expected, [2 / 3, 2 / 3, 2 / 3, 1.0])
    both = Partition({"S_c": S_c, "S_t": ([0, 1, 1], [0, 0, 2], [1, 0, 0]), "S_va": none, "S_te": none}, (3, 4))
    assert both.removed == 1 and uniformity.expected_overlap(both, uniformity.randomized_log(both)) == 5 / 4
    assert uniformity.tested_pairs(both, uniformity.randomized_log(both)).tolist() == [False, True, True]
    assert uniformity.logged(both).items.tolist() == S_c[1] and uniformity.logged(both).users().tolist() == S_c[0]


def test_items_that_could_not_be_drawn_do_not_count():
    design = uniformity.UniformPolicy(np.arange(4), 3, Pattern.empty(4), np.array([3.5, 0.5, 0.0]), np.arange(3), None)
    chi2, *others = design.statistics(np.array([0, 0, 1, 1]))
    assert chi2 == pytest.approx(1.5**2 / 3.5 + 1.5**2 / 0.5)
    assert others == [0.0, 0.0, 0.0]  # no band expects five pairs, and nothing is known of taste
    assert design.band(np.array([2.0, 2.0, 0.0])) == (0.0, 0, 0, 1.0)


def test_a_band_needs_five_expected_pairs_inside_and_outside():
    def band(expected, counts):
        expected, counts = np.array(expected, float), np.array(counts, float)
        return uniformity.UniformPolicy(None, len(expected), None, expected, None, None).band(counts)

    assert band([5, 5], [8, 2]) == (pytest.approx(3 / np.sqrt(2.5)), 0, 1, 1.6)
    assert band([4.9, 5], [8, 2]) == (0.0, 0, 0, 1.0) == band([5, 4.9], [8, 2])
    rare = band([5, 10, 30], [5, 2, 38])
    assert rare == (pytest.approx(-8 / np.sqrt(10 * (1 - 10 / 45))), 1, 2, 0.2)


def test_a_planted_band_is_found_where_it_is(design):
    counts = design.expected.copy()
    counts[10:15] *= 1.5
    scale = design.expected.sum() / counts.sum()
    counts *= scale
    band = design.band(counts)
    assert (band.first, band.last) == (10, 15) and band.ratio == pytest.approx(1.5 * scale) and band.z > 0
    order = np.arange(N_ITEMS)[::-1]
    assert (design.band(counts, order).first, design.band(counts, order).last) == (25, 30)


def deviation(design, counts, order):
    """The largest |O - E| / sqrt(E (1 - E / n)) of all runs of items that expect, and leave, at least 5."""
    E, O, largest = design.expected[order], counts[order], 0.0
    for first in range(N_ITEMS):
        for last in range(first + 1, N_ITEMS + 1):
            e = E[first:last].sum()
            if e >= 5 and E.sum() - e >= 5:
                largest = max(largest, abs(O[first:last].sum() - e) / np.sqrt(e * (1 - e / E.sum())))
    return largest


def test_statistics_by_hand(data, design):
    """Chi-squared over items, and the runs of the catalogue and of popularity, from the rarest in S_c on."""
    popularity = np.bincount(data.triplets("S_c").items, minlength=N_ITEMS)
    order = design.by_popularity
    assert sorted(order) == list(range(N_ITEMS)) and (np.diff(popularity[order]) >= 0).all()
    items = uniformity.randomized_log(data).items
    counts = np.bincount(items, minlength=N_ITEMS)
    chi2 = sum((counts[i] - design.expected[i]) ** 2 / design.expected[i] for i in range(N_ITEMS))
    runs = [deviation(design, counts, some) for some in (np.arange(N_ITEMS), order)]
    assert design.statistics(items) == pytest.approx([chi2, *runs, 0.0])


def test_taste_is_standardised_over_what_the_user_could_get(data, monkeypatch):
    class Scores:
        matrix = np.random.default_rng(0).normal(3.0, 2.0, (N_USERS, N_ITEMS))

        def score_pairs(self, users, items):
            return self.matrix[users, items]

        def score_rows(self, users):
            return self.matrix[users]

    log = uniformity.randomized_log(data)
    open_to = ~data.pattern("S_c").mask(np.arange(N_USERS), N_ITEMS)
    rows = [Scores.matrix[user][open_to[user]] for user in range(N_USERS)]
    for block in (1, 3 * N_ITEMS, uniformity.BLOCK_PAIRS):  # pairs: a user at a time, three, all
        monkeypatch.setattr(uniformity, "BLOCK_PAIRS", block)
        taste = uniformity.uniform_policy(data, log, Scores()).taste
        np.testing.assert_allclose(taste.means, [row.mean() for row in rows])
        np.testing.assert_allclose(taste.deviations, [row.std() for row in rows])
    scores = Scores.matrix[log.users, log.items]
    expected = (scores - taste.means[log.users]) / taste.deviations[log.users]
    np.testing.assert_allclose(taste.values(log.users, log.items), expected)
    assert taste.z(log.users, log.items) == pytest.approx(expected.sum() / np.sqrt(len(expected)))
    design = uniformity.uniform_policy(data, log, Scores())
    assert design.statistics(log.items)[3] == pytest.approx(abs(taste.z(log.users, log.items)))
    flat = uniformity.Taste(Scores(), np.full(N_USERS, 3.0), np.where(np.arange(N_USERS) == 2, 0.0, 0.5))
    found = flat.values(np.array([2, 4]), np.array([1, 1]))  # a user whose items score alike has no taste
    assert found.tolist() == [0.0, pytest.approx((Scores.matrix[4, 1] - 3.0) / 0.5)]


def test_p_values_count_the_draws_that_are_as_extreme():
    null = np.arange(99.0)[:, None]
    assert uniformity.p_values(np.array([98.0]), null)[0] == pytest.approx(2 / 100)
    assert uniformity.p_values(np.array([1000.0]), null)[0] == pytest.approx(1 / 100)
    assert uniformity.p_values(np.array([-1.0]), null)[0] == 1.0
    assert uniformity.p_values(np.array([98.0 + 1e-12]), null)[0] == pytest.approx(2 / 100)  # rounding is no distance
    both = uniformity.p_values(np.array([98.0, 0.0]), np.column_stack([null, null]))
    assert both == pytest.approx([2 / 100, 1.0])


class Scripted:
    """A generator whose draws are given."""

    def __init__(self, *draws):
        self.draws = iter(np.array(draws))

    def multinomial(self, total, shares):
        draw = next(self.draws)
        assert total == draw.sum() and shares.tolist() == [1 / len(draw)] * len(draw)
        return draw

    def choice(self, values, size, replace, shuffle):
        draw = next(self.draws)
        assert size == len(draw) and not replace and not shuffle  # a mean has no order
        return draw


def test_p_values_of_counts_means_and_tables_by_hand():
    """What is as far off as the observed counts as extreme, and so does the observed itself."""
    even = Scripted([3, 3], [2, 4], [4, 2], [6, 0])
    assert uniformity.p_even(np.array([2, 4]), even, 4) == 4 / 5
    assert uniformity.p_even(np.array([3, 3]), np.random.default_rng(0), 9) == 1.0
    values, chosen = np.array([0.0, 0.0, 1.0, 1.0]), np.array([False, False, True, True])
    assert uniformity.p_mean(values, chosen, Scripted([0, 0], [0, 1], [1, 1], [1, 0]), 4) == 3 / 5
    classes, other = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    assert uniformity.p_table(classes, classes, [classes, other, other]) == 2 / 4
    assert uniformity.p_table(classes, classes, [1 - classes, classes, other]) == 3 / 4


def test_tables_are_compared_by_chi_squared():
    """All orders of seven pairs, in uneven classes of which one is empty, by SciPy's statistic."""
    rows, columns = np.array([0, 0, 0, 0, 2, 2, 1]), np.array([0, 0, 0, 1, 1, 1, 3])
    orders = list(itertools.permutations(range(7)))[::101]

    def chi2(order):
        table = np.zeros((3, 4))
        np.add.at(table, (rows, columns[list(order)]), 1)
        return scipy_stats.chi2_contingency(table[:, [0, 1, 3]], correction=False).statistic

    extreme = sum(chi2(order) >= chi2(range(7)) - 1e-9 for order in orders)
    assert 0 < extreme < len(orders) / 2
    found = uniformity.p_table(rows, columns, (columns[list(order)] for order in orders))
    assert found == pytest.approx((1 + extreme) / (1 + len(orders)))


def test_means_of_many_are_judged_by_the_normal_law(monkeypatch):
    monkeypatch.setattr(uniformity, "MANY", 4)
    values, chosen = np.arange(10.0), np.arange(10) < 4
    error = values.std(ddof=1) * (1 / 4 - 1 / 10) ** 0.5
    expected = 2 * scipy_stats.norm.cdf(-3.0 / error)
    assert uniformity.p_mean(values, chosen, None) == pytest.approx(expected)
    assert uniformity.p_mean(values, ~chosen, None) == pytest.approx(expected)  # those left out are as far off
    assert uniformity.p_mean(np.ones(10), chosen, None) == 1.0


def test_means_of_all_but_a_few_are_judged_by_permutation(monkeypatch):
    """Four of five zeros and a one: all zeros come in one draw of five, where the normal law would say 0.046."""
    monkeypatch.setattr(uniformity, "MANY", 2)
    values, chosen = np.array([0.0, 0.0, 0.0, 0.0, 1.0]), np.arange(5) < 4
    assert uniformity.p_mean(values, chosen, np.random.default_rng(0), 999) == pytest.approx(0.2, abs=0.05)


@pytest.mark.needs_jit
def test_p_values_are_uniform_under_the_null(design):
    null = uniformity.null_draws(design, 199, 0)
    p = np.array([uniformity.p_values(design.statistics(design.draw(7, k)), null) for k in range(200)])
    for column in range(3):
        share = (p[:, column] <= 0.2).mean()
        assert 0.08 < share < 0.35, (STATISTICS[column], share)


@pytest.mark.needs_jit
def test_a_uniform_log_passes_and_distorted_ones_do_not(data, design):
    fine = dubnb.audit(data, n_draws=199)
    assert fine.uniform and "No evidence against" in fine.summary
    popularity = np.bincount(data.triplets("S_c").items, minlength=N_ITEMS) + 1.0
    leaky = dubnb.audit(with_items(data, design.draw(3, weights=popularity)), n_draws=199)
    assert by_name(leaky)["popularity"].verdict == NO and "NOT uniform" in leaky.summary
    stretch = np.where(np.arange(N_ITEMS) < 10, 4.0, 1.0)
    found = by_name(dubnb.audit(with_items(data, design.draw(3, weights=stretch)), n_draws=199))["catalogue"]
    assert found.verdict == NO and found.adjusted <= 0.05 and "more often" in found.reason and found.number > 1.3
    json.dumps(leaky.to_dict())
    assert "NO " in leaky.text()


@pytest.mark.needs_jit
def test_groups_and_times_are_audited_if_given(data, design):
    groups = np.arange(N_ITEMS) % 2
    odd = with_items(data, design.draw(3, weights=np.where(groups == 1, 2.0, 1.0)))
    assert by_name(dubnb.audit(odd, item_groups=groups, n_draws=199))["groups"].verdict == NO
    early = {}
    popularity = np.bincount(data.triplets("S_c").items, minlength=N_ITEMS)
    for part in RANDOMIZED:  # what is popular is shown first, and much at the end
        early[part] = -popularity[data.triplets(part).items].astype(float)
    found = by_name(dubnb.audit(data, times=early, n_draws=199))
    assert found["order"].verdict == NO and found["time"].verdict == INFORMATION and found["time"].p < 0.05
    even = {part: np.random.default_rng(1).random(len(data.triplets(part).users)) for part in RANDOMIZED}
    found = by_name(dubnb.audit(data, times=even, n_draws=199))
    assert found["order"].verdict == YES and found["time"].p > 0.05 and "as even as chance" in found["time"].reason


@pytest.mark.needs_jit
def test_uneven_and_more_active_users_are_reported(data):
    log, S_c = uniformity.randomized_log(data), data.triplets("S_c")
    activity = data.pattern("S_c").sizes()
    active = log.users[np.isin(log.users, np.argsort(activity)[-20:])]
    chosen = np.isin(log.users, active)
    parts = {part: S_c.take(slice(0)) for part in RANDOMIZED} | {"S_c": S_c}
    parts["S_t"] = Triplets(log.users[chosen], log.items[chosen], log.labels[chosen], np.ones(chosen.sum()))
    found = by_name(dubnb.audit(Partition(parts, (N_USERS, N_ITEMS)), n_draws=199))
    assert found["activity"].verdict == INFORMATION and found["activity"].number > 1.2 and found["activity"].p < 0.05
    assert found["activity"].adjusted is None and "hold for such users" in found["activity"].reason
    uneven = chosen & ((log.users % 2 == 0) | (np.arange(len(log.users)) % 4 == 0))
    parts["S_t"] = Triplets(log.users[uneven], log.items[uneven], log.labels[uneven], np.ones(uneven.sum()))
    assert by_name(dubnb.audit(Partition(parts, (N_USERS, N_ITEMS)), n_draws=199))["users"].p < 0.05


@pytest.mark.needs_jit
def test_unknown_answers_have_a_reason(data):
    S_c, none = data.triplets("S_c"), data.triplets("S_c").take(slice(0))
    few = {"S_c": S_c, "S_t": data.triplets("S_t").take(slice(5)), "S_va": none, "S_te": none}
    found = dubnb.audit(Partition(few, (N_USERS, N_ITEMS)))
    assert found.uniform is None and "cannot be told" in found.summary
    assert all(a.verdict == UNKNOWN and "because" in a.reason for a in found.answers if a.name in STATISTICS)
    same = {part: data.triplets(part) for part in RANDOMIZED} | {"S_c": S_c._replace(labels=np.ones(len(S_c.users)))}
    assert by_name(dubnb.audit(Partition(same, (N_USERS, N_ITEMS)), n_draws=99))["taste"].verdict == UNKNOWN
    user = Triplets(np.zeros(35, int), np.arange(35), np.arange(35) % 2.0, np.ones(35))
    one = {"S_c": user.take(slice(30, 35)), "S_t": user.take(slice(30)), "S_va": none, "S_te": none}
    found = by_name(dubnb.audit(Partition(one, (1, 35)), n_draws=99))
    assert found["users"].verdict == INFORMATION and found["activity"].reason == "the randomized log has 1 users."


def test_bad_input_is_one_line(data):
    with pytest.raises(InputError, match="pass a Partition"):
        dubnb.audit("simulated")
    with pytest.raises(InputError, match="n_draws=5 must be"):
        dubnb.audit(data, n_draws=5)
    with pytest.raises(InputError, match="one number or date per pair"):
        dubnb.audit(data, times={"S_t": [1.0]})
    with pytest.raises(InputError, match="one group per item"):
        dubnb.audit(data, item_groups=[1, 2])


def test_facts_by_hand():
    """Four users and three items: item 0 has three pairs, item 1 one, item 2 none."""
    S_c = ([0, 1, 2, 0], [0, 0, 0, 1], [1, 0, 1, 1])
    S_t = ([0, 1, 3, 3], [2, 2, 0, 1], [0, 0, 1, 0])
    log = Partition({"S_c": S_c, "S_t": S_t, "S_va": ([], [], []), "S_te": ([], [], [])}, (4, 3))
    facts = {fact.name: fact for fact in selection._shape(log) + selection._label_shift(log)}
    assert facts["Gini of the items' popularity"].value == pytest.approx(1 / 2)  # of 0, 1, 3
    assert facts["Gini of the users' activity"].value == pytest.approx(3 / 8)  # of 0, 1, 1, 2
    assert facts["share of the most popular tenth"].value == 3 / 4 and facts["coverage"].value == 4 / 12
    assert facts["items with a pair in S_c"].value == pytest.approx(2 / 3)
    # S_c: rate 3/4; residuals of users 0, 1, 2 are 1/2, -3/4, 1/4. S_t: rate 1/4; of 0, 1, 3: -1/4, -1/4, 1/2
    half, other = 1.96 * np.sqrt(14 / 16) / 4, 1.96 * np.sqrt(6 / 16) / 4
    assert (facts["positives in S_c"].low, facts["positives in S_c"].high) == pytest.approx((3 / 4 - half, 1.0))
    assert facts["positives in the randomized log"].low == 0.0
    assert facts["positives in the randomized log"].high == pytest.approx(1 / 4 + other)
    shift, both = facts["label shift"], np.hypot(half, other)
    assert (shift.value, shift.low, shift.high) == pytest.approx((1 / 2, 1 / 2 - both, 1 / 2 + both))


def test_effective_sizes_by_the_log_s_propensities():
    S_c = ([0, 1, 2], [0, 0, 1], [1, 0, 1])
    empty = ([], [], [])
    own = Partition({"S_c": S_c, "S_t": empty, "S_va": empty, "S_te": empty}, (3, 2), propensities=[0.5, 0.25, 1.0])
    sizes = {fact.name: fact.value for fact in selection._shape(own)}
    assert sizes["effective size by popularity"] == pytest.approx(4 / (0.25 + 0.25 + 1) / 3)
    assert sizes["effective size by the log's propensities"] == pytest.approx(49 / 21 / 3)


def test_what_is_asked_about_selection(data):
    """One half of S_c and as many pairs outside all of S_c; causes come from the other half, standardised."""
    S_c = data.triplets("S_c")
    first, other = np.arange(0, len(S_c.users), 2), np.arange(1, len(S_c.users), 2)
    none = S_c.take(slice(0))
    half = Partition({part: none for part in PARTS} | {"S_c": S_c.take(first)}, (data.n_users, data.n_items))

    class Scorer:
        def score_pairs(self, users, items):
            return users * 2.0 - items

    n = len(other)
    drawn = [np.empty(n, np.int32) for _ in range(2)]
    UnobservedPairs(N_USERS, N_ITEMS, data.pattern("S_c")).draw(key(0, "audit", "outside"), *drawn)
    users, items = np.append(S_c.users[other], drawn[0]), np.append(S_c.items[other], drawn[1])
    causes = selection.causes(Scorer(), half, users, items)
    own = half.triplets("S_c")
    expected = {
        "activity": np.log1p(np.bincount(own.users, minlength=data.n_users))[users],
        "popularity": np.log1p(np.bincount(own.items, minlength=data.n_items))[items],
        "taste": users * 2.0 - items,
    }
    for name, values in expected.items():
        np.testing.assert_allclose(causes[name][:, 0], (values - values.mean()) / values.std(), atol=1e-9)
    affinities = selection.affinities(half, users, items)
    np.testing.assert_allclose(causes["taste"][:, 1], scipy_stats.zscore(affinities))
    shares, columns = [], np.ones((2 * n, 1))
    for name in expected:
        columns = np.column_stack([columns, causes[name]])
        shares.append(selection.deviance_explained(columns, np.repeat([1.0, 0.0], n)))
    found = selection._explained(data, selection.TasteModel(Scorer(), half, other), 0)
    assert [fact.value for fact in found] == pytest.approx([shares[0], *np.diff(shares), shares[-1]])
    names = [f"selection explained {how}" for how in ("by activity", "by popularity", "by taste", "in all")]
    assert [fact.name for fact in found] == names


@pytest.mark.filterwarnings("ignore")
def test_the_model_of_taste_learns_from_one_half_of_S_c_alone(monkeypatch):
    monkeypatch.setattr(selection, "EPOCHS", 1)
    data = small_partition(n_c=17)
    model, S_c = selection.taste_model(data, 0), data.triplets("S_c")
    first = np.setdiff1d(np.arange(17), model.other)
    assert len(first) == 8 and model.half.n_users == data.n_users and model.half.n_items == data.n_items
    for found, expected in zip(model.half.triplets("S_c")[:3], S_c.take(first)[:3], strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not any(len(model.half.triplets(part).users) for part in RANDOMIZED)
    assert model.scorer.score_rows(np.arange(data.n_users)).shape == (data.n_users, data.n_items)
    liked = {part: data.triplets(part) for part in PARTS} | {"S_c": S_c._replace(labels=np.ones(17, np.float32))}
    blind = selection.taste_model(Partition(liked, (data.n_users, data.n_items)), 0)
    assert blind.scorer is None and blind.half is None and len(blind.other) == 9  # one label shows no taste
    one = {part: data.triplets(part) for part in PARTS} | {"S_c": S_c.take(slice(1))}
    alone = selection.taste_model(Partition(one, (data.n_users, data.n_items)), 0)
    assert alone.scorer is None and alone.other.tolist() == [0]


def plain_affinities(data):
    """Of all pairs, by NumPy's own decomposition."""
    own = data.triplets("S_c")
    X = np.zeros((data.n_users, data.n_items))
    X[own.users, own.items] = 1.0
    by_user, by_item = np.maximum(X.sum(1), 1), np.maximum(X.sum(0), 1)
    U, sigma, Vt = np.linalg.svd(X / np.sqrt(np.outer(by_user, by_item)))
    end = min(5, data.n_users - 1, data.n_items - 1)
    kept = U[:, 1:end] @ np.diag(sigma[1:end]) @ Vt[1:end]  # without the first, which is activity and popularity
    return kept / np.sqrt(np.outer(by_user, by_item)) * len(own.users)


def test_affinities_are_those_of_a_plain_decomposition(data):
    users, items = np.divmod(np.arange(60), data.n_items)
    expected = plain_affinities(data)[users, items]
    np.testing.assert_allclose(selection.affinities(data, users, items), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 8), (8, 3), (4, 8), (8, 4), (2, 6), (6, 2)])
def test_affinities_of_few_users_or_items(shape):
    """All vectors but the last, which the sparse decomposition leaves out; none where there are two users or items."""
    rng = np.random.default_rng(1)
    users, items = np.divmod(rng.permutation(shape[0] * shape[1])[: 2 * max(shape)], shape[1])
    users[0], items[0] = shape[0] - 1, shape[1] - 1
    pairs = np.unique(users * shape[1] + items)
    none = ([], [], [])
    S_c = (*np.divmod(pairs, shape[1]), pairs % 2)
    log = Partition({"S_c": S_c, "S_t": none, "S_va": none, "S_te": none}, shape)
    every = np.divmod(np.arange(shape[0] * shape[1]), shape[1])
    found = selection.affinities(log, *every)
    if 2 in shape:
        assert found.tolist() == [0.0] * 12
    else:
        assert np.abs(found).max() > 0.1
        np.testing.assert_allclose(found, plain_affinities(log)[every], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("separate", [False, True])
def test_deviance_explained_is_that_of_the_ridge_s_optimum(separate):
    """Also where a column tells the classes apart, and only the ridge keeps the slope finite; 70 % are chosen."""
    rng = np.random.default_rng(2)
    n = 200
    x = rng.normal(size=n)
    chosen = (x > np.quantile(x, 0.3)) if separate else (rng.random(n) < 1 / (1 + np.exp(-x - 0.9)))
    columns, y = np.column_stack([np.ones(n), x]), chosen.astype(float)

    def loss(beta):
        logits = columns @ beta
        likelihood = (y * logits - np.logaddexp(0, logits)).sum()
        gradient = columns.T @ (y - 1 / (1 + np.exp(-logits))) - 1e-6 * n * beta
        return 0.5e-6 * n * beta @ beta - likelihood, -gradient

    best = optimize.minimize(loss, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-10, "maxiter": 2000}).x
    logits, mean = columns @ best, y.mean()
    left = (y * logits - np.logaddexp(0, logits)).mean() / (mean * np.log(mean) + (1 - mean) * np.log(1 - mean))
    assert 1 - selection.deviance_explained(columns, y) == pytest.approx(left, rel=1e-5)


@pytest.mark.needs_jit
def test_taste_explains_selection_in_a_world_where_it_does():
    data = simulate("simulated", 0, quiet=True)
    facts = {f.name: f.value for f in selection.selection_facts(data, selection.taste_model(data, 0), 0)}
    assert facts["selection explained by taste"] > 0.05 and facts["selection explained by popularity"] > 0.1


# ---- false alarms --------------------------------------------------------------------------------------------------


def test_verdicts_follow_holm_s_p_values():
    """.03 and .04 would be "no" by themselves; among three questions both become .06."""
    raw = {"items": 0.03, "catalogue": 0.001, "popularity": 0.04}
    answers = _with_holm([PendingAnswer(name, p, p, "fine.", "wrong.") for name, p in raw.items()])
    assert {each.name: each.p for each in answers} == raw
    assert [each.adjusted for each in answers] == pytest.approx([0.06, 0.003, 0.06])
    assert [(each.verdict, each.reason) for each in answers] == [(YES, "fine."), (NO, "wrong."), (YES, "fine.")]


@pytest.mark.needs_jit
@pytest.mark.parametrize("design", coverage_audit.UNIFORM)
def test_audits_of_uniform_policies_rarely_answer_no(design):
    """At most .05 of audits may say no to anything: among 30, six have a probability of .003."""
    found = coverage_audit.measured(design, 30, 99, {})
    assert sum(found["any"]) <= 5, {name: sum(wrong) for name, wrong in found.items()}
    asked = {"items", "catalogue", "popularity", "taste", "overlap"}
    assert asked <= set(found) and ("order" in found) == (design == "uneven arrivals")


@pytest.mark.needs_jit
def test_audits_without_an_answer_are_no_evidence_of_coverage():
    found = coverage_audit.measured("softmax, steep", 2, 99, {})
    assert found["answered"] == [False, False] and not {"any", "weights", "exposure"} & set(found)
    found = coverage_audit.measured("epsilon-greedy", 2, 99, {})
    assert found["answered"] == [True, True] and len(found["any"]) == len(found["weights"]) == 2


@pytest.mark.needs_jit
def test_too_few_shared_pairs_are_a_distortion():
    rng = np.random.default_rng(1)
    S_c = rng.random((100, 40)) < 0.3
    order = np.argsort(rng.random(S_c.shape) + 0.1 * S_c, axis=1)[:, :8]  # pairs of S_c come late
    users, items = np.repeat(np.arange(100), 8), order.ravel()
    labels = (rng.random(S_c.shape) < 0.3).astype(float)
    none = ([], [], [])
    parts = {"S_c": (*S_c.nonzero(), labels[S_c]), "S_t": (users, items, labels[users, items])}
    data = Partition(parts | {"S_va": none, "S_te": none}, S_c.shape)
    audit = dubnb.audit(data, n_draws=99)
    found = by_name(audit)["overlap"]
    assert 0 < data.removed < 200 and found.verdict == NO and "one log avoids the other" in found.reason
    assert audit.uniform is False


def test_exposures_are_tenths_of_the_items_by_popularity(data, design):
    items = uniformity.randomized_log(data).items
    found = _exposures(uniformity.randomized_log(data), design)
    counts = np.bincount(items, minlength=N_ITEMS)[design.by_popularity].reshape(10, 4).sum(axis=1)
    expected = design.expected[design.by_popularity].reshape(10, 4).sum(axis=1)
    assert [each.shown for each in found] == counts.tolist()
    np.testing.assert_allclose([each.expected for each in found], expected)
    half = 1.96 * np.sqrt(expected[3] * (1 - expected[3] / expected.sum()))
    assert (found[3].first, found[3].last) == (0.3, 0.4)
    assert (found[3].low, found[3].high) == pytest.approx((expected[3] - half, expected[3] + half))


@pytest.mark.needs_jit
def test_the_text_draws_exposures_and_lets_signs_be_painted(data):
    audit = dubnb.audit(data, n_draws=99)
    text = audit.text()
    chart = text[text.index("(| marks 1") :].splitlines()[1:11]
    assert chart[0].split()[0] == "rarest" and chart[9].split()[:2] == ["most", "popular"]
    assert all(("o" in line[20:]) != ("X" in line) for line in chart)
    assert text.index("Is every item shown") < text.index("For information") < text.index("How many pairs does each")
    painted = audit.text(lambda sign, verdict: f"<{verdict}>{sign}")
    assert "<yes>YES " in painted and "<information>INFO" in painted
    assert len(audit.to_dict()["exposures"]) == 10


def test_users_and_items_that_a_log_lacks_are_counted():
    """Users 0 and 1 are in both logs, 2 in S_c, 3 and 4 in the randomized one, 5 to 8 in neither; items likewise."""
    biased, random = [(0, 0), (1, 1), (2, 0), (2, 1)], [(0, 1), (1, 2), (3, 2), (4, 0)]
    parts = {"S_c": biased, "S_t": random[:2], "S_va": random[2:3], "S_te": random[3:]}
    columns = {part: (*np.array(pairs).T, np.arange(len(pairs)) % 2) for part, pairs in parts.items()}
    said = by_name(dubnb.audit(Partition(columns, (9, 5)), n_draws=99))["absent"].reason
    assert "2 users are in the randomized log only, 1 in S_c only, 4 in neither" in said
    assert "1 items are in the randomized log only, 0 in S_c only, 2 in neither" in said


@pytest.mark.parametrize("shift", [-0.9, 0.2, 1.5])
def test_the_p_value_of_a_skewed_mean_is_halls(shift):
    """Hall's (1992) cubic as he factors it: sqrt n / g ((1 + g t / 3 sqrt n)^3 - 1) + g / 6 sqrt n."""
    values = np.random.default_rng(0).exponential(size=40) - 1.0 + shift
    n, g, t = len(values), scipy_stats.skew(values), scipy_stats.ttest_1samp(values, 0.0).statistic
    corrected = np.sqrt(n) / g * ((1 + g * t / (3 * np.sqrt(n))) ** 3 - 1) + g / (6 * np.sqrt(n))
    assert _p_mean_zero(values) == pytest.approx(2 * scipy_stats.t.sf(abs(corrected), n - 1), rel=1e-9)
    assert _p_mean_zero(np.ones(5)) == 1.0
