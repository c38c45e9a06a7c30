"""Randomized logs with logged propensities: reading, weights, metrics, training."""

import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import coo_matrix

import dubnb
from dubnb import InputError, Partition, calibration, metrics, stats
from dubnb.data.chances import judged_chances
from dubnb.data.pattern import RANDOMIZED
from dubnb.data.simulate import epsilon_greedy_chances, explore, softmax_chances
from dubnb.evaluation import judge
from dubnb.experiments.budgets import BUDGETS
from dubnb.experiments.study import WHOLE, Case, Design, Study
from dubnb.experiments.systems import System
from dubnb.methods._method import all_randomized
from dubnb.objective import bounds, terms
from dubnb.objective.terms import item_rates, mean_target, randomized
from dubnb.theory import audit as audits
from tests import naive
from tests.method_tools import quietly
from tests.naive import LogOddsTable


def frames(n=120, seed=0):
    """A biased log and a randomized one with P(shown) in the column p."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(20 * 15)
    logs = []
    for own in (pairs[:n], pairs[n : 2 * n]):
        log = {"user": own // 15, "item": own % 15, "label": rng.integers(0, 2, n), "p": rng.uniform(0.05, 0.5, n)}
        logs.append(pd.DataFrame(log))
    return logs


def by_pair(data, part):
    """{(user id, item id): propensity} of one part."""
    own = data.triplets(part)
    ids = data.user_ids.values[own.users].tolist(), data.item_ids.values[own.items].tolist()
    return dict(zip(zip(*ids, strict=True), own.propensities.tolist(), strict=True))


def everywhere(data):
    return {pair: p for part in RANDOMIZED for pair, p in by_pair(data, part).items()}


def logged(random):
    rows = zip(random["user"], random["item"], random["p"], strict=True)
    return {(user, item): float(np.float32(p)) for user, item, p in rows}


def written(frame, path):
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


# ---- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["random", "user", "permutation"])
def test_propensities_follow_their_pairs_into_every_part(split):
    biased, random = frames()
    data = Partition.from_frames(biased.drop(columns="p"), random, random_propensity="p", split=split)
    assert everywhere(data) == logged(random)
    assert data.propensities is None and data.triplets("S_c").propensities is None
    own = data.triplets("S_t").propensities
    assert own.dtype == np.float32 and not own.flags.writeable


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_propensities_are_read_from_files(suffix, tmp_path):
    biased, random = frames()
    paths = [written(log, tmp_path / f"{name}{suffix}") for name, log in (("b", biased), ("r", random))]
    data = Partition.from_frames(*paths, random_propensity="p", propensity="p")
    assert everywhere(data) == pytest.approx(logged(random))
    assert sorted(data.propensities) == pytest.approx(sorted(biased["p"]))


def test_ready_made_splits_have_propensities_each():
    biased, random = frames()
    parts = {"S_t": random[:60], "S_va": random[60:90], "S_te": random[90:]}
    data = Partition.from_frames(biased, parts, random_propensity="p")
    assert everywhere(data) == logged(random)
    with pytest.raises(InputError, match="column 'p' is missing"):
        Partition.from_frames(biased, parts | {"S_va": parts["S_va"].drop(columns="p")}, random_propensity="p")


@pytest.mark.parametrize("columns", ["one", "two"])
def test_one_table_has_a_propensity_for_each_kind_of_row(columns):
    biased, random = frames()
    table = pd.concat([biased.assign(is_random=0), random.assign(is_random=1)], ignore_index=True)
    names = {"propensity": "p", "random_propensity": "p"}
    if columns == "two":
        table["q"] = np.where(table["is_random"] == 1, table["p"], np.nan)
        table.loc[table["is_random"] == 1, "p"] = np.nan
        names["random_propensity"] = "q"
    data = Partition.from_table(table, is_random="is_random", **names)
    assert everywhere(data) == logged(random)
    assert sorted(data.propensities) == pytest.approx(sorted(biased["p"]))


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.5, np.nan, np.inf, 1e-60])
@pytest.mark.parametrize("one_table", [False, True])
def test_impossible_propensities_of_a_randomized_log_are_refused(bad, one_table):
    biased, random = frames()
    random.loc[7, "p"] = bad
    with pytest.raises(InputError, match=r"column 'p', row \d+: propensity .* must be above 0 and at most 1") as error:
        if one_table:
            table = pd.concat([biased.assign(r=0), random.assign(r=1)], ignore_index=True)
            Partition.from_table(table, is_random="r", random_propensity="p")
        else:
            Partition.from_frames(biased, random, random_propensity="p", drop_bad=True)
    assert f"row {8 + one_table * len(biased)}" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("rule", ["impressions", "first", "last", "max", "mean"])
def test_merged_impressions_average_one_over_p_by_weight(rule):
    biased, random = frames()
    random["w"] = biased["w"] = 1.0
    again = random[:1].assign(p=0.5, w=3.0)
    random.loc[0, "p"] = 0.1
    with pytest.warns(UserWarning, match="repeat a pair"):
        data = Partition.from_frames(
            biased, pd.concat([random, again]), random_propensity="p", duplicates=rule, weight="w"
        )
    pair = random.loc[0, "user"], random.loc[0, "item"]
    assert everywhere(data)[pair] == pytest.approx(4 / (1 / 0.1 + 3 / 0.5))


def test_a_column_of_propensities_that_is_not_read_is_mentioned():
    biased, random = frames()
    with pytest.warns(UserWarning, match="column 'p' is not read for randomized rows.*random_propensity='p'"):
        assert Partition.from_frames(biased, random, propensity="p").triplets("S_t").propensities is None
    table = pd.concat([biased.assign(r=0), random.assign(r=1)], ignore_index=True)
    with pytest.warns(UserWarning, match="column 'p' is not read for randomized rows"):
        Partition.from_table(table, is_random="r", propensity="p")
    for name in ("propensity_score", "p", "action_prob", "Probability"):
        with pytest.warns(UserWarning, match=f"column '{name}' is not read"):
            Partition.from_frames(biased, random.rename(columns={"p": name}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Partition.from_frames(biased.drop(columns="p"), random.drop(columns="p"))
        Partition.from_frames(*(log.rename(columns={"p": "pages"}) for log in (biased, random)))


def mentions(call):
    """The warnings of a call."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in said]


