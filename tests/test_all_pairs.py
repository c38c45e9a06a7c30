"""Exact sums over all pairs against dense brute force."""

import numpy as np
import pytest

from dubnb._check import InputError
from dubnb.data.pattern import Pattern
from dubnb.objective import all_pairs
from tests import naive_all_pairs as naive
from tests.exact_tools import SHAPE, TIGHT, case, close, dense, dense_slopes, rows_of, slopes, stream


@pytest.mark.parametrize("teacher", ["low-rank", "constant"])
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_steps_are_those_of_brute_force(seed, teacher):
    problem, twin, P, Q = case(seed, teacher)
    assert all_pairs.loss(problem, P, Q) == pytest.approx(dense(twin, naive.loss, P, Q), rel=TIGHT)
    for found, expected in zip(slopes(problem, P, Q), dense_slopes(twin, P, Q), strict=True):
        assert close(found, expected)


def test_the_loss_of_single_precision_rows_is_summed_in_double():
    """The loss agrees with double precision to ten digits; sums in single precision would give eight."""
    problem, _, P, Q = case(0, rank=8, dtype=np.float32, shape=(300, 200))
    wide = {name: getattr(problem, name).astype(np.float64) for name in ("curvature", "pull", "teacher_P", "teacher_Q")}
    expected = all_pairs.loss(problem._replace(**wide), P.astype(np.float64), Q.astype(np.float64))
    assert all_pairs.loss(problem, P, Q) == pytest.approx(expected, rel=2e-10)


def test_steps_follow_the_finite_difference_of_the_loss():
    problem, twin, P, Q = case(5)
    step = 1e-5
    free, etas = naive.free_coordinates(P, Q), dense(twin, naive.step_sizes, P, Q)
    for rows, found, moves, eta in zip((P, Q), slopes(problem, P, Q), free, etas, strict=True):
        for place in np.ndindex(rows.shape):
            kept = rows[place]
            rows[place] = kept + step
            above = all_pairs.loss(problem, P, Q)
            rows[place] = kept - step
            below = all_pairs.loss(problem, P, Q)
            rows[place] = kept
            gradient = moves[place] * (above - below) / (2 * step)
            assert found[place] / eta[place[0]] == pytest.approx(gradient, abs=1e-7)


def test_gram_streams_chunks(monkeypatch):
    rng = np.random.default_rng(0)
    rows, other, weights = rng.normal(size=(11, 4)), rng.normal(size=(11, 2)), rng.random(11)
    monkeypatch.setattr(all_pairs, "CHUNK", 3)
    assert close(
        all_pairs.gram(rows, weights), sum(w * np.outer(x, x) for w, x in zip(weights, rows, strict=True)), 1e-14
    )
    expected = sum(w * np.outer(x, y) for w, x, y in zip(weights, rows, other, strict=True))
    assert close(all_pairs.gram(rows, weights, other), expected, 1e-14)
    assert all_pairs.gram(rows.astype(np.float32), weights).dtype == np.float64
    weights[:7] = 0.0  # most rows are outside of a sample
    assert close(all_pairs.gram(rows, weights), (rows.T * weights) @ rows, 1e-14)
    assert close(all_pairs.gram(rows, weights, other), (rows.T * weights) @ other, 1e-14)


def test_products_are_in_the_rows_own_precision_unless_they_are_to_be_exact():
    problem, _, P, Q = case(3, rank=4, dtype=np.float32, shape=(40, 30))
    narrow = (P * problem.A[:, None].astype(np.float32)).T @ P
    wide = (P * problem.A[:, None]).T @ P.astype(np.float64)
    for found in (all_pairs.gram(P, problem.A), all_pairs.grams(problem, P, Q).G_P):
        np.testing.assert_array_equal(found, narrow.astype(np.float64))
    for found in (all_pairs.gram(P, problem.A, exact=True), all_pairs.grams(problem, P, Q, exact=True).G_P):
        np.testing.assert_allclose(found, wide, rtol=1e-13)
    assert (narrow != wide).any()


