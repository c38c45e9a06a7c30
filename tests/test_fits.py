"""Any list of fits through the sweeps' engine: several methods and logs, files beside the ledger, faults, resuming."""

import os
import subprocess
import sys

import numpy as np
import pytest

import dubnb
from dubnb import stats
from dubnb.data.ids import Ids
from dubnb.data.partition import PARTS
from dubnb.sweeps import worker
from dubnb.sweeps.ledger import Ledger
from dubnb.sweeps.runner import Resources, planned, run_fits
from tests import naive
from tests.sweep_tools import FIXED, ROOT, Faulty, fits, tiny_log

QUIET = Resources(n_jobs=2, retries=1, quiet=True)


@pytest.fixture(scope="module")
def logs():
    return [tiny_log(0), tiny_log(1)]


@pytest.fixture(scope="module")
def shown(logs, tmp_path_factory):
    """Two methods on two logs, filed; returns (trials by (method, log), Fits, directory)."""
    out = tmp_path_factory.mktemp("fits") / "f"
    trials = {
        (method.name, k): planned(method, data, FIXED | {"seed": 1})
        for method in (dubnb.Base, dubnb.Bridge)
        for k, data in enumerate(logs)
    }
    return trials, run_fits(trials.values(), logs, out, QUIET, list_length=7), out


@pytest.mark.filterwarnings("ignore")
def test_a_fit_shows_what_the_same_model_shows_when_fitted_here(shown, logs):
    trials, found, _ = shown
    for (_, k), trial in trials.items():
        data, fit = logs[k], found[trial]
        model = trial.method(**trial.params).fit(data)
        result = model.evaluate(data, per_user=True)
        assert fit.done and fit.reason is None and fit.metrics["auc"] == result["auc"]
        assert fit.metrics["va_auc"] == model.evaluate(data, part="S_va")["auc"]
        seen, frame, S_te = fit.test_output(), result["per_user"], data.triplets("S_te")
        assert (data.user_ids.values[seen.users] == frame["user"]).all()
        assert all((values == frame[name]).all() for name, values in seen.per_user.items())
        assert set(seen.per_user) == set(frame.columns) - {"user"}
        assert (seen.lists == model.recommend(frame["user"], k=7)[0]).all()
        assert (seen.scores == model.decision_function(S_te.users, S_te.items)).all()
        for part, prefix in (("S_va", "va_"), ("S_te", "")):
            users = seen.judged_users[part]
            share = stats.liked_share(users.weights, *users.counts(10))
            assert share.rate == pytest.approx(fit.metrics[f"{prefix}liked@10"])
            assert share.n == fit.metrics[f"{prefix}judged@10"] and share.low == fit.metrics[f"{prefix}liked@10_low"]
            assert np.nanmean(users.user_auc) == pytest.approx(fit.metrics[f"{prefix}user_auc"])


@pytest.mark.filterwarnings("ignore")
def test_short_lists_are_padded_with_minus_one(tmp_path):
    """Also if an item has the id -1, which pads lists of ids."""
    small = naive.small_partition()
    parts = {part: small.triplets(part) for part in PARTS}
    data = dubnb.Partition(parts, (7, 6), item_ids=Ids(np.arange(-1, 5)))
    model = dubnb.Base(rank=2, epochs=2).fit(data)
    trial = planned(dubnb.Base, data, {"rank": 2, "epochs": 2})
    found = run_fits([trial], [data], tmp_path, QUIET, list_length=6)[trial].test_output()
    lists = found.lists
    for user, items in zip(found.users, lists, strict=True):
        scores = model.decision_function(np.full(6, user), np.arange(-1, 5))
        listed = [item for item in items if item >= 0]
        assert listed == sorted(listed, key=lambda item: -scores[item]) and len(set(listed)) == len(listed) < 6
        assert (items[len(listed) :] == -1).all()
    assert (lists == 0).any()


def test_two_logs_and_two_methods_give_four_different_fits(shown):
    trials, found, out = shown
    assert len({(found[trial].metrics["auc"], found[trial].epochs_run) for trial in trials.values()}) == 4
    rows = Ledger(out).rows()
    assert {(row["method"], row["data"]) for row in rows} == {(t.method.name, t.data) for t in trials.values()}


def test_pretrained_models_of_two_logs_are_not_mixed_up(shown):
    _, _, out = shown
    assert len(list((out / "pretrained").iterdir())) == 4  # M_c, which base and bridge share, and M_t, of two logs


