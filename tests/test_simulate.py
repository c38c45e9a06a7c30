"""Simulated logs: exact sizes, P/N, determinism, labels that agree with the known truth, NumPy twins of the kernels."""

import dataclasses

import numpy as np
import pytest

from bench import simulator
from dubnb._check import InputError
from dubnb._random import generator
from dubnb.data import simulate as sim
from dubnb.data.partition import PARTS, RANDOMIZED
from dubnb.data.simulate import CONFIGS, draw_world, simulate
from tests import naive_simulate as naive

# With the JIT off, NumPy warns of the hash's intended overflow.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")

TINY = dataclasses.replace(
    CONFIGS["simulated"], n_users=40, n_items=25, n_biased=360, random_users=30, random_each=4, act_min=2, nu=0.3
)
PRODUCT = dataclasses.replace(CONFIGS["product-like"], n_users=20_000, n_biased=47_988, random_users=5_000)


def simulated(config, seed):
    """A log whose mu and kappa are the twin's, which takes a hundredth of the time where there is no JIT."""

    def calibrated(world, config, plan):
        mu, kappa = naive.calibrated(world, config, plan)
        return world._replace(mu=mu, kappa=kappa)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim, "_calibrated", calibrated)
        return simulate(config, seed=seed)


@pytest.fixture(scope="module")
def tiny():
    return simulated(TINY, 3)


@pytest.fixture(scope="module")
def small():
    return simulate("simulated", seed=1)


def ratio(labels):
    return labels.sum() / (len(labels) - labels.sum())


def randomized(partition):
    return (np.concatenate([partition.triplets(part)[column] for part in RANDOMIZED]) for column in range(3))


def every_pair(partition):
    return np.divmod(np.arange(partition.n_users * partition.n_items), partition.n_items)


def test_same_seed_gives_same_bytes_and_another_seed_does_not(tiny):
    assert simulated(TINY, 3).fingerprint == tiny.fingerprint
    assert simulated(TINY, 4).fingerprint != tiny.fingerprint


def test_shapes_of_the_named_configurations():
    sizes = {name: (c.n_users, c.n_items, c.n_biased, c.random_users * c.random_each) for name, c in CONFIGS.items()}
    assert sizes == {
        "simulated": (1_000, 300, 15_000, 20_000),
        "yahoo-like": (15_400, 1_000, 311_704, 54_000),
        "product-like": (2_000_000, 217, 4_798_776, 347_553),
    }


def test_sizes_are_exact_and_logs_do_not_overlap(tiny):
    assert [len(tiny.triplets(part).users) for part in PARTS] == [360, 12, 12, 96]
    assert tiny.removed == 0
    users, _, _ = randomized(tiny)
    assert (np.bincount(users, minlength=40) == [4] * 30 + [0] * 10).all()


def test_activity_keeps_its_floor_and_leaves_room_for_the_randomized_log():
    crowded = dataclasses.replace(TINY, n_biased=40 * 21 - 5)
    n = sim._activity(crowded, seed=0)
    assert n.sum() == crowded.n_biased
    assert n.max() == 21
    n = sim._activity(TINY, seed=0)
    assert n.sum() == 360
    assert n.min() >= 2
    floors = {name: int(sim._activity(CONFIGS[name], seed=0).min()) for name in ("simulated", "yahoo-like")}
    assert floors == {"simulated": 6, "yahoo-like": 10}  # ten as in Yahoo! R3


@pytest.mark.parametrize("n_biased", [81, 200, 360, 835, 840])
def test_activity_is_that_of_its_twin(n_biased):
    """Also where there is hardly any room below or above."""
    config = dataclasses.replace(TINY, n_biased=n_biased, med_random=9.0, med_rest=4.0)
    for seed in range(8):
        noise = generator(seed, "simulate", "activity").standard_normal(40)
        assert sim._activity(config, seed).tolist() == naive.activity(config, noise)


def test_mu_and_kappa_are_those_of_their_twin(tiny):
    found = simulate(TINY, seed=3)
    world, expected = found.truth.world, tiny.truth.world
    assert (world.mu, world.kappa) == pytest.approx((expected.mu, expected.kappa), rel=1e-9)
    for part in PARTS:
        np.testing.assert_array_equal(found.triplets(part).items, tiny.triplets(part).items)


