"""S_u is sampled uniformly, deterministically, and without ever touching a seen pair."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from dubnb._check import InputError
from dubnb._random import key
from dubnb.data.partition import Partition
from dubnb.data.pattern import UnobservedPairs
from tests import naive

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning")  # uint64, JIT off


def partition(S_c, S_t, shape):
    """From lists of pairs; labels do not matter here."""
    parts = {"S_c": S_c, "S_t": S_t, "S_va": [], "S_te": []}
    columns = {name: np.array(pairs, dtype=np.int64).reshape(-1, 2).T for name, pairs in parts.items()}
    return Partition({name: (*own, np.ones(own.shape[1])) for name, own in columns.items()}, shape)


def small():
    """4 users x 5 items; user 1 has seen everything, user 3 nothing."""
    S_c = [(0, 0), (0, 4), (1, 0), (1, 1), (1, 2), (2, 2)]
    return partition(S_c, [(1, 3), (1, 4), (2, 0)], (4, 5))


def drawn(data, n, *names):
    users, items = np.empty(n, np.int32), np.empty(n, np.int32)
    data.S_u.draw(key(0, *names), users, items)
    return list(zip(users.tolist(), items.tolist(), strict=True))


def test_draws_are_uniform_over_S_u():
    data = small()
    pairs = naive.unobserved(data)
    counts = Counter()
    for round_ in range(20):
        counts.update(drawn(data, 200, round_))
    assert set(counts) == set(pairs)
    assert chisquare([counts[pair] for pair in pairs]).pvalue > 1e-4


def test_single_draws_are_uniform_too():
    """n = 1 is one uniform number out of two exponentials."""
    data = small()
    pairs = naive.unobserved(data)
    counts = Counter(drawn(data, 1, "single", round_)[0] for round_ in range(1500))
    assert chisquare([counts[pair] for pair in pairs]).pvalue > 1e-4


def test_draws_are_independent():
    """Draws of one call repeat as often as independent ones: the number of equal pairs has mean n(n-1)/2/|S_u|."""
    data = small()
    n, size = 40, len(naive.unobserved(data))
    meetings = [sum(m * (m - 1) / 2 for m in Counter(drawn(data, n, "meet", round_)).values()) for round_ in range(150)]
    expected = n * (n - 1) / 2 / size
    assert abs(np.mean(meetings) - expected) < 5 * np.std(meetings) / np.sqrt(len(meetings))


def test_draws_equal_the_twin():
    data = small()
    assert drawn(data, 300, "twin") == naive.draw(key(0, "twin"), naive.unobserved(data), 300)


@pytest.mark.parametrize("seed", range(5))
def test_random_patterns_never_give_a_seen_pair(seed):
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 9)), int(rng.integers(2, 9)))
    pairs = [(u, i) for u in range(shape[0]) for i in range(shape[1]) if rng.random() < 0.8]
    pairs = pairs[:-1] if len(pairs) == shape[0] * shape[1] else pairs or [(0, 0)]
    data = partition(pairs, [], shape)
    unseen = set(naive.unobserved(data))
    found = drawn(data, 200, seed)
    assert set(found) <= unseen
    assert found == sorted(found)
    assert data.S_u.size == len(unseen)


def test_key_alone_decides():
    data = small()
    assert drawn(data, 50, "x") == drawn(data, 50, "x")
    assert drawn(data, 50, "x") != drawn(data, 50, "y")


def test_users_who_have_seen_everything_at_either_end():
    data = partition([(0, 0), (0, 1), (2, 0), (2, 1)], [], (3, 2))
    assert set(drawn(data, 100, "ends")) == {(1, 0), (1, 1)}


@pytest.mark.parametrize(
    "shape,seen,left", [((1, 4), [(0, 1), (0, 3)], {(0, 0), (0, 2)}), ((4, 1), [(2, 0)], {(0, 0), (1, 0), (3, 0)})]
)
def test_one_user_or_one_item(shape, seen, left):
    assert set(drawn(partition(seen, [], shape), 120, "one")) == left


def test_one_pair_left():
    data = partition([(0, 0), (0, 1), (1, 0)], [], (2, 2))
    assert drawn(data, 7, "last") == [(1, 1)] * 7


def test_empty_S_u_is_refused():
    data = partition([(0, 0), (0, 1)], [], (1, 2))
    with pytest.raises(InputError, match="S_u is empty"):
        drawn(data, 3, "nothing")


def test_without_seen_every_pair_of_D_is_drawn():
    users, items = np.empty(3000, np.int32), np.empty(3000, np.int32)
    everything = UnobservedPairs(3, 4)
    assert everything.size == 12
    everything.draw(key(0, "D"), users, items)
    counts = np.bincount(users * 4 + items, minlength=12)
    assert chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("sizes", [(60,), (1, 59), (20, 20, 20), (7, 0, 30, 23), (1,) * 60])
def test_draws_in_pieces_are_the_draws_at_once(sizes):
    data = small()
    fill, found = data.S_u.draws(key(0, "pieces"), 60), []
    for size in sizes:
        users, items = np.empty(size, np.int32), np.empty(size, np.int32)
        fill(users, items)
        found += zip(users.tolist(), items.tolist(), strict=True)
    assert found == drawn(data, 60, "pieces")
