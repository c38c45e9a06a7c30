"""The bound: every sum against plain NumPy, both propositions on random matrices, the theorems over draws of S_t."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

import dubnb
from dubnb import losses, metrics, stats
from dubnb._check import InputError
from dubnb._jit import JIT_ENABLED
from dubnb.data.ids import Ids
from dubnb.data.partition import PARTS, Partition, Triplets
from dubnb.losses import LOSSES
from dubnb.objective import bounds
from dubnb.theory import bound
from tests.naive import small_partition

ROUNDING = 1e-12 if JIT_ENABLED else 1e-6  # as plain Python a loss of a float32 score stays float32

SHAPE = (23, 17)
PROVEN = ("bce", "mae", "zero_one")


class Dense:
    """A scorer, or a truth, that is a matrix."""

    def __init__(self, matrix):
        self.matrix = np.asarray(matrix, dtype=np.float64)

    def score_pairs(self, users, items):
        return self.matrix[users, items]

    def score_rows(self, users):
        return self.matrix[users]

    label, label_rows = score_pairs, score_rows


def random_log(seed, overlapping=False, truth=True, shape=SHAPE, n_t=60):
    """A small Partition, R^t, R^c, and the scores of M_c and M_t, all at random."""
    rng = np.random.default_rng(seed)
    R_t, R_c = (rng.integers(2, size=shape).astype(np.float64) for _ in range(2))
    scores = [rng.normal(scale=2.0, size=shape) for _ in range(2)]
    order = rng.permutation(shape[0] * shape[1])
    S_t = order[:n_t]
    cuts = {
        "S_t": S_t,
        "S_va": order[n_t : n_t + 20],
        "S_te": order[n_t + 20 : n_t + 50],
        "S_c": order[n_t + 50 :][:90],
    }
    if overlapping:
        cuts["S_c"] = np.concatenate([cuts["S_c"], S_t[:15]])
    parts = {}
    for part, pairs in cuts.items():
        users, items = np.divmod(pairs, shape[1])
        labels = (R_c if part == "S_c" else R_t)[users, items]
        parts[part] = Triplets(users, items, labels, np.ones(len(users)))
    data = Partition(parts, shape, truth=Dense(R_t) if truth else None)
    return data, R_t, R_c, *scores


def naive(data, R_t, R_c, s_c, s_t, loss):
    """Every sum, over masks of the whole matrix."""
    code, link, triangle = LOSSES[loss].code, LOSSES[loss].link, LOSSES[loss].triangle
    l = np.vectorize(lambda s, y: float(losses.loss_value(code, float(s), float(y))))
    in_S_c, in_S_t = (np.zeros(SHAPE, bool) for _ in range(2))
    for mask, part in ((in_S_c, "S_c"), (in_S_t, "S_t")):
        mask[data.triplets(part).users, data.triplets(part).items] = True
    in_S_u = ~in_S_c & ~in_S_t
    p_t = 1 / (1 + np.exp(-s_t)) if link else s_t
    error = l(s_t, R_t) if triangle else l(s_c, R_t - p_t)
    other = np.abs(R_t - R_c) if triangle else l(s_c, R_t - R_c)
    D = R_t.size
    frame = np.ones(SHAPE, bool) if data.removed else ~in_S_c
    row_means = np.array([error[u][frame[u]].mean() if frame[u].any() else 0.0 for u in range(SHAPE[0])])
    return {
        "a": l(s_c, R_t)[in_S_t].sum() / D,
        "b": other[in_S_c].sum() / D,
        "c": l(s_c, R_c)[in_S_c].sum() / D,
        "d": l(s_c, p_t)[in_S_u].sum() / D,
        "e": error[in_S_t].mean(),
        "S_u_error": error[in_S_u].sum() / D,
        "ideal": l(s_c, R_t).mean(),
        "expected_e": (in_S_t.sum(axis=1) * row_means).sum() / in_S_t.sum(),
    }


def naive_unknown(data, R_t, R_c, s_c, s_t, loss):
    """b, the bias and the ideal loss as functions of the labels of S_c and of the pairs in no log, pair by pair.

    For each: (known part, weight matrix, value if the label is 0, value if it is 1), the last three over D.
    """
    code, link, triangle = LOSSES[loss].code, LOSSES[loss].link, LOSSES[loss].triangle
    l = np.vectorize(lambda s, y: float(losses.loss_value(code, float(s), float(y))))
    kind = np.full(SHAPE, "rest", dtype="U4")
    for part in PARTS:
        kind[data.triplets(part).users, data.triplets(part).items] = part
    held, D = np.isin(kind, ["S_va", "S_te"]), R_t.size
    p_t = 1 / (1 + np.exp(-s_t)) if link else s_t
    error = [l(s_t, np.full(SHAPE, y)) if triangle else l(s_c, y - p_t) for y in (0.0, 1.0)]
    ideal = [l(s_c, np.full(SHAPE, y)) for y in (0.0, 1.0)]
    other = [np.abs(y - R_c) if triangle else l(s_c, y - R_c) for y in (0.0, 1.0)]
    frame = np.ones(SHAPE, bool) if data.removed else kind != "S_c"
    counts = (kind == "S_t").sum(axis=1)
    in_e = np.where(frame, (counts / counts.sum() / np.maximum(frame.sum(axis=1), 1))[:, None], 0.0)
    in_S_u = (kind == "rest") | held
    weights = {"b": (kind == "S_c") / D, "bias": in_S_u / D - in_e, "ideal": np.full(SHAPE, 1 / D)}
    values = {"b": other, "bias": error, "ideal": ideal}
    found = {}
    for name, w in weights.items():
        if_0, if_1 = (w * value for value in values[name])
        known = np.isin(kind, ["S_t", "S_va", "S_te"])
        found[name] = (np.where(R_t > 0, if_1, if_0)[known].sum(), kind, if_0, if_1)
    return found


@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_sum_is_that_of_plain_numpy(loss, overlapping, monkeypatch):
    data, *matrices = random_log(1, overlapping)
    assert data.removed == (15 if overlapping else 0)
    expected = naive(data, *matrices, loss)
    for block in (1, 40, 10_000):  # pairs: a user at a time, some users, all
        monkeypatch.setattr(bounds, "BLOCK_PAIRS", block)
        found = bounds.measure(Dense(matrices[2]), Dense(matrices[3]), data, loss)
        for name, value in expected.items():
            assert getattr(found, name) == pytest.approx(value, abs=ROUNDING), name


@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_unknown_ranges_over_all_labels_of_S_c_and_of_the_pairs_in_no_log(loss, overlapping, monkeypatch):
    data, *matrices = random_log(1, overlapping)
    truth = {name: naive(data, *matrices, loss) for name in ("b", "ideal")}
    monkeypatch.setattr(bounds, "BLOCK_PAIRS", 40)
    found = bounds.measure(Dense(matrices[2]), Dense(matrices[3]), data, loss)
    for name, (known, kind, if_0, if_1) in naive_unknown(data, *matrices, loss).items():
        unknown, rest, S_c = found.unknown[name], kind == "rest", kind == "S_c"
        assert unknown.known == pytest.approx(known, abs=ROUNDING)
        for pick, end in ((np.minimum, "low"), (np.maximum, "high")):
            ends = pick(if_0, if_1)
            assert getattr(unknown, f"rest_{end}") == pytest.approx(ends[rest].sum(), abs=ROUNDING)
            assert getattr(unknown, end) == pytest.approx(known + ends[rest | S_c].sum(), abs=ROUNDING)
        true = np.where(matrices[0] > 0, if_1, if_0)
        assert known + true[rest | S_c].sum() == pytest.approx(getattr(found, name), abs=ROUNDING)
        if name != "bias":
            assert getattr(found, name) == pytest.approx(truth[name][name], abs=ROUNDING)
        # user by user: a pair in no log weighs the same, whatever its item
        S_va_te = [data.triplets(part) for part in ("S_va", "S_te")]
        users, items = (np.concatenate([part[k] for part in S_va_te]) for k in (0, 1))
        if name != "b":
            assert found.sample_users.tolist() == users.tolist()  # no held-out pair was in S_c here
            per_pair = unknown.rest_weights[users] / np.maximum(found.rest_sizes[users], 1)
            at = found.rest_sizes[users] > 0
            np.testing.assert_allclose((per_pair * unknown.sample)[at], true[users, items][at], atol=ROUNDING)
    np.testing.assert_array_equal(found.rest_sizes, (kind == "rest").sum(axis=1))


def test_held_out_pairs_that_were_in_S_c_are_not_in_the_sample():
    data, _, _, s_c, s_t = random_log(1)
    parts, S_te = {part: data.triplets(part) for part in PARTS}, data.triplets("S_te")
    both = S_te.take(slice(4))
    S_c = Triplets(*(np.concatenate(pair) for pair in zip(parts["S_c"][:4], both[:4], strict=True)))
    again = Partition({part: own[:4] for part, own in parts.items()} | {"S_c": S_c}, SHAPE)
    assert again.removed == 4
    found, plain = (bounds.measure(Dense(s_c), Dense(s_t), log, "bce") for log in (again, data))
    assert len(found.sample_users) == len(plain.sample_users) - 4 == len(found.unknown["ideal"].sample)
    assert found.unknown["ideal"].known == pytest.approx(plain.unknown["ideal"].known)  # their labels are known


@pytest.mark.parametrize("overlapping", [0, 1])
def test_a_user_with_all_of_S_t_and_one_whose_every_pair_is_in_S_c(overlapping):
    """Where S_t may repeat a pair of S_c, the expectation of e is over all items of the one user who has S_t."""
    _, R_t, R_c, s_c, s_t = random_log(2)
    items = np.arange(SHAPE[1])
    S_t, S_c = (np.full(4, 5), items[:4]), (np.r_[np.full(SHAPE[1], 7), [5, 5, 5]], np.r_[items, 9, 10, 3])
    S_c = tuple(column[: len(S_c[0]) - 1 + overlapping] for column in S_c)
    held = (np.array([0, 1]), np.array([2, 3])), (np.array([2]), np.array([0]))
    parts = {
        part: Triplets(*own, R_t[own], np.ones(len(own[0]))) for part, own in zip(("S_va", "S_te"), held, strict=True)
    }
    parts |= {"S_t": Triplets(*S_t, R_t[S_t], np.ones(4)), "S_c": Triplets(*S_c, R_c[S_c], np.ones(len(S_c[0])))}
    data = Partition(parts, SHAPE, truth=Dense(R_t))
    assert data.removed == overlapping
    found = bounds.measure(Dense(s_c), Dense(s_t), data, "bce")
    for name, value in naive(data, R_t, R_c, s_c, s_t, "bce").items():
        assert getattr(found, name) == pytest.approx(value, abs=ROUNDING), name


def test_values_that_need_the_truth_are_nan_without_it():
    known, (blind, *matrices) = random_log(3)[0], random_log(3, truth=False)
    found, told = (bounds.measure(Dense(matrices[2]), Dense(matrices[3]), data, "mae") for data in (blind, known))
    for name in ("b", "S_u_error", "expected_e", "S_c_ideal", "S_u_ideal", "ideal", "bias", "proposition"):
        assert np.isnan(getattr(found, name)) and np.isfinite(getattr(told, name)), name
    for name in ("a", "c", "d", "e"):
        assert getattr(found, name) == getattr(told, name), name
    for name, unknown in found.unknown.items():
        assert (unknown.low, unknown.high) == (told.unknown[name].low, told.unknown[name].high)
        assert unknown.low <= getattr(told, name) <= unknown.high
    assert told.bias == told.S_u_error - told.expected_e
    assert told.proposition == pytest.approx(told.a + told.b + told.c + told.S_u_error + told.d)


def test_scores_take_the_form_of_the_loss_that_is_evaluated():
    """A probability for a loss without a link; for one with a link, the log-odds of a score clipped to (0, 1)."""
    s = np.array([[-1.5, 0.25, 0.7], [2.0, 1.0, 0.0]])
    of_pairs, p = (np.array([0, 1, 1]), np.array([2, 0, 2])), 1 / (1 + np.exp(-s))
    inside = np.clip(s, bounds.SMALLEST_P, 1 - bounds.SMALLEST_P)
    for own, wanted, expected in (
        (True, True, s),
        (False, False, s),
        (True, False, p),
        (False, True, np.log(inside / (1 - inside))),
    ):
        form = bounds.Predictions(Dense(s), own, wanted)
        np.testing.assert_allclose(form.score_rows(np.array([1, 0])), expected[[1, 0]], rtol=1e-6)
        np.testing.assert_allclose(form.score_pairs(*of_pairs), expected[of_pairs], rtol=1e-6)
    assert np.isfinite(bounds.Predictions(Dense(s), False, True).score_rows(np.array([0, 1]))).all()


@pytest.mark.parametrize("loss", PROVEN)
def test_the_propositions_hold_on_random_matrices(loss):
    for seed in range(40):
        data, _, _, s_c, s_t = random_log(seed)
        found = bounds.measure(Dense(s_c), Dense(s_t), data, loss)
        assert found.ideal <= found.proposition + 1e-12


def test_the_proposition_fails_for_mse_where_M_t_says_one_half():
    """R^t = 1, M_t = .5, M_c = 0 everywhere: the ideal loss is 1, the proposition's right side about .5."""
    parts = {part: Triplets(*np.zeros((2, 0), int), np.zeros(0), np.zeros(0)) for part in ("S_va", "S_te")}
    one = lambda user: Triplets(np.array([user]), np.array([0]), np.ones(1), np.ones(1))  # noqa: E731
    data = Partition({"S_c": one(0), "S_t": one(1), **parts}, (30, 30), truth=Dense(np.ones((30, 30))))
    M_c, M_t = Dense(np.full((30, 30), -40.0)), Dense(np.zeros((30, 30)))
    found = bounds.measure(M_c, M_t, data, "mse")
    assert found.ideal == pytest.approx(1.0, abs=1e-6) and found.proposition < 0.52


