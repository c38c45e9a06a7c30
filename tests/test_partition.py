"""Partition and Ids: disjoint, read-only, explicit zeros, stable fingerprints, clear errors."""

import pickle
import re

import numpy as np
import pytest
from scipy.sparse import coo_matrix, csr_matrix

from dubnb._check import InputError
from dubnb.data.ids import Ids
from dubnb.data.partition import PARTS, Partition

USER, ITEM, LABEL = [2, 0, 1, 0], [1, 1, 0, 0], [1, 0, 1, 1]


def part(users=(), items=(), labels=(), weights=None):
    return (users, items, labels) if weights is None else (users, items, labels, weights)


NONE = part()


def build(S_c=(USER, ITEM, LABEL), S_t=((1,), (2,), (0,)), S_va=NONE, S_te=NONE, shape=(3, 4), **options):
    parts = {"S_c": S_c, "S_t": S_t, "S_va": S_va, "S_te": S_te}
    return Partition(parts, shape, **options)


def matrix(users, items, labels, shape=(3, 4)):
    return csr_matrix((np.asarray(labels, dtype=float), (users, items)), shape=shape)


PROPENSITIES = [0.5, 1.0, 0.25, 0.125]  # of USER, ITEM as they stand


# ---- Partition ------------------------------------------------------------------------------------------------------


def test_triplets_are_in_csr_order_with_compact_types():
    users, items, labels, weights, grades, *_ = build().triplets("S_c")
    assert users.tolist() == [0, 0, 1, 2] and items.tolist() == [0, 1, 0, 1] and labels.tolist() == [1, 0, 1, 1]
    assert [a.dtype for a in (users, items, labels, weights)] == [np.int32, np.int32, np.float32, np.float32]
    assert weights.tolist() == [1, 1, 1, 1] and grades is None


def test_propensities_follow_their_pairs_and_are_part_of_the_fingerprint():
    data = build(propensities=PROPENSITIES)
    assert data.propensities.tolist() == [0.125, 1.0, 0.25, 0.5]
    other = build(propensities=[*PROPENSITIES[:3], 0.5])
    assert len({data.fingerprint, other.fingerprint, build().fingerprint}) == 3
    assert data.fingerprint == build(propensities=PROPENSITIES).fingerprint


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.5, np.nextafter(1.0, 2.0), np.nan])
def test_impossible_propensities_are_refused(bad):
    with pytest.raises(InputError, match=re.escape(f"propensity {bad:g} must be above 0 and at most 1")):
        build(propensities=[*PROPENSITIES[:3], bad])


def test_patterns_hold_a_part_s_pairs_or_its_positives():
    data = build()
    users, items = data.pattern("S_c").users(), data.pattern("S_c").items
    assert list(zip(users, items, strict=True)) == [(0, 0), (0, 1), (1, 0), (2, 1)]
    positives = data.pattern("S_c", positives=True)
    assert list(zip(positives.users(), positives.items, strict=True)) == [(0, 0), (1, 0), (2, 1)]
    assert not len(data.pattern("S_t", positives=True).items)


def test_csr_stores_explicit_zeros():
    data = build()
    assert data.S_c.nnz == 4 and data.S_c.sum() == 3
    assert data.S_t.nnz == 1 and data.S_t.sum() == 0
    assert data.S_va.nnz == 0 and data.S_te.shape == (3, 4)
    assert data.S_c is data.S_c


def test_arrays_are_read_only():
    data = build()
    arrays = [array for name in PARTS for array in data.triplets(name)[:4]]
    arrays += [array for m in (data.S_c, data.S_t) for array in (m.data, m.indices, m.indptr)]
    arrays += [data.user_ids.values, data.item_ids.values, *data.seen]
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_pairs_of_every_randomized_set_leave_S_c():
    data = build(S_t=part([0], [0], [0]), S_va=part([1], [0], [1]), S_te=part([2], [1], [1]))
    assert data.removed == 3
    assert data.triplets("S_c").users.tolist() == [0] and data.triplets("S_c").items.tolist() == [1]
    assert data.S_t[0, 0] == 0 and data.S_t.nnz == 1, "S_t's label wins"
    assert data.summary().splitlines()[-1].endswith(": 3")


def test_randomized_sets_may_not_overlap():
    with pytest.raises(InputError, match=r"user 1, item 2.*both S_t and S_te"):
        build(S_te=part([1], [2], [0]))


