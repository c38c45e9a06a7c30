"""What a fitted model offers: ranked lists, evaluation, files for other programs, new users, display in notebooks."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, Protocol

import numpy as np

from dubnb import _check, _dask, _files, _memory, _progress, metrics
from dubnb._check import InputError, option, switch
from dubnb._jit import one_blas_thread
from dubnb.backbones import MF
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.data.pattern import Pattern
from dubnb.evaluation import CalibratedScorer, evaluate, top_k
from dubnb.methods import _fold_in, _model_file, _other_log
from dubnb.methods._fold_in import average_user

if TYPE_CHECKING:
    import pandas as pd

    from dubnb.backbones import Weights
    from dubnb.data.ids import Ids
    from dubnb.head import Head
    from dubnb.methods._fold_in import RowObjective

JUDGED = ("full-ranking", (5, 10), "S_te")  # how a model is evaluated before it is refitted on everything
NAMED_AT_MOST = 10  # users that a warning names
BLOCKS_OF_TASK = 64  # that a worker ranks at a time
EXPORTED_AT_ONCE = 1 << 18  # rows of a side
BLOCK_SCORES = 1 << 22  # scores held in memory at a time
COLUMNS = ("user", "rank", "item", "score", "fallback")  # columns of `recommend_all`
ARROW_TYPES = {"i": "int64", "u": "uint64", "U": "string"}  # types of ids in a Parquet file, by NumPy's letter
TABLES = {"user": "users.parquet", "item": "items.parquet"}  # files of `export`
DASHES = ("-", "--", ":", "-.")


class LoadedFile(NamedTuple):
    """The path of a model's file, and what changes when another file takes its place."""

    path: str
    size: int
    written: int  # when, in nanoseconds

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> LoadedFile | None:
        """The file at `path`, or None if there is none."""
        status = _files.stat_or_none(path)
        return None if status is None else cls(os.path.abspath(path), status.st_size, status.st_mtime_ns)


