"""Baselines: popularity in either log, and no knowledge at all."""

import warnings

import numpy as np
import pytest

import dubnb
from dubnb.methods import METHODS, make
from tests import naive

BASELINES = [name for name, method in METHODS.items() if method.is_baseline]


@pytest.fixture(scope="module")
def data():
    return naive.small_partition(9, 8, n_c=30, n_t=12, n_va=10, n_te=12)


def test_baselines_are_listed_apart():
    assert BASELINES == ["popularity", "popularity-t", "random"]
    assert not dubnb.DUB.is_baseline and isinstance(dubnb.make("popularity"), dubnb.Popularity)


def test_popularity_counts_the_positives_of_S_c(data):
    scores = make("popularity").fit(data).decision_function(np.arange(9)[:, None], np.arange(8))
    S_c = data.triplets("S_c")
    expected = [sum(S_c.labels[S_c.items == item]) / 9 for item in range(8)]
    np.testing.assert_allclose(scores, np.tile(expected, (9, 1)), rtol=1e-6)
    assert len(set(expected)) > 2


def test_popularity_t_is_the_rate_in_S_t_drawn_towards_the_base_rate(data):
    model = make("popularity-t").fit(data)
    S_t = data.triplets("S_t")
    base_rate = S_t.labels.mean()
    for item in range(8):
        own = S_t.labels[S_t.items == item]
        expected = (own.sum() + 40 * base_rate) / (len(own) + 40)
        assert model.decision_function(3, item) == pytest.approx(expected, rel=1e-5)


def test_random_follows_its_seed(data):
    first, again, other = (make("random", seed=s).fit(data).recommend(np.arange(9), 8, False)[0] for s in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert len({tuple(row) for row in first}) > 3  # another order for every user


@pytest.mark.needs_jit
def test_random_knows_nothing():
    data = dubnb.load_dataset("simulated")
    with pytest.warns(UserWarning, match="below popularity"):
        assert make("random").fit(data).evaluate(data, truth=False)["auc"] == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_say_nothing_of_ranking_alike(name, data, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make(name).fit(data)
    assert len(model.history_) == 1 and 0 <= model.history_["va_auc"][0] <= 1
    model.save(tmp_path / "m.npz")
    copy = dubnb.load(tmp_path / "m.npz")
    assert np.array_equal(copy.recommend(np.arange(9), 3)[0], model.recommend(np.arange(9), 3)[0])


def test_popularity_s_own_result_is_the_one_beside_every_other(data):
    result = make("popularity").fit(data).evaluate(data)
    assert (result["auc"], result["ndcg"]) == (result["popularity_auc"], result["popularity_ndcg"])
