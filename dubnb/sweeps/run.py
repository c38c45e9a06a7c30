"""`dubnb.sweep`: from a request to a ledger, and from the ledger to the best point."""

import contextlib
import glob
import os
import platform
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import NamedTuple

from dubnb import _check
from dubnb._check import InputError
from dubnb._files import shown
from dubnb._version import VERSION
from dubnb.sweeps import grid as grids
from dubnb.sweeps import halving as rungs
from dubnb.sweeps import ledger as ledgers
from dubnb.sweeps import results
from dubnb.sweeps.local import DATA
from dubnb.sweeps.schedule import Schedule, Trial, pretraining_groups
from dubnb.sweeps.trial import DONE, LOST, Task

QUARANTINED = "quarantined"


@dataclass(frozen=True)
class Sweep:
    """A finished sweep. `trials`: what results.csv holds; `best`: what best.json holds, None if no point finished."""

    out: str
    method: type
    data: object
    trials: object
    best: dict | None

    @property
    def best_params(self):
        """The chosen point's parameters, all but the seed."""
        return None if self.best is None else dict(self.best["params"])

    def fit_best(self, seed=0, **options):
        """The method with the chosen parameters, fitted."""
        if self.best is None:
            raise InputError("no point finished on all its seeds: see the reasons in `trials`")
        return self.method(**self.best_params, seed=seed).fit(self.data, **options)


class Request(NamedTuple):
    """A sweep that was asked for, checked."""

    cls: type
    backbone: str
    data: object
    fixed: dict
    points: list
    n_grid: int  # points of the whole grid
    seeds: tuple
    select: results.Select
    protocol: str
    halving: bool


class Means(NamedTuple):
    """With what a sweep runs."""

    n_jobs: int
    client: object
    scheduler: str | None
    time_limit: float | None
    retries: int
    retry_failed: bool
    pretrained: str | None
    quiet: bool


def sweep(
    method="dub",
    backbone="mf",
    data=None,
    grid="wide",
    *,
    out,
    seeds=1,
    n_jobs=1,
    random=None,
    full=False,
    halving=False,
    fixed=None,
    select="auc",
    protocol="full-ranking",
    client=None,
    scheduler=None,
    time_limit=None,
    retries=2,
    retry_failed=False,
    pretrained=None,
    quiet=False,
):
    """Fit `method` on every point of `grid` and every seed, choose on S_va, and return a Sweep; run again, it resumes.

    method: a name or a Method subclass; grid: "paper", "wide" (60 points at random unless `full`), a TOML file of
    `name = [values]` lines, or a dict; out: the sweep's directory; seeds: how many, or which; n_jobs: worker processes
    (-1: one per CPU); random: so many points of the grid at random; halving: give hopeless points fewer epochs; fixed:
    parameters that all trials share (they replace an axis of the grid); select: "auc", "ndcg", or (metric, tolerance,
    other metric): the best by the other among those within the tolerance of the best by the first; client, scheduler:
    a Dask client, or a scheduler's address, to run on instead of this machine; time_limit: seconds per trial; retries:
    how often a trial is tried again whose worker died, hung or ran out of memory, before it is quarantined;
    retry_failed: run failed and quarantined trials again; pretrained: a directory of pre-trained models to share with
    other sweeps.
    """
    request = _checked_request(method, backbone, data, grid, fixed, seeds, random, full, halving, select, protocol)
    means = _checked_means(n_jobs, client, scheduler, time_limit, retries, retry_failed, pretrained, quiet)
    ledgers.check_directory(out)
    out = os.fspath(out)
    own_client = client is None and scheduler is not None
    if own_client:
        from dubnb.sweeps.cluster import connect

        means = means._replace(client=connect(scheduler))
    try:
        os.makedirs(out, exist_ok=True)
        with ledgers.only_driver(out), contextlib.closing(ledgers.Ledger(out, _identity(request))) as ledger:
            return Driver(request, means, out, ledger).run()
    finally:
        if own_client:
            means.client.close()


