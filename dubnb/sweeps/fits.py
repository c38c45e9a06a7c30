"""Any list of fits through the sweeps' engine: several methods, several logs, one ledger.

What a sweep is for one method's grid, `run_fits` is for trials that the caller has planned himself, as the experiments
and the ladder do::

    from dubnb.sweeps.fits import Resources, planned, run_fits
    from dubnb.methods import METHODS

    trials = {
        (name, condition, seed): planned(METHODS[name], data, {"backbone": "mf", "lam": 1e-4, "seed": seed})
        for name in ("base", "dub") for condition, data in conditions.items() for seed in range(3)
    }
    fits = run_fits(trials.values(), conditions.values(), "runs/x/fits", Resources(n_jobs=2), list_length=50)
    fit = fits[trials["dub", "whole data", 0]]
    fit.done, fit.reason                  # True, None; or False and why: a fit that fails never stops the others
    fit.metrics["va_auc"], fit.metrics["ndcg"]  # on S_va, and on S_te; nan where a metric does not exist
    fit.shown().per_user["ndcg"]          # read from its file: users, per_user, lists, scores, see `filed.Shown`

Everything that holds for a sweep holds here: each trial has a name that follows from dubnb's version, the method, the
log's fingerprint and every parameter; a finished one is in the ledger (ledger.sqlite in `out`) and never runs again,
also not when other trials are asked for in the same `out` later, so that searches, winners and several experiments
share one directory; a worker that dies, hangs or runs out of memory costs an attempt of its own trial; Ctrl-C says how
to go on; pre-trained models are shared by all trials of a directory (or of `Resources.pretrained`); models of one
pre-training group do not train it twice at once. With `list_length`, each trial also leaves <key>.npz in `out`/shown:
one that is missing or damaged is made anew. On a Dask cluster that needs a directory that all machines share.

To search, plan one trial per candidate (`dubnb.sweeps.grid.points(axes)` gives the points of {parameter: values}), run
all candidates of all systems in one call, and choose with `fits.best`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dubnb import _check
from dubnb.sweeps import filed, results
from dubnb.sweeps.engine import Resources
from dubnb.sweeps.ledger import check_directory
from dubnb.sweeps.runner import checked_data, opened
from dubnb.sweeps.trial import DONE, Filing, Row, Rules, Trial, planned

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

__all__ = ["FinishedFit", "Fits", "Resources", "Trial", "planned", "run_fits"]
SHOWN = "shown"  # directory of what trials showed


@dataclass(frozen=True)
class FinishedFit:
    """How one trial ended."""

    trial: Trial
    status: str  # "done", "failed" (training refused or diverged) or "quarantined" (its workers died, hung, ...)
    reason: str | None  # why it is not done
    metrics: dict[str, float]  # "va_..." on S_va, others on S_te; nan where one does not exist; empty if not done
    epochs_run: int | None
    seconds: float | None  # of fit and evaluation
    directory: str

    @property
    def done(self) -> bool:
        """Whether there is a fitted model to speak of."""
        return self.status == DONE

    def shown(self) -> filed.Shown:
        """What it showed on S_te; only of a trial that is done and was run with `list_length`."""
        outcome = filed.read(self.directory, self.trial.key)
        if outcome is None:
            raise _check.InputError(
                f"{filed.path_of(self.directory, self.trial.key)} cannot be read: run the same command again"
            )
        return outcome


class Fits:
    """Finished trials: `fits[trial]` is a FinishedFit."""

    def __init__(self, rows: dict[str, Row], directory: str):
        self.rows, self.directory = rows, directory

    def __getitem__(self, trial: Trial) -> FinishedFit:
        row = self.rows[trial.key]
        metrics = {k: math.nan if v is None else v for k, v in (row["metrics"] or {}).items()}
        return FinishedFit(
            trial, row["status"], row["reason"], metrics, row["epochs_run"], row["seconds"], self.directory
        )

    def best(self, candidates: Sequence[Trial | Sequence[Trial]], select: str | tuple[Any, ...] = "auc") -> int | None:
        """The index of the candidate (a trial, or its trials over seeds) that is best on S_va, the first among equals;
        None if none is done on all its seeds. `select` as in `dubnb.sweep`."""
        points = [[t.key for t in ([each] if isinstance(each, Trial) else each)] for each in candidates]
        return results.choose(points, self.rows, results.selection(select))


def run_fits(
    trials: Iterable[Trial],
    data: Iterable[Partition],
    out: str | os.PathLike[str],
    resources: Resources | None = None,
    protocol: str = "full-ranking",
    list_length: int | None = None,
) -> Fits:
    """Fit and judge every trial that `out` does not hold yet, and return them all.

    Parameters
    ----------
    trials : iterable of Trial
        From `planned(method class, Partition, parameters)`; the same one twice runs once.
    data : iterable of Partition
        The logs that they are planned on.
    out : path
        A directory of fits: new, or of an earlier call with the same protocol.
    resources : Resources
        Workers, time limit, retries, progress: by default one worker process.
    protocol : {"full-ranking", "test-items"}
        How trials are judged.
    list_length : int, optional
        Let each trial also leave its per-user values, lists of this length and scores of S_te.
    """
    from dubnb.evaluation import PROTOCOLS

    wanted = list({trial.key: trial for trial in trials}.values())
    logs = {checked_data(each).fingerprint: each for each in data}
    for trial in wanted:
        if trial.data not in logs:
            raise _check.InputError(f"a trial of {trial.method.name} is on data {trial.data}, which is not in `data`")
    _check.choice("protocol", protocol, tuple(PROTOCOLS))
    resources = (resources or Resources()).checked()
    check_directory(out)
    out = os.fspath(out)
    directory = os.path.join(os.path.abspath(out), SHOWN)
    filing = None if list_length is None else Filing(directory, _check.whole("list_length", list_length))
    with opened(out, {"kind": "fits", "protocol": protocol}, logs, Rules(protocol, filing=filing), resources) as runner:
        with runner.progress(len(wanted)):
            runner.run(wanted)
        return Fits({trial.key: runner.rows[trial.key] for trial in wanted}, directory)
