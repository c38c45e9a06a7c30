"""Sweeps whose trials end as told, in this process: what is run, recorded, chosen, said and written; parts by hand."""

import inspect
import io
import json
import math
import os
import signal
import sqlite3
import stat
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import dubnb
from dubnb._check import InputError
from dubnb.backbones import BACKBONES
from dubnb.methods import METHODS
from dubnb.sweeps import (
    filed,
    grid,
    halving,
    ledger,
    pretrained,
    request,
    results,
    runner,
    sharing,
    signals,
    standing,
    work,
)
from dubnb.sweeps.engine import EVERY_CPU, Resources, new_engine
from dubnb.sweeps.errors import NotShared, SweepError
from dubnb.sweeps.fits import FinishedFit, Fits, planned, run_fits
from dubnb.sweeps.ledger import Ledger
from dubnb.sweeps.pretrained import Pretrained
from dubnb.sweeps.run import Sweep
from dubnb.sweeps.schedule import Schedule
from dubnb.sweeps.trial import DONE, FAILED, Filing, Rules, Trial, canonical, digest, plain
from tests.sweep_tools import NAME, tiny_log

FIXED = {"rank": 2, "epochs": 9}


@pytest.fixture(scope="module")
def data():
    return tiny_log()


def done(va_auc, **more):
    costs = {"epochs_run": 2, "seconds": 1.5, "peak_mb": 3.0, "trained": 1, "reused": 2, "saved_seconds": 0.25}
    return {"status": DONE, "reason": None, "metrics": {"va_auc": va_auc, "auc": 0.5} | more} | costs


class Told:
    """In place of engines: a trial ends as `outcome(trial)` says; `ran`, `rules` and `logs` are what was asked for."""

    def __init__(self, monkeypatch, outcome):
        self.outcome, self.ran, self.rules, self.logs, self.resources = outcome, [], [], [], []
        self.closed = 0
        monkeypatch.setattr(runner, "new_engine", self.engine)
        monkeypatch.setattr(runner, "_git_revision", lambda: "abc")

    def engine(self, data, rules, resources, out):
        self.rules.append(rules)
        self.logs.append(data)
        self.resources.append(resources)
        return SimpleNamespace(rules=rules, run=lambda schedule: self.run(schedule, rules), close=self.close)

    def run(self, schedule, rules):
        while (trial := schedule.next(block=False)) is not None:
            self.ran.append(trial)
            if rules.model_path is not None:
                with open(rules.model_path, "wb") as file:
                    file.write(f"model {trial.key}".encode())
            yield trial, self.outcome(trial)

    def close(self):
        self.closed += 1


def by_lam(**more):
    """The larger lam, the better on S_va, seed 1 a little worse."""
    return lambda trial: done(trial.params["lam"] - 0.01 * trial.params["seed"], **more)


def swept(data, out, lams=(0.1, 0.2, 0.3), **options):
    return dubnb.sweep(
        "base", data=data, grid={"lam": list(lams)}, out=out, **({"fixed": FIXED, "quiet": True} | options)
    )


# ---- whole sweeps ----------------------------------------------------------------------------------------------------


def test_a_sweep_runs_records_chooses_and_keeps(monkeypatch, data, tmp_path, capsys):
    told, out = Told(monkeypatch, by_lam()), tmp_path / "a" / "s"
    found = swept(data, out, seeds=2, quiet=False, pretrained=tmp_path / "shared", time_limit=9.0)
    assert isinstance(found, Sweep) and found.out == str(out) and found.data is data
    lams = [trial.params["lam"] for trial in told.ran]
    assert lams == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.3]  # and the best once more, for its model
    assert [trial.params["seed"] for trial in told.ran] == [0, 1, 0, 1, 0, 1, 0]
    assert all(trial.params["epochs"] == 9 and trial.method is dubnb.Base for trial in told.ran)
    assert [rules.model_path for rules in told.rules] == [None, str(out / "best.npz")] and told.closed == 2
    assert {(rules.pretrained, rules.time_limit) for rules in told.rules} == {(str(tmp_path / "shared"), 9.0)}
    assert (tmp_path / "shared").is_dir() and told.logs[0] == {data.fingerprint: data}
    assert told.resources[0] == Resources(time_limit=9.0, pretrained=str(tmp_path / "shared"))
    assert (out / "best.npz").read_text() == f"model {told.ran[4].key}"
    best = json.loads((out / "best.json").read_text())
    assert best == json.loads(json.dumps(found.best)) and (out / "best.json").read_text().endswith("\n}\n")
    assert (out / "best.json").read_text().startswith('{\n  "kind": "sweep",\n  "method": "base",')
    assert best["point"] == {"lam": 0.3} and best["points"] == 3 and best["seeds"] == [0, 1]
    assert best["data_name"] == NAME and best["select"] == ["auc", 0.0, None] and best["versions"]["dubnb"]
    assert best["metrics"]["va_auc"]["mean"] == pytest.approx(0.295) and found.best_params == best["params"]
    assert list(found.trials["key"]) == sorted(trial.key for trial in told.ran[:6])
    text = (out / "results.csv").read_text()
    assert text.splitlines()[0].startswith("key,status,") and len(text.splitlines()) == 7
    err = capsys.readouterr().err
    assert f"base (mf) on {NAME}: 3 points, 2 seeds, 6 trials\n" in err
    assert "fitting the chosen point once more, for best.npz\n" in err
    saved = "pre-training: 6 models trained, 12 times reused instead of trained again: 1.5 s of training saved\n"
    assert saved in err and "best va_auc 0.3000" in err and "6/6" in err
    (row, *_) = Ledger(out).rows()
    assert (row["git"], row["attempts"], row["protocol"], row["data"]) == ("abc", 1, "full-ranking", data.fingerprint)
    assert sorted(each["seed"] for each in Ledger(out).rows()) == [0, 0, 0, 1, 1, 1]
    assert Ledger(out).about("trials") == 6 and Ledger(out).about("drivers") == [os.getpid()]


def test_a_second_run_runs_what_is_new(monkeypatch, data, tmp_path, capsys):
    told = Told(monkeypatch, by_lam())
    swept(data, tmp_path)
    told.ran.clear()
    again = swept(data, tmp_path)
    assert told.ran == [] and len(again.trials) == 3 and capsys.readouterr().err == ""
    wider = swept(data, tmp_path, (0.3, 0.4), quiet=False)
    assert [trial.params["lam"] for trial in told.ran] == [0.4, 0.4] and wider.best["point"] == {"lam": 0.4}
    assert "2/2" in capsys.readouterr().err and len(wider.trials) == 4
    told.ran.clear()
    (tmp_path / "best.npz").write_bytes(b"other")
    swept(data, tmp_path, (0.3, 0.4))
    assert [trial.params["lam"] for trial in told.ran] == [0.4]  # the file is not what was noted


def test_trials_of_earlier_runs_are_counted_as_found(monkeypatch, data, tmp_path):
    counted = []
    monkeypatch.setattr(runner, "count_found", lambda bar, number: counted.append(number))
    Told(monkeypatch, by_lam())
    for lams in ((0.1, 0.2, 0.3), (0.1, 0.2, 0.3), (0.3, 0.4)):
        swept(data, tmp_path, lams)
    assert counted == [0, 3, 1]


