"""Kill sweeps at random moments and look for trials lost, doubled or changed.

`python -m tests.kill_sweeps --times 1000` does so a thousand times; the slow test does it for some minutes.

Most of the time that a killed sweep takes is that of starting Python and importing everything, three times over. So
only one sweep in FRESH_EVERY starts its driver and workers as a user's would; in the others they are forks of this
process, which has everything in memory, and a kill costs a fraction of a second.
"""

import argparse
import contextlib
import importlib
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import dubnb
from tests.sweep_tools import FIXED, Faulty, comparable, fits, main, start_driver, tiny_log

WORKER_DIES = 0.004  # per hundredth of a second
WORKERS_DIE = 2  # at most of one driver: after three that die as they start, a sweep ends and says so
LAMS = [1e-4 * k for k in range(1, 11)]
SEEDS = 4
N_TRIALS = len(LAMS) * SEEDS
WHILE_STARTING = 0.2  # the share of drivers that die before their first trial; the others die at work
LONGEST_WORK = 1.5  # seconds; longer after each kill that kept no new trial, or a busy machine would finish none
FRESH_EVERY = 10  # sweeps


def arguments(directory):
    fixed = FIXED | {"where": str(directory), "fault": "slow"}
    return {"grid": {"lam": LAMS}, "seeds": SEEDS, "n_jobs": 2, "out": str(directory / "s"), "fixed": fixed}


def rows(directory):
    """(key, status, metrics) of every recorded trial."""
    from dubnb.sweeps.ledger import LEDGER, Ledger

    if not (directory / "s" / LEDGER).exists() or not (directory / "s" / LEDGER).stat().st_size:
        return {}
    # As the next driver will: recovers what the crash left.
    ledger = Ledger(directory / "s", {"kind": "sweep", "method": "faulty"})
    found = {row["key"]: (row["status"], row["metrics"]) for row in ledger.rows()}
    ledger.close()
    return found


class Fork:
    """A driver that is a fork of this process, and whose workers are forks of it."""

    def __init__(self, **arguments):
        self.returncode = None
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                importlib.import_module("joblib.externals.loky.backend.context").set_start_method("fork", force=True)
                silence = os.open(os.devnull, os.O_WRONLY)
                os.dup2(silence, 1)
                os.dup2(silence, 2)
                code = main(arguments)
            finally:
                os._exit(code)

    def poll(self):
        return self._wait(os.WNOHANG)

    def communicate(self):
        self._wait(0)

    def _wait(self, flags):
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, flags)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)


def kill_once(directory, chance, start, longest=LONGEST_WORK):
    """Start a driver and kill it, or one of its workers, at a random moment; returns whether it was still alive."""
    driver = start(**arguments(directory))
    begun = len(fits(directory))
    if chance.random() > WHILE_STARTING:
        while len(fits(directory)) == begun and driver.poll() is None:
            time.sleep(0.01)
    end, dead = time.monotonic() + chance.uniform(0, longest), 0
    while time.monotonic() < end and driver.poll() is None:
        time.sleep(0.01)
        if chance.random() < WORKER_DIES and dead < WORKERS_DIE:
            _kill_a_worker(driver.pid, chance)
            dead += 1
    alive = driver.poll() is None
    if driver.returncode:
        said = driver.communicate()
        raise AssertionError(f"a driver that nobody had killed ended with {driver.returncode}: {said}")
    driver.send_signal(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
    driver.communicate()
    return alive


def _kill_a_worker(driver, chance):
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(driver)], capture_output=True, text=True).stdout
    workers = [int(line.split()[0]) for line in listed.splitlines() if "resource_tracker" not in line]
    if workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)


def check_progress(before, after):
    """No finished trial is lost or changed."""
    for key, row in before.items():
        if after.get(key) != row:
            raise AssertionError(f"trial {key} was {row} and is {after.get(key)}")


def run(times, seconds, seed=0, say=print):
    """Kill until `times` kills or `seconds` have passed; a sweep that is complete is checked and a new one begun."""
    chance, kills, sweeps = random.Random(seed), 0, 0
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as root:
        undisturbed = Path(root) / "undisturbed"
        undisturbed.mkdir()
        expected = _finish(undisturbed)  # also compiles what forks then have in memory
        while kills < times and time.monotonic() < end:
            sweeps += 1
            start = start_driver if sweeps % FRESH_EVERY == 1 else Fork
            directory = Path(root) / str(sweeps)
            directory.mkdir()
            known, longest = {}, LONGEST_WORK
            while len(known) < N_TRIALS and kills < times and time.monotonic() < end:
                kills += kill_once(directory, chance, start, longest)
                found = rows(directory)
                check_progress(known, found)
                longest = LONGEST_WORK if len(found) > len(known) else 1.2 * longest
                known = found
                say(f"kill {kills}, sweep {sweeps}: {len(known)} of {N_TRIALS} trials kept")
            _check_whole(directory, known, expected)
    return kills, sweeps


def _finish(directory):
    """The trials of a sweep that is let alone; a fork runs what is missing, so that this process gets no threads."""
    Fork(**arguments(directory)).communicate()
    return dubnb.sweep(Faulty, data=tiny_log(), quiet=True, **arguments(directory)).trials


def _check_whole(directory, known, expected):
    """Let the sweep end in peace: only missing trials run, and all is as if nothing had happened."""
    begun = len(fits(directory))
    trials = _finish(directory)
    if len(fits(directory)) != begun + N_TRIALS - len(known):
        raise AssertionError(f"{len(fits(directory)) - begun} fits for {N_TRIALS - len(known)} missing trials")
    strip = ["key", "where"]  # `where` differs, and the key with it
    order = ["lam", "seed"]
    same = [comparable(t).drop(columns=strip).sort_values(order, ignore_index=True) for t in (trials, expected)]
    if not same[0].equals(same[1]) or not trials.key.is_unique:
        raise AssertionError(f"the sweep in {directory} differs from an undisturbed one")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=int, default=1000, metavar="N", help="kills (default 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="S", help="at most so long")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored, also for children
    kills, sweeps = run(options.times, options.seconds, options.seed)
    print(f"{kills} kills of {sweeps} sweeps: nothing lost, nothing doubled, nothing changed")
