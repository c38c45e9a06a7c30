"""Backbones: scores, gradients (finite differences over the registries) and whole epochs against plain NumPy twins."""

from types import SimpleNamespace

import numpy as np
import pytest

from dubnb._check import InputError
from dubnb._jit import JIT_ENABLED
from dubnb.backbones import BACKBONES, MF, mf, ncf, network
from dubnb.backbones.mf import Extended
from dubnb.backbones.ncf import ACTIVATIONS, NCF
from dubnb.backbones.network import BLOCK, LANES, MARGIN, SAMPLES
from dubnb.losses import LOSSES, TRAINABLE
from dubnb.objective.terms import empty_stream
from tests import naive
from tests.backbone_tools import N_ITEMS, N_USERS, NEW_WEIGHT, RANK, assert_close, moments, new


def samples(n, seed=0, n_users=N_USERS, n_items=N_ITEMS, n_terms=3):
    """Repeated rows, real targets (negative ones too), unequal weights, several terms."""
    rng = np.random.default_rng(seed)
    stream = empty_stream(n)
    stream.users[:], stream.items[:] = rng.integers(0, n_users, n), rng.integers(0, n_items, n)
    stream.targets[:], stream.weights[:] = rng.uniform(-0.9, 1.4, n), rng.uniform(0.2, 2.0, n)
    stream.terms[:] = rng.integers(0, n_terms, n)
    return stream


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


def test_offsets_are_added_to_scores_and_leave_the_weights():
    weights = new("mf")
    rng = np.random.default_rng(1)
    users, items = rng.normal(size=N_USERS), rng.normal(size=N_ITEMS)
    everyone, before = np.arange(N_USERS), weights.score_rows(np.arange(N_USERS))
    moved = weights.with_offsets(users, items).score_rows(everyone)
    np.testing.assert_allclose(moved, before + users[:, None] + items, rtol=2e-6, atol=2e-6)
    assert np.array_equal(weights.score_rows(everyone), before)


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


def test_gradient_of_a_batch_larger_than_a_piece_of_samples():
    """More samples than the later layers take at a time: the gradients of the pieces are added."""
    weights, stream, lam = new("ncf", hidden=(4, 3)), samples(2 * SAMPLES + 3), 0.03
    params, shape = naive.parameters(weights)
    expected = naive.gradient(params, shape, stream, "bce", lam)
    trainer = weights.trainer(len(stream.users))
    trainer.epoch(stream, len(stream.users), LOSSES["bce"], 1e-3, lam)
    found = {name: moment / NEW_WEIGHT for name, moment in moments(trainer, 1).items()}
    assert_close(found, expected, 2e-5, 2e-6)


LARGE = (2 * BLOCK + 30, 2 * BLOCK + 10)  # users and items: more than one block


def large_samples(n=2 * BLOCK + 60):
    """Most rows once, some twice: more distinct users and items than a block has."""
    stream = samples(n)
    stream.users[:], stream.items[:] = np.arange(n)[::-1] % LARGE[0], (7 * np.arange(n)) % LARGE[1]
    return stream


@pytest.mark.parametrize("hidden", [(), (3,), (9, 17)])
def test_gradient_of_a_batch_with_many_distinct_rows(hidden):
    """The gradients of the blocks are added; a trainer's step and `gradient` agree."""
    weights, stream, lam = new("ncf", n_users=LARGE[0], n_items=LARGE[1], rank=2, hidden=hidden), large_samples(), 0.03
    params, shape = naive.parameters(weights)
    expected = naive.gradient(params, shape, stream, "bce", lam)
    trainer = weights.trainer(len(stream.users))
    trainer.epoch(stream, 3, LOSSES["bce"], 1e-3, lam)
    assert_close({name: moment / NEW_WEIGHT for name, moment in moments(trainer, 1).items()}, expected, 2e-5, 2e-6)
    assert_close(naive.parameters(weights.gradient(stream, LOSSES["bce"], lam))[0], expected, 2e-5, 2e-6)