def test_trials_that_fail_are_kept_and_run_again_only_if_asked(monkeypatch, data, tmp_path, capsys):
    told = Told(monkeypatch, lambda trial: {"status": FAILED, "reason": "diverged"})
    found = swept(data, tmp_path, (0.1,))
    assert found.best is None and found.best_params is None and len(told.ran) == 1
    assert found.trials[["status", "reason"]].to_numpy().tolist() == [["failed", "diverged"]]
    best = json.loads((tmp_path / "best.json").read_text())
    assert best["params"] is None and best["reason"] == "no point finished on all its seeds"
    with pytest.raises(InputError, match="no point finished on all its seeds"):
        found.fit_best()
    swept(data, tmp_path, (0.1,))
    assert len(told.ran) == 1
    told.outcome = by_lam()
    assert swept(data, tmp_path, (0.1,), retry_failed=True).best["point"] == {"lam": 0.1}
    swept(data, tmp_path, (0.1,), retry_failed=True)
    assert len(told.ran) == 3  # once more, and for best.npz; what is done is not run again
    assert capsys.readouterr().err == ""


def test_lost_trials_are_tried_again_and_then_quarantined(monkeypatch, data, tmp_path):
    told = Told(monkeypatch, lambda trial: {"status": "killed", "reason": "its worker was killed"})
    found = swept(data, tmp_path, (0.1,))
    assert len(told.ran) == 3  # two retries
    assert found.trials["status"].tolist() == ["quarantined"] and found.trials["attempts"].tolist() == [3]
    assert found.trials["reason"].tolist() == ["its worker was killed; attempts: 3"]
    told.ran.clear()
    swept(data, tmp_path / "b", (0.1,), retries=0)
    assert len(told.ran) == 1


def test_a_model_that_cannot_be_saved_is_said(monkeypatch, data, tmp_path, capsys):
    told = Told(monkeypatch, by_lam())
    told.outcome = lambda trial: by_lam()(trial) if len(told.ran) == 1 else {"status": FAILED, "reason": "diverged"}
    found = swept(data, tmp_path, (0.1,))
    assert found.best["point"] == {"lam": 0.1} and Ledger(tmp_path).about("best_model") is None
    assert capsys.readouterr().err == "best.npz is not written: the fit ended with diverged\n"


def test_the_best_model_is_fitted_here_where_a_cluster_shares_no_directory(monkeypatch, data, tmp_path):
    told = Told(monkeypatch, by_lam())
    made = told.engine

    def engine(data, rules, resources, out):
        if resources.client is not None and rules.model_path is not None:
            raise NotShared("no")
        return made(data, rules, resources, out)

    monkeypatch.setattr(runner, "new_engine", engine)
    swept(data, tmp_path, (0.1,), client="a cluster", n_jobs=3)
    assert [(each.client, each.n_jobs) for each in told.resources] == [("a cluster", 3), (None, 1)]


def test_halving_gives_more_epochs_to_fewer_points(monkeypatch, data, tmp_path, capsys):
    told = Told(monkeypatch, by_lam())
    lams = [round(0.05 * k, 2) for k in range(1, 10)]
    found = swept(data, tmp_path, lams, halving=True, quiet=False)
    assert [(trial.params["lam"], trial.params["epochs"]) for trial in told.ran[9:]] == [
        (0.35, 3), (0.4, 3), (0.45, 3), (0.45, 9), (0.45, 9)
    ]  # fmt: skip
    assert {trial.params["epochs"] for trial in told.ran[:9]} == {1} and found.best["point"] == {"lam": 0.45}
    err = capsys.readouterr().err
    assert f"base (mf) on {NAME}: 9 points, 1 seeds, 13 trials" in err
    assert "halving: 9 -> 3 -> 1 points, up to 67 % of a full grid's epochs saved" in err
    other = Told(monkeypatch, lambda trial: done(trial.params["lam"], va_ndcg=-trial.params["lam"]))
    swept(data, tmp_path / "ndcg", lams, halving=True, select="ndcg")
    assert [trial.params["lam"] for trial in other.ran[9:12]] == lams[:3]  # by what selects
    capsys.readouterr()
    Told(monkeypatch, lambda trial: done(None) | {"trained": None, "reused": None, "saved_seconds": None})
    few = swept(data, tmp_path / "b", lams, random=2, quiet=False)
    err = capsys.readouterr().err
    assert "2 of the grid's 9 points, 1 seeds, 2 trials" in err and "pre-training" not in err and "best va" not in err
    assert few.best is None  # nothing to choose on


def test_a_stopped_sweep_keeps_what_it_has(monkeypatch, data, tmp_path, capsys):
    def outcome(trial):
        if trial.params["lam"] == 0.2:
            raise KeyboardInterrupt
        return by_lam()(trial)

    told = Told(monkeypatch, outcome)
    with pytest.raises(KeyboardInterrupt):
        swept(data, tmp_path, quiet=False)
    assert "\ndubnb: stopped; 1 trials are kept in" in capsys.readouterr().err  # not behind the bar
    assert told.closed == 1
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 2 and not (tmp_path / "best.json").exists()
    told.outcome = lambda trial: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        swept(data, tmp_path / "b")
    assert not (tmp_path / "b" / "results.csv").exists()  # nothing to write
    monkeypatch.setattr(runner, "remove_leftovers", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):  # before there is a bar
        swept(data, tmp_path / "c")


def test_a_sweep_s_own_resources_are_the_defaults():
    own = inspect.signature(dubnb.sweep).parameters
    assert {name: own[name].default for name in Resources._fields} == Resources()._asdict()
    assert (own["seeds"].default, own["full"].default, own["halving"].default) == (1, False, False)


def test_checksums_are_those_of_earlier_versions():
    """Or all their rows were damaged."""
    assert ledger._checksum(["a", 1, None, 0.5]) == "5fb6ac7d0e7629b87fd83b0f40575ce8"


def test_damaged_rows_are_said_and_run_again(monkeypatch, data, tmp_path, capsys):
    told = Told(monkeypatch, by_lam())
    swept(data, tmp_path, (0.1, 0.2))
    connection = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    connection.execute("UPDATE trials SET seed = 7 WHERE key = ?", (told.ran[0].key,))
    connection.close()
    told.ran.clear()
    assert standing.status(tmp_path)["damaged"] == 1
    swept(data, tmp_path, (0.1, 0.2))
    assert [trial.params["lam"] for trial in told.ran] == [0.1] and standing.status(tmp_path)["damaged"] == 0
    assert capsys.readouterr().err == "1 rows of the ledger are damaged: their trials run again\n"


def test_a_sweep_in_a_notebook(data):
    import pandas as pd

    trials = pd.DataFrame({"status": ["done", "failed", "done"]})
    found = Sweep("runs/x", dubnb.Base, data, trials, {"params": {"lam": 0.5}})._repr_html_()
    assert "sweep of base" in found and "2 done of 3" in found and "0.5" in found and "runs/x" in found
    none = Sweep("runs/x", dubnb.Base, data, pd.DataFrame(), None)._repr_html_()
    assert "0 done of 0" in none and "none: no point finished" in none


def test_how_a_sweep_stands(monkeypatch, data, tmp_path):
    Told(monkeypatch, by_lam())
    swept(data, tmp_path, select=("auc", 0.15, "auc"))
    now = standing.status(tmp_path)
    assert (now["out"], now["method"], now["backbone"], now["running"]) == (str(tmp_path), "base", "mf", False)
    assert (now["trials"], now["counts"], now["damaged"]) == (3, {"done": 3}, 0)
    assert now["select"] == ["auc", 0.15, "auc"]
    assert now["best"]["params"]["lam"] == 0.3 and set(now["best"]) == {"key", "params", "metrics"}
    (tmp_path / "b").mkdir()
    Ledger(tmp_path / "b", {"method": "m"}).close()
    empty = standing.status(tmp_path / "b")
    assert empty["best"] is None and empty["select"] == ["auc", 0.0, None] and empty["trials"] is None


