"""Training: early stopping, history, divergence, the background thread, joint training."""

import dataclasses
import threading
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import dubnb
from dubnb import train
from dubnb._check import DivergenceError
from dubnb.backbones import BACKBONES
from dubnb.background import BackgroundThread
from dubnb.device import Cpu
from dubnb.losses import LOSSES
from dubnb.objective import terms as bound
from dubnb.objective.coupled import Alignment, BothModels, Cycle
from dubnb.train import MONITORS, EarlyStopping, EpochLoop, Fit, Validation, train_jointly
from tests import naive, naive_joint
from tests.backbone_tools import NEW_WEIGHT, assert_close, moments, new
from tests.method_tools import quietly

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning")  # uint64, JIT off

SHAPE = (6, 5)


def data_of(**sizes):
    return naive.small_partition(*SHAPE, **{"n_c": 9, "n_t": 5, "n_va": 5, "n_te": 5, **sizes})


class Scripted:
    """A validation with given values; it records the weights that it judged."""

    usable, monitor = True, "auc"

    def __init__(self, values, start=-np.inf):
        self.values, self.judged, self.start = iter(values), [], start

    def __call__(self, scorer):
        if not hasattr(scorer, "weights"):  # the initial weights
            return self.start
        self.judged.append(scorer.weights().arrays())
        return next(self.values)


def stage(name="M_c", **changes):
    params = {"rank": 3, "lr": 0.01, "epochs": 10, "patience": 2, "batch_size": 4, "lam": 1e-3} | changes
    method = dubnb.Base(**params).resolve()
    return method.stage(name)


def run(validation, **changes):
    fit = Fit(data_of(), "auc")
    fit.validation = validation
    best = fit.train(stage(**changes), [bound.term_c(fit.data)], new("mf"))
    return best, pd.DataFrame(fit.log.rows)


def same(first, second):
    return all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "values,patience,ran,best",
    [
        ([0.6] * 5, 2, 3, 1),  # an equal mean is not better
        ([0.5, 0.9, 0.6, 0.8, 0.6], 2, 4, 2),  # means .5, .7, .667, .7
        ([0.5, 0.4, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5], 2, 9, 7),  # means .5, .45, .533, .55, .56, .56, .58, .54, .52
        ([0.9, 0.8, 0.9], 1, 2, 1),
        ([0.1 * k for k in range(10)], 1, 10, 10),
        ([0.5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], 20, 10, 1),
    ],
)
def test_early_stopping_restores_the_best_epoch(values, patience, ran, best):
    validation = Scripted(values)
    weights, history = run(validation, patience=patience)
    assert len(history) == ran and history["epoch"].tolist() == list(range(1, ran + 1))
    assert same(weights.arrays(), validation.judged[best - 1])
    assert ran == best or not same(weights.arrays(), validation.judged[-1])
    assert history["va_auc"].tolist() == pytest.approx(values[:ran])


@pytest.mark.parametrize(
    "values,start,ran,best",
    [
        ([0.7, 0.6, 0.5], 0.8, 3, 0),  # the start does not count towards patience
        ([0.7, 0.6, 0.5], 0.65, 3, 1),
        ([0.6, 0.72, 0.6, 0.6], 0.65, 4, 2),  # means .6, .66, .64, .63
        ([0.6, 0.64, 0.6, 0.6], 0.65, 4, 0),
        ([0.6, 0.68, 0.6, 0.6], 0.65, 4, 0),  # one lucky epoch: its mean of .64 is below the start
        ([0.1, 0.7, 0.7, 0.7, 0.7, 0.64, 0.3, 0.3], 0.65, 8, 0),  # a mean of .688, but its own .64 is below the start
    ],
)
def test_a_start_is_kept_unless_the_mean_and_the_metric_of_an_epoch_are_better(values, start, ran, best):
    validation = Scripted(values, start=start)
    weights, history = run(validation, patience=2)
    assert len(history) == ran
    assert same(weights.arrays(), validation.judged[best - 1] if best else new("mf").arrays())


def stops(values, shares, **options):
    """(the epoch that stops, the epoch whose weights are kept)."""
    stopping = EarlyStopping(**options)
    for epoch, (value, share) in enumerate(zip(values, shares, strict=True), 1):
        if stopping.stop_after(epoch, value, share, lambda number=epoch: number):
            break
    return epoch, stopping.weights


