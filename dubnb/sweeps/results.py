"""What is derived from the ledger: the table of trials, the chosen point, results.csv and best.json."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _check, metrics
from dubnb._check import InputError
from dubnb._files import atomic_write, spreadsheet_safe
from dubnb.sweeps.trial import DONE, Row, Trial

if TYPE_CHECKING:
    import pandas as pd

RESULTS, BEST, BEST_MODEL = "results.csv", "best.json", "best.npz"
KS = (5, 10)  # of the metrics that a trial records
NOT_REPRODUCIBLE = ("seconds", "peak_mb", "attempts")  # columns that depend on the machine and its day


class Select(NamedTuple):
    """Choose by the mean of `primary` on S_va; within `tolerance` of the best of it, by that of `secondary`."""

    primary: str
    tolerance: float = 0.0
    secondary: str | None = None


def selection(select: Any) -> Select:
    """A Select from a metric's name or (primary, tolerance, secondary)."""
    parts = (select,) if isinstance(select, str) else tuple(select)
    if len(parts) not in (1, 3):
        raise InputError(f"select={select!r} must be a metric, or (metric, tolerance, other metric)")
    known = metrics.names(KS)
    _check.choice("select", parts[0], known)
    if len(parts) == 1:
        return Select(parts[0])
    _check.choice("select", parts[2], known)
    return Select(parts[0], _check.real("select's tolerance", parts[1]), parts[2])


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """A DataFrame with a row per trial, in the order of keys: parameters, metrics, and how it went."""
    import pandas as pd

    params, metrics = _names(rows, "params"), _names(rows, "metrics")
    plain = [
        {
            "key": row["key"],
            "status": row["status"],
            **{name: _cell((row["params"] or {}).get(name)) for name in params},
            "protocol": row["protocol"],
            **{name: (row["metrics"] or {}).get(name) for name in metrics},
            **{name: row[name] for name in ("epochs_run", "reason", *NOT_REPRODUCIBLE)},
        }
        for row in rows
    ]
    return pd.DataFrame(plain)


def _names(rows: Sequence[Row], column: str) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row[column] or {}))


def _cell(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


def means(points: Sequence[Sequence[str]], rows: Mapping[str, Row], metric: str) -> np.ndarray:
    """The mean of a metric over each point's trials (their keys); -inf where one is not done or has no value."""
    means = []
    for keys in points:
        values: list[Any] = [(rows[key]["metrics"] or {}).get(metric) if key in rows else None for key in keys]
        done = all(key in rows and rows[key]["status"] == DONE for key in keys) and None not in values
        means.append(float(np.mean(values)) if done else -np.inf)
    return np.array(means)


def choose(points: Sequence[Sequence[str]], rows: Mapping[str, Row], select: Select) -> int | None:
    """The index of the best point by validation alone, the first in grid order among equals; None if none finished."""
    primary = means(points, rows, f"va_{select.primary}")
    if not len(primary) or primary.max() == -np.inf:
        return None
    if select.secondary is None:
        return int(primary.argmax())
    close = np.flatnonzero(primary >= primary.max() - select.tolerance)
    return int(close[means(points, rows, f"va_{select.secondary}")[close].argmax()])


def best_point(point: dict[str, Any], trials: Sequence[Trial], rows: Mapping[str, Row]) -> dict[str, Any]:
    """The chosen point with each metric's mean, spread (sample standard deviation) and value per seed."""
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
    """results.csv, all of it or nothing."""
    safe = frame.map(spreadsheet_safe)
    with atomic_write(os.path.join(out, RESULTS), overwrite=True) as file:
        file.write(safe.to_csv(index=False, lineterminator="\n").encode())


def write_best(out: str, best: dict[str, Any]) -> None:
    """best.json, all of it or nothing."""
    with atomic_write(os.path.join(out, BEST), overwrite=True) as file:
        file.write((json.dumps(best, indent=2, allow_nan=False) + "\n").encode())
