"""The bound terms: their samples, the theorems' weights, and the gradient of every loss x backbone x term."""

import inspect

import numpy as np
import pytest

from dubnb._check import InputError
from dubnb.backbones import BACKBONES
from dubnb.background import BackgroundThread
from dubnb.losses import LOSSES, TRAINABLE
from dubnb.objective import terms as bound
from dubnb.objective.terms import (
    BINARY,
    ConstantTeacher,
    ItemTeacher,
    ModelTeacher,
    Targets,
    mean_target,
    shrunk_teacher,
    spread_grades,
)
from tests import naive
from tests.backbone_tools import NEW_WEIGHT, assert_close, moments, new

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning")  # uint64, JIT off

GAMMA = 0.7
BUILDERS = {name: make for name, make in vars(bound).items() if name.startswith("term_")}
N_USERS, N_ITEMS = 6, 5


def data_of(**sizes):
    return naive.small_partition(N_USERS, N_ITEMS, **{"n_c": 9, "n_t": 5, "n_va": 4, "n_te": 4, **sizes})


def build(name, data, M_t, loss, shrink=0.0):
    """A term by its builder's name, with the arguments that its signature asks for."""
    known = {
        "data": data,
        "gamma": GAMMA,
        "weight": GAMMA,
        "teacher": shrunk_teacher(data, M_t, loss, shrink),
        "everywhere": False,
        "exposure_power": 0.0,
        "targets": BINARY,
        "per_positive": 2,
    }
    wanted = inspect.signature(BUILDERS[name]).parameters
    return BUILDERS[name](**{parameter: known[parameter] for parameter in wanted})


def drawn(terms, epoch=1, seed=0):
    streams = bound.EpochStreams(terms, seed, "test")
    return streams, streams.draw(epoch)


def as_dict(stream, number=0):
    """{pair: (target, weight)} of one term's samples; no pair may occur twice."""
    own = stream.terms == number
    rows = zip(*(column[own].tolist() for column in stream[:4]), strict=True)
    found = {(u, i): (y, w) for u, i, y, w in rows}
    assert len(found) == own.sum()
    return found


def triplets(data, part):
    users, items, labels, *_ = data.triplets(part)
    return {(u, i): y for u, i, y in zip(users.tolist(), items.tolist(), labels.tolist(), strict=True)}


@pytest.mark.parametrize("name,part", [("term_a", "S_t"), ("term_c", "S_c"), ("term_e1", "S_t")])
def test_labelled_terms_hold_their_part(name, part):
    data = data_of()
    _, stream = drawn([build(name, data, new("mf"), LOSSES["bce"])])
    assert as_dict(stream) == {pair: (label, 1.0) for pair, label in triplets(data, part).items()}


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("loss", TRAINABLE)
def test_e2_holds_the_teacher_s_residuals(backbone, loss):
    data, M_t = data_of(), new(backbone, seed=3)
    _, stream = drawn([build("term_e2", data, M_t, LOSSES[loss])])
    params, shape = naive.parameters(M_t)
    for (user, item), label in triplets(data, "S_t").items():
        target, weight = as_dict(stream)[user, item]
        p_t = naive.predict(loss, naive.score(params, shape, user, item))
        assert target == pytest.approx(label - p_t, abs=1e-5) and weight == 1.0


def test_log_weights_multiply():
    from dubnb.data.partition import Partition

    parts = {
        "S_c": ([0, 1], [0, 1], [1.0, 0.0], [2.0, 3.0]),
        "S_t": ([0], [1], [1.0], [5.0]),
        "S_va": ([], [], [], []),
        "S_te": ([], [], [], []),
    }
    data = Partition(parts, (2, 2))
    c, a = bound.term_c(data), bound.term_a(data)
    streams, stream = drawn([c, a])
    assert streams.names == ["a", "c"]
    assert as_dict(stream, 1) == {(0, 0): (1.0, 2.0), (1, 1): (0.0, 3.0)}
    assert as_dict(stream, 0) == {(0, 1): (1.0, 5.0)}
    assert streams.weight_sums.tolist() == [5.0, 5.0]


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("loss", ["bce", "squared"])
def test_d_holds_unseen_pairs_with_the_teacher_s_predictions(backbone, loss):
    data, M_t = data_of(), new(backbone, seed=3)
    _, stream = drawn([build("term_d", data, M_t, LOSSES[loss])])
    assert len(stream.users) == data.S_c.nnz
    assert set(zip(stream.users.tolist(), stream.items.tolist(), strict=True)) <= set(naive.unobserved(data))
    params, shape = naive.parameters(M_t)
    expected = naive.predict(loss, naive.scores(params, shape, stream.users, stream.items))
    np.testing.assert_allclose(stream.targets, expected, rtol=1e-5, atol=1e-5)
    assert (stream.weights == np.float32(GAMMA)).all()


