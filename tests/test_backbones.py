"""Backbones: scores, gradients (finite differences over the registries) and whole epochs against plain NumPy twins."""

from types import SimpleNamespace

import numpy as np
import pytest

from dubnb import losses
from dubnb import stream as streams
from dubnb._check import InputError
from dubnb.backbones import BACKBONES, adam
from dubnb.backbones import embedding as emb
from dubnb.backbones.ncf import ACTIVATIONS, NCF
from dubnb.backbones.network import SAMPLES
from dubnb.losses import LOSSES, TRAINABLE
from tests import naive

N_USERS, N_ITEMS, RANK = 6, 5, 3
NEW_WEIGHT = 1.0 - adam.BETA_1  # Adam's first moment after its first step is this times the gradient


def new(backbone, seed=0, n_users=N_USERS, n_items=N_ITEMS, rank=RANK, **options):
    """Weights of a lively size in every parameter, biases too."""
    weights = BACKBONES[backbone].new((n_users, n_items), rank, seed, "c", **options)
    rng = np.random.default_rng(seed)
    arrays = weights.arrays()
    for name, array in arrays.items():
        if name not in ("sizes", "activation"):
            arrays[name] = rng.normal(0, 0.6, array.shape).astype(np.float32)
    return BACKBONES[backbone].from_arrays(arrays)


def samples(n, seed=0, n_users=N_USERS, n_items=N_ITEMS, n_terms=3):
    """Repeated rows, real targets (negative ones too), unequal weights, several terms."""
    rng = np.random.default_rng(seed)
    stream = streams.empty(n)
    stream.users[:], stream.items[:] = rng.integers(0, n_users, n), rng.integers(0, n_items, n)
    stream.targets[:], stream.weights[:] = rng.uniform(-0.9, 1.4, n), rng.uniform(0.2, 2.0, n)
    stream.terms[:] = rng.integers(0, n_terms, n)
    return stream


def moments(trainer, number):
    """Adam's moment `number` (0: the weights themselves) in the twins' layout."""
    rank, tables = trainer.rank, trainer.tables
    found = {"user_factors": tables.users[:, number, :rank], "item_factors": tables.items[:, number, :rank]}
    if hasattr(tables, "b0"):
        found |= {"user_bias": tables.users[:, number, rank], "item_bias": tables.items[:, number, rank + 1]}
        return found | {"b0": tables.b0[number : number + 1]}
    return found | {"dense": trainer.network.dense[number]}


def assert_close(found, expected, rtol, atol):
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=rtol, atol=atol, err_msg=name)


VARIANTS = [
    ("mf", {}),
    ("ncf", {}),
    ("ncf", {"hidden": (4, 3)}),
    ("ncf", {"hidden": ()}),
    *(("ncf", {"activation": name}) for name in ACTIVATIONS if name != "tanh"),
]


def test_every_backbone_and_activation_is_tested():
    assert {backbone for backbone, _ in VARIANTS} == set(BACKBONES)
    assert set(naive.ACTIVATIONS) == set(ACTIVATIONS)


@pytest.mark.parametrize("backbone,options", VARIANTS)
@pytest.mark.parametrize("batch_size", [3, 2000])
def test_scores_equal_twin(backbone, options, batch_size):
    weights = new(backbone, **options)
    params, shape = naive.parameters(weights)
    users, items = (grid.ravel() for grid in np.meshgrid(np.arange(N_USERS), np.arange(N_ITEMS), indexing="ij"))
    expected = naive.scores(params, shape, users, items)
    trainer = weights.trainer(batch_size)
    for model in (weights, trainer, trainer.weights()):
        np.testing.assert_allclose(model.score_pairs(users, items), expected, rtol=2e-6, atol=2e-6)
        rows = model.score_rows(np.array([4, 0, 4]))
        np.testing.assert_allclose(rows, expected.reshape(N_USERS, N_ITEMS)[[4, 0, 4]], rtol=2e-6, atol=2e-6)
    out = np.empty(len(users), np.float32)
    assert weights.score_pairs(users, items, out=out) is out
    assert np.array_equal(out, weights.score_pairs(users, items))
    assert len(weights.score_pairs(users[:0], items[:0])) == 0