class Serving:
    """The methods of a fitted model. Users and items are original ids."""

    if TYPE_CHECKING:  # for type checkers only: at run time, annotated fields are parameters
        name: ClassVar[str]
        history_rows_: list[dict[str, Any]]
        params_: dict[str, Any]
        weights_: Weights
        user_ids_: Ids
        item_ids_: Ids
        seen_: Pattern  # what users have had: the biased log, and the positives of S_t
        cold_: np.ndarray  # users that the model has learned nothing about
        row_objective_: RowObjective | None
        data_: dict[str, str]
        trained_: np.ndarray | None  # sorted hashes of the randomized pairs that it was trained or chosen on
        lengths_: dict[str, int] | None  # the epoch that each stage kept
        refit_: dict[str, Any] | None  # what it was refitted on, "S_va" or "all", and how many pairs that is
        head_: Head | None  # the head whose offsets are part of the weights
        judged_: dict[str, Any] | None  # with refit="all", the metrics on S_te of the model before
        file_: LoadedFile | None  # the file that the model was loaded from

    @property
    def history_(self) -> pd.DataFrame:
        """A row per epoch: stage, epoch, every term's loss, the validation metric, seconds of training alone."""
        import pandas as pd  # only here: importing pandas takes longer than many fits

        if not hasattr(self, "history_rows_"):
            raise AttributeError("history_ exists after fit: call fit(data)")
        return pd.DataFrame(self.history_rows_)

    def _fitted(self) -> Weights:
        raise NotImplementedError

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities from raw scores."""
        raise NotImplementedError

    def _shape(self) -> tuple[int, int]:
        return len(self.user_ids_), len(self.item_ids_)

    @one_blas_thread()
    def recommend(self, users: Any, k: int = 10, exclude: Any = None) -> Lists:
        """The k best items for each user and their raw scores: two arrays of shape (users, k), best first.

        A k above the number of items means all items: the arrays have a column per item. Ties go to the item that is
        first in id order. If a user has fewer than k items left, the row is padded with score nan and item -1 (or ""
        if ids are strings). Users that the model does not know, or has learned nothing about, get the average user's
        list. A warning names the unknown users, and the result's `fallback`, a bool per row, is true for both.

        Parameters
        ----------
        users : id or list of ids
            The users.
        k : int
            Items per user.
        exclude : sparse matrix or False, optional
            Pairs not to recommend. By default these are the users' pairs in the biased log and the positives of S_t;
            False excludes none.
        """
        weights = self._fitted()
        k = _check.whole("k", k)
        users = self.user_ids_.listed(users, "user")
        rows = self.user_ids_.find(users)
        if (rows < 0).any():
            names = ", ".join(str(user) for user in users[rows < 0][:NAMED_AT_MOST])
            warnings.warn(
                f"{int((rows < 0).sum())} unknown users, not in the training data, get the average list: {names}",
                stacklevel=3,
            )
        excluded = excluded_pairs(exclude, self.seen_, self._shape())
        return _padded_lists(Lister(weights, self.cold_), rows, self.item_ids_, k, excluded)

    def recommend_all(
        self,
        path: str | os.PathLike[str],
        k: int = 10,
        *,
        users: Any = None,
        candidates: Any = None,
        exclude: Any = None,
        overwrite: bool = False,
        quiet: bool = True,
        scheduler: Any = None,
    ) -> int:
        """Write every user's list to a CSV or Parquet file, block by block; returns the number of rows.

        The columns are user, rank (from 1), item, score and fallback (true if the list is the average user's). In CSV,
        text ids that begin with = + - @ or a control character get an apostrophe in front, so that no spreadsheet runs
        them as a formula.

        Parameters
        ----------
        path : path
            The file to write, which ends in .csv or .parquet (which needs pyarrow).
        k : int
            Items per user.
        users : list of ids, optional
            The users; by default all that the model knows.
        candidates : list of item ids or sparse matrix, optional
            The items that may be listed: for everyone, or by user (a row per user of the training data, a column per
            item).
        exclude : sparse matrix or False, optional
            As in `recommend`.
        overwrite : bool
            Whether to replace an existing file.
        quiet : bool
            Whether to hide the progress bar.
        scheduler : str or distributed.Client, optional
            A Dask cluster whose workers make the lists. They load the model from its file, which they must see. The
            result is the same.
        """
        lister = Lister(self._fitted(), self.cold_)
        names = self.user_ids_.values if users is None else self.user_ids_.listed(users, "user")
        rows = np.arange(len(names)) if users is None else self.user_ids_.find(names)
        excluded = excluded_pairs(exclude, self.seen_, self._shape())
        k, allowed, about = _check.whole("k", k), self._allowed(candidates), (names, lister.fallback(rows))
        if scheduler is None:
            lists = lister.blocks(rows, k, excluded, allowed)
            return _write_lists(lists, about, self.item_ids_, path, overwrite, quiet)
        if self.file_ is None:
            raise InputError(f"{option('scheduler', '')} needs a model from a file: save it, then load it")
        if not (exclude is None or exclude is False) or isinstance(allowed, Pattern):
            raise InputError(f"pairs to list or exclude are not sent to workers: leave {option('scheduler', '')} out")
        size = BLOCKS_OF_TASK * max(1, BLOCK_SCORES // len(self.item_ids_))
        model = type(self), self.file_
        calls = [(*model, rows[at : at + size], at, k, exclude, allowed) for at in range(0, len(rows), size)]
        with _dask.tasks(scheduler, [os.path.dirname(self.file_.path)], "all lists are made here") as each:
            lists = itertools.chain.from_iterable(each(ranked_blocks, calls))
            return _write_lists(lists, about, self.item_ids_, path, overwrite, quiet)

    def _allowed(self, candidates: Any) -> Pattern | np.ndarray | None:
        if candidates is None:
            return None
        if hasattr(candidates, "tocsr"):
            return excluded_pairs(candidates, self.seen_, self._shape())
        allowed = np.zeros(len(self.item_ids_), dtype=bool)
        allowed[self.item_ids_.rows(self.item_ids_.listed(candidates, "candidate"), "item")] = True
        return allowed

    def evaluate(
        self,
        data: Partition,
        protocol: str = "full-ranking",
        ks: Sequence[int] = (5, 10),
        *,
        part: str = "S_te",
        unknown: str = "leave-out",
        keep_trained: bool = False,
        scheduler: Any = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Metrics under one protocol, on the model's own log or on another one, such as next week's.

        `dubnb.evaluate` describes the metrics and the other parameters. On another log the candidates are the items
        that the model knows, without what the user had in either log. Pairs that the model was trained on (S_t, and
        what it was refitted on) or chosen on (S_va) are left out there. The result then has "unknown_users",
        "unknown_items", "left_out_pairs" and "trained_pairs_left_out" (None if the model's file does not record them),
        and a warning gives the same counts.

        A model that was refitted on everything has trained on S_te of its own log. There the result is that of the
        model before the refit, with "refit": "all".

        Parameters
        ----------
        data : Partition
            The logs.
        protocol, ks, part
            As in `dubnb.evaluate`.
        unknown : {"leave-out", "fallback"}
            Whether pairs of users that the model does not know are left out or scored for the average user. Pairs of
            unknown items are always left out.
        keep_trained : bool
            Whether to include pairs that the model was trained or chosen on.
        scheduler : str or distributed.Client, optional
            A Dask cluster whose workers rank the users of the model's own log. They load the model from its file,
            which they must see. The result is the same.
        """
        weights = self._fitted()
        if not isinstance(data, Partition):
            raise InputError(f"data is a {type(data).__name__}: pass a Partition, such as dubnb.load_dataset returns")
        _check.choice("unknown", unknown, _other_log.UNKNOWN)
        if scheduler is not None and self.file_ is None:
            raise InputError(f"{option('scheduler', '')} needs a model from a file: save it, then load it")
        if data.fingerprint == self.data_["fingerprint"]:
            if self.refit_ is not None and self.refit_["on"] == "all" and not keep_trained:
                plain = (protocol, tuple(ks), part) == JUDGED and not options.get("per_user")
                return self._judged_before(data, part, plain)
            if scheduler is None:
                return evaluate(CalibratedScorer(weights, self.probabilities), data, protocol, ks, part=part, **options)
            folder = os.path.dirname(self.file_.path) if self.file_ is not None else ""
            with _dask.tasks(scheduler, [folder], "users are ranked here") as each:
                here = each is itertools.starmap  # the workers do not see the file
                scorer = FileScorer(self, self.file_, None if here else each)
                return evaluate(scorer, data, protocol, ks, part=part, **options)
        if scheduler is not None:
            raise InputError(
                f"{option('scheduler', '')} is for the log that the model was fitted on, and {data.name} is another: "
                f"leave {option('scheduler', '')} out"
            )
        trained = _other_log.NONE if keep_trained else self.trained_
        aligned = _other_log.aligned(data, (self.user_ids_, self.item_ids_), self.seen_, part, unknown, trained)
        _other_log.warn_about(aligned, self.data_["name"], data, unknown)
        other = _other_log.WithAverage(weights, average_user(weights, self.cold_), aligned.rows)
        calibrated = CalibratedScorer(other, self.probabilities)
        return evaluate(calibrated, aligned.data, protocol, ks, part=part, **options) | _other_log.counts(aligned)

    def _judged_before(self, data: Partition, part: str, plain: bool) -> dict[str, Any]:
        """The metrics on S_te of the model before it was refitted on everything."""
        n = len(data.triplets(_check.choice("part", part, RANDOMIZED)).users)
        if not self.judged_ or not plain:
            raise InputError(
                f"the model was refitted on all of {data.name}, with the {n:,} pairs of {part}: it keeps earlier "
                f"metrics of S_te only, full-ranking, K 5 and 10; {option('keep_trained', '')} evaluates it anyway"
            )
        return self.judged_ | {"refit": "all", "trained_pairs_left_out": n}

    @one_blas_thread()
    def fold_in(self, items: Any, labels: Any = None) -> _fold_in.NewUser:
        """A new user from a short history, by one exact row solve (mf; bce or squared).

        Parameters
        ----------
        items : list of ids
            The items of the history.
        labels : list of numbers, optional
            1 for a positive, 0 for a negative. With graded targets, a negative's grade, from 0 to below 1. With rates,
            the share of the item's impressions that were positive. By default all are positive.
        """
        weights = self._fitted()
        if self.row_objective_ is None or not isinstance(weights, MF):
            raise InputError(
                f"{self.name} ({self.params_['backbone']}, {self.params_['loss']}) has no exact row solve: fold_in "
                "needs mf with the loss bce or squared, term c and no learned weights; use another method"
            )
        own = _fold_in.history(self.item_ids_, self.params_, items, labels)
        weights = _fold_in.without_head(weights, self.head_)
        row = _fold_in.solve(weights, self.row_objective_, self.params_["loss"], own.items, own.observed)
        new = _fold_in.new_user_with_head(_fold_in.as_weights(row, weights), self.head_, own)
        return _fold_in.NewUser(new, self.item_ids_, own.items)

    @one_blas_thread()
    def similar_items(self, items: Any, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """The k items most similar to each of `items`, and their similarity: two arrays (items, k), best first.

        Similarity is the cosine of the factors, which ignores popularity (the biases).
        """
        weights = self._fitted()
        rows = self.item_ids_.rows(self.item_ids_.listed(items, "item"), "item")
        return _similar_items(weights, self.item_ids_, rows, _check.whole("k", k))

    def export(self, directory: str | os.PathLike[str], overwrite: bool = False) -> list[str]:
        """Write embeddings whose plain inner product is `decision_function`, as .npy and Parquet (mf).

        See docs/deployment.md. Returns the names of the files: user_vectors.npy, item_vectors.npy, user_ids.npy and
        item_ids.npy (rows in the same order), and, if pyarrow is installed, users.parquet and items.parquet.
        """
        return _export(self._fitted(), self.user_ids_, self.item_ids_, directory, overwrite)

    def plot_history(self, ax: Any = None) -> Any:
        """Plot the validation metric of every epoch, a line per stage, on matplotlib's axes (new ones by default).

        A dot marks the epoch that a stage kept; there is none if it kept its start.
        """
        self._fitted()
        history = self.history_
        if ax is None:
            try:
                import matplotlib.pyplot as plt
            except ModuleNotFoundError:
                raise InputError("plot_history needs matplotlib: install the extra 'report'") from None
            ax = plt.subplots(figsize=(6, 3.5), layout="constrained")[1]
        monitor = next(name for name in history if name.startswith("va_"))
        start = 0
        for number, (stage, rows) in enumerate(history.groupby("stage", sort=False)):
            epochs = start + rows["epoch"].to_numpy()
            (line,) = ax.plot(epochs, rows[monitor], DASHES[number % len(DASHES)], label=stage)
            kept = (rows["epoch"] == (self.lengths_ or {}).get(stage, 0)).to_numpy()
            if rows[monitor].notna().any():
                ax.plot(epochs[kept], rows[monitor][kept], "o", color=line.get_color())
            start = int(epochs[-1])
        ax.set_xlabel("epoch")
        ax.set_ylabel(f"{metrics.metric_label(monitor.removeprefix('va_'))} on S_va")
        if len(history["stage"].unique()) > 1:
            ax.legend(frameon=False)
        return ax

    def _repr_html_(self) -> str:
        return _model_html(self, self.history_ if hasattr(self, "history_") else None)

    def get_params(self, deep: bool = True) -> Mapping[str, Any]:
        raise NotImplementedError


# -- lists


class Lists(tuple):  # type: ignore[type-arg]
    """(items, scores) of some users, and `fallback`: true if a list is the average user's."""

    fallback: np.ndarray

    def __new__(cls, items: np.ndarray, scores: np.ndarray, fallback: np.ndarray) -> Lists:
        lists = super().__new__(cls, (items, scores))
        lists.fallback = fallback
        return lists


class Block(NamedTuple):
    """The lists of a block of users."""

    places: np.ndarray  # positions of these users among all that were asked for
    top: np.ndarray  # (users, k) item rows, -1 after the end of a list
    scores: np.ndarray  # (users, k), nan after the end of a list


class Lister:
    """Ranks items for rows of users; row -1 is a user that the model does not know."""

    def __init__(self, weights: Weights, cold: np.ndarray):
        self.weights, self.cold, self.n_items = weights, cold, len(weights.items)

    @functools.cached_property
    def average(self) -> Weights:
        """The average user, which takes a pass over all users."""
        return average_user(self.weights, self.cold)

    def fallback(self, rows: np.ndarray) -> np.ndarray:
        """Which rows get the average user's scores: unknown users, and those that the model learned nothing about."""
        return (rows < 0) | self.cold[rows]

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Scores of all items, a row per user."""
        scores = self.weights.score_rows(np.maximum(rows, 0))
        if (rows < 0).any():
            scores[rows < 0] = self.average.score_rows(np.zeros(1, np.int64))[0]
        return scores

    def blocks(
        self, rows: np.ndarray, k: int, excluded: Pattern, allowed: Pattern | np.ndarray | None = None
    ) -> Iterator[Block]:
        """The k best items of every row outside `excluded`.

        allowed: candidates per user (an unknown user has none), or a bool per item for everyone.
        """
        size = max(1, BLOCK_SCORES // self.n_items)
        for start in range(0, len(rows), size):
            own = rows[start : start + size]
            known = own >= 0
            barred = np.zeros((len(own), self.n_items), dtype=bool)
            barred[known] = excluded.mask(own[known], self.n_items)
            if isinstance(allowed, np.ndarray):
                barred |= ~allowed
            elif allowed is not None:
                barred[known] |= ~allowed.mask(own[known], self.n_items)
                barred[~known] = True
            scores = self.scores(own)
            top = top_k(scores, min(k, self.n_items), barred)
            best = np.take_along_axis(scores, np.maximum(top, 0), axis=1).astype(np.float32)
            yield Block(np.arange(start, start + len(own)), top, np.where(top >= 0, best, np.float32(np.nan)))


def ranked_blocks(
    cls: Any,
    file: LoadedFile,
    rows: np.ndarray,
    first: int,
    k: int,
    exclude: Any,
    allowed: np.ndarray | None,
) -> list[Block]:
    """The lists of some users by the model in a file; positions are counted from `first`."""
    model = _model_of(cls, file)
    excluded = excluded_pairs(exclude, model.seen_, model._shape())
    blocks = Lister(model._fitted(), model.cold_).blocks(rows, k, excluded, allowed)
    return [block._replace(places=block.places + first) for block in blocks]


class FileScorer(CalibratedScorer):
    """The scores of a model from a file; only the file's name is sent to workers."""

    def __init__(self, model: Serving, file: LoadedFile | None, cluster: Any = None):
        super().__init__(model._fitted(), model.probabilities)
        self.source, self.cluster = (_scorer_of, type(model), file), cluster


def _scorer_of(cls: Any, file: LoadedFile) -> FileScorer:
    return FileScorer(_model_of(cls, file), file)


@functools.lru_cache(maxsize=1)
def _model_of(cls: Any, file: LoadedFile) -> Serving:
    if LoadedFile.of(file.path) != file:
        path = _files.quote_path(file.path)
        raise InputError(f"{path} is not the file that the model was loaded from: load it again")
    return _model_file.load(file.path, {cls.name: cls})


def _padded_lists(lister: Lister, rows: np.ndarray, item_ids: Ids, k: int, excluded: Pattern) -> Lists:
    """Two arrays of shape (users, k), padded after the end of a list."""
    dtype, k = item_ids.values.dtype, min(k, len(item_ids))
    needed = len(rows) * k * (dtype.itemsize + np.dtype(np.float32).itemsize)
    _memory.require(f"k={k} for {len(rows)} users", needed, "lower k, or ask for fewer users at a time")
    padding = np.int64(-1).astype(dtype) if item_ids.kind == "int" else ""  # ids may be uint64
    items = np.full((len(rows), k), padding, dtype=dtype)
    scores = np.full((len(rows), k), np.nan, dtype=np.float32)
    for block in lister.blocks(rows, k, excluded):
        width = block.top.shape[1]
        items[block.places, :width] = np.where(block.top >= 0, item_ids.values[block.top], items[block.places, :width])
        scores[block.places, :width] = block.scores
    return Lists(items, scores, lister.fallback(rows))


def excluded_pairs(exclude: Any, seen: Pattern, shape: tuple[int, int]) -> Pattern:
    """The pairs that are not listed: `seen` by default."""
    if exclude is None:
        return seen
    if exclude is False:
        return Pattern.empty(shape[0])
    if getattr(exclude, "shape", None) != shape or not hasattr(exclude, "tocsr"):
        raise InputError(f"exclude must be a sparse matrix of shape {shape}, None (what users had) or False (nothing)")
    matrix = exclude.tocsr()
    return Pattern.from_csr(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))


# -- files of lists

Columns = tuple[np.ndarray, ...]  # the values of COLUMNS


class Writer(Protocol):
    """Writes a file of lists."""

    def write(self, columns: Columns) -> None:
        """Add some rows."""

    def close(self) -> None:
        """Finish; the file itself stays open."""


def _write_lists(
    lists: Iterator[Block],
    users: tuple[np.ndarray, np.ndarray],
    item_ids: Ids,
    path: str | os.PathLike[str],
    overwrite: bool,
    quiet: bool,
) -> int:
    """Write lists block by block; `users` are (ids, fallback) of all rows. Returns the number of rows written."""
    names, fallback = users
    new_writer = writer_of(path)
    written = 0
    bar = _progress.bar(total=len(names), desc="recommend", unit="user", quiet=quiet)
    with _files.atomic_write(path, overwrite) as file, one_blas_thread(), bar:
        out = new_writer(file, names, item_ids.values)
        try:
            for block in lists:
                listed = block.top >= 0
                row, rank = np.nonzero(listed)
                place = block.places[row]
                out.write(
                    (names[place], rank + 1, item_ids.values[block.top[listed]], block.scores[listed], fallback[place])
                )
                written += len(row)
                bar.update(len(block.places))
        except BaseException:
            with contextlib.suppress(Exception):  # pyarrow would do it later, on the closed file, and print a traceback
                out.close()
            raise
        out.close()
    return written


def writer_of(path: Any) -> Callable[[BinaryIO, np.ndarray, np.ndarray], Writer]:
    """The class that writes files with this ending, made from (file, ids of users, ids of items)."""
    ending = os.path.splitext(os.fsdecode(path))[1].lower()
    if ending == ".csv":
        return _Csv
    if ending != ".parquet":
        raise InputError(f"{_files.quote_path(path)} must end in .csv or .parquet")
    try:
        import pyarrow  # noqa: F401
    except ModuleNotFoundError:  # other import errors, such as a lack of memory, have their own message
        raise InputError(
            f"{_files.quote_path(path)}: Parquet needs pyarrow: install the extra 'parquet', or write .csv"
        ) from None
    return _Parquet


class _Csv:
    """UTF-8 with a header line. Ids that a spreadsheet would run as a formula get an apostrophe in front."""

    def __init__(self, file: BinaryIO, users: np.ndarray, items: np.ndarray):
        self.text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogatepass", newline="")
        self.rows = csv.writer(self.text, lineterminator="\n")
        self.rows.writerow(COLUMNS)

    def write(self, columns: Columns) -> None:
        users, ranks, items, scores, fallback = columns
        safe_users, safe_items = (map(_files.spreadsheet_safe, ids.tolist()) for ids in (users, items))
        digits = np.char.mod("%.9g", scores).tolist()  # enough for a float32
        words = np.where(fallback, "true", "false").tolist()
        self.rows.writerows(zip(safe_users, ranks.tolist(), safe_items, digits, words, strict=True))

    def close(self) -> None:
        self.text.detach()


class _Parquet:
    """A row group per block."""

    def __init__(self, file: BinaryIO, users: np.ndarray, items: np.ndarray):
        import pyarrow
        from pyarrow import parquet

        kinds = [ARROW_TYPES[users.dtype.kind], "int32", ARROW_TYPES[items.dtype.kind], "float32", "bool_"]
        self.arrow = pyarrow
        self.schema = pyarrow.schema(
            [(name, getattr(pyarrow, kind)()) for name, kind in zip(COLUMNS, kinds, strict=True)]
        )
        self.out = parquet.ParquetWriter(file, self.schema)

    def write(self, columns: Columns) -> None:
        arrays = [self.arrow.array(value, type=field.type) for value, field in zip(columns, self.schema, strict=True)]
        self.out.write_table(self.arrow.Table.from_arrays(arrays, schema=self.schema))

    def close(self) -> None:
        self.out.close()


# -- export and similar items


def _export(
    weights: Weights, user_ids: Ids, item_ids: Ids, directory: str | os.PathLike[str], overwrite: bool
) -> list[str]:
    """Write vectors and ids of both sides, see `Serving.export`.

    Vectors are extended rows, [p, b_u + b0, 1] and [q, 1, b_i], so that biases are part of the product.
    """
    users: Callable[[int, int], np.ndarray]
    if isinstance(weights, MF):  # its users may be on disk
        users, Q = weights.extended_users, np.ascontiguousarray(_fold_in.item_rows(weights))
    elif hasattr(weights, "extended"):
        P, Q = weights.extended()
        users = functools.partial(_rows_between, P)
    else:
        raise InputError("export needs backbone='mf': ncf's score is not an inner product; fit with backbone='mf'")
    items = functools.partial(_rows_between, Q)
    sides: dict[str, tuple[Ids, Callable[[int, int], np.ndarray]]] = {
        "user": (user_ids, users),
        "item": (item_ids, items),
    }
    os.makedirs(directory, exist_ok=True)
    names = [f"{side}_{what}.npy" for side in sides for what in ("vectors", "ids")]
    has_arrow = find_spec("pyarrow") is not None
    names += list(TABLES.values()) if has_arrow else []
    for name in names:
        if not overwrite and os.path.exists(os.path.join(directory, name)):
            raise InputError(
                f"{_files.quote_path(directory)} already has a {name}: choose another directory or use "
                f"{switch('overwrite')}"
            )
    with contextlib.ExitStack() as files:  # all of them are renamed at the end, or none is left

        def new(name: str) -> BinaryIO:
            return files.enter_context(_files.atomic_write(os.path.join(directory, name), overwrite))

        for side, (ids, rows) in sides.items():
            file = new(f"{side}_vectors.npy")
            header = {"descr": "<f4", "fortran_order": False, "shape": (len(ids), Q.shape[1])}
            np.lib.format.write_array_header_1_0(file, header)
            for first in range(0, len(ids), EXPORTED_AT_ONCE):
                file.write(rows(first, min(first + EXPORTED_AT_ONCE, len(ids))).data)
            np.save(new(f"{side}_ids.npy"), ids.values, allow_pickle=False)
            if has_arrow:
                _write_parquet(new(TABLES[side]), side, ids.values, rows, Q.shape[1])
    return names


def _rows_between(rows: np.ndarray, first: int, last: int) -> np.ndarray:
    return rows[first:last]


def _write_parquet(
    file: IO[bytes], side: str, ids: np.ndarray, rows: Callable[[int, int], np.ndarray], width: int
) -> None:
    """A row per id: the id, and its vector as a list of fixed length; a row group per block."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema({side: pa.array(ids[:1]).type, "vector": pa.list_(pa.float32(), width)})
    with pq.ParquetWriter(file, schema) as out:
        for first in range(0, len(ids), EXPORTED_AT_ONCE):
            last = min(first + EXPORTED_AT_ONCE, len(ids))
            vector = pa.FixedSizeListArray.from_arrays(pa.array(rows(first, last).ravel()), width)
            out.write_table(pa.Table.from_arrays([pa.array(ids[first:last]), vector], schema=schema))
    file.flush()  # a full disk is seen here, before a file is renamed


def _similar_items(weights: Weights, item_ids: Ids, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The most similar items of each of `rows` by the cosine of their factors, without the item itself."""
    factors = np.asarray(weights.items[:, : weights.rank], dtype=np.float32)
    lengths = np.sqrt((factors.astype(np.float64) ** 2).sum(axis=1)).astype(np.float32)
    factors = factors / np.maximum(lengths, np.finfo(np.float32).tiny)[:, None]
    k = min(k, len(item_ids) - 1)
    items, similarity = np.empty((len(rows), k), item_ids.values.dtype), np.empty((len(rows), k), np.float32)
    size = max(1, BLOCK_SCORES // len(item_ids))
    for start in range(0, len(rows) if k else 0, size):
        block = slice(start, start + size)
        own = rows[block]
        scores = factors[own] @ factors.T
        top = top_k(scores, k, np.arange(len(item_ids)) == own[:, None])
        items[block], similarity[block] = item_ids.values[top], np.take_along_axis(scores, top, axis=1)
    return items, similarity


# -- notebooks


def _model_html(model: Any, history: pd.DataFrame | None) -> str:
    """A table: the parameters, and if fitted the data, the epochs and the best validation metric."""
    rows = [("parameters", repr(model))]
    if history is None:
        rows.append(("state", "not fitted: call fit(data)"))
    else:
        monitor = f"va_{model.params_['monitor']}"
        users, items = len(model.user_ids_), len(model.item_ids_)
        rows += [
            ("trained on", f"{model.data_['name']}: {users:,} users x {items:,} items"),
            ("epochs", ", ".join(f"{s} {n}" for s, n in history.groupby("stage", sort=False)["epoch"].count().items())),
            (f"best {monitor.removeprefix('va_')} on S_va", f"{history[monitor].max():.4f}"),
        ]
        chosen = {k: v for k, v in model.params_.items() if model.get_params()[k] is None and v is not None}
        rows.append(
            ("by default", ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in chosen.items()))
        )
    return _progress.html_table(model.name, rows)