def _checked_request(method, backbone, data, grid, fixed, seeds, random, full, halving, select, protocol):
    from dubnb.data.partition import Partition
    from dubnb.evaluation import PROTOCOLS

    cls = grids.method_class(method)
    fixed = dict(fixed or {})
    for name in ("seed", "backbone"):
        if name in fixed:
            raise InputError(f"{name} is set in `fixed`: use {name if name == 'backbone' else 'seeds'}= instead")
    axes = grids.axes(cls, backbone, grid, fixed)
    if random is None and grid == "wide" and not full:
        random = grids.WIDE_BUDGET
    points = grids.points(axes, None if random is None else _check.whole("random", random))
    if halving and "epochs" in axes:
        raise InputError("halving sets the epochs itself: take epochs out of the grid, or leave halving out")
    if not isinstance(data, Partition):
        raise InputError(f"data is a {type(data).__name__}: pass a Partition, such as dubnb.load_dataset('simulated')")
    labels = data.triplets("S_va").labels
    if not 0 < labels.sum() < len(labels):
        raise InputError("S_va must hold both labels: a sweep chooses on it; split the randomized log another way")
    return Request(
        cls,
        backbone,
        data,
        fixed,
        _distinct(cls, backbone, fixed, points),
        _n_points(axes),
        _checked_seeds(seeds),
        results.selection(select),
        _check.choice("protocol", protocol, tuple(PROTOCOLS)),
        bool(halving),
    )


def _n_points(axes):
    import math

    return math.prod(len(values) for values in axes.values())


def _distinct(cls, backbone, fixed, points):
    """(point, its parameters) for each point that differs from those before; every point is checked."""
    found = {}
    for point in points:
        params = grids.resolve(cls, backbone, fixed, point, seed=0)
        found.setdefault(grids.trial_key(cls.name, params), (point, params))
    return list(found.values())


def _checked_seeds(seeds):
    if isinstance(seeds, list | tuple | range):
        seeds = tuple(_check.whole("seed", seed, low=0) for seed in seeds)
        if not seeds or len(set(seeds)) < len(seeds):
            raise InputError(f"seeds={list(seeds)} must hold at least one seed and none twice")
        if max(seeds) > grids.LARGEST_WHOLE:
            raise InputError(f"seed={max(seeds)} must be at most {grids.LARGEST_WHOLE}: take smaller seeds")
        return seeds
    return tuple(range(_check.whole("seeds", seeds)))


def _checked_means(n_jobs, client, scheduler, time_limit, retries, retry_failed, pretrained, quiet):
    n_jobs = (os.cpu_count() or 1) if n_jobs == -1 else _check.whole("n_jobs", n_jobs)
    if time_limit is not None:
        _check.real("time_limit", time_limit, open_low=True)
    if client is not None and scheduler is not None:
        raise InputError("client and scheduler are both given: pass one of them")
    if pretrained is not None and os.path.exists(pretrained) and not os.path.isdir(pretrained):
        raise InputError(f"pretrained={shown(pretrained)} is a file: give a directory")
    _check.whole("retries", retries, low=0)
    return Means(n_jobs, client, scheduler, time_limit, retries, bool(retry_failed), pretrained, quiet)


def _identity(request):
    """What a ledger's trials must have in common."""
    return {
        "method": request.cls.name,
        "backbone": request.backbone,
        "protocol": request.protocol,
        "data": request.data.fingerprint,
    }


