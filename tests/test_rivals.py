"""The rivals that comparisons should include, and the propensities that some of them share."""

import dataclasses
import types

import numpy as np
import pytest

import dubnb
from dubnb import InputError
from dubnb.backbones.mf import Stream
from dubnb.data import simulate
from dubnb.data.partition import Partition
from dubnb.losses import LINEAR, bce_value, value_and_derivative
from dubnb.methods.ips import learned_propensities, logistic_propensities, naive_bayes_propensities
from dubnb.objective import coupled
from dubnb.objective.terms import EpochStreams, empty_stream
from tests import naive


@pytest.fixture(scope="module")
def simulated():
    return dubnb.load_dataset("simulated", seed=0)


def only_positives_of_S_c(data):
    """The same log without the negatives of S_c."""
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_va", "S_te")}
    liked = parts["S_c"].labels > 0
    S_c = tuple(column[liked] for column in parts["S_c"][:5])
    return Partition(parts | {"S_c": S_c}, (data.n_users, data.n_items))


# -- ease


def test_ease_gives_what_a_known_matrix_says():
    """Three items, the first two always together: by hand, B = -P / diag P of [[2, 2, 0], [2, 2, 0], [0, 0, 1]] + I."""
    pairs = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 2])
    liked = np.ones(5)
    S_t, S_va = (np.array([1]), np.array([2]), np.ones(1)), (np.array([2, 2]), np.array([0, 1]), np.array([0.0, 1.0]))
    S_te = np.array([0]), np.array([2]), np.ones(1)
    data = Partition({"S_c": (*pairs, liked), "S_t": S_t, "S_va": S_va, "S_te": S_te}, (3, 3))
    with pytest.warns(UserWarning, match="positives alone"):
        model = dubnb.EASE(lam=1.0, calibrate=False).fit(data)
    expected = [[2 / 3, 2 / 3, 0], [2 / 3, 2 / 3, 0], [0, 0, 0]]
    np.testing.assert_allclose(model.decision_function(np.arange(3)[:, None], np.arange(3)), expected, atol=1e-6)
    with pytest.warns(UserWarning, match="positives alone"):
        both = dubnb.EASE(lam=1.0, terms="ac", calibrate=False).fit(data)
    assert both.decision_function(1, 2) > 0.1  # S_t's positive brings the third item to the others


@pytest.mark.needs_jit
def test_ease_serves_as_any_model_and_explains(simulated, tmp_path):
    model = dubnb.EASE().fit(simulated)
    S_c = simulated.triplets("S_c")
    user = int(np.bincount(S_c.users[S_c.labels > 0]).argmax())
    own, every = S_c.users == user, np.arange(300)
    scores = model.decision_function(user, every)
    new = model.fold_in(S_c.items[own], S_c.labels[own])
    np.testing.assert_allclose(new.decision_function(every), scores, atol=1e-6)
    item = int(model.recommend([user], k=1)[0][0, 0])
    reasons, amounts = model.explain(user, item, k=300)
    assert set(reasons) == set(S_c.items[own & (S_c.labels > 0)])
    assert amounts.sum() == pytest.approx(scores[item], rel=1e-4)
    nearest, gains = model.similar_items([item], k=3)
    assert item not in nearest and (np.diff(gains[0]) <= 0).all()
    model.save(tmp_path / "ease.npz")
    again = dubnb.load(tmp_path / "ease.npz")
    np.testing.assert_array_equal(again.decision_function(user, every), scores)
    with pytest.warns(UserWarning, match="unknown"):
        items, average = again.recommend([10**6], k=300, exclude=False)
    warm = np.setdiff1d(np.arange(1000), np.flatnonzero(model.cold_))
    mean = model.decision_function(warm[:, None], every).mean(axis=0, dtype=float)
    np.testing.assert_allclose(average[0], mean[items[0]], atol=1e-6)  # the average list is that of the mean scores


def test_ease_refuses_catalogues_that_do_not_fit():
    parts = {}
    for number, part in enumerate(("S_c", "S_t", "S_va", "S_te")):
        parts[part] = np.array([0, 1]), np.full(2, number), np.array([0.0, 1.0])
    data = Partition(parts, (2, 20_000))
    with pytest.raises(InputError, match="20,000 items: ease"):
        dubnb.EASE().fit(data)


# -- ials


