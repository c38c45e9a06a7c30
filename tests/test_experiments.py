"""The paper's experiments: systems, budgets, derived data, findings from known fits, real runs read from the ledger."""

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import time
import types
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

import dubnb
from dubnb import metrics, stats
from dubnb._check import InputError
from dubnb._random import generator
from dubnb.calibration import Calibration
from dubnb.data.partition import Partition, Triplets
from dubnb.evaluation import JudgedUsers, evaluate
from dubnb.experiments import (
    budgets,
    document,
    estimate,
    layout,
    measures,
    paper,
    reproduce,
    rq1,
    rq2,
    rq3,
    rq4,
    rq5,
    words,
)
from dubnb.experiments import study as studies
from dubnb.experiments.reproduce import EXPERIMENTS, Order
from dubnb.experiments.study import WHOLE, Case, Design, Judged, Study, Winner
from dubnb.experiments.systems import BASELINES, GROUPS, PAPER, Choice, System
from dubnb.methods import METHODS
from dubnb.ranking import top_k
from dubnb.report import page
from dubnb.sweeps.engine import Resources
from dubnb.sweeps.ledger import Ledger
from tests.test_page import ATTACK

FILES = ("results.csv", "results.md", "report.html")
SMOKE = budgets.BUDGETS["smoke"]
EVERY = Choice()
QUIET = Resources(quiet=True)


