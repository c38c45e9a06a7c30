"""Worlds of different bias: each mechanism does what its table says, and nothing else."""

import numpy as np
import pytest

from dubnb import InputError, load_dataset
from dubnb.data import biases
from dubnb.data.biases import BIASES, Mechanisms, make_biased, make_society
from dubnb.data.datasets import DATASETS

SEED = 3


@pytest.fixture(scope="module")
def society():
    return make_society(SEED)


@pytest.fixture(scope="module")
def logs():
    return {name: make_biased(mechanisms, SEED) for name, mechanisms in BIASES.items()}


def exposure(log):
    return np.bincount(log.biased["item"] - 1, minlength=biases.N_ITEMS)


def likes(log, society):
    """The likes of the biased log's pairs."""
    return society.utility()[log.biased["user"] - 1, log.biased["item"] - 1] > 0


def correlation(x, y):
    return float(np.corrcoef(x, y)[0, 1])


@pytest.mark.parametrize("name", BIASES)
def test_randomized_log_is_uniform_and_its_labels_are_likes(logs, society, name):
    log = logs[name]
    users, items = log.random["user"] - 1, log.random["item"] - 1
    assert len(log.biased) == biases.ROWS and len(log.random) == biases.RANDOM_ROWS
    assert (log.random["label"] == (society.utility()[users, items] > 0)).all()
    pairs = [set(zip(frame["user"], frame["item"], strict=True)) for frame in (log.biased, log.random)]
    assert len(pairs[0]) == biases.ROWS and len(pairs[1]) == biases.RANDOM_ROWS and not pairs[0] & pairs[1]
    free = np.ones((biases.N_USERS, biases.N_ITEMS), dtype=bool)
    free[log.biased["user"] - 1, log.biased["item"] - 1] = False
    expected = biases.RANDOM_ROWS * free.sum(axis=0) / free.sum()
    counts = np.bincount(items, minlength=biases.N_ITEMS)
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi2 - biases.N_ITEMS) < 4 * np.sqrt(2 * biases.N_ITEMS)
    true_rate = (society.utility() > 0)[free].mean()
    assert abs(log.random["label"].mean() - true_rate) < 4 * np.sqrt(true_rate / biases.RANDOM_ROWS)


def test_truth_is_the_same_in_all_worlds_of_a_seed(society):
    first, second = (load_dataset(name, seed=SEED) for name in ("bias-none", "bias-popularity"))
    rows = np.searchsorted(first.user_ids.values, second.user_ids.values)
    columns = np.searchsorted(first.item_ids.values, second.item_ids.values)
    every = np.asarray(first.truth.probability_rows(np.arange(first.n_users)))
    np.testing.assert_array_equal(every[np.ix_(rows, columns)], second.truth.probability_rows(np.arange(len(rows))))
    probability = 1.0 / (1.0 + np.exp(-society.logits))
    assert probability.mean() == pytest.approx(biases.LIKED, abs=1e-6)
    np.testing.assert_allclose(every, probability[np.ix_(first.user_ids.values - 1, first.item_ids.values - 1)])


def test_control_has_no_bias(logs, society):
    log = logs["bias-none"]
    assert (log.biased["label"] == likes(log, society)).all()
    counts = exposure(log)
    assert counts.std() < 1.3 * np.sqrt(counts.mean())
    assert abs(correlation(counts, society.fame)) < 0.2
    true_rate = (society.utility() > 0).mean()
    assert abs(log.biased["label"].mean() - true_rate) < 0.01


def test_popularity_shows_fame_and_nothing_else(logs, society):
    log = logs["bias-popularity"]
    assert correlation(np.log1p(exposure(log)), society.fame) > 0.95
    assert abs(correlation(np.log1p(exposure(log)), society.logits.mean(axis=0))) < 0.2
    assert (log.biased["label"] == likes(log, society)).all()


def test_selection_records_likes_more_often(logs, society):
    log = logs["bias-selection"]
    assert (log.biased["label"] == likes(log, society)).all()
    assert log.biased["label"].mean() > 2 * log.random["label"].mean()
    v = society.utility()[log.biased["user"] - 1, log.biased["item"] - 1]
    every = society.utility()
    near, far = ((v > -1) & (v < 0)).sum(), ((v > -4) & (v < -3)).sum()
    ratio = near / far / (((every > -1) & (every < 0)).sum() / ((every > -4) & (every < -3)).sum())
    assert 0.8 * np.exp(1.5) < ratio < 1.2 * np.exp(1.5)