@pytest.mark.needs_jit
def test_ials_reads_positives_alone(simulated):
    clicks = only_positives_of_S_c(simulated)
    with pytest.warns(UserWarning, match="positives alone"):
        expected = dubnb.IALS(rank=4, epochs=3).fit(clicks)
    found = dubnb.IALS(rank=4, epochs=3).fit(simulated)
    users = np.unique(clicks.triplets("S_c").users)[:50, None]
    np.testing.assert_array_equal(
        found.decision_function(users, np.arange(300)), expected.decision_function(users, np.arange(300))
    )


@pytest.mark.needs_jit
def test_ials_folds_in_a_user_as_training_would(simulated):
    model = dubnb.IALS(rank=8, patience=30).fit(simulated)
    S_c = simulated.triplets("S_c")
    user = np.bincount(S_c.users[S_c.labels > 0]).argmax()
    own = S_c.users == user
    new = model.fold_in(S_c.items[own], S_c.labels[own])
    trained, folded = model.decision_function(user, np.arange(300)), new.decision_function(np.arange(300))
    assert np.corrcoef(trained, folded)[0, 1] > 0.99 and np.abs(trained - folded).max() < 0.1 * np.abs(trained).max()
    assert not np.isin(new.recommend(20)[0], S_c.items[own]).any()  # its negatives are not listed either


@pytest.mark.parametrize("options", [{"terms": "ac"}, {"terms": "d"}, {"loss": "bce"}, {"device": "cuda"}])
def test_ials_refuses_what_it_cannot_do(options):
    with pytest.raises(InputError):
        dubnb.IALS(**options).resolve()


# -- propensities


@pytest.fixture(scope="module")
def exposure():
    """A simulated log, and how often each of its pairs is in S_c if the same world draws its S_c 200 times."""
    config = dataclasses.replace(
        simulate.CONFIGS["simulated"], n_users=200, n_items=100, n_biased=3_000, random_users=200
    )
    world, plan = drawn_world(config)
    shares = np.zeros((config.n_users, config.n_items))
    users = np.arange(config.n_users)
    for k in range(200):
        items, _ = simulate._draw(world, plan._replace(race_key=np.uint64(k)), users, quiet=True)
        shares[np.repeat(users, plan.activity), items] += 1 / 200
    return simulate.simulate(config, seed=0), shares


def drawn_world(config):
    plan = simulate._plan(config, 0)
    return simulate._calibrated(simulate.draw_world(config, 0), config, plan), plan


@pytest.mark.needs_jit
def test_logistic_propensities_are_calibrated_against_simulated_exposure(exposure):
    """Pairs with the same counts have one propensity: it is near their mean share over 200 draws of S_c."""
    data, shares = exposure
    S_c = data.triplets("S_c")
    p = logistic_propensities(data)
    n_u, n_i = np.bincount(S_c.users, minlength=data.n_users), np.bincount(S_c.items, minlength=data.n_items)
    alike = [shares[np.ix_(n_u == n_u[u], n_i == n_i[i])].mean() for u, i in zip(S_c.users, S_c.items, strict=True)]
    for group in np.array_split(np.argsort(p), 5):
        assert np.mean(np.array(alike)[group]) == pytest.approx(p[group].mean(), rel=0.35)
    assert (1 / p).sum() / shares.size == pytest.approx(1, abs=0.1)  # the sum of 1 / p estimates the number of pairs


@pytest.mark.needs_jit
def test_naive_bayes_propensities_are_the_mean_exposure_of_a_label(exposure):
    data, shares = exposure
    S_c = data.triplets("S_c")
    p = naive_bayes_propensities(data)
    every = np.divmod(np.arange(shares.size), data.n_items)
    labels = data.truth.policy_label(*every).reshape(shares.shape)
    for y in (0, 1):
        assert p[S_c.labels == y][0] == pytest.approx(shares[labels == y].mean(), rel=0.4)


@pytest.mark.needs_jit
def test_learned_propensities_are_calibrated_by_label_and_counts(exposure):
    """Within each label and half of the item counts, they are near the mean share over 200 draws of S_c."""
    data, shares = exposure
    S_c = data.triplets("S_c")
    p = learned_propensities(data)
    n_i = np.bincount(S_c.items, minlength=data.n_items)
    every = np.divmod(np.arange(shares.size), data.n_items)
    labels = data.truth.policy_label(*every).reshape(shares.shape)
    often = n_i > np.median(n_i)
    found = {}
    for y in (0, 1):
        for popular in (False, True):
            own = (S_c.labels == y) & (often[S_c.items] == popular)
            alike = shares[(labels == y) & (often == popular)]
            found[y, popular] = own.sum() / (1 / p[own]).sum(), alike.mean()  # the harmonic mean: that of all pairs
    for estimate, true in found.values():
        assert estimate == pytest.approx(true, rel=0.4)
    assert found[1, True][0] > found[0, True][0] > found[0, False][0]


