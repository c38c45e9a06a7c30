"""Run a list of trials: those that the ledger does not have go to workers, and each is recorded as it ends.

`run_fits` runs any list of trials, of several methods and on several logs, with one ledger; `dubnb.sweep` uses the same
Runner for the grid of one method::

    from dubnb.methods import METHODS
    from dubnb.sweeps.runner import Resources, planned, run_fits

    trials = {
        (name, condition, seed): planned(METHODS[name], data, {"backbone": "mf", "lam": 1e-4, "seed": seed})
        for name in ("base", "dub") for condition, data in conditions.items() for seed in range(3)
    }
    fits = run_fits(trials.values(), conditions.values(), "runs/x/fits", Resources(n_jobs=2), list_length=50)
    fit = fits[trials["dub", "whole data", 0]]
    fit.done, fit.reason                  # True, None; or False and why: a failed fit does not stop the others
    fit.metrics["va_auc"], fit.metrics["ndcg"]  # on S_va, and on S_te; nan where a metric does not exist
    fit.test_output().per_user["ndcg"]    # read from a file: users, per_user, lists, scores, see `worker.TestOutput`

- The key of a trial follows from dubnb's version, the method, the log's fingerprint and every parameter. A finished
  trial is in the ledger (ledger.sqlite in `out`) and never runs again, also if `out` is used for other trials later. So
  searches, winners and several experiments can share one directory.
- If a worker dies, hangs or runs out of memory, its trial loses one attempt and no other trial is affected.
- Trials of one directory (or of one `Resources.pretrained`) share pre-trained models, which are trained once.
- With `list_length`, each trial also writes KEY.npz in `out`/shown; if it is missing or damaged, the trial runs again.
  On a Dask cluster, all machines must share this directory.

To search, plan one trial per candidate (`grid.points(axes)` gives the points of {parameter: values}), run all
candidates of all systems in one call, and choose with `fits.best`.
"""

from __future__ import annotations

import contextlib
import glob
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dubnb import _check
from dubnb._check import InputError
from dubnb._files import quote_path, remove_temporaries
from dubnb._signals import stoppable
from dubnb._version import VERSION
from dubnb.sweeps import worker
from dubnb.sweeps.grid import checked_data, choose, selection
from dubnb.sweeps.ledger import COLUMNS, Ledger, check_directory, only_driver
from dubnb.sweeps.local import DATA, LocalExecutor
from dubnb.sweeps.trial import (
    DONE,
    LOST,
    QUARANTINED,
    ModelFiles,
    Outcome,
    OutputFiles,
    Row,
    Rules,
    Schedule,
    Trial,
    planned,
)

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.sweeps.cluster import ClusterExecutor

__all__ = ["FinishedFit", "Fits", "Resources", "Trial", "planned", "run_fits"]
PRETRAINED = "pretrained"  # the directory of pre-trained models in a run's own
OUTPUTS = "shown"  # the directory of TestOutput files in a run's own
SHARED_MEMORY = "/dev/shm"  # where Linux has semaphores
STALE = 600.0  # seconds after which a temporary file in a shared directory counts as abandoned
EVERY_CPU = -1
CLOSE_WITHIN = 5.0  # seconds to disconnect from a cluster


class Resources(NamedTuple):
    """Where trials run, and how often and how long they are tried.

    Parameters
    ----------
    n_jobs : int
        Worker processes on this machine; -1: one per CPU.
    client : distributed.Client, optional
        A Dask cluster to run on instead.
    scheduler : str, optional
        The address of its scheduler, instead of a client.
    time_limit : float, optional
        Seconds per trial.
    retries : int
        How often a trial runs again if its worker died, hung or ran out of memory, before it is quarantined.
    retry_failed : bool
        Run trials again that an earlier run recorded as failed or quarantined.
    pretrained : str, optional
        A directory of pre-trained models to share with other runs; by default one in the run's own.
    quiet : bool
        Hide the progress bar and messages.
    """

    n_jobs: int = 1
    client: Any = None
    scheduler: str | None = None
    time_limit: float | None = None
    retries: int = 2
    retry_failed: bool = False
    pretrained: str | os.PathLike[str] | None = None
    quiet: bool = False

    def checked(self) -> Resources:
        """Return the same in Python's own types, or raise InputError."""
        n_jobs = (os.cpu_count() or 1) if self.n_jobs == EVERY_CPU else _check.whole("n_jobs", self.n_jobs)
        limit = None if self.time_limit is None else _check.real("time_limit", self.time_limit, open_low=True)
        if self.client is not None and self.scheduler is not None:
            raise InputError("client and scheduler are both given: pass one of them")
        directory = self.pretrained
        if directory is not None and os.path.exists(directory) and not os.path.isdir(directory):
            raise InputError(f"pretrained={quote_path(directory)} is a file: give a directory")
        return self._replace(
            n_jobs=n_jobs,
            time_limit=limit,
            retries=_check.whole("retries", self.retries, low=0),
            pretrained=None if directory is None else os.fspath(directory),
        )