# ---- fits ------------------------------------------------------------------------------------------------------------


def test_fits_are_run_once_on_their_own_logs(monkeypatch, data, tmp_path):
    told, other, third = Told(monkeypatch, by_lam(p=None)), tiny_log(1), tiny_log(2)
    trials = [planned(dubnb.Base, log, FIXED | {"lam": lam, "seed": 0}) for log, lam in ((data, 0.1), (other, 0.2))]
    found = run_fits([*trials, trials[0]], [data, other, third], tmp_path)
    assert [trial.key for trial in told.ran] == [trial.key for trial in trials] and set(told.logs[0]) == {
        data.fingerprint,
        other.fingerprint,
    }
    assert told.rules[0].filing is None and told.rules[0].protocol == "full-ranking" and told.resources[0].n_jobs == 1
    fit = found[trials[1]]
    assert fit.done and fit.reason is None and (fit.epochs_run, fit.seconds) == (2, 1.5) and fit.trial is trials[1]
    assert fit.metrics["va_auc"] == 0.2 and math.isnan(fit.metrics["p"]) and fit.directory == str(tmp_path / "shown")
    assert found.best(trials) == 1 and found.best([trials[1], trials[0]]) == 0 and found.best([trials, trials[:1]]) == 0
    told.ran.clear()
    run_fits(trials, [data, other], tmp_path)
    assert told.ran == []
    run_fits(trials[:1], [data], tmp_path, Resources(quiet=True, n_jobs=2), list_length=7)
    assert told.ran == trials[:1] and told.rules[-1].filing == Filing(str(tmp_path / "shown"), 7)  # its file is missing
    assert told.resources[-1].n_jobs == 2 and (tmp_path / "shown").is_dir()
    with pytest.raises(InputError, match="cannot be read: run the same command again"):
        fit.shown()
    with pytest.raises(InputError, match="which is not in `data`"):
        run_fits(trials, [data], tmp_path)
    with pytest.raises(InputError, match="protocol"):
        run_fits(trials, [data, other], tmp_path, protocol="x")


def test_a_fit_that_failed_has_a_reason_and_no_metrics():
    trial = Trial("k", dubnb.Base, {}, "d")
    row = {"status": FAILED, "reason": "diverged", "metrics": None, "epochs_run": None, "seconds": None}
    fit = Fits({"k": row}, "there")[trial]
    assert fit == FinishedFit(trial, FAILED, "diverged", {}, None, None, "there") and not fit.done
    assert Fits({"k": row}, "there").best([trial]) is None


class Shows:
    """A model of 3 users x 4 items whose scores are user + item / 10."""

    weights_ = SimpleNamespace(score_pairs=lambda users, items: users + items / 10)

    def recommend(self, users, k):
        self.asked = list(users), k
        items = np.array([[50, 51, 52], [53, 50, 50]])[:, :k]
        return items, np.array([[0.9, 0.8, 0.7], [0.5, np.nan, np.nan]])[:, :k]

    def probabilities(self, scores):
        return scores / 2

    def uncalibrated(self, scores):
        return scores / 4


def test_what_a_trial_showed_is_filed_by_rows(tmp_path):
    import pandas as pd

    ids = {
        "user_ids": dubnb.data.ids.Ids(np.array([10, 11, 12])),
        "item_ids": dubnb.data.ids.Ids(np.array([50, 51, 52, 53])),
    }
    S_te = SimpleNamespace(users=np.array([0, 2]), items=np.array([3, 1]))
    log = SimpleNamespace(n_items=4, triplets=lambda part: {"S_te": S_te}[part], **ids)
    judged = {
        "user": [12, 11],
        "user_auc": [0.5, math.nan],
        "percentile": [math.nan, 0.75],
        "weight": [4.0, 2.0],
        "liked@5": [1, 0],
        "judged@5": [2, 3],
    }
    per_user = pd.DataFrame({"user": [12, 10], "ndcg": [0.1, 0.2], "p@5": [0.3, 0.4]})
    no_lists = pd.DataFrame({"user": [10], "user_auc": [1.0], "percentile": [math.nan], "weight": [3.0]})  # test-items
    result = {
        "S_va": {"per_user": None, "judged_users": no_lists},
        "S_te": {"per_user": per_user, "judged_users": pd.DataFrame(judged)},
    }
    model = Shows()
    filed.write(Filing(str(tmp_path), 3), "k", model, log, result)
    found = filed.read(str(tmp_path), "k")
    assert filed.path_of(str(tmp_path), "k") == str(tmp_path / "k.npz") and model.asked == ([12, 10], 3)
    assert found.users.tolist() == [2, 0] and {name: own.tolist() for name, own in found.per_user.items()} == {
        "ndcg": [0.1, 0.2],
        "p@5": [0.3, 0.4],
    }
    assert found.lists.tolist() == [[0, 1, 2], [3, -1, -1]] and found.scores == pytest.approx([0.3, 2.1])
    assert found.probabilities == pytest.approx([0.15, 1.05]) and found.uncalibrated == pytest.approx([0.075, 0.525])
    on_va, on_te = found.judged_users["S_va"], found.judged_users["S_te"]
    assert on_te.users.tolist() == [2, 1] and on_te.weights.tolist() == [4, 2] and on_te.ks == (5,)
    assert [each.tolist() for each in on_te.counts(5)] == [[1, 0], [2, 3]] and np.isnan(on_te.user_auc).tolist() == [
        0,
        1,
    ]
    assert np.isnan(on_te.percentile).tolist() == [1, 0] and on_te.percentile[1] == 0.75
    assert on_va.users.tolist() == [0] and on_va.ks == () and on_va.liked.shape == (0, 1)
    fit = FinishedFit(Trial("k", dubnb.Base, {}, "d"), DONE, None, {}, 1, 1.0, str(tmp_path))
    assert fit.shown().lists.tolist() == found.lists.tolist()
    filed.write(Filing(str(tmp_path), 99), "k", model, log, result)  # over the same file
    assert model.asked[1] == 4  # no more than there are
    assert filed.read(str(tmp_path), "other") is None
    (tmp_path / "k.npz").write_bytes(b"half")
    assert filed.read(str(tmp_path), "k") is None


# ---- what was asked for ----------------------------------------------------------------------------------------------


