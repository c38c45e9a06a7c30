"""Labels as companies have them: repeated impressions of a pair, and numbers such as watch seconds."""

import numpy as np
import pandas as pd
import pytest

import dubnb
from dubnb import Partition
from dubnb._check import InputError
from dubnb.data import worlds
from dubnb.data.partition import PARTS, RANDOMIZED
from dubnb.data.rows import LogRows, merged, scale_of
from dubnb.experiments.systems import Choice
from dubnb.methods import _exact, dub_x
from dubnb.objective.terms import Targets
from tests.log_tools import pairs, refused, same

N_USERS, N_ITEMS = 30, 20
REPEATED = "rows repeat a pair and were merged"
pytestmark = pytest.mark.filterwarnings(f"ignore:.*{REPEATED}", "ignore:overflow encountered:RuntimeWarning")


def impressions(seed, n, rate=0.3):
    """Rows user, item, label, time in random order; most pairs come back."""
    rng = np.random.default_rng(seed)
    log = pd.DataFrame({"user": rng.integers(0, N_USERS, n), "item": rng.integers(0, N_ITEMS, n)})
    log["label"], log["time"] = (rng.random(n) < rate).astype(int), rng.permutation(n)
    return log


@pytest.fixture(scope="module")
def logs():
    return impressions(0, 1500), impressions(1, 500)


# ---- repeated pairs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timed", [True, False])
def test_a_click_rate_per_impression_stays_the_label_rate(timed):
    """One click in ten views is not a positive: with the largest label, 5 % become a quarter."""
    random, more = impressions(3, 6000, rate=0.05), {"timestamp": "time"} if timed else {}
    biased = impressions(4, 300)
    random["item"] += 40 * random["time"] % 7  # so that pairs come back six times or so
    data = Partition.from_frames(biased, random, **more)
    labels = np.concatenate([data.triplets(part).labels for part in RANDOMIZED])
    largest = Partition.from_frames(biased, random, duplicates="max", **more)
    assert np.concatenate([largest.triplets(part).labels for part in RANDOMIZED]).mean() > 0.12
    assert abs(labels.mean() - 0.05) < 3 * np.sqrt(0.05 * 0.95 / len(labels))


def test_the_label_is_the_first_by_time_the_grade_the_mean_and_the_weight_saturates(logs):
    biased, random = logs
    with pytest.warns(UserWarning, match=f"{REPEATED}: the label is that of one row, .* n rows weigh 2n / .n . 1."):
        data = Partition.from_frames(biased, random, timestamp="time")
    assert data.has_rates and not data.graded and data.grading == "impressions"
    assert "grades: the share of a pair's impressions that are positive" in data.summary()
    shown = {part: (random if part in RANDOMIZED else biased).groupby(["user", "item"]) for part in PARTS}
    for part in PARTS:
        found = {name: pairs(data, part, column=name) for name in ("labels", "grades", "weights")}
        assert found["labels"]
        for pair, label in found["labels"].items():
            rows = shown[part].get_group(pair)
            assert label == rows.sort_values("time")["label"].iloc[0]
            assert found["grades"][pair] == pytest.approx(rows["label"].mean())
            assert found["weights"][pair] == pytest.approx(2 * len(rows) / (len(rows) + 1))


def test_without_times_a_row_is_drawn_by_the_ids_whatever_the_order(logs):
    plain = [log.drop(columns="time") for log in logs]
    data = Partition.from_frames(*plain)
    shuffled = [log.sample(frac=1, random_state=5) for log in plain]
    assert same(Partition.from_frames(*shuffled), data)
    text = [log.assign(user=log["user"].astype(str)) for log in plain]
    assert pairs(Partition.from_frames(*text), "S_c") == {
        (str(user), item): label for (user, item), label in pairs(data, "S_c").items()
    }
    drawn = pd.DataFrame([pairs(data, "S_c"), pairs(data, "S_c", column="grades")]).T.to_numpy()
    mixed = drawn[(drawn[:, 1] > 0) & (drawn[:, 1] < 1)]
    assert len(mixed) > 60 and abs((mixed[:, 0] - mixed[:, 1]).mean()) < 3 * 0.5 / np.sqrt(len(mixed))
    assert set(drawn[drawn[:, 1] == 0, 0]) == {0} and set(drawn[drawn[:, 1] == 1, 0]) == {1}
    tied = [log.assign(time=log["time"] * 0) for log in logs]
    assert same(Partition.from_frames(*tied, timestamp="time"), data), "rows of one moment have no first"


