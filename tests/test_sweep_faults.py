"""Every fault of a long sweep on one machine, really caused. Those of a Dask cluster are in test_sweep_cluster."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys

import pytest

import dubnb
from dubnb import _kernel_cache
from dubnb.sweeps import ledger as ledgers
from dubnb.sweeps import sharing
from dubnb.sweeps.local import Slot
from dubnb.sweeps.pretrained import Pretrained
from dubnb.sweeps.trial import Rules
from tests.sweep_tools import (
    FIXED,
    QUICK,
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
PATIENCE = 600  # seconds, only so that a test ends at all


def run_with(fault, tmp_path, **options):
    """A sweep of five points, the third of which has the fault; returns (its row, the others' rows)."""
    grid = {"lam": [1e-4, 2e-4], "fault": ["none", fault]}
    fixed = FIXED | {"where": str(tmp_path)}
    options = {"n_jobs": 2, "retries": 1} | options
    found = dubnb.sweep(Faulty, data=tiny_log(), grid=grid, out=tmp_path / "s", fixed=fixed, quiet=True, **options)
    return found.trials[found.trials.fault == fault], found.trials[found.trials.fault != fault]


@pytest.mark.parametrize("fault", ["sigkill-once", "segfault-once"])
def test_1_a_dead_worker_costs_its_own_trial_only_and_that_is_tried_again(fault, tmp_path):
    hit, others = run_with(fault, tmp_path)
    assert sorted(hit.attempts) == [1, 2] and set(hit.status) == {"done"}
    assert set(others.status) == {"done"} and set(others.attempts) == {1}
    assert len(fits(tmp_path)) == 5


def test_2_a_trial_that_always_kills_its_worker_is_quarantined_with_its_reason(tmp_path):
    hit, others = run_with("sigkill", tmp_path)
    assert set(hit.status) == {"quarantined"} and set(hit.attempts) == {2}
    assert all("SIGKILL" in reason for reason in hit.reason)
    assert set(others.status) == {"done"}


def test_4_a_hung_trial_meets_its_time_limit(tmp_path):
    usual, _ = run_with("slow", tmp_path)
    limit = 5 + 20 * usual.seconds.max()  # what no other trial takes, however busy the machine is
    hit, others = run_with("hang", tmp_path, time_limit=limit, retries=0)
    assert set(hit.status) == {"quarantined"} and all(f"time limit of {limit:g} s" in reason for reason in hit.reason)
    assert set(others.status) == {"done"}
    assert not any(is_alive(pid) for _, _, pid in fits(tmp_path))


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


def slow_arguments(tmp_path, **options):
    fixed = FIXED | {"where": str(tmp_path), "fault": "slow"}
    return {"grid": {"lam": LAMS}, "seeds": 3, "n_jobs": 2, "out": str(tmp_path / "s"), "fixed": fixed} | options


def undisturbed(tmp_path):
    """The same sweep, never interrupted."""
    arguments = slow_arguments(tmp_path, out=str(tmp_path / "undisturbed"))
    return comparable(dubnb.sweep(Faulty, data=tiny_log(), quiet=True, **arguments).trials)


def resumed(tmp_path):
    return comparable(dubnb.sweep(Faulty, data=tiny_log(), quiet=True, **slow_arguments(tmp_path)).trials)


def recorded(out):
    """Keys in the ledger, read as a stranger would."""
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
    driver = start_driver(**slow_arguments(tmp_path))
    wait_until(lambda: len(recorded(tmp_path / "s")) >= 2)
    driver.send_signal(number)
    driver.send_signal(number)  # as `timeout` does, to the process and to its group, and as the impatient do
    _, said = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 130 and "run the same command again" in said and "Traceback" not in said
    assert not any(is_alive(pid) for _, _, pid in fits(tmp_path))
    kept = len(recorded(tmp_path / "s"))
    assert 2 <= kept < 12 and not (tmp_path / "s" / "data.bin").exists()
    begun = len(fits(tmp_path))
    assert len(resumed(tmp_path)) == 12 and len(fits(tmp_path)) == begun + 12 - kept


def test_10_a_full_disk_stops_the_sweep_and_keeps_what_was_recorded(tmp_path):
    limit = 120_000  # bytes per file, as a stand-in for a quota: the ledger's log meets it after some trials
    driver = start_driver(**slow_arguments(tmp_path, file_size_limit=limit, seeds=12))
    _, said = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 1 and "cannot be written" in said and "Traceback" not in said
    kept = recorded(tmp_path / "s")
    assert 0 < len(kept) < 48
    assert len(resumed(tmp_path)) >= 12 and set(kept) <= set(recorded(tmp_path / "s"))


def test_10_a_full_disk_on_a_small_filesystem(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("no right to mount a small filesystem")
    try:
        arguments = slow_arguments(tmp_path, out=str(disk / "s"), seeds=12)
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
    drivers = [start_driver(**slow_arguments(tmp_path)) for _ in range(2)]
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
    slot = Slot(sharing.pack({}, str(tmp_path / "data.bin")), Rules())
    slot.start()
    try:
        before, grown, after = (slot.call(grown_by, size)["pid"] for size in (0, 400, 0))
    finally:
        slot.discard()
    assert before == grown == after
