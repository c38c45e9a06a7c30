"""The daily audit: e-values, their mixture, days, and alarms."""

import json

import numpy as np
import pandas as pd
import pytest

import dubnb
from bench import coverage_audit
from dubnb import Partition
from dubnb._random import generator
from dubnb.cli import main
from dubnb.data.eligibility import Eligibility
from dubnb.data.pattern import Pattern
from dubnb.theory import daily, uniformity
from tests.log_tools import refused


def test_capital_is_kept_when_bettors_start_and_give_theirs_to_younger_ones():
    bettors = daily.Bettors(log_of(np.random.default_rng(0)), Pattern.empty(6), False)
    for day in range(400):
        bettors.start(day)
        assert bettors.evidence() == pytest.approx(1)
        ages = day + 1 - np.array(bettors.days)
        assert ages[-1] == 1 and ages[0] == day + 1 and len(ages) < 3 + 2 * np.log2(day + 1)


def log_of(rng, propensities=False, rules=False):
    """Six users, twelve items, a biased log, and randomized pairs with times; some pairs break the rules."""
    shape = 6, 12
    order = rng.permutation(72)
    users, items = np.divmod(order[:40], 12)
    p = rng.uniform(0.02, 0.1, 40) if propensities else None
    S_t = (users, items, rng.integers(0, 2, 40), np.ones(40), None, p, rng.integers(0, 9, 40) * 1.0)
    other = np.divmod(order[30:50], 12)
    given = None
    if rules:
        windows = rng.integers(0, 12, 20), rng.uniform(-2, 4, 20), rng.uniform(4, 11, 20)
        exclusions = *np.divmod(rng.permutation(72)[:20], 12), rng.uniform(-1, 5, 20), rng.uniform(5, 9, 20)
        given = Eligibility.of(shape, windows, exclusions, rng.integers(0, 2, 12), ("a", "b"))
    none = ([], [], [])
    return Partition({"S_c": (*other, np.ones(20)), "S_t": S_t, "S_va": none, "S_te": none}, shape, eligibility=given)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rules", [False, True])
def test_bets_on_a_uniform_choice_are_ratios_to_the_mean_over_what_could_be_shown(rules):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        data = log_of(rng, rules=rules)
        had, h = uniformity.logged(data), rng.exponential(size=(12, 3))
        rows = data.random.take(np.argsort(data.random.times, kind="stable"))
        found = daily.Impressions.of(data, rows, had, False).outcomes(10, 40, h)
        expected = np.zeros(12)
        for j in range(10, 40):
            user, item, time = rows.users[j], rows.items[j], rows.times[j]
            closed = set(had.items[had.indptr[user] : had.indptr[user + 1]])
            closed |= {rows.items[k] for k in range(j) if rows.users[k] == user}
            could = set(range(12))
            if rules:
                every = np.arange(12)
                fine = data.eligibility.eligible(np.full(12, user), every, np.full(12, time))
                could = set(every[fine & (data.eligibility.strata == data.eligibility.strata[item])])
            told, could = item in could, sorted(could - closed)
            ratio = h[item] / h[could].mean(axis=0) if len(could) > 1 and told else np.ones(3)
            np.testing.assert_allclose(found[0][j - 10], ratio)
            expected[could] += 1 / len(could) if told and could else 0
        np.testing.assert_allclose(found[2], expected, atol=1e-9)
        assert (found[1] == 1).all()


@pytest.mark.parametrize(
    ("times", "days"),
    [
        (np.array([0.2, 1.9, 30.0]), [0, 1, 30]),
        (np.array([1_700_000_000.0, 1_700_086_400.0]), [19675, 19676]),
        (np.array([1_700_000_000_000.0, 1_700_086_400_000.0]), [19675, 19676]),
        (np.array([1.7e18, 1.7e18 + 86_400e9]), [19675, 19676]),
    ],
)
def test_days_are_those_of_the_unit(times, days):
    assert daily.day_numbers(times).tolist() == days


@pytest.mark.parametrize("time", [20_250_131_093_000.0, 202_501_310_930.0, 13_200_000_000_000_000.0])
def test_numbers_that_are_no_time_since_1970_are_refused(time):
    """Dates as digits and microseconds since 1601 have the size of a unit since 1970, and would make few long days."""
    with pytest.raises(dubnb.InputError, match="are neither days nor times since 1970: give dates"):
        daily.day_numbers(np.array([time, time + 1]))


def test_large_evidence_is_short():
    days = tuple(daily.Day(str(k), 20, e, e, "item 3 is shown 2.00 times as often") for k, e in enumerate((1.5, 1e200)))
    text = daily.DailyAudit("log", days, "a uniform choice of items").text()
    assert "Evidence 1.0e+200 today, 1.0e+200 at most" in text and max(map(len, text.splitlines())) < 100


def test_small_days_are_joined():
    numbers = np.repeat([1, 2, 3, 4, 6, 7], [12, 4, 3, 5, 30, 2])
    assert daily._days(numbers) == [(1, 1), (2, 4), (6, 6)]


def test_bets_on_propensities_have_mean_1():
    """All sequences of two distinct items out of four, by their probabilities, with any weights of the items."""
    p, h = np.array([0.4, 0.3, 0.2, 0.1]), np.array([[1, 3.0], [1, 0.5], [1, 0], [1, 2.0]])
    total, of_w, none = np.zeros((2, 2)), np.zeros(2), ([], [], [])
    for first in range(4):
        for second in range(4):
            if first != second:
                S_t = ([0, 0], [first, second], [0, 1], [1, 1], None, p[[first, second]], [1.0, 2.0])
                parts = {"S_c": ([1], [0], [1]), "S_t": S_t, "S_va": none, "S_te": none}
                data = Partition(parts, (2, 4))
                rows = data.random.take(np.argsort(data.random.times))
                x, w, _ = daily.Impressions.of(data, rows, data.logged, True).outcomes(0, 2, h)
                chance = p[first] * p[second] / (1 - p[first])
                total, of_w = total + chance * x, of_w + chance * w
    np.testing.assert_allclose(total, 1, rtol=1e-5)
    np.testing.assert_allclose(of_w, 1, rtol=1e-5)