def test_a_column_of_propensities_that_the_biased_log_does_not_read_is_mentioned():
    biased, random = frames()

    def two(biased, random=random, **options):
        return mentions(lambda: Partition.from_frames(biased, random, **{"random_propensity": "p"} | options))

    unread = "column 'p' is not read for rows of the biased log: if it is P(observed) there, pass propensity='p'"
    assert [unread in said for said in two(biased)] == [True]
    assert "column 'pscore' is not read" in two(biased.rename(columns={"p": "pscore"}))[0]
    for quiet in (biased.assign(p=0.1), biased.assign(p=np.nan), biased.drop(columns="p")):
        assert two(quiet) == []
    assert two(biased, propensity="p") == []

    def one(biased, **options):
        table = pd.concat([biased.assign(r=0), random.assign(r=1)], ignore_index=True)
        return mentions(lambda: Partition.from_table(table, is_random="r", **options))

    assert [unread in said for said in one(biased, random_propensity="p")] == [True]
    assert one(biased.assign(p=np.nan), random_propensity="p") == one(biased.assign(p=1.0), random_propensity="p") == []
    assert one(biased, random_propensity="p", propensity="p") == []
    assert ["for randomized rows" in said for said in one(biased)] == [True]


def test_columns_named_like_options_are_mentioned_once_if_they_are_not_read():
    biased, random = (log.drop(columns="p").assign(weight=2.0, timestamp=log.index) for log in frames())
    said = mentions(lambda: Partition.from_frames(biased, random.assign(stratum="a")))
    assert said == [
        "biased: not read: 'weight', 'timestamp'; to use it, pass weight='weight', timestamp='timestamp' "
        "(docs/logs.md)",
        "random: not read: 'stratum'; to use it, pass stratum='stratum' (docs/logs.md)",
    ]
    table = pd.concat([biased.assign(r=0, eligible=1), random.assign(r=1, eligible=1)], ignore_index=True)
    said = mentions(lambda: Partition.from_table(table, is_random="r", timestamp="timestamp"))
    assert said == ["table: not read: 'weight', 'eligible'; to use it, pass weight='weight', eligible= (docs/logs.md)"]
    assert mentions(lambda: Partition.from_frames(biased, random, timestamp="timestamp", weight="weight")) == []


@pytest.mark.parametrize("empty", [np.nan, None])
def test_a_missing_propensity_is_named_missing(empty, tmp_path):
    biased, random = frames()
    random["p"] = random["p"].astype(object)
    random.loc[7, "p"] = empty
    path = written(random, tmp_path / "random.csv")
    for log in (random, path):
        with pytest.raises(InputError, match=r"row 8: propensity is missing .*drop_bad=True does not drop such rows"):
            Partition.from_frames(biased, log, random_propensity="p", drop_bad=True)


