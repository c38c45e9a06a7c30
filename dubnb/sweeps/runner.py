"""Running a list of trials: what the ledger does not have yet, through an engine, each recorded as it ends."""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dubnb._check import InputError
from dubnb._files import quote_path, remove_temporaries
from dubnb._version import VERSION
from dubnb.sweeps import filed
from dubnb.sweeps.engine import Engine, Resources, new_engine
from dubnb.sweeps.errors import NotShared
from dubnb.sweeps.ledger import COLUMNS, Ledger, only_driver
from dubnb.sweeps.local import DATA
from dubnb.sweeps.schedule import Schedule
from dubnb.sweeps.signals import terminable
from dubnb.sweeps.trial import DONE, LOST, QUARANTINED, Outcome, Row, Rules, Trial

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

PRETRAINED = "pretrained"  # directory, in a run's own
SHARED_MEMORY = "/dev/shm"  # where Linux has semaphores
STALE = 600.0  # seconds after which a temporary file in a shared directory is nobody's


class Runner:
    """The one process that hands out trials on `data` ({fingerprint: Partition}) and records them.

    `rows` are the finished trials by key, those of earlier runs too.
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

    def run(self, trials: Sequence[Trial], show: Callable[[], str] = str) -> None:
        """Those of `trials` that are not finished yet; `show` gives what the bar says behind its numbers."""
        missing = [trial for trial in trials if not self.is_finished(trial)]
        count_found(self.bar, len(trials) - len(missing))
        with contextlib.closing(self._outcomes(missing, self.rules, self.resources)) as outcomes:
            for trial, outcome, attempts in outcomes:
                self._record(trial, outcome, attempts)
                self.bar.set_postfix_str(show(), refresh=False)
                self.bar.update()

    def save_model(self, trial: Trial, path: str) -> Outcome:
        """Fit a trial once more and save its model; how that ended."""
        rules = self.rules._replace(filing=None, model_path=os.path.abspath(path))
        try:
            ((_, outcome, _),) = self._outcomes([trial], rules, self.resources)
        except NotShared:
            here = self.resources._replace(client=None, scheduler=None, n_jobs=1)
            ((_, outcome, _),) = self._outcomes([trial], rules, here)
        return outcome

    def is_finished(self, trial: Trial) -> bool:
        """Whether the ledger has it, and its file is there if one is wanted."""
        row = self.rows.get(trial.key)
        if row is None or (row["status"] != DONE and self.resources.retry_failed):
            return False
        filing = self.rules.filing
        return row["status"] != DONE or filing is None or filed.read(filing.directory, trial.key) is not None

    def say(self, line: str, always: bool = False) -> None:
        """A line on stderr."""
        if always or not self.resources.quiet:
            print(line, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def progress(self, total: int, description: str | None = None) -> Iterator[None]:
        """A bar over `total` trials; on Ctrl-C or SIGTERM a line that says how to go on."""
        from tqdm import tqdm

        try:
            with terminable():
                self._clear_up()
                self.bar = tqdm(
                    total=total, unit="trial", desc=description, disable=self.resources.quiet, smoothing=0.05
                )
                yield
        except KeyboardInterrupt:
            if self.bar is not None:
                self.bar.close()  # or the line would stand behind it
            kept = f"{len(self.rows)} trials are kept in {quote_path(self.out)}"
            self.say(f"dubnb: stopped; {kept}: run the same command again to go on", always=True)
            raise
        finally:
            if self.bar is not None:
                self.bar.close()

    def _clear_up(self) -> None:
        """Remove what earlier drivers of this directory left, and leave this one's name to later ones."""
        remove_leftovers(self.out, self.rules)
        for pid in self.ledger.about("drivers") or []:
            remove_semaphores(pid)
        self.ledger.note("drivers", [os.getpid()])

    def _outcomes(
        self, trials: Sequence[Trial], rules: Rules, resources: Resources
    ) -> Generator[tuple[Trial, Outcome, int]]:
        """(trial, how it ended in the end, attempts) for each of `trials`."""
        if not trials:
            return
        schedule = Schedule(trials, resources.retries, isolate=resources.client is not None)
        engine = self._engine(rules, resources, {trial.data for trial in trials})
        try:
            for trial, outcome in engine.run(schedule):
                if schedule.ended(trial, outcome):
                    yield trial, outcome, schedule.attempts[trial.key]
        finally:
            schedule.stop()
            engine.close()

    def _engine(self, rules: Rules, resources: Resources, logs: set[str]) -> Engine:
        """One for trials on some of the logs; made when there is something to run."""
        assert rules.pretrained is not None
        for directory in (rules.pretrained, rules.filing.directory if rules.filing else None):
            if directory is not None:
                os.makedirs(directory, exist_ok=True)
        data = {name: each for name, each in self.data.items() if name in logs}
        engine = new_engine(data, rules, resources, self.out)
        if engine.rules.pretrained is None:
            self.say("the cluster's workers do not see the sweep's directory, so each trial pre-trains its own models")
        return engine

    def _record(self, trial: Trial, outcome: Outcome, attempts: int) -> None:
        status, reason = outcome["status"], outcome.get("reason")
        if status in LOST:
            status, reason = QUARANTINED, f"{reason}; attempts: {attempts}"
        row = {name: outcome.get(name) for name in COLUMNS} | self.facts
        row |= {"key": trial.key, "method": trial.method.name, "params": trial.params, "seed": trial.params["seed"]}
        row |= {"status": status, "reason": reason, "protocol": self.rules.protocol, "attempts": attempts}
        row["data"] = trial.data
        self.ledger.record(row)
        self.rows[trial.key] = row