def test_learned_propensities_are_naive_bayes_if_only_labels_differ():
    """Every user and every item has as many pairs, so counts tell nothing; the prior hardly matters in a large log."""
    users, items = np.divmod(np.arange(200 * 60), 60)
    rng, part = np.random.default_rng(0), (users + items) % 6
    y = (rng.random(len(users)) < np.where(part == 0, 0.6, 0.2)).astype(float)
    at = {"S_c": part == 0, "S_t": (part == 1) & (users < 150), "S_va": part == 2, "S_te": part == 3}
    data = Partition({name: (users[own], items[own], y[own]) for name, own in at.items()}, (200, 60))
    np.testing.assert_allclose(learned_propensities(data), naive_bayes_propensities(data), rtol=0.02)


# -- objectives that couple scores


def central(function, x, step=1e-3):
    return (function(np.float64(x + step)) - function(np.float64(x - step))) / (2 * step)


POINTS = [(0.7, -0.4, 1.0, 3.0), (-1.2, 0.3, 0.0, 20.0), (0.1, 1.5, 1.0, 1.0), (2.0, -2.0, 0.0, 0.0)]


@pytest.mark.parametrize("s,b,r,W", POINTS)
def test_slopes_are_derivatives(s, b, r, W):
    assert coupled.imputation_slope(s, b, r, W) == pytest.approx(
        central(lambda x: coupled.imputation_value(s, x, r, W), b), rel=1e-3, abs=1e-4
    )
    slopes = coupled.bottleneck_slopes(s, b, r, np.float64(0.3), np.float64(0.1))
    by_s = central(lambda x: coupled.bottleneck_value(x, b, r, 0.3, 0.1), s)
    by_b = central(lambda x: coupled.bottleneck_value(s, x, r, 0.3, 0.1), b)
    assert slopes == pytest.approx((by_s, by_b), rel=1e-3, abs=1e-4)
    assert coupled.preference_slope(s) == pytest.approx(central(coupled.preference, s), rel=1e-3)
    assert value_and_derivative(LINEAR, s, b) == pytest.approx((s * b, b))


def test_the_robust_target_has_the_loss_of_the_estimate():
    """l(s, t + W (r - t)) = e' + W (e - e')."""
    bce = naive.LOSSES["bce"][0]
    for s, b, r, W in POINTS:
        t = float(naive.predict("bce", np.array(b)))
        expected = bce(s, t) + W * (bce(s, r) - bce(s, t))
        assert bce_value(np.float64(s), coupled.robust_target(t, r, W)) == pytest.approx(expected, rel=1e-5)


def test_the_tilt_balances_the_imputed_errors():
    rng = np.random.default_rng(0)
    errors, weights = rng.random(50).astype(np.float32), rng.uniform(1, 20, 50).astype(np.float32)
    tau = coupled.tilt_of(errors, weights, 40, 0.45)
    w = weights[:40] * np.exp(tau * (errors[:40] - 0.45))
    assert np.average(errors[:40], weights=w) == pytest.approx(0.45, abs=1e-6)
    assert abs(coupled.tilt_of(errors, weights, 40, 2.0)) == 4.0  # there is none


def test_other_items_are_uniform_over_those_that_are_not_liked():
    indptr, liked = np.array([0, 3, 3]), np.array([0, 2, 5], np.int32)
    others = np.zeros(6000, np.int32)
    coupled.draw_others(np.uint64(5), np.zeros(6000, np.int32), indptr, liked, 6, others)
    assert (
        np.unique(others, return_counts=True)[1] == pytest.approx([2000] * 3, rel=0.1)
        and not np.isin(others, liked).any()
    )
    coupled.draw_others(np.uint64(5), np.ones(6000, np.int32), indptr, liked, 6, others)
    assert np.unique(others).tolist() == list(range(6))


# -- double robustness: E_DR = mean over all pairs of e' + [observed] W (e - e'), 500 draws of what is observed


@pytest.fixture(scope="module")
def population():
    """(s, r, propensities) of 2,000 pairs: what is liked is seen more often."""
    rng = np.random.default_rng(3)
    s, r = rng.normal(-1, 1, 2000), (rng.random(2000) < 0.3).astype(float)
    return s, r, np.clip(0.05 + 0.4 * r + 0.1 * rng.random(2000), 0.05, 1)