def test_impressions_by_hand():
    log = LogRows(
        user_ids=np.arange(2),
        item_ids=np.arange(2),
        users=np.array([0, 1, 0, 0, 1]),
        items=np.array([1, 0, 1, 1, 0]),
        labels=np.array([5.0, 2, 1, 4, 1]),
        weights=np.array([1.0, 2, 3, 4, 0.5]),
        times=np.array([10, 5, 30, 20, 4]),
        propensities=np.array([0.1, 0.2, 0.3, 0.4, 0.5]),
    )
    one = merged(log, "impressions", scale_of([log.labels], 3))
    assert one.labels.tolist() == pytest.approx([(5 + 16) / 5, (4 + 0.5) / 2.5]), (
        "the mean on the label's side, by weight"
    )
    assert one.weights.tolist() == pytest.approx([8 / 3 * 1.5, 2.5 / 2 * 4 / 3])
    assert one.times.tolist() == [10, 4] and one.propensities.tolist() == [0.1, 0.5] and one.grades is None
    graded = log._replace(labels=np.array([1.0, 0, 0, 1, 0]), grades=np.array([0.9, 0.2, 0.1, 0.7, 0.4]))
    one = merged(graded, "impressions", scale_of([], None))
    assert one.labels.tolist() == [1, 0] and one.grades.tolist() == pytest.approx([(0.9 + 2.8) / 5, 0.6 / 2.5])


def test_rounding_never_moves_a_mean_across_the_threshold():
    none, weights = np.zeros(3, int), np.array([0.1, 0.7, 0.3])
    log = LogRows(none, none, np.array([3.0, 3, 3]), none[:1], none[:1], weights)
    scale = scale_of([np.arange(1.0, 6)], 3)
    one = merged(log, "impressions", scale)
    assert scale.labels(one.labels).tolist() == [0]


def test_ratings_that_repeat_keep_their_levels(logs):
    rated = [log.assign(label=1 + (7 * log["user"] + log["item"] + log["time"]) % 5) for log in logs]
    data = Partition.from_frames(*rated, threshold=3, timestamp="time")
    assert data.graded and data.grading == "levels"
    for part, log in (("S_c", rated[0]), ("S_te", rated[1])):
        labels, grades, shown = (pairs(data, part), pairs(data, part, column="grades"), log.groupby(["user", "item"]))
        for pair, label in labels.items():
            rows = shown.get_group(pair).sort_values("time")["label"]
            assert label == (rows.iloc[0] > 3)
            assert grades[pair] == pytest.approx((rows[(rows > 3) == bool(label)].mean() - 1) / 4)


def test_logs_without_mixed_pairs_have_no_rates(logs):
    once = [log.drop_duplicates(["user", "item"]) for log in logs]
    data = Partition.from_frames(*once)
    assert data.grading is None and not data.has_rates and "grades" not in data.summary()
    constant = [log.assign(label=(log["user"] + log["item"]) % 2) for log in logs]
    assert Partition.from_frames(*constant).triplets("S_c").grades is None
    clicks = [log[log["label"] == 1].drop(columns="label") for log in logs]
    with pytest.warns(UserWarning, match="click-only"):
        alone = Partition.from_frames(*clicks)
    assert alone.click_only and alone.grading is None and 1.3 < alone.triplets("S_c").weights.max() < 2


def test_a_bad_label_of_a_repeated_pair_is_refused(logs):
    wrong = pd.concat([logs[0], logs[0].head(1).assign(label=7, time=10_000)])
    said = "biased: label 7 is neither 0 nor 1: pass threshold="
    refused(said, Partition.from_frames, wrong, logs[1], timestamp="time")


def test_impressions_after_S_va_begins_say_nothing_of_earlier_pairs(logs):
    """Whatever happens after the first moment that is judged, S_c stays."""
    options = {"timestamp": "time", "split": "time", "shares": (0.5, 0.25, 0.25)}
    biased, random = logs[0].assign(time=logs[0]["time"] / 3), logs[1]
    with pytest.warns(UserWarning, match="left out"):
        data = Partition.from_frames(biased, random, **options)
    begins = random.groupby(["user", "item"])["time"].min().sort_values().iloc[len(data.triplets("S_t").users)]
    later = biased["time"] >= begins
    assert later.any() and data.held_back is not None
    other = biased.assign(label=np.where(later, 1 - biased["label"], biased["label"]))
    with pytest.warns(UserWarning, match="left out"):
        changed = Partition.from_frames(other, random, **options)
    for name in ("users", "items", "labels", "weights", "grades"):
        assert np.array_equal(getattr(data.triplets("S_c"), name), getattr(changed.triplets("S_c"), name)), name
    S_c, held_back = set(pairs(data, "S_c")), data.held_back
    assert not S_c & set(zip(held_back.users.tolist(), held_back.items.tolist(), strict=True))


