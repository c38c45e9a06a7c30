"""The audit's answers, one by one: the number behind each, its p-value and its words."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

import dubnb
from dubnb import stats
from dubnb._check import InputError
from dubnb._random import generator
from dubnb.data.ids import Ids
from dubnb.data.partition import PARTS, RANDOMIZED, Partition
from dubnb.theory import audit as audits
from dubnb.theory import selection, uniformity
from dubnb.theory.audit import INFORMATION, NO, QUESTIONS, UNKNOWN, YES, Answer, Audit
from dubnb.theory.selection import Fact, TasteModel
from tests.naive import biased_log

N_DRAWS, SEED = 99, 3


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
def skewed():
    """Sixty users x 20 items, of which the randomized log shows the first five alone."""
    users, items = np.divmod(np.arange(180), 3)
    S_c = (np.arange(60), 5 + np.arange(60) % 15, np.arange(60) % 2)
    return some_log(S_c, (users, (items + users) % 5, users % 2), (60, 20))


@pytest.fixture(scope="module")
def log(data):
    return uniformity.randomized_log(data)


@pytest.fixture(scope="module")
def design(data, log):
    return uniformity.uniform_policy(data, log)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Items of uniform logs by NumPy, repeated ones too, and no model of taste: both have tests of their own."""

    def draw(self, seed, *names):
        return generator(seed, *names).integers(0, self.n_items, len(self.users))

    monkeypatch.setattr(uniformity.UniformPolicy, "draw", draw)
    use_taste(monkeypatch, None)


def use_taste(monkeypatch, scorer):
    monkeypatch.setattr(selection, "taste_model", lambda data, seed: TasteModel(scorer, None, np.zeros(0, np.int64)))


class Leaning:
    """A model by which items of higher numbers are liked more."""

    def score_pairs(self, users, items):
        return items * 1.0

    def score_rows(self, users):
        return np.tile(np.arange(20.0), (len(users), 1))


def some_log(S_c, S_t, shape):
    none = ([], [], [])
    return Partition({"S_c": S_c, "S_t": S_t, "S_va": none, "S_te": none}, shape)


def answers(data, **options):
    return {each.name: each for each in dubnb.audit(data, n_draws=N_DRAWS, seed=SEED, **options).answers}


def test_items_bands_and_taste_are_compared_with_uniform_logs(data, log, monkeypatch):
    use_taste(monkeypatch, Leaning())
    design, found = uniformity.uniform_policy(data, log, Leaning()), answers(data)
    null = uniformity.null_draws(design, N_DRAWS, SEED)
    expected = uniformity.p_values(design.statistics(log.items), null)
    assert [found[name].p for name in uniformity.STATISTICS] == pytest.approx(expected)
    items, catalogue, popularity, taste = (found[name] for name in uniformity.STATISTICS)
    chi2, middle = design.statistics(log.items)[0], np.median(null[:, 0])
    assert items.number == pytest.approx(chi2)
    assert f"chi-squared {chi2:,.0f}" in items.reason and f"{middle:,.0f}" in items.reason
    counts = np.bincount(log.items, minlength=20)
    band, by_popularity = design.band(counts), design.band(counts, design.by_popularity)
    assert catalogue.number == band.ratio and popularity.number == by_popularity.ratio
    how = f"{abs(band.ratio - 1):.1%} {'more' if band.ratio > 1 else 'less'} often"
    assert f"items {100 + band.first} to {99 + band.last} are shown {how}" in catalogue.reason
    shares = f"items {5 * by_popularity.first} to {5 * by_popularity.last} % of the way from the rarest"
    assert shares in popularity.reason
    mean = design.taste.values(log.users, log.items).mean()
    assert taste.number == pytest.approx(mean)
    side = "above" if mean > 0 else "below"
    assert f"shown items score {abs(mean):.3f} standard deviations {side} the user's mean" in taste.reason


def test_reasons_say_whether_chance_explains_what_was_shown(data, skewed):
    found = answers(skewed, item_groups=np.arange(20) < 5)
    assert {found[name].verdict for name in ("items", "catalogue", "groups")} == {NO}
    assert found["items"].reason.startswith("counts of items vary too much")
    assert found["catalogue"].reason.startswith("items 0 to 4 are shown ")
    found = answers(data)
    assert found["items"].verdict == YES and "as much as chance explains" in found["items"].reason
    assert found["catalogue"].reason.startswith("chance explains the largest deviation: items ")


