"""From logs to a Partition: check the cells, give both logs the same ids, merge repeated pairs, split.

table or files -> ReadLog of Columns -> LogRows of one log -> LogRows with shared ids -> Partition of Triplets
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError, option, setting
from dubnb.data.column import (
    CellLocation,
    chances_of,
    distinct_ids,
    ends_of,
    flags_of,
    holds_dates,
    likely_cause,
    numbers_of,
    quote_cell,
    readable_ids,
    readable_numbers,
    readable_times,
    text_column,
    times_of,
    weights_of,
)
from dubnb.data.eligibility import Eligibility
from dubnb.data.ids import FIRST_BIG_INT, Ids, kind_of_ids
from dubnb.data.log import DEFAULT_LABEL, LogOptions, ReadLog, checked_id_type, open_log
from dubnb.data.pattern import PARTS, RANDOMIZED
from dubnb.data.rows import (
    DUPLICATES,
    IMPRESSIONS,
    LEVELS,
    LogRows,
    Scale,
    SplitFacts,
    checked_split,
    merged,
    scale_of,
    split_rows,
)

ENOUGH_IDS = 5  # distinct ids per log from which on it cannot be chance that the logs share none
LABEL_WORDS = {"label", "rating", "ratings", "stars", "star", "score", "grade", "value", "feedback"}
PROPENSITY_WORDS = {"propensity", "propensities", "pscore", "p", "prob", "probs", "probability", "probabilities"}
POSITION_WORDS = {"position", "positions", "slot"}
OPTION_NAMES = ("weight", "grade", "timestamp", "eligible", "stratum")  # columns that look like an option's
LABEL_WORDS |= {"seconds", "secs", "watch", "watched", "duration", "dwell", "play", "plays", "ratio", "click", "clicks"}
GRADE_COLUMN = "column"  # the grading of a log that has a column of grades
NANOSECONDS = 1  # in one nanosecond: the unit of dates
# (the smallest number of this unit since 1970, its nanoseconds); the median of a column decides
EPOCH_UNITS = ((1e17, NANOSECONDS), (1e14, 1_000), (1e11, 1_000_000), (1e8, 1_000_000_000))
# Years of logs. Wider ones would hold dates as numbers (20250131093000), and clocks that begin in 1601 or in year 1.
YEARS = (788_918_400e9, 7_258_118_400e9)  # 1995 and 2200 in nanoseconds since 1970
MOST_APART = 50  # ratio of the last times of two logs, in no known unit; a minute has 60 seconds
ENDS = ("from", "to")  # columns of the tables of `eligible`
COMPARED_AT_MOST = 10_000  # ids that are compared to find out why two logs share none


def two_logs(biased: Any, random: Any, options: LogOptions) -> dict[str, Any]:
    """The arguments of `Partition` for `Partition.from_frames`."""
    check_options(options)
    tables = {"biased": biased, **(ready_made(random) if isinstance(random, Mapping) else {"random": random})}
    logs = {called: open_table(table, called, options) for called, table in tables.items()}
    if options.label is not None and not any(options.label in log.columns for log in logs.values()):
        logs["biased"].column(options.label, "label")  # at least one log must have a column that was named
    check_threshold(logs, tables, options)
    if options.drop_bad:
        logs = {called: without_bad_rows(log, options) for called, log in logs.items()}
    rows, strata, mentioned = {}, [], logs["biased"].names
    for called in tables:
        log = logs.pop(called)
        if called == "biased":
            warn_of_unread_observed(log, options)
            warn_of_unread_columns(log, options)
        else:
            warn_of_unread_propensities(log, options)
            warn_of_unread_columns(log, options, mentioned)
        warn_of_positions(log, options)
        strata += _strata_of(log, options, np.full(len(log), called != "biased"))
        rows[called] = rows_of_log(log, options)._replace(propensities=propensities_of(log, options, called))
        del log  # frees its memory
    return _partition_arguments(rows, options, name_of([biased, random]), strata)


def one_log(table: Any, is_random: str, options: LogOptions) -> dict[str, Any]:
    """The arguments of `Partition` for `Partition.from_table`."""
    check_options(options)
    if is_random in options.roles().values():
        raise InputError(f"column {is_random!r} cannot be {option('is_random')} and something else: name another")
    log = open_table(table, "table", options, is_random)
    log.column(is_random, "is_random")
    if options.drop_bad:
        log = without_bad_rows(log, options, is_random)
    randomized = flags_of(log.columns[is_random], CellLocation(log.where, is_random, droppable=True))
    if randomized.all() or not randomized.any():
        kind = "biased" if randomized.all() else "randomized"
        raise InputError(f"{log.where}: column {is_random!r} marks no {kind} row: both kinds of traffic are needed")
    if options.label is not None:
        log.column(options.label, "label")
    check_threshold({"biased": log}, {"biased": table}, options, is_random)
    if not warn_of_unread_propensities(log, options):
        warn_of_unread_observed(log, options, ~randomized)
    warn_of_unread_columns(log, options, (is_random,))
    warn_of_positions(log, options)
    rows, both = rows_of_log(log, options), {}
    for called, kind, own in (("biased", "biased", ~randomized), ("random", "randomized", randomized)):
        propensities = propensities_of(log, options, called, own)
        both[called] = rows.take(own)._replace(where=f"{log.where} ({kind} rows)", propensities=propensities)
    return _partition_arguments(both, options, name_of([table]), _strata_of(log, options, randomized))


def check_options(options: LogOptions) -> None:
    """Check the options before any log is read."""
    options.roles()
    checked_id_type("user_type", options.user_type)
    checked_id_type("item_type", options.item_type)
    if options.duplicates is not None:
        _check.choice(option("duplicates", ""), options.duplicates, DUPLICATES)
    _check.flag(option("drop_bad", ""), options.drop_bad)
    checked_split(options.split, options.shares, options.split_seed)


def open_table(table: Any, called: str, options: LogOptions, *more: str) -> ReadLog:
    """One log with the columns that are read."""
    columns = {*options.roles().values(), *more}
    return open_log(table, called, columns, {options.user, options.item}, options.sep, options.quiet)


def ready_made(random: Mapping[str, Any]) -> Mapping[str, Any]:
    """A randomized log that is split already: {"S_t": ..., ...}."""
    for part in random:
        _check.choice("part of random", part, RANDOMIZED)
    if "S_t" not in random:
        raise InputError(
            f"random holds {', '.join(random) or 'nothing'} but no S_t: the randomized training set is needed"
        )
    return random


def name_of(tables: Sequence[Any]) -> str:
    paths = [Path(table).name for table in tables if isinstance(table, str | os.PathLike)]
    return " + ".join(paths) if len(paths) == len(tables) else "own data"


# ---- from columns to rows ------------------------------------------------------------------------------------------


def rows_of_log(log: ReadLog, options: LogOptions) -> LogRows:
    """The columns of a log as ids and numbers, each checked, without propensities."""

    def read(role: str, convert: Any, *more: Any) -> Any:
        name = getattr(options, role)
        if name is None:
            return None
        return convert(log.column(name, role), CellLocation(log.where, name, droppable=True), *more)

    users, items = (read(role, distinct_ids, getattr(options, f"{role}_type")) for role in ("user", "item"))
    label = options.label or DEFAULT_LABEL
    labelled = label in log.columns
    if labelled:
        labels = numbers_of(log.columns[label], CellLocation(log.where, label, droppable=True))
    else:
        labels = np.ones(len(log), np.int8)
        used = set(options.roles().values())
        others = [name for name in log.names if name not in used][:5]
        hint = f" (if it is one of {', '.join(others)}, name it with {option('label')})" if others else ""
        said = f"{log.where}: no column {label!r}{hint}: click-only, every row is taken as a positive"
        warnings.warn(said, stacklevel=2)
    return LogRows(
        users.codes,
        items.codes,
        labels,
        users.values,
        items.values,
        read("weight", weights_of),
        read("grade", numbers_of),
        read("timestamp", times_of),
        labelled=labelled,
        where=log.where,
    )


def propensities_of(
    log: ReadLog, options: LogOptions, called: str, rows: np.ndarray | None = None
) -> np.ndarray | None:
    """P(observed) of a biased log, or P(shown) of a randomized one; `rows` are those of this kind in a log of both."""
    role = "propensity" if called == "biased" else "random_propensity"
    name = getattr(options, role)
    return None if name is None else chances_of(log.column(name, role), CellLocation(log.where, name), rows)


def warn_of_unread_propensities(log: ReadLog, options: LogOptions) -> bool:
    """Warn if the randomized log has a column of propensities, by name or by `propensity`, that is not read."""
    if options.random_propensity is not None:
        return False
    column = options.propensity if options.propensity in log.names else _unread_propensity(log, options)
    if column is not None:
        warnings.warn(
            f"{log.where}: column {column!r} is not read for randomized rows: if it is P(item shown | user, context), "
            f"pass {setting('random_propensity', column)}; otherwise the traffic is taken as uniform",
            stacklevel=2,
        )
    return column is not None


def warn_of_unread_observed(log: ReadLog, options: LogOptions, rows: np.ndarray | None = None) -> None:
    """Warn if the biased log (some rows of a log of both) has a column of propensities that is not read for its rows.

    The column of `random_propensity` counts if its values differ there: an empty or constant column says nothing.
    """
    if options.propensity is not None:
        return
    column = _unread_propensity(log, options)
    if options.random_propensity in log.columns:
        values, cell = log.columns[options.random_propensity], CellLocation(log.where, options.random_propensity)
        values = values if rows is None else values.take(rows)
        values = values.take(readable_numbers(values, cell))
        if len(values) and np.ptp(numbers_of(values, cell)) > 0:
            column = options.random_propensity
    if column is not None:
        warnings.warn(
            f"{log.where}: column {column!r} is not read for rows of the biased log: if it is P(observed) there, pass "
            f"{setting('propensity', column)}; otherwise ips estimates propensities itself",
            stacklevel=2,
        )


def _unread_propensity(log: ReadLog, options: LogOptions) -> str | None:
    """The first column that is named like propensities and has no role."""
    used = set(options.roles().values())
    return next((name for name in log.names if name not in used and _has_word(name, PROPENSITY_WORDS)), None)


def warn_of_unread_columns(log: ReadLog, options: LogOptions, mentioned: Collection[str] = ()) -> None:
    """Warn of columns that are named like options that were not given; `mentioned` are columns to leave out."""
    used = {*options.roles().values(), *mentioned}
    roles = [role for role in OPTION_NAMES if getattr(options, role) is None and role in log.names and role not in used]
    if roles:
        named = ", ".join(map(repr, roles))
        given = ", ".join(option("eligible") if role == "eligible" else setting(role, role) for role in roles)
        warnings.warn(f"{log.where}: not read: {named}; to use it, pass {given} (docs/logs.md)", stacklevel=2)


def warn_of_positions(log: ReadLog, options: LogOptions) -> None:
    """Warn if a log has a column of positions, by name: nothing reads it."""
    used = set(options.roles().values())
    column = next((name for name in log.names if name not in used and _has_word(name, POSITION_WORDS)), None)
    if column is not None:
        remedy = "" if options.weight else f"; to weigh rows by it, pass {option('weight')}"
        warnings.warn(
            f"{log.where}: column {column!r} is not read: position is not modelled{remedy} (docs/collecting.md, "
            "'Position bias')",
            stacklevel=2,
        )


def without_bad_rows(log: ReadLog, options: LogOptions, *flags: str) -> ReadLog:
    """The rows whose ids, label, grade, time and weight can be read; a warning counts the others by column."""
    kept, lacking = unreadable_rows(log, options, *flags)
    if kept.all():
        return log
    said = dropped_text(len(kept), int(np.count_nonzero(~kept)), lacking)
    if not kept.any():
        raise InputError(f"{log.where}: {said}): no row is left; check the columns")
    warnings.warn(f"{log.where}: {said}, in this order) and were dropped", stacklevel=2)
    return without_rows(log, kept, options)


def unreadable_rows(log: ReadLog, options: LogOptions, *flags: str) -> tuple[np.ndarray, dict[str, int]]:
    """Which rows can be read (bool), and by column how many rows it makes unreadable that earlier columns do not."""
    numeric = (options.label or DEFAULT_LABEL, options.grade, options.weight, *flags)
    names = (options.user, options.item, *numeric, options.timestamp)
    kept, lacking = np.ones(len(log), bool), {}
    for name in [each for each in names if each in log.columns]:
        column, cell = log.columns[name], CellLocation(log.where, name)
        if name in (options.user, options.item):
            fine = readable_ids(column)
        else:
            fine = (readable_times if name == options.timestamp else readable_numbers)(column, cell)
        if not fine.all():
            lacking[name] = int(np.count_nonzero(kept & ~fine))
            kept &= fine
    return kept, lacking


def dropped_text(n_rows: int, n_bad: int, lacking: Mapping[str, int]) -> str:
    """Start the sentence on unreadable rows: how many there are, and in which columns."""
    counts = ", ".join(f"{count:,} by {name!r}" for name, count in lacking.items() if count)
    return f"{n_bad:,} of {n_rows:,} rows hold a missing or unreadable cell ({counts}"


def without_rows(log: ReadLog, kept: np.ndarray, options: LogOptions) -> ReadLog:
    """Some of the rows of a log."""
    columns = {name: column.take(kept) for name, column in log.columns.items()}
    if log.is_text:  # an empty cell had turned its column into text
        for name in (options.user, options.item):
            if columns[name].values.dtype.kind == "O":
                columns[name] = text_column(columns[name].values.tolist(), columns[name].codes)
    return ReadLog(log.where, columns, log.names, log.is_text, log.unread)


def check_threshold(logs: Mapping[str, ReadLog], tables: Mapping[str, Any], options: LogOptions, *more: str) -> None:
    """Refuse a threshold if there are no labels to apply it to, and name the column that probably has them.

    If the other log has labels, a log without labels is click-only, unless an unused column is named like a label.
    """
    if options.threshold is None:
        return
    threshold = _check.real(option("threshold", ""), options.threshold, low=-math.inf)
    label = options.label or DEFAULT_LABEL
    nowhere = all(label not in log.columns for log in logs.values())
    used = {*options.roles().values(), *more}
    for called, log in logs.items():
        for role, name in (("user", options.user), ("item", options.item)):
            log.column(name, role)  # missing columns of ids are reported first
        free = [name for name in log.names if name not in used and (nowhere or _has_word(name, LABEL_WORDS))]
        likely = None if label in log.columns else _likely_label(tables[called], free, threshold, options)
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


def _has_word(column: str, words: set[str]) -> bool:
    """Whether the name of a column contains one of some words."""
    return not words.isdisjoint(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", column).lower()))


def _likely_label(table: Any, free: list[str], threshold: float, options: LogOptions) -> str | None:
    """The unused numeric column that probably has the labels, or None.

    A column named like a label is preferred, then one with values on both sides of the threshold. A column with
    another name needs values on both sides and at least three levels.
    """
    if not free:
        return None
    try:
        log = open_log(table, "log", set(free), set(), options.sep, options.quiet)
    except InputError:  # unused columns may hold anything
        return None
    likely = []
    for name in free:
        try:
            values = numbers_of(log.columns[name], CellLocation(log.where, name))
        except (InputError, KeyError):
            continue
        by_name, around = _has_word(name, LABEL_WORDS), bool(values.min() <= threshold < values.max())
        if by_name or (around and len(np.unique(values)) > 2):
            likely.append((not by_name, not around, name))
    return min(likely, key=lambda each: each[:2])[2] if likely else None


def put_on_one_clock(logs: dict[str, LogRows], options: LogOptions) -> tuple[bool | None, float]:
    """Replace the times of the logs by numbers that can be compared: dates and mixed units as nanoseconds.

    A split by time compares the logs. Numbers next to dates, and numbers that share no moment with the other log, then
    get a unit. By their size they are seconds, milliseconds, microseconds or nanoseconds since 1970. Numbers of another
    kind, such as seconds since the log began, must end at times of the same order.

    Returns whether the randomized log's times are dates (None without times), and the factor of its numbers.
    """
    factor = 1.0
    times = {called: log.times for called, log in logs.items() if log.times is not None}
    is_date = {called: each.dtype.kind == "M" for called, each in times.items()}
    times = {called: each.astype(np.int64) if is_date[called] else each for called, each in times.items()}
    for called, each in times.items():
        if not is_date[called]:
            _refuse_two_units(each, f"{logs[called].where}: column {options.timestamp!r}")
    if options.split == "time" and len(times) > 1:
        units = {called: NANOSECONDS if is_date[called] else _epoch_unit(each) for called, each in times.items()}
        mixed = len(set(is_date.values())) > 1
        apart = not _share_moments(times) or (None not in units.values() and not _share_moments(_without_ends(times)))
        if mixed or (len(set(units.values())) > 1 and apart):
            for called, unit in units.items():
                if unit is None:
                    raise InputError(
                        f"{logs[called].where}: column {options.timestamp!r} holds numbers such as "
                        f"{times[called][0]:g}, which do not fit the times of the other log: write both in one unit"
                    )
            times = {called: _as_nanoseconds(each, units[called] or 1) for called, each in times.items()}
            factor = next(float(unit or 1) for called, unit in units.items() if called != "biased")
        names = " and ".join(log.where for log in logs.values())
        ends = [float(np.abs(each).max()) for each in times.values()]
        if not _share_moments(times):
            said = (
                f"{names} share no moment of column {options.timestamp!r}: check that both have one unit and time zone"
            )
            warnings.warn(said, stacklevel=2)
        elif set(units.values()) == {None} and max(ends) >= MOST_APART * min(ends):
            raise InputError(
                f"{names}: column {options.timestamp!r} ends at {ends[0]:g} and {ends[-1]:g}, perhaps in two units: "
                "write both as dates, or as seconds since 1970"
            )
    for called, each in times.items():
        logs[called] = logs[called]._replace(times=each)
    return next((each for called, each in is_date.items() if called != "biased"), None), factor


def _epoch_unit(times: np.ndarray) -> int | None:
    """The nanoseconds of one unit of times since 1970; None where no unit puts the median into YEARS."""
    middle = float(np.quantile(times, 0.5, method="higher"))
    return next((unit for _, unit in EPOCH_UNITS if YEARS[0] <= middle * unit < YEARS[1]), None)


def _refuse_two_units(times: np.ndarray, where: str) -> None:
    """Refuse a column with, say, seconds and milliseconds since 1970: two ranges of sizes with a wide gap between."""
    for limit, _ in EPOCH_UNITS[:-1]:
        small, large = times[(times >= EPOCH_UNITS[-1][0]) & (times < limit)], times[times >= limit]
        if len(small) and len(large) and large.min() >= 100 * small.max():
            pair = f"{small.max().item()} and {large.min().item()}"
            raise InputError(f"{where} holds {pair}, which look like times in two units: write all in one unit")


def _without_ends(times: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The times without the first and the last twentieth, where a few wrong values may stand."""
    return {called: np.quantile(each, (0.05, 0.95)) for called, each in times.items()}


