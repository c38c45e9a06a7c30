"""AutoDebias in mini-batches: the look-ahead's gradient against finite differences, for every backbone and loss."""

import numpy as np
import pytest

import dubnb
from dubnb.backbones import BACKBONES
from dubnb.backbones.mf import Stream
from dubnb.losses import LOSSES
from dubnb.objective import autodebias as meta
from dubnb.objective import autodebias as sampled
from tests import naive

N_USERS, N_ITEMS, N, M = 7, 6, 24, 9
ALPHA, LAM = 0.1, 1e-3
FAR = 50.0  # a look-ahead long enough to change J in float32


def make_streams(rng):
    rows = [rng.integers(0, n, size).astype(np.int32) for size in (N, M) for n in (N_USERS, N_ITEMS)]
    batch = Stream(*rows[:2], np.zeros(N, np.float32), np.ones(N, np.float32), rng.integers(0, 3, N).astype(np.uint8))
    S_t = Stream(*rows[2:], rng.integers(0, 2, M).astype(np.float32), np.ones(M, np.float32), np.zeros(M, np.uint8))
    return batch, S_t


def make_logged(rng):
    """The log's weights and targets; targets are between the labels, as with grades."""
    return sampled.Logged(rng.uniform(0.5, 2.0, N).astype(np.float32), rng.random(N).astype(np.float32))


def make_phi(rng):
    return meta.Phi(*(group + 0.3 * rng.standard_normal(group.shape) for group in meta.init_phi(N_USERS, N_ITEMS, 0)))


def weights_under(phi):
    return sampled.sampled_weights(phi, ALPHA, 3 * N, N)


def mean_loss(name, scores, labels):
    if name == "bce":
        return (np.logaddexp(0, scores) - labels * scores).mean()
    predictions = scores if name == "squared" else 1 / (1 + np.exp(-scores))
    return ((predictions - labels) ** 2).mean()


