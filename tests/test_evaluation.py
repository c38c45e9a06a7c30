import math
import sys
import warnings

import numpy as np
import pytest
from scipy.sparse import coo_matrix

from dubnb import _progress, evaluation
from dubnb._check import InputError
from dubnb.data.ids import Ids
from dubnb.data.partition import PARTS, Partition, Triplets
from dubnb.evaluation import PROTOCOLS, evaluate, top_k
from dubnb.metrics import METRICS
from tests import naive
from tests.naive import ScoreTable

module = sys.modules["dubnb.evaluation"]
N_USERS, N_ITEMS = 23, 70
KS = (1, 5, 10, 60)


class Truth:
    def __init__(self, labels):
        self.labels = labels

    def label_rows(self, users):
        return self.labels[users]

    def label(self, users, items):
        return self.labels[users, items]


def make(seed=0, truth=None, overlap=0.0):
    """A tiny partition: user 0 has no S_c, user 1 has seen every item but three, user 2 no positive in S_te.

    overlap: the share of the randomized parts' pairs that the biased log has too, half of them liked there.
    """
    rng = np.random.default_rng(seed)
    where = rng.choice([0, 1, 2, 3, 4], p=[0.4, 0.3, 0.1, 0.1, 0.1], size=(N_USERS, N_ITEMS))
    where[0][where[0] == 1] = 0
    where[1] = 1
    where[1, [5, 6]] = 4
    where[1, 7] = 0
    labels = (rng.random((N_USERS, N_ITEMS)) < 0.4).astype(np.float64)
    labels[1, 5] = 1
    labels[2][where[2] == 4] = 0
    matrices = {}
    for code, part in enumerate(PARTS, 1):
        users, items = np.nonzero(where == code)
        matrices[part] = coo_matrix((labels[users, items], (users, items)), shape=(N_USERS, N_ITEMS))
    if overlap:
        again = (where > 1) & (rng.random(where.shape) < overlap)
        users, items = np.nonzero((where == 1) | again)
        shown = np.where(again, rng.random(where.shape) < 0.5, labels)
        matrices["S_c"] = coo_matrix((shown[users, items], (users, items)), shape=(N_USERS, N_ITEMS))
    return Partition.from_matrices(**matrices, truth=truth)


def with_ids(data, user_ids, item_ids):
    triplets = {part: Triplets(*data.triplets(part)) for part in PARTS}
    return Partition(triplets, (data.n_users, data.n_items), user_ids=Ids(user_ids), item_ids=Ids(item_ids))


def random_scores(ties=False, seed=1):
    scores = np.random.default_rng(seed).standard_normal((N_USERS, N_ITEMS)).astype(np.float32)
    return np.round(scores) if ties else scores


@pytest.mark.parametrize("overlap", [0.0, 0.4])
@pytest.mark.parametrize("part", ["S_te", "S_va"])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_protocols_equal_the_naive_loop(protocol, ties, part, overlap):
    data, matrix = make(overlap=overlap), random_scores(ties)
    assert (data.removed > 100) == bool(overlap)
    result = evaluate(ScoreTable(matrix), data, protocol, KS, part=part, per_user=True)
    expected, rows = naive.evaluate(matrix, data, protocol, KS, part)
    frame, judged = result.pop("per_user"), result.pop("judged_users")
    assert result.pop("protocol") == protocol
    assert list(result) == list(expected)
    assert result == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert all(type(value) is (int if name.startswith("judged") else float) for name, value in result.items())
    shown = naive.shown(matrix, data, KS if protocol == "full-ranking" else (), part)
    assert judged["user"].tolist() == list(shown)
    assert judged["user_auc"].mean() == pytest.approx(result["user_auc"])
    assert judged["weight"].tolist() == pytest.approx([weight for _, weight, _ in shown.values()])
    for k in KS if protocol == "full-ranking" else ():
        counts = [counts[k] for *_, counts in shown.values()]
        assert list(zip(judged[f"liked@{k}"], judged[f"judged@{k}"], strict=True)) == counts
    assert frame["user"].tolist() == list(rows)
    for user, row in zip(frame["user"], frame.to_dict("records"), strict=True):
        assert {name: row[name] for name in rows[user]} == pytest.approx(rows[user], abs=1e-12)


