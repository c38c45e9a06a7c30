"""`dubnb.sweep`: run the trials of a grid, choose the best point on S_va, and write the results.

A sweep directory holds ledger.sqlite, and derived from it results.csv, best.json and best.npz.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dubnb._check import InputError
from dubnb._files import atomic_write, spreadsheet_safe
from dubnb.sweeps import grid as grids
from dubnb.sweeps.grid import Point, Points, Request, Select, checked_request, choose, means
from dubnb.sweeps.ledger import Ledger, check_directory, in_use
from dubnb.sweeps.runner import Resources, Runner, opened
from dubnb.sweeps.trial import DONE, ModelFiles, Row, Rules, Trial, trial_key
from dubnb.sweeps.worker import path_of

if TYPE_CHECKING:
    import pandas as pd

    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method

RESULTS, BEST, BEST_MODEL = "results.csv", "best.json", "best.npz"
MODELS = "models"  # directory of the models of points that can still be chosen, while a sweep runs
NOT_REPRODUCIBLE = ("seconds", "peak_mb", "attempts")  # columns that differ from run to run

Contenders = list[tuple[Point, list[Trial]]]  # points, each with its trials, one per seed


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    `trials` is the table of results.csv, and `best` is the content of best.json, None if no point finished.
    """

    out: str
    method: type[Method]
    data: Partition
    trials: pd.DataFrame
    best: dict[str, Any] | None

    @property
    def best_params(self) -> dict[str, Any] | None:
        """The chosen point's parameters, without the seed."""
        return None if self.best is None else dict(self.best["params"])

    def _repr_html_(self) -> str:
        from dubnb import _progress

        done = int((self.trials["status"] == "done").sum()) if len(self.trials) else 0
        chosen = "none: no point finished" if self.best_params is None else str(self.best_params)
        rows = [("trials", f"{done:,} done of {len(self.trials):,}"), ("best", chosen), ("directory", str(self.out))]
        return _progress.html_table(f"sweep of {self.method.name}", rows)

    def fit_best(self, seed: int = 0, **options: Any) -> Method:
        """Fit the method with the chosen parameters; best.npz in `out` is such a model, with the first seed."""
        if self.best_params is None:
            raise InputError("no point finished on all its seeds: see the reasons in `trials`")
        return self.method(**self.best_params, seed=seed).fit(self.data, **options)


def sweep(
    method: str | type[Method] = "dub",
    backbone: str = "mf",
    data: Partition | None = None,
    grid: str | os.PathLike[str] | dict[str, Any] = "wide",
    *,
    out: str | os.PathLike[str],
    seeds: int | Sequence[int] = 1,
    n_jobs: int = 1,
    random: int | None = None,
    full: bool = False,
    halving: bool = False,
    fixed: dict[str, Any] | None = None,
    select: str | tuple[str, float, str] = "auc",
    protocol: str = "full-ranking",
    client: Any = None,
    scheduler: str | None = None,
    time_limit: float | None = None,
    retries: int = 2,
    retry_failed: bool = False,
    pretrained: str | os.PathLike[str] | None = None,
    quiet: bool = False,
) -> Sweep:
    """Fit `method` on every point of `grid` with every seed, and choose the best point on S_va.

    A sweep that was interrupted goes on if it is called again. The directory `out` gets ledger.sqlite, results.csv (a
    row per trial), best.json (the chosen point) and best.npz (its model with the first seed).

    Parameters
    ----------
    method : str or type
        The name of a method, or a Method subclass.
    backbone : {"mf", "ncf"}
        The kind of model.
    data : Partition
        The logs.
    grid : str, path or dict
        "paper", "wide" (60 points at random unless `full`), "even", a TOML file of `name = [values]` lines, or a dict.
    out : path
        The sweep's directory.
    seeds : int or sequence of int
        The number of seeds (0, 1, ...), or the seeds themselves.
    n_jobs : int
        Worker processes; -1: one per CPU.
    random : int, optional
        Try this many points of the grid, drawn at random.
    full : bool
        Try all points of the grid "wide".
    halving : bool
        Successive halving: stop the worse two thirds of the points after 1/9, then 1/3 of the epochs.
    fixed : dict, optional
        Parameters that all trials share; they replace an axis of the grid.
    select : str or (str, float, str)
        A metric on S_va, such as "auc" or "ndcg". Or (metric, tolerance, other metric): among points within the
        tolerance of the best by the first metric, the best by the other.
    protocol : {"full-ranking", "test-items"}
        How trials are judged.
    client, scheduler : distributed.Client or str, optional
        A Dask client, or a scheduler's address, to run on instead of this machine.
    time_limit : float, optional
        Seconds per trial.
    retries : int
        How often a trial runs again if its worker died, hung or ran out of memory, before it is quarantined.
    retry_failed : bool
        Run failed and quarantined trials again.
    pretrained : path, optional
        A directory of pre-trained models to share with other sweeps.
    quiet : bool
        Hide the progress bar.
    """
    points = Points(grid, dict(fixed or {}), random, full, halving)
    request = checked_request(method, backbone, data, points, seeds, select, protocol)
    resources = Resources(n_jobs, client, scheduler, time_limit, retries, bool(retry_failed), pretrained, quiet)
    resources = resources.checked()
    check_directory(out)
    out, logs = os.fspath(out), {request.data.fingerprint: request.data}
    with opened(out, request.identity, logs, Rules(protocol), resources) as runner:
        trials, best = Driver(request, runner).run()
    return Sweep(out, request.method, request.data, trials, best if best["params"] else None)


