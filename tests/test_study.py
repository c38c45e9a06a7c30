"""Studies whose fits are made up: what is searched, chosen, fitted, kept and said; `dubnb compare` made of them."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

import dubnb
from dubnb._check import InputError
from dubnb.experiments import budgets, pages, reproduce, rq1
from dubnb.experiments import compare as comparing
from dubnb.experiments import study as studies
from dubnb.experiments.reproduce import Order
from dubnb.experiments.study import WHOLE, Case, Design, Study
from dubnb.experiments.systems import Choice, System
from dubnb.sweeps.runner import FinishedFit, Fits, Resources
from dubnb.sweeps.trial import DONE, FAILED
from tests.studies import BRIEF, known_fit, system_cases, tiny_log


class MadeUp:
    """Fits that end as `ended(trial)` says, with metrics or a reason; `calls`: the requests to `run_fits`."""

    def __init__(self, monkeypatch, data, ended, skills=None):
        self.calls, self.data, self.ended, self.skills = [], data, ended, skills or {}
        monkeypatch.setattr("dubnb.sweeps.runner.run_fits", self.run_fits)
        monkeypatch.setattr(FinishedFit, "test_output", lambda fit: self.known(fit.trial).output)

    def run_fits(self, trials, logs, out, resources=None, list_length=None, models=None):
        logs = list(logs)
        self.calls.append(SimpleNamespace(trials=trials, logs=logs, out=out, resources=resources, lists=list_length))
        return Fits({trial.key: self.row(trial) for trial in trials}, out)

    def row(self, trial):
        outcome, seconds = self.ended(trial), 1.5
        if isinstance(outcome, str):
            return {"status": FAILED, "reason": outcome, "metrics": None, "epochs_run": None, "seconds": None}
        metrics = {name: v for name, v in self.known(trial).metrics.items() if not name.startswith("va_")} | outcome
        return {"status": DONE, "reason": None, "metrics": metrics, "epochs_run": 1, "seconds": seconds}

    def known(self, trial):
        return known_fit(self.data, trial.params["seed"], self.skills.get(trial.method.name, 1.0))


def near(peak):
    """A fit is the better on S_va, the nearer its lam is to the peak; nDCG likes the largest."""

    def ended(trial):
        lam = trial.params["lam"]
        return {"va_auc": 1 - abs(np.log10(lam / peak)) / 10, "va_ndcg": lam}

    return ended


def study_of(data, cases, budget=BRIEF, conditions=None, directory="work", **options):
    select = options.pop("select", "auc")
    return Study(Design(data, conditions or {WHOLE: data}, cases, select), budget, str(directory), **options)


def lam_axis(data, name):
    return budgets.search_of(System(name, name, "mf"), BRIEF, data).axes["lam"]


def test_a_study_searches_chooses_and_fits_over_seeds(monkeypatch, data):
    made, said, quiet = MadeUp(monkeypatch, data, near(1e-9)), [], Resources(quiet=True)
    study = study_of(data, system_cases("base", "unif"), BRIEF._replace(seeds=3), seed=5, resources=quiet)
    assert not study.finished
    study.run(said.append)
    assert said == ["6 candidates of 2 searches, then 6 fits of winners", "fitting base (mf), unif (mf)"]
    search, fits = made.calls
    assert (search.lists, fits.lists) == (None, studies.LIST_LENGTH)
    for call in made.calls:
        assert call.logs == [data] and call.out == os.path.join("work", "fits") and call.resources is quiet
    assert {trial.params["seed"] for trial in search.trials} == {5}
    assert [trial.params["seed"] for trial in fits.trials] == [5, 6, 7] * 2
    for case in study.design.cases:
        axis, winner = lam_axis(data, case.system.name), study.winners[case]
        own = [trial for trial in search.trials if trial.method.name == case.system.name]
        assert [trial.params["lam"] for trial in own] == list(axis)  # in the grid's order
        assert winner.point == {"lam": min(axis)} and winner.axes == {"lam": axis} and winner.n_points == 3
        assert winner.validation == near(1e-9)(own[0])["va_auc"] and winner.lost == ()
        assert winner.params == {name: value for name, value in own[0].params.items() if name != "seed"}
        assert winner.params["monitor"] == "auc" and winner.params["backbone"] == "mf"
        assert [fit.seed for fit in study.results[case]] == [5, 6, 7]
        known, found = known_fit(data, 6, 1.0), study.results[case][1]
        assert study.mean(case, "va_auc") == winner.validation and found.output is known.output
        assert found.metrics["auc"] == known.metrics["auc"]
    assert study.finished and not study.failures


def test_study_selects_by_the_given_metric(monkeypatch, data):
    MadeUp(monkeypatch, data, near(1e-9))
    study = study_of(data, system_cases("base"), select="ndcg")
    study.run()
    (winner,) = study.winners.values()
    assert winner.point["lam"] == winner.validation == max(lam_axis(data, "base"))
    assert winner.params["monitor"] == "ndcg"


def test_equal_candidates_leave_the_default(monkeypatch, data):
    MadeUp(monkeypatch, data, lambda trial: {"va_auc": 0.5})
    study = study_of(data, system_cases("base", "ips"))
    study.run()
    for case, winner in study.winners.items():
        assert winner.params["lam"] == pytest.approx(case.system.model().resolve(data).lam, rel=0.01)


def test_training_stops_and_ties_break_by_other_metrics(monkeypatch, data):
    """nDCG is best at the largest lam, AUC at the smallest; within the tolerance AUC decides."""
    MadeUp(monkeypatch, data, near(1e-9))
    axis = sorted(lam_axis(data, "base"))
    for tolerance, chosen in ((0.0, axis[2]), (axis[2] - axis[1], axis[1]), (axis[2], axis[0])):
        design = Design(data, {WHOLE: data}, system_cases("base"), "ndcg", (), "percentile", (tolerance * 1.001, "auc"))
        study = Study(design, BRIEF, "work")
        study.run()
        (winner,) = study.winners.values()
        assert winner.point["lam"] == chosen == winner.validation and winner.params["monitor"] == "percentile"


@pytest.mark.parametrize("uniform", [True, False])
def test_likes_in_the_top_are_reported_for_randomized_test_sets_only(monkeypatch, data, uniform):
    MadeUp(monkeypatch, data, near(1e-9))
    study = Study(Design(data, {WHOLE: data}, system_cases("base"), "auc", uniform=uniform), BRIEF, "work")
    study.run()
    names = study.metric_names()
    assert "auc" in names and any(name.startswith("liked@") for name in names) == uniform


def test_what_fails_leaves_a_reason(monkeypatch, data):
    """No candidate, some candidates, a seed of a winner: the others go on."""
    middle = lam_axis(data, "unif")[1]

    def ended(trial):
        if trial.method.name == "base":
            return "diverged"
        if trial.method.name == "unif" and trial.params["lam"] != middle:
            return "z" if trial.params["lam"] < middle else "a"
        if trial.method.name == "combine" and trial.params["seed"] > 0:
            return f"seed {trial.params['seed']} diverged"
        return {"va_auc": 0.5}

    MadeUp(monkeypatch, data, ended)
    base, unif, combine = cases = system_cases("base", "unif", "combine")
    study = study_of(data, cases, BRIEF._replace(seeds=3))
    study.run()
    assert study.winners[base] is None and study.winners[unif].lost == ("a", "z")
    assert study.failures == {base: "no candidate finished: diverged", combine: "seed 1 diverged"}
    assert list(study.results) == [unif] and study.finished
    said = pages.study_warnings(study)
    assert "2 of 3 candidates of unif (mf) did not finish: a" in said
    assert "combine (mf) has no result: seed 1 diverged" in said
    (table,) = pages.winners_section(study).parts
    assert table.rows[0][:3] == ["base", "mf", "-"] and table.rows[0][4] == "no candidate finished"


def test_a_search_goes_on_until_its_winner_lies_inside(monkeypatch, data):
    """base's best lies one step below its grid, unif's inside, combine's far above: the last extension ends it."""
    ends = {name: lam_axis(data, name) for name in ("base", "unif", "combine")}
    peaks = {"base": ends["base"][0] / 3, "unif": ends["unif"][1], "combine": 1e6 * ends["combine"][-1]}
    made, said = MadeUp(monkeypatch, data, lambda trial: near(peaks[trial.method.name])(trial)), []
    study = study_of(data, system_cases("base", "unif", "combine"), BRIEF._replace(extensions=3, seeds=1))
    study.run(said.append)
    assert [line for line in said if "beyond" in line] == [
        "2 searches continue beyond an end of their grid",
        "2 searches continue beyond an end of their grid",
        "1 searches continue beyond an end of their grid",
    ]
    n_points = {case.system.name: winner.n_points for case, winner in study.winners.items()}
    assert n_points == {"base": 5, "unif": 3, "combine": 6} and len(made.calls) == 5
    for case, winner in study.winners.items():
        assert winner.point["lam"] == min(
            winner.axes["lam"], key=lambda lam: abs(np.log(lam / peaks[case.system.name]))
        )
    (table,) = pages.winners_section(study).parts
    tried = {row[0]: row[table.header.index("candidates")] for row in table.rows}
    assert {name: (cell.value, cell.spread) for name, cell in tried.items()} == {
        "base": (5, "extended twice: lam"), "unif": (3, ""), "combine": (6, "extended 3 times: lam")
    }  # fmt: skip
    again = study_of(data, system_cases("base", "unif", "combine"), BRIEF._replace(extensions=3, seeds=1))
    again.run()
    assert again.winners == study.winners  # and every trial has the same key as before
    assert [[trial.key for trial in call.trials] for call in made.calls[5:]] == [
        [trial.key for trial in call.trials] for call in made.calls[:5]
    ]