def _as_nanoseconds(times: np.ndarray, unit: int) -> np.ndarray:
    """Times as nanoseconds, whole numbers if 64 bits hold them."""
    fits = times.dtype.kind != "f" and max(abs(int(times.min())), abs(int(times.max()))) * unit < FIRST_BIG_INT
    return times.astype(np.int64 if fits else np.float64) * unit


def _share_moments(times: Mapping[str, np.ndarray]) -> bool:
    """Whether the times of the biased log and of the others share a moment."""
    others = [each for called, each in times.items() if called != "biased"]
    low, high = min(each.min() for each in others), max(each.max() for each in others)
    return bool(times["biased"].min() <= high and low <= times["biased"].max())


# ---- from rows to the parts of a partition -------------------------------------------------------------------------


def _partition_arguments(
    logs: dict[str, LogRows], options: LogOptions, name: str, strata: list[ItemStrata]
) -> dict[str, Any]:
    """The arguments of `Partition` from the biased log and the randomized one, or its ready-made parts."""
    clock = put_on_one_clock(logs, options)
    logs = with_shared_ids(logs, options)
    eligibility = _eligibility(logs["biased"].user_ids, logs["biased"].item_ids, options, strata, clock)
    labels = [log.labels for log in logs.values() if log.labelled]
    scale = scale_of(labels, options.threshold) if labels else Scale()
    del labels
    user_ids, item_ids = logs["biased"].user_ids, logs["biased"].item_ids
    rule = options.duplicates or IMPRESSIONS
    parts: dict[str, LogRows] = {}
    end: float | None = None  # the time at which S_c has to end
    facts: SplitFacts | None = None
    for called in [*(each for each in logs if each != "biased"), "biased"]:
        log = logs.pop(called)  # frees the memory of the rows before they are merged
        if called == "biased" and end is not None and rule == IMPRESSIONS:
            log = log.take(_rows_known_at(log, end))
        own = scale if log.labelled else Scale()
        log = with_labels(merged(log, rule, own, shown=called != "biased"), own, scale.kind is not None, rule, options)
        if called == "random":
            randomized, end, facts = split_random_log(log, options)
            parts |= randomized
        else:
            parts["S_c" if called == "biased" else called] = log
    parts, grading = with_grades_in_all(parts, scale, rule, options)
    held_back = None
    if end is not None:
        parts["S_c"], held_back = _before(parts["S_c"], end)
    return {
        "triplets": {part: parts[part].feedback(part) if part in parts else ([], [], []) for part in PARTS},
        "shape": (len(user_ids), len(item_ids)),
        "user_ids": Ids(user_ids),
        "item_ids": Ids(item_ids),
        "propensities": parts["S_c"].propensities,
        "held_back": None if held_back is None else held_back.feedback(),
        "held_back_propensities": None if held_back is None else held_back.propensities,
        "split": facts,
        "grading": grading,
        "eligibility": eligibility,
        "name": options.name or name,
    }