# ---- labels on a scale ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, 3, 4, 5], "levels"),
        ([0.5, 1.0, 1.5, 4.5, 5.0], "levels"),
        ([0, 25, 50, 100], "levels"),
        (list(range(21)), "levels"),
        (list(range(22)), "ranks"),
        ([0, 1, 2, 500], "ranks"),
        ([0.1, 0.25, 0.71], "ranks"),
        ([1.5, 3.25, 900.0, 3.5], "ranks"),
        ([0, 1], None),
        ([2, 7, 7, 2], None),
    ],
)
def test_few_even_levels_keep_their_place_and_others_are_ranked(values, kind):
    scale = scale_of([np.array(values)], np.median(values))
    assert scale.kind == kind
    if kind == "levels":
        expected = (np.array(values) - min(values)) / (max(values) - min(values))
        assert scale.grades(np.array(values)).tolist() == expected.tolist(), "to the digit"


def test_ranks_by_hand():
    """Among the negatives and the positives of the biased log; values of other logs are placed among them."""
    biased, random = np.array([1.0, 2, 2, 8, 30, 40, 3600]), np.array([0.5, 2.0, 5, 20, 100, 9000])
    scale = scale_of([biased, random], 20)
    assert scale.kind == "ranks"
    negatives, positives = np.array([0.5, 2, 2, 3.5]) / 4, np.array([0.5, 1.5, 2.5]) / 3
    assert scale.grades(biased).tolist() == pytest.approx([*0.5 * negatives, *0.75 + 0.25 * positives])
    expected = [*0.5 * np.array([0, 0.5, 0.75, 1]), *0.75 + 0.25 * np.array([2, 3]) / 3]
    assert scale.grades(random).tolist() == pytest.approx(expected), "20 is no positive"
    only = scale_of([np.array([50.0, 60, 70.5]), random], 20)
    assert only.grades(np.array([2.0])).tolist() == pytest.approx([0.5 * 1.5 / 4]), "a log without negatives ranks none"


def test_seconds_are_ranked_and_S_te_changes_no_grade_of_S_c(logs):
    seconds = [log.assign(label=np.exp(np.random.default_rng(k).normal(2, 2, len(log)))) for k, log in enumerate(logs)]
    data = Partition.from_frames(*seconds, threshold=20, timestamp="time", duplicates="first")
    assert data.graded and data.grading == "ranks" and "grades: the label's rank on its side" in data.summary()
    S_c = data.triplets("S_c")
    negatives = S_c.grades[S_c.labels == 0]
    assert abs(np.median(negatives) - 0.25) < 0.07, "a place within the range would be .01 or so"
    raised = [seconds[0], seconds[1].assign(label=seconds[1]["label"] * 100)]
    other = Partition.from_frames(*raised, threshold=20, timestamp="time", duplicates="first")
    assert np.array_equal(other.triplets("S_c").grades, S_c.grades)
    assert Partition.from_matrices(data.S_c * 0, data.S_t * 0, threshold=0.5).grading is None


# ---- dub-x ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rates(logs):
    return Partition.from_frames(*logs, timestamp="time")


def test_targets_of_rates(rates):
    S_c, S_t = rates.triplets("S_c"), rates.triplets("S_t")
    rule = Targets("rates", negative=0.2, slope=1.0)
    np.testing.assert_allclose(rule.of(rates, "S_c").labels, 0.2 + 0.8 * S_c.grades, rtol=1e-6)
    np.testing.assert_allclose(rule.of(rates, "S_c").weights, S_c.weights * (0.7 + 0.8 * S_c.grades), rtol=1e-6)
    assert np.array_equal(rule.of(rates, "S_t").labels, S_t.grades)
    assert np.array_equal(rule.of(rates, "S_t").weights, S_t.weights)
    with pytest.raises(InputError, match="targets='graded' needs grades"):
        Targets("graded").of(rates, "S_c")


def test_dub_x_trains_on_rates_and_others_on_the_drawn_label(rates, monkeypatch):
    monkeypatch.setattr(dub_x, "FEWEST", 1)  # positives of S_va
    monkeypatch.setattr(dub_x, "ENOUGH", 1)
    assert dubnb.DubX().resolve(rates).targets == "rates" and dubnb.DubX().resolve(rates).negative == "auto"
    assert dubnb.Base().resolve(rates).targets == "binary"
    model = dubnb.DubX(rank=3).fit(rates)
    tried = model.history_.groupby("stage", sort=False)[["choice_difference", "choice_error"]].max()
    assert len(tried) == 12 and tried.index[1].endswith("negatives unobserved")
    better = tried["choice_difference"].iloc[1] > tried["choice_error"].iloc[1]
    assert model.params_["negative"] == ("unobserved" if better else 0.2)
    assert dubnb.DubX(rank=3, gamma=0.01).fit(rates).params_["negative"] == 0.2


