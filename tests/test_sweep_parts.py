"""The parts of a sweep without worker processes: what runs, is recorded, chosen, kept and written."""

import contextlib
import inspect
import json
import math
import os
import sqlite3
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import dubnb
from dubnb._check import InputError
from dubnb.methods import METHODS, make
from dubnb.sweeps import SweepError, grid, ledger, run, runner, worker
from dubnb.sweeps.ledger import Ledger
from dubnb.sweeps.local import pack, unpack
from dubnb.sweeps.runner import EVERY_CPU, Resources, planned
from dubnb.sweeps.trial import DONE, FAILED, Rules, Schedule, Trial, plain, pretraining_groups, trial_key
from tests import naive
from tests.sweep_tools import NAME, tiny_log

FIXED = {"rank": 2, "epochs": 9}


@pytest.fixture(scope="module")
def data():
    return tiny_log()


def done(va_auc, **more):
    costs = {"epochs_run": 2, "seconds": 1.5, "peak_mb": 3.0, "trained": 1, "reused": 2, "saved_seconds": 0.25}
    return {"status": DONE, "reason": None, "metrics": {"va_auc": va_auc, "auc": 0.5} | more} | costs


class FakeExecutor:
    """An executor whose trials end with `outcome(trial)`; `ran` lists them, `models` the model files after each."""

    def __init__(self, monkeypatch, outcome):
        self.outcome, self.ran, self.models, self.saves = outcome, [], [], True
        monkeypatch.setattr(runner, "new_executor", self.new)

    def new(self, data, rules, resources, out):
        return SimpleNamespace(rules=rules, run=lambda schedule: self.run(schedule, rules), close=lambda: None)

    def run(self, schedule, rules):
        while (trial := schedule.next(block=False)) is not None:
            self.ran.append(trial)
            if rules.models is not None and self.saves and trial.params["seed"] == rules.models.seed:
                with open(worker.path_of(rules.models.directory, trial.key), "w") as file:
                    file.write(f"model {trial.key}")
            yield trial, self.outcome(trial)
            if rules.models is not None:
                self.models.append(len(os.listdir(rules.models.directory)))

    def lams(self):
        return [trial.params["lam"] for trial in self.ran]


def by_lam(trial):
    """The larger lam, the better on S_va; seed 1 is a little worse."""
    return done(trial.params["lam"] - 0.01 * trial.params["seed"])


def swept(data, out, lams=(0.1, 0.2, 0.3), **options):
    options = {"fixed": FIXED, "quiet": True} | options
    return dubnb.sweep("base", data=data, grid={"lam": list(lams)}, out=out, **options)


# ---- whole sweeps


def test_a_sweep_runs_records_chooses_and_writes(monkeypatch, data, tmp_path, capsys):
    fake, out = FakeExecutor(monkeypatch, by_lam), tmp_path / "a" / "s"
    found = swept(data, out, seeds=2, quiet=False)
    assert fake.lams() == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3] and found.out == str(out) and found.data is data
    assert [trial.params["seed"] for trial in fake.ran] == [0, 1, 0, 1, 0, 1]
    assert (out / "best.npz").read_text() == f"model {fake.ran[4].key}"
    text = (out / "best.json").read_text()
    best = json.loads(text)
    assert best == json.loads(json.dumps(found.best)) and text.startswith('{\n  "kind": "sweep",\n  "method": "base",')
    assert best["point"] == {"lam": 0.3} and best["points"] == 3 and best["seeds"] == [0, 1]
    assert best["data_name"] == NAME and best["select"] == ["auc", 0.0, None] and best["versions"]["dubnb"]
    assert best["metrics"]["va_auc"]["mean"] == pytest.approx(0.295) and found.best_params == best["params"]
    assert list(found.trials["key"]) == sorted(trial.key for trial in fake.ran)
    assert len((out / "results.csv").read_text().splitlines()) == 7
    err = capsys.readouterr().err
    assert f"base (mf) on {NAME}: 3 points, 2 seeds, 6 trials\n" in err and "best va_auc 0.3000" in err and "6/6" in err
    assert "pre-training: 6 models trained, 12 times reused instead of trained again: 1.5 s of training saved\n" in err
    (row, *_) = Ledger(out).rows()
    assert (row["attempts"], row["protocol"], row["data"]) == (1, "full-ranking", data.fingerprint)
    assert Ledger(out).about("trials") == 6 and Ledger(out).about("drivers") == [os.getpid()]