class Driver:
    """The one process that hands out trials, records them, and derives the results."""

    def __init__(self, request, means, out, ledger):
        self.request, self.means, self.out, self.ledger = request, means, out, ledger
        self.rows = {row["key"]: row for row in ledger.rows()}
        self.facts = {"data": request.data.fingerprint, "versions": _versions(), "git": _git_revision()}
        self.pretrained = means.pretrained or os.path.join(out, "pretrained")
        self.engine, self.bar = None, None

    def run(self):
        """All trials, then the files; on Ctrl-C or SIGTERM a line that says how to go on."""
        try:
            with _terminable():
                _remove_leftovers(self.out)
                self._announce()
                plan = self._run_rungs()
        except KeyboardInterrupt:
            if self.bar is not None:
                self.bar.close()  # or the line would stand behind it
            if self.rows:
                self._write_table()
            kept = f"{len(self.rows)} trials are kept in {shown(self.out)}"
            print(f"dubnb: stopped; {kept}: run the same command again to go on", file=sys.stderr, flush=True)
            raise
        finally:
            if self.bar is not None:
                self.bar.close()
        frame = self._write_table()
        best = self._best(plan)
        results.write_best(self.out, best)
        self._say_savings()
        return Sweep(self.out, self.request.cls, self.request.data, frame, best if best["params"] else None)

    # -- what to run

    def _run_rungs(self):
        """Run every rung (without halving there is one); returns the last one's plan: [(point, trials)]."""
        request = self.request
        shares = rungs.SHARES if request.halving else (1.0,)
        points, plan = request.points, []
        for share, size in zip(shares, rungs.sizes(len(points)), strict=False):
            if plan:
                values = results.means([trials for _, trials in plan], self.rows, f"va_{request.select.primary}")
                points = [points[index] for index in rungs.survivors(values, size)]
            plan = [(point, self._trials(params, share)) for point, params in points]
            self._run_trials([trial for _, trials in plan for trial in trials])
        return plan

    def _trials(self, params, share):
        """One trial per seed, with its rung's share of the epochs."""
        params = params | {"epochs": rungs.epochs(params["epochs"], share)}
        found = [params | {"seed": seed} for seed in self.request.seeds]
        return [Trial(grids.trial_key(self.request.cls.name, params), params) for params in found]

    def _total(self):
        n = len(self.request.points)
        return sum(rungs.sizes(n) if self.request.halving else [n]) * len(self.request.seeds)

    def _is_finished(self, trial):
        row = self.rows.get(trial.key)
        return row is not None and (row["status"] == DONE or not self.means.retry_failed)

    # -- running

    def _run_trials(self, trials):
        """Those of `trials` that the ledger does not have yet."""
        missing = [trial for trial in trials if not self._is_finished(trial)]
        _count_found(self.bar, len(trials) - len(missing))
        if not missing:
            return
        on_cluster = self.means.client is not None
        schedule = Schedule(missing, pretraining_groups(self.request.cls), self.means.retries, isolate=on_cluster)
        engine = self._engine()
        try:
            for trial, outcome in engine.run(schedule):
                if schedule.ended(trial, outcome):
                    self._record(trial, outcome, schedule.attempts[trial.key])
        finally:
            schedule.stop()
            engine.close()

    def _engine(self):
        """A local or a Dask engine; made when there is something to run."""
        request, means = self.request, self.means
        os.makedirs(self.pretrained, exist_ok=True)
        task = Task(request.cls, request.protocol, os.path.abspath(self.pretrained), means.time_limit)
        for lazy in ("fingerprint", "S_c", "seen"):  # computed here once, then shared
            getattr(request.data, lazy)
        if means.client is None:
            from dubnb.sweeps.local import Local

            warm = grids.resolve(request.cls, request.backbone, request.fixed, {}, seed=0)
            return Local(request.data, task, means.n_jobs, self.out, warm)
        from dubnb.sweeps.cluster import Cluster

        engine = Cluster(request.data, task, means.client)
        if not engine.shares_directory():
            engine.task = task._replace(pretrained=None)
            self._say("the cluster's workers do not see the sweep's directory, so each trial pre-trains its own models")
        return engine

    def _record(self, trial, outcome, attempts):
        status, reason = outcome["status"], outcome.get("reason")
        if status in LOST:
            status, reason = QUARANTINED, f"{reason}; attempts: {attempts}"
        row = {name: outcome.get(name) for name in ledgers.COLUMNS} | self.facts
        row |= {"key": trial.key, "params": trial.params, "seed": trial.params["seed"], "status": status}
        row |= {"reason": reason, "protocol": self.request.protocol, "attempts": attempts}
        self.ledger.record(row)
        self.rows[trial.key] = row
        self.bar.set_postfix_str(self._best_so_far(), refresh=False)
        self.bar.update()

    # -- saying

    def _say(self, line):
        if not self.means.quiet:
            print(line, file=sys.stderr, flush=True)

    def _announce(self):
        from tqdm import tqdm

        request, total = self.request, self._total()
        n, n_seeds = len(request.points), len(request.seeds)
        chosen = f"{n} points" if n == request.n_grid else f"{n} of the grid's {request.n_grid} points"
        self._say(
            f"{request.cls.name} ({request.backbone}) on {request.data.name}: {chosen}, {n_seeds} seeds, {total} trials"
        )
        if request.halving:
            steps = " -> ".join(map(str, rungs.sizes(n)))
            self._say(f"halving: {steps} points, up to {100 * rungs.saved(n):.0f} % of a full grid's epochs saved")
        self.ledger.note("trials", total)
        self.bar = tqdm(total=total, unit="trial", disable=self.means.quiet, smoothing=0.05)

    def _best_so_far(self):
        name = f"va_{self.request.select.primary}"
        values = [row["metrics"][name] for row in self.rows.values() if row["status"] == DONE]
        values = [value for value in values if value is not None]
        return f"best {name} {max(values):.4f}" if values else ""

    def _say_savings(self):
        reused, seconds = (sum(row[name] or 0 for row in self.rows.values()) for name in ("reused", "saved_seconds"))
        trained = sum(row["trained"] or 0 for row in self.rows.values())
        if reused:
            self._say(
                f"pre-training: {trained} models trained, {reused} times reused instead of trained again: "
                f"{seconds:.1f} s of training saved"
            )

    # -- the files

    def _write_table(self):
        frame = results.table([self.rows[key] for key in sorted(self.rows)])
        results.write_results(self.out, frame)
        return frame

    def _best(self, plan):
        request = self.request
        index = results.choose([trials for _, trials in plan], self.rows, request.select)
        about = _identity(request) | {"data_name": request.data.name, "select": list(request.select)}
        about |= {"points": len(request.points), "versions": self.facts["versions"]}
        if index is None:
            return about | {"point": None, "params": None, "reason": "no point finished on all its seeds"}
        return about | results.best_point(*plan[index], self.rows)


