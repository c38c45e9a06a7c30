"""The audit's answers, one by one: the number behind each, its p-value and its words."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

import dubnb
from dubnb._check import InputError
from dubnb._random import generator
from dubnb.data.ids import Ids
from dubnb.data.partition import PARTS, RANDOMIZED, Partition
from dubnb.theory import audit as audits
from dubnb.theory import selection, uniformity
from dubnb.theory.audit import INFORMATION, NO, UNKNOWN, YES, Audit, PendingAnswer
from dubnb.theory.selection import Fact
from tests.naive import biased_log

N_DRAWS = 99


@pytest.fixture(scope="module")
def data():
    """Thirty users, of whom the last six are not in the randomized log, x 20 items with ids from 100 on."""
    log = biased_log(24, 20, 180, 4, (0.4, 0.3, 0.3))
    parts = {part: log.triplets(part)._replace(grades=None) for part in PARTS}
    users, items = np.divmod(np.arange(60)[::3], 10)
    columns = (parts["S_c"].users, users + 24), (parts["S_c"].items, items)
    parts["S_c"] = (*(np.concatenate(own) for own in columns), np.append(parts["S_c"].labels, items % 2))
    return Partition(parts, (30, 20), item_ids=Ids(np.arange(100, 120)), name="thirty")


@pytest.fixture(scope="module")
def log(data):
    return uniformity.randomized_log(data)


@pytest.fixture(scope="module")
def design(data, log):
    return uniformity.uniform_policy(data, log)


@pytest.fixture(autouse=True)
def quick_draws(monkeypatch):
    """Items of uniform logs by NumPy, repeated ones too: the kernel has tests of its own."""

    def draw(self, seed, *names):
        return generator(seed, *names).integers(0, self.n_items, len(self.users))

    monkeypatch.setattr(uniformity.UniformPolicy, "draw", draw)


class Leaning:
    """A model by which items of higher numbers are liked more."""

    def score_pairs(self, users, items):
        return items * 1.0

    def score_rows(self, users):
        return np.tile(np.arange(20.0), (len(users), 1))


def test_items_bands_and_taste_are_compared_with_uniform_logs(data, log):
    design = uniformity.uniform_policy(data, log, Leaning())
    items, catalogue, popularity, taste = audits._uniformity(data, log, design, N_DRAWS, 3, True)
    null = uniformity.null_draws(design, N_DRAWS, 3)
    expected = uniformity.p_values(design.statistics(log.items), null)
    assert [answer.p for answer in (items, catalogue, popularity, taste)] == pytest.approx(expected)
    chi2, middle = design.statistics(log.items)[0], np.median(null[:, 0])
    assert items.number == pytest.approx(chi2) and f"{chi2:,.0f}, uniform logs {middle:,.0f}." in items.reason_yes
    counts = np.bincount(log.items, minlength=20)
    band, by_popularity = design.band(counts), design.band(counts, design.by_popularity)
    assert catalogue.number == band.ratio and popularity.number == by_popularity.ratio
    how = f"{abs(band.ratio - 1):.1%} {'more' if band.ratio > 1 else 'less'} often"
    assert f"items {100 + band.first} to {99 + band.last} are shown {how}" in catalogue.reason_no
    shares = f"items {5 * by_popularity.first} to {5 * by_popularity.last} % of the way from the rarest"
    assert popularity.reason_no.startswith(shares)
    mean = design.taste.values(log.users, log.items).mean()
    assert taste.number == pytest.approx(mean)
    side = "above" if mean > 0 else "below"
    assert taste.reason_no == f"shown items score {abs(mean):.3f} standard deviations {side} the user's mean."


def test_users_have_as_many_pairs_and_are_as_active(data, log):
    users, activity = audits._users(data, log, N_DRAWS, 3)
    counts = np.bincount(log.users, minlength=30)
    there = counts > 0
    assert users.p == uniformity.p_even(counts[there], generator(3, "audit", "users"), N_DRAWS)
    assert users.number == pytest.approx(counts.max() / counts[there].mean()) == 1.0
    about = "24 of 30 users are in it, with 4.0 pairs on average and 4 at most"
    assert users.reason == f"{about}: as even as chance." and users.verdict == activity.verdict == INFORMATION
    log_sizes = np.log(data.pattern("S_c").sizes())
    assert activity.p == uniformity.p_mean(log_sizes, there, generator(3, "audit", "activity"), N_DRAWS)
    ratio = np.exp(log_sizes[:24].mean() - log_sizes[24:].mean())
    assert activity.number == pytest.approx(ratio) and f"have {ratio:.2f} times the pairs" in activity.reason


def some_log(S_c, S_t, shape):
    none = ([], [], [])
    return Partition({"S_c": S_c, "S_t": S_t, "S_va": none, "S_te": none}, shape)


def answers_about_users(S_c, S_t, shape):
    own = some_log(S_c, S_t, shape)
    return audits._users(own, uniformity.randomized_log(own), N_DRAWS, 0)


def test_users_of_pairs_that_repeat_S_c_are_as_active_as_they_were():
    """User 0 has four pairs in S_c, of which two were removed; users 1 and 2, who did not come, have three and two."""
    S_c = ([0, 0, 0, 0, 1, 1, 1, 2, 2], [0, 1, 2, 3, 0, 1, 2, 0, 1], [1, 0, 1, 0, 1, 0, 1, 0, 1])
    _, activity = answers_about_users(S_c, ([0, 0, 3], [0, 1, 2], [1, 0, 1]), (4, 5))
    assert activity.number == pytest.approx(4 / np.sqrt(3 * 2))  # user 3 is not in S_c: nothing is known of hers


def test_what_cannot_be_asked_about_users():
    alone = answers_about_users(([0, 1], [0, 1], [1, 0]), ([0, 0], [2, 3], [1, 0]), (2, 4))
    assert [answer.verdict for answer in alone] == [INFORMATION] * 2 and "has 1 users" in alone[0].reason
    assert [answer.name for answer in alone] == ["users", "activity"]
    _, activity = answers_about_users(([0, 1, 1], [0, 1, 2], [1, 0, 0]), ([2, 3], [2, 3], [1, 0]), (4, 4))
    assert activity.reason == "no user of S_c is in the randomized log." and activity.p is None
    users, activity = answers_about_users(([0, 1, 1], [0, 1, 2], [1, 0, 0]), ([0, 1], [2, 3], [1, 0]), (2, 4))
    assert users.p == 1.0 and activity.reason == "all users of S_c are in the randomized log." and activity.p is None
    assert (users.name, activity.name) == ("users", "activity")
    users, activity = answers_about_users(([0, 1, 2], [0, 1, 2], [1, 0, 0]), ([0, 1], [2, 3], [1, 0]), (3, 4))
    assert users.p == 1.0 and "equally active" in activity.reason and activity.p is None


def test_groups_are_shown_as_often_as_their_sizes_say(log, design):
    groups = np.repeat([0, 1, 2], [4, 6, 10])
    answer = audits._groups(log, design, groups, N_DRAWS, 3)

    def table(items):
        return np.array([(groups[items] == k).sum() for k in range(3)])

    expected = np.array([design.expected[groups == k].sum() for k in range(3)])
    chi2 = [scipy_stats.chisquare(table(design.draw(3, "groups", k)), expected).statistic for k in range(N_DRAWS)]
    own = scipy_stats.chisquare(table(log.items), expected).statistic
    assert answer.p == pytest.approx((1 + np.sum(np.array(chi2) >= own - 1e-9)) / (1 + N_DRAWS))
    ratios = table(log.items) / expected
    worst = ratios[np.abs(np.log(ratios)).argmax()]
    assert answer.number == pytest.approx(worst) and f"shown {worst:.2f} times as often" in answer.reason_no


def test_times_are_cut_into_tenths_of_the_period_and_of_the_pairs(log, design):
    assert audits._times(None, N_DRAWS, 3) == []
    n = len(log.users)
    when = np.random.default_rng(1).permutation(n) ** 2.0
    (time,), order = audits._times(when, N_DRAWS, 3), audits._order(log, when, N_DRAWS, 3, design)
    counts = np.histogram(when, np.linspace(0, (n - 1) ** 2, 11))[0]
    assert time.p == uniformity.p_even(counts, generator(3, "audit", "time"), N_DRAWS)
    assert time.number == pytest.approx(counts.max() * 10 / n)
    assert f"hold {counts.min() * 10 / n:.2f} to {counts.max() * 10 / n:.2f} times their share" in time.reason
    rank = np.argsort(design.by_popularity) // 2  # of 20 items, two a tenth
    tenth = np.array([10 * np.sum(when < each) // n for each in when])
    draws = [rank[design.draw(3, "order", k)] for k in range(N_DRAWS)]
    assert order.p == order.number == uniformity.p_table(tenth, rank[log.items], draws)
    (time,), order = audits._times(np.full(n, 5.0), N_DRAWS, 3), audits._order(log, np.full(n, 5.0), 99, 3, design)
    assert (time.verdict, time.name, order.verdict, order.name) == (INFORMATION, "time", UNKNOWN, "order")


@pytest.mark.parametrize("n", [1, 3, 9])
def test_shared_pairs_are_as_many_as_chance_allows(n):
    """Each of six users has one pair of six in S_c, and four at random: four shared ones are due."""
    S_c = (np.arange(6), np.arange(6), np.arange(6) % 2)
    shared = np.arange(min(n, 5))
    users = np.concatenate([shared, np.repeat(np.arange(6), 4)[: 24 - len(shared)]])
    items = np.concatenate([shared, ((np.arange(24) % 4 + 1 + np.arange(24) // 4) % 6)[: 24 - len(shared)]])
    own = some_log(S_c, (users, items, users % 2), (6, 6))
    log = uniformity.randomized_log(own)
    answer = audits._overlap(own, log)
    assert own.removed == len(shared) and uniformity.expected_overlap(own, log) == pytest.approx(4.0)
    law = scipy_stats.poisson(4.0)
    tail = min(law.cdf(own.removed), law.sf(own.removed - 1))
    assert answer.p == pytest.approx(min(1.0, 2 * tail)) and answer.number == pytest.approx(own.removed / 4)
    shown = f"{own.removed} pairs are in both logs where 4 are expected"
    how = "avoids" if own.removed < 4 else "repeats"
    assert (answer.reason_yes, answer.reason_no) == (f"{shown}.", f"{shown}: one log {how} the other.")


def test_logs_that_leave_each_other_out_or_hardly_meet(data, log, monkeypatch):
    left_out = audits._overlap(data, log)
    due = uniformity.expected_overlap(data, log)
    assert due > 10 and (left_out.verdict, left_out.number, left_out.p) == (INFORMATION, 0.0, None)
    assert f"0 pairs are in both logs where {due:,.0f} are expected: one log excludes the other" in left_out.reason
    monkeypatch.setattr(audits, "OVERLAP_FEW", due + 0.1)
    assert audits._overlap(data, log).verdict == UNKNOWN


def test_audit_reports_leakage_and_absent_users_and_items():
    """User 3 is in S_c only, user 4 in neither, item 2 at random only; pair (0, 0) was in both logs."""
    own = some_log(([0, 1, 2, 3, 0], [0, 1, 0, 1, 1], [1, 0, 1, 0, 1]), ([0, 1, 2], [0, 2, 1], [1, 0, 0]), (5, 3))
    leakage, absent = audits._leakage(own), audits._absent(own)
    assert leakage.verdict == YES and leakage.number == 1.0 and leakage.reason.startswith("1 pairs of S_c were in")
    assert absent.verdict == INFORMATION
    assert absent.reason == (
        "0 users are in the randomized log only, 1 in S_c only, 1 in neither; "
        "1 items are in the randomized log only, 0 in S_c only, 0 in neither."
    )
    whole = some_log(([0, 1], [0, 1], [1, 0]), ([0, 1], [1, 0], [1, 0]), (2, 2))
    leakage = audits._leakage(whole)
    assert leakage.number == 0.0 and leakage.reason.startswith("no pair is in two sets")


def answered(name, p):
    return PendingAnswer(name, p, 7.0, "fine", "wrong")


def test_verdicts_follow_holm():
    """Of three p-values the least counts three times, the next twice; a question that was not tested stays as it is."""
    unknown = audits._unknown("taste", "there is none")
    found = audits._with_holm([answered("items", 0.02), unknown, answered("users", 0.016), answered("time", 0.5)])
    assert [answer.name for answer in found] == ["items", "taste", "users", "time"]
    assert [answer.adjusted for answer in found] == pytest.approx([0.048, None, 0.048, 0.5])
    assert [answer.verdict for answer in found] == [NO, UNKNOWN, NO, YES]
    assert [answer.reason for answer in found[::2]] == ["wrong", "wrong"] and found[3].reason == "fine"
    assert found[0].p == 0.02 and found[0].number == 7.0 and found[1] is unknown
    (limit,) = audits._with_holm([answered("items", 0.05)])
    assert limit.verdict == NO
    assert audits._with_holm([unknown]) == [unknown]


def test_the_summary_says_what_is_not_uniform(data, log):
    def summary(**p):
        return audits._summary(tuple(audits._with_holm([answered(name, value) for name, value in p.items()])), data)

    n = len(log.users)
    assert summary(items=0.03, order=0.9) == (  # 0.06 after Holm
        f"No evidence against a uniform choice of items: 2 questions, {n} randomized pairs."
    )
    assert summary(order=0.001, items=0.001, taste=0.9) == (
        "The randomized log is NOT uniform: order, items (of 3 questions, after Holm)."
    )
    unknown = (audits._unknown("items", "x is y"), audits._informs("users", "some."))
    assert audits._summary(unknown, data).endswith("cannot be told from these data, because x is y.")


def test_an_audit_in_text_and_json():
    answers = audits._with_holm([answered("items", 0.001), answered("users", 0.5), audits._unknown("taste", "of x")])
    facts = (Fact("coverage", 0.25, meaning="m"), Fact("label shift", 0.5, 0.25, 0.75))
    answers.append(audits._informs("time", "t", 1.0, 0.01))
    found = Audit("mine", "Summary.", tuple(answers), facts, 99, warnings=("W",))
    assert found.uniform is False and found.alpha == 0.05
    text = found.text()
    assert str(found) == text and "audit of mine" in text and "Summary." in text and text.endswith("W")
    lines = text.splitlines()
    assert lines[5] == f"NO   {audits.QUESTIONS['items']} (p 0.001, Holm 0.002)" and lines[6] == "     wrong"
    assert lines[-3].split() == ["coverage", "0.2500", "m"]
    assert lines[-2].split() == ["label", "shift", "0.5000", "0.2500..0.7500"]
    document = found.to_dict()
    assert {name: document[name] for name in ("data", "summary", "uniform", "alpha", "draws", "warnings")} == {
        "data": "mine", "summary": "Summary.", "uniform": False, "alpha": 0.05, "draws": 99, "warnings": ["W"]
    }  # fmt: skip
    assert document["answers"][0]["verdict"] == NO and document["facts"][1]["low"] == 0.25
    assert Audit("", "", tuple(answers[1:]), (), 99).uniform is True
    assert Audit("", "", tuple(answers[2:]), (), 99).uniform is None


def test_times_are_put_into_the_order_of_the_log():
    parts = {"S_c": ([0], [0], [1]), "S_t": ([2, 0], [1, 2], [1, 0]), "S_va": ([1], [0], [0]), "S_te": ([], [], [])}
    own = Partition(parts, (3, 3))
    times = {"S_t": [5, 3], "S_va": [4.5]}
    assert audits._checked_times(own, None) is None
    assert audits._checked_times(own, times).tolist() == [5.0, 4.5, 3.0]  # S_t is kept by user: its 5 is user 0's
    dates = {"S_t": np.array([0, 1], "M8[s]"), "S_va": np.array([2], "M8[s]")}
    assert audits._checked_times(own, dates).tolist() == [0.0, 2e6, 1e6]
    for bad in ({"S_t": [5, 3]}, times | {"S_te": [1]}, times | {"S_va": ["x"]}, times | {"S_t": [[5, 3]]}):
        with pytest.raises(InputError, match="pass one number or date per pair"):
            audits._checked_times(own, bad)
    with pytest.raises(InputError, match="not finite"):
        audits._checked_times(own, times | {"S_va": [np.nan]})


def test_groups_are_one_per_item_and_two_at_least(data):
    assert audits._checked_groups(data, None) is None
    assert audits._checked_groups(data, ["b", "a"] * 10).tolist() == [1, 0] * 10
    for bad, said in (([1] * 20, "one group only"), ([1, 2] * 11, "for 20 items"), ([[1, 2]] * 20, "for 20 items")):
        with pytest.raises(InputError, match=said):
            audits._checked_groups(data, bad)


@pytest.mark.filterwarnings("ignore")
def test_an_audit_answers_every_question(data, log, monkeypatch):
    monkeypatch.setattr(selection, "EPOCHS", 1)
    times = {part: np.arange(len(data.triplets(part).users)) for part in RANDOMIZED}
    found = dubnb.audit(data, times=times, item_groups=np.arange(20) % 2, n_draws=N_DRAWS, seed=2)
    names = [*uniformity.STATISTICS, "groups", "order", "overlap", "leakage", "users", "activity", "time", "absent"]
    assert [answer.name for answer in found.answers] == names
    assert (found.data, found.n_draws, found.warnings) == ("thirty", N_DRAWS, ())
    parts = {part: data.triplets(part) for part in PARTS} | {
        part: data.triplets(part).take([]) for part in RANDOMIZED[1:]
    }
    for n, told in ((29, False), (30, True)):
        few = Partition(parts | {"S_t": data.triplets("S_t").take(slice(n))}, (30, 20))
        answers = dubnb.audit(few, n_draws=N_DRAWS).answers
        assert (answers[0].verdict != UNKNOWN) is told
    for bad in ({"n_draws": 98}, {"seed": -1}):
        with pytest.raises(InputError, match=f"{next(iter(bad))}="):
            dubnb.audit(data, **bad)