def test_winners_are_fitted_whole_systems_at_a_time(monkeypatch, data):
    monkeypatch.setattr(studies, "TOGETHER", 8)
    made, said = MadeUp(monkeypatch, data, near(1e-3)), []
    conditions = {WHOLE: data, "one": tiny_log(58), "two": tiny_log(56)}
    cases = [Case(case.system, where) for case in system_cases("base", "unif", "combine") for where in ("one", "two")]
    study = study_of(data, cases, conditions=conditions)
    made.data = conditions["one"]
    study.run(said.append)
    assert said[0] == "9 candidates of 3 searches, then 12 fits of winners"  # searched on the whole data alone
    assert said[1:] == [
        "fitting base (mf, one), base (mf, two), unif (mf, one), unif (mf, two)",
        "fitting combine (mf, one), combine (mf, two)",
    ]
    assert {trial.data for trial in made.calls[0].trials} == {data.fingerprint}
    assert [trial.data for trial in made.calls[2].trials] == [
        conditions[w].fingerprint for w in ("one", "one", "two", "two")
    ]
    without = study_of(data, cases, conditions={where: conditions[where] for where in ("one", "two")})
    assert [without.searched(case) for case in cases] == cases  # nothing to take over
    everywhere = study_of(data, cases, BRIEF._replace(search_everywhere=True), conditions)
    assert [everywhere.searched(case) for case in cases] == cases


