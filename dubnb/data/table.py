"""Logs, in whatever form, -> Partition: ids, labels, repeated pairs, the split."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError, option, setting
from dubnb.data.column import (
    DistinctIds,
    Place,
    distinct_ids,
    flags_of,
    likely_cause,
    numbers_of,
    readable_ids,
    readable_numbers,
    readable_times,
    shown,
    text_column,
    times_of,
    weights_of,
)
from dubnb.data.grades import LEVELS, Scale, scale_of
from dubnb.data.ids import FIRST_BIG_INT, Ids
from dubnb.data.log import ReadLog, checked_type, open_log
from dubnb.data.merge import DUPLICATES, IMPRESSIONS, Merging, Rows, merged
from dubnb.data.reading import LABEL, Reading
from dubnb.data.split import RandomizedRows, Split, SplitFacts
from dubnb.data.triplets import PARTS, RANDOMIZED

FEWEST_STRANGERS = 5  # distinct ids of a log from which on it cannot be chance that all are unknown to the other
LABEL_WORDS = {"label", "rating", "ratings", "stars", "star", "score", "grade", "value", "feedback"}
LABEL_WORDS |= {"seconds", "secs", "watch", "watched", "duration", "dwell", "play", "plays", "ratio", "click", "clicks"}
COLUMN = "column"  # what grades are that the log has a column of
COMPARED_AT_MOST = 10_000  # ids in which a reason is sought why two logs share none


class Assembled(NamedTuple):
    """What a Partition is made of."""

    triplets: dict[str, Sequence[Any]]
    shape: tuple[int, int]
    user_ids: Ids
    item_ids: Ids
    propensities: np.ndarray | None
    held_back: Sequence[Any] | None
    held_back_propensities: np.ndarray | None
    split: SplitFacts | None
    grading: str | None
    name: str


class RawLog(NamedTuple):
    """A log with original ids, which its rows' users and items are places among."""

    where: str
    user_ids: DistinctIds
    item_ids: DistinctIds
    rows: Rows
    labelled: bool  # else click-only: every row is a positive

    def take(self, rows: np.ndarray, where: str) -> RawLog:
        """Some rows."""
        return self._replace(where=where, rows=self.rows.take(rows))


def two_logs(biased: Any, random: Any, reading: Reading) -> Assembled:
    """See `Partition.from_frames`."""
    _check_rules(reading)
    tables = {"biased": biased, **(_ready_made(random) if isinstance(random, Mapping) else {"random": random})}
    logs = {called: _open(table, called, reading) for called, table in tables.items()}
    if reading.label is not None and not any(reading.label in log.columns for log in logs.values()):
        logs["biased"].column(reading.label, "label")  # a name that was given must be in one of the logs at least
    _check_threshold(logs, tables, reading)
    if reading.drop_bad:
        logs = {called: _without_bad_rows(log, reading) for called, log in logs.items()}
    raw = {called: _raw(logs.pop(called), reading, called) for called in tables}
    return _assembled(raw, reading, _name_of([biased, random]))


def one_log(table: Any, is_random: str, reading: Reading) -> Assembled:
    """See `Partition.from_table`."""
    _check_rules(reading)
    if is_random in reading.roles().values():
        raise InputError(f"column {is_random!r} cannot be {option('is_random')} and something else: name another")
    log = _open(table, "table", reading, is_random)
    log.column(is_random, "is_random")
    if reading.drop_bad:
        log = _without_bad_rows(log, reading, is_random)
    randomized = flags_of(log.column(is_random, "is_random"), Place(log.where, is_random, droppable=True))
    if randomized.all() or not randomized.any():
        kind = "biased" if randomized.all() else "randomized"
        raise InputError(f"{log.where}: column {is_random!r} marks no {kind} row: both kinds of traffic are needed")
    if reading.label is not None:
        log.column(reading.label, "label")
    _check_threshold({"biased": log}, {"biased": table}, reading, is_random)
    raw = _raw(log, reading, "biased")
    both = {"biased": raw.take(~randomized, f"{log.where} (biased rows)")}
    both["random"] = raw.take(randomized, f"{log.where} (randomized rows)")
    return _assembled(both, reading, _name_of([table]))