def status(out):
    """How a sweep stands, while it runs or after: counts by status, trials in all, the best so far."""
    with contextlib.closing(ledgers.Ledger(out)) as ledger:
        rows, total = ledger.rows(), ledger.about("trials")
        facts = {name: ledger.about(name) for name in ("method", "backbone", "protocol", "data")}
    counts = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    done = [row for row in rows if row["status"] == DONE and row["metrics"].get("va_auc") is not None]
    best = max(done, key=lambda row: row["metrics"]["va_auc"], default=None)
    return {
        "out": os.fspath(out),
        **facts,
        "running": ledgers.in_use(out),
        "trials": total,
        "counts": counts,
        "best": best and {name: best[name] for name in ("key", "params", "metrics")},
    }


@contextlib.contextmanager
def _terminable():
    """SIGTERM stops a sweep as Ctrl-C does; a second of either does not disturb the clearing up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if before[signal.SIGINT] is not signal.default_int_handler:
        del before[signal.SIGINT]  # ignored, as in a script's background, or the caller's own

    def stop(number, frame):
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _count_found(bar, number):
    """Advance a bar by trials that need not run: they count as done, but say nothing about the time left."""
    if not bar.disable:
        bar.n, bar.initial, bar.last_print_n = bar.n + number, bar.initial + number, bar.last_print_n + number
        bar.refresh()


def _remove_leftovers(out):
    """What a killed driver and its workers left; none is at work now."""
    for name in (DATA, ".dubnb-*.tmp", os.path.join("pretrained", ".dubnb-*.tmp")):
        for path in glob.glob(os.path.join(glob.escape(out), name)):
            with contextlib.suppress(OSError):
                os.unlink(path)


def _versions():
    import numba
    import numpy

    return {
        "dubnb": VERSION,
        "numpy": numpy.__version__,
        "numba": numba.__version__,
        "python": platform.python_version(),
    }


def _git_revision():
    """The revision of the current directory, if it is under git."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() if found.returncode == 0 else None