# ---- how long --------------------------------------------------------------------------------------------------------


def test_an_estimate_counts_from_one_timed_fit_of_each_system(monkeypatch, data):
    """1.5 s a fit; one that failed has no time and counts nothing."""
    MadeUp(monkeypatch, data, lambda trial: "lost" if trial.method.name == "unif" else {"va_auc": 0.5})
    said, quick = [], budgets.BUDGETS["quick"]
    study = study_of(data, system_cases("base", "unif"), quick)
    budgets.say_how_long([study], said.append)
    assert said == [
        "24 fits of 2 systems; one fit of each comes first, to estimate the time",
        "about 18 seconds in all with 1 worker on this machine, less what is done already; more if a search continues",
    ]
    two = study_of(data, system_cases("base"), quick, resources=Resources(n_jobs=2))
    budgets.say_how_long([two], said.append)
    assert said[-1].startswith("about 9 seconds in all with 2 workers")


# ---- reproduce -------------------------------------------------------------------------------------------------------


def small(name, *systems_of):
    return SimpleNamespace(
        NAME=name,
        TITLE=f"Small {name}",
        QUESTION="?",
        design=lambda data, budget, choice: Design(data, {WHOLE: data}, system_cases(*systems_of)),
        findings=rq1.findings,
    )


@pytest.fixture
def two_experiments(monkeypatch):
    monkeypatch.setattr(reproduce, "EXPERIMENTS", {name: small(name, "base", "unif") for name in ("rq1", "rq2")})
    monkeypatch.setitem(budgets.BUDGETS, "smoke", BRIEF)