def _check_rules(reading: Reading) -> None:
    """Whether the choices are sound: before any log is read."""
    reading.roles()
    checked_type("user_type", reading.user_type)
    checked_type("item_type", reading.item_type)
    if reading.duplicates is not None:
        _check.choice(option("duplicates", ""), reading.duplicates, DUPLICATES)
    _check.flag(option("drop_bad", ""), reading.drop_bad)
    Split(reading.split, reading.shares, reading.split_seed).checked()


def _open(table: Any, called: str, reading: Reading, *more: str) -> ReadLog:
    """The columns of one log that are read."""
    columns = {*reading.roles().values(), *more}
    return open_log(table, called, columns, {reading.user, reading.item}, reading.sep, reading.quiet)


def _ready_made(random: Mapping[str, Any]) -> Mapping[str, Any]:
    """Splits {"S_t": ..., ...} that someone else has made."""
    for part in random:
        _check.choice("part of random", part, RANDOMIZED)
    if "S_t" not in random:
        raise InputError(
            f"random holds {', '.join(random) or 'nothing'} but no S_t: the randomized training set is needed"
        )
    return random


def _name_of(tables: Sequence[Any]) -> str:
    paths = [Path(table).name for table in tables if isinstance(table, str | os.PathLike)]
    return " + ".join(paths) if len(paths) == len(tables) else "own data"


# ---- from columns to rows ------------------------------------------------------------------------------------------


def _raw(log: ReadLog, reading: Reading, called: str) -> RawLog:
    """The columns of a log as ids and numbers, each checked; the propensities are those of the biased log."""

    def read(role: str, convert: Any) -> Any:
        name = getattr(reading, role)
        if name is None or (role == "propensity" and called != "biased"):
            return None
        return convert(log.column(name, role), Place(log.where, name, droppable=role != "propensity"))

    users, items = (
        distinct_ids(log.column(name, role), Place(log.where, name, droppable=True), id_type)
        for role, name, id_type in (
            ("user", reading.user, reading.user_type),
            ("item", reading.item, reading.item_type),
        )
    )
    label = reading.label or LABEL
    labelled = label in log.columns
    if labelled:
        labels = numbers_of(log.columns[label], Place(log.where, label, droppable=True))
    else:
        labels = np.ones(len(log), np.int8)
        _say_click_only(log, label, reading)
    more = (
        read("weight", weights_of),
        read("grade", numbers_of),
        read("timestamp", times_of),
        read("propensity", numbers_of),
    )
    return RawLog(log.where, users, items, Rows(users.codes, items.codes, labels, *more), labelled)


def _without_bad_rows(log: ReadLog, reading: Reading, *flags: str) -> ReadLog:
    """The rows whose ids, label, grade, time and weight can be read; a warning counts the others by what they lack."""
    numbers = (reading.label or LABEL, reading.grade, reading.weight, *flags)
    names = (reading.user, reading.item, *numbers, reading.timestamp)
    kept, lacking = np.ones(len(log), bool), {}
    for name in [each for each in names if each in log.columns]:
        column, place = log.columns[name], Place(log.where, name)
        if name in (reading.user, reading.item):
            fine = readable_ids(column)
        else:
            fine = (readable_times if name == reading.timestamp else readable_numbers)(column, place)
        if not fine.all():
            lacking[name] = int(np.count_nonzero(kept & ~fine))
            kept &= fine
    n_bad = len(kept) - int(np.count_nonzero(kept))
    if not n_bad:
        return log
    counts = ", ".join(f"{count:,} by {name!r}" for name, count in lacking.items() if count)
    said = f"{n_bad:,} of {len(kept):,} rows hold a missing or unreadable cell ({counts}"
    if n_bad == len(kept):
        raise InputError(f"{log.where}: {said}): no row is left; check the columns")
    warnings.warn(f"{log.where}: {said}, in this order) and were dropped", stacklevel=2)
    columns = {name: column.take(kept) for name, column in log.columns.items()}
    if log.is_text:  # an empty cell made its column text
        for name in (reading.user, reading.item):
            if columns[name].values.dtype.kind == "O":
                columns[name] = text_column(columns[name].values.tolist(), columns[name].codes)
    return ReadLog(log.where, columns, log.names, log.is_text, log.unread)