def estimates(s, t, r, p_true, p_used):
    """The estimated loss in 500 draws, from the kernel's own targets."""
    rng, found = np.random.default_rng(4), []
    for _ in range(500):
        seen = rng.random(len(s)) < p_true
        W = np.where(seen, 1 / p_used, 0.0)
        targets = [coupled.robust_target(*each) for each in zip(t, r, W, strict=True)]
        found.append(np.mean(naive.LOSSES["bce"][0](s, np.array(targets))))
    return np.array(found)


CASES = {"true propensities": (0, 1), "true imputation": (1, 0), "both wrong": (1, 1)}  # (wrong p, wrong t)


@pytest.mark.needs_jit
@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_unbiased_if_either_model_is_right(population, case):
    s, r, p = population
    wrong_p, wrong_t = CASES[case]
    t = np.full(len(s), 0.6) if wrong_t else r
    used = np.full(len(s), p.mean()) if wrong_p else p
    found = estimates(s, t, r, p, used)
    ideal = naive.LOSSES["bce"][0](s, r).mean()
    error = found.std(ddof=1) / np.sqrt(len(found))
    if case == "both wrong":
        assert abs(found.mean() - ideal) > 10 * error  # the test can fail
    else:
        assert abs(found.mean() - ideal) <= 3 * error + 1e-6