def test_a_lucky_early_epoch_does_not_count():
    values = [0.9, 0.9, 0.5, 0.6, 0.4, 0.4, 0.4, 0.4]
    assert stops(values, [1.0] * 8, patience=2) == (3, 1)
    assert stops(values, [1.0] * 8, patience=2, first=3) == (6, 4)
    grown = [0.0, 0.0, 0.0, 0.0, 0.2, 0.2, 0.2, 0.2]
    assert stops(values, grown, patience=2, alive=0.1) == (7, 5)  # the best before the factors grew is discarded
    assert stops(values, grown[:1] * 8, patience=2, first=3, alive=0.1) == (8, 4)  # they never grow: the best of all
    assert stops(values, grown[::-1], patience=4, alive=0.1) == (5, 1)  # once grown is enough


def test_autodebias_is_not_judged_before_its_weights_move():
    """Validation is best in epoch 2 and then falls, but the model of epoch 2 has learned nothing yet."""
    data = data_of(n_va=11)
    S_va = data.triplets("S_va")
    for first in (0, 4, 20):
        model = dubnb.AutoDebias(rank=2, lam=0.01, epochs=30, patience=30, weights_from=first).fit(data)
        late = model.history_[first:]
        counted = late["va_auc"][late["personal"].ge(0.01).cummax()]
        found = naive.auc(model.decision_function(S_va.users, S_va.items), S_va.labels)
        assert len(counted) and found == pytest.approx(counted.max())
        assert first < 20 or found < model.history_["va_auc"].max()


def test_an_epoch_is_judged_by_the_mean_over_a_window():
    values = [0.5, 0.9, 0.6, 0.8, 0.8, 0.7, 0.2, 0.2]
    assert stops(values, [1.0] * 8, patience=3) == (5, 2)
    assert stops(values, [1.0] * 8, patience=3, window=2) == (8, 5)  # means .5, .7, .75, .7, .8, .75, .45, .2
    grown = [0.0, 0.0, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]
    assert stops(values, grown, patience=3, window=2, alive=0.1) == (8, 5)
    values[1:3] = 0.1, 0.82  # without the epochs before the factors grew, the mean of epoch 3 is .82
    assert stops(values, grown, patience=3, window=2, alive=0.1) == (6, 3)


def test_training_has_converged_when_the_loss_falls_by_less_than_a_share_of_it():
    stopping = EarlyStopping(5, enough=0.5)
    assert [stopping.converged(loss) for loss in (8.0, 4.0, 2.75, 2.5, -1.0, -1.25)] == [
        False,
        False,
        True,
        True,
        False,
        True,
    ]
    exactly = EarlyStopping(5, enough=0.5)
    assert [exactly.converged(loss) for loss in (3.0, 2.0)] == [False, False]
    never = EarlyStopping(5)
    assert not any(never.converged(loss) for loss in (1.0, 1.0, 1.0))


@pytest.mark.parametrize(("start", "length"), [(0.8, 0), (0.65, 2), (-np.inf, 2)])
def test_a_fit_records_the_best_epoch(start, length):
    fit = Fit(data_of(), "auc")
    assert (fit.lengths, fit.threads) == ({}, 1)
    fit.validation = Scripted([0.6, 0.75, 0.6, 0.6], start)
    fit.train(stage(), [bound.term_c(fit.data)], new("mf"))
    assert fit.lengths == {"M_c": length}


def test_a_length_that_is_set_beforehand_limits_the_stage():
    fit = quietly(lambda: Fit(data_of(n_va=0), "auc"))
    fit.train(stage(epochs=4), [bound.term_c(fit.data)])
    assert fit.lengths == {"M_c": 4} and len(fit.log.rows) == 4  # no usable S_va: all epochs run
    fit.lengths = {"M_c": 2}
    fit.train(stage(epochs=4), [bound.term_c(fit.data)])
    assert fit.lengths == {"M_c": 2} and len(fit.log.rows) == 6


class Spy(Cpu):
    """Records the terms of joint training."""

    def both_models(self, stages, models, terms, term_e1, alignment=None):
        self.seen = [term.name for term in terms]
        return super().both_models(stages, models, terms, term_e1, alignment)