def test_a_registered_metric_appears_by_itself(monkeypatch):
    """One entry in METRICS is all it takes, for pairs, for lists, and for lists at every K."""
    from dubnb.metrics import Metric, metric_label, metric_named, metric_names

    monkeypatch.setitem(
        METRICS, "spread", Metric(lambda scores, labels: scores.max() - scores.min(), "Spread", "pairs")
    )
    monkeypatch.setitem(METRICS, "first", Metric(lambda hits, n, cut: hits[:, 0] * cut, "First@{cut}", "lists"))
    monkeypatch.setitem(
        METRICS, "hit", Metric(lambda hits, n, k: hits[:, :k].any(axis=1), "Hit@{k}", "lists", at_k=True)
    )
    data, matrix = make(), random_scores()
    result = evaluate(ScoreTable(matrix), data, ks=(1, 3), per_user=True)
    S_te = data.triplets("S_te")
    assert result["spread"] == pytest.approx(np.ptp(matrix[S_te.users, S_te.items]))
    assert result["first"] == pytest.approx(50 * result["hit@1"]) and result["hit@1"] == result["p@1"]
    assert {"first", "hit@1", "hit@3"} <= set(result["per_user"]) and "spread" not in result["per_user"]
    assert metric_names((5,))[-4:] == ["ece", "spread", "first", "hit@5"]
    assert [metric_label(name, 50) for name in ("spread", "first", "hit@5")] == ["Spread", "First@50", "Hit@5"]
    assert metric_label("ndcg") == "nDCG" and metric_named("hit@5")[1] == 5
    for wrong in ("hits@5", "hit", "auc@5", "hit@x"):
        with pytest.raises(InputError, match="is unknown: choose one of auc, user_auc, percentile, ndcg, p@K"):
            metric_named(wrong)


def test_default_keys():
    result = evaluate(ScoreTable(random_scores()), make())
    ranked = ["auc", "user_auc", "percentile", "ndcg", "p@5", "p@10", "r@5", "r@10", "liked@5", "liked@10"]
    ranked.append("auc_with_overlap")
    shares = [f"{name}" for k in (5, 10) for name in (f"liked@{k}_low", f"liked@{k}_high", f"judged@{k}")]
    beside = [f"popularity_{name}" for name in ("auc", "user_auc", "percentile", "ndcg", "liked@5", "liked@10")]
    assert list(result) == [*ranked, *shares, "personal", "protocol", *beside]
    assert result["protocol"] == "full-ranking"
    told = {name for name, metric in METRICS.items() if metric.of != "probabilities"}
    assert told <= {name.split("@")[0] for name in result}
    without = evaluate(ScoreTable(random_scores()), make(), "test-items")
    assert not any(word in name for name in without for word in ("liked", "judged", "percentile"))
    scorer = ScoreTable(random_scores())
    scorer.probabilities = lambda scores: np.full(len(scores), 0.5)
    judged = evaluate(scorer, make())
    labels = make().triplets("S_te").labels
    assert judged["brier"] == 0.25 and judged["log_loss"] == pytest.approx(np.log(2))
    assert (
        0
        < judged["ece"]
        == pytest.approx(sum(abs(0.5 * len(g) - g.sum()) for g in np.array_split(labels, 15)) / len(labels))
    )