def test_verdicts_follow_holm(data, skewed):
    """All tested questions are corrected together; those that were not tested have no adjusted p-value."""
    for own in (data, skewed):
        found = answers(own, item_groups=np.arange(20) < 5)
        tested = [each for each in found.values() if each.adjusted is not None]
        assert {"items", "catalogue", "popularity", "groups"} <= {each.name for each in tested}
        assert [each.adjusted for each in tested] == pytest.approx(stats.holm([each.p for each in tested]))
        assert [each.verdict for each in tested] == [NO if each.adjusted <= 0.05 else YES for each in tested]
        assert found["taste"].verdict == UNKNOWN and found["taste"].p is None


def test_the_summary_says_what_is_not_uniform(data, skewed):
    for own in (data, skewed):
        audit = dubnb.audit(own, n_draws=N_DRAWS)
        tested = [each for each in audit.answers if each.adjusted is not None]
        wrong, n = [each.name for each in tested if each.verdict == NO], sum(own.size(part) for part in RANDOMIZED)
        assert bool(wrong) is (own is skewed) is not audit.uniform
        no = f"The randomized log is NOT uniform: {', '.join(wrong)} (of {len(tested)} questions, after Holm)."
        yes = f"No evidence against a uniform choice of items: {len(tested)} questions, {n} randomized pairs."
        assert audit.summary == (no if wrong else yes)
    few = dubnb.audit(some_log(([0, 1], [0, 1], [1, 0]), ([0, 1], [2, 3], [1, 0]), (2, 4)), n_draws=N_DRAWS)
    assert few.summary.endswith("because the randomized log has 2 pairs outside S_c, fewer than 30.")


def test_users_have_as_many_pairs_and_are_as_active(data, log):
    found = answers(data)
    users, activity = found["users"], found["activity"]
    counts = np.bincount(log.users, minlength=30)
    there = counts > 0
    assert users.p == uniformity.p_even(counts[there], generator(SEED, "audit", "users"), N_DRAWS)
    assert users.number == pytest.approx(counts.max() / counts[there].mean()) == 1.0
    about = "24 of 30 users are in it, with 4.0 pairs on average and 4 at most"
    assert users.reason == f"{about}: as even as chance." and users.verdict == activity.verdict == INFORMATION
    log_sizes = np.log(data.pattern("S_c").sizes())
    assert activity.p == uniformity.p_mean(log_sizes, there, generator(SEED, "audit", "activity"), N_DRAWS)
    ratio = np.exp(log_sizes[:24].mean() - log_sizes[24:].mean())
    assert activity.number == pytest.approx(ratio) and f"have {ratio:.2f} times the pairs" in activity.reason


def test_users_of_pairs_that_repeat_S_c_are_as_active_as_they_were():
    """User 0 has four pairs in S_c, of which two were removed; users 1 and 2, who did not come, have three and two."""
    S_c = ([0, 0, 0, 0, 1, 1, 1, 2, 2], [0, 1, 2, 3, 0, 1, 2, 0, 1], [1, 0, 1, 0, 1, 0, 1, 0, 1])
    activity = answers(some_log(S_c, ([0, 0, 3], [0, 1, 2], [1, 0, 1]), (4, 5)))["activity"]
    assert activity.number == pytest.approx(4 / np.sqrt(3 * 2))  # user 3 is not in S_c: nothing is known of hers


@pytest.mark.parametrize(
    "S_c, S_t, shape, said",
    [
        (([0, 1], [0, 1], [1, 0]), ([0, 0], [2, 3], [1, 0]), (2, 4), "the randomized log has 1 users."),
        (([0, 1, 1], [0, 1, 2], [1, 0, 0]), ([2, 3], [2, 3], [1, 0]), (4, 4), "no user of S_c is in the randomized"),
        (([0, 1, 1], [0, 1, 2], [1, 0, 0]), ([0, 1], [2, 3], [1, 0]), (2, 4), "all users of S_c are in the randomized"),
        (([0, 1, 2], [0, 1, 2], [1, 0, 0]), ([0, 1], [2, 3], [1, 0]), (3, 4), "all users are equally active in S_c."),
    ],
)
def test_what_cannot_be_asked_about_users(S_c, S_t, shape, said):
    found = answers(some_log(S_c, S_t, shape))
    users, activity = found["users"], found["activity"]
    assert users.verdict == activity.verdict == INFORMATION and activity.p is None
    assert activity.reason.startswith(said) and users.p == (None if "1 users" in said else 1.0)


