"""A log as four disjoint, read-only sets of feedback: S_c (biased), S_t, S_va and S_te (randomized)."""

import functools
import hashlib
import warnings
from typing import NamedTuple

import numpy as np

from dubnb._check import InputError
from dubnb.data.ids import Ids
from dubnb.data.pattern import Pattern, row_pointers

PARTS = ("S_c", "S_t", "S_va", "S_te")
RANDOMIZED = PARTS[1:]


class Triplets(NamedTuple):
    """Feedback as parallel arrays, in CSR order."""

    users: np.ndarray  # int32 rows
    items: np.ndarray  # int32 columns
    labels: np.ndarray  # float32, 0 or 1
    weights: np.ndarray  # float32, 1 unless the log has a weight column
    grades: np.ndarray | None = None  # float32 in [0, 1], how much it was liked; None where the log has no grades

    def take(self, rows):
        """Some rows, as an index or a mask."""
        return Triplets(*(None if column is None else column[rows] for column in self))


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
    S_c's pairs, in the order of `triplets("S_c")`. Build one with `from_frames`, `from_matrices` or
    `dubnb.load_dataset`.
    """

    def __init__(
        self, triplets, shape, *, user_ids=None, item_ids=None, truth=None, propensities=None, name="own data"
    ):
        self.name = name
        self.n_users, self.n_items = (int(n) for n in shape)
        self.user_ids = Ids.count(self.n_users) if user_ids is None else user_ids
        self.item_ids = Ids.count(self.n_items) if item_ids is None else item_ids
        for ids, n, what in ((self.user_ids, self.n_users, "users"), (self.item_ids, self.n_items, "items")):
            if len(ids) != n:
                raise InputError(f"{len(ids)} ids for {n} {what}: pass one id per row of the shape")
        self.truth = truth
        triplets = {part: _columns(*triplets[part]) for part in PARTS}
        _check_grades(triplets)
        keys, parts, orders = {}, {}, {}
        for part in PARTS:
            parts[part], orders[part] = _sorted(triplets[part], shape, part, self._pair)
            keys[part] = _pair_keys(parts[part], self.n_items)
        for i, first in enumerate(RANDOMIZED):
            for second in RANDOMIZED[i + 1 :]:
                shared = np.intersect1d(keys[first], keys[second], assume_unique=True)
                if len(shared):
                    pair = self._pair(*divmod(int(shared[0]), self.n_items))
                    both = f"both {first} and {second} ({len(shared)} such)"
                    raise InputError(f"{pair} is in {both}: randomized sets must not overlap")
        randomized = np.concatenate([keys[part] for part in RANDOMIZED])
        kept = ~np.isin(keys["S_c"], randomized)
        self.removed = int((~kept).sum())
        self.overlap = _overlap(parts["S_c"].take(~kept), keys["S_c"][~kept], parts, keys)
        parts["S_c"] = parts["S_c"].take(kept)
        if not len(parts["S_c"].users):
            raise InputError("S_c is empty: a biased log with at least one pair outside the randomized sets is needed")
        self._triplets = {part: _read_only(parts[part]) for part in PARTS}
        self.propensities = None
        if propensities is not None:
            self.propensities = checked_propensities(propensities, len(orders["S_c"]))[orders["S_c"]][kept]
            self.propensities.flags.writeable = False

    @classmethod
    def from_matrices(cls, S_c, S_t, S_va=None, S_te=None, *, truth=None, name="own data"):
        """From SciPy sparse matrices of one shape; labels are the stored values, explicit zeros included."""
        triplets = {}
        for part, matrix in zip(PARTS, (S_c, S_t, S_va, S_te), strict=True):
            if matrix is None and part != "S_c":
                triplets[part] = _columns([], [], [])
                continue
            if not hasattr(matrix, "tocoo"):
                raise InputError(f"{part} is a {type(matrix).__name__}: pass a SciPy sparse matrix")
            if matrix.shape != S_c.shape:
                raise InputError(f"{part} has shape {matrix.shape} but S_c {S_c.shape}: all four need one shape")
            entries = matrix.tocoo()
            triplets[part] = _columns(entries.row, entries.col, entries.data)
        return cls(triplets, S_c.shape, truth=truth, name=name)

    @classmethod
    def from_frames(cls, biased, random, **options):
        """From pandas DataFrames with original ids; see `dubnb.data.table.from_frames` for the options."""
        from dubnb.data.table import from_frames

        return from_frames(biased, random, **options)

    def triplets(self, part):
        """The feedback of one part as read-only arrays (users, items, labels, weights)."""
        return self._triplets[part]

    S_c = functools.cached_property(lambda self: self._csr("S_c"))
    S_t = functools.cached_property(lambda self: self._csr("S_t"))
    S_va = functools.cached_property(lambda self: self._csr("S_va"))
    S_te = functools.cached_property(lambda self: self._csr("S_te"))

    def _csr(self, part):
        from scipy.sparse import csr_matrix

        users, items, labels, *_ = self._triplets[part]
        matrix = csr_matrix((labels, items, row_pointers(users, self.n_users)), shape=(self.n_users, self.n_items))
        matrix.has_canonical_format = True
        for array in (matrix.data, matrix.indices, matrix.indptr):
            array.flags.writeable = False
        return matrix

    @property
    def graded(self):
        """Whether pairs carry grades beside their labels."""
        return self._triplets["S_c"].grades is not None

    @functools.cached_property
    def seen(self):
        """Each user's items in S_c or S_t, the complement of S_u."""
        users = np.concatenate([self._triplets["S_c"].users, self._triplets["S_t"].users])
        items = np.concatenate([self._triplets["S_c"].items, self._triplets["S_t"].items])
        order = np.argsort(users.astype(np.int64) * self.n_items + items, kind="stable")
        seen = Pattern.of(users, items[order], self.n_users)
        for array in seen:
            array.flags.writeable = False
        return seen

    def pattern(self, part: str, positives: bool = False) -> Pattern:
        """Each user's items in one part, or those with a positive label."""
        users, items, labels, *_ = self._triplets[part]
        kept = labels > 0 if positives else slice(None)
        return Pattern.of(users[kept], items[kept], self.n_users)

    @functools.cached_property
    def fingerprint(self):
        """A hash of everything training and evaluation read."""
        digest = hashlib.blake2b(f"{self.n_users} {self.n_items}".encode(), digest_size=16)
        for part in PARTS:
            digest.update(f"{part} {len(self._triplets[part].users)}".encode())  # or a row could change part unseen
            for column in self._triplets[part]:
                if column is not None:
                    digest.update(np.ascontiguousarray(column).tobytes())
        if self.propensities is not None:
            digest.update(self.propensities.tobytes())
        for ids in (self.user_ids, self.item_ids):
            digest.update(ids.values.dtype.str.encode())
            digest.update(np.ascontiguousarray(ids.values).tobytes())
        return digest.hexdigest()

    def _pair(self, user, item):
        return f"pair (user {self.user_ids.values[user]}, item {self.item_ids.values[item]})"

    def __repr__(self):
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

    def summary(self):
        """One line per part: size and positives over negatives, then what was removed from S_c."""
        lines = [repr(self)]
        for part in PARTS:
            labels = self._triplets[part].labels
            positives = int(labels.sum(dtype=np.float64))
            ratio = f"{100 * positives / (len(labels) - positives):.2f} %" if positives < len(labels) else "-"
            lines.append(f"  {part:<5} {len(labels):>10,} pairs, P/N {ratio}")
        lines.append(f"  removed from S_c because they are in a randomized set: {self.removed:,}")
        return "\n".join(lines)