def tiny_log(n_users=60, n_items=30, name="tiny", graded=False):
    """A log with feedback in every part; odd users like odd items."""
    rng = generator(0, "test-experiments")
    pairs = rng.permutation(n_users * n_items)[: n_users * n_items // 2]
    users, items = np.divmod(pairs, n_items)
    labels = (rng.random(len(pairs)) < np.where(users % 2 == items % 2, 0.6, 0.1)).astype(float)
    grades = np.where(labels > 0, 1.0, rng.integers(0, 3, len(pairs)) / 4) if graded else None
    cuts = np.split(np.arange(len(pairs)), (len(pairs) * np.array([0.5, 0.65, 0.8])).astype(int))
    every = Triplets(users, items, labels, np.ones(len(pairs)), grades)
    parts = dict(zip(("S_c", "S_t", "S_va", "S_te"), (every.take(cut) for cut in cuts), strict=True))
    return Partition(parts, (n_users, n_items), name=name)


@pytest.fixture(scope="module")
def data():
    return tiny_log()


@pytest.fixture(scope="module")
def graded():
    return tiny_log(graded=True)


# ---- systems and budgets -------------------------------------------------------------------------------------------


def test_the_papers_systems_come_first_then_ours_where_they_run(data, graded):
    ours = ["bridge exact", "dub exact", "dub-x binary", "dub-x graded"]
    paper_s = ["base", "unif", "combine", "ips", "cause", "bridge", "autodebias", "dub"]
    baselines = list(GROUPS[BASELINES])
    assert [s.name for s in Choice(backbones=["mf"]).systems(graded)] == paper_s + ours + baselines
    assert [s.name for s in Choice(backbones=["mf"]).systems(data)] == paper_s + ours[:3] + baselines
    of_ncf = [s for s in EVERY.systems(graded) if s.backbone == "ncf" and not s.is_baseline]
    assert [s.name for s in of_ncf] == [*paper_s, *ours[2:]]  # exact solvers are mf's
    assert [s.name for s in Choice(["dub", "beyond"], ["mf"]).systems(data)] == ["dub", *ours[:3]]
    assert {s.backbone for s in EVERY.systems(data, ["mf"]) if not s.is_baseline} == {"mf"}
    assert [s.name for s in EVERY.systems(graded) if s.reads_grades(graded)] == ["dub-x graded"] * 2  # mf's, ncf's
    fixed = {s.name: dict(s.fixed) for s in EVERY.systems(graded) if s.fixed}
    assert fixed["dub exact"] == {"solver": "exact"} and fixed["dub-x binary"] == {"targets": "binary"}


def test_every_registered_baseline_is_a_system():
    assert list(GROUPS[BASELINES]) == [
        name for name, method in METHODS.items() if getattr(method, "is_baseline", False)
    ]


@pytest.mark.parametrize(
    "choice, said",
    [
        (Choice(["dbu"]), "did you mean 'dub'"),
        (Choice([]), "no system is named"),
        (Choice(backbones=["mlp"]), "backbone='mlp'"),
    ],
)
def test_unknown_systems_are_refused(choice, said):
    with pytest.raises(InputError, match=said):
        choice.checked()


@pytest.mark.parametrize("name", budgets.BUDGETS)
def test_every_system_gets_the_same_number_of_valid_candidates(name, graded):
    budget = budgets.BUDGETS[name]
    tuned = [s for s in EVERY.systems(graded) if not s.is_baseline]
    tuned += [v for s in tuned if s.name in ("dub", "dub-x binary") for v in rq2.variants(s, graded)]
    for system in tuned:
        axes, fixed, _ = budgets.search_of(system, budget, graded)
        assert budgets.n_points(axes) == budget.points, system
        assert not set(axes) & set(fixed) and set(dict(system.fixed)) <= set(fixed)
        for axis, values in axes.items():
            assert len(set(values)) == len(values)
            for value in values:
                system.model().set_params(**fixed, **{axis: value}).resolve(graded)


def test_a_search_goes_on_beyond_the_end_at_which_its_winner_lies():
    axes = {"lam": (1e-3, 1e-2, 1e-1), "rank": (25, 50, 100), "gamma": (0.5, 1.0, 2.0)}
    longer = budgets.extended(axes, {"lam": 1e-3, "rank": 100, "gamma": 1.0})
    assert longer == {"lam": (1e-3, 1e-2, 1e-1, 1e-4), "rank": (25, 50, 100, 200), "gamma": (0.5, 1.0, 2.0)}
    assert budgets.edges(longer, {"lam": 1e-3, "rank": 100, "gamma": 1.0}) == []
    assert budgets.extended(longer, {"lam": 1e-4, "rank": 25, "gamma": 1.0})["lam"][-1] == pytest.approx(1e-5)
    assert budgets.extended(axes, {"lam": 1e-2, "rank": 50, "gamma": 1.0}) == axes
    assert isinstance(longer["rank"][-1], int)


def test_a_small_search_lies_around_the_defaults_for_the_log(data):
    base = System("base", "base", "mf")
    settled = base.model().resolve(data)
    axes, fixed, _ = budgets.search_of(base, budgets.BUDGETS["quick"], data)
    assert axes["lam"] == pytest.approx((settled.lam / 3, settled.lam, settled.lam * 3), rel=1e-2)
    assert axes["rank"] == (settled.rank // 2, settled.rank, settled.rank * 2) and fixed == {}
    axes, fixed, _ = budgets.search_of(base, SMOKE, data)
    assert list(axes) == ["lam"] and fixed == {"epochs": round(0.04 * settled.epochs)}


def test_the_full_budget_holds_the_papers_grid(data):
    for name in ("base", "unif", "combine", "ips", "cause", "bridge", "dub"):
        axes, *_ = budgets.search_of(System(name, name, "mf"), budgets.BUDGETS["full"], data)
        assert axes["rank"] == (50, 100, 200)
        assert set(axes["lam"]) >= {1e-5, 1e-4, 1e-3, 1e-2, 1e-1}
    assert axes["gamma"] == (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


def test_without_term_d_gamma_is_not_searched(data):
    without = System("dub", "dub", "mf", (("terms", "ace"),))
    for budget in budgets.BUDGETS.values():
        axes, *_ = budgets.search_of(without, budget, data)
        assert "gamma" not in axes and budgets.n_points(axes) == budget.points
    assert len(axes["lam"]) == 25 and min(axes["lam"]) == 1e-5 and max(axes["lam"]) == 0.1  # finer instead


def test_edges_are_told_from_the_inside():
    grid = {"lam": [1e-4, 1e-3, 1e-2], "gamma": [2.0, 1.0, 0.5], "rank": [10, 20]}
    assert budgets.edges(grid, {"lam": 1e-3, "gamma": 1.0, "rank": 10}) == []  # two values are no grid to be inside of
    assert budgets.edges(grid, {"lam": 1e-4, "gamma": 2.0, "rank": 20}) == [("lam", "low"), ("gamma", "high")]


def test_the_papers_numbers_stand_beside_its_own_split_only(data):
    assert paper.beside(data, paper.YAHOO_R3) == {}
    named = tiny_log(name="yahoo-r3")
    assert paper.beside(named, paper.YAHOO_R3) == {}  # another size
    named.n_users, named.n_items = 15_400, 1_000
    assert paper.beside(named, paper.YAHOO_R3) is paper.YAHOO_R3
    named.name = "yahoo-r3, split 1"  # what the loader calls another split
    assert paper.beside(named, paper.YAHOO_R3) == {}
    assert paper.YAHOO_R3["mf"]["dub"]["auc"] == 0.7578 and paper.YAHOO_R3["ncf"]["bridge"]["r@5"] == 0.0192
    for backbone in ("mf", "ncf"):
        assert set(paper.YAHOO_R3[backbone]) == set(GROUPS[PAPER]) <= set(METHODS)
        assert paper.YAHOO_R3_ABLATION[backbone]["dub without a and e"] == paper.YAHOO_R3[backbone]["bridge"]


# ---- derived data --------------------------------------------------------------------------------------------------


def keys(data, part):
    found = data.triplets(part)
    return set((found.users.astype(int) * data.n_items + found.items).tolist())


def test_rq4_draws_subsets_of_S_c_with_given_positives(data):
    size, how = rq4.subset_size(data)
    labels = data.triplets("S_c").labels
    positives, negatives = int(labels.sum()), int((1 - labels).sum())
    fits = [n for n in range(1, len(labels)) if 0.7 * n <= positives and 0.9 * n <= negatives]
    assert size == max(fits) and "largest" in how
    for percentage in rq4.PERCENTAGES:
        found = rq4.with_positives(data, size, percentage)
        assert len(found.triplets("S_c").users) == size
        assert found.triplets("S_c").labels.sum() == round(size * percentage / 100)
        assert keys(found, "S_c") <= keys(data, "S_c") and keys(found, "S_te") == keys(data, "S_te")
    with pytest.raises(InputError, match="rq4 needs"):
        rq4.with_positives(data, 10 * len(labels), 70)


def test_rq4_takes_the_papers_size_on_its_data():
    for name in ("yahoo-r3", "yahoo-r3, split 3"):
        assert rq4.subset_size(tiny_log(name=name)) == (135_000, "the paper's size")


def test_rq4_keeps_nested_parts_of_S_t(data):
    found = [rq4.with_less_S_t(data, percentage) for percentage in rq4.PERCENTAGES]
    n = len(data.triplets("S_t").users)
    assert [len(each.triplets("S_t").users) for each in found] == [round(n * p / 100) for p in rq4.PERCENTAGES]
    for smaller, larger in zip(found, [*found[1:], data], strict=True):
        assert keys(smaller, "S_t") < keys(larger, "S_t")
        assert keys(smaller, "S_c") == keys(data, "S_c")


def test_rq5_splits_S_c_5_2_3(data):
    found = rq5.general_split(data)
    n = len(data.triplets("S_c").users)
    parts = [keys(found, part) for part in ("S_c", "S_va", "S_te")]
    assert [len(part) for part in parts] == [n * 5 // 10, n * 7 // 10 - n * 5 // 10, n - n * 7 // 10]
    assert set.union(*parts) == keys(data, "S_c") and sum(map(len, parts)) == n
    assert keys(found, "S_t") == keys(data, "S_t")


def test_derived_data_keep_grades(graded):
    of_pair = {key: grade for key, grade in zip(_pair_keys(graded), graded.triplets("S_c").grades, strict=True)}
    for derived in (rq4.with_positives(graded, 100, 30), rq4.with_less_S_t(graded, 30), rq5.general_split(graded)):
        assert derived.graded
        assert [of_pair[key] for key in _pair_keys(derived)] == derived.triplets("S_c").grades.tolist()


def _pair_keys(data):
    S_c = data.triplets("S_c")
    return (S_c.users.astype(int) * data.n_items + S_c.items).tolist()


def test_derived_data_keep_weights_and_propensities(data):
    S_c = data.triplets("S_c")
    places = np.arange(len(S_c.users))
    parts = {part: data.triplets(part) for part in ("S_t", "S_va", "S_te")}
    parts["S_c"] = S_c._replace(weights=1.0 + places)
    known = Partition(parts, (data.n_users, data.n_items), propensities=(1 + places) / 1000)
    for derived in (rq4.with_positives(known, 100, 30), rq4.with_less_S_t(known, 30), rq5.general_split(known)):
        weights = derived.triplets("S_c").weights
        assert derived.propensities == pytest.approx(weights / 1000) and len(set(weights)) == len(weights)


# ---- findings ------------------------------------------------------------------------------------------------------


class Table:
    """A scorer whose scores are a table."""

    def __init__(self, scores):
        self.scores = scores

    def score_pairs(self, users, items):
        return self.scores[users, items]

    def score_rows(self, users):
        return self.scores[users]


@functools.cache  # a Partition is compared by identity
def known_fit(data, seed, skill):
    """What a system shows whose scores are the taste of `tiny_log` times `skill` plus noise."""
    noise = generator(seed, "run", skill).normal(size=(data.n_users, data.n_items))
    taste = (np.arange(data.n_users)[:, None] % 2) == (np.arange(data.n_items)[None, :] % 2)
    scores = (skill * taste + noise).astype(np.float32)
    result = evaluate(Table(scores), data, per_user=True)
    users = result["per_user"]["user"].to_numpy()
    excluded = np.zeros(scores.shape, dtype=bool)
    excluded[data.triplets("S_c").users, data.triplets("S_c").items] = True
    S_te = data.triplets("S_te")
    return Judged(
        seed,
        {name: result[name] for name in (*measures.names(), "personal") if name in result},
        users,
        {name: result["per_user"][name].to_numpy() for name in result["per_user"].columns[1:]},
        top_k(scores[users], 10, excluded[users]),
        own := scores[S_te.users, S_te.items],
        Calibration(1.0, -1.0)(own),
        np.clip(own, 0.0, 1.0),
        {"S_te": JudgedUsers.from_frame(result["judged_users"], data)},
        {name: result[name] for name in measures.names() if name in result},
    )


def known_study(module, data, skills, tmp_path, seeds=2, choice=EVERY):
    """The module's design as if every system had run: the better, the larger its skill (default 1)."""
    budget = SMOKE._replace(bootstraps=50, seeds=seeds)
    found = Study(module.design(data, budget, choice), budget, str(tmp_path))
    for case in found.design.cases:
        condition = found.design.conditions[case.condition]
        skill = skills.get(case.system.name, 1.0)
        found.judged[case] = [known_fit(condition, seed, skill) for seed in found.seeds]
        axes = {"lam": [1e-4, 1e-3, 1e-2]}
        found.winners[found.searched(case)] = Winner({}, {"lam": 1e-3}, axes, 3, 0.5)
    return found


def written(module, study):
    findings = module.findings(study)
    report = document.page(module, study, findings, "dubnb reproduce")
    return report, page.render(report), page.markdown(report), document.tidy(module, study, findings.rows)


def case_of(study, name, backbone="mf"):
    return next(c for c in study.design.cases if (c.system.name, c.system.backbone) == (name, backbone))


@pytest.mark.parametrize("module", EXPERIMENTS.values())
def test_every_report_is_made_from_complete_and_from_no_results(module, data, tmp_path):
    study = known_study(module, data, {"dub": 9.0}, tmp_path)
    report, html, markdown, frame = written(module, study)
    assert report.unfinished is None and report.answer and "UNFINISHED" not in html
    assert html.count("<svg") >= 3 and html.count("<figcaption>") == html.count("<svg")
    assert "| dub" in markdown and not re.search(r"\bnan\b", markdown)
    assert set(frame["metric"]) >= set(measures.on_S_te(study)) and frame["value"].notna().all()
    assert len(frame[frame["metric"] == "auc"]) == 2 * len(study.design.cases)
    empty = Study(study.design, study.budget, str(tmp_path))
    report, html, markdown, frame = written(module, empty)
    assert "0 of" in report.unfinished and not report.answer and len(frame) == 0
    assert html.index("UNFINISHED") < html.index("<section>") and "UNFINISHED" in markdown


@pytest.mark.parametrize("module", EXPERIMENTS.values())
def test_a_single_seed_and_a_failure_are_reported(module, data, tmp_path):
    study = known_study(module, data, {}, tmp_path, seeds=1)
    lost = next(case for case in study.design.cases if case.system.name != "dub")
    del study.judged[lost]
    study.failures[lost] = "diverged <b>"
    report, html, _, _ = written(module, study)
    assert report.unfinished is None and any("diverged" in warning for warning in report.warnings)
    assert "diverged &lt;b&gt;" in html


def test_rq1_names_the_best_of_the_paper_and_of_all(data, tmp_path):
    study = known_study(rq1, data, {"dub": 2.0, "bridge": 1.5, "dub-x binary": 9.0}, tmp_path)
    (answer,) = rq1.findings(study).answer  # one paragraph
    mf, ncf = answer.split(" With ncf, ")
    assert mf.startswith("With mf, among all systems dub-x binary has the best AUC (0.")
    assert "ahead of dub by 0." in mf and "; among the paper's systems dub has the best AUC (0." in mf
    assert "ahead of bridge by 0." in mf and mf.endswith("over users).")
    assert ncf.startswith("among all systems dub-x binary has the best AUC")
    only = known_study(rq1, data, {"dub": 5.0}, tmp_path, choice=Choice(["paper"], ["ncf"]))
    (said,) = rq1.findings(only).answer
    assert said.startswith("With ncf, among the paper's systems dub")


def test_two_systems_are_compared_over_users_and_from_five_seeds_on_over_seeds(data, tmp_path):
    study = known_study(rq1, data, {"dub": 5.0, "bridge": 2.0}, tmp_path, seeds=5, choice=Choice(["paper"], ["mf"]))
    first, second = case_of(study, "dub"), case_of(study, "bridge")
    pairs = {m: [[fit.metrics[m] for fit in study.judged[c]] for c in (first, second)] for m in ("auc", "ndcg")}
    per_user = [np.mean([fit.per_user["ndcg"] for fit in study.judged[c]], axis=0) for c in (first, second)]
    auc, ndcg = (measures.compare(study, first, second, m) for m in ("auc", "ndcg"))
    assert auc.difference == pytest.approx(np.mean(pairs["auc"][0]) - np.mean(pairs["auc"][1]))
    assert ndcg.users_p == pytest.approx(scipy_stats.ttest_rel(*per_user).pvalue)
    for metric, found in (("auc", auc), ("ndcg", ndcg)):
        assert found.seeds_p == pytest.approx(scipy_stats.ttest_ind(*pairs[metric], equal_var=True).pvalue, rel=1e-9)
    for case in (first, second):
        study.judged[case] = study.judged[case][:4]
    assert measures.compare(study, first, second, "auc").seeds_p is None


def test_rq1_corrects_all_comparisons_of_a_field_together(data, tmp_path):
    study = known_study(rq1, data, {"dub": 2.0, "bridge": 1.7}, tmp_path)
    tested = rq1._tested(study)
    for field in rq1.FIELDS:
        own = [(c.users_p, p) for (f, _, _), (c, p) in tested.items() if f == field]
        assert len(own) == 18  # two backbones, nine metrics
        assert [p for _, p in own] == pytest.approx(stats.holm([raw for raw, _ in own]))
        assert any(p > raw for raw, p in own)
    table = next(part for part in rq1.findings(study).sections[2].parts)
    assert [row[-1].value for row in table.rows] == pytest.approx([p for _, p in tested.values()])


def test_lost_candidates_and_winners_at_an_edge_are_reported(data, tmp_path):
    study = known_study(rq1, data, {}, tmp_path, choice=Choice(["paper"], ["mf"]))
    case = study.design.cases[0]
    study.winners[case] = study.winners[case]._replace(lost=("diverged", "killed"), point={"lam": 1e-2})
    said = layout.warnings_of(study, data)
    assert "2 of 3 candidates of base (mf) did not finish: diverged" in said
    assert "The best lam lies at the high end of its grid, so perhaps beyond it: base (mf)." in said
    (table,) = layout.winners_section(study).parts
    assert [row[4] for row in table.rows] == ["⚠ lam at the high end", *["inside"] * 7]


def test_models_that_rank_alike_are_marked(data, tmp_path):
    study = known_study(rq1, data, {}, tmp_path, choice=Choice(["paper"], ["mf"]))
    case = case_of(study, "cause")
    study.judged[case] = [fit._replace(metrics={**fit.metrics, "personal": 1e-5}) for fit in study.judged[case]]
    table = rq1.findings(study).sections[0].parts[0]
    assert {row[0].text: row[0].remark for row in table.rows if row[0].remark} == {"cause": layout.RANKS_ALIKE}
    assert any("every user gets the same ranking: cause (mf)." in said for said in layout.warnings_of(study, data))


def test_systems_that_read_grades_are_marked(graded, tmp_path):
    study = known_study(rq1, graded, {}, tmp_path, choice=Choice(["beyond"], ["mf"]))
    table = rq1.findings(study).sections[0].parts[0]
    assert {row[0].text: row[0].remark for row in table.rows if row[0].remark} == {"dub-x graded": layout.READS_GRADES}


def test_what_ranks_below_popularity_is_said(data, tmp_path):
    """With the systems that are registered as baselines, and with a made-up one where there are none yet."""
    study = known_study(rq1, data, {"unif": 0.0}, tmp_path, choice=Choice(["unif", "dub", "base"], ["mf"]))
    popularity = Case(System("popularity", "base", "mf", (), BASELINES))
    study.design.cases.append(popularity)
    study.judged[popularity] = [known_fit(data, seed, 0.5) for seed in study.seeds]
    said = [line for line in layout.warnings_of(study, data) if line.startswith("Below popularity")]
    level = measures.mean(study, popularity, "auc")
    assert said == [f"Below popularity, which ranks alike for everyone (AUC {level:.4f}): unif (mf)."]
    table = rq1.findings(study).sections[0].parts[0]
    assert [row[0].text for row in table.rows] == ["base", "unif", "dub", "popularity"]
    assert table.groups == {0: "the paper's systems", 3: "baselines"}
    assert "popularity" not in rq1.findings(study).answer[0].split("ahead of")[0]


def test_the_best_is_said_with_its_ties(data, tmp_path):
    study = known_study(rq1, data, {"dub": 5.0, "bridge": 5.0}, tmp_path)
    answer = rq1.findings(study).answer[0]  # equal skills: the same numbers
    assert "among the paper's systems bridge and dub share the best AUC (0." in answer


@pytest.mark.parametrize(
    "users_p, seeds_p, n_seeds, said",
    [
        (0.01, 0.02, 9, "significant over users (p 0.010) and over seeds (p 0.020)"),
        (0.01, 0.2, 9, "significant over users (p 0.010) but not over seeds (p 0.200)"),
        (0.1, 0.0002, 9, "significant over seeds (p <0.001) but not over users (p 0.100)"),
        (0.1, 0.2, 9, "significant neither over users (p 0.100) nor over seeds (p 0.200)"),
        (
            0.1,
            None,
            1,
            "not significant over users (p 0.100), not tested over seeds, as there is only one (5 are needed)",
        ),
        (0.01, None, 3, "significant over users (p 0.010), not tested over seeds, as there are only 3 (5 are needed)"),
    ],
)
def test_p_values_in_words(users_p, seeds_p, n_seeds, said):
    assert words.verdict(users_p, seeds_p, n_seeds) == said


def test_names_in_a_sentence():
    assert [words.listed(some) for some in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
    assert measures.top({"a": 0.70001, "b": 0.70004, "c": 0.6, "d": np.nan}) == ["a", "b"] and measures.top({}) == []


def test_rq1_marks_the_best_of_each_column(data, tmp_path):
    study = known_study(rq1, data, {"ips": 9.0}, tmp_path)
    table = rq1.findings(study).sections[0].parts[0]
    best = [row[0].text for row in table.rows if row[1].best]
    assert best == ["ips"] and all(sum(row[k].best for row in table.rows) >= 1 for k in range(1, 7))


def test_a_registered_metric_is_in_every_report(data, tmp_path, monkeypatch):
    """A metric of lists, less of which is better: its column, its best, its test, its row in results.csv."""
    clumsy = metrics.Metric(lambda hits, n, cut: 1.0 - hits[:, :1].mean(axis=1), "Miss@1", "lists", low_is_good=True)
    monkeypatch.setitem(metrics.METRICS, "miss", clumsy)
    known_fit.cache_clear()
    try:
        study = known_study(rq1, data, {"dub": 9.0}, tmp_path, choice=Choice(["base", "dub"], ["mf"]))
        report, _, markdown, frame = written(rq1, study)
    finally:
        known_fit.cache_clear()
    table = report.sections[0].parts[0]
    column = list(table.header).index("Miss@1")
    best = [row[0].text for row in table.rows if row[column].best]
    assert best == ["dub"] and "Miss@1" in markdown and "miss" in set(frame["metric"])
    assert any(row[1] == "Miss@1" and row[3] == "dub" for row in report.sections[2].parts[0].rows)


def test_rq1_prints_the_paper_beside_yahoo_r3(data, tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "beside", lambda data, tables: tables)
    _, html, markdown, _ = written(rq1, known_study(rq1, data, {}, tmp_path))
    assert html.count(">paper</button>") == 12 and "0.7578" in html and "Diamonds: the paper." in html
    assert "0.7578" in markdown


def test_rq2_measures_against_the_whole_bound(data, tmp_path):
    study = known_study(rq2, data, {"dub without d": 0.0, "dub": 3.0}, tmp_path)
    table = rq2.findings(study).sections[0].parts[0]
    rows = {row[0].text: row for row in table.rows}
    difference = rows["dub without d"][1].value - rows["dub"][1].value
    assert rows["dub without d"][1].spread == f"{difference:+.4f}" and rows["dub"][1].spread == ""
    tested = rq2._tested(study)
    assert [p for _, p in tested.values()] == pytest.approx(stats.holm([c.users_p for c, _ in tested.values()]))


def test_rq2_takes_apart_what_minimises_the_bound(graded):
    design = rq2.design(graded, SMOKE, Choice(["paper", "beyond"], ["mf"]))
    terms = {case.system.name: dict(case.system.fixed)["terms"] for case in design.cases}
    whole = {"": "acde", " without e": "acd", " without a and e": "cd", " without a": "cde", " without d": "ace"}
    whole[" without c"] = "ade"
    for name in ("dub", "dub exact"):
        assert {name + rest: kept for rest, kept in whole.items()}.items() <= terms.items()
    assert terms["dub-x binary"] == "acd" and terms["dub-x binary without a"] == "cd"
    assert len(terms) == 6 + 6 + 4 + 4 and not any("bridge" in name for name in terms)
    others = {case.system.name: dict(case.system.fixed) for case in design.cases}
    assert others["dub exact without d"]["solver"] == "exact"
    assert others["dub-x graded without d"]["targets"] == "graded"


def test_rq2_pretrains_every_variant_alike(graded):
    """dub starts from both logs where S_t is large and term a is kept: an ablation must not change that as well."""
    S_c, S_t = (len(graded.triplets(part).users) for part in ("S_c", "S_t"))
    assert S_t >= 0.03 * S_c and dubnb.DUB().resolve(graded).pretrain_terms == "ac"
    design = rq2.design(graded, SMOKE, Choice(["paper", "beyond"]))
    fixed = {case.system: dict(case.system.fixed) for case in design.cases if case.system.method == "dub"}
    assert len(fixed) == 6 + 6 + 6 and {own["pretrain_terms"] for own in fixed.values()} == {"c"}
    for system in fixed:
        assert system.model().resolve(graded).pretrain_terms == "c"
    others = [case.system for case in design.cases if case.system.method != "dub"]
    assert others and not any("pretrain_terms" in dict(system.fixed) for system in others)
    notes = {case.system.name: rq2._note_on(case.system) for case in design.cases if case.system.backbone == "mf"}
    assert "pre-trains M_c: on S_c alone in every variant" in notes["dub"]
    assert "dub is bridge" in notes["dub exact"] and "pre-trains" not in notes["dub exact"]  # its start is random rows


def test_rq2_says_what_falls_rises_and_stays():
    def found(difference):
        return measures.Comparison("auc", None, None, difference, None, 0.0, 0.0, 0.0)

    tested = {("mf", "dub", "without d"): (found(-0.02), 0.01), ("mf", "dub", "without c"): (found(0.01), 0.01)}
    tested |= {("mf", "dub", "without e"): (found(0.001), 0.5), ("mf", "dub", "without a"): (found(-0.001), 0.5)}
    tested |= {("ncf", "dub", "without e"): (found(0.001), 0.5)}
    assert rq2._answer(tested) == [
        "With mf, AUC of dub falls without d (-0.0200); it rises without c (+0.0100); "
        "it shows no significant change without e (+0.0010) and without a (-0.0010).",
        "With ncf, AUC of dub shows no significant change without e (+0.0010).",
    ]


def test_rq3_averages_the_seeds_that_have_a_number():
    popular = np.array([True, False])
    found = [rq3.distribution(popular, np.array([0, 1]), np.array(hits)) for hits in ([True, False], [False, False])]
    found.append(rq3.distribution(popular, np.array([0, 0]), np.array([True, True])))
    means = rq3._mean(found)
    assert means["popular"] == pytest.approx((2 / 3, 1.0, 1.5, 2 / 3))
    assert means["unpopular"] == pytest.approx((1 / 3, 0.0, 0.0, 0.0))


def test_rq3_counts_by_hand():
    popular = np.array([True, False, False, False, False])
    items, hits = np.array([0, 0, 1, 2]), np.array([True, False, True, False])
    assert rq3.distribution(popular, items, hits)["popular"] == (0.5, 0.5, 1.0, 0.5)
    found = rq3.distribution(popular, items, np.array([True, True, False, False]))
    assert found["popular"] == (0.5, 1.0, 2.0, 1.0) and found["unpopular"] == (0.5, 0.0, 0.0, 0.0)
    nothing = rq3.distribution(popular, items, np.zeros(4, bool))["popular"]
    assert np.isnan(nothing.hit) and nothing.rate == 0.0


def test_rq3_shows_both_readings_of_utility(data, tmp_path):
    """A system with few hits, but those on unpopular items, leads by one reading and not by the other."""
    use = {"a": rq3.Use(0.9, 0.5, 0.5, 0.01), "b": rq3.Use(0.1, 0.5, 5.0, 0.01)}
    few = {"popular": use["a"], "unpopular": use["b"]}
    many = {"popular": rq3.Use(0.5, 0.6, 1.2, 0.3), "unpopular": rq3.Use(0.5, 0.4, 0.8, 0.2)}
    answer = rq3._answer("mf", {"randomized": many, "few": few, "many": many})
    assert "few by utility (5.00), and of many by hits per 1,000 recommendations (200.0)" in answer[1]
    assert "do not agree" in answer[1]
    rarely = {"popular": rq3.Use(0.99, 0.5, 0.5, 0.01), "unpopular": rq3.Use(0.01, 0.5, 50.0, 0.5)}
    answer = rq3._answer("mf", {"randomized": many, "rarely": rarely, "many": many})
    assert "rarely by utility (50.00, on 1.0 % of its places)" in answer[1] and "readings agree" in answer[1]
    report, _, markdown, frame = written(rq3, known_study(rq3, data, {}, tmp_path, choice=Choice(["paper"])))
    assert "popular: hit rate" in markdown and {"popular rate", "unpopular utility"} <= set(frame["metric"])
    gallery, _ = report.sections[0].parts
    assert [figure.drawing.name for figure in gallery.figures] == ["rq3-mf-shares", "rq3-mf-utility", "rq3-mf-rates"]


def test_rq3_finds_hits_of_lists(data):
    """Brute force over users and ranks."""
    fit = known_fit(data, 0, 3.0)
    popular = rq3.popular_items(data)
    counts = np.bincount(data.triplets("S_c").items, minlength=data.n_items)
    assert popular.sum() == 6 and counts[popular].min() >= counts[~popular].max()
    S_te = data.triplets("S_te")
    wanted = {(u, i) for u, i, y in zip(*S_te[:3], strict=True) if y > 0}
    listed = [(u, i) for u, row in zip(fit.users, fit.lists, strict=True) for i in row if i >= 0]
    hits = [i for u, i in listed if (u, i) in wanted]
    found = rq3.of_lists(data, popular, fit)["popular"]
    assert found.recommended == pytest.approx(np.mean([popular[i] for _, i in listed]))
    assert found.hit == pytest.approx(np.mean([popular[i] for i in hits])) and len(hits) > 5
    assert found.rate == pytest.approx(np.sum([popular[i] for i in hits]) / np.sum([popular[i] for _, i in listed]))


def test_rq4_counts_who_leads(data, tmp_path):
    settings = "settings (factor, share and backbone)"
    three = Choice(["base", "ips", "dub"])
    study = known_study(rq4, data, {"dub": 9.0}, tmp_path, choice=three)
    assert rq4.findings(study).answer == [f"dub has the best AUC in all 16 {settings}."]
    study = known_study(rq4, data, {"ips": 9.0}, tmp_path, choice=three)
    assert rq4.findings(study).answer == [f"ips has the best AUC in all 16 {settings}, dub in none."]
    study = known_study(rq4, data, {"ips": 9.0, "dub": 9.0}, tmp_path, choice=three)
    assert rq4.findings(study).answer == [
        f"ips has the best AUC in all 16 {settings}, dub in 16; where two print alike, both count."
    ]


def test_rq4_leaves_lines_out_only_if_they_squeeze_all_others():
    lines = {"a": np.array([0.7, 0.72]), "b": np.array([0.71, 0.74]), "c": np.array([0.5, 0.6])}
    assert rq4.far_below(lines) == ["c"]
    assert rq4.far_below(lines | {"d": np.array([0.5, 0.5])}) == ["d", "c"]
    assert rq4.far_below(lines | {"c": np.array([0.5, 0.67])}) == []
    assert rq4.far_below({"a": lines["a"], "c": lines["c"]}) == []


def log_of(n_users, randomized, S_t):
    """Everyone in S_c; some users in the randomized log, fewer in S_t."""
    pairs = {"S_c": [(u, 0) for u in range(n_users)], "S_t": [(u, 1) for u in S_t]}
    pairs |= {"S_va": [(u, 2) for u in randomized], "S_te": []}
    columns = {part: np.array(own, dtype=int).reshape(-1, 2).T for part, own in pairs.items()}
    return Partition(
        {p: Triplets(*own, np.ones(own.shape[1]), np.ones(own.shape[1])) for p, own in columns.items()}, (n_users, 3)
    )


def test_rq5_orders_users_as_the_paper_does():
    papers = rq5.users_in_order(log_of(6, [0, 1, 2], [1]))  # as Yahoo! R3: the randomized log has the first ids
    assert papers.rows.tolist() == [0, 1, 2, 3, 4, 5] and papers.n_first == 3
    assert "as in the paper" in papers.how and "1 of them have feedback in S_t" in papers.how
    others = rq5.users_in_order(log_of(6, [1, 4], [4]))
    assert others.rows.tolist() == [1, 4, 0, 2, 3, 5] and others.n_first == 2 and "unlike in the paper" in others.how
    everyone = rq5.users_in_order(log_of(4, range(4), [2]))
    assert everyone.rows.tolist() == [2, 0, 1, 3] and everyone.n_first == 1 and everyone.first == "users of S_t"


def test_rq5_adds_up_the_hits_of_both_groups(data, tmp_path):
    study = known_study(rq5, data, {"dub": 4.0}, tmp_path, choice=Choice(["base", "dub"]))
    hits, order = rq5._hits(study, "mf"), rq5.users_in_order(data)
    fits = study.judged[case_of(study, "dub")]
    by_user = dict(zip(fits[0].users.tolist(), np.mean([fit.per_user["p@10"] for fit in fits], axis=0), strict=True))
    assert hits["dub"].tolist() == pytest.approx([by_user.get(user, 0.0) for user in range(data.n_users)])
    first = order.rows[: order.n_first]
    gain = hits["dub"][first].sum() - hits["base"][first].sum()
    assert f"changes by {gain:+.2f} over the {order.n_first} users of" in rq5.findings(study).answer[1]
    assert study.design.select == "ndcg" and dict(study.design.notes)["candidates"] == rq5.CANDIDATES


def test_the_ladder_tunes_on_one_log_and_compares_on_others(data, tmp_path):
    from bench import ladder

    logs = {WHOLE: data, "log 0": tiny_log(58), "log 1": tiny_log(56)}
    cases = [Case(System(name, name, "mf"), log) for name in ("base", "dub") for log in ("log 0", "log 1")]
    study = Study(Design(data, logs, cases), ladder.BUDGET, str(tmp_path))
    for case in cases:
        study.judged[case] = [known_fit(logs[case.condition], 0, 5.0 if case.system.name == "dub" else 0.0)]
        study.winners[study.searched(case)] = Winner({}, {"lam": 1e-2}, {"lam": [1e-4, 1e-3, 1e-2]}, 3, 0.5)
    assert {study.searched(case).condition for case in cases} == {WHOLE}
    auc = {case: study.judged[case][0].metrics["auc"] for case in cases}
    gains = np.array([auc[cases[2]] - auc[cases[0]], auc[cases[3]] - auc[cases[1]]])
    rows = ladder.record(study)
    assert rows["dub"]["auc"] == [auc[cases[2]], auc[cases[3]]] and rows["dub"]["ends"] == ["lam"]
    *_, base, dub = ladder.table(rows).splitlines()
    assert base.startswith("| base | lam 0.01 (edge) | 3 |") and "|  |" in base
    assert f"| {gains.mean():+.4f} ({gains.min():+.4f} to {gains.max():+.4f}) |" in dub
    alike = {"base": rows["base"] | {"personal": [1e-4, 1e-5], "ends": [], "reads_grades": True}}
    assert ladder.table(alike).endswith("| 0.000, alike for all |")
    assert "| base (reads grades) | lam 0.01 | 3 |" in ladder.table(alike)
    plain = {"mf here 0 dub (exact)": {"auc": 0.7}, "mf here 1 dub": {"auc": 0.5}}
    tuned = {"here": {"dub exact": {"auc": [0.75, 0.8]}, "base": {"auc": [0.6]}}}
    *_, only = ladder.over_defaults(tuned, plain).splitlines()
    assert only == "| dub exact | 0.7500 / 0.7000, +0.0500 |"  # on the logs that both have
    *_, only = ladder.over_defaults(tuned | {"there": {"base": {"auc": [0.6]}}}, plain).splitlines()
    assert only == "| dub exact | 0.7500 / 0.7000, +0.0500 |  |"  # a system that was not run there


def test_early_stopping_is_replayed_from_a_longer_run():
    """ncf_settings: what patience 5 keeps of a run with patience 10, and differences from base within logs."""
    from bench import ncf_settings

    va = [0.5, 0.7, *[0.6] * 5, 0.8, *[0.7] * 10]  # epoch 2, then 8: patience 5 never sees the second peak
    fit = {"va": va, "te": [0.6, 0.65, *[0.66] * 5, 0.64, *[0.9] * 10]}
    assert ncf_settings.outcome(fit, 5) == (2, 0.7, 0.65, 0.66)
    assert ncf_settings.outcome(fit, 10) == (8, 0.8, 0.64, 0.9)
    other = fit | {"te": [value - 0.01 for value in fit["te"]]}
    kept = {
        f"yahoo-like {seed} {name}": run
        for seed in (0, 1)
        for name, run in (("base: defaults", fit), ("ips: x", other))
    }
    *_, base, ips = ncf_settings.table(kept).splitlines()
    assert base == "| yahoo-like | base | defaults | 0.7000 | 0.6500 |  | 2 2 | 0.6400 |  | 8 8 | 0.9000 |"
    assert "| ips | x | 0.7000 | 0.6400 | -0.0100 ± 0.0000 | 2 2 | 0.6300 | -0.0100 ± 0.0000 | 8 8 |" in ips


def test_a_fit_has_ended_trained_if_its_best_epoch_comes_after_its_factors_have_grown():
    from bench import trained

    fit = {"kept": 60, "awake": 41, "epochs": 130, "cap": 500, "personal": 0.6, "auc": 0.77}
    others = ({"kept": 2}, {"awake": None}, {"personal": 1e-4})
    assert trained.is_trained(fit) and not any(trained.is_trained(fit | other) for other in others)
    kept = {"yahoo-like 0 dub exact: cutoff 0.2": fit | {"epochs": 500}, "yahoo-like 1 dub exact: cutoff 0.3": fit}
    kept["simulated 0 dub exact: cutoff 0.2"] = fit | {"kept": 2}
    *_, first, second = trained.table(kept).splitlines()
    assert first.startswith("| yahoo-like | dub exact | 2 | 2 | 60 to 60") and "| 1 | 0.7700 to" in first
    assert second.startswith("| simulated | dub exact | 1 | 0 | 2 to 2")


# ---- real runs, read from the ledger -------------------------------------------------------------------------------


BRIEF = SMOKE._replace(name="brief", bootstraps=50, epoch_share=0.02)


def trials(directory):
    """All trials of the ledger in a run's directory of work."""
    with contextlib.closing(Ledger(str(Path(directory) / studies.FITS))) as ledger:
        return ledger.rows()


def ran(module, data, directory, choice, seed=0, budget=BRIEF):
    """A study of the module's design that has really been run."""
    study = Study(module.design(data, budget, choice), budget, str(directory), seed, QUIET)
    directory.mkdir(exist_ok=True)
    study.run()
    assert study.finished and not study.failures
    return study


def searched(rows, study, case):
    """The rows of a case's candidates: those with its fixed parameters, on its axes."""
    winner = study.winners[study.searched(case)]
    fixed = dict(case.system.fixed) | {"backbone": case.system.backbone}
    own = [r for r in rows if r["params"]["seed"] == study.seed and fixed.items() <= r["params"].items()]
    return [
        r for r in own if r["method"] == case.system.method and all(r["params"][n] in v for n, v in winner.axes.items())
    ]


@pytest.fixture(scope="module")
def ablation(data, tmp_path_factory):
    """rq2's variants of dub on mf, run from seed 5 on."""
    directory = tmp_path_factory.mktemp("rq2")
    return ran(rq2, data, directory, Choice(["dub"], ["mf"]), seed=5), directory


@pytest.mark.needs_jit
def test_rq2_fits_every_variant_with_its_own_terms_and_search(ablation):
    study, directory = ablation
    rows = trials(directory)
    kept = {case: dict(case.system.fixed)["terms"] for case in study.design.cases}
    assert sorted(kept.values()) == ["acd", "acde", "ace", "ade", "cd", "cde"]
    for case, terms in kept.items():
        own = [row for row in rows if row["params"]["terms"] == terms]
        assert len(own) == 3 + 1  # three candidates; the winner's second seed (its first is a candidate)
        values = {row["params"]["lam"]: row["metrics"]["va_auc"] for row in own if row["params"]["seed"] == 5}
        winner = study.winners[case]
        assert set(values) == set(winner.axes["lam"]) and len(values) == 3
        assert winner.params["lam"] == max(values, key=values.get) == winner.point["lam"]
        assert winner.validation == max(values.values()) and winner.params["terms"] == terms
        for fit, seed in zip(study.judged[case], (5, 6), strict=True):
            (row,) = [r for r in own if r["params"]["seed"] == seed and r["params"]["lam"] == winner.point["lam"]]
            assert fit.seed == seed and fit.metrics["auc"] == row["metrics"]["auc"]
    assert len({tuple(fit.metrics["auc"] for fit in fits) for fits in study.judged.values()}) == 6  # all differ


@pytest.mark.needs_jit
def test_extended_searches_end_inside_or_after_so_many_extensions(data, tmp_path):
    budget = BRIEF._replace(extensions=2, seeds=1)
    said, cases = [], [Case(System(name, name, "mf")) for name in ("base", "unif", "dub")]
    study = Study(Design(data, {WHOLE: data}, cases), budget, str(tmp_path), resources=QUIET)
    study.run(said.append)
    rows, extended = trials(tmp_path), 0
    for case in cases:
        winner = study.winners[case]
        own = {row["params"]["lam"]: row["metrics"]["va_auc"] for row in rows if row["method"] == case.system.method}
        assert set(own) == set(winner.axes["lam"]) and winner.n_points == len(own) <= 3 + 2
        assert winner.point["lam"] in own and winner.validation == max(own.values())
        assert not budgets.edges(winner.axes, winner.point) or len(own) == 5
        extended += len(own) > 3
    assert extended and 1 <= sum("beyond an end" in line for line in said) <= 2


@pytest.mark.needs_jit
def test_seeds_begin_with_the_given_one(ablation):
    study, directory = ablation
    assert {row["params"]["seed"] for row in trials(directory)} == {5, 6}
    assert list(study.seeds) == [5, 6] and {row["params"]["monitor"] for row in trials(directory)} == {"auc"}


@pytest.mark.needs_jit
def test_what_is_compared_is_what_was_fitted(ablation, data):
    study, _ = ablation
    tested = rq2._tested(study)
    whole = case_of(study, "dub")
    assert len(tested) == 5
    for (_, _, variant), (comparison, _) in tested.items():
        case = case_of(study, f"dub {variant}")
        labels = data.triplets("S_te").labels
        own, all_terms = (np.mean([metrics.auc(fit.scores, labels) for fit in study.judged[c]]) for c in (case, whole))
        assert comparison.difference == pytest.approx(own - all_terms, abs=1e-12) and comparison.first == case


@pytest.mark.needs_jit
def test_fits_hold_what_the_model_shows(ablation, data):
    study, _ = ablation
    case = case_of(study, "dub")
    model = METHODS["dub"](**study.winners[case].params, seed=6).fit(data)
    fit = study.judged[case][1]
    assert fit.metrics["auc"] == model.evaluate(data)["auc"]
    items, _ = model.recommend(data.user_ids.values[fit.users], k=studies.LIST_LENGTH)
    S_te = data.triplets("S_te")
    assert np.array_equal(fit.probabilities, model.predict(S_te.users, S_te.items))  # ids are rows here
    own = METHODS["dub"](**study.winners[case].params, seed=6).set_params(calibrate=False).fit(data)
    assert np.array_equal(fit.uncalibrated, own.predict(S_te.users, S_te.items))
    assert (fit.lists == items).all() and (fit.per_user["ndcg"] >= 0).all() and "personal" in fit.metrics


def _listed(fit):
    """(user, item) of every place of a fit's lists."""
    return [(int(u), int(i)) for u, items in zip(fit.users, fit.lists, strict=True) for i in items if i >= 0]


def _pairs_of(log, part):
    return {(int(u), int(i)) for u, i in zip(log.triplets(part).users, log.triplets(part).items, strict=True)}


@pytest.mark.needs_jit
def test_rq5_selects_and_stops_on_ndcg(data, tmp_path):
    wider = BRIEF._replace(points=9)
    study = ran(rq5, data, tmp_path / "work", Choice(["base", "combine", "ips"]), budget=wider)
    rows, by_auc = trials(tmp_path / "work"), 0
    assert {row["params"]["monitor"] for row in rows} == {"ndcg"}
    general = study.design.conditions[WHOLE].fingerprint
    assert {row["data"] for row in rows} == {general} and general != data.fingerprint
    log = study.design.conditions[WHOLE]
    shown = {(user, item) for fit in study.judged[study.design.cases[0]] for user, item in _listed(fit)}
    assert not shown & _pairs_of(log, "S_c") and shown & _pairs_of(log, "S_va") and shown & _pairs_of(log, "S_t")
    for case in study.design.cases:
        own = searched(rows, study, case)
        assert len(own) == 9
        best = max(own, key=lambda row: row["metrics"]["va_ndcg"])
        assert study.winners[case].validation == best["metrics"]["va_ndcg"]
        by_auc += max(own, key=lambda row: row["metrics"]["va_auc"])["key"] == best["key"]
    assert by_auc < 3  # AUC would have chosen others


@pytest.mark.needs_jit
def test_rq4_searches_once_or_everywhere(data, tmp_path):
    budget, choice = BRIEF._replace(seeds=1), Choice(["base"], ["mf"])
    study = ran(rq4, data, tmp_path / "once", choice, budget=budget)
    rows, conditions = trials(tmp_path / "once"), 2 * len(rq4.PERCENTAGES)
    assert len(study.winners) == 1 and len(study.judged) == conditions
    assert {row["data"] for row in rows} == {log.fingerprint for log in study.design.conditions.values()}
    fitted = [row["params"] for row in rows if row["data"] != data.fingerprint]
    (winner,) = study.winners.values()
    assert len(fitted) == conditions and len(rows) == 3 + conditions
    assert all(params == winner.params | {"seed": 0, "hidden": None} for params in fitted)
    everywhere = Study(study.design, budget._replace(search_everywhere=True), str(tmp_path))
    assert [everywhere.searched(case) for case in everywhere.design.cases] == everywhere.design.cases


@pytest.mark.needs_jit
def test_a_system_that_fails_is_a_reason_not_a_crash(data, tmp_path):
    broken = System("broken", "base", "mf", (("lr", 1e30),))
    design = Design(data, {WHOLE: data}, [Case(broken), Case(System("base", "base", "mf"))])
    study = Study(design, BRIEF, str(tmp_path), resources=QUIET)
    study.run()
    assert study.finished and list(study.failures) == [Case(broken)] and len(study.judged) == 1
    said = layout.warnings_of(study, data)
    assert "broken (mf) has no result: no candidate finished" in said


class Timed:
    """Fits that took a known time."""

    def __init__(self, **seconds):
        self.seconds = seconds

    def __getitem__(self, trial):
        return types.SimpleNamespace(seconds=self.seconds[trial.method.name])


def test_experiments_say_beforehand_how_long_they_take(data, tmp_path, monkeypatch):
    """From one candidate of each system, which its search needs anyhow; what two experiments share counts once."""
    full, two = budgets.BUDGETS["full"], Choice(["base", "unif"], ["mf"])
    asked, said = [], []

    def timed(self, trials, logs=None, list_length=None):
        asked.append((trials, logs))
        if len(asked) > 1:
            raise KeyboardInterrupt
        return Timed(base=7.2, unif=3.6)

    monkeypatch.setattr(Study, "run_fits", timed)
    for experiment in (rq1, rq3):  # the same searches and winners
        studies_of = [Study(experiment.design(data, full, two), full, str(tmp_path), resources=QUIET)]
        fits = estimate.ahead(studies_of)
        assert {system.name: own.n_fits for system, own in fits.items()} == {"base": 75 + 10, "unif": 75 + 10}
    both = [Study(each.design(data, full, two), full, str(tmp_path), resources=QUIET) for each in (rq1, rq3)]
    assert estimate.ahead(both) == fits
    base, unif = fits
    middle = fits[base].sample.params
    assert middle["rank"] == 100 and middle["lam"] == pytest.approx(1e-3)  # in the middle of the paper's grid
    assert estimate.total({base: 7.2, unif: 3.6}, fits, 1) == pytest.approx(85 * 10.8)
    assert estimate.total({base: 7.2, unif: 3.6}, fits, 2) == pytest.approx(85 * 5.4)
    with small_experiments(rq1), pytest.raises(KeyboardInterrupt):
        order = Order("rq1", tmp_path / "out", "full", two)
        reproduce.reproduce(order, data, n_jobs=2, say=said.append)
    assert said[0].startswith("170 fits of 2 systems") and len(asked[0][0]) == 2
    more = "; more where a search goes on"
    said_before = "about 7.7 minutes in all with 2 workers on this machine, less what is done already"
    assert said[1] == said_before + more


def test_the_largest_log_tells_how_long_fits_take(data, tmp_path):
    full = budgets.BUDGETS["full"]
    study = Study(rq4.design(data, full, Choice(["base"], ["mf"])), full, str(tmp_path))
    (own,) = estimate.ahead([study]).values()
    logs = [study.design.conditions[case.condition] for case in study.design.cases]
    sizes = {log.fingerprint: sum(len(log.triplets(part).users) for part in ("S_c", "S_t")) for log in logs}
    assert sizes[own.sample.data] == max(sizes.values())
    assert own.n_fits == (75 + 10) * len({case.condition for case in study.design.cases})


@pytest.mark.parametrize(
    "seconds, said", [(5000, "83 minutes"), (3, "3 seconds"), (86_400 * 20, "20 days"), (86_400, "24 hours")]
)
def test_a_length_of_time_has_one_unit(seconds, said):
    assert words.in_words(seconds) == said


# ---- reports and their files ---------------------------------------------------------------------------------------


class Small:
    """An experiment with two systems."""

    NAME, TITLE, QUESTION = "rq1", "A small one", "Does it resume?"

    @staticmethod
    def design(data, budget, choice):
        return Design(data, {WHOLE: data}, [Case(System(name, name, "mf")) for name in ("base", "unif")])

    findings = staticmethod(rq1.findings)


@contextlib.contextmanager
def small_experiments(*experiments):
    """These in place of the paper's, under a brief budget, their systems fitted one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "EXPERIMENTS", {each.NAME: each for each in experiments})
        patch.setattr(studies, "TOGETHER", 1)
        patch.setitem(budgets.BUDGETS, "smoke", BRIEF._replace(name="smoke"))
        yield


@pytest.fixture
def small():
    with small_experiments(Small):
        yield


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """The directory of a small run that nothing disturbed."""
    with small_experiments(Small):
        run("rq1", data, out := tmp_path_factory.mktemp("small") / "out")
    return out


def contents(directory):
    figures = sorted(path.relative_to(directory) for path in directory.glob("figures/*.svg"))
    assert figures
    own = str(directory).encode()  # reports show the command that made them, with its --out
    return {str(name): (directory / name).read_bytes().replace(own, b"OUT") for name in (*FILES, *figures)}


def run(experiment, data, out, **options):
    return reproduce.reproduce(Order(experiment, out, "smoke"), data, **options)


@pytest.mark.needs_jit
def test_interrupted_and_resumed_ends_in_the_same_files(small, finished, data, tmp_path, monkeypatch):
    real, out = Study._fit, tmp_path / "resumed"

    def stopped(self, cases):
        if cases[0].system.name == "unif":
            raise KeyboardInterrupt
        real(self, cases)

    with monkeypatch.context() as patch:
        patch.setattr(Study, "_fit", stopped)
        with pytest.raises(KeyboardInterrupt):
            run("rq1", data, out)
    text = (out / "report.html").read_text()
    assert "UNFINISHED" in text and "1 of 2 systems are done" in text and ">Answer<" not in text
    before = {row["key"]: row["seconds"] for row in trials(out / "work")}
    shown = sorted((out / "work" / "fits" / "shown").iterdir())
    shown[0].write_bytes(shown[0].read_bytes()[:100])  # damaged and lost files are made again
    shown[1].unlink()
    found = run("rq1", data, out)
    after = {row["key"]: row["seconds"] for row in trials(out / "work")}
    again = [key for key in before if after[key] != before[key]]
    assert found[0]["finished"] and len(before) == 7 and len(after) == 8  # 2 x 3 candidates, 2 x 1 further seeds
    assert len(again) <= 2 and contents(finished) == contents(out)  # what was done is not done again


@pytest.mark.needs_jit
def test_all_leads_to_its_reports(tmp_path):
    class Second(Small):
        NAME, TITLE = "rq2", "Another small one"

    said = []

    def stop(line):
        said.append(line)
        if len(said) > 1 and said[-2].startswith("rq2"):
            raise KeyboardInterrupt

    out, data = tmp_path / "out", tiny_log(name=ATTACK)
    with small_experiments(Small, Second):
        with pytest.raises(KeyboardInterrupt):
            run("all", data, out, say=stop)
        text = (out / "index.html").read_text()
        assert text.count(">COMPLETE<") == 1 and text.count(">UNFINISHED<") == 2
        links = re.findall(r'href="(rq[^"]*)"', text)
        assert "Complete: 1 of 2 experiments" in text and "rq2/report.html" in links
        assert all((out / name).exists() for name in links)
        found = run("all", data, out)
    text = (out / "index.html").read_text()
    assert text.count(">COMPLETE<") == 2 and "UNFINISHED" not in text and text.count("<svg") == 2
    assert all(escape(sentence) in text for one in found for sentence in one["answer"]) and found[0]["answer"]
    assert escape(ATTACK) in text and ATTACK not in text


@pytest.mark.needs_jit
def test_a_report_is_not_written_over_by_another(finished, data):
    out, before = finished, contents(finished)
    others = {
        "experiment": Order("rq2", out, "smoke"),
        "budget": Order("rq1", out, "quick"),
        "seed": Order("rq1", out, "smoke", seed=1),
        "systems": Order("rq1", out, "smoke", Choice(["paper"])),
        "backbones": Order("rq1", out, "smoke", Choice(backbones=["ncf"])),
    }
    for what, order in others.items():
        with pytest.raises(InputError, match=f"holds a report of {what}"):
            reproduce.reproduce(order, data)
    with pytest.raises(InputError, match="holds a report of data"):
        run("rq1", tiny_log(50), out)
    assert contents(out) == before


@pytest.mark.parametrize(
    "change, said",
    [
        ({"experiment": "rq9"}, "rq9"),
        ({"budget": "huge"}, "huge"),
        ({"seed": -1}, "seed=-1"),
        ({"choice": Choice(["dub-y"])}, "dub-y"),
        ({"experiment": "rq2", "choice": Choice(["base"])}, "rq2 has nothing to run"),
        ({"choice": Choice(["dub-x graded"])}, "has nothing to run"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_written(data, tmp_path, change, said):
    out = tmp_path / "out"
    with pytest.raises(InputError, match=said):
        reproduce.reproduce(Order(**({"experiment": "rq1", "out": out} | change)), data)
    with pytest.raises(InputError, match="n_jobs=0"):
        reproduce.reproduce(Order("rq1", out), data, n_jobs=0)
    assert not out.exists()


def test_all_refuses_data_that_rq4_cannot_use_before_it_runs_anything(data, tmp_path):
    S_c = data.triplets("S_c")
    parts = {part: data.triplets(part) for part in ("S_t", "S_va", "S_te")}
    parts["S_c"] = S_c._replace(labels=np.zeros(len(S_c.users)))
    with pytest.raises(InputError, match="rq4 needs more of both labels"):
        run("all", Partition(parts, (data.n_users, data.n_items)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_peoples_directories_are_left_alone(data, tmp_path):
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        run("rq1", data, tmp_path)
    with pytest.raises(InputError, match="is a file"):
        run("rq1", data, tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_the_command_is_quoted():
    words = ["--biased", "my log.csv", "--random", "$(x)"]
    order = Order("rq1", "x", "smoke", seed=3, data_words=words)
    plain = "dubnb reproduce rq1 --biased 'my log.csv' --random '$(x)' --budget smoke --seed 3"
    assert order.command("rq1") == f"{plain} --out x"
    chosen = order._replace(choice=Choice(["paper", "dub-x binary"], ["mf"]))
    assert chosen.command("rq1") == f"{plain} --systems 'paper,dub-x binary' --backbone mf --out x"


# ---- the real thing ------------------------------------------------------------------------------------------------


def _reproduce(experiment, out, *more):
    words = [sys.executable, "-m", "dubnb", "reproduce", experiment, "--data", "simulated", "--budget", "smoke"]
    return subprocess.Popen([*words, "--out", str(out), "--quiet", *more], stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.needs_jit
def test_smoke_runs_of_all_five(tmp_path):
    process = _reproduce("all", tmp_path / "runs", "--n-jobs", "2")
    assert process.wait(1800) == 0, process.stderr.read()
    for name in EXPERIMENTS:
        frame = pd.read_csv(tmp_path / "runs" / name / "results.csv")
        assert set(frame["experiment"]) == {name} and frame["value"].notna().any()
        assert "UNFINISHED" not in (tmp_path / "runs" / name / "report.html").read_text()
    assert (tmp_path / "runs" / "index.html").read_text().count(">COMPLETE<") == 5


@pytest.mark.slow
@pytest.mark.needs_jit
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_killed_and_resumed_ends_in_the_same_files(tmp_path):
    assert _reproduce("rq3", tmp_path / "whole").wait(900) == 0
    for wanted, stop in ((1, signal.SIGINT), (5, signal.SIGKILL)):
        process = _reproduce("rq3", tmp_path / "resumed")
        runs, deadline = tmp_path / "resumed" / "work" / "fits" / "shown", time.monotonic() + 600
        while process.poll() is None and (not runs.is_dir() or len(list(runs.glob("*.npz"))) < wanted):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(stop)
        assert process.wait(120) != 0
        assert "UNFINISHED" in (tmp_path / "resumed" / "report.html").read_text()
    assert _reproduce("rq3", tmp_path / "resumed", "--n-jobs", "2").wait(900) == 0
    assert contents(tmp_path / "whole") == contents(tmp_path / "resumed")
