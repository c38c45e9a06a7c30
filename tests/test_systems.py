"""The systems of the paper beyond base, unif, combine: propensities, alignment, exact term d, AutoDebias."""

import numpy as np
import pandas as pd
import pytest

import dubnb
from dubnb import InputError
from dubnb.data.partition import PARTS, Partition
from dubnb.methods.ips import naive_bayes_propensities

QUICK = {"rank": 3, "epochs": 2, "patience": 2}


def make_data(n_users=12, n_items=9, seed=0, validation=True, **options):
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(n_users * n_items)
    frames, start = {}, 0
    for part, size in (("S_c", 40), ("S_t", 12), ("S_va", 12), ("S_te", 20)):
        users, items = np.divmod(pairs[start : start + size], n_items)
        labels = (rng.random(size) < 0.4).astype(int)
        labels[:2] = 0, 1
        frames[part] = pd.DataFrame({"user": users, "item": items, "label": labels, "p": rng.uniform(0.1, 1, size)})
        start += size
    biased = frames.pop("S_c")
    if not validation:
        del frames["S_va"]
    return dubnb.Partition.from_frames(biased, frames, **options), biased


def same_weights(first, second):
    return all(np.array_equal(a, second.weights_.arrays()[k]) for k, a in first.weights_.arrays().items())


# -- ips


def test_propensities_as_a_column_and_as_an_array():
    data, biased = make_data(propensity="p")
    column = biased.set_index(["user", "item"])["p"]
    S_c = data.triplets("S_c")
    expected = [column[user, item] for user, item in zip(S_c.users, S_c.items, strict=True)]
    assert data.propensities == pytest.approx(expected)
    plain, _ = make_data()
    by_column = dubnb.IPS(**QUICK).fit(data)
    by_array = dubnb.IPS(propensity=np.array(expected), **QUICK).fit(plain)
    assert same_weights(by_column, by_array)
    assert not same_weights(by_column, dubnb.IPS(**QUICK).fit(plain))


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.5, np.nan])
def test_impossible_propensities_are_refused(bad):
    data, biased = make_data()
    propensities = np.full(len(data.triplets("S_c").users), 0.5)
    propensities[3] = bad
    with pytest.raises(InputError, match="above 0 and at most 1"):
        dubnb.IPS(propensity=propensities, **QUICK).fit(data)
    biased.loc[3, "p"] = bad
    with pytest.raises(InputError):
        dubnb.Partition.from_frames(biased, {"S_t": biased.head(1).assign(user=99)}, propensity="p")


def test_equal_propensities_make_ips_base():
    data, _ = make_data()
    ips = dubnb.IPS(propensity=np.full(len(data.triplets("S_c").users), 0.25), lam=1e-4, **QUICK).fit(data)
    assert same_weights(ips, dubnb.Base(lam=1e-4, **QUICK).fit(data))


def test_naive_bayes_counts_by_the_logs_weights():
    data, _ = make_data()
    labels = {part: data.triplets(part).labels for part in ("S_c", "S_t")}
    weights = {part: 1.0 + np.arange(len(values)) % 3 for part, values in labels.items()}
    parts = {part: data.triplets(part) for part in PARTS}
    parts |= {part: parts[part]._replace(weights=values) for part, values in weights.items()}
    weighted = Partition(parts, (data.n_users, data.n_items))
    share = {part: (weights[part] * labels[part]).sum() / weights[part].sum() for part in labels}
    p_observed = len(labels["S_c"]) / (data.n_users * data.n_items)
    expected = np.where(labels["S_c"] > 0, share["S_c"] / share["S_t"], (1 - share["S_c"]) / (1 - share["S_t"]))
    np.testing.assert_allclose(naive_bayes_propensities(weighted), expected * p_observed, rtol=1e-6)
    assert not np.allclose(naive_bayes_propensities(weighted), naive_bayes_propensities(data))


# -- cause


# -- bridge and dub, exact


def test_exact_defaults_and_refusals():
    params = dubnb.DUB(loss="squared", solver="exact").resolved_params()
    assert (params["rank"], params["gamma"], params["lam"], params["shrink"]) == (100, 0.05, None, 1.0)
    assert params["cutoff"] == 0.2
    assert dubnb.DUB(loss="squared", solver="exact", lam=2.0).resolved_params()["cutoff"] is None
    assert (params["epochs"], params["patience"]) == (30, 2)
    with pytest.raises(InputError, match="solver='exact' needs loss='squared', not 'bce'"):
        dubnb.DUB(solver="exact", loss="bce").resolved_params()
    with pytest.raises(InputError, match="joint"):
        dubnb.Bridge(loss="squared", solver="exact", teacher="joint").resolved_params()
    with pytest.raises(InputError, match="mae"):
        dubnb.DUB(loss="mae", shrink=0.5).resolved_params()


def test_exact_training_lowers_the_objective_and_is_deterministic():
    data, _ = make_data()
    model = dubnb.DUB(loss="squared", solver="exact", rank=3, lam=1.0, epochs=60).fit(data)
    objective = model.history_["loss_total"].to_numpy()
    assert objective[-1] < 0.8 * objective[0] and (np.diff(objective) < 1e-3).all()
    assert same_weights(model, dubnb.DUB(loss="squared", solver="exact", rank=3, lam=1.0, epochs=60).fit(data))
    assert model.teacher_ is None  # a constant teacher needs no M_t
    assert dubnb.DUB(loss="squared", solver="exact", shrink=0.5, **QUICK).fit(data).teacher_ is not None


# -- autodebias


def test_autodebias_scores_are_on_the_scale_of_the_labels():
    data, _ = make_data()
    model = dubnb.AutoDebias(rank=3, lam=0.5, epochs=80, patience=80).fit(data)
    S_c = data.triplets("S_c")
    scores = model.weights_.score_pairs(S_c.users, S_c.items)
    assert scores[S_c.labels == 1].mean() > scores[S_c.labels == 0].mean() + 0.2
    assert scores.min() > -0.3 and scores.max() < 1.3


def test_autodebias_chooses_its_solver_and_refuses_what_it_cannot():
    assert dubnb.AutoDebias().resolved_params()["solver"] == "exact"
    assert dubnb.AutoDebias(backbone="ncf").resolved_params()["loss"] == "bce"
    assert dubnb.AutoDebias(loss="bce").resolved_params()["solver"] == "sampled"
    for wrong, match in (({"loss": "mae"}, "affine"), ({"solver": "exact", "backbone": "ncf"}, "exact")):
        with pytest.raises(InputError, match=match):
            dubnb.AutoDebias(**wrong).resolved_params()
