"""The logistic head against general-purpose optimisers and plain loops, and what it corrects."""

from unittest import mock

import numpy as np
import pytest
from scipy.optimize import minimize

from dubnb import Base, DubI, DubX, DubXI, head, load, load_dataset
from dubnb._check import InputError
from dubnb.choice import CandidateDifference
from dubnb.evaluation import validation_influences
from dubnb.methods import _head
from dubnb.metrics import auc

WIDTH = 4


def sample(seed, n=400):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, WIDTH))
    y = (rng.random(n) < 1 / (1 + np.exp(1.5 - x @ [1.0, 0.5, -0.3, 0.0]))).astype(float)
    return x, y, rng.uniform(0.5, 2, n)


@pytest.mark.parametrize("ridge", [0.5, 20.0, np.inf])
def test_the_logistic_fit_is_the_minimum_that_a_general_optimiser_finds(ridge):
    x, y, w = sample(0)
    P, N = w @ y, w @ (1 - y)
    t = np.where(y == 1, (P + 1) / (P + 2), 1 / (N + 2))
    free = 2 if np.isinf(ridge) else 1 + WIDTH

    def loss(theta):
        s = theta[0] + x[:, : free - 1] @ theta[1:]
        penalty = 0 if free == 2 else ridge / 2 * (theta[2:] ** 2).sum()
        return (w * (np.logaddexp(0, s) - t * s)).sum() + penalty

    expected = minimize(loss, np.zeros(free), method="BFGS", options={"gtol": 1e-6}).x
    np.testing.assert_allclose(head.fit_logistic(x, y, w, ridge)[:free], expected, atol=1e-5)
    assert not head.fit_logistic(x, y, w, ridge)[free:].any()


@pytest.fixture(scope="module")
def data():
    return load_dataset("simulated", seed=1)


def pairs(data, seed=0):
    """The scores of a model that has learned taste but not the quality of items, on S_t."""
    users, items, labels, *_ = data.triplets("S_t")
    world = data.truth.world
    taste = (world.p[users] * world.q[items]).sum(axis=1) + np.random.default_rng(seed).normal(size=len(users))
    return taste.astype(np.float32), users, items, labels


def test_features_are_counts_and_smoothed_rates(data):
    S_c = data.triplets("S_c")
    of_users, of_items, mean_rate, _ = head.log_features(data)
    rate = S_c.labels.mean(dtype=float)
    for rows, features, at in ((S_c.users, of_users, 5), (S_c.items, of_items, 7)):
        own = S_c.labels[rows == at]
        assert features[at, 0] == pytest.approx(np.log(1 + len(own)))
        assert features[at, 1] == pytest.approx(np.log((own.sum() + 10 * rate) / (len(own) + 10)))
    assert of_items[7, 2] == pytest.approx(np.log(1 + S_c.labels[S_c.items == 7].sum()))
    assert of_users.shape == (data.n_users, 2) and mean_rate == pytest.approx(rate)


def test_an_items_randomized_rate_leaves_the_pairs_own_label_out():
    own = head.PairSample(
        *(np.array(v, float) for v in ([0, 0, 0, 0], [0, 1, 2, 3])),
        np.array([0, 0, 1, 0]),
        *(np.array(v, float) for v in ([1, 0, 1, 0], [1, 1, 1, 1], [1, 2, 1, 1])),
    )
    mean = 2 / 5
    found = np.exp(head._log_rates(own, 2, own=True))
    expected = [(0 + 20 * mean) / 23, (1 + 20 * mean) / 22, 20 * mean / 20, (1 + 20 * mean) / 23]
    np.testing.assert_allclose(found, expected)
    whole = np.exp(head._log_rates(own, 2, own=False))
    np.testing.assert_allclose(whole, [(1 + 20 * mean) / 24, (1 + 20 * mean) / 21])


