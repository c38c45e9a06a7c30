"""Sweeps on a real Dask cluster with worker processes of its own: same results, and the cluster's own faults."""

import pytest

import dubnb
from tests.sweep_tools import FIXED, Faulty, comparable, fits, tiny_log

distributed = pytest.importorskip("distributed")
GRID = {"lam": [1e-4, 2e-4], "gamma": [0.1, 1.0]}


@pytest.fixture(scope="module")
def client():
    settings = {
        "distributed.scheduler.allowed-failures": 1,
        "distributed.scheduler.worker-ttl": "5s",
        "distributed.worker.memory.terminate": False,
        "distributed.admin.large-graph-warning-threshold": "1GB",
    }
    with (
        dask_settings(settings),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def dask_settings(settings):
    import dask

    return dask.config.set(settings)


def run_faulty(fault, tmp_path, client, **options):
    grid = {"lam": [1e-4, 2e-4], "fault": ["none", fault]}
    fixed = FIXED | {"where": str(tmp_path)}
    options = {"retries": 0} | options
    found = dubnb.sweep(
        Faulty, data=tiny_log(), grid=grid, out=tmp_path / "s", fixed=fixed, quiet=True, client=client, **options
    )
    return found.trials[found.trials.fault == fault], found.trials[found.trials.fault == "none"]


def test_a_cluster_gives_the_same_bytes_as_one_machine(tmp_path, client):
    arguments = {"data": tiny_log(), "grid": GRID, "seeds": 2, "fixed": FIXED, "quiet": True}
    there = dubnb.sweep("dub", out=tmp_path / "dask", client=client, **arguments)
    here = dubnb.sweep("dub", out=tmp_path / "local", n_jobs=2, **arguments)
    assert comparable(there.trials).equals(comparable(here.trials)) and there.best == here.best
    assert sorted(path.name for path in (tmp_path / "dask/pretrained").iterdir()) == sorted(
        path.name for path in (tmp_path / "local/pretrained").iterdir()
    )


def test_a_sweep_begun_here_goes_on_there_by_address(tmp_path, client):
    arguments = {"data": tiny_log(), "out": tmp_path / "s", "fixed": FIXED, "quiet": True}
    here = dubnb.sweep("base", grid={"lam": [1e-4]}, **arguments)
    both = dubnb.sweep("base", grid={"lam": [1e-4, 1e-3]}, scheduler=client.scheduler.address, **arguments)
    assert len(both.trials) == 2 and set(here.trials.key) < set(both.trials.key)
    kept = both.trials.set_index("key").loc[here.trials.key[0]]
    assert kept.seconds == here.trials.seconds[0]


def test_1_and_3_a_dead_dask_worker_costs_nothing_and_one_that_always_dies_ends_in_quarantine(tmp_path, client):
    hit, others = run_faulty("sigkill-once", tmp_path, client)
    assert set(hit.status) == set(others.status) == {"done"}
    hit, others = run_faulty("sigkill", tmp_path, client)
    assert set(hit.status) == {"quarantined"} and all("worker died" in reason for reason in hit.reason)
    assert set(others.status) == {"done"}


def test_4_a_hung_trial_on_dask_meets_its_time_limit(tmp_path, client):
    hit, others = run_faulty("hang-once", tmp_path, client, time_limit=4.0, retries=1)
    assert set(hit.status) == set(others.status) == {"done"}


def test_6_an_exception_that_does_not_pickle_on_dask(tmp_path, client):
    hit, others = run_faulty("unpicklable", tmp_path, client)
    assert set(hit.status) == {"failed"} and all("Unpicklable: it went wrong" in reason for reason in hit.reason)
    assert set(others.status) == {"done"}


@pytest.mark.needs_jit
def test_15_a_kernel_that_outlasts_the_workers_time_to_live(tmp_path, client):
    hit, others = run_faulty("kernel", tmp_path, client)
    assert set(hit.status) == set(others.status) == {"done"}
    assert len(fits(tmp_path)) == 4  # none had to begin again


def test_data_lost_with_their_workers_are_sent_again(tmp_path, client):
    from dubnb.sweeps.cluster import Cluster
    from dubnb.sweeps.schedule import Schedule
    from dubnb.sweeps.trial import Rules, planned

    data = tiny_log()
    trials = [planned(dubnb.Base, data, FIXED | {"seed": seed}) for seed in range(3)]
    schedule = Schedule(trials, retries=0, isolate=True)
    engine = Cluster({data.fingerprint: data}, Rules(), client)
    outcomes = []
    for trial, outcome in engine.run(schedule):
        schedule.ended(trial, outcome)
        outcomes.append(outcome["status"])
        if len(outcomes) == 1:
            client.cancel([engine.scattered], force=True)
    engine.close()
    assert outcomes.count("done") == 3


def test_workers_that_are_threads_of_the_driver_are_refused(tmp_path):
    with (
        distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
        pytest.raises(dubnb.InputError, match="processes=True"),
    ):
        dubnb.sweep("base", data=tiny_log(), grid={"lam": [1]}, out=tmp_path / "s", client=client, quiet=True)


def test_no_scheduler_at_the_address_is_bad_input(tmp_path):
    with pytest.raises(dubnb.InputError, match="no Dask scheduler answers"):
        dubnb.sweep(
            "base", data=tiny_log(), grid={"lam": [1]}, out=tmp_path / "s", scheduler="tcp://127.0.0.1:9", quiet=True
        )
    assert not (tmp_path / "s").exists()
