import math
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import ndcg_score, roc_auc_score

from dubnb import metrics
from dubnb._check import InputError
from dubnb.data.partition import Partition
from dubnb.metrics import auc, count_below, liked, ndcg, percentile, personal, precision, recall, user_auc
from tests import naive


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64])
@pytest.mark.parametrize("levels", [2, 7, 100_000])
def test_auc_equals_twin_and_sklearn(dtype, levels):
    rng = np.random.default_rng(levels)
    scores = (rng.integers(-levels, levels, 150) / (1 if dtype == np.int64 else 8)).astype(dtype)
    labels = (rng.random(150) < 0.2).astype(np.float32)
    assert auc(scores, labels) == pytest.approx(naive.auc(scores, labels), abs=1e-15)
    assert auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_auc_extremes():
    assert auc([0.1, 0.2, 0.3], [0, 0, 1]) == 1.0
    assert auc([0.1, 0.2, 0.3], [1, 0, 0]) == 0.0
    assert auc([0.0, -0.0], [1, 0]) == 0.5
    assert auc([np.inf, -np.inf, 0.0], [1, 0, 0]) == 1.0


@pytest.mark.parametrize("label", [0, 1])
def test_auc_of_one_class_is_nan(label):
    assert math.isnan(auc(np.arange(4.0), np.full(4, label)))


def test_auc_of_nothing_is_nan():
    assert math.isnan(auc(np.empty(0), np.empty(0)))


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([0.0, np.nan], [0, 1], "NaN"),
        ([0.0, 1.0], [0, 2], "neither 0 nor 1"),
        ([0.0, 1.0], [0, np.nan], "neither 0 nor 1"),
        ([0.0, 1.0], [0], "one length"),
        ([[0.0, 1.0]], [[0, 1]], "1-d"),
        (["a", "b"], [0, 1], "real numbers"),
    ],
)
def test_auc_refuses(scores, labels, message):
    with pytest.raises(InputError, match=message):
        auc(scores, labels)


def test_auc_leaves_its_input_alone(tmp_path):
    np.save(tmp_path / "scores.npy", np.array([3.0, 1.0, 2.0], dtype=np.float32))
    scores = np.load(tmp_path / "scores.npy", mmap_mode="r")
    assert auc(scores, np.array([1, 1, 0])) == 0.5
    assert scores.tolist() == [3, 1, 2]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_user_auc_equals_the_brute_force_of_every_user(dtype):
    rng = np.random.default_rng(4)
    users = rng.integers(0, 40, 300)
    scores = rng.integers(-4, 4, 300).astype(dtype)  # many ties, within users and between them
    scores[(scores == 0) & (rng.random(300) < 0.5)] *= -1  # -0.0, where there is one
    labels = (rng.random(300) < 0.3).astype(np.float32)
    labels[users < 3], labels[(users >= 3) & (users < 6)] = 0, 1
    found = user_auc(scores, labels, users, n_users=45)
    expected = [naive.auc(scores[users == user], labels[users == user]) for user in range(45)]
    assert found.tolist() == pytest.approx(expected, abs=1e-15, nan_ok=True)
    assert np.isnan(found[:6]).all() and np.isnan(found[40:]).all() and len(user_auc(scores, labels, users)) == 40
    shifted = scores + 100 * users  # what is added to all of a user's scores changes nothing
    assert user_auc(shifted, labels, users, 45).tolist() == pytest.approx(expected, abs=1e-15, nan_ok=True)
    assert auc(shifted, labels) != auc(scores, labels)


def test_user_auc_of_nothing_and_of_other_lengths():
    assert user_auc(np.empty(0), np.empty(0), np.empty(0, int), 2).tolist() == pytest.approx(
        [math.nan] * 2, nan_ok=True
    )
    assert len(user_auc(np.empty(0), np.empty(0), np.empty(0, int))) == 0
    with pytest.raises(InputError, match="one user row per pair"):
        user_auc([0.0, 1.0], [0, 1], [0])


def test_liked_weighs_users_alike():
    """Two users with 10 candidates: one judged twice, the other five times."""
    assert liked([5.0, 2.0], [1, 2], [1, 4]) == pytest.approx((5 + 4) / (5 + 8))
    assert math.isnan(liked([5.0], [0], [0]))


@pytest.mark.parametrize("cut", [1, 5, 50])
def test_ranking_metrics_equal_twins(cut):
    rng = np.random.default_rng(cut)
    hits = rng.random((30, 20)) < 0.2
    n_positives = hits.sum(axis=1) + rng.integers(1, 60, 30)
    for user in range(30):
        listed = list(range(20))
        positives = set(np.flatnonzero(hits[user])) | set(range(100, 100 + n_positives[user] - hits[user].sum()))
        expected = naive.user_metrics(listed, positives, [cut], cut)
        assert ndcg(hits, n_positives, cut)[user] == pytest.approx(expected["ndcg"], abs=1e-15)
        assert precision(hits, n_positives, cut)[user] == expected[f"p@{cut}"]
        assert recall(hits, n_positives, cut)[user] == pytest.approx(expected[f"r@{cut}"], abs=1e-15)


@pytest.mark.parametrize("cut", [3, 50])
def test_ndcg_equals_sklearn(cut):
    rng = np.random.default_rng(7)
    scores = rng.permuted(np.tile(np.arange(80.0), (25, 1)), axis=1)
    labels = rng.random((25, 80)) < 0.3
    hits = np.take_along_axis(labels, np.argsort(-scores, axis=1), axis=1)
    assert ndcg(hits, labels.sum(axis=1), cut).mean() == pytest.approx(ndcg_score(labels, scores, k=cut), abs=1e-12)


