"""The item-item solver against its dense twin: operator, right-hand side, minimum, scores, memory, threads."""

import numpy as np
import pytest

from dubnb import Partition
from dubnb._check import InputError
from dubnb.background import WorkPool
from dubnb.objective import item_item
from dubnb.objective import terms as bound
from dubnb.objective.all_pairs import exact_problem
from dubnb.objective.terms import ConstantTeacher, shifted_rates
from tests import naive_item_item

N_USERS, N_ITEMS, GAMMA, POWER, LAM = 9, 7, 0.3, (1.0, 0.75), 0.8


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of items, as on a larger log."""
    monkeypatch.setattr(item_item, "BLOCK", 3)


def tiny(seed=0, item_teacher=True):
    """(problem, inputs, the twin's dense arguments) of a random log; the last user has no pair in S_c."""
    rng = np.random.default_rng(seed)
    place = rng.permutation(N_USERS * N_ITEMS)
    users, items = np.divmod(place, N_ITEMS)
    labels = rng.integers(0, 2, len(place)).astype(np.float32)
    biased = np.flatnonzero((np.arange(len(place)) < 30) & (users < N_USERS - 1))
    cuts = {"S_c": biased, "S_t": np.arange(30, 42), "S_va": np.arange(42, 48), "S_te": np.arange(48, 54)}
    data = Partition({part: (users[at], items[at], labels[at]) for part, at in cuts.items()}, (N_USERS, N_ITEMS))
    teacher = shifted_rates(data, 0.1) if item_teacher else ConstantTeacher(0.05)
    d = bound.term_d(data, GAMMA, teacher, exposure_power=POWER)
    observed = [bound.term_c(data), bound.term_a(data).times(2.0)]
    problem = exact_problem(observed, d, decays=(0.0, 0.0), dtype=np.float64)
    S_c = data.triplets("S_c")
    inputs = item_item.input_rows(S_c.users, S_c.items, S_c.labels, N_USERS, len(S_c.users) / N_USERS)
    y, w, seen, chosen = (np.zeros((N_USERS, N_ITEMS)) for _ in range(4))
    for term, weight in zip(observed, (1.0, 2.0), strict=True):
        y[term.users, term.items], w[term.users, term.items] = term.targets, weight
        seen[term.users, term.items] = 1
    chosen[S_c.users, S_c.items] = 1
    t = np.outer(*(side[:, 0] for side in teacher.low_rank((N_USERS, N_ITEMS))))
    X = naive_item_item.inputs(chosen > 0, y)
    a, C = GAMMA * problem.A, problem.C
    pen = naive_item_item.penalties(X, seen > 0, w, a, C, LAM)
    return problem, inputs, (X, seen > 0, w, y, a, C, t, pen)


def unknowns(seed):
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(N_ITEMS, N_ITEMS + 1))
    np.fill_diagonal(B, 0)
    return B, rng.normal(size=N_USERS)


def test_inputs_are_those_of_the_twin():
    _, inputs, dense = tiny()
    X = np.zeros((N_USERS, N_ITEMS))
    X[np.repeat(np.arange(N_USERS), np.diff(inputs.indptr)), inputs.items] = inputs.values
    np.testing.assert_allclose(X, dense[0][:, :-1], rtol=1e-6)


@pytest.mark.parametrize("item_teacher", [True, False])
def test_operator_and_right_hand_side_are_the_gradient_of_the_objective(item_teacher):
    """Half the objective's gradient is operator - right-hand side, by central differences at a random point."""
    problem, inputs, dense = tiny(1, item_teacher)
    system = item_item.LinearSystem(problem, inputs, LAM)
    np.testing.assert_allclose(system.D[:, :-1] + LAM, dense[-1][:, :-1], rtol=1e-5)
    B, c = unknowns(2)
    G = np.empty(B.shape, np.float32)
    g = system.multiply(B.astype(np.float32), c, G)
    R, r = system.right_side()
    step = 1e-5
    for place in np.ndindex(B.shape):
        if place[0] == place[1]:
            assert G[place] == R[place] == 0
            continue
        ends = []
        for sign in (1, -1):
            moved = B.copy()
            moved[place] += sign * step
            ends.append(naive_item_item.objective(moved, c, *dense))
        assert (ends[0] - ends[1]) / (4 * step) == pytest.approx(G[place] - R[place], abs=2e-4)
    for u in range(N_USERS):
        moved = [c + sign * step * (np.arange(N_USERS) == u) for sign in (1, -1)]
        ends = [naive_item_item.objective(B, each, *dense) for each in moved]
        assert (ends[0] - ends[1]) / (4 * step) == pytest.approx(g[u] - r[u], abs=2e-4)


@pytest.mark.parametrize("seed", range(3))
def test_many_steps_end_at_the_dense_least_squares_solution(seed):
    problem, inputs, dense = tiny(seed)
    B, c = naive_item_item.minimum(*dense)
    model = item_item.solve_item_item(problem, inputs, LAM, steps=150)
    np.testing.assert_allclose(model.coefficients.T, B, atol=2e-5)
    np.testing.assert_allclose(model.constants, c, atol=2e-5)


def test_twelve_steps_are_enough():
    """The objective is within 1e-4 of its minimum, where zero is far above."""
    problem, inputs, dense = tiny(3)
    least = naive_item_item.objective(*naive_item_item.minimum(*dense), *dense)
    model = item_item.solve_item_item(problem, inputs, LAM)
    reached = naive_item_item.objective(model.coefficients.T.astype(float), model.constants.astype(float), *dense)
    assert least <= reached <= 1.0001 * least


def test_scores_of_pairs_and_of_rows_are_those_of_the_formula():
    problem, inputs, dense = tiny(4)
    model = item_item.solve_item_item(problem, inputs, LAM)
    expected = model.constants[:, None] + dense[0] @ model.coefficients
    users, items = (side.ravel() for side in np.indices(expected.shape))
    np.testing.assert_allclose(model.score_pairs(users, items), expected.ravel(), atol=1e-5)
    np.testing.assert_allclose(model.score_rows(np.array([4, 0])), expected[[4, 0]], atol=1e-5)
    assert model.finite()


def test_a_new_users_constant_is_the_best_one_given_the_coefficients():
    """The objective has no slope in c_u, also for users that the coefficients were not trained on."""
    problem, inputs, dense = tiny(5)
    trained = item_item.solve_item_item(*tiny(6)[:2], LAM)
    c = item_item.user_constants(problem, inputs, trained.coefficients).astype(float)
    B = trained.coefficients.T.astype(float)
    for u in range(N_USERS):
        ends = [naive_item_item.objective(B, c + s * 1e-3 * (np.arange(N_USERS) == u), *dense) for s in (1, -1)]
        assert (ends[0] - ends[1]) / 2e-3 == pytest.approx(0, abs=1e-4)


def test_threads_change_no_byte():
    problem, inputs, _ = tiny(7)
    one, two = (item_item.solve_item_item(problem, inputs, LAM, pool=WorkPool(threads)) for threads in (1, 2))
    assert one.coefficients.tobytes() == two.coefficients.tobytes()
    assert one.constants.tobytes() == two.constants.tobytes()


def test_too_many_items_are_refused(monkeypatch):
    with pytest.raises(InputError, match="at most 12,000"):
        item_item.check_size(12_001)
    monkeypatch.setattr("dubnb._memory.available", lambda: 1_000_000)
    with pytest.raises(InputError, match=r"dub-i with 500 items needs 6\.01 MB"):
        item_item.check_size(500)