def test_negatives_are_drawn_where_S_c_is_learned_from_without_term_d():
    data = data_of()
    full = naive.small_partition(3, 3, n_c=6, n_t=3, n_va=0, n_te=0)
    almost = naive.small_partition(3, 3, n_c=6, n_t=2, n_va=0, n_te=0)
    own = dataclasses.replace(stage(), negatives=2)
    a, c, d = bound.term_a(data), bound.term_c(data), bound.term_d(data, 0.5)
    for terms, how, log, expected in (
        ([c], own, data, "cn"),
        ([a, c], own, data, "acn"),
        ([c], dataclasses.replace(own, negatives=0), data, "c"),
        ([a], own, data, "a"),
        ([c, d], own, data, "cd"),
        ([c], own, full, "c"),
        ([c], own, almost, "cn"),
    ):
        assert "".join(term.name for term in train.with_negatives(terms, how, log)) == expected
    assert train.with_negatives([c], own, data)[-1].size == bound.term_n(data, 2).size
    defaults = {field.name: field.default for field in dataclasses.fields(train.Stage)}
    assert (defaults["negatives"], defaults["with_a"]) == (0, False)


def test_joint_training_follows_the_stage_of_M_c():
    """Loss, rate, seed, length, negatives and the name in the history; M_t has its own decay and batch size."""
    data = data_of()
    fit = Fit(data, "auc", device=Spy())
    M_c = dataclasses.replace(stage("refine", epochs=2, seed=3), negatives=2)
    M_t = stage("M_t", lam=0.5, batch_size=2, loss="mse", lr=0.7, seed=8, epochs=5)
    problem = (new("mf"), new("mf", seed=1)), [bound.term_c(data)], bound.term_e1(data)
    kept = train_jointly(fit, (M_c, M_t), *problem)
    assert fit.device.seen == ["c", "n"] and [row["stage"] for row in fit.log.rows] == ["refine"] * 2
    same_rules = dataclasses.replace(M_c, lam=0.5, batch_size=2, negatives=0)
    other = train_jointly(Fit(data, "auc"), (M_c, same_rules), *problem)
    assert all(same(a.arrays(), b.arrays()) for a, b in zip(kept, other, strict=True))


@pytest.mark.parametrize("poisoned", ["student", "teacher"])
def test_both_models_are_finite_if_each_is(poisoned):
    data = data_of()
    both = BothModels((stage(), stage("M_t")), (new("mf"), new("mf", seed=1)), [bound.term_c(data)], None)
    assert both.finite()
    getattr(both, poisoned).tables.users[0, 0, 0] = np.nan
    assert not both.finite()


def test_one_positive_is_enough_to_judge_by_and_none_is_not():
    from dubnb.data.partition import Partition

    def log(labels, S_c_users=(0, 1)):
        held = ([2] * len(labels), range(len(labels)), labels, [1] * len(labels))
        parts = {"S_c": (S_c_users, [3, 3], [1, 0], [1, 1]), "S_t": ([0], [2], [1], [1]), "S_va": held}
        return Partition(parts | {"S_te": ([], [], [], [])}, (3, 4))

    one, none, every = log([1, 0, 0]), log([0, 0]), log([1, 1])
    assert Validation(one, "auc").usable
    for data, monitor in ((none, "auc"), (every, "auc"), (one, "ndcg"), (log([1, 1], (0, 2)), "ndcg")):
        validation = quietly(lambda data=data, monitor=monitor: Validation(data, monitor))
        assert not validation.usable and validation(new("mf", n_users=3, n_items=4)) == -np.inf
    assert Validation(log([1, 0], (0, 2)), "ndcg").usable


def test_validation_is_the_metric_on_S_va():
    data, weights = data_of(n_va=11), new("mf")
    S_va = data.triplets("S_va")
    scores = naive.scores(*naive.parameters(weights), S_va.users, S_va.items)
    assert Validation(data, "auc")(weights) == pytest.approx(naive.auc(scores, S_va.labels))
    users, items = (grid.ravel() for grid in np.meshgrid(*(np.arange(n) for n in SHAPE), indexing="ij"))
    matrix = naive.scores(*naive.parameters(weights), users, items).reshape(SHAPE)
    expected = naive.evaluate(matrix, data, "full-ranking", (5,), "S_va")[0]
    for monitor in MONITORS:
        assert Validation(data, monitor)(weights) == pytest.approx(expected[monitor])


@pytest.mark.parametrize("monitor", MONITORS)
def test_validation_does_not_judge_pairs_of_both_logs(monitor):
    """The biased log has half of S_va's pairs too: how they are scored changes nothing."""
    from dubnb.data.partition import PARTS, Partition

    given = naive.small_partition(9, 8, n_va=24, n_c=25)
    parts = {part: given.triplets(part) for part in PARTS}
    again = parts["S_va"].take(slice(None, None, 2))
    S_c = [np.concatenate(both) for both in zip(parts["S_c"][:3], again[:3], strict=True)]
    data = Partition(parts | {"S_c": S_c}, (9, 8))
    scores = np.random.default_rng(0).random((9, 8)).astype(np.float32)

    def value(matrix):
        rows = SimpleNamespace(score_pairs=lambda u, i: matrix[u, i], score_rows=lambda u: matrix[u])
        return Validation(data, monitor)(rows)

    known = value(scores)
    scores[data.overlap.users, data.overlap.items] += 9
    assert data.removed == 12 and value(scores) == known