def test_only_models_that_can_still_be_chosen_are_kept_and_none_is_fitted_twice(monkeypatch, data, tmp_path):
    lams = (0.3, 0.1, 0.5, 0.2)
    fake = FakeExecutor(monkeypatch, by_lam)
    swept(data, tmp_path / "a", lams, seeds=2)
    assert fake.lams() == [0.3, 0.3, 0.1, 0.1, 0.5, 0.5, 0.2, 0.2] and max(fake.models) == 2 and fake.models[-1] == 1
    assert not (tmp_path / "a" / "models").exists()
    close = FakeExecutor(monkeypatch, lambda trial: done(trial.params["lam"], va_ndcg=-trial.params["lam"]))
    swept(data, tmp_path / "b", lams, select=("auc", 0.25, "ndcg"))
    assert close.lams() == [0.3, 0.1, 0.5, 0.2] and close.models == [1, 2, 2, 2]  # 0.5 and 0.3, which is chosen
    assert (tmp_path / "b" / "best.npz").read_text() == f"model {close.ran[0].key}"


def test_a_model_that_is_missing_or_changed_is_fitted_again(monkeypatch, data, tmp_path, capsys):
    fake = FakeExecutor(monkeypatch, by_lam)
    swept(data, tmp_path, (0.1, 0.2))
    (tmp_path / "best.npz").write_bytes(b"other")
    swept(data, tmp_path, (0.1, 0.2), quiet=False)
    assert fake.lams() == [0.1, 0.2, 0.2] and (tmp_path / "best.npz").read_text() == f"model {fake.ran[1].key}"
    assert "fitting the chosen point once more, for best.npz\n" in capsys.readouterr().err
    fake.saves, fake.outcome = False, lambda trial: {"status": FAILED, "reason": "diverged"}
    (tmp_path / "best.npz").unlink()
    assert swept(data, tmp_path, (0.1, 0.2)).best["point"] == {"lam": 0.2}
    assert capsys.readouterr().err == "best.npz is not written: the fit ended with diverged\n"


def test_failed_trials_run_again_only_if_asked(monkeypatch, data, tmp_path):
    fake = FakeExecutor(monkeypatch, lambda trial: {"status": FAILED, "reason": "diverged"})
    found = swept(data, tmp_path, (0.1,))
    assert found.best is None and found.best_params is None
    assert found.trials[["status", "reason"]].to_numpy().tolist() == [["failed", "diverged"]]
    best = json.loads((tmp_path / "best.json").read_text())
    assert best["params"] is None and best["reason"] == "no point finished on all its seeds"
    with pytest.raises(InputError, match="no point finished on all its seeds"):
        found.fit_best()
    swept(data, tmp_path, (0.1,))
    assert len(fake.ran) == 1
    fake.outcome = by_lam
    for _ in range(2):  # what is done is not run again
        assert swept(data, tmp_path, (0.1,), retry_failed=True).best["point"] == {"lam": 0.1}
    assert len(fake.ran) == 2


