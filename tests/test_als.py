"""Alternating row solves against dense normal equations; exposure weights and teachers."""

import numpy as np
import pytest

from dubnb import Partition, _check
from dubnb._check import InputError
from dubnb.backbones.mf import Extended
from dubnb.data.pattern import Pattern, UnobservedPairs
from dubnb.objective import all_pairs, als
from dubnb.objective.terms import (
    Observed,
    Unobserved,
    exposure_powers,
    exposure_weights,
    item_rates,
    noise_scale,
    shifted_rates,
    total_weights,
)
from tests import naive_all_pairs, naive_als
from tests.exact_tools import case, rows_of, spread

TIGHT = 1e-9
CASES = [("low-rank", 3), ("constant", 3), ("constant", 20)]  # at rank 20 more factors than pairs


def scores_close(P, Q, expected_P, expected_Q, tolerance=TIGHT):
    expected = expected_P @ expected_Q.T
    return np.abs(P @ Q.T - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize(("teacher", "rank"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_row_solves_are_those_of_dense_normal_equations(seed, teacher, rank):
    problem, (terms, wd_u, wd_i), P, Q = spread(seed, teacher, rank)
    ready = als.prepare(problem, bias_ridge=0.3)
    expected_P = naive_als.solve_users(terms, P, Q, wd_u, 0.3)
    expected_Q = naive_als.solve_items(terms, expected_P, Q, wd_i, 0.3)
    als.sweep_rows(ready, P, Q)
    assert scores_close(P, Q, expected_P, expected_Q)  # rows may be rotated, scores may not
    np.testing.assert_allclose(P[:, -2], expected_P[:, -2], rtol=TIGHT, atol=TIGHT)
    np.testing.assert_allclose(Q[:, -1], expected_Q[:, -1], rtol=TIGHT, atol=TIGHT)
    assert (P[:, -1] == 1).all()
    assert (Q[:, -2] == 1).all()


def test_rotation_makes_the_gram_matrix_diagonal_and_changes_no_score():
    problem, _, _, Q = spread(5, rank=4)
    before = Q[:, :-2] @ Q[:, :-2].T
    G = als.rotate(Q, all_pairs.gram(Q, problem.C))
    np.testing.assert_allclose(G, all_pairs.gram(Q, problem.C), atol=1e-12 * np.abs(G).max())
    assert np.count_nonzero(G[:4, :4]) == 4
    np.testing.assert_allclose(Q[:, :-2] @ Q[:, :-2].T, before, atol=1e-12)


def test_a_rough_solve_ends_near_the_optimum_and_a_rougher_one_further_away():
    problem, (terms, wd_u, wd_i), P, Q = spread(1, "constant", 8)
    expected_P = naive_als.solve_users(terms, P, Q, wd_u, als.BIAS_RIDGE)
    expected = expected_P @ naive_als.solve_items(terms, expected_P, Q, wd_i, als.BIAS_RIDGE).T
    errors = []
    for tolerance in (None, 1e-3, 0.1):
        rows = P.copy(), Q.copy()
        als.sweep_rows(als.prepare(problem._replace(tolerance=tolerance)), *rows)
        errors.append(np.abs(rows[0] @ rows[1].T - expected).max() / np.abs(expected).max())
    assert errors[0] < TIGHT < errors[1] < 0.01 < errors[2] < 0.5


def test_a_user_outside_of_a_sample_has_zero_rows_and_changes_no_other_row():
    """A user without pairs and with the weight 0: the sums over users are those of the others."""
    problem, _, P, Q = spread(3, "constant", 3)
    rows = P.copy(), Q.copy()
    als.sweep_rows(als.prepare(problem), *rows)
    for more in (1, 4 * len(P)):  # with many, sums skip them
        indptr = np.append(problem.pairs.indptr, np.full(more, problem.pairs.indptr[-1]))
        wider = problem._replace(
            pairs=Pattern.from_csr(indptr, problem.pairs.items),
            A=np.append(problem.A, np.zeros(more)),
            wd_u=np.append(problem.wd_u, np.full(more, 0.1)),
            teacher_P=np.concatenate([problem.teacher_P, np.ones((more, problem.teacher_P.shape[1]))]),
        )
        wide = np.concatenate([P, np.full((more, P.shape[1]), 1.0)]), Q.copy()
        als.sweep_rows(als.prepare(wider), *wide)
        assert (wide[0][len(P) :, :-1] == 0).all() and (wide[0][len(P) :, -1] == 1).all()
        assert scores_close(wide[0][: len(P)], wide[1], *rows)
        assert als.objective(als.prepare(wider), *wide) == pytest.approx(als.objective(als.prepare(problem), *rows))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ill_conditioned_rows_are_solved_too(dtype):
    """Almost no decay, and pairs with negative curvature because of large weights A_u C_i."""
    problem, (terms, wd_u, _), P, Q = case(6, "constant", rank=5, dtype=dtype, shape=(30, 40))
    problem, wd_u = problem._replace(wd_u=problem.wd_u * 1e-3), wd_u * 1e-3
    assert problem.curvature.min() < 0
    start = Q.astype(np.float64)
    expected = naive_als.solve_users(terms, P.astype(np.float64), start, wd_u, als.BIAS_RIDGE)
    als.solve_rows(als.prepare(problem).users, P, Q, problem.C, problem.teacher_Q)
    assert scores_close(P, Q, expected, start, 1e-4 if dtype == np.float32 else TIGHT)


@pytest.mark.parametrize("rank", [2, 33])
def test_rows_of_many_pairs(rank):
    """More pairs than are summed before the sum is added in float64."""
    rng = np.random.default_rng(rank)
    shape = (3, 2 * als.FLUSH + 7)
    users = np.repeat([0, 1], [shape[1] - 1, als.FLUSH + 1])
    items = np.concatenate([np.arange(shape[1] - 1), np.arange(als.FLUSH + 1)])
    stream = users, items, rng.normal(size=len(users)), rng.random(len(users)) + 1
    options = {"strength": 0.2, "A": np.ones(3), "C": np.ones(shape[1])}
    problem = naive_all_pairs.exact_problem(shape, [stream], teacher=0.1, decays=(0.5, 0.5), **options)
    terms = naive_all_pairs.dense_terms(shape, [stream], t=0.1, **options)
    P, Q = rows_of(rng, shape, rank)
    start = Q.copy()
    expected = naive_als.solve_users(terms, P, Q, problem.wd_u, als.BIAS_RIDGE)
    als.solve_rows(als.prepare(problem).users, P, Q, problem.C, problem.teacher_Q)
    assert scores_close(P, Q, expected, start)


def test_objective_is_that_of_brute_force_and_never_increases():
    problem, twin, P, Q = spread(1)
    ready = als.prepare(problem)
    values = [als.objective(ready, P, Q)]
    dense = naive_als.objective(naive_all_pairs.loss(twin[0], P, Q, *twin[1:]), P, Q, als.BIAS_RIDGE)
    assert values[0] == pytest.approx(dense, rel=1e-12)
    for _ in range(15):
        als.solve_rows(ready.users, P, Q, problem.C, problem.teacher_Q)
        values.append(als.objective(ready, P, Q))
        als.solve_rows(ready.items, Q, P, problem.A, problem.teacher_P)
        values.append(als.objective(ready, P, Q))
    assert (np.diff(values) <= 1e-12 * values[0]).all()
    assert values[-1] < 0.9 * values[0]


def test_objective_never_increases_beyond_rounding_in_float32():
    problem, _, P, Q = spread(2, dtype=np.float32)
    ready = als.prepare(problem)
    values = []
    for _ in range(10):
        als.sweep_rows(ready, P, Q)
        values.append(als.objective(ready, P, Q))
    assert (np.diff(values) <= 1e-5 * values[0]).all()


@pytest.mark.needs_jit
def test_unweighted_optimum_is_that_of_gradient_descent():
    """p = 0: with A = C = 1 and no ridge on biases, the solver of the plain exact dub ends at the same scores."""
    rng = np.random.default_rng(3)
    keys = rng.choice(63, 30, replace=False)
    stream = keys // 7, keys % 7, (rng.random(30) < 0.4).astype(float), 1.0
    problem = naive_all_pairs.exact_problem((9, 7), [stream], strength=0.1, teacher=0.1, decays=(0.5, 0.5))
    P, Q = rows_of(rng, rank=3, scale=0.3)
    solved_P, solved_Q = P.copy(), Q.copy()
    for _ in range(4000):
        all_pairs.descend(problem, P, Q)
    ready = als.prepare(problem, bias_ridge=0.0)
    for _ in range(300):
        als.sweep_rows(ready, solved_P, solved_Q)
    assert als.objective(ready, solved_P, solved_Q) == pytest.approx(als.objective(ready, P, Q), rel=1e-8)
    np.testing.assert_allclose(solved_P @ solved_Q.T, P @ Q.T, atol=1e-4)


@pytest.mark.parametrize("shape", [(211, 97), pytest.param((9001, 30), marks=pytest.mark.needs_jit)])
def test_result_does_not_depend_on_the_number_of_threads(shape):
    """Rows and objective have the same bits; the larger shape has several chunks of rows."""
    found = []
    for threads in (1, 2, 3):
        problem, _, P, Q = spread(4, "constant", rank=6, dtype=np.float32, shape=shape)
        solver = als.RowSolver(problem, Extended(P, Q), threads)
        losses = [solver.step(number) for number in range(3)]
        found.append((losses, P.tobytes(), Q.tobytes()))
    assert found[0] == found[1] == found[2]


def test_every_row_is_solved_when_lanes_take_several_turns():
    """There are more rows than all lanes take in one turn."""
    shape = (35 * als.LANES, 3)
    problem, (terms, wd_u, _), P, Q = spread(7, "constant", rank=1, shape=shape)
    start = Q.copy()
    als.solve_rows(als.prepare(problem).users, P, Q, problem.C, problem.teacher_Q)
    assert scores_close(P, Q, naive_als.solve_users(terms, P, start, wd_u, als.BIAS_RIDGE), start)


def test_a_row_without_pairs_weight_and_decay_is_0():
    """Without pairs, weight, decay and ridge the system is empty; its solution is defined as 0."""
    own = {"A": np.array([1.0, 0.0]), "C": np.ones(3)}
    problem = naive_all_pairs.exact_problem((2, 3), [([0], [1], [1.0], 1.0)], strength=1.0, **own)
    P, Q = rows_of(np.random.default_rng(0), (2, 3), rank=2)
    with np.errstate(all="raise"):
        als.solve_rows(als.prepare(problem).users, P, Q, problem.C, problem.teacher_Q, bias_ridge=0.0)
    assert P[1].tolist() == [0.0, 0.0, 0.0, 1.0] and P[0, :-1].all()


def test_degenerate_rows():
    """A user without feedback, one who has seen every item, and one whose pairs only count as seen."""
    shape, rng = (3, 5), np.random.default_rng(0)
    items = np.arange(5)
    seen = (np.full(5, 1), items, np.array([1.0, 0, 1, 0, 0]), 1.0)
    marked = (np.full(5, 2), items, np.ones(5), 0.0)
    options = {"strength": 0.5, "A": np.ones(3), "C": np.ones(5)}
    problem = naive_all_pairs.exact_problem(shape, [seen, marked], teacher=0.2, decays=(1.0, 1.0), **options)
    terms = naive_all_pairs.dense_terms(shape, [seen, marked], t=0.2, **options)
    for rank in (2, 8):
        P, Q = rows_of(rng, shape, rank)
        start = Q.copy()
        als.solve_rows(als.prepare(problem).users, P, Q, problem.C, problem.teacher_Q)
        expected = naive_als.solve_users(terms, P, start, problem.wd_u, als.BIAS_RIDGE)
        assert scores_close(P, Q, expected, start)
        np.testing.assert_allclose(P[2, :-1], 0.0, atol=1e-9)  # the third has no gradient except that of the ridge


# Exposure


def small_log():
    from scipy.sparse import coo_matrix

    S_c = coo_matrix((np.ones(4), ([0, 0, 0, 1], [0, 1, 2, 0])), shape=(4, 3))
    S_t = coo_matrix(([1.0, 0.0, 0.0, 1.0], ([1, 2, 3, 3], [1, 1, 1, 2])), shape=(4, 3))
    return Partition.from_matrices(S_c, S_t)


def test_row_weights_are_powers_of_counts_of_mean_one():
    A, C = exposure_weights(small_log(), (0.5, 2))
    np.testing.assert_allclose(A, np.sqrt([4, 2, 1, 1]) / np.sqrt([4, 2, 1, 1]).mean())
    np.testing.assert_allclose(C, np.array([9, 4, 4]) / np.mean([9, 4, 4]))
    for weights in exposure_weights(small_log(), 0):
        assert (weights == 1).all()


def test_item_rates_are_drawn_towards_the_base_rate():
    rates, base_rate = item_rates(small_log().triplets("S_t"), 3)
    assert base_rate == 0.5
    np.testing.assert_allclose(rates, [20 / 40, (1 + 20) / 43, (1 + 20) / 41])
    np.testing.assert_allclose(shifted_rates(small_log(), 0.1).values, rates - 0.4)


def test_weights_of_rows_and_the_scale_of_their_noise():
    c = Observed("c", np.array([0, 0, 1]), np.array([0, 1, 1]), np.zeros(3), np.array([1.0, 2.0, 5.0]))
    rows = np.array([0.5, 1.5]), np.array([1.2, 0.8])
    d = Unobserved(UnobservedPairs(2, 2), 1, 0.1, row_weights=rows)
    of_users, of_items = total_weights([c], d)
    np.testing.assert_allclose(of_users, [3.1, 5.3])
    np.testing.assert_allclose(of_items, [1.24, 7.16])
    assert noise_scale(of_users.sum(), (2, 3)) == pytest.approx(np.sqrt(4.2) + np.sqrt(2.8))


def test_rows_of_an_unweighted_term_d_weigh_gamma_a_pair():
    c = Observed("c", np.array([0]), np.array([2]), np.zeros(1), np.array([5.0]))
    of_users, of_items = total_weights([c], Unobserved(UnobservedPairs(2, 3), 1, 0.1))
    np.testing.assert_allclose(of_users, [5.3, 0.3])
    np.testing.assert_allclose(of_items, [0.2, 0.2, 5.2])


def test_weights_of_the_log_count_in_item_rates():
    S_t = small_log().triplets("S_t")._replace(weights=np.array([2.0, 1.0, 1.0, 4.0], np.float32))
    rates, base_rate = item_rates(S_t, 3, prior=10.0)
    assert base_rate == 0.75
    np.testing.assert_allclose(rates, [0.75, (2 + 7.5) / 14, (4 + 7.5) / 14])


def test_one_power_is_for_both_sides_and_two_are_for_users_and_items():
    assert _check.powers("exposure_power", 0.5) == 0.5 and exposure_powers(0.5) == (0.5, 0.5)
    for given in ((0.5, 2), [0.5, 2]):
        assert _check.powers("exposure_power", given) == (0.5, 2.0)
    assert exposure_powers((0.5, 2.0)) == (0.5, 2.0)


@pytest.mark.parametrize("power", [-1, float("nan"), "much", (1, 2, 3), (1,), (1, -1), (-1, 1)])
def test_refuses_a_wrong_exposure_power(power):
    with pytest.raises(InputError, match="exposure_power"):
        _check.powers("exposure_power", power)