def test_groups_are_shown_as_often_as_their_sizes_say(data, log, design):
    groups = np.repeat([0, 1, 2], [4, 6, 10])
    answer = answers(data, item_groups=np.array(["a", "b", "c"])[groups])["groups"]

    def table(items):
        return np.array([(groups[items] == k).sum() for k in range(3)])

    expected = np.array([design.expected[groups == k].sum() for k in range(3)])
    chi2 = [scipy_stats.chisquare(table(design.draw(SEED, "groups", k)), expected).statistic for k in range(N_DRAWS)]
    own = scipy_stats.chisquare(table(log.items), expected).statistic
    assert answer.p == pytest.approx((1 + np.sum(np.array(chi2) >= own - 1e-9)) / (1 + N_DRAWS))
    ratios = table(log.items) / expected
    worst = ratios[np.abs(np.log(ratios)).argmax()]
    assert answer.number == pytest.approx(worst) and f"shown {worst:.2f} times as often" in answer.reason


def test_groups_are_one_per_item_and_two_at_least(data):
    for bad, said in (([1] * 20, "one group only"), ([1, 2] * 11, "for 20 items"), ([[1, 2]] * 20, "for 20 items")):
        with pytest.raises(InputError, match=said):
            dubnb.audit(data, item_groups=bad)


def when_shown(users, items):
    """A time for every pair, by which the pairs are not in the order of the users."""
    return (7 * users + 11 * items) % 31 * 1.0


def times_of(data, convert=np.asarray):
    parts = {part: data.triplets(part) for part in RANDOMIZED}
    return {part: convert(when_shown(pairs.users, pairs.items)) for part, pairs in parts.items()}


def test_times_are_cut_into_tenths_of_the_period_and_of_the_pairs(data, log, design):
    assert "time" not in answers(data)
    when, n, found = when_shown(log.users, log.items), len(log.users), answers(data, times=times_of(data))
    time, order = found["time"], found["order"]
    counts = np.histogram(when, np.linspace(when.min(), when.max(), 11))[0]
    assert time.p == uniformity.p_even(counts, generator(SEED, "audit", "time"), N_DRAWS)
    assert time.number == pytest.approx(counts.max() * 10 / n)
    assert f"hold {counts.min() * 10 / n:.2f} to {counts.max() * 10 / n:.2f} times their share" in time.reason
    rank = np.argsort(design.by_popularity) // 2  # of 20 items, two a tenth
    tenth = np.argsort(np.argsort(when, kind="stable")) * 10 // n
    draws = [rank[design.draw(SEED, "order", k)] for k in range(N_DRAWS)]
    assert order.p == order.number == uniformity.p_table(tenth, rank[log.items], draws)
    dates = answers(data, times=times_of(data, lambda times: times.astype("M8[s]")))
    assert dates["time"] == time and dates["order"] == order
    equal = answers(data, times=times_of(data, np.ones_like))
    assert (equal["time"].verdict, equal["order"].verdict) == (INFORMATION, UNKNOWN)


def test_times_are_one_number_or_date_per_pair(data):
    times = times_of(data)
    few, text, square = times["S_va"][1:], np.full(len(times["S_va"]), "x"), times["S_va"][None]
    for bad in ({"S_t": times["S_t"]}, times | {"S_va": few}, times | {"S_va": text}, times | {"S_va": square}):
        with pytest.raises(InputError, match="pass one number or date per pair"):
            dubnb.audit(data, times=bad)
    with pytest.raises(InputError, match="not finite"):
        dubnb.audit(data, times=times | {"S_va": np.full(len(times["S_va"]), np.nan)})


