"""Columns of feedback before they are a Partition: limits, orders, repeated pairs, splits."""

import numpy as np
import pytest

from dubnb._check import InputError
from dubnb.data import pattern
from dubnb.data import rows as log_rows
from dubnb.data.pattern import Pattern, Triplets, csr_order
from dubnb.data.rows import checked_split, split_rows

TINY, MAX = (float(limit) for limit in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))


def columns(users, items, labels, weights=None, grades=None):
    own = (users, items, labels, weights, grades)
    return Triplets(*(None if column is None else np.array(column) for column in own))


def refused(said, function, *arguments):
    with pytest.raises(InputError) as caught:
        function(*arguments)
    assert said in str(caught.value), caught.value


def order_of(own, shape=(3, 5)):
    return pattern.checked_order(own, shape, "S_c", lambda user, item: f"({user}, {item})")


def test_labels_and_weights_at_their_limits():
    assert order_of(columns([0, 1], [0, 1], [0, 1], [TINY, MAX])).tolist() == [0, 1]
    refused("label 2 is neither 0 nor 1", order_of, columns([0, 1], [0, 1], [1, 2]))
    refused("label 0.5 is neither 0 nor 1", order_of, columns([0, 1], [0, 1], [0.5, 1]))
    for bad in (0.0, np.nextafter(TINY, 0), np.nextafter(MAX, np.inf), -1.0, np.nan):
        refused("must be above 0 and finite", order_of, columns([0, 1], [0, 1], [0, 1], [1.0, bad]))


# ---- patterns ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_pattern_is_a_set_of_items_for_every_user(seed):
    rng = np.random.default_rng(seed)
    n_users, n_items = 6, 7
    sets = [sorted(rng.choice(n_items, rng.integers(0, n_items + 1), replace=False).tolist()) for _ in range(n_users)]
    sets[seed] = []
    pairs = [(user, item) for user in range(n_users) for item in sets[user]]
    users, items = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    pattern = Pattern.of(users, items, n_users)
    assert pattern.indptr.dtype == np.int64 and not any(array.flags.writeable for array in pattern)
    assert items.flags.writeable and np.shares_memory(items, pattern.items)
    assert pattern.users().tolist() == users.tolist() and pattern.sizes().tolist() == [len(own) for own in sets]
    asked = np.array([3, 0, 5])
    expected = [[item in sets[user] for item in range(n_items)] for user in asked]
    assert pattern.mask(asked, n_items).tolist() == expected
    every = np.divmod(rng.permutation(n_users * n_items), n_items)
    places = [
        pairs.index(pair) if pair in pairs else -1 for pair in zip(*(side.tolist() for side in every), strict=True)
    ]
    assert pattern.find(*every).tolist() == places
    order = rng.permutation(len(pairs))
    assert pattern.places(users[order], items[order], n_items).tolist() == order.tolist()


def test_an_empty_pattern_holds_no_pair():
    nothing = Pattern.empty(3)
    assert nothing.sizes().tolist() == [0, 0, 0] and nothing.users().tolist() == []
    assert nothing.find(np.array([0, 2]), np.array([1, 1])).tolist() == [-1, -1]
    assert not nothing.mask(np.array([0, 2]), 4).any() and nothing.mask(np.array([0, 2]), 4).shape == (2, 4)
    assert (nothing.indptr.dtype, nothing.items.dtype) == (np.int64, np.int32)


@pytest.mark.parametrize("seed", range(3))
def test_pairs_are_ordered_by_user_then_item_and_as_they_came(seed):
    rng = np.random.default_rng(seed)
    users, items = rng.integers(0, 4, 60), rng.integers(0, 9, 60)
    order = csr_order(users, items, (4, 9))
    assert order.tolist() == sorted(range(60), key=lambda row: (users[row], items[row])) and order.dtype == np.int32


# ---- repeated pairs ------------------------------------------------------------------------------------------------


def rows(**more):
    """Pairs (0, 1), (1, 0), (0, 1), (2, 2), (1, 0) of five rows."""
    own = {"labels": np.array([1.0, 0, 0, 1, 1])} | {name: np.array(values) for name, values in more.items()}
    ids = {"user_ids": np.arange(3), "item_ids": np.arange(3), "where": "mine"}
    return log_rows.LogRows(np.array([0, 1, 0, 2, 1]), np.array([1, 0, 1, 2, 0]), **own, **ids)