def test_a_head_learns_item_quality_and_stays_a_scale_with_offsets(data):
    scores, users, items, labels = pairs(data)
    fitted = head.fit_head(scores, users, items, labels, data)
    assert fitted.scale > 0
    assert fitted.gain > 2 * fitted.gain_error > 0
    test = data.triplets("S_te")
    world = data.truth.world
    taste = (world.p[test.users] * world.q[test.items]).sum(axis=1)
    corrected = fitted.scores(taste, test.users, test.items)
    assert auc(corrected, test.labels) > auc(taste, test.labels) + 0.03
    expected = taste + fitted.user_offsets[test.users] + fitted.item_offsets[test.items]
    np.testing.assert_allclose(corrected, expected, atol=1e-5)
    logits = fitted.logits(taste, test.users, test.items)
    np.testing.assert_allclose(logits, fitted.scale * expected + fitted.intercept, atol=1e-5)
    assert np.mean(1 / (1 + np.exp(-logits))) == pytest.approx(test.labels.mean(), abs=0.02)


def test_a_head_of_users_alone_changes_no_list(data):
    fitted = head.fit_head(*pairs(data), data, of_items=False)
    assert not fitted.item_offsets.any() and fitted.user_offsets.any()


def test_a_new_users_offset_is_that_of_a_user_with_the_same_counts(data):
    fitted = head.fit_head(*pairs(data), data)
    S_c = data.triplets("S_c")
    for user in (0, 17):
        own = S_c.labels[S_c.users == user]
        assert fitted.of_new_user(len(own), own.sum()) == pytest.approx(fitted.user_offsets[user])


def test_weights_count_as_repetitions(data):
    """Weights 1 and 2 give the logistic fit of a sample in which some pairs stand twice."""
    x, y, _ = sample(1)
    w = np.where(np.arange(len(y)) % 3 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(len(y)), w.astype(int))
    np.testing.assert_allclose(
        head.fit_logistic(x, y, w, 5.0), head.fit_logistic(x[twice], y[twice], np.ones(len(twice)), 5.0), atol=1e-6
    )
    scores, users, items, labels = pairs(data)
    equal, scaled = (
        head.fit_head(scores, users, items, labels, data, weights=v) for v in (None, np.full(len(users), 7.0))
    )
    assert scaled.scale == pytest.approx(equal.scale)
    np.testing.assert_allclose(scaled.item_offsets, equal.item_offsets)


def test_the_cautious_rule_never_takes_a_smaller_ridge(data):
    for seed in range(3):
        given = pairs(data, seed)
        best, cautious = (head.fit_head(*given, data, rule=rule) for rule in head.RULES)
        assert cautious.ridge >= best.ridge


def test_pure_noise_gets_an_infinite_ridge_or_almost_no_offsets(data):
    _, users, items, labels = pairs(data)
    rng = np.random.default_rng(1)
    fitted = head.fit_head(rng.normal(size=len(users)), users, items, rng.permutation(labels), data, rule="one-se")
    assert fitted.item_offsets.std() < 0.1
    assert fitted.user_offsets.std() < 0.1


def test_scores_that_rank_backwards_are_left_alone(data):
    scores, users, items, labels = pairs(data)
    fitted = head.fit_head(-scores, users, items, labels, data)
    assert (fitted.scale, fitted.ridge) == (1.0, np.inf)
    assert not fitted.item_offsets.any()


def test_scores_of_rows_are_those_of_pairs(data):
    class Taste:
        def score_pairs(self, users, items):
            return np.sin(users * 7.0 + items).astype(np.float32)

        def score_rows(self, users):
            return self.score_pairs(users[:, None], np.arange(data.n_items)[None])

    scorer = head.HeadedScorer(Taste(), head.fit_head(*pairs(data), data))
    users = np.array([3, 9])
    rows = scorer.score_rows(users)
    for n, u in enumerate(users):
        found = scorer.score_pairs(np.full(data.n_items, u), np.arange(data.n_items))
        np.testing.assert_allclose(rows[n], found, rtol=1e-5, atol=1e-6)


# ---- the parameter head ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def headed(data):
    """dub-x with a head of users, fitted on S_va alone because gamma is given."""
    with mock.patch.object(_head, "LOG_LOSS_ERRORS", np.inf):
        model = DubX(rank=8, gamma=0.03).fit(data)
    assert model.head_ is not None and not model.head_.item_offsets.any()
    return model


def always_with_items(monkeypatch):
    """Every head that can be fitted is taken; the one with offsets of items is the last."""
    monkeypatch.setattr(_head, "LOG_LOSS_ERRORS", -np.inf)
    better = CandidateDifference(2.0, 1.0)
    monkeypatch.setattr(
        _head, "compare_candidates", lambda new, *_: better if len(new) > 1 else CandidateDifference(0, 1)
    )


