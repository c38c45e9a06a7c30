"""A fitted model at work: other logs, unknown users, new users, everyone's lists, vectors for other programs."""

import gc
import os
import sys
import warnings

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
from scipy.sparse import csr_matrix

import dubnb
from dubnb import _progress
from dubnb._check import InputError, Terminated
from dubnb.backbones import MF
from dubnb.data.ids import Ids
from dubnb.data.partition import PARTS, Partition, Triplets
from dubnb.methods import _serving
from dubnb.methods._fold_in import cold_users
from dubnb.methods._other_log import aligned
from tests import naive
from tests.method_tools import QUICK, quietly

pytestmark = pytest.mark.filterwarnings("ignore:.*below popularity")


def small(seed=0):
    return naive.small_partition(9, 8, n_c=30, n_t=12, n_va=10, n_te=12, seed=seed)


def moved(data, users, items):
    """The same feedback under other ids: row k becomes users[k] or items[k]."""
    order_u, order_i = np.argsort(users), np.argsort(items)
    place_u, place_i = np.argsort(order_u), np.argsort(order_i)
    parts = {}
    for part in PARTS:
        old = data.triplets(part)
        parts[part] = Triplets(place_u[old.users], place_i[old.items], old.labels, old.weights)
    ids = {"user_ids": Ids(np.asarray(users)[order_u]), "item_ids": Ids(np.asarray(items)[order_i])}
    return Partition(parts, (data.n_users, data.n_items), name="next week", **ids)


@pytest.fixture(scope="module")
def data(small_log):
    return small_log


# -- other logs


def test_another_log_s_unknown_users_and_items_are_counted_said_and_left_out(base, data):
    users, items = [0, 1, 2, 3, 4, 5, 6, 70, 80], [0, 1, 2, 3, 4, 5, 6, 90]
    other = moved(small(1), users, items)
    with pytest.warns(
        UserWarning, match=r"2 of its 9 users and 1 of its 8 items are unknown .*left out; (\d+) of 12"
    ) as caught:
        result = base.evaluate(other, keep_trained=True)
    assert caught[0].filename == __file__
    S_te = other.triplets("S_te")
    known = (S_te.users < 7) & (S_te.items < 7)
    assert result["unknown_users"] == 2 and result["unknown_items"] == 1
    assert result["left_out_pairs"] == int((~known).sum()) > 0
    scores = base.decision_function(other.user_ids.values[S_te.users[known]], other.item_ids.values[S_te.items[known]])
    assert result["auc_with_overlap"] == pytest.approx(naive.auc(scores, S_te.labels[known]))


def test_another_log_s_candidates_are_outside_what_users_had_in_either(base, data):
    other = small(1)
    with pytest.warns(UserWarning, match="another seed, split or week"):
        result = base.evaluate(other, per_user=True)
    matrix = base.decision_function(np.arange(9)[:, None], np.arange(8))
    for _, row in result["per_user"].iterrows():
        user = int(row["user"])
        had = naive.sets(data, "S_c", user)[0] | naive.sets(data, "S_t", user)[1] | naive.sets(other, "S_c", user)[0]
        positives = naive.sets(other, "S_te", user)[1] - had
        assert row["ndcg"] == pytest.approx(naive.ndcg(naive.ranking(matrix[user], set(range(8)) - had), positives, 50))


def test_unknown_users_may_be_scored_as_the_average_one(base, data):
    other = moved(small(1), [0, 1, 2, 3, 4, 5, 6, 70, 80], range(8))
    with pytest.warns(UserWarning, match=r"users scored as the average one, items left out; 0 of 12"):
        result = base.evaluate(other, unknown="fallback", keep_trained=True)
    S_te = other.triplets("S_te")
    matrix = base.decision_function(np.arange(9)[:, None], np.arange(8))
    matrix[7:] = matrix.mean(axis=0)
    every = naive.auc(matrix[S_te.users, S_te.items], S_te.labels)
    assert result["auc_with_overlap"] == pytest.approx(every, abs=1e-9)
    assert result["left_out_pairs"] == 0 and result["unknown_users"] == 2
    with pytest.raises(InputError, match="unknown='drop' is unknown"):
        base.evaluate(other, unknown="drop")


def had(data):
    """The items that users had in the biased log, and the positives of S_t."""
    return data.union_of([data.logged, data.pattern("S_t", positives=True)])


def by_id(data, part):
    """{(user id, item id): label}."""
    users, items, labels = data.triplets(part)[:3]
    return dict(zip(zip(data.user_ids.values[users], data.item_ids.values[items], strict=True), labels, strict=True))


@pytest.mark.parametrize("unknown", ["leave-out", "fallback"])
@pytest.mark.parametrize("lost", ["users", "items", "both"])
def test_another_log_in_the_model_s_rows(data, unknown, lost):
    """Pair by pair: what is judged, what counts as had, who is scored as the average user."""
    users = [0, 1, 2, 3, 4, 5, 6, 70, 80] if lost != "items" else [*range(9)]
    items = [0, 1, 2, 3, 4, 5, 6, 90] if lost != "users" else [*range(8)]
    other, seen = moved(small(1), users, items), had(data)
    found = aligned(other, (data.user_ids, data.item_ids), seen, "S_te", unknown)
    everyone = sorted({*range(9), *(users if unknown == "fallback" else ())})
    assert found.data.user_ids.values.tolist() == everyone and found.data.item_ids.values.tolist() == [*range(8)]
    assert found.rows.tolist() == [user if user < 9 else -1 for user in everyone]
    kept = {
        part: {pair: y for pair, y in by_id(other, part).items() if pair[0] in everyone and pair[1] < 8}
        for part in PARTS
    }
    for part in ("S_t", "S_va", "S_te"):
        assert by_id(found.data, part) == kept[part] and found.data.triplets(part).grades is None
    own = {(user, item): 0 for user, item in zip(seen.users(), seen.items, strict=True)}
    judged = set().union(*(kept[part] for part in ("S_t", "S_va", "S_te")))  # a Partition's S_c has none of these
    assert by_id(found.data, "S_c") == {pair: y for pair, y in (own | kept["S_c"]).items() if pair not in judged}
    assert own.keys() & kept["S_c"].keys()
    assert (found.data.triplets("S_c").weights == 1).all() and found.data.name == "next week"
    assert (found.unknown_users, found.unknown_items) == (2 * (lost != "items"), 1 * (lost != "users"))
    assert (found.pairs, found.left_out) == (12, 12 - len(kept["S_te"]))