def merged(log, rule):
    with pytest.warns(UserWarning, match="mine: 2 of 5 rows repeat a pair"):
        return log_rows.merged(log, rule)


def test_rows_without_weights_count_one_each():
    for rule, labels in (("first", [1, 0, 1]), ("last", [0, 1, 1]), ("max", [1, 1, 1]), ("mean", [0.5, 0.5, 1])):
        one = merged(rows(), rule)
        assert one.users.tolist() == [0, 1, 2] and one.items.tolist() == [1, 0, 2]
        assert one.labels.tolist() == labels and one.weights.tolist() == [2.0, 2.0, 1.0]
        assert one.grades is None and one.times is None


def test_a_merged_pair_stands_where_its_first_row_stood():
    """Splits by order and by random rows depend on it."""
    ids = {"user_ids": np.arange(3), "item_ids": np.arange(3), "where": "mine"}
    log = log_rows.LogRows(np.array([2, 0, 2, 1, 0]), np.array([2, 1, 2, 0, 1]), np.array([1.0, 0, 1, 0, 1]), **ids)
    for rule in ("first", "last", "max", "mean", "impressions"):
        one = merged(log, rule)
        assert list(zip(one.users.tolist(), one.items.tolist(), strict=True)) == [(2, 2), (0, 1), (1, 0)]


def test_of_equal_labels_the_largest_grade_stays_and_of_equal_times_the_last_row():
    log = rows(grades=[0.6, 0.1, 0.7, 0.9, 0.2], times=[3, 8, 3, 1, 5])._replace(labels=np.array([1.0, 0, 1, 1, 0]))
    assert merged(log, "max").grades.tolist() == [0.7, 0.2, 0.9]
    assert merged(log, "last").grades.tolist() == [0.7, 0.1, 0.9]
    assert merged(log, "first").grades.tolist() == [0.6, 0.2, 0.9]


# ---- splits --------------------------------------------------------------------------------------------------------


def by_time(times, shares):
    rows = np.arange(len(times))
    log = log_rows.LogRows(rows, rows, rows % 2, rows, rows, times=None if times[0] is None else np.array(times))
    return [part.tolist() for part in split_rows(log, "time", shares)[0].values()]


def test_a_moment_falls_into_one_part():
    assert by_time([5, 1, 4, 2, 3], (0.4, 0.2, 0.4)) == [[1, 3], [4], [2, 0]]
    assert by_time([1, 2, 2, 2, 3, 4], (1 / 3, 1 / 3, 1 / 3)) == [[0], [1, 2, 3], [4, 5]]  # back to where it began
    assert by_time([1, 1, 1, 2, 3, 4], (1 / 3, 1 / 3, 1 / 3)) == [[0, 1, 2], [3, 4], [5]]  # or on to where it ends
    assert by_time([1, 2, 3, 4], (0.5, 0.0, 0.5)) == [[0, 1], [], [2, 3]]
    assert by_time([1, 2, 3, 3], (0.5, 0.5, 0.0)) == [[0, 1], [2, 3], []]
    refused("too few distinct times", by_time, [1, 1, 2, 2], (0.5, 0.25, 0.25))
    refused("needs times", by_time, [None] * 5, (0.4, 0.2, 0.4))


def shares_of(shares):
    return checked_split("random", shares, 0)[1]


def test_shares_sum_to_one_and_S_t_has_some():
    assert shares_of([0.2, 0.3, 0.5]) == (0.2, 0.3, 0.5) and shares_of((1, 0, 0)) == (1.0, 0.0, 0.0)
    assert shares_of((0.1 + 0.2, 0.3, 0.4)) == (0.1 + 0.2, 0.3, 0.4)  # the last bit does not matter
    for bad in ((0.0, 0.5, 0.5), (0.5, 0.5), (0.25,) * 4, (0.5, 0.5, 0.1), (0.5, 0.4, 0.0), (1.5, -0.25, -0.25), 0.1):
        refused("shares=", shares_of, bad)
    refused("shares=1.5", shares_of, (1.5, 0.0, 0.0))