def with_labels(log: LogRows, scale: Scale, graded: bool, rule: str, options: LogOptions) -> LogRows:
    """0/1 labels and, if there are levels or ranks, grades; the positives of a click-only log get the highest grade."""
    grades = log.grades
    if options.grade is None and graded:
        grades = np.ones(len(log.labels), np.float32) if scale.kind is None else scale.grades(log.labels)
    elif options.grade is None and rule == "mean" and scale.threshold is not None and scale.low < scale.high:
        grades = (log.labels - scale.low) / (scale.high - scale.low)
    return log._replace(labels=scale.labels(log.labels), grades=grades)


def with_grades_in_all(
    parts: dict[str, LogRows], scale: Scale, rule: str, options: LogOptions
) -> tuple[dict[str, LogRows], str | None]:
    """The parts, and what their grades are. Mean labels are kept only if one of them is neither 0 nor 1."""
    if options.grade is not None:
        return parts, GRADE_COLUMN
    if scale.kind is not None:
        return parts, scale.kind
    means = [log.grades for log in parts.values() if log.grades is not None]
    mixed = any(((mean > 0) & (mean < 1)).any() for mean in means)
    done = {}
    for part, log in parts.items():
        grades = log.labels.astype(np.float32) if log.grades is None else log.grades
        done[part] = log._replace(grades=grades if mixed else None)
    return done, (IMPRESSIONS if rule == IMPRESSIONS else LEVELS) if mixed else None


