"""The invented companies: their statistics, their truth, and the files that a company would have."""

import runpy
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import dubnb
from dubnb._check import InputError
from dubnb.data import worlds
from dubnb.data.datasets import load_dataset

EVERY = pytest.mark.parametrize("world", tuple(worlds.WORLDS))
CELLS = [(world, labels) for world in worlds.WORLDS for labels in ("clicks", "stars", "watch")]
EXAMINED = 1 / (1 + 0.3 * np.arange(10))
USERS, ITEMS = np.arange(2_000), np.arange(600)


@pytest.fixture(scope="module")
def made():
    """make(world, labels, seed), each once."""
    known = {}

    def get(world, labels="clicks", seed=0):
        if (world, labels, seed) not in known:
            known[world, labels, seed] = worlds.make_world(world, labels, seed)
        return known[world, labels, seed]

    return get


def positive(log, labels):
    kind = worlds.LABELS[labels]
    return (log[kind.column] > (kind.threshold or 0)).to_numpy()


def pairs(log):
    return (log.user * 1_000 + log.item).to_numpy()


def correlation_with_liking(logs):
    """Of how often an item was shown with how many people like it."""
    shown = np.bincount(logs.biased.item, minlength=601)[1:]
    return np.corrcoef(np.log1p(shown), logs.truth.probability_rows(USERS).mean(axis=0))[0, 1]


def same_bytes(first, second):
    return all(one.equals(other) for one, other in zip(first[:2], second[:2], strict=True))


# ---- what the logs are like ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "labels"), CELLS)
def test_sizes_and_the_share_of_positives(made, world, labels):
    logs = made(world, labels)
    assert len(logs.random) == 12_000
    assert len(logs.biased) == 80_000 if labels != "stars" else 20_000 < len(logs.biased) < 40_000
    assert 0.08 < positive(logs.random, labels).mean() < 0.10
    assert positive(logs.biased, labels).mean() > 1.2 * positive(logs.random, labels).mean()
    column = worlds.LABELS[labels].column
    for log, slots in ((logs.biased, 10), (logs.random, 5)):
        assert list(log.columns) == ["user", "item", column, "position", "timestamp"]
        assert log.timestamp.is_monotonic_increasing
        assert set(log.position) == set(range(slots))
        assert log.user.between(1, 2_000).all() and log.item.between(1, 600).all()


@EVERY
def test_pairs_come_back_and_meet_in_both_logs(made, world):
    logs = made(world)
    assert 0.1 < logs.biased.duplicated(["user", "item"]).mean() < 0.4
    assert logs.random.duplicated(["user", "item"]).any()
    overlap = np.isin(pairs(logs.random), pairs(logs.biased)).mean()
    assert 0.03 < overlap < 0.10
    sessions = logs.biased.groupby(["user", "timestamp"]).item
    assert (sessions.nunique() == sessions.size()).mean() > 0.999  # no item twice on one page


def test_correlation_of_popularity_and_liking_by_world(made):
    correlation = {world: correlation_with_liking(made(world)) for world in worlds.WORLDS}
    assert correlation["world-popular"] > 0.6
    assert abs(correlation["world-niche"]) < 0.15
    assert correlation["world-promoted"] < -0.1


@EVERY
def test_click_rates_fall_with_the_position(made, world):
    """In the randomized log positions do not depend on the pair, so clicks fall exactly as attention does."""
    clicks, position = (
        np.concatenate([made(world, seed=seed).random[name] for seed in range(3)]) for name in ("click", "position")
    )
    rate = np.bincount(position, clicks) / np.bincount(position)
    np.testing.assert_allclose(rate / rate[0], EXAMINED[:5], atol=0.12)
    assert (np.diff(rate) < 0.005).all()


