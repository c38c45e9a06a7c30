"""Columns of feedback before they are a Partition: limits, orders, repeated pairs, splits."""

import numpy as np
import pytest

from dubnb._check import InputError
from dubnb.data import merge, triplets
from dubnb.data.ids import Ids
from dubnb.data.pattern import Pattern, csr_order
from dubnb.data.split import RandomizedRows, Split, _checked_shares, _sizes
from dubnb.data.triplets import Triplets

TINY, MAX = (float(limit) for limit in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))


def columns(users, items, labels, weights=None, grades=None):
    own = (users, items, labels, weights, grades)
    return Triplets(*(None if column is None else np.array(column) for column in own))


def refused(said, function, *arguments):
    with pytest.raises(InputError) as caught:
        function(*arguments)
    assert said in str(caught.value), caught.value


def order_of(own, shape=(3, 5)):
    return triplets.checked_order(own, shape, "S_c", lambda user, item: f"({user}, {item})")


def test_propensities_are_above_zero_and_at_most_one():
    assert triplets.checked_propensities([1.0, 1e-300], 2).tolist() == [1.0, 1e-300]
    for bad in (0.0, -0.5, np.nextafter(1.0, 2.0), np.nan):
        refused("must be above 0 and at most 1", triplets.checked_propensities, [0.5, bad], 2)
    refused("shape (2,) for 3 pairs", triplets.checked_propensities, [0.5, 0.5], 3)


@pytest.mark.parametrize(("given", "n"), [(3, 3), (4, 4), (5, 5)])
def test_three_to_five_columns_make_a_part(given, n):
    own = triplets.columns_of("S_t", {"S_t": [[0, 1], [1, 0], [1, 0], [2.0, 3.0], [0.9, 0.1]][:given]})
    assert [column is not None for column in own] == [True] * n + [False] * (5 - n)
    assert own.users.tolist() == [0, 1] and own.items.tolist() == [1, 0] and own.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([[0], [1]], "has 2 columns"),
        ([[0]] * 6, "has 6 columns"),
        ([[0], [1], None], "lacks users, items or labels"),
        ([None, [1], [1]], "lacks users, items or labels"),
        ([[0], [1, 2], [1]], "columns of 1 and 2 rows"),
        ([[0], [1], [1], [1.0, 2.0]], "columns of 1 and 2 rows"),
        ([[[0]], [1], [1]], "users have 2 dimensions"),
        ([[0.0], [1], [1]], "users are of type float64"),
        ([[0], ["a"], [1]], "items are of type <U1"),
        ([[True], [1], [1]], "users are of type bool"),
        ([[0], [1], ["x"]], "labels are of type <U1: they must be numbers"),
    ],
)
def test_columns_that_make_no_part(given, said):
    refused(said, triplets.columns_of, "S_t", {"S_t": given})


def test_empty_columns_have_the_types_of_full_ones():
    own = triplets.columns_of("S_t", {"S_t": ([], [], [])})
    assert [column.dtype for column in own[:3]] == [np.int32, np.int32, np.float32]
    refused("S_va is missing", triplets.columns_of, "S_va", {"S_t": ([], [], [])})
    true = triplets.columns_of("S_t", {"S_t": ([0], [0], [True])})
    assert true.labels.tolist() == [True]


def test_grades_lie_from_zero_to_one_and_negatives_below_positives():
    fine = {"S_c": columns([0, 1], [0, 0], [0, 1], None, [0.0, 1.0]), "S_t": columns([], [], [])}
    triplets.check_grades(fine)
    triplets.check_grades({"S_c": columns([0, 1], [0, 0], [0, 1])})
    triplets.check_grades({"S_c": columns([0, 1], [0, 0], [0, 0], None, [0.4, 1.0])})  # one class has nothing to cross
    triplets.check_grades({"S_c": columns([0, 1], [0, 0], [1, 1], None, [0.0, 0.4])})
    for grades, said in (
        ([-1e-9, 1.0], "grade -1e-09 must be"),
        ([0.0, 1.0 + 1e-6], "grade 1 must be"),
        ([0.0, np.nan], "grade nan must be"),
        ([0.5, 0.5], "a negative pair has the grade 0.5 and a positive one 0.5"),
        ([0.6, 0.5], "a negative pair has the grade 0.6 and a positive one 0.5"),
    ):
        refused(said, triplets.check_grades, {"S_c": columns([0, 1], [0, 0], [0, 1], None, grades)})
    apart = {"S_c": columns([0], [0], [0], None, [0.6]), "S_t": columns([1], [0], [1], None, [0.5])}
    refused("a negative pair has the grade 0.6", triplets.check_grades, apart)
    refused("S_t has no grades", triplets.check_grades, fine | {"S_t": columns([0], [1], [1])})


