"""One fit in parts: the parts of an exact problem are in files here, or on the workers of a Dask cluster.

With a directory (`parts_dir`), the parts are built one after another and stored there. A task maps one part at a time,
so that memory holds one part and not the problem. After every sweep the items' rows and the history are stored too, and
the same fit continues from them after it was killed. The part files are then built again.

On a cluster, parts are sent out once and stay. Every wait has a limit, see `_dask`. If a worker dies or falls silent,
its parts are sent to other workers, and the step that was running is repeated; the result is the same. The workers free
their memory when the client disconnects, even if the driver was killed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import secrets
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dubnb import _check, _dask, _files, _store
from dubnb._check import InputError, option, setting
from dubnb._dask import ATTEMPTS, CLOSE_WITHIN, LOOK_EVERY, Cluster, ClusterError, connect, within
from dubnb._jit import one_blas_thread
from dubnb._version import VERSION
from dubnb.backbones.mf import Extended
from dubnb.background import SERIAL, WorkPool
from dubnb.device import Cpu, Device, Solver, device_named
from dubnb.objective import als
from dubnb.objective.all_pairs import ExactTerms
from dubnb.objective.als import RowSolver
from dubnb.objective.parts import (
    ItemOrder,
    ItemsSide,
    LocalParts,
    PartedSolver,
    PartState,
    ProblemPart,
    UnfetchedRows,
    UsersAt,
    loss_of_users,
    parts_of,
    tree_sum,
    user_bounds,
)

if TYPE_CHECKING:
    from dubnb.train import EpochLoop

PAIRS_PER_PART = 5_000_000  # a part then takes some 150 MB
BROADCAST_WITHIN = 60.0  # seconds in which the workers pass on to each other what is sent
PART_FILES = f"{_files.TEMPORARY}parts-"  # prefix of the directories of part files; they end with their solve
LOCK = "lock"
STOPPING = ("awake", "best", "best_epoch", "peak", "peak_epoch", "start", "loss")  # the numbers of an EarlyStopping
NOTHING = np.zeros((0, 0), np.float32)  # in place of rows that are sent apart
SENT = ("Q", "G", "H", "turn")  # the arrays of a UsersAt


# Parts in files


class StoredParts:
    """Parts in files of this machine, of which one is in memory at a time; see `objective.parts.PartedRows`."""

    def __init__(self, directory: str, width: int, pool: WorkPool = SERIAL):
        self.folder = directory
        self.directory = os.path.join(directory, f"{PART_FILES}{secrets.token_hex(8)}")
        self.width, self.pool = width, pool
        self.sizes: list[int] = []
        self.strength = np.zeros(())
        self.at: list[tuple[int, bool]] = []  # version of each part's rows, and whether they are rotated
        self.digests: list[str] = []
        os.mkdir(self.directory)

    def add(self, part: ProblemPart, n_items: int) -> None:
        """Store the next part, its pairs by item, and room for its rows."""
        number = len(self.sizes)
        order = ItemOrder.of(part, n_items)
        self.digests.append(digest_of(part))
        for name, array in part._asdict().items():
            self._write(number, name, array)
        for name, array in order._asdict().items():
            self._write(number, f"by_item_{name}", array)
        self._write(number, "rows", np.zeros((part.n_users, self.width), part.curvature.dtype))
        self.strength = part.strength
        self.sizes.append(part.n_users)
        self.at.append((0, False))

    def each(
        self, task: Callable[..., Any], sent: UsersAt, *shared: Any, own: Sequence[Any] | None = None
    ) -> list[Any]:
        own = [()] * len(self.sizes) if own is None else [(each,) for each in own]
        return [self._run(number, task, sent, *shared, *more) for number, more in enumerate(own)]

    def one_by_one(self, task: Callable[..., Any], sent: UsersAt, *shared: Any) -> Iterator[Any]:
        return (self._run(number, task, sent, *shared) for number in range(len(self.sizes)))

    def total(self, task: Callable[..., np.ndarray], sent: UsersAt, *shared: Any) -> np.ndarray:
        return tree_sum(self.one_by_one(task, sent, *shared), np.add)

    def digest(self) -> str:
        """A hash of all parts."""
        return " ".join(self.digests)

    def _run(self, number: int, task: Callable[..., Any], *arguments: Any) -> Any:
        """Run a task on a part, whose files are mapped meanwhile."""
        arrays = {name: self._map(number, name) for name in ProblemPart._fields if name != "strength"}
        state = PartState(ProblemPart(**arrays, strength=self.strength), self.pool)
        state.order = ItemOrder(*(self._map(number, f"by_item_{name}") for name in ItemOrder._fields))
        for array in (state.part.items, state.order.indptr, state.order.users):
            array.flags.writeable = False  # as in a Pattern: kernels are compiled for these types already
        state.rows, state.at = self._map(number, "rows", "r+"), self.at[number]
        result = task(state, *arguments)
        self.at[number] = state.at
        return result

    def _path(self, number: int, name: str) -> str:
        return os.path.join(self.directory, f"{number:06d}-{name}.npy")

    def _write(self, number: int, name: str, array: np.ndarray) -> None:
        path, array = self._path(number, name), np.asarray(array, order="C")
        with _files.disk_errors(path), open(path, "xb") as file:  # written, not mapped: a full disk is then an error
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
            file.write(array.data)  # np.save hides the system's reason

    def _map(self, number: int, name: str, mode: Literal["c", "r+"] = "c") -> np.ndarray:
        """An array of a part; a kernel may take it as writable, but with mode "c" its file never changes."""
        path = self._path(number, name)
        try:
            array = np.load(path, mmap_mode=mode, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"{path!r} cannot be mapped ({reason[:200]}): leave parts_dir alone during a fit, and fit again"
            ) from None
        return np.asarray(array)

    def remove(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def locked(directory: Any) -> Iterator[str]:
    """Make a directory for one fit at a time, and remove the part files of killed fits."""
    path = _files.writable_directory(directory, "parts_dir")
    with _files.disk_errors(path):
        file = open(os.path.join(path, LOCK), "ab")  # noqa: SIM115 - closed below
    with file:
        with contextlib.suppress(ModuleNotFoundError):  # other systems than POSIX have no such lock
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"parts_dir={path!r} is used by another fit: wait for it, or give another") from None
        _files.remove_temporaries(path)
        for name in os.listdir(path):
            if name.startswith(PART_FILES):
                shutil.rmtree(os.path.join(path, name), ignore_errors=True)
        yield path


# Checkpoints


class Checkpoint:
    """The file that keeps the state of one solve after every sweep; its name is a hash of all that determines it."""

    def __init__(self, directory: str, loop: EpochLoop, solver: PartedSolver, digest: str):
        fit, stage = loop.fit, loop.stage
        facts = VERSION, stage.key(fit.data), fit.length(stage), list(solver.parts.sizes), solver.items[3:], digest
        named = hashlib.sha256(repr(facts).encode())
        for array in (solver.Q, *solver.items[:3]):
            named.update(np.ascontiguousarray(array).data)
        self.path = os.path.join(directory, f"solve-{named.hexdigest()[:32]}.npz")
        self.loop, self.solver, self.before = loop, solver, len(fit.log.rows)

    def write(self) -> None:
        """Store the state after a sweep."""
        loop, stopping = self.loop, self.loop.stopping
        state = {name: getattr(stopping, name) for name in STOPPING}
        state |= {"recent": list(stopping.recent), "epoch": loop.epoch, "is_over": loop.is_over}
        state |= {"rows": loop.fit.log.rows[self.before :]}
        arrays: dict[str, np.ndarray] = {}
        versions: dict[str, tuple[int, float]] = {}
        for name, rows in (("now", self.solver.weights()), ("best", stopping.weights)):
            if rows is not None:
                versions[name] = rows.sent.version, rows.sent.bias_ridge
                arrays |= {f"{name}_sent_{each}": getattr(rows.sent, each) for each in SENT}
                arrays[f"{name}_Q"] = rows.Q
        text = json.dumps(state, default=float)  # may hold nan and inf, which a header may not
        _store.write(self.path, {"state": text, "versions": versions}, arrays, overwrite=True)

    def restore(self) -> None:
        """Continue from the file, if it is there and whole; otherwise from the beginning."""
        if not os.path.exists(self.path):
            return
        try:
            header, arrays = _store.read(self.path)
            state = json.loads(header["state"])
            found = {}
            for name, (version, ridge) in header["versions"].items():
                Q, G, H, turn = (np.array(arrays[f"{name}_sent_{each}"]) for each in SENT)
                sent = UsersAt(version, Q, G, H, ridge, turn, self.solver.items.tolerance)
                found[name] = UnfetchedRows(self.solver.parts, sent, np.array(arrays[f"{name}_Q"]))
        except (InputError, KeyError, ValueError):  # damaged: the solve begins anew and replaces the file
            return
        loop, stopping = self.loop, self.loop.stopping
        self.solver.resume(found["now"])
        for name in STOPPING:
            setattr(stopping, name, state[name])
        stopping.recent.extend(state["recent"])
        stopping.weights = found.get("best")
        loop.epoch, loop.is_over = state["epoch"], state["is_over"]
        loop.fit.log.rows.extend(state["rows"])
        loop.bar.update(loop.epoch)


# Parts on a cluster


def built(exact: ExactTerms) -> tuple[ProblemPart, ItemsSide]:
    """A range of users as a part, and its items' side, whose constant is that of the range.

    Every way to solve in parts builds them here, so that the objective has the same bits.
    """
    problem = exact.problem()
    return parts_of(problem, 1)[0], ItemsSide.of(problem)


def build(exact: ExactTerms, bounds: Sequence[int], add: Callable[[ProblemPart], None]) -> ItemsSide:
    """Build the parts one after another, give each to `add`, and return the items' side."""
    constant, items = 0.0, None
    for first, last in itertools.pairwise(bounds):
        part, items = built(exact.of_users(first, last))
        add(part)
        constant += items.constant
    if items is None:
        raise RuntimeError("a problem without users")
    return items._replace(constant=constant)


