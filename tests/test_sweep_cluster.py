"""Sweeps on a real Dask cluster with worker processes of its own: same results, and the cluster's own faults."""

import contextlib
import json
import os
import signal
import socket
import time
from types import SimpleNamespace

import pytest

import dubnb
from dubnb import _dask, cli
from dubnb.sweeps import SweepError, cluster, status
from dubnb.sweeps.ledger import Ledger
from dubnb.sweeps.runner import Resources, planned, run_fits
from dubnb.sweeps.trial import Rules
from tests.dask_tools import cluster_of_processes, dask_processes
from tests.sweep_tools import FIXED, Faulty, comparable, fits, start_driver, tiny_log, wait_until

distributed = pytest.importorskip("distributed")
GRID = {"lam": [1e-4, 2e-4], "gamma": [0.1, 1.0]}


pytestmark = pytest.mark.usefixtures("patience")


@contextlib.contextmanager
def unless_dask_gives_up(monkeypatch):
    """Dask does not always start another worker for a killed one on a busy machine: then there is nothing to test."""
    monkeypatch.setattr(_dask, "WORKERS_WITHIN", 90.0)
    try:
        yield
    except SweepError as error:
        if "has no workers" in str(error):
            pytest.skip("Dask started no worker in place of a killed one")
        raise


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


def test_the_same_workers_take_another_log_when_a_second_sweep_comes(tmp_path, client):
    logs = {"one": tiny_log(), "two": tiny_log(seed=1)}
    assert logs["one"].fingerprint != logs["two"].fingerprint
    options = {"grid": {"lam": [1e-4]}, "fixed": FIXED, "quiet": True}
    for name, data in logs.items():
        there = dubnb.sweep("base", data=data, out=tmp_path / f"{name}-there", client=client, **options)
        here = dubnb.sweep("base", data=data, out=tmp_path / f"{name}-here", **options)
        assert comparable(there.trials).equals(comparable(here.trials)) and set(there.trials.status) == {"done"}


def test_a_sweep_begun_here_goes_on_there_by_address(tmp_path, client):
    arguments = {"data": tiny_log(), "out": tmp_path / "s", "fixed": FIXED, "quiet": True}
    here = dubnb.sweep("base", grid={"lam": [1e-4]}, **arguments)
    both = dubnb.sweep("base", grid={"lam": [1e-4, 1e-3]}, scheduler=client.scheduler.address, **arguments)
    assert len(both.trials) == 2 and set(here.trials.key) < set(both.trials.key)
    kept = both.trials.set_index("key").loc[here.trials.key[0]]
    assert kept.seconds == here.trials.seconds[0]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_arena_gives_the_same_leaderboard_by_address(tmp_path, client, capsys, monkeypatch):
    def values(*words):
        common = ["arena", "--worlds", "bias-none", "--systems", "base,dub-x binary,popularity", "--budget", "smoke"]
        assert cli.main([*common, "--quiet", "--json", *words]) == 0
        return [(row["system"], row["values"]) for row in json.loads(capsys.readouterr().out)["leaderboard"]]

    with monkeypatch.context() as patched:
        patched.setattr("dubnb.sweeps.local.LocalExecutor.run", None)  # no worker of this machine
        there = values("--out", str(tmp_path / "there"), "--scheduler", client.scheduler.address)
    assert there == values("--out", str(tmp_path / "here")) and len(there) == 3


def test_1_and_3_a_dead_dask_worker_costs_nothing_and_one_that_always_dies_ends_in_quarantine(tmp_path, monkeypatch):
    with unless_dask_gives_up(monkeypatch), cluster_of_processes() as own:
        hit, others = run_faulty("sigkill-once", tmp_path, own)
        assert set(hit.status) == set(others.status) == {"done"}
        hit, others = run_faulty("sigkill", tmp_path, own)
    assert set(hit.status) == {"quarantined"} and all("worker died" in reason for reason in hit.reason)
    assert set(others.status) == {"done"}


@pytest.mark.slow
def test_4_a_hung_trial_on_dask_ends_at_its_time_limit(tmp_path, client):
    usual, _ = run_faulty("slow", tmp_path, client)
    limit = 10 + 10 * usual.seconds.max()  # what no other trial takes, however busy the machine is
    hit, others = run_faulty("hang-once", tmp_path, client, time_limit=limit, retries=1)
    assert set(hit.status) == set(others.status) == {"done"}


def test_6_an_exception_that_does_not_pickle_on_dask(tmp_path, client):
    hit, others = run_faulty("unpicklable", tmp_path, client)
    assert set(hit.status) == {"failed"} and all("Unpicklable: it went wrong" in reason for reason in hit.reason)
    assert set(others.status) == {"done"}


