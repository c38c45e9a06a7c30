"""One fit in parts: the same answers as in one piece, here and on a Dask cluster, also when workers are killed."""

import errno
import functools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import types
import weakref

import numpy as np
import pandas as pd
import pytest

import dubnb
from dubnb import _dask, _files, _store, cli, distributed, evaluation
from dubnb._dask import ClusterError
from dubnb.backbones import mf
from dubnb.backbones.mf import Extended
from dubnb.data import stored
from dubnb.methods import _serving, dub_x
from dubnb.objective import als, parts
from tests.dask_tools import client_of_processes, dask_processes, end, or_die, start_worker
from tests.exact_tools import spread
from tests.sweep_tools import ROOT, wait_until

pytestmark = pytest.mark.usefixtures("patience")

SETTINGS = {"rank": 6, "gamma": 0.03, "epochs": 6}
SYSTEMS = [
    ("dub-x", SETTINGS),
    ("ials", {"rank": 6, "epochs": 6}),
    ("dub", {"rank": 6, "epochs": 6, "loss": "squared", "solver": "exact"}),
]


@pytest.fixture(scope="module")
def data():
    return dubnb.load_dataset("simulated", seed=0)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A client of two workers, which no test kills. Plain processes: Dask's nannies wait for them with time limits."""
    pytest.importorskip("distributed")
    with client_of_processes(tmp_path_factory.mktemp("dask") / "scheduler.json", 2) as client:
        yield client


@pytest.fixture(scope="module")
def mortal(tmp_path_factory):
    """A client of five workers that nobody starts again. Three tests kill some: four in all."""
    pytest.importorskip("distributed")
    with client_of_processes(tmp_path_factory.mktemp("dask") / "scheduler.json", 5) as client:
        yield client


def scores(model):
    return model.weights_.score_rows(np.arange(len(model.user_ids_)))


def local_solver(problem, Q, count):
    states = [parts.PartState(part) for part in parts.parts_of(problem, count)]
    return parts.PartedSolver(parts.ItemsSide.of(problem), Q, parts.LocalParts(states))


@pytest.mark.parametrize("teacher", ["constant", "low-rank"])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_sweeps_in_parts_are_those_of_the_whole_problem(count, teacher):
    problem, _, P, Q = spread(1, teacher, rank=3)
    whole = als.RowSolver(problem, Extended(P.copy(), Q.copy()))
    parted = local_solver(problem, Q, count)
    for epoch in (1, 2, 3):
        assert parted.step(epoch) == pytest.approx(whole.step(epoch), rel=1e-9)
    users = np.arange(len(P))
    np.testing.assert_allclose(parted.score_rows(users), whole.score_rows(users), atol=1e-9)
    some = np.array([3, 0, 3])
    np.testing.assert_allclose(parted.score_pairs(some, some), whole.score_pairs(some, some), atol=1e-9)


def test_rough_sweeps_in_parts_are_those_of_the_whole_problem():
    problem, _, P, Q = spread(1, "constant", rank=8)
    rough = problem._replace(tolerance=0.05)
    parted, whole = local_solver(rough, Q, 3), als.RowSolver(rough, Extended(P.copy(), Q.copy()))
    assert parted.step(1) == pytest.approx(whole.step(1), rel=1e-9)
    assert parted.step(2) == pytest.approx(whole.step(2), rel=1e-9)
    users = np.arange(len(P))
    np.testing.assert_allclose(parted.score_rows(users), whole.score_rows(users), atol=1e-9)
    assert np.abs(parted.weights().fetch().score_rows(users) - parted.score_rows(users)).max() < 1e-5
    exact = local_solver(problem, Q, 3)
    assert exact.step(1) < 0.999999 * local_solver(rough, Q, 3).step(1)


@pytest.mark.parametrize("count", [1, 2, 5, 1000])
def test_parts_cover_every_user_once_and_have_about_equally_many_pairs(count):
    problem = spread(2, "constant", rank=3)[0]
    found = parts.parts_of(problem, count)
    count = min(count, len(problem.A))
    assert len(found) == count and all(part.n_users for part in found)
    np.testing.assert_array_equal(np.concatenate([part.items for part in found]), problem.pairs.items)
    np.testing.assert_array_equal(np.concatenate([part.A for part in found]), problem.A)
    sizes = [len(part.items) for part in found]
    assert max(sizes) <= len(problem.pairs.items) / count + np.diff(problem.pairs.indptr).max()


def test_sums_have_one_order():
    assert parts.tree_sum("abcdefg", lambda a, b: f"({a}{b})") == "(((ab)(cd))((ef)g))"


def test_rows_of_an_earlier_sweep_are_computed_again():
    problem, _, _, Q = spread(3, "constant", rank=3)
    solver = local_solver(problem, Q, 3)
    solver.step(1)
    kept, users = solver.weights(), np.arange(len(problem.A))
    expected = solver.score_rows(users)
    solver.step(2)
    assert not np.array_equal(solver.score_rows(users), expected)
    np.testing.assert_array_equal(kept.fetch().score_rows(users), kept.fetch().score_rows(users))
    np.testing.assert_allclose(kept.fetch().score_rows(users), expected, rtol=1e-6)


@pytest.mark.parametrize(("name", "settings"), SYSTEMS)
def test_a_fit_in_parts_agrees_with_a_plain_one(data, name, settings):
    plain = dubnb.make(name, **settings).fit(data)
    parted = dubnb.make(name, **settings).fit(data, parts=3)
    assert np.abs(scores(parted) - scores(plain)).max() < 1e-4
    assert parted.history_["stage"].tolist() == plain.history_["stage"].tolist()
    one = dubnb.make(name, **settings).fit(data, parts=1)
    np.testing.assert_array_equal(scores(one), scores(plain))