def _check_threshold(logs: Mapping[str, ReadLog], tables: Mapping[str, Any], reading: Reading, *more: str) -> None:
    """Refuse a threshold without labels to apply it to, and name the column that probably holds them.

    Beside a labelled log, a log without labels is click-only, unless one of its unused columns is called like a label.
    """
    if reading.threshold is None:
        return
    threshold = _check.real(option("threshold", ""), reading.threshold, low=-math.inf)
    label = reading.label or LABEL
    nowhere = all(label not in log.columns for log in logs.values())
    used = {*reading.roles().values(), *more}
    for called, log in logs.items():
        for role, name in (("user", reading.user), ("item", reading.item)):
            log.column(name, role)  # what is missing is named in this order
        free = [name for name in log.names if name not in used and (nowhere or _is_called_like_a_label(name))]
        likely = None if label in log.columns else _likely_label(tables[called], free, threshold, reading)
        if likely is not None:
            hint = f"did you mean {setting('label', likely)}?"
            if not nowhere:
                hint = f"rename {likely!r} if it holds the labels, or remove it if every row is a positive"
        elif nowhere:
            hint = f"name the column with {option('label')}; there are {log.listed()}"
        else:
            continue
        given = option("threshold") + ("" if option("threshold").endswith("=") else " ") + f"{threshold:g}"
        raise InputError(f"{log.where}: {given} needs a label column, and there is no {label!r}: {hint}")


def _is_called_like_a_label(name: str) -> bool:
    words = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())
    return not LABEL_WORDS.isdisjoint(words)


def _likely_label(table: Any, free: list[str], threshold: float, reading: Reading) -> str | None:
    """Of some unused columns the one that probably holds the labels: numeric, and first by its name, then by having
    values on both sides of the threshold. A column with another name must have both, and three levels."""
    if not free:
        return None
    try:
        log = open_log(table, "log", set(free), set(), reading.sep, reading.quiet)
    except InputError:  # unused columns may hold anything
        return None
    likely = []
    for name in free:
        try:
            values = numbers_of(log.columns[name], Place(log.where, name))
        except (InputError, KeyError):
            continue
        by_name, around = _is_called_like_a_label(name), bool(values.min() <= threshold < values.max())
        if by_name or (around and len(np.unique(values)) > 2):
            likely.append((not by_name, not around, name))
    return min(likely, key=lambda each: each[:2])[2] if likely else None


def _say_click_only(log: ReadLog, label: str, reading: Reading) -> None:
    used = set(reading.roles().values())
    others = [name for name in log.names if name not in used][:5]
    hint = f" (if it is one of {', '.join(others)}, name it with {option('label')})" if others else ""
    warnings.warn(f"{log.where}: no column {label!r}{hint}: click-only, every row is taken as a positive", stacklevel=2)


# ---- from logs to the sets of a partition --------------------------------------------------------------------------


def _assembled(raw: dict[str, RawLog], reading: Reading, name: str) -> Assembled:
    """The sets of a biased log and a randomized one, or its ready-made parts. Consumes `raw`."""
    users = _union(raw, 0, reading.user, "user")
    items = _union(raw, 1, reading.item, "item")
    shape, ids = (len(users.ids), len(items.ids)), (users.ids, items.ids)

    def pair(user: int, item: int) -> str:
        return f"pair (user {users.ids.values[user]}, item {items.ids.values[item]})"

    labelled = {called: log.labelled for called, log in raw.items()}
    scale = scale_of([log.rows.labels for log in raw.values() if log.labelled], reading.threshold)
    scale = scale if any(labelled.values()) else Scale()
    rule = reading.duplicates or IMPRESSIONS
    logs: dict[str, Rows] = {}
    late, facts = None, None
    for called in [*(each for each in raw if each != "biased"), "biased"]:
        log = raw.pop(called)  # so that the places go when the rows are there
        rows = log.rows._replace(users=users.rows[called][log.rows.users], items=items.rows[called][log.rows.items])
        if called == "biased" and late is not None and rule == IMPRESSIONS:
            rows = rows.take(_known_by(rows, late, shape))
        own = scale if log.labelled else Scale()
        rows = merged(rows, rule, Merging(shape, log.where, pair, ids, own))
        logs[called] = _with_labels(rows, own, scale.kind is not None, rule, reading)
        if called == "random":
            parts, late, facts = _split(logs.pop("random"), ids, log.labelled, reading)
            logs |= parts
    logs, grading = _with_grades_in_all(logs, scale, rule, reading)
    biased, held_back = logs["biased"], None
    if late is not None:
        biased, held_back = _up_to(biased, late)
    sets = {part: _columns(biased if part == "S_c" else logs.get(part)) for part in PARTS}
    return Assembled(
        sets,
        shape,
        users.ids,
        items.ids,
        biased.propensities,
        None if held_back is None else held_back[:5],
        None if held_back is None else held_back.propensities,
        facts,
        grading,
        reading.name or name,
    )


