"""`dubnb.sweep`: from a request to a ledger, and from the ledger to the best point."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dubnb._check import InputError
from dubnb.sweeps.driver import Driver
from dubnb.sweeps.engine import Resources
from dubnb.sweeps.ledger import check_directory
from dubnb.sweeps.request import Points, checked_request
from dubnb.sweeps.runner import opened
from dubnb.sweeps.trial import Rules

if TYPE_CHECKING:
    import pandas as pd

    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method


@dataclass(frozen=True)
class Sweep:
    """A finished sweep. `trials`: what results.csv holds; `best`: what best.json holds, None if no point finished."""

    out: str
    method: type[Method]
    data: Partition
    trials: pd.DataFrame
    best: dict[str, Any] | None

    @property
    def best_params(self) -> dict[str, Any] | None:
        """The chosen point's parameters, all but the seed."""
        return None if self.best is None else dict(self.best["params"])

    def _repr_html_(self) -> str:
        from dubnb import _html

        done = int((self.trials["status"] == "done").sum()) if len(self.trials) else 0
        chosen = "none: no point finished" if self.best_params is None else str(self.best_params)
        rows = [("trials", f"{done:,} done of {len(self.trials):,}"), ("best", chosen), ("directory", str(self.out))]
        return _html.table(f"sweep of {self.method.name}", rows)

    def fit_best(self, seed: int = 0, **options: Any) -> Method:
        """The method with the chosen parameters, fitted; best.npz in `out` is such a model, with the first seed."""
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
    """Fit `method` on every point of `grid` and every seed, choose on S_va, and return a Sweep; run again, it resumes.

    `out` gets ledger.sqlite, results.csv (a row per trial), best.json and best.npz, the chosen point fitted with the
    first seed.

    Parameters
    ----------
    method : str or type
        A name or a Method subclass.
    backbone : str
        The model.
    data : Partition
        The logs.
    grid : str, path or dict
        "paper", "wide" (60 points at random unless `full`), "even", a TOML file of `name = [values]` lines, or a dict.
    out : path
        The sweep's directory.
    seeds : int or sequence of int
        How many, or which.
    n_jobs : int
        Worker processes; -1: one per CPU.
    random : int, optional
        So many points of the grid at random.
    full : bool
        All points of the grid "wide".
    halving : bool
        Give hopeless points fewer epochs.
    fixed : dict, optional
        Parameters that all trials share; they replace an axis of the grid.
    select : str or (str, float, str)
        A metric on S_va, such as "auc" or "ndcg", or (metric, tolerance, other metric): the best by the other among
        those within the tolerance of the best by the first.
    protocol : {"full-ranking", "test-items"}
        How trials are judged.
    client, scheduler : distributed.Client or str, optional
        A Dask client, or a scheduler's address, to run on instead of this machine.
    time_limit : float, optional
        Seconds per trial.
    retries : int
        How often a trial is tried again whose worker died, hung or ran out of memory, before it is quarantined.
    retry_failed : bool
        Run failed and quarantined trials again.
    pretrained : path, optional
        A directory of pre-trained models to share with other sweeps.
    quiet : bool
        Whether to show no progress.
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
