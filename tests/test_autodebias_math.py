"""AutoDebias' closed-form gradients against dense brute force, finite differences and autograd."""

import numpy as np
import pytest

from dubnb.objective import all_pairs, autodebias
from tests import naive_all_pairs as naive
from tests.exact_tools import close, dense_slopes, rows_of, slopes

SHAPE = (8, 6)
SETTINGS = (0.3, 0.7, "tanh")  # alpha, wd, activation
GROUPS = autodebias.Phi._fields


def triplets(rng, count, shape=SHAPE):
    keys = np.sort(rng.choice(shape[0] * shape[1], count, replace=False))  # in CSR order, as a Partition has them
    return keys // shape[1], keys % shape[1], rng.choice([-1.0, 1.0], count), rng.uniform(0.5, 2.0, count)


def case(seed, settings=SETTINGS, shape=SHAPE, dtype=np.float64):
    """(S_c, S_t, base, phi, P, Q) with phi far from its start, so that every factor matters."""
    rng = np.random.default_rng(seed)
    S_c, S_t = triplets(rng, 15, shape), triplets(rng, 7, shape)  # some users and items are not in S_t
    base = autodebias.make_base(shape, S_c, *settings)
    sizes = [len(group) for group in autodebias.init_phi(*shape, seed=0)]
    phi = autodebias.Phi(*(rng.normal(0, 1.5, size) for size in sizes))
    P, Q = (rows.astype(dtype) for rows in rows_of(rng, shape))
    return S_c, S_t, base, phi, P, Q


def dense_steps(S_c, phi, P, Q, settings=SETTINGS):
    alpha, wd, activation = settings
    return naive.step_sizes(naive.autodebias_terms(SHAPE, S_c, phi, alpha, activation), P, Q, wd, wd)