@pytest.mark.parametrize("monitor", ["auc", "ndcg", "user_auc"])
def test_ndcg_alone_may_refuse_a_head_whatever_the_monitor(data, monitor, monkeypatch):
    compared, compare = [], _head.compare_candidates
    monkeypatch.setattr(_head, "compare_candidates", lambda new, *rest: compared.append(new) or compare(new, *rest))
    DubX(rank=4, gamma=0.03, epochs=2, monitor=monitor).fit(data)
    plain = DubX(rank=4, gamma=0.03, epochs=2, monitor=monitor, head=None).fit(data).weights_
    logs = [part.data for part in _head.validation_folds(data, plain, 0)]
    sizes = [log.size("S_va") for log in logs]
    expected = np.average([validation_influences(plain, log)[1].value for log in logs], weights=sizes)
    gain, lost = compared[:2]
    assert len(gain) == (2 if monitor == "auc" else 1) and [own.value for own in lost] == [pytest.approx(expected)]


def test_the_chosen_head_is_that_of_a_general_optimiser(data, headed):
    """The offsets of users from the scores of S_va, features by loops and SciPy's optimiser, at the head's ridge."""
    S_va, S_c = data.triplets("S_va"), data.triplets("S_c")
    plain = DubX(rank=8, gamma=0.03, head=None).fit(data).weights_.score_pairs(S_va.users, S_va.items).astype(float)
    mean, rows = S_c.labels.mean(dtype=float), []
    for user in range(data.n_users):
        own = S_c.labels[S_c.users == user].astype(float)
        rows.append([np.log(1 + len(own)), np.log((own.sum() + 10 * mean) / (len(own) + 10))])
    table = np.array(rows)
    x, y, z = table[S_va.users], S_va.labels.astype(float), (plain - plain.mean()) / plain.std()
    t = np.where(y == 1, (y.sum() + 1) / (y.sum() + 2), 1 / ((1 - y).sum() + 2))
    f = (x - x.mean(axis=0)) / x.std(axis=0)

    def loss(theta):
        logits = theta[0] + theta[1] * z + f @ theta[2:]
        return (np.logaddexp(0, logits) - t * logits).sum() + headed.head_.ridge / 2 * (theta[2:] ** 2).sum()

    theta = minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-7}).x
    expected = (table - x.mean(axis=0)) / x.std(axis=0) @ theta[2:] * plain.std() / theta[1]
    np.testing.assert_allclose(headed.head_.user_offsets, expected, atol=1e-4)


def test_history_marks_the_head_of_the_model_and_no_other(data, headed, monkeypatch):
    def marked(model):
        heads = model.history_[model.history_["stage"].str.startswith("head")]
        return dict(zip(heads["stage"], heads["chosen"], strict=True))

    assert marked(headed) == {"head of users": 1, "head of users and items": 0}
    always_with_items(monkeypatch)
    assert marked(DubX(rank=8, gamma=0.03).fit(data)) == {"head of users": 0, "head of users and items": 1}


def test_a_head_of_users_needs_a_lower_log_loss_and_no_clear_gain_in_auc(data, headed, monkeypatch):
    monkeypatch.setattr(_head, "compare_candidates", lambda *_: CandidateDifference(-1.0, 1.0))
    found = DubX(rank=8, gamma=0.03).fit(data).head_
    np.testing.assert_array_equal(found.user_offsets, headed.head_.user_offsets)
    assert not found.item_offsets.any() and found.gain > 0
    monkeypatch.setattr(head, "RIDGES", (np.inf,))
    assert DubX(rank=8, gamma=0.03).fit(data).head_ is None


def test_offsets_are_in_the_weights_and_change_no_list_of_a_head_of_users(data, headed):
    plain = DubX(rank=8, gamma=0.03, head=None).fit(data)
    assert plain.head_ is None
    users, items = np.arange(data.n_users), np.arange(data.n_items)
    moved = headed.weights_.score_rows(users) - plain.weights_.score_rows(users)
    offsets = headed.head_.user_offsets[:, None] + headed.head_.item_offsets
    np.testing.assert_allclose(moved, offsets, atol=2e-5)
    np.testing.assert_array_equal(headed.recommend(users, 3)[0], plain.recommend(users, 3)[0])
    p = headed.predict(users[:, None], items)
    assert p.min() >= 0 and abs(p.mean() - data.truth.label_rows(users).mean()) < 0.02


