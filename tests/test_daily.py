"""The daily audit: e-values, their mixture, days, and alarms."""

import json

import numpy as np
import pandas as pd
import pytest

import dubnb
from bench import coverage_audit
from dubnb import Partition
from dubnb.cli import main
from dubnb.theory import daily
from tests.log_tools import refused


def test_e_values_have_mean_1_over_uniform_p_values():
    log_p = np.linspace(np.log(1e-12), 0, 20_001)
    values = np.array([daily.e_value(float(np.exp(each))) for each in log_p])
    integral = np.trapezoid(values * np.exp(log_p), log_p)
    assert integral == pytest.approx(1 + 1 / np.log(1e-12), abs=0.01) and (np.diff(values) < 0).all()
    assert daily.e_value(1.0) == 0.5 and daily.e_value(0.9999) == pytest.approx(0.5, abs=1e-3)
    expected = (1 - 0.01 + 0.01 * np.log(0.01)) / (0.01 * np.log(0.01) ** 2)
    assert daily.e_value(0.01) == pytest.approx(expected)


def test_evidence_is_the_mixture_over_the_day_of_the_break():
    rng, evidence = np.random.default_rng(0), daily.Evidence()
    e = rng.exponential(size=30)
    for t in range(1, 31):
        started = sum(np.prod(e[s - 1 : t]) / (s * (s + 1)) for s in range(1, t + 1))
        later = 1 - sum(1 / (s * (s + 1)) for s in range(1, t + 1))
        assert evidence.add(e[t - 1]) == pytest.approx(started + later)


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


def test_small_days_are_joined():
    numbers = np.repeat([1, 2, 3, 4, 6, 7], [12, 4, 3, 5, 30, 2])
    assert daily._days(numbers) == [(1, 1), (2, 4), (6, 6)]


def test_bets_on_weights_of_new_pairs_have_mean_1():
    """All sequences of two distinct items out of four, by their probabilities."""
    p, total = np.array([0.4, 0.3, 0.2, 0.1]), np.zeros(2)
    none = ([], [], [])
    for first in range(4):
        for second in range(4):
            if first != second:
                S_t = ([0, 0], [first, second], [0, 1], [1, 1], None, p[[first, second]], [1.0, 2.0])
                parts = {"S_c": ([1], [0], [1]), "S_t": S_t, "S_va": none, "S_te": none}
                data = Partition(parts, (2, 4))
                w = daily._weights(data, data.logged)[np.argsort(data.random.times)]
                total += p[first] * p[second] / (1 - p[first]) * w
    np.testing.assert_allclose(total, 1, rtol=1e-5)


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
    assert found.about == "the logged propensities" and found.uniform and found.days[0].p is None
    S_t = data.triplets("S_t")
    assert not dubnb.audit(data.replace(S_t=S_t._replace(propensities=S_t.propensities / 2)), by="day").uniform


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