@pytest.mark.parametrize("loss_name", ["bce", "mse", "squared"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_meta_gradient_is_the_derivative_of_the_look_ahead(backbone, loss_name, monkeypatch):
    monkeypatch.setattr(sampled, "LOOK_AHEAD", FAR if loss_name != "squared" else 1.0)
    rng = np.random.default_rng(1)
    loss, model = LOSSES[loss_name], BACKBONES[backbone].new((N_USERS, N_ITEMS), 3, 0, "c")
    batch, S_t = make_streams(rng)
    phi, logged = make_phi(rng), make_logged(rng)

    def J(phi):
        sampled.weigh_batch(batch, logged, weights_under(phi))
        gradient = model.gradient(batch._replace(terms=np.zeros(N, np.uint8)), loss, LAM)
        ahead = model.plus(-sampled.LOOK_AHEAD, gradient)
        return mean_loss(loss_name, ahead.score_pairs(S_t.users, S_t.items).astype(np.float64), S_t.targets)

    sampled.weigh_batch(batch, logged, weights_under(phi))
    found = sampled.sampled_meta_gradient(model.trainer(64), batch, logged, S_t, phi, weights_under(phi), loss, LAM)
    for name, group in zip(meta.Phi._fields, phi, strict=True):
        expected = np.zeros_like(group)
        for k, value in enumerate(group.copy()):
            group[k] = value + 0.05
            above = J(phi)
            group[k] = value - 0.05
            expected[k] = (above - J(phi)) / 0.1
            group[k] = value
        assert np.abs(expected).max() > 1e-5, name
        np.testing.assert_allclose(getattr(found, name), expected, atol=1e-2 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("options", [{}, {"hidden": (5, 4), "activation": "sigmoid"}])
def test_meta_gradient_agrees_with_the_exact_one(options):
    """To 1e-5 of its largest number in every group: float64 twins, differenced where that costs 1e-9."""
    rng = np.random.default_rng(5)
    model = BACKBONES["ncf"].new((N_USERS, N_ITEMS), 3, 0, "c", **options)
    (batch, S_t), phi, logged = make_streams(rng), make_phi(rng), make_logged(rng)
    params, shape = naive.parameters(model)
    sampled.weigh_batch(batch, logged, weights_under(phi))
    found = sampled.sampled_meta_gradient(
        model.trainer(64), batch, logged, S_t, phi, weights_under(phi), LOSSES["bce"], LAM
    )

    def J(phi):
        w, y, seen = weights_under(phi), np.minimum(batch.terms, 1), batch.terms < 2
        AC = w.weights.A[batch.users] * w.weights.C[batch.items]
        w1 = (
            seen * logged.weights * w.weights.user_1[batch.users] * w.weights.item_1[batch.items] * w.weights.class_1[y]
        )
        w2 = np.where(seen, w.observed * w.weights.E[1], w.unobserved * w.weights.E[0]) * AC
        m = np.where(seen, w.weights.M[1 + y], w.weights.M[0])
        weighed = batch._replace(weights=w1 + w2, targets=(w1 * logged.targets + w2 * m) / (w1 + w2))
        gradient = naive.gradient(params, shape, weighed, "bce", LAM)
        ahead = {name: array - sampled.LOOK_AHEAD * gradient[name] for name, array in params.items()}
        return mean_loss("bce", naive.scores(ahead, shape, S_t.users, S_t.items), S_t.targets)

    for name, group in zip(meta.Phi._fields, phi, strict=True):
        expected = np.zeros_like(group)
        for k, value in enumerate(group.copy()):
            group[k] = value + 1e-3
            above = J(phi)
            group[k] = value - 1e-3
            expected[k] = (above - J(phi)) / 2e-3
            group[k] = value
        np.testing.assert_allclose(
            getattr(found, name), expected, atol=1e-5 * np.abs(expected).max(), rtol=0, err_msg=name
        )


def test_merged_targets_have_the_gradient_of_both():
    """w1 l(s, r) + alpha w2 l(s, M_y) and the merged sample have the same derivative, for each affine loss."""
    rng = np.random.default_rng(2)
    batch, _ = make_streams(rng)
    logged = make_logged(rng)
    sampled.weigh_batch(batch, logged, weights_under(make_phi(np.random.default_rng(2))))
    phi = make_phi(np.random.default_rng(2))
    weights = weights_under(phi).weights
    s = rng.standard_normal(N)
    p = 1 / (1 + np.exp(-s))
    slopes = {"bce": lambda y: p - y, "mse": lambda y: 2 * (p - y) * p * (1 - p), "squared": lambda y: 2 * (s - y)}
    y, observed = batch.terms, batch.terms < 2
    w1 = weights.user_1[batch.users] * weights.item_1[batch.items] * weights.class_1[np.minimum(y, 1)]
    w1 *= logged.weights * observed
    AC = weights.A[batch.users] * weights.C[batch.items]
    w2 = np.where(observed, ALPHA * AC * weights.E[1], ALPHA * 3 * AC * weights.E[0])
    m = np.where(observed, weights.M[1 + np.minimum(y, 1)], weights.M[0])
    for name, slope in slopes.items():
        expected = w1 * slope(logged.targets) + w2 * slope(m)
        np.testing.assert_allclose(batch.weights * slope(batch.targets), expected, rtol=1e-4, atol=1e-6, err_msg=name)


def weighed_log(weight):
    """A small log whose positives in S_c and S_t have this weight."""
    import pandas as pd

    rng = np.random.default_rng(3)
    keys = rng.permutation(12 * 10)[:90]
    frame = pd.DataFrame({"user": keys // 10, "item": keys % 10, "label": rng.integers(0, 2, 90)})
    frame["weight"] = np.where(frame["label"] == 1, weight, 1.0)
    return dubnb.Partition.from_frames(frame[:60], {"S_t": frame[60:]}, weight="weight")


@pytest.mark.filterwarnings("ignore:S_va has 0 pairs")
@pytest.mark.parametrize("solver", ["exact", "sampled"])
@pytest.mark.needs_jit
def test_weights_of_the_log_count(solver):
    def scores(weight):
        model = dubnb.AutoDebias(solver=solver, loss="squared", rank=2, lam=1e-3, epochs=60, lr=1e-2)
        return model.fit(weighed_log(weight)).decision_function(np.arange(12)[:, None], np.arange(10)).mean()

    assert scores(10.0) > scores(1.0) + 0.05


@pytest.mark.filterwarnings("ignore:S_va has 0 pairs")
@pytest.mark.needs_jit
def test_without_imputed_pairs_their_loss_is_0():
    model = dubnb.AutoDebias(solver="sampled", alpha=0.0, rank=2, epochs=2).fit(weighed_log(1.0))
    assert (model.history_["loss_d"] == 0).all()


@pytest.mark.parametrize("params", [{"solver": "exact"}, {"solver": "sampled"}])
def test_theory_weights_are_refused(params):
    with pytest.raises(dubnb.InputError, match="weighting"):
        dubnb.AutoDebias(weighting="theory", **params).resolved_params()


@pytest.mark.parametrize("backbone", BACKBONES)
def test_derivatives_use_a_trainers_scratch_space_and_leave_it_clean(backbone):
    rng = np.random.default_rng(4)
    model, (_, S_t) = BACKBONES[backbone].new((N_USERS, N_ITEMS), 3, 0, "c"), make_streams(rng)
    room, fresh = model.trainer(N), model.trainer(N)
    for _ in range(2):
        found = model.gradient(S_t, LOSSES["bce"], LAM, room).arrays()
        for name, expected in model.gradient(S_t, LOSSES["bce"], LAM).arrays().items():
            np.testing.assert_array_equal(found[name], expected, err_msg=name)
        direction = model.gradient(S_t, LOSSES["bce"], LAM)
        pairs = model.tangent(direction, S_t.users, S_t.items, room), model.tangent(direction, S_t.users, S_t.items)
        np.testing.assert_array_equal(*pairs)
    for trainer in (room, fresh):
        trainer.epoch(S_t, 1, LOSSES["bce"], 1e-2, LAM)
    for name, expected in fresh.weights().arrays().items():
        np.testing.assert_array_equal(room.weights().arrays()[name], expected, err_msg=name)


@pytest.mark.filterwarnings("ignore:S_va has 0 pairs")
@pytest.mark.parametrize("every", [1, 3, 100])
def test_meta_every_sets_the_schedule_of_look_aheads(every, monkeypatch):
    """120 samples in batches of 16 are 8 batches; phi's steps are longer in proportion as they are rarer."""
    steps = []
    monkeypatch.setattr(meta, "phi_step", lambda phi, gradient, adam, moves, rates: steps.append(rates["mu"][0]))
    model = dubnb.AutoDebias(solver="sampled", loss="bce", rank=2, epochs=2, batch_size=16, meta_every=every)
    model.fit(weighed_log(1.0))
    assert len(steps) == 2 * -(-8 // every)
    assert steps == pytest.approx([1e-2 * every] * len(steps))