def _columns(rows: Rows | None) -> Sequence[Any]:
    return ([], [], []) if rows is None else rows[:5]


def _with_labels(rows: Rows, scale: Scale, graded: bool, rule: str, reading: Reading) -> Rows:
    """Labels 0/1 and, where there are levels or ranks, grades; a click-only log's positives have the highest grade."""
    grades = rows.grades
    if reading.grade is None and graded:
        grades = np.ones(len(rows.labels), np.float32) if scale.kind is None else scale.grades(rows.labels)
    elif reading.grade is None and rule == "mean" and scale.threshold is not None and scale.low < scale.high:
        grades = (rows.labels - scale.low) / (scale.high - scale.low)
    return rows._replace(labels=scale.labels(rows.labels), grades=grades)


def _with_grades_in_all(
    logs: dict[str, Rows], scale: Scale, rule: str, reading: Reading
) -> tuple[dict[str, Rows], str | None]:
    """The logs, and what their grades are. Mean labels are kept only where one is neither 0 nor 1."""
    if reading.grade is not None:
        return logs, COLUMN
    if scale.kind is not None:
        return logs, scale.kind
    means = [rows.grades for rows in logs.values() if rows.grades is not None]
    mixed = any(((mean > 0) & (mean < 1)).any() for mean in means)
    done = {}
    for called, rows in logs.items():
        grades = rows.labels.astype(np.float32) if rows.grades is None else rows.grades
        done[called] = rows._replace(grades=grades if mixed else None)
    return done, (IMPRESSIONS if rule == IMPRESSIONS else LEVELS) if mixed else None


def _split(
    random: Rows, ids: tuple[Ids, Ids], labelled: bool, reading: Reading
) -> tuple[dict[str, Rows], float | None, SplitFacts]:
    """The randomized log cut into its parts, the time at which S_c has to end, and how it was cut.

    By time, S_c ends where S_va begins, or else where S_te does.
    """
    split = Split(reading.split, reading.shares, reading.split_seed).checked()
    cut = split.parts(RandomizedRows(random.users, random.items, random.labels, *ids, random.times, labelled))
    parts = {part: random.take(rows) for part, rows in cut.rows.items()}
    late = None
    if split.rule == "time":
        tested = np.concatenate(
            [part.times for name, part in parts.items() if name != "S_t" and part.times is not None]
        )
        late = tested.min() if len(tested) else None
    return parts, late, cut.facts


def _known_by(rows: Rows, late: float, shape: tuple[int, int]) -> np.ndarray:
    """Which rows of the biased log a model may know of: those before `late`, and pairs that are met only later."""
    assert rows.times is not None
    keys, past = rows.users.astype(np.int64) * shape[1] + rows.items, rows.times < late
    kept: np.ndarray = past | ~np.isin(keys, keys[past])
    return kept


def _up_to(biased: Rows, late: float) -> tuple[Rows, Rows | None]:
    """The pairs of the biased log before a time, and the others, which are held back."""
    assert biased.times is not None
    past = biased.times < late
    if not past.any():
        raise InputError("no row of the biased log is older than S_va: give S_t a larger share, or split at random")
    if past.all():
        return biased, None
    held_back = biased.take(~past)
    warnings.warn(
        f"split by time: {len(held_back.users):,} rows of the biased log are no older than S_va and left out; "
        f"{setting('refit', 'all')} trains on them in the end",
        stacklevel=2,
    )
    return biased.take(past), held_back


# ---- ids of both logs ----------------------------------------------------------------------------------------------


class Union(NamedTuple):
    """Ids over all logs, and for each log the row numbers of its own distinct ids."""

    ids: Ids
    rows: dict[str, np.ndarray]


