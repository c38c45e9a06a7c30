"""Every fault of a long sweep on one machine, really caused. Those of a Dask cluster are in test_sweep_cluster."""

import contextlib
import multiprocessing
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import dubnb
from dubnb import _kernel_cache
from dubnb.sweeps import SweepError
from dubnb.sweeps import ledger as ledgers
from dubnb.sweeps.local import Slot, pack
from dubnb.sweeps.trial import Rules
from dubnb.sweeps.worker import Pretrained
from tests.sweep_tools import (
    FIXED,
    QUICK,
    ROOT,
    Faulty,
    comparable,
    fits,
    grown_by,
    is_alive,
    start_driver,
    tiny_log,
    wait_until,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="faults are caused with Linux's means")
LAMS = [1e-4, 2e-4, 3e-4, 4e-4]
PATIENCE = 3600  # seconds, only so that a test ends at all


def run_with(fault, tmp_path, lams=(1e-4, 2e-4), **options):
    """A sweep in which every second point has the fault; returns (their rows, the others' rows)."""
    grid = {"lam": list(lams), "fault": ["none", fault]}
    fixed = FIXED | {"where": str(tmp_path)}
    options = {"n_jobs": 1, "retries": 1} | options
    found = dubnb.sweep(Faulty, data=tiny_log(), grid=grid, out=tmp_path / "s", fixed=fixed, quiet=True, **options)
    return found.trials[found.trials.fault == fault], found.trials[found.trials.fault != fault]


@pytest.mark.parametrize("fault", ["sigkill-once", "segfault-once"])
def test_1_a_dead_worker_costs_its_own_trial_only_and_that_is_tried_again(fault, tmp_path):
    hit, others = run_with(fault, tmp_path, n_jobs=2)
    assert sorted(hit.attempts) == [1, 2] and set(hit.status) == {"done"}
    assert set(others.status) == {"done"} and set(others.attempts) == {1}
    assert len(fits(tmp_path)) == 5


def test_2_a_trial_that_always_kills_its_worker_is_quarantined_with_its_reason(tmp_path):
    hit, others = run_with("sigkill", tmp_path)
    assert set(hit.status) == {"quarantined"} and set(hit.attempts) == {2}
    assert all("SIGKILL" in reason for reason in hit.reason)
    assert set(others.status) == {"done"}


def test_4_a_hung_trial_ends_at_its_time_limit(tmp_path):
    usual, _ = run_with("slow", tmp_path, [1e-4])
    limit = 10 + 10 * usual.seconds.max()  # what no other trial takes, however busy the machine is
    hit, others = run_with("hang", tmp_path, [1e-4], time_limit=limit, retries=0)
    assert set(hit.status) == {"quarantined"} and all(f"time limit of {limit:g} s" in reason for reason in hit.reason)
    assert set(others.status) == {"done"}
    wait_until(lambda: not any(is_alive(pid) for _, _, pid in fits(tmp_path)))


def test_5_a_trial_that_runs_out_of_memory_is_tried_again_in_a_fresh_worker(tmp_path):
    hit, others = run_with("memory", tmp_path)
    assert set(hit.status) == {"quarantined"} and all("MemoryError" in reason for reason in hit.reason)
    assert set(others.status) == {"done"}
    hit, _ = run_with("memory-once", tmp_path)
    assert set(hit.status) == {"done"} and sorted(hit.attempts) == [1, 2]


@pytest.mark.parametrize(
    "fault, reason", [("unpicklable", "Unpicklable: it went wrong"), ("result", "TypeError"), ("exit", "SystemExit: 3")]
)
def test_6_an_exception_or_result_that_does_not_pickle_is_a_failed_trial(fault, reason, tmp_path):
    hit, others = run_with(fault, tmp_path)
    assert set(hit.status) == {"failed"} and all(reason in text for text in hit.reason)
    assert set(others.status) == {"done"} and set(others.attempts) == {1}


def slow_arguments(tmp_path, fault="slow", **options):
    fixed = FIXED | {"where": str(tmp_path), "fault": fault}
    return {"grid": {"lam": LAMS}, "seeds": 3, "n_jobs": 2, "out": str(tmp_path / "s"), "fixed": fixed} | options


def undisturbed(tmp_path):
    """The same sweep, never interrupted, with one worker."""
    arguments = slow_arguments(tmp_path, out=str(tmp_path / "undisturbed"), n_jobs=1)
    return comparable(dubnb.sweep(Faulty, data=tiny_log(), quiet=True, **arguments).trials)


def resumed(tmp_path, fault="slow"):
    arguments = slow_arguments(tmp_path, fault, n_jobs=1)
    return comparable(dubnb.sweep(Faulty, data=tiny_log(), quiet=True, **arguments).trials)