def test_a_result_below_popularity_is_said_in_words():
    data = make()
    counts = np.tile(np.asarray(data.S_c.sum(axis=0)), (N_USERS, 1)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        beside = evaluate(ScoreTable(counts), data)  # as good as popularity is not below it
    assert (beside["auc"], beside["ndcg"]) == (beside["popularity_auc"], beside["popularity_ndcg"])
    labels = np.zeros((N_USERS, N_ITEMS), np.float32)
    labels[data.triplets("S_te").users, data.triplets("S_te").items] = data.triplets("S_te").labels
    words = r"AUC 0\.0000 is below popularity's 0\.\d{4} and user AUC 0\.0000 is below .* and percentile .* is below .*"
    words += " and nDCG@50 .* is below .* popular items would do better$"
    with pytest.warns(UserWarning, match=words):
        evaluate(ScoreTable(-labels), data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(ScoreTable(labels), data)


def test_a_user_who_has_seen_every_item():
    shape = (2, 3)
    S_c = coo_matrix((np.ones(5), ([0, 0, 0, 1, 1], [0, 1, 2, 0, 1])), shape=shape)
    S_t = coo_matrix(shape)
    S_te = coo_matrix(([1.0], ([1], [2])), shape=shape)
    data = Partition.from_matrices(S_c, S_t, None, S_te, truth=Truth(np.ones(shape, dtype=np.float32)))
    with pytest.warns(UserWarning, match="^auc, user_auc, percentile, auc_with_overlap, truth_auc are nan"):
        result = evaluate(ScoreTable(np.zeros(shape, dtype=np.float32)), data)
    assert result["ndcg"] == 1 and result["truth_ndcg"] == 1 and result["p@5"] == 0.2
    assert top_k(np.ones((1, 3), dtype=np.float32), 2, np.ones((1, 3), dtype=bool)).tolist() == [[-1, -1]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_function_of_original_ids_gives_exactly_the_same(protocol):
    user_ids = np.array([f"u{row:03d}" for row in range(N_USERS)])
    item_ids = np.arange(N_ITEMS) * 11 - 300
    data, matrix = with_ids(make(), user_ids, item_ids), random_scores()

    def score(users, items):
        assert users.dtype.kind == "U" and users.shape == items.shape and users.ndim == 1
        return matrix[[int(user[1:]) for user in users], (items + 300) // 11]

    ours = evaluate(ScoreTable(matrix), data, protocol, per_user=True)
    other = evaluate(score, data, protocol, per_user=True)
    assert ours.pop("per_user").equals(other["per_user"])
    assert ours.pop("judged_users").equals(other.pop("judged_users"))
    assert other.pop("per_user")["user"].iloc[0].startswith("u")
    assert ours == other


def test_float64_scores_rank_in_full_precision():
    data, matrix = make(), random_scores().astype(np.float64)
    squeezed = 1 - 1e-12 * matrix
    assert len(np.unique(squeezed.astype(np.float32))) == 1
    for first, second in ((squeezed, -matrix), (1e200 * matrix, matrix)):
        one, other = (evaluate(ScoreTable(scores), data) for scores in (first, second))
        assert one.pop("personal") == pytest.approx(other.pop("personal"), rel=1e-3) and one == other


def test_whole_number_scores():
    data, matrix = make(), random_scores(ties=True)
    assert evaluate(ScoreTable(matrix.astype(np.int8)), data) == evaluate(ScoreTable(matrix), data)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ties_go_to_the_smaller_item(dtype):
    scores = np.array([[0.0, 2.0, -0.0, 2.0, -1.0], [1.0, 1.0, 1.0, 1.0, 1.0]], dtype=dtype)
    assert top_k(scores, 4).tolist() == [[1, 3, 0, 2], [0, 1, 2, 3]]
    excluded = np.zeros(scores.shape, dtype=bool)
    excluded[:, 1] = True
    assert top_k(scores, 9, excluded).tolist() == [[3, 0, 2, 4, -1], [0, 2, 3, 4, -1]]
    assert top_k(np.nextafter(scores, 9), 1).tolist() == [[1], [0]]


@pytest.mark.parametrize("k", [1, 7, 70])
def test_top_k_equals_the_naive_ranking(k):
    scores = random_scores(ties=True) - 0.5
    expected = [naive.ranking(row, range(N_ITEMS))[:k] for row in scores]
    assert top_k(scores, k).tolist() == expected


@pytest.mark.parametrize("size", [1, 71, 200])
def test_block_sizes_do_not_change_results(monkeypatch, size):
    labels = (random_scores(seed=5) > 0).astype(np.float32)
    data, matrix = make(truth=Truth(labels)), random_scores()
    expected = {p: evaluate(ScoreTable(matrix), data, p) for p in PROTOCOLS}
    monkeypatch.setattr(evaluation, "TILE_PAIRS", size)
    for name in ("BLOCK_PAIRS", "CALL_PAIRS"):
        monkeypatch.setattr(module, name, size)
    for protocol in PROTOCOLS:
        assert evaluate(ScoreTable(matrix), data, protocol) == expected[protocol]
        assert evaluate(lambda users, items: matrix[users, items], data, protocol) == expected[protocol]


def test_truth_equals_brute_force():
    labels = (random_scores(seed=5) > 0.3).astype(np.float32)
    data, matrix = make(truth=Truth(labels)), random_scores(ties=True)
    result = evaluate(ScoreTable(matrix), data)
    expected = naive.truth(matrix, labels, data, range(N_USERS))
    assert {name: result[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    assert result["truth_users"] == N_USERS
    assert "truth_auc" not in evaluate(ScoreTable(matrix), data, truth=False)


def test_truth_on_a_fixed_sample_of_users(monkeypatch):
    monkeypatch.setattr(module, "TRUTH_PAIRS", 5 * N_ITEMS + 3)
    labels = (random_scores(seed=5) > 0.3).astype(np.float32)
    data, asked = make(truth=Truth(labels)), []
    data.truth.label_rows = lambda users: asked.append(users.tolist()) or labels[users]
    for seed in (1, 2):
        matrix = random_scores(seed=seed)
        result = evaluate(ScoreTable(matrix), data)
        expected = naive.truth(matrix, labels, data, asked[-1])
        assert {name: result[name] for name in expected} == pytest.approx(expected, abs=1e-12)
        assert result["truth_users"] == 5
    assert asked[0] == asked[1] and len(set(asked[0])) == 5


def test_a_function_is_called_whatever_else_it_has():
    """An object counts as a scorer of rows only if it scores both pairs and rows of them."""
    data, matrix = with_ids(make(), np.arange(N_USERS), np.arange(N_ITEMS)), random_scores()

    def score(users, items):
        return matrix[users, items]

    expected = evaluate(score, data)
    for name in ("score_pairs", "score_rows"):
        setattr(score, name, None)
        assert evaluate(score, data) == expected
        delattr(score, name)


def test_a_scorer_may_rank_by_itself():
    class Ranks(ScoreTable):
        def top_k(self, users, k, excluded):
            asked.append(k)
            return top_k(self.scores[users], k, excluded)

    asked, data = [], make()
    assert evaluate(Ranks(random_scores()), data) == evaluate(ScoreTable(random_scores()), data) and asked


def test_a_scorer_may_have_attributes_of_any_name():
    class Clusters(ScoreTable):
        cluster, source = 3, None

    assert evaluate(Clusters(random_scores()), make()) == evaluate(ScoreTable(random_scores()), make())


def test_validation_shows_nothing_and_is_on_S_va(capsys, monkeypatch):
    monkeypatch.setattr(_progress, "AFTER", 0)
    monkeypatch.setattr(_progress, "watched", lambda: True)
    data, scorer = make(), ScoreTable(random_scores())
    found = module.validation_ndcg(scorer, data)
    assert capsys.readouterr() == ("", "")
    assert found == evaluate(scorer, data, part="S_va")["ndcg"] != evaluate(scorer, data)["ndcg"]
    assert module.validation_ndcg(scorer, data, "S_te") == evaluate(scorer, data)["ndcg"]


def test_truth_asked_for_but_unknown():
    with pytest.raises(InputError, match="simulated"):
        evaluate(ScoreTable(random_scores()), make(), truth=True)


def test_read_only_memory_maps(tmp_path):
    np.save(tmp_path / "scores.npy", random_scores())
    mapped = np.load(tmp_path / "scores.npy", mmap_mode="r")

    class Views(ScoreTable):
        def score_rows(self, users):
            return self.scores[: len(users)] if len(users) == N_USERS else self.scores[users]

    assert evaluate(Views(mapped), make()) == evaluate(ScoreTable(random_scores()), make())
    assert top_k(mapped, 3).tolist() == top_k(random_scores(), 3).tolist()


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda users, items: np.where(items == 3, np.nan, 0.0), "nan .* not finite"),
        (lambda users, items: np.full(len(users), np.inf), "inf .* not finite"),
        (lambda users, items: np.zeros((len(users), 1)), r"shape \(\d+, 1\)"),
        (lambda users, items: None, "returned object"),
        (lambda users, items: items.astype(str), "real numbers"),
        (ScoreTable(np.zeros((N_USERS, N_ITEMS + 1), dtype=np.float32)), rf"shape \(\d+, {N_ITEMS + 1}\)"),
        (np.zeros((N_USERS, N_ITEMS)), "ndarray: pass a function"),
    ],
)
def test_bad_scores_are_refused(score, message):
    with pytest.raises(InputError, match=message) as caught:
        evaluate(score, make())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "full-rankings"}, "did you mean 'full-ranking'"),
        ({"part": "S_c"}, "part='S_c' is unknown"),
        ({"ks": (5, 5)}, "none twice"),
        ({"ks": ()}, "at least one"),
        ({"ks": (0,)}, "whole number"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        evaluate(ScoreTable(random_scores()), make(), **options)


def test_an_empty_part_is_refused():
    data = make()
    data = Partition.from_matrices(data.S_c, data.S_t, data.S_va)
    with pytest.raises(InputError, match="S_te is empty"):
        evaluate(ScoreTable(random_scores()), data)


def test_a_part_without_positives_gives_nan_and_says_so():
    full = make()
    S_te = full.S_te.copy()
    S_te.data = np.zeros_like(S_te.data)
    data = Partition.from_matrices(full.S_c, full.S_t, full.S_va, S_te)
    for protocol in PROTOCOLS:
        with pytest.warns(UserWarning, match="S_te lacks a class"):
            result = evaluate(ScoreTable(random_scores()), data, protocol, per_user=True)
        assert all(math.isnan(result[name]) for name in ("auc", "user_auc", "ndcg", "p@5", "r@10"))
        assert len(result["per_user"]) == 0
        assert result.get("liked@5", 0.0) == 0.0  # nothing that was judged was liked


def test_progress_is_silent_unless_asked_for(capsys, monkeypatch):
    monkeypatch.setattr(_progress, "AFTER", 0)
    evaluate(ScoreTable(random_scores()), make())
    evaluate(ScoreTable(random_scores()), make(), quiet=False)  # asked for, but nobody is looking
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(_progress, "watched", lambda: True)
    evaluate(ScoreTable(random_scores()), make(), quiet=False)
    assert "evaluate" in capsys.readouterr().err


# ---- pairs that both logs have ---------------------------------------------------------------------------------------


def test_pairs_of_both_logs_are_neither_candidates_nor_judged():
    """A model that lists exactly these pairs first gains nothing by it."""
    data = make(overlap=0.4, truth=Truth((random_scores(seed=5) > 0.3).astype(np.float32)))
    matrix = random_scores()
    boosted = matrix.copy()
    boosted[data.overlap.users, data.overlap.items] += 100
    plain, other = (evaluate(ScoreTable(scores), data) for scores in (matrix, boosted))
    for name in ("auc_with_overlap", "personal"):
        assert plain.pop(name) != other.pop(name)
    assert plain == other
    plain, other = (evaluate(ScoreTable(scores), data, "test-items", truth=False) for scores in (matrix, boosted))
    assert all(plain[name] == other[name] for name in ("auc", "user_auc", "ndcg", "p@5", "r@10"))
    assert module.validation_ndcg(ScoreTable(matrix), data) == module.validation_ndcg(ScoreTable(boosted), data)
    assert module.mean_user_auc(ScoreTable(matrix), data) == module.mean_user_auc(ScoreTable(boosted), data)
    assert module.mean_user_auc(ScoreTable(matrix), data) == evaluate(ScoreTable(matrix), data, part="S_va")["user_auc"]


def test_a_part_that_the_biased_log_has_whole_is_refused():
    data = make(overlap=1.0)
    with pytest.raises(InputError, match="the biased log has every pair of S_te"):
        evaluate(ScoreTable(random_scores()), data)


# ---- liked@K ---------------------------------------------------------------------------------------------------------


def test_the_true_share_of_the_same_lists():
    labels = (random_scores(seed=5) > 0.3).astype(np.float32)
    data, matrix = make(truth=Truth(labels), overlap=0.2), random_scores(ties=True)
    result = evaluate(ScoreTable(matrix), data)
    lists = naive.shown(matrix, data, (5, 10), "S_te")
    for k in (5, 10):
        liked = [labels[user, item] for user, (listed, *_) in lists.items() for item in listed[:k]]
        assert result[f"truth_liked@{k}"] == pytest.approx(np.mean(liked))
    assert "truth_liked@5" not in evaluate(ScoreTable(matrix), data, truth=False)


def test_few_judged_pairs_give_nan_and_a_reason():
    full = make()
    S_te = full.triplets("S_te")
    rows = np.arange(len(S_te.users)) < 4
    few = coo_matrix((S_te.labels[rows], (S_te.users[rows], S_te.items[rows])), shape=full.S_te.shape)
    data = Partition.from_matrices(full.S_c, full.S_t, full.S_va, few)
    with pytest.warns(UserWarning, match=r"liked@5 is nan \(\d judged\), liked@10 .*must judge at least 5"):
        result = evaluate(ScoreTable(random_scores()), data)
    assert math.isnan(result["liked@10"]) and math.isnan(result["liked@10_low"]) and result["judged@10"] < 5


@pytest.mark.needs_jit
def test_liked_at_k_is_right_on_average_where_p_at_k_is_not():
    """Uniform traffic in uneven amounts: the mean over draws is the true share, and intervals hold it as they say."""
    rng = np.random.default_rng(3)
    n_users, n_items, draws = 150, 60, 50
    taste = rng.random((n_users, n_items)) * rng.random((n_users, 1)) * 1.2
    labels = (rng.random(taste.shape) < taste).astype(np.float32)
    scores = (taste + 0.3 * rng.standard_normal(taste.shape)).astype(np.float32)
    biased = rng.random(taste.shape) < 0.1
    traffic = rng.choice([0.03, 0.08, 0.25], size=(n_users, 1))
    liked, truths, held, precise = [], [], [], []
    for _ in range(draws):
        random = rng.random(taste.shape) < traffic
        part = rng.choice(3, p=[0.3, 0.2, 0.5], size=taste.shape)
        where = (biased, random & (part == 0), random & (part == 1), random & (part == 2))
        logs = [coo_matrix((labels[rows], np.nonzero(rows)), shape=taste.shape) for rows in where]
        data = Partition.from_matrices(*logs, truth=Truth(labels))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            result = evaluate(ScoreTable(scores), data, ks=(10,))
        liked.append(result["liked@10"])
        truths.append(result["truth_liked@10"])
        precise.append(result["p@10"])
        held.append(result["liked@10_low"] <= result["truth_liked@10"] <= result["liked@10_high"])
    off = np.array(liked) - truths
    assert abs(off.mean()) < 3 * off.std() / np.sqrt(draws)
    assert np.mean(held) > 0.9
    assert np.mean(precise) < 0.3 * np.mean(truths)