def test_S_c_may_not_become_empty():
    with pytest.raises(InputError, match="S_c is empty"):
        build(S_c=part([1], [2], [1]))
    with pytest.raises(InputError, match="S_c is empty"):
        build(S_c=NONE)


def test_equal_duplicates_are_dropped_with_a_warning():
    with pytest.warns(UserWarning, match=r"S_c: 2 repeated pairs"):
        data = build(S_c=part([0, 0, 0, 1], [3, 3, 3, 3], [1, 1, 1, 0]))
    assert data.S_c.nnz == 2


def test_different_duplicates_are_refused_by_original_id():
    ids = Ids(np.array(["=cmd", "<script>", "x"])[[1, 0, 2]])
    with pytest.raises(InputError, match=r"S_c: pair \(user <script>, item 3\) occurs twice"):
        build(S_c=part([0, 0], [3, 3], [1, 0]), user_ids=ids)


@pytest.mark.parametrize(
    ("S_c", "message"),
    [
        (part([3], [0], [1]), "user row 3 is outside 0..2"),
        (part([0], [-1], [1]), "item row -1 is outside 0..3"),
        (part([0], [0], [4]), "label 4 is neither 0 nor 1: pass threshold="),
        (part([0], [0], [np.nan]), "label nan is neither"),
        (part([0], [0], [1], [0.0]), "weight 0 must be"),
        (part([0], [0], [1], [-1.0]), "weight -1 must be"),
        (part([0], [0], [1], [np.inf]), "weight inf must be"),
        (part([0], [0], [1], [1e-60]), "weight 1e-60 must be"),
        (part([0], [0], [1], [1e60]), r"weight 1e\+60 must be"),
    ],
)
def test_bad_rows_labels_and_weights(S_c, message):
    with pytest.raises(InputError, match=message) as caught:
        build(S_c=S_c)
    assert "\n" not in str(caught.value)


def test_from_matrices_sees_coo_duplicates():
    S_c = coo_matrix(([1.0, 1.0], ([0, 0], [1, 1])), shape=(3, 4))
    with pytest.warns(UserWarning, match="1 repeated"):
        data = Partition.from_matrices(S_c=S_c, S_t=matrix([1], [2], [0]))
    assert data.S_c.nnz == 1 and data.S_c[0, 1] == 1, "labels are not summed"


@pytest.mark.parametrize(
    ("S_c", "S_t", "message"),
    [
        (np.eye(3), np.eye(3), "S_c is a ndarray: pass a SciPy sparse matrix"),
        (matrix([0], [0], [1]), np.eye(3), "S_t is a ndarray"),
        (matrix([0], [0], [1]), matrix([0], [0], [1], shape=(3, 5)), r"S_t has shape \(3, 5\) but S_c \(3, 4\)"),
        (None, matrix([0], [0], [1]), "S_c"),
    ],
)
def test_from_matrices_refuses(S_c, S_t, message):
    with pytest.raises(InputError, match=message):
        Partition.from_matrices(S_c=S_c, S_t=S_t)


def test_seen_is_the_union_of_S_c_and_S_t():
    data = build(S_te=part([2], [3], [1]))
    pointers, items = data.seen
    rows = [items[pointers[u] : pointers[u + 1]].tolist() for u in range(3)]
    assert rows == [[0, 1], [0, 2], [1]]
    assert pointers.dtype == np.int64 and items.dtype == np.int32
    mixed = build(S_c=part([0, 0], [1, 3], [1, 0]), S_t=part([0, 0], [0, 2], [1, 0]))
    assert mixed.seen[1].tolist() == [0, 1, 2, 3]  # in order, as searches need them


def test_fingerprint_ignores_row_order_and_name():
    order = [3, 1, 0, 2]
    shuffled = part(*(np.asarray(column)[order] for column in (USER, ITEM, LABEL)))
    assert build(S_c=shuffled, name="other").fingerprint == build().fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"shape": (4, 4)},
        {"shape": (3, 5)},
        {"S_c": part(USER, ITEM, [1, 0, 1, 0])},
        {"S_c": part(USER[:3], ITEM[:3], LABEL[:3])},
        {"S_c": part(USER, ITEM, LABEL, [1, 1, 1, 2])},
        {"S_t": part([1], [3], [0])},
        {"S_t": NONE, "S_va": part([1], [2], [0])},
        {"S_t": NONE, "S_te": part([1], [2], [0])},
        {"user_ids": Ids(np.array([1, 2, 3]))},
        {"item_ids": Ids(np.array(["a", "b", "c", "d"]))},
    ],
)
def test_fingerprint_changes_with_the_data(change):
    assert build(**change).fingerprint != build().fingerprint