def test_position_hides_likes_further_down(logs, society):
    log = logs["bias-position"]
    liked = likes(log, society)
    assert not (log.biased["label"].to_numpy(bool) & ~liked).any()
    seen = log.biased[liked].groupby("position")["label"].mean()
    np.testing.assert_allclose(seen, 1.0 / (1.0 + 0.5 * np.arange(biases.SLOTS)), atol=0.12)
    fame = society.fame[log.biased["item"] - 1]
    assert correlation(fame, log.biased["position"]) < -0.7
    counts = exposure(log)
    assert counts.std() < 1.3 * np.sqrt(counts.mean())


def test_conformity_moves_labels_towards_public_opinion(logs, society):
    log = logs["bias-conformity"]
    moved = log.biased["label"] - likes(log, society)
    by_item = log.biased.assign(moved=moved).groupby("item")["moved"].mean()
    assert correlation(by_item, society.fame[by_item.index - 1]) > 0.3
    assert (moved != 0).mean() > 0.05
    assert abs(correlation(exposure(log), society.fame)) < 0.2


def test_loop_concentrates_exposure_round_by_round(logs, society):
    log = logs["bias-loop"]
    assert (log.biased["label"] == likes(log, society)).all()

    def concentration(rows):
        counts = np.bincount(rows["item"] - 1, minlength=biases.N_ITEMS)
        return counts.std() / counts.mean()

    by_round = [concentration(rows) for _, rows in log.biased.groupby("timestamp")]
    control = [concentration(rows) for _, rows in logs["bias-none"].biased.groupby("timestamp")]
    assert by_round[0] == control[0]
    assert by_round[1] > 1.5 * by_round[0] and max(by_round[1:]) > 3 * by_round[0]
    rates = log.biased.groupby("timestamp")["label"].mean()
    assert rates[1:].mean() > 1.5 * rates[0]


def test_growth_leaves_new_items_with_few_rows(logs, society):
    log = logs["bias-growth"]
    assert (log.biased["label"] == likes(log, society)).all()
    late = society.entry < 0.7
    enters = biases.ROUNDS * society.entry / 0.7
    counts = exposure(log)
    assert correlation(enters[late], counts[late]) < -0.9
    first = log.biased.groupby("item")["timestamp"].min()
    own = first.index[late[first.index - 1]]
    assert (first[own] >= enters[own - 1]).all()
    assert counts[~late].mean() > 1.5 * counts[late].mean()


def test_all_mechanisms_are_on_in_the_last_world(logs, society):
    assert min(BIASES["bias-all"]) > 0
    log = logs["bias-all"]
    assert correlation(np.log1p(exposure(log)), society.fame) > 0.3
    assert log.biased["label"].mean() > 1.5 * log.random["label"].mean()
    assert ((log.biased["label"] == 0) & likes(log, society)).any()


def test_same_seed_gives_same_bytes_and_another_seed_other_ones(logs):
    again = make_biased(BIASES["bias-loop"], SEED)
    assert again.biased.equals(logs["bias-loop"].biased) and again.random.equals(logs["bias-loop"].random)
    assert not make_biased(BIASES["bias-none"], SEED + 1).biased.equals(logs["bias-none"].biased)


def test_worlds_are_registered_and_sizes_are_checked():
    assert {name for name in DATASETS if name.startswith("bias-")} == set(BIASES)
    small = make_biased(Mechanisms(popularity=1.0, selection=1.0), 0, rows=500, random_rows=200, rounds=2)
    assert len(small.biased) == 500 and len(small.random) == 200
    with pytest.raises(InputError, match="ask for less"):
        make_biased(Mechanisms(), rows=200_000)
    with pytest.raises(InputError, match="ask for fewer rows"):
        make_biased(Mechanisms(selection=3.0), rows=100_000, rounds=1)
    with pytest.raises(InputError, match="bias-none"):
        biases.load("bias-nothing")
