"""Running an experiment: search every system on S_va, fit the winners over seeds, keep what each fit showed.

Everything found is kept in files named by what it depends on, so that running again goes on where it stopped, and
experiments that share a directory share their searches.
"""

import itertools
import json
import os
import warnings
from typing import NamedTuple

import numpy as np

from dubnb import _store
from dubnb._check import InputError
from dubnb.experiments import budgets

LIST_LENGTH = 10  # items of the recommendation lists that are kept
WHOLE = "whole data"  # the condition that changes nothing
METRICS = ("auc", "ndcg", "p@5", "p@10", "r@5", "r@10")
TRUTHS = ("truth_auc", "truth_ndcg")


class System(NamedTuple):
    """What is compared: a method on a backbone, under a name, with parameters that are not searched."""

    name: str
    method: str
    backbone: str
    fixed: tuple = ()  # pairs (parameter, value)


class Cell(NamedTuple):
    """A system under a condition."""

    system: System
    condition: str = WHOLE


class Plan(NamedTuple):
    """What an experiment needs: its data by condition, and its cells."""

    conditions: dict  # name -> Partition
    cells: list
    select: str = "auc"  # the metric on S_va that chooses, and stops training
    notes: tuple = ()  # (name, text): facts for the report


class Winner(NamedTuple):
    """The chosen candidate of a search."""

    params: dict  # all of them, without the seed
    point: dict  # those that were searched
    grid: dict
    n_points: int
    validation: float
    lost: tuple = ()  # reasons of candidates that did not finish


class Run(NamedTuple):
    """What a fitted winner showed on S_te."""

    seed: int
    metrics: dict
    users: np.ndarray  # rows of the users that ranking metrics count
    per_user: dict  # metric -> value for each of them
    lists: np.ndarray  # (users, LIST_LENGTH) item rows, best first; -1 where items have run out
    scores: np.ndarray  # raw scores of S_te's pairs


class Study:
    """An experiment on its way: `runs` by cell, `winners` by search, `failures` by cell."""

    def __init__(self, plan, budget, directory, seed=0, n_jobs=1, quiet=True):
        self.plan, self.budget, self.directory = plan, budget, directory
        self.seed, self.n_jobs, self.quiet = seed, n_jobs, quiet
        self.winners, self.runs, self.failures = {}, {}, {}

    @property
    def seeds(self):
        return range(self.seed, self.seed + self.budget.seeds)

    @property
    def finished(self):
        return len(self.runs) + len(self.failures) == len(self.plan.cells)

    def run(self, say=lambda line: None):
        """All cells, those of a system that stand together side by side: seeds alone may be fewer than workers."""
        for _, group in itertools.groupby(enumerate(self.plan.cells, 1), lambda numbered: numbered[1].system):
            winners = {}
            for number, cell in group:
                where = "" if cell.condition == WHOLE else f", {cell.condition}"
                say(f"{number}/{len(self.plan.cells)} {cell.system.name} ({cell.system.backbone}{where})")
                winner = self._search(cell)
                if winner is None:
                    self.failures[cell] = "no candidate finished"
                else:
                    winners[cell] = winner
            for cell, runs in self._fit(winners).items():
                failed = [run for run in runs if isinstance(run, str)]
                if failed:
                    self.failures[cell] = failed[0]
                else:
                    self.runs[cell] = runs

    def searched(self, cell):
        """The cell whose search a cell uses: its own, or that of the whole data."""
        reuse = not self.budget.search_everywhere and WHOLE in self.plan.conditions
        return Cell(cell.system, WHOLE) if reuse else cell

    def _search(self, cell):
        from dubnb.sweeps import sweep

        cell = self.searched(cell)
        if cell in self.winners:
            return self.winners[cell]
        system, data = cell.system, self.plan.conditions[cell.condition]
        own = dict(system.fixed)
        grid, fixed = budgets.axes(system.method, system.backbone, self.budget, data, own.get("terms", "acde"))
        fixed = fixed | {"monitor": self.plan.select} | own
        name = f"{system.method}-{system.backbone}-{data.fingerprint[:12]}"
        found = sweep(
            system.method,
            system.backbone,
            data,
            grid,
            out=self._path("searches", name),
            seeds=(self.seed,),
            n_jobs=self.n_jobs,
            fixed=fixed,
            select=self.plan.select,
            pretrained=self._path("pretrained"),
            quiet=self.quiet,
        )
        self.winners[cell] = self._winner(found, grid, fixed) if found.best else None
        return self.winners[cell]

    def _winner(self, found, grid, fixed):
        best = found.best
        value = best["metrics"][f"va_{self.plan.select}"]["mean"]
        lost = _lost(found.trials, grid, fixed | {"seed": self.seed})
        return Winner(dict(best["params"]), dict(best["point"]), grid, budgets.n_points(grid), value, lost)

    def _fit(self, winners):
        """{cell: its winner's runs over the seeds}: each from its file, or fitted and filed; or why it failed."""
        from joblib import Parallel, delayed

        data = {cell: self.plan.conditions[cell.condition] for cell in winners}
        paths = {(cell, seed): self._run_path(cell, winners[cell], seed) for cell in winners for seed in self.seeds}
        missing = [(cell, seed) for (cell, seed), path in paths.items() if _load(path, seed) is None]
        tasks = [
            (cell.system.method, winners[cell].params, data[cell], self._path("pretrained"), seed, paths[cell, seed])
            for cell, seed in missing
        ]
        run = Parallel(n_jobs=max(1, min(self.n_jobs, len(tasks))))
        failed = dict(zip(missing, run(delayed(fit_and_file)(*task) for task in tasks), strict=True))
        return {
            cell: [failed.get((cell, seed)) or _load(paths[cell, seed], seed) for seed in self.seeds]
            for cell in winners
        }

    def _run_path(self, cell, winner, seed):
        from dubnb.sweeps.trial import trial_key

        data = self.plan.conditions[cell.condition]
        key = trial_key(cell.system.method, winner.params | {"seed": seed}, data.fingerprint)
        return os.path.join(self._path("runs"), f"{key}.npz")

    def _path(self, *names):
        path = os.path.join(self.directory, *names)
        os.makedirs(os.path.dirname(path) if names[0] == "searches" else path, exist_ok=True)
        return path


