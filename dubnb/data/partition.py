"""`Partition`: four disjoint, read-only sets of feedback, S_c (biased), S_t, S_va and S_te (randomized)."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from dubnb import _check, _memory
from dubnb._check import InputError, option, short_repr
from dubnb._random import mix_arrays
from dubnb.data import eligibility as rules
from dubnb.data.eligibility import Barred, Eligibility
from dubnb.data.ids import Ids, hashes_of_both
from dubnb.data.log import LogOptions, ReadOptions, with_options
from dubnb.data.pattern import (
    PARTS,
    RANDOMIZED,
    BiasedCounts,
    Pattern,
    Triplets,
    UnobservedPairs,
    check_exploration,
    check_grades,
    checked_order,
    checked_propensities,
    columns_of,
    csr_order,
    importance_of,
    joined,
    pair_keys,
    read_only,
    row_pointers,
    stored,
    union,
)
from dubnb.data.rows import scale_of

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from dubnb.data.rows import SplitFacts
    from dubnb.data.simulate import Truth
    from dubnb.data.stored import PairFiles, PairRange


RATES = "impressions"  # grades that are mean labels
GRADINGS = {  # what grades are, in the words of `summary`
    "levels": "the label's place between the least and the greatest",
    "ranks": "the label's rank on its side of the threshold",
    "column": "a column of the log",
    RATES: "the share of a pair's impressions that are positive",
}
# what `replace` takes besides the parts and the name
REPLACEABLE = ("truth", "propensities", "held_back", "held_back_propensities", "eligibility")


class Overlap(NamedTuple):
    """Pairs observed under both policies: only they show the difference R^t - R^c."""

    users: np.ndarray  # int32 rows
    items: np.ndarray  # int32 columns
    policy_labels: np.ndarray  # float32, under the recommendation policy (in S_c, before removal)
    labels: np.ndarray  # float32, under the uniform policy
    parts: np.ndarray  # int8, index of the randomized set in RANDOMIZED


class Partition:
    """A biased log and a randomized log, split for training and evaluation: the data that every method fits.

    Build one from your logs first; then pass it to `fit`, `evaluate`, `audit` and the rest.

    The biased log is `S_c`. The randomized log is split into `S_t` (training), `S_va` (validation) and `S_te` (test).
    All four are read-only SciPy CSR matrices of one shape. Every observed pair is stored, as 1.0 or 0.0. Build a
    Partition with `from_frames`, `from_table`, `from_matrices` or `dubnb.load_dataset`; the constructor is for row
    numbers instead of ids. `replace` makes a changed copy.

    Pairs of the randomized sets are removed from S_c: the labels of S_t are more credible, and those of S_va and S_te
    would leak. `removed` is their number, `overlap` lists them.

    Parameters
    ----------
    triplets : mapping
        For each of "S_c", "S_t", "S_va" and "S_te" the columns (users, items, labels[, weights[, grades[,
        propensities[, times]]]]): row numbers, labels 0 or 1, weights above 0, grades from 0 to 1. The randomized
        parts may have propensities, P(item shown | user, context) under the exploration policy, above 0 and at most
        1, and the times at which pairs were shown.
    shape : (int, int)
        Users and items.
    user_ids, item_ids : Ids
        The original ids of the rows; without them 0, 1, 2 ...
    truth : object
        The truth about every pair of a simulated log.
    propensities : array
        P(observed), above 0 and at most 1, of the rows of S_c in the order given.
    held_back, held_back_propensities : columns as in `triplets`, and array
        Rows of the biased log that are left out because they are no older than S_va, for `fit(refit="all")`.
    split : SplitFacts
        How the randomized log was split.
    grading : {"levels", "ranks", "column", "impressions"}
        What the grades are. With "impressions" they are mean labels, and any grade may go with either label.
        Otherwise the grades of negatives must lie below those of positives.
    eligibility : Eligibility
        Which items the randomized policy could show. A randomized log without propensities gets them from it.
    name : str
        Name of the data in messages and reports.

    Attributes
    ----------
    user_ids, item_ids : Ids
        The original ids of rows and columns.
    truth : Truth or None
        R^t of every pair, on simulated data.
    propensities : array or None
        P(observed) of the pairs of S_c, in the order of `triplets("S_c")`.
    held_back : Triplets or None
        Rows of the biased log that a split by time left out.
    split : SplitFacts or None
        How the randomized log was split.
    grading : str or None
        What the grades are: "levels", "ranks", "column" or "impressions" (docs/labels.md).
    eligibility : Eligibility or None
        Which items the randomized policy could show (docs/eligible.md).

    Examples
    --------
    >>> data = dubnb.Partition.from_frames("clicks.csv", "random.csv", threshold=3)  # doctest: +SKIP
    >>> print(data.summary())  # doctest: +SKIP
    >>> model = dubnb.DUB().fit(data)  # doctest: +SKIP
    """

    stored_in: str | None = None  # the directory that holds S_c, if it is not in memory; see `StoredPartition`

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
        eligibility: Eligibility | None = None,
        name: str = "own data",
    ) -> None:
        self.name = name
        self.n_users, self.n_items = _checked_shape(shape)
        size = f"a log of {self.n_users:,} users x {self.n_items:,} items"
        needed = 8 * (2 * self.n_users + self.n_items)  # ids and row pointers
        _memory.require(size, needed, "renumber the ids, or split the log")
        self.user_ids = Ids.count(self.n_users) if user_ids is None else user_ids
        self.item_ids = Ids.count(self.n_items) if item_ids is None else item_ids
        for ids, n, what in ((self.user_ids, self.n_users, "users"), (self.item_ids, self.n_items, "items")):
            if len(ids) != n:
                raise InputError(f"{len(ids)} ids for {n} {what}: pass one id per row of the shape")
        self.truth, self.split = truth, split
        self.grading = None if grading is None else _check.choice("grading", grading, tuple(GRADINGS))
        given = {part: columns_of(part, triplets) for part in PARTS}
        late = None if held_back is None else columns_of("held_back", {"held_back": held_back})
        check_exploration(given)
        check_grades(given if late is None else given | {"held_back": late}, sided=grading != RATES)
        if late is not None and (propensities is None) != (held_back_propensities is None):
            raise InputError("only one of S_c and held_back has propensities: give both or neither")
        parts = {}
        for part in PARTS:
            order = checked_order(given[part], (self.n_users, self.n_items), part, self._pair)
            parts[part] = stored(given[part], order)
            if part == "S_c" and propensities is not None:
                propensities = checked_propensities(propensities, len(given[part].users))[order]
            del order  # frees memory: arrays of a large log are large
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
        self._had: Pattern | None = None  # further pairs of the biased log, see `replace`
        self._barred: dict[str | None, Pattern | Barred] = {}
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
        self.eligibility = eligibility
        if eligibility is not None:
            self._apply(eligibility)

    def _apply(self, eligibility: Eligibility) -> None:
        """Complete the rules of eligibility by the log's times; without propensities, take them from the rules."""
        random = self.random
        if eligibility.timed and random.times is None:
            raise InputError(f"eligibility depends on time: name the column of times with {option('timestamp')}")
        if eligibility.shares is None:
            eligibility = eligibility.with_shares(random.items, rules.times_of_pairs(random))
        if random.propensities is None and len(random.users):
            chances = eligibility.propensities(random, self.logged).astype(np.float32)
            first = 0
            for part in RANDOMIZED:
                own = self._triplets[part]
                last = first + len(own.users)
                self._triplets[part] = read_only(own._replace(propensities=chances[first:last].copy()))
                first = last
            eligibility = dataclasses.replace(eligibility, derived=True)
        self.eligibility = eligibility

    @property
    def random(self) -> Triplets:
        """The whole randomized log: S_t, then S_va, then S_te."""
        return joined(*(self._triplets[part] for part in RANDOMIZED))

    def _overlap(self, parts: Mapping[str, Triplets]) -> tuple[np.ndarray, Overlap]:
        """The rows of S_c whose pairs are in a randomized set too, with both labels; those sets must be disjoint."""
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
        propensities: Mapping[str, Any] | None = None,
        eligible: Any = None,
        stratum: Any = None,
        truth: Truth | None = None,
        name: str = "own data",
    ) -> Partition:
        """Build a Partition from SciPy sparse matrices of one shape; stored values are labels, explicit zeros too.

        With `threshold`, stored values above it are positive, and grades are kept as in `from_frames`.
        `propensities`: {part: matrix} with one stored value for each stored pair of the part: P(observed) of S_c, and
        P(item shown | user, context) of the randomized parts. `eligible`: a bool array of items, or of users x items,
        that the randomized policy could show. `stratum`: a stratum for every item (see `from_frames`).
        """
        entries = {}
        for part, matrix in zip(PARTS, (S_c, S_t, S_va, S_te), strict=True):
            if matrix is None and part != "S_c":
                continue
            entries[part] = _entries(part, matrix)
            if matrix.shape != S_c.shape:
                raise InputError(f"{part} has shape {matrix.shape} but S_c {S_c.shape}: all four need one shape")
        scale = scale_of([values for *_, values in entries.values()], threshold)
        triplets: dict[str, Sequence[Any]] = {part: ([], [], []) for part in PARTS}
        chances = _aligned({} if propensities is None else propensities, entries, S_c.shape)
        for part, (users, items, values) in entries.items():
            triplets[part] = (users, items, scale.labels(values), None, scale.grades(values), chances.get(part))
        triplets["S_c"] = triplets["S_c"][:5]
        own, allowed = chances.get("S_c"), rules.of_arrays(S_c.shape, eligible, stratum)
        data = cls(
            triplets, S_c.shape, propensities=own, truth=truth, grading=scale.kind, eligibility=allowed, name=name
        )
        data.warn_of_ineligible()
        return data

    @classmethod
    @with_options
    def from_frames(
        cls, biased: Any, random: Any, *, parts_dir: Any = None, scheduler: Any = None, **options: Unpack[ReadOptions]
    ) -> Partition:
        """Build a Partition from a biased and a randomized log with original ids (int or str).

        Parameters
        ----------
        biased, random : table or path
            Each is a pandas DataFrame, an object with Arrow's C interface (a polars DataFrame, an Arrow table), or a
            path. A path names a CSV, TSV (either may end in .gz) or Parquet file, a directory of such files, or a
            pattern. Directories may be nested, as in day=0/part.parquet; their names are not read as columns.
            `random` may be a mapping of ready-made splits, {"S_t": ..., "S_va": ..., "S_te": ...}, the last two
            optional.
        parts_dir : path, optional
            A directory for a biased log that is larger than memory. `biased` is then a path. Its files are read one
            after another, and S_c stays in files below this directory as long as the Partition is in use. Methods with
            row solves (dub-x, ials) can be fitted; what needs all of S_c at once is refused. See docs/large-logs.md.
        scheduler : str or distributed.Client, optional
            With `parts_dir`: a Dask cluster whose workers read the files. They must see `biased` and `parts_dir`.
        user, item : str
            Columns of the ids.
        label : str
            Column of the labels, "label" by default. A log without it is click-only: every row is a positive.
        weight : str
            Column of sample weights; without it every row weighs 1.
        propensity : str
            Column of P(observed) in the biased log (in one table: in its biased rows), for IPS.
        random_propensity : str
            Column of P(item shown | user, context) under the exploration policy, in the randomized log (in one table:
            in its randomized rows). Without it the traffic is taken as uniform. In one table it may be the column that
            `propensity` names. See docs/collecting.md.
        grade : str
            Column of grades from 0 to 1, how much it was liked; those of negatives must lie below those of positives.
        timestamp : str
            Column of times: numbers, dates, or text as ISO 8601 writes dates.
        eligible : table or path, or a sequence of them
            Which items the randomized policy could show. A table with the columns item, from and to: an item can be
            shown from `from` until before `to`, and items that are not listed never. A table with the columns user,
            item, from and to: the pair is hidden after `from` and before `to`. `from` and `to` are optional, and an
            empty cell means always. They need `timestamp`. See docs/eligible.md.
        stratum : str
            Column of the group of items that an impression's item was drawn from. The biased log needs it too, for
            items that were never shown. Items are drawn uniformly inside a stratum, at any rate between strata. Without
            `random_propensity`, propensities follow from `eligible` and `stratum`.
        user_type, item_type : {"str", "int"}
            The type of the ids; by default as found. Both logs need the same type.
        threshold : float
            Labels above it are positive; without it they must be 0 or 1. Labels of more than two levels also become
            grades, unless `grade` names a column. At most 21 levels at even steps, such as stars, become their place
            between the least and the greatest. Other labels, such as seconds, become their rank among the labels of
            the biased log on the same side of the threshold.
        duplicates : {"impressions", "first", "last", "max", "mean", "error"}
            How repeated pairs become one row. "impressions", the default, keeps the label of the first row by time;
            without a time, a hash of the pair's ids draws the row. The grade is the mean of 0/1 labels. With ratings or
            grades it is the mean over the rows on the label's side of the threshold. n rows weigh 2 n / (n + 1) times
            their mean weight. "first", "last": the first or last row, by time if there is a time, else in the order of
            the log. "max": the row with the largest label. "mean": the weighted mean of the labels. With these four,
            weights are added. "error": such logs are refused. A warning counts merged rows.
        drop_bad : bool
            Whether to drop rows with a missing or unreadable id, label, grade, time or weight instead of refusing the
            log. A warning counts them by column.
        split : {"random", "time", "user"}
            How `random` becomes S_t, S_va and S_te. "random": by a hash of each pair's ids. "time": from past to
            future; S_c then ends where S_va begins, and `held_back` has the later rows. "user": by a hash of the user's
            id. With a hash, a pair of S_t stays in S_t while the log grows (docs/splits.md). The built-in datasets use
            "permutation", of the rows in their order.
        shares : (float, float, float)
            Shares of S_t, S_va and S_te, in rows or, with split="user", in users. By default the number of positives
            sets them: 200 are wanted in S_te, 150 in S_va, and at least 10 % of the rows in each.
        split_seed : int
            Key of the hash, or seed of a permutation.
        sep : str
            The separator of a text file; by default a tab or comma, or else ; or |, as found in its header.
        name : str
            Name of the data in messages and reports; by default the files' names.
        quiet : bool
            Whether to hide the progress bar, which otherwise appears after two seconds.
        """
        from dubnb.data.table import two_logs

        if parts_dir is not None:
            from dubnb.data.stored import read_stored

            return StoredPartition(*read_stored(biased, random, parts_dir, LogOptions.of(options), scheduler))
        if scheduler is not None:
            raise InputError(f"{option('scheduler', '')} is for a log on disk: give {option('parts_dir', '')} too")
        data = cls(**two_logs(biased, random, LogOptions.of(options)))
        data.warn_of_ineligible()
        return data

    @classmethod
    @with_options
    def from_table(cls, table: Any, *, is_random: str, **options: Unpack[ReadOptions]) -> Partition:
        """Build a Partition from one log that contains both kinds of traffic.

        Parameters
        ----------
        table : table or path
            Like `biased` of `from_frames`, which describes all other parameters too.
        is_random : str
            Column that is 1 or true in the rows of randomized traffic, and 0 or false in the others.
        """
        from dubnb.data.table import one_log

        data = cls(**one_log(table, is_random, LogOptions.of(options)))
        data.warn_of_ineligible()
        return data

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
        """A copy with the same users and items and other feedback in some parts; all else stays.

        Pairs that a randomized part of this Partition removed from S_c are not in the new S_c either. They stay in
        `logged`, and in `overlap` as long as a randomized part has them.

        Parameters
        ----------
        S_c, S_t, S_va, S_te : Triplets, optional
            The new feedback. With a new S_c, `propensities` must be given too, or there are none.
        name : str, optional
            Name of the copy in messages and reports.
        **others
            `truth`, `propensities`, `held_back`, `held_back_propensities` and `eligibility` as in the constructor, None
            for none.
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
        if S_c is None and len(log._triplets["S_c"].users) == len(self._triplets["S_c"].users):
            log._triplets["S_c"] = self._triplets["S_c"]  # equal, and read-only: one copy is enough
        if S_c is None and "logged" in self.__dict__:
            log.__dict__["logged"] = self.logged  # what the randomized parts remove from S_c stays in it
        return log

    def _add_overlap(self, earlier: Overlap) -> None:
        """Add earlier overlapping pairs that a randomized part still has."""
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
        """The feedback of one part as read-only arrays (users, items, labels, weights, grades, propensities)."""
        return self._triplets[part]

    def size(self, part: str) -> int:
        """The number of pairs of one part."""
        return len(self._triplets[part].users)

    @functools.cached_property
    def biased_counts(self) -> BiasedCounts:
        """The pairs and positives of every user and item in S_c."""
        users, items, labels, *_ = self._triplets["S_c"]
        sides, liked = ((users, self.n_users), (items, self.n_items)), labels > 0
        pairs = [np.bincount(rows, minlength=count) for rows, count in sides]
        return BiasedCounts(*pairs, *(np.bincount(rows[liked], minlength=count) for rows, count in sides))

    def biased_rows_of(self, users: np.ndarray) -> Triplets:
        """The pairs of S_c of some users, who are given by a mask."""
        S_c = self._triplets["S_c"]
        return S_c.take(users[S_c.users])

    def biased_pattern(self, positives: bool = False) -> Pattern:
        """Each user's items in S_c, or those with a positive label."""
        return self.pattern("S_c", positives)

    def union_of(self, patterns: Sequence[Pattern]) -> Pattern:
        """The pairs that are in at least one of some patterns of this log's users."""
        return union(patterns, self.n_items)

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
        """Whether pairs have grades that are not just mean labels."""
        return self._has_grades and not self.has_rates

    @property
    def has_rates(self) -> bool:
        """Whether grades are the share of a pair's impressions that are positive."""
        return self._has_grades and self.grading == RATES

    @property
    def _has_grades(self) -> bool:
        return self._triplets["S_c"].grades is not None

    @functools.cached_property
    def click_only(self) -> bool:
        """Whether S_c has only positives, so that it has no information about dislikes."""
        return int(self.biased_counts.liked_of_items.sum()) == self.size("S_c")

    @functools.cached_property
    def bucket(self) -> bool:
        """Whether no user of the randomized sets is in the biased log: traffic randomized by user bucket."""
        had = self.logged.sizes() > 0
        return bool(len(self.random.users)) and not bool(had[self.random.users].any())

    @functools.cached_property
    def seen(self) -> Pattern:
        """Each user's items in S_c or S_t, the complement of S_u."""
        users = np.concatenate([self._triplets["S_c"].users, self._triplets["S_t"].users])
        items = np.concatenate([self._triplets["S_c"].items, self._triplets["S_t"].items])
        order = csr_order(users, items, (self.n_users, self.n_items))
        return Pattern.of(users, items[order], self.n_users)

    @functools.cached_property
    def S_u(self) -> UnobservedPairs:
        """The pairs in neither S_c nor S_t, to draw from."""
        return UnobservedPairs(self.n_users, self.n_items, self.seen)

    @functools.cached_property
    def _id_hashes(self) -> tuple[np.ndarray, np.ndarray]:
        return hashes_of_both(self.user_ids.values, self.item_ids.values)

    def pair_hashes(self, *parts: str) -> np.ndarray:
        """A 64-bit hash (uint64) of the original ids of every pair in some parts; equal in all logs."""
        of_users, of_items = self._id_hashes
        users, items = (np.concatenate([self._triplets[part][side] for part in parts]) for side in (0, 1))
        return mix_arrays(of_users[users], of_items[items])

    @functools.cached_property
    def logged(self) -> Pattern:
        """Each user's items in the biased log: S_c and the overlap, which was removed from it."""
        overlap = Pattern.of(self.overlap.users, self.overlap.items, self.n_users)
        earlier = [] if self._had is None else [self._had]
        return self.union_of([self.biased_pattern(), overlap, *earlier])

    @functools.cached_property
    def not_recommended(self) -> Pattern:
        """Each user's items that are not recommended again: those of the biased log, and the liked ones of S_t."""
        return self.union_of([self.logged, self.pattern("S_t", positives=True)])

    def in_both(self, part: str) -> np.ndarray:
        """Which rows of triplets(part) have a pair that the biased log has too (bool)."""
        users, items, *_ = self._triplets[part]
        if not self.removed or part == "S_c":
            return np.zeros(len(users), dtype=bool)
        return Pattern.of(self.overlap.users, self.overlap.items, self.n_users).find(users, items) >= 0

    def unseen(self, part: str) -> Triplets:
        """A randomized part without the overlap, for ranking metrics and AUC."""
        if not self.removed:
            return self._triplets[part]
        if part not in self._unseen:
            self._unseen[part] = read_only(self._triplets[part].take(~self.in_both(part)))
        return self._unseen[part]

    def importance(self, part: str) -> np.ndarray | None:
        """Sample weights that make a randomized part stand for uniform traffic, in the order of `triplets(part)`.

        None if the part has no propensities or they are all equal: its pairs then weigh the same. See
        `triplets.importance_of`. Training multiplies these weights by the log's own.
        """
        return importance_of(self._triplets[part].propensities) if part in RANDOMIZED else None

    def judging_weights(self, part: str) -> np.ndarray | None:
        """Weights of the pairs of `unseen(part)` in metrics: `importance` times the log's own, or None without it."""
        importance = self.importance(part)
        if importance is None:
            return None
        weights = (importance * self._triplets[part].weights)[~self.in_both(part)]
        return np.asarray(weights / weights.mean()) if len(weights) else weights

    def effective_sample_size(self, part: str) -> float:
        """(sum w)^2 / sum w^2 of the `importance` weights w: the number of uniform pairs that are worth as much."""
        weights = self.importance(part)
        if weights is None:
            return float(len(self._triplets[part].users))
        return float(weights.sum() ** 2 / (weights @ weights))

    def everything_but(self, part: str) -> Pattern:
        """Each user's items in either log, except those that only `part` has."""
        if part not in self._others:
            others = [self.pattern(other) for other in RANDOMIZED if other != part]
            self._others[part] = union([self.logged, *others], self.n_items)
        return self._others[part]

    def not_candidates(self, part: str | None = None) -> Pattern | Barred:
        """The pairs that are not ranked; the result has `mask` and `sizes`.

        Without a part these are the pairs of the biased log, with one those of `everything_but(part)`. Pairs that the
        randomized policy could never show are among them too.
        """
        had = self.logged if part is None else self.everything_but(part)
        if self.eligibility is None:
            return had
        if part not in self._barred:
            self._barred[part] = self.eligibility.barred(had, self.random)
        return self._barred[part]

    def shown_eligible(self) -> np.ndarray:
        """Which pairs of `random` could be shown, by the rules of eligibility (bool)."""
        random = self.random
        if self.eligibility is None:
            return np.ones(len(random.users), bool)
        return self.eligibility.eligible(random.users, random.items, rules.times_of_pairs(random))

    def warn_of_ineligible(self) -> None:
        """Warn of randomized pairs that the rules of eligibility do not allow; refuse rules that allow none."""
        bad = np.flatnonzero(~self.shown_eligible())
        if len(bad):
            random = self.random
            pair = self._pair(int(random.users[bad[0]]), int(random.items[bad[0]]))
            n_bad = f"{len(bad):,} of {len(random.users):,}" if len(bad) < len(random.users) else f"all {len(bad):,}"
            said = (
                f"{n_bad} randomized pairs were shown although they were not eligible, such as {pair}: check "
                f"{option('eligible', '')} and the clocks"
            )
            if len(bad) == len(random.users):
                raise InputError(said)
            warnings.warn(said, stacklevel=3)

    def pattern(self, part: str, positives: bool = False) -> Pattern:
        """Each user's items in one part, or those with a positive label."""
        users, items, labels, *_ = self._triplets[part]
        kept = labels > 0 if positives else slice(None)
        return Pattern.of(users[kept], items[kept], self.n_users)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of everything that training and evaluation use."""
        digest = hashlib.blake2b(f"{self.n_users} {self.n_items}".encode(), digest_size=16)
        for part in (*PARTS, *(() if self.held_back is None else ("held_back",))):
            self._digest_part(digest, part)
        for propensities in (self.propensities, self.held_back_propensities):
            if propensities is not None:
                digest.update(propensities.tobytes())
        if self.removed or self._had is not None:
            for array in self.logged:
                digest.update(np.ascontiguousarray(array).data)
        if self.eligibility is not None:
            for array in self.eligibility.arrays():
                digest.update(np.ascontiguousarray(array).tobytes())
        for ids in (self.user_ids, self.item_ids):
            digest.update(ids.values.dtype.str.encode())
            digest.update(np.ascontiguousarray(ids.values).tobytes())
        return digest.hexdigest()

    def _digest_part(self, digest: Any, part: str) -> None:
        """Add the pairs of one part to a digest."""
        triplets = self.held_back if part == "held_back" and self.held_back is not None else self._triplets[part]
        digest.update(f"{part} {len(triplets.users)}".encode())  # detects rows that moved to another part
        for column in triplets[:6]:  # times are facts about the log that no fit uses
            if column is not None:
                digest.update(np.ascontiguousarray(column).tobytes())

    def _pair(self, user: int, item: int) -> str:
        return f"pair (user {self.user_ids.values[user]}, item {self.item_ids.values[item]})"

    def __repr__(self) -> str:
        sizes = ", ".join(f"{part} {self.size(part):,}" for part in PARTS)
        return f"<Partition {self.name}: {self.n_users:,} users x {self.n_items:,} items; {sizes}>"

    def _repr_html_(self) -> str:
        from dubnb import _progress

        _, *lines = self.summary().splitlines()
        rows = [("size", f"{self.n_users:,} users x {self.n_items:,} items")]
        for line in lines:
            name, _, value = line.strip().partition(": " if ": " in line else " ")
            rows.append((name, value.strip()))
        return _progress.html_table(self.name, rows)

    def summary(self) -> str:
        """One line per part (size, P/N), then the split, the ids without a pair in S_c and the removed pairs."""
        lines = [repr(self)]
        for part in PARTS:
            if part == "S_c":
                size, positives = self.size(part), int(self.biased_counts.liked_of_items.sum())
            else:
                labels = self._triplets[part].labels
                size, positives = len(labels), int(labels.sum(dtype=np.float64))
            ratio = f"{100 * positives / (size - positives):.2f} %" if positives < size else "-"
            lines.append(f"  {part:<5} {size:>10,} pairs, P/N {ratio}")
        if self.split is not None:
            lines.append(f"  {self.split.text()}")
        if self.grading is not None and self._has_grades:
            lines.append(f"  grades: {GRADINGS[self.grading]}")
        if any(self.importance(part) is not None for part in RANDOMIZED):
            sizes = ", ".join(f"{part} {self.effective_sample_size(part):,.0f}" for part in RANDOMIZED)
            source = " (from eligibility)" if self.eligibility is not None and self.eligibility.derived else ""
            lines.append(f"  propensities{source}: samples weigh 1 / propensity; effective sample sizes {sizes}")
        if self.held_back is not None:
            lines.append(f"  held back, no older than S_va: {len(self.held_back.users):,} pairs of the biased log")
        if self.bucket:
            lines.append("  user bucket: no user of the randomized sets is in S_c")
        lines += self._unknown_to_S_c()
        lines.append(f"  removed from S_c because they are in a randomized set: {self.removed:,}")
        return "\n".join(lines)

    def _unknown_to_S_c(self) -> list[str]:
        """Lines that count users and items of the randomized sets without a pair in S_c."""
        lines = []
        for side, (n, what) in enumerate(((self.n_users, "users"), (self.n_items, "items"))):
            met = np.zeros(n, dtype=bool)
            for part in RANDOMIZED:
                met[self._triplets[part][side]] = True
            known = self.biased_counts[side] > 0
            strange, all_met = int(np.count_nonzero(met & ~known)), int(np.count_nonzero(met))
            if strange:
                share = f"{100 * strange / all_met:.1f} %"
                lines.append(
                    f"  {what} of the randomized sets without a pair in S_c: {strange:,} of {all_met:,} ({share})"
                )
        return lines


# ---- S_c on disk -------------------------------------------------------------------------------------------------


class _SmallParts(dict[str, Triplets]):
    """The randomized parts; asking for S_c is refused."""

    def __init__(self, parts: Mapping[str, Triplets], name: str):
        super().__init__((part, parts[part]) for part in RANDOMIZED)
        self.name = name

    def __missing__(self, part: str) -> Triplets:
        raise _needs_memory(self.name) if part == "S_c" else KeyError(part)


def _needs_memory(name: str) -> InputError:
    return InputError(
        f"S_c of {name} is on disk, and this needs all of it in memory: read the log without {option('parts_dir', '')}"
    )


class PatternUnion(NamedTuple):
    """The pairs of a large pattern and of a small one; the union is never built."""

    large: Pattern
    small: Pattern

    def mask(self, users: np.ndarray, n_items: int) -> np.ndarray:
        """(users, n_items) bool: true where the item is in either of the user's sets."""
        return self.large.mask(users, n_items) | self.small.mask(users, n_items)

    def sizes(self) -> np.ndarray:
        """How many items every user has."""
        users = self.small.users()
        new = self.large.find(users, self.small.items) < 0
        sizes: np.ndarray = self.large.sizes() + np.bincount(users[new], minlength=len(self.large.indptr) - 1)
        return sizes