def test_a_fit_on_a_cluster_has_the_bytes_of_the_same_parts_here(data, client):
    settings = {"rank": 6, "epochs": 1, "exposure_power": 1.0, "grade_spread": 1.0, "teacher": "constant", "head": None}
    here = dubnb.make("dub-x", **settings).fit(data, parts=3)  # gamma is chosen on S_va
    there = dubnb.make("dub-x", **settings).fit(data, parts=3, scheduler=client)
    np.testing.assert_array_equal(scores(there), scores(here))
    assert there.params_ == here.params_


def test_candidates_on_a_sample_are_compared_here(data, client, monkeypatch):
    """Dozens of small solves take longer on a cluster; the parts, and so the bytes, are the same."""
    monkeypatch.setattr(dub_x, "LARGE", 1000)
    monkeypatch.setattr(dub_x, "SAMPLED", 5000)
    monkeypatch.setattr(dub_x, "GAMMAS", (0.03, 0.01))
    settings = {"rank": 4, "epochs": 2, "exposure_power": 1.0, "grade_spread": 1.0, "teacher": "constant", "head": None}
    here, used = dubnb.make("dub-x", **settings).fit(data, parts=2), []
    make = distributed.DaskParts.__init__
    monkeypatch.setattr(distributed.DaskParts, "__init__", lambda self, *given: used.append(self) or make(self, *given))
    there = dubnb.make("dub-x", **settings).fit(data, parts=2, scheduler=client)
    np.testing.assert_array_equal(scores(there), scores(here))
    assert there.params_ == here.params_ and len(there.history_["stage"].unique()) > 2 and len(used) == 1


def test_killed_workers_change_nothing(data, mortal, tmp_path, monkeypatch):
    """Workers die in a step and between two: their parts are sent to others, and the bytes are the same."""
    settings = {"rank": 6, "epochs": 6}
    expected = scores(dubnb.make("ials", **settings).fit(data, parts=4))
    place, placed, flag = distributed.DaskParts._place, [], tmp_path / "die"
    alive = len(mortal.nthreads())

    def counted(self):
        place(self)
        placed.append(self)
        if len(placed) == 3:
            flag.touch()
        if len(placed) == 17:
            os.kill(mortal.run(os.getpid, workers=self.homes[:1])[self.homes[0]], signal.SIGKILL)

    monkeypatch.setattr(distributed, "_run", functools.partial(or_die, flag, distributed._run))
    monkeypatch.setattr(distributed.DaskParts, "_place", counted)
    monkeypatch.setattr(distributed, "BROADCAST_WITHIN", 2.0)  # a kill during a broadcast costs this long
    model = dubnb.make("ials", **settings).fit(data, parts=4, scheduler=mortal)
    np.testing.assert_array_equal(scores(model), expected)
    assert any(each.attempts for each in placed) and not flag.exists()  # a step was repeated
    assert len(mortal.nthreads()) == alive - 2


def test_a_broadcast_that_never_ends_costs_one_time_limit(data, client, monkeypatch):
    """A worker that dies during a broadcast can block all later ones in Dask's scheduler."""
    settings = {"rank": 2, "epochs": 2}
    expected = scores(dubnb.make("ials", **settings).fit(data, parts=4))
    scatter, hung = client.scatter, []

    def blocked(values, workers, broadcast, **options):
        if broadcast:
            hung.append(values)
            threading.Event().wait()
        return scatter(values, workers=workers, broadcast=broadcast, **options)

    monkeypatch.setattr(client, "scatter", blocked)
    monkeypatch.setattr(distributed, "BROADCAST_WITHIN", 0.5)
    model = dubnb.make("ials", **settings).fit(data, parts=4, scheduler=client)
    np.testing.assert_array_equal(scores(model), expected)
    assert len(hung) == 1


def test_a_worker_that_cannot_go_on_ends_the_fit_in_one_line(data, client, monkeypatch):
    monkeypatch.setattr(parts, "grams_of_users", _out_of_memory)
    with pytest.raises(ClusterError, match=r"a Dask worker failed \(MemoryError: no room\).*fit again") as caught:
        dubnb.make("dub-x", **SETTINGS).fit(data, parts=2, scheduler=client)
    assert "\n" not in str(caught.value)


def _out_of_memory(state, sent):
    raise MemoryError("no room")


def test_a_cluster_without_workers_ends_in_bounded_time(data, monkeypatch):
    dask = pytest.importorskip("distributed")
    monkeypatch.setattr(_dask, "WORKERS_WITHIN", 0.5)
    with (
        dask.LocalCluster(n_workers=0, dashboard_address=None, silence_logs=50) as cluster,
        dask.Client(cluster) as client,
        pytest.raises(ClusterError, match="has no workers"),
    ):
        dubnb.make("dub-x", **SETTINGS).fit(data, parts=2, scheduler=client)


def test_exceptions_of_dask_that_nobody_awaited_are_not_printed(caplog):
    dask = pytest.importorskip("distributed")
    _dask.quiet_logs()
    for error in (dask.comm.CommClosedError("its own"), ValueError("the user's")):
        logging.getLogger("asyncio").error("Task exception was never retrieved", exc_info=error)
    assert [record.exc_info[0] for record in caplog.records] == [ValueError]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("base", {"parts": 2}, r"parts=2 is for methods with row solves, such as dub-x and ials, not for this base"),
        *((name, {"parts": 2}, f"for methods with row solves.*not for this {name}") for name in ("ease", "dub-i")),
        ("autodebias", {"scheduler": "tcp://127.0.0.1:9"}, "scheduler= is for methods with row solves"),
        ("dub-x", {"parts": 0}, r"parts=0 must be"),
        ("dub-x", {"scheduler": "tcp://127.0.0.1:9"}, r"no Dask scheduler answers"),
    ],
)
def test_bad_input_is_refused(data, monkeypatch, name, options, said):
    monkeypatch.setattr(_dask, "CONNECT_WITHIN", 2.0)
    with pytest.raises(dubnb.InputError, match=said):
        dubnb.make(name, rank=2).fit(data, **options)


NO_DUBNB = "sys.modules['dubnb'] = None"
OTHER_DUBNB = "import dubnb._version; dubnb._version.VERSION = '0.0.1'"