def test_comparisons_run_dub_x_on_rates_where_there_are_some(rates, logs):
    once = Partition.from_frames(*(log.drop_duplicates(["user", "item"]) for log in logs))
    for data, names in ((rates, ["dub-x binary", "dub-x rates"]), (once, ["dub-x binary"])):
        systems = [system.name for system in Choice(["beyond"], ["mf"]).systems(data)]
        assert [name for name in systems if name.startswith("dub-x ")] == names


def test_an_unobserved_negative_is_a_pair_of_S_u(rates):
    """Its quadratic and that of term d cancel: nothing is left at the pair but the sum over all pairs."""
    from types import SimpleNamespace

    model = dubnb.DubX(rank=3, gamma=0.05, exposure_power=0.75, negative="unobserved").resolve(rates)
    problem = model.exact_problem(model.all_terms(SimpleNamespace(data=rates), None))
    S_c = rates.triplets("S_c")
    slots = problem.pairs.places(S_c.users, S_c.items, rates.n_items)
    never = S_c.grades == 0
    np.testing.assert_allclose(problem.curvature[slots[never]], 0, atol=1e-6)
    np.testing.assert_allclose(problem.pull[slots[never]], 0, atol=1e-6)
    taken = 0.05 * problem.A[S_c.users] * problem.C[S_c.items]
    expected = 1.5 * S_c.weights * S_c.grades
    np.testing.assert_allclose((problem.curvature[slots] + taken)[~never], expected[~never], rtol=1e-4)


@pytest.mark.filterwarnings("ignore:S_va has")
@pytest.mark.parametrize("negative", [0.2, "unobserved"])
@pytest.mark.parametrize("kind", ["rates", "binary"])
@pytest.mark.parametrize("method", ["dub-x", "dub-i"])
def test_a_new_user_gets_the_row_that_training_gave(rates, negative, kind, method, monkeypatch):
    """A user of the log without pairs in S_t, folded in with the same history; rows weigh 1, as in a history."""
    monkeypatch.setattr(_exact, "CONVERGED", 1e-9)
    S_c, S_t = rates.triplets("S_c"), rates.triplets("S_t")
    S_t = S_t.take(S_t.users > 3)
    data = rates.replace(S_c=S_c._replace(weights=S_c.weights * 0 + 1), S_t=S_t, S_va=S_t.take(slice(0)))
    options = {"rank": 2} if method == "dub-x" else {}
    model = dubnb.make(method, gamma=0.05, negative=negative, targets=kind, epochs=100, **options).fit(data)
    for user in range(3):
        own = S_c.take(S_c.users == user)
        new = model.fold_in(data.item_ids.values[own.items], own.grades if kind == "rates" else own.labels)
        everything = model.decision_function(data.user_ids.values[user], data.item_ids.values)
        np.testing.assert_allclose(new.decision_function(data.item_ids.values), everything, atol=2e-3)


def test_files_keep_an_unobserved_negative(rates, tmp_path):
    model = dubnb.DubX(rank=3, gamma=0.05, negative="unobserved").fit(rates)
    model.save(tmp_path / "m.npz")
    loaded = dubnb.load(tmp_path / "m.npz")
    assert loaded.params_["negative"] == "unobserved" and loaded.params_["targets"] == "rates"
    items = rates.item_ids.values[:4]
    assert np.array_equal(loaded.fold_in(items, [1, 0, 0.5, 0]).row, model.fold_in(items, [1, 0, 0.5, 0]).row)
    again = dubnb.DubX(rank=3).fit(rates, refit=True)
    assert again.params_["negative"] in (0.2, "unobserved")


@pytest.mark.slow
@pytest.mark.needs_jit
def test_the_default_finds_more_of_what_people_like_than_the_largest_label_did():
    """bench/labels.py in small: one world, clicks. With the head the rules differ less in AUC than in likes."""
    labels = pytest.importorskip("bench.labels")
    logs = worlds.make_world("world-niche", "clicks", 0)
    rules = labels.clicks(logs)
    found = {}
    for rule in ("max, weights added", "last, weights added", "the default"):
        data, params = rules[rule]
        data.truth = logs.truth.of(data.user_ids.values - 1, data.item_ids.values - 1)
        found[rule] = labels.judged(dubnb.DubX(**params).fit(data), data)
    auc, likes = found.pop("the default")
    assert all(auc > other[0] and likes > 1.05 * other[1] for other in found.values()), (auc, likes, found)