def test_resources_have_defaults_and_are_checked(tmp_path, monkeypatch):
    plain_ones = Resources().checked()
    assert plain_ones == Resources(1, None, None, None, 2, False, None, False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert Resources(n_jobs=EVERY_CPU).checked().n_jobs == 5 and Resources(n_jobs=3).checked().n_jobs == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert Resources(n_jobs=EVERY_CPU).checked().n_jobs == 1
    assert Resources(retries=0, time_limit=0.5, client="c").checked().time_limit == 0.5
    assert Resources(scheduler="s", pretrained=tmp_path).checked().pretrained == str(tmp_path)
    assert Resources(pretrained=tmp_path / "new").checked().pretrained == str(tmp_path / "new")
    (tmp_path / "file").write_text("")
    for wrong, said in (
        ({"n_jobs": 0}, "n_jobs=0"),
        ({"retries": -1}, "retries=-1"),
        ({"time_limit": 0}, "time_limit=0"),
        ({"client": "c", "scheduler": "s"}, "both given"),
        ({"pretrained": tmp_path / "file"}, "is a file: give a directory"),
    ):
        with pytest.raises(InputError, match=said):
            Resources(**wrong).checked()


def test_a_client_is_made_and_closed_only_where_an_address_is_given(monkeypatch):
    closed = []
    client = SimpleNamespace(close=lambda timeout: closed.append(timeout))
    monkeypatch.setattr("dubnb.sweeps.cluster.connect", lambda address: client if address == "tcp" else None)
    assert Resources().connected() == Resources() and Resources(client=client).connected().client is client
    connected = Resources(scheduler="tcp").connected()
    assert connected.client is client and connected.connected() is connected
    Resources(client=client).disconnect()
    Resources(scheduler="tcp").disconnect()
    Resources().disconnect()
    assert closed == []
    connected.disconnect()
    assert len(closed) == 1


def test_an_engine_is_this_machine_s_or_a_cluster_s(monkeypatch):
    made, read = [], []

    class Log:
        def __getattr__(self, name):
            read.append(name)

    monkeypatch.setattr("dubnb.sweeps.cluster.Cluster", lambda *given: made.append(("cluster", *given)))
    monkeypatch.setattr("dubnb.sweeps.local.Local", lambda *given: made.append(("local", *given)))
    data, rules = {"f": Log()}, Rules()
    new_engine(data, rules, Resources(client="c"), "out")
    new_engine(data, rules, Resources(n_jobs=3), "out")
    assert made == [("cluster", data, rules, "c"), ("local", data, rules, 3, "out")]
    assert read == ["fingerprint", "S_c", "seen", "logged"] * 2


def asked(data, points, seeds=1, select="auc", protocol="full-ranking"):
    given = {"grid": {"lam": [0.1, 0.2]}, "fixed": {}, "random": None, "full": False, "halving": False} | points
    return request.checked_request("base", "mf", data, request.Points(**given), seeds, select, protocol)


def test_liked_items_are_no_choice_where_no_list_is_made(data):
    assert asked(data, {}, select="liked@10").select.primary == "liked@10"
    with pytest.raises(InputError, match="select=liked@10 needs lists of all candidates, which test-items lacks"):
        asked(data, {}, select=("auc", 0.01, "liked@10"), protocol="test-items")


def test_a_request_is_checked(data):
    found = asked(data, {"fixed": FIXED}, 2)
    assert found.method is dubnb.Base and found.data is data and found.n_grid == 2 and found.seeds == range(2)
    assert [point for point, _ in found.points] == [{"lam": 0.1}, {"lam": 0.2}] and found.halving is False
    assert all(params["rank"] == 2 and params["seed"] == 0 and params["backbone"] == "mf" for _, params in found.points)
    expected = {"kind": "sweep", "method": "base", "backbone": "mf", "protocol": "full-ranking"}
    assert found.identity == expected | {"data": data.fingerprint}
    assert len(asked(data, {"grid": {"lam": [0.1, 0.2, 0.3]}, "random": 2}).points) == 2
    assert asked(data, {"halving": True}).halving is True
    assert asked(data, {"grid": {"epochs": [1, 2]}}).n_grid == 2  # without halving, epochs may be searched
    for points, said in (
        ({"fixed": {"seed": 1}}, "seed is set in `fixed`: use seeds= instead"),
        ({"fixed": {"backbone": "ncf"}}, "use backbone= instead"),
        ({"grid": {"epochs": [1, 2]}, "halving": True}, "halving sets the epochs itself"),
        ({"random": 0}, "random=0"),
    ):
        with pytest.raises(InputError, match=said):
            asked(data, points)


def test_points_that_are_the_same_fit_are_tried_once(data):
    """None stands for the default of this log, which may be named too."""
    default = dubnb.Base().resolved_params(data)["lam"]
    found = asked(data, {"grid": {"lam": [None, default, 0.2]}})
    assert [point for point, _ in found.points] == [{"lam": None}, {"lam": 0.2}] and found.n_grid == 3


def test_what_selects_and_judges_is_asked_for(data):
    found = asked(data, {}, select=("ndcg", 0.1, "auc"), protocol="test-items")
    assert found.select == ("ndcg", 0.1, "auc") and found.protocol == found.identity["protocol"] == "test-items"
    with pytest.raises(InputError, match="protocol='all' is unknown"):
        asked(data, {}, protocol="all")


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


def test_seeds_are_a_number_or_named(monkeypatch, data):
    assert request.checked_seeds(3) == range(3) and request.checked_seeds([4, 0]) == (4, 0)
    assert request.checked_seeds(range(2, 4)) == (2, 3) and request.checked_seeds((7,)) == (7,)
    for wrong in ([], [1, 1], range(0), [-1], 0, "3"):
        with pytest.raises(InputError):
            request.checked_seeds(wrong)
    monkeypatch.setattr(request, "MOST_TRIALS", 6)
    assert len(request.checked_seeds(range(6))) == 6 and len(asked(data, {}, 3).seeds) == 3
    with pytest.raises(InputError, match="7 seeds are more than 6 trials"):
        request.checked_seeds(range(7))
    with pytest.raises(InputError, match="2 points x 4 seeds are 8 trials, at most 6"):
        asked(data, {}, 4)
    assert len(request.checked_seeds(list(range(9)))) == 9  # a list is as long as it is


def test_the_wide_grid_is_drawn_from_unless_all_is_asked_for():
    def wanted(name, random=None, full=False):
        return request.Points(name, {}, random, full, False).wanted()

    assert [wanted("wide"), wanted("wide", full=True), wanted("paper"), wanted({"lam": [1]})] == [60, None, None, None]
    assert wanted("wide", 5, True) == 5 and wanted("paper", 7) == 7


# ---- grids -----------------------------------------------------------------------------------------------------------


def test_axes_come_from_names_files_and_dicts(data, tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text("rank = [5, 6]\nlam = 0.5\n")
    for given in (str(path), path):
        assert grid.axes(dubnb.Base, "mf", given, {}, data) == {"rank": [5, 6], "lam": [0.5]}
    assert grid.axes(dubnb.Base, "mf", str(path), {"rank": 9}, data) == {"lam": [0.5]}
    given = {"lam": np.array([0.1, 0.2, 0.2]), "rank": (3, 4), "epochs": 5, "hidden": [(4, 2), [4, 2]]}
    expected = {"lam": [0.1, 0.2], "rank": [3, 4], "epochs": [5], "hidden": [(4, 2)]}
    assert grid.axes(dubnb.Base, "mf", given, {}, data) == expected
    assert grid.axes(dubnb.Base, "mf", "paper", {}, data)["rank"] == [50, 100, 200]
    wide = [grid.axes(METHODS["autodebias"], backbone, "wide", {}, data) for backbone in ("mf", "ncf")]
    assert wide[0] != wide[1]  # another solver has another grid
    assert wide[0] != grid.axes(METHODS["autodebias"], "mf", "paper", {}, data)
    path.write_text("rank = ")
    for wrong, said in (
        ({"seed": [1]}, "the grid has 'seed': that is no axis of a grid; use seeds= instead"),
        ({"ranc": [1]}, "did you mean 'rank'"),
        ({"rank": []}, "gives no value for 'rank'"),
        ({}, "the grid is empty"),
        (str(path), "cannot be read"),
        ("papper", "is neither paper nor wide nor even nor a file"),
        (3, "must be one of paper, wide, even, the path of a TOML file, or a dict"),
    ):
        with pytest.raises(InputError, match=said):
            grid.axes(dubnb.Base, "mf", wrong, {}, data)


def test_methods_by_name_or_class():
    assert grid.method_class("dub") is METHODS["dub"] and grid.method_class(dubnb.Base) is dubnb.Base
    for wrong in ("dubb", int, None):
        with pytest.raises(InputError, match="method"):
            grid.method_class(wrong)


def test_a_random_search_is_the_same_in_every_version():
    axes = {"rank": [1, 2, 3, 4], "lam": [0.1, 0.2]}
    every = grid.points(axes)
    assert every[:3] == [{"rank": 1, "lam": 0.1}, {"rank": 1, "lam": 0.2}, {"rank": 2, "lam": 0.1}] and len(every) == 8
    assert [every.index(point) for point in grid.points(axes, 3)] == [0, 4, 7]
    assert grid.points(axes, 8) == grid.points(axes, 9) == every and len(grid.points(axes, 7)) == 7


def test_halving_s_rungs():
    assert pytest.approx((1 / 9, 1 / 3, 1.0)) == halving.SHARES
    assert halving.sizes(9) == [9, 3, 1] and halving.sizes(10) == [10, 4, 2] and halving.sizes(1) == [1, 1, 1]
    assert [halving.epochs(*each) for each in ((90, 1 / 9), (10, 1 / 3), (1, 1 / 9), (7, 1.0))] == [10, 4, 1, 7]
    assert halving.survivors([0.1, 0.3, 0.3, 0.2], 2) == [1, 2] and halving.survivors([0.3, 0.1, 0.3], 1) == [0]
    assert halving.survivors([-math.inf, math.inf, 0.0], 3) == [1, 2]
    assert halving.saved(9) == pytest.approx(1 - (1 + 1 + 1) / 9)


# ---- results ---------------------------------------------------------------------------------------------------------


def test_what_selects():
    assert results.selection("auc") == results.Select("auc", 0.0, None) == results.selection(["auc"])
    assert results.selection(("auc", 0.1, "p@5")) == ("auc", 0.1, "p@5")
    for wrong in (("auc", 0.1), (), "acu", ("auc", -1, "ndcg"), ("auc", 0.1, "acu"), ("acu", 0.1, "auc"), ("auc",) * 4):
        with pytest.raises(InputError, match="select"):
            results.selection(wrong)


def rows_of(**metrics):
    return {key: {"key": key, "status": DONE, "metrics": own} for key, own in metrics.items()}


def test_means_are_of_points_that_are_done_on_all_seeds():
    rows = rows_of(a={"va_auc": 0.5}, b={"va_auc": 0.7}, c={"va_auc": None}, d=None)
    rows |= {"e": {"key": "e", "status": FAILED, "metrics": {"va_auc": 0.9}}}
    points = [["a", "b"], ["a"], ["a", "c"], ["a", "d"], ["a", "e"], ["a", "missing"]]
    found = results.means(points, rows, "va_auc")
    assert found[:2] == pytest.approx([0.6, 0.5]) and (found[2:] == -math.inf).all()
    assert results.choose([], rows, results.Select("auc")) is None
    assert results.choose(points[2:], rows, results.Select("auc")) is None
    assert results.choose(points, rows, results.Select("auc")) == 0


def test_within_the_tolerance_counts_its_end():
    rows = rows_of(
        a={"va_auc": 0.75, "va_ndcg": 0.1}, b={"va_auc": 0.5, "va_ndcg": 0.9}, c={"va_auc": 0.25, "va_ndcg": 1.0}
    )
    points = [["a"], ["b"], ["c"]]
    assert results.choose(points, rows, results.Select("auc", 0.25, "ndcg")) == 1
    assert results.choose(points, rows, results.Select("auc", 0.2, "ndcg")) == 0
    assert results.choose(points, rows, results.Select("auc", 0.5, "ndcg")) == 2


def test_the_table_of_trials_has_a_column_for_everything(tmp_path):
    more = {"protocol": "p", "epochs_run": 2, "reason": None, "seconds": 1.0, "peak_mb": 3.0, "attempts": 1}
    rows = [
        {"key": "a", "status": DONE, "params": {"hidden": (4, 2), "lam": 0.5}, "metrics": {"auc": 0.7}} | more,
        {"key": "b", "status": FAILED, "params": {"lam": 0.1, "gamma": 1}, "metrics": None} | more,
        {"key": "c", "status": FAILED, "params": None, "metrics": {"ndcg": 0.2}} | more,
    ]
    found = results.table(rows)
    assert list(found) == [
        "key", "status", "hidden", "lam", "gamma", "protocol", "auc", "ndcg",
        "epochs_run", "reason", "seconds", "peak_mb", "attempts",
    ]  # fmt: skip
    assert found["hidden"][0] == "4,2" and found["lam"].tolist()[:2] == [0.5, 0.1] and found["ndcg"][2] == 0.2
    results.write_results(str(tmp_path), found)
    results.write_results(str(tmp_path), found[["key", "status"]])  # over the same file
    assert (tmp_path / "results.csv").read_text() == "key,status\na,done\nb,failed\nc,failed\n"
    results.write_best(str(tmp_path), {"a": 1})
    results.write_best(str(tmp_path), {"a": 2})
    assert (tmp_path / "best.json").read_text() == '{\n  "a": 2\n}\n'
    with pytest.raises(ValueError):
        results.write_best(str(tmp_path), {"a": math.nan})


def test_the_best_point_s_numbers():
    trials = [Trial(key, dubnb.Base, {"lam": 0.5, "seed": seed}, "d") for key, seed in (("a", 3), ("b", 4))]
    rows = rows_of(a={"auc": 0.7, "p@5": None}, b={"auc": 0.9, "p@5": 0.25})
    found = results.best_point({"lam": 0.5}, trials, rows)
    assert found["params"] == {"lam": 0.5} and found["seeds"] == [3, 4] and found["trials"] == ["a", "b"]
    assert found["metrics"]["auc"]["std"] == pytest.approx(0.2 / math.sqrt(2))
    assert found["metrics"]["p@5"] == {"mean": 0.25, "std": None, "values": [None, 0.25]}


# ---- trials ----------------------------------------------------------------------------------------------------------


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


def test_equal_values_are_canonically_equal():
    assert canonical(1) == canonical(1.0) == "1.0" and canonical((1, (2.0,))) == ["1.0", ["2.0"]]
    assert canonical(True) is True and canonical("1") == "1" and canonical(None) is None
    assert len(digest(["a"])) == 24 and digest(["a"]) != digest(["b"])


def test_a_planned_trial_has_every_parameter(data):
    found = planned(METHODS["dub"], data, {"rank": 3, "seed": 5})
    assert found.params == METHODS["dub"](rank=3, seed=5).resolved_params(data) | {"hidden": found.params["hidden"]}
    assert found.method is METHODS["dub"] and found.data == data.fingerprint and len(found.key) == 24


# ---- the schedule ----------------------------------------------------------------------------------------------------


def trials_of(keys):
    return [Trial(key, dubnb.Base, {}, "d") for key in keys]


def families(trial):
    """a1 and a2 pre-train the same, b1 something of the same family, c1 something else, x nothing."""
    if trial.key[0] == "x":
        return None, None
    return ("one" if trial.key[0] in "ab" else "two"), trial.key[0]


def test_a_group_waits_for_its_first_and_families_do_not_pretrain_at_once():
    schedule = Schedule(trials_of(["a1", "a2", "b1", "c1", "x1", "x2"]), 0, groups=families)
    first = [schedule.next(block=False).key for _ in range(4)]
    assert first == ["a1", "c1", "x1", "x2"] and schedule.next(block=False) is None and schedule.unfinished()
    ended = {trial.key: trial for trial in trials_of(["a1", "a2", "b1", "c1", "x1", "x2"])}
    assert schedule.ended(ended["x1"], {"status": DONE}) and schedule.next(block=False) is None
    assert schedule.ended(ended["a1"], {"status": FAILED})
    assert [schedule.next(block=False).key for _ in range(2)] == ["a2", "b1"] and schedule.next(block=False) is None
    for key in ("a2", "b1", "c1", "x2"):
        assert schedule.unfinished() and schedule.ended(ended[key], {"status": DONE})
    assert not schedule.unfinished() and schedule.next() is None
    assert set(schedule.attempts.values()) == {1} and schedule.running == 0


def test_a_lost_trial_is_tried_again_at_the_end_so_often():
    schedule = Schedule(trials_of("ab"), 1, groups=lambda trial: (None, None))
    a = schedule.next(block=False)
    assert not schedule.ended(a, {"status": "killed"})
    assert [schedule.next(block=False).key for _ in range(2)] == ["b", "a"]
    assert schedule.ended(a, {"status": "timeout"}) and schedule.attempts == {"a": 2}


def test_where_it_may_be_another_s_victim_only_a_loss_alone_counts():
    schedule = Schedule(trials_of("ab"), 0, isolate=True, groups=lambda trial: (None, None))
    a, b = schedule.next(block=False), schedule.next(block=False)
    assert not schedule.ended(a, {"status": "killed"}) and schedule.next(block=False) is None
    assert schedule.ended(b, {"status": DONE}) and schedule.next(block=False) is a
    assert schedule.ended(a, {"status": "killed"}) and schedule.attempts == {"a": 1, "b": 1}


def test_a_first_trial_that_is_lost_gives_its_family_free():
    schedule = Schedule(trials_of(["a1", "b1"]), 1, groups=families)
    a1 = schedule.next(block=False)
    assert schedule.next(block=False) is None and not schedule.ended(a1, {"status": "memory"})
    assert schedule.next(block=False).key == "b1" and schedule.next(block=False) is None


def test_a_stopped_schedule_hands_out_nothing():
    schedule = Schedule(trials_of("ab"), 0, groups=lambda trial: (None, None))
    schedule.next()
    schedule.stop()
    assert schedule.next() is None and schedule.unfinished()


def test_who_waits_is_told_when_a_trial_ends():
    schedule, got = Schedule(trials_of(["a1", "a2"]), 0, groups=families), []
    a1 = schedule.next()
    waiting = threading.Thread(target=lambda: got.append(schedule.next()), daemon=True)
    waiting.start()
    schedule.ended(a1, {"status": DONE})
    waiting.join(60)
    assert [trial.key for trial in got] == ["a2"]


# ---- sharing, pre-trained models -------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_disk", [False, True])
def test_arrays_are_packed_beside_their_skeleton(on_disk, tmp_path):
    same = np.arange(5, dtype=np.int16)
    odd = np.arange(12.0).reshape(3, 4)[:, ::2]
    thing = {
        "a": same,
        "b": same,
        "c": odd,
        "d": np.empty((0, 3)),
        "e": np.array(["x", None]),
        "f": (1, "y"),
        "g": np.arange(100),
    }
    packed = sharing.pack(thing, tmp_path / "block" if on_disk else None)
    assert isinstance(packed.block, str) == on_disk
    offsets = [offset for offset, _, _ in packed.places]
    assert offsets == [0, 64, 128, 128] and [shape for _, _, shape in packed.places] == [(5,), (3, 2), (0, 3), (100,)]
    size = (tmp_path / "block").stat().st_size if on_disk else len(packed.block)
    assert size == 128 + 832 + 1  # 800 bytes to the next 64, and one more
    found = sharing.unpack(packed)
    assert found["a"] is found["b"] and found["c"].tolist() == odd.tolist() and found["d"].shape == (0, 3)
    assert found["e"].tolist() == ["x", None] and found["f"] == (1, "y") and found["g"].tolist() == list(range(100))
    assert not found["g"].flags.writeable and not found["d"].flags.writeable and found["a"].dtype == np.int16
    assert sharing.unpack(sharing.pack({"x": 1})) == {"x": 1}


def weights(rank=3, n_users=5, n_items=4, seed=0):
    return BACKBONES["mf"].new((n_users, n_items), rank, seed, "t")


def assert_same(found, expected):
    for name, array in expected.arrays().items():
        np.testing.assert_array_equal(found.arrays()[name], array)


def test_a_pretrained_model_is_kept_and_counted(tmp_path):
    store, model = Pretrained(str(tmp_path)), weights()
    assert store.get("k") is None and (store.trained, store.reused, store.saved_seconds) == (0, 0, 0.0)
    rows = [{"epoch": 1, "va_auc": math.nan, "seconds": 1.5}, {"epoch": 2, "va_auc": 0.5, "seconds": 2.0}]
    assert store.put("k", model, rows) is model and (store.trained, store.reused) == (1, 0)
    found, again = store.get("k")
    assert_same(found, model)
    assert math.isnan(again[0]["va_auc"]) and again[1] == rows[1] and again[0]["epoch"] == 1
    assert (store.trained, store.reused, store.saved_seconds) == (1, 1, 3.5)
    other = weights(seed=1)
    store.put("k", other, rows)  # over the same file
    assert_same(Pretrained(str(tmp_path)).get("k")[0], other)
    (path,) = tmp_path.iterdir()
    assert path.suffix == ".npz" and len(path.stem) == 24
    path.write_bytes(path.read_bytes()[:100])
    assert store.get("k") is None and not path.exists() and store.reused == 1
    nowhere = Pretrained(str(tmp_path / "no" / "where"))
    assert nowhere.put("k", model, rows) is model and nowhere.trained == 1


def test_large_tables_are_mapped_from_a_file_that_equals_them(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "WORTH_MAPPING", 1)
    store, model = Pretrained(str(tmp_path)), weights(rank=5, n_users=7, n_items=3)
    mapped = store.put("k", model, [])
    assert not np.shares_memory(mapped.users, model.users) and not np.shares_memory(mapped.items, model.items)
    assert_same(mapped, model)
    (rows,) = tmp_path.glob("*.rows")
    size = sum(-(-table.nbytes // 64) * 64 for table in (model.users, model.items))
    assert rows.stat().st_size == size
    with monkeypatch.context() as patch:
        patch.setattr(pretrained, "_write_rows", None)  # would fail: what is there is believed, not written again
        assert_same(store.get("k")[0], model)
    rows.write_bytes(bytes(size))  # as long, but other numbers
    assert_same(store.get("k")[0], model)
    rows.write_bytes(b"short")
    assert_same(store.get("k")[0], model)
    assert rows.stat().st_size == size


def test_tables_of_any_length_begin_at_a_multiple_of_64(tmp_path):
    tables = np.arange(5, dtype=np.float32), np.arange(40, dtype=np.float32).reshape(8, 5), np.ones((2, 3), np.float32)
    pretrained._write_rows(str(tmp_path / "x"), tables)
    assert (tmp_path / "x").stat().st_size == 64 + 192 + 64 and pretrained._equal(str(tmp_path / "x"), tables)
    found = pretrained._map(str(tmp_path / "x"), tables)
    assert [each.tolist() for each in found] == [each.tolist() for each in tables]
    assert not pretrained._equal(str(tmp_path / "x"), (*tables[:2], 2 * tables[2]))
    assert not pretrained._equal(str(tmp_path / "y"), tables)


# ---- the ledger and its directory ------------------------------------------------------------------------------------


def test_a_directory_is_free_or_a_sweep_s(tmp_path):
    ledger.check_directory(tmp_path / "new")
    ledger.check_directory(str(tmp_path))
    for name in (ledger.LEDGER, ledger.LOCK):
        own = tmp_path / name.partition(".")[0]
        own.mkdir()
        (own / name).write_text("")
        (own / "more").write_text("")
        ledger.check_directory(own)
        (own / name).unlink()
        with pytest.raises(InputError, match="with other files in it, not a sweep"):
            ledger.check_directory(own)
        (own / name).mkdir()
        with pytest.raises(InputError, match="is a directory: a sweep keeps a file of that name"):
            ledger.check_directory(own)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "gone", tmp_path / "file"):
        with pytest.raises(InputError, match="is a file: a sweep needs a directory of its own"):
            ledger.check_directory(wrong)
    for wrong in ("", None, 3):
        with pytest.raises(InputError, match="must be the path of a directory"):
            ledger.check_directory(wrong)
    fifo = tmp_path / "lock" / "x"
    os.mkfifo(fifo)
    with pytest.raises(InputError, match="is not a regular file"):
        ledger._check_regular(str(fifo))
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_lock_is_held_by_one(tmp_path):
    assert not ledger.in_use(str(tmp_path))  # there is none
    with ledger.only_driver(str(tmp_path)):
        assert ledger.in_use(str(tmp_path))
    assert not ledger.in_use(str(tmp_path))
    (tmp_path / ledger.LOCK).write_text("no database, but long enough to be taken for one" * 100)
    assert not ledger.in_use(str(tmp_path))


def test_a_ledger_is_read_only_without_an_identity(tmp_path):
    with pytest.raises(InputError, match="is not a sweep: it has no ledger"):
        Ledger(tmp_path)
    (tmp_path / ledger.LEDGER).write_bytes(b"")
    with pytest.raises(InputError, match="holds no sweep yet"):
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
    own.forget([])
    own.forget(["b"])
    own.close()
    read = Ledger(tmp_path)
    assert [row["key"] for row in read.rows()] == ["a"]
    with pytest.raises(SweepError, match="cannot be written"):
        read.note("x", 1)
    with pytest.raises(InputError, match="was made with n 3, not 4"):
        Ledger(tmp_path, {"n": 4})


@pytest.mark.parametrize(
    "number, said", [(1, "is of an older dubnb .format 1.: choose another"), (99, "a newer dubnb .*upgrade")]
)
def test_a_ledger_of_another_format_says_so(number, said, tmp_path):
    connection = sqlite3.connect(tmp_path / ledger.LEDGER)
    connection.execute("CREATE TABLE about (name, value)")
    connection.execute("INSERT INTO about VALUES ('format', ?)", (str(number),))
    connection.commit()
    for identity in (None, {}):
        with pytest.raises(InputError, match=said):
            Ledger(tmp_path, identity)
    connection.execute("UPDATE about SET value = 'x'")
    connection.commit()
    connection.close()
    with pytest.raises(InputError, match="other tables"):
        Ledger(tmp_path)


def test_a_damaged_ledger_is_bad_input(tmp_path):
    own = Ledger(tmp_path, {"kind": "sweep"})
    own.connection.execute("UPDATE about SET value = '\"study\"' WHERE name = 'kind'")
    with pytest.raises(InputError, match="the checksum of 'kind' does not match"):
        own.about("kind")
    own.close()
    (tmp_path / ledger.LEDGER).write_bytes(b"not a database at all" * 100)
    with pytest.raises(InputError, match="is damaged"):
        Ledger(tmp_path)
    with pytest.raises(InputError, match="is damaged"), ledger._explained("x"):
        raise sqlite3.OperationalError("Could not decode to UTF-8")
    with pytest.raises(SweepError, match="cannot be written"), ledger._explained("x"):
        raise sqlite3.OperationalError("disk is full")


# ---- the runner's surroundings ---------------------------------------------------------------------------------------


def test_trials_found_advance_the_bar_from_its_start():
    class Bar(SimpleNamespace):
        def refresh(self):
            self.shown = self.n

    bar = Bar(disable=False, n=5, initial=2, last_print_n=4)
    runner.count_found(bar, 3)
    assert (bar.n, bar.initial, bar.last_print_n, bar.shown) == (8, 5, 7, 8)
    hidden = Bar(disable=True, n=5)
    runner.count_found(hidden, 3)
    assert hidden == Bar(disable=True, n=5)


def test_a_revision_is_noted_where_there_is_one(monkeypatch):
    asked_for = []

    def git(code):
        def run(words, **named):
            asked_for.append((words, named["capture_output"], named["text"]))
            return SimpleNamespace(returncode=code, stdout="abc\n")

        return run

    monkeypatch.setattr(runner.subprocess, "run", git(0))
    assert runner._git_revision() == "abc" and asked_for == [(["git", "rev-parse", "HEAD"], True, True)]
    for code in (1, 128):
        monkeypatch.setattr(runner.subprocess, "run", git(code))
        assert runner._git_revision() is None
    monkeypatch.setattr(runner.subprocess, "run", lambda *given, **named: (_ for _ in ()).throw(FileNotFoundError))
    assert runner._git_revision() is None


def test_semaphores_of_the_dead_are_removed(monkeypatch, tmp_path):
    """Who may not be asked is alive."""
    calls = []

    def kill(pid, number):
        calls.append((pid, number))
        if pid == 1:
            raise PermissionError
        if pid == 2:
            raise ProcessLookupError

    monkeypatch.setattr(runner.os, "kill", kill)
    monkeypatch.setattr(runner, "SHARED_MEMORY", str(tmp_path))
    files = {pid: tmp_path / f"sem.loky-{pid}-x" for pid in (1, 2, 3)}
    for pid, path in files.items():
        path.touch()
        runner.remove_semaphores(pid)
    assert [path.exists() for path in files.values()] == [True, False, True] and calls == [(1, 0), (2, 0), (3, 0)]


def test_leftovers_are_removed_from_everywhere_that_is_the_run_s(tmp_path):
    places = [tmp_path, tmp_path / "pretrained", tmp_path / "shown", tmp_path / "shared"]
    for place in places:
        place.mkdir(exist_ok=True)
        (place / ".dubnb-1.tmp").touch()
        (place / "kept").touch()
    (tmp_path / "data.bin").touch()
    os.utime(tmp_path / "shared" / ".dubnb-1.tmp", (0, 0))
    (tmp_path / "shared" / ".dubnb-2.tmp").touch()
    runner.remove_leftovers(
        str(tmp_path), Rules(filing=Filing(str(tmp_path / "shown")), pretrained=str(tmp_path / "shared"))
    )
    assert [sorted(path.name for path in place.iterdir() if path.is_file()) for place in places] == [
        ["kept"], ["kept"], ["kept"], [".dubnb-2.tmp", "kept"]
    ]  # fmt: skip
    runner.remove_leftovers(str(tmp_path), Rules())


def test_only_a_partition_is_data(data):
    assert runner.checked_data(data) is data
    with pytest.raises(InputError, match="data is a dict: pass a Partition"):
        runner.checked_data({})


def test_signals_stop_a_run_once_and_are_given_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for own, left in ((signal.default_int_handler, None), (signal.SIG_IGN, signal.SIG_IGN)):
            signal.signal(signal.SIGINT, own)
            with pytest.raises(KeyboardInterrupt), signals.terminable():
                assert signal.getsignal(signal.SIGINT) is left or left is None
                inside = signal.getsignal(signal.SIGTERM)
                assert callable(inside) and (left is not None or signal.getsignal(signal.SIGINT) is inside)
                try:
                    inside(signal.SIGTERM, None)
                finally:
                    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN is signal.getsignal(signal.SIGINT)
            assert signal.getsignal(signal.SIGTERM) is before[signal.SIGTERM] and signal.getsignal(signal.SIGINT) is own
        inside = []
        thread = threading.Thread(target=lambda: inside.append(_within(signals.terminable)))
        thread.start()
        thread.join()
        assert inside == [before[signal.SIGTERM]]  # only the main thread may
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _within(context):
    with context():
        return signal.getsignal(signal.SIGTERM)


# ---- the one function that runs a trial ------------------------------------------------------------------------------


class Quick:
    """A method that learns nothing; evaluations are told."""

    name = "quick"

    def __init__(self, **params):
        self.params, self.asked, self.saved, self.history_rows_ = params, [], [], [1, 2, 3]
        Quick.made = self

    def fit(self, data, store=None):
        if self.params.get("error"):
            raise self.params["error"]
        self.store = store
        return self

    def evaluate(self, data, **options):
        self.asked.append(options)
        value = 0.25 if options["part"] == "S_va" else math.nan
        return {"protocol": options["protocol"], "auc": value, "ndcg": np.float32(0.5), "per_user": "frame"}

    def save(self, path, overwrite):
        self.saved.append((path, overwrite))


def ran(data, rules=None, **params):
    trial = Trial("k", Quick, params, data.fingerprint)
    return json.loads(work.run(trial, rules or Rules(), {"other": None, data.fingerprint: data}))


def test_a_trial_is_judged_on_S_va_and_S_te(data, tmp_path, monkeypatch):
    clock = iter([10.0, 12.5, 20.0, 21.0])
    monkeypatch.setattr(work, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    found = ran(data)
    assert found["status"] == DONE and found["reason"] is None and found["epochs_run"] == 3
    assert found["metrics"] == {"va_auc": 0.25, "va_ndcg": 0.5, "auc": None, "ndcg": 0.5}
    assert found["seconds"] == 2.5 and "trained" not in found and Quick.made.store is None and Quick.made.saved == []
    options = [{"protocol": "full-ranking", "part": "S_va", "truth": False, "per_user": False}]
    assert Quick.made.asked == [
        *options,
        {"protocol": "full-ranking", "part": "S_te", "truth": None, "per_user": False},
    ]
    filed_ones = []
    monkeypatch.setattr(work.filed, "write", lambda *given: filed_ones.append(given))
    rules = Rules("test-items", str(tmp_path), None, Filing(str(tmp_path)), str(tmp_path / "m.npz"))
    found = ran(data, rules)
    assert (found["trained"], found["reused"], found["saved_seconds"]) == (0, 0, 0.0)
    assert [each["per_user"] for each in Quick.made.asked] == [True, True]
    assert {each["protocol"] for each in Quick.made.asked} == {"test-items"}
    assert Quick.made.saved == [(str(tmp_path / "m.npz"), True)] and Quick.made.store.directory == str(tmp_path)
    ((filing, key, model, log, result),) = filed_ones
    assert (filing, key, model, log) == (rules.filing, "k", Quick.made, data)
    assert list(result) == ["S_va", "S_te"] and result["S_te"]["per_user"] == "frame"


def test_without_test_pairs_there_is_nothing_to_judge(data):
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_va")} | {"S_te": ([], [], [])}
    assert set(ran(dubnb.Partition(parts, (data.n_users, data.n_items)))["metrics"]) == {"va_auc", "va_ndcg"}


def test_what_a_trial_raises_is_its_reason(data):
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError

    for error, status, reason in (
        (MemoryError("4 GB"), "memory", "MemoryError: 4 GB"),
        (ValueError("two\n lines"), "failed", "ValueError: two lines"),
        (KeyboardInterrupt(), "failed", "KeyboardInterrupt: "),
        (Silent(), "failed", "Silent: (no text)"),
    ):
        assert ran(data, error=error) == {"status": status, "reason": reason}
    assert len(ran(data, error=ValueError("x" * 1000))["reason"]) == work.LONGEST_REASON


def test_trials_run_on_one_thread(monkeypatch):
    import numba

    set_to = []
    monkeypatch.setattr(numba, "get_num_threads", lambda: 7)
    monkeypatch.setattr(numba, "set_num_threads", set_to.append)
    with work._one_thread():
        assert set_to == [1]
    assert set_to == [1, 7]


def test_memory_is_told_in_megabytes(monkeypatch):
    import resource
    import sys

    text = "VmPeak:\t  9999 kB\nVmHWM:\t  2048 kB\n"
    texts = {"/proc/self/status": text}
    monkeypatch.setattr(work, "open", lambda path: io.StringIO(texts.get(path, "")), raising=False)
    assert work._peak_memory_mb() == 2.0

    def missing(path):
        raise FileNotFoundError

    monkeypatch.setattr(work, "open", missing)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=3 * 2**20))
    monkeypatch.setattr(sys, "platform", "linux")
    assert work._peak_memory_mb() == 3 * 1024.0
    monkeypatch.setattr(sys, "platform", "darwin")
    assert work._peak_memory_mb() == 3.0


def test_a_warm_up_is_the_same_trial_on_a_tiny_log(monkeypatch):
    asked_for = []
    monkeypatch.setattr(work, "run", lambda *given: asked_for.append(given) or "text")
    trial = Trial("k", Quick, {"epochs": 50, "rank": 100, "lam": 0.5}, "f")
    assert work.warm_up(trial, Rules("test-items", "there", 5.0, Filing("x"), "m")) == "text"
    ((small, rules, logs),) = asked_for
    assert small.params == {"epochs": 1, "rank": 2, "lam": 0.5} and small.key == "k" and rules == Rules("test-items")
    log = logs["f"]
    assert list(logs) == ["f"] and (log.n_users, log.n_items, log.name) == (12, 8, "tiny log")
    for part in ("S_c", "S_t", "S_va", "S_te"):
        found = log.triplets(part)
        assert len(found.users) == 24 and len(set(found.users.tolist())) == 12
        assert found.labels.tolist() == (found.items >= 4).tolist()
    pairs = [(u, i) for part in ("S_c", "S_t", "S_va", "S_te") for u, i in zip(*log.triplets(part)[:2], strict=True)]
    assert len(set(pairs)) == 96


def test_names_are_imported_on_first_use():
    from dubnb import sweeps

    assert sweeps.Sweep is Sweep and sweeps.SweepError is SweepError
    with pytest.raises(AttributeError, match="has no attribute 'swep'"):
        sweeps.swep  # noqa: B018