@pytest.fixture(scope="module")
def scheduler_of_one(tmp_path_factory):
    """(file of a scheduler with one worker, its client), for tests that add workers."""
    pytest.importorskip("distributed")
    file = tmp_path_factory.mktemp("one") / "scheduler.json"
    with client_of_processes(file, 1) as client:
        yield file, client


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (NO_DUBNB, r"a Dask worker on .* cannot use dubnb \(ModuleNotFoundError: .*\): install dubnb [0-9.]+ there"),
        (OTHER_DUBNB, r"a Dask worker on .* has dubnb 0\.0\.1, not [0-9.]+: install the same version"),
    ],
    ids=["no-dubnb", "another"],
)
def test_a_worker_without_this_dubnb_is_refused_and_gets_no_work_if_it_joins(data, scheduler_of_one, before, said):
    file, client = scheduler_of_one
    cluster = _dask.Cluster(client)
    cluster.survey([None])
    first = set(cluster.alive)
    joined = start_worker(file, before)
    try:
        client.wait_for_workers(2, timeout=600)
        with pytest.warns(UserWarning, match=f"{said}; it gets no work"):
            wait_until(lambda: not cluster.look()[1] and len(cluster.usable) == 2)
        assert cluster.alive == first and len(client.nthreads()) == 2  # it is still there
        with pytest.raises(dubnb.InputError, match=said) as caught:
            dubnb.make("ials", rank=2, epochs=1).fit(data, parts=2, scheduler=client)
        assert "\n" not in str(caught.value)
    finally:
        end(joined)
        wait_until(lambda: len(client.nthreads()) == 1)


def test_tasks_of_workers_that_all_died_run_on_one_that_joins(tmp_path):
    pytest.importorskip("distributed")
    with client_of_processes(tmp_path / "scheduler.json", 1) as client:
        tasks = _dask.ClusterTasks(_dask.Cluster(client))
        tasks.cluster.survey([None])
        (tmp_path / "die").touch()
        joined = start_worker(tmp_path / "scheduler.json")
        try:
            calls = [(tmp_path / "die", abs, number) for number in range(5)]
            assert list(tasks(or_die, calls)) == list(range(5)) and not (tmp_path / "die").exists()
        finally:
            end(joined)


# Parts in files, and fits that continue after a kill


@pytest.mark.parametrize(("name", "settings"), SYSTEMS)
def test_a_fit_from_files_has_the_bytes_of_the_same_parts_in_memory(data, tmp_path, name, settings):
    here = dubnb.make(name, **settings).fit(data, parts=3)
    stored = dubnb.make(name, **settings).fit(data, parts=3, parts_dir=tmp_path / "parts", threads=2)
    np.testing.assert_array_equal(scores(stored), scores(here))
    np.testing.assert_array_equal(stored.history_["loss_total"], here.history_["loss_total"])
    plain = dubnb.make(name, **settings).fit(data)
    one = dubnb.make(name, **settings).fit(data, parts_dir=tmp_path / "one")
    assert np.abs(scores(one) - scores(plain)).max() < 1e-4
    assert not list((tmp_path / "parts").glob(f"{distributed.PART_FILES}*"))  # part files end with the fit


@pytest.mark.parametrize("teacher", ["item", "model"])
@pytest.mark.parametrize("negative", [0.2, "unobserved"])
def test_a_problem_built_by_ranges_is_the_whole_one(data, tmp_path, teacher, negative):
    settings = SETTINGS | {"teacher": teacher, "negative": negative, "epochs": 2}
    here = dubnb.make("dub-x", **settings).fit(data, parts=4)
    stored = dubnb.make("dub-x", **settings).fit(data, parts=4, parts_dir=tmp_path)
    np.testing.assert_array_equal(scores(stored), scores(here))


@pytest.mark.parametrize("cold", [False, True])
def test_a_model_whose_users_are_in_files_serves_and_is_saved_as_any_other(data, tmp_path, monkeypatch, cold):
    """Scores, lists, files, vectors and new users are those of the fit in memory; also after it was loaded."""
    monkeypatch.setattr(mf, "STORED_AT_ONCE", 7)
    if cold:
        S_c, S_t = (data.triplets(part) for part in ("S_c", "S_t"))
        data = data.replace(S_c=S_c.take(S_c.users % 3 > 0), S_t=S_t.take(S_t.users % 3 > 0))
    plain = dubnb.make("dub-x", **SETTINGS).fit(data, parts=2)
    stored = dubnb.make("dub-x", **SETTINGS).fit(data, parts=2, parts_dir=tmp_path / "parts")
    plain.save(tmp_path / "plain.npz")
    stored.save(tmp_path / "stored.npz")
    assert (tmp_path / "plain.npz").read_bytes() == (tmp_path / "stored.npz").read_bytes()
    monkeypatch.setattr(_store, "MAPPED_FROM", 2000)
    loaded = dubnb.load(tmp_path / "stored.npz")
    expected, ids = plain.evaluate(data), data.user_ids.values
    users, items = np.meshgrid(ids[[3, 0, 3, 8]], data.item_ids.values)
    plain.export(tmp_path / "plain")
    plain.recommend_all(tmp_path / "plain.csv", k=3)
    for name, model in (("stored", stored), ("loaded", loaded)):
        assert isinstance(model.weights_, mf.StoredMF)
        assert model.evaluate(data) == expected
        np.testing.assert_array_equal(model.decision_function(users, items), plain.decision_function(users, items))
        with pytest.warns(UserWarning, match="1 unknown users"):
            lists = [each.recommend([ids[5], ids[-1] + 1], k=4) for each in (model, plain)]
        np.testing.assert_array_equal(*(each[1] for each in lists))
        liked = data.item_ids.values[:3]
        np.testing.assert_array_equal(model.fold_in(liked).recommend(4)[1], plain.fold_in(liked).recommend(4)[1])
        model.recommend_all(tmp_path / f"{name}.csv", k=3)
        assert (tmp_path / f"{name}.csv").read_bytes() == (tmp_path / "plain.csv").read_bytes()
        for file in model.export(tmp_path / name):
            assert (tmp_path / name / file).read_bytes() == (tmp_path / "plain" / file).read_bytes()
        model.save(tmp_path / f"{name}-again.npz")
        again = dubnb.make("dub-x", **SETTINGS | {"epochs": 1}).fit(data, start=model, parts=2)
        np.testing.assert_array_equal(
            scores(again), scores(dubnb.make("dub-x", **SETTINGS | {"epochs": 1}).fit(data, start=plain, parts=2))
        )
    assert not list((tmp_path / "parts").glob("*.tmp"))