def test_fingerprint_does_not_depend_on_the_width_of_text_ids():
    narrow, wide = (Ids(np.array(["a", "b", "c"], dtype=width)) for width in ("<U1", "<U9"))
    assert build(user_ids=narrow).fingerprint == build(user_ids=wide).fingerprint


def test_pickle_keeps_the_data():
    data = build()
    again = pickle.loads(pickle.dumps(data))
    assert again.fingerprint == data.fingerprint and repr(again) == repr(data)


def test_the_overlap_is_what_both_logs_say_of_a_pair():
    """Pairs (0, 0), the first of S_c, and (2, 1) are in S_te and S_t too."""
    data = build(S_t=part([2, 1], [1, 2], [0, 0]), S_te=part([0, 1], [0, 3], [0, 1]), propensities=PROPENSITIES)
    assert data.removed == 2 and data.triplets("S_c").users.tolist() == [0, 1]
    found = data.overlap
    assert found.users.tolist() == [0, 2] and found.items.tolist() == [0, 1]
    assert found.policy_labels.tolist() == [1, 1] and found.labels.tolist() == [0, 0]
    assert found.parts.tolist() == [2, 0] and found.parts.dtype == np.int8
    assert not any(column.flags.writeable for column in found) and data.propensities.tolist() == [1.0, 0.25]
    assert not data.propensities.flags.writeable
    nothing = build().overlap
    assert [len(column) for column in nothing] == [0] * 5


def test_what_both_logs_have_is_logged_but_not_unseen():
    data = build(S_t=part([2, 1], [1, 2], [0, 0]), S_te=part([0, 1], [0, 3], [0, 1]))
    assert data.logged.mask(np.arange(3), 4).sum() == len(data.triplets("S_c").users) + 2
    assert data.logged.mask(np.arange(3), 4)[[0, 2], [0, 1]].all()
    assert data.in_both("S_te").tolist() == [True, False] and data.in_both("S_t").tolist() == [False, True]
    assert data.unseen("S_te").items.tolist() == [3] and data.unseen("S_t").items.tolist() == [2]
    others = data.everything_but("S_te").mask(np.arange(3), 4)
    assert others[0, 0] and others[1, 2] and not others[1, 3]
    plain = build()
    assert all(plain.unseen(name) is plain.triplets(name) for name in PARTS) and not plain.in_both("S_t").any()
    assert plain.logged.items.tolist() == plain.triplets("S_c").items.tolist()


def test_the_overlap_goes_on_with_data_made_from_data():
    """A pair stays logged where its part shrinks; and what is logged is part of the fingerprint."""
    data = build(S_t=part([2, 1], [1, 2], [0, 0]), S_te=part([0, 1], [0, 3], [0, 1]))
    again = data.replace(name="again")
    assert again.fingerprint == data.fingerprint and again.removed == 2
    forgotten = Partition({name: data.triplets(name) for name in PARTS}, (3, 4))
    assert forgotten.removed == 0 and forgotten.fingerprint != data.fingerprint
    less = data.replace(S_te=data.triplets("S_te").take(slice(0)))
    assert less.overlap.users.tolist() == [2] and less.logged.mask(np.array([0]), 4)[0, 0]
    assert less.replace(name="less").logged.mask(np.array([0]), 4)[0, 0]


def test_matrices_are_those_of_their_parts():
    data = build(S_va=part([2], [3], [1]), S_te=part([0, 0], [2, 3], [0, 1]))
    for name in PARTS:
        users, items, labels, *_ = data.triplets(name)
        own = getattr(data, name)
        assert own.shape == (3, 4) and own.has_canonical_format and own.nnz == len(users)
        np.testing.assert_array_equal(own.toarray()[users, items], labels)
    again = Partition.from_matrices(data.S_c, data.S_t, data.S_va, data.S_te, name="again")
    assert again.fingerprint == data.fingerprint and again.name == "again" and again.truth is None
    bare = Partition.from_matrices(data.S_c, data.S_t)
    assert len(bare.triplets("S_va").users) == len(bare.triplets("S_te").users) == 0 and bare.name == "own data"
    truth = object()
    assert Partition.from_matrices(data.S_c, data.S_t, truth=truth).truth is truth
    with pytest.raises(InputError, match="S_te has shape"):
        Partition.from_matrices(data.S_c, data.S_t, None, csr_matrix((4, 4)))