def checked_propensities(propensities, n):
    """P(observed) of n pairs as float64: each in (0, 1]."""
    propensities = np.asarray(propensities, dtype=np.float64)
    if propensities.shape != (n,):
        raise InputError(f"propensities of shape {propensities.shape} for {n} pairs of S_c: pass one per pair")
    fine = (propensities > 0) & (propensities <= 1)
    if not fine.all():
        raise InputError(f"propensity {propensities[~fine][0]:g} must be above 0 and at most 1")
    return propensities


def _columns(users, items, labels, weights=None, grades=None):
    labels = np.asarray(labels, dtype=np.float64)
    weights = np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=np.float64)
    grades = None if grades is None else np.asarray(grades, dtype=np.float64)
    return Triplets(np.asarray(users, dtype=np.int64), np.asarray(items, dtype=np.int64), labels, weights, grades)


def _check_grades(parts):
    """All parts with feedback have grades or none has; they lie in [0, 1], those of negatives below the positives'."""
    filled = {part: triplets for part, triplets in parts.items() if len(triplets.users)}
    without = [part for part, triplets in filled.items() if triplets.grades is None]
    if len(without) == len(filled):
        return
    if without:
        raise InputError(f"{without[0]} has no grades but another part has: give grades in all logs, or in none")
    for part, triplets in filled.items():
        fine = (triplets.grades >= 0) & (triplets.grades <= 1)  # not so for nan
        if not fine.all():
            raise InputError(f"{part}: grade {triplets.grades[~fine][0]:g} must be a number from 0 to 1: rescale it")
    labels, grades = (np.concatenate([getattr(t, name) for t in filled.values()]) for name in ("labels", "grades"))
    negative, positive = grades[labels == 0].max(initial=-np.inf), grades[labels == 1].min(initial=np.inf)
    if not negative < positive:
        raise InputError(
            f"a negative pair has the grade {negative:g} and a positive one {positive:g}: grades must lie on their "
            "label's side of the threshold; correct the labels or the grades"
        )