class TermsByRange(Sequence[ExactTerms]):
    """The terms of each range of users of a log on disk, which are cut out when they are asked for."""

    def __init__(self, exact: ExactTerms, bounds: Sequence[int]):
        self.exact, self.bounds, self.sizes = exact, bounds, np.diff(bounds).tolist()

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: Any) -> Any:
        return self.exact.of_users(*self.bounds[number : number + 2])


def digest_of(part: ProblemPart) -> str:
    """A hash of a part."""
    digest = hashlib.sha256()
    for array in part:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


class PlacedPart:
    """A part on a worker. Dask hands the same object to every task there, so its rows stay; they are never pickled."""

    def __init__(self, part: ProblemPart, constant: float = 0.0):
        self.part, self.constant = part, constant
        self.state, self.lock = PartState(part), threading.Lock()

    def __reduce__(self) -> tuple[type[PlacedPart], tuple[ProblemPart, float]]:
        return PlacedPart, (self.part, self.constant)

    def run(self, task: Callable[..., Any], *arguments: Any) -> Any:
        """Run a task on the part."""
        with self.lock, one_blas_thread():
            return task(self.state, *arguments)


def _built_there(exact: ExactTerms) -> PlacedPart:
    """Build a part on a worker, from files."""
    with one_blas_thread():
        part, items = built(exact.with_seen())
    return PlacedPart(part, items.constant)