def test_grades_are_levels_of_the_utility(tiny):
    """Cut within negatives and positives of either log; a click that was lost has the grade of a negative."""
    logs = {"S_c": [tiny.triplets("S_c")], "S_t": [tiny.triplets(part) for part in RANDOMIZED]}
    for part, shares in (("S_c", sim.LEVELS_BIASED), ("S_t", sim.LEVELS_RANDOM)):
        users, items, labels, grades = (np.concatenate([log[k] for log in logs[part]]) for k in (0, 1, 2, 4))
        utility = tiny.truth.utility(users, items, policy=part == "S_c")
        np.testing.assert_allclose(grades, naive.grades(utility, labels, shares))
    empty = sim._graded(tiny.truth, tiny.triplets("S_t").take(slice(0)), sim.LEVELS_RANDOM)
    assert len(empty.grades) == 0
    clicks = dataclasses.replace(TINY, graded=False, n_users=12, n_biased=100, random_users=5)
    assert not simulated(clicks, 0).graded and tiny.graded


def test_more_active_users_are_those_of_the_randomized_log():
    n = sim._activity(CONFIGS["yahoo-like"], seed=0)
    assert n.sum() == 311_704
    assert np.median(n[:5_400]) > 1.2 * np.median(n[5_400:])


def test_impossible_size_is_refused():
    with pytest.raises(InputError, match=r"n_biased=79 must lie in 80\.\.840"):
        simulate(dataclasses.replace(TINY, n_biased=79))


def test_unknown_name_and_seed_are_refused():
    with pytest.raises(InputError, match="did you mean 'yahoo-like'"):
        simulate("yahoo-lik")
    with pytest.raises(InputError, match="seed=-1"):
        simulate("simulated", seed=-1)


def test_truth_matches_its_twin(tiny):
    truth, world = tiny.truth, tiny.truth.world
    users, items = every_pair(tiny)
    np.testing.assert_allclose(truth.probability(users, items), naive.probability(world).ravel(), rtol=1e-5)
    np.testing.assert_array_equal(truth.label(users, items), naive.label(world).ravel())
    np.testing.assert_array_equal(truth.policy_label(users, items), naive.policy_label(world).ravel())