class StoredPartition(Partition):
    """A Partition whose S_c is on disk; `Partition.from_frames(..., parts_dir=)` builds one.

    What can be done by ranges of users has the result of a Partition in memory. All else is refused.
    """

    def __init__(self, arguments: Mapping[str, Any], files: PairFiles):
        super().__init__(**arguments)
        self.files, self.stored_in = files, files.folder.parts_dir
        self._some = self._triplets["S_c"]  # a few pairs, which stand for S_c in checks
        self._triplets = _SmallParts(self._triplets, self.name)
        self.__dict__["biased_counts"] = files.biased_counts()

    def needs_memory(self) -> InputError:
        """The error for what needs all of S_c at once."""
        return _needs_memory(self.name)

    def size(self, part: str) -> int:
        return int(self.files.indptr[-1]) if part == "S_c" else super().size(part)

    @property
    def _has_grades(self) -> bool:
        return self.files.graded

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Ranges of users, the first and the one after the last, that have about ROWS_AT_ONCE pairs of S_c each."""
        return self.files.ranges()

    def range_in_files(self, first: int, last: int) -> PairRange:
        """The pairs of S_c of the users from `first` to before `last`, not yet read; users are then counted from 0."""
        return self.files.range(first, last)

    def biased_rows_of(self, users: np.ndarray) -> Triplets:
        ranges = (self.files.read(*each) for each in self.ranges())
        return joined(*(pairs.take(users[pairs.users]) for pairs in ranges))

    # -- patterns, whose items are in files

    def biased_pattern(self, positives: bool = False) -> Pattern:
        if not positives:
            return Pattern.from_csr(self.files.indptr, self.files.folder.map("items", np.int32))
        return self._mapped(self._liked)

    def _liked(self, first: int, last: int) -> Pattern:
        pairs = self.files.read(first, last)
        liked = pairs.labels > 0
        return Pattern.of(pairs.users[liked] - first, pairs.items[liked], last - first)

    def union_of(self, patterns: Sequence[Pattern]) -> Pattern:
        return self._mapped(
            lambda first, last: union([_users_of(each, first, last) for each in patterns], self.n_items)
        )

    @functools.cached_property
    def seen(self) -> Pattern:
        return self.union_of([self.biased_pattern(), self.pattern("S_t")])

    def everything_but(self, part: str) -> Any:
        others = [self.pattern(other) for other in RANDOMIZED if other != part]
        return PatternUnion(self.logged, union(others, self.n_items))

    def _mapped(self, of_users: Callable[[int, int], Pattern]) -> Pattern:
        """A pattern that is built by ranges of users, with its items in a file without a name."""
        folder, name, sizes = self.files.folder, secrets.token_hex(8), []
        for first, last in self.ranges():
            some = of_users(first, last)
            sizes.append(some.sizes())
            folder.append(name, some.items)
        items = folder.map(name, np.int32)
        folder.remove(name)  # its space is free again when nobody maps it
        return Pattern.from_csr(np.concatenate([[0], np.cumsum(np.concatenate(sizes))]), items)

    # -- copies, and the fingerprint

    def replace(self, **changes: Any) -> Partition:
        if changes.get("S_c") is not None:
            return super().replace(**changes)  # in memory
        users, items = np.divmod(np.sort(pair_keys(self.random, self.n_items)), self.n_items)
        known = Pattern.of(users, items.astype(np.int32), self.n_users)
        for part in RANDOMIZED:
            given = changes.get(part)
            if given is not None and (known.find(given.users, given.items) < 0).any():
                raise self.needs_memory()  # S_c would lose pairs
        copy = super().replace(**changes | {"S_c": self._some})
        copy.__class__ = StoredPartition
        assert isinstance(copy, StoredPartition)
        copy.files, copy.stored_in, copy._some = self.files, self.stored_in, self._some
        copy._triplets = _SmallParts(copy._triplets, copy.name)
        copy.__dict__ |= {name: self.__dict__[name] for name in ("biased_counts", "logged") if name in self.__dict__}
        copy.__dict__.pop("click_only", None)
        return copy

    def _digest_part(self, digest: Any, part: str) -> None:
        if part != "S_c":
            super()._digest_part(digest, part)
            return
        digest.update(f"{part} {self.size(part)}".encode())
        for column in range(5):
            for first, last in self.ranges():
                values = self.files.read(first, last)[column]
                if values is not None:
                    digest.update(np.ascontiguousarray(values).data)


def _users_of(pattern: Pattern, first: int, last: int) -> Pattern:
    """A range of users of a pattern, counted from 0."""
    indptr, items = pattern
    return Pattern.from_csr(indptr[first : last + 1] - indptr[first], items[indptr[first] : indptr[last]])


# ---- checks ---------------------------------------------------------------------------------------------------------


def _checked_shape(shape: Any) -> tuple[int, int]:
    try:
        n_users, n_items = shape
    except (TypeError, ValueError):
        raise InputError(f"shape={short_repr(shape)} must be two numbers, of users and of items") from None
    # each below 2**31, so that the number of a pair, user row x items + item row, is an int64
    return _check.whole("users of the shape", n_users), _check.whole("items of the shape", n_items)


def _entries(part: str, matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows, columns, values) of a sparse matrix; its pointers are checked, because SciPy does not check them."""
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


def _aligned(
    propensities: Mapping[str, Any], entries: Mapping[str, tuple[np.ndarray, ...]], shape: tuple[int, int]
) -> dict[str, np.ndarray]:
    """{part: propensity of each of its entries} from sparse matrices, which must store the same pairs."""
    if not isinstance(propensities, Mapping):
        raise InputError(
            f"propensities is a {type(propensities).__name__}: pass {{part: matrix}}, such as {{'S_t': ...}}"
        )
    aligned = {}
    for part, matrix in propensities.items():
        _check.choice("part of propensities", part, PARTS)
        users, items, values = _entries(f"propensities[{part!r}]", matrix)
        own_users, own_items, _ = entries.get(part, (np.empty(0, np.int32),) * 3)
        ours, theirs = csr_order(own_users, own_items, shape), csr_order(users, items, shape)
        same = matrix.shape == shape and len(ours) == len(theirs)
        if not same or (own_users[ours] != users[theirs]).any() or (own_items[ours] != items[theirs]).any():
            raise InputError(f"propensities[{part!r}] must store one value for each pair that {part} stores")
        aligned[part] = np.empty(len(values))
        aligned[part][ours] = values[theirs]
    return aligned