def _pair_keys(triplets, n_items):
    return triplets.users.astype(np.int64) * n_items + triplets.items


def _overlap(removed, removed_keys, parts, keys):
    """What S_c loses to the randomized sets, with both labels."""
    labels, found_in = np.empty(len(removed_keys), np.float32), np.empty(len(removed_keys), np.int8)
    for number, part in enumerate(RANDOMIZED):
        here = np.isin(removed_keys, keys[part], assume_unique=True)
        labels[here] = parts[part].labels[np.searchsorted(keys[part], removed_keys[here])]
        found_in[here] = number
    own = _read_only(removed)
    for column in (labels, found_in):
        column.flags.writeable = False
    return Overlap(own.users, own.items, own.labels, labels, found_in)


def _sorted(triplets, shape, part, pair):
    """Columns in CSR order, checked (rows in range, labels 0/1, weights above 0, no pair twice), and that order."""
    users, items, labels, weights, _ = triplets
    n_users, n_items = shape
    for column, size, what in ((users, n_users, "user"), (items, n_items, "item")):
        if len(column) and (column.min() < 0 or column.max() >= size):
            bad = column[(column < 0) | (column >= size)][0]
            raise InputError(f"{part}: {what} row {bad} is outside 0..{size - 1}")
    if not np.isin(labels, (0.0, 1.0)).all():
        bad = labels[~np.isin(labels, (0.0, 1.0))][0]
        raise InputError(f"{part}: label {bad:g} is neither 0 nor 1: pass threshold= (labels above it are positive)")
    fine = (weights >= np.finfo(np.float32).tiny) & (weights <= np.finfo(np.float32).max)  # stored as float32
    if not fine.all():
        raise InputError(f"{part}: weight {weights[~fine][0]:g} must be above 0 and finite (as float32)")
    keys = users * n_items + items
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.ones(len(keys), dtype=bool)
    first[1:] = keys[1:] != keys[:-1]
    if not first.all():
        sorted_labels = labels[order]
        clash = ~first[1:] & (sorted_labels[1:] != sorted_labels[:-1])
        if clash.any():
            where = pair(*divmod(int(keys[1:][clash][0]), n_items))
            raise InputError(f"{part}: {where} stands twice with different labels: keep one row per pair")
        warnings.warn(f"{part}: {int((~first).sum())} repeated pairs with equal labels dropped", stacklevel=3)
        order = order[first]
    return triplets.take(order), order


def _read_only(triplets):
    columns = [
        None if column is None else column.astype(dtype)
        for column, dtype in zip(triplets, (np.int32, np.int32, np.float32, np.float32, np.float32), strict=True)
    ]
    for column in columns:
        if column is not None:
            column.flags.writeable = False
    return Triplets(*columns)