@pytest.mark.parametrize("name", ["position", "slot", "page_position"])
def test_a_column_of_positions_is_mentioned_since_nothing_reads_it(name):
    biased, random = (frame.drop(columns="p").assign(**{name: 1}) for frame in frames())
    with pytest.warns(UserWarning, match=f"column '{name}' is not read: position is not modelled.*weight") as both:
        Partition.from_frames(biased, random)
    assert len(both) == 2
    table = pd.concat([biased.assign(r=0), random.assign(r=1)], ignore_index=True)
    with pytest.warns(UserWarning, match=f"column '{name}' is not read") as one:
        Partition.from_table(table, is_random="r")
    assert len(one) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Partition.from_frames(biased, random, timestamp=name)  # a role of its own


# ---- partitions ----------------------------------------------------------------------------------------------------


def explored(seed=0, p=None):
    """A Partition of 20 x 15 with propensities in its randomized parts."""
    biased, random = frames(seed=seed)
    return Partition.from_frames(biased, random.assign(p=random["p"] if p is None else p), random_propensity="p")


def columns(data):
    return {part: tuple(data.triplets(part)) for part in ("S_c", *RANDOMIZED)}


def test_matrices_may_carry_propensities():
    data = explored()
    parts = {part: getattr(data, part) for part in ("S_c", *RANDOMIZED)}
    chances = {}
    for part in RANDOMIZED:
        own = data.triplets(part)
        order = np.random.default_rng(0).permutation(len(own.users))  # stored in another order than the part
        chances[part] = coo_matrix((own.propensities[order], (own.users[order], own.items[order])), shape=(20, 15))
    chances["S_c"] = data.S_c.copy()
    chances["S_c"].data = np.linspace(0.1, 0.9, data.S_c.nnz)
    found = Partition.from_matrices(**parts, propensities=chances)
    assert everywhere(found) == everywhere(data) and found.propensities == pytest.approx(chances["S_c"].data)
    short = chances | {"S_va": chances["S_te"]}
    with pytest.raises(InputError, match=re.escape("propensities['S_va'] must store one value for each pair")):
        Partition.from_matrices(**parts, propensities=short)
    with pytest.raises(InputError, match="S_te has no propensities but S_t has"):
        Partition.from_matrices(**parts, propensities={part: chances[part] for part in ("S_t", "S_va")})
    with pytest.raises(InputError, match=r"propensities is a .*: pass \{part: matrix\}"):
        Partition.from_matrices(**parts, propensities=chances["S_t"])


@pytest.mark.parametrize("bad", [0.0, 1.5, np.nan])
def test_a_partition_checks_propensities(bad):
    parts = columns(explored())
    spoiled = parts["S_va"][5].copy()
    spoiled[2] = bad
    with pytest.raises(InputError, match=f"S_va: propensity {bad:g} must be above 0 and at most 1"):
        Partition(parts | {"S_va": (*parts["S_va"][:5], spoiled)}, (20, 15))
    with pytest.raises(InputError, match="S_te has no propensities but S_t has"):
        Partition(parts | {"S_te": parts["S_te"][:5]}, (20, 15))
    with pytest.raises(InputError, match="S_c has a sixth column"):
        Partition(parts | {"S_c": (*parts["S_c"][:5], np.full(len(parts["S_c"][0]), 0.5))}, (20, 15))


def test_propensities_change_the_fingerprint_and_nothing_else_does():
    data, other = explored(), explored(p=0.25)
    plain = Partition({part: own[:5] for part, own in columns(data).items()}, (20, 15))
    assert len({data.fingerprint, other.fingerprint, plain.fingerprint}) == 3
    assert data.fingerprint == explored().fingerprint


def test_derived_logs_keep_propensities():
    data = explored()
    for log in (
        data.replace(name="x"),
        data.replace(S_c=data.triplets("S_c").take(slice(0, 50))),
        data.replace(S_c=data.triplets("S_c")),
    ):
        assert everywhere(log) == everywhere(data)
    refit = all_randomized(data, everything=True)
    assert by_pair(refit, "S_t") == everywhere(data)
    assert by_pair(all_randomized(data), "S_t") == by_pair(data, "S_t") | by_pair(data, "S_va")
    with pytest.raises(InputError, match="S_t has no propensities but S_va has"):
        data.replace(S_t=data.triplets("S_t")._replace(propensities=None))
    assert data.unseen("S_te").propensities is not None


# ---- weights -------------------------------------------------------------------------------------------------------