def test_one_part_is_in_memory_at_a_time(data, tmp_path, monkeypatch):
    alive, most = weakref.WeakSet(), []

    class Watched(parts.PartState):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            alive.add(self)
            most.append(len(alive))

    monkeypatch.setattr(distributed, "PartState", Watched)
    dubnb.make("ials", rank=3, epochs=1).fit(data, parts=3, parts_dir=tmp_path)
    assert len(most) > 3 and max(most) == 1


def test_a_changed_copy_shares_the_biased_log(data):
    assert len(data.logged.items)
    S_va = data.triplets("S_va")
    copy = data.replace(S_va=S_va.take(slice(0, 9)))
    assert copy.triplets("S_c").items is data.triplets("S_c").items and copy.logged is data.logged
    fresh = dubnb.load_dataset("simulated", seed=0).replace(S_va=S_va.take(slice(0, 9)))
    for own, other in zip(copy.logged, fresh.logged, strict=True):
        np.testing.assert_array_equal(own, other)
    assert copy.fingerprint == fresh.fingerprint


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.mark.parametrize("gamma", [0.03, "auto"])
def test_a_fit_that_was_stopped_continues_after_its_last_sweep(data, tmp_path, monkeypatch, gamma):
    settings = SETTINGS | {"gamma": gamma, "exposure_power": 1.0, "grade_spread": 1.0, "teacher": "constant"}
    settings |= {"rank": 4, "epochs": 3} if gamma == "auto" else {"rank": 12, "lam": 0.5, "epochs": 9, "patience": 4}
    expected = dubnb.make("dub-x", **settings).fit(data, parts=2)
    step, count = parts.PartedSolver.step, [0]

    def stopped(self, epoch):
        count[0] += 1
        if count[0] % 4 == 0:
            raise Killed
        return step(self, epoch)

    monkeypatch.setattr(parts.PartedSolver, "step", stopped)
    for _ in range(100):
        try:
            model = dubnb.make("dub-x", **settings).fit(data, parts=2, parts_dir=tmp_path)
            break
        except Killed:
            continue
    np.testing.assert_array_equal(scores(model), scores(expected))
    assert model.history_["epoch"].tolist() == expected.history_["epoch"].tolist()
    assert model.params_ == expected.params_
    if gamma != "auto":
        assert model.lengths_["refine"] == 3 and len(model.history_) >= 7  # the best sweep is older than the last kill
    kills, sweeps = count[0] // 4, sum(not stage.startswith("head") for stage in expected.history_["stage"])
    assert kills and count[0] == sweeps + kills  # no finished sweep is repeated


def test_a_fit_on_a_cluster_from_disk_has_the_same_bytes_and_continues(data, client, tmp_path, monkeypatch):
    """scheduler= and parts_dir= together: workers build the parts from disk, the driver keeps each sweep's state."""
    frames = {
        part: pd.DataFrame(dict(zip(("user", "item", "label"), data.triplets(part), strict=False)))
        for part in ("S_c", "S_t", "S_va", "S_te")
    }
    (tmp_path / "log").mkdir()
    biased = frames.pop("S_c")
    for number in range(2):
        biased[number::2].to_csv(tmp_path / "log" / f"{number}.csv", index=False)
    here = dubnb.Partition.from_frames(tmp_path / "log", frames)
    there = dubnb.Partition.from_frames(tmp_path / "log", frames, parts_dir=tmp_path / "parts")
    settings = {"rank": 2, "epochs": 2}
    expected = dubnb.make("ials", **settings).fit(here, parts=3)
    step, count = parts.PartedSolver.step, []

    def stopped(self, epoch):
        count.append(epoch)
        if count == [1, 2]:
            raise Killed
        return step(self, epoch)

    monkeypatch.setattr(parts.PartedSolver, "step", stopped)
    with pytest.raises(Killed):
        dubnb.make("ials", **settings).fit(there, parts=3, scheduler=client, parts_dir=tmp_path / "state")
    model = dubnb.make("ials", **settings).fit(there, parts=3, scheduler=client, parts_dir=tmp_path / "state")
    np.testing.assert_array_equal(scores(model), scores(expected))
    assert model.data_ == expected.data_
    assert count == [1, 2, 2]  # the finished sweep is not repeated