def test_the_slacks():
    printed = bounds.slack(2.0, 50, 1000, 0.1, np.log(7))
    assert printed == pytest.approx(2.0 / 50 * np.sqrt(1000 / 2 * np.log(2 * 7 / 0.1)))
    sampling = bounds.sampling_slack(2.0, 50, 0.1, np.log(7))
    assert printed / sampling == pytest.approx(np.sqrt(1000 / 50))
    assert bounds.slack(2.0, 50, 1000, 0.1) == pytest.approx(2.0 / 50 * np.sqrt(1000 / 2 * np.log(2 / 0.1)))
    assert bounds.sampling_slack(2.0, 50, 0.1) == pytest.approx(2.0 * np.sqrt(np.log(2 / 0.1) / 100))
    L, of_four = np.log(4 / 0.1), bounds.bernstein_slack(np.array([0.0, 1.0, 1.0, 0.0]), 3.0, 0.1)
    assert of_four == pytest.approx(np.sqrt(2 * (1 / 3) * L / 4) + 7 * 3 * L / (3 * 3))


def failures(draw, error, slack, n=1000):
    """How often the mean of `error` over S_t, drawn n times, is further than `slack` below its expectation."""
    rng = np.random.default_rng(5)
    return np.mean([error[draw(rng)].mean() + slack < error.mean() for _ in range(n)])


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["mae", "zero_one"])
def test_theorem_4_2_holds_with_frequency_1_minus_eta(loss):
    """1,000 draws of S_t without replacement from D minus S_c; M_c and M_t fixed, every quantity computed anew."""
    eta, shape, n_t = 0.2, (40, 30), 150
    rng = np.random.default_rng(3)
    R_t, R_c = (rng.integers(2, size=shape).astype(np.float64) for _ in range(2))
    M_c, M_t = (Dense(rng.normal(size=shape)) for _ in range(2))
    order = rng.permutation(R_t.size)
    S_c, rest = np.divmod(order[:300], shape[1]), order[300:]
    none = Triplets(*np.zeros((2, 0), int), np.zeros(0), np.zeros(0))
    fails = {"printed": 0, "sampling": 0}
    for _ in range(1000):
        S_t = np.divmod(rng.choice(rest, n_t, replace=False), shape[1])
        parts = {"S_c": Triplets(*S_c, R_c[S_c], np.ones(300)), "S_t": Triplets(*S_t, R_t[S_t], np.ones(n_t))}
        data = Partition({**parts, "S_va": none, "S_te": none}, shape, truth=Dense(R_t))
        found = bounds.measure(M_c, M_t, data, loss)
        terms = found.a + found.b + found.c + found.d + found.e + found.bias
        slacks = (bounds.slack(1.0, n_t, R_t.size, eta), bounds.sampling_slack(1.0, n_t, eta))
        for name, slack in zip(fails, slacks, strict=True):
            fails[name] += found.ideal > terms + slack
    assert fails["printed"] <= 1000 * eta and fails["sampling"] <= 1000 * eta