def test_importance_is_one_over_p_of_mean_one_truncated_at_the_root_of_n():
    data = explored()
    for part in RANDOMIZED:
        own = data.importance(part)
        assert own == pytest.approx(naive.importance(data.triplets(part).propensities)) and own.mean() == pytest.approx(
            1
        )
        assert data.effective_sample_size(part) == pytest.approx(own.sum() ** 2 / (own**2).sum())
    rare = np.full(100, 0.5)
    rare[0] = 1e-6
    pairs = np.divmod(np.arange(100), 15)
    S_t = *pairs, np.arange(100) % 2, None, None, rare
    none = {part: ([], [], []) for part in ("S_va", "S_te")}
    own = Partition({"S_c": ([19], [14], [1]), "S_t": S_t} | none, (20, 15)).importance("S_t")
    inverse = 1 / rare / np.mean(1 / rare)
    assert inverse.max() > 99 and own == pytest.approx(naive.importance(rare))
    assert own[0] / own[1] == pytest.approx(10 / inverse[1])


def test_without_or_with_equal_propensities_nothing_weighs_more():
    plain = Partition({part: own[:5] for part, own in columns(explored()).items()}, (20, 15))
    for data in (plain, explored(p=0.3)):
        for part in RANDOMIZED:
            assert data.importance(part) is None and data.judging_weights(part) is None
            assert data.effective_sample_size(part) == len(data.triplets(part).users)
    data = explored()
    assert data.importance("S_c") is None and "effective sample sizes S_t" in data.summary()
    assert "propensities" not in plain.summary()


@pytest.mark.parametrize("method", ["unif", "dub", "dub-x", "popularity-t", "autodebias", "ips"])
def test_equal_propensities_change_no_bit(method):
    data = explored(p=0.3)
    plain = Partition({part: own[:5] for part, own in columns(data).items()}, (20, 15))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fits = [dubnb.make(method, epochs=2, rank=3).fit(log) for log in (data, plain)]
        results = [model.evaluate(log) for model, log in zip(fits, (data, plain), strict=True)]
    for name, array in fits[0].weights_.arrays().items():
        assert array.tobytes() == fits[1].weights_.arrays()[name].tobytes()
    np.testing.assert_equal(*results)


def test_training_weighs_samples_of_S_t_by_importance():
    data = explored()
    S_t, own = data.triplets("S_t"), data.importance("S_t")
    for term in (terms.term_a(data), terms.term_e1(data)):
        assert term.weights == pytest.approx(own, rel=1e-6) and term.weights.dtype == np.float32
    assert mean_target(data) == pytest.approx(np.average(S_t.labels, weights=own), rel=1e-6)
    rates, mean = item_rates(randomized(data), data.n_items, prior=0.5)
    chosen = S_t.items == S_t.items[0]
    expected = ((own * S_t.labels)[chosen].sum() + 0.5 * mean) / (own[chosen].sum() + 0.5)
    assert rates[S_t.items[0]] == pytest.approx(expected, rel=1e-6)
    assert (terms.term_c(data).weights == 1).all()


def test_history_and_calibration_know_the_weights():
    data = explored()
    model = quietly(dubnb.make("combine", rank=2, epochs=2).fit, data)
    assert (model.history_["effective_S_t"] == data.effective_sample_size("S_t")).all()
    S_va = data.triplets("S_va")
    scores = model.weights_.score_pairs(S_va.users, S_va.items)
    expected = calibration.Calibration.fit(scores, S_va.labels, data.importance("S_va"))
    assert model.calibration_.slope == pytest.approx(expected.slope, rel=1e-5)
    assert model.calibration_.intercept == pytest.approx(expected.intercept, rel=1e-5)
    S_va = data.unseen("S_va")
    kept = float(model.history_["va_auc"].iloc[model.lengths_["M_c"] - 1])
    own = metrics.auc(model.weights_.score_pairs(S_va.users, S_va.items), S_va.labels, data.judging_weights("S_va"))
    assert own == pytest.approx(kept)


# ---- metrics -------------------------------------------------------------------------------------------------------


