"""The paper's experiments: systems, budgets, derived data, findings from known fits, real runs read from the ledger."""

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

import dubnb
from dubnb import metrics, stats
from dubnb._check import InputError
from dubnb.data.partition import Partition, Triplets
from dubnb.experiments import budgets, pages, reproduce, rq1, rq2, rq3, rq4, rq5
from dubnb.experiments import study as studies
from dubnb.experiments.reproduce import EXPERIMENTS, Order
from dubnb.experiments.study import WHOLE, Case, Comparison, Design, Study
from dubnb.experiments.systems import BASELINES, GROUPS, PAPER, Choice, System
from dubnb.methods import METHODS
from dubnb.sweeps.ledger import Ledger
from dubnb.sweeps.runner import Resources
from tests.studies import BRIEF, SMOKE, case_of, known_fit, known_study, tiny_log, written

FILES = ("results.csv", "results.md", "report.html")
EVERY = Choice()
QUIET = Resources(quiet=True)


# ---- systems and budgets -------------------------------------------------------------------------------------------


def test_the_papers_systems_come_first_then_ours_where_they_run(data, graded):
    ours = ["bridge exact", "dub exact", "dub-x binary", "dub-x graded"]
    paper_s = ["base", "unif", "combine", "ips", "cause", "bridge", "autodebias", "dub"]
    others, baselines = ["ease", "ials", "bpr", "relmf", "dub-i", "dub-xi"], list(GROUPS[BASELINES])
    assert [s.name for s in Choice(backbones=["mf"]).systems(graded)] == paper_s + ours + others + baselines
    assert [s.name for s in Choice(backbones=["mf"]).systems(data)] == paper_s + ours[:3] + others + baselines
    of_ncf = [s for s in EVERY.systems(graded) if s.backbone == "ncf" and not s.is_baseline]
    assert [s.name for s in of_ncf] == [*paper_s, *ours[2:], "bpr", "relmf"]  # exact solvers are mf's
    assert [s.name for s in Choice(["dub", "beyond"], ["mf"]).systems(data)] == ["dub", *ours[:3], *others]
    rivals = ["pda", "dr", "mrdr", "stable-dr", "dib", "refine", "weigh", "transfer"]  # only if they are named
    rivals += ["ease with S_t", "ials with S_t", "bpr with S_t", "ips learned"]
    assert [s.name for s in Choice(["rivals"], ["mf"]).systems(data)] == rivals
    assert [s.name for s in Choice(["dr", "base"], ["ncf"]).systems(data)] == ["base", "dr"]
    assert {s.backbone for s in EVERY.systems(data, ["mf"]) if not s.is_baseline} == {"mf"}
    reads_grades = [s.name for s in EVERY.systems(graded) if s.reads_grades(graded)]
    assert sorted(reads_grades) == ["dub-i", "dub-x graded", "dub-x graded", "dub-xi"]  # dub-x with mf and with ncf
    fixed = {s.name: dict(s.fixed) for s in EVERY.systems(graded) if s.fixed}
    assert fixed["dub exact"] == {"solver": "exact"} and fixed["dub-x binary"] == {"targets": "binary"}


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
        axes, fixed, *_ = budgets.search_of(system, budget, graded)
        assert math.prod(map(len, axes.values())) == budget.points, system
        assert not set(axes) & set(fixed) and set(dict(system.fixed)) <= set(fixed)
        for axis, values in axes.items():
            assert len(set(values)) == len(values)
            for value in values:
                system.model().set_params(**fixed, **{axis: value}).resolve(graded)


def test_a_search_goes_on_beyond_the_end_at_which_its_winner_lies():
    axes = {"lam": (1e-3, 1e-2, 1e-1), "rank": (25, 50, 100), "gamma": (0.5, 1.0, 2.0)}
    longer = budgets.extend_axes(axes, {"lam": 1e-3, "rank": 100, "gamma": 1.0})
    assert longer == {"lam": (1e-3, 1e-2, 1e-1, 1e-4), "rank": (25, 50, 100, 200), "gamma": (0.5, 1.0, 2.0)}
    assert budgets.edges(longer, {"lam": 1e-3, "rank": 100, "gamma": 1.0}) == []
    assert budgets.extend_axes(longer, {"lam": 1e-4, "rank": 25, "gamma": 1.0})["lam"][-1] == pytest.approx(1e-5)
    assert budgets.extend_axes(axes, {"lam": 1e-2, "rank": 50, "gamma": 1.0}) == axes
    assert isinstance(longer["rank"][-1], int)


