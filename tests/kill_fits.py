"""Kill fits in parts at random moments, and compare their models with that of an undisturbed fit.

    python -m tests.kill_fits --times 50              `dubnb fit --parts-dir`: the driver is killed, and begun again
    python -m tests.kill_fits --times 50 --workers    a fit on a Dask cluster: workers are killed, and others join

Drivers are forks of this process, which has everything in memory; a killed one costs little more than its sweeps.
"""

import argparse
import contextlib
import io
import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

import dubnb
from dubnb import cli, distributed
from tests import dask_tools

SETTINGS = {"rank": 12, "gamma": 0.03, "epochs": 12}


def command(out, parts_dir):
    """The arguments of a fit in three parts."""
    given = [argument for item in SETTINGS.items() for argument in ("--set", "=".join(map(str, item)))]
    where = ["--parts", "3", "--parts-dir", str(parts_dir), "--out", str(out)]
    return ["fit", "--data", "simulated", "--method", "dub-x", "--quiet", *given, *where]


def fork(out, parts_dir):
    """Start a fit in a fork of this process; returns its process id."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            # tqdm's own lock is a semaphore that all forks share: a kill at the wrong moment would lock it without end.
            tqdm.set_lock(threading.RLock())
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            code = cli.main(command(out, parts_dir)) or 0
        finally:
            os._exit(code)
    return pid


def kept(parts_dir):
    """When the state of the fit was last stored."""
    return max((path.stat().st_mtime_ns for path in parts_dir.glob("solve-*.npz")), default=0)


def kill_once(out, parts_dir, chance, longest):
    """Start a fit and kill it within `longest` seconds; returns whether it was still alive."""
    pid = fork(out, parts_dir)
    end = time.monotonic() + chance.uniform(0, longest)
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            if status:
                raise AssertionError(f"a fit that nobody had killed ended with {status}")
            return False
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def arrays(path):
    """The weights of a saved model."""
    return dubnb.load(path).weights_.arrays()


def run(times, seconds=float("inf"), seed=0, say=print):
    """Kill fits `times` times; every fit that ends is compared with an undisturbed one. Returns (kills, fits).

    A kill comes within the time that a whole fit takes, or later after a kill that kept no new sweep, so that a busy
    machine finishes too.
    """
    chance, kills, fits, end = random.Random(seed), 0, 0, time.monotonic() + seconds
    tqdm.monitor_interval = 0  # no thread of tqdm's, so that nothing is copied in the middle of its work
    with tempfile.TemporaryDirectory() as root:
        root = Path(root)
        with contextlib.redirect_stdout(io.StringIO()):
            cli.main(command(root / "m.npz", root / "undisturbed"))  # also loads the kernels that forks then have
        expected = arrays(root / "m.npz")
        begun = time.monotonic()
        os.waitpid(fork(root / "again.npz", root / "again"), 0)
        usual = time.monotonic() - begun
        while kills < times and time.monotonic() < end:
            fits += 1
            out, parts_dir, longest = root / f"{fits}.npz", root / str(fits), usual
            while not out.exists():
                before = kept(parts_dir)
                if kills >= times or time.monotonic() > end:
                    longest = 1e9  # let the last one end in peace
                alive = kill_once(out, parts_dir, chance, longest)
                kills += alive
                longest = usual if kept(parts_dir) > before else 1.3 * longest
                say(f"kill {kills}, fit {fits}: {'saved' if out.exists() else 'not saved yet'}")
            for name, array in arrays(out).items():
                np.testing.assert_array_equal(array, expected[name])
    return kills, fits


def run_workers(times, seed=0, say=print):
    """Kill a worker of three `times` times, each at a random moment of a fit. Returns (kills, fits)."""
    chance, kills, fits = random.Random(seed), 0, 0
    data = dubnb.load_dataset("simulated", seed=0)
    expected = dubnb.make("dub-x", **SETTINGS).fit(data, parts=4).weights_.arrays()
    distributed.BROADCAST_WITHIN = 2.0  # a kill during a broadcast costs this long
    with (
        tempfile.TemporaryDirectory() as root,
        dask_tools.client_of_processes(Path(root) / "scheduler.json", 0) as client,
    ):
        workers = [dask_tools.start_worker(Path(root) / "scheduler.json") for _ in range(3)]
        try:
            client.wait_for_workers(3, timeout=600)
            while kills < times:
                fits, fitted = fits + 1, dubnb.make("dub-x", **SETTINGS)
                fit = threading.Thread(target=fitted.fit, args=(data,), kwargs={"parts": 4, "scheduler": client})
                fit.start()
                while fit.is_alive():
                    fit.join(chance.uniform(0, 3))
                    if fit.is_alive() and kills < times and len(client.nthreads()) > 1:
                        victim = chance.randrange(len(workers))
                        dask_tools.end(workers[victim])
                        workers[victim] = dask_tools.start_worker(Path(root) / "scheduler.json")
                        kills += 1
                say(f"kill {kills}, fit {fits}")
                for name, array in fitted.weights_.arrays().items():  # there are none if the fit has failed
                    np.testing.assert_array_equal(array, expected[name])
        finally:
            for worker in workers:
                dask_tools.end(worker)
    return kills, fits


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=int, default=50, metavar="N", help="kills (default 50)")
    parser.add_argument("--workers", action="store_true", help="kill workers of a Dask cluster")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    kills, fits = (run_workers if options.workers else run)(options.times, seed=options.seed)
    print(f"{kills} kills of {fits} fits: every saved model is the same to the bit")