@pytest.mark.slow
@pytest.mark.needs_jit
def test_15_a_kernel_that_outlasts_the_workers_time_to_live(tmp_path):
    with cluster_of_processes("15s") as client:
        hit, others = run_faulty("kernel", tmp_path, client)
    assert set(hit.status) == set(others.status) == {"done"}
    assert len(fits(tmp_path)) == 4  # none had to begin again


def test_data_lost_with_their_workers_are_sent_again(tmp_path, client):
    from dubnb.sweeps.cluster import ClusterExecutor
    from dubnb.sweeps.trial import Schedule

    data = tiny_log()
    trials = [planned(dubnb.Base, data, FIXED | {"seed": seed}) for seed in range(3)]
    schedule = Schedule(trials, retries=0, isolate=True)
    executor = ClusterExecutor({data.fingerprint: data}, Rules(), client)
    outcomes = []
    for trial, outcome in executor.run(schedule):
        schedule.ended(trial, outcome)
        outcomes.append(outcome["status"])
        if len(outcomes) == 1:
            client.cancel([executor.scattered], force=True)
    executor.close()
    assert outcomes.count("done") == 3


def test_a_worker_that_dies_with_its_finished_result_costs_nothing(tmp_path, monkeypatch):
    """The moment between a trial's end and the driver's question for its outcome."""
    fetch, killed = cluster.ClusterExecutor._outcome, []

    def kill_who_holds_it(self, future, since):
        if future.status == "finished" and len(killed) < 2:
            holders = client.run(os.getpid, workers=client.who_has([future])[future.key], on_error="ignore").values()
            killed.extend(holders)
            for pid in holders:
                os.kill(pid, signal.SIGKILL)
        return fetch(self, future, since)

    monkeypatch.setattr(cluster.ClusterExecutor, "_outcome", kill_who_holds_it)
    arguments = {"data": tiny_log(), "grid": {"lam": [1e-4, 2e-4, 3e-4]}, "fixed": FIXED, "quiet": True}
    with unless_dask_gives_up(monkeypatch), cluster_of_processes() as own:
        client = own
        there = dubnb.sweep("base", out=tmp_path / "dask", client=own, retries=5, **arguments)
    here = dubnb.sweep("base", out=tmp_path / "local", **arguments)
    assert killed and comparable(there.trials).equals(comparable(here.trials))


def test_workers_that_do_not_see_the_directory_pretrain_alone_and_leave_files_to_the_driver(
    tmp_path, client, monkeypatch, capsys
):
    monkeypatch.setattr(_dask.Cluster, "survey", lambda self, directories: [[False] * len(directories)])
    data, arguments = tiny_log(), {"grid": {"lam": [1e-4]}, "fixed": FIXED, "out": tmp_path / "s"}
    dubnb.sweep("base", data=data, client=client, **arguments)
    assert "pre-trains its own models" in capsys.readouterr().err
    assert dubnb.load(tmp_path / "s" / "best.npz")
    assert len(list((tmp_path / "s" / "pretrained").iterdir())) == 1  # the driver's, of best.npz
    with pytest.raises(dubnb.InputError, match="all machines share"):
        trials = [planned(dubnb.Base, data, FIXED)]
        run_fits(trials, [data], tmp_path / "f", Resources(client=client, quiet=True), list_length=5)


def test_a_trial_lost_after_its_time_limit_is_recorded_as_timed_out():
    executor = object.__new__(cluster.ClusterExecutor)
    executor.rules = Rules(time_limit=5.0)
    lost = SimpleNamespace(status="error", exception=lambda timeout: RuntimeError("killed"))
    late = executor._outcome(lost, time.monotonic() - 6)
    assert late["status"] == "timeout" and "time limit of 5 s" in late["reason"]
    assert executor._outcome(lost, time.monotonic() - 1)["status"] == "killed"


def test_a_worker_is_silent_when_its_heartbeat_stands_still(monkeypatch):
    monkeypatch.setattr(_dask, "WORKER_SILENT", 10.0)
    beats = _dask.Heartbeats()
    assert beats.look({"a": {"last_seen": 1.0}, "b": {"last_seen": 1.0}}, 100.0) == ({"a", "b"}, set())
    assert beats.look({"a": {"last_seen": 2.0}, "b": {"last_seen": 1.0}}, 111.0) == ({"a"}, {"b"})
    assert beats.look({"a": {"last_seen": 2.0}, "b": {"last_seen": 3.0}}, 112.0) == ({"a", "b"}, set())


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with dask_processes(tmp_path_factory.mktemp("dask") / "scheduler.json") as found:
        yield found


