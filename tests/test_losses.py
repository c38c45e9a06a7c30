"""Losses: value and derivative against plain formulas, finite differences, and the properties that LOSSES declares."""

import numpy as np
import pytest

from dubnb import losses
from dubnb.losses import LOSSES, TRAINABLE
from tests import naive

SCORES = np.array([-100.0, -20.0, -5.0, -1.3, -0.2, 0.0, 0.3, 1.7, 6.0, 20.0, 100.0])
TARGETS = np.array([-0.99, -0.4, 0.0, 0.37, 0.5, 1.0, 1.6])
GRID = [(s, y) for s in SCORES for y in TARGETS]
SIGMOID_STEP = 2.0**-23  # of float32 just below 1


def evaluate(function, code, dtype):
    return np.array([function(code, dtype(s), dtype(y)) for s, y in GRID], dtype=np.float64)


def test_every_loss_has_a_twin():
    assert set(naive.LOSSES) == set(LOSSES)
    assert len({loss.code for loss in LOSSES.values()}) == len(LOSSES)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_value_equals_twin(name, dtype):
    expected = np.array([naive.LOSSES[name][0](np.float64(s), np.float64(dtype(y))) for s, y in GRID])
    found = evaluate(losses.loss_value, LOSSES[name].code, dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=4 * SIGMOID_STEP)


