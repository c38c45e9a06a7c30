"""A log as four disjoint, read-only sets of feedback: S_c (biased), S_t, S_va and S_te (randomized)."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from dubnb import _check, _memory
from dubnb._check import InputError, shown
from dubnb._random import mix_arrays
from dubnb.data.grades import labels_and_grades
from dubnb.data.ids import Ids
from dubnb.data.pair_hash import hashes_of_both
from dubnb.data.pattern import Pattern, csr_order, row_pointers, union
from dubnb.data.reading import Reading, ReadOptions, with_options
from dubnb.data.triplets import (
    PARTS,
    RANDOMIZED,
    Triplets,
    check_grades,
    checked_order,
    checked_propensities,
    columns_of,
    pair_keys,
    read_only,
    stored,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from dubnb.data.split import SplitFacts
    from dubnb.data.truth import Truth


RATES = "impressions"  # grades that are mean labels
GRADINGS = {  # what grades are, as a summary says it
    "levels": "the label's place between the least and the greatest",
    "ranks": "the label's rank on its side of the threshold",
    "column": "a column of the log",
    RATES: "the share of a pair's impressions that are positive",
}
REPLACEABLE = ("truth", "propensities", "held_back", "held_back_propensities")  # beside the parts and the name


class Overlap(NamedTuple):
    """Pairs observed under both policies, which is the only place where R^t - R^c can be seen."""

    users: np.ndarray  # int32 rows
    items: np.ndarray  # int32 columns
    policy_labels: np.ndarray  # float32, under the recommendation policy (in S_c, before removal)
    labels: np.ndarray  # float32, under the uniform policy
    parts: np.ndarray  # int8, place of the randomized set in RANDOMIZED


class Partition:
    """S_c, S_t, S_va and S_te as read-only SciPy CSR matrices: every observed pair is stored, 1.0 or 0.0.

    Pairs of the randomized sets are removed from S_c: those of S_t are the more credible, the others would leak.
    `removed` says how many, `overlap` which. `user_ids` and `item_ids` map rows and columns to the original ids.
    `truth`, on simulated data, knows R^t for every pair. `propensities`, where the log has them, are P(observed) of
    S_c's pairs, in the order of `triplets("S_c")`. `held_back` are the rows of the biased log that a split by time left
    out, or None; `split` says how the randomized log was split, where that is known, and `grading` what the grades are
    ("levels", "ranks", "column" or "impressions": docs/logs.md). Build one with `from_frames`,
    `from_table`, `from_matrices` or `dubnb.load_dataset`; `replace` makes another one of it.

    Parameters
    ----------
    triplets : mapping
        For each of "S_c", "S_t", "S_va" and "S_te" the columns (users, items, labels[, weights[, grades]]): row
        numbers, labels 0 or 1, weights above 0, grades from 0 to 1.
    shape : (int, int)
        Users and items.
    user_ids, item_ids : Ids
        The original ids of the rows; without them 0, 1, 2 ...
    truth : object
        What is known of every pair of a simulated log.
    propensities : array
        P(observed), above 0 and at most 1, of the rows of S_c in the order given.
    held_back, held_back_propensities : columns as in `triplets`, and array
        Rows of the biased log that are left out because they are no older than S_va, for `fit(refit="all")`.
    split : SplitFacts
        How the randomized log was split.
    grading : {"levels", "ranks", "column", "impressions"}
        What the grades are. With "impressions" they are mean labels, and any may stand beside either label; else
        grades of negatives must lie below those of positives.
    name : str
        What messages and reports call the data.
    """

    def __init__(
        self,
        triplets: Mapping[str, Sequence[Any]],
        shape: tuple[int, int],
        *,
        user_ids: Ids | None = None,
        item_ids: Ids | None = None,
        truth: Truth | None = None,
        propensities: Any = None,
        held_back: Sequence[Any] | None = None,
        held_back_propensities: Any = None,
        split: SplitFacts | None = None,
        grading: str | None = None,
        name: str = "own data",
    ) -> None:
        self.name = name
        self.n_users, self.n_items = _checked_shape(shape)
        _plan_size(self.n_users, self.n_items)
        self.user_ids = Ids.count(self.n_users) if user_ids is None else user_ids
        self.item_ids = Ids.count(self.n_items) if item_ids is None else item_ids
        for ids, n, what in ((self.user_ids, self.n_users, "users"), (self.item_ids, self.n_items, "items")):
            if len(ids) != n:
                raise InputError(f"{len(ids)} ids for {n} {what}: pass one id per row of the shape")
        self.truth, self.split = truth, split
        self.grading = None if grading is None else _check.choice("grading", grading, tuple(GRADINGS))
        given = {part: columns_of(part, triplets) for part in PARTS}
        late = None if held_back is None else columns_of("held_back", {"held_back": held_back})
        check_grades(given if late is None else given | {"held_back": late}, sided=grading != RATES)
        if late is not None and (propensities is None) != (held_back_propensities is None):
            raise InputError("only one of S_c and held_back has propensities: give both or neither")
        parts = {}
        for part in PARTS:
            order = checked_order(given[part], (self.n_users, self.n_items), part, self._pair)
            parts[part] = stored(given[part], order)
            if part == "S_c" and propensities is not None:
                propensities = checked_propensities(propensities, len(given[part].users))[order]
            del order  # of a large log every array counts
        rows, self.overlap = self._overlap(parts)
        self.removed = len(rows)
        outside = np.ones(len(parts["S_c"].users), dtype=bool)
        outside[rows] = False
        if self.removed:
            parts["S_c"] = parts["S_c"].take(outside)
        if not len(parts["S_c"].users):
            raise InputError("S_c is empty: a biased log with at least one pair outside the randomized sets is needed")
        self._triplets = {part: read_only(columns) for part, columns in parts.items()}
        self._unseen: dict[str, Triplets] = {}
        self._others: dict[str, Pattern] = {}
        self._had: Pattern | None = None  # other pairs of the biased log, see `replace`
        self.propensities: np.ndarray | None = None
        if propensities is not None:
            self.propensities = np.asarray(propensities[outside])
            self.propensities.flags.writeable = False
        self.held_back: Triplets | None = None
        self.held_back_propensities: np.ndarray | None = None
        if late is not None and len(late.users):
            order = checked_order(late, (self.n_users, self.n_items), "held_back", self._pair)
            self.held_back = read_only(stored(late, order))
            if held_back_propensities is not None:
                self.held_back_propensities = checked_propensities(held_back_propensities, len(late.users))[order]
                self.held_back_propensities.flags.writeable = False

    def _overlap(self, parts: Mapping[str, Triplets]) -> tuple[np.ndarray, Overlap]:
        """The rows of S_c whose pairs a randomized set holds too, and what both say; those sets must not overlap."""
        keys = {part: pair_keys(parts[part], self.n_items) for part in RANDOMIZED}
        for i, first in enumerate(RANDOMIZED):
            for second in RANDOMIZED[i + 1 :]:
                shared = np.intersect1d(keys[first], keys[second], assume_unique=True)
                if len(shared):
                    pair = self._pair(*divmod(int(shared[0]), self.n_items))
                    both = f"both {first} and {second} ({len(shared)} such)"
                    raise InputError(f"{pair} is in {both}: randomized sets must not overlap")
        S_c = Pattern.of(parts["S_c"].users, parts["S_c"].items, self.n_users)
        rows, labels, numbers = [], [], []
        for number, part in enumerate(RANDOMIZED):
            places = S_c.find(parts[part].users, parts[part].items)
            shared = places >= 0
            rows.append(places[shared])
            labels.append(parts[part].labels[shared])
            numbers.append(np.full(np.count_nonzero(shared), number, np.int8))
        shared_rows = np.concatenate(rows)
        order = np.argsort(shared_rows)
        taken = parts["S_c"].take(shared_rows[order])
        overlap = Overlap(*taken[:3], np.concatenate(labels)[order], np.concatenate(numbers)[order])
        for column in overlap:
            column.flags.writeable = False
        return shared_rows, overlap

    @classmethod
    def from_matrices(
        cls,
        S_c: Any,
        S_t: Any,
        S_va: Any = None,
        S_te: Any = None,
        *,
        threshold: float | None = None,
        truth: Truth | None = None,
        name: str = "own data",
    ) -> Partition:
        """From SciPy sparse matrices of one shape; labels are the stored values, explicit zeros included.

        With `threshold`, stored values above it are positive, and grades are kept as in `from_frames`.
        """
        entries = {}
        for part, matrix in zip(PARTS, (S_c, S_t, S_va, S_te), strict=True):
            if matrix is None and part != "S_c":
                continue
            entries[part] = _entries(part, matrix)
            if matrix.shape != S_c.shape:
                raise InputError(f"{part} has shape {matrix.shape} but S_c {S_c.shape}: all four need one shape")
        values = [data for *_, data in entries.values()]
        labels, grades, scale = labels_and_grades(values, threshold)
        triplets: dict[str, Sequence[Any]] = {part: ([], [], []) for part in PARTS}
        for (part, (users, items, _)), label, grade in zip(entries.items(), labels, grades, strict=True):
            triplets[part] = (users, items, label, None, grade)
        return cls(triplets, S_c.shape, truth=truth, grading=scale.kind, name=name)

    @classmethod
    @with_options
    def from_frames(cls, biased: Any, random: Any, **options: Unpack[ReadOptions]) -> Partition:
        """From a biased and a randomized log with original ids (int or str).

        Parameters
        ----------
        biased, random : table or path
            Each a pandas DataFrame, anything that speaks Arrow's C interface (a polars DataFrame, an Arrow table), or
            the path of a CSV, TSV (either may end in .gz) or Parquet file, a directory or a pattern of such files.
            Directories may be nested, as in day=0/part.parquet; their names are not read as columns.
            `random` may be a mapping of ready-made splits, {"S_t": ..., "S_va": ..., "S_te": ...}, the last two
            optional.
        user, item : str
            Columns of the ids.
        label : str
            Column of the labels, "label" by default. A log without it is click-only: every row is a positive.
        weight : str
            Column of sample weights; without it every row weighs 1.
        propensity : str
            Column of P(observed), of the biased log alone, for IPS.
        grade : str
            Column of grades from 0 to 1, how much it was liked; those of negatives must lie below those of positives.
        timestamp : str
            Column of times: numbers, dates, or text as ISO 8601 writes dates.
        user_type, item_type : {"str", "int"}
            What ids are to be, whatever the log has; by default as found, in both logs the same.
        threshold : float
            Labels above it are positive; without it they must be 0 or 1. Where labels have more than two levels, grades
            are kept too, unless `grade` names a column: at most 21 levels at even steps, such as stars, by their place
            between the least and the greatest; other labels, such as seconds, by their rank among the labels of the
            biased log on the same side of the threshold.
        duplicates : {"impressions", "first", "last", "max", "mean", "error"}
            What becomes of repeated pairs. "impressions", the default: the label of the first row by time, or of a row
            drawn by a hash of the pair's ids where there is no time; the mean of 0/1 labels as the grade (of ratings,
            and of grades, the mean over the rows on the label's side of the threshold); n rows weigh 2 n / (n + 1)
            times their mean weight. "first", "last": the first or last row stays, by time where there is a time, else
            in the order of the log; "max": the row with the largest label; "mean": the mean of labels, by weight; with
            these four, weights are added. "error": such logs are refused. A warning says what was merged.
        drop_bad : bool
            Whether to drop the rows with a missing or unreadable id, label, grade, time or weight instead of refusing
            the log. A warning says how many, by column.
        split : {"random", "time", "user"}
            How `random` becomes S_t, S_va and S_te: by a hash of each pair's user and item id; by time, past to future,
            and S_c then ends where S_va begins (`held_back` has the later rows); or by a hash of the user's id. By
            hash, a pair that was trained on stays so while the log grows: see docs/logs.md. ("permutation", of the rows
            as they stand, is what the built-in datasets have.)
        shares : (float, float, float)
            Shares of S_t, S_va and S_te, in rows or, with split="user", in users. By default they follow from the
            number of positives: 200 are wanted in S_te, 150 in S_va, and at least 10 % of the rows in each.
        split_seed : int
            Key of the hash, or seed of a permutation.
        sep : str
            What stands between the cells of a text file; by default a tab or comma, or else ; or |, as its header has
            it.
        name : str
            What messages and reports call the data; by default the files' names.
        quiet : bool
            No progress bar, which otherwise appears after two seconds.
        """
        from dubnb.data.table import two_logs

        return cls(**two_logs(biased, random, Reading.of(options))._asdict())

    @classmethod
    @with_options
    def from_table(cls, table: Any, *, is_random: str, **options: Unpack[ReadOptions]) -> Partition:
        """From one log that holds both kinds of traffic.

        Parameters
        ----------
        table : table or path
            As `biased` of `from_frames`, where all other parameters are described too.
        is_random : str
            Column that is 1 or true in the rows of randomized traffic, and 0 or false in the others.
        """
        from dubnb.data.table import one_log

        return cls(**one_log(table, is_random, Reading.of(options))._asdict())

    def replace(
        self,
        *,
        S_c: Triplets | None = None,
        S_t: Triplets | None = None,
        S_va: Triplets | None = None,
        S_te: Triplets | None = None,
        name: str | None = None,
        **others: Any,
    ) -> Partition:
        """The same users and items with other feedback in some parts; what is not given stays.

        Pairs of the biased log that a randomized part of this Partition took from S_c stay out of the new one's S_c.
        They stay in its `logged`, and in its `overlap` as long as a randomized part has them.

        Parameters
        ----------
        S_c, S_t, S_va, S_te : Triplets, optional
            The new feedback. With a new S_c, `propensities` must be given too, or there are none.
        name : str, optional
            What messages and reports call the new log.
        **others
            `truth`, `propensities`, `held_back` and `held_back_propensities` as in the constructor, None for none.
        """
        for other in others:
            _check.choice("parameter", other, REPLACEABLE)
        new = {part: given for part, given in zip(PARTS, (S_c, S_t, S_va, S_te), strict=True) if given is not None}
        kept = {other: getattr(self, other) for other in (*REPLACEABLE, "grading")}
        kept["split"] = None if new else self.split
        if S_c is not None:
            kept["propensities"] = None
        log = Partition(
            self._triplets | new,
            (self.n_users, self.n_items),
            user_ids=self.user_ids,
            item_ids=self.item_ids,
            name=self.name if name is None else name,
            **kept | others,
        )
        log._add_overlap(self.overlap)
        if self.removed or self._had is not None:
            overlap = Pattern.of(self.overlap.users, self.overlap.items, self.n_users)
            log._had = overlap if self._had is None else union([overlap, self._had], self.n_items)
        return log

    def _add_overlap(self, earlier: Overlap) -> None:
        """Add those of the pairs to `overlap` that a randomized part has."""
        known = Pattern.of(self.overlap.users, self.overlap.items, self.n_users)
        fresh = known.find(earlier.users, earlier.items) < 0
        found = [self.overlap]
        for number, part in enumerate(RANDOMIZED):
            places = self.pattern(part).find(earlier.users, earlier.items)
            rows = np.flatnonzero(fresh & (places >= 0))
            labels = self._triplets[part].labels[places[rows]]
            numbers = np.full(len(rows), number, np.int8)
            found.append(
                Overlap(earlier.users[rows], earlier.items[rows], earlier.policy_labels[rows], labels, numbers)
            )
        columns = [np.concatenate(column) for column in zip(*found, strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        self.overlap = Overlap(*(column[order] for column in columns))
        for column in self.overlap:
            column.flags.writeable = False
        self.removed = len(order)

    def triplets(self, part: str) -> Triplets:
        """The feedback of one part as read-only arrays (users, items, labels, weights, grades)."""
        return self._triplets[part]

    S_c = functools.cached_property(lambda self: self._csr("S_c"))
    S_t = functools.cached_property(lambda self: self._csr("S_t"))
    S_va = functools.cached_property(lambda self: self._csr("S_va"))
    S_te = functools.cached_property(lambda self: self._csr("S_te"))

    def _csr(self, part: str) -> csr_matrix:
        from scipy.sparse import csr_matrix

        users, items, labels, *_ = self._triplets[part]
        matrix = csr_matrix((labels, items, row_pointers(users, self.n_users)), shape=(self.n_users, self.n_items))
        matrix.has_canonical_format = True
        for array in (matrix.data, matrix.indices, matrix.indptr):
            array.flags.writeable = False
        return matrix

    @property
    def graded(self) -> bool:
        """Whether pairs carry grades beside their labels, which are more than mean labels."""
        return self._triplets["S_c"].grades is not None and not self.has_rates

    @property
    def has_rates(self) -> bool:
        """Whether grades are the shares of a pair's impressions that are positive."""
        return self._triplets["S_c"].grades is not None and self.grading == RATES

    @functools.cached_property
    def click_only(self) -> bool:
        """Whether S_c holds positives alone, so that it tells nothing of what is disliked."""
        return bool((self._triplets["S_c"].labels == 1).all())

    @functools.cached_property
    def seen(self) -> Pattern:
        """Each user's items in S_c or S_t, the complement of S_u."""
        users = np.concatenate([self._triplets["S_c"].users, self._triplets["S_t"].users])
        items = np.concatenate([self._triplets["S_c"].items, self._triplets["S_t"].items])
        order = csr_order(users, items, (self.n_users, self.n_items))
        return Pattern.of(users, items[order], self.n_users)

    @functools.cached_property
    def _id_hashes(self) -> tuple[np.ndarray, np.ndarray]:
        return hashes_of_both(self.user_ids, self.item_ids)

    def pair_hashes(self, part: str) -> np.ndarray:
        """A 64-bit hash (uint64) of the original ids of every pair in one part; the same pair has it in every log."""
        of_users, of_items = self._id_hashes
        return mix_arrays(of_users[self._triplets[part].users], of_items[self._triplets[part].items])

    @functools.cached_property
    def logged(self) -> Pattern:
        """Each user's items in the biased log: S_c and what was removed from it, the overlap."""
        overlap = Pattern.of(self.overlap.users, self.overlap.items, self.n_users)
        earlier = [] if self._had is None else [self._had]
        return union([self.pattern("S_c"), overlap, *earlier], self.n_items)

    def in_both(self, part: str) -> np.ndarray:
        """Of the rows of triplets(part), which the biased log has too (bool)."""
        users, items, *_ = self._triplets[part]
        if not self.removed or part == "S_c":
            return np.zeros(len(users), dtype=bool)
        return Pattern.of(self.overlap.users, self.overlap.items, self.n_users).find(users, items) >= 0

    def unseen(self, part: str) -> Triplets:
        """A randomized part without the overlap: what ranking metrics and AUC are judged on."""
        if not self.removed:
            return self._triplets[part]
        if part not in self._unseen:
            self._unseen[part] = read_only(self._triplets[part].take(~self.in_both(part)))
        return self._unseen[part]

    def everything_but(self, part: str) -> Pattern:
        """Each user's items in either log, except those that `part` alone holds."""
        if part not in self._others:
            others = [self.pattern(other) for other in RANDOMIZED if other != part]
            self._others[part] = union([self.logged, *others], self.n_items)
        return self._others[part]

    def pattern(self, part: str, positives: bool = False) -> Pattern:
        """Each user's items in one part, or those with a positive label."""
        users, items, labels, *_ = self._triplets[part]
        kept = labels > 0 if positives else slice(None)
        return Pattern.of(users[kept], items[kept], self.n_users)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of everything training and evaluation read."""
        digest = hashlib.blake2b(f"{self.n_users} {self.n_items}".encode(), digest_size=16)
        parts = self._triplets if self.held_back is None else self._triplets | {"held_back": self.held_back}
        for part, triplets in parts.items():
            digest.update(f"{part} {len(triplets.users)}".encode())  # or a row could change part unseen
            for column in triplets:
                if column is not None:
                    digest.update(np.ascontiguousarray(column).tobytes())
        for propensities in (self.propensities, self.held_back_propensities):
            if propensities is not None:
                digest.update(propensities.tobytes())
        if self.removed or self._had is not None:
            for array in self.logged:
                digest.update(array.tobytes())
        for ids in (self.user_ids, self.item_ids):
            digest.update(ids.values.dtype.str.encode())
            digest.update(np.ascontiguousarray(ids.values).tobytes())
        return digest.hexdigest()

    def _pair(self, user: int, item: int) -> str:
        return f"pair (user {self.user_ids.values[user]}, item {self.item_ids.values[item]})"

    def __repr__(self) -> str:
        sizes = ", ".join(f"{part} {len(self._triplets[part].users):,}" for part in PARTS)
        return f"<Partition {self.name}: {self.n_users:,} users x {self.n_items:,} items; {sizes}>"

    def _repr_html_(self) -> str:
        from dubnb import _html

        _, *lines = self.summary().splitlines()
        rows = [("size", f"{self.n_users:,} users x {self.n_items:,} items")]
        for line in lines:
            name, _, value = line.strip().partition(": " if ": " in line else " ")
            rows.append((name, value.strip()))
        return _html.table(self.name, rows)

    def summary(self) -> str:
        """A line per part (size, positives over negatives), then what S_c does not know, what was removed from it."""
        lines = [repr(self)]
        for part in PARTS:
            labels = self._triplets[part].labels
            positives = int(labels.sum(dtype=np.float64))
            ratio = f"{100 * positives / (len(labels) - positives):.2f} %" if positives < len(labels) else "-"
            lines.append(f"  {part:<5} {len(labels):>10,} pairs, P/N {ratio}")
        if self.split is not None:
            lines.append(f"  {self.split.text()}")
        if self.grading is not None and self._triplets["S_c"].grades is not None:
            lines.append(f"  grades: {GRADINGS[self.grading]}")
        if self.held_back is not None:
            lines.append(f"  held back, no older than S_va: {len(self.held_back.users):,} pairs of the biased log")
        lines += self._strangers()
        lines.append(f"  removed from S_c because they are in a randomized set: {self.removed:,}")
        return "\n".join(lines)

    def _strangers(self) -> list[str]:
        """A line each where users or items of the randomized sets have no pair in S_c."""
        lines = []
        for side, (n, what) in enumerate(((self.n_users, "users"), (self.n_items, "items"))):
            met = np.zeros(n, dtype=bool)
            for part in RANDOMIZED:
                met[self._triplets[part][side]] = True
            known = np.zeros(n, dtype=bool)
            known[self._triplets["S_c"][side]] = True
            strange, all_met = int(np.count_nonzero(met & ~known)), int(np.count_nonzero(met))
            if strange:
                share = f"{100 * strange / all_met:.1f} %"
                lines.append(
                    f"  {what} of the randomized sets without a pair in S_c: {strange:,} of {all_met:,} ({share})"
                )
        return lines


def _plan_size(n_users: int, n_items: int) -> None:
    """Refuse a shape whose ids and row pointers alone do not fit into memory."""
    needed = 8 * (2 * n_users + n_items)
    _memory.plan(f"a log of {n_users:,} users x {n_items:,} items", needed, "renumber the ids, or split the log")


def _checked_shape(shape: Any) -> tuple[int, int]:
    try:
        n_users, n_items = shape
    except (TypeError, ValueError):
        raise InputError(f"shape={shown(shape)} must be two numbers, of users and of items") from None
    # each below 2**31, so that the number of a pair, user row x items + item row, is an int64
    return _check.whole("users of the shape", n_users), _check.whole("items of the shape", n_items)


def _entries(part: str, matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows, columns, values) of a sparse matrix whose pointers are sound: SciPy follows them unchecked."""
    if not hasattr(matrix, "tocoo"):
        raise InputError(f"{part} is a {type(matrix).__name__}: pass a SciPy sparse matrix")
    try:
        if hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)
        entries = matrix.tocoo()
    except (ValueError, IndexError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{part} is a damaged sparse matrix ({reason}): build it again") from None
    return entries.row, entries.col, entries.data