@pytest.mark.parametrize("clip", [None, 4.0])
def test_inverse_propensities_are_unbiased_unless_they_are_clipped(population, clip):
    """The weighted loss of S_c over the number of all pairs, in 500 draws of S_c with known propensities."""
    s, r, p = population
    every = np.divmod(np.arange(len(s)), 50)
    last, two = np.full(2, len(s) // 50), np.arange(2)  # a further user has the randomized pairs
    parts = {part: (last, two + 2 * k, two * 1.0) for k, part in enumerate(("S_t", "S_va", "S_te"))}
    errors, rng, found = naive.LOSSES["bce"][0](s, r), np.random.default_rng(5), []
    for _ in range(500):
        own = np.flatnonzero(rng.random(len(s)) < p)
        data = Partition(parts | {"S_c": (every[0][own], every[1][own], r[own])}, (len(s) // 50 + 1, 50))
        S_c = data.triplets("S_c")
        at = 50 * S_c.users + S_c.items
        weights = dubnb.IPS(propensity=p[at], clip=clip).inverse_propensities(data)
        found.append(weights @ errors[at] / len(s))
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    difference = np.mean(found) - errors.mean()
    assert abs(difference) <= 3 * error if clip is None else difference < -10 * error


@pytest.mark.needs_jit
def test_tilted_weights_are_unbiased_if_the_imputation_is_right_and_propensities_are_not(population):
    """stable-dr: with e' = e, balancing the imputed errors makes the weighted mean of S_c the ideal loss."""
    s, r, p = population
    errors = naive.LOSSES["bce"][0](s, r).astype(np.float32)
    rng, found = np.random.default_rng(4), []
    for _ in range(500):
        own = errors[rng.random(len(s)) < p]
        ones = np.ones(len(own), np.float32)
        tau = coupled.tilt_of(own, ones, len(own), float(errors.mean()))
        found.append(np.average(own, weights=np.exp(tau * (own - errors.mean()))))
    assert np.mean(found) == pytest.approx(errors.mean(), abs=1e-4)
    assert abs(errors[rng.random(len(s)) < p].mean() - errors.mean()) > 0.01  # without the tilt it is not


def epoch_objective(name, data, own_propensities, s, t, seed):
    """The mean loss over all pairs that M_c's samples of one epoch stand for, from the method's own terms and slopes.

    s and t are the scores of M_c and the imputed labels of all pairs. The scores come from no model: they are fixed.
    """
    method = dubnb.make(name, propensity=own_propensities, gamma=1.0).resolve(data)
    terms = method.all_terms(types.SimpleNamespace(data=data), None)
    epochs = EpochStreams(terms, seed, "M_c")
    samples = epochs.draw(1)
    first, n = np.argsort(samples.terms, kind="stable"), len(samples.users)  # the samples of term c first
    n_c, at = int((samples.terms == epochs.names.index("c")).sum()), (samples.users * 50 + samples.items)[first]
    batch = Stream(*(np.ascontiguousarray(column[first]) for column in samples))
    logits = np.log(t[at]) - np.log1p(-t[at])
    for_c, for_t = empty_stream(n), empty_stream(n)
    room = coupled.BothRoom(batch, s[at].astype(np.float32), logits.astype(np.float32), for_c, for_t, np.zeros(1))
    k = np.float32(1 / terms[1].stands_for)
    totals = np.zeros(3)
    of_c, _ = coupled.write_slopes(coupled.DoublyRobust(method.KIND, k, method.LOSS), n_c, n, room, totals, np.zeros(3))
    weights = for_c.weights[:of_c].astype(np.float64)
    if name == "stable-dr":
        labels = batch.targets[:of_c]
        return np.average(naive.LOSSES["bce"][0](s[at[:of_c]], labels), weights=weights)
    losses = naive.LOSSES["bce"][0](s[at], for_c.targets.astype(np.float64))
    return weights @ losses / (k * data.n_users * data.n_items)


@pytest.mark.needs_jit
@pytest.mark.parametrize("name", ["dr", "stable-dr"])  # M_c of mrdr minimises the same as that of dr
@pytest.mark.parametrize("case", CASES)
def test_the_objective_of_an_epoch_is_unbiased_if_either_model_is_right(population, name, case):
    """500 draws of S_c and of term d: its weights, the drawn pairs and the propensities, not the formula alone."""
    s, r, p = population
    wrong_p, wrong_t = CASES[case]
    known = np.full(len(s), 0.6) if wrong_t else np.clip(r, 1e-6, 1 - 1e-6)
    t = np.concatenate([known, np.tile([1e-6, 1 - 1e-6], 25)])  # a further user has the randomized pairs
    s, r = np.append(s, np.zeros(50)), np.append(r, np.tile([0.0, 1.0], 25))
    n_users, two = len(s) // 50, np.arange(2)
    parts = {part: (np.full(2, n_users - 1), two + 2 * k, two * 1.0) for k, part in enumerate(("S_t", "S_va", "S_te"))}
    every, rng, found = np.divmod(np.arange(len(s)), 50), np.random.default_rng(6), []
    for seed in range(500):
        own = np.flatnonzero(rng.random(len(p)) < p)
        data = Partition(parts | {"S_c": (every[0][own], every[1][own], r[own])}, (n_users, 50))
        S_c = data.triplets("S_c")
        used = np.full(len(own), p.mean()) if wrong_p else p[50 * S_c.users + S_c.items]
        found.append(epoch_objective(name, data, used, s, t, seed))
    ideal = naive.LOSSES["bce"][0](s, r).mean()
    error, bias = np.std(found, ddof=1) / np.sqrt(len(found)), np.mean(found) - ideal
    slack = 0.002 * ideal if name == "stable-dr" else 1e-4  # a ratio of sums is unbiased only as the log grows
    if case == "both wrong":
        assert abs(bias) > 10 * error + slack
    else:
        assert abs(bias) <= 3 * error + slack


# -- what they refuse


@pytest.mark.parametrize(
    "name,options",
    [
        *(
            ("dr", options)
            for options in ({"terms": "c"}, {"loss": "squared"}, {"device": "cuda"}, {"weighting": "theory"})
        ),
        *(("bpr", options) for options in ({"loss": "mse"}, {"device": "cuda"}, {"weighting": "theory"})),
        *(("dib", options) for options in ({"gamma": 0.5}, {"loss": "mse"}, {"device": "cuda"})),
        ("dr", {"propensity": "oracle"}),
        ("refine", {"alpha": 1.5}),
    ],
)
def test_rivals_refuse_what_they_cannot_do(name, options):
    with pytest.raises(InputError):
        dubnb.make(name, **options).resolve()


@pytest.mark.needs_jit
def test_popularity_explains_positives_in_pda(simulated):
    """With a larger power, lists hold less popular items. Without S_va all epochs run."""
    simulated = simulated.replace(S_va=simulated.triplets("S_va").take(slice(0)))
    counts = np.bincount(simulated.triplets("S_c").items, minlength=300)
    every, popularity = (np.arange(200)[:, None], np.arange(300)), []
    for power in (0.0, 1.0):
        model = dubnb.PDA(rank=8, epochs=40, power=power, calibrate=False).fit(simulated)
        top = np.argsort(-model.decision_function(*every), axis=1)[:, :10]
        popularity.append(counts[top].mean())
    assert popularity[1] < 0.9 * popularity[0]