def test_impressions_of_the_biased_log_count_as_none_with_propensities():
    none = ([], [], [])
    S_t = ([0, 0], [0, 1], [0, 1], [1, 1], None, [0.5, 0.25], [1.0, 2.0])
    data = Partition({"S_c": ([0, 1], [0, 0], [1, 1]), "S_t": S_t, "S_va": none, "S_te": none}, (2, 4))
    x, w, _ = daily.Impressions.of(data, data.random, uniformity.logged(data), True).outcomes(0, 2, np.ones((4, 1)))
    np.testing.assert_allclose(w, [0, 1 / (0.25 / 0.5 * 3)])
    np.testing.assert_allclose(x[:, 0], w)


def dated(n=3_000, days=30, favoured=1.0, seed=0):
    """Frames of a log over some days; from day 10 on, items 0 to 9 are shown `favoured` times as often."""
    rng = np.random.default_rng(seed)
    day = np.sort(rng.integers(0, days, n))
    weights = np.where((np.arange(40) < 10) & (day[:, None] >= 10), favoured, 1.0)
    weights /= weights.sum(axis=1, keepdims=True)
    items = (weights.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    random = pd.DataFrame({"user": rng.integers(0, 500, n), "item": items, "label": rng.integers(0, 2, n)})
    random["time"] = pd.Timestamp("2026-03-01") + pd.to_timedelta(day, unit="D")
    biased = pd.DataFrame({"user": rng.integers(0, 500, n), "item": rng.integers(0, 40, n), "label": 1})
    return biased.assign(time=pd.Timestamp("2026-03-01")), random


@pytest.mark.needs_jit
@pytest.mark.filterwarnings("ignore")
def test_a_break_raises_an_alarm_and_uniform_traffic_does_not(tmp_path, capsys):
    fine = dubnb.audit(Partition.from_frames(*dated(), timestamp="time"), by="day")
    assert fine.uniform and fine.alarm is None and "No alarm in 30 days" in fine.text()
    broken = dubnb.audit(Partition.from_frames(*dated(favoured=2.5), timestamp="time"), by="day")
    assert not broken.uniform and "2026-03-11" <= broken.alarm.day <= "2026-03-30"
    assert broken.text().splitlines()[2].startswith(f"ALARM on {broken.alarm.day}: what was shown does not fit")
    assert "items 0 to 3 are shown" in broken.alarm.cause or "items 4 to 7 are shown" in broken.alarm.cause
    assert " since 2026-03-" in broken.alarm.cause and broken.alarm.cause in broken.text()
    paths = [tmp_path / name for name in ("b.csv", "r.csv")]
    for frame, path in zip(dated(favoured=2.5), paths, strict=True):
        frame.to_csv(path, index=False)
    words = ["audit", "--biased", str(paths[0]), "--random", str(paths[1]), "--timestamp", "time", "--by", "day"]
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["alarm"] == broken.alarm.day and len(printed["days"]) == 30
    assert main(words) == 0 and "ALARM" in capsys.readouterr().out
    for more, said in ((["--draws", "99"], "leave --out and --draws out"), (["--by", "week"], "choose one of day")):
        assert main([*words, *more]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


@pytest.mark.needs_jit
def test_wrong_propensities_raise_an_alarm():
    data = coverage_audit.daily_log("epsilon-greedy, logged", np.random.default_rng(0))
    found = dubnb.audit(data, by="day")
    assert found.about == "the logged propensities" and found.uniform
    S_t = data.triplets("S_t")
    assert not dubnb.audit(data.replace(S_t=S_t._replace(propensities=S_t.propensities / 2)), by="day").uniform
    too_large = data.replace(S_t=S_t._replace(propensities=np.sqrt(S_t.propensities)))
    missed = dubnb.audit(too_large, by="day")
    assert missed.uniform and "Propensities that are all too large raise no alarm here" in missed.text()
    assert not dubnb.audit(too_large, n_draws=99).uniform  # which is where the text sends the reader


@pytest.mark.filterwarnings("ignore")
def test_a_daily_audit_needs_times_and_impressions():
    biased, random = dated(200)
    plain = Partition.from_frames(biased, random)
    refused("a daily audit needs times: name their column with timestamp=", dubnb.audit, plain, by="day")
    timed = Partition.from_frames(biased, random, timestamp="time")
    refused("by='week' is unknown", dubnb.audit, timed, by="week")
    refused("by='day' takes neither times= nor item_groups=", dubnb.audit, timed, by="day", item_groups=[1])
    clicks = Partition.from_frames(biased, random.assign(label=1), timestamp="time")
    refused("holds positives only", dubnb.audit, clicks, by="day")
    few = Partition.from_frames(biased, random[:8], timestamp="time")
    refused("a daily audit needs 10", dubnb.audit, few, by="day")


@pytest.mark.parametrize("design", [coverage_audit.MOVING, coverage_audit.GROWING])
def test_right_propensities_that_change_over_time_raise_no_alarm(design):
    """Earlier propensities are then no longer the chances of the items that a user has seen."""
    found = dubnb.audit(coverage_audit.daily_log(design, generator(0, "coverage-daily", design)), by="day")
    assert found.uniform and max(day.evidence for day in found.days) < 10