def test_known_values():
    hits = np.array([[0, 1, 1, 0]], dtype=np.uint8)
    ideal = 1 + 1 / math.log2(3) + 1 / 2
    assert ndcg(hits, [3])[0] == pytest.approx((1 / math.log2(3) + 1 / 2) / ideal)
    assert precision(hits, [3], 10)[0] == 0.2
    assert recall(hits, [3], 2)[0] == pytest.approx(1 / 3)


def test_personal_share():
    rng = np.random.default_rng(0)
    users, items, own = rng.standard_normal((7, 1)), rng.standard_normal((1, 5)), rng.standard_normal((7, 5))
    assert personal(users + items + own) == pytest.approx(naive.personal(users + items + own))
    assert personal(users + items) == pytest.approx(0.0, abs=1e-30)  # one ranking for all, whatever the users' levels
    assert personal(users + own - own.mean(axis=0)) == pytest.approx(1.0)
    assert personal(np.ones((3, 4))) == 0.0
    assert 0 < personal(items + 1e-3 * own) < 1e-5


def test_the_personal_share_of_a_model_is_that_of_evenly_spaced_users_and_items():
    users, items = np.divmod(np.arange(0, 200 * 150, 7), 150)
    none = ([], [], [])
    data = Partition({"S_c": (users, items, users % 2), "S_t": none, "S_va": none, "S_te": none}, (200, 150))
    matrix = np.random.default_rng(2).standard_normal((data.n_users, data.n_items)) + np.linspace(0, 3, data.n_items)
    model = SimpleNamespace(score_pairs=lambda users, items: matrix[users, items])
    assert metrics.personal_share(model, data) == pytest.approx(naive.personal(matrix[naive.grid(data)]))


def test_scores_of_any_size_are_as_personal():
    own = np.random.default_rng(1).standard_normal((7, 5))
    for scale in (1e300, 1e-300):
        assert personal(scale * own) == pytest.approx(naive.personal(own), rel=1e-9)
    assert personal(np.zeros((3, 4))) == 0.0


def test_ndcg_uses_lists_of_50_by_default():
    hits = np.zeros((3, 60), dtype=bool)
    hits[0, 49] = hits[1, 50] = hits[2, 0] = True
    assert ndcg(hits, [1, 1, 100]).tolist() == pytest.approx(
        [1 / math.log2(51), 0.0, 1 / sum(1 / math.log2(rank + 1) for rank in range(1, 51))]
    )


def test_facts_in_the_registry_of_metrics():
    from dubnb.metrics import METRICS, metric_names

    assert {name for name, metric in METRICS.items() if metric.low_is_good} == {"log_loss", "brier", "ece"}
    assert {name for name, metric in METRICS.items() if metric.at_k} == {"p", "r", "liked"}
    lists = ["ndcg", "p@5", "p@10", "r@5", "r@10", "liked@5", "liked@10"]
    assert metric_names((5, 10)) == ["auc", "user_auc", "percentile", *lists, "log_loss", "brier", "ece"]
    assert metric_names((5,), of="lists") == ["ndcg", "p@5", "r@5"] and metric_names((5,), of="pairs") == ["auc"]


def test_percentile_by_hand():
    scores = np.array([[0.9, 0.5, 0.5, 0.1, 0.7], [0.0, 0.0, 0.0, 0.0, 0.0]], np.float32)
    barred = np.zeros((2, 5), bool)
    barred[0, 4] = True
    rows, items = np.array([0, 0, 1]), np.array([0, 1, 3])
    below, tied = np.zeros((2, 3), np.int64)
    count_below(scores, barred, rows, items, below, tied)
    assert below.tolist() == [3, 1, 0] and tied.tolist() == [0, 1, 4]
    assert percentile(below, tied, [3, 3, 4]).tolist() == [1.0, 0.5, 0.5]
    assert np.isnan(percentile([0], [0], [0])).all()  # nobody to be above


def test_users_without_positives_are_nan():
    hits = np.zeros((2, 3), dtype=bool)
    assert np.isnan(ndcg(hits, [0, 1])).tolist() == [True, False]
    with np.errstate(all="raise"):  # and nothing is divided by 0
        assert np.isnan(recall(hits, [0, 1], 2)).tolist() == [True, False]


def test_bad_arguments():
    with pytest.raises(InputError, match="whole number"):
        precision(np.zeros((1, 3)), [1], 0)
    for hits, n_positives in ((np.zeros((2, 3)), [1]), (np.zeros(2), [1, 1]), (np.zeros((2, 3)), [[1], [1]])):
        for metric in (ndcg, lambda *lists: precision(*lists, 2), lambda *lists: recall(*lists, 2)):
            with pytest.raises(InputError, match="n_positives"):
                metric(hits, n_positives)


def test_names_of_metrics_and_their_k():
    names = {"auc": True, "ndcg": True, "p@5": True, "r@10": True, "p": False, "auc@5": False, "x": False, "x@5": False}
    assert {name: metrics.is_name(name) for name in names} == names
    for name, known in names.items():
        if known:
            metric, k = metrics.metric_named(name)
            assert metric is metrics.METRICS[name.split("@")[0]] and k == (int(name[2:]) if "@" in name else None)
        else:
            with pytest.raises(InputError, match="is unknown: choose one of"):
                metrics.metric_named(name)
    with pytest.raises(InputError, match="metric 'p@-5' is unknown"):
        metrics.metric_named("p@-5")
    assert (
        metrics.metric_label("ndcg", 50) == "nDCG@50"
        and metrics.metric_label("ndcg") == "nDCG"
        and "5" in metrics.metric_label("p@5", 50)
    )