@pytest.mark.parametrize(
    "backbone,options", [("mf", {}), ("ncf", {}), ("ncf", {"hidden": ()}), ("ncf", {"hidden": (9, 17)})]
)
def test_scores_and_tangents_of_many_pairs(backbone, options, monkeypatch):
    if not JIT_ENABLED:  # a kernel has the number compiled in
        monkeypatch.setattr(ncf, "_WIDE", 2 * BLOCK)
    size = {"n_users": LARGE[0], "n_items": LARGE[1], "rank": 2}
    weights, other, third = (new(backbone, seed, **size, **options) for seed in range(3))
    direction, pairs = other.plus(-1.0, third), large_samples()
    params, shape = naive.parameters(weights)
    expected = naive.scores(params, shape, pairs.users, pairs.items)
    np.testing.assert_allclose(weights.score_pairs(pairs.users, pairs.items), expected, rtol=1e-5, atol=1e-5)
    rows = weights.score_rows(pairs.users[:2])
    np.testing.assert_allclose(rows[[0, 1], pairs.items[:2]], expected[:2], rtol=1e-5, atol=1e-5)
    found, turned = weights.tangent(direction, pairs.users, pairs.items)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    moved = naive.parameters(direction)[0]
    above, below = (
        naive.scores({name: params[name] + step * moved[name] for name in params}, shape, pairs.users, pairs.items)
        for step in (1e-6, -1e-6)
    )
    np.testing.assert_allclose(turned, (above - below) / 2e-6, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch_size,n_rows,n_distinct,rows", [(5, 9, 7, 5), (8, 6, 7, 6), (8, 9, 7, 7)])
def test_a_side_has_space_for_its_distinct_rows_and_a_margin(batch_size, n_rows, n_distinct, rows):
    """Tiles extend past the end: without the margin they would overwrite other data."""
    side = network.new_side(n_rows, 3, 17, batch_size, n_distinct)
    assert side.x.shape == (rows + MARGIN, 3 + MARGIN)
    assert side.z.shape == side.dz.shape == (rows + MARGIN, 3 * LANES)
    assert side.gradients.shape == (BLOCK + MARGIN, 16)
    assert [len(column) for column in side.slots] == [n_rows] + [batch_size] * 4


@pytest.mark.parametrize("rank,hidden", [(3, None), (14, (5, 4)), (15, ()), (16, (7,)), (17, None)])
def test_sizes_are_known_before_anything_is_allocated(rank, hidden):
    shape = (9, 5)
    weights = BACKBONES["mf"].new(shape, rank, 0, "c")
    assert BACKBONES["mf"].size(shape, rank) == weights.users.nbytes + weights.items.nbytes
    weights = BACKBONES["ncf"].new(shape, rank, 0, "c", hidden)
    tables = 4 * sum(shape) * mf.padded(rank)  # as a trainer holds them
    assert BACKBONES["ncf"].size(shape, rank, hidden) == tables + weights.dense.nbytes
    assert weights.sizes.tolist() == [2 * rank, *([2 * rank] if hidden is None else hidden), 1]


def anchors_for(stream, kind, sides, strength=0.2):
    rng = np.random.default_rng(9)
    others = {"users": rng.normal(0, 1, (N_USERS, RANK)), "items": rng.normal(0, 1, (N_ITEMS, RANK))}
    rows = {side: others[side][getattr(stream, side)].astype(np.float32) for side in sides}
    return mf.no_anchors(RANK)._replace(strength=np.float32(strength), kind=kind, **rows)


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("kind", [mf.L1, mf.FROBENIUS])
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
    """With sample weights 0 the gradient is lam w, once per distinct row and batch; biases have none."""
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
def test_training_does_not_change_the_start_and_an_empty_stream_changes_nothing(backbone):
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


@pytest.mark.parametrize("backbone,options", VARIANTS)
def test_a_step_along_a_direction_moves_every_parameter(backbone, options):
    weights, direction = (new(backbone, seed, **options) for seed in (1, 2))
    found, moved = weights.plus(-0.5, direction), direction.arrays()
    for name, array in weights.arrays().items():
        fixed = name in ("sizes", "activation")
        np.testing.assert_allclose(found.arrays()[name], array if fixed else array - 0.5 * moved[name], rtol=1e-6)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_subset_is_a_small_model_of_some_rows(backbone):
    weights = new(backbone)
    small = weights.trainer(4).subset(np.array([4, 0]), np.array([2, 1, 3]))
    assert (len(small.users), len(small.items), small.rank) == (2, 3, RANK)
    np.testing.assert_array_equal(small.score_rows(np.arange(2)), weights.score_rows(np.array([4, 0]))[:, [2, 1, 3]])


@pytest.mark.parametrize("backbone", BACKBONES)
def test_moments_do_not_count_as_weights(backbone):
    trainer = new(backbone).trainer(4)
    trainer.tables.users[:, 1:], trainer.tables.items[:, 1:] = np.nan, np.nan
    (trainer.tables.b0 if backbone == "mf" else trainer.network.dense)[1:] = np.nan
    assert trainer.finite()


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
    "name,value",
    [
        *(("sizes", sizes) for sizes in ([6, 5, 1], [6, 6, 2], [6, -6, 1], [6, 0, 1], [5, 6, 1], [6], [])),
        *(("activation", [code]) for code in (-1, len(ACTIVATIONS), 7)),
        ("activation", [0, 1]),
    ],
)
def test_ncf_refuses_arrays_that_do_not_fit(name, value):
    arrays = new("ncf").arrays() | {name: np.array(value, np.int64)}
    with pytest.raises(InputError, match="altered"):
        NCF.from_arrays(arrays)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_arrays_that_are_missing_or_of_another_shape_or_type_are_refused_by_name(backbone):
    arrays = new(backbone).arrays()
    for name in arrays.keys() - {"user_factors", "item_factors", "sizes", "activation"}:
        for wrong in (None, arrays[name][:-1], arrays[name].astype(np.float64), arrays[name][:, None]):
            with pytest.raises(InputError, match=f"array '{name}' is"):
                BACKBONES[backbone].from_arrays(
                    {key: each for key, each in (arrays | {name: wrong}).items() if each is not None}
                )
    narrow = arrays | {"item_factors": arrays["item_factors"][:, :2]}
    with pytest.raises(InputError, match="array 'item_factors' is"):
        BACKBONES[backbone].from_arrays(narrow)