def test_a_log_says_whether_it_is_graded_and_click_only():
    assert not build().graded and not build().click_only
    clicks = build(S_c=part(USER, ITEM, [1, 1, 1, 1]))
    assert clicks.click_only and not build(S_t=part([1], [2], [1])).click_only
    assert len(build().fingerprint) == 32


def test_the_summary_counts_users_and_items_of_the_randomized_sets_without_a_pair_in_S_c():
    text = build(S_c=part([0], [0], [1]), S_t=part([1, 2], [0, 0], [0, 1]), S_te=part([0], [3], [1])).summary()
    assert "users of the randomized sets without a pair in S_c: 2 of 3 (66.7 %)" in text
    assert "items of the randomized sets without a pair in S_c: 1 of 2 (50.0 %)" in text
    assert "without a pair" not in build(S_c=part([0], [0], [1]), S_t=NONE).summary()


def test_the_size_of_a_log_is_planned(monkeypatch):
    planned = []
    monkeypatch.setattr("dubnb._memory.require", lambda what, needed, remedy: planned.append((what, needed)))
    build()
    assert planned == [("a log of 3 users x 4 items", 8 * (2 * 3 + 4))]
    for shape, side in (((2**31, 4), "users"), ((3, 2**31), "items"), ((0, 4), "users"), ((3, 0), "items")):
        with pytest.raises(InputError, match=f"{side} of the shape="):
            build(shape=shape)


def test_summary_says_sizes_and_ratio():
    text = build().summary()
    assert re.search(r"S_c +4 pairs, P/N 300.00 %", text)
    assert re.search(r"S_va +0 pairs, P/N -", text)
    only_positive = build(S_c=part([0], [0], [1])).summary()
    assert re.search(r"S_c +1 pairs, P/N -", only_positive)


def test_a_million_pairs_take_sixteen_bytes_each_and_csr_shares_them():
    n, n_items = 1_000_000, 2_000
    keys = np.random.RandomState(0).permutation(4 * n)[: n + 1]
    users, items = np.divmod(keys, n_items)
    S_c = part(users[1:], items[1:], keys[1:] % 2)
    data = build(S_c=S_c, S_t=part(users[:1], items[:1], [1]), shape=(2_000, n_items))
    columns = data.triplets("S_c")
    assert sum(column.nbytes for column in columns[:4]) == 16 * n
    assert all(column.base is None or column.base.nbytes == column.nbytes for column in columns[:4]), (
        "no larger array is kept"
    )
    assert np.shares_memory(data.S_c.data, columns.labels) and np.shares_memory(data.S_c.indices, columns.items)
    assert data.S_c[users[7], items[7]] == keys[7] % 2


# ---- Ids ------------------------------------------------------------------------------------------------------------


def test_int_ids():
    ids = Ids(np.array([-7, 3, 2**62, 2**62 + 1], dtype=np.int64))
    assert ids.kind == "int" and len(ids) == 4
    assert ids.find([3, 4, -7]).tolist() == [1, -1, 0]
    assert ids.find(3) == 1
    assert ids.find([]).tolist() == []
    assert ids.find(np.array([2**62 + 1, 2**62 + 2], dtype=np.uint64)).tolist() == [3, -1]
    assert ids.find(np.array([2**63, 2**64 - 7], dtype=np.uint64)).tolist() == [-1, -1]
    assert ids.rows([[3], [-7]], "user").tolist() == [[1], [0]]


def test_ids_at_the_ends_of_64_bits():
    signed, unsigned = Ids(np.array([-(2**63), 2**63 - 1])), Ids(np.array([0, 2**64 - 1], np.uint64))
    assert signed.find([-(2**63), 2**63 - 1]).tolist() == [0, 1]
    assert unsigned.find([0, 2**64 - 1, -1]).tolist() == [0, 1, -1]
    assert unsigned.values.dtype == np.uint64 and signed.values.dtype == np.int64
    assert Ids(np.array([], np.uint64)).values.dtype == np.int64
    assert Ids(np.array([5])).find([[5], [6]]).tolist() == [[0], [-1]]