@pytest.mark.parametrize("n", [1, 3, 5])
def test_shared_pairs_are_as_many_as_chance_allows(n):
    """Each of six users has one pair of six in S_c, and four at random: four shared ones are due."""
    S_c, shared = (np.arange(6), np.arange(6), np.arange(6) % 2), np.arange(n)
    users = np.concatenate([shared, np.repeat(np.arange(6), 4)[: 24 - n]])
    items = np.concatenate([shared, ((np.arange(24) % 4 + 1 + np.arange(24) // 4) % 6)[: 24 - n]])
    answer, law = answers(some_log(S_c, (users, items, users % 2), (6, 6)))["overlap"], scipy_stats.poisson(4.0)
    assert answer.p == pytest.approx(min(1.0, 2 * min(law.cdf(n), law.sf(n - 1)))) and answer.number == n / 4
    assert (answer.verdict, answer.reason) == (YES, f"{n} pairs are in both logs where 4 are expected.")


def test_a_log_that_repeats_the_other_is_not_random():
    """Twelve users have one pair of six in S_c and three at random, of which one is the same; six are due."""
    users, liker = np.arange(12), np.arange(13)  # the last one is in S_c alone
    S_t = np.repeat(users, 3), (np.repeat(users, 3) + np.tile([0, 1, 2], 12)) % 6, np.tile([0, 1, 0], 12)
    answer = answers(some_log((liker, liker % 6, liker % 2), S_t, (13, 6)))["overlap"]
    assert answer.verdict == NO and answer.number == 2.0
    assert answer.reason == "12 pairs are in both logs where 6 are expected: one log repeats the other."


def test_logs_that_leave_each_other_out_or_hardly_meet(data, log, monkeypatch):
    left_out, due = answers(data)["overlap"], uniformity.expected_overlap(data, log)
    assert due > 10 and (left_out.verdict, left_out.number, left_out.p) == (INFORMATION, 0.0, None)
    assert f"0 pairs are in both logs where {due:,.0f} are expected: one log excludes the other" in left_out.reason
    monkeypatch.setattr(audits, "OVERLAP_FEW", due + 0.1)
    assert answers(data)["overlap"].verdict == UNKNOWN


def test_audit_reports_leakage_and_absent_users_and_items():
    """User 3 is in S_c only, user 4 in neither, item 2 at random only; pair (0, 0) was in both logs."""
    S_c, S_t = ([0, 1, 2, 3, 0], [0, 1, 0, 1, 1], [1, 0, 1, 0, 1]), ([0, 1, 2], [0, 2, 1], [1, 0, 0])
    found = answers(some_log(S_c, S_t, (5, 3)))
    leakage, absent = found["leakage"], found["absent"]
    assert leakage.verdict == YES and leakage.number == 1.0 and leakage.reason.startswith("1 pairs of S_c were in")
    assert absent.verdict == INFORMATION
    assert absent.reason == (
        "0 users are in the randomized log only, 1 in S_c only, 1 in neither; "
        "1 items are in the randomized log only, 0 in S_c only, 0 in neither."
    )
    leakage = answers(some_log(([0, 1], [0, 1], [1, 0]), ([0, 1], [1, 0], [1, 0]), (2, 2)))["leakage"]
    assert leakage.number == 0.0 and leakage.reason.startswith("no pair is in two sets")


def test_an_audit_in_text_and_json():
    answers = [
        Answer("items", QUESTIONS["items"], NO, "wrong", 7.0, 0.001, 0.002),
        Answer("users", QUESTIONS["users"], YES, "fine", 7.0, 0.5, 0.5),
        Answer("taste", QUESTIONS["taste"], UNKNOWN, "cannot be told"),
        Answer("time", QUESTIONS["time"], INFORMATION, "t", 1.0, 0.01),
    ]
    facts = (Fact("coverage", 0.25, meaning="m"), Fact("label shift", 0.5, 0.25, 0.75))
    found = Audit("mine", "Summary.", tuple(answers), facts, 99, warnings=("W",))
    assert found.uniform is False and found.alpha == 0.05
    text = found.text()
    assert str(found) == text and "audit of mine" in text and "Summary." in text and text.endswith("W")
    lines = text.splitlines()
    assert lines[5] == f"NO   {QUESTIONS['items']} (p 0.001, Holm 0.002)" and lines[6] == "     wrong"
    assert lines[-3].split() == ["coverage", "0.2500", "m"]
    assert lines[-2].split() == ["label", "shift", "0.5000", "0.2500..0.7500"]
    document = found.to_dict()
    assert {name: document[name] for name in ("data", "summary", "uniform", "alpha", "draws", "warnings")} == {
        "data": "mine", "summary": "Summary.", "uniform": False, "alpha": 0.05, "draws": 99, "warnings": ["W"]
    }  # fmt: skip
    assert document["answers"][0]["verdict"] == NO and document["facts"][1]["low"] == 0.25
    assert Audit("", "", tuple(answers[1:]), (), 99).uniform is True
    assert Audit("", "", tuple(answers[2:]), (), 99).uniform is None


def test_an_audit_answers_every_question(data):
    found = dubnb.audit(data, times=times_of(data), item_groups=np.arange(20) % 2, n_draws=N_DRAWS, seed=2)
    names = [*uniformity.STATISTICS, "groups", "order", "overlap", "leakage", "users", "activity", "time", "absent"]
    assert [answer.name for answer in found.answers] == names
    assert (found.data, found.n_draws, found.warnings) == ("thirty", N_DRAWS, ())
    parts = {part: data.triplets(part) for part in PARTS} | {
        part: data.triplets(part).take([]) for part in RANDOMIZED[1:]
    }
    for n, told in ((29, False), (30, True)):
        few = Partition(parts | {"S_t": data.triplets("S_t").take(slice(n))}, (30, 20))
        assert (answers(few)["items"].verdict != UNKNOWN) is told
    for bad in ({"n_draws": 98}, {"seed": -1}):
        with pytest.raises(InputError, match=f"{next(iter(bad))}="):
            dubnb.audit(data, **bad)