@pytest.mark.parametrize("value", [5, "64", {64}])
def test_hidden_layers_are_a_list_of_widths_or_none(value):
    checked = NCF.OPTIONS["hidden"]
    assert checked("hidden", None) is None and checked("hidden", [64, 8]) == (64, 8) and checked("hidden", ()) == ()
    for wrong in (value, (0,), (2.5,)):
        with pytest.raises(InputError, match="hidden"):
            checked("hidden", wrong)


# -- extended rows


def test_extended_rows_are_the_scores_of_mf():
    weights = new("mf")
    rows, pairs = weights.extended(), (np.array([0, 5, 2]), np.array([4, 1, 1]))
    assert rows.shape == (N_USERS, N_ITEMS) and (rows.P[:, -1] == 1).all() and (rows.Q[:, -2] == 1).all()
    np.testing.assert_allclose(rows.score_pairs(*pairs), weights.score_pairs(*pairs), rtol=1e-5)
    np.testing.assert_allclose(rows.score_rows(pairs[0]), weights.score_rows(pairs[0]), rtol=1e-5)
    scaled = rows.affine(0.5, 2.0)
    np.testing.assert_allclose(scaled.score_rows(pairs[0]), 0.5 * rows.score_rows(pairs[0]) + 2.0, rtol=1e-5)
    assert (scaled.P[:, -1] == 1).all() and (scaled.Q[:, -2] == 1).all()
    again = MF.from_extended(rows)
    assert again.b0 == 0.0 and again.rank == RANK and MF.from_extended(rows, 0.5).b0 == 0.5
    np.testing.assert_allclose(again.score_pairs(*pairs), weights.score_pairs(*pairs), rtol=1e-5)
    with pytest.raises(TypeError, match="ncf has no extended rows"):
        mf.rows_of(new("ncf"))


def test_extended_rows_of_items_and_of_a_number():
    rows = Extended.of_items(3, np.array([0.5, -1.0]))
    assert rows.score_rows(np.arange(3)).tolist() == [[0.5, -1.0]] * 3
    assert (rows.P[:, -1] == 1).all() and (rows.Q[:, -2] == 1).all()
    assert Extended.constant((2, 3), 0.25).score_rows(np.arange(2)).tolist() == [[0.25] * 3] * 2


@pytest.mark.parametrize("side", [0, 1])
def test_extended_rows_are_finite_if_both_sides_are(side):
    rows = new("mf").extended()
    assert rows.finite() and new("mf").finite()
    rows[side][1, 0] = np.nan
    assert not rows.finite()
    assert not MF.from_extended(rows).finite()


# -- joint training


def test_anchors_are_the_other_models_factors_with_strength_over_batch_size():
    other, room = new("mf", seed=3), mf.no_anchors(RANK)
    room = room._replace(items=np.zeros((4, RANK), np.float32), strength=np.float32(0.6), kind=mf.FROBENIUS)
    for n in (0, 1, 3):
        batch = samples(n)
        plain = getattr(mf._anchors, "py_func", mf._anchors)  # a kernel cannot return a tuple of arrays to Python
        found = plain(other.trainer(4).model(0.0), batch, room)
        assert found.users.shape == (0, RANK) and found.kind == mf.FROBENIUS
        np.testing.assert_array_equal(found.items, other.arrays()["item_factors"][batch.items])
        assert found.strength == pytest.approx(0.6 / max(n, 1))


