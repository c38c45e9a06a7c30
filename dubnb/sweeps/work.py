"""The one function that runs a trial: both engines call `run`, which fits, judges, files, and answers with text."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dubnb.sweeps import filed
from dubnb.sweeps.trial import DONE, FAILED, MEMORY, Outcome, Rules, Trial

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method

LONGEST_REASON = 300


def run(trial: Trial, rules: Rules, data: Mapping[str, Partition]) -> str:
    """One trial. Its outcome is JSON text, so that no exception or result can fail to travel between processes."""
    try:
        with _one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return json.dumps(_fit_and_judge(trial, rules, data[trial.data]))
    except MemoryError as error:
        return json.dumps({"status": MEMORY, "reason": _described(error)})
    except BaseException as error:
        return json.dumps({"status": FAILED, "reason": _described(error)})


def warm_up(trial: Trial, rules: Rules) -> str:
    """Compile, or read from Numba's cache, what a trial needs: the same trial on a tiny log, for one epoch."""
    small = trial._replace(params=trial.params | {"epochs": 1, "rank": 2})
    return run(small, Rules(rules.protocol), {trial.data: _tiny_log()})


def _fit_and_judge(trial: Trial, rules: Rules, data: Partition) -> Outcome:
    from dubnb.sweeps.pretrained import Pretrained

    _reset_peak_memory()
    start = time.perf_counter()
    store = Pretrained(rules.pretrained) if rules.pretrained else None
    model = trial.method(**trial.params).fit(data, store=store)
    metrics, results = _judge(model, rules, data)
    if rules.filing is not None:
        filed.write(rules.filing, trial.key, model, data, results)
    if rules.model_path is not None:
        model.save(rules.model_path, overwrite=True)
    outcome = {
        "status": DONE,
        "reason": None,
        "metrics": metrics,
        "epochs_run": len(model.history_rows_),
        "seconds": time.perf_counter() - start,
        "peak_mb": _peak_memory_mb(),
    }
    if store is not None:
        outcome |= {"trained": store.trained, "reused": store.reused, "saved_seconds": store.saved_seconds}
    return outcome


def _judge(model: Method, rules: Rules, data: Partition) -> tuple[dict[str, float | None], dict[str, dict[str, Any]]]:
    """Metrics on S_va, by which points are chosen, and on S_te, by which they never are; and the results by part."""
    from dubnb.evaluation import NOT_NUMBERS

    metrics: dict[str, float | None] = {}
    results: dict[str, dict[str, Any]] = {}
    for part, prefix, truth in (("S_va", "va_", False), ("S_te", "", None)):
        if len(data.unseen(part).users):
            options: dict[str, Any] = {"part": part, "truth": truth, "per_user": rules.filing is not None}
            result = results[part] = model.evaluate(data, protocol=rules.protocol, **options)
            values = {prefix + name: value for name, value in result.items() if name not in NOT_NUMBERS}
            metrics |= {name: float(value) if value == value else None for name, value in values.items()}
    return metrics, results


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One BLAS and one Numba thread: workers do not crowd each other, and results do not depend on the cores."""
    import numba

    from dubnb._jit import one_blas_thread

    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        with one_blas_thread():
            yield
    finally:
        numba.set_num_threads(before)


def _described(error: BaseException) -> str:
    """An exception as one line; its own text may fail too."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(no text)"
    return f"{type(error).__name__}: {text}"[:LONGEST_REASON]


def _reset_peak_memory() -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _peak_memory_mb() -> float | None:
    """Peak resident memory since the reset, or of the whole process where the system cannot reset it."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024


def _tiny_log() -> Partition:
    """12 users x 8 items with both labels in every part."""
    import numpy as np

    from dubnb.data.partition import Partition, Triplets

    pairs = np.arange(96)
    labels = (pairs // 4 % 2).astype(float)
    parts = {}
    for number, part in enumerate(("S_c", "S_t", "S_va", "S_te")):
        own = pairs % 4 == number
        parts[part] = Triplets(pairs[own] // 8, pairs[own] % 8, labels[own], np.ones(own.sum()))
    return Partition(parts, (12, 8), name="tiny log")