@pytest.mark.parametrize(("left", "kept"), [(2e-5, True), (5e-6, False), (-1e-3, False)])
def test_a_curvature_within_rounding_counts_as_0(left, kept):
    """`left`: the share of the sum over all pairs that remains when nearly all pairs are excluded."""
    rows, twice, weights, norm, decay = np.full((1, 5), 0.5), 4.0, np.array([2.5]), 100.0, np.array([0.25])
    pull, gradient, denominator = np.full((1, 5), 2.0), np.zeros((1, 5)), np.array([(left - 1) * 1000.0])
    all_pairs.complete_rows(rows, pull, weights, decay, -2, twice, norm, gradient, denominator)
    assert denominator[0] == pytest.approx(0.25 + (left * 1000 if kept else 0.0))
    assert gradient.tolist() == [[20.125, 20.125, 20.125, 0.0, 20.0]]  # no decay of the bias, nothing in the constant


def test_chunks_change_nothing(monkeypatch):
    problem, _, P, Q = case(1)
    stepped = P.copy(), Q.copy()
    all_pairs.descend(problem, *stepped)
    monkeypatch.setattr(all_pairs, "CHUNK", 2)
    all_pairs.descend(problem, P, Q)
    assert close(P, stepped[0], 1e-13)
    assert close(Q, stepped[1], 1e-13)


def test_descend_steps_both_sides_at_once_and_returns_the_loss_it_started_from():
    problem, twin, P, Q = case(2)
    (dP, dQ), (eta_u, eta_i) = dense(twin, naive.gradient, P, Q), dense(twin, naive.step_sizes, P, Q)
    expected_P, expected_Q = P - eta_u[:, None] * dP, Q - eta_i[:, None] * dQ
    start = dense(twin, naive.loss, P, Q)
    assert all_pairs.descend(problem, P, Q) == pytest.approx(start, rel=TIGHT)
    assert close(P, expected_P)
    assert close(Q, expected_Q)


@pytest.mark.parametrize("seed", range(6))
def test_the_loss_never_rises_from_an_ordinary_start_and_the_constants_stay(seed):
    problem, _, P, Q = case(seed, ("low-rank", "constant")[seed % 2], rank=2 + seed % 4)
    losses = [all_pairs.descend(problem, P, Q) for _ in range(60)]
    losses.append(all_pairs.loss(problem, P, Q))
    assert (np.diff(losses) <= 1e-12 * losses[0]).all()
    assert losses[-1] < 0.9 * losses[0]
    assert (P[:, -1] == 1).all()
    assert (Q[:, -2] == 1).all()


def test_descend_finds_a_planted_model():
    """Every pair is observed or has a teacher's target from the same rank-2 truth: the loss must go to 0."""
    rng = np.random.default_rng(3)
    true_P, true_Q = rows_of(rng, rank=2)
    users, items, _, _ = stream(rng, 25)
    targets = np.einsum("kj,kj->k", true_P[users], true_Q[items])
    problem = naive.exact_problem(SHAPE, [(users, items, targets, 1.0)], strength=0.2, teacher=(true_P, true_Q))
    P, Q = rows_of(np.random.default_rng(4), rank=2, scale=0.1)
    start = all_pairs.loss(problem, P, Q)
    for _ in range(1500):
        all_pairs.descend(problem, P, Q)
    assert all_pairs.loss(problem, P, Q) < 1e-6 * start
    assert np.abs(P @ Q.T - true_P @ true_Q.T).max() < 1e-2