def test_with_strangers_in_front_everyone_keeps_what_they_had(data):
    """The log's own users come before the model's in the order of ids: rows move, and what users had moves along."""
    users = [-9, -8, *range(7)]  # 7 and 8, whom the model knows, are not in the log
    other, seen = moved(small(1), users, [*range(8)]), had(data)
    found, rows = aligned(other, (data.user_ids, data.item_ids), seen, "S_te", "fallback")[:2]
    assert rows.tolist() == [-1, -1, *range(9)]
    judged = set().union(*(by_id(found, part) for part in ("S_t", "S_va", "S_te")))
    expected = set(zip(seen.users().tolist(), seen.items.tolist(), strict=True)) | set(by_id(other, "S_c"))
    assert set(by_id(found, "S_c")) == expected - judged
    assert {user for user, _ in by_id(found, "S_c")} & {7, 8} and found.user_ids.values[0] == -9


def test_the_truth_stays_only_where_rows_are_the_same(data):
    """R^t is known by row: other users or items, or others among them, would be judged by their neighbours' truth."""
    truth = object()

    def found(users, items, n_users=9, n_items=8, unknown="leave-out"):
        other = moved(naive.small_partition(n_users, n_items, n_c=10, n_t=10, n_va=10, n_te=10), users, items)
        other.truth = truth
        return aligned(other, (data.user_ids, data.item_ids), had(data), "S_te", unknown).data.truth

    assert found(range(9), range(8)) is truth and found(range(9), range(8), unknown="fallback") is truth
    assert found([*range(8), 70], range(8)) is None and found([*range(8), 70], range(8), unknown="fallback") is None
    assert found(range(9), [*range(7), 90]) is None
    assert found(range(8), range(8), n_users=8) is None and found(range(9), range(7), n_items=7) is None
    assert found(range(10), range(8), n_users=10) is None and found(range(9), range(9), n_items=9) is None


def test_hashes_of_64_bits_may_be_unknown_too(data):
    """int64 and uint64 ids are joined as they are, not as floats; nothing holds both kinds at once."""
    high = 2**63 + np.array([7, 9], np.uint64)
    other = moved(small(1), np.concatenate([np.arange(7, dtype=np.uint64), high]), range(8))
    found = aligned(other, (data.user_ids, data.item_ids), had(data), "S_te", "fallback")
    assert found.data.user_ids.values.tolist() == [*range(9), 2**63 + 7, 2**63 + 9]
    assert found.rows.tolist() == [*range(9), -1, -1] and found.unknown_users == 2
    below = Ids(np.arange(-2, 7))
    with pytest.raises(InputError, match="ids below 0 and ids of at least 2\\^63 cannot be combined"):
        aligned(other, (below, data.item_ids), had(data), "S_te", "fallback")


def test_ids_of_another_kind_are_refused_with_both_shown(base):
    other = naive.small_partition(9, 8, n_c=30, n_t=12, n_va=10, n_te=12, ids="str")
    with pytest.raises(InputError, match=r"knows none of the 9 users: .*0.*\(int\).*u00.*\(str\)"):
        base.evaluate(other)


def test_a_log_without_a_known_pair_is_refused(base):
    other = moved(small(1), [8, *range(100, 108)], [7, *range(100, 107)])
    lone = other.triplets("S_te")
    assert not ((lone.users == 0) & (lone.items == 0)).any()
    with pytest.raises(InputError, match="knows no pair's user and item in S_te of next week"):
        base.evaluate(other)


# -- users of whom nothing is known


def with_cold_user():
    """User 4 has pairs in S_va and S_te alone."""
    data = small()
    parts = {part: data.triplets(part) for part in PARTS}
    for part in ("S_c", "S_t"):
        parts[part] = parts[part].take(parts[part].users != 4)
    assert (parts["S_va"].users == 4).any() or (parts["S_te"].users == 4).any()
    return Partition(parts, (9, 8))


@pytest.mark.parametrize("name,backbone", [("base", "mf"), ("base", "ncf"), ("dub", "mf"), ("dub-x", "mf")])
def test_a_user_without_history_gets_the_average_row(name, backbone):
    data = with_cold_user()
    model = quietly(dubnb.make(name, backbone=backbone, **QUICK).fit, data)
    assert np.flatnonzero(model.cold_).tolist() == [4]
    others = np.delete(model.weights_.users, 4, axis=0)
    np.testing.assert_allclose(model.weights_.users[4], others.mean(axis=0), rtol=1e-4, atol=1e-6)
    lists = model.recommend([4, 3], k=3)
    assert lists.fallback.tolist() == [True, False]
    with pytest.warns(UserWarning, match="unknown users"):
        assert model.recommend([99], k=3)[0].tolist() == lists[0][:1].tolist()


def test_who_is_cold_depends_on_what_a_method_reads():
    data = small()
    parts = {part: data.triplets(part) for part in PARTS}
    parts["S_c"] = parts["S_c"].take(parts["S_c"].users != 4)
    data = Partition(parts, (9, 8))
    assert (data.triplets("S_t").users == 4).any()
    found = {
        n: dubnb.make(n, **QUICK).resolve(data).learns_from() for n in ("base", "unif", "combine", "cause", "dub-x")
    }
    assert found == {
        "base": ("S_c",),
        "unif": ("S_t",),
        "combine": ("S_c", "S_t"),
        "cause": ("S_c",),
        "dub-x": ("S_c", "S_t"),
    }
    assert np.flatnonzero(cold_users(data, ("S_c",))).tolist() == [4]
    assert not cold_users(data, ("S_c", "S_t")).any() and not cold_users(data, ()).any()


