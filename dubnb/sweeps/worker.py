"""What runs inside a worker process: fit one trial, judge it, write its files, and answer with JSON text.

Trials that share a pre-training stage train it once: `Pretrained` is a directory of pre-trained models.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import mmap
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _store, evaluation
from dubnb._check import InputError
from dubnb._files import atomic_write
from dubnb.backbones import BACKBONES
from dubnb.evaluation import JudgedUsers, Judgement
from dubnb.sweeps.trial import DONE, FAILED, MEMORY, Outcome, Rules, Trial

if TYPE_CHECKING:
    from dubnb.backbones import Weights
    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method


LONGEST_REASON = 300
JUDGED_ARRAYS = tuple(name for name in JudgedUsers._fields if name != "ks")
WITH_NAN = ("user_auc", "percentile")
NO_VALUE = -1.0  # replaces nan in these two, because files cannot hold nan


_warm: set[tuple[Any, ...]] = set()  # the kinds whose kernels this process has compiled or loaded


def kind_of(trial: Trial) -> tuple[Any, ...]:
    """Method, backbone and solver: trials that differ in them need different kernels."""
    return trial.method, trial.params["backbone"], trial.params.get("solver")


def run(trial: Trial, rules: Rules, data: Mapping[str, Partition]) -> str:
    """Run one trial. The outcome is JSON text, which always survives the way between processes.

    The first trial of a kind in a process is preceded by one on a tiny log: kernels do not count as its CPU seconds.
    """
    if kind_of(trial) not in _warm:
        warm_up(trial, rules)
    try:
        with _one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return json.dumps(_fit_and_judge(trial, rules, data[trial.data]))
    except MemoryError as error:
        return json.dumps({"status": MEMORY, "reason": _one_line(error)})
    except BaseException as error:
        return json.dumps({"status": FAILED, "reason": _one_line(error)})


def warm_up(trial: Trial, rules: Rules) -> str:
    """Compile the kernels that a trial needs, or read them from the cache: run it on a tiny log for one epoch."""
    _warm.add(kind_of(trial))
    small = trial._replace(params=trial.params | {"epochs": 1, "rank": 2})
    return run(small, Rules(rules.protocol), {trial.data: _tiny_log()})


def _fit_and_judge(trial: Trial, rules: Rules, data: Partition) -> Outcome:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak memory counts from here
    start, cpu_start = time.perf_counter(), time.process_time()
    store = Pretrained(rules.pretrained) if rules.pretrained else None
    model = trial.method(**trial.params).fit(data, store=store)
    cpu_seconds = time.process_time() - cpu_start
    judgements = _judge_both(model, rules, data)
    metrics: dict[str, float | None] = {}
    for part, found in judgements.items():
        prefix = "va_" if part == "S_va" else ""
        values = {prefix + name: value for name, value in found.result.items() if name != "protocol"}
        metrics |= {name: float(value) if value == value else None for name, value in values.items()}
    if rules.outputs is not None:
        write_output(path_of(rules.outputs.directory, trial.key), model, judgements)
    if rules.models is not None and trial.params["seed"] == rules.models.seed:
        with contextlib.suppress(OSError, InputError):  # the runner fits it again if it needs the model
            model.save(path_of(rules.models.directory, trial.key), overwrite=True)
    outcome = {
        "status": DONE,
        "reason": None,
        "metrics": metrics,
        "epochs_run": len(model.history_rows_),
        "seconds": time.perf_counter() - start,
        "cpu_seconds": cpu_seconds,
        "peak_mb": _peak_memory_mb(),
    }
    if store is not None:
        outcome |= {"trained": store.trained, "reused": store.reused, "saved_seconds": store.saved_seconds}
    return outcome


def _judge_both(model: Method, rules: Rules, data: Partition) -> dict[str, Judgement]:
    """Judge the model on S_va, on which points are chosen, and on S_te, on which they never are."""
    scorer = evaluation.CalibratedScorer(model.weights_, model.probabilities)
    parts = [part for part in ("S_va", "S_te") if len(data.unseen(part).users)]
    judgements = {}
    for part in parts:
        truth = False if part == "S_va" else None
        wanted = rules.outputs if part == parts[-1] else None
        listing = evaluation.Listing(wanted.list_length, model.seen_) if wanted else None
        judgements[part] = evaluation.judge(scorer, data, rules.protocol, part=part, truth=truth, listing=listing)
    return judgements


# Files of a trial


class TestOutput(NamedTuple):
    """What a fitted model predicted on S_te and how it was judged, in rows of the Partition."""

    users: np.ndarray  # rows of the users that ranking metrics count
    per_user: dict[str, np.ndarray]  # metric -> value for each of them
    lists: np.ndarray  # (users, list length) item rows, best first; -1 where a list has ended
    scores: np.ndarray  # raw scores of S_te's pairs, in the order of triplets("S_te")
    probabilities: np.ndarray  # the calibrated probabilities of these pairs
    uncalibrated: np.ndarray  # the same without calibration
    judged_users: dict[str, JudgedUsers] = {}  # "S_va" and "S_te" -> the judgements user by user


TestOutput.__test__ = False  # type: ignore[attr-defined]  # pytest does not take it for a class of tests


def path_of(directory: str, key: str) -> str:
    """The path of a trial's TestOutput or fitted model in the directory of these."""
    return os.path.join(directory, f"{key}.npz")


