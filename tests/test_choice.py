"""Paired comparisons on S_va against a brute-force bootstrap over users."""

import argparse

import numpy as np
import pytest

import dubnb
from dubnb import choice
from dubnb._check import InputError
from dubnb.methods import dub_x
from dubnb.metrics import auc

N_USERS, DRAWS = 150, 1500


def log(seed, gain=0.3):
    """(users, labels, scores of the incumbent, scores of a better candidate, a value per user of both)."""
    rng = np.random.default_rng(seed)
    users = np.sort(rng.integers(N_USERS, size=900))
    taste = rng.normal(size=900) + rng.normal(size=N_USERS)[users]
    labels = (taste + rng.normal(size=900) > 1).astype(np.float32)
    noise = rng.normal(size=900)
    first, second = taste + 2 * noise, (1 + gain) * taste + 2 * noise
    values = rng.random((N_USERS, 2)) * np.array([1.0, 1.1])
    return users, labels, np.round(first, 1), np.round(second, 1), values


def drawn(users, seed):
    """The pairs of users that are drawn with replacement, and these users."""
    who = np.random.default_rng([seed, 1]).integers(N_USERS, size=N_USERS)
    return np.concatenate([np.flatnonzero(users == u) for u in who]), who


def judged(users, labels, scores, values):
    return choice.auc_influence(scores, labels, users, N_USERS), choice.mean_influence(
        values, np.arange(N_USERS), N_USERS
    )


def test_differences_and_standard_errors_are_those_of_a_bootstrap():
    users, labels, first, second, values = log(0)
    old, new = judged(users, labels, first, values[:, 0]), judged(users, labels, second, values[:, 1])
    found, units = choice.compare_candidates(new, old), [each.standard_error() for each in old]
    draws = []
    for seed in range(DRAWS):
        at, who = drawn(users, seed)
        draws.append(
            [auc(scores[at], labels[at]) for scores in (first, second)] + [values[who, k].mean() for k in (0, 1)]
        )
    draws = np.array(draws)
    assert old[0].value == pytest.approx(auc(first, labels), abs=1e-12)
    np.testing.assert_allclose(units, draws[:, [0, 2]].std(axis=0), rtol=0.08)
    total = (draws[:, 1] - draws[:, 0]) / units[0] + (draws[:, 3] - draws[:, 2]) / units[1]
    assert found.standard_error == pytest.approx(total.std(), rel=0.08)
    assert found.difference == pytest.approx(total.mean(), abs=0.1)


def test_influences_are_derivatives_in_a_users_weight():
    users, labels, scores, _, values = log(1)
    weights = np.random.default_rng(2).uniform(0.5, 2, len(users))
    found = choice.auc_influence(scores, labels, users, N_USERS, weights)
    mean = choice.mean_influence(values[:, 0], np.arange(N_USERS), N_USERS, weights[:N_USERS])
    for u in (0, 3, 77):
        moved = [
            choice.auc_influence(scores, labels, users, N_USERS, weights * (1 + s * 1e-5 * (users == u)))
            for s in (1, -1)
        ]
        assert (moved[0].value - moved[1].value) / 2e-5 == pytest.approx(found.of_users[u], abs=1e-8)
        own = [weights[:N_USERS] * (1 + s * 1e-5 * (np.arange(N_USERS) == u)) for s in (1, -1)]
        ends = [np.average(values[:, 0], weights=each) for each in own]
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(mean.of_users[u], abs=1e-8)


def test_a_better_candidate_replaces_and_an_equal_or_worse_one_does_not():
    users, labels, first, second, values = log(3, gain=1.0)
    old, new = judged(users, labels, first, values[:, 0]), judged(users, labels, second, values[:, 0])
    assert choice.compare_candidates(new, old).replaces
    assert not choice.compare_candidates(old, new).replaces
    same = choice.compare_candidates(old, old)
    assert same == (0.0, 0.0)
    assert not same.replaces


def test_a_difference_within_its_error_does_not_replace():
    """Candidates that differ by noise alone replace about as often as a normal number exceeds 1: 16 %."""
    rng = np.random.default_rng(4)
    users, labels, first, _, _ = log(5)
    other = (choice.auc_influence(first + rng.normal(size=900), labels, users, N_USERS) for _ in range(200))
    again = (choice.auc_influence(first + rng.normal(size=900), labels, users, N_USERS) for _ in range(200))
    share = np.mean([choice.compare_candidates([new], [old]).replaces for new, old in zip(other, again, strict=True)])
    assert 0.05 < share < 0.3


def test_weights_of_metrics_multiply_their_differences():
    users, labels, first, second, values = log(6)
    old, new = judged(users, labels, first, values[:, 0]), judged(users, labels, second, values[:, 1])
    alone = [choice.compare_candidates([one], [other]) for one, other in zip(new, old, strict=True)]
    both = choice.compare_candidates(new, old, (1.0, 0.5))
    assert both.difference == pytest.approx(alone[0].difference + alone[1].difference / 2)
    assert choice.compare_candidates(new, old, (1.0, 0.0)) == pytest.approx(alone[0])
    assert choice.compare_candidates(new, old, (0.0, 2.0)).standard_error == pytest.approx(2 * alone[1].standard_error)