def test_a_fit_whose_scheduler_was_killed_says_so_and_continues_here(data, tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    settings = {"rank": 2, "epochs": 3}
    expected = dubnb.make("ials", **settings).fit(data, parts=3)
    step, count = parts.PartedSolver.step, []
    with dask_processes(tmp_path / "scheduler.json", workers=1) as (address, scheduler, _):

        def killing(self, epoch):
            count.append(epoch)
            if count == [1, 2]:
                scheduler.kill()
                scheduler.wait()
            return step(self, epoch)

        monkeypatch.setattr(parts.PartedSolver, "step", killing)
        said = r"the Dask scheduler is lost \(.*\): start it again; finished sweeps are kept in .*state"
        with pytest.raises(ClusterError, match=said) as caught:
            dubnb.make("ials", **settings).fit(data, parts=3, scheduler=address, parts_dir=tmp_path / "state")
    assert "\n" not in str(caught.value)
    model = dubnb.make("ials", **settings).fit(data, parts=3, parts_dir=tmp_path / "state")  # without a cluster
    np.testing.assert_array_equal(scores(model), scores(expected))
    assert count == [1, 2, 2, 3]


# Logs that the workers read


@pytest.fixture
def log(data, tmp_path):
    """(directory of the biased log in three files, randomized logs)."""
    frames = {
        part: pd.DataFrame(dict(zip(("user", "item", "label"), data.triplets(part), strict=False)))
        for part in ("S_c", "S_t", "S_va", "S_te")
    }
    biased = frames.pop("S_c")
    biased = pd.concat([biased, biased[:50].assign(label=1), frames["S_te"][:40]])
    (tmp_path / "log").mkdir()
    for number in range(3):
        biased[number::3].to_csv(tmp_path / "log" / f"{number}.csv", index=False)
    return tmp_path / "log", frames


@pytest.fixture
def small_ranges(monkeypatch):
    monkeypatch.setattr(stored, "ROWS_AT_ONCE", 3000)


def test_workers_read_a_log_as_it_is_read_here(log, mortal, tmp_path, monkeypatch, small_ranges):
    """Also if a worker dies meanwhile, or reads a file twice: the same pairs, warnings and fits."""
    monkeypatch.setattr(distributed, "BROADCAST_WITHIN", 2.0)  # a kill of the other test may block them all
    with pytest.warns(UserWarning, match="repeat a pair") as said:
        here = dubnb.Partition.from_frames(*log)
    with pytest.MonkeyPatch.context() as patch, pytest.warns(UserWarning, match="repeat a pair") as also_said:
        (tmp_path / "die").touch()
        patch.setattr(stored, "spill_file", functools.partial(or_die, tmp_path / "die", stored.spill_file))
        there = dubnb.Partition.from_frames(*log, parts_dir=tmp_path / "parts", scheduler=mortal)
    assert not (tmp_path / "die").exists()
    assert [str(each.message) for each in said] == [str(each.message) for each in also_said]
    assert there.fingerprint == here.fingerprint and there.summary() == here.summary() and here.removed
    assert not list((tmp_path / "parts").glob("*/*sorted*"))
    one = dubnb.make("ials", rank=2, epochs=1).fit(here, parts=2)
    other = dubnb.make("ials", rank=2, epochs=1).fit(there, parts=2, scheduler=mortal)
    np.testing.assert_array_equal(scores(one), scores(other))


@pytest.mark.parametrize("dies", [False, True])
def test_workers_build_the_parts_of_a_log_on_disk_once(log, mortal, tmp_path, monkeypatch, dies):
    """The driver sends ranges and settings. A part whose worker dies meanwhile is built again."""
    monkeypatch.setattr(distributed, "BROADCAST_WITHIN", 2.0)  # as above
    here, there = (dubnb.Partition.from_frames(*log, **where) for where in ({}, {"parts_dir": tmp_path / "parts"}))
    unobserved = SETTINGS | {"epochs": 2, "negative": "unobserved"}
    chosen = [("ials", {"rank": 2, "epochs": 2})]
    chosen += [] if dies else [("dub-x", unobserved), ("dub-x", unobserved | {"teacher": "model"})]
    for number, (name, settings) in enumerate(chosen):
        expected = dubnb.make(name, **settings).fit(here, parts=3)
        (tmp_path / "die").touch() if dies else None
        counting = functools.partial(_counted, tmp_path / str(number), tmp_path / "die")
        with monkeypatch.context() as changes:
            changes.setattr(distributed, "_built_there", counting)
            changes.setattr(distributed, "built", None)  # nothing is built here
            model = dubnb.make(name, **settings).fit(there, parts=3, scheduler=mortal)
        np.testing.assert_array_equal(scores(model), scores(expected))
        np.testing.assert_array_equal(model.history_["loss_total"], expected.history_["loss_total"])
        assert dies or (tmp_path / str(number)).read_text() == "xxx"
    assert not (tmp_path / "die").exists()


def _counted(file, flag, terms):
    """Count the parts that workers build, whose own function is not replaced."""
    with open(file, "a") as counts:
        counts.write("x")
    return or_die(flag, distributed._built_there, terms)


def test_parts_are_built_here_if_the_workers_do_not_see_the_log(log, client, tmp_path, monkeypatch):
    here, there = (dubnb.Partition.from_frames(*log, **where) for where in ({}, {"parts_dir": tmp_path / "parts"}))
    survey = _dask.Cluster.survey
    monkeypatch.setattr(_dask.Cluster, "survey", lambda self, names: [[False] for _ in survey(self, [None])])
    with pytest.warns(UserWarning, match=r"do not see '.*parts.log-.*': the parts are built here; choose a disk"):
        model = dubnb.make("ials", rank=2, epochs=2).fit(there, parts=2, scheduler=client)
    np.testing.assert_array_equal(scores(model), scores(dubnb.make("ials", rank=2, epochs=2).fit(here, parts=2)))


def test_a_part_file_that_workers_cannot_read_ends_the_fit_in_one_line(log, client, tmp_path):
    data = dubnb.Partition.from_frames(*log, parts_dir=tmp_path / "parts")
    fitted, read = dubnb.make("ials", rank=2, epochs=1), data.files.range

    def cut(first, last):
        pairs = read(first, last)
        return pairs._replace(indptr=pairs.indptr + 10**6) if last < data.n_users else pairs

    data.files.range = cut
    with pytest.raises(dubnb.InputError, match=r"items' is cut short: leave parts_dir alone, and run again"):
        fitted.fit(data, parts=2, scheduler=client)


def test_a_sweep_sends_the_items_rows_once(data, client, monkeypatch):
    """Apart from the steps: the rows that the objective needs are rotated on the workers for the next sweep."""
    shape, sent, steps, scatter = (data.n_items, 6 + mf.EXTRA_COLUMNS), [], [], client.scatter
    total = distributed.DaskParts.total

    def counted(values, **options):
        sent.extend(value for value in values if np.shape(getattr(value, "Q", value)) == shape)
        return scatter(values, **options)

    monkeypatch.setattr(client, "scatter", counted)
    monkeypatch.setattr(
        distributed.DaskParts, "total", lambda self, task, *given: steps.append(task) or total(self, task, *given)
    )
    fitted = dubnb.make("ials", rank=6, epochs=4).fit(data, parts=2, scheduler=client)
    sweeps = len(fitted.history_)
    assert sweeps > 1 and len(sent) == 1 + sweeps + steps.count(parts.product_of_items)


def test_data_pass_through_the_scheduler_where_workers_cannot_be_reached(data, client, monkeypatch):
    cluster = _dask.Cluster(client)
    assert cluster.reaches(cluster.alive) and cluster.reached == cluster.alive
    assert not cluster.reaches([*cluster.alive, "tcp://127.0.0.1:9"]) and not cluster.reaches(cluster.alive)
    assert not _dask.Cluster(client).reaches(["inproc://10.0.0.1/1/1"])
    expected, ways, scatter = scores(dubnb.make("ials", rank=2, epochs=2).fit(data, parts=2)), [], client.scatter
    monkeypatch.setattr(
        client, "scatter", lambda *given, **options: ways.append(options["direct"]) or scatter(*given, **options)
    )
    for reached in (True, False):
        with monkeypatch.context() as changes:
            changes.setattr(_dask, "REACHED_WITHIN", 60.0 if reached else -1.0)  # no time: an error
            model = dubnb.make("ials", rank=2, epochs=2).fit(data, parts=2, scheduler=client)
        np.testing.assert_array_equal(scores(model), expected)
        assert set(ways) == {reached}
        ways.clear()


def test_a_frozen_scheduler_costs_one_time_limit(data, tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(distributed, "LOOK_EVERY", 1e9)
    monkeypatch.setattr(distributed, "BROADCAST_WITHIN", 1.0)
    monkeypatch.setattr(_dask, "AGAIN_WITHIN", 1.0)  # ANSWERS_WITHIN is 15 minutes in tests
    step, count = parts.PartedSolver.step, []
    with dask_processes(tmp_path / "scheduler.json", workers=1) as (address, scheduler, _):

        def freezing(self, epoch):
            count.append(epoch)
            if len(count) == 2:
                scheduler.send_signal(signal.SIGSTOP)
            return step(self, epoch)

        monkeypatch.setattr(parts.PartedSolver, "step", freezing)
        with pytest.raises(ClusterError, match=r"the Dask scheduler is lost \(TimeoutError: no answer within 1 s\)"):
            dubnb.make("ials", rank=2, epochs=3).fit(data, parts=3, scheduler=address)


def test_a_cluster_that_was_not_used_is_named(data, client):
    with pytest.warns(UserWarning, match=r"workers were not used: the log makes one part of up to 5,000,000 pairs; pa"):
        dubnb.make("ials", rank=2, epochs=1).fit(data, scheduler=client)


def test_commands_name_their_options_in_errors_of_workers(log, client, tmp_path, capsys):
    path, frames = log
    pd.concat(frames.values()).to_csv(tmp_path / "random.csv", index=False)
    with open(path / "1.csv", "a") as file:
        file.write("7,8,perhaps\n")
    cluster = ["--parts-dir", str(tmp_path / "parts"), "--scheduler", client.scheduler.address]
    given = ["fit", "--biased", str(path), "--random", str(tmp_path / "random.csv"), "--out", str(tmp_path / "m.npz")]
    for options, said in (
        (["--method", "popularity"], "(--drop-bad drops all such rows)"),
        (["--method", "popularity", "--item", "sku"], "name the column with --item"),
        (
            ["--method", "dub-x", "--backbone", "ncf"],
            "--scheduler is for row solves, which dub-x with --backbone ncf has",
        ),
        (["--method", "base", "--parts", "2"], "--scheduler is for methods with row solves"),
    ):
        assert cli.main([*given, *cluster, *options]) == 2
        assert said in capsys.readouterr().err


def test_workers_in_another_directory_read_a_relative_path(log, client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = client.run(os.getcwd)
    client.run(os.chdir, tmp_path / "log")
    try:
        with pytest.warns(UserWarning, match="repeat a pair") as said:
            data = dubnb.Partition.from_frames("log", log[1], parts_dir="parts", scheduler=client)
    finally:
        client.run(os.chdir, next(iter(before.values())))
    assert data.size("S_c") and not any("do not see" in str(each.message) for each in said)


def test_a_worker_that_stays_silent_does_not_stop_the_tasks_of_others(client, monkeypatch):
    cluster = _dask.Cluster(client)
    silent = [set(), {"one"}]  # it falls silent after the first look
    monkeypatch.setattr(_dask, "LOOK_EVERY", 0.001)
    monkeypatch.setattr(cluster, "look", lambda: (cluster.alive, silent.pop(0) if len(silent) > 1 else silent[0]))
    assert list(_dask.ClusterTasks(cluster)(_slow, [(1,), (2,)])) == [1, 2]


def test_a_question_to_the_scheduler_ends_when_its_connection_closes(client, monkeypatch):
    """Dask goes on connecting to an address where nobody listens, for as long as its client may wait."""
    cluster, answer = _dask.Cluster(client), threading.Event()
    monkeypatch.setattr(_dask, "LOOK_EVERY", 0.001)
    monkeypatch.setattr(_dask, "ANSWERS_WITHIN", 5.0)
    states = iter(["running", "running"])
    stalled = types.SimpleNamespace(sync=lambda ask: answer.wait(), scheduler=types.SimpleNamespace(identity=None))
    closing = type("Closing", (types.SimpleNamespace,), {"status": property(lambda self: next(states, "closed"))})
    cluster.client = closing(**vars(stalled))
    try:
        with pytest.raises(ClusterError, match=r"scheduler is lost \(the connection is closed\): start it again$"):
            cluster.look()
    finally:
        answer.set()


def test_an_error_of_a_task_is_not_tried_again(client, tmp_path):
    with pytest.raises(ClusterError, match=r"a Dask worker failed \(ValueError: wrong"):
        list(_dask.ClusterTasks(_dask.Cluster(client))(_fails, [(tmp_path / "tries",)]))
    assert (tmp_path / "tries").read_text() == "x"


def test_tasks_behind_a_failed_one_are_cancelled(client, tmp_path, monkeypatch):
    submit, futures = _dask.ClusterTasks._submit, []
    monkeypatch.setattr(_dask, "CLOSE_WITHIN", 900.0)
    monkeypatch.setattr(
        _dask.ClusterTasks, "_submit", lambda *call: futures.append(submit(*call)) or futures[len(futures) - 1]
    )
    with pytest.raises(ClusterError):
        list(_dask.ClusterTasks(_dask.Cluster(client))(_fails, [(tmp_path / str(k),) for k in range(20)]))
    assert 1 < len(futures) < 20 and {future.status for future in futures} == {"cancelled"}


def _fails(tries):
    with open(tries, "a") as file:
        file.write("x")
    raise ValueError("wrong")


def _slow(number):
    time.sleep(0.2)
    return number


def test_bad_rows_and_disks_of_workers_are_refused_in_one_line(log, client, tmp_path, monkeypatch):
    path, frames = log
    with open(path / "1.csv", "a") as file:
        file.write("7,8,perhaps\n")
    said = []
    for where in ({}, {"scheduler": client}):
        with pytest.raises(dubnb.InputError, match=r"1\.csv: column 'label', row") as caught:
            dubnb.Partition.from_frames(path, frames, parts_dir=tmp_path / "parts", **where)
        said.append(str(caught.value))
    assert said[0] == said[1] and os.listdir(tmp_path / "parts") == []
    monkeypatch.setattr(stored, "spill_file", _no_room)
    with pytest.raises(
        ClusterError, match=r"a Dask worker failed \(OSError: .*No space left on device; make room there"
    ):
        dubnb.Partition.from_frames(path, frames, parts_dir=tmp_path / "parts", scheduler=client)
    assert os.listdir(tmp_path / "parts") == []


def _no_room(files, number, *others):
    with _files.disk_errors(files.file("0-users")):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def small_blocks(data, client, monkeypatch):
    """Blocks of 200 users, here and on the workers: on some CPUs a product's last bits depend on its number of rows."""
    monkeypatch.setattr(_serving, "BLOCKS_OF_TASK", 2)
    usual = _serving.BLOCK_SCORES
    monkeypatch.setattr(_serving, "BLOCK_SCORES", 200 * data.n_items)
    client.run(setattr, _serving, "BLOCK_SCORES", 200 * data.n_items)
    yield
    client.run(setattr, _serving, "BLOCK_SCORES", usual)


@pytest.mark.usefixtures("small_blocks")
def test_workers_make_the_lists_that_are_made_here(data, client, tmp_path):
    fitted = dubnb.make("ials", rank=2, epochs=1).fit(data)
    with pytest.raises(dubnb.InputError, match="needs a model from a file: save it, then load it"):
        fitted.recommend_all(tmp_path / "no.csv", scheduler=client)
    fitted.save(tmp_path / "m.npz")
    model, some = dubnb.load(tmp_path / "m.npz"), data.item_ids.values[5:40]
    for name, options in (
        ("all", {}),
        ("some", {"users": data.user_ids.values[:99], "candidates": some}),
        ("none", {"users": data.user_ids.values[:9], "exclude": False}),
    ):
        for where in ({}, {"scheduler": client}):
            model.recommend_all(tmp_path / f"{name}-{len(where)}.csv", k=3, **options, **where)
        assert (tmp_path / f"{name}-0.csv").read_bytes() == (tmp_path / f"{name}-1.csv").read_bytes()
    with pytest.raises(dubnb.InputError, match="pairs to list or exclude are not sent"):
        model.recommend_all(tmp_path / "no.csv", exclude=data.S_c, scheduler=client)
    other = dubnb.make("ials", rank=2, epochs=1, seed=1).fit(data)
    other.save(tmp_path / "m.npz", overwrite=True)
    model = dubnb.load(tmp_path / "m.npz")
    fitted.save(tmp_path / "m.npz", overwrite=True)
    os.utime(tmp_path / "m.npz", (1, 1))
    with pytest.raises(dubnb.InputError, match=r"m\.npz' is not the file that the model was loaded from: load"):
        model.recommend_all(tmp_path / "no.csv", k=3, scheduler=client)


def test_workers_rank_the_users_that_are_ranked_here(data, client, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "BLOCK_PAIRS", 50 * data.n_items)
    fitted = dubnb.make("ials", rank=2, epochs=1).fit(data)
    with pytest.raises(dubnb.InputError, match="needs a model from a file: save it, then load it"):
        fitted.evaluate(data, scheduler=client)
    fitted.save(tmp_path / "m.npz")
    model, sent = dubnb.load(tmp_path / "m.npz"), []
    submit = _dask.ClusterTasks._submit
    monkeypatch.setattr(_dask.ClusterTasks, "_submit", lambda *call: sent.append(call) or submit(*call))
    for options in ({}, {"part": "S_va", "ks": (3,)}, {"protocol": "test-items"}):
        log = data.replace(name="again")  # popularity is ranked once per log
        there = model.evaluate(log, scheduler=client, **options)
        assert there == model.evaluate(data, **options)
        assert (len(sent) > 20) == ("protocol" not in options)  # blocks of both rankings, and of percentiles
        sent.clear()
    monkeypatch.setattr(_dask.Cluster, "survey", lambda self, names: [[False]])
    with pytest.warns(UserWarning, match="the workers do not see .*: users are ranked here"):
        assert model.evaluate(data, scheduler=client) == model.evaluate(data)
    with pytest.raises(dubnb.InputError, match="scheduler is for the log that the model was fitted on, and other is"):
        model.evaluate(dubnb.load_dataset("simulated", seed=1).replace(name="other"), scheduler=client)


def test_results_are_awaited_with_the_client_that_is_given(log, data, client, tmp_path, monkeypatch):
    """Dask's `wait` asks the client that was made last: with two in a process, each step took seconds."""
    from distributed import Client

    path, frames = log
    settings = {"rank": 2, "epochs": 1}
    with Client(client.scheduler.address) as newer, monkeypatch.context() as changes:
        changes.setattr(newer, "sync", None)
        there = dubnb.Partition.from_frames(path, frames, parts_dir=tmp_path / "parts", scheduler=client)
        model = dubnb.make("ials", **settings).fit(data, parts=2, scheduler=client)
    assert there.fingerprint == dubnb.Partition.from_frames(path, frames).fingerprint
    np.testing.assert_array_equal(scores(model), scores(dubnb.make("ials", **settings).fit(data, parts=2)))


def test_the_evaluate_command_reads_and_ranks_on_workers(log, data, client, tmp_path, capsys):
    path, frames = log
    pd.concat(frames.values()).to_csv(tmp_path / "random.csv", index=False)
    logs = ["--biased", str(path), "--random", str(tmp_path / "random.csv"), "--quiet"]
    disk = ["--parts-dir", str(tmp_path / "parts"), "--scheduler", client.scheduler.address]
    model = str(tmp_path / "m.npz")
    assert not cli.main(["fit", *logs, *disk, "--method", "popularity", "--out", model])
    capsys.readouterr()
    printed = []
    for where in ([], disk):
        assert not cli.main(["evaluate", *logs, *where, "--model", model, "--json"])
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0] == printed[1] and printed[0]["auc"] > 0.5
    assert cli.main(["evaluate", "--data", "simulated", "--model", model, *disk[:2]]) == 2
    assert "--parts-dir is for a directory of log files that stays on disk" in capsys.readouterr().err


@pytest.mark.parametrize("hidden, seen_as", [("parts/log-", "parts/log-.*"), ("log$", "/log")])
def test_a_log_that_one_worker_does_not_see_is_read_here(hidden, seen_as, log, client, tmp_path, monkeypatch):
    monkeypatch.setattr(
        _dask.Cluster, "survey", lambda self, names: [[True, True], [not re.search(hidden, name) for name in names]]
    )
    with pytest.warns(UserWarning, match=f"the workers do not see '.*{seen_as}': the log is read here; choose"):
        data = dubnb.Partition.from_frames(*log, parts_dir=tmp_path / "parts", scheduler=client)
    assert data.size("S_c")
    with pytest.raises(dubnb.InputError, match="scheduler is for a log on disk: give parts_dir too"):
        dubnb.Partition.from_frames(*log, scheduler=client)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="drivers are forks")
@pytest.mark.parametrize("times", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_drivers_change_nothing(times):
    """In a process of its own: its forks must not copy the locks of this one's threads."""
    command = [sys.executable, "-m", "tests.kill_fits", "--times", str(times)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2400)
    assert done.returncode == 0 and "every saved model is the same" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="as above")
def test_workers_killed_at_random_moments_change_nothing():
    command = [sys.executable, "-m", "tests.kill_fits", "--workers", "--times", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2400)
    assert done.returncode == 0 and "every saved model is the same" in done.stdout, done.stderr


def test_a_damaged_checkpoint_and_other_settings_begin_anew(data, tmp_path):
    expected = scores(dubnb.make("ials", rank=3, epochs=2).fit(data, parts=2, parts_dir=tmp_path))
    (file,) = tmp_path.glob("solve-*.npz")
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    np.testing.assert_array_equal(
        scores(dubnb.make("ials", rank=3, epochs=2).fit(data, parts=2, parts_dir=tmp_path)), expected
    )
    assert file.read_bytes() != content[: len(content) // 2]
    other = dubnb.make("ials", rank=3, epochs=2, alpha=0.1).fit(data, parts=2, parts_dir=tmp_path)
    plain = dubnb.make("ials", rank=3, epochs=2, alpha=0.1).fit(data, parts=2)
    np.testing.assert_array_equal(scores(other), scores(plain))


def test_a_directory_that_cannot_be_used_is_refused(data, tmp_path):
    model = dubnb.make("ials", rank=2, epochs=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(
        dubnb.InputError, match=r"parts_dir=.*cannot be used \(it is not a directory\): give a directory"
    ):
        model.fit(data, parts_dir=tmp_path / "file")
    with distributed.locked(tmp_path / "used"), pytest.raises(dubnb.InputError, match="is used by another fit: wait"):
        model.fit(data, parts_dir=tmp_path / "used")
    with pytest.raises(dubnb.InputError, match=r"parts_dir= is for methods with row solves.*not for this base"):
        dubnb.make("base", rank=2).fit(data, parts_dir=tmp_path)


def test_a_full_disk_ends_the_fit_with_the_reason_and_leaves_no_part_files(data, tmp_path):
    """A limit on the size of files stands for a full disk: the system refuses to write the rest."""
    resource = pytest.importorskip("resource")
    dubnb.make("ials", rank=2, epochs=1).fit(data, parts=2, parts_dir=tmp_path / "usual")  # compiles the kernels
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, usual[1]))
    try:
        with pytest.raises(OSError, match=r"File too large; make room there, then run .*again.*\.npy"):
            dubnb.make("ials", rank=2, epochs=1).fit(data, parts=2, parts_dir=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert not list(tmp_path.glob(f"{distributed.PART_FILES}*"))


def test_a_part_file_that_is_lost_or_cut_ends_the_fit_in_one_line(data, tmp_path, monkeypatch):
    add = distributed.StoredParts.add

    def cut(self, part, n_items):
        add(self, part, n_items)
        path = self._path(0, "pull")
        with open(path, "r+b") as file:
            file.truncate(200)

    monkeypatch.setattr(distributed.StoredParts, "add", cut)
    with pytest.raises(dubnb.InputError, match=r"pull.npy' cannot be mapped .*: leave parts_dir alone") as caught:
        dubnb.make("ials", rank=2, epochs=1).fit(data, parts=2, parts_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob(f"{distributed.PART_FILES}*"))