def with_overlap(seed=3):
    """Several pairs per user with weights of their own, ties in propensities, and pairs in both logs."""
    rng = np.random.default_rng(seed)
    biased, random = frames(110, seed)
    biased = pd.concat([biased, random[:15].assign(label=1)], ignore_index=True)
    random = random.assign(w=rng.choice([1.0, 2.0, 3.5], len(random)), p=rng.choice([0.02, 0.1, 0.5], len(random)))
    return Partition.from_frames(
        biased.assign(w=1.0), random, random_propensity="p", weight="w", shares=(0.2, 0.2, 0.6)
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("protocol", ["full-ranking", "test-items"])
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_weighted_metrics_equal_loops(protocol, seed):
    data = with_overlap(seed)
    assert data.removed
    scores = np.round(np.random.default_rng(seed).standard_normal((data.n_users, data.n_items)), 1)  # with ties
    found = dubnb.evaluate(LogOddsTable(scores), data, protocol, ks=(3, 5))
    expected = naive.weighted_evaluate(scores, data, protocol, (3, 5))
    assert {"auc", "user_auc", "ndcg", "p@3", "r@5"} <= set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value), name
    own, S_te = data.judging_weights("S_te"), data.unseen("S_te")
    p = LogOddsTable(scores).probabilities(scores[S_te.users, S_te.items])
    assert found["log_loss"] == pytest.approx(
        np.average(-np.log(np.where(S_te.labels == 1, p, 1 - p)), weights=own), rel=1e-6
    )
    assert found["brier"] == pytest.approx(np.average((p - S_te.labels) ** 2, weights=own))
    assert found["effective_pairs"] == pytest.approx(own.sum() ** 2 / (own**2).sum())
    every = data.triplets("S_te")
    both = naive.weighted_auc(scores[every.users, every.items], every.labels, data.importance("S_te") * every.weights)
    assert found["auc_with_overlap"] == pytest.approx(both)


def test_bootstrap_of_the_auc_takes_weights():
    rng = np.random.default_rng(2)
    first, second = np.round(rng.standard_normal((2, 80)), 1)
    labels, users, w = rng.integers(0, 2, 80), rng.integers(0, 12, 80), rng.uniform(0.1, 4, 80)
    found = stats.auc_bootstrap(first, second, labels, users, 200, weights=w)
    assert found.difference == pytest.approx(metrics.auc(first, labels, w) - metrics.auc(second, labels, w))
    ones = stats.auc_bootstrap(first, second, labels, users, 200, weights=np.full(80, 2.0))
    assert ones == pytest.approx(stats.auc_bootstrap(first, second, labels, users, 200))
    assert found != pytest.approx(ones)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("metric", ["ndcg", "p@5", "user_auc", "percentile", "auc"])
def test_a_study_compares_weighted_means(metric):
    """Means of its values by user, and differences of its comparisons, are those of the weighted metrics."""
    data, cases = with_overlap(), [Case(System("base", "base", "mf")), Case(System("dub", "dub", "mf"))]
    study, found = Study(Design(data, {WHOLE: data}, cases), BUDGETS["smoke"], "unused"), {}
    for number, case in enumerate(cases):
        scores = np.random.default_rng(number).standard_normal((data.n_users, data.n_items)).astype(np.float32)
        own = judge(LogOddsTable(scores), data)
        S_te = data.triplets("S_te")
        output = SimpleNamespace(
            users=own.users,
            per_user=own.values,
            judged_users={"S_te": own.judged},
            scores=scores[S_te.users, S_te.items],
        )
        study.results[case] = [SimpleNamespace(output=output, metrics=own.result)]
        found[case] = own.result[metric]
        if metric != "auc":
            assert study.by_user(case, metric).mean() == pytest.approx(found[case])
    compared = study.compare(*cases, metric)
    assert compared.difference == pytest.approx(found[cases[0]] - found[cases[1]])


@pytest.mark.filterwarnings("ignore")
def test_interval_of_liked_is_that_of_the_weighted_share():
    data = with_overlap()
    scores = np.random.default_rng(8).standard_normal((data.n_users, data.n_items))
    found, S_te = dubnb.evaluate(LogOddsTable(scores), data, ks=(10,)), data.unseen("S_te")
    barred = data.everything_but("S_te").mask(np.arange(data.n_users), data.n_items)
    own = 1 / judged_chances(data, "S_te")
    place = (-np.where(barred, -np.inf, scores)).argsort(axis=1).argsort(axis=1)
    listed = place[S_te.users, S_te.items] < 10
    share = stats.weighted_share(own[listed], S_te.labels[listed], S_te.users[listed])
    assert found["liked@10"] == pytest.approx(share.rate)
    assert (found["liked@10_low"], found["liked@10_high"]) == pytest.approx((share.low, share.high), abs=0.02)
    assert 0 < found["judged@10"] <= listed.sum()