def test_str_ids():
    ids = Ids(np.unique(["=cmd", "<script>", "007", "ä"]))
    assert ids.kind == "str"
    assert ids.values[ids.rows(["007", "=cmd", "<script>", "ä"], "item")].tolist() == ["007", "=cmd", "<script>", "ä"]
    assert ids.find(["7", "a much longer one", ""]).tolist() == [-1, -1, -1]
    assert ids.find(np.array(["ä", "x"], dtype=object)).tolist() == [3, -1]


def test_ids_from_pandas():
    pd = pytest.importorskip("pandas")
    assert Ids(np.array(["a", "b"])).find(pd.Series(["b", "a"])).tolist() == [1, 0]
    assert Ids(np.array([4, 5])).find(pd.Series([5, 6], dtype="Int64")).tolist() == [1, -1]


def test_unknown_ids_are_named():
    with pytest.raises(InputError, match=r"^user 9 is unknown \(2 such\)"):
        Ids.count(3).rows([1, 9, 8], "user")
    with pytest.raises(InputError, match=r"^item 'x' is unknown \(1 such\)"):
        Ids(np.array(["a"])).rows("x", "item")


@pytest.mark.parametrize(
    ("ids", "asked"),
    [
        (Ids.count(3), ["1"]),
        (Ids.count(3), [1.0]),
        (Ids.count(3), [True]),
        (Ids.count(3), np.array([1, True], dtype=object)),
        (Ids.count(3), np.array([1.5], dtype=object)),
        (Ids.count(3), np.array([1, "a"], dtype=object)),
        (Ids.count(3), np.array([None], dtype=object)),
        (Ids(np.array(["1", "None"])), [1]),
        (Ids(np.array(["1", "None"])), np.array([None], dtype=object)),
        (Ids(np.array(["1", "None"])), np.array([1], dtype=object)),
    ],
)
def test_ids_of_the_wrong_kind_are_refused(ids, asked):
    with pytest.raises(InputError, match="not of the data's kind") as caught:
        ids.find(asked)
    assert "np." not in str(caught.value)


@pytest.mark.parametrize("values", [[2, 1], [1, 1], [1, 3, 2], ["b", "a"], [1.0], [[1]], [True], [None]])
def test_ids_must_be_sorted_distinct_int_or_str(values):
    with pytest.raises(InputError):
        Ids(np.array(values))


@pytest.mark.parametrize("values", [np.arange(3), np.array(["a", "b"])])
def test_ids_leave_the_callers_array_alone(values):
    ids = Ids(values)
    before = ids.values.copy()
    values[0] = values[1]
    assert (ids.values == before).all()


# -- grades

GRADED = {
    "S_c": ([0, 0, 1], [0, 1, 2], [1, 0, 0], [1.0] * 3, [0.75, 0.5, 0.0]),
    "S_t": ([1, 0], [0, 2], [1, 0], [1.0] * 2, [1.0, 0.25]),
    "S_va": ([], [], []),
    "S_te": ([1], [1], [0], [1.0], [0.5]),
}


def with_grades(part, grades):
    return GRADED | {part: (*GRADED[part][:4], grades)}


def test_grades_stand_beside_the_labels_in_their_order():
    data = Partition(GRADED, (2, 3))
    assert data.graded and data.triplets("S_c").grades.tolist() == [0.75, 0.5, 0.0]
    assert data.triplets("S_t").grades.tolist() == [0.25, 1.0]  # in CSR order, like the labels
    assert data.triplets("S_c").grades.dtype == np.float32 and not data.triplets("S_c").grades.flags.writeable
    assert data.triplets("S_t").take([1]).grades.tolist() == [1.0]
    plain = Partition({part: columns[:4] for part, columns in GRADED.items()}, (2, 3))
    assert not plain.graded and plain.triplets("S_c").grades is None and plain.triplets("S_c").take([0]).grades is None
    assert plain.fingerprint != data.fingerprint
    assert Partition(with_grades("S_te", [0.25]), (2, 3)).fingerprint != data.fingerprint


def test_pairs_that_leave_S_c_take_their_grades_with_them():
    parts = GRADED | {"S_te": ([0], [1], [0], [1.0], [0.5])}
    assert Partition(parts, (2, 3)).triplets("S_c").grades.tolist() == [0.75, 0.0]