def status(out: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the state of a sweep, while it runs or after.

    The result has the number of trials, counts by status, damaged rows, and the best trial so far by the metric that
    the sweep selects on.
    """
    with contextlib.closing(Ledger(out)) as ledger:
        rows, damaged, total = ledger.rows(), ledger.damaged(), ledger.about("trials")
        facts = {name: ledger.about(name) for name in ("method", "backbone", "protocol", "data")}
        select = Select(*(ledger.about("select") or ["auc"]))
    # The best single trial; the sweep itself chooses points by their mean over seeds.
    index = choose([[row["key"]] for row in rows], {row["key"]: row for row in rows}, select)
    best = None if index is None else {name: rows[index][name] for name in ("key", "params", "metrics")}
    return {
        "out": os.fspath(out),
        **facts,
        "running": in_use(os.fspath(out)),
        "trials": total,
        "counts": dict(Counter(row["status"] for row in rows)),
        "damaged": len(damaged),
        "select": list(select),
        "best": best,
    }


class Driver:
    """Runs a Request with a Runner, and writes the results."""

    def __init__(self, request: Request, runner: Runner):
        self.request, self.runner = request, runner
        n = len(request.points)
        self.sizes = grids.rung_sizes(n) if request.halving else [n]
        self.models = ModelFiles(os.path.join(os.path.abspath(runner.out), MODELS), request.seeds[0])

    def run(self) -> tuple[pd.DataFrame, dict[str, Any]]:
        """Run all trials and write the files; returns the content of results.csv and best.json."""
        request, runner = self.request, self.runner
        total = sum(self.sizes) * len(request.seeds)
        n, n_seeds = len(request.points), len(request.seeds)
        chosen = f"{n} points" if n == request.n_grid else f"{n} of the grid's {request.n_grid} points"
        about = f"{request.method.name} ({request.backbone}) on {request.data.name}"
        runner.say(f"{about}: {chosen}, {n_seeds} seeds, {total} trials")
        if request.halving:
            steps = " -> ".join(map(str, self.sizes))
            saved = f"up to {100 * grids.saved_epochs(n):.0f} % of a full grid's epochs saved"
            runner.say(f"halving: {steps} points, {saved}")
        runner.ledger.note("trials", total)
        runner.ledger.note("select", list(request.select))
        try:
            with runner.progress(total):
                contenders = self._run_rungs()
                index = choose(_keys(contenders), runner.rows, request.select)
                if index is not None:
                    self._keep_model(contenders[index][1][0])
        except KeyboardInterrupt:
            if runner.rows:
                self._write_table()
            raise
        shutil.rmtree(self.models.directory, ignore_errors=True)
        frame = self._write_table()
        best = request.identity | {"data_name": request.data.name, "select": list(request.select)}
        best |= {"points": len(request.points), "versions": runner.facts["versions"]}
        if index is None:
            best |= {"point": None, "params": None, "reason": "no point finished on all its seeds"}
        else:
            best |= best_point(*contenders[index], runner.rows)
        write_best(runner.out, best)
        reused, seconds, trained = (
            sum(row[name] or 0 for row in runner.rows.values()) for name in ("reused", "saved_seconds", "trained")
        )
        if reused:
            runner.say(
                f"pre-training: {trained} models trained, {reused} times reused instead of trained again: "
                f"{seconds:.1f} s of training saved"
            )
        return frame, best

    def _run_rungs(self) -> Contenders:
        """Run every rung (without halving there is one); returns the points of the last one."""
        request, rows = self.request, self.runner.rows
        points, contenders = request.points, Contenders()
        shares = grids.SHARES if request.halving else (1.0,)
        for share, size in zip(shares, self.sizes, strict=True):
            if contenders:
                values = means(_keys(contenders), rows, f"va_{request.select.primary}")
                points = [points[index] for index in grids.survivors(values.tolist(), size)]
            contenders = [(point, self._trials(params, share)) for point, params in points]
            trials = [trial for _, own in contenders for trial in own]
            if share < 1:
                self.runner.run(trials, self._best_so_far)
            else:
                candidates = CandidateModels(self.models.directory, contenders, rows, request.select)
                self.runner.run(trials, self._best_so_far, self.models, candidates.ended)
        return contenders

    def _trials(self, params: dict[str, Any], share: float) -> list[Trial]:
        """One trial per seed, with its rung's share of the epochs."""
        method, data = self.request.method, self.request.data.fingerprint
        params = params | {"epochs": grids.rung_epochs(params["epochs"], share)}
        each = [params | {"seed": seed} for seed in self.request.seeds]
        return [Trial(trial_key(method.name, own, data), method, own, data) for own in each]

    def _best_so_far(self) -> str:
        name = f"va_{self.request.select.primary}"
        values = [row["metrics"].get(name) for row in self.runner.rows.values() if row["status"] == DONE]
        values = [value for value in values if value is not None]
        return f"best {name} {max(values):.4f}" if values else ""

    def _write_table(self) -> pd.DataFrame:
        rows = self.runner.rows
        frame = table([rows[key] for key in sorted(rows)])
        write_results(self.runner.out, frame)
        return frame

    def _keep_model(self, trial: Trial) -> None:
        """Make best.npz the model of the chosen point's first trial, unless it is that already.

        The trial has saved its model, unless it ran in an earlier sweep, or its worker could not write the file. Then
        it is fitted again.
        """
        path, saved = os.path.join(self.runner.out, BEST_MODEL), path_of(self.models.directory, trial.key)
        if self.runner.ledger.about("best_model") == [trial.key, _content_digest(path)]:
            return
        if not os.path.exists(saved):
            self.runner.say(f"fitting the chosen point once more, for {BEST_MODEL}")
            reason = self.runner.fit_again(trial, self.models)
            if reason is not None:
                self.runner.say(f"{BEST_MODEL} is not written: the fit ended with {reason}", always=True)
                return
        os.replace(saved, path)
        self.runner.ledger.note("best_model", [trial.key, _content_digest(path)])


class CandidateModels:
    """The saved models of points that can still be chosen; models of all others are deleted as trials end."""

    def __init__(self, directory: str, contenders: Contenders, rows: Mapping[str, Row], select: Select):
        self.directory, self.rows, self.select = directory, rows, select
        self.points = {trial.key: [each.key for each in trials] for _, trials in contenders for trial in trials}
        self.values: dict[str, float] = {}  # key of a point's first trial -> its mean, for points that are kept
        for _, trials in contenders:
            self.ended(trials[0])  # in case all trials of the point are in the ledger already

    def ended(self, trial: Trial) -> None:
        """If all trials of the point have ended, delete models that are now out of reach."""
        keys = self.points[trial.key]
        if any(key not in self.rows for key in keys):
            return
        self.values[keys[0]] = means([keys], self.rows, f"va_{self.select.primary}")[0]
        limit = max(self.values.values()) - self.select.tolerance
        for key, value in list(self.values.items()):
            if value < limit or value == -np.inf:
                del self.values[key]
                with contextlib.suppress(OSError):
                    os.unlink(path_of(self.directory, key))


def _keys(contenders: Contenders) -> list[list[str]]:
    return [[trial.key for trial in trials] for _, trials in contenders]


def _content_digest(path: str) -> str | None:
    """A hash of a file's bytes; None if there is no file."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


# Files


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return a DataFrame with a row per trial: parameters, metrics, status and costs."""
    import pandas as pd

    def names(column: str) -> list[str]:
        return list(dict.fromkeys(name for row in rows for name in row[column] or {}))

    def cell(value: Any) -> Any:
        return ",".join(map(str, value)) if isinstance(value, list | tuple) else value

    params, metrics = names("params"), names("metrics")
    plain = [
        {
            "key": row["key"],
            "status": row["status"],
            **{name: cell((row["params"] or {}).get(name)) for name in params},
            "protocol": row["protocol"],
            **{name: (row["metrics"] or {}).get(name) for name in metrics},
            **{name: row[name] for name in ("epochs_run", "reason", *NOT_REPRODUCIBLE)},
        }
        for row in rows
    ]
    return pd.DataFrame(plain)


def best_point(point: dict[str, Any], trials: Sequence[Trial], rows: Mapping[str, Row]) -> dict[str, Any]:
    """The chosen point with each metric's mean, sample standard deviation and values by seed."""
    measured = [rows[trial.key]["metrics"] for trial in trials]
    summary = {}
    for name in measured[0]:
        values = [each[name] for each in measured]
        known = [value for value in values if value is not None]
        summary[name] = {
            "mean": float(np.mean(known)) if known else None,
            "std": float(np.std(known, ddof=1)) if len(known) > 1 else None,
            "values": values,
        }
    params = {name: value for name, value in trials[0].params.items() if name != "seed"}
    seeds = [trial.params["seed"] for trial in trials]
    return {"point": point, "params": params, "seeds": seeds, "metrics": summary, "trials": [t.key for t in trials]}


def write_results(out: str, frame: pd.DataFrame) -> None:
    """Write results.csv atomically."""
    safe = frame.map(spreadsheet_safe)
    with atomic_write(os.path.join(out, RESULTS), overwrite=True) as file:
        file.write(safe.to_csv(index=False, lineterminator="\n").encode())


def write_best(out: str, best: dict[str, Any]) -> None:
    """Write best.json atomically."""
    with atomic_write(os.path.join(out, BEST), overwrite=True) as file:
        file.write((json.dumps(best, indent=2, allow_nan=False) + "\n").encode())