@pytest.mark.filterwarnings("ignore")
def test_softmax_exploration_is_judged_as_uniform_traffic_would_be():
    """Unweighted, the AUC of a log that favours what the base model likes is too high; weighted, it is unbiased."""
    data = dubnb.load_dataset("simulated", seed=0)
    users = np.arange(data.n_users)
    models = {name: dubnb.make(name).fit(data).weights_ for name in ("base", "dub-x")}
    scores = models["base"].score_rows(users).astype(np.float64)
    free = ~data.logged.mask(users, data.n_items)
    chances = softmax_chances((scores - scores.mean()) / scores.std(), 0.5, free)
    assert chances.sum(axis=1) == pytest.approx(1) and (chances[~free] == 0).all()
    plain, weighted, truth = [], [], []
    for seed in range(8):
        log = explore(data, chances, 20_000, seed=seed)
        S_te = log.unseen("S_te")
        own = [model.score_pairs(S_te.users, S_te.items) for model in models.values()]
        plain.append([metrics.auc(each, S_te.labels) for each in own])
        results = [dubnb.evaluate(model, log) for model in models.values()]
        weighted.append([result["auc"] for result in results])
        truth.append([result["truth_auc"] for result in results])
    error = np.std(weighted, axis=0, ddof=1) / np.sqrt(len(weighted))
    off = np.mean(weighted, axis=0) - np.mean(truth, axis=0)
    assert (np.abs(off) < 3.5 * error).all() and (error < 0.005).all()
    assert (np.mean(plain, axis=0) - np.mean(truth, axis=0) > np.array([0.01, 0.005])).all()


def test_epsilon_greedy_chances():
    scores = np.array([[3.0, 2.0, 1.0, 9.0]])
    found = epsilon_greedy_chances(scores, 0.3, eligible=np.array([[True, True, True, False]]))
    assert found == pytest.approx(np.array([[0.8, 0.1, 0.1, 0.0]]))
    assert epsilon_greedy_chances(scores, 0.4, top=2) == pytest.approx(np.array([[0.4, 0.1, 0.1, 0.4]]))


def test_repeated_impressions_count_as_often_as_they_were_shown():
    """Each impression weighs 1 / p: the merged pair's weight over its propensity is the sum."""
    biased, random = frames()
    again = pd.concat([random, random[:30], random[:10]], ignore_index=True)
    with pytest.warns(UserWarning, match="weights are added"):
        data = Partition.from_frames(biased, again, random_propensity="p")
    with pytest.warns(UserWarning, match="2n / "):
        same = Partition.from_frames(biased, again.assign(p=0.25), random_propensity="p")
    shown = again.groupby(["user", "item"])["p"].agg(lambda p: (1 / p).sum()).to_dict()
    for part in RANDOMIZED:
        own = data.triplets(part)
        for user, item, w, p in zip(own.users, own.items, own.weights, own.propensities, strict=True):
            assert w / p == pytest.approx(shown[data.user_ids.values[user], data.item_ids.values[item]], rel=1e-5)
        assert (same.triplets(part).weights <= 1.5).all()


# ---- audit ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policies():
    """(simulated data, {name: an exploration policy's chances}); the last one also shows what users had."""
    data = dubnb.load_dataset("simulated", seed=0)
    users = np.arange(data.n_users)
    rates = data.truth.probability_rows(users)
    logits, free = np.log(rates / (1 - rates)), ~data.logged.mask(users, data.n_items)
    return data, {
        "softmax": softmax_chances(logits, 2.0, free),
        "epsilon-greedy": epsilon_greedy_chances(logits, 0.2, 3, free),
        "all items": softmax_chances(logits, 2.0),
    }


def with_propensities(log, change):
    parts = {part: log.triplets(part) for part in RANDOMIZED}
    return log.replace(**{part: own._replace(propensities=change(own)) for part, own in parts.items()})


def answers_of(log, groups=None):
    return {answer.name: answer for answer in audits._with_holm(audits._propensities(log, groups))}


@pytest.mark.parametrize("policy", ["softmax", "epsilon-greedy", "all items"])
def test_right_propensities_are_rarely_doubted(policies, policy):
    """P(alarm) is at most .05: more than 8 alarms in 60 logs would have a probability below .003."""
    data, chances = policies
    logs = [explore(data, chances[policy], 6_000, seed=seed) for seed in range(60)]
    alarms = sum(any(answer.verdict == audits.NO for answer in answers_of(log).values()) for log in logs)
    assert alarms <= 8