def fit_and_file(method, params, data, pretrained, seed, path):
    """Fit, judge on S_te, and write what was seen to `path`; returns the reason if training failed."""
    from dubnb._check import DivergenceError
    from dubnb._jit import one_blas_thread
    from dubnb.methods import make
    from dubnb.sweeps.pretrained import Pretrained

    try:
        with warnings.catch_warnings(), one_blas_thread():
            warnings.simplefilter("ignore", UserWarning)
            model = make(method, **params, seed=seed).fit(data, store=Pretrained(pretrained))
            result = model.evaluate(data, per_user=True)
            frame = result["per_user"]
            items, list_scores = model.recommend(frame["user"].to_numpy(), k=LIST_LENGTH)
    except (DivergenceError, InputError) as error:
        return " ".join(str(error).split())
    S_te = data.triplets("S_te")
    metrics = {name: result[name] for name in (*METRICS, *TRUTHS) if name in result}
    names = [name for name in METRICS if name in frame]
    _store.write(
        path,
        {"metrics": {name: value if value == value else None for name, value in metrics.items()}, "per_user": names},
        {
            "users": data.user_ids.find(frame["user"].to_numpy()),
            "per_user": frame[names].to_numpy(dtype=np.float64).T,
            "lists": _item_rows(data, items, list_scores),
            "scores": model.weights_.score_pairs(S_te.users, S_te.items),
        },
        overwrite=True,
    )
    return None


def _lost(trials, grid, fixed):
    """Reasons of the candidates that did not finish; a directory of searches may hold others' trials too."""
    own = trials["status"] != "done"
    for name, value in fixed.items():
        own &= trials[name] == value
    for name, values in grid.items():
        own &= trials[name].isin(list(values))
    return tuple(sorted(map(str, trials["reason"][own])))


def _item_rows(data, items, scores):
    """Rows of listed items; the padding of a short list, whose score is nan, is no item: -1."""
    return np.where(np.isnan(scores), -1, data.item_ids.find(items.ravel()).reshape(items.shape))


def _load(path, seed):
    """A filed run, or None where there is none that can be read."""
    if not os.path.exists(path):
        return None
    try:
        header, arrays = _store.read(path)
        metrics = {name: float("nan") if value is None else value for name, value in header["metrics"].items()}
        per_user = dict(zip(header["per_user"], arrays["per_user"], strict=True))
        return Run(seed, metrics, arrays["users"], per_user, arrays["lists"], arrays["scores"])
    except (InputError, KeyError, ValueError, json.JSONDecodeError):
        return None