def test_ncf_scores_do_not_depend_on_the_block():
    weights = new("ncf")
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, N_USERS, 2500), rng.integers(0, N_ITEMS, 2500)
    together = weights.score_pairs(users, items)
    alone = weights.score_pairs(users[1900:1910], items[1900:1910])
    np.testing.assert_allclose(together[1900:1910], alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("z", [0.0, 1e-4, 0.5, 2.0, 4.5, 8.9, 9.1, 30.0])
def test_tanh_is_accurate(z):
    weights = NCF(
        np.array([[z]], np.float32), np.zeros((1, 1), np.float32),
        np.array([1, 0, 0, 1, 0], np.float32), np.array([2, 1, 1]), "tanh",
    )  # fmt: skip
    assert weights.score_pairs([0], [0])[0] == pytest.approx(np.tanh(np.float32(z)), abs=4e-7)
    assert abs(weights.score_pairs([0], [0])[0]) <= 1.0


@pytest.mark.parametrize("backbone,options", VARIANTS)
@pytest.mark.parametrize("loss", TRAINABLE)
def test_gradient_equals_finite_differences(backbone, options, loss):
    """The first moment after one step holds the gradient of every parameter."""
    weights, stream, lam = new(backbone, **options), samples(14), 0.03
    params, shape = naive.parameters(weights)
    expected = naive.numeric_gradient(params, lambda p: naive.objective(p, shape, stream, loss, lam))
    assert_close(naive.gradient(params, shape, stream, loss, lam), expected, 1e-5, 1e-8)
    trainer = weights.trainer(20)
    trainer.epoch(stream, 3, LOSSES[loss], 1e-3, lam)
    found = {name: moment / NEW_WEIGHT for name, moment in moments(trainer, 1).items()}
    assert_close(found, expected, 2e-5, 2e-6)


def test_gradient_of_a_batch_that_goes_through_the_layers_in_pieces():
    """More samples than the later layers take at a time: what each piece says of the weights is added up."""
    weights, stream, lam = new("ncf", hidden=(4, 3)), samples(2 * SAMPLES + 3), 0.03
    params, shape = naive.parameters(weights)
    expected = naive.gradient(params, shape, stream, "bce", lam)
    trainer = weights.trainer(len(stream.users))
    trainer.epoch(stream, len(stream.users), LOSSES["bce"], 1e-3, lam)
    found = {name: moment / NEW_WEIGHT for name, moment in moments(trainer, 1).items()}
    assert_close(found, expected, 2e-5, 2e-6)


def anchors_for(stream, kind, sides, strength=0.2):
    rng = np.random.default_rng(9)
    others = {"users": rng.normal(0, 1, (N_USERS, RANK)), "items": rng.normal(0, 1, (N_ITEMS, RANK))}
    rows = {side: others[side][getattr(stream, side)].astype(np.float32) for side in sides}
    return emb.no_anchors(RANK)._replace(strength=np.float32(strength), kind=kind, **rows)


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("kind", [emb.L1, emb.FROBENIUS])
@pytest.mark.parametrize("sides", [("items",), ("users",), ("users", "items")])
def test_alignment_equals_finite_differences(backbone, kind, sides):
    weights, stream = new(backbone), samples(9)
    anchors = anchors_for(stream, kind, sides)
    params, shape = naive.parameters(weights)
    expected = naive.numeric_gradient(params, lambda p: naive.objective(p, shape, stream, "bce", 0.03, anchors))
    trainer = weights.trainer(9)
    trainer.epoch(stream, 3, LOSSES["bce"], 1e-3, 0.03, anchors)
    found = {name: moment / NEW_WEIGHT for name, moment in moments(trainer, 1).items()}
    assert_close(found, expected, 2e-5, 2e-6)


def test_frobenius_pull_vanishes_where_both_models_agree():
    weights, stream = new("mf"), samples(9)
    agreed = emb.no_anchors(RANK)._replace(
        items=np.ascontiguousarray(weights.arrays()["item_factors"][stream.items]),
        strength=np.float32(0.5),
        kind=emb.FROBENIUS,
    )
    with_pull, without = weights.trainer(9), weights.trainer(9)
    with_pull.epoch(stream, 3, LOSSES["bce"], 1e-3, 0.0, agreed)
    without.epoch(stream, 3, LOSSES["bce"], 1e-3, 0.0)
    assert np.array_equal(with_pull.tables.items, without.tables.items)


@pytest.mark.parametrize("shift", [1e-3, 10.0])
def test_frobenius_pull_is_as_strong_from_near_as_from_afar(shift):
    """The gradient of |W - W'|_F has norm 1 wherever the two differ."""
    weights, stream = new("mf"), samples(9)
    others = weights.arrays()["item_factors"] + np.float32(shift)
    pull = emb.no_anchors(RANK)._replace(items=others[stream.items], strength=np.float32(0.5), kind=emb.FROBENIUS)
    trainers = weights.trainer(9), weights.trainer(9)
    trainers[0].epoch(stream, 3, LOSSES["bce"], 1e-3, 0.0, pull)
    trainers[1].epoch(stream, 3, LOSSES["bce"], 1e-3, 0.0)
    with_pull, without = (moments(trainer, 1)["item_factors"] / NEW_WEIGHT for trainer in trainers)
    assert np.linalg.norm(with_pull - without) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("backbone,options", VARIANTS)
@pytest.mark.parametrize("batch_size", [1, 8, 50])
def test_epochs_equal_twin(backbone, options, batch_size):
    """Weights, both moments and every term's loss after 3 epochs: short last batches, t > 1, lazy rows."""
    n, epochs = (9, 1) if batch_size == 1 else (21, 3)
    weights, lam, lr = new(backbone, n_users=N_USERS + 1, **options), 0.02, 0.01
    params, shape = naive.parameters(weights)
    trainer, twin = weights.trainer(batch_size), naive.Adam(params, lr)
    for number in range(epochs):
        stream = samples(n, seed=number)  # user N_USERS never occurs
        found = trainer.epoch(stream, 3, LOSSES["bce"], lr, lam)
        expected = naive.epoch(params, shape, stream, 3, "bce", lam, batch_size, twin)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert trainer.step == twin.t == epochs * -(-n // batch_size)
    assert_close(moments(trainer, 1), twin.m, 1e-4, 2e-6)
    assert_close(moments(trainer, 2), twin.v, 1e-4, 1e-7)
    assert_close(moments(trainer, 0), params, 1e-4, 5e-5)
    untouched = trainer.tables.users[N_USERS]
    assert np.array_equal(untouched[0, :RANK], weights.arrays()["user_factors"][N_USERS])
    assert not untouched[1:].any()


@pytest.mark.parametrize("loss", [name for name in TRAINABLE if name != "bce"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_epochs_of_other_losses_equal_twin(backbone, loss):
    weights, lr = new(backbone, seed=4), 0.01
    params, shape = naive.parameters(weights)
    trainer, twin, stream = weights.trainer(8), naive.Adam(params, lr), samples(20, seed=4)
    found = trainer.epoch(stream, 3, LOSSES[loss], lr, 0.01)
    expected = naive.epoch(params, shape, stream, 3, loss, 0.01, 8, twin)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert_close(moments(trainer, 0), params, 1e-4, 1e-4)


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("kind", [emb.L1, emb.FROBENIUS])
def test_step_with_anchors_equals_twin(backbone, kind):
    weights, stream = new(backbone), samples(12)
    anchors = anchors_for(stream, kind, ("users", "items"))
    params, shape = naive.parameters(weights)
    trainer, twin = weights.trainer(12), naive.Adam(params, 0.01)
    trainer.epoch(stream, 3, LOSSES["bce"], 0.01, 0.02, anchors)
    naive.epoch(params, shape, stream, 3, "bce", 0.02, 12, twin, anchors)
    assert_close(moments(trainer, 0), params, 1e-4, 5e-5)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_gradient_is_divided_by_samples_not_by_weights(backbone):
    weights, light = new(backbone), samples(10)
    heavy = light._replace(weights=light.weights * np.float32(4.0))
    first, second = weights.trainer(10), weights.trainer(10)
    once, four = first.epoch(light, 3, LOSSES["bce"], 1e-3, 0.0), second.epoch(heavy, 3, LOSSES["bce"], 1e-3, 0.0)
    np.testing.assert_allclose(4 * once, four, rtol=1e-6)
    for name, moment in moments(first, 1).items():
        np.testing.assert_allclose(moments(second, 1)[name], 4 * moment, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_regularisation_alone(backbone):
    """Zero weights leave lam w: once per distinct row and batch, however often it occurs; biases get none."""
    weights, lam = new(backbone), 0.5
    stream = samples(10)
    stream.users[:], stream.items[:] = [0] * 9 + [2], [1] * 10
    stream.weights[:] = 0.0
    trainer = weights.trainer(10)
    trainer.epoch(stream, 3, LOSSES["bce"], 1e-3, lam)
    gradient = {name: moment / NEW_WEIGHT for name, moment in moments(trainer, 1).items()}
    arrays = weights.arrays()
    for name, rows in (("user_factors", [0, 2]), ("item_factors", [1])):
        expected = np.zeros_like(arrays[name])
        expected[rows] = lam * arrays[name][rows]
        np.testing.assert_allclose(gradient[name], expected, rtol=1e-5)
    if backbone == "mf":
        assert not gradient["user_bias"].any() and not gradient["item_bias"].any() and not gradient["b0"].any()
    else:
        expected = lam * naive.is_weight(weights.sizes) * arrays["dense"]
        np.testing.assert_allclose(gradient["dense"], expected, rtol=1e-5)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_training_leaves_the_start_alone_and_an_empty_stream_changes_nothing(backbone):
    weights = new(backbone)
    before = {name: array.copy() for name, array in weights.arrays().items()}
    trainer = weights.trainer(4)
    assert trainer.epoch(samples(0), 3, LOSSES["bce"], 1e-3, 0.1).tolist() == [0, 0, 0]
    assert trainer.step == 0 and all(np.array_equal(moments(trainer, 0)[k], before[k]) for k in moments(trainer, 0))
    trainer.epoch(samples(9), 3, LOSSES["bce"], 1e-1, 0.1)
    assert all(np.array_equal(array, before[name]) for name, array in weights.arrays().items())
    kept = trainer.weights()
    copied = {name: array.copy() for name, array in kept.arrays().items()}
    trainer.epoch(samples(9), 3, LOSSES["bce"], 1e-1, 0.1)
    assert all(np.array_equal(array, copied[name]) for name, array in kept.arrays().items())


@pytest.mark.parametrize("backbone", BACKBONES)
def test_constants_and_padding_never_move(backbone):
    trainer = new(backbone).trainer(5)
    before = [table[:, 0].copy() for table in (trainer.tables.users, trainer.tables.items)]
    for number in range(3):
        trainer.epoch(samples(12, seed=number), 3, LOSSES["squared"], 0.1, 0.1)
    fixed = {"mf": (slice(RANK + 1, None), np.r_[RANK, RANK + 2 : 16]), "ncf": (slice(RANK, None),) * 2}[backbone]
    for table, old, columns in zip((trainer.tables.users, trainer.tables.items), before, fixed, strict=True):
        assert np.array_equal(table[:, 0, columns], old[:, columns])
        assert not table[:, 1:, columns].any()


@pytest.mark.parametrize("backbone", BACKBONES)
def test_finite_sees_every_parameter(backbone):
    for poison in ("users", "items", "rest"):
        trainer = new(backbone).trainer(4)
        assert trainer.finite()
        if poison == "rest":
            (trainer.tables.b0 if backbone == "mf" else trainer.network.dense[0])[0] = np.nan
        else:
            getattr(trainer.tables, poison)[2, 0, 1] = np.inf
        assert not trainer.finite()


def test_factors_are_those_of_the_rows():
    for backbone in BACKBONES:
        weights = new(backbone)
        found = weights.trainer(4).factors("items", np.array([3, 3, 0], np.int32))
        assert np.array_equal(found, weights.arrays()["item_factors"][[3, 3, 0]])


def test_mf_init_follows_the_spec():
    weights = BACKBONES["mf"].new((900, 300), 20, 1, "c").arrays()
    assert weights["user_factors"].std() == pytest.approx(np.sqrt(2 / 920), rel=0.03)
    assert weights["item_factors"].std() == pytest.approx(np.sqrt(2 / 320), rel=0.03)
    assert not weights["user_bias"].any() and not weights["item_bias"].any() and weights["b0"].tolist() == [0.0]


def test_ncf_init_follows_the_spec():
    weights = BACKBONES["ncf"].new((900, 300), 25, 1, "c")
    arrays = weights.arrays()
    assert weights.sizes.tolist() == [50, 50, 1] and weights.activation == "tanh"
    for name in naive.TABLES:
        assert arrays[name].std() == pytest.approx(0.2, rel=0.03)
    for W, b in naive.layers(arrays["dense"], weights.sizes):
        for values in (W.ravel(), b):
            assert abs(values).max() <= 1 / np.sqrt(50)
            assert len(values) == 1 or abs(values).max() > 0.8 / np.sqrt(50)
    (W, _), _ = naive.layers(arrays["dense"], weights.sizes)
    assert W.std() == pytest.approx(1 / np.sqrt(150), rel=0.05)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_init_depends_on_seed_and_model(backbone):
    make = BACKBONES[backbone].new
    first = make((4, 3), 2, 0, "c").arrays()["user_factors"]
    assert np.array_equal(first, make((4, 3), 2, 0, "c").arrays()["user_factors"])
    assert not np.array_equal(first, make((4, 3), 2, 1, "c").arrays()["user_factors"])
    assert not np.array_equal(first, make((4, 3), 2, 0, "t").arrays()["user_factors"])
    one_more = make((5, 3), 2, 0, "c").arrays()["item_factors"]  # items do not depend on the number of users
    assert np.array_equal(one_more, make((4, 3), 2, 0, "c").arrays()["item_factors"])


@pytest.mark.parametrize("backbone,options", VARIANTS)
def test_arrays_round_trip(backbone, options):
    weights = new(backbone, **options)
    again = BACKBONES[backbone].from_arrays(weights.arrays())
    users, items = np.arange(N_ITEMS), np.arange(N_ITEMS)
    assert np.array_equal(again.score_pairs(users, items), weights.score_pairs(users, items))
    assert again.rank == weights.rank == RANK


@pytest.mark.parametrize(
    "name,value", [("sizes", [6, 5, 1]), ("sizes", [6, 6, 2]), ("sizes", [6, -6, 1]), ("activation", [7])]
)
def test_ncf_refuses_arrays_that_do_not_fit(name, value):
    arrays = new("ncf").arrays() | {name: np.array(value)}
    with pytest.raises(InputError, match="altered"):
        NCF.from_arrays(arrays)


# -- embedding and Adam helpers


def test_slots_number_distinct_rows_and_are_released():
    rows, slots = np.array([4, 2, 4, 0, 2, 4], np.int32), emb.new_slots(5, 6)
    starts, order = np.zeros(7, np.int32), np.zeros(6, np.int32)
    n = emb.assign_slots(rows, slots)
    assert n == 3
    assert slots.row[:n].tolist() == [4, 2, 0] and slots.first[:n].tolist() == [0, 1, 3]
    assert slots.of_sample.tolist() == [0, 1, 0, 2, 1, 0] and slots.count[:n].tolist() == [3, 2, 1]
    emb.order_by_slot(slots, n, np.arange(6, dtype=np.int32), starts, order)
    assert starts[: n + 1].tolist() == [0, 3, 5, 6] and order.tolist() == [0, 2, 5, 1, 4, 3]
    emb.order_by_slot(slots, n, np.arange(6, dtype=np.int32)[::-1].copy(), starts, order)
    assert order.tolist() == [5, 2, 0, 4, 1, 3]
    emb.release_slots(slots, n)
    assert (slots.of_row == -1).all()


def test_tables_are_aligned_and_padded():
    assert [emb.padded(width) for width in (1, 16, 17, 52)] == [16, 16, 32, 64]
    table = emb.aligned((3, 3, 16))
    assert table.ctypes.data % 64 == 0 and not table.any() and table.flags.c_contiguous
    weights = np.ones((3, 16), np.float32)
    trained = emb.with_moments(weights)
    assert trained.ctypes.data % 64 == 0 and (trained[:, 0] == 1).all() and not trained[:, 1:].any()


def test_adam_equals_its_formula():
    """Two steps on one coordinate, eps added to the bias-corrected root."""
    w, m, v = np.float32(0.5), np.float32(0.0), np.float32(0.0)
    expected = {"b0": np.array([0.5])}
    twin = naive.Adam(expected, 0.1)
    for t, g in ((1, 0.3), (2, -1e-7), (3, 2.0)):
        w, m, v = adam.update(w, m, v, np.float32(g), adam.rates(0.1, t))
        twin.step(expected, {"b0": np.array([g])}, SimpleNamespace())
    assert w == pytest.approx(expected["b0"][0], rel=1e-5)
    tiny = adam.update(np.float32(0), np.float32(0), np.float32(0), np.float32(1e-8), adam.rates(0.1, 1))[0]
    assert tiny == pytest.approx(
        -0.1 * 1e-8 / (1e-8 + 1e-8), rel=1e-4
    )  # half a step: eps is not scaled by 1 / sqrt(1 - b2)


def test_rates_of_a_late_step_are_plain():
    now = adam.rates(1e-3, 100_000)
    assert now.step == pytest.approx(1e-3, rel=1e-6) and now.inverse == pytest.approx(1.0, rel=1e-6)


def test_predictions_of_trained_scores_stay_in_range():
    weights = new("mf")
    p = losses.predict(weights.score_pairs(np.arange(5), np.arange(5)), True)
    assert ((p > 0) & (p < 1)).all()


def test_distinct_rows_come_in_order_of_appearance():
    rows = np.array([5, 2, 5, 9, 2, 0], np.int32)
    found, places = emb.distinct(rows, 10)
    assert found.tolist() == [5, 2, 9, 0] and found[places].tolist() == rows.tolist()