def freeze_after_first_trial(monkeypatch, process, answers_within):
    """Freeze a process after the first trial, and from then on wait no longer than this for an answer."""
    record, rows = Ledger.record, []

    def freeze(self, row):
        record(self, row)
        rows.append(row)
        if len(rows) == 1:
            process.send_signal(signal.SIGSTOP)
            monkeypatch.setattr(_dask, "ANSWERS_WITHIN", answers_within)

    monkeypatch.setattr(Ledger, "record", freeze)


SLOW = {"grid": {"lam": [1e-4 * k for k in range(1, 7)]}, "fixed": FIXED | {"fault": "slow"}, "quiet": True}


@pytest.mark.parametrize("only_copy", [False, True])
def test_a_frozen_worker_loses_its_trial_and_the_others_go_on(only_copy, tmp_path, processes, monkeypatch):
    """Also if it holds the only copy of the data, as when the other worker came later."""
    address, _, (frozen, _) = processes
    if only_copy:
        with distributed.Client(address) as own:
            own.wait_for_workers(2, timeout=600)
            (name,) = [worker for worker, pid in own.run(os.getpid).items() if pid == frozen.pid]
        scatter = distributed.Client.scatter

        def to_one(self, data, workers, **options):
            return scatter(self, data, workers=[name] if name in workers else workers, **options)

        monkeypatch.setattr(distributed.Client, "scatter", to_one)
    monkeypatch.setattr(_dask, "WORKER_SILENT", 6.0)
    monkeypatch.setattr(cluster, "LOOK_EVERY", 0.5)
    freeze_after_first_trial(monkeypatch, frozen, 60.0)  # a worker without a trial may be asked, frozen
    # On a busy machine the other worker too may seem silent and lose a trial: hence the retries.
    found = dubnb.sweep(Faulty, data=tiny_log(), out=tmp_path / "s", scheduler=address, retries=9, **SLOW)
    frozen.send_signal(signal.SIGCONT)
    assert set(found.trials.status) == {"done"} and len(found.trials) == 6


@pytest.mark.slow
def test_a_frozen_scheduler_ends_the_sweep_with_the_reason(tmp_path, processes, monkeypatch):
    address, scheduler, _ = processes
    monkeypatch.setattr(cluster, "LOOK_EVERY", 0.5)
    freeze_after_first_trial(monkeypatch, scheduler, 8.0)
    with pytest.raises(SweepError, match=r"scheduler is lost.*run the same command again"):
        dubnb.sweep(Faulty, data=tiny_log(), out=tmp_path / "s", scheduler=address, **SLOW)
    assert status(tmp_path / "s")["counts"]["done"] >= 1


@pytest.mark.slow
def test_a_killed_scheduler_ends_the_sweep_in_one_line(tmp_path):
    """Dask's own tracebacks do not come before it."""
    file = tmp_path / "scheduler.json"
    with dask_processes(file) as (address, scheduler, _):
        fixed = FIXED | {"where": str(tmp_path), "fault": "slow"}
        driver = start_driver(grid=SLOW["grid"], fixed=fixed, out=str(tmp_path / "s"), scheduler=address)
        wait_until(lambda: len(fits(tmp_path)) >= 3)
        scheduler.kill()
        _, said = driver.communicate(timeout=3600)
    assert driver.returncode == 1 and said.count("\n") == 1 and "run the same command again" in said


def test_a_port_that_accepts_and_stays_silent_is_bad_input(monkeypatch):
    monkeypatch.setattr(_dask, "CONNECT_WITHIN", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(dubnb.InputError, match=r"no answer within 2 s.*check the address"):
            _dask.connect(address)


def test_tls_without_certificates_is_bad_input():
    with pytest.raises(dubnb.InputError, match=r"TLS.*check the address"):
        _dask.connect("tls://127.0.0.1:9")


def test_workers_that_are_threads_of_the_driver_are_refused(tmp_path):
    with (
        distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=None) as threads,
        distributed.Client(threads) as client,
        pytest.raises(dubnb.InputError, match="processes=True"),
    ):
        dubnb.sweep("base", data=tiny_log(), grid={"lam": [1]}, out=tmp_path / "s", client=client, quiet=True)


def test_no_scheduler_at_the_address_is_bad_input(tmp_path, monkeypatch):
    monkeypatch.setattr(_dask, "CONNECT_WITHIN", 2.0)
    with pytest.raises(dubnb.InputError, match="no Dask scheduler answers"):
        dubnb.sweep(
            "base", data=tiny_log(), grid={"lam": [1]}, out=tmp_path / "s", scheduler="tcp://127.0.0.1:9", quiet=True
        )
    assert not (tmp_path / "s").exists()