def test_a_small_search_lies_around_the_defaults_for_the_log(data):
    base = System("base", "base", "mf")
    settled = base.model().resolve(data)
    axes, fixed, *_ = budgets.search_of(base, budgets.BUDGETS["quick"], data)
    assert axes["lam"] == pytest.approx((settled.lam / 3, settled.lam, settled.lam * 3), rel=1e-2)
    assert axes["rank"] == (settled.rank // 2, settled.rank, settled.rank * 2) and fixed == {}
    axes, fixed, *_ = budgets.search_of(base, SMOKE, data)
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
        assert "gamma" not in axes and math.prod(map(len, axes.values())) == budget.points
    assert len(axes["lam"]) == 25 and min(axes["lam"]) == 1e-5 and max(axes["lam"]) == 0.1  # finer instead


def named_like_the_papers(data_name="yahoo-r3", size=(15_400, 1_000)):
    log = tiny_log(name=data_name)
    log.n_users, log.n_items = size
    return log


def test_the_papers_numbers_stand_beside_its_own_split_only(data):
    assert pages.published(data, rq1.PAPER_RESULTS) == {}
    assert pages.published(named_like_the_papers(size=(60, 30)), rq1.PAPER_RESULTS) == {}
    assert pages.published(named_like_the_papers("yahoo-r3, split 1"), rq1.PAPER_RESULTS) == {}
    tables = pages.published(named_like_the_papers(), rq1.PAPER_RESULTS)
    ablation = pages.published(named_like_the_papers(), rq2.YAHOO_R3_ABLATION)
    assert tables["mf"]["dub"]["auc"] == 0.7578 and tables["ncf"]["bridge"]["r@5"] == 0.0192
    for backbone, rows in tables.items():
        assert set(rows) == set(GROUPS[PAPER]) <= set(METHODS)
        assert all(0.5 < row["auc"] < 1 and 0 < row["r@5"] < row["r@10"] for row in rows.values())
        assert ablation[backbone]["dub without a and e"] == rows["bridge"]
        assert ablation[backbone]["dub"] == rows["dub"]


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


@pytest.mark.parametrize("module", EXPERIMENTS.values())
def test_every_report_is_made_from_complete_and_from_no_results(module, data):
    study = known_study(module, data, {"dub": 9.0})
    report, html, markdown, frame = written(module, study)
    assert report.unfinished is None and report.answer and "UNFINISHED" not in html
    assert html.count("<svg") >= 3 and html.count("<figcaption>") == html.count("<svg")
    assert "| dub" in markdown and not re.search(r"\bnan\b", markdown)
    assert set(frame["metric"]) >= set(study.metric_names(truth=False)) and frame["value"].notna().all()
    assert len(frame[frame["metric"] == "auc"]) == 2 * len(study.design.cases)
    empty = Study(study.design, study.budget, "work")
    report, html, markdown, frame = written(module, empty)
    assert "0 of" in report.unfinished and not report.answer and len(frame) == 0
    assert html.index("UNFINISHED") < html.index("<section>") and "UNFINISHED" in markdown


@pytest.mark.usefixtures("plain_figures")
@pytest.mark.parametrize("module", EXPERIMENTS.values())
def test_a_single_seed_and_a_failure_are_reported(module, data):
    study = known_study(module, data, {}, seeds=1)
    lost = next(case for case in study.design.cases if case.system.name != "dub")
    del study.results[lost]
    study.failures[lost] = "diverged <b>"
    report, html, _, _ = written(module, study)
    assert report.unfinished is None and any("diverged" in warning for warning in report.warnings)
    assert "diverged &lt;b&gt;" in html


@pytest.mark.usefixtures("plain_figures")
def test_rq1_names_the_best_of_the_paper_and_of_all(data):
    study = known_study(rq1, data, {"dub": 2.0, "bridge": 1.5, "dub-x binary": 9.0})
    (answer,) = rq1.findings(study).answer  # one paragraph
    mf, ncf = answer.split(" With ncf, ")
    assert mf.startswith("With mf, among all systems dub-x binary has the best AUC (0.")
    assert "ahead of dub by 0." in mf and "; among the paper's systems dub has the best AUC (0." in mf
    assert "ahead of bridge by 0." in mf and mf.endswith("over users).")
    assert ncf.startswith("among all systems dub-x binary has the best AUC")
    only = known_study(rq1, data, {"dub": 5.0}, choice=Choice(["paper"], ["ncf"]))
    (said,) = rq1.findings(only).answer
    assert said.startswith("With ncf, among the paper's systems dub")


def test_two_systems_are_compared_over_users_and_from_five_seeds_on_over_seeds(data):
    study = known_study(rq1, data, {"dub": 5.0, "bridge": 2.0}, seeds=5, choice=Choice(["paper"], ["mf"]))
    first, second = case_of(study, "dub"), case_of(study, "bridge")
    pairs = {m: [[fit.metrics[m] for fit in study.results[c]] for c in (first, second)] for m in ("auc", "ndcg")}
    per_user = [np.mean([fit.output.per_user["ndcg"] for fit in study.results[c]], axis=0) for c in (first, second)]
    auc, ndcg = (study.compare(first, second, m) for m in ("auc", "ndcg"))
    assert auc.difference == pytest.approx(np.mean(pairs["auc"][0]) - np.mean(pairs["auc"][1]))
    assert ndcg.users_p == pytest.approx(scipy_stats.ttest_rel(*per_user).pvalue)
    for metric, found in (("auc", auc), ("ndcg", ndcg)):
        assert found.seeds_p == pytest.approx(scipy_stats.ttest_ind(*pairs[metric], equal_var=True).pvalue, rel=1e-9)
    for case in (first, second):
        study.results[case] = study.results[case][:4]
    assert study.compare(first, second, "auc").seeds_p is None


@pytest.mark.usefixtures("plain_figures")
def test_rq1_corrects_all_comparisons_of_a_field_together(data):
    study = known_study(rq1, data, {"dub": 2.0, "bridge": 1.7})
    tested = rq1._best_against_second(study)
    for field in rq1.FIELDS:
        own = [(c.users_p, p) for (f, _, _), (c, p) in tested.items() if f == field]
        assert len(own) == 18  # two backbones, nine metrics
        assert [p for _, p in own] == pytest.approx(stats.holm([raw for raw, _ in own]))
        assert any(p > raw for raw, p in own)
    table = next(part for part in rq1.findings(study).sections[2].parts)
    assert [row[-1].value for row in table.rows] == pytest.approx([p for _, p in tested.values()])


@pytest.mark.usefixtures("plain_figures")
def test_models_that_rank_alike_are_marked(data):
    study = known_study(rq1, data, {}, choice=Choice(["paper"], ["mf"]))
    case = case_of(study, "cause")
    study.results[case] = [fit._replace(metrics={**fit.metrics, "personal": 1e-5}) for fit in study.results[case]]
    table = rq1.findings(study).sections[0].parts[0]
    assert {row[0].text: row[0].remark for row in table.rows if row[0].remark} == {"cause": pages.RANKS_ALIKE}
    assert any("every user gets the same ranking: cause (mf)." in said for said in pages.study_warnings(study))


@pytest.mark.usefixtures("plain_figures")
def test_systems_that_read_grades_are_marked(graded):
    study = known_study(rq1, graded, {}, choice=Choice(["beyond"], ["mf"]))
    table = rq1.findings(study).sections[0].parts[0]
    marked = {row[0].text: row[0].remark for row in table.rows if row[0].remark}
    assert marked == dict.fromkeys(("dub-x graded", "dub-i", "dub-xi"), pages.READS_GRADES)


@pytest.mark.usefixtures("plain_figures")
def test_the_best_is_said_with_its_ties(data):
    study = known_study(rq1, data, {"dub": 5.0, "bridge": 5.0})
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
    assert pages.significance_text(users_p, seeds_p, n_seeds) == said


@pytest.mark.usefixtures("plain_figures")
def test_a_registered_metric_is_in_every_report(data, monkeypatch):
    """A metric of lists, less of which is better: its column, its best, its test, its row in results.csv."""
    clumsy = metrics.Metric(lambda hits, n, cut: 1.0 - hits[:, :1].mean(axis=1), "Miss@1", "lists", low_is_good=True)
    monkeypatch.setitem(metrics.METRICS, "miss", clumsy)
    known_fit.cache_clear()
    try:
        study = known_study(rq1, data, {"dub": 9.0}, choice=Choice(["base", "dub"], ["mf"]))
        report, _, markdown, frame = written(rq1, study)
    finally:
        known_fit.cache_clear()
    table = report.sections[0].parts[0]
    column = list(table.header).index("Miss@1")
    best = [row[0].text for row in table.rows if row[column].best]
    assert best == ["dub"] and "Miss@1" in markdown and "miss" in set(frame["metric"])
    assert any(row[1] == "Miss@1" and row[3] == "dub" for row in report.sections[2].parts[0].rows)


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


def test_rq2_says_what_falls_rises_and_stays():
    def found(difference):
        return Comparison("auc", None, None, difference, None, 0.0, 0.0, 0.0)

    tested = {("mf", "dub", "without d"): (found(-0.02), 0.01), ("mf", "dub", "without c"): (found(0.01), 0.01)}
    tested |= {("mf", "dub", "without e"): (found(0.001), 0.5), ("mf", "dub", "without a"): (found(-0.001), 0.5)}
    tested |= {("ncf", "dub", "without e"): (found(0.001), 0.5)}
    assert rq2._changes_in_words(tested) == [
        "With mf, AUC of dub falls without d (-0.0200); it rises without c (+0.0100); "
        "it shows no significant change without e (+0.0010) and without a (-0.0010).",
        "With ncf, AUC of dub shows no significant change without e (+0.0010).",
    ]


@pytest.mark.usefixtures("plain_figures")
def test_rq3_shows_both_readings_of_utility(data):
    """A system with few hits, but those on unpopular items, leads by one reading and not by the other."""
    use = {"a": rq3.Use(0.9, 0.5, 0.5, 0.01), "b": rq3.Use(0.1, 0.5, 5.0, 0.01)}
    few = {"popular": use["a"], "unpopular": use["b"]}
    many = {"popular": rq3.Use(0.5, 0.6, 1.2, 0.3), "unpopular": rq3.Use(0.5, 0.4, 0.8, 0.2)}
    answer = rq3._shares_in_words("mf", {"randomized": many, "few": few, "many": many})
    assert "few by utility (5.00), and of many by hits per 1,000 recommendations (200.0)" in answer[1]
    assert "do not agree" in answer[1]
    rarely = {"popular": rq3.Use(0.99, 0.5, 0.5, 0.01), "unpopular": rq3.Use(0.01, 0.5, 50.0, 0.5)}
    answer = rq3._shares_in_words("mf", {"randomized": many, "rarely": rarely, "many": many})
    assert "rarely by utility (50.00, on 1.0 % of its places)" in answer[1] and "readings agree" in answer[1]
    report, _, markdown, frame = written(rq3, known_study(rq3, data, {}, choice=Choice(["paper"])))
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
    listed = [(u, i) for u, row in zip(fit.output.users, fit.output.lists, strict=True) for i in row if i >= 0]
    hits = [i for u, i in listed if (u, i) in wanted]
    found = rq3.of_lists(data, popular, fit.output)["popular"]
    assert found.recommended == pytest.approx(np.mean([popular[i] for _, i in listed]))
    assert found.hit == pytest.approx(np.mean([popular[i] for i in hits])) and len(hits) > 5
    assert found.rate == pytest.approx(np.sum([popular[i] for i in hits]) / np.sum([popular[i] for _, i in listed]))


@pytest.mark.usefixtures("plain_figures")
def test_rq4_counts_who_leads(data):
    settings = "settings (factor, share and backbone)"
    three = Choice(["base", "ips", "dub"])
    study = known_study(rq4, data, {"dub": 9.0}, choice=three)
    assert rq4.findings(study).answer == [f"dub has the best AUC in all 16 {settings}."]
    study = known_study(rq4, data, {"ips": 9.0}, choice=three)
    assert rq4.findings(study).answer == [f"ips has the best AUC in all 16 {settings}, dub in none."]
    study = known_study(rq4, data, {"ips": 9.0, "dub": 9.0}, choice=three)
    assert rq4.findings(study).answer == [
        f"ips has the best AUC in all 16 {settings}, dub in 16; where two print alike, both count."
    ]
    study = known_study(rq4, data, {"ips": 9.0}, choice=Choice(["base", "ips"]))
    assert rq4.findings(study).answer == [f"ips has the best AUC in all 16 {settings}."]  # dub did not run


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


@pytest.mark.usefixtures("plain_figures")
def test_rq5_adds_up_the_hits_of_both_groups(data):
    study = known_study(rq5, data, {"dub": 4.0}, choice=Choice(["base", "dub"]))
    hits, order = rq5._hits(study, "mf"), rq5.users_in_order(data)
    fits = study.results[case_of(study, "dub")]
    by_user = dict(
        zip(fits[0].output.users.tolist(), np.mean([fit.output.per_user["p@10"] for fit in fits], axis=0), strict=True)
    )
    assert hits["dub"].tolist() == pytest.approx([by_user.get(user, 0.0) for user in range(data.n_users)])
    first = order.rows[: order.n_first]
    gain = hits["dub"][first].sum() - hits["base"][first].sum()
    assert f"changes by {gain:+.2f} over the {order.n_first} users of" in rq5.findings(study).answer[1]
    assert study.design.select == "ndcg" and dict(study.design.notes)["candidates"] == rq5.CANDIDATES


# ---- real runs, read from the ledger -------------------------------------------------------------------------------


SHORT = BRIEF._replace(name="short", epoch_share=0.02)


def trials(directory):
    """All trials of the ledger in a run's directory of work."""
    with contextlib.closing(Ledger(str(Path(directory) / studies.FITS))) as ledger:
        return ledger.rows()


def ran(module, data, directory, choice, seed=0, budget=SHORT):
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
        for fit, seed in zip(study.results[case], (5, 6), strict=True):
            (row,) = [r for r in own if r["params"]["seed"] == seed and r["params"]["lam"] == winner.point["lam"]]
            assert fit.seed == seed and fit.metrics["auc"] == row["metrics"]["auc"]
    assert len({tuple(fit.metrics["auc"] for fit in fits) for fits in study.results.values()}) == 6  # all differ


@pytest.mark.needs_jit
def test_what_is_compared_is_what_was_fitted(ablation, data):
    study, _ = ablation
    tested = rq2._variants_against_whole(study)
    whole = case_of(study, "dub")
    assert len(tested) == 5
    for (_, _, variant), (comparison, _) in tested.items():
        case = case_of(study, f"dub {variant}")
        labels = data.triplets("S_te").labels
        own, all_terms = (
            np.mean([metrics.auc(fit.output.scores, labels) for fit in study.results[c]]) for c in (case, whole)
        )
        assert comparison.difference == pytest.approx(own - all_terms, abs=1e-12) and comparison.first == case


@pytest.mark.needs_jit
def test_fits_hold_what_the_model_shows(ablation, data):
    study, _ = ablation
    case = case_of(study, "dub")
    model = METHODS["dub"](**study.winners[case].params, seed=6).fit(data)
    fit = study.results[case][1]
    assert fit.metrics["auc"] == model.evaluate(data)["auc"]
    items, _ = model.recommend(data.user_ids.values[fit.output.users], k=studies.LIST_LENGTH)
    S_te = data.triplets("S_te")
    assert np.array_equal(fit.output.probabilities, model.predict(S_te.users, S_te.items))  # ids are rows here
    own = METHODS["dub"](**study.winners[case].params, seed=6).set_params(calibrate=False).fit(data)
    assert np.array_equal(fit.output.uncalibrated, own.predict(S_te.users, S_te.items))
    assert (fit.output.lists == items).all() and (fit.output.per_user["ndcg"] >= 0).all() and "personal" in fit.metrics


def _listed(fit):
    """(user, item) of every place of a fit's lists."""
    return [
        (int(u), int(i)) for u, items in zip(fit.output.users, fit.output.lists, strict=True) for i in items if i >= 0
    ]


def _pairs_of(log, part):
    return {(int(u), int(i)) for u, i in zip(log.triplets(part).users, log.triplets(part).items, strict=True)}


@pytest.mark.needs_jit
def test_rq5_selects_and_stops_on_ndcg(data, tmp_path):
    wider = SHORT._replace(points=9)
    study = ran(rq5, data, tmp_path / "work", Choice(["base", "combine", "ips"]), budget=wider)
    rows, by_auc = trials(tmp_path / "work"), 0
    assert {row["params"]["monitor"] for row in rows} == {"ndcg"}
    general = study.design.conditions[WHOLE].fingerprint
    assert {row["data"] for row in rows} == {general} and general != data.fingerprint
    log = study.design.conditions[WHOLE]
    shown = {(user, item) for fit in study.results[study.design.cases[0]] for user, item in _listed(fit)}
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
    budget, choice = SHORT._replace(seeds=1), Choice(["base"], ["mf"])
    study = ran(rq4, data, tmp_path / "once", choice, budget=budget)
    rows, conditions = trials(tmp_path / "once"), 2 * len(rq4.PERCENTAGES)
    assert len(study.winners) == 1 and len(study.results) == conditions
    assert {row["data"] for row in rows} == {log.fingerprint for log in study.design.conditions.values()}
    fitted = [row["params"] for row in rows if row["data"] != data.fingerprint]
    (winner,) = study.winners.values()
    assert len(fitted) == conditions and len(rows) == 3 + conditions
    assert all(params == winner.params | {"seed": 0, "hidden": None} for params in fitted)
    everywhere = Study(study.design, budget._replace(search_everywhere=True), str(tmp_path))
    assert [everywhere.searched(case) for case in everywhere.design.cases] == everywhere.design.cases


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
        patch.setitem(budgets.BUDGETS, "smoke", SHORT._replace(name="smoke"))
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


def test_the_command_is_quoted():
    words = ["--biased", "my log.csv", "--random", "$(x)"]
    order = Order("rq1", "x", "smoke", seed=3, data_words=words)
    plain = "dubnb reproduce rq1 --biased 'my log.csv' --random '$(x)' --budget smoke --seed 3"
    assert order.command() == f"{plain} --out x"
    chosen = order._replace(choice=Choice(["paper", "dub-x binary"], ["mf"]))
    assert chosen.command() == f"{plain} --systems 'paper,dub-x binary' --backbone mf --out x"


# ---- the real thing ------------------------------------------------------------------------------------------------

PATIENCE = 7200  # seconds, only so that a test ends at all


def _reproduce(experiment, out, *more):
    words = [sys.executable, "-m", "dubnb", "reproduce", experiment, "--data", "simulated", "--budget", "smoke"]
    return subprocess.Popen([*words, "--out", str(out), "--quiet", *more], stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.needs_jit
def test_smoke_runs_of_all_five(tmp_path):
    process = _reproduce("all", tmp_path / "runs", "--n-jobs", "2")
    assert process.wait(PATIENCE) == 0, process.stderr.read()
    for name in EXPERIMENTS:
        frame = pd.read_csv(tmp_path / "runs" / name / "results.csv")
        assert set(frame["experiment"]) == {name} and frame["value"].notna().any()
        assert "UNFINISHED" not in (tmp_path / "runs" / name / "report.html").read_text()
    assert (tmp_path / "runs" / "index.html").read_text().count(">COMPLETE<") == 5


@pytest.mark.slow
@pytest.mark.needs_jit
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_killed_and_resumed_ends_in_the_same_files(tmp_path):
    assert _reproduce("rq3", tmp_path / "whole").wait(PATIENCE) == 0
    for wanted, stop in ((1, signal.SIGINT), (5, signal.SIGKILL)):
        process = _reproduce("rq3", tmp_path / "resumed")
        runs, deadline = tmp_path / "resumed" / "work" / "fits" / "shown", time.monotonic() + PATIENCE
        while process.poll() is None and (not runs.is_dir() or len(list(runs.glob("*.npz"))) < wanted):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(stop)
        assert process.wait(PATIENCE) != 0
        assert "UNFINISHED" in (tmp_path / "resumed" / "report.html").read_text()
    assert _reproduce("rq3", tmp_path / "resumed", "--n-jobs", "2").wait(PATIENCE) == 0
    assert contents(tmp_path / "whole") == contents(tmp_path / "resumed")
