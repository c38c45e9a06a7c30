"""Where parts meet and whole fits on tiny logs cannot tell: what a part is given, and what a store's key must hold."""

import contextlib
import os
import stat
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from dubnb._check import InputError
from dubnb._files import atomic_write
from dubnb.cli import main
from dubnb.experiments import study
from dubnb.experiments.budgets import BUDGETS
from dubnb.experiments.reproduce import Order, reproduce
from dubnb.experiments.systems import Choice
from dubnb.joint import BothModels
from dubnb.methods import autodebias, make
from dubnb.methods._settings import LogFacts, batch_of_S_c, batch_of_S_t
from dubnb.sweeps import ledger as ledgers
from dubnb.sweeps import results
from dubnb.sweeps.schedule import pretraining_groups
from dubnb.sweeps.trial import DONE, FAILED, plain, trial_key
from dubnb.train import EarlyStopping
from tests import naive
from tests.test_experiments import tiny_log
from tests.test_files import refused, saved
from tests.test_recipes import DATA, partition

QUICK = {"rank": 2, "epochs": 2, "patience": 2, "batch_size": 8}


class Memory(dict):
    """A store that counts."""

    def __init__(self):
        super().__init__()
        self.found = 0

    def get(self, key):
        self.found += key in self
        return super().get(key)

    def put(self, key, weights, rows):
        self[key] = weights, rows
        return weights


def fitted(data, store=None, **params):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return make("dub", **(QUICK | params)).fit(data, store=store)