def recorded(out):
    """Keys in the ledger, read without dubnb."""
    path = os.path.join(out, ledgers.LEDGER)
    if not os.path.exists(path):
        return []
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            return [key for (key,) in connection.execute("SELECT key FROM trials")]
    except sqlite3.OperationalError:  # not created yet
        return []


def test_7_and_8_a_killed_driver_loses_nothing_repeats_nothing_and_leaves_no_orphans(tmp_path):
    driver = start_driver(**slow_arguments(tmp_path))
    before = wait_until(lambda: len(recorded(tmp_path / "s")) >= 3 and recorded(tmp_path / "s"))
    driver.kill()
    driver.communicate()
    workers = {pid for _, _, pid in fits(tmp_path)}
    wait_until(lambda: not any(is_alive(pid) for pid in workers))
    kept = set(recorded(tmp_path / "s"))
    assert set(before) <= kept
    begun = len(fits(tmp_path))
    frame = resumed(tmp_path)
    assert len(frame) == 12 and frame.key.is_unique
    assert len(fits(tmp_path)) == begun + 12 - len(kept)
    assert frame.drop(columns="where").equals(undisturbed(tmp_path).drop(columns="where"))


def test_8_a_late_writer_of_a_pretrained_model_changes_nothing(tmp_path):
    log = tiny_log()
    first, late = Pretrained(str(tmp_path)), Pretrained(str(tmp_path))
    for store in (first, late):
        store.get = lambda key: None
        dubnb.make("base", **FIXED).fit(log, store=store)
        (path,) = tmp_path.glob("*.npz")
        arrays = dubnb._store.read(path)[1]
        scores = arrays["user_factors"] @ arrays["item_factors"].T
        if store is first:
            expected = scores
    assert (scores == expected).all() and first.trained == late.trained == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_9_stopped_by_a_signal_it_ends_cleanly_and_says_how_to_go_on(number, tmp_path):
    driver = start_driver(**slow_arguments(tmp_path, "held"))
    wait_until(lambda: len(recorded(tmp_path / "s")) >= 2)
    driver.send_signal(number)
    driver.send_signal(number)  # as `timeout` does, to the process and to its group, and as the impatient do
    _, said = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 130 and "run the same command again" in said and said.count("\n") == 1
    wait_until(lambda: not any(is_alive(pid) for _, _, pid in fits(tmp_path)))
    kept = len(recorded(tmp_path / "s"))
    assert 2 <= kept < 12 and not (tmp_path / "s" / "data.bin").exists()
    begun = len(fits(tmp_path))
    (tmp_path / "go").touch()
    assert len(resumed(tmp_path, "held")) == 12 and len(fits(tmp_path)) == begun + 12 - kept


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="finds workers by /proc")
def test_9_ctrl_c_does_not_end_a_worker_that_is_still_importing(tmp_path):
    """A terminal sends it to workers too, at any moment; the driver alone decides and prints."""
    driver = start_driver(**slow_arguments(tmp_path, n_jobs=1, seeds=1))

    def interrupt_workers():
        for task in Path(f"/proc/{driver.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a process or thread that has ended meanwhile
                for pid in (task / "children").read_text().split():
                    if "popen_loky" in Path(f"/proc/{pid}/cmdline").read_text():
                        os.kill(int(pid), signal.SIGINT)
        return fits(tmp_path)

    wait_until(interrupt_workers)  # until its first trial begins
    _, said = driver.communicate(timeout=PATIENCE)
    assert (driver.returncode, said) == (0, "") and len({pid for *_, pid in fits(tmp_path)}) == 1


def test_10_a_full_disk_stops_the_sweep_and_keeps_what_was_recorded(tmp_path):
    limit = 120_000  # bytes per file, as a stand-in for a quota: the ledger's log reaches it after some trials
    arguments = slow_arguments(tmp_path, "none", seeds=12, n_jobs=1)
    driver = start_driver(file_size_limit=limit, **arguments)
    _, said = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 1 and "cannot be written" in said and "Traceback" not in said
    kept = recorded(tmp_path / "s")
    assert 0 < len(kept) < 48
    found = dubnb.sweep(Faulty, data=tiny_log(), quiet=True, **arguments).trials
    assert len(found) == 48 and set(kept) <= set(found.key) and len(fits(tmp_path)) <= 48 + 2


def test_10_a_full_disk_on_a_small_filesystem(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("no right to mount a small filesystem")
    try:
        arguments = slow_arguments(tmp_path, "none", out=str(disk / "s"), seeds=12, n_jobs=1)
        driver = start_driver(**arguments)
        _, said = driver.communicate(timeout=PATIENCE)
        assert driver.returncode == 1 and "Traceback" not in said
        kept = recorded(disk / "s")
        assert len(kept) < 48
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        found = dubnb.sweep(Faulty, data=tiny_log(), quiet=True, **arguments).trials
        assert len(found) == 48 and set(found.status) == {"done"} and set(kept) <= set(found.key)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_11_of_two_drivers_started_at_once_one_is_refused_and_nothing_runs_twice(tmp_path):
    drivers = [start_driver(**slow_arguments(tmp_path, "held")) for _ in range(2)]
    wait_until(lambda: any(driver.poll() is not None for driver in drivers))  # the other one waits in its trials
    (tmp_path / "go").touch()
    said = [driver.communicate(timeout=PATIENCE)[1] for driver in drivers]
    codes = sorted(driver.returncode for driver in drivers)
    assert codes == [0, 2], said
    assert "in use by another sweep" in said[0] + said[1]
    assert len(fits(tmp_path)) == 12 == len(recorded(tmp_path / "s"))


def a_ledger(out, rows=3):
    out.mkdir()
    ledger = ledgers.Ledger(out, {"method": "m"})
    for number in range(rows):
        ledger.record({"key": f"k{number}", "status": "done", "params": {}, "metrics": {}})
    return ledger


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_12_a_torn_last_record_is_dropped_and_those_before_it_stay(damage, tmp_path):
    ledger = a_ledger(tmp_path / "live")
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")  # as after a crash: the log is not merged yet
    ledger.close()
    log = tmp_path / "crashed" / f"{ledgers.LEDGER}-wal"
    content = bytearray(log.read_bytes())
    content[-50] ^= 1
    log.write_bytes(content if damage == "flip" else content[:-100])
    again = ledgers.Ledger(tmp_path / "crashed", {"method": "m"})
    assert [row["key"] for row in again.rows()] == ["k0", "k1"]
    again.record({"key": "k2", "status": "done", "params": {}, "metrics": {}})
    assert len(again.rows()) == 3
    again.close()


def test_12_a_damaged_ledger_is_refused_and_not_overwritten(tmp_path):
    a_ledger(tmp_path / "s").close()
    path = tmp_path / "s" / ledgers.LEDGER
    content = b"x" * 4096 + path.read_bytes()[4096:]
    path.write_bytes(content)
    with pytest.raises(dubnb.InputError, match="damaged"):
        dubnb.sweep("base", data=tiny_log(), grid={"lam": [1e-3]}, out=tmp_path / "s", **QUICK)
    assert path.read_bytes() == content


def shared_memory_of(size, fill):
    """A command prefix that gives a process its own small /dev/shm."""
    setup = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && head -c {fill} /dev/zero > /dev/shm/full; exec "$@"'
    prefix = ["unshare", "-m", "sh", "-c", setup, "sh"]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("no right to make a small /dev/shm")
    return prefix


def test_13_a_nearly_full_shared_memory_does_not_matter(tmp_path):
    driver = start_driver(prefix=shared_memory_of("256k", 100_000), **slow_arguments(tmp_path))
    _, said = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 0, said
    assert len(recorded(tmp_path / "s")) == 12


def test_13_a_full_shared_memory_stops_the_sweep_with_one_line(tmp_path):
    driver = start_driver(prefix=shared_memory_of("64k", 65_536), **slow_arguments(tmp_path))
    _, said = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 1 and "/dev/shm" in said and "Traceback" not in said
    assert len(resumed(tmp_path)) == 12


@pytest.mark.slow
@pytest.mark.needs_jit
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_14_a_corrupt_kernel_cache_heals(damage, tmp_path):
    env = {"DUBNB_CACHE_DIR": str(tmp_path / "cache")}
    own = _kernel_cache.directories()[-1]
    shutil.copytree(own, tmp_path / "cache" / "dubnb" / os.path.basename(own))
    arguments = slow_arguments(tmp_path, seeds=1)
    for attempt in ("sound", "damaged"):
        files = [path for path in tmp_path.glob("cache/**/*.kernel") if attempt == "damaged"]
        for path in files:
            content = bytearray(path.read_bytes())
            content[len(content) // 2 :: 97] = bytes(len(content[len(content) // 2 :: 97]))
            path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
        driver = start_driver(env=env, **arguments | {"out": str(tmp_path / attempt)})
        _, said = driver.communicate(timeout=PATIENCE)
        assert driver.returncode == 0, said
    assert files and len(recorded(tmp_path / "damaged")) == 4
    with sqlite3.connect(tmp_path / "damaged" / ledgers.LEDGER) as connection:
        assert set(connection.execute("SELECT status FROM trials")) == {("done",)}


def test_a_worker_that_has_grown_is_kept(tmp_path):
    """A larger trial after a smaller one is no leak: to replace the worker would cost a second each time."""
    slot = Slot(pack({}, str(tmp_path / "data.bin")), Rules())
    slot.start()
    try:
        before, grown, after = (slot.call(grown_by, size)["pid"] for size in (0, 400, 0))
    finally:
        slot.discard()
    assert before == grown == after


IMPORTED_IN_THREADS = """
import sys, threading
CIRCULAR = "joblib", "joblib.executor", "joblib.externals.loky.process_executor"
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in CIRCULAR and threading.current_thread() is not threading.main_thread():
            print(name, file=sys.stderr)
sys.meta_path.insert(0, Watch())
from tests import sweep_tools
sys.exit(sweep_tools.main({"method": "base", "grid": {"lam": [1, 2]}, "fixed": {"epochs": 1}, "n_jobs": 2, "out": "s"}))
"""


def test_threads_of_a_sweep_do_not_import_joblib_at_the_same_time(tmp_path):
    """Its imports are circular: two threads that import it at once, on a busy machine, can meet half of a module."""
    command, environment = [sys.executable, "-c", IMPORTED_IN_THREADS], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_memory_for_a_worker_the_sweep_ends_with_one_line(tmp_path, monkeypatch):
    """Short of memory, loky cannot start its thread, and shutdown then fails to join it."""

    class Exhausted:
        _processes = {}

        def __init__(self, *args, **options):
            pass

        def submit(self, *args):
            raise RuntimeError("can't start new thread")

        def shutdown(self, **options):
            raise RuntimeError("cannot join thread before it is started")

    monkeypatch.setattr("joblib.externals.loky.process_executor.ProcessPoolExecutor", Exhausted)
    monkeypatch.setattr("dubnb.sweeps.local.START_ATTEMPTS", 1)
    with pytest.raises(SweepError, match=r"no worker process can be started.*can't start new thread.*make room"):
        dubnb.sweep("base", data=tiny_log(), grid={"lam": [1e-3, 1e-2]}, out=tmp_path / "s", n_jobs=2, **QUICK)
    assert not (tmp_path / "s" / "data.bin").exists()


def test_a_sweep_ends_when_the_thread_behind_a_worker_dies(tmp_path, monkeypatch, capfd):
    """Short of memory, loky's thread may start and then fail to start the next one: no answer ever comes."""

    def fail(queue):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("joblib.externals.loky.backend.queues.Queue._start_thread", fail)
    monkeypatch.setattr("dubnb.sweeps.local.START_ATTEMPTS", 1)
    before = threading.excepthook
    with pytest.raises(SweepError, match=r"no worker process can be started.*can't start new thread.*ulimit -v"):
        dubnb.sweep("base", data=tiny_log(), grid={"lam": [1e-3, 1e-2]}, out=tmp_path / "s", n_jobs=2, **QUICK)
    assert "Traceback" not in capfd.readouterr().err and threading.excepthook is before
    for process in multiprocessing.active_children():
        process.join(timeout=300)
    assert not multiprocessing.active_children()  # Python would wait for them at its end, without a limit


def test_a_worker_is_killed_at_once_without_its_executors_help(tmp_path):
    """Short of memory, the executor's own thread is dead and kills nothing."""
    slot = Slot(pack({}, str(tmp_path / "data.bin")), Rules())
    slot.start()
    (process,) = slot.executor._processes.values()
    try:
        slot.kill_worker()
        wait_until(lambda: not is_alive(process.pid), 300)  # the executor's thread may have waited for it: no join
    finally:
        slot.discard()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize("kilobytes", [725_000, 921_600, 940_000])
def test_under_a_memory_limit_a_sweep_ends_with_a_result_or_one_line(kilobytes, tmp_path):
    """Which of the two depends on the machine; at 921600 a sweep used to wait without end."""
    rng = np.random.default_rng(0)
    for name, n in (("biased", 400), ("random", 200)):
        pairs = rng.permutation(40 * 30)[:n]
        rows = (f"{p // 30},{p % 30},{y}" for p, y in zip(pairs, rng.integers(0, 2, n), strict=True))
        (tmp_path / f"{name}.csv").write_text("\n".join(["user,item,label", *rows]))
    words = "sweep --biased biased.csv --random random.csv --method base --grid paper --random-search 2 --set epochs=2"
    shell = f"ulimit -v {kilobytes}; exec {sys.executable} -m dubnb {words} --n-jobs 2 --out s --quiet"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        ["bash", "-c", shell], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    lines = [line for line in done.stderr.splitlines() if "warning" not in line]
    if done.returncode:
        assert done.returncode == 1 and len(lines) == 1, done.stderr
        assert re.match(r"dubnb: (no worker process can be started|out of memory|a package cannot be loaded)", lines[0])
    assert done.returncode == 1 or kilobytes > 800_000