def write_output(path: str, model: Method, judgements: Mapping[str, Judgement]) -> None:
    """Write a TestOutput atomically, from the judgements on S_va and S_te; the last one has lists.

    If S_te has no pair to judge, users and lists are those of S_va and there are no scores.
    """
    *_, last = judgements.values()
    assert last.lists is not None
    scores = judgements["S_te"].scores if "S_te" in judgements else np.empty(0, dtype=np.float32)
    arrays: dict[str, Any] = {
        "users": last.users,
        "per_user": np.array(list(last.values.values()), dtype=np.float64),
        "lists": last.lists,
        "scores": scores,
        "probabilities": model.probabilities(scores),
        "uncalibrated": model.uncalibrated(scores),
    }
    for part, found in judgements.items():
        own = {name: getattr(found.judged, name) for name in JUDGED_ARRAYS}
        own |= {name: np.nan_to_num(own[name], nan=NO_VALUE) for name in WITH_NAN}
        arrays |= {f"{part}_{name}": values for name, values in own.items()}
    ks = {part: list(found.judged.ks) for part, found in judgements.items()}
    _store.write(path, {"per_user": list(last.values), "judged_users": ks}, arrays, overwrite=True)


def read_output(path: str) -> TestOutput | None:
    """Read what `write_output` wrote; None if the file is missing or damaged."""
    if not os.path.exists(path):
        return None
    try:
        header, arrays = _store.read(path)
        per_user = dict(zip(header["per_user"], arrays["per_user"], strict=True))
        judged = {}
        for part, ks in header["judged_users"].items():
            own: dict[str, Any] = {name: arrays[f"{part}_{name}"] for name in JUDGED_ARRAYS}
            for name in WITH_NAN:
                own[name] = np.where(own[name] == NO_VALUE, np.nan, own[name])
            judged[part] = JudgedUsers(ks=tuple(ks), **own)
        plain = {name: arrays[name] for name in ("users", "lists", "scores", "probabilities", "uncalibrated")}
        return TestOutput(per_user=per_user, judged_users=judged, **plain)
    except (InputError, KeyError, TypeError, ValueError, AttributeError):
        return None