def test_the_sampling_slack_holds_for_draws_without_replacement_and_is_not_idle():
    error = np.repeat([0.0, 1.0], 500)
    n_t, eta = 200, 0.2
    draw = lambda rng: rng.choice(1000, n_t, replace=False)  # noqa: E731
    assert failures(draw, error, bounds.sampling_slack(1.0, n_t, eta)) <= eta
    assert failures(draw, error, 0.3 * bounds.sampling_slack(1.0, n_t, eta)) > 0.05


def test_counter_example_whole_users_as_randomized_log():
    """Every pair is as likely to be in S_t as any other, yet users come whole: no independence, no theorem."""
    n_users, n_items, eta = 10, 1000, 0.05
    error = np.repeat([0.0, 1.0], n_users // 2 * n_items)
    one_user = lambda rng: rng.integers(n_users) * n_items + np.arange(n_items)  # noqa: E731
    slack = bounds.slack(1.0, n_items, n_users * n_items, eta)
    assert slack < 0.2 and failures(one_user, error, slack, 300) > 0.4  # eta promised .05


def test_counter_example_a_model_that_knows_S_t_by_heart():
    """|H| is not finite: M_t reproduces S_t and guesses elsewhere; e is 0, the error on S_u is about one half."""
    shape, n_t = (60, 50), 900
    data, R_t, _, s_c, s_t = random_log(4, shape=shape, n_t=n_t)
    S_t = data.triplets("S_t")
    s_t[S_t.users, S_t.items] = np.where(S_t.labels > 0, 9.0, -9.0)
    found = bounds.measure(Dense(s_c), Dense(s_t), data, "zero_one")
    promised = found.e + bounds.sampling_slack(1.0, n_t, 0.05)
    mean_error = found.S_u_error * R_t.size / (R_t.size - len(data.seen.items))
    assert found.e == 0 and promised < 0.05 and mean_error > 0.4


# ---- dubnb.bound ---------------------------------------------------------------------------------------------------


def small_world(seed=0):
    """A simulated log of 60 users x 40 items with a fitted dub."""
    from dubnb.data.simulate import CONFIGS, simulate

    config = CONFIGS["simulated"].__class__(
        **(
            CONFIGS["simulated"].__dict__
            | {"n_users": 60, "n_items": 40, "n_biased": 500, "random_users": 60, "random_each": 8}
        )
    )
    data = simulate(config, seed, quiet=True)
    return data, dubnb.DUB(rank=4, epochs=3, seed=1).fit(data)


@pytest.fixture(scope="module")
def world():
    return small_world()


def without_truth(data, overlapping=0):
    """The same log as if it were real, with some pairs of S_t also in S_c."""
    parts = {part: data.triplets(part)._replace(grades=None) for part in ("S_c", "S_t", "S_va", "S_te")}
    if overlapping:
        S_t = parts["S_t"].take(slice(overlapping))
        labels = data.truth.policy_label(S_t.users, S_t.items)
        both = Triplets(
            *(np.concatenate(pair) for pair in zip(parts["S_c"][:4], S_t._replace(labels=labels)[:4], strict=True))
        )
        parts["S_c"] = both
    return Partition(parts, (data.n_users, data.n_items))


@pytest.mark.needs_jit
@pytest.mark.parametrize("loss", LOSSES)
def test_on_real_logs_the_brackets_hold_what_the_truth_says(world, loss):
    data, model = world
    known = dubnb.bound(model, data, loss=loss)
    blind = dubnb.bound(model, without_truth(data), loss=loss)
    for name in "acde":
        assert blind.terms[name].value == known.terms[name].value
    for name in ("b", "bias"):
        term = blind.terms[name]
        assert term.value is None and term.low <= known.terms[name].value <= term.high, name
    assert blind.terms["b"].estimate is None and "both policies" in blind.terms["b"].how
    assert blind.total.low <= known.total.value <= blind.total.high
    assert not blind.gap and blind.ideal.value is None
    assert sum(known.gap.values()) == pytest.approx(known.total.value - known.ideal.value, abs=1e-12)


@pytest.mark.needs_jit
def test_b_is_estimated_from_pairs_seen_under_both_policies(world):
    data, model = world
    own = without_truth(data, overlapping=40)
    assert own.removed == 40 and (own.overlap.parts == 0).all()
    disagree = own.overlap.policy_labels != own.overlap.labels
    found = dubnb.bound(model, own, loss="zero_one").terms["b"]
    rates = {k: disagree[own.overlap.policy_labels == k].mean() for k in (0.0, 1.0)}
    labels = own.triplets("S_c").labels
    expected = sum(rates[k] * (labels == k).sum() for k in rates) / (data.n_users * data.n_items)
    assert found.estimate == pytest.approx(expected)
    assert found.low <= found.estimate_low <= found.estimate <= found.estimate_high <= found.high


def unknown_of(**change):
    """An unknown sum: three users with 10, 20 and 30 pairs in no log, of which the last has no held-out pair."""
    own = {
        "known": 0.1,
        "rest_low": -9.0,
        "rest_high": 9.0,
        "rest_weights": np.array([0.1, 0.2, 0.3]),
        "sample": np.array([1.0, 3.0, 5.0]),
        "S_c_if": None,
    }
    return bounds.Unknown(**own | change)


SAMPLED = SimpleNamespace(sample_users=np.array([0, 0, 1]), rest_sizes=np.array([10, 20, 30]))


def test_pairs_in_no_log_are_estimated_user_by_user():
    """Means 2 and 5; the third user gets R = (10 x 2 + 20 x 5) / 30 = 4."""
    data = random_log(0, truth=False)[0]
    found = bound.estimate(unknown_of(), SAMPLED, data)
    assert found.value == pytest.approx(0.1 + 0.1 * 2 + 0.2 * 5 + 0.3 * 4)
    spread = 2 * np.array([(2 - 4) ** 2, (5 - 4) ** 2])
    variance = (0.1 + 0.3 / 3) ** 2 * spread[0] + (0.2 + 0.3 * 2 / 3) ** 2 * spread[1] + 0.3**2 * spread.mean()
    half = scipy_stats.t.ppf(0.975, 1) * np.sqrt(variance)
    expected = (max(found.value - half, 0.1 - 9), min(found.value + half, 0.1 + 9))
    assert (found.low, found.high) == pytest.approx(expected)
    alone = SAMPLED.__class__(sample_users=np.array([1, 1, 1]), rest_sizes=SAMPLED.rest_sizes)
    assert bound.estimate(unknown_of(), alone, data) is None  # one user has no spread


def test_a_sum_over_S_c_takes_the_worst_places_for_the_positives():
    """Class 0: four pairs, of which 1 to 2 are positive; class 1: two pairs, both or one."""
    if_0 = np.array([0.0, 0.0, 1.0, 1.0, 5.0, 5.0])
    moves = np.array([3.0, -1.0, 2.0, 0.5, -2.0, 1.0])
    rates = [stats.Rate(0.3, 0.25, 0.5, 9), stats.Rate(0.8, 0.5, 1.0, 9)]
    found = bound.S_c_interval(np.stack([if_0, if_0 + moves]), np.array([0, 0, 0, 0, 1, 1.0]), rates)
    assert found.value == pytest.approx(12 + 0.3 * 4.5 + 0.8 * -1)
    assert (found.low, found.high) == (12 - 1 - 2, 12 + 5 + 1)
    blind = bound.S_c_interval(np.stack([if_0, if_0 + moves]), np.array([0, 0, 0, 0, 1, 1.0]), [rates[0], None])
    assert blind.value is None and (blind.low, blind.high) == (12 - 1 - 2, 12 + 5 + 1)


def test_shares_of_independent_users_are_those_of_clopper_and_pearson():
    """One pair a user, equal weights, all labels alike, and many pairs left: the exact binomial interval."""
    found = bound.clustered_share(np.zeros(40), np.arange(40), np.ones(40), 10**12, 0.9)
    exact = scipy_stats.binomtest(0, 40).proportion_ci(0.9, method="exact")
    assert (found.rate, found.low, found.high) == pytest.approx((0.0, exact.low, exact.high), abs=1e-6)
    assert bound.clustered_share(np.ones(40), np.arange(40), np.ones(40), 10**12, 0.9).low == pytest.approx(
        1 - exact.high, abs=1e-6
    )
    assert bound.clustered_share(np.zeros(0), np.zeros(0, int), np.zeros(0), 9, 0.9) is None
    whole = bound.clustered_share(np.tile([0, 1.0], 40), np.arange(80), np.ones(80), 10**12, 0.9)
    twice = bound.clustered_share(np.repeat(np.tile([0, 1.0], 20), 2), np.repeat(range(40), 2), np.ones(80), 99, 0.9)
    assert whole.rate == twice.rate == 0.5 and twice.high - twice.low > 1.35 * (whole.high - whole.low)


def test_a_shared_pair_weighs_less_the_more_randomized_pairs_its_user_has():
    """User 0 has one randomized pair, positive; user 1 has four, of which two are shared, both negative."""
    S_c = ([0, 1, 1, 2, 2], [0, 0, 1, 0, 1], [1, 1, 1, 1, 0])
    S_t = ([0, 1, 1, 1, 1], [0, 0, 1, 2, 3], [1, 0, 0, 1, 1])
    none = ([], [], [])
    data = Partition({"S_c": S_c, "S_t": S_t, "S_va": none, "S_te": none}, (3, 4))
    negative, positive = bound.positives_of_both(data)
    assert negative is None and positive.rate == pytest.approx(1 / (1 + 2 / 4)) and positive.n == 3


@pytest.mark.needs_jit
@pytest.mark.parametrize("loss", PROVEN)
def test_intervals_of_a_log_without_truth_hold_what_the_truth_says(loss):
    """Twenty logs of 100 users x 60 items with a randomized log over all items; M_c and M_t know S_c and S_t by heart.

    If a model has memorised its training pairs, losses on them say least about other pairs.
    """
    held = {"b": [], "bias": [], "ideal": []}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        shape, taste = (100, 60), rng.normal(size=(100, 1)) + rng.normal(size=(1, 60))
        R_t = (rng.random(shape) < 1 / (1 + np.exp(1.5 - taste))).astype(float)
        R_c = np.where(rng.random(shape) < 0.8, R_t, 1.0)
        S_c = rng.random(shape) < 0.15
        order = np.argsort(rng.random(shape), axis=1)
        parts = {"S_c": S_c.nonzero()}
        for part, columns in (("S_t", slice(0, 4)), ("S_va", slice(4, 6)), ("S_te", slice(6, 12))):
            items = order[:, columns]
            parts[part] = np.repeat(np.arange(100), items.shape[1]), items.ravel()
        labels = {part: (R_c if part == "S_c" else R_t)[own] for part, own in parts.items()}
        triplets = {part: Triplets(*own, labels[part], np.ones(len(own[0]))) for part, own in parts.items()}
        M_c, M_t = (taste - 1 + rng.normal(size=shape) for _ in range(2))
        blind, told = (Partition(triplets, shape, truth=truth) for truth in (None, Dense(R_t)))
        M_c[blind.triplets("S_c").users, blind.triplets("S_c").items] += 3 * blind.triplets("S_c").labels
        for M in (M_c, M_t):
            M[parts["S_t"]] = np.where(labels["S_t"] > 0, 4.0, -4.0)
        measured, truth = (bounds.measure(Dense(M_c), Dense(M_t), log, loss) for log in (blind, told))
        for name, own in held.items():
            found = bound.estimate(measured.unknown[name], measured, blind)
            own.append(found.low <= getattr(truth, name) <= found.high)
    assert all(sum(own) >= 18 for own in held.values()), {name: sum(own) for name, own in held.items()}


def report_of(loss, truth=True, hypotheses=7, eta=0.1, **log):
    """The report of a model of 17 weights, and what it was made of."""
    data, _, _, s_c, s_t = random_log(1, truth=truth, **log)
    measured = bounds.measure(Dense(s_c), Dense(s_t), data, loss)
    weights = SimpleNamespace(arrays=lambda: {"x": np.zeros((3, 4)), "y": np.zeros(5)})
    found = bound._report(SimpleNamespace(name="own"), data, loss, measured, hypotheses, eta, weights)
    return found, measured, data


@pytest.mark.parametrize(
    ("loss", "theorem", "proven", "has_slack"),
    [("mae", "4.2", True, True), ("bce", "4.5", True, False), ("squared", "4.5", False, False)],
)
def test_a_report_where_the_truth_is_known(loss, theorem, proven, has_slack):
    found, measured, data = report_of(loss)
    assert (found.method, found.data, found.loss, found.eta) == ("own", data.name, loss, 0.1)
    assert found.theorem == f"Theorem {theorem}" and found.proven is proven
    assert list(found.terms) == ["a", "b", "c", "d", "e", "bias"] + ["slack"] * has_slack
    for name in ("a", "b", "c", "d", "e", "bias"):
        assert found.terms[name].value == found.terms[name].high == pytest.approx(getattr(measured, name))
        assert found.terms[name].meaning == bound.MEANINGS[name][0 if loss == "mae" else 1]
    slack = 1 / 60 * np.sqrt(SHAPE[0] * SHAPE[1] / 2 * np.log(2 * 7 / 0.1)) if has_slack else 0.0
    if has_slack:
        assert found.terms["slack"].value == pytest.approx(slack)
        assert found.terms["slack"].how == "Delta = 1, |H| = 7, eta = 0.1"
    assert found.total.value == pytest.approx(
        measured.a + measured.c + measured.b + measured.d + measured.e + measured.bias + slack
    )
    assert found.ideal.value == pytest.approx(measured.ideal) and found.proposition == measured.proposition
    on_S_c, on_S_u, on_S_t, *rest = found.gap.values()
    assert on_S_c == pytest.approx(measured.b + measured.c - measured.S_c_ideal)
    assert on_S_u == pytest.approx(measured.d + measured.S_u_error - measured.S_u_ideal)
    assert on_S_t == pytest.approx(measured.e - measured.expected_e) and rest == [slack] * has_slack
    assert sum(found.gap.values()) == pytest.approx(found.total.value - found.ideal.value)


def test_a_report_in_text_and_json():
    found, measured, _ = report_of("mae")
    lines = found.text().splitlines()
    assert found.title == "bound" and "Theorem 4.2" in lines[0]
    assert lines[3] == f"a       {measured.a:.4f}  S_t: its labels against M_c"
    assert [line.split()[0] for line in lines[3:12]] == ["a", "b", "c", "d", "e", "bias", "slack", "bound", "ideal"]
    assert f"{found.total.value - measured.ideal:.4f} above the ideal loss" in found.text()
    assert str(found) == found.text() and "measured=" not in repr(found)
    document = found.to_dict()
    assert (document["method"], document["loss"], document["proven"], document["eta"]) == ("own", "mae", True, 0.1)
    assert document["terms"]["slack"]["value"] == found.terms["slack"].value and document["gap"] == found.gap
    assert document["total"]["value"] == found.total.value and document["ideal"]["value"] == found.ideal.value
    assert document["proposition"] == measured.proposition and document["notes"] == list(found.notes)
    assert [report_of(loss)[0].text().count("why the sum is") for loss in ("mae", "bce", "squared")] == [0, 1, 1]


def test_a_report_of_a_real_log_shows_ranges_and_estimates():
    found, measured, _ = report_of("mae", truth=False, overlapping=True)
    assert found.proposition is None and found.gap == {} and "why the" not in found.text()
    lines = {line.split()[0]: line for line in found.text().splitlines() if line}
    assert lines["value"].split() == ["value", "at", "least", "at", "most", "95", "%", "interval"]
    b, unknown = found.terms["b"], measured.unknown
    assert lines["b"].split()[1:6] == [
        "-", f"{unknown['b'].low:.4f}", f"{unknown['b'].high:.4f}", f"{b.estimate:.4f}",
        f"({b.estimate_low:.4f}..{b.estimate_high:.4f})",
    ]  # fmt: skip
    assert lines["b"].endswith(
        "S_c from 15 pairs observed under both policies, if the log is uniform (see dubnb audit)"
    )
    assert lines["a"].split()[1:5] == [f"{measured.a:.4f}", "-", "-", "-"]
    low, high = found.ideal.estimate_low, found.ideal.estimate_high
    assert f"({low:.4f}..{high:.4f})" in lines["ideal"] and unknown["ideal"].low <= low < high <= unknown["ideal"].high
    apart = report_of("mae", truth=False)[0]  # no pair under both policies: S_c may have any labels
    assert apart.terms["b"].estimate_low is None and apart.total.estimate_low is None
    assert apart.ideal.estimate is None and f"{apart.ideal.estimate_low:.4f}..{apart.ideal.estimate_high:.4f}  the"
    assert "S_c with any labels" in apart.ideal.how


def test_notes_say_what_the_slack_takes_for_granted():
    """Every model of 17 weights of 32 bits, 60 pairs without replacement; and the proposition where it can be told."""
    found, measured, _ = report_of("mae")
    D = SHAPE[0] * SHAPE[1]
    every = 1 / 60 * np.sqrt(D / 2 * (np.log(2 / 0.1) + 17 * 32 * np.log(2)))
    about, proposition = found.notes
    assert f"it is {every:.3g}. For |S_t| draws without replacement {np.sqrt(np.log(20) / 120):.4f} suffices" in about
    holds = f"Proposition 4.1 holds: {measured.ideal:.4f} (ideal loss) <= {measured.proposition:.4f}."
    assert proposition == holds
    assert len(report_of("mae", truth=False)[0].notes) == 1
    idle = report_of("mae", eta=1e-9, truth=False)[0].notes  # sqrt(391 / 2 log(2e9)) is more than 60
    assert len(idle) == 2 and "makes no statement" in idle[1]
    no_delta, proposition = report_of("bce")[0].notes
    assert "no Delta exists" in no_delta and proposition.startswith("Proposition 4.4 holds")
    (no_proof,) = report_of("squared")[0].notes
    assert "an objective, not a bound" in no_proof


def test_a_total_is_a_sum_where_M_t_trained_on_S_t_and_H_has_one_model():
    data, _, _, s_c, s_t = random_log(1)
    measured = bounds.measure(Dense(s_c), Dense(s_t), data, "mae")
    weights, model = SimpleNamespace(arrays=dict), SimpleNamespace(name="own")
    trained = bound._report(model, data, "mae", measured, 1, 0.1, weights, fixed=False)
    assert trained.title == "sum" and "not a bound" in trained.notes[0] and "--hypotheses" in trained.notes[0]
    assert "\nsum " in trained.text() and "why the sum is" in trained.text() and "\nbound " not in trained.text()
    for options in ({"hypotheses": 1, "fixed": True}, {"hypotheses": 2, "fixed": False}):
        report = bound._report(model, data, "mae", measured, options["hypotheses"], 0.1, weights, options["fixed"])
        assert report.title == "bound" and "not a bound" not in report.text()


@pytest.mark.filterwarnings("ignore")
def test_a_teacher_that_never_read_S_t_makes_a_bound():
    data, quick = small_partition(), {"rank": 2, "epochs": 2}
    dub, base = dubnb.DUB(**quick).fit(data), dubnb.Base(**quick).fit(data)
    assert dubnb.bound(dub, data, loss="mae").title == "sum"
    assert dubnb.bound(dub, data, loss="mae", teacher=base).title == "bound"
    assert dubnb.bound(base, data, loss="mae").title == "sum"  # its M_t is a unif, fitted on S_t


@pytest.mark.filterwarnings("ignore")
def test_a_bound_of_a_fitted_model_reads_its_own_predictions():
    """M_c and M_t with a link, read by a loss without one; limits of what may be asked."""
    data, quick = small_partition(), {"rank": 2, "epochs": 2}
    dub = dubnb.DUB(**quick).fit(data)
    found = dubnb.bound(dub, data, loss="mae")
    S_t = data.triplets("S_t")
    scores = {"a": dub.weights_.score_pairs(S_t.users, S_t.items), "e": dub.teacher_.score_pairs(S_t.users, S_t.items)}
    errors = {name: np.abs(1 / (1 + np.exp(-s)) - S_t.labels) for name, s in scores.items()}
    assert found.terms["a"].value == pytest.approx(errors["a"].sum() / (data.n_users * data.n_items), abs=1e-6)
    assert found.terms["e"].value == pytest.approx(errors["e"].mean(), abs=1e-6)
    assert found.eta == 0.05 and "|H| = 1," in found.terms["slack"].how
    assert dubnb.bound(dub, data, loss="mae", eta=1.0, hypotheses=2**62).eta == 1.0
    for bad in ({"eta": 0.0}, {"eta": 1.1}, {"hypotheses": 2**62 + 1}, {"hypotheses": 0}):
        with pytest.raises(InputError, match=f"{next(iter(bad))}="):
            dubnb.bound(dub, data, loss="mae", **bad)
    with pytest.raises(InputError, match="pass a Partition"):
        dubnb.bound(dub, "simulated")
    with pytest.raises(InputError, match="pass a fitted method"):
        dubnb.bound(lambda u, i: 0.0, data)
    parts = {part: data.triplets(part) for part in PARTS}
    shape = (data.n_users, data.n_items)
    for ids in ({"user_ids": Ids(np.arange(shape[0]) + 1)}, {"item_ids": Ids(np.arange(shape[1]) + 1)}):
        with pytest.raises(InputError, match=f"knows {shape[0]} users x {shape[1]} items but .* or other ids"):
            dubnb.bound(dub, Partition(parts, shape, **ids))


@pytest.mark.needs_jit
def test_a_model_without_link_is_read_as_its_clipped_score(world):
    data, _ = world
    model = dubnb.Base(loss="squared", rank=3, epochs=3).fit(data)
    teacher = dubnb.Unif(loss="squared", rank=3, epochs=3).fit(data)
    found = dubnb.bound(model, data, loss="mae", teacher=teacher)
    S_t = data.triplets("S_t")
    p = np.clip(model.weights_.score_pairs(S_t.users, S_t.items), 0, 1)
    assert found.terms["a"].value == pytest.approx(np.abs(p - S_t.labels).sum() / (60 * 40), abs=1e-6)
    with pytest.raises(InputError, match="loss='bce' needs predictions"):
        dubnb.bound(model, data, loss="bce")


@pytest.mark.needs_jit
def test_bad_input_is_one_line(world):
    data, model = world
    with pytest.raises(InputError, match="not fitted"):
        dubnb.bound(dubnb.Base(), data)
    with pytest.raises(InputError, match="loss='mea' is unknown"):
        dubnb.bound(model, data, loss="mea")
    with pytest.raises(InputError, match="other ids"):
        dubnb.bound(model, random_log(0)[0])
    with pytest.raises(InputError, match="pass a fitted method"):
        dubnb.bound(lambda u, i: 0.0, data)
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_va", "S_te")}
    empty = Partition(parts | {"S_t": parts["S_t"].take(slice(0))}, (60, 40))
    with pytest.raises(InputError, match="S_t is empty"):
        dubnb.bound(model, empty)


@pytest.mark.needs_jit
@pytest.mark.parametrize("solver", ["sampled", "exact"])
def test_term_b_is_off_by_default_and_changes_the_model_when_on(world, solver):
    data, _ = world
    params = {"solver": solver, "rank": 3, "epochs": 3}
    plain = dubnb.DUB(**params).fit(data)
    assert plain.params_["terms"] == "acde"
    assert np.array_equal(dubnb.DUB(b_weight=0.9, **params).fit(data).weights_.users, plain.weights_.users)
    nothing = dubnb.DUB(terms="abcde", b_weight=0.0, **params).fit(data)
    some = dubnb.DUB(terms="abcde", b_weight=0.5, **params).fit(data)
    assert not np.array_equal(some.weights_.users, plain.weights_.users)
    if solver == "exact":  # where no sample's place in a batch matters, a weight of 0 is no term at all
        np.testing.assert_allclose(nothing.weights_.users, plain.weights_.users, atol=1e-4)


@pytest.mark.parametrize("y", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_labels_are_as_far_apart_as_the_loss_says(y):
    """From a sure 0 and a sure 1; a grade of one half counts as no."""
    distance = bounds.DISTANCES[losses.ZERO_ONE]
    for s, sure in ((-1.0, 0.0), (1.0, 1.0)):
        expected = losses.zero_one_value(np.float32(s), y)
        assert distance(np.array([y]), np.array([sure])) == distance(np.array([sure]), np.array([y])) == expected


@pytest.mark.filterwarnings("ignore")
def test_the_teacher_is_the_one_given_the_model_s_own_or_one_fitted_on_S_t():
    data, quick = small_partition(), {"rank": 2, "epochs": 2}
    base, dub = dubnb.Base(seed=3, **quick).fit(data), dubnb.DUB(loss="squared", **quick).fit(data)
    assert bound.teacher_of(dub, data) == (dub.teacher_, False)
    assert bound.teacher_of(dub, data, base) == (base.weights_, True)
    fitted, link = bound.teacher_of(base, data)
    expected = dubnb.Unif(backbone="mf", loss=base.params_["loss"], seed=3).fit(data).weights_
    assert link and all((array == expected.arrays()[name]).all() for name, array in fitted.arrays().items())


# ---- the bound while methods train ---------------------------------------------------------------------------------


def test_terms_of_a_real_log_are_estimates_or_nan():
    data, _, _, s_c, s_t = random_log(1, overlapping=True, truth=False)
    measured = bounds.measure(Dense(s_c), Dense(s_t), data, "mae")
    terms = bound.terms_of(measured, data)
    for name in ("b", "bias"):
        found = bound.estimate(measured.unknown[name], measured, data)
        assert terms[name] == found.value and found.low <= found.value <= found.high
    assert terms["a"] == measured.a
    apart = random_log(1, truth=False)[0]
    measured = bounds.measure(Dense(s_c), Dense(s_t), apart, "mae")
    assert np.isnan(bound.terms_of(measured, apart)["b"])  # no pair under both policies


def rows_of(**last):
    """Two epochs of some methods; the last one's numbers are {method: (every term, sum, auc)}."""
    rows = []
    for method, (term, total, auc) in last.items():
        for epoch in (1, 2):
            terms = dict.fromkeys(("a", "b", "c", "d", "e", "bias"), term + (2 - epoch))
            rows.append(
                {"method": method, "stage": "M_c", "epoch": epoch, **terms, "sum": total, "ideal": 0.5, "auc": auc}
            )
    return pd.DataFrame(rows)


def test_the_answer_names_who_ends_lowest_and_highest():
    found = bound.Trace("bce", "mine", rows_of(dub=(0.1, 0.6, 0.8), base=(0.3, 0.9, 0.7), unif=(0.2, 0.7, 0.6)))
    assert found.last()["epoch"].tolist() == [2, 2, 2] and found.last()["method"].tolist() == ["dub", "base", "unif"]
    sentences = found.answer()
    assert sentences[:4] == [
        f"Term {term} ends lowest with dub (0.1000) and highest with base (0.3000)." for term in "acde"
    ]
    assert sentences[4] == "dub ends with the lowest sum (0.6000), which also has the best AUC (0.8000)."
    other = bound.Trace("bce", "mine", rows_of(dub=(0.1, 0.6, 0.7), base=(0.3, 0.9, 0.8))).answer()
    assert other[4] == "dub ends with the lowest sum (0.6000), but base has the best AUC (0.8000)."


@pytest.mark.filterwarnings("ignore")
def test_the_trace_measures_every_epoch_of_M_c_against_one_M_t():
    data = small_partition()
    found = bound.trace(data, ("base", "unif"), loss="squared", seed=4)
    unif = dubnb.make("unif", seed=4).fit(data)
    p_t = bounds.Predictions(unif.weights_, True, False)  # a model of bce, read by a loss without a link
    for name in ("base", "unif"):
        model = dubnb.make(name, seed=4).fit(data)
        own = found.rows[found.rows.method == name]
        assert own["epoch"].tolist() == list(range(1, len(model.history_) + 1))
        assert set(own["stage"]) == ({"M_t"} if name == "unif" else {"M_c"})
    epochs = []
    dubnb.make("base", seed=4).fit(data, watch=lambda stage, epoch, scorer: epochs.append(snapshot(scorer, data)))
    first = found.rows.iloc[0]
    measured = bounds.measure(Dense(1 / (1 + np.exp(-epochs[0]))), p_t, data, "squared")
    for name in ("a", "c", "d", "e"):
        assert first[name] == pytest.approx(getattr(measured, name), abs=1e-6)
    S_te = data.unseen("S_te")
    assert first["auc"] == pytest.approx(metrics.auc(epochs[0][S_te.users, S_te.items], S_te.labels))
    assert np.isnan(first["ideal"])  # too few pairs for an estimate


def snapshot(scorer, data):
    return np.array(scorer.score_rows(np.arange(data.n_users)), dtype=np.float64)


def test_bad_input_of_a_trace_is_one_line():
    data = small_partition()
    parts = {part: data.triplets(part) for part in PARTS} | {"S_te": data.triplets("S_te").take(slice(0))}
    with pytest.raises(InputError, match="S_te is empty"):
        bound.trace(Partition(parts, (data.n_users, data.n_items)))
    with pytest.raises(InputError, match="method='dob' is unknown"):
        bound.trace(data, ("dob",))
    with pytest.raises(InputError, match="loss='mea' is unknown"):
        bound.trace(data, loss="mea")
