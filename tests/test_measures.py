"""Numbers, tables, sentences and drawings of studies whose fits have given numbers."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from dubnb import stats
from dubnb._check import InputError
from dubnb.data.partition import Partition, Triplets
from dubnb.experiments import budgets, pages, rq1, rq2, rq3, rq4, rq5
from dubnb.experiments.pages import Findings
from dubnb.experiments.study import (
    WHOLE,
    Case,
    Comparison,
    Study,
    Winner,
    best_value,
    report_metrics,
)
from dubnb.experiments.systems import BASELINES, BEYOND, PAPER, Choice, System
from dubnb.report import figures
from dubnb.report.page import Figure, Gallery, Section, Value
from tests.studies import BRIEF, known_study, numbered_study, system

# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_metrics_are_shown_that_a_fit_has_the_truth_last(data):
    one, other = Case(system("base")), Case(system("dub"))
    study = numbered_study(data, {one: [{"truth_auc": 0.8, "ndcg": math.nan}], other: [{"auc": 0.7, "ndcg": 0.1}]})
    assert study.metric_names() == ["auc", "ndcg", "truth_auc"] and study.metric_names(truth=False) == ["auc", "ndcg"]
    assert numbered_study(data, {one: [{"ndcg": math.nan, "auc": 0.5}]}).metric_names() == ["auc"]
    assert numbered_study(data, {one: None}).metric_names() == report_metrics()


def test_cases_by_backbone_and_condition_baselines_with_each(data):
    mf, ncf, other = Case(system("base")), Case(system("base", "ncf")), Case(system("base"), "less")
    popular = Case(system("popularity", group=BASELINES))
    study = numbered_study(data, {mf: [{}], ncf: None, popular: [{}], other: [{}]})
    assert study.backbones() == ["mf", "ncf"]
    assert study.cases("mf") == [mf, popular] and study.cases("ncf") == [ncf, popular]
    assert study.cases("mf", "less") == [other]
    assert study.done("ncf") == [popular] and study.done("mf", "less") == [other]


def test_means_over_seeds_and_the_best_of_them(data):
    a, b, c, d = (Case(system(name)) for name in ("base", "ips", "dub", "unif"))
    study = numbered_study(
        data,
        {
            a: [{"auc": 0.5, "brier": 0.1}, {"auc": 0.7, "brier": 0.3}],
            b: [{"auc": 0.8, "brier": 0.4}, {"auc": 0.8, "brier": 0.4}],
            c: [{"auc": 0.9}, {"brier": 0.1}],
            d: None,
        },
    )
    assert study.mean(a, "auc") == pytest.approx(0.6) and study.values(a, "auc").tolist() == [0.5, 0.7]
    assert math.isnan(study.mean(c, "auc")) and math.isnan(study.mean(d, "auc"))
    assert study.ranked([a, b, c, d], "auc") == [b, a] and study.ranked([b, a, c], "brier") == [a, b]
    numbers = [0.3, math.nan, 0.1, 0.2]
    assert (best_value(numbers, "auc"), best_value(numbers, "brier")) == (0.3, 0.1)
    assert best_value([math.nan], "auc") is None


def test_a_model_ranks_alike_by_its_mean_over_seeds(data):
    few, more, unknown, lost = (Case(system(name)) for name in ("base", "ips", "dub", "unif"))
    baseline = Case(system("popularity", group=BASELINES))
    alike = {"personal": 1e-5}
    numbers = {few: [alike, {"personal": 1.9e-3}], more: [alike, {"personal": 2.1e-3}], unknown: [{"auc": 0.5}]}
    study = numbered_study(data, numbers | {lost: None, baseline: [alike]})
    assert [study.ranks_alike(case) for case in study.design.cases] == [True, False, False, False, False]


def test_a_gain_in_auc_has_a_95_percent_interval_over_users(data):
    study = known_study(rq1, data, {"dub": 1.5}, choice=Choice(["base", "dub"], ["mf"]))
    dub, base = (next(case for case in study.results if case.system.name == name) for name in ("dub", "base"))
    scores, others = ([fit.output.scores for fit in study.results[case]] for case in (dub, base))
    S_te = data.triplets("S_te")
    found = study.compare(dub, base, "auc")
    expected = stats.auc_bootstrap(scores, others, S_te.labels, S_te.users, study.budget.bootstraps, 0.95, study.seed)
    assert (found.difference, found.low, found.high) == pytest.approx(expected[:3])


def test_systems_below_popularity_are_listed_by_condition(data):
    conditions = {WHOLE: data, "less": data, "none": data}
    numbers = {}
    for where, level in (("less", 0.7), (WHOLE, 0.6), ("none", 0.1)):
        numbers[Case(system("popularity", group=BASELINES), where)] = [{"auc": level}]
        numbers[Case(system("popularity-t", group=BASELINES), where)] = [{"auc": 0.05}]
        numbers |= {
            Case(system(name), where): [{"auc": auc}] for name, auc in (("base", 0.6), ("dub", 0.5), ("ips", 0.7))
        }
    study = numbered_study(data, numbers, conditions=conditions)
    found = {case.condition: [c.system.name for c in lower] for case, lower in study.below_popularity().items()}
    assert found == {"less": ["base", "dub"], WHOLE: ["dub"]}  # equal is not below
    assert [line for line in pages.study_warnings(study) if "popularity" in line] == [
        "Below popularity, which gives everyone the same ranking (AUC 0.7000, less): base (mf) and dub (mf).",
        "Below popularity, which gives everyone the same ranking (AUC 0.6000): dub (mf).",
    ]


# ---- budgets ---------------------------------------------------------------------------------------------------------


def test_budgets_are_the_paper_s_protocol_and_two_smaller_ones():
    """The paper: 5 x 5 x 3 candidates and ten seeds, searched under every condition."""
    spent = {name: (b.points, b.seeds, b.search_everywhere, b.bootstraps) for name, b in budgets.BUDGETS.items()}
    assert spent == {"smoke": (3, 2, False, 1000), "quick": (9, 3, False, 2000), "full": (5 * 5 * 3, 10, True, 2000)}
    assert [b.epoch_share for b in budgets.BUDGETS.values()] == [0.04, None, None]
    assert {name: b.extensions for name, b in budgets.BUDGETS.items()} == {"smoke": 0, "quick": 3, "full": 2}


def test_a_share_of_the_epochs_is_at_least_one(data):
    exact = System("dub exact", "dub", "mf", (("solver", "exact"),))
    assert budgets.search_of(exact, BRIEF, data).fixed == {"solver": "exact", "epochs": 1}  # 0.04 x 30
    assert budgets.search_of(exact, BRIEF._replace(epoch_share=0.5), data).fixed["epochs"] == 15


def test_a_search_counts_how_often_it_went_on():
    search = budgets.Search({"lam": (1.0, 2.0, 4.0), "rank": (2, 4, 8)}, {"loss": "bce"})
    assert search.beyond({"lam": 2.0, "rank": 4}) is None and search.extended == ()
    once = search.beyond({"lam": 4.0, "rank": 4})
    assert (once.axes["lam"], once.extended, once.fixed) == ((1.0, 2.0, 4.0, 8.0), (("lam", 1),), {"loss": "bce"})
    twice = once.beyond({"lam": 8.0, "rank": 8})
    assert twice.extended == (("lam", 2), ("rank", 1)) and twice.n_points == 5 * 4
    assert twice.beyond({"lam": 8.0, "rank": 8}) is None


def test_whole_numbers_are_extended_down_to_one():
    assert budgets.extend_axes({"rank": (8, 2, 4)}, {"rank": 2}) == {"rank": (8, 2, 4, 1)}
    assert budgets.extend_axes({"rank": (4, 1, 2)}, {"rank": 1}) == {"rank": (4, 1, 2)}  # nothing lies below


# ---- the paper's numbers, words, places ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seconds, said",
    [(89.4, "89 seconds"), (90, "1.5 minutes"), (600, "10 minutes"), (5400, "1.5 hours"), (864_000, "10 days")],
)
def test_duration_units_and_digits(seconds, said):
    assert budgets.duration_text(seconds) == said


def test_p_values_and_differences_in_cells():
    assert [pages.format_p(p) for p in (None, 0.0009, 0.001, 0.5)] == ["-", "<0.001", "0.001", "0.500"]
    assert pages.p_cell(0.25) == Value(0.25, "0.250") and pages.p_cell(None) == Value(None, "-")
    found = Comparison("auc", None, None, -0.00001, None, -0.02, 0.01, 0.5)
    assert pages.difference_cell(found) == Value(-0.00001, "+0.0000", "-0.0200 to +0.0100")


def test_a_directory_is_free_or_holds_an_earlier_run(tmp_path):
    pages.check_output_dir(tmp_path / "new")
    pages.check_output_dir(tmp_path)  # empty
    (tmp_path / "mine").write_text("")
    with pytest.raises(InputError, match="holds other files"):
        pages.check_output_dir(tmp_path)
    (tmp_path / pages.WORK).mkdir()
    pages.check_output_dir(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        pages.check_output_dir(tmp_path / "mine")


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_headings_stand_where_a_group_begins():
    cases = [Case(system(f"s{k}", group=group)) for k, group in enumerate((PAPER, PAPER, BEYOND, BASELINES, BASELINES))]
    assert pages.group_headings(cases) == {0: "the paper's systems", 2: "beyond the paper", 3: "baselines"}
    assert pages.group_headings(cases[:2]) == {}


def test_a_table_has_means_spreads_stars_and_the_paper_s_numbers(data):
    base, dub, lost = (Case(system(name)) for name in ("base", "dub", "unif"))
    study = numbered_study(
        data,
        {base: [{"auc": 0.5, "brier": 0.2}, {"auc": 0.6, "brier": 0.2}], dub: [{"auc": 0.7, "brier": 0.3}], lost: None},
    )
    table = pages.metric_table(study, "Title", [base, dub, lost], "Note.", {"auc": "*"})
    assert (table.title, table.header, table.note) == ("Title", ["system", "AUC", "Brier"], "Note.")
    assert [row[0].text for row in table.rows] == ["base", "dub", "unif"]
    assert table.rows[0][1] == Value(0.55, "0.5500", "±0.0707") and table.rows[1][1] == Value(0.7, "0.7000*", "", True)
    assert table.rows[0][2] == Value(0.2, "0.2000", "±0.0000", True) and table.rows[2][1] == Value(None)
    beside = pages.metric_table(study, "", [base, dub], "", None, {"dub": {"auc": 0.75}, "base": {}})
    assert beside.header == ["system", "AUC", "paper", "Brier"]
    assert [row[2] for row in beside.rows] == [Value(None), Value(0.75)]


def test_the_table_of_winners(data):
    study = numbered_study(data, {})
    base, dub, lost, baseline = (Case(system(name)) for name in ("base", "dub", "unif", "ips"))
    six, five = (1.0, 32.0, 2.0, 4.0, 8.0, 16.0), (1, 2, 3, 4, 5)
    study.winners[base] = Winner({}, {"lam": 32.0, "rank": 3}, {"lam": six, "rank": five}, 30, 0.75)
    study.winners[dub] = Winner({}, {"lam": 2.0}, {"lam": six}, 6, 0.5)
    study.winners |= {lost: None, baseline: Winner({}, {}, {}, 1, 0.6)}
    (table,) = pages.winners_section(study).parts
    first, second, third = table.rows  # what has nothing to search is left out
    assert first[2:5] == ["lam 32, rank 3", Value(0.75), "⚠ lam at the high end"] and first[5] == Value(30, "30")
    assert second[2:5] == ["lam 2", Value(0.5), "inside"] and "lam 1 to 32 (6 values)" in second[6]
    assert third[0] == "unif" and third[2:5] == ["-", Value(None), "no candidate finished"]
    study.winners = {Case(system("dub"), "less"): study.winners[dub], dub: study.winners[dub]}
    (table,) = pages.winners_section(study).parts
    assert table.header[2] == "condition" and [row[2] for row in table.rows] == ["less", WHOLE]
    study.winners = {}
    assert pages.winners_section(study).parts == []


def test_a_warning_names_all_whose_winner_lies_at_the_same_end(data):
    study = numbered_study(data, {})
    at_end = Winner({}, {"lam": 1.0}, {"lam": (1.0, 2.0, 3.0)}, 3, 0.5)
    study.winners = {Case(system(name)): at_end for name in ("base", "dub")} | {Case(system("unif")): None}
    study.design = study.design._replace(source=SimpleNamespace(truth=object()))
    said = pages.study_warnings(study)
    assert said == [
        pages.SMOKE,
        pages.SIMULATED,
        "The best lam lies at the low end of its grid, so perhaps beyond it: base (mf), dub (mf).",
    ]
    assert pages.data_warnings(data, budgets.BUDGETS["quick"]) == []


def test_a_page_names_the_experiment_its_data_and_its_protocol(data):
    study = numbered_study(data, {Case(system("base")): [{"auc": 0.5}]}, select="ndcg")
    study.design = study.design._replace(notes=(("lists", "ten items"),))
    found = pages.study_page(rq1, study, Findings(["Yes."], [Section("Results", [])]), "dubnb x")
    assert found[:4] == ("dubnb · RQ1", rq1.TITLE, rq1.QUESTION, ["Yes."]) and found.unfinished is None
    facts = dict(found.facts)
    assert data.fingerprint[:12] in facts["data"] and "60 users x 30 items" in facts["data"]
    assert "2 seeds" in facts["budget smoke"] and "nDCG" in facts["protocol"] and facts["lists"] == "ten items"
    labels = data.triplets("S_te").labels
    assert f"{len(labels)} ({100 * labels.sum() / (len(labels) - labels.sum()):.1f} %)" in facts["feedback (P/N)"]


def test_an_index_leads_to_what_is_written(data, tmp_path):
    (tmp_path / "rq1").mkdir()
    (tmp_path / "rq1" / "report.html").touch()
    drawing = figures.Drawing("x", "<svg></svg>", 1.0, 1.0)
    first = Section("a", [Figure("f", drawing, ""), Gallery([Figure("g", drawing._replace(name="y"), "")])])
    report = pages.study_page(rq1, numbered_study(data, {}), Findings(["Yes."], [Section("none", []), first]), "")
    found = pages.index_page([rq1, rq2], {"rq1": report}, str(tmp_path), data, BRIEF, "dubnb all")
    one, other = found.sections[0].parts
    assert tuple(one) == (f"RQ1 · {rq1.TITLE}", "rq1/report.html", True, ["Yes."], drawing)
    assert tuple(other) == (f"RQ2 · {rq2.TITLE}", None, False, [], None)
    assert found.unfinished.startswith("Complete: 1 of 2 experiments.") and found.command == "dubnb all"
    assert pages.index_page([rq1], {"rq1": report}, str(tmp_path), data, BRIEF, "").unfinished is None


# ---- drawings and answers --------------------------------------------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch):
    """{name of a figure: (what draws it, what it is given)}, nothing is drawn."""
    found = {}

    def recorder(kind):
        def record(name, *given, **named):
            found[name] = kind, given, named
            return figures.Drawing(name, "<svg></svg>", 1.0, 1.0)

        return record

    for kind in ("dots", "pairs", "curves", "reliability_diagram"):
        monkeypatch.setattr(figures, kind, recorder(kind))
    return found


def test_rq1_draws_every_seed_and_the_paper(data, drawn, monkeypatch):
    study = known_study(rq1, data, {"dub": 4.0}, choice=Choice(["base", "dub", "popularity"], ["mf"]))
    rq1.findings(study)
    kind, (values, label, published), _ = drawn["rq1-mf-ndcg"]
    assert (kind, label, published) == ("dots", "nDCG", {}) and list(values) == ["base", "dub", "popularity"]
    assert values["dub"].tolist() == [fit.metrics["ndcg"] for fit in study.results[study.design.cases[1]]]
    tables = {"mf": {"base": {"auc": 0.7282, "ndcg": 0.1}, "dub": {"auc": 0.7578, "ndcg": 0.2}, "ips": {}}}
    monkeypatch.setattr(pages, "published", lambda data, published: tables)
    rq1.findings(study)
    assert drawn["rq1-mf-auc"][1][2] == {"base": 0.7282, "dub": 0.7578}


def test_rq2_draws_differences_to_the_whole(data, drawn, monkeypatch):
    study = known_study(rq2, data, {"dub": 3.0, "dub without d": 1.0}, choice=Choice(["dub", "popularity"], ["mf"]))
    rq2.findings(study)
    kind, (values, label), named = drawn["rq2-dub-mf-auc"]
    assert (kind, named, label) == ("dots", {"zero": 0.0}, "AUC, difference to dub")
    assert list(values) == ["without e", "without a and e", "without a", "without d", "without c"]
    case = {case.system.name: case for case in study.design.cases}
    own, whole = (study.values(case[name], "auc") for name in ("dub without d", "dub"))
    assert values["without d"].tolist() == (own - whole).tolist()
    study.results.pop(case["dub without d"])
    rq2.findings(study)
    assert list(drawn["rq2-dub-mf-auc"][1][0]) == ["without e", "without a and e", "without a", "without c"]
    study.results = {case["dub"]: study.results[case["dub"]]}  # nothing to compare it with
    drawn.clear()
    assert rq2.findings(study).answer == [] and not drawn


def test_rq3_draws_shares_utility_and_rates(data, drawn):
    study = known_study(rq3, data, {"dub": 4.0}, choice=Choice(["base", "dub"]))
    found = rq3.findings(study)
    popular = rq3.popular_items(data)
    random = rq3.of_randomized(data, popular)
    S_te = data.triplets("S_te")
    assert random["popular"].recommended == popular[S_te.items].mean()
    assert random["popular"].hit == popular[S_te.items[S_te.labels == 1]].mean()
    means = rq3._mean([rq3.of_lists(data, popular, fit.output) for fit in study.results[study.design.cases[1]]])
    shares, utility, rates = (drawn[f"rq3-mf-{name}"] for name in ("shares", "utility", "rates"))
    assert list(shares[1][0]) == ["randomized", "base", "dub"] and list(rates[1][0]) == ["base", "dub"]
    assert shares[1][0]["dub"] == pytest.approx((100 * means["popular"].recommended, 100 * means["popular"].hit))
    assert utility[1][0]["dub"] == (means["popular"].utility, means["unpopular"].utility)
    assert utility[2] == {"line": 1.0}
    assert rates[1][0]["dub"] == pytest.approx((1000 * means["popular"].rate, 1000 * means["unpopular"].rate))
    table = found.sections[0].parts[1]
    assert [cell.value for cell in table.rows[2][1:]] == [*means["popular"], *means["unpopular"]]
    first = {(row["system"], row["seed"], row["metric"]): row["value"] for row in found.rows}
    assert first["randomized", None, "popular hit"] == random["popular"].hit
    own = rq3.of_lists(data, popular, study.results[study.design.cases[1]][1].output)
    assert first["dub", 1, "unpopular rate"] == own["unpopular"].rate
    empty = Study(study.design, study.budget, "work")
    assert rq3.findings(empty).rows == [] and rq3.findings(empty).answer == []


def test_rq3_leaves_padding_of_short_lists_out():
    """Items 0 and 1 at the first place of a list count, -1 does not."""
    rows = {"S_c": [(0, 0, 1)], "S_t": [(0, 4, 1)], "S_va": [(0, 3, 1)], "S_te": [(0, 1, 1), (1, 0, 1), (1, 2, 0)]}
    columns = {part: np.array(own).T for part, own in rows.items()}
    parts = {part: Triplets(u, i, y.astype(float), np.ones(len(u))) for part, (u, i, y) in columns.items()}
    output = SimpleNamespace(users=np.array([0, 1]), lists=np.array([[1, 3, -1], [0, 2, -1]]))
    found = rq3.of_lists(Partition(parts, (2, 5)), np.array([True, True, False, False, False]), output)
    assert found == {"popular": (0.5, 1.0, 2.0, 1.0), "unpopular": (0.5, 0.0, 0.0, 0.0)}


def small_log(n_positives, n_negatives):
    n = n_positives + n_negatives
    labels = np.r_[np.ones(n_positives), np.zeros(n_negatives)]
    S_c = Triplets(np.arange(n), np.zeros(n, dtype=int), labels, np.ones(n))
    other = Triplets(np.arange(2), np.ones(2, dtype=int), np.array([0.0, 1.0]), np.ones(2))
    parts = {"S_c": S_c, "S_t": other, "S_va": other._replace(items=other.items + 1)}
    return Partition(parts | {"S_te": other._replace(items=other.items + 2)}, (n, 4))


def test_rq4_takes_all_that_there_is_of_a_label():
    """7 positives and 9 negatives make 10 pairs with 70 % or with 10 % positives, the smallest subset there is."""
    log = small_log(7, 9)
    assert rq4.subset_size(log)[0] == 10
    for percentage, n in ((70, 7), (10, 1)):
        S_c = rq4.with_positives(log, 10, percentage).triplets("S_c")
        assert (len(S_c.labels), S_c.labels.sum()) == (10, n)
    for refused in (small_log(6, 9), small_log(7, 8)):
        with pytest.raises(InputError, match="rq4 needs more of both labels"):
            rq4.subset_size(refused)
    assert len(rq4.with_less_S_t(log, 10).triplets("S_t").users) == 1  # never none


def test_rq4_draws_means_and_spreads_by_share(data, drawn):
    study = known_study(rq4, data, {"dub": 4.0}, choice=Choice(["base", "dub", "popularity"], ["mf"]))
    found = rq4.findings(study)
    assert [section.title for section in found.sections] == ["Positives in S_c", "Size of S_t"]
    for factor, label in rq4.FACTORS.items():
        kind, (shares, lines, labels), named = drawn[f"rq4-{factor}-mf"]
        assert (kind, shares, labels, named) == ("curves", [10, 30, 50, 70], (label, "AUC"), {"bold": ("dub",)})
        own = [case for case in study.design.cases if case.system.name == "dub" and case.condition.startswith(factor)]
        values = np.array([study.values(case, "auc") for case in own])
        means, spread = lines["dub"]
        assert means.tolist() == values.mean(axis=1).tolist() and spread.tolist() == values.std(axis=1, ddof=1).tolist()
    table = found.sections[0].parts[1]
    assert table.header == ["system", "10 %", "30 %", "50 %", "70 %"] and all(cell.best for cell in table.rows[1][1:])
    del study.results[own[-1]]
    rq4.findings(study)
    assert "dub" not in drawn["rq4-S_t-mf"][1][1] and "dub" in drawn["rq4-S_c-mf"][1][1]
    rq4.findings(known_study(rq4, data, {}, seeds=1, choice=Choice(["base"], ["mf"])))
    assert drawn["rq4-S_c-mf"][1][1]["base"][1] is None  # one seed has no spread
    assert rq4.findings(Study(study.design, study.budget, "work")).answer == []


def test_derived_data_keep_the_truth_where_it_still_holds(data):
    """Of a subset of S_c it does; of biased validation and test pairs, as in rq5, it does not."""
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_va", "S_te")}
    log = Partition(parts, (data.n_users, data.n_items), name="with a truth")
    log.truth = object()
    assert rq4.with_positives(log, 50, 30).truth is rq4.with_less_S_t(log, 30).truth is log.truth
    assert rq5.general_split(log).truth is None and rq5.general_split(log).name == "with a truth, S_c split 5:2:3"


def test_subsets_are_drawn_alike_in_every_version(data):
    """Or reports of two versions would be of other data."""

    def total(log, part):
        found = log.triplets(part)
        return int((found.users.astype(int) * log.n_items + found.items).sum())

    general, fewer, less = rq5.general_split(data), rq4.with_positives(data, 50, 30), rq4.with_less_S_t(data, 30)
    assert [total(general, part) for part in ("S_c", "S_va", "S_te")] == [194652, 75749, 127776]
    assert (total(fewer, "S_c"), total(less, "S_t")) == (50035, 41672)


def test_rq5_adds_gains_up_in_the_order_of_users(drawn):
    order = rq5.UserOrder(np.array([2, 0, 1, 3]), 1, "users of S_t", "")
    hits = {"base": np.array([0.1, 0.1, 0.1, 0.1]), "dub": np.array([0.2, 0.1, 0.5, 0.0]), "ips": np.zeros(4)}
    first, second = rq5._gains("mf", hits, order)
    kind, (places, lines, labels, n_first, bold), _ = drawn["rq5-mf-gain"]
    assert (kind, places.tolist(), n_first, bold) == ("curves", [1, 2, 3, 4], 1, ("dub",))
    assert list(lines) == ["dub", "ips"] and lines["dub"][0] == pytest.approx([0.4, 0.5, 0.5, 0.4])
    assert lines["dub"][1] is None and labels == ("users", "sum of hit probabilities, minus base's")
    _, (split, series, _), _ = drawn["rq5-mf-hits"]
    assert split["dub"] == pytest.approx((0.5, 0.1)) and series == ("users of S_t", "others")
    assert first.title == "Cumulative gain over base, mf" and second.title == "Hit probability, mf"
    assert len(rq5._gains("mf", hits, order._replace(n_first=4))) == 1  # no other group
    assert rq5._gains("mf", {"base": hits["base"]}, order) == []