def test_utilities_match_their_twin_and_decide_the_labels(tiny):
    truth, world = tiny.truth, tiny.truth.world
    pairs = every_pair(tiny)
    expected = naive.utility(world)
    np.testing.assert_allclose(truth.utility(*pairs), expected.ravel(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(truth.utility(*pairs, policy=True), (expected + world.h).ravel(), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(truth.utility(*pairs) > 0, truth.label(*pairs) == 1)


def test_a_world_follows_from_its_formulas():
    config = dataclasses.replace(CONFIGS["yahoo-like"], n_users=40, n_items=60)
    world = draw_world(config, 5)
    expected = naive.parameters(config, lambda name: generator(5, "simulate", name))
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(world, name), values, rtol=1e-5, atol=1e-6, err_msg=name)
    kept = {name: getattr(world, name) for name in ("beta", "tau", "sk", "nu")}
    assert kept == {name: getattr(config, name) for name in kept}
    assert world.label_key != world.pseudo_key


@pytest.mark.parametrize("chunks", [1, 3])
def test_draws_match_their_twin(tiny, chunks):
    plan = sim._plan(TINY, 3)
    biased, random = sim._draw(tiny.truth.world, plan, np.arange(40), quiet=True, chunks=chunks)
    expected_biased, expected_random = naive.draw(tiny.truth.world, plan)
    np.testing.assert_array_equal(biased, np.concatenate(expected_biased))
    np.testing.assert_array_equal(random, np.concatenate(expected_random))


def test_a_users_draws_do_not_depend_on_the_other_users(tiny):
    plan = sim._plan(TINY, 3)
    biased, random = sim._draw(tiny.truth.world, plan, np.array([31, 7]), quiet=True)
    expected_biased, expected_random = naive.draw(tiny.truth.world, plan)
    np.testing.assert_array_equal(biased, np.concatenate([expected_biased[31], expected_biased[7]]))
    np.testing.assert_array_equal(random, expected_random[7])


def test_race_draws_in_proportion_to_the_weights():
    config = dataclasses.replace(TINY, n_users=4_000, n_items=5, sx=0.0, sk=0.0, tau=0.0)
    world = draw_world(config, 0)
    ones, none = np.ones(4_000, dtype=np.int64), np.zeros(4_000, dtype=np.int64)
    plan = sim.Quotas(ones, none, np.uint64(11), np.uint64(12))
    items, _ = sim._draw(world, plan, np.arange(4_000), quiet=True)
    share = np.exp(world.pop) / np.exp(world.pop).sum()
    np.testing.assert_allclose(np.bincount(items, minlength=5) / 4_000, share, atol=0.03)


def test_rows_are_all_pairs_of_a_user(tiny):
    users, items = np.array([5, 0, 39]), np.arange(25)
    pairs = users[:, None], items[None, :]
    np.testing.assert_array_equal(tiny.truth.probability_rows(users), tiny.truth.probability(*pairs))
    labels = tiny.truth.label_rows(users)
    np.testing.assert_array_equal(labels, tiny.truth.label(*pairs))
    assert labels.dtype == np.float32
    assert labels.shape == (3, 25)


def test_log_labels_are_the_truths(tiny):
    for part in RANDOMIZED:
        users, items, labels, *_ = tiny.triplets(part)
        np.testing.assert_array_equal(labels, tiny.truth.label(users, items))
    users, items, labels, *_ = tiny.triplets("S_c")
    np.testing.assert_array_equal(labels, tiny.truth.policy_label(users, items))


def test_split_is_the_papers_permutation_of_the_log_by_user(tiny):
    log_users = np.repeat(np.arange(30), 4)
    order = np.random.RandomState(0).permutation(120)
    for part, rows in (("S_t", order[:12]), ("S_va", order[12:24]), ("S_te", order[24:])):
        np.testing.assert_array_equal(tiny.triplets(part).users, np.sort(log_users[rows]))


def test_truth_refuses_ids_and_rows_out_of_range(tiny):
    with pytest.raises(InputError, match=r"user row 40 is outside 0\.\.39"):
        tiny.truth.label([0, 40], [0, 0])
    with pytest.raises(InputError, match=r"item row -1 is outside"):
        tiny.truth.probability(0, -1)
    with pytest.raises(InputError, match="item rows of dtype float64"):
        tiny.truth.probability(0, 1.0)


@pytest.mark.needs_jit
def test_labels_are_positive_as_often_as_the_probability_says(small):
    probability, label = (f(np.arange(1_000)) for f in (small.truth.probability_rows, small.truth.label_rows))
    for low, high in ((0.0, 0.02), (0.02, 0.1), (0.1, 0.3), (0.3, 0.6), (0.6, 1.0)):
        within = (probability >= low) & (probability < high)
        noise = np.sqrt((probability * (1 - probability))[within].sum()) / within.sum()
        assert abs(label[within].mean() - probability[within].mean()) < 4 * noise


@pytest.mark.needs_jit
def test_positives_over_negatives_come_out(small):
    _, _, labels = randomized(small)
    assert ratio(labels) == pytest.approx(0.0964, rel=0.03)
    assert ratio(small.triplets("S_c").labels) == pytest.approx(0.6702, rel=0.01)


@pytest.mark.needs_jit
def test_product_like_loses_positives_and_keeps_its_ratios():
    partition = simulate(PRODUCT)
    users, items, labels, *_ = partition.triplets("S_c")
    _, _, random_labels = randomized(partition)
    assert len(labels) == 47_988
    assert np.bincount(users, minlength=20_000).min() == 1
    assert ratio(labels) == pytest.approx(0.1297, rel=0.01)
    assert ratio(random_labels) == pytest.approx(0.0087, rel=0.1)
    world = partition.truth.world
    kept = labels.sum() / type(partition.truth)(world._replace(nu=0.0)).policy_label(users, items).sum()
    assert kept == pytest.approx(0.7, abs=0.03)


def test_indifferent_shows_what_is_available_and_each_user_likes():
    """Popularity says nothing about liking, taste selects, and almost every user is in the log."""
    data = sim.simulate_indifferent(seed=1)
    S_c, (_, _, random_labels) = data.triplets("S_c"), randomized(data)
    assert len(random_labels) == 8_000 and S_c.labels.mean() > random_labels.mean() + 0.02
    popularity = np.bincount(S_c.items, minlength=data.n_items)
    liking = data.truth.probability_rows(np.arange(0, data.n_users, 10)).mean(axis=0)
    assert abs(np.corrcoef(np.log1p(popularity), liking)[0, 1]) < 0.15
    assert len(np.unique(S_c.users)) > 0.99 * data.n_users
    assert ((S_c.grades > 0.5) == S_c.labels).all() and set(np.unique(S_c.grades)) == {0, 0.25, 0.5, 0.75, 1}


@pytest.mark.needs_jit
def test_yahoo_like_has_the_statistics_of_yahoo_r3():
    found = simulator.statistics(simulate("yahoo-like", quiet=True))
    close = {"P/N": 0.02, "item popularity, median": 0.15, "item popularity": 0.2, "AUC": 0.04}
    for name, real in simulator.REAL.items():
        tolerance = next(value for start, value in close.items() if name.startswith(start))
        assert found[name] == pytest.approx(real, rel=tolerance), name