def shown_once(chances, seed, timed=False, biased=None):
    """15 impressions of each user by a policy that shows no pair twice, with the chance among what is left."""
    rng, n, shape = np.random.default_rng(seed), 15, chances.shape
    with np.errstate(divide="ignore"):
        keys = np.log(chances) + rng.gumbel(
            size=shape
        )  # the largest keys are draws without replacement (Gumbel's trick)
    items = np.argsort(-keys, axis=1)[:, :n]
    own = np.take_along_axis(chances, items, axis=1)
    p = own / (chances.sum(axis=1, keepdims=True) - np.cumsum(own, axis=1) + own)
    columns = np.repeat(np.arange(shape[0]), n), items.ravel(), rng.integers(0, 2, items.size), np.ones(items.size)
    times = np.tile(np.arange(n) * 1.0, shape[0]) if timed else None
    biased = np.divmod(rng.permutation(chances.size)[:500], shape[1]) if biased is None else biased
    parts = {"S_c": (*biased, np.ones(len(biased[0]))), "S_t": (*columns, None, p.ravel(), times)}
    return Partition(parts | {"S_va": ([], [], []), "S_te": ([], [], [])}, shape)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("epsilon", [0.4, 1.0])
def test_policies_that_show_no_pair_twice_are_rarely_doubted(epsilon, timed):
    chances = epsilon_greedy_chances(np.random.default_rng(0).standard_normal((150, 50)), epsilon, 5)
    logs = [shown_once(chances, seed, timed) for seed in range(40)]
    found = [answers_of(log) for log in logs]
    assert sum(any(answer.verdict == audits.NO for answer in each.values()) for each in found) <= 6
    assert np.mean([each["weights"].number for each in found]) == pytest.approx(1, abs=0.01)
    assert "not shown before" in found[0]["weights"].reason
    S_t = logs[0].triplets("S_t")
    half = answers_of(logs[0].replace(S_t=S_t._replace(propensities=S_t.propensities / 2)))
    assert half["weights"].verdict == audits.NO


def test_exact_propensities_are_not_doubted_for_their_rounding():
    """1 / p of a uniform choice among what is left adds up exactly, up to 24 bits."""
    chances = np.ones((150, 50))
    chances[:, :5] = 0.0
    for seed in range(3):
        found = answers_of(shown_once(chances, seed, biased=np.nonzero(chances == 0)))
        assert found["weights"].number == pytest.approx(1, abs=1e-6) and found["weights"].verdict == audits.YES


def test_wrong_propensities_are_found(policies):
    data, chances = policies
    log = explore(data, chances["softmax"], 20_000, seed=1)
    found = answers_of(log, np.arange(data.n_items) % 2)
    assert [answer.verdict for answer in found.values()] == [audits.YES] * 3
    assert found["weights"].number == pytest.approx(1, abs=0.05)
    half = answers_of(with_propensities(log, lambda own: own.propensities / 2))
    assert half["weights"].verdict == audits.NO and half["weights"].number == pytest.approx(2, abs=0.1)
    popularity = np.bincount(data.triplets("S_c").items, minlength=data.n_items)
    tilted = with_propensities(
        log, lambda own: own.propensities * np.where(popularity[own.items] > np.median(popularity), 0.8, 1.25)
    )
    assert answers_of(tilted)["exposure"].verdict == audits.NO
    odd = with_propensities(log, lambda own: own.propensities * np.where(own.items % 2, 0.8, 1.0))
    assert answers_of(odd, np.arange(data.n_items) % 2)["groups"].verdict == audits.NO


@pytest.mark.filterwarnings("ignore")
def test_an_audit_of_explored_traffic_asks_about_propensities(policies):
    data, chances = policies
    log = explore(data, chances["softmax"], 6_000, seed=1)
    found = dubnb.audit(log, n_draws=99)
    names = {answer.name: answer for answer in found.answers}
    assert {"weights", "exposure", "positivity", "effective"} <= set(names) and not {"items", "overlap"} & set(names)
    assert found.uniform and "No evidence against the logged propensities" in found.summary
    part = f"S_te {log.effective_sample_size('S_te'):,.0f} of {len(log.triplets('S_te').users):,}"
    assert part in names["effective"].reason and "propensities are" in names["positivity"].reason
    wrong = dubnb.audit(with_propensities(log, lambda own: own.propensities / 2), n_draws=99)
    assert wrong.uniform is False and "do NOT fit" in wrong.summary
    gated = dubnb.audit(with_propensities(log, lambda own: np.append(1e-6, own.propensities[1:])), n_draws=99)
    asked = "Whether the logged propensities are right cannot be told from these data, because one pair alone weighs"
    assert gated.uniform is None and gated.summary.startswith(asked)
    few = with_overlap().replace(S_c=with_overlap().triplets("S_c"))
    assert all(answer.verdict == audits.UNKNOWN for answer in audits._propensities(few, None))
    assert "weights" not in {answer.name for answer in dubnb.audit(data, n_draws=99).answers}