def test_the_strength_of_a_pull():
    """l1: unchanged; Frobenius: divided by the distance of the distinct rows, 0 if that is 0."""
    table, slots, rows = new("mf").trainer(4).tables.items, mf.new_slots(N_ITEMS, 3), np.array([2, 0, 2], np.int32)
    n_slots = mf.assign_slots(rows, slots)
    others = np.ascontiguousarray(table[rows, 0, :RANK])
    pull = mf.no_anchors(RANK)._replace(items=others, strength=np.float32(0.6), kind=mf.FROBENIUS)
    found = [mf.pull_strength(pull, others + np.float32(shift), table, slots, n_slots) for shift in (0.0, 0.5)]
    assert found == pytest.approx([0.0, 0.6 / (0.5 * np.sqrt(2 * RANK))], rel=1e-5)
    l1, alone = pull._replace(kind=mf.L1), mf.unanchored(RANK)
    assert mf.pull_strength(l1, others, table, slots, n_slots) == np.float32(0.6)
    assert mf.pull_strength(l1, others[:0], table, slots, n_slots) == 0.0
    assert alone.items.shape == (0, RANK) and mf.pull_strength(alone, alone.items, table, slots, n_slots) == 0.0


# -- embedding and Adam helpers


def test_slots_number_distinct_rows_and_are_released():
    rows, slots = np.array([4, 2, 4, 0, 2, 4], np.int32), mf.new_slots(5, 6)
    starts, order = np.zeros(7, np.int32), np.zeros(6, np.int32)
    n = mf.assign_slots(rows, slots)
    assert n == 3
    assert slots.row[:n].tolist() == [4, 2, 0] and slots.first[:n].tolist() == [0, 1, 3]
    assert slots.of_sample.tolist() == [0, 1, 0, 2, 1, 0] and slots.count[:n].tolist() == [3, 2, 1]
    mf.order_by_slot(slots, n, np.arange(6, dtype=np.int32), starts, order)
    assert starts[: n + 1].tolist() == [0, 3, 5, 6] and order.tolist() == [0, 2, 5, 1, 4, 3]
    mf.order_by_slot(slots, n, np.arange(6, dtype=np.int32)[::-1].copy(), starts, order)
    assert order.tolist() == [5, 2, 0, 4, 1, 3]
    mf.release_slots(slots, n)
    assert (slots.of_row == -1).all()


def test_tables_are_aligned_and_padded():
    assert [mf.padded(width) for width in (1, 16, 17, 52)] == [16, 16, 32, 64]
    table = mf.aligned_array((3, 3, 16))
    assert table.ctypes.data % 64 == 0 and not table.any() and table.flags.c_contiguous
    for _ in range(4):  # also in memory that was used before
        room = mf.aligned_array((5, 16))
        assert not room.any()
        room[:] = 7.0
    weights = np.ones((3, 16), np.float32)
    trained = mf.with_moments(weights)
    assert trained.ctypes.data % 64 == 0 and (trained[:, 0] == 1).all() and not trained[:, 1:].any()


def test_adam_equals_its_formula():
    """Two steps on one coordinate, eps added to the bias-corrected root."""
    w, m, v = np.float32(0.5), np.float32(0.0), np.float32(0.0)
    expected = {"b0": np.array([0.5])}
    twin = naive.Adam(expected, 0.1)
    for t, g in ((1, 0.3), (2, -1e-7), (3, 2.0)):
        w, m, v = mf.update(w, m, v, np.float32(g), mf.rates(0.1, t))
        twin.step(expected, {"b0": np.array([g])}, SimpleNamespace())
    assert w == pytest.approx(expected["b0"][0], rel=1e-5)
    tiny = mf.update(np.float32(0), np.float32(0), np.float32(0), np.float32(1e-8), mf.rates(0.1, 1))[0]
    assert tiny == pytest.approx(
        -0.1 * 1e-8 / (1e-8 + 1e-8), rel=1e-4
    )  # half a step: eps is not scaled by 1 / sqrt(1 - b2)


@pytest.mark.parametrize("base", [0.9, 0.999])
def test_powers_agree_with_exponential_and_logarithm(base):
    for n in (0, 1, 2, 3, 10, 1000, 0xFFFF, 0x10000, 0x10001, 10**6):
        assert mf.power(base, n) == pytest.approx(base**n, rel=1e-10, abs=1e-300)


def test_distinct_rows_come_in_order_of_appearance():
    rows = np.array([5, 2, 5, 9, 2, 0], np.int32)
    found, places = mf.distinct(rows, 10)
    assert found.tolist() == [5, 2, 9, 0] and found[places].tolist() == rows.tolist()