def test_a_monitor_of_users_needs_one_with_both_labels():
    from dubnb.data.partition import Partition

    parts = {"S_c": ([0, 1], [3, 3], [1, 0]), "S_t": ([0], [2], [1]), "S_te": ([], [], [])}
    apart, together = ([0, 1], [0, 0], [1, 0]), ([0, 0], [0, 1], [1, 0])
    assert not quietly(lambda: Validation(Partition(parts | {"S_va": apart}, (3, 4)), "user_auc")).usable
    assert Validation(Partition(parts | {"S_va": together}, (3, 4)), "user_auc").usable


@pytest.mark.parametrize("sizes", [{"n_va": 0}, {"n_va": 1}])
@pytest.mark.parametrize("monitor", MONITORS)
def test_without_usable_S_va_every_epoch_runs(sizes, monitor):
    with pytest.warns(UserWarning, match=r"S_va has . pairs with . positives.*: no early stopping") as caught:
        model = dubnb.Base(epochs=8, patience=1, rank=2, monitor=monitor).fit(data_of(**sizes))
    assert len(model.history_) == 8 and model.history_[f"va_{monitor}"].isna().all()
    assert caught[0].filename == __file__
    shorter = quietly(lambda: dubnb.Base(epochs=7, patience=1, rank=2, monitor=monitor).fit(data_of(**sizes)))
    assert not same(model.weights_.arrays(), shorter.weights_.arrays())  # the last epoch counts, not the first


def test_history_columns_and_losses():
    data = data_of()
    rows = []
    options = {"rank": 2, "epochs": 3, "patience": 3, "gamma": 0.5, "lr": 0.01, "seed": 3, "pretrain_terms": "c"}
    model = dubnb.DUB(**options).fit(data, callback=rows.append)
    history = model.history_
    losses = ["loss_a", "loss_c", "loss_d", "loss_e"]
    assert set(history.columns) == {"stage", "epoch", "va_auc", "personal", "seconds", *losses}
    assert history["stage"].tolist() == ["M_t"] * 3 + ["M_c"] * 3 + ["refine"] * 3
    assert history["epoch"].tolist() == [1, 2, 3] * 3
    refine = history[history["stage"] == "refine"]
    assert np.isfinite(refine[losses].to_numpy()).all() and (history["seconds"] > 0).all()
    assert history[history["stage"] == "M_c"][["loss_a", "loss_d", "loss_e"]].isna().all(axis=None)
    assert len(rows) == 9 and rows[-1]["loss_d"] == refine["loss_d"].iloc[-1]
    assert history["va_auc"].between(0, 1).all() and history["personal"].between(0, 1).all()
    every = model.decision_function(np.arange(SHAPE[0])[:, None], np.arange(SHAPE[1]))
    best = refine.index[refine["epoch"] == model.lengths_["refine"]][0]
    assert history["personal"][best] == pytest.approx(naive.personal(every[naive.grid(data)]), rel=1e-4)


def test_reported_loss_is_the_mean_by_weight_before_the_step():
    """A batch as large as the epoch: epoch 1's loss is the loss of the initial weights."""
    data = data_of()
    model = dubnb.Base(rank=2, epochs=1, batch_size=100, seed=1).fit(data)
    params, shape = naive.parameters(BACKBONES["mf"].new(SHAPE, 2, 1, "c"))
    S_c = data.triplets("S_c")
    expected = naive.LOSSES["bce"][0](naive.scores(params, shape, S_c.users, S_c.items), S_c.labels).mean()
    assert model.history_["loss_c"].iloc[0] == pytest.approx(expected, rel=1e-5)


def test_gamma_zero_does_not_divide_by_zero():
    data = data_of()
    none = dubnb.Bridge(rank=2, epochs=2, gamma=0.0).fit(data)
    refine = none.history_[none.history_["stage"] == "refine"]
    assert len(refine) == 2 and np.isfinite(refine["loss_c"]).all()