def test_a_fits_comparisons_are_listed_once_for_all_folds():
    numbers = {"choice_difference": 1.5, "choice_error": 0.25}
    rows = [{"stage": "fold 1, p 1"} | numbers, {"stage": "refine"}, {"stage": "fold 2, p 1"} | numbers]
    first = {"stage": "fold 1, first", "choice_difference": np.nan, "choice_error": np.nan}
    (found,) = choice.tried_settings([first, *rows, {"stage": "M_t", "choice_difference": None, "choice_error": None}])
    assert found == ("p 1", 1.5, 0.25) and str(found) == "p 1: +1.50 +- 0.25"


def test_the_runner_up_is_the_closest_of_the_other_settings():
    def row(stage, lead, error=0.5):
        return {"stage": stage, "lead_of_choice": lead, "lead_error": error}

    rows = [row("fold 1, first", 2.0), row("fold 1, second", 0.0, 0.0), row("fold 1, third", -0.25), {"stage": "head"}]
    found = choice.chosen_settings([*rows, row("fold 2, third", -0.25), row("refine", np.nan)])
    assert found == ("second", 3, "third", -0.25, 0.5)
    assert choice.chosen_settings([{"stage": "refine"}]) is None
    assert choice.chosen_settings([row("first", 0.0, 0.0)]) is None  # nothing else was tried


def test_one_label_alone_is_refused():
    with pytest.raises(InputError, match="one label only"):
        choice.auc_influence(np.arange(3.0), np.zeros(3), np.arange(3), 3)


# ---- benches that select -------------------------------------------------------------------------------------------


def with_other_labels(data):
    """The log with labels and grades of S_te in another order."""
    S_te = data.triplets("S_te")
    order = np.random.default_rng(0).permutation(len(S_te.users))
    return data.replace(S_te=S_te._replace(labels=S_te.labels[order], grades=S_te.grades[order]))


def test_a_bench_that_searches_selects_the_same_with_any_S_te(monkeypatch, tmp_path):
    defaults = pytest.importorskip("bench.defaults")
    data = dubnb.load_dataset("simulated", seed=0)
    found = []
    for number, log in enumerate((data, with_other_labels(data))):
        monkeypatch.setattr(defaults, "load", lambda *_, log=log: log)
        monkeypatch.setattr(defaults, "neighbours", lambda *_: [{"epochs": 2, "rank": k} for k in (1, 2, 4)])
        args = argparse.Namespace(
            out=tmp_path / f"{number}.json",
            logs=["simulated"],
            seeds=1,
            systems=["base"],
            backbone="mf",
            tuned=True,
            coat=None,
        )
        (kept,) = defaults.run(args).values()
        found.append(kept["tuned"]["va_auc"])
    assert found[0] == found[1]


def test_the_bench_of_rules_sees_no_S_te(monkeypatch):
    rules = pytest.importorskip("bench.choice")
    monkeypatch.setattr(dub_x, "FOLDS", 2)
    monkeypatch.setattr(rules, "GAMMAS", (0.03,))
    monkeypatch.setattr(rules, "POWERS", ((1.0, 0.75),))
    monkeypatch.setattr(rules, "SMALLER_CUTOFFS", (0.2,))
    data = dubnb.load_dataset("simulated", seed=0)
    found = []
    for log in (data, with_other_labels(data)):
        monkeypatch.setattr(dubnb, "load_dataset", lambda *_, log=log, **__: log)
        tables = rules.candidates_table(["small"], [0]), rules.sweeps_table(["small"], [0])
        tables += (rules.blends_table(["small"], [0], None),)
        tables += (rules.candidates_table(["small"], [0], rules.small_power), rules.judged_cutoffs("small", 0))
        tables += (rules.judged_heads("small", 0),)
        found.append((rules.one_log("small", 0), *tables))
    assert found[0] == found[1]
    assert "| spread 1.4 |" in found[0][1] and "| small |" in found[0][2]
    assert found[0][3].count("| small (0 to 0) |") == 3
    assert found[0][4].count("| p 0.75 |") == 1 and list(found[0][5]) == ["0.2"]
    assert "| small (0) | 0.2 | " in rules.cutoffs_table({"small 0": found[0][5]})
    assert rules.heads_table({"small 0": found[0][6]}).count("| as dub-x") == 2
    for action in ("run", "candidates", "power", "sweeps", "blends", "cutoffs", "heads"):
        monkeypatch.setattr("sys.argv", ["choice", action, "--first", "999", "--seeds", "2"])
        with pytest.raises(SystemExit, match="final tables"):
            rules.main()