def test_halving_gives_more_epochs_to_fewer_points(monkeypatch, data, tmp_path, capsys):
    fake = FakeExecutor(monkeypatch, by_lam)
    lams = [round(0.05 * k, 2) for k in range(1, 10)]
    found = swept(data, tmp_path, lams, halving=True, quiet=False)
    last = [(trial.params["lam"], trial.params["epochs"]) for trial in fake.ran[9:]]
    assert last == [(0.35, 3), (0.4, 3), (0.45, 3), (0.45, 9)] and fake.models == [1]
    assert {trial.params["epochs"] for trial in fake.ran[:9]} == {1} and found.best["point"] == {"lam": 0.45}
    err = capsys.readouterr().err
    assert f"base (mf) on {NAME}: 9 points, 1 seeds, 13 trials" in err
    assert "halving: 9 -> 3 -> 1 points, up to 67 % of a full grid's epochs saved" in err
    other = FakeExecutor(monkeypatch, lambda trial: done(trial.params["lam"], va_ndcg=-trial.params["lam"]))
    swept(data, tmp_path / "ndcg", lams, halving=True, select="ndcg")
    assert other.lams()[9:12] == lams[:3]  # by the metric that selects


def test_without_the_metric_there_is_nothing_to_choose(monkeypatch, data, tmp_path, capsys):
    FakeExecutor(monkeypatch, lambda trial: done(None) | {"trained": None, "reused": None, "saved_seconds": None})
    few = swept(data, tmp_path, (0.1, 0.2, 0.3), random=2, quiet=False)
    err = capsys.readouterr().err
    assert "2 of the grid's 3 points, 1 seeds, 2 trials" in err and "pre-training" not in err and "best va" not in err
    assert few.best is None


# ---- requests and grids


def test_resources_have_the_sweep_s_defaults_and_are_checked(tmp_path, monkeypatch):
    own = inspect.signature(dubnb.sweep).parameters
    assert {name: own[name].default for name in Resources._fields} == Resources()._asdict()
    for cpus, n_jobs in ((5, 5), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda cpus=cpus: cpus)
        assert Resources(n_jobs=EVERY_CPU).checked().n_jobs == n_jobs
    assert Resources(pretrained=tmp_path / "new").checked().pretrained == str(tmp_path / "new")
    (tmp_path / "file").write_text("")
    for wrong, said in (
        ({"client": "c", "scheduler": "s"}, "both given"),
        ({"pretrained": tmp_path / "file"}, "is a file: give a directory"),
    ):
        with pytest.raises(InputError, match=said):
            Resources(**wrong).checked()


def asked(data, points, seeds=1, select="auc", protocol="full-ranking"):
    given = {"grid": {"lam": [0.1, 0.2]}, "fixed": {}, "random": None, "full": False, "halving": False} | points
    return grid.checked_request("base", "mf", data, grid.Points(**given), seeds, select, protocol)


def test_points_that_are_the_same_fit_are_tried_once(data):
    """None stands for the default of this log, which may be named too."""
    default = dubnb.Base().resolved_params(data)["lam"]
    found = asked(data, {"grid": {"lam": [None, default, 0.2]}})
    assert [point for point, _ in found.points] == [{"lam": None}, {"lam": 0.2}] and found.n_grid == 3


def test_liked_items_cannot_select_where_no_lists_are_made(data):
    assert asked(data, {}, select="liked@10").select.primary == "liked@10"
    with pytest.raises(InputError, match="select=liked@10 needs lists of all candidates, which test-items lacks"):
        asked(data, {}, select=("auc", 0.01, "liked@10"), protocol="test-items")


def test_S_va_needs_both_labels(data):
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_va", "S_te")}
    n = len(parts["S_va"].labels)
    for n_positives, fine in ((0, False), (1, True), (n - 1, True), (n, False)):
        own = parts | {"S_va": parts["S_va"]._replace(labels=(np.arange(n) < n_positives).astype(float))}
        log = dubnb.Partition(own, (data.n_users, data.n_items))
        if fine:
            asked(log, {})
        else:
            with pytest.raises(InputError, match="S_va must hold both labels"):
                asked(log, {})


def test_the_wide_grid_is_sampled_unless_all_points_are_asked_for():
    def wanted(name, random=None, full=False):
        return grid.Points(name, {}, random, full, False).wanted()

    assert [wanted("wide"), wanted("wide", full=True), wanted("paper"), wanted({"lam": [1]})] == [60, None, None, None]
    assert wanted("wide", 5, True) == 5 and wanted("paper", 7) == 7