@contextlib.contextmanager
def opened(
    out: str, identity: Mapping[str, Any], data: Mapping[str, Partition], rules: Rules, resources: Resources
) -> Iterator[Runner]:
    """A Runner on the directory `out`, which no other may use meanwhile."""
    connected = resources.connected()
    try:
        os.makedirs(out, exist_ok=True)
        with only_driver(out), contextlib.closing(Ledger(out, identity)) as ledger:
            yield Runner(out, ledger, data, rules, connected)
    finally:
        connected.disconnect()


def count_found(bar: Any, number: int) -> None:
    """Advance a bar by trials that need not run: they count as done, but say nothing about the time left."""
    if not bar.disable:
        bar.n, bar.initial, bar.last_print_n = bar.n + number, bar.initial + number, bar.last_print_n + number
        bar.refresh()


def remove_semaphores(pid: int) -> None:
    """Those that loky has in shared memory for the process `pid`, which was killed together with their keeper."""
    if not _is_alive(pid):
        for path in glob.glob(f"{SHARED_MEMORY}/sem.loky-{pid}-*"):
            with contextlib.suppress(OSError):
                os.unlink(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def remove_leftovers(out: str, rules: Rules) -> None:
    """What a killed driver and its workers left; none is at work now."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(out, DATA))
    for directory in (out, os.path.join(out, PRETRAINED), rules.filing.directory if rules.filing else out):
        remove_temporaries(directory)
    if rules.pretrained is not None:
        remove_temporaries(rules.pretrained, older_than=STALE)  # others may be writing there


def checked_data(data: Any) -> Partition:
    """`data`, if it is a Partition."""
    from dubnb.data.partition import Partition

    if not isinstance(data, Partition):
        raise InputError(f"data is a {type(data).__name__}: pass a Partition, such as dubnb.load_dataset('simulated')")
    return data


def versions() -> dict[str, str]:
    """Of what results depend on."""
    import numba
    import numpy

    return {
        "dubnb": VERSION,
        "numpy": numpy.__version__,
        "numba": numba.__version__,
        "python": platform.python_version(),
    }


def _git_revision() -> str | None:
    """The revision of the current directory, if it is under git."""
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