CHANGES = {
    "data": {},
    "monitor": {"monitor": "ndcg"},
    "seed": {"seed": 1},
    "targets": {"negative": 0.3},
    "loss": {"loss": "mse"},
    "batch_size": {"batch_size": 4, "teacher_batch_size": 4},
    "pretrain_lam": {"pretrain_lam": 0.5},
    "pretrain_terms": {"pretrain_terms": "c"},
    "teacher_lam": {"teacher_lam": 0.5},
    "backbone": {"backbone": "ncf"},
    "epochs": {"epochs": 1},
    "weighting": {"weighting": "theory"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_shared_store_never_gives_another_fit_s_models(change):
    """With a store that another fit has filled, a fit is what it is without one."""
    data, store = DATA["plain"], Memory()
    fitted(data, store)
    assert len(store) == 2 and store.found == 0
    other = partition(n_users=9) if change == "data" else data
    expected, found = fitted(other, **CHANGES[change]), fitted(other, store, **CHANGES[change])
    for mine, theirs in ((found.weights_, expected.weights_), (found.teacher_, expected.teacher_)):
        for name, array in mine.arrays().items():
            np.testing.assert_array_equal(array, theirs.arrays()[name], err_msg=f"{change}: {name}")
    assert found.history_.drop(columns="seconds").equals(expected.history_.drop(columns="seconds"))


def test_a_shared_store_serves_what_is_the_same():
    """What only the refinement reads has no part in pre-training; patience has."""
    data, store = DATA["plain"], Memory()
    fitted(data, store)
    fitted(data, store, gamma=0.1, lam=0.1, terms="ad", shrink=0.5)
    assert store.found == 2 and len(store) == 2
    fitted(data, store, patience=1)
    assert store.found == 2 and len(store) == 4


def test_autodebias_waits_until_its_ranking_is_a_user_s_own(monkeypatch):
    """Epochs count from the one after the weights begin to move, and once 1 % of the ranking is a user's own."""
    made = []

    class Recorded(EarlyStopping):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            made.append(self)

    monkeypatch.setattr(autodebias, "EarlyStopping", Recorded)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        make("autodebias", rank=2, epochs=3, patience=7, weights_from=2).fit(naive.small_partition())
    (stopping,) = made
    assert (stopping.patience, stopping.first, stopping.alive, stopping.enough) == (7, 3, 0.01, None)


def test_a_file_is_on_the_disk_before_it_takes_its_place_and_its_place_after(tmp_path, monkeypatch):
    """fsync of the content, then the renaming, then fsync of the directory; the content is never copied."""
    steps, fsync, replace = [], os.fsync, os.replace

    def synced(descriptor):
        steps.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        fsync(descriptor)

    def replaced(source, target):
        steps.append("in place")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    with atomic_write(tmp_path / "a") as file:
        file.write(b"all of it")
    assert steps == (["content", "in place", "directory"] if os.name == "posix" else ["content", "in place"])
    assert (tmp_path / "a").read_bytes() == b"all of it" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("broken", ["student", "teacher"])
def test_joint_training_diverges_with_either_model(broken):
    """A teacher that is no longer finite is as bad as a student."""
    both = object.__new__(BothModels)
    both.student = both.teacher = SimpleNamespace(finite=lambda: True)
    assert both.finite()
    setattr(both, broken, SimpleNamespace(finite=lambda: False))
    assert not both.finite()


@pytest.mark.parametrize(
    "n_c,n_t,batches",
    [(304 * 40, 42 * 10, (32, 8)), (304 * 50, 42 * 12, (64, 16)), (10, 3, (16, 8)), (10**7, 10**6, (1024, 128))],
)
def test_batches_are_the_power_of_two_nearest_to_the_steps_of_an_epoch(n_c, n_t, batches):
    log = LogFacts(1000, 1000, n_c, n_t, graded=False)
    of_S_c = batch_of_S_c(log, {})
    assert (of_S_c, batch_of_S_t(log, {"batch_size": of_S_c})) == batches
    assert batch_of_S_t(log, {"batch_size": 4}) == 4  # never larger than those of S_c


@pytest.mark.parametrize(
    "name,values",
    [
        ("seen.indptr", lambda a: np.concatenate([a[:1], a[-2:0:-1], a[-1:]])),  # right ends, falling in between
        ("seen.items", lambda a: np.where(a == a.max(), a.max() + 1, a)),  # one beyond the last item
    ],
)
def test_model_files_whose_pattern_is_inside_out_are_refused(name, values, tmp_path):
    header, arrays = saved("mf", tmp_path)
    assert arrays["seen.items"].max() == len(arrays["item_ids"]) - 1
    refused(header, {**arrays, name: values(arrays[name]).astype(arrays[name].dtype)}, tmp_path)


# -- from the command line and the experiments to what is fitted


class Told(Exception):
    """Ends a command where what it passes on is known."""


def passed_on(monkeypatch, where, arguments):
    """What the command line gives to a function of the library: (positional, by name)."""
    told = []

    def record(*positional, **named):
        told.append((positional, named))
        raise InputError("enough")

    monkeypatch.setattr(where, record)
    monkeypatch.setattr("dubnb.cli._data.load", lambda args: tiny_log())
    assert main([str(each) for each in arguments]) == 2
    (found,) = told
    return found


def test_the_command_line_passes_seeds_and_selection_on(monkeypatch, tmp_path, capsys):
    sweep = ["sweep", "--data", "simulated", "--method", "dub", "--seed", 7, "--seeds", 2, "--select", "ndcg,0.1,auc"]
    _, named = passed_on(monkeypatch, "dubnb.sweeps.run.sweep", [*sweep, "--out", tmp_path / "s", "--quiet"])
    assert list(named["seeds"]) == [7, 8] and named["select"] == ("ndcg", 0.1, "auc")
    words = ["reproduce", "rq5", "--data", "simulated", "--seed", 7, "--out", tmp_path / "r", "--quiet"]
    (order, *_), _ = passed_on(monkeypatch, "dubnb.experiments.reproduce.reproduce", words)
    assert (order.experiment, order.seed) == ("rq5", 7)


def candidates(monkeypatch, tmp_path, experiment, **options):
    """The trials that an experiment searches first."""
    told = []

    def record(self, trials):
        told.extend(trials)
        raise Told

    monkeypatch.setattr(study.Study, "run_fits", record)
    monkeypatch.setattr("dubnb.experiments.estimate.say_how_long", lambda studies, say: None)  # runs one of each before
    order = Order(experiment, str(tmp_path / "out"), "smoke", **options)
    with pytest.raises(Told):
        reproduce(order, tiny_log())
    return told


def test_experiments_search_with_the_given_seed_and_stop_on_what_they_select(monkeypatch, tmp_path):
    found = candidates(monkeypatch, tmp_path, "rq5", seed=7)
    assert {trial.params["seed"] for trial in found} == {7}
    assert {trial.params["monitor"] for trial in found} == {"ndcg"}
    assert len({trial.data for trial in found}) == 1


def test_rq2_searches_every_variant_with_its_own_terms(monkeypatch, tmp_path):
    found = candidates(monkeypatch, tmp_path, "rq2", choice=Choice(("dub",), ("mf",)))
    terms = [trial.params["terms"] for trial in found]
    assert set(terms) == {"acde", "acd", "cd", "cde", "ace", "ade"}
    assert {trial.params["monitor"] for trial in found} == {"auc"} and {t.params["seed"] for t in found} == {0}
    assert len({terms.count(each) for each in set(terms)}) == 1  # the same budget for each


def test_winners_are_fitted_with_the_searched_parameters_over_consecutive_seeds(tmp_path):
    one = study.Study(study.Design(None, {}, []), BUDGETS["quick"], str(tmp_path), seed=7)
    assert list(one.seeds) == [7, 8, 9]


# -- the ledger


def row(key, **changes):
    known = {name: None for name in ledgers.COLUMNS} | {"key": key, "status": DONE, "metrics": {"auc": 0.7}}
    return known | {"params": {"rank": 2}, "versions": {}} | changes


@pytest.fixture
def ledger(tmp_path):
    opened = ledgers.Ledger(str(tmp_path), {"kind": "sweep"})
    yield opened
    opened.close()


def test_a_finished_trial_is_never_overwritten(ledger):
    """A lost one may be replaced, a finished one stays as it was recorded first."""
    ledger.record(row("a", status=FAILED, metrics=None))
    ledger.record(row("a"))
    ledger.record(row("a", metrics={"auc": 0.9}))
    ledger.record(row("a", status=FAILED, metrics=None))
    (found,) = ledger.rows()
    assert (found["status"], found["metrics"]) == (DONE, {"auc": 0.7})


def test_an_acknowledged_trial_is_on_the_disk(ledger, tmp_path):
    """WAL with synchronous=FULL (2), and another process sees the trial at once."""
    ledger.record(row("a"))
    assert ledger.connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert ledger.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    with contextlib.closing(ledgers.Ledger(str(tmp_path))) as other:
        assert [each["key"] for each in other.rows()] == ["a"]


def test_a_changed_row_is_damaged_and_only_that_one_forgotten(ledger):
    ledger.record(row("a"))
    ledger.record(row("b"))
    ledger.connection.execute("UPDATE trials SET metrics = '{\"auc\": 0.8}' WHERE key = 'a'")
    assert [each["key"] for each in ledger.rows()] == ["b"] and ledger.damaged() == ["a"]
    ledger.forget(ledger.damaged())
    assert [each["key"] for each in ledger.rows()] == ["b"] and not ledger.damaged()


def test_a_ledger_of_other_trials_is_refused(ledger, tmp_path):
    with pytest.raises(InputError, match="was made with kind 'sweep'"):
        ledgers.Ledger(str(tmp_path), {"kind": "study"})


def test_only_one_driver_at_a_time(tmp_path):
    with ledgers.only_driver(str(tmp_path)):
        assert ledgers.in_use(str(tmp_path))
        with pytest.raises(InputError, match="in use by another sweep"), ledgers.only_driver(str(tmp_path)):
            pass
    assert not ledgers.in_use(str(tmp_path))


def test_trials_are_named_by_method_log_and_every_parameter():
    plain = trial_key("dub", {"rank": 2, "seed": 0}, "log")
    others = [
        trial_key("base", {"rank": 2, "seed": 0}, "log"),
        trial_key("dub", {"rank": 3, "seed": 0}, "log"),
        trial_key("dub", {"rank": 2, "seed": 1}, "log"),
        trial_key("dub", {"rank": 2, "seed": 0}, "another log"),
    ]
    assert len({plain, *others}) == 5
    assert trial_key("dub", {"seed": 0.0, "rank": 2.0}, "log") == plain


def test_trials_of_another_version_are_other_trials(monkeypatch):
    before = trial_key("dub", {"rank": 2}, "log")
    monkeypatch.setattr("dubnb.sweeps.trial.VERSION", "0.0.0")
    assert trial_key("dub", {"rank": 2}, "log") != before


# -- choosing


def rows_of(**by_key):
    return {key: {"key": key, "status": DONE, "metrics": metrics} for key, metrics in by_key.items()}


def test_points_are_chosen_by_their_mean_on_S_va_alone():
    """a has the best on S_te and the best single seed, b the best mean on S_va."""
    rows = rows_of(
        a1={"va_auc": 0.9, "auc": 0.99}, a2={"va_auc": 0.1, "auc": 0.99}, b1={"va_auc": 0.6}, b2={"va_auc": 0.5}
    )
    points = [["a1", "a2"], ["b1", "b2"]]
    assert results.choose(points, rows, results.selection("auc")) == 1
    rows["b2"]["status"] = FAILED
    assert results.choose(points, rows, results.selection("auc")) == 0
    assert results.choose([["b1", "b2"]], rows, results.selection("auc")) is None


def test_the_metric_that_is_asked_for_chooses():
    rows = rows_of(a={"va_auc": 0.90, "va_ndcg": 0.1}, b={"va_auc": 0.89, "va_ndcg": 0.3}, c={"va_auc": 0.5})
    rows["c"]["metrics"]["va_ndcg"] = 0.9
    points = [["a"], ["b"], ["c"]]
    chosen = [results.choose(points, rows, results.selection(how)) for how in ("auc", "ndcg", ("auc", 0.02, "ndcg"))]
    assert chosen == [0, 2, 1]


def test_facts_of_a_log_are_those_of_its_parts():
    data = naive.small_partition(9, 8, n_c=30, n_t=12)
    assert LogFacts.of(data) == LogFacts(9, 8, 30, 12, graded=False, click_only=False)
    assert LogFacts.of(DATA["plain"]).graded


def test_the_chosen_point_has_means_and_sample_deviations_of_what_is_known():
    measured = [{"auc": 0.7, "p@5": None, "r@5": None}, {"auc": 0.8, "p@5": 0.3, "r@5": None}]
    trials = [SimpleNamespace(key=f"k{seed}", params={"lam": 1e-3, "seed": seed}) for seed in (4, 5)]
    rows = {trial.key: {"metrics": numbers} for trial, numbers in zip(trials, measured, strict=True)}
    found = results.best_point({"lam": 1e-3}, trials, rows)
    assert found["params"] == {"lam": 1e-3} and found["seeds"] == [4, 5] and found["trials"] == ["k4", "k5"]
    auc = found["metrics"]["auc"]
    assert (auc["mean"], auc["std"]) == pytest.approx((0.75, 0.1 / 2**0.5)) and auc["values"] == [0.7, 0.8]
    assert found["metrics"]["p@5"] == {"mean": 0.3, "std": None, "values": [None, 0.3]}
    assert found["metrics"]["r@5"] == {"mean": None, "std": None, "values": [None, None]}


def test_results_begin_no_formula_where_a_spreadsheet_opens_them(tmp_path):
    results.write_results(str(tmp_path), pd.DataFrame({"data": ["=1+1", "plain"], "auc": [-0.5, 0.5]}))
    assert (tmp_path / results.RESULTS).read_text() == "data,auc\n'=1+1,-0.5\nplain,0.5\n"


def test_trials_wait_for_each_other_where_they_pretrain_the_same_on_the_same_data():
    def groups(name, data="one", **params):
        resolved = make(name, rank=2, **params).resolved_params(DATA["plain"])
        return pretraining_groups(SimpleNamespace(method=type(make(name)), params=resolved, data=data))

    own = groups("dub", gamma=0.1)
    assert None not in own and own == groups("dub", gamma=0.2)
    for other in (groups("dub", data="two"), groups("dub", seed=1), groups("dub", teacher_lam=0.3)):
        assert other[1] != own[1]
    assert groups("dub", data="two")[0] != own[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), (1.0, -float("inf")), np.float32("nan"), 2**70, {1: 2}])
def test_a_trial_holds_only_what_the_ledger_can_keep(value):
    with pytest.raises(InputError, match="lam "):
        plain("lam", value)
    assert plain("lam", [np.float64(0.5), np.int8(3), "a", None, True]) == (0.5, 3, "a", None, True)
    assert type(plain("lam", np.float32(0.5))) is float


def test_an_experiment_s_winner_is_chosen_by_what_it_selects_on(tmp_path):
    """Asked of the fits by the design's metric; the seed is no parameter of the winner."""
    asked, params = [], {"rank": 2, "lam": 0.1, "seed": 7}
    trials = [(SimpleNamespace(params=params), {"lam": 0.1})]

    class Fits:
        def best(self, trials, select):
            asked.append(select)
            return 0

        def __getitem__(self, trial):
            return SimpleNamespace(done=True, reason=None, metrics={"va_ndcg": 0.3})

    one = study.Study(study.Design(None, {}, [], "ndcg"), BUDGETS["quick"], str(tmp_path))
    winner = one._winner(SimpleNamespace(axes={}, n_points=1, extended=()), trials, Fits())
    assert asked == ["ndcg"] and winner.validation == 0.3
    assert winner.params == {"rank": 2, "lam": 0.1} and winner.point == {"lam": 0.1}