def test_axes_come_from_names_files_and_dicts(data, tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text("rank = [5, 6]\nlam = 0.5\n")
    for given in (str(path), path):
        assert grid.axes(dubnb.Base, "mf", given, {}, data) == {"rank": [5, 6], "lam": [0.5]}
    assert grid.axes(dubnb.Base, "mf", path, {"rank": 9}, data) == {"lam": [0.5]}
    given = {"lam": np.array([0.1, 0.2, 0.2]), "rank": (3, 4), "epochs": 5, "hidden": [(4, 2), [4, 2]]}
    expected = {"lam": [0.1, 0.2], "rank": [3, 4], "epochs": [5], "hidden": [(4, 2)]}
    assert grid.axes(dubnb.Base, "mf", given, {}, data) == expected
    wide = [grid.axes(METHODS["autodebias"], backbone, "wide", {}, data) for backbone in ("mf", "ncf")]
    assert wide[0] != wide[1]  # another solver has another grid
    assert wide[0] != grid.axes(METHODS["autodebias"], "mf", "paper", {}, data)


def test_a_random_search_is_the_same_in_every_version():
    axes = {"rank": [1, 2, 3, 4], "lam": [0.1, 0.2]}
    every = grid.points(axes)
    assert every[:3] == [{"rank": 1, "lam": 0.1}, {"rank": 1, "lam": 0.2}, {"rank": 2, "lam": 0.1}] and len(every) == 8
    assert [every.index(point) for point in grid.points(axes, 3)] == [0, 4, 7]
    assert grid.points(axes, 8) == grid.points(axes, 9) == every and len(grid.points(axes, 7)) == 7


def test_halving_s_rungs():
    assert pytest.approx((1 / 9, 1 / 3, 1.0)) == grid.SHARES
    assert [grid.rung_sizes(n) for n in (9, 10, 75, 2, 1)] == [[9, 3, 1], [10, 4, 2], [75, 25, 9], [2, 1, 1], [1, 1, 1]]
    assert [grid.rung_epochs(*each) for each in ((90, 1 / 9), (10, 1 / 3), (1, 1 / 9), (7, 1.0))] == [10, 4, 1, 7]
    assert grid.survivors([0.1, 0.3, 0.3, 0.2], 2) == [1, 2] and grid.survivors([0.3, 0.1, 0.3], 1) == [0]
    assert grid.survivors([-math.inf, math.inf, 0.0], 3) == [1, 2]
    assert grid.saved_epochs(75) == pytest.approx(1 - (75 / 9 + 25 / 3 + 9) / 75)


# ---- choice and results


def rows_of(**metrics):
    return {key: {"key": key, "status": DONE, "metrics": own} for key, own in metrics.items()}


def test_only_points_that_are_done_on_all_seeds_can_be_chosen():
    rows = rows_of(a={"va_auc": 0.5}, b={"va_auc": 0.7}, c={"va_auc": None}, d=None)
    rows |= {"e": {"key": "e", "status": FAILED, "metrics": {"va_auc": 0.9}}}
    points = [["a", "c"], ["a", "d"], ["a", "e"], ["a", "missing"], ["a"], ["a", "b"], ["b", "a"]]
    found = grid.means(points, rows, "va_auc")
    assert found[4:] == pytest.approx([0.5, 0.6, 0.6]) and (found[:4] == -math.inf).all()
    assert grid.choose([], rows, grid.Select("auc")) is None
    assert grid.choose(points[:4], rows, grid.Select("auc")) is None
    assert grid.choose(points, rows, grid.Select("auc")) == 5  # the first of equals


def test_the_second_metric_decides_within_the_tolerance_and_at_its_end():
    rows = rows_of(
        a={"va_auc": 0.75, "va_ndcg": 0.1}, b={"va_auc": 0.5, "va_ndcg": 0.9}, c={"va_auc": 0.25, "va_ndcg": 1.0}
    )
    points = [["a"], ["b"], ["c"]]
    for tolerance, chosen in ((0.2, 0), (0.25, 1), (0.5, 2)):
        assert grid.choose(points, rows, grid.selection(("auc", tolerance, "ndcg"))) == chosen
    for row in rows.values():
        del row["metrics"]["va_ndcg"]
    assert grid.choose(points, rows, grid.selection(("auc", 1.0, "ndcg"))) == 0
    for wrong in (("auc", 0.1), (), ("auc", 0.1, "acu"), ("acu", 0.1, "auc"), ("auc",) * 4):
        with pytest.raises(InputError, match="select"):
            grid.selection(wrong)


def test_the_table_of_trials_has_a_column_for_everything(tmp_path):
    more = {"protocol": "p", "epochs_run": 2, "reason": None, "seconds": 1.0, "peak_mb": 3.0, "attempts": 1}
    rows = [
        {"key": "a", "status": DONE, "params": {"hidden": (4, 2), "lam": 0.5}, "metrics": {"auc": 0.7}} | more,
        {"key": "b", "status": FAILED, "params": {"lam": 0.1, "gamma": 1}, "metrics": None} | more,
        {"key": "c", "status": FAILED, "params": None, "metrics": {"ndcg": 0.2}} | more,
    ]
    found = run.table(rows)
    assert list(found) == [
        "key", "status", "hidden", "lam", "gamma", "protocol", "auc", "ndcg",
        "epochs_run", "reason", "seconds", "peak_mb", "attempts",
    ]  # fmt: skip
    assert found["hidden"][0] == "4,2" and found["lam"].tolist()[:2] == [0.5, 0.1] and found["ndcg"][2] == 0.2
    with pytest.raises(ValueError):
        run.write_best(str(tmp_path), {"a": math.nan})


def test_the_best_point_has_mean_spread_and_values():
    trials = [Trial(key, dubnb.Base, {"lam": 0.5, "seed": seed}, "d") for key, seed in (("a", 3), ("b", 4))]
    rows = rows_of(a={"auc": 0.7, "p@5": None, "r@5": None}, b={"auc": 0.9, "p@5": 0.25, "r@5": None})
    found = run.best_point({"lam": 0.5}, trials, rows)
    assert found["params"] == {"lam": 0.5} and found["seeds"] == [3, 4] and found["trials"] == ["a", "b"]
    assert found["metrics"]["auc"]["std"] == pytest.approx(0.2 / math.sqrt(2))
    assert found["metrics"]["p@5"] == {"mean": 0.25, "std": None, "values": [None, 0.25]}
    assert found["metrics"]["r@5"] == {"mean": None, "std": None, "values": [None, None]}


# ---- trials


def test_values_are_kept_in_plain_types():
    given = (
        np.float64(0.5),
        np.int32(3),
        np.bool_(True),
        np.array(2.5),
        None,
        "x",
        True,
        7,
        [1, np.float32(2)],
        (1, (2,)),
    )
    expected = [0.5, 3, True, 2.5, None, "x", True, 7, (1, 2.0), (1, (2,))]
    found = [plain("x", value) for value in given]
    assert found == expected and [type(value) for value in found] == [type(value) for value in expected]
    assert plain("x", 2**53) == 2**53 and plain("x", -(2**53)) == -(2**53)
    for wrong in (2**53 + 1, -(2**53) - 1, math.nan, math.inf, object(), np.ones(2), {"a": 1}):
        with pytest.raises(InputError, match="x "):
            plain("x", wrong)


# ---- the schedule


def trials_of(keys):
    return [Trial(key, dubnb.Base, {}, "d") for key in keys]


def families(trial):
    """a1 and a2 pre-train the same, b1 something of the same family, c1 something else, x nothing."""
    if trial.key[0] == "x":
        return None, None
    return ("one" if trial.key[0] in "ab" else "two"), trial.key[0]


def alone(trial):
    return None, None


def test_a_group_waits_for_its_first_trial_and_a_family_pretrains_one_at_a_time():
    trials = {trial.key: trial for trial in trials_of(["a1", "a2", "b1", "c1", "x1", "x2"])}
    schedule = Schedule(trials.values(), 0, groups=families)
    first = [schedule.next(block=False).key for _ in range(4)]
    assert first == ["a1", "c1", "x1", "x2"] and schedule.next(block=False) is None and schedule.unfinished()
    assert schedule.ended(trials["x1"], {"status": DONE}) and schedule.next(block=False) is None
    assert schedule.ended(trials["a1"], {"status": FAILED})
    assert [schedule.next(block=False).key for _ in range(2)] == ["a2", "b1"] and schedule.next(block=False) is None
    for key in ("a2", "b1", "c1", "x2"):
        assert schedule.unfinished() and schedule.ended(trials[key], {"status": DONE})
    assert not schedule.unfinished() and schedule.next() is None


def test_a_first_trial_that_is_lost_frees_its_family():
    schedule = Schedule(trials_of(["a1", "b1"]), 1, groups=families)
    a1 = schedule.next(block=False)
    assert schedule.next(block=False) is None and not schedule.ended(a1, {"status": "memory"})
    assert schedule.next(block=False).key == "b1" and schedule.next(block=False) is None


def test_on_a_cluster_only_a_loss_alone_counts():
    schedule = Schedule(trials_of("ab"), 0, isolate=True, groups=alone)
    a, b = schedule.next(block=False), schedule.next(block=False)
    assert not schedule.ended(a, {"status": "killed"}) and schedule.next(block=False) is None
    assert not schedule.ended(b, {"status": "killed"})
    assert schedule.next(block=False) is a and schedule.next(block=False) is None
    assert schedule.ended(a, {"status": "killed"}) and schedule.attempts["a"] == 1
    assert schedule.next(block=False) is b and schedule.ended(b, {"status": DONE}) and not schedule.unfinished()


# ---- shared data


@pytest.mark.parametrize("on_disk", [False, True])
def test_packed_arrays_are_equal_read_only_and_stored_once(on_disk, tmp_path):
    same = np.arange(500, dtype=np.int16)
    odd = np.arange(12.0).reshape(3, 4)[:, ::2]
    thing = {"a": same, "b": same[:], "c": odd, "d": np.empty((0, 3)), "e": np.array(["x", None]), "f": (1, "y")}
    thing["g"] = np.asfortranarray(np.arange(200).reshape(20, 10))
    packed = pack(thing, str(tmp_path / "block") if on_disk else None)
    size = (tmp_path / "block").stat().st_size if on_disk else len(packed.block)
    assert size < 1024 + 1600 + 2 * 64  # `same` is there once
    found = unpack(packed)
    for name in "acdg":
        np.testing.assert_array_equal(found[name], thing[name])
        assert found[name].dtype == thing[name].dtype and found[name].shape == thing[name].shape
    assert found["e"].tolist() == ["x", None] and found["f"] == (1, "y")
    assert np.shares_memory(found["a"], found["b"]) and not found["a"].flags.writeable and not found["g"].flags.owndata
    assert found["g"].ctypes.data % 16 == 0 and unpack(pack({"x": 1})) == {"x": 1}


# ---- the ledger and its directory


def test_checksums_are_those_of_earlier_versions():
    """Otherwise all rows of earlier ledgers would count as damaged."""
    assert ledger._hash_of_row(["a", 1, None, 0.5]) == "5fb6ac7d0e7629b87fd83b0f40575ce8"


def test_a_lock_that_is_not_a_database_is_not_held(tmp_path):
    assert not ledger.in_use(str(tmp_path))
    (tmp_path / ledger.LOCK).write_text("no database, but long enough to be taken for one" * 100)
    assert not ledger.in_use(str(tmp_path))


def test_a_ledger_without_an_identity_is_read_only(tmp_path):
    with pytest.raises(InputError, match="is not a sweep: it has no ledger"):
        Ledger(tmp_path)
    own = Ledger(tmp_path, {"kind": "sweep", "n": 3})
    own.note("x", [1])
    own.note("x", {"a": None})
    assert own.about("x") == {"a": None} and own.about("y") is None and own.about("n") == 3
    own.record({"key": "b", "status": DONE, "params": {"lam": 0.5}, "metrics": {"auc": None}, "seconds": 1.5})
    own.record({"key": "a", "status": DONE})
    b = {"key": "b", "params": {"lam": 0.5}, "metrics": {"auc": None}, "versions": None, "seconds": 1.5}
    found = own.rows()
    assert [row["key"] for row in found] == ["a", "b"] and found[1].items() >= b.items() and own.damaged() == []
    own.connection.execute("UPDATE trials SET seconds = 2 WHERE key = 'b'")
    assert own.damaged() == ["b"] and [row["key"] for row in own.rows()] == ["a"]
    own.forget(["b"])
    own.close()
    read = Ledger(tmp_path)
    assert [row["key"] for row in read.rows()] == ["a"]
    with pytest.raises(SweepError, match="cannot be written"):
        read.note("x", 1)
    with pytest.raises(InputError, match="was made with n 3, not 4"):
        Ledger(tmp_path, {"n": 4})


def test_a_damaged_fact_is_bad_input(tmp_path):
    own = Ledger(tmp_path, {"kind": "sweep"})
    own.connection.execute("UPDATE about SET value = '\"study\"' WHERE name = 'kind'")
    with pytest.raises(InputError, match="the checksum of 'kind' does not match"):
        own.about("kind")
    own.close()
    with sqlite3.connect(tmp_path / ledger.LEDGER) as connection:
        connection.execute("UPDATE about SET value = CAST(x'ff' AS TEXT) WHERE name = 'kind'")
    with pytest.raises(InputError, match="is damaged"):  # text that is not UTF-8
        Ledger(tmp_path).about("kind")


# ---- the driver's surroundings


def test_a_revision_is_noted_only_under_git(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert runner._git_revision() is None
    monkeypatch.setenv("PATH", "")
    assert runner._git_revision() is None


# ---- trials in a worker


def ran(data, method=dubnb.Base, rules=None, **params):
    trial = planned(method, data, {"rank": 2, "epochs": 1} | params)
    return json.loads(worker.run(trial, rules or Rules(), {"other": None, data.fingerprint: data}))


def test_without_test_pairs_only_S_va_is_judged(data):
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_va")} | {"S_te": ([], [], [])}
    found = ran(dubnb.Partition(parts, (data.n_users, data.n_items)))["metrics"]
    assert found and all(name.startswith("va_") for name in found)


def test_what_a_trial_raises_is_its_reason(data, monkeypatch):
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError

    for error, status, reason in (
        (MemoryError("4 GB"), "memory", "MemoryError: 4 GB"),
        (ValueError("two\n lines"), "failed", "ValueError: two lines"),
        (KeyboardInterrupt(), "failed", "KeyboardInterrupt: "),
        (Silent(), "failed", "Silent: (no text)"),
        (ValueError("x" * 1000), "failed", f"ValueError: {'x' * 1000}"[: worker.LONGEST_REASON]),
    ):
        monkeypatch.setattr(dubnb.Base, "fit", lambda *given, error=error, **named: (_ for _ in ()).throw(error))
        assert ran(data) == {"status": status, "reason": reason}


@pytest.mark.parametrize("protocol", ["full-ranking", "test-items"])
@pytest.mark.parametrize("method", ["base", "dub"])
def test_a_warm_up_leaves_no_kernel_to_compile(method, protocol, data):
    trial = planned(METHODS[method], data, {"epochs": 50, "rank": 100})
    found = json.loads(worker.warm_up(trial, Rules(protocol, time_limit=1e-9)))
    assert found["status"] == DONE and {"va_auc", "auc"} <= set(found["metrics"])


def test_the_first_fit_of_a_process_does_not_count_its_kernels(data, monkeypatch):
    clock, fit = [0.0], dubnb.Base.fit

    def compiling(model, *given, **named):
        clock[0] += 2.0 if clock[0] else 100.0
        return fit(model, *given, **named)

    monkeypatch.setattr(worker, "_warm", set())
    monkeypatch.setattr(worker.time, "process_time", lambda: clock[0])
    monkeypatch.setattr(dubnb.Base, "fit", compiling)
    assert [ran(data)["cpu_seconds"] for _ in range(2)] == [2.0, 2.0] and clock[0] == 104.0


def test_a_done_trial_is_never_overwritten(tmp_path):
    """A late worker, or a second driver's orphan, may report it again; a failed one is replaced by its retry."""
    out = tmp_path / "s"
    out.mkdir()
    row = {"params": {}, "metrics": {"auc": 0.7}}
    with contextlib.closing(ledger.Ledger(out, {})) as book:
        book.record({"key": "a", "status": "failed", **row})
        for status, auc in (("done", 0.7), ("done", 0.1), ("failed", 0.2), ("killed", 0.3)):
            book.record({"key": "a", "status": status, "params": {}, "metrics": {"auc": auc}})
        (kept,) = book.rows()
    assert (kept["status"], kept["metrics"]) == ("done", {"auc": 0.7})


# ---- pre-trained models that trials share


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
def test_a_shared_store_never_gives_another_fit_s_models(change, small_log):
    """With a store that another fit has filled, a fit is what it is without one."""
    data, store = small_log, Memory()
    fitted(data, store)
    assert len(store) == 2 and store.found == 0
    other = naive.small_partition(8, 8) if change == "data" else data
    expected, found = fitted(other, **CHANGES[change]), fitted(other, store, **CHANGES[change])
    for mine, theirs in ((found.weights_, expected.weights_), (found.teacher_, expected.teacher_)):
        for name, array in mine.arrays().items():
            np.testing.assert_array_equal(array, theirs.arrays()[name], err_msg=f"{change}: {name}")
    assert found.history_.drop(columns="seconds").equals(expected.history_.drop(columns="seconds"))


def test_a_shared_store_serves_what_is_the_same(small_log):
    """What only the refinement reads has no part in pre-training; patience has."""
    data, store = small_log, Memory()
    fitted(data, store)
    fitted(data, store, gamma=0.1, lam=0.1, terms="ad", shrink=0.5)
    assert store.found == 2 and len(store) == 2
    fitted(data, store, patience=1)
    assert store.found == 2 and len(store) == 4


def test_an_acknowledged_trial_is_on_the_disk(tmp_path):
    """WAL with synchronous=FULL (2), and another process sees the trial at once."""
    with contextlib.closing(Ledger(tmp_path, {"kind": "sweep"})) as own, contextlib.closing(Ledger(tmp_path)) as other:
        own.record({"key": "a", "status": DONE, "params": {}, "metrics": {}})
        assert own.connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert own.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert [each["key"] for each in other.rows()] == ["a"]


def test_trials_of_another_version_are_other_trials(monkeypatch):
    before = trial_key("dub", {"rank": 2}, "log")
    monkeypatch.setattr("dubnb.sweeps.trial.VERSION", "0.0.0")
    assert trial_key("dub", {"rank": 2}, "log") != before


def test_results_begin_no_formula_where_a_spreadsheet_opens_them(tmp_path):
    run.write_results(str(tmp_path), pd.DataFrame({"data": ["=1+1", "plain"], "auc": [-0.5, 0.5]}))
    assert (tmp_path / run.RESULTS).read_text() == "data,auc\n'=1+1,-0.5\nplain,0.5\n"


def test_trials_wait_for_each_other_where_they_pretrain_the_same_on_the_same_data(small_log):
    def groups(name, data="one", **params):
        resolved = make(name, rank=2, **params).resolved_params(small_log)
        return pretraining_groups(SimpleNamespace(method=type(make(name)), params=resolved, data=data))

    own = groups("dub", gamma=0.1)
    assert None not in own and own == groups("dub", gamma=0.2)
    for other in (groups("dub", data="two"), groups("dub", seed=1), groups("dub", teacher_lam=0.3)):
        assert other[1] != own[1]
    assert groups("dub", data="two")[0] != own[0]