@pytest.mark.parametrize(
    "part,grades,said",
    [
        ("S_t", None, "S_t has no grades but another part has"),
        ("S_t", [1.25, 0.25], "S_t: grade 1.25 must be a number from 0 to 1"),
        ("S_c", [0.75, -0.5, 0.0], "S_c: grade -0.5 must"),
        ("S_te", [float("nan")], "S_te: grade nan must"),
        ("S_te", [0.75], "a negative pair has the grade 0.75 and a positive one 0.75"),
    ],
)
def test_bad_grades_are_refused(part, grades, said):
    with pytest.raises(InputError, match=said):
        Partition(with_grades(part, grades), (2, 3))


def test_grades_of_one_class_have_no_others_to_cross():
    for label in (0, 1):
        parts = {part: (*own[:2], [label] * len(own[0]), *own[3:]) for part, own in GRADED.items()}
        assert Partition(parts, (2, 3)).graded


# -- what does not fit together


def damaged(**arrays):
    """A CSR matrix whose arrays were changed behind its back."""
    found = matrix(USER, ITEM, LABEL)
    for name, values in arrays.items():
        setattr(found, name, np.asarray(values, dtype=getattr(found, name).dtype))
    return found


@pytest.mark.parametrize(
    "arrays",
    [
        {"indptr": [0, 2, 3, 10**9]},
        {"indptr": [0, 10**8, 3, 4]},
        {"indptr": [-5, 2, 3, 4]},
        {"indices": [0, 1, 0, 10**8]},
        {"indices": [0, 1, 0, -1]},
        {"indices": [0]},
        {"data": [1.0]},
        {"indptr": [0, 4]},
    ],
)
def test_matrices_with_corrupt_pointers_are_refused(arrays):
    with pytest.raises(InputError, match="S_c is a damaged sparse matrix") as caught:
        Partition.from_matrices(S_c=damaged(**arrays), S_t=matrix([1], [2], [0]))
    assert "\n" not in str(caught.value)


def test_matrices_of_ratings():
    S_c, S_t = matrix(USER, ITEM, [5, 3, 4, 1]), matrix([1], [2], [2])
    data = Partition.from_matrices(S_c=S_c, S_t=S_t, threshold=3)
    assert data.triplets("S_c").labels.tolist() == [0, 0, 1, 1]
    assert data.triplets("S_c").grades.tolist() == [0, 0.5, 0.75, 1] and data.triplets("S_t").grades.tolist() == [0.25]
    with pytest.raises(InputError, match=r"label \d is neither 0 nor 1: pass threshold="):
        Partition.from_matrices(S_c=S_c, S_t=S_t)
    with pytest.raises(InputError, match="label nan is not finite"):
        Partition.from_matrices(S_c=matrix(USER, ITEM, [5, np.nan, 4, 1]), S_t=S_t, threshold=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"S_c": part([0.0, 1.0], [0, 1], [1, 0])}, "S_c: users are of type float64: row numbers must be whole"),
        ({"S_c": part([0, 1], [0.5, 1], [1, 0])}, "S_c: items are of type float64"),
        ({"S_c": part([True, False], [0, 1], [1, 0])}, "S_c: users are of type bool"),
        ({"S_c": part([0, 1], [0], [1, 0])}, "S_c has columns of 1 and 2 rows"),
        ({"S_c": part([0, 1], [0, 1], [1, 0], [1.0])}, "S_c has columns of 1 and 2 rows"),
        ({"S_c": part([[0], [1]], [0, 1], [1, 0])}, "S_c: users have 2 dimensions"),
        ({"S_c": part([0, 1], [0, 1], ["1", "0"])}, "S_c: labels are of type <U1"),
        ({"S_c": ([0], [1])}, "S_c has 2 columns"),
        ({"S_c": ([0], [1], None)}, "S_c lacks users, items or labels"),
        ({"shape": (3.5, 4)}, "users of the shape=3.5 must be a whole number"),
        ({"shape": (3, 2**40)}, "items of the shape=1099511627776 must be at most"),
        ({"shape": 7}, "shape=7 must be two numbers"),
    ],
)
def test_inconsistent_partitions_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        build(**change)
    with pytest.raises(InputError, match="S_va is missing"):
        Partition({"S_c": part([0], [0], [1]), "S_t": NONE}, (1, 1))


@pytest.mark.parametrize(("name", "said"), [("user_ids", "2 ids for 3 users"), ("item_ids", "2 ids for 4 items")])
def test_every_row_has_an_id(name, said):
    with pytest.raises(InputError, match=f"^{said}: pass one id per row of the shape$"):
        build(**{name: Ids(np.array([1, 2]))})