def test_all_experiments_write_their_reports_and_an_index(monkeypatch, data, tmp_path, two_experiments):
    made, said, out = MadeUp(monkeypatch, data, near(1e-3), {"base": 3.0}), [], tmp_path / "runs" / "all"
    order = Order("all", out, "smoke")
    done = reproduce.reproduce(order, data, say=said.append)
    assert [line for line in said if line.startswith("rq")] == [
        f"{name}: Small {name}, 2 systems, budget smoke" for name in ("rq1", "rq2")
    ]
    assert not any("to estimate the time" in line for line in said)  # a check that everything runs needs no estimate
    for one, name in zip(done, ("rq1", "rq2"), strict=True):
        assert one["experiment"] == name and one["finished"] and one["report"] == str(out / name / "report.html")
        assert "among the paper's systems base has the best AUC" in one["answer"][0]
        page = (out / name / "report.html").read_text()
        assert "UNFINISHED" not in page and f"--out {out}" in page and "dubnb reproduce all" in page
        assert (out / name / "results.csv").read_text().startswith(f"{','.join(pages.COLUMNS)}\n{name},full-ranking,")
        assert list((out / name / "figures").glob("*.svg"))
    index = (out / "index.html").read_text()
    assert index.count(">COMPLETE<") == 2 and "dubnb reproduce all" in index and index.count("<svg") == 2
    resources = made.calls[0].resources
    assert resources.pretrained == str(out / "work" / "pretrained") and (resources.n_jobs, resources.quiet) == (1, True)
    assert {call.out for call in made.calls} == {str(out / "work" / "fits")}
    before = (out / "rq1" / "results.csv").read_bytes()
    reproduce.reproduce(order, data)  # over the same files
    assert (out / "rq1" / "results.csv").read_bytes() == before


def test_an_interrupted_run_leaves_an_index_that_says_so(monkeypatch, data, tmp_path, two_experiments):
    said, out = [], tmp_path / "out"

    def ended(trial):
        if any(line.startswith("rq2") for line in said):
            raise KeyboardInterrupt
        return near(1e-3)(trial)

    MadeUp(monkeypatch, data, ended)
    with pytest.raises(KeyboardInterrupt):
        reproduce.reproduce(Order("all", out, "smoke"), data, say=said.append)
    index = (out / "index.html").read_text()
    assert index.count(">COMPLETE<") == 1 and "Complete: 1 of 2 experiments" in index
    assert 'href="rq1/report.html"' in index and 'href="rq2/report.html"' in index
    assert "0 of 2 systems are done" in (out / "rq2" / "report.html").read_text()