def test_running_again_runs_what_is_new_and_files_that_are_missing_or_damaged(logs, tmp_path):
    alone = QUIET._replace(n_jobs=1)
    own = FIXED | {"where": str(tmp_path)}
    trials = [planned(Faulty, logs[0], own | {"lam": lam}) for lam in (1e-4, 1e-3, 1e-2)]
    run_fits(trials[:1], logs, tmp_path / "f", alone)
    run_fits(trials, logs, tmp_path / "f", alone)
    assert len(fits(tmp_path)) == 3
    first = run_fits(trials, logs, tmp_path / "f", alone, list_length=5)
    assert len(fits(tmp_path)) == 6  # now with files
    path = worker.path_of(first.directory, trials[1].key)
    with open(path, "r+b") as file:
        file.truncate(100)
    again = run_fits(trials * 2, logs, tmp_path / "f", alone, list_length=5)
    assert len(fits(tmp_path)) == 7 and fits(tmp_path)[-1][0] == 1e-3
    assert (again[trials[1]].test_output().scores == first[trials[1]].test_output().scores).all()


def test_a_failed_trial_has_a_reason_and_stops_no_other(logs, tmp_path):
    faults = {fault: planned(Faulty, logs[0], FIXED | {"fault": fault}) for fault in ("none", "unpicklable", "sigkill")}
    found = run_fits(faults.values(), logs, tmp_path / "f", QUIET, list_length=5)
    assert found[faults["none"]].done and found[faults["none"]].test_output().lists.shape[1] == 5
    assert found[faults["unpicklable"]].status == "failed" and "it went wrong" in found[faults["unpicklable"]].reason
    killed = found[faults["sigkill"]]
    assert killed.status == "quarantined" and "SIGKILL" in killed.reason and "attempts: 2" in killed.reason
    assert killed.metrics == {}
    with pytest.raises(dubnb.InputError, match="run the same command again"):
        killed.test_output()


def test_candidates_are_chosen_on_S_va_alone(logs, tmp_path):
    trials = [planned(dubnb.Base, logs[0], FIXED | {"lam": lam, "seed": s}) for lam in (1e-5, 1e-1) for s in (0, 1)]
    found = run_fits(trials, logs, tmp_path / "f", QUIET)
    pairs = [trials[:2], trials[2:]]
    for metric in ("auc", "ndcg"):
        means = [np.mean([found[t].metrics[f"va_{metric}"] for t in pair]) for pair in pairs]
        assert found.best(pairs, metric) == int(np.argmax(means))
    assert found.best([]) is None


def test_defaults_follow_from_the_log_of_the_trial():
    small, large = tiny_log(), tiny_log(n_users=400, n_items=100)
    assert planned(dubnb.DUB, small, {}).params["batch_size"] == dubnb.DUB().resolved_params(small)["batch_size"]
    assert planned(dubnb.DUB, small, {}).key != planned(dubnb.DUB, large, {}).key


@pytest.mark.parametrize(
    "change, words",
    [({"data": []}, "not in `data`"), ({"data": ["x"]}, "Partition"), ({"protocol": "best"}, "protocol")],
)
def test_bad_input_is_one_line_and_touches_nothing(change, words, logs, tmp_path):
    arguments = {"trials": [planned(dubnb.Base, logs[0], FIXED)], "data": logs, "out": tmp_path / "f"} | change
    with pytest.raises(dubnb.InputError, match=words):
        run_fits(**arguments)
    assert not list(tmp_path.iterdir())


def test_a_sweeps_directory_is_not_one_of_fits(logs, tmp_path):
    trial = planned(dubnb.Base, logs[0], FIXED)
    dubnb.sweep("base", data=logs[0], grid={"lam": [1e-3]}, out=tmp_path / "s", fixed=FIXED, quiet=True)
    with pytest.raises(dubnb.InputError, match="kind 'sweep', not 'fits'"):
        run_fits([trial], logs, tmp_path / "s", QUIET)


BLAS_IN_A_TRIAL = """
import json, threadpoolctl
from dubnb.backbones import ncf
inside, epoch = [], ncf.NCFTrainer.epoch
ncf.NCFTrainer.epoch = lambda *args: inside.append(threadpoolctl.threadpool_info()) or epoch(*args)
import dubnb
from dubnb.sweeps import worker
from dubnb.sweeps.trial import Rules, planned
from tests.sweep_tools import FIXED, tiny_log
data = tiny_log()
trial = planned(dubnb.Base, data, FIXED | {"backbone": "ncf"})
assert json.loads(worker.run(trial, Rules(), {data.fingerprint: data}))["status"] == "done"
late = [library["num_threads"] for library in inside[-1] if library["user_api"] == "blas"]
print(len(late), max(late))
"""


@pytest.mark.needs_jit
def test_every_blas_has_one_thread_in_a_trial_whatever_its_process_allows():
    """What local and Dask workers run is the same function; Dask's have no variables of ours."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    env = os.environ | dict.fromkeys(names, "4")
    done = subprocess.run([sys.executable, "-c", BLAS_IN_A_TRIAL], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    libraries, most = done.stdout.split()
    assert int(libraries) >= 1 and most == "1"