def split_random_log(random: LogRows, options: LogOptions) -> tuple[dict[str, LogRows], float | None, SplitFacts]:
    """The parts of the randomized log, the time at which S_c has to end, and how the log was split.

    With a split by time, S_c ends where S_va begins or, without S_va, where S_te begins.
    """
    rule, shares, seed = checked_split(options.split, options.shares, options.split_seed)
    rows, facts = split_rows(random, rule, shares, seed)
    parts = {part: random.take(each) for part, each in rows.items()}
    end = None
    if rule == "time":
        tested = np.concatenate(
            [part.times for name, part in parts.items() if name != "S_t" and part.times is not None]
        )
        end = tested.min() if len(tested) else None
    return parts, end, facts


def _rows_known_at(log: LogRows, end: float) -> np.ndarray:
    """Which rows of the biased log count: those before `end`, and all rows of pairs that only occur later."""
    assert log.times is not None
    keys, past = log.users.astype(np.int64) * log.shape[1] + log.items, log.times < end
    kept: np.ndarray = past | ~np.isin(keys, keys[past])
    return kept


def _before(biased: LogRows, end: float) -> tuple[LogRows, LogRows | None]:
    """The rows of the biased log before a time, and the later rows, which are held back."""
    assert biased.times is not None
    past = biased.times < end
    if not past.any():
        raise InputError("no row of the biased log is older than S_va: give S_t a larger share, or split at random")
    if past.all():
        return biased, None
    warnings.warn(
        f"split by time: {int(np.count_nonzero(~past)):,} rows of the biased log are no older than S_va and left out; "
        f"{setting('refit', 'all')} trains on them in the end",
        stacklevel=2,
    )
    return biased.take(past), biased.take(~past)