# The process


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Allow one BLAS and one Numba thread: workers do not compete, and results do not depend on the cores."""
    import numba

    from dubnb._jit import one_blas_thread

    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        with one_blas_thread():
            yield
    finally:
        numba.set_num_threads(before)


def _one_line(error: BaseException) -> str:
    """An exception as one line of text; str(error) itself can raise."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(no text)"
    return f"{type(error).__name__}: {text}"[:LONGEST_REASON]


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
    """A log of 12 users x 8 items with both labels in every part."""
    from dubnb.data.partition import Partition, Triplets

    pairs = np.arange(96)
    labels = (pairs // 4 % 2).astype(float)
    parts = {}
    for number, part in enumerate(("S_c", "S_t", "S_va", "S_te")):
        own = pairs % 4 == number
        parts[part] = Triplets(pairs[own] // 8, pairs[own] % 8, labels[own], np.ones(own.sum()))
    return Partition(parts, (12, 8), name="tiny log")


# ---- pre-trained models ----------------------------------------------------------------------------------------------


ALIGNMENT = 64  # bytes: where a table begins in a file of rows
WORTH_MAPPING = 1 << 20  # bytes of tables: every worker holds its own copy of a smaller model


class Pretrained:
    """The `store` of `Method.fit`: get(key) and put(key, weights, rows), and counts of models trained and reused.

    A key is a text that names all that the training reads. Equal keys mean equal content, so either of two writers may
    be the last. A damaged file is removed and its model trained again. If the directory cannot be written, models are
    trained again, and no trial fails.

    The user and item tables are memory maps of a second file, .rows, so that the workers of a machine share one M_t.
    Each machine has its own .rows file, because a mapped file that another machine replaces can become unreadable.
    """

    def __init__(self, directory: str):
        self.directory = directory
        self.trained, self.reused, self.saved_seconds = 0, 0, 0.0

    def get(self, key: str) -> tuple[Weights, list[dict[str, Any]]] | None:
        """Return (weights, rows of the training history), or None if they are not stored."""
        path = self._path(key)
        if not os.path.exists(path):
            return None
        try:
            header, arrays = _store.read(path)
            if header["key"] != key:
                raise InputError("another key")
            weights = BACKBONES[header["backbone"]].from_arrays(arrays)
            rows = [
                {name: math.nan if value is None else value for name, value in row.items()} for row in header["rows"]
            ]
        except (InputError, OSError, KeyError, TypeError, ValueError, AttributeError):
            with contextlib.suppress(OSError):
                os.unlink(path)
            return None
        self.reused += 1
        self.saved_seconds += sum(row["seconds"] for row in rows)
        return self._mapped(key, weights), rows

    def put(self, key: str, weights: Weights, rows: list[dict[str, Any]]) -> Weights:
        """Store a model and its training history; return the weights, mapped if they are large."""
        self.trained += 1
        finite = [{name: None if value != value else value for name, value in row.items()} for row in rows]
        header = {"key": key, "backbone": weights.name, "rows": finite}
        with contextlib.suppress(OSError, InputError):
            _store.write(self._path(key), header, weights.arrays(), overwrite=True)
        return self._mapped(key, weights)

    def _mapped(self, key: str, weights: Weights) -> Weights:
        """Return the weights with both tables mapped from the .rows file, which is written again if it differs."""
        tables, path = (weights.users, weights.items), self._path(f"{key} {platform.node()}", ".rows")
        if sum(table.nbytes for table in tables) < WORTH_MAPPING:
            return weights
        with contextlib.suppress(OSError, InputError, ValueError):  # the file may be truncated while it is mapped
            try:
                is_there = all(map(np.array_equal, _map(path, tables), tables))
            except (OSError, ValueError):  # the file is missing or too short
                is_there = False
            if not is_there:
                with atomic_write(path, overwrite=True) as file:
                    for table in tables:
                        file.write(np.ascontiguousarray(table).reshape(-1).view(np.uint8).data)
                        file.write(bytes(-table.nbytes % ALIGNMENT))
            mapped = copy.copy(weights)
            mapped.users, mapped.items = _map(path, tables)
            return mapped
        return weights

    def _path(self, key: str, suffix: str = ".npz") -> str:
        return os.path.join(self.directory, hashlib.blake2b(key.encode(), digest_size=12).hexdigest() + suffix)


def _map(path: str, like: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Map tables of the shapes and dtypes of `like`.

    They are writeable, as the kernels are compiled for, but are never written: a page that is written is copied.
    """
    with open(path, "rb") as file:
        block, start, tables = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), 0, []
    for table in like:
        tables.append(np.frombuffer(block, table.dtype, table.size, start).reshape(table.shape))
        start += -(-table.nbytes // ALIGNMENT) * ALIGNMENT
    return tables