# -- new users


@pytest.mark.needs_jit
@pytest.mark.parametrize("name,options", [("dub-x", {"gamma": 0.03}), ("dub", {"solver": "exact", "loss": "squared"})])
def test_fold_in_of_a_known_history_is_the_trained_row(name, options):
    """At the minimum a user's row is the answer to its own problem: the very one that fold_in solves."""
    data = naive.small_partition(40, 30, n_c=500, n_t=60, n_va=60, n_te=60)
    S_c, S_t = data.triplets("S_c"), data.triplets("S_t")
    model = dubnb.make(name, rank=3, epochs=300, patience=300, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dubnb.methods._exact.CONVERGED", 0.0)
        patch.setattr("dubnb.train.EarlyStopping.stop_after", lambda self, *rest: False)  # to the very end
        model.fit(data)
    judged = 0
    for user in np.setdiff1d(np.unique(S_c.users), S_t.users):
        own = S_c.users == user
        found = model.fold_in(S_c.items[own], S_c.labels[own])
        np.testing.assert_allclose(
            found.decision_function(np.arange(30)), model.decision_function(user, np.arange(30)), atol=2e-3
        )
        assert set(found.recommend(5)[0]) == set(model.recommend([user], 5)[0][0].tolist())
        judged += 1
    assert judged >= 5 and np.ptp(model.decision_function(0, np.arange(30))) > 0.1


def test_a_history_of_grades_has_the_targets_of_training(base):
    """By hand: a grade of 1 is a positive, others move apart by 1.4 about 1/4; weights as in S_c."""
    from dubnb.methods import _fold_in

    params = {"targets": "graded", "negative": 0.2, "target_slope": 1.0, "grade_spread": 1.4}
    own = _fold_in.history(base.item_ids_, params, [1, 2, 3, 4], [1.0, 0.5, 0.25, 0.0])
    assert own.targets.tolist() == own.inputs.tolist() == pytest.approx([1.0, 0.6, 0.25, -0.1])
    assert own.weights.tolist() == pytest.approx([1.5, 1.1, 0.75, 0.4]) and own.positives == 1
    del params["grade_spread"]  # of methods that have none
    assert _fold_in.history(base.item_ids_, params, [2, 3], [0.5, 0.25]).targets.tolist() == [0.5, 0.25]
    with pytest.raises(InputError, match=r"label 1\.5 is not between 0 and 1"):
        _fold_in.history(base.item_ids_, params, [2, 3], [0.5, 1.5])
    binary = params | {"targets": "binary"}
    own = _fold_in.history(base.item_ids_, binary, [1, 2], [1.0, 0.0])
    assert own.targets.tolist() == [1.0, 0.2] and own.weights.tolist() == pytest.approx([1.5, 0.7])
    assert own.inputs.tolist() == [1, 0] and own.positives == 1


@pytest.mark.parametrize("negative", [0.2, "unobserved"])
def test_a_history_of_shares_counts_them_as_positives_of_the_head(base, negative):
    from dubnb.methods import _fold_in

    params = {"targets": "rates", "negative": negative, "target_slope": 1.0}
    own = _fold_in.history(base.item_ids_, params, [1, 2, 3], [0.5, 0.25, 1.0])
    assert own.positives == 1.75 and own.inputs.tolist() == [0.5, 0.25, 1.0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("far", [0.0, 40.0])
def test_fold_in_of_a_log_loss_ends_where_its_gradient_does(seed, far, monkeypatch):
    """To rounding and in few steps, also from where sigmoids are flat: there whole steps lead away."""
    from dubnb.methods import _fold_in

    rng = np.random.default_rng(seed)
    Z, offsets, w, y = rng.normal(size=(12, 3)), rng.normal(size=12), rng.uniform(0.5, 2.0, 12), rng.integers(0, 2, 12)
    ridge, centre = np.array([0.3, 0.4, 0.5]), far * np.array([1.0, -1.0, 0.5]) + 0.2
    solve, solved = np.linalg.solve, []
    monkeypatch.setattr(np.linalg, "solve", lambda *arguments: solved.append(1) or solve(*arguments))
    x = _fold_in._minimise(Z, offsets, w, y, ridge, centre, "bce")
    p = 1 / (1 + np.exp(-(offsets + Z @ x)))
    assert np.abs(Z.T @ (w * (p - y)) + ridge * (x - centre)).max() < 1e-7
    assert len(solved) <= (12 if far else 7)


def test_a_new_user_s_row_solves_the_normal_equations_of_the_docstring(base):
    """With every part of the objective at work, some items without weight, and a history of an item among them."""
    from dubnb.methods import _fold_in

    rng = np.random.default_rng(1)
    v, t = rng.uniform(0.2, 1.0, 8).astype(np.float32), rng.uniform(0.1, 0.9, 8).astype(np.float32)
    v[[3, 6]] = 0.0
    decays = {"decay": 0.3, "decay_per_sample": 0.05, "decay_per_weight": 0.07, "bias_ridge": 0.4, "bias": 0.25}
    objective = _fold_in.RowObjective(v, t, power=0.5, mean_activity=1.6, **decays)
    items, targets, weights = np.array([1, 3, 4]), np.array([1.0, 0.2, 1.0]), np.array([1.5, 0.7, 1.2])
    model = MF.from_arrays(base.weights_.arrays() | {"b0": np.array([0.3], np.float32)})
    found = _fold_in.solve(model, objective, "squared", items, (targets, weights))

    arrays = {name: array.astype(np.float64) for name, array in model.arrays().items()}
    w, y = 2.0 / 1.6 * v.astype(np.float64), t.astype(np.float64)  # of a user with a history of 3: (3 + 1)^.5 = 2
    ridge = np.full(4, 0.3 + 3 * 0.05 + 0.07 * (w.sum() + weights.sum()))
    ridge[3] = 0.4
    w[items], y[items] = weights, targets
    z = np.column_stack([arrays["item_factors"], np.ones(8)])
    left = 2 * (z.T * w) @ z + np.diag(ridge)
    right = 2 * (z.T * w) @ (y - arrays["item_bias"] - 0.3) + ridge * np.array([0.0, 0.0, 0.0, 0.25])
    expected = np.linalg.solve(left, right)
    expected[3] += 0.3  # b0 is part of the row
    np.testing.assert_allclose(found, [*expected, 1.0], rtol=2e-6)


def activity(counts, power):
    return (counts + 1.0) ** power


ROW_CASES = {
    "base": ("base", {"negatives": 2, "lam": 0.02, "batch_size": 5}),
    "base without negatives": ("base", {"lam": 0.02, "batch_size": 5}),
    "dub": ("dub", {"gamma": 0.7, "lam": 0.02, "batch_size": 5, "shrink": 0.4, "exposure_power": (0.5, 0.3)}),
    "dub, all pairs alike": ("dub", {"gamma": 0.7, "lam": 0.02, "batch_size": 5}),
    "dub without d": ("dub", {"terms": "ac", "lam": 0.02, "batch_size": 5}),
    "dub exact": ("dub", {"solver": "exact", "loss": "squared", "gamma": 0.2}),
    "dub exact without a": ("dub", {"solver": "exact", "loss": "squared", "gamma": 0.2, "terms": "cd", "cutoff": 0.1}),
    "dub exact without d": ("dub", {"solver": "exact", "loss": "squared", "gamma": 0.2, "terms": "ac"}),
    "dub-x": ("dub-x", {"gamma": 0.05, "exposure_power": (0.5, 0.75), "teacher_value": 0.1}),
    "dub-x without d": ("dub-x", {"gamma": 0.05, "exposure_power": (0.5, 0.75), "teacher_value": 0.1, "terms": "ce"}),
}


@pytest.mark.parametrize("case", ROW_CASES)
def test_row_objective_of_new_users_after_a_fit(case):
    """By hand: weights and targets of the items, decays, and what holds the bias; one user is cold."""
    name, options = ROW_CASES[case]
    data = with_cold_user()
    model = quietly(dubnb.make(name, **{"rank": 3, "epochs": 2, "patience": 2, "lr": 0.5} | options).fit, data)
    found, S_c, S_t = model.row_objective_, data.triplets("S_c"), data.triplets("S_t")
    n_users, n_items = np.bincount(S_c.users, minlength=9), np.bincount(S_c.items, minlength=8)
    n_c, n_unseen = len(S_c.users), 72 - len(S_c.users) - len(S_t.users)
    warm = np.arange(9) != 4
    exact, draws = model.chosen_solver() == "exact" or name == "dub-x", n_c
    share, gamma, powers, t = 0.0, 0.0, (0.0, 0.0), np.zeros(8)
    if case == "base":
        share, gamma, powers = 2 * S_c.labels.sum() / n_unseen, 1.0, (1.0, 0.75)
    elif exact or "d" in model.params_["terms"]:
        share, gamma = (1.0 if exact else draws / n_unseen), options["gamma"] * ("d" in model.params_["terms"])
        powers = options.get("exposure_power", (0.0, 0.0))
        if name == "dub-x":
            t = np.full(8, 0.1)
        elif exact:
            t = np.full(8, S_t.labels.mean())
        else:
            raw = model.teacher_.score_rows(np.arange(9)).mean(axis=0)  # mf is linear: the average user's scores
            shrink = options.get("shrink", 0.0)
            t = shrink * S_t.labels.mean() + (1 - shrink) * naive.sigmoid(raw)
    A, C = activity(n_users, powers[0]), activity(n_items, powers[1])
    np.testing.assert_allclose(found.item_weights, gamma * share * C / C.mean(), rtol=1e-5)
    np.testing.assert_allclose(found.item_targets, t, rtol=1e-5)
    assert found.power == powers[0] and found.mean_activity == pytest.approx(A.mean())
    if not exact:
        per_sample, biases = 0.02 * 5, model.weights_.arrays()["user_bias"][warm].astype(np.float64)
        assert [found.decay, found.decay_per_sample] == pytest.approx([per_sample * share * 8, per_sample])
        assert found.decay_per_weight == 0.0 and biases.var() > 1e-3
        assert [found.bias_ridge, found.bias] == pytest.approx([1 / biases.var(), biases.mean()], rel=1e-4)
        return
    of_S_c = 0.5 + np.where(S_c.labels > 0, 1.0, 0.2) if name == "dub-x" else np.ones(n_c)
    times = sum(letter in model.params_["terms"] for letter in "ae")  # that a pair of S_t counts
    of_S_t = {"dub-x": model.params_.get("randomized_weight"), "dub": 1.0}[name] * times
    weight = of_S_c.sum() + of_S_t * len(S_t.users) + gamma * 72
    lam = 2 * model.params_["cutoff"] * (np.sqrt(weight / 9) + np.sqrt(weight / 8))
    assert found.decay == pytest.approx(0.0 if name == "dub-x" else lam) and found.decay_per_sample == 0.0
    assert found.decay_per_weight == pytest.approx(lam / (weight / 9) if name == "dub-x" else 0.0)
    assert [found.bias_ridge, found.bias] == [0.2, 0.0]


def test_biases_that_hardly_differ_hold_a_new_user_s_no_tighter_than_a_least_variance(data):
    model = dubnb.Base(**QUICK | {"lr": 1e-4}).fit(data)
    assert model.weights_.arrays()["user_bias"].var() < 1e-6
    assert model.row_objective_.bias_ridge == pytest.approx(1e3)


@pytest.mark.parametrize("loss", ["bce", "squared"])
def test_fold_in_is_at_the_minimum_of_its_objective(loss, data):
    from dubnb.methods import _fold_in

    model = dubnb.Base(loss=loss, negatives=2, **QUICK).fit(data)
    objective, items, labels = model.row_objective_, np.array([1, 4, 6]), np.array([1.0, 0.0, 1.0])
    rows, targets, weights, *_ = _fold_in.history(model.item_ids_, model.params_, items, labels)

    def value(row):
        """The docstring's objective, item by item."""
        arrays, total = model.weights_.arrays(), 0.0
        b0 = float(arrays["b0"][0])
        scale = (3 + 1.0) ** objective.power / objective.mean_activity
        for item in range(8):
            s = row[-2] + arrays["item_bias"][item] + row[:3] @ arrays["item_factors"][item]
            at = np.flatnonzero(rows == item)
            w, y = (weights[at[0]], targets[at[0]]) if len(at) else (scale * objective.item_weights[item], 0.0)
            total += w * naive.LOSSES[loss][0](s, y)
        ridge = objective.decay + 3 * objective.decay_per_sample
        return total + ridge / 2 * (row[:3] @ row[:3]) + objective.bias_ridge / 2 * (row[-2] - b0 - objective.bias) ** 2

    row = model.fold_in(items, labels).row.astype(np.float64)
    least = value(row)
    for k in range(4):
        for step in (-1e-2, 1e-2):
            other = row.copy()
            other[k] += step
            assert value(other) > least


def test_fold_in_follows_the_history(data):
    model = dubnb.DubX(rank=3, gamma=0.03, **{k: v for k, v in QUICK.items() if k != "rank"}).fit(data)
    liked, disliked = model.fold_in([2], [1]), model.fold_in([2], [0])
    assert liked.decision_function(2) > disliked.decision_function(2)
    assert 2 not in liked.recommend(8)[0] and len(liked.recommend(8)[0]) == 7
    vector = liked.row @ model.weights_.extended().Q.T
    np.testing.assert_allclose(vector, liked.decision_function(np.arange(8)), rtol=1e-5, atol=1e-6)
    assert len(model.fold_in([]).recommend(8)[0]) == 8


@pytest.mark.parametrize(
    "items,labels,rule",
    [
        ([99], None, "item 99 is unknown"),
        ([1, 2], [1], "two 1-d lists of one length"),
        ([1], [0.5], "neither 0 nor 1"),
        ([1, 1], [1, 0], "occurs twice"),
    ],
)
def test_bad_histories_are_one_line(base, items, labels, rule):
    with pytest.raises(InputError, match=rule):
        base.fold_in(items, labels)


@pytest.mark.parametrize(
    "name,options",
    [
        ("base", {"backbone": "ncf"}),
        ("base", {"loss": "mae"}),
        ("autodebias", {}),
        ("popularity", {}),
        ("random", {}),
        ("unif", {}),
    ],
)
def test_fold_in_says_where_there_is_no_exact_solve(name, options, data):
    model = quietly(dubnb.make(name, **QUICK, **options).fit, data)
    with pytest.raises(InputError, match="no exact row solve"):
        model.fold_in([1])


def test_a_loaded_model_serves_alike(data, tmp_path):
    model = dubnb.DubX(rank=3, epochs=2).fit(with_cold_user())
    model.save(tmp_path / "m.npz")
    copy = dubnb.load(tmp_path / "m.npz")
    assert copy.cold_.tolist() == model.cold_.tolist() and copy.recommend([4, 1], 3).fallback.tolist() == [True, False]
    assert copy.fold_in([1, 2], [1, 0]).row.tobytes() == model.fold_in([1, 2], [1, 0]).row.tobytes()


# -- everyone's lists


def test_everyone_s_lists_are_those_of_recommend(base, tmp_path, monkeypatch):
    monkeypatch.setattr("dubnb.methods._serving.BLOCK_SCORES", 20)  # two users at a time
    path = tmp_path / "recs.parquet"
    written = base.recommend_all(path, k=4)
    table = pd.read_parquet(path)
    assert len(table) == written and list(table) == ["user", "rank", "item", "score", "fallback"]
    items, scores = base.recommend(np.arange(9), k=4)
    for user in range(9):
        own = table[table["user"] == user]
        n = int((items[user] >= 0).sum())
        assert own["item"].tolist() == items[user, :n].tolist() and own["rank"].tolist() == list(range(1, n + 1))
        assert own["score"].to_numpy(np.float32).tolist() == scores[user, :n].tolist()
    import pyarrow.parquet as pq

    assert pq.ParquetFile(path).num_row_groups == 5
    with pytest.raises(InputError, match="exists already"):
        base.recommend_all(path)
    assert base.recommend_all(path, k=1, overwrite=True) == 9


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_stopped_between_two_blocks_nothing_is_left_or_printed(ending, base, tmp_path, monkeypatch):
    class Bar:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def update(self, n):
            raise KeyboardInterrupt

    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    monkeypatch.setattr(_progress, "bar", lambda *args, **options: Bar())
    with pytest.raises(KeyboardInterrupt):
        base.recommend_all(tmp_path / f"r{ending}", k=4)
    gc.collect()
    assert not ignored and not list(tmp_path.iterdir())


def both_logs(data, n=6):
    """The log whose biased part also has the first n pairs of S_te and of S_t, with the other label."""
    parts = {part: data.triplets(part) for part in PARTS}
    again = [parts[part].take(slice(n)) for part in ("S_te", "S_t")]
    S_c = [np.concatenate(columns) for columns in zip(*(each[:2] for each in (parts["S_c"], *again)), strict=True)]
    labels = np.concatenate([parts["S_c"].labels, *(1 - each.labels for each in again)])
    return Partition(parts | {"S_c": (*S_c, labels)}, (data.n_users, data.n_items))


@pytest.mark.parametrize("refit", [False, True])
def test_pairs_of_both_logs_are_never_recommended(data, refit, tmp_path):
    """Nor by the saved model, nor by one that was refitted, whose log is made from the given one."""
    both = both_logs(data)
    model = dubnb.Base(rank=2, epochs=3, lr=0.05).fit(both, refit=refit)
    model.save(tmp_path / "m.npz")
    for each in (model, dubnb.load(tmp_path / "m.npz")):
        items, _ = each.recommend(np.arange(data.n_users), k=data.n_items)
        listed = {(user, item) for user, row in enumerate(items) for item in row}
        assert not listed & set(zip(both.overlap.users, both.overlap.items, strict=True)) and both.removed == 12


def test_another_log_s_pairs_of_both_logs_are_not_judged(base, data):
    both = both_logs(small(1), n=3)
    with pytest.warns(UserWarning, match="another seed, split or week"):
        result = base.evaluate(both, per_user=True, keep_trained=True)
    S_te = both.unseen("S_te")
    fresh = base.seen_.find(S_te.users, S_te.items) < 0
    scores = base.decision_function(S_te.users[fresh], S_te.items[fresh])
    assert result["auc"] == pytest.approx(naive.auc(scores, S_te.labels[fresh])) != result["auc_with_overlap"]
    assert set(result["judged_users"]["user"]) == set(S_te.users[fresh])


def test_recommend_lists_ten_items_by_default(tmp_path, monkeypatch):
    """And nothing is shown, nor a file replaced."""
    shown = []
    monkeypatch.setattr("dubnb._progress.watched", lambda: True)
    plain = _progress.bar
    monkeypatch.setattr(_progress, "bar", lambda *args, **options: shown.append(options) or plain(*args, **options))
    wide = naive.small_partition(3, 20, n_c=12, n_t=9, n_va=6, n_te=6)
    model = dubnb.Base(**QUICK).fit(wide)
    assert model.recommend(0, exclude=False)[0].shape == (1, 10) and model.similar_items(0)[0].shape == (1, 10)
    assert len(model.fold_in([1]).recommend()[0]) == 10
    assert {options["quiet"] for options in shown} == {True} and {options["desc"] for options in shown} == {"M_c"}
    shown.clear()
    path = tmp_path / "r.parquet"
    assert model.recommend_all(path, exclude=False) == 30
    model.recommend_all(path, exclude=False, overwrite=True, quiet=False)
    assert [options["quiet"] for options in shown] == [True, False]
    assert {(options["desc"], options["unit"], options["total"]) for options in shown} == {("recommend", "user", 3)}
    with pytest.raises(InputError, match="exists already"):
        model.recommend_all(path)


def test_evaluate_uses_S_te_at_5_and_10_by_default(base, data):
    found, given = base.evaluate(data), base.evaluate(data, part="S_te", ks=(5, 10))
    assert found == given != base.evaluate(data, part="S_va", ks=(5, 10)) and {"p@5", "p@10"} <= found.keys()


def test_candidates_for_everyone_or_by_user(base, tmp_path):
    base.recommend_all(tmp_path / "few.parquet", k=8, candidates=[1, 5], exclude=False)
    assert set(pd.read_parquet(tmp_path / "few.parquet")["item"]) == {1, 5}
    own = csr_matrix((np.ones(3), ([0, 0, 2], [3, 4, 6])), shape=(9, 8))
    base.recommend_all(tmp_path / "own.parquet", k=8, candidates=own, exclude=False, users=[0, 2, 77])
    table = pd.read_parquet(tmp_path / "own.parquet")
    assert {user: set(rows["item"]) for user, rows in table.groupby("user")} == {0: {3, 4}, 2: {6}}
    with pytest.raises(InputError, match="item 99 is unknown"):
        base.recommend_all(tmp_path / "no.parquet", candidates=[99])


def test_string_ids_and_fallbacks_in_the_file(tmp_path):
    named = naive.small_partition(9, 8, n_c=30, n_t=12, n_va=10, n_te=12, ids="str")
    model = dubnb.Base(**QUICK).fit(named)
    model.recommend_all(tmp_path / "r.parquet", k=2, users=["u03", "nobody"])
    table = pd.read_parquet(tmp_path / "r.parquet")
    assert table["user"].tolist() == ["u03", "u03", "nobody", "nobody"]
    assert table["fallback"].tolist() == [False, False, True, True] and table["item"].str.startswith("i").all()


def test_csv_lists_are_those_of_parquet(base, tmp_path, monkeypatch):
    monkeypatch.setattr("dubnb.methods._serving.BLOCK_SCORES", 20)
    assert base.recommend_all(tmp_path / "r.csv", k=4) == base.recommend_all(tmp_path / "r.parquet", k=4)
    text, binary = pd.read_csv(tmp_path / "r.csv"), pd.read_parquet(tmp_path / "r.parquet")
    assert list(text) == list(binary) and text["fallback"].dtype == bool
    for name in binary:
        assert text[name].to_numpy().astype(binary[name].dtype).tolist() == binary[name].tolist(), name


def test_csv_needs_no_pyarrow_and_parquet_says_that_it_does(base, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert base.recommend_all(tmp_path / "r.csv", k=1) == 9
    with pytest.raises(InputError, match="Parquet needs pyarrow: install the extra 'parquet', or write"):
        base.recommend_all(tmp_path / "r.parquet", k=1)
    for name in ("recs", "recs.xlsx", "recs.csv.gz"):
        with pytest.raises(InputError, match=f"{name}' must end in .csv or .parquet"):
            base.recommend_all(tmp_path / name, k=1)
    assert [each.name for each in tmp_path.iterdir()] == ["r.csv"]


@pytest.mark.parametrize(
    "wrap", [pd.Series, np.array, tuple, iter, lambda ids: pd.Series(ids, dtype=object), pd.Categorical, dict.fromkeys]
)
@pytest.mark.parametrize("kind", ["int", "str"])
def test_ids_may_come_in_any_column(kind, wrap, base, data, tmp_path):
    names = np.arange(9) if kind == "int" else np.array(list("abcdefghi"))
    model = base if kind == "int" else dubnb.Base(**QUICK).fit(moved(data, names, names[:8]))
    users, items = [names[3].item(), names[1].item()], [names[2].item(), names[0].item()]
    for ending in (".csv", ".parquet"):
        path, plain = tmp_path / f"wrapped{ending}", tmp_path / f"plain{ending}"
        model.recommend_all(path, k=2, users=wrap(users), candidates=wrap(items), exclude=False)
        model.recommend_all(plain, k=2, users=users, candidates=items, exclude=False)
        assert path.read_bytes() == plain.read_bytes()
        table = pd.read_csv(path) if ending == ".csv" else pd.read_parquet(path)
        assert table["user"].tolist() == np.repeat(users, 2).tolist() and set(table["item"]) == set(items)
    assert model.recommend(wrap(users))[0].tolist() == model.recommend(users)[0].tolist()
    assert model.similar_items(wrap(items))[0].tolist() == model.similar_items(items)[0].tolist()
    assert model.fold_in(wrap(items)).row.tolist() == model.fold_in(items).row.tolist()
    assert model.fold_in(items).decision_function(wrap(items)).shape == (2,)
    np.testing.assert_array_equal(model.predict(wrap(users), wrap(items)), model.predict(users, items))


def test_no_users_and_users_in_a_table(base, tmp_path):
    for ending in (".csv", ".parquet"):
        assert base.recommend_all(tmp_path / f"none{ending}", users=[]) == 0
        for call in (base.recommend, lambda users: base.recommend_all(tmp_path / "no.csv", users=users)):
            with pytest.raises(InputError, match="1-d"):
                call([[0, 1]])
            with pytest.raises(InputError, match="these ids are int"):
                call(pd.Series([1.5]))
    assert base.recommend([], k=5)[0].shape == (0, 5) and not (tmp_path / "no.csv").exists()
    with pytest.warns(UserWarning, match="2 unknown users.*: -1, 9223372036854775807"):
        base.recommend([0, -1, 2**63 - 1])


def test_an_id_that_cannot_be_one_is_named_itself(base):
    """A column that widened whole numbers to floats must not put the blame on an id that was right."""
    for users, named in (
        (pd.array([1, None], dtype="Int64"), "<NA>"),
        (pd.Series([1, None]), "nan"),
        ([2**70], "1180591620717411303424 does not fit"),
    ):
        with pytest.raises(InputError, match=named):
            base.recommend(users)


def test_lists_of_several_kinds_or_lengths_and_masked_ids_are_refused(base, data):
    """NumPy reads True as 1 next to numbers and 7 as text next to text, and looks below a mask."""
    for ids, named in (
        ([True, 3], "id True is not"),
        ([3, "5"], "id '5' is not"),
        (np.ma.array([1, 2], mask=[False, True]), "id None is not"),
        ([[3], [5, 2]], "several lengths"),
    ):
        for call in (base.recommend, base.fold_in, lambda ids: base.predict(ids, 0), lambda ids: base.predict(0, ids)):
            with pytest.raises(InputError, match=named):
                call(ids)
    text = dubnb.Base(**QUICK).fit(moved(data, np.array(list("123456789")), np.array(list("abcdefgh"))))
    with pytest.raises(InputError, match="id 7 is not"):
        text.recommend(["1", 7])


@pytest.mark.parametrize(
    "wrap", [lambda text: text, lambda text: [text], lambda text: pd.Series([text]), lambda text: {text}]
)
def test_an_id_that_ends_with_a_nul_is_not_the_one_without(wrap, data):
    """NumPy drops NULs at the end of a text."""
    text = dubnb.Base(**QUICK).fit(moved(data, np.array(list("123456789")), np.array(list("abcdefgh"))))
    for call in (
        text.recommend,
        lambda users: text.predict(users, "a"),
        lambda users: text.decision_function(users, "a"),
    ):
        call(wrap("3"))
        with pytest.raises(InputError, match=r"id '3\\x00' holds a NUL character"):
            call(wrap("3\0"))


def test_no_list_is_longer_than_the_catalogue(base):
    for found, whole in zip(base.recommend(np.arange(9), k=10**9), base.recommend(np.arange(9), k=8), strict=True):
        assert found.shape == (9, 8) and np.array_equal(found, whole, equal_nan=found.dtype.kind == "f")
    assert base.similar_items([0], k=10**9)[0].shape == (1, 7) and len(base.fold_in([0]).recommend(10**9)[0]) == 7


def test_no_spreadsheet_runs_an_id(tmp_path):
    named = naive.small_partition(9, 8, n_c=30, n_t=12, n_va=10, n_te=12, ids="str")
    users = Ids(np.array(sorted(["=1+1", "+x", "-y", "@z", "-5", "a,b", 'q"r', "é", "plain"])))
    parts = {part: named.triplets(part) for part in ("S_c", "S_t", "S_va", "S_te")}
    model = dubnb.Base(**QUICK).fit(Partition(parts, (9, 8), user_ids=users, item_ids=named.item_ids))
    model.recommend_all(tmp_path / "r.csv", k=1)
    listed = pd.read_csv(tmp_path / "r.csv", dtype=str)["user"].tolist()
    assert listed == ["'+x", "-5", "'-y", "'=1+1", "'@z", "a,b", "plain", 'q"r', "é"]


# -- vectors for other programs


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Terminated()])
def test_an_export_that_fails_leaves_nothing_so_that_it_can_be_run_again(error, base, tmp_path, monkeypatch):
    write_table, calls = pyarrow.parquet.ParquetWriter.write_table, []

    def second_fails(self, *args, **options):
        calls.append(None)
        if len(calls) == 2:
            raise error
        write_table(self, *args, **options)

    monkeypatch.setattr(pyarrow.parquet.ParquetWriter, "write_table", second_fails)
    with pytest.raises(type(error)):
        base.export(tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []
    assert sorted(base.export(tmp_path / "out")) == sorted(os.listdir(tmp_path / "out"))


@pytest.mark.parametrize("rank", [3, 14])  # at 14 the table of users has no columns of padding
def test_exported_vectors_reproduce_the_scores_and_leave_the_model_alone(rank, data, tmp_path):
    model = dubnb.Base(**QUICK | {"lr": 0.5, "rank": rank}).fit(data)
    before = model.decision_function(np.arange(9)[:, None], np.arange(8))
    names = model.export(tmp_path / "out")
    read = {name: np.load(tmp_path / "out" / name) for name in names if name.endswith(".npy")}
    raw = model.decision_function(np.arange(9)[:, None], np.arange(8))
    assert np.array_equal(raw, before)
    np.testing.assert_allclose(read["user_vectors.npy"] @ read["item_vectors.npy"].T, raw, rtol=1e-5, atol=1e-6)
    assert np.ptp(raw) > 0.1 and read["item_ids.npy"].tolist() == list(range(8))
    assert read["user_ids.npy"].tolist() == list(range(9)) and sorted(names[4:]) == ["items.parquet", "users.parquet"]
    for side in ("user", "item"):
        table = pd.read_parquet(tmp_path / "out" / f"{side}s.parquet")
        assert list(table) == [side, "vector"] and table[side].tolist() == read[f"{side}_ids.npy"].tolist()
        assert np.array_equal(np.stack(table["vector"].to_list()), read[f"{side}_vectors.npy"])
    with pytest.raises(InputError, match=r"already has a user_vectors\.npy"):
        model.export(tmp_path / "out")
    model.export(tmp_path / "out", overwrite=True)
    with pytest.raises(InputError, match="ncf's score is not an inner product"):
        dubnb.Base(backbone="ncf", **QUICK).fit(data).export(tmp_path / "ncf")


def test_a_blend_exports_vectors_only_without_dub_i(data, tmp_path):
    plain = dubnb.DubXI(rank=3, gamma=0.03, blend=0.0, epochs=2).fit(data)
    plain.export(tmp_path)
    P, Q = (np.load(tmp_path / f"{side}_vectors.npy") for side in ("user", "item"))
    raw = plain.decision_function(np.arange(9)[:, None], np.arange(8))
    np.testing.assert_allclose(P @ Q.T, raw, rtol=1e-5, atol=1e-6)
    new = plain.fold_in([2, 5])
    np.testing.assert_allclose(Q @ new.row, new.decision_function(np.arange(8)), rtol=1e-5, atol=1e-6)
    for model in (dubnb.DubI(), dubnb.DubXI(rank=3, gamma=0.03, blend=0.4, epochs=2)):
        fitted = model.fit(data)
        with pytest.raises(InputError, match="coefficients between items is not an inner product"):
            fitted.export(tmp_path / "refused")
        with pytest.raises(InputError, match="use dub-x"):
            fitted.fold_in([2, 5]).row  # noqa: B018
    assert not (tmp_path / "refused").exists()


@pytest.mark.needs_jit
def test_a_vector_index_finds_the_same_top_10(tmp_path):
    faiss = pytest.importorskip("faiss")
    data = dubnb.load_dataset("simulated")
    model = dubnb.DubX(rank=20, gamma=0.03).fit(data)
    model.export(tmp_path / "out")
    users, items = (np.load(tmp_path / "out" / f"{side}_vectors.npy") for side in ("user", "item"))
    index = faiss.IndexFlatIP(items.shape[1])
    index.add(items)
    _, found = index.search(users, 10)
    ours = model.recommend(np.arange(data.n_users), k=10, exclude=False)[0]
    assert (found == ours).mean() > 0.999  # equal except for rounding where two scores nearly tie


def test_similar_items_by_the_cosine_of_factors(base):
    items, likeness = base.similar_items([2, 5], k=3)
    factors = base.weights_.arrays()["item_factors"].astype(np.float64)
    for row, item in enumerate((2, 5)):
        cosines = factors @ factors[item] / np.linalg.norm(factors, axis=1) / np.linalg.norm(factors[item])
        expected = naive.ranking(cosines, [i for i in range(8) if i != item])[:3]
        assert items[row].tolist() == expected
        np.testing.assert_allclose(likeness[row], cosines[expected], rtol=1e-4, atol=1e-6)
    assert base.similar_items(2, k=50)[0].shape == (1, 7)
    with pytest.raises(InputError, match="item 99 is unknown"):
        base.similar_items(99)


def test_similar_items_do_not_depend_on_the_block_size(base, monkeypatch):
    """No items give no rows; a single item of a log has no similar one."""
    whole = base.similar_items(np.arange(8), k=3)
    monkeypatch.setattr(_serving, "BLOCK_SCORES", 1)
    items, similarity = base.similar_items(np.arange(8), k=3)
    assert np.array_equal(items, whole[0])
    np.testing.assert_allclose(similarity, whole[1], rtol=1e-5, atol=1e-6)
    assert base.similar_items(np.zeros(0, np.int64), k=3)[0].shape == (0, 3)
    lone = naive.small_partition(12, 1, n_c=4, n_t=3, n_va=3, n_te=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert dubnb.Base(**QUICK).fit(lone).similar_items(0)[0].shape == (1, 0)


def test_ids_that_are_hashes_of_64_bits(data, tmp_path):
    high = np.uint64(2**63) + np.arange(9, dtype=np.uint64)
    hashed = moved(data, high, high[:8])
    model = dubnb.Base(**QUICK).fit(hashed)
    items, _ = model.recommend(high[:2], k=9)
    assert items.dtype == np.uint64 and items[0, 0] in high and items[0, -1] == np.uint64(2**64 - 1)
    model.recommend_all(tmp_path / "r.parquet", k=1)
    assert pd.read_parquet(tmp_path / "r.parquet")["user"].tolist() == high.tolist()
