"""How a sweep stands."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from typing import Any

from dubnb.sweeps import ledger as ledgers
from dubnb.sweeps import results
from dubnb.sweeps.trial import Row


def status(out: str | os.PathLike[str]) -> dict[str, Any]:
    """How a sweep stands, while it runs or after: counts by status, trials in all, damaged rows, and the best trial so
    far by what the sweep selects on (`select`)."""
    with contextlib.closing(ledgers.Ledger(out)) as ledger:
        rows, damaged, total = ledger.rows(), ledger.damaged(), ledger.about("trials")
        facts = {name: ledger.about(name) for name in ("method", "backbone", "protocol", "data")}
        select = results.Select(*(ledger.about("select") or ["auc"]))
    best = _best(rows, select)
    return {
        "out": os.fspath(out),
        **facts,
        "running": ledgers.in_use(os.fspath(out)),
        "trials": total,
        "counts": dict(Counter(row["status"] for row in rows)),
        "damaged": len(damaged),
        "select": list(select),
        "best": best and {name: best[name] for name in ("key", "params", "metrics")},
    }


def _best(rows: list[Row], select: results.Select) -> Row | None:
    """The best single trial; a sweep chooses points by their mean over seeds in the same way."""
    index = results.choose([[row["key"]] for row in rows], {row["key"]: row for row in rows}, select)
    return None if index is None else rows[index]