def _constant_of(placed: PlacedPart) -> float:
    return placed.constant


def _digest_of(placed: PlacedPart) -> str:
    return digest_of(placed.part)


def _run(placed: PlacedPart, task: Callable[..., Any], sent: UsersAt, Q: np.ndarray, *others: Any) -> Any:
    return placed.run(task, sent._replace(Q=Q), *others)


def _rotated(Q: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """Rotate the items' rows on a worker."""
    Q = Q.copy()
    with one_blas_thread():
        als.turn_rows(Q, turn)
    return Q


class WorkerLost(Exception):
    """A worker that has a part, or the only copy of what a step needs, is gone."""


class DaskParts:
    """Parts on the workers of a Dask client; see `objective.parts.PartedRows`."""

    def __init__(self, client: Any, parts: Sequence[ProblemPart] | TermsByRange, folder: str | None = None):
        self.client, self.parts, self.folder = client, parts, folder
        self.sizes = parts.sizes if isinstance(parts, TermsByRange) else [part.n_users for part in parts]
        self.cluster = Cluster(client)
        files = parts.exact.folder if isinstance(parts, TermsByRange) else None
        self.built_there = all(itertools.chain(*self.cluster.survey([files])))
        if not self.built_there:
            warnings.warn(
                f"the workers do not see {files!r}: the parts are built here; choose a disk that all machines share",
                stacklevel=2,
            )
        self.homes: list[str] = [""] * len(parts)
        self.placed: list[Any] = [None] * len(parts)
        self.last: tuple[UsersAt, list[str], dict[str, list[Any]]] | None = None  # what was sent last, and to whom
        self.kept: list[tuple[np.ndarray, list[str], dict[str, Any]]] = []  # the last two Q that workers have
        self.broadcasts = True  # workers pass on to each other what is sent
        self.attempts = 0  # steps that were repeated, for tests

    def each(
        self, task: Callable[..., Any], sent: UsersAt, *shared: Any, own: Sequence[Any] | None = None
    ) -> list[Any]:
        """The task's result for each part."""
        return self._repeated(lambda: self._submit(task, sent, shared, own))

    def one_by_one(self, task: Callable[..., Any], sent: UsersAt, *shared: Any) -> Iterator[Any]:
        """The same as `each`, with one result of each worker in memory at a time."""
        every = range(len(self.homes))
        while every:
            count = max(1, len(set(self.homes)))
            some, every = every[:count], every[count:]
            yield from self._repeated(functools.partial(self._submit, task, sent, shared, numbers=some))

    def total(self, task: Callable[..., np.ndarray], sent: UsersAt, *shared: Any) -> np.ndarray:
        """The sum of the task's results; the workers add up, and one array is fetched."""

        def add(a: Any, b: Any) -> Any:
            return self.client.submit(np.add, a, b, pure=False)

        total: np.ndarray = self._repeated(lambda: [tree_sum(self._submit(task, sent, shared), add)])[0]
        return total

    def constant(self) -> float:
        """The sum of the parts' constants."""
        found = self._repeated(lambda: self._of_placed(_constant_of))
        return float(functools.reduce(float.__add__, found, 0.0))

    def digest(self) -> str:
        """A hash of all parts."""
        return " ".join(self._repeated(lambda: self._of_placed(_digest_of)))

    def _of_placed(self, task: Callable[[PlacedPart], Any]) -> list[Any]:
        where = {"allow_other_workers": False, "pure": False}
        return [
            self.client.submit(task, placed, workers=[home], **where)
            for placed, home in zip(self.placed, self.homes, strict=True)
        ]

    def _submit(
        self,
        task: Callable[..., Any],
        sent: UsersAt,
        shared: tuple[Any, ...],
        own: Sequence[Any] | None = None,
        numbers: range | None = None,
    ) -> list[Any]:
        """Futures of the task on each part, or on some; arguments are sent to each worker once."""
        workers = sorted(set(self.homes))
        if self.last is None or self.last[0] is not sent or self.last[1] != workers:
            self.last = sent, workers, self._send([sent._replace(Q=NOTHING, before=None)], workers)
        first, Q = self.last[2], self._send_rows(sent.Q, workers, sent.before)
        if task is loss_of_users:  # the next sweep needs the same rows
            others = {worker: [future] for worker, future in self._send_rows(shared[0], workers).items()}
        else:
            others = self._send(list(shared), workers)
        return [
            self.client.submit(
                _run,
                self.placed[k],
                task,
                *first[self.homes[k]],
                Q[self.homes[k]],
                *others[self.homes[k]],
                *(() if own is None else (own[k],)),
                workers=[self.homes[k]],
                allow_other_workers=False,
                pure=False,
            )
            for k in numbers or range(len(self.homes))
        ]

    def _send_rows(
        self, rows: np.ndarray, workers: list[str], before: tuple[np.ndarray, np.ndarray] | None = None
    ) -> dict[str, Any]:
        """Futures of the items' rows for each worker, which keep the last two.

        If the workers have the rows as they were `before` a rotation, they rotate them.
        """
        known = {id(own): futures for own, at, futures in self.kept if at == workers}
        if id(rows) in known:
            return known[id(rows)]
        if before is not None and id(before[0]) in known:
            have, where = known[id(before[0])], {"allow_other_workers": False, "pure": False}
            futures = {
                worker: self.client.submit(_rotated, have[worker], before[1], workers=[worker], **where)
                for worker in workers
            }
        else:
            futures = {worker: only for worker, (only,) in self._send([rows], workers).items()}
        self.kept = [*self.kept[-1:], (rows, workers, futures)]
        return futures

    def _send(self, values: list[Any], workers: list[str]) -> dict[str, list[Any]]:
        """Futures of the values for each worker.

        A worker that dies while values are passed on can block Dask's broadcasts for as long as the scheduler runs.
        After the first one without an answer, this process sends the values to each worker itself.
        """
        if not values or self.broadcasts:
            return dict.fromkeys(workers, self._scatter(values, workers, broadcast=True) if values else [])
        return {worker: self._scatter(values, [worker]) for worker in workers}

    def _scatter(self, values: list[Any], workers: list[str], broadcast: bool = False) -> Any:
        direct = self.cluster.reaches(workers)
        options = {"workers": workers, "broadcast": broadcast, "hash": False, "direct": direct}
        limit = BROADCAST_WITHIN if broadcast else _dask.ANSWERS_WITHIN
        try:
            return within(limit, lambda: self.client.scatter(values, **options), self.cluster.check_connection)
        except ClusterError:
            raise
        except Exception as error:
            self.cluster.reached = None  # what answers at a worker's address may be another machine
            if isinstance(error, TimeoutError):
                self.broadcasts = self.broadcasts and not broadcast
                self.cluster.look(_dask.AGAIN_WITHIN)
            raise WorkerLost(f"{type(error).__name__}: {error}") from None

    def _repeated(self, submit: Callable[[], list[Any]]) -> list[Any]:
        """The results of the futures that `submit` makes, which is called again after a worker was lost."""
        reason = ""
        for attempt in range(ATTEMPTS):
            try:
                self._place()
                return self._results(submit())
            except WorkerLost as lost:
                reason, self.last, self.kept = str(lost), None, []
                self.attempts += 1
                self.cluster.look()
                time.sleep(min(attempt, 5))
        raise ClusterError(
            f"{ATTEMPTS} attempts at one step failed ({reason[:200]}): check the workers, then fit again"
        )

    def _place(self) -> None:
        """Place the parts that no living worker has, on the workers with the fewest parts."""
        if time.monotonic() - self.cluster.looked > LOOK_EVERY:  # a step waits anyway, and looks then
            self.cluster.look()
        alive = self.cluster.alive
        if not alive:
            self.cluster.wait_for_workers()
            alive = self.cluster.alive
        there = ("finished", "pending")  # a part that is being built
        lost = [k for k, home in enumerate(self.homes) if home not in alive or self.placed[k].status not in there]
        load = {worker: sum(home == worker for home in self.homes) for worker in sorted(alive)}
        first = not any(self.homes)
        for place, k in enumerate(lost):  # at first neighbours go to one worker, so that sums stay there
            home = sorted(alive)[place * len(alive) // len(lost)] if first else min(load, key=lambda w: (load[w], w))
            self.placed[k] = self._put(self.parts[k], home)
            self.homes[k] = home
            load[home] += 1

    def _put(self, part: ProblemPart | ExactTerms, home: str) -> Any:
        """The future of a part on a worker, which builds it if it sees the files."""
        if isinstance(part, ProblemPart):
            return self._scatter([PlacedPart(part)], [home])[0]
        if self.built_there:
            (terms,) = self._scatter([part.without_seen()], [home])
            return self.client.submit(_built_there, terms, workers=[home], allow_other_workers=False, pure=False)
        here, items = built(part)
        return self._scatter([PlacedPart(here, items.constant)], [home])[0]

    def _results(self, futures: list[Any]) -> list[Any]:
        """The futures' results; WorkerLost if they cannot be had."""
        from distributed import CancelledError

        waiting = list(futures)
        while waiting:
            try:
                waiting = list(_dask.wait(self.client, waiting).not_done)
            except CancelledError:  # Dask forgets a task whose part was lost with its worker
                self.client.cancel(futures, force=True)
                raise WorkerLost("a worker died with its part") from None
            except TimeoutError:
                alive, silent = self.cluster.look()
                gone = set(self.homes) - alive
                if gone:
                    self.homes = ["" if home in gone else home for home in self.homes]
                    self.client.cancel(futures, force=True)
                    raise WorkerLost(f"{len(gone)} workers are {'silent' if gone & silent else 'gone'}") from None
        for future in futures:
            if future.status == "error":
                error = future.exception(timeout=_dask.ANSWERS_WITHIN)
                if type(error).__name__ in _dask.LOST:
                    raise WorkerLost(type(error).__name__)
                if isinstance(error, InputError):  # of files
                    raise error
                reason = f"{type(error).__name__}: {str(error)[:200]}"
                remedy = "free memory there" if isinstance(error, MemoryError) else "see its log"
                raise ClusterError(f"a Dask worker failed ({reason}): {remedy}, and fit again")
        try:
            limit, direct = _dask.ANSWERS_WITHIN + self._seconds(), self.cluster.reaches(self.homes)
            return list(
                within(limit, lambda: self.client.gather(futures, direct=direct), self.cluster.check_connection)
            )
        except ClusterError:
            raise
        except Exception as error:
            self.cluster.reached = None  # as above
            if isinstance(error, TimeoutError):
                self.cluster.look(_dask.AGAIN_WITHIN)
            raise WorkerLost(f"{type(error).__name__}: {error}") from None

    def _seconds(self) -> float:
        """How long fetching the largest results may take, at 10 MB a second."""
        return 1e-7 * 4 * 256 * sum(self.sizes)


class Parted(Cpu):
    """Training in parts: exact problems of more than one part are solved on a cluster, or part by part here.

    With a directory, every problem is solved in parts, also in one, and its state is kept after every sweep.
    """

    def __init__(self, parts: int | None, client: Any = None, directory: str | None = None):
        self.parts, self.client, self.directory = parts, client, directory
        self.stored: StoredParts | None = None  # the last problem in files
        self.used_workers = False

    @property
    def solves_in_parts(self) -> bool:
        return self.directory is not None

    def close(self) -> None:
        """Remove the part files."""
        if self.stored is not None:
            self.stored.remove()

    def row_solver(self, exact: ExactTerms, rows: Extended, threads: int = 1) -> Solver:
        seen, client = exact.unobserved.pairs.seen, self.client
        bounds = user_bounds(seen.indptr, self.parts or max(1, -(-len(seen.items) // PAIRS_PER_PART)))
        pool = WorkPool(threads)
        if exact.tolerance is not None and exact.folder is None and len(seen.items) <= PAIRS_PER_PART:
            client = None  # one of many small problems that compare candidates: messages would take most of the time
        if self.directory is not None and client is None:
            return self._from_files(exact, bounds, rows.Q, pool)
        if len(bounds) == 2 and self.directory is None and (exact.folder is None or client is None):
            return RowSolver(exact.problem(), rows, threads)
        self.used_workers = self.used_workers or client is not None
        if client is not None and exact.folder is not None:
            on_workers = DaskParts(client, TermsByRange(exact, bounds), self.directory)
            items = ItemsSide.of(exact.of_users(0, 0).problem())._replace(constant=on_workers.constant())
            return PartedSolver(items, rows.Q, on_workers)
        parts: list[ProblemPart] = []
        items = build(exact, bounds, parts.append)
        if client is not None:
            return PartedSolver(items, rows.Q, DaskParts(client, parts, self.directory))
        return PartedSolver(items, rows.Q, LocalParts([PartState(part, pool) for part in parts]))

    def _from_files(self, exact: ExactTerms, bounds: list[int], Q: np.ndarray, pool: WorkPool) -> Solver:
        """A solver of parts in files; the problem is built range by range."""
        self.close()  # a problem is solved and its rows are fetched before the next one is built
        stored = self.stored = StoredParts(str(self.directory), Q.shape[1], pool)
        return PartedSolver(build(exact, bounds, lambda part: stored.add(part, len(Q))), Q, stored)

    def checkpoint(self, loop: EpochLoop, solver: Solver) -> Callable[[], None]:
        if self.directory is None or not isinstance(solver, PartedSolver):
            return lambda: None
        parts = solver.parts
        assert isinstance(parts, StoredParts | DaskParts)
        kept = Checkpoint(self.directory, loop, solver, parts.digest())
        kept.restore()
        return kept.write


def check_parts(method: Any, parts: Any, scheduler: Any, parts_dir: Any) -> None:
    """Refuse parts, a scheduler or a directory for a (resolved) method that cannot use them."""
    if parts is None and scheduler is None and parts_dir is None:
        return
    others = option("scheduler") if scheduler is not None else option("parts_dir")
    given = others if scheduler is not None or parts is None else setting("parts", parts)
    if not method.solves_rows:
        raise InputError(f"{given} is for methods with row solves, such as dub-x and ials, not for this {method.name}")
    if method.chosen_solver() != "exact":
        reason, remedy = setting("backbone", method.backbone), f"take {setting('backbone', 'mf')}"
        if method.backbone == "mf":
            reason, remedy = f"solver={method.chosen_solver()!r}", "set solver='exact'"
        raise InputError(f"{given} is for row solves, which {method.name} with {reason} has not: {remedy}")
    if method.device != "cpu":
        raise InputError(f"{given} and device={method.device!r} exclude each other: leave one of them out")
    if parts is not None:
        _check.whole("parts", parts)


@contextlib.contextmanager
def device_for(method: Any, parts: int | None, scheduler: Any, quiet: bool, parts_dir: Any = None) -> Iterator[Device]:
    """The device of a fit: the one that the (resolved) method names, or parts of its problem here or on a cluster."""
    check_parts(method, parts, scheduler, parts_dir)
    if parts is None and scheduler is None and parts_dir is None:
        yield device_named(method.device, quiet)
        return
    with contextlib.ExitStack() as stack:
        directory = None if parts_dir is None else stack.enter_context(locked(parts_dir))
        client = scheduler
        if isinstance(scheduler, str):
            client = connect(scheduler)
            stack.callback(_close, client)
        device = Parted(parts, client, directory)
        stack.callback(device.close)
        try:
            yield device
            if client is not None and not device.used_workers:
                warnings.warn(
                    f"the workers were not used: the log makes one part of up to {PAIRS_PER_PART:,} pairs; "
                    f"{option('parts')} cuts it into more",
                    stacklevel=2,
                )
        except ClusterError as error:
            if directory is None:
                raise
            raise ClusterError(f"{error}; finished sweeps are kept in {directory!r}") from None


def _close(client: Any) -> None:
    with contextlib.suppress(Exception):
        client.close(timeout=CLOSE_WITHIN)
