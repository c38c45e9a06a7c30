"""The one trial function: both engines call `run`, which fits, judges, and answers with text whatever happens."""

import contextlib
import json
import sys
import time
import warnings
from typing import NamedTuple

DONE, FAILED = "done", "failed"
KILLED, TIMEOUT, MEMORY = "killed", "timeout", "memory"  # no fault of the parameters for sure: worth another attempt
LOST = (KILLED, TIMEOUT, MEMORY)
LONGEST_REASON = 300


class Task(NamedTuple):
    """What all trials of a sweep share."""

    method: type
    protocol: str
    pretrained: str | None  # directory of pre-trained models
    time_limit: float | None


def run(params, task, data):
    """One trial. Its outcome is JSON text, so that no exception or result can fail to travel between processes."""
    try:
        with _one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return json.dumps(_fit_and_judge(params, task, data))
    except MemoryError as error:
        return json.dumps({"status": MEMORY, "reason": _described(error)})
    except BaseException as error:
        return json.dumps({"status": FAILED, "reason": _described(error)})


def warm_up(task, params):
    """Compile, or read from Numba's cache, what a trial needs: the same trial on a tiny log, for one epoch."""
    return run(params | {"epochs": 1, "rank": 2}, task._replace(pretrained=None), _tiny_log())


def _fit_and_judge(params, task, data):
    from dubnb.sweeps.pretrained import Pretrained

    _reset_peak_memory()
    start = time.perf_counter()
    store = Pretrained(task.pretrained) if task.pretrained else None
    model = task.method(**params).fit(data, store=store)
    metrics = _judge(model, task.protocol, data)
    outcome = {
        "status": DONE,
        "reason": None,
        "metrics": metrics,
        "epochs_run": len(model.history_),
        "seconds": time.perf_counter() - start,
        "peak_mb": _peak_memory_mb(),
    }
    if store is not None:
        outcome |= {"trained": store.trained, "reused": store.reused, "saved_seconds": store.saved_seconds}
    return outcome


def _judge(model, protocol, data):
    """Metrics on S_va, by which points are chosen, and on S_te, by which they never are."""
    found = {}
    for part, prefix, truth in (("S_va", "va_", False), ("S_te", "", None)):
        if len(data.triplets(part).users):
            result = model.evaluate(data, protocol=protocol, part=part, truth=truth)
            found |= {prefix + name: float(value) for name, value in result.items() if name != "protocol"}
    return {name: value if value == value else None for name, value in found.items()}


@contextlib.contextmanager
def _one_thread():
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


def _described(error):
    """An exception as one line; its own text may fail too."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(no text)"
    return f"{type(error).__name__}: {text}"[:LONGEST_REASON]


def _reset_peak_memory():
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _peak_memory_mb():
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


def _tiny_log():
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
