"""What a sweep does with its trials: rungs of points, the choice among them, and the files that say so."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dubnb.sweeps import halving as rungs
from dubnb.sweeps import results
from dubnb.sweeps.grid import Point
from dubnb.sweeps.request import Request
from dubnb.sweeps.runner import Runner
from dubnb.sweeps.trial import DONE, Trial, trial_key

if TYPE_CHECKING:
    import pandas as pd

Contenders = list[tuple[Point, list[Trial]]]  # points, each with its trials, one per seed


class Driver:
    """Runs a Request with a Runner, and derives the results."""

    def __init__(self, request: Request, runner: Runner):
        self.request, self.runner = request, runner

    def run(self) -> tuple[pd.DataFrame, dict[str, Any]]:
        """All trials, then the files; returns what results.csv and best.json hold."""
        self._announce()
        try:
            with self.runner.progress(self._total()):
                contenders = self._run_rungs()
                index = results.choose(_keys(contenders), self.runner.rows, self.request.select)
                if index is not None:
                    self._keep_model(contenders[index][1][0])
        except KeyboardInterrupt:
            if self.runner.rows:
                self._write_table()
            raise
        frame = self._write_table()
        best = self._best(None if index is None else contenders[index])
        results.write_best(self.runner.out, best)
        self._say_savings()
        return frame, best

    # -- what to run

    def _run_rungs(self) -> Contenders:
        """Run every rung (without halving there is one); returns the last one's points."""
        request, rows = self.request, self.runner.rows
        shares = rungs.SHARES if request.halving else (1.0,)
        points = request.points
        contenders: Contenders = []
        for share, size in zip(shares, rungs.sizes(len(points)), strict=False):
            if contenders:
                values = results.means(_keys(contenders), rows, f"va_{request.select.primary}")
                points = [points[index] for index in rungs.survivors(values.tolist(), size)]
            contenders = [(point, self._trials(params, share)) for point, params in points]
            self.runner.run([trial for _, trials in contenders for trial in trials], self._best_so_far)
        return contenders

    def _trials(self, params: dict[str, Any], share: float) -> list[Trial]:
        """One trial per seed, with its rung's share of the epochs."""
        method, data = self.request.method, self.request.data.fingerprint
        params = params | {"epochs": rungs.epochs(params["epochs"], share)}
        each = [params | {"seed": seed} for seed in self.request.seeds]
        return [Trial(trial_key(method.name, own, data), method, own, data) for own in each]

    def _total(self) -> int:
        n = len(self.request.points)
        return sum(rungs.sizes(n) if self.request.halving else [n]) * len(self.request.seeds)

    # -- saying

    def _announce(self) -> None:
        request, total = self.request, self._total()
        n, n_seeds = len(request.points), len(request.seeds)
        chosen = f"{n} points" if n == request.n_grid else f"{n} of the grid's {request.n_grid} points"
        about = f"{request.method.name} ({request.backbone}) on {request.data.name}"
        self.runner.say(f"{about}: {chosen}, {n_seeds} seeds, {total} trials")
        if request.halving:
            steps = " -> ".join(map(str, rungs.sizes(n)))
            saved = f"up to {100 * rungs.saved(n):.0f} % of a full grid's epochs saved"
            self.runner.say(f"halving: {steps} points, {saved}")
        self.runner.ledger.note("trials", total)
        self.runner.ledger.note("select", list(request.select))

    def _best_so_far(self) -> str:
        name = f"va_{self.request.select.primary}"
        values = [row["metrics"].get(name) for row in self.runner.rows.values() if row["status"] == DONE]
        values = [value for value in values if value is not None]
        return f"best {name} {max(values):.4f}" if values else ""

    def _say_savings(self) -> None:
        rows = self.runner.rows.values()
        reused, seconds, trained = (
            sum(row[name] or 0 for row in rows) for name in ("reused", "saved_seconds", "trained")
        )
        if reused:
            self.runner.say(
                f"pre-training: {trained} models trained, {reused} times reused instead of trained again: "
                f"{seconds:.1f} s of training saved"
            )

    # -- the files

    def _write_table(self) -> pd.DataFrame:
        rows = self.runner.rows
        frame = results.table([rows[key] for key in sorted(rows)])
        results.write_results(self.runner.out, frame)
        return frame

    def _best(self, chosen: tuple[Point, Sequence[Trial]] | None) -> dict[str, Any]:
        request = self.request
        about = request.identity | {"data_name": request.data.name, "select": list(request.select)}
        about |= {"points": len(request.points), "versions": self.runner.facts["versions"]}
        if chosen is None:
            return about | {"point": None, "params": None, "reason": "no point finished on all its seeds"}
        return about | results.best_point(*chosen, self.runner.rows)

    def _keep_model(self, trial: Trial) -> None:
        """best.npz: the chosen point, fitted once more with its first seed, unless the file holds that already."""
        path, noted = os.path.join(self.runner.out, results.BEST_MODEL), self.runner.ledger.about("best_model")
        if noted == [trial.key, _content_digest(path)]:
            return
        self.runner.say(f"fitting the chosen point once more, for {results.BEST_MODEL}")
        outcome = self.runner.save_model(trial, path)
        if outcome["status"] == DONE:
            self.runner.ledger.note("best_model", [trial.key, _content_digest(path)])
        else:
            self.runner.say(f"{results.BEST_MODEL} is not written: the fit ended with {outcome['reason']}", always=True)


def _keys(contenders: Contenders) -> list[list[str]]:
    return [[trial.key for trial in trials] for _, trials in contenders]


def _content_digest(path: str) -> str | None:
    """A hash of a file's bytes; None where there is none."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
