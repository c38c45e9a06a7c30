"""Numbers, tables, words and drawings of studies whose fits have given numbers."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from dubnb import stats
from dubnb._check import InputError
from dubnb.data.partition import Partition, Triplets
from dubnb.experiments import (
    budgets,
    document,
    estimate,
    layout,
    measures,
    paper,
    place,
    rq1,
    rq2,
    rq3,
    rq4,
    rq5,
    words,
)
from dubnb.experiments.experiment import Findings
from dubnb.experiments.study import WHOLE, Case, Design, Judged, Study, Winner
from dubnb.experiments.systems import BASELINES, BEYOND, PAPER, Choice, System
from dubnb.report import figures
from dubnb.report.page import Figure, Gallery, Section, Value
from tests.test_experiments import known_study, tiny_log

BRIEF = budgets.BUDGETS["smoke"]._replace(bootstraps=50)


@pytest.fixture(scope="module")
def data():
    return tiny_log()


def system(name, backbone="mf", group=PAPER, **fixed):
    method = name if group == PAPER else "base"
    return System(name, method, backbone, tuple(fixed.items()), group)


def judged(seed=0, **metrics):
    """A fit with these metrics on S_te; p_5 stands for p@5."""
    named = {name.replace("p_", "p@"): value for name, value in metrics.items()}
    return Judged(seed, named, *(None,) * 6)


def study_of(data, numbers, select="auc", conditions=None, budget=BRIEF):
    """{case: its fits' metrics, one dict per seed; None: not done}."""
    study = Study(Design(data, conditions or {WHOLE: data}, list(numbers), select), budget, "work")
    for case, seeds in numbers.items():
        if seeds is not None:
            study.judged[case] = [judged(seed, **own) for seed, own in enumerate(seeds)]
    return study


def auc_study(data, **means):
    return study_of(data, {Case(system(name)): [{"auc": mean}] for name, mean in means.items()})


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_metrics_against_the_truth_are_called_so():
    assert (measures.label("auc"), measures.label("truth_p@5")) == ("AUC", "truth P@5")
    assert [measures.low_is_good(name) for name in ("auc", "brier", "truth_brier", "truth_ndcg")] == [0, 1, 1, 0]
    names = ("auc", "ndcg", "p@5", "r@10", "log_loss", "brier", "ece")
    assert [measures.comparable(name) for name in names] == [True, True, True, True, False, False, False]


def test_metrics_are_shown_that_a_fit_has_the_truth_last(data):
    one, other = Case(system("base")), Case(system("dub"))
    study = study_of(data, {one: [{"truth_auc": 0.8, "ndcg": math.nan}], other: [{"auc": 0.7, "ndcg": 0.1}]})
    assert measures.shown(study) == ["auc", "ndcg", "truth_auc"] and measures.on_S_te(study) == ["auc", "ndcg"]
    assert measures.shown(study_of(data, {one: [{"ndcg": math.nan, "auc": 0.5}]})) == ["auc"]
    assert measures.shown(study_of(data, {one: None})) == measures.names()


def test_cases_by_backbone_and_condition_baselines_with_each(data):
    mf, ncf, other = Case(system("base")), Case(system("base", "ncf")), Case(system("base"), "less")
    popular = Case(system("popularity", group=BASELINES))
    study = study_of(data, {mf: [{}], ncf: None, popular: [{}], other: [{}]})
    assert measures.backbones(study) == ["mf", "ncf"]
    assert measures.cases(study, "mf") == [mf, popular] and measures.cases(study, "ncf") == [ncf, popular]
    assert measures.cases(study, "mf", "less") == [other]
    assert measures.done(study, "ncf") == [popular] and measures.done(study, "mf", "less") == [other]


def test_means_over_seeds_and_the_best_of_them(data):
    a, b, c, d = (Case(system(name)) for name in ("base", "ips", "dub", "unif"))
    study = study_of(
        data,
        {
            a: [{"auc": 0.5, "brier": 0.1}, {"auc": 0.7, "brier": 0.3}],
            b: [{"auc": 0.8, "brier": 0.4}, {"auc": 0.8, "brier": 0.4}],
            c: [{"auc": 0.9}, {"brier": 0.1}],
            d: None,
        },
    )
    assert measures.mean(study, a, "auc") == pytest.approx(0.6) and measures.values(study, a, "auc").tolist() == [
        0.5,
        0.7,
    ]
    assert math.isnan(measures.mean(study, c, "auc")) and math.isnan(measures.mean(study, d, "auc"))
    assert measures.ranked(study, [a, b, c, d], "auc") == [b, a] and measures.ranked(study, [b, a, c], "brier") == [
        a,
        b,
    ]
    numbers = [0.3, math.nan, 0.1, 0.2]
    assert (measures.best(numbers, "auc"), measures.best(numbers, "brier")) == (0.3, 0.1)
    assert measures.best([math.nan], "auc") is None


def test_those_lead_together_whose_means_print_alike(data):
    study = auc_study(data, base=0.70001, ips=0.70004, dub=0.6999)
    assert measures.leaders(study, study.design.cases, "auc") == ["base", "ips"]
    cases = [Case(system(name)) for name in ("base", "ips", "dub")]
    low = study_of(
        data, dict(zip(cases, ([{"brier": 0.20001}], [{"brier": 0.20004}], [{"brier": 0.2002}]), strict=True))
    )
    assert measures.leaders(low, cases, "brier") == ["base", "ips"]


def test_a_model_ranks_alike_by_its_mean_over_seeds(data):
    few, more, unknown, lost = (Case(system(name)) for name in ("base", "ips", "dub", "unif"))
    baseline = Case(system("popularity", group=BASELINES))
    alike = {"personal": 1e-5}
    numbers = {few: [alike, {"personal": 1.9e-3}], more: [alike, {"personal": 2.1e-3}], unknown: [{"auc": 0.5}]}
    study = study_of(data, numbers | {lost: None, baseline: [alike]})
    assert [measures.ranks_alike(study, case) for case in study.design.cases] == [True, False, False, False, False]


def test_what_lies_below_popularity_is_told_by_condition(data):
    conditions = {WHOLE: data, "less": data, "none": data}
    numbers = {}
    for where, level in (("less", 0.7), (WHOLE, 0.6), ("none", 0.1)):
        numbers[Case(system("popularity", group=BASELINES), where)] = [{"auc": level}]
        numbers[Case(system("popularity-t", group=BASELINES), where)] = [{"auc": 0.05}]
        numbers |= {
            Case(system(name), where): [{"auc": auc}] for name, auc in (("base", 0.6), ("dub", 0.5), ("ips", 0.7))
        }
    study = study_of(data, numbers, conditions=conditions)
    found = {case.condition: [c.system.name for c in lower] for case, lower in measures.below_popularity(study).items()}
    assert found == {"less": ["base", "dub"], WHOLE: ["dub"]}  # equal is not below
    assert [line for line in layout.warnings_of(study, data) if "popularity" in line] == [
        "Below popularity, which ranks alike for everyone (AUC 0.7000, less): base (mf) and dub (mf).",
        "Below popularity, which ranks alike for everyone (AUC 0.6000): dub (mf).",
    ]


def test_users_are_drawn_again_for_a_comparison(data, tmp_path):
    study = known_study(rq1, data, {"dub": 2.0}, tmp_path, choice=Choice(["base", "dub"], ["mf"]))
    study.seed = 3
    base, dub = study.design.cases
    S_te = data.triplets("S_te")
    fits = [[fit.scores for fit in study.judged[case]] for case in (dub, base)]
    auc = stats.auc_bootstrap(*fits, S_te.labels, S_te.users, 50, seed=3)
    found = measures.compare(study, dub, base, "auc")
    assert (found.metric, found.first, found.second, found.seeds_p) == ("auc", dub, base, None)
    assert (found.difference, found.low, found.high, found.users_p) == tuple(auc)
    means = [np.mean([fit.per_user["p@5"] for fit in study.judged[case]], axis=0) for case in (dub, base)]
    found, expected = measures.compare(study, dub, base, "p@5"), stats.paired_bootstrap(*means, 50, seed=3)
    assert (found.difference, found.low, found.high) == tuple(expected)[:3]
    assert found.users_p == stats.paired_t(*means)
    assert measures.corrected([found, found]) == pytest.approx([min(1.0, 2 * found.users_p)] * 2)
    assert measures.corrected([]) == []


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


def test_values_lie_around_their_centre():
    assert budgets._around(1.0, 10.0, 5) == (0.01, 0.1, 1.0, 10.0, 100.0)
    assert budgets._around(3, 2.0, 3) == (2, 3, 6) and budgets._around(1, 4.0, 3) == (1, 4)  # whole, each once
    settled = SimpleNamespace(lam=0.5, gamma=0.0, clip=None, side="both", rank=8, shrink=0.25)
    near = {"gamma": 3.0, "clip": 2.0, "side": 2.0, "lam": 10.0, "shrink": 2.0, "rank": 2.0}
    assert budgets._around_defaults(settled, near, {"shrink"}, 9) == {"lam": (0.05, 0.5, 5.0), "rank": (4, 8, 16)}
    assert budgets._around_defaults(settled, near, {"rank"}, 9)["shrink"] == (0.125, 0.25, 0.5)  # below one
    assert budgets._around_defaults(settled, {"gamma": 3.0}, set(), 9) == {} and budgets.n_points({}) == 1


def test_what_is_not_searched_makes_the_first_real_parameter_finer():
    near = {"rank": 2.0, "lam": 10.0, "gamma": 3.0}
    axes = {"rank": (50,), "lam": (0.01, 1.0), "gamma": (0.5, 1.0)}
    assert budgets._refined(axes, near, 8) == axes | {"lam": (0.01, 0.0464, 0.215, 1.0)}
    assert budgets._refined(axes, near, 7) == axes and budgets._refined({}, near, 75) == {}
    whole = {"rank": (50, 100)}
    assert budgets._refined(whole, near, 8) == whole


def test_a_search_counts_how_often_it_went_on():
    search = budgets.Search({"lam": (1.0, 2.0, 4.0), "rank": (2, 4, 8)}, {"loss": "bce"})
    assert search.beyond({"lam": 2.0, "rank": 4}) is None and search.extended == ()
    once = search.beyond({"lam": 4.0, "rank": 4})
    assert (once.axes["lam"], once.extended, once.fixed) == ((1.0, 2.0, 4.0, 8.0), (("lam", 1),), {"loss": "bce"})
    twice = once.beyond({"lam": 8.0, "rank": 8})
    assert twice.extended == (("lam", 2), ("rank", 1)) and twice.n_points == 5 * 4
    assert twice.beyond({"lam": 8.0, "rank": 8}) is None
    assert budgets.went_on(BRIEF) == "" and "(at most 3 times)" in budgets.went_on(budgets.BUDGETS["quick"])


def test_whole_numbers_are_extended_down_to_one():
    assert budgets.extended({"rank": (8, 2, 4)}, {"rank": 2}) == {"rank": (8, 2, 4, 1)}
    assert budgets.extended({"rank": (4, 1, 2)}, {"rank": 1}) == {"rank": (4, 1, 2)}  # nothing lies below


def test_the_first_of_the_largest_logs_is_timed(data, tmp_path):
    conditions = {"small": tiny_log(50), "large": data, "as large": tiny_log(name="as large")}
    S_c = conditions["as large"].triplets("S_c")
    parts = {part: data.triplets(part) for part in ("S_t", "S_va", "S_te")} | {
        "S_c": S_c._replace(labels=1 - S_c.labels)
    }
    conditions["as large"] = Partition(parts, (data.n_users, data.n_items))
    cases = [Case(system("base"), where) for where in conditions]
    study = study_of(data, dict.fromkeys(cases), conditions=conditions, budget=BRIEF._replace(search_everywhere=True))
    (own,) = estimate.ahead([study]).values()
    axis = budgets.search_of(system("base"), BRIEF, data).axes["lam"]
    assert own.sample.data == data.fingerprint != conditions["as large"].fingerprint
    assert own.sample.params["lam"] == axis[1] and own.n_fits == 3 * (3 + 2)


# ---- the paper's numbers, words, places ------------------------------------------------------------------------------


def test_the_paper_s_numbers_are_shares():
    for tables in (paper.YAHOO_R3, paper.YAHOO_R3_ABLATION):
        for rows in tables.values():
            for row in rows.values():
                assert list(row) == list(paper.METRICS) and all(0 < value < 1 for value in row.values())
                assert row["r@5"] < row["r@10"] and row["auc"] > 0.5
    for backbone, rows in paper.YAHOO_R3_ABLATION.items():
        assert rows["dub"] == paper.YAHOO_R3[backbone]["dub"]


@pytest.mark.parametrize(
    "seconds, said",
    [
        (89.4, "89 seconds"),
        (90, "1.5 minutes"),
        (599, "10.0 minutes"),
        (600, "10 minutes"),
        (5399, "90 minutes"),
        (5400, "1.5 hours"),
        (36_000, "10 hours"),
        (129_600, "1.5 days"),
        (864_000, "10 days"),
    ],
)
def test_a_unit_begins_at_one_and_a_half_and_loses_its_digit_at_ten(seconds, said):
    assert words.in_words(seconds) == said


def test_p_values_and_differences_in_cells():
    assert [words.p_text(p) for p in (None, 0.0009, 0.001, 0.5)] == ["-", "<0.001", "0.001", "0.500"]
    assert words.p_value(0.25) == Value(0.25, "0.250") and words.p_value(None) == Value(None, "-")
    found = measures.Comparison("auc", None, None, -0.00001, None, -0.02, 0.01, 0.5)
    assert words.difference(found) == Value(-0.00001, "+0.0000", "-0.0200 to +0.0100")


def test_a_directory_is_free_or_holds_an_earlier_run(tmp_path):
    place.check(tmp_path / "new")
    place.check(tmp_path)  # empty
    (tmp_path / "mine").write_text("")
    with pytest.raises(InputError, match="holds other files"):
        place.check(tmp_path)
    (tmp_path / place.WORK).mkdir()
    place.check(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        place.check(tmp_path / "mine")


def test_a_directory_notes_once_what_its_reports_are_of(tmp_path):
    asked = {"experiment": "rq1", "seed": 3}
    place.claim(tmp_path, asked)
    text = '{\n  "experiment": "rq1",\n  "seed": 3\n}\n'
    assert (tmp_path / place.ABOUT).read_text() == text and json.loads(text) == asked
    place.claim(tmp_path, asked)
    with pytest.raises(InputError, match="holds a report of seed 3, not 4"):
        place.claim(tmp_path, asked | {"seed": 4})
    (tmp_path / place.ABOUT).write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        place.claim(tmp_path, asked)


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_headings_stand_where_a_group_begins():
    cases = [Case(system(f"s{k}", group=group)) for k, group in enumerate((PAPER, PAPER, BEYOND, BASELINES, BASELINES))]
    headings = {0: "the paper's systems", 2: "beyond the paper", 3: "baselines"}
    assert layout.groups(cases) == headings and layout.groups(cases[:2]) == {} and layout.groups([]) == {}
    assert layout.groups(cases[1:3]) == {0: "the paper's systems", 1: "beyond the paper"}


def test_a_table_has_means_spreads_stars_and_the_paper_s_numbers(data):
    base, dub, lost = (Case(system(name)) for name in ("base", "dub", "unif"))
    study = study_of(
        data,
        {base: [{"auc": 0.5, "brier": 0.2}, {"auc": 0.6, "brier": 0.2}], dub: [{"auc": 0.7, "brier": 0.3}], lost: None},
    )
    table = layout.metric_table(study, "Title", [base, dub, lost], "Note.", {"auc": "*"})
    assert (table.title, table.header, table.note) == ("Title", ["system", "AUC", "Brier"], "Note.")
    assert [row[0].text for row in table.rows] == ["base", "dub", "unif"] and table.heat == (1,)
    assert table.rows[0][1] == Value(0.55, "0.5500", "±0.0707") and table.rows[1][1] == Value(0.7, "0.7000*", "", True)
    assert table.rows[0][2] == Value(0.2, "0.2000", "±0.0000", True) and table.rows[2][1] == Value(None)
    beside = layout.metric_table(study, "", [base, dub], "", None, {"dub": {"auc": 0.75}, "base": {}})
    assert beside.header == ["system", "AUC", "paper", "Brier"] and beside.heat == ()
    assert [row[2] for row in beside.rows] == [Value(None), Value(0.75)]


def test_the_table_of_winners(data):
    study = study_of(data, {})
    base, dub, lost, baseline = (Case(system(name)) for name in ("base", "dub", "unif", "ips"))
    six, five = (1.0, 32.0, 2.0, 4.0, 8.0, 16.0), (1, 2, 3, 4, 5)
    study.winners[base] = Winner({}, {"lam": 32.0, "rank": 3}, {"lam": six, "rank": five}, 30, 0.75)
    study.winners[dub] = Winner({}, {"lam": 2.0}, {"lam": six}, 6, 0.5)
    study.winners |= {lost: None, baseline: Winner({}, {}, {}, 1, 0.6)}
    (table,) = layout.winners_section(study).parts
    assert table.header == ["system", "backbone", "chosen", "S_va AUC", "in the grid", "candidates", "grid"]
    grid, tried = "lam 1 to 32 (6 values)", lambda n: Value(n, str(n))
    assert table.rows == [
        [
            "base",
            "mf",
            "lam 32, rank 3",
            Value(0.75),
            "⚠ lam at the high end",
            tried(30),
            f"{grid}; rank 1, 2, 3, 4, 5",
        ],
        ["dub", "mf", "lam 2", Value(0.5), "inside", tried(6), grid],
        ["unif", "mf", "-", Value(None), "no candidate finished", Value(None), "-"],
    ]  # what has nothing to search is left out
    study.winners = {Case(system("dub"), "less"): study.winners[dub], dub: study.winners[dub]}
    (table,) = layout.winners_section(study).parts
    assert table.header[2] == "condition" and [row[2] for row in table.rows] == ["less", WHOLE]
    study.winners = {}
    assert layout.winners_section(study).parts == []


def test_a_warning_names_all_whose_winner_lies_at_the_same_end(data):
    study = study_of(data, {})
    at_end = Winner({}, {"lam": 1.0}, {"lam": (1.0, 2.0, 3.0)}, 3, 0.5)
    study.winners = {Case(system(name)): at_end for name in ("base", "dub")} | {Case(system("unif")): None}
    simulated = SimpleNamespace(truth=object())
    said = layout.warnings_of(study, simulated)
    assert said == [
        layout.SMOKE,
        layout.SIMULATED,
        "The best lam lies at the low end of its grid, so perhaps beyond it: base (mf), dub (mf).",
    ]
    assert layout.data_warnings(data, budgets.BUDGETS["quick"]) == []


def test_an_unfinished_report_counts_what_is_done_or_has_failed(data):
    cases = [Case(system(name)) for name in ("base", "dub", "ips", "unif")]
    study = study_of(data, dict.fromkeys(cases) | {cases[0]: [{"auc": 0.5}]})
    study.failures[cases[1]] = "diverged"
    assert not study.finished and document._unfinished(study).startswith("2 of 4 systems are done,")
    more = study_of(data, {}, conditions={WHOLE: data, "less": data})
    assert document._unfinished(more).startswith("0 of 0 systems and conditions are done")
    study.failures |= {case: "diverged" for case in cases[2:]}
    assert study.finished


def test_a_page_tells_the_experiment_its_data_and_its_protocol(data):
    study = study_of(data, {Case(system("base")): [{"auc": 0.5}]}, select="ndcg")
    study.design = study.design._replace(notes=(("lists", "ten items"),))
    found = document.page(rq1, study, Findings(["Yes."], [Section("Results", [])]), "dubnb x")
    assert found[:4] == ("dubnb · RQ1", rq1.TITLE, rq1.QUESTION, ["Yes."]) and found.unfinished is None
    facts = dict(found.facts)
    assert facts["data"] == f"tiny: 60 users x 30 items, fingerprint {data.fingerprint[:12]}"
    assert facts["budget smoke"].startswith("3 candidates for every system, 2 seeds for every winner; a check")
    assert facts["protocol"].endswith("pooled AUC; selected on S_va nDCG") and facts["lists"] == "ten items"
    assert [section.title for section in found.sections] == ["Results", "What the searches chose"]
    assert found.command == "dubnb x" and set(found.versions) == {"dubnb", "numpy", "numba", "scipy", "python"}
    study.judged.clear()
    later = document.page(rq1, study, Findings(["Yes."], []), "dubnb x")
    assert list(later.answer) == [] and later.unfinished.startswith("0 of 1 systems are done")


def test_an_index_leads_to_what_is_written(data, tmp_path):
    (tmp_path / "rq1").mkdir()
    (tmp_path / "rq1" / "report.html").touch()
    drawing = figures.Drawing("x", "<svg></svg>", 1.0, 1.0)
    first = Section("a", [Figure("f", drawing, ""), Gallery([Figure("g", drawing._replace(name="y"), "")])])
    report = document.page(rq1, study_of(data, {}), Findings(["Yes."], [Section("none", []), first]), "")
    found = document.index_page([rq1, rq2], {"rq1": report}, str(tmp_path), data, BRIEF, "dubnb all")
    one, other = found.sections[0].parts
    assert tuple(one) == (f"RQ1 · {rq1.TITLE}", "rq1/report.html", True, ["Yes."], drawing)
    assert tuple(other) == (f"RQ2 · {rq2.TITLE}", None, False, [], None)
    assert found.unfinished.startswith("Complete: 1 of 2 experiments.") and found.command == "dubnb all"
    assert document.index_page([rq1], {"rq1": report}, str(tmp_path), data, BRIEF, "").unfinished is None


def test_facts_of_the_data_are_told(data):
    labels = data.triplets("S_te").labels
    positives, n = int(labels.sum()), len(labels)
    assert document._size(data, "S_te") == f"{n:,} ({100 * positives / (n - positives):.1f} %)"
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_va")}
    parts["S_te"] = data.triplets("S_te")._replace(labels=np.ones(n))
    assert document._size(Partition(parts, (data.n_users, data.n_items)), "S_te") == f"{n:,}"


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

    for kind in ("dots", "pairs", "curves", "reliability"):
        monkeypatch.setattr(figures, kind, recorder(kind))
    return found


def assert_titled(findings):
    """Every section has a title, every part of it is a table or figures with text where text belongs."""
    for section in findings.sections:
        assert isinstance(section.title, str)
        for part in section.parts:
            for figure in getattr(part, "figures", ()):
                assert isinstance(figure.title, str) and isinstance(figure.drawing, figures.Drawing)
                assert isinstance(figure.caption, str)
            assert isinstance(getattr(part, "title", ""), str)


def test_rq1_draws_every_seed_and_the_paper(data, tmp_path, drawn, monkeypatch):
    study = known_study(rq1, data, {"dub": 4.0}, tmp_path, choice=Choice(["base", "dub", "popularity"], ["mf"]))
    assert_titled(rq1.findings(study))
    kind, (values, label, published), _ = drawn["rq1-mf-ndcg"]
    assert (kind, label, published) == ("dots", "nDCG", {}) and list(values) == ["base", "dub", "popularity"]
    assert values["dub"].tolist() == [fit.metrics["ndcg"] for fit in study.judged[study.design.cases[1]]]
    assert [figure.title for figure in rq1._figures(study)] == ["AUC, mf", "nDCG, mf"]
    assert not any("Diamonds" in figure.caption for figure in rq1._figures(study))
    monkeypatch.setattr(paper, "beside", lambda data, tables: tables)
    assert all(figure.caption.endswith("mean. Diamonds: the paper.") for figure in rq1._figures(study))
    assert drawn["rq1-mf-auc"][1][2] == {"base": 0.7282, "dub": 0.7578}


def test_rq1_stars_the_best_of_the_widest_field(data, tmp_path, drawn):
    def compared(seeds_p, users_p):
        return rq1._stars(measures.Comparison("auc", None, None, 0.1, seeds_p, 0.0, 0.2, 0.5), users_p)

    found = [compared(*p) for p in ((0.01, 0.01), (0.01, 0.2), (None, 0.01), (0.2, 0.01), (None, 0.2))]
    assert found == ["*†", "*", "†", "†", ""]
    study = known_study(
        rq1, data, {"dub-x binary": 9.0}, tmp_path, choice=Choice(["base", "dub", "dub-x binary"], ["mf"])
    )
    study.budget = study.budget._replace(bootstraps=1000)
    tested = rq1._tested(study)
    assert [len({f for f, _, _ in tested}), len(tested)] == [2, 18]
    row = {row[0].text: row for row in rq1._table(study, "mf", tested).rows}
    assert row["dub-x binary"][1].text.endswith("†") and not row["dub"][1].text.endswith("†")
    one = known_study(rq1, data, {}, tmp_path, choice=Choice(["base"], ["mf"]))
    assert rq1._tested(one) == {} and rq1.findings(one).answer == []


def test_rq2_draws_differences_to_the_whole(data, tmp_path, drawn, monkeypatch):
    study = known_study(
        rq2, data, {"dub": 3.0, "dub without d": 1.0}, tmp_path, choice=Choice(["dub", "popularity"], ["mf"])
    )
    assert_titled(rq2.findings(study))
    kind, (values, label), named = drawn["rq2-dub-mf-auc"]
    assert (kind, named, label) == ("dots", {"zero": 0.0}, "AUC, difference to dub")
    assert list(values) == ["without e", "without a and e", "without a", "without d", "without c"]
    case = {case.system.name: case for case in study.design.cases}
    own, whole = (measures.values(study, case[name], "auc") for name in ("dub without d", "dub"))
    assert values["without d"].tolist() == (own - whole).tolist() and set(drawn) == {
        "rq2-dub-mf-auc",
        "rq2-dub-mf-ndcg",
    }
    lost = case["dub without d"]
    kept = study.judged.pop(lost)
    assert "without d" not in {variant for _, _, variant in rq2._tested(study)} and len(rq2._tested(study)) == 4
    rq2._figures(study)
    assert list(drawn["rq2-dub-mf-auc"][1][0]) == ["without e", "without a and e", "without a", "without c"]
    study.judged = {case["dub"]: study.judged[case["dub"]]}  # nothing to hold it against
    assert rq2._figures(study) == [] and rq2._tested(study) == {}
    study.judged = {lost: kept}  # or nothing to be held against
    assert rq2._figures(study) == [] and rq2._tested(study) == {}
    ((backbone, whole),) = rq2._wholes(study)
    table = rq2._table(study, backbone, whole)
    assert {row[0].text: row[1].spread[:1] for row in table.rows}["dub without d"] == "±"  # no difference is known


def test_rq2_prints_the_paper_beside_what_it_took_apart(data, tmp_path, drawn, monkeypatch):
    monkeypatch.setattr(paper, "beside", lambda data, tables: tables)
    study = known_study(rq2, data, {}, tmp_path, choice=Choice(["dub", "dub-x binary"], ["mf"]))
    tables = {whole.system.name: rq2._table(study, backbone, whole) for backbone, whole in rq2._wholes(study)}
    assert "paper" in tables["dub"].header and "paper" not in tables["dub-x binary"].header
    assert tables["dub"].note == rq2.NOTE + rq2.NOTE_ON_DUB + rq2.NOTE_ON_START
    assert tables["dub-x binary"].note == rq2.NOTE
    assert tables["dub"].title == "dub, backbone mf" and tables["dub"].rows[0][2] == Value(0.7578)


def test_rq2_calls_a_difference_of_nothing_neither_a_fall_nor_a_rise():
    def found(difference):
        return measures.Comparison("auc", None, None, difference, None, 0.0, 0.0, 0.0)

    tested = {("mf", "dub", "without d"): (found(0.0), 0.01), ("mf", "dub", "without c"): (found(-0.5), 0.01)}
    assert rq2._answer(tested) == ["With mf, AUC of dub falls without c (-0.5000)."]


def test_rq3_draws_shares_utility_and_rates(data, tmp_path, drawn):
    study = known_study(rq3, data, {"dub": 4.0}, tmp_path, choice=Choice(["base", "dub"]))
    found = rq3.findings(study)
    assert_titled(found)
    popular = rq3.popular_items(data)
    random = rq3.of_randomized(data, popular)
    S_te = data.triplets("S_te")
    assert random["popular"].recommended == popular[S_te.items].mean()
    assert random["popular"].hit == popular[S_te.items[S_te.labels == 1]].mean()
    means = rq3._mean([rq3.of_lists(data, popular, fit) for fit in study.judged[study.design.cases[1]]])
    shares, utility, rates = (drawn[f"rq3-mf-{name}"] for name in ("shares", "utility", "rates"))
    assert list(shares[1][0]) == list(utility[1][0]) == ["randomized", "base", "dub"] and list(rates[1][0]) == [
        "base",
        "dub",
    ]
    assert shares[1][0]["dub"] == pytest.approx((100 * means["popular"].recommended, 100 * means["popular"].hit))
    assert utility[1][0]["dub"] == (means["popular"].utility, means["unpopular"].utility)
    assert utility[2] == {"line": 1.0}
    assert rates[1][0]["dub"] == pytest.approx((1000 * means["popular"].rate, 1000 * means["unpopular"].rate))
    table = found.sections[0].parts[1]
    assert [row[0].text for row in table.rows] == ["randomized", "base", "dub"] and table.heat == tuple(range(1, 9))
    assert table.header[1:5] == [f"popular: {name}" for name in ("of the shown", "of the hits", "utility", "hit rate")]
    assert [cell.value for cell in table.rows[2][1:]] == [*means["popular"], *means["unpopular"]]
    first = {(row["system"], row["seed"], row["metric"]): row["value"] for row in found.rows}
    assert first["randomized", None, "popular hit"] == random["popular"].hit
    own = rq3.of_lists(data, popular, study.judged[study.design.cases[1]][1])
    assert first["dub", 1, "unpopular rate"] == own["unpopular"].rate
    empty = Study(study.design, study.budget, "work")
    assert rq3.findings(empty).rows == [] and rq3.findings(empty).answer == []


def test_rq3_counts_nothing_where_nothing_is():
    popular = np.array([True, False])
    never = rq3.distribution(popular, np.array([1, 1]), np.array([True, False]))["popular"]
    assert (never.recommended, never.hit) == (0.0, 0.0) and math.isnan(never.utility) and math.isnan(never.rate)
    none = rq3.distribution(popular, np.array([], dtype=int), np.array([], dtype=bool))["unpopular"]
    assert all(math.isnan(value) for value in none)


def test_rq3_leaves_padding_of_short_lists_out():
    """Items 0 and 1 at the first place of a list count, -1 does not."""
    rows = {"S_c": [(0, 0, 1)], "S_t": [(0, 4, 1)], "S_va": [(0, 3, 1)], "S_te": [(0, 1, 1), (1, 0, 1), (1, 2, 0)]}
    columns = {part: np.array(own).T for part, own in rows.items()}
    parts = {part: Triplets(u, i, y.astype(float), np.ones(len(u))) for part, (u, i, y) in columns.items()}
    fit = judged()._replace(users=np.array([0, 1]), lists=np.array([[1, 3, -1], [0, 2, -1]]))
    found = rq3.of_lists(Partition(parts, (2, 5)), np.array([True, True, False, False, False]), fit)
    assert found == {"popular": (0.5, 1.0, 2.0, 1.0), "unpopular": (0.5, 0.0, 0.0, 0.0)}


def test_rq3_says_who_leads_by_what_is_printed():
    """5.004 and 5.001 print alike, 5.006 does not; rates print one digit."""

    def uses(utility, rate):
        return {"popular": rq3.Use(0.5, 0.6, 1.2, 0.3), "unpopular": rq3.Use(0.4, 0.4, utility, rate)}

    means = {"randomized": uses(1.0, 0.1), "a": uses(5.004, 0.20004), "b": uses(5.001, 0.20002), "c": uses(4.9, 0.1)}
    _, said = rq3._answer("mf", means)
    assert "a and b by utility (5.00), and of a and b by hits per 1,000 recommendations (200.0): both" in said
    _, said = rq3._answer("mf", means | {"d": uses(5.006, 0.20007)})
    assert "of d by utility (5.01), and of d by hits per 1,000 recommendations (200.1)" in said
    assert len(rq3._answer("mf", {"randomized": uses(1.0, 0.1), "a": uses(math.nan, 0.2)})) == 1
    assert rq3._answer("mf", {"randomized": uses(1.0, 0.1)}) == []


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


def test_rq4_says_what_it_searched_and_names_its_conditions(data):
    budget = BRIEF._replace(search_everywhere=True)
    design = rq4.design(data, BRIEF, Choice(["base"], ["mf"]))
    shares = ["S_c 10 % positive", "S_c 30 % positive", "S_c 50 % positive", "S_c 70 % positive"]
    shares += ["S_t 10 %", "S_t 30 %", "S_t 50 %", "S_t 70 %"]
    assert list(design.conditions) == [WHOLE, *shares] and [case.condition for case in design.cases] == shares
    assert design.conditions["S_c 30 % positive"].name == "tiny, S_c 30 % positive"
    assert design.conditions["S_t 10 %"].name == "tiny, S_t 10 %"
    assert dict(design.notes)["searched"].startswith("once per system")
    assert dict(rq4.design(data, budget, Choice(["base"], ["mf"])).notes)["searched"] == "under every condition"


def test_rq4_draws_means_and_spreads_by_share(data, tmp_path, drawn):
    study = known_study(rq4, data, {"dub": 4.0}, tmp_path, choice=Choice(["base", "dub", "popularity"], ["mf"]))
    found = rq4.findings(study)
    assert_titled(found)
    assert [section.title for section in found.sections] == ["Positives in S_c", "Size of S_t"]
    for factor, label in rq4.FACTORS.items():
        kind, (shares, lines, labels), named = drawn[f"rq4-{factor}-mf"]
        assert (kind, shares, labels, named) == ("curves", [10, 30, 50, 70], (label, "AUC"), {"bold": ("dub",)})
        assert f"% of {'the subset of S_c' if factor == 'S_c' else 'S_t'}" in label
        own = [case for case in study.design.cases if case.system.name == "dub" and case.condition.startswith(factor)]
        values = np.array([measures.values(study, case, "auc") for case in own])
        means, spread = lines["dub"]
        assert means.tolist() == values.mean(axis=1).tolist() and spread.tolist() == values.std(axis=1, ddof=1).tolist()
    table = found.sections[0].parts[1]
    assert table.header == ["system", "10 %", "30 %", "50 %", "70 %"] and table.heat == (1, 2, 3, 4)
    assert [row[0].text for row in table.rows] == ["base", "dub", "popularity"]
    assert table.groups == {0: "the paper's systems", 2: "baselines"} and all(cell.best for cell in table.rows[1][1:])
    lost = own[-1]
    del study.judged[lost]
    assert "dub" not in rq4._lines(study, "S_t", "mf") and "dub" in rq4._lines(study, "S_c", "mf")
    single = known_study(rq4, data, {}, tmp_path, seeds=1, choice=Choice(["base"], ["mf"]))
    assert rq4._lines(single, "S_c", "mf")["base"][1] is None
    assert rq4._answer(Study(study.design, study.budget, "work")) == []


def test_rq4_leaves_lines_out_and_names_them(drawn):
    lines = {"a": (np.array([0.7, 0.72]), None), "b": (np.array([0.71, 0.74]), None), "c": (np.array([0.5, 0.6]), None)}
    figure = rq4._figure("S_c", "mf", lines)
    assert figure.title == "AUC, mf" and figure.caption.endswith(
        "either side. Not drawn, because far below: c (see the table)."
    )
    assert list(drawn["rq4-S_c-mf"][1][1]) == ["a", "b"]
    assert rq4._figure("S_c", "mf", {"a": lines["a"]}).caption.endswith("to either side.")
    as_far = {"a": np.array([4.0, 5.0]), "b": np.array([4.0, 6.0]), "c": np.array([1.0, 2.0])}
    assert rq4.far_below(as_far) == []  # as far below as the others are apart


def test_rq4_counts_settings_that_several_lead(data, tmp_path):
    numbers = {}
    for factor in rq4.FACTORS:
        for share in rq4.PERCENTAGES:
            where = rq4._condition(factor, share)
            best = "base" if factor == "S_c" else "ips"
            numbers |= {Case(system(n), where): [{"auc": 0.8 if n == best else 0.7}] for n in ("base", "ips", "unif")}
    conditions = dict.fromkeys([WHOLE, *(case.condition for case in numbers)], data)
    (said,) = rq4._answer(study_of(data, numbers, conditions=conditions))
    assert said == "base has the best AUC in 4 of the 8 settings (factor, share and backbone), ips in 4."


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
    everyone = order._replace(n_first=4)
    assert len(rq5._gains("mf", hits, everyone)) == 1 and len(rq5._gains("mf", hits, order._replace(n_first=0))) == 1
    two = {name: hits[name] for name in ("base", "dub")}
    assert len(rq5._gains("mf", two, order)) == 2
    for few in ({"base": hits["base"]}, {"dub": hits["dub"], "ips": hits["ips"]}):
        assert rq5._gains("mf", few, order) == []
    many = rq5.UserOrder(np.arange(1000), 10, "", "")
    rq5._gains("mf", {"base": np.zeros(1000), "dub": np.ones(1000)}, many)
    places, lines = drawn["rq5-mf-gain"][1][:2]
    assert (
        len(places) == rq5.CURVE_POINTS
        and (places[0], places[-1]) == (1, 1000)
        and lines["dub"][0].tolist() == places.tolist()
    )


def test_rq5_draws_every_metric_and_says_who_gains(data, tmp_path, drawn):
    study = known_study(rq5, data, {"dub": 4.0}, tmp_path, choice=Choice(["base", "dub", "popularity"]))
    found = rq5.findings(study)
    assert_titled(found)
    kind, (values, label), _ = drawn["rq5-mf-p5"]
    assert (kind, label, list(values)) == ("dots", "P@5", ["base", "dub", "popularity"])
    assert values["dub"].tolist() == [fit.metrics["p@5"] for fit in study.judged[study.design.cases[1]]]
    assert found.answer[0].startswith("With mf, dub has the best nDCG (0.") and "ahead of base: " in found.answer[0]
    hits, order = rq5._hits(study, "mf"), rq5.users_in_order(data)._replace(n_first=20)
    gain = (hits["dub"] - hits["base"])[order.rows]
    said = rq5._answer(study, "mf", hits, order)[1]
    assert said.startswith(
        f"Against base, dub's sum of hit probabilities changes by {gain[:20].sum():+z.2f} over the 20 "
    )
    assert said.endswith(f" and by {gain[20:].sum():+z.2f} over the 40 others.")
    assert "others" not in rq5._answer(study, "mf", hits, order._replace(n_first=60))[1]
    for name in ("base", "dub"):
        assert len(rq5._answer(study, "mf", {name: hits[name]}, order)) == 1
    del study.judged[study.design.cases[0]]
    assert rq5._answer(study, "mf", hits, order) == []  # nobody to be ahead of