def _union(raw: Mapping[str, RawLog], side: int, column: str, what: str) -> Union:
    """The ids of one side: of one kind in all logs, and the randomized log must share some with the biased."""
    own: dict[str, DistinctIds] = {called: (log.user_ids, log.item_ids)[side] for called, log in raw.items()}
    biased = own["biased"]
    for called, log in raw.items():
        if own[called].kind != biased.kind:
            raise InputError(
                f"column {column!r} is {biased.kind} in {raw['biased'].where} but {own[called].kind} in {log.where}, "
                f"such as {shown(biased.values[0])} and {shown(own[called].values[0])}: make ids int or str in both, "
                f"or pass {setting(what + '_type', 'str')}"
            )
    values = _of_one_type({called: ids.values for called, ids in own.items()}, column)
    union = np.unique(np.concatenate(list(values.values())))
    rows = {called: np.searchsorted(union, each).astype(np.int32) for called, each in values.items()}
    present = {called: _present(log.rows[:2][side], len(own[called].values)) for called, log in raw.items()}
    known = np.zeros(len(union), bool)
    known[rows["biased"][present["biased"]]] = True
    if not any(known[rows[called][present[called]]].any() for called in raw if called != "biased"):
        _meet_strangers(what, raw, {called: own[called].values[places] for called, places in present.items()})
    return Union(Ids(union), rows)


def _present(places: np.ndarray, n: int) -> np.ndarray:
    """Which of 0 .. n-1 occur."""
    met = np.zeros(n, bool)
    met[places] = True
    return np.flatnonzero(met)


def _of_one_type(values: Mapping[str, np.ndarray], column: str) -> dict[str, np.ndarray]:
    """Whole numbers all as int64 or all as uint64: together NumPy would make them float64."""
    if all(each.dtype.kind != "u" for each in values.values()):
        return dict(values)
    low = min(int(each.min()) for each in values.values() if len(each))
    high = max(int(each.max()) for each in values.values() if len(each))
    if low < 0 and high >= FIRST_BIG_INT:
        raise InputError(f"column {column!r} has the ids {low} and {high}, too far apart for 64 bits: make them str")
    return {called: each.astype(np.int64 if high < FIRST_BIG_INT else np.uint64) for called, each in values.items()}


def _meet_strangers(what: str, raw: Mapping[str, RawLog], ids: Mapping[str, np.ndarray]) -> None:
    """Refuse logs that share no id, with one of each shown and the likely cause.

    Logs of a few ids may share none by chance: there it is a warning, unless a cause is seen.
    """
    random = next(called for called in raw if called != "biased")
    ours, theirs = (ids[called][:COMPARED_AT_MOST].tolist() for called in ("biased", random))
    bare = {_bare(each): each for each in ours}
    one, other = next(((bare[_bare(each)], each) for each in theirs if _bare(each) in bare), (ours[0], theirs[0]))
    cause = likely_cause(one, other)
    where, biased = raw[random].where, raw["biased"].where
    items = None if cause or what != "user" else _shared_items(raw["biased"], raw[random])
    if items is not None:
        message = (
            f"no user of {where} is in {biased}, while {items} are: the randomized traffic went to users of its own (a "
            "user bucket), which is not supported yet; show random items to some users of the biased log too, or write "
            "the users alike if they are the same"
        )
    else:
        message = (
            f"no {what} of {where} is in {biased}: ids such as {shown(other)} and {shown(one)} "
            f"({f'likely cause: {cause}' if cause else 'are these the same ids?'}); write them alike in both logs"
        )
    if cause is None and min(len(ours), len(theirs)) < FEWEST_STRANGERS:
        warnings.warn(message, stacklevel=2)
        return
    raise InputError(message)


def _shared_items(biased: RawLog, random: RawLog) -> str | None:
    """How many items of the randomized log the biased one has, in words; None where it has fewer than half."""
    if biased.item_ids.kind != random.item_ids.kind:
        return None
    ours, theirs = (
        np.unique(log.item_ids.values[_present(log.rows.items, len(log.item_ids.values))]) for log in (biased, random)
    )
    n_shared = int(np.isin(theirs, ours).sum())
    return f"{n_shared:,} of its {len(theirs):,} items" if 2 * n_shared >= len(theirs) else None


def _bare(each: Any) -> str:
    """An id without all that may be written in different ways."""
    return str(each).strip().casefold().lstrip("0").removesuffix(".0")