@pytest.mark.parametrize(
    ("users", "items", "said"),
    [
        ([0, 3, 4], [0, 1, 2], "S_c: user row 3 is outside 0..2"),
        ([0, 1, -1], [0, 1, 2], "S_c: user row -1 is outside 0..2"),
        ([0, 1, 2], [0, 5, 1], "S_c: item row 5 is outside 0..4"),
        ([0, 1, 2], [0, -2, 9], "S_c: item row -2 is outside 0..4"),
    ],
)
def test_rows_lie_within_the_shape(users, items, said):
    refused(said, order_of, columns(users, items, [1, 0, 1]))
    assert order_of(columns([2, 0, 0], [0, 4, 0], [1, 0, 1])).tolist() == [2, 1, 0]


def test_labels_and_weights_at_their_limits():
    assert order_of(columns([0, 1], [0, 1], [0, 1], [TINY, MAX])).tolist() == [0, 1]
    refused("label 2 is neither 0 nor 1", order_of, columns([0, 1], [0, 1], [1, 2]))
    refused("label 0.5 is neither 0 nor 1", order_of, columns([0, 1], [0, 1], [0.5, 1]))
    for bad in (0.0, np.nextafter(TINY, 0), np.nextafter(MAX, np.inf), -1.0, np.nan):
        refused("must be above 0 and finite", order_of, columns([0, 1], [0, 1], [0, 1], [1.0, bad]))


def test_repeated_pairs_with_one_label_are_dropped_and_with_two_refused():
    with pytest.warns(UserWarning, match="S_c: 2 repeated pairs with equal labels dropped"):
        order = order_of(columns([2, 0, 2, 0, 2], [4, 1, 4, 1, 3], [1, 0, 1, 0, 0]))
    assert order.tolist() == [1, 4, 0]  # the first of each, by user and item
    refused("S_c: (2, 4) stands twice", order_of, columns([2, 0, 2], [4, 1, 4], [1, 0, 0]))
    mixed = columns([1, 2, 2, 1, 1], [1, 4, 4, 1, 1], [1, 1, 0, 1, 1])
    refused("S_c: (2, 4) stands twice", order_of, mixed)
    own = columns([0, 0, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0])
    assert triplets.repeated(own.users, own.items, np.array([0, 1, 3, 2])).tolist() == [False, True, False, False]


def test_what_is_kept_is_compact_and_read_only():
    own = triplets.read_only(triplets.stored(columns([1, 0], [2, 3], [True, False]), np.array([1, 0])))
    assert [column.dtype for column in own[:4]] == [np.int32, np.int32, np.float32, np.float32] and own.grades is None
    assert own.users.tolist() == [0, 1] and own.items.tolist() == [3, 2] and own.labels.tolist() == [0, 1]
    assert own.weights.tolist() == [1.0, 1.0] and not any(column.flags.writeable for column in own[:4])
    whole = triplets.stored(columns([1, 0], [2, 3], [1, 0], [5.0, 6.0], [0.9, 0.1]), np.array([1, 0]))
    assert whole.weights.tolist() == [6.0, 5.0] and whole.grades.tolist() == pytest.approx([0.1, 0.9])
    assert triplets.pair_keys(whole, 10).tolist() == [3, 12]


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
    return merge.Rows(np.array([0, 1, 0, 2, 1]), np.array([1, 0, 1, 2, 0]), **own)


MERGING = merge.Merging((3, 3), "mine", lambda user, item: f"({user}, {item})", (Ids.count(3), Ids.count(3)))


def merged(log, rule):
    with pytest.warns(UserWarning, match="mine: 2 of 5 rows repeat a pair"):
        return merge.merged(log, rule, MERGING)