@pytest.mark.parametrize("batch_size", [2, 1024])
@pytest.mark.parametrize("epochs", [1, 5])
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_divergence_is_an_error(backbone, epochs, batch_size):
    with pytest.raises(DivergenceError, match=r"M_c diverged in epoch .*lower lr") as caught:
        dubnb.Base(backbone=backbone, rank=2, lr=1e38, epochs=epochs, batch_size=batch_size, loss="squared").fit(
            data_of()
        )
    assert "\n" not in str(caught.value)


# -- joint training


def jointly(loss, backbone="mf", alignment=None, e1=True, d=True, epochs=1, lr=0.3, batch_sizes=(1000, 1000)):
    """Train jointly and compare weights and losses with the plain twin; returns (data, twin, history)."""
    data = data_of()
    models = new(backbone, seed=1), new(backbone, seed=2)
    fit = Fit(data, "auc")
    terms = [bound.term_c(data)] + ([bound.term_d(data, 0.7)] if d else [])
    own = {"loss": loss, "lr": lr, "epochs": epochs, "patience": 100}
    stages = [
        stage("refine", lam=lam, batch_size=size, **own) for lam, size in zip((0.02, 0.05), batch_sizes, strict=True)
    ]
    problem = stages, models, terms, bound.term_e1(data) if e1 else None, alignment
    both, twin = BothModels(*problem), naive_joint.Jointly(*problem)
    for epoch in range(1, epochs + 1):
        found, (totals, e1_sums) = both.epoch(epoch), twin.epoch(epoch)
        assert found == pytest.approx(twin.epochs.mean_losses(totals) | ({"e": e1_sums[0] / e1_sums[1]} if e1 else {}))
        for trainer, other in ((both.student, twin.M_c.trained), (both.teacher, twin.M_t.trained)):
            assert same(trainer.weights().arrays(), other.weights().arrays())
    assert both.steps.tolist() == [len(twin.M_c.streams), len(twin.M_t.streams)]
    kept = train_jointly(fit, *problem)
    if epochs == 1:
        assert all(same(a.arrays(), b.arrays()) for a, b in zip(kept, both.weights(), strict=True))
    return data, twin, pd.DataFrame(fit.log.rows)


def gradients(recorded):
    return {name: moment / NEW_WEIGHT for name, moment in moments(recorded.trained, 1).items()}


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("loss", ["mae", "mse", "squared", "bce"])
def test_joint_gradients_equal_finite_differences(backbone, loss):
    """One batch: both gradients are those of the joint objective at the weights before the batch."""
    _, twin, _ = jointly(loss, backbone)
    M_c, M_t = twin.M_c, twin.M_t
    (for_c,), (for_t,) = M_c.streams, M_t.streams
    (c, c_shape), (t, t_shape) = naive.parameters(M_c.weights), naive.parameters(M_t.weights)
    value = naive.LOSSES[loss][0]
    of_d, of_c = for_c.terms == 1, for_c.terms == 0
    users, items = for_c.users[of_d], for_c.items[of_d]
    weights = for_c.weights[of_d].astype(float)

    def term_d(params_c, params_t):
        p_t = naive.predict(loss, naive.scores(params_t, t_shape, users, items))
        return (weights * value(naive.scores(params_c, c_shape, users, items), p_t)).sum()

    def labelled(params, shape, stream, own):
        return value(
            naive.scores(params, shape, stream.users[own], stream.items[own]), stream.targets[own].astype(float)
        ).sum()

    def objective_c(params):
        empty = for_c._replace(weights=np.zeros_like(for_c.weights))
        reg = naive.objective(params, c_shape, empty, loss, 0.02)
        return (labelled(params, c_shape, for_c, of_c) + term_d(params, t)) / len(for_c.users) + reg

    def objective_t(params):
        empty = for_t._replace(weights=np.zeros_like(for_t.weights))
        reg = naive.objective(params, t_shape, empty, loss, 0.05)
        d = term_d(c, params) if LOSSES[loss].symmetric else 0.0
        return (labelled(params, t_shape, for_t, for_t.terms == 0) + d) / len(for_t.users) + reg

    assert_close(gradients(M_c), naive.numeric_gradient(c, objective_c), 5e-5, 5e-6)
    assert_close(gradients(M_t), naive.numeric_gradient(t, objective_t), 5e-5, 5e-6)