def test_d_without_a_teacher_and_everywhere():
    data = data_of()
    term = bound.term_d(data, GAMMA, everywhere=True)
    assert term.pairs.size == N_USERS * N_ITEMS
    pairs = set()
    streams = bound.EpochStreams([term], 0, "test")
    for epoch in range(1, 60):
        stream = streams.draw(epoch)
        assert not stream.targets.any()
        pairs |= set(zip(stream.users.tolist(), stream.items.tolist(), strict=True))
    assert len(pairs) == N_USERS * N_ITEMS


@pytest.mark.parametrize("shrink", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("loss", ["bce", "squared"])
def test_teacher_is_drawn_towards_the_mean_label(shrink, loss):
    data, M_t = data_of(), new("mf", seed=3)
    users, items = np.array([0, 3, 5]), np.array([1, 1, 4])
    params, shape = naive.parameters(M_t)
    p_t = naive.predict(loss, naive.scores(params, shape, users, items))
    mean = data.triplets("S_t").labels.mean()
    found = shrunk_teacher(data, M_t, LOSSES[loss], shrink).predict(users, items)
    np.testing.assert_allclose(found, shrink * mean + (1 - shrink) * p_t, rtol=1e-5, atol=1e-6)


def test_only_d_is_resampled():
    data, M_t = data_of(), new("mf", seed=3)
    terms = [build(name, data, M_t, LOSSES["bce"]) for name in ("term_e2", "term_d", "term_c", "term_a")]
    streams = bound.EpochStreams(terms, 0, "test")
    assert streams.names == ["a", "c", "d", "e"]
    first = [column.copy() for column in streams.draw(1)]
    second = streams.draw(2)
    first = type(second)(*first)
    for number, name in enumerate(streams.names):
        pairs = [
            sorted(
                zip(s.users[s.terms == number], s.items[s.terms == number], s.targets[s.terms == number], strict=True)
            )
            for s in (first, second)
        ]
        assert (pairs[0] == pairs[1]) == (name != "d")
    assert not np.array_equal(first.terms, second.terms)  # every epoch has another order


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_samples_that_come_in_pieces_are_the_same(piece, monkeypatch):
    data, M_t = data_of(), new("mf", seed=3)
    terms = [build(name, data, M_t, LOSSES["bce"]) for name in ("term_a", "term_c", "term_d", "term_e2")]
    whole, expected = drawn([*terms, bound.term_n(data, 2)])
    monkeypatch.setattr(bound, "PIECE", piece)
    pieces, found = drawn([*terms, bound.term_n(data, 2)])
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(pieces.weight_sums, whole.weight_sums, rtol=1e-14)


def test_epochs_depend_on_seed_stage_and_number_alone():
    data, M_t = data_of(), new("mf", seed=3)

    def epoch(seed, stage, *numbers):
        terms = [build(name, data, M_t, LOSSES["bce"]) for name in ("term_c", "term_d")]
        streams = bound.EpochStreams(terms, seed, stage)
        return [streams.draw(number).users.copy() for number in numbers][-1].tolist()

    assert epoch(0, "x", 1, 2, 3) == epoch(0, "x", 3)
    assert len({tuple(epoch(*how)) for how in ((0, "x", 3), (1, "x", 3), (0, "y", 3), (0, "x", 2))}) == 4


def test_theory_weights_give_the_theorem_s_objective():
    """mean over samples of w l = (a + c + gamma |S_u| / |S_a| d) / |D| + e / |S_t|, each a sum, by brute force."""
    data, M_t, M_c = data_of(), new("mf", seed=3), new("mf", seed=5)
    terms = [build(name, data, M_t, LOSSES["bce"]) for name in ("term_a", "term_c", "term_d", "term_e2")]
    streams, stream = drawn(bound.theory_weighted(terms, data))
    params, shape = naive.parameters(M_c)
    value = naive.LOSSES["bce"][0](
        naive.scores(params, shape, stream.users, stream.items), stream.targets.astype(float)
    )
    sums = {name: value[stream.terms == number].sum() for number, name in enumerate(streams.names)}
    n_pairs, n_u = N_USERS * N_ITEMS, len(naive.unobserved(data))
    expected = (sums["a"] + sums["c"] + GAMMA * n_u / data.S_c.nnz * sums["d"]) / n_pairs + sums["e"] / data.S_t.nnz
    assert (stream.weights * value).mean() == pytest.approx(expected, rel=1e-5)


def test_theory_weight_of_d_is_unbiased():
    """Over many epochs the weighted d is gamma / |D| x the sum over all of S_u."""
    data, M_t, M_c = data_of(), new("mf", seed=3), new("mf", seed=5)
    term = build("term_d", data, M_t, LOSSES["bce"])
    streams = bound.EpochStreams(bound.theory_weighted([term], data), 0, "test")
    c, t = naive.parameters(M_c), naive.parameters(M_t)
    users, items = np.array(naive.unobserved(data)).T
    table = naive.LOSSES["bce"][0](naive.scores(*c, users, items), naive.sigmoid(naive.scores(*t, users, items)))
    expected = GAMMA * table.sum() / (N_USERS * N_ITEMS)
    at = {pair: value for pair, value in zip(zip(users.tolist(), items.tolist(), strict=True), table, strict=True)}
    means = []
    for epoch in range(400):
        stream = streams.draw(epoch)
        pairs = zip(stream.users.tolist(), stream.items.tolist(), strict=True)
        means.append(np.mean([w * at[pair] for pair, w in zip(pairs, stream.weights.tolist(), strict=True)]))
    assert abs(np.mean(means) - expected) < 5 * np.std(means) / 20


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("loss", TRAINABLE)
def test_gradient_of_every_loss_backbone_and_term(loss, backbone, name):
    """Kernel gradients (Adam's first moments) against central differences of the float64 objective."""
    data, M_c, lam = data_of(), new(backbone, seed=6), 0.02
    term = build(name, data, new(backbone, seed=3), LOSSES[loss])
    _, stream = drawn([term])
    params, shape = naive.parameters(M_c)
    expected = naive.numeric_gradient(params, lambda p: naive.objective(p, shape, stream, loss, lam))
    assert_close(naive.parameters(M_c.gradient(stream, LOSSES[loss], lam))[0], expected, 2e-5, 3e-6)
    trainer = M_c.trainer(100)
    totals = trainer.epoch(stream, 1, LOSSES[loss], 1e-3, lam)
    assert totals[0] == pytest.approx(len(stream.users) * naive.objective(params, shape, stream, loss, 0.0), rel=1e-5)
    found = {parameter: moment / NEW_WEIGHT for parameter, moment in moments(trainer, 1).items()}
    assert_close(found, expected, 2e-5, 3e-6)


def test_terms_never_change():
    data = data_of()
    term = bound.term_c(data)
    assert term.times(3.0).weights.tolist() == [3.0] * data.S_c.nnz and (term.weights == 1).all()
    d = bound.term_d(data, GAMMA)
    assert (d.times(2.0).weight, d.weight) == (2 * GAMMA, GAMMA)
    assert (term.redrawn, d.redrawn) == (False, True)


@pytest.mark.parametrize("power", [(0.5, 2.0), (0.0, 1.0)])
def test_row_weights_multiply_the_weight_of_a_drawn_pair(power):
    data = data_of()
    term = bound.term_d(data, GAMMA, exposure_power=power)
    A, C = term.row_weights
    stream = drawn([term])[1]
    np.testing.assert_allclose(stream.weights, GAMMA * A[stream.users] * C[stream.items], rtol=1e-6)


def test_mean_losses_are_weighted_and_0_without_weights():
    data = data_of()
    streams, _ = drawn([bound.term_c(data).times(0.05), bound.term_d(data, 0.0), bound.term_a(data)])
    assert streams.weight_sums.tolist() == pytest.approx([5.0, 0.45, 0.0])
    with np.errstate(all="raise"):
        assert streams.mean_losses(np.array([2.5, 0.9, 0.0])) == pytest.approx({"a": 0.5, "c": 2.0, "d": 0.0})
        assert streams.mean_losses(np.ones(3), np.array([0.5, 4.0, 2.0])) == {"a": 2.0, "c": 0.25, "d": 0.5}


def test_grades_are_spread_about_their_middle():
    grades = np.array([0.0, 0.1, 0.25, 0.5], np.float32)
    assert spread_grades(grades, 1.0) is grades
    np.testing.assert_allclose(spread_grades(grades, 2.0), [-0.25, -0.05, 0.25, 0.75], atol=1e-7)


def test_the_default_rule_changes_neither_labels_nor_weights():
    data = data_of()
    for part in ("S_c", "S_t"):
        own, plain = Targets().of(data, part), data.triplets(part)
        assert own.labels is plain.labels and own.weights is plain.weights
    assert Targets(kind="binary", negative=0.0, slope=0.0, spread=1.0) == BINARY


def test_a_weight_that_the_slope_would_make_negative_is_0():
    data = data_of()
    labels, found = data.triplets("S_c").labels, Targets(slope=3.0).of(data, "S_c")
    assert found.weights.tolist() == np.where(labels > 0, 2.5, 0.0).tolist()
    assert found.labels.tolist() == labels.tolist()
    assert (Targets(slope=3.0).of(data, "S_t").weights == 1).all()


def test_without_a_model_or_with_all_weight_on_the_mean_the_teacher_is_a_number():
    data, M_t = data_of(), new("mf", seed=3)
    mean = mean_target(data)
    for model, shrink in ((M_t, 1.0), (None, 1.0), (None, 0.3)):
        assert shrunk_teacher(data, model, LOSSES["bce"], shrink) == ConstantTeacher(mean)
    found = shrunk_teacher(data, M_t, LOSSES["squared"])
    assert found == ModelTeacher(M_t, False, mean, 0.0) and found.shift == 0.0


@pytest.mark.parametrize("shrink,shift", [(0.0, 0.0), (0.3, 0.0), (0.3, -0.2)])
def test_a_teacher_s_rows_give_its_predictions(shrink, shift):
    users, items = (grid.ravel() for grid in np.indices((N_USERS, N_ITEMS)))
    each = (
        ConstantTeacher(0.3),
        ItemTeacher(np.linspace(-0.5, 1.0, N_ITEMS)),
        ModelTeacher(new("mf", seed=3), False, 0.4, shrink, shift),
    )
    for teacher in each:
        P, Q = teacher.low_rank((N_USERS, N_ITEMS))
        room = np.full(len(users), 9.0, np.float32)
        assert teacher.predict(users, items, out=room) is room
        np.testing.assert_allclose((P @ Q.T).ravel(), room, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(teacher.predict(users, items), room)
    p_t = naive.scores(*naive.parameters(each[2].M_t), users, items)
    np.testing.assert_allclose(room, shrink * 0.4 + (1 - shrink) * p_t + shift, rtol=1e-5, atol=1e-6)


def test_an_empty_S_u_is_refused_in_one_line():
    full = naive.small_partition(2, 3, n_c=4, n_t=2, n_va=0, n_te=0)
    with pytest.raises(InputError, match="S_u is empty"):
        drawn([bound.term_d(full, 1.0)])


def test_term_b_is_the_teacher_minus_the_label_and_cancels_c_at_weight_1():
    data = data_of()
    teacher = ConstantTeacher(0.3)
    b = as_dict(drawn([bound.term_b(data, teacher, 0.25)])[1])
    assert b.keys() == triplets(data, "S_c").keys()
    for pair, label in triplets(data, "S_c").items():
        assert b[pair] == (pytest.approx(0.3 - label, abs=1e-6), 0.25)
    c, b = (as_dict(drawn([term])[1]) for term in (bound.term_c(data), bound.term_b(data, teacher, 1.0)))
    for pair, (target, _) in c.items():  # an affine derivative sees the sum of targets alone
        assert target + b[pair][0] == pytest.approx(0.3, abs=1e-6)


def test_prefetching_does_not_change_the_epoch_in_training():
    """With the next epoch drawn completely, the samples equal those drawn one epoch after the other."""
    data = data_of()
    terms = [bound.term_c(data), bound.term_d(data, GAMMA)]
    one_by_one = bound.EpochStreams(terms, 0, "test")
    with BackgroundThread() as background:
        prefetched = bound.PrefetchedEpochs(bound.EpochStreams(terms, 0, "test"), background, last=3)
        for epoch in (1, 2, 3):
            samples = prefetched.draw(epoch)
            assert (prefetched.next is None) == (epoch == 3)
            if prefetched.next is not None:
                prefetched.next.result()
            for column, expected in zip(samples, one_by_one.draw(epoch), strict=True):
                np.testing.assert_array_equal(column, expected)
            np.testing.assert_array_equal(prefetched.weight_sums, one_by_one.weight_sums)