def new_executor(
    data: Mapping[str, Partition], rules: Rules, resources: Resources, out: str
) -> LocalExecutor | ClusterExecutor:
    """Return an executor for trials on `data` ({fingerprint: Partition}), with its files in `out`."""
    for each in data.values():
        for lazy in ("fingerprint", "S_c", "seen", "logged"):  # computed here once, then shared
            getattr(each, lazy)
    if resources.client is None:
        return LocalExecutor(data, rules, resources.n_jobs, out)
    from dubnb.sweeps.cluster import ClusterExecutor

    return ClusterExecutor(data, rules, resources.client)


# The driver


class Runner:
    """The driver: hands out trials on `data` ({fingerprint: Partition}) and records them in the ledger.

    `rows` holds the finished trials by key, including those of earlier runs.
    """

    def __init__(self, out: str, ledger: Ledger, data: Mapping[str, Partition], rules: Rules, resources: Resources):
        self.out, self.ledger, self.data, self.resources = out, ledger, data, resources
        pretrained = os.path.abspath(resources.pretrained or os.path.join(out, PRETRAINED))
        self.rules = rules._replace(pretrained=pretrained, time_limit=resources.time_limit)
        self.facts = {"versions": versions(), "git": _git_revision()}
        damaged = ledger.damaged()
        if damaged:
            self.say(f"{len(damaged)} rows of the ledger are damaged: their trials run again", always=True)
            ledger.forget(damaged)
        self.rows: dict[str, Row] = {row["key"]: row for row in ledger.rows()}
        self.bar: Any = None

    def run(
        self,
        trials: Sequence[Trial],
        postfix: Callable[[], str] = str,
        models: ModelFiles | None = None,
        on_end: Callable[[Trial], None] | None = None,
    ) -> None:
        """Run those of `trials` that are not finished.

        After each trial, `on_end` is called, and `postfix` gives the text behind the progress bar.
        """
        missing = [trial for trial in trials if not self.is_finished(trial)]
        count_found(self.bar, len(trials) - len(missing))
        rules = self.rules._replace(models=models)
        with contextlib.closing(self._outcomes(missing, rules, self.resources)) as outcomes:
            for trial, outcome, attempts in outcomes:
                self._record(trial, outcome, attempts)
                if on_end is not None:
                    on_end(trial)
                self.bar.set_postfix_str(postfix(), refresh=False)
                self.bar.update()

    def fit_again(self, trial: Trial, models: ModelFiles) -> str | None:
        """Fit a trial once more and save its model; returns None, or why there is no model.

        If the workers of a cluster do not see the directory, the fit runs on this machine.
        """
        rules, reason = self.rules._replace(outputs=None, models=models), None
        here = self.resources._replace(client=None, scheduler=None, n_jobs=1)
        for resources in (self.resources, here) if self.resources.client is not None else (here,):
            ((_, outcome, _),) = self._outcomes([trial], rules, resources)
            if os.path.exists(worker.path_of(models.directory, trial.key)):
                return None
            reason = outcome["reason"] or "a file that cannot be written"
        return reason

    def is_finished(self, trial: Trial) -> bool:
        """Whether the ledger has the trial, and its output file is there if one is wanted."""
        row = self.rows.get(trial.key)
        if row is None or (row["status"] != DONE and self.resources.retry_failed):
            return False
        outputs = self.rules.outputs
        if row["status"] != DONE or outputs is None:
            return True
        return worker.read_output(worker.path_of(outputs.directory, trial.key)) is not None

    def say(self, line: str, always: bool = False) -> None:
        """Print a line to stderr, unless quiet."""
        if always or not self.resources.quiet:
            print(line, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def progress(self, total: int) -> Iterator[None]:
        """Show a bar over `total` trials; Ctrl-C and SIGTERM say how to go on."""
        from tqdm import tqdm

        try:
            with stoppable():
                remove_leftovers(self.out, self.rules)
                for pid in self.ledger.about("drivers") or []:
                    remove_semaphores(pid)
                self.ledger.note("drivers", [os.getpid()])  # for the next driver, if this one is killed
                self.bar = tqdm(total=total, unit="trial", disable=self.resources.quiet, smoothing=0.05)
                yield
        except KeyboardInterrupt as stop:
            kept = f"{len(self.rows)} trials are kept in {quote_path(self.out)}"
            stop.args = (f"{kept}: run the same command again to go on",)
            raise
        finally:
            if self.bar is not None:
                self.bar.close()

    def _outcomes(
        self, trials: Sequence[Trial], rules: Rules, resources: Resources
    ) -> Generator[tuple[Trial, Outcome, int]]:
        """Run trials; yield (trial, final outcome, attempts) as each ends."""
        if not trials:
            return
        assert rules.pretrained is not None
        for files in (rules.outputs, rules.models):
            if files is not None:
                os.makedirs(files.directory, exist_ok=True)
        os.makedirs(rules.pretrained, exist_ok=True)
        schedule = Schedule(trials, resources.retries, isolate=resources.client is not None)
        data = {trial.data: self.data[trial.data] for trial in trials}
        executor = new_executor(data, rules, resources, self.out)
        if executor.rules.pretrained is None:
            self.say("the cluster's workers do not see the sweep's directory, so each trial pre-trains its own models")
        try:
            for trial, outcome in executor.run(schedule):
                if schedule.ended(trial, outcome):
                    yield trial, outcome, schedule.attempts[trial.key]
        finally:
            schedule.stop()
            executor.close()

    def _record(self, trial: Trial, outcome: Outcome, attempts: int) -> None:
        status, reason = outcome["status"], outcome.get("reason")
        if status in LOST:
            status, reason = QUARANTINED, f"{reason}; attempts: {attempts}"
        row = {name: outcome.get(name) for name in COLUMNS} | self.facts
        row |= {"key": trial.key, "method": trial.method.name, "params": trial.params, "seed": trial.params["seed"]}
        row |= {"status": status, "reason": reason, "protocol": self.rules.protocol, "attempts": attempts}
        row |= {"data": trial.data}
        self.ledger.record(row)
        self.rows[trial.key] = row


@contextlib.contextmanager
def opened(
    out: str, identity: Mapping[str, Any], data: Mapping[str, Partition], rules: Rules, resources: Resources
) -> Iterator[Runner]:
    """Open a Runner on the directory `out`, which no other driver can use meanwhile."""
    own_client = None
    if resources.scheduler is not None and resources.client is None:
        from dubnb._dask import connect

        own_client = connect(resources.scheduler)
        resources = resources._replace(client=own_client)
    try:
        os.makedirs(out, exist_ok=True)
        with only_driver(out), contextlib.closing(Ledger(out, identity)) as ledger:
            yield Runner(out, ledger, data, rules, resources)
    finally:
        if own_client is not None:
            own_client.close(timeout=CLOSE_WITHIN)


def count_found(bar: Any, number: int) -> None:
    """Advance a bar by trials of earlier runs: they count as done, but not for the estimate of the time left."""
    if not bar.disable:
        bar.n, bar.initial, bar.last_print_n = bar.n + number, bar.initial + number, bar.last_print_n + number
        bar.refresh()


def remove_semaphores(pid: int) -> None:
    """Remove loky's semaphores of the process `pid`, if it has been killed together with loky's tracker process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        for path in glob.glob(f"{SHARED_MEMORY}/sem.loky-{pid}-*"):
            with contextlib.suppress(OSError):
                os.unlink(path)
    except OSError:
        pass  # the process is alive and belongs to another user


def remove_leftovers(out: str, rules: Rules) -> None:
    """Remove files that a killed driver and its workers left; no other driver is at work."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(out, DATA))
    for directory in (out, os.path.join(out, PRETRAINED), rules.outputs.directory if rules.outputs else out):
        remove_temporaries(directory)
    if rules.pretrained is not None:
        remove_temporaries(rules.pretrained, older_than=STALE)  # other runs may be writing there


def versions() -> dict[str, str]:
    """The versions of the software that results depend on."""
    import numba
    import numpy

    return {
        "dubnb": VERSION,
        "numpy": numpy.__version__,
        "numba": numba.__version__,
        "python": platform.python_version(),
    }


def _git_revision() -> str | None:
    """The git revision of the current directory, if it has one."""
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


# Any list of fits


@dataclass(frozen=True)
class FinishedFit:
    """How one trial ended."""

    trial: Trial
    status: str  # "done", "failed" (training refused or diverged) or "quarantined" (its workers died, hung, ...)
    reason: str | None  # why it is not done
    metrics: dict[str, float]  # "va_..." on S_va, others on S_te; nan where one does not exist; empty if not done
    epochs_run: int | None
    seconds: float | None  # time of fit and evaluation
    directory: str
    cpu_seconds: float | None = None  # CPU time of the fit alone, including pre-training that another trial did
    peak_mb: float | None = None  # peak memory of the worker process

    @property
    def done(self) -> bool:
        """Whether the fit succeeded."""
        return self.status == DONE

    def test_output(self) -> worker.TestOutput:
        """Read what the model predicted on S_te; the trial must be done, and run with `list_length`."""
        path = worker.path_of(self.directory, self.trial.key)
        found = worker.read_output(path)
        if found is None:
            raise InputError(f"{path} cannot be read: run the same command again")
        return found


class Fits:
    """Finished trials: `fits[trial]` is a FinishedFit."""

    def __init__(self, rows: dict[str, Row], directory: str):
        self.rows, self.directory = rows, directory

    def __getitem__(self, trial: Trial) -> FinishedFit:
        row = self.rows[trial.key]
        metrics = {k: math.nan if v is None else v for k, v in (row["metrics"] or {}).items()}
        cpu = row.get("cpu_seconds")
        cpu = None if cpu is None else cpu + (row.get("saved_seconds") or 0.0)
        ended = row["status"], row["reason"], metrics, row["epochs_run"], row["seconds"]
        return FinishedFit(trial, *ended, self.directory, cpu, row.get("peak_mb"))

    def best(self, candidates: Sequence[Trial | Sequence[Trial]], select: str | tuple[Any, ...] = "auc") -> int | None:
        """The index of the best candidate on S_va, the first of equals; None if none is done on all its seeds.

        A candidate is a trial, or its trials over seeds. `select` is as in `dubnb.sweep`.
        """
        points = [[t.key for t in ([each] if isinstance(each, Trial) else each)] for each in candidates]
        return choose(points, self.rows, selection(select))


def run_fits(
    trials: Iterable[Trial],
    data: Iterable[Partition],
    out: str | os.PathLike[str],
    resources: Resources | None = None,
    protocol: str = "full-ranking",
    list_length: int | None = None,
    models: ModelFiles | None = None,
) -> Fits:
    """Fit and judge every trial that `out` does not hold yet, and return all of them.

    Parameters
    ----------
    trials : iterable of Trial
        From `planned(method class, Partition, parameters)`; a trial that is given twice runs once.
    data : iterable of Partition
        The logs that the trials are planned on.
    out : path
        A directory of fits: new, or of an earlier call with the same protocol.
    resources : Resources
        Workers, time limit, retries, progress: by default one worker process.
    protocol : {"full-ranking", "test-items"}
        How trials are judged.
    list_length : int, optional
        Let each trial also write its per-user values, lists of this length and scores of S_te.
    models : ModelFiles, optional
        Let trials with one seed also save their fitted models.
    """
    from dubnb.evaluation import PROTOCOLS

    wanted = list({trial.key: trial for trial in trials}.values())
    logs = {checked_data(each).fingerprint: each for each in data}
    for trial in wanted:
        if trial.data not in logs:
            raise InputError(f"a trial of {trial.method.name} is on data {trial.data}, which is not in `data`")
    _check.choice("protocol", protocol, tuple(PROTOCOLS))
    resources = (resources or Resources()).checked()
    check_directory(out)
    out = os.fspath(out)
    directory = os.path.join(os.path.abspath(out), OUTPUTS)
    outputs = None if list_length is None else OutputFiles(directory, _check.whole("list_length", list_length))
    rules = Rules(protocol, outputs=outputs)
    with opened(out, {"kind": "fits", "protocol": protocol}, logs, rules, resources) as runner:
        with runner.progress(len(wanted)):
            runner.run(wanted, models=models)
        return Fits({trial.key: runner.rows[trial.key] for trial in wanted}, directory)
