"""The paper's experiments: budgets, derived data, findings from known runs, files that survive an interruption."""

import functools
import os
import re
import signal
import subprocess
import sys
import time
from html import escape

import numpy as np
import pandas as pd
import pytest

from dubnb._check import InputError
from dubnb._random import generator
from dubnb.data.partition import Partition, Triplets
from dubnb.evaluation import evaluate
from dubnb.experiments import _common as common
from dubnb.experiments import budgets, paper, rq1, rq2, rq3, rq4, rq5
from dubnb.experiments import reproduce as command
from dubnb.experiments import study as studies
from dubnb.experiments.study import METRICS, WHOLE, Cell, Plan, Run, Study, System, Winner
from dubnb.methods import METHODS, make
from dubnb.ranking import top_k
from dubnb.report import page
from tests.test_page import ATTACK

FILES = ("results.csv", "results.md", "report.html")
SMOKE = budgets.BUDGETS["smoke"]


def tiny_log(n_users=60, n_items=30, name="tiny"):
    """A log with feedback in every part; odd users like odd items."""
    rng = generator(0, "test-experiments")
    pairs = rng.permutation(n_users * n_items)[: n_users * n_items // 2]
    users, items = np.divmod(pairs, n_items)
    labels = (rng.random(len(pairs)) < np.where(users % 2 == items % 2, 0.6, 0.1)).astype(float)
    cuts = np.split(np.arange(len(pairs)), (len(pairs) * np.array([0.5, 0.65, 0.8])).astype(int))
    every = Triplets(users, items, labels, np.ones(len(pairs)))
    parts = dict(zip(("S_c", "S_t", "S_va", "S_te"), (every.take(cut) for cut in cuts), strict=True))
    return Partition(parts, (n_users, n_items), name=name)


@pytest.fixture(scope="module")
def data():
    return tiny_log()


# ---- budgets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
@pytest.mark.parametrize("method", common.METHODS)
@pytest.mark.parametrize("name", budgets.BUDGETS)
def test_every_system_gets_the_same_number_of_valid_candidates(name, method, backbone, data, monkeypatch):
    budget = budgets.BUDGETS[name]
    for small in (True, False):
        monkeypatch.setattr(budgets, "is_small", lambda data, small=small: small)
        grid, fixed = budgets.axes(method, backbone, budget, data)
        assert budgets.n_points(grid) == budget.points
        assert not set(grid) & set(fixed)
        for axis, values in grid.items():
            assert len(set(values)) == len(values)
            for value in values:
                make(method, backbone=backbone, **fixed, **{axis: value}).resolved_params()


def test_the_full_budget_holds_the_papers_grid(data):
    for method in ("base", "unif", "combine", "ips", "cause", "bridge", "dub"):
        grid, _ = budgets.axes(method, "mf", budgets.BUDGETS["full"], data)
        assert grid["rank"] == (50, 100, 200)
        assert set(grid["lam"]) >= {1e-5, 1e-4, 1e-3, 1e-2, 1e-1}
    assert grid["gamma"] == (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


def test_edges_are_told_from_the_inside():
    grid = {"lam": [1e-4, 1e-3, 1e-2], "gamma": [2.0, 1.0, 0.5], "rank": [10, 20]}
    assert budgets.edges(grid, {"lam": 1e-3, "gamma": 1.0, "rank": 10}) == []  # two values are no grid to be inside of
    assert budgets.edges(grid, {"lam": 1e-4, "gamma": 2.0, "rank": 20}) == [("lam", "low"), ("gamma", "high")]


def test_the_papers_numbers_stand_beside_its_own_data_only(data):
    assert paper.beside(data, paper.YAHOO_R3) is None
    assert paper.YAHOO_R3["mf"]["dub"]["auc"] == 0.7578 and paper.YAHOO_R3["ncf"]["bridge"]["r@5"] == 0.0192
    for backbone in ("mf", "ncf"):
        assert set(paper.YAHOO_R3[backbone]) == set(common.METHODS) <= set(METHODS)
        assert paper.YAHOO_R3_ABLATION[backbone]["without a and e"] == paper.YAHOO_R3[backbone]["bridge"]


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
    assert rq4.subset_size(tiny_log(name="yahoo-r3")) == (135_000, "the paper's size")


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
def known_run(data, seed, skill):
    """What a system shows whose scores are the taste of `tiny_log` times `skill` plus noise."""
    noise = generator(seed, "run", skill).normal(size=(data.n_users, data.n_items))
    taste = (np.arange(data.n_users)[:, None] % 2) == (np.arange(data.n_items)[None, :] % 2)
    scores = (skill * taste + noise).astype(np.float32)
    result = evaluate(Table(scores), data, per_user=True)
    users = result["per_user"]["user"].to_numpy()
    excluded = np.zeros(scores.shape, dtype=bool)
    excluded[data.triplets("S_c").users, data.triplets("S_c").items] = True
    S_te = data.triplets("S_te")
    return Run(
        seed,
        {name: result[name] for name in METRICS},
        users,
        {name: result["per_user"][name].to_numpy() for name in METRICS[1:]},
        top_k(scores[users], 10, excluded[users]),
        scores[S_te.users, S_te.items],
    )


def known_study(module, data, skills, tmp_path, seeds=2):
    """The module's plan as if every system had run: the better, the larger its skill (default 1)."""
    budget = SMOKE._replace(bootstraps=50, seeds=seeds)
    found = Study(module.plan(data, budget), budget, tmp_path)
    for cell in found.plan.cells:
        condition = found.plan.conditions[cell.condition]
        skill = skills.get(cell.system.name, 1.0)
        found.runs[cell] = [known_run(condition, seed, skill) for seed in found.seeds]
        grid = {"lam": [1e-4, 1e-3, 1e-2]}
        found.winners[found.searched(cell)] = Winner({}, {"lam": 1e-3}, grid, 3, 0.5)
    return found


def written(module, study, data):
    findings = module.findings(study)
    document = common.page(module, study, data, findings, "dubnb reproduce")
    return document, page.render(document), page.markdown(document), common.tidy(module, study, findings.rows)


@pytest.mark.parametrize("module", command.EXPERIMENTS.values())
def test_every_report_is_made_from_complete_and_from_no_results(module, data, tmp_path):
    study = known_study(module, data, {"dub": 9.0}, tmp_path)
    document, html, markdown, frame = written(module, study, data)
    assert document.unfinished is None and document.answer and "UNFINISHED" not in html
    assert html.count("<svg") >= 3 and html.count("<figcaption>") == html.count("<svg")
    assert "| dub" in markdown and "nan" not in markdown
    assert set(frame["metric"]) >= set(METRICS) and frame["value"].notna().all()
    assert len(frame[frame["metric"] == "auc"]) == 2 * len(study.plan.cells)
    empty = Study(study.plan, study.budget, tmp_path)
    document, html, markdown, frame = written(module, empty, data)
    assert "0 of" in document.unfinished and not document.answer and len(frame) == 0
    assert html.index("UNFINISHED") < html.index("<section>") and "UNFINISHED" in markdown


@pytest.mark.parametrize("module", command.EXPERIMENTS.values())
def test_a_single_seed_and_a_failure_are_reported(module, data, tmp_path):
    study = known_study(module, data, {}, tmp_path, seeds=1)
    lost = next(cell for cell in study.plan.cells if cell.system.name != "dub")
    del study.runs[lost]
    study.failures[lost] = "diverged <b>"
    document, html, _, _ = written(module, study, data)
    assert document.unfinished is None and any("diverged" in warning for warning in document.warnings)
    assert "diverged &lt;b&gt;" in html


def test_lost_candidates_are_reported(data, tmp_path):
    columns = {"status": ["done", "failed", "failed", "quarantined"], "reason": [None, "diverged", "other", "killed"]}
    columns |= {"lam": [1e-4, 1e-3, 1e-3, 1e-2], "terms": ["acd", "acd", "cd", "acd"], "seed": [0, 0, 0, 0]}
    lost = studies._lost(pd.DataFrame(columns), {"lam": [1e-4, 1e-3, 1e-2]}, {"terms": "acd", "seed": 0})
    assert lost == ("diverged", "killed")
    study = known_study(rq1, data, {}, tmp_path)
    cell = study.plan.cells[0]
    study.winners[cell] = study.winners[cell]._replace(lost=lost)
    assert "2 of 3 candidates of base (mf) did not finish: diverged" in common.warnings_of(study, data)


def test_rq1_names_the_best_and_tests_it(data, tmp_path):
    study = known_study(rq1, data, {"dub": 5.0, "bridge": 2.0}, tmp_path)
    answer = rq1.findings(study).answer
    assert len(answer) == 2 and answer[0].startswith("With mf, dub has the best AUC") and "ahead of bridge" in answer[0]
    first, second = (Cell(System(name, name, "mf")) for name in ("dub", "bridge"))
    found = common.compare(study, first, second, "auc")
    means = [np.mean([run.metrics["auc"] for run in study.runs[cell]]) for cell in (first, second)]
    assert found.difference == pytest.approx(means[0] - means[1])
    from scipy import stats

    values = [np.mean([run.per_user["ndcg"] for run in study.runs[cell]], axis=0) for cell in (first, second)]
    assert common.compare(study, first, second, "ndcg").users_p == pytest.approx(stats.ttest_rel(*values).pvalue)


def test_the_best_is_said_with_its_ties(data, tmp_path):
    study = known_study(rq1, data, {"dub": 5.0, "bridge": 5.0}, tmp_path)
    answer = rq1.findings(study).answer[0]  # equal skills: the same numbers
    assert answer.startswith("With mf, bridge and dub share the best AUC (0.")
    assert "ahead" not in answer and "); bridge is best on" in answer


@pytest.mark.parametrize(
    "users_p, seeds_p, said",
    [
        (0.01, 0.02, "significant over users (p 0.010) and over seeds (p 0.020)"),
        (0.01, 0.2, "significant over users (p 0.010) but not over seeds (p 0.200)"),
        (0.1, 0.0002, "significant over seeds (p <0.001) but not over users (p 0.100)"),
        (0.1, 0.2, "significant neither over users (p 0.100) nor over seeds (p 0.200)"),
        (0.1, None, "not significant over users (p 0.100), not tested over seeds, as there is only one"),
    ],
)
def test_p_values_in_words(users_p, seeds_p, said):
    assert common.verdict(users_p, seeds_p) == said


def test_names_in_a_sentence():
    assert [common.listed(words) for words in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
    assert common.top({"a": 0.70001, "b": 0.70004, "c": 0.6, "d": np.nan}) == ["a", "b"] and common.top({}) == []


def test_rq1_marks_the_best_of_each_column(data, tmp_path):
    study = known_study(rq1, data, {"ips": 9.0}, tmp_path)
    table = rq1.findings(study).sections[0].parts[0]
    best = [row[0] for row in table.rows if row[1].best]
    assert best == ["ips"] and all(sum(row[k].best for row in table.rows) >= 1 for k in range(1, 7))


def test_rq1_prints_the_paper_beside_yahoo_r3(data, tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "beside", lambda data, tables: tables)
    _, html, markdown, _ = written(rq1, known_study(rq1, data, {}, tmp_path), data)
    assert html.count(">paper</button>") == 12 and "0.7578" in html and "Diamonds: the paper." in html
    assert "0.7578" in markdown


def test_rq2_measures_against_the_whole_bound(data, tmp_path):
    study = known_study(rq2, data, {"without d": 0.0, "dub": 3.0}, tmp_path)
    table = rq2.findings(study).sections[0].parts[0]
    rows = {row[0]: row for row in table.rows}
    difference = rows["without d"][1].value - rows["dub"][1].value
    assert rows["without d"][1].spread == f"{difference:+.4f}" and rows["dub"][1].spread == ""
    assert list(rows) == list(rq2.VARIANTS)
    assert {dict(cell.system.fixed)["terms"] for cell in study.plan.cells} == {"acde", "acd", "cd", "cde", "ace", "ade"}


def test_rq2_says_what_falls_rises_and_stays():
    def found(difference):
        return common.Comparison("auc", None, None, difference, None, 0.0, 0.0, 0.0)

    losses = {("mf", "without d"): (found(-0.02), 0.01), ("mf", "without c"): (found(0.01), 0.01)}
    losses |= {("mf", "without e"): (found(0.001), 0.5), ("mf", "without a"): (found(-0.001), 0.5)}
    losses |= {("ncf", "without e"): (found(0.001), 0.5)}
    assert rq2._answer(losses) == [
        "With mf, AUC falls without d (-0.0200); it rises without c (+0.0100); "
        "it shows no significant change without e (+0.0010) and without a (-0.0010).",
        "With ncf, AUC shows no significant change without e (+0.0010).",
    ]


def test_without_term_d_gamma_is_not_searched(data):
    for budget in budgets.BUDGETS.values():
        grid, _ = budgets.axes("dub", "mf", budget, data, "ace")
        assert "gamma" not in grid and budgets.n_points(grid) == budget.points


def test_rq3_averages_the_seeds_that_have_a_number():
    popular = np.array([True, False])
    found = [rq3.distribution(popular, np.array([0, 1]), np.array(hits)) for hits in ([True, False], [False, False])]
    found.append(rq3.distribution(popular, np.array([0, 0]), np.array([True, True])))
    means = rq3._mean(found)
    assert means["popular"] == pytest.approx({"recommended": 2 / 3, "hit": 1.0, "utility": 1.5})
    assert means["unpopular"] == pytest.approx({"recommended": 1 / 3, "hit": 0.0, "utility": 0.0})


def test_rq3_counts_by_hand():
    popular = np.array([True, False, False, False, False])
    items, hits = np.array([0, 0, 1, 2]), np.array([True, False, True, False])
    found = rq3.distribution(popular, items, hits)
    assert found["popular"] == {"recommended": 0.5, "hit": 0.5, "utility": 1.0}
    found = rq3.distribution(popular, items, np.array([True, True, False, False]))
    assert found["popular"]["utility"] == 2.0 and found["unpopular"] == {"recommended": 0.5, "hit": 0.0, "utility": 0.0}
    assert np.isnan(rq3.distribution(popular, items, np.zeros(4, bool))["popular"]["hit"])


def test_rq3_finds_hits_of_lists(data):
    """Brute force over users and ranks."""
    run = known_run(data, 0, 3.0)
    popular = rq3.popular_items(data)
    counts = np.bincount(data.triplets("S_c").items, minlength=data.n_items)
    assert popular.sum() == 6 and counts[popular].min() >= counts[~popular].max()
    S_te = data.triplets("S_te")
    wanted = {(u, i) for u, i, y in zip(*S_te[:3], strict=True) if y > 0}
    listed = [(u, i) for u, row in zip(run.users, run.lists, strict=True) for i in row if i >= 0]
    hits = [i for u, i in listed if (u, i) in wanted]
    found = rq3.of_run(data, popular, run)["popular"]
    assert found["recommended"] == pytest.approx(np.mean([popular[i] for _, i in listed]))
    assert found["hit"] == pytest.approx(np.mean([popular[i] for i in hits])) and len(hits) > 5


def test_rq4_counts_who_leads(data, tmp_path):
    study = known_study(rq4, data, {"dub": 9.0}, tmp_path)
    settings = "settings (factor, share and backbone)"
    assert rq4.findings(study).answer == [f"dub has the best AUC in all 16 {settings}."]
    study = known_study(rq4, data, {"ips": 9.0}, tmp_path)
    assert rq4.findings(study).answer == [f"ips has the best AUC in all 16 {settings}, dub in none."]
    study = known_study(rq4, data, {"ips": 9.0, "dub": 9.0}, tmp_path)
    assert rq4.findings(study).answer == [
        f"ips has the best AUC in all 16 {settings}, dub in 16; where two print alike, both count."
    ]


def test_rq4_leaves_a_line_out_only_if_it_squeezes_all_others():
    lines = {"a": np.array([0.7, 0.72]), "b": np.array([0.71, 0.74]), "c": np.array([0.5, 0.6])}
    assert rq4.far_below(lines) == ["c"]
    assert rq4.far_below(lines | {"c": np.array([0.5, 0.67])}) == []
    assert rq4.far_below({"a": lines["a"], "c": lines["c"]}) == []


def test_rq5_adds_hits_up_with_the_users_of_S_t_first(data):
    general = rq5.general_split(data)
    order, n_first = rq5.users_in_order(general)
    in_S_t = set(general.triplets("S_t").users.tolist())
    assert set(order[:n_first].tolist()) == in_S_t and sorted(order) == list(range(data.n_users))
    run = known_run(general, 0, 2.0)
    curve = rq5.cumulative_hits(general, run, order)
    by_user = dict(zip(run.users.tolist(), run.per_user["p@10"].tolist(), strict=True))
    assert curve[4] == pytest.approx(sum(by_user.get(int(user), 0.0) for user in order[:5]))
    assert curve[-1] == pytest.approx(run.per_user["p@10"].sum())


# ---- runs ----------------------------------------------------------------------------------------------------------


class Small:
    """An experiment with two systems."""

    NAME, TITLE, QUESTION = "rq1", "A small one", "Does it resume?"

    @staticmethod
    def plan(data, budget):
        return Plan({WHOLE: data}, [Cell(System(name, name, "mf")) for name in ("base", "unif")])

    findings = staticmethod(rq1.findings)


@pytest.fixture
def small(monkeypatch):
    """`rq1` with two systems whose searches are done in advance."""

    def search(self, cell):
        grid, fixed = budgets.axes(cell.system.method, "mf", self.budget, self.plan.conditions[WHOLE])
        point = {"lam": grid["lam"][0]}
        params = make(cell.system.method, **fixed, **point).resolved_params()
        del params["seed"]
        self.winners[cell] = Winner(params, point, grid, 3, 0.6)
        return self.winners[cell]

    monkeypatch.setitem(command.EXPERIMENTS, "rq1", Small)
    monkeypatch.setattr(Study, "_search", search)


def contents(directory):
    figures = sorted(path.relative_to(directory) for path in directory.glob("figures/*.svg"))
    assert figures
    return {str(name): (directory / name).read_bytes() for name in (*FILES, *figures)}


@pytest.mark.needs_jit
def test_interrupted_and_resumed_ends_in_the_same_files(small, data, tmp_path, monkeypatch):
    command.reproduce("rq1", data, tmp_path / "whole", "smoke")
    fitted, real = [], studies.fit_and_file

    def stopped(*args):
        fitted.append(args)
        if len(fitted) == 4:
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(studies, "fit_and_file", stopped)
        with pytest.raises(KeyboardInterrupt):
            command.reproduce("rq1", data, tmp_path / "resumed", "smoke")
    text = (tmp_path / "resumed" / "report.html").read_text()
    assert "UNFINISHED" in text and "1 of 2 systems are done" in text and ">Answer<" not in text
    fitted.clear()
    monkeypatch.setattr(studies, "fit_and_file", lambda *args: fitted.append(args) or real(*args))
    found = command.reproduce("rq1", data, tmp_path / "resumed", "smoke")
    assert len(fitted) == 1 and found[0]["finished"]  # what was done is not done again
    assert contents(tmp_path / "whole") == contents(tmp_path / "resumed")


@pytest.mark.needs_jit
def test_all_leads_to_its_reports(small, tmp_path, monkeypatch):
    class Second(Small):
        NAME, TITLE = "rq2", "Another small one"

    said = []

    def stop(line):
        said.append(line)
        if len(said) > 1 and said[-2].startswith("rq2"):
            raise KeyboardInterrupt

    out, data = tmp_path / "out", tiny_log(name=ATTACK)
    monkeypatch.setattr(command, "EXPERIMENTS", {"rq1": Small, "rq2": Second})
    with pytest.raises(KeyboardInterrupt):
        command.reproduce("all", data, out, "smoke", say=stop)
    text = (out / "index.html").read_text()
    assert text.count(">COMPLETE<") == 1 and text.count(">UNFINISHED<") == 2 and "Complete: 1 of 2 experiments" in text
    assert all((out / name).exists() for name in re.findall(r'href="(rq[^"]*)"', text)) and "rq2/report.html" in text
    found = command.reproduce("all", data, out, "smoke")
    text = (out / "index.html").read_text()
    assert text.count(">COMPLETE<") == 2 and "UNFINISHED" not in text
    assert all(escape(sentence) in text for one in found for sentence in one["answer"]) and found[0]["answer"]
    assert escape(ATTACK) in text and ATTACK not in text


@pytest.mark.needs_jit
def test_damaged_runs_are_made_again(small, data, tmp_path):
    command.reproduce("rq1", data, tmp_path / "out", "smoke")
    before = contents(tmp_path / "out")
    runs = sorted((tmp_path / "out" / "work" / "runs").iterdir())
    runs[0].write_bytes(runs[0].read_bytes()[:100])
    runs[1].unlink()
    command.reproduce("rq1", data, tmp_path / "out", "smoke")
    assert contents(tmp_path / "out") == before


@pytest.mark.needs_jit
def test_runs_hold_what_the_model_shows(data, tmp_path):
    params = {"rank": 4, "epochs": 3, "batch_size": 32}
    path = str(tmp_path / "run.npz")
    assert studies.fit_and_file("base", params, data, str(tmp_path), 5, path) is None
    run = studies._load(path, 5)
    model = make("base", **params, seed=5).fit(data)
    assert run.metrics["auc"] == model.evaluate(data)["auc"]
    items, _ = model.recommend(data.user_ids.values[run.users], k=10)
    assert (run.lists == items).all() and (run.per_user["ndcg"] >= 0).all()


def test_a_fit_that_fails_is_a_reason_not_a_crash(data, tmp_path):
    reason = studies.fit_and_file("base", {"rank": 0}, data, str(tmp_path), 0, str(tmp_path / "run.npz"))
    assert "rank=0" in reason and not (tmp_path / "run.npz").exists()


@pytest.mark.parametrize(
    "change, said",
    [
        ({"experiment": "rq9"}, "rq9"),
        ({"budget": "huge"}, "huge"),
        ({"n_jobs": 0}, "n_jobs=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_written(data, tmp_path, change, said):
    out = tmp_path / "out"
    with pytest.raises(InputError, match=said):
        command.reproduce(**({"experiment": "rq1", "data": data, "out": out} | change))
    assert not out.exists()


def test_all_refuses_data_that_rq4_cannot_use_before_it_runs_anything(data, tmp_path):
    S_c = data.triplets("S_c")
    parts = {part: data.triplets(part) for part in ("S_t", "S_va", "S_te")}
    parts["S_c"] = S_c._replace(labels=np.zeros(len(S_c.users)))
    with pytest.raises(InputError, match="rq4 needs more of both labels"):
        command.reproduce("all", Partition(parts, (data.n_users, data.n_items)), tmp_path / "out", "smoke")
    assert not (tmp_path / "out").exists()


def test_other_peoples_directories_are_left_alone(data, tmp_path):
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        command.reproduce("rq1", data, tmp_path, "smoke")
    with pytest.raises(InputError, match="is a file"):
        command.reproduce("rq1", data, tmp_path / "report.html", "smoke")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_the_command_is_quoted():
    words = command._command_line("rq1", SMOKE, 3, ["--biased", "my log.csv", "--random", "$(x)"])
    assert words == "dubnb reproduce rq1 --biased 'my log.csv' --random '$(x)' --budget smoke --seed 3 --out runs/rq1"


# ---- the real thing ------------------------------------------------------------------------------------------------


def _reproduce(experiment, out, *more):
    words = [sys.executable, "-m", "dubnb", "reproduce", experiment, "--data", "simulated", "--budget", "smoke"]
    return subprocess.Popen([*words, "--out", str(out), "--quiet", *more], stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.needs_jit
def test_smoke_runs_of_all_five(tmp_path):
    process = _reproduce("all", tmp_path / "runs", "--n-jobs", "2")
    assert process.wait(1800) == 0, process.stderr.read()
    for name in command.EXPERIMENTS:
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
        runs, deadline = tmp_path / "resumed" / "work" / "runs", time.monotonic() + 600
        while process.poll() is None and (not runs.is_dir() or len(list(runs.glob("*.npz"))) < wanted):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(stop)
        assert process.wait(120) != 0
        assert "UNFINISHED" in (tmp_path / "resumed" / "report.html").read_text()
    assert _reproduce("rq3", tmp_path / "resumed", "--n-jobs", "2").wait(900) == 0
    assert contents(tmp_path / "whole") == contents(tmp_path / "resumed")