@pytest.mark.parametrize("name", TRAINABLE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_derivative_equals_twin(name, dtype):
    expected = np.array([naive.LOSSES[name][1](np.float64(s), np.float64(dtype(y))) for s, y in GRID])
    found = evaluate(losses.derivative, LOSSES[name].code, dtype)
    # where p equals y, the sign, or the factor p - y, depends on the last bit
    met = np.array([abs(naive.sigmoid(s) - y) < 1e-6 for s, y in GRID]) & (name == "mae")
    np.testing.assert_allclose(found[~met], expected[~met], rtol=1e-5, atol=4 * SIGMOID_STEP)
    assert (abs(found[met]) <= 0.25).all()


@pytest.mark.needs_jit  # without the JIT the constants keep everything in float32
@pytest.mark.parametrize("name", TRAINABLE)
def test_derivative_equals_finite_differences(name):
    code, step = LOSSES[name].code, 1e-6
    for s, y in GRID:
        if abs(s) > 10 or (name == "mae" and abs(naive.sigmoid(s) - y) < 1e-3):
            continue
        slope = (losses.loss_value(code, s + step, y) - losses.loss_value(code, s - step, y)) / (2 * step)
        assert losses.derivative(code, s, y) == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_mae_derivative_is_zero_where_prediction_meets_target():
    assert losses.derivative(LOSSES["mae"].code, np.float32(0.0), np.float32(0.5)) == 0.0


@pytest.mark.parametrize("name", TRAINABLE)
def test_nan_and_inf_stay_visible(name):
    code = LOSSES[name].code
    assert np.isnan(losses.loss_value(code, np.float32(np.nan), np.float32(1.0)))
    assert np.isnan(losses.derivative(code, np.float32(np.nan), np.float32(1.0))) or name == "mae"


@pytest.mark.parametrize("s", [-1e4, -100.0, -17.0, 0.0, 17.0, 100.0, 1e4])
def test_sigmoid_is_stable(s):
    with np.errstate(all="raise"):
        found = losses.sigmoid(np.float32(s))
    assert 0.0 <= found <= 1.0
    assert found == pytest.approx(float(naive.sigmoid(s)), rel=1e-6, abs=1e-37)


def loss_between(name, target, prediction):
    """l(target, prediction) in the paper's notation: both are predictions."""
    score = prediction if not LOSSES[name].link else np.log(prediction / (1 - prediction))
    return losses.loss_value(LOSSES[name].code, np.float64(score), np.float64(target))


def middle_numbers(rng, n):
    return rng.uniform(0.02, 0.98, n)


def holds_everywhere(bound, name, n=3000):
    rng = np.random.default_rng(5)
    predictions = middle_numbers(rng, n)
    labels = rng.integers(0, 2, n).astype(float)
    return all(bound(name, c, b, a) for c, b, a in zip(labels, middle_numbers(rng, n), predictions, strict=True))


def triangle(name, c, b, a):
    """l(c, a) <= l(b, a) + l(c, b)"""
    return loss_between(name, c, a) <= loss_between(name, b, a) + loss_between(name, c, b) + 1e-6


def separability(name, c, b, a):
    """l(c, a) <= l(b, a) + l(c - b, a)"""
    return loss_between(name, c, a) <= loss_between(name, b, a) + loss_between(name, c - b, a) + 1e-6


@pytest.mark.parametrize("name", LOSSES)
def test_triangle_where_declared(name):
    assert holds_everywhere(triangle, name) == LOSSES[name].triangle


@pytest.mark.parametrize("name", TRAINABLE)
def test_separability_where_declared(name):
    found = holds_everywhere(separability, name)
    assert found if LOSSES[name].separable else True
    if name in ("mse", "squared"):
        assert not found


def test_bce_is_separable_for_any_real_labels():
    rng = np.random.default_rng(1)
    for c, b, s in rng.normal(0, 3, (2000, 3)):
        whole, first, rest = (losses.loss_value(LOSSES["bce"].code, s, y) for y in (c, b, c - b))
        assert whole <= first + rest + 1e-9


def test_squared_errors_are_separable_for_binary_labels_only():
    """SPEC's counterexample: c = 1, b = .5, a = 0 gives 1 > .25 + .25."""
    for name, low in (("squared", 0.0), ("mse", -60.0)):  # scores whose prediction is 0
        code = LOSSES[name].code
        one, half = losses.loss_value(code, low, 1.0), losses.loss_value(code, low, 0.5)
        assert one == pytest.approx(1.0) and half == pytest.approx(0.25)
        assert one > half + half
        assert not LOSSES[name].separable
        for c in (0.0, 1.0):
            for b in (0.0, 1.0):
                for s in (-3.0, -0.2, 0.4, 2.0):
                    whole, first, rest = (losses.loss_value(code, s, y) for y in (c, b, c - b))
                    assert whole <= first + rest + 1e-12


@pytest.mark.parametrize("name", LOSSES)
def test_symmetric_flag(name):
    rng = np.random.default_rng(2)
    pairs = rng.uniform(0.02, 0.98, (200, 2))
    symmetric = all(loss_between(name, p, q) == pytest.approx(loss_between(name, q, p), abs=1e-6) for p, q in pairs)
    assert symmetric == LOSSES[name].symmetric


@pytest.mark.parametrize("name", LOSSES)
def test_affine_flag(name):
    """Two samples of a pair can be merged into one if dl/ds is affine in the target."""
    affine = name in TRAINABLE
    for s in (-2.0, 0.3, 1.5) if affine else ():
        low, middle, high = (float(losses.derivative(LOSSES[name].code, s, y)) for y in (-0.5, 0.25, 1.0))
        affine = affine and middle == pytest.approx((low + high) / 2, abs=1e-6)
    assert affine == LOSSES[name].affine


def test_links_and_equations():
    assert {name: (loss.link, loss.equation) for name, loss in LOSSES.items()} == {
        "bce": (True, 2),
        "mse": (True, 2),
        "squared": (False, 2),
        "mae": (True, 1),
        "zero_one": (True, 0),
    }
    assert TRAINABLE == ("bce", "mse", "squared", "mae")


def test_equations_follow_the_properties():
    for name, loss in LOSSES.items():
        assert (name in TRAINABLE) == (loss.equation > 0)
        assert loss.equation != 1 or loss.triangle  # Eq. 1 is minimised only where it is proven
        assert not loss.separable or loss.equation == 2
    assert "zero_one" not in TRAINABLE


@pytest.mark.parametrize("link", [True, False])
def test_predict_in_place(link):
    scores = np.array([-100.0, -1.0, 0.0, 2.0], dtype=np.float32)
    expected = naive.sigmoid(scores) if link else scores.copy()
    found = losses.predict(scores, link)
    assert found is scores or np.shares_memory(found, scores)
    np.testing.assert_allclose(scores, expected, rtol=1e-6, atol=1e-37)