def test_rows_without_weights_count_one_each():
    for rule, labels in (("first", [1, 0, 1]), ("last", [0, 1, 1]), ("max", [1, 1, 1]), ("mean", [0.5, 0.5, 1])):
        one = merged(rows(), rule)
        assert one.users.tolist() == [0, 1, 2] and one.items.tolist() == [1, 0, 2]
        assert one.labels.tolist() == labels and one.weights.tolist() == [2.0, 2.0, 1.0]
        assert one.grades is None and one.times is None


def test_of_equal_labels_the_largest_grade_stays_and_of_equal_times_the_last_row():
    log = rows(grades=[0.6, 0.1, 0.7, 0.9, 0.2], times=[3, 8, 3, 1, 5])._replace(labels=np.array([1.0, 0, 1, 1, 0]))
    assert merged(log, "max").grades.tolist() == [0.7, 0.2, 0.9]
    assert merged(log, "last").grades.tolist() == [0.7, 0.1, 0.9]
    assert merged(log, "first").grades.tolist() == [0.6, 0.2, 0.9]


def test_logs_without_repeats_stay_as_they_are_and_errors_name_the_pair():
    log = rows().take(np.array([0, 1, 3]))
    assert merge.merged(log, "error", MERGING) is log
    with pytest.raises(InputError, match=r"mine: \(0, 1\) stands twice \(2 such rows\)"):
        merge.merged(rows(), "error", MERGING)


# ---- splits --------------------------------------------------------------------------------------------------------


def by_time(times, shares):
    rows, ids = np.arange(len(times)), Ids.count(len(times))
    log = RandomizedRows(rows, rows, rows % 2, ids, ids, None if times[0] is None else np.array(times))
    return [part.tolist() for part in Split("time", shares).parts(log).rows.values()]


def test_a_moment_falls_into_one_part():
    assert by_time([5, 1, 4, 2, 3], (0.4, 0.2, 0.4)) == [[1, 3], [4], [2, 0]]
    assert by_time([1, 2, 2, 2, 3, 4], (1 / 3, 1 / 3, 1 / 3)) == [[0], [1, 2, 3], [4, 5]]  # back to where it began
    assert by_time([1, 1, 1, 2, 3, 4], (1 / 3, 1 / 3, 1 / 3)) == [[0, 1, 2], [3, 4], [5]]  # or on to where it ends
    assert by_time([1, 2, 3, 4], (0.5, 0.0, 0.5)) == [[0, 1], [], [2, 3]]
    assert by_time([1, 2, 3, 3], (0.5, 0.5, 0.0)) == [[0, 1], [2, 3], []]
    refused("too few distinct times", by_time, [1, 1, 2, 2], (0.5, 0.25, 0.25))
    refused("needs times", by_time, [None] * 5, (0.4, 0.2, 0.4))


def test_shares_sum_to_one_and_S_t_has_some():
    assert _checked_shares([0.2, 0.3, 0.5]) == (0.2, 0.3, 0.5) and _checked_shares((1, 0, 0)) == (1.0, 0.0, 0.0)
    assert _checked_shares((0.1 + 0.2, 0.3, 0.4)) == (0.1 + 0.2, 0.3, 0.4)  # a last bit is no matter
    for bad in ((0.0, 0.5, 0.5), (0.5, 0.5), (0.25,) * 4, (0.5, 0.5, 0.1), (0.5, 0.4, 0.0), (1.5, -0.25, -0.25), 0.1):
        refused("shares=", _checked_shares, bad)
    refused("shares=1.5", _checked_shares, (1.5, 0.0, 0.0))


@pytest.mark.parametrize(
    ("n", "shares", "sizes"),
    [
        (10, (0.3, 0.3, 0.4), [3, 3, 4]),
        (7, (0.5, 0.5, 0.0), [4, 3, 0]),
        (100, (0.999, 0.0005, 0.0005), [98, 1, 1]),
        (3, (0.6, 0.3, 0.1), [1, 1, 1]),
    ],
)
def test_sizes_of_parts(n, shares, sizes):
    assert _sizes(n, shares, "pair") == sizes


def test_a_split_is_checked_before_it_is_made():
    assert Split().checked() == Split("random", None, 0)
    assert Split("user", (1, 0, 0), 2**32 - 1).checked() == Split("user", (1.0, 0.0, 0.0), 2**32 - 1)
    refused("split_seed=4294967296", Split(seed=2**32).checked)
    refused("split=3 must be one of", Split(3).checked)
