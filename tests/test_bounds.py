"""The bound: every sum against plain NumPy, both propositions on random matrices, the theorems over draws of S_t."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats as scipy_stats

import dubnb
from dubnb import losses
from dubnb._check import InputError
from dubnb._jit import JIT_ENABLED
from dubnb.data.ids import Ids
from dubnb.data.partition import PARTS, Partition, Triplets
from dubnb.losses import LOSSES
from dubnb.objective import bounds
from dubnb.theory import bound
from dubnb.theory.trace import trace
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
    l = np.vectorize(lambda s, y: float(losses.value(code, float(s), float(y))))
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
    if_y = [l(s_t, np.full(SHAPE, y)) if triangle else l(s_c, y - p_t) for y in (0.0, 1.0)]
    b_if_y = [np.abs(y - R_c) if triangle else l(s_c, y - R_c) for y in (0.0, 1.0)]
    held = tuple(np.concatenate([data.triplets(part)[k] for part in ("S_va", "S_te")]) for k in (0, 1))
    return {
        "a": l(s_c, R_t)[in_S_t].sum() / D,
        "b": other[in_S_c].sum() / D,
        "c": l(s_c, R_c)[in_S_c].sum() / D,
        "d": l(s_c, p_t)[in_S_u].sum() / D,
        "e": error[in_S_t].mean(),
        "S_u_error": error[in_S_u].sum() / D,
        "S_u_error_low": np.minimum(*if_y)[in_S_u].sum() / D,
        "S_u_error_high": np.maximum(*if_y)[in_S_u].sum() / D,
        "b_low": np.minimum(*b_if_y)[in_S_c].sum() / D,
        "b_high": np.maximum(*b_if_y)[in_S_c].sum() / D,
        "b_by_class": np.array([[b[in_S_c & (R_c == k)].sum() for b in b_if_y] for k in (0.0, 1.0)]) / D,
        "held_out": error[held],
        "held_out_ideal": l(s_c, R_t)[held],
        "ideal": l(s_c, R_t).mean(),
        "expected_e": (in_S_t.sum(axis=1) * row_means).sum() / in_S_t.sum(),
    }


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


def test_without_the_truth_what_it_alone_tells_is_nan():
    known, (blind, *matrices) = random_log(3)[0], random_log(3, truth=False)
    found, told = (bounds.measure(Dense(matrices[2]), Dense(matrices[3]), data, "mae") for data in (blind, known))
    for name in ("b", "S_u_error", "expected_e", "S_c_ideal", "S_u_ideal", "ideal", "bias", "proposition"):
        assert np.isnan(getattr(found, name)) and np.isfinite(getattr(told, name)), name
    for name in ("a", "c", "d", "e", "S_u_error_low", "S_u_error_high", "b_low", "b_high"):
        assert getattr(found, name) == getattr(told, name), name
    assert told.bias == told.S_u_error - told.expected_e
    assert told.proposition == pytest.approx(told.a + told.b + told.c + told.S_u_error + told.d)


def test_labels_of_one_half_are_no_positives_for_zero_one():
    distance = bounds.DISTANCES[losses.ZERO_ONE]
    labels = np.array([0.0, 0.5, 0.6, 1.0])
    assert distance(labels[:, None], labels).tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]


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


@pytest.mark.parametrize("loss", PROVEN)
def test_the_inequalities_behind_them_hold_for_real_targets(loss):
    rng = np.random.default_rng(0)
    s = rng.normal(scale=3, size=20_000)
    far, middle = rng.uniform(-1, 2, size=(2, 20_000))
    own = LOSSES[loss]
    direct = bounds.loss_values(own, s, far)
    detour = bounds.loss_values(own, s, middle) + bounds.difference(own, s, far, middle)
    assert (direct <= detour + 1e-9).all()


def test_a_squared_error_is_not_separable_for_a_real_middle_label():
    squared = LOSSES["squared"]
    (direct,) = bounds.loss_values(squared, np.zeros(1), np.ones(1))
    detour = bounds.loss_values(squared, np.zeros(1), np.full(1, 0.5))
    detour += bounds.difference(squared, np.zeros(1), np.ones(1), np.full(1, 0.5))
    assert direct == 1.0 and detour[0] == 0.5
    binary = [(c, b, a) for c in (0.0, 1.0) for b in (0.0, 1.0) for a in np.linspace(0, 1, 11)]
    for c, b, a in binary:  # with binary labels it is
        assert (a - c) ** 2 <= (a - b) ** 2 + (a - (c - b)) ** 2 + 1e-12


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


def measured_of(**change):
    """Numbers of a bound that were chosen, not measured."""
    rng = np.random.default_rng(3)
    own = {"S_u_error_low": 0.1, "S_u_error_high": 0.7, "held_out": rng.random(30), "held_out_ideal": rng.random(20)}
    own |= {"b_low": 0.05, "b_high": 0.4, "b_by_class": np.array([[0.02, 0.3], [0.2, 0.01]])}
    return SimpleNamespace(**own | change)


def test_the_bias_on_a_real_log_by_hand():
    data = random_log(0, truth=False)[0]
    measured = measured_of()
    bias = bound._bias(measured, data, True, 1.0, 0.05)
    mean, error = measured.held_out.mean(), scipy_stats.sem(measured.held_out)
    low, high = scipy_stats.t.interval(0.95, 29, mean, error)
    assert bias.value is None and (bias.low, bias.high) == pytest.approx((0.1 - high, 0.7 - low))
    outside = -len(data.seen.items) / (SHAPE[0] * SHAPE[1])  # S_u is that much less than all pairs
    assert bias.estimate == pytest.approx(outside * mean)
    assert (bias.estimate_low, bias.estimate_high) == pytest.approx((outside * high, outside * low))
    for few in ([], [0.5]):
        for delta, least in ((1.0, -0.9), (None, -np.inf)):
            blind = bound._bias(measured_of(held_out=np.array(few)), data, True, delta, 0.05)
            assert (blind.low, blind.high, blind.estimate) == (least, 0.7, None)
    two = bound._bias(measured_of(held_out=np.array([0.4, 0.6])), data, True, 1.0, 0.05)
    assert two.estimate == pytest.approx(outside * 0.5)


def test_term_b_from_pairs_under_both_policies_by_hand():
    data = random_log(1, overlapping=True, truth=False)[0]
    b = bound._term_b(measured_of(), data, True)
    low = high = middle = 0.0
    for k, (at_0, at_1) in ((0, (0.02, 0.3)), (1, (0.2, 0.01))):
        labels = data.overlap.labels[data.overlap.policy_labels == k]
        rate = scipy_stats.binomtest(int(labels.sum()), len(labels)).proportion_ci(0.975, method="exact")
        ends = sorted(at_0 + r * (at_1 - at_0) for r in (rate.low, rate.high))
        low, high = low + ends[0], high + ends[1]
        middle += at_0 + labels.mean() * (at_1 - at_0)
    assert (b.value, b.low, b.high) == (None, 0.05, 0.4)
    assert (b.estimate, b.estimate_low, b.estimate_high) == pytest.approx((middle, low, high))
    alone = bound._term_b(measured_of(), random_log(1, truth=False)[0], True)
    assert (alone.low, alone.high, alone.estimate) == (0.05, 0.4, None)


def test_the_total_adds_what_is_known_and_what_is_estimated():
    known, guess = bound.Quantity.known("", 0.5), bound.Quantity("", None, 0.1, 0.9, 0.3, 0.2, 0.6)
    assert bound._total({"a": known, "c": known}).value == 1.0
    total = bound._total({"a": known, "b": guess, "bias": guess})
    assert total.value is None and (total.low, total.high) == pytest.approx((0.7, 2.3))
    assert (total.estimate, total.estimate_low, total.estimate_high) == pytest.approx((1.1, 0.9, 1.7))
    blind = bound._total({"b": guess, "bias": bound.Quantity("", None, 0.0, 1.0)})
    assert blind.value is None and blind.estimate is None and (blind.low, blind.high) == pytest.approx((0.1, 1.9))
    assert blind.meaning == total.meaning == "a + b + c + d + e + bias"
    assert bound._total({"a": known, "slack": known}).meaning == "a + b + c + d + e + bias + slack"


def test_the_ideal_loss_of_a_real_log_is_estimated_on_what_trained_nothing():
    measured = measured_of()
    ideal = bound._ideal(measured, known=False)
    interval = scipy_stats.t.interval(
        0.95, 19, measured.held_out_ideal.mean(), scipy_stats.sem(measured.held_out_ideal)
    )
    assert ideal.value is None and ideal.estimate == pytest.approx(measured.held_out_ideal.mean())
    assert (ideal.estimate_low, ideal.estimate_high) == pytest.approx(interval)
    assert bound._ideal(measured_of(held_out_ideal=np.array([0.5])), known=False).estimate is None
    assert bound._ideal(measured_of(held_out_ideal=np.array([0.5, 0.7])), known=False).estimate == pytest.approx(0.6)
    assert bound._ideal(measured_of(ideal=0.25), known=True).value == 0.25


def test_every_setting_of_the_weights_is_a_model():
    weights = SimpleNamespace(arrays=lambda: {"x": np.zeros((3, 4)), "y": np.zeros(5)})
    assert bound._log_models(weights) == pytest.approx(17 * 32 * np.log(2))


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
    title, _, header, *lines = found.text().splitlines()
    assert title == f"Theorem 4.2, loss mae: own on {found.data}" and header.split() == ["value"]  # nothing is unknown
    assert lines[0] == f"a       {measured.a:.4f}  S_t: its labels against M_c"
    assert [line.split()[0] for line in lines[:9]] == ["a", "b", "c", "d", "e", "bias", "slack", "bound", "ideal"]
    assert lines[7].split()[1] == f"{found.total.value:.4f}" and lines[8].split()[1] == f"{measured.ideal:.4f}"
    assert f"why the bound is {found.total.value - measured.ideal:.4f} above the ideal loss:" in lines
    assert f"  {found.terms['slack'].value:8.4f}  slack" in lines and lines[-1] == found.notes[-1]
    assert str(found) == found.text() and "measured=" not in repr(found)
    document = found.to_dict()
    assert [document[name] for name in ("method", "loss", "theorem", "proven", "eta")] == [
        "own",
        "mae",
        "Theorem 4.2",
        True,
        0.1,
    ]
    assert document["terms"]["slack"]["value"] == found.terms["slack"].value and document["gap"] == found.gap
    assert document["total"]["value"] == found.total.value and document["ideal"]["value"] == found.ideal.value
    assert document["proposition"] == measured.proposition and document["notes"] == list(found.notes)
    assert [report_of(loss)[0].text().count("why the sum is") for loss in ("mae", "bce", "squared")] == [0, 1, 1]


def test_a_report_of_a_real_log_shows_ranges_and_estimates():
    found, measured, _ = report_of("mae", truth=False, overlapping=True)
    assert found.proposition is None and found.gap == {} and "why the" not in found.text()
    lines = {line.split()[0]: line for line in found.text().splitlines() if line}
    assert lines["value"].split() == ["value", "at", "least", "at", "most", "estimate"]
    b = found.terms["b"]
    assert lines["b"].split()[1:6] == [
        "-", f"{measured.b_low:.4f}", f"{measured.b_high:.4f}", f"{b.estimate:.4f}",
        f"({b.estimate_low:.4f}..{b.estimate_high:.4f})",
    ]  # fmt: skip
    assert lines["b"].endswith("S_c: R^t against R^c; estimated from 15 pairs observed under both policies")
    assert lines["a"].split()[1:5] == [f"{measured.a:.4f}", "-", "-", "-"]
    assert lines["ideal"].split()[1:4] == ["-", "-", "-"]


def test_notes_say_what_the_slack_takes_for_granted():
    """Every model of 17 weights of 32 bits, 60 pairs without replacement; and the proposition where it can be told."""
    found, measured, data = report_of("mae")
    D = SHAPE[0] * SHAPE[1]
    every = 1 / 60 * np.sqrt(D / 2 * (np.log(2 / 0.1) + 17 * 32 * np.log(2)))
    about, proposition = found.notes
    assert f"it is {every:.3g}. For |S_t| draws without replacement {np.sqrt(np.log(20) / 120):.4f} suffices" in about
    holds = f"Proposition 4.1 holds: {measured.ideal:.4f} (ideal loss) <= {measured.proposition:.4f}."
    assert proposition == holds
    assert len(report_of("mae", truth=False)[0].notes) == 1
    idle = report_of("mae", eta=1e-9, truth=False)[0].notes  # sqrt(391 / 2 log(2e9)) is more than 60
    assert len(idle) == 2 and "says nothing here" in idle[1]
    no_delta, proposition = report_of("bce")[0].notes
    assert bound.NO_DELTA in no_delta and proposition.startswith("Proposition 4.4 holds")
    (no_proof,) = report_of("squared")[0].notes
    assert bound.NO_PROOF in no_proof
    for off, verdict in ((0.0, "holds"), (1e-13, "holds"), (1e-9, "FAILS")):  # rounding is no failure
        numbers = SimpleNamespace(ideal=0.25, proposition=0.25 - off)
        assert f"4.1 {verdict}:" in bound._notes("mae", numbers, data, SimpleNamespace(arrays=dict), 0.1, True)[-1]


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


@pytest.mark.parametrize("function", [dubnb.audit, dubnb.bound, dubnb.plan])
def test_nothing_is_shown_unless_asked(function):
    assert inspect.signature(function).parameters["quiet"].default is True


@pytest.mark.needs_jit
def test_the_report_says_what_is_no_bound(world):
    data, model = world
    assert "slack" not in dubnb.bound(model, data).terms
    assert "no Delta" in dubnb.bound(model, data).text()
    for loss in ("mse", "squared"):
        found = dubnb.bound(model, data, loss=loss)
        assert not found.proven and "an objective, not a bound" in found.text() and "slack" not in found.terms
    mae = dubnb.bound(model, data, loss="mae", hypotheses=10, eta=0.1)
    n_t, n_pairs = len(data.triplets("S_t").users), data.n_users * data.n_items
    assert mae.terms["slack"].value == pytest.approx(bounds.slack(1.0, n_t, n_pairs, 0.1, np.log(10)))
    assert mae.total.value >= mae.ideal.value and "Proposition 4.1 holds" in mae.text()
    assert set(mae.to_dict()) >= {"terms", "total", "ideal", "gap", "notes"}


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
def test_the_trace_has_a_row_for_every_epoch_of_M_c(world):
    data, _ = world
    found = trace(data, ("base", "dub"), seed=0)
    model = dubnb.make("dub", seed=0).fit(data)
    own = found.rows[found.rows.method == "dub"]
    assert len(own) == (model.history_["stage"] != "M_t").sum()
    assert np.isfinite(own[["a", "b", "c", "d", "e", "sum", "ideal", "auc"]].to_numpy()).all()
    np.testing.assert_allclose(own[["a", "b", "c", "d", "e", "bias"]].sum(axis=1), own["sum"])


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


def test_the_loss_is_the_model_s_own_unless_another_is_named():
    with_link, without = (SimpleNamespace(params_={"loss": name}) for name in ("bce", "squared"))
    assert bound.checked_loss(with_link, None) == "bce" and bound.checked_loss(without, None) == "squared"
    assert bound.checked_loss(with_link, "mae") == bound.checked_loss(without, "mae") == "mae"
    assert bound.own_link(with_link) and not bound.own_link(without)
    with pytest.raises(InputError, match="loss='bce' needs predictions inside"):
        bound.checked_loss(without, "bce")


@pytest.mark.filterwarnings("ignore")
def test_the_teacher_is_the_one_given_the_model_s_own_or_one_fitted_on_S_t():
    data, quick = small_partition(), {"rank": 2, "epochs": 2}
    base, dub = dubnb.Base(seed=3, **quick).fit(data), dubnb.DUB(loss="squared", **quick).fit(data)
    assert bound.teacher_of(dub, data) == (dub.teacher_, False)
    assert bound.teacher_of(dub, data, base) == (base.weights_, True)
    fitted, link = bound.teacher_of(base, data)
    expected = dubnb.Unif(backbone="mf", loss=base.params_["loss"], seed=3).fit(data).weights_
    assert link and all((array == expected.arrays()[name]).all() for name, array in fitted.arrays().items())