@EVERY
def test_random_items_are_uniform_given_the_user(made, world):
    from scipy.stats import chisquare

    logs = made(world)
    assert chisquare(np.bincount(logs.random.item, minlength=601)[1:]).pvalue > 1e-3
    busy = logs.random.user.isin(logs.random.user.value_counts().index[:100])  # the most active users alone
    assert chisquare(np.bincount(logs.random.item[busy] // 60, minlength=11)[:10]).pvalue > 1e-3
    assert chisquare(np.bincount(logs.random.position)).pvalue > 0.999
    fame = np.bincount(logs.biased.item, minlength=601)[1:]
    assert abs(np.corrcoef(fame, np.bincount(logs.random.item, minlength=601)[1:])[0, 1]) < 0.15


def test_time_matters_where_tastes_move_and_nowhere_else(made):
    """How well stars of the biased log, early and late ones, agree with what is liked at the end."""
    agreement = {}
    for world in worlds.WORLDS:
        logs = made(world, "stars")
        log = logs.biased
        liked = logs.truth.label(log.user.to_numpy() - 1, log.item.to_numpy() - 1) == positive(log, "stars")
        agreement[world] = [liked[: len(liked) // 4].mean(), liked[-len(liked) // 4 :].mean()]
    early, late = agreement.pop("world-drift")
    assert early < late - 0.1 and late > 0.9
    assert all(each == [1.0, 1.0] for each in agreement.values())


def test_watch_seconds_have_a_long_tail_and_separate_likes(made):
    logs = made("world-niche", "watch")
    seconds = logs.biased.seconds.to_numpy()
    assert np.quantile(seconds, 0.99) > 50 * np.median(seconds) and seconds.min() >= 0
    liked = logs.truth.label(logs.biased.user.to_numpy() - 1, logs.biased.item.to_numpy() - 1) > 0
    long = seconds > 20
    assert liked[long].mean() > 0.8
    assert 0.2 < long[liked].mean() < 0.7  # the others were not examined, or left early


def test_clicks_alone_are_the_clicked_impressions(made):
    clicks, alone, both = (made("world-popular", labels) for labels in ("clicks", "clicks-only", "clicks-only-both"))
    clicked = [log[log.click == 1].drop(columns="click").reset_index(drop=True) for log in clicks[:2]]
    assert alone.biased.equals(clicked[0]) and alone.random.equals(clicks.random)
    assert both.biased.equals(clicked[0]) and both.random.equals(clicked[1])


# ---- the truth -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", ["clicks", "stars"])
@EVERY
def test_truth_is_the_mean_of_redrawn_labels(world, labels):
    """The mean of clicks / P(examined), and of stars above 3, is P(like), for rare likes and for frequent ones."""
    n = 6
    redrawn = [worlds.make_world(world, labels, 5, redraw=k, impressions=10) for k in range(n)]
    first = redrawn[0]
    assert all(pairs(logs.random).tolist() == pairs(first.random).tolist() for logs in redrawn)
    assert len({tuple(positive(logs.random, labels)) for logs in redrawn}) == n
    log = first.random if world != "world-drift" else first.random[-1_000:]  # near the end, where truth is judged
    found = np.mean([positive(logs.random, labels)[log.index] for logs in redrawn], axis=0)
    if labels == "clicks":
        found /= EXAMINED[log.position]
    expected = first.truth.probability(log.user.to_numpy() - 1, log.item.to_numpy() - 1)
    band = np.digitize(expected, [0.05, 0.15, 0.4])
    for each in range(4):
        own = band == each
        error = 4.5 * np.sqrt(expected[own].mean() / EXAMINED[4] / (n * own.sum()))
        assert abs(found[own].mean() - expected[own].mean()) < error + (0.02 if world == "world-drift" else 0)


def test_labels_of_the_truth_are_those_of_the_log(made):
    logs = made("world-promoted", "stars")
    for log in logs[:2]:
        users, items = log.user.to_numpy() - 1, log.item.to_numpy() - 1
        np.testing.assert_array_equal(logs.truth.label(users, items), log.stars > 3)
    rows = logs.truth.label_rows(USERS[:5])
    assert rows.dtype == np.float32 and rows.shape == (5, 600)
    np.testing.assert_array_equal(rows, logs.truth.label(USERS[:5, None], ITEMS[None, :]))
    np.testing.assert_array_equal(logs.truth.policy_label(USERS[:5], ITEMS[:5]), logs.truth.label(USERS[:5], ITEMS[:5]))
    np.testing.assert_array_equal(logs.truth.utility(USERS[:5, None], ITEMS) > 0, rows == 1)
    assert abs(logs.truth.label_rows(USERS).mean() - logs.truth.probability_rows(USERS).mean()) < 0.002
    with pytest.raises(InputError, match="user row 2000 is outside"):
        logs.truth.label(2_000, 0)


def test_a_partition_knows_the_truth_of_its_own_rows(made):
    logs = made("world-drift")
    data = load_dataset("world-drift")
    assert data.n_users < 2_000  # some never came
    np.testing.assert_array_equal(
        data.truth.probability_rows(np.arange(data.n_users)),
        logs.truth.probability(data.user_ids.values[:, None] - 1, data.item_ids.values[None, :] - 1),
    )
    stars = load_dataset("world-niche:stars")
    for part in ("S_c", "S_t", "S_va", "S_te"):
        users, items, labels, *_ = stars.triplets(part)
        np.testing.assert_array_equal(stars.truth.label(users, items), labels)


@pytest.mark.needs_jit
def test_evaluate_compares_with_the_truth():
    data = load_dataset("world-niche:stars")

    def best(users, items):
        return data.truth.probability(data.user_ids.find(users), data.item_ids.find(items))

    assert dubnb.evaluate(best, data)["truth_auc"] > 0.75


# ---- the same again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", tuple(worlds.LABELS))
def test_same_seed_same_bytes(made, labels):
    first, again, other = (worlds.make_world("world-drift", labels, seed) for seed in (0, 0, 1))
    assert same_bytes(first, again) and not same_bytes(first, other)
    np.testing.assert_array_equal(first.truth.logits, again.truth.logits)
    assert not np.array_equal(first.truth.logits, other.truth.logits)


def test_a_smaller_log_is_a_part_of_a_larger_one(made):
    logs = made("world-promoted", "watch")
    small = worlds.make_world("world-promoted", "watch", impressions=8_005, random_rows=203)
    assert len(small.biased) == 8_005 and len(small.random) == 203
    for one, other in zip(small[:2], logs[:2], strict=True):
        assert len(one.merge(other)) == len(one)
    np.testing.assert_array_equal(small.truth.logits, logs.truth.logits)


def test_redraw_changes_reactions_and_nothing_else(made):
    first, redrawn = made("world-popular"), worlds.make_world("world-popular", redraw=1)
    np.testing.assert_array_equal(first.truth.logits, redrawn.truth.logits)
    assert first.random.drop(columns="click").equals(redrawn.random.drop(columns="click"))
    assert (first.random.click != redrawn.random.click).mean() > 0.1
    assert not first.biased.equals(redrawn.biased)


# ---- names and files -------------------------------------------------------------------------------------------------


def test_names_with_labels():
    data = load_dataset("world-niche:stars", seed=3)
    assert data.name == "world-niche:stars" and data.graded
    plain = load_dataset("world-niche")
    assert plain.name == "world-niche" and not plain.graded and not plain.click_only
    assert load_dataset("world-niche:clicks-only").click_only


def test_unknown_names_are_refused_with_the_remedy():
    with pytest.raises(InputError, match=r"labels of dataset 'world-niche'='star' is unknown: .* did you mean 'stars'"):
        load_dataset("world-niche:star")
    with pytest.raises(InputError, match="'simulated' has one kind of labels: leave ':stars' out"):
        load_dataset("simulated:stars")
    with pytest.raises(InputError, match="dataset='world' is unknown"):
        load_dataset("world:stars")
    with pytest.raises(InputError, match="world='niche' is unknown"):
        worlds.make_world("niche")
    with pytest.raises(InputError, match="random_rows=0 must be"):
        worlds.make_world("world-niche", random_rows=0)


@pytest.mark.needs_jit
@pytest.mark.parametrize("labels", tuple(worlds.LABELS))
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_files_become_the_same_partition(tmp_path, labels, form):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    name = f"world-drift:{labels}"
    biased, random, options = worlds.write_world(tmp_path / "new", "world-drift", labels, 2, form)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = dubnb.Partition.from_frames(biased, random, **options)
    assert data.fingerprint == load_dataset(name, seed=2).fingerprint
    content = biased.read_bytes()
    worlds.write_world(tmp_path / "again", "world-drift", labels, 2, form)
    assert (tmp_path / "again" / biased.name).read_bytes() == content


def test_unknown_forms_are_refused(tmp_path):
    with pytest.raises(InputError, match="form='json' is unknown: choose one of csv, parquet"):
        worlds.write_world(tmp_path, "world-niche", form="json")


@pytest.mark.needs_jit
def test_the_example_writes_a_world_or_a_simulated_log(tmp_path, monkeypatch, capsys):
    example = str(Path(__file__).resolve().parents[1] / "examples" / "write_logs.py")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", [example, *map(str, arguments)])
        runpy.run_path(example, run_name="__main__")
        return capsys.readouterr().out

    printed = run("--world", "world-niche", "--labels", "stars", "--seed", 1, "--out", tmp_path / "a")
    assert "--label stars" in printed and "--threshold 3" in printed and "--timestamp timestamp" in printed
    assert (tmp_path / "a" / "log.csv").read_text().startswith("user,item,stars,position,timestamp\n")
    run(tmp_path)
    assert (tmp_path / "log.csv").read_text().startswith("user,item,rating\n")


# ---- what is true of a gain (bench.coverage_compare) -----------------------------------------------------------------


@pytest.mark.needs_jit
@pytest.mark.parametrize("labels", ["clicks", "stars"])
def test_true_values_are_what_the_randomized_log_estimates(made, labels):
    """On S_te the mean over users less the truth is 0, up to four standard errors."""
    from bench.coverage_compare import examined, true_labels, true_values
    from dubnb.evaluation import judge

    logs = made("world-drift", labels)
    data = logs.partition("world-drift")
    model = dubnb.make("popularity").fit(data)
    found = judge(model.weights_, data).judged
    chances = examined(labels) * true_labels(logs, "world-drift", 0, data)["during"]
    scores = model.weights_.score_rows(np.arange(data.n_users))
    for metric in ("user_auc", "percentile"):
        own = getattr(found, metric)
        users = found.users[~np.isnan(own)]
        errors = own[~np.isnan(own)] - true_values(scores, chances, data, metric, users)
        assert abs(errors.mean()) < 4 * errors.std() / np.sqrt(len(errors)) < 0.2


@pytest.mark.slow
def test_compare_keeps_its_promise_on_two_worlds(tmp_path):
    """The small version of bench.coverage_compare: intervals hold, and what it says to take is among the best.

    Where a log cannot tell the systems apart, compare says so, and its choice promises less.
    """
    from bench.coverage_compare import held, one_log

    for world in ("world-niche", "world-promoted"):
        line = one_log(world, "stars", 1000, tmp_path / world)
        assert all(held(claim, "during") for claim in line["claims"])
        assert line["share_of_best"] > (0.9 if line["takes"] else 0.8)