# ---- theory and documentation --------------------------------------------------------------------------------------


def test_slacks_of_weighted_draws_hold_in_1000_logs():
    """A skewed policy over 50 pairs with known losses in [0, 1]; also by hand."""
    rng = np.random.default_rng(0)
    losses, p = rng.random(50), softmax_chances(rng.standard_normal((1, 50)))[0]
    w, n, eta = 1 / (p * 50), 400, 0.05
    fixed, failures = bounds.propensity_slack(1.0, w.max(), n, eta), np.zeros(2)
    assert fixed == pytest.approx(w.max() * np.sqrt(np.log(2 / eta) / (2 * n)))
    for _ in range(1000):
        drawn = rng.choice(50, n, p=p)
        values = (w * losses)[drawn]
        off = abs(values.mean() - losses.mean())
        failures += off > fixed, off > bounds.bernstein_slack(values, w.max(), eta)
    assert (failures == 0).all()  # both are wide
    L, V = np.log(4 / eta), values.var(ddof=1)
    expected = np.sqrt(2 * V * L / n) + 7 * w.max() * L / (3 * (n - 1))
    assert bounds.bernstein_slack(values, w.max(), eta) == pytest.approx(expected)
    c = rng.random(30)
    assert bounds.design_slack(2.0, c, eta, np.log(7)) == pytest.approx(
        2 * np.sqrt((c**2).sum() / 2 * np.log(14 / eta))
    )
    assert bounds.design_slack(1.0, np.full(n, 1 / n), eta) == pytest.approx(bounds.sampling_slack(1.0, n, eta))


def test_freedman_s_slack_solves_its_inequality():
    delta, W, n, eta = 1.0, 6.0, 500, 0.05
    t = bounds.freedman_slack(delta, W, n, eta, np.log(3))
    tail = 2 * np.exp(-n * t**2 / (2 * delta**2 * W + 2 * delta * W * t / 3))
    assert tail == pytest.approx(eta / 3)
    counts, values = np.array([3.0, 1.0, 2.0]), np.array([0.2, 0.9, 0.4])
    one_by_one = bounds.bernstein_slack(np.repeat(values, [3, 1, 2]), W, eta)
    assert bounds.bernstein_slack(values, W, eta, counts=counts) == pytest.approx(one_by_one)


@pytest.mark.filterwarnings("ignore")
def test_the_bound_of_explored_traffic_weighs_term_e():
    data = explored()
    model = dubnb.Base(rank=2, epochs=1).fit(data)
    found = dubnb.bound(model, data, loss="mae")
    draws, S_t = bounds.draws_of(data), data.triplets("S_t")
    free = data.n_items - (0 if data.removed else data.pattern("S_c").sizes()[S_t.users])
    np.testing.assert_allclose(draws.weights, 1 / (S_t.propensities * free), rtol=1e-6)
    n, error = S_t.weights.sum(), found.measured.S_t_error
    assert found.terms["e"].value == pytest.approx((S_t.weights * draws.weights * error).sum() / n, rel=1e-6)
    W = draws.weights.max()
    slack = W * np.sqrt(np.log(2 / 0.05) / (2 * n))
    assert found.terms["slack"].value == pytest.approx(slack) and f"W = {W:.3g}" in found.terms["slack"].how
    assert "--largest-weight" in found.text() and "use slack freedman" in found.text()
    wider = dubnb.bound(model, data, loss="mae", slack="freedman", largest_weight=2 * W)
    assert wider.terms["slack"].value == pytest.approx(bounds.freedman_slack(1.0, 2 * W, n, 0.05))
    design = dubnb.bound(model, data, loss="mae", slack="design")
    assert design.terms["slack"].value == pytest.approx(bounds.design_slack(1.0, draws.shares, 0.05))
    for bad, said in (
        ({"slack": "paper"}, "slack='paper' needs uniform traffic"),
        ({"slack": "chernoff"}, "slack='chernoff' is unknown: choose one of paper"),
        ({"largest_weight": W / 2}, "is below the largest weight in S_t"),
        ({"largest_weight": 2 * W, "slack": "design"}, "largest_weight has no use with slack design"),
    ):
        with pytest.raises(InputError, match=said):
            dubnb.bound(model, data, loss="mae", **bad)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["collecting", "eligible"])
def test_examples_of_the_docs_print_what_the_page_says(name, capsys):
    page = (Path(__file__).parents[1] / "docs" / f"{name}.md").read_text()
    assert len(page.splitlines()) <= 150
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    exec(code, {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(f"`{line}`" in page.replace("\n", " ") for line in lines)