@pytest.mark.parametrize("norm", ["l1", "frobenius"])
@pytest.mark.parametrize("side", ["items", "users", "both"])
def test_alignment_pulls_both_models_at_their_old_weights(side, norm):
    """One batch with M_c and M_t: each is pulled towards the other's weights before the batch."""
    pull = Alignment(0.3, side, norm)
    _, twin, _ = jointly("bce", alignment=pull, d=False)
    for own, other, lam in ((twin.M_c, twin.M_t, 0.02), (twin.M_t, twin.M_c, 0.05)):
        (stream,) = own.streams
        anchors = naive_joint.anchors(pull, other.weights.trainer(1), stream)
        assert anchors.strength == pytest.approx(0.3 / len(stream.users))  # a term of the batch's mean, like the others
        params, shape = naive.parameters(own.weights)
        expected = naive.numeric_gradient(params, lambda p: naive.objective(p, shape, stream, "bce", lam, anchors))  # noqa: B023
        assert_close(gradients(own), expected, 5e-5, 5e-6)


def test_teacher_cycles_through_S_t():
    """5 pairs in batches of 2: 2, 2, 1, then again in another order."""
    data = data_of()
    cycle = Cycle(bound.term_e1(data), 2, 0, "refine-t")
    rounds = [cycle.next() for _ in range(3)]
    assert [len(batch.users) for batch in rounds] == [2, 2, 1]
    seen = {(u, i) for batch in rounds for u, i in zip(batch.users.tolist(), batch.items.tolist(), strict=True)}
    assert len(seen) == data.S_t.nnz
    assert len(cycle.next().users) == 2 and cycle.round == 2


@pytest.mark.parametrize("size", [1, 5])
def test_a_round_of_whole_batches_is_followed_by_the_next(size):
    cycle = Cycle(bound.term_e1(data_of()), size, 0, "refine-t")
    assert [len(cycle.next().users) for _ in range(11)] == [size] * 11
    assert cycle.round == -(-11 * size // 5)
    assert len(cycle.next(3).users) == {1: 3, 5: 5}[size]  # three batches, or as many as are left in the round


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize(
    "own",
    [
        {"loss": "mse"},
        {"loss": "bce", "e1": False},
        {"loss": "mae", "e1": False},
        {"loss": "bce", "d": False, "alignment": Alignment(0.3, "both", "frobenius")},
        {"loss": "mse", "alignment": Alignment(0.3, "users")},
    ],
)
def test_the_joint_kernel_equals_plain_batches(backbone, own):
    """Many small batches over several rounds of S_t, epoch after epoch; `jointly` compares."""
    _, twin, _ = jointly(backbone=backbone, batch_sizes=(4, 2), lr=0.01, epochs=3, **own)
    assert twin.M_c.trained.step > 6


class SlowValidation:
    """A validation that waits until it may read the weights."""

    usable, monitor = True, "auc"

    def __init__(self):
        self.may_read = threading.Event()

    def __call__(self, scorer):
        assert self.may_read.wait(60)
        return scorer.epoch


class Counted:
    """Weights with the number of epochs they were trained for."""

    def __init__(self, epoch):
        self.epoch = epoch

    def finite(self):
        return True

    def weights(self):
        return Counted(self.epoch)

    def score_pairs(self, users, items):
        return np.zeros(len(users))


def test_the_background_thread_judges_an_epoch_by_the_weights_it_ended_with():
    """The next epoch changes the weights before the background thread has read them."""
    fit, model = Fit(data_of(), "auc"), Counted(0)
    fit.validation = SlowValidation()
    with BackgroundThread() as background:
        with EpochLoop(fit, stage(epochs=3), model, model.weights, None, background) as loop:
            for epoch in loop:
                model.epoch = epoch
                if epoch == 2:
                    assert fit.log.rows == []  # the first epoch is still judged
                    fit.validation.may_read.set()
                loop.judge({"c": 0.5})
        assert loop.best().epoch == 3
    assert [(row["epoch"], row["va_auc"]) for row in fit.log.rows] == [(1, 1), (2, 2), (3, 3)]


def test_the_epoch_trained_after_the_last_one_is_dropped():
    fit, trained = Fit(data_of(), "auc"), []
    fit.validation = Scripted([0.5, 0.4, 0.9])
    with BackgroundThread() as background:
        with EpochLoop(
            fit, stage(epochs=9, patience=1), new("mf").trainer(4), lambda: new("mf").trainer(4), None, background
        ) as loop:
            for epoch in loop:
                trained.append(epoch)
                loop.judge({"c": 0.5})
        loop.best()
    assert trained == [1, 2, 3] and [row["epoch"] for row in fit.log.rows] == [1, 2] and fit.lengths == {"M_c": 1}