# ---- eligibility ---------------------------------------------------------------------------------------------------


class ItemStrata(NamedTuple):
    """The stratum of some items, as one log says it."""

    items: np.ndarray  # ids
    strata: np.ndarray  # str
    where: str


def _strata_of(log: ReadLog, options: LogOptions, randomized: np.ndarray) -> list[ItemStrata]:
    """The strata that the rows of a log name; every randomized row needs one, biased rows may lack it."""
    if options.stratum is None or (options.stratum not in log.columns and not randomized.any()):
        return []
    column, cell = log.column(options.stratum, "stratum"), CellLocation(log.where, options.stratum)
    rows = randomized | readable_ids(column)
    if not rows.any():
        return []
    strata = distinct_ids(column.take(rows), cell, "str")
    items = distinct_ids(
        log.column(options.item, "item").take(rows), CellLocation(log.where, options.item), options.item_type
    )
    item_codes, codes = np.asarray(items.codes, np.int64), np.asarray(strata.codes)
    pairs = np.unique(item_codes * len(strata.values) + codes)
    of_items, of_strata = np.divmod(pairs, len(strata.values))
    return [ItemStrata(items.values[of_items], strata.values[of_strata], log.where)]


def _eligibility(
    user_ids: np.ndarray,
    item_ids: np.ndarray,
    options: LogOptions,
    strata: list[ItemStrata],
    clock: tuple[bool | None, float],
) -> Eligibility | None:
    """The rules that `eligible` and `stratum` give, in rows of the shared ids."""
    if options.eligible is None and options.stratum is None:
        return None
    tables = options.eligible if isinstance(options.eligible, list | tuple) else [options.eligible]
    found: dict[str, list[tuple[np.ndarray, ...]]] = {"windows": [], "exclusions": []}
    for table in tables if options.eligible is not None else []:
        kind, columns = _read_rules(table, options, user_ids, item_ids, clock)
        found[kind].append(columns)
    windows, exclusions = (
        tuple(np.concatenate(each) for each in zip(*own, strict=True)) if own else None for own in found.values()
    )
    if windows is not None and not len(windows[0]):
        raise InputError(f"{option('eligible', '')} lists no item of the logs: check its column {options.item!r}")
    shape = len(user_ids), len(item_ids)
    of_items, names = _strata_by_item(item_ids, strata) if options.stratum is not None else (None, ("all items",))
    return Eligibility.of(shape, windows, exclusions, of_items, names)  # type: ignore[arg-type]