def test_one_experiment_writes_into_the_directory_itself(monkeypatch, data, tmp_path, two_experiments):
    MadeUp(monkeypatch, data, near(1e-3))
    (done,) = reproduce.reproduce(Order("rq2", tmp_path / "out", "smoke", Choice(backbones=["mf"]), 3), data)
    assert done["report"] == str(tmp_path / "out" / "report.html") and not (tmp_path / "out" / "index.html").exists()
    about = json.loads((tmp_path / "out" / "about.json").read_text())
    assert about == {
        "experiment": "rq2",
        "data": data.fingerprint,
        "budget": "smoke",
        "seed": 3,
        "systems": ["paper", "beyond", "baselines"],
        "backbones": ["mf"],
    }


# ---- dubnb compare ---------------------------------------------------------------------------------------------------


def run_of(data, budget="smoke", seed=0, resources=None, say=lambda line: None, asked=None):
    return comparing._Run(data, "work", budget, seed, resources, say, asked)


def test_the_first_round_fits_every_system_once_with_the_defaults(monkeypatch, data):
    made, said = MadeUp(monkeypatch, data, lambda trial: {"va_auc": 0.5}), []
    every = Choice(["base", "dub", "dub exact"]).systems(data, ["mf"])
    found = run_of(data, seed=4, say=said.append).screen(every)
    assert said == ["fitting each of 3 systems once, with the defaults for this log"]
    (call,) = made.calls
    assert call.out == os.path.join("work", "fits") and call.logs == [data] and list(found) == every
    for system, trial in zip(every, call.trials, strict=True):
        defaults = system.model().set_params(seed=4, monitor="percentile").resolved_params(data)
        share = max(1, round(0.04 * defaults["epochs"]))
        assert trial.params["epochs"] == share and found[system].trial is trial
        assert trial.params | {"epochs": 0} == defaults | {"epochs": 0}
    assert made.calls[0].trials[2].params["epochs"] == 1  # of 30
    run_of(data, "quick", asked="ndcg").screen(every)
    assert [t.params["epochs"] for t in made.calls[1].trials] == [s.model().resolve(data).epochs for s in every]
    assert {t.params["monitor"] for t in made.calls[1].trials} == {"ndcg"}