def test_a_head_survives_files_export_and_refit(data, headed, tmp_path):
    headed.save(tmp_path / "m.npz")
    again = load(tmp_path / "m.npz")
    users = np.arange(data.n_users)
    np.testing.assert_array_equal(again.weights_.score_rows(users), headed.weights_.score_rows(users))
    for one, other in zip(again.head_, headed.head_, strict=True):
        np.testing.assert_array_equal(one, other)
    headed.export(tmp_path / "e")
    P, Q = (np.load(tmp_path / "e" / f"{side}_vectors.npy") for side in ("user", "item"))
    np.testing.assert_allclose(P @ Q.T, headed.weights_.score_rows(users), atol=1e-5)
    refitted = headed.refitted(data, True)
    np.testing.assert_array_equal(refitted.head_.user_offsets, headed.head_.user_offsets)


@pytest.mark.parametrize("method", [DubX, DubXI])
def test_fold_in_gives_a_training_user_her_own_scores(data, method, monkeypatch):
    """Her row is solved without the head's offsets, which are then added."""
    always_with_items(monkeypatch)
    model = method(rank=4, gamma=0.03, terms="cd", epochs=60, patience=60, targets="binary").fit(data)
    assert model.head_ is not None and model.head_.item_offsets.any()
    S_c = data.triplets("S_c")
    counts = np.bincount(S_c.users, minlength=data.n_users)
    counts[data.triplets("S_t").users] = 0  # pairs of S_t are not in her history
    user = int(counts.argmax())
    own = S_c.users == user
    new = model.fold_in(S_c.items[own], S_c.labels[own])
    items = np.arange(data.n_items)
    expected = model.decision_function(user, items)
    np.testing.assert_allclose(new.decision_function(items), expected, atol=0.02 * expected.std())


def test_other_methods_take_a_head_on_S_va(data, tmp_path, monkeypatch):
    base = Base(rank=8, epochs=3, head="auto").fit(data)
    assert {"head of users", "head of users and items"} & set(base.history_["stage"])
    assert Base(rank=8, epochs=3).fit(data).head_ is None
    always_with_items(monkeypatch)
    other = DubI(head="auto").fit(data)
    assert other.head_ is not None
    other.save(tmp_path / "m.npz")
    again, users = load(tmp_path / "m.npz"), np.arange(9)
    np.testing.assert_array_equal(again.weights_.score_rows(users), other.weights_.score_rows(users))


def test_a_head_is_refused_where_nothing_can_hold_it(data):
    for method in (Base, DubX):
        with pytest.raises(InputError, match="needs backbone='mf'"):
            method(backbone="ncf", head="auto").fit(data)
    assert [DubX(backbone=each).resolve(data).head for each in ("mf", "ncf")] == ["auto", None]
    with pytest.raises(InputError, match="head"):
        DubX(head="users").fit(data)


def test_labels_of_S_te_and_of_S_va_are_not_in_the_offsets_of_items(data):
    """Only the few coefficients may depend on S_va: without its positives an item's offset hardly moves."""
    S_te = data.triplets("S_te")
    order = np.random.default_rng(0).permutation(len(S_te.users))
    garbage = data.replace(S_te=S_te._replace(labels=S_te.labels[order], grades=S_te.grades[order]))
    with mock.patch.object(_head, "LOG_LOSS_ERRORS", np.inf):
        models = [DubX(rank=8, gamma=0.03).fit(log) for log in (data, garbage)]
    np.testing.assert_array_equal(models[0].head_.user_offsets, models[1].head_.user_offsets)
    sample, fold = _head._sample(data, _head.validation_folds(data, models[0].weights_, 0))
    assert not sample.rate_weights[fold >= 0].any() and not sample.weights[fold == -1].any()


def test_few_positives_get_no_head(data):
    S_va = data.triplets("S_va")
    few = S_va.take(np.flatnonzero((S_va.labels == 0) | (np.cumsum(S_va.labels) <= _head.LEAST_POSITIVES - 1)))
    model = DubX(rank=8, gamma=0.03).fit(data.replace(S_va=few))
    assert model.head_ is None and not any(stage.startswith("head") for stage in model.history_["stage"])
