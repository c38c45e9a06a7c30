"""Training again: on all randomized data, and on a longer log from an earlier model."""

import warnings

import numpy as np
import pytest

import dubnb
from dubnb._check import InputError
from dubnb.data.ids import Ids
from dubnb.data.partition import PARTS, Partition
from dubnb.methods._again import Start, all_randomized
from tests import naive

QUICK = {"rank": 3, "epochs": 6, "patience": 2, "lr": 0.05}


@pytest.fixture(scope="module")
def data():
    return naive.small_partition(20, 15, n_c=120, n_t=40, n_va=40, n_te=40)


def test_all_randomized_leaves_S_te_alone(data):
    joined = all_randomized(data)
    sizes = {part: len(joined.triplets(part).users) for part in PARTS}
    assert sizes == {"S_c": 120, "S_t": 80, "S_va": 0, "S_te": 40}
    assert (joined.S_t != data.S_t + data.S_va).nnz == 0


@pytest.mark.parametrize("graded", [True, False])
@pytest.mark.parametrize("empty", ["", "S_t", "S_va"])
def test_all_randomized_keeps_every_column(data, graded, empty):
    """Weights, grades, propensities, ids, the truth and the name; a part without pairs adds nothing."""
    rng, parts, truth = np.random.default_rng(1), {}, object()
    for part in PARTS:
        old = data.triplets(part)
        grades = np.where(old.labels > 0, 1.0, 0.25) if graded else None
        parts[part] = old._replace(weights=rng.uniform(0.5, 2.0, len(old.users)), grades=grades)
    parts |= {empty: ([], [], [])} if empty else {}
    ids = {"user_ids": Ids(np.arange(20) + 100), "item_ids": Ids(np.arange(15) + 200)}
    log = Partition(parts, (20, 15), propensities=rng.uniform(0.1, 1.0, 120), truth=truth, name="mine", **ids)
    joined = all_randomized(log)
    assert joined.user_ids.values[0] == 100 and joined.item_ids.values[0] == 200
    assert joined.truth is truth and joined.name == "mine" and not len(joined.triplets("S_va").users)
    assert np.array_equal(joined.propensities, log.propensities)
    for part in ("S_c", "S_te"):
        for new, old in zip(joined.triplets(part), log.triplets(part), strict=True):
            assert np.array_equal(new, old)
    both, filled = joined.triplets("S_t"), [log.triplets(part) for part in ("S_t", "S_va") if part != empty]
    order = np.lexsort([np.concatenate([getattr(each, side) for each in filled]) for side in ("items", "users")])
    for field in ("users", "items", "labels", "weights", *(["grades"] if graded else [])):
        pairs = np.concatenate([getattr(each, field) for each in filled])
        assert np.array_equal(getattr(both, field), pairs[order]), field
    assert (both.grades is not None) == graded


@pytest.mark.parametrize("name", ["combine", "dub", "unif"])
def test_refit_is_a_fit_on_more_data_for_the_epochs_that_were_kept(name, data):
    model = dubnb.make(name, **QUICK).fit(data, refit=True)
    first = dubnb.make(name, **QUICK).fit(data)
    history = model.history_
    old, new = (history[history["stage"].str.startswith("refit ") == again] for again in (False, True))
    assert old["va_auc"].tolist() == first.history_["va_auc"].tolist() and new["va_auc"].isna().all()
    for stage, rows in old.groupby("stage"):
        best = int(rows["epoch"].iloc[rows["va_auc"].to_numpy().argmax()])
        if stage == "refine" and rows["va_auc"].max() <= old.loc[old["stage"] == "M_c", "va_auc"].max():
            best = 0  # where it began was better
        assert len(new[new["stage"] == f"refit {stage}"]) == best
    assert model.data_ == first.data_ and model.calibration_ == first.calibration_
    if name == "combine":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kept = len(new)
            twin = dubnb.make(name, **first.params_ | {"epochs": kept, "calibrate": False}).fit(all_randomized(data))
        assert twin.weights_.users.tobytes() == model.weights_.users.tobytes()


def test_refit_keeps_what_S_va_chose(data):
    first = dubnb.DubX(rank=3, epochs=3).fit(data)
    again = dubnb.DubX(rank=3, epochs=3).fit(data, refit=True)
    for name in ("gamma", "exposure_power"):
        assert again.params_[name] == first.params_[name]
    assert again.weights_.users.tobytes() != first.weights_.users.tobytes()


def test_refit_needs_S_va(data):
    parts = {part: data.triplets(part) for part in PARTS} | {"S_va": data.triplets("S_va").take(slice(0, 0))}
    with warnings.catch_warnings(), pytest.raises(InputError, match="refit=True needs an S_va"):
        warnings.simplefilter("ignore")
        dubnb.Base(**QUICK).fit(Partition(parts, (20, 15)), refit=True)


# -- from an earlier model


def longer(data):
    """The log with two more users and one more item, whose ids come between the others."""
    users, items = np.insert(np.arange(20), [3, 11], [100, 101]), np.insert(np.arange(15), 6, 100)
    order_u, order_i = np.sort(users), np.sort(items)
    place_u, place_i = np.searchsorted(order_u, np.arange(20)), np.searchsorted(order_i, np.arange(15))
    parts = {}
    for part in PARTS:
        old = data.triplets(part)
        parts[part] = old._replace(users=place_u[old.users], items=place_i[old.items])
    return Partition(parts, (22, 16), user_ids=Ids(order_u), item_ids=Ids(order_i))


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_rows_are_matched_by_id(backbone, data):
    model = dubnb.Base(backbone=backbone, **QUICK).fit(data)
    new = longer(data)
    settled = dubnb.Base(backbone=backbone, **QUICK).resolve(new)
    stage = settled.stage("M_c")
    begun, fresh = Start(model, settled, new).new(stage, new), stage.new(new)
    known_u, known_i = np.flatnonzero(new.user_ids.values < 100), np.flatnonzero(new.item_ids.values < 100)
    pairs = np.repeat(known_u, 15), np.tile(known_i, 20)
    old = model.weights_.score_pairs(np.repeat(np.arange(20), 15), np.tile(np.arange(15), 20))
    np.testing.assert_allclose(begun.score_pairs(*pairs), old, rtol=1e-5, atol=1e-6)
    unknown = np.flatnonzero(new.user_ids.values >= 100)
    assert np.array_equal(begun.users[unknown], fresh.users[unknown]) and len(unknown) == 2


def test_a_start_shows_in_the_first_epoch(data):
    model = dubnb.Base(rank=3, epochs=40, patience=40, lr=0.05).fit(data)
    cold, warm = (dubnb.Base(**QUICK).fit(longer(data), start=start) for start in (None, model))
    assert warm.history_["loss_c"][0] < cold.history_["loss_c"][0] - 0.05
    assert dubnb.DubX(rank=3, epochs=2, gamma=0.03).fit(data, start=dubnb.DubX(rank=3, epochs=2).fit(data)).params_


def test_a_start_of_another_kind_is_refused(data):
    model = dubnb.Base(**QUICK).fit(data)
    for params in ({"rank": 4}, {"loss": "mse"}, {"backbone": "ncf"}):
        with pytest.raises(InputError, match=f"start= has {next(iter(params))}="):
            dubnb.Base(**QUICK | params).fit(data, start=model)
    parts = {part: data.triplets(part) for part in PARTS}
    with pytest.raises(InputError, match="knows none of the log's 20 users"):
        dubnb.Base(**QUICK).fit(Partition(parts, (20, 15), user_ids=Ids(np.arange(500, 520))), start=model)