def test_systems_of_the_second_round_are_printed_with_a_time(data):
    names = ("base", "unif", "combine", "ips", "cause", "bridge")
    fits = {name: SimpleNamespace(done=True, seconds=10.0, metrics={"va_percentile": 0.5}) for name in names}
    fits["unif"].metrics, fits["base"].seconds = {"va_percentile": 0.4}, None
    screened = {case.system: fits[case.system.name] for case in system_cases(*names)}
    said = []
    study = run_of(data, "quick", 7, say=said.append).study(screened)
    more = "; more if a search continues"
    assert said == [f"the second round has base, combine, ips, cause, bridge: about 8.0 minutes{more}"]
    left = ("screening", "left out after one fit each with defaults: unif")
    assert study.design.notes[1:] == [left] and study.design.notes[0][0] == "metric"
    assert (study.budget, study.directory, study.seed) == (budgets.BUDGETS["quick"], "work", 7)
    assert study.design.source is data and study.design.conditions == {WHOLE: data}
    names = ["base", comparing.DEFAULTS, "combine", "ips", "cause", "bridge"]
    assert [case.system.name for case in study.design.cases] == names
    less = {system: fit for system, fit in screened.items() if system.name in ("base", "ips")}
    study = run_of(data, "quick", resources=Resources(n_jobs=2), say=said.append).study(less)
    assert said[1] == f"the second round has base, ips: about 60 seconds{more}" and len(study.design.notes) == 1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_promise_names_the_system_and_not_its_method(monkeypatch, data, tmp_path):
    MadeUp(monkeypatch, data, lambda trial: {"va_auc": 0.9 if trial.method.name == "ease" else 0.5})
    done = comparing.compare(data, tmp_path / "out", "smoke", Choice(("popularity", "ease with S_t")), metric="auc")
    assert done.promise.startswith("Off-policy value: if ease with S_t's top 10 were shown")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compare_from_end_to_end_with_made_up_fits(monkeypatch, data, tmp_path):
    """The baseline is best on S_va here: it is what is fitted and saved."""
    monkeypatch.setitem(budgets.BUDGETS, "smoke", BRIEF)
    good = {"popularity": 0.9, "base": 0.7, "unif": 0.6}
    made = MadeUp(monkeypatch, data, lambda trial: {"va_auc": good[trial.method.name]}, {"popularity": 6.0})
    said, out, choice = [], tmp_path / "new" / "c", Choice(("base", "unif", "popularity"))
    words = ["--biased", "my log.csv"]
    given = {"seed": 2, "metric": "auc"}
    done = comparing.compare(data, out, "smoke", choice, say=said.append, data_words=words, **given)
    assert said[0].startswith("fitting each of 3 systems")
    assert said[-1] == "fitting popularity on all randomized data, to ship it"
    assert done.winner == "popularity" and done.model.params_["seed"] == 2 and done.metric == "auc"
    assert {trial.params["backbone"] for trial in made.calls[0].trials} == {"mf"}
    assert (done.report, done.out) == (str(out / "report.html"), str(out))
    assert repr(done) == "\n".join([*done.answer, done.promise, f"Report: {done.report}"])
    assert done.promise.startswith("Off-policy value: if popularity's top 10 were shown")
    (claim,) = done.claims  # it is not held against itself
    assert claim.second == done.verdict.rival and claim.value > 0 and claim.metric == "auc"
    for name in ("winner.npz", "ship.npz"):
        assert dubnb.load(out / name).name == "popularity"
    page = (out / "report.html").read_text()
    again = "dubnb compare --biased &#x27;my log.csv&#x27; --budget smoke --seed 2 --metric auc --systems base,unif,"
    assert again in page and f"--out {out}" in page
    assert "UNFINISHED" not in page and "biased log (S_c)" in page and "The first round" in page
    assert (out / "results.csv").read_text().splitlines()[1].startswith("compare,full-ranking,whole data,mf,base,2,")
    about = {"experiment": "compare", "data": data.fingerprint, "budget": "smoke", "seed": 2}
    about |= {"systems": ["base", "unif", "popularity"], "backbones": [], "metric": "auc"}
    assert json.loads((out / "about.json").read_text()) == about
    again = comparing.compare(data, out, "smoke", choice, **given)  # over the same files
    assert list(again.answer) == list(done.answer)


def test_an_interrupted_comparison_leaves_its_page(monkeypatch, data, tmp_path):
    def ended(trial):
        if trial.params["seed"]:
            raise KeyboardInterrupt
        return {"va_percentile": 0.5}

    MadeUp(monkeypatch, data, ended)
    with pytest.raises(KeyboardInterrupt):
        comparing.compare(data, tmp_path / "c", "smoke", Choice(("base", "unif"), ("mf",)))
    assert "UNFINISHED" in (tmp_path / "c" / "report.html").read_text()
    assert not (tmp_path / "c" / "winner.npz").exists()
    assert json.loads((tmp_path / "c" / "about.json").read_text())["backbones"] == ["mf"]


def test_where_nothing_can_be_fitted_the_report_says_why(monkeypatch, data, tmp_path):
    MadeUp(monkeypatch, data, lambda trial: {"va_auc": 0.5} if "winner" in trial.params else "diverged")
    with pytest.raises(InputError, match="no system could be fitted on this log"):
        comparing.compare(data, tmp_path / "c", "smoke", Choice(("base",)))
    study = study_of(data, system_cases("base"))
    study.run()
    found = comparing.findings(
        study, {System("base", "base", "mf"): FinishedFit(None, FAILED, "diverged", {}, 1, 2.0, "")}
    )
    assert [section.title for section in found.sections] == ["The first round", "Words"] and found.answer == []
    assert found.sections[0].parts[0].rows == [["base", "mf", None, None, None, "diverged"]]