def test_float32_follows_float64():
    shape = (60, 40)
    wide, narrow = (case(7, dtype=dtype, shape=shape, rank=8) for dtype in (np.float64, np.float32))
    assert all_pairs.loss(narrow[0], *narrow[2:]) == pytest.approx(all_pairs.loss(wide[0], *wide[2:]), rel=1e-5)
    for found, expected in zip(slopes(narrow[0], *narrow[2:]), slopes(wide[0], *wide[2:]), strict=True):
        assert found.dtype == np.float32
        assert close(found, expected, 1e-4)
    for _ in range(10):
        losses = [all_pairs.descend(problem, P, Q) for problem, _, P, Q in (narrow, wide)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert close(narrow[2], wide[2], 1e-4)
    assert close(narrow[3], wide[3], 1e-4)


def test_two_quadratics_on_one_pair_are_one():
    users, items = np.array([0, 1]), np.array([1, 2])
    twice = naive.exact_problem(
        SHAPE, [(users, items, np.array([1.0, 0.0]), 1.0), (users, items, np.array([0.4, -0.2]), 3.0)], strength=0.1
    )
    once = naive.exact_problem(SHAPE, [(users, items, np.array([0.55, -0.15]), 4.0)], strength=0.1)
    assert len(twice.pairs.items) == 2
    np.testing.assert_allclose(twice.curvature, once.curvature, rtol=1e-6)
    np.testing.assert_allclose(twice.pull, once.pull, rtol=1e-6)


def test_transposed_problem_is_the_same_problem():
    problem, _, P, Q = case(4)
    other = all_pairs.transpose(problem)
    assert all_pairs.loss(other, Q, P) == pytest.approx(all_pairs.loss(problem, P, Q), rel=TIGHT)
    for found, expected in zip(slopes(other, Q, P)[::-1], slopes(problem, P, Q), strict=True):
        assert close(found, expected)


def test_pairs_by_item_where_items_need_more_than_16_bits():
    users, items = np.array([0, 0, 1, 2]), np.array([5, 2**16 + 2, 2, 2**16 + 2], np.int32)
    pairs, order = all_pairs.transposed_pairs(Pattern.of(users, items, 3), 2**16 + 4)
    assert order.tolist() == [2, 0, 1, 3]
    assert pairs.users().tolist() == [2, 5, 2**16 + 2, 2**16 + 2] and pairs.items.tolist() == [1, 0, 0, 2]
    assert len(pairs.indptr) == 2**16 + 5 and pairs.items.dtype == np.int32


def test_the_curvature_that_rows_give_to_their_partners():
    rows = np.array([[3.0, 4.0, 0.5, 1.0], [0.0, 2.0, -1.0, 1.0]])
    assert all_pairs.squares(rows).tolist() == [25.0, 4.0] and all_pairs.norms(rows).tolist() == [26.0, 5.0]
    weights = np.array([0.5, 2.0])
    assert all_pairs.total_norm(all_pairs.gram(rows, weights), -1) == pytest.approx(0.5 * 26 + 2 * 5)


def test_row_steps_are_rho_over_the_curvature_and_0_without():
    found = all_pairs.row_steps(np.array([0.5, 0.0, 4.0]), 2.0)
    assert found.tolist() == [4.0, 0.0, 0.5]


def test_one_value_applies_to_every_row_and_0_is_allowed():
    assert all_pairs.per_row("A", 0, 3).tolist() == [0.0, 0.0, 0.0]
    assert all_pairs.per_row("A", [0, 2], 2).tolist() == [0.0, 2.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_users_whose_pairs_are_all_excluded_do_not_move(dtype):
    """The rest of their sum over all pairs is rounding error, and must not be divided by rounding error."""
    rng, shape, idle = np.random.default_rng(0), (40, 30), 20
    users, items = np.divmod(np.arange(idle * shape[1]), shape[1])
    streams, A, C = [(users, items, np.zeros(len(users)), 0.0)], rng.random(shape[0]), rng.random(shape[1])
    problem = naive.exact_problem(shape, streams, strength=0.3, teacher=1.0, A=A, C=C, dtype=dtype)
    P, Q = (rows.astype(dtype) for rows in rows_of(rng, shape))
    before = P.copy()
    all_pairs.descend(problem, P, Q)
    assert (P[:idle] == before[:idle]).all()
    assert (P[idle:, :-1] != before[idle:, :-1]).all()


def test_users_and_items_without_observed_pairs_and_no_pairs_at_all():
    rng = np.random.default_rng(0)
    P, Q = rows_of(rng)
    problem = naive.exact_problem(SHAPE, [([], [], [], 1.0)], strength=1.0, teacher=0.5)
    assert all_pairs.descend(problem, P.copy(), Q.copy()) == pytest.approx(((P @ Q.T - 0.5) ** 2).sum(), rel=TIGHT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"A": np.ones(3), "C": np.ones(7)}, "A has shape"),
        ({"decays": (0.0, -1.0)}, "decay holds -1.0"),
        ({"decays": (np.nan, 0.0)}, "decay holds nan"),
    ],
)
def test_bad_input_is_refused_in_one_line(changes, message):
    with pytest.raises(InputError, match=message) as refusal:
        naive.exact_problem(SHAPE, [([0], [0], [1.0], 1.0)], strength=1.0, **changes)
    assert "\n" not in str(refusal.value)