@pytest.mark.parametrize("activation", autodebias.ACTIVATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_base_objective_gradient_and_steps_are_those_of_brute_force(seed, activation):
    alpha, wd, _ = SETTINGS
    S_c, _, base, phi, P, Q = case(seed, (alpha, wd, activation))
    terms = naive.autodebias_terms(SHAPE, S_c, phi, alpha, activation)
    problem = autodebias.base_problem(base, phi, np.float64)
    assert all_pairs.loss(problem, P, Q) == pytest.approx(naive.loss(terms, P, Q, wd, wd), rel=1e-10)
    for found, expected in zip(slopes(problem, P, Q), dense_slopes((terms, wd, wd), P, Q), strict=True):
        assert close(found, expected)


@pytest.mark.parametrize("activation", autodebias.ACTIVATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_meta_gradient_is_the_dense_chain_rule(seed, activation):
    settings = (*SETTINGS[:2], activation)
    S_c, S_t, base, phi, P, Q = case(seed, settings)
    etas = dense_steps(S_c, phi, P, Q, settings)
    found, J = autodebias.meta_gradient(base, phi, P, Q, S_t)
    expected_J = naive.look_ahead_loss(SHAPE, S_c, S_t, phi, P, Q, etas, settings)
    assert pytest.approx(expected_J, rel=1e-10) == J
    expected = naive.meta_gradient(SHAPE, S_c, S_t, phi, P, Q, etas, settings)
    for name in GROUPS:
        assert close(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("name", GROUPS)
def test_meta_gradient_is_the_finite_difference_with_frozen_steps(name):
    S_c, S_t, base, phi, P, Q = case(11)
    etas = dense_steps(S_c, phi, P, Q)
    found = getattr(autodebias.meta_gradient(base, phi, P, Q, S_t)[0], name)
    step, expected = 1e-5, []
    for k in range(len(found)):
        sides = []
        for move in (step, -step):
            group = getattr(phi, name).copy()
            group[k] += move
            moved = phi._replace(**{name: group})
            sides.append(naive.look_ahead_loss(SHAPE, S_c, S_t, moved, P, Q, etas, SETTINGS))
        expected.append((sides[0] - sides[1]) / (2 * step))
    assert np.abs(expected).max() > 1e-4
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_float32_follows_float64():
    shape = (50, 30)
    results = []
    for dtype in (np.float64, np.float32):
        _, S_t, base, phi, P, Q = case(5, shape=shape, dtype=dtype)
        results.append(autodebias.meta_gradient(base, phi, P, Q, S_t)[0])
    for name in GROUPS:
        assert close(getattr(results[1], name), getattr(results[0], name), 1e-4), name


def test_phi_step_is_adam_with_coupled_decay():
    phi, rng = autodebias.init_phi(5, 4, seed=1), np.random.default_rng(0)
    gradients = [autodebias.Phi(*(rng.normal(size=len(group)) for group in phi)) for _ in range(3)]
    start, adam = autodebias.Phi(*(group.copy() for group in phi)), autodebias.init_adam(phi)
    for gradient in gradients:
        autodebias.phi_step(phi, gradient, adam)
    for n, name in enumerate(GROUPS):
        expected = naive.adam(start[n], [gradient[n] for gradient in gradients], *autodebias.RATES[name])
        np.testing.assert_allclose(phi[n], expected, rtol=1e-12, atol=1e-15)


def test_one_coordinate_s_step_is_adam_s():
    """The step of one GPU thread; on the CPU a group steps as a whole."""
    gradients, lr, wd = [0.7, -2.0, 0.3], 0.05, 0.2
    value, first, second = 1.5, 0.0, 0.0
    for step, gradient in enumerate(gradients, start=1):
        value, first, second = autodebias.adam_step(value, gradient, first, second, step, lr, wd)
    assert value == pytest.approx(naive.adam(np.float64(1.5), gradients, lr, wd), rel=1e-12)


def test_the_look_ahead_has_the_rows_of_S_t():
    """Users by their slots, -1 elsewhere; constants and items outside S_t have direction 0."""
    _, S_t, base, phi, P, Q = case(2)
    problem = autodebias.base_problem(base, phi, np.float64)
    scores = all_pairs.score_pairs(base.pairs, P, Q)
    found = autodebias.look_ahead(problem, P, Q, S_t, scores, all_pairs.grams(problem, P, Q))
    users = np.unique(S_t[0])
    assert found.users.tolist() == users.tolist() and 0 < len(users) < SHAPE[0]
    assert found.slot.tolist() == [users.tolist().index(u) if u in users else -1 for u in range(SHAPE[0])]
    assert found.DP.shape == (len(users), P.shape[1]) and found.DQ.shape == Q.shape
    assert found.DP[:, :-1].all() and not found.DP[:, -1].any() and not found.DQ[:, -2].any()
    untouched = np.setdiff1d(np.arange(SHAPE[1]), S_t[1])
    assert len(untouched) and not found.DQ[untouched].any()


def test_weights_start_from_those_of_the_rows():
    A, C = np.linspace(0.5, 2.0, 5), np.linspace(0.1, 3.0, 4)
    plain, weighed = autodebias.init_phi(5, 4, seed=1), autodebias.init_phi(5, 4, seed=1, row_weights=(A, C))
    for activation in autodebias.ACTIVATIONS:
        before, after = (autodebias.pair_weights(phi, activation) for phi in (plain, weighed))
        np.testing.assert_allclose(after.A, before.A * A)
        np.testing.assert_allclose(after.C, before.C * C)
        np.testing.assert_array_equal(after.user_1, before.user_1)


def test_the_positive_class_is_labels_above_0_by_default():
    users, items, labels = np.array([0, 0, 1]), np.array([0, 2, 1]), np.array([-1.0, 0.0, 0.5])
    S_c = users, items, labels, np.ones(3)
    assert autodebias.make_base((2, 3), S_c, 0.1, 1.0).classes.tolist() == [0, 0, 1]
    named = autodebias.make_base((2, 3), S_c, 0.1, (1.0, np.arange(3.0)), positive=np.array([True, False, False]))
    assert named.classes.tolist() == [1, 0, 0] and named.activation == "tanh"
    assert named.wd_u.tolist() == [1.0, 1.0] and named.wd_i.tolist() == [0.0, 1.0, 2.0]


def test_weight_groups_do_not_move_before_their_epoch():
    _, S_t, base, _, P, Q = case(0)
    phi = autodebias.init_phi(*SHAPE, seed=0)
    adam = autodebias.init_adam(phi)
    for number in range(3):
        before = autodebias.Phi(*(group.copy() for group in phi))
        autodebias.epoch(base, phi, adam, (P, Q), S_t, number, weights_from=2)
        assert (phi.mu != before.mu).all()
        moved = [bool((getattr(phi, name) != getattr(before, name)).any()) for name in autodebias.Phi._fields[:-1]]
        assert moved == [number == 2] * 6
    assert adam.steps.tolist() == [1] * 6 + [3]


def test_an_epoch_is_meta_gradient_then_phi_then_theta_with_the_new_phi():
    _, S_t, base, phi, P, Q = case(3)
    adam, other_adam = autodebias.init_adam(phi), autodebias.init_adam(phi)
    other = autodebias.Phi(*(group.copy() for group in phi)), P.copy(), Q.copy()
    objective, J = autodebias.epoch(base, phi, adam, (P, Q), S_t, number=20)
    gradient, expected_J = autodebias.meta_gradient(base, *other, S_t)
    autodebias.phi_step(other[0], gradient, other_adam)
    assert objective == pytest.approx(autodebias.base_step(base, *other), rel=1e-12)
    assert expected_J == J
    for found, expected in zip((*phi, P, Q), (*other[0], *other[1:]), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_init_phi_has_the_declared_scales_and_follows_its_seed():
    phi = autodebias.init_phi(20000, 8000, seed=3)
    for group, std in (
        (phi.a, 1e-2),
        (phi.a_prime, 1e-2),
        (phi.b, 2**0.5 / 8000**0.5),
        (phi.b_prime, 2**0.5 / 8000**0.5),
    ):
        assert group.std() == pytest.approx(std, rel=0.05)
    assert [len(group) for group in phi] == [20000, 8000, 2, 20000, 8000, 2, 3]
    assert np.abs(np.concatenate([phi.c, phi.c_prime, phi.mu])).max() < 6e-3
    assert not np.array_equal(phi.a, phi.a_prime)
    np.testing.assert_array_equal(phi.a, autodebias.init_phi(20000, 8000, seed=3).a)
    assert (phi.a != autodebias.init_phi(20000, 8000, seed=4).a).any()


def test_autodebias_learns_from_the_randomized_feedback():
    """S_c shows only what is liked; S_t says that most pairs are disliked: the imputation must turn negative."""
    rng = np.random.default_rng(0)
    shape = (30, 20)
    taste = rng.normal(size=shape[0])[:, None] * rng.normal(size=shape[1]) > 0.8
    users, items = np.nonzero(taste & (rng.random(shape) < 0.6))
    S_c = users, items, np.ones(len(users)), np.ones(len(users))
    keys = rng.choice(shape[0] * shape[1], 120, replace=False)
    S_t = keys // shape[1], keys % shape[1], np.where(taste.ravel()[keys], 1.0, -1.0), np.ones(120)
    base, phi = autodebias.make_base(shape, S_c, 0.1, 1.0), autodebias.init_phi(*shape, seed=0)
    adam = autodebias.init_adam(phi)
    P, Q = rows_of(rng, shape, scale=0.1)
    Js = [autodebias.epoch(base, phi, adam, (P, Q), S_t, number)[1] for number in range(80)]
    assert np.tanh(phi.mu[0]) < -0.5
    assert Js[-1] < 0.5 * Js[0]
    scores = P @ Q.T
    assert scores[taste].mean() > scores[~taste].mean() + 0.5
    assert (P[:, -1] == 1).all()
    assert (Q[:, -2] == 1).all()