def _strata_by_item(item_ids: np.ndarray, found: list[ItemStrata]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The stratum's number of every item, -1 where no log says it, and the names."""
    names = np.unique(np.concatenate([each.strata for each in found]))
    strata = np.full(len(item_ids), -1, np.int64)
    for each in found:
        rows = np.searchsorted(item_ids, each.items.astype(item_ids.dtype, copy=False))
        codes = np.searchsorted(names, each.strata)
        for row, code in zip(rows.tolist(), codes.tolist(), strict=True):
            if strata[row] not in (-1, code):
                both = f"{names[strata[row]]} and {names[code]}"
                raise InputError(
                    f"{each.where}: item {item_ids[row]} is in the strata {both}: a stratum is a group of items; if "
                    f"chances depend on more, log them and pass {option('random_propensity')}"
                )
            strata[row] = code
    n_unknown = int((strata < 0).sum())
    if n_unknown:
        warnings.warn(
            f"{n_unknown:,} of {len(item_ids):,} items have no stratum and are taken as not eligible: give the biased "
            "log the column too",
            stacklevel=2,
        )
    return strata, tuple(names.tolist())


def _read_rules(
    table: Any, options: LogOptions, user_ids: np.ndarray, item_ids: np.ndarray, clock: tuple[bool | None, float]
) -> tuple[str, tuple[np.ndarray, ...]]:
    """One table of `eligible`: ("windows", (items, start, end)) or ("exclusions", (users, items, start, end))."""
    names = {options.user, options.item, *ENDS}
    log = open_log(table, "eligible", names, {options.user, options.item}, options.sep, options.quiet)
    unread = [name for name in log.names if name not in names][:5]
    if unread:
        said, read = (", ".join(map(repr, each)) for each in (unread, (options.item, options.user, *ENDS)))
        warnings.warn(f"{log.where}: not read: {said}; the columns that are read are {read}", stacklevel=2)
    sides = [("item", options.item, item_ids)]
    if options.user in log.columns:
        sides.insert(0, ("user", options.user, user_ids))
    rows, known = [], np.ones(len(log), bool)
    for side, name, ids in sides:
        own = distinct_ids(log.column(name, side), CellLocation(log.where, name), getattr(options, f"{side}_type"))
        if kind_of_ids(own.values) != kind_of_ids(ids):
            raise InputError(
                f"{log.where}: column {name!r} is {kind_of_ids(own.values)} but {kind_of_ids(ids)} in the logs, such "
                f"as {quote_cell(own.values[0])} and {quote_cell(ids[0])}: write ids alike, or pass "
                f"{setting(side + '_type', 'str')}"
            )
        places = np.minimum(np.searchsorted(ids, own.values.astype(ids.dtype, copy=False)), len(ids) - 1)
        there = ids[places] == own.values
        rows.append(places[own.codes])
        known &= there[own.codes]
        if not there.all():
            warnings.warn(
                f"{log.where}: {int((~there).sum()):,} {side}s are in neither log and are left out", stacklevel=2
            )
    ends = []
    for name, missing in zip(ENDS, (-np.inf, np.inf), strict=True):
        values = np.full(len(log), missing)
        if name in log.columns:
            cell = CellLocation(log.where, name)
            dates = holds_dates(log.columns[name], cell)
            if dates is not None and clock[0] is None:
                raise InputError(
                    f"{log.where}: column {name!r} holds times: name the logs' column of times with "
                    f"{option('timestamp')}"
                )
            if dates is not None and dates != clock[0]:
                kinds = ("dates", "numbers") if dates else ("numbers", "dates")
                raise InputError(
                    f"{log.where}: column {name!r} holds {kinds[0]} but {options.timestamp!r} holds {kinds[1]}: write "
                    "both alike"
                )
            values = ends_of(log.columns[name], cell, missing) * (1.0 if dates else clock[1])
        ends.append(values)
    wrong = ends[0] >= ends[1]
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{log.where}: row {row + 1}: 'from' must be before 'to': correct the row")
    return ("exclusions" if len(sides) > 1 else "windows"), tuple(each[known] for each in (*rows, *ends))


# ---- ids of both logs ----------------------------------------------------------------------------------------------


def with_shared_ids(logs: dict[str, LogRows], options: LogOptions) -> dict[str, LogRows]:
    """The logs with one sorted array of user ids and one of item ids for all. Empties `logs` to free their memory."""
    users, user_rows = union_of_ids(logs, "user", options.user)
    items, item_rows = union_of_ids(logs, "item", options.item)
    done = {}
    for called in list(logs):
        log = logs.pop(called)
        places = user_rows[called][log.users], item_rows[called][log.items]
        done[called] = log._replace(users=places[0], items=places[1], user_ids=users, item_ids=items)
    return done


def union_of_ids(logs: Mapping[str, LogRows], side: str, column: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """All ids of one side, and the row number of each log's ids among them.

    All logs need one kind of ids, and the randomized log must share some with the biased one.
    """
    ids: dict[str, np.ndarray] = {called: getattr(log, f"{side}_ids") for called, log in logs.items()}
    kind = kind_of_ids(ids["biased"])
    for called, log in logs.items():
        if kind_of_ids(ids[called]) != kind:
            raise InputError(
                f"column {column!r} is {kind} in {logs['biased'].where} but {kind_of_ids(ids[called])} in {log.where}, "
                f"such as {quote_cell(ids['biased'][0])} and {quote_cell(ids[called][0])}: make ids int or str in "
                f"both, or pass {setting(side + '_type', 'str')}"
            )
    alike = of_one_dtype(ids, column)
    union = np.unique(np.concatenate(list(alike.values())))
    rows = {called: np.searchsorted(union, each).astype(np.int32) for called, each in alike.items()}
    present = {called: _present(log, side) for called, log in logs.items()}
    known = np.zeros(len(union), bool)
    known[rows["biased"][present["biased"]]] = True
    if not any(known[rows[called][present[called]]].any() for called in logs if called != "biased"):
        _check_shared_ids(side, logs, {called: ids[called][places] for called, places in present.items()})
    return union, rows


def _present(log: LogRows, side: str) -> np.ndarray:
    """The places of the ids that occur in the rows of a log."""
    met = np.zeros(len(getattr(log, f"{side}_ids")), bool)
    met[getattr(log, f"{side}s")] = True
    return np.flatnonzero(met)


def of_one_dtype(ids: Mapping[str, np.ndarray], column: str) -> Mapping[str, np.ndarray]:
    """Whole numbers all as int64 or all as uint64: NumPy would turn a mixture into float64."""
    if all(each.dtype.kind != "u" for each in ids.values()):
        return ids
    low = min(int(each.min()) for each in ids.values() if len(each))
    high = max(int(each.max()) for each in ids.values() if len(each))
    if low < 0 and high >= FIRST_BIG_INT:
        raise InputError(f"column {column!r} has the ids {low} and {high}, too far apart for 64 bits: make them str")
    return {called: each.astype(np.int64 if high < FIRST_BIG_INT else np.uint64) for called, each in ids.items()}


def _check_shared_ids(side: str, logs: Mapping[str, LogRows], ids: Mapping[str, np.ndarray]) -> None:
    """Refuse logs that share no id; the message shows an id of each log and the likely cause.

    Logs with few ids may share none by chance. They only get a warning, unless a cause is found.
    """
    other = next(called for called in logs if called != "biased")
    ours, theirs = (ids[called][:COMPARED_AT_MOST].tolist() for called in ("biased", other))
    bare = {_canonical_id(each): each for each in ours}
    one, another = next(
        ((bare[_canonical_id(each)], each) for each in theirs if _canonical_id(each) in bare), (ours[0], theirs[0])
    )
    cause = likely_cause(one, another)
    biased, random = logs["biased"], logs[other]
    items = None if cause or side != "user" else _shared_items(biased, random)
    if items is not None:
        warnings.warn(
            f"no user of {random.where} is in {biased.where}, while {items} are: the randomized traffic is taken as a "
            "user bucket (if these are the same users, write their ids alike). Results hold for its users, who are "
            "trained from their own rows and the item side. Nothing shows how users of the biased log differ",
            stacklevel=2,
        )
        return
    message = (
        f"no {side} of {random.where} is in {biased.where}: ids such as {quote_cell(another)} and "
        f"{quote_cell(one)} ({f'likely cause: {cause}' if cause else 'are these the same ids?'}); write them alike "
        "in both logs"
    )
    if cause is None and min(len(ours), len(theirs)) < ENOUGH_IDS:
        warnings.warn(message, stacklevel=2)
        return
    raise InputError(message)


def _shared_items(biased: LogRows, random: LogRows) -> str | None:
    """How many items of the randomized log the biased log has, in words; None if it has fewer than half."""
    if kind_of_ids(biased.item_ids) != kind_of_ids(random.item_ids):
        return None
    ours, theirs = (np.unique(log.item_ids[_present(log, "item")]) for log in (biased, random))
    n_shared = int(np.isin(theirs, ours).sum())
    return f"{n_shared:,} of its {len(theirs):,} items" if 2 * n_shared >= len(theirs) else None


def _canonical_id(each: Any) -> str:
    """Normalise an id: no outer spaces, capitals, leading zeros or .0 at the end."""
    return str(each).strip().casefold().lstrip("0").removesuffix(".0")
