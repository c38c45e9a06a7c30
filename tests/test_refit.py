"""Training again: on all randomized data, and on a longer log from an earlier model."""

import warnings

import numpy as np
import pytest

import dubnb
from dubnb._check import InputError
from dubnb.data.ids import Ids
from dubnb.data.partition import PARTS, Partition
from dubnb.methods._method import Start, all_randomized
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
    for stage in old["stage"].unique():
        assert len(new[new["stage"] == f"refit {stage}"]) == first.lengths_[stage]
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


def test_rows_are_matched_by_id(data):
    model = dubnb.DubX(rank=3, epochs=3).fit(data)
    new = longer(data)
    settled = dubnb.DubX(rank=3, epochs=3).resolve(new)
    stage = settled.stage("M_c", lam=0.0)
    start = Start(model, settled, new)
    begun, fresh = start.new(stage, new), stage.new(new)
    known_u, known_i = np.flatnonzero(new.user_ids.values < 100), np.flatnonzero(new.item_ids.values < 100)
    pairs = np.repeat(known_u, 15), np.tile(known_i, 20)
    old = model.weights_.score_pairs(np.repeat(np.arange(20), 15), np.tile(np.arange(15), 20))
    np.testing.assert_allclose(begun.score_pairs(*pairs), old, rtol=1e-5, atol=1e-6)
    unknown = np.flatnonzero(new.user_ids.values >= 100)
    assert np.array_equal(begun.users[unknown], fresh.users[unknown]) and len(unknown) == 2
    teacher = settled.stage("M_t", lam=0.0)
    assert np.array_equal(start.new(teacher, new).users, teacher.new(new).users)


def part_of(data, share):
    """The same users and items with a share of S_c's and S_t's pairs: last week's log."""
    parts = {part: data.triplets(part) for part in PARTS}
    for number, part in enumerate(("S_c", "S_t")):
        kept = np.random.default_rng(number).random(len(parts[part].users)) < share
        parts[part] = parts[part].take(np.flatnonzero(kept))
    return Partition(parts, (data.n_users, data.n_items), truth=data.truth)


@pytest.mark.needs_jit
def test_last_weeks_model_saves_most_of_the_sweeps_at_equal_quality():
    data = dubnb.load_dataset("simulated", seed=0)
    last = dubnb.DubX(head=None).fit(part_of(data, 0.9))
    cold, warm = (dubnb.DubX(head=None).fit(data, start=start) for start in (None, last))
    assert len(warm.history_rows_) <= len(cold.history_rows_) / 4
    judged = [model.evaluate(data)["truth_auc"] for model in (cold, warm)]
    assert abs(judged[1] - judged[0]) < 0.002


def test_a_start_keeps_what_was_chosen_unless_it_is_set(data):
    model = dubnb.DubX(rank=3, epochs=2, gamma=0.123, exposure_power=0.3).fit(data)
    warm = dubnb.DubX(rank=3, epochs=2).fit(data, start=model)
    assert (warm.params_["gamma"], warm.params_["exposure_power"]) == (0.123, 0.3)
    assert warm.history_["stage"].unique().tolist() == ["refine"]  # nothing is searched again
    own = dubnb.DubX(rank=3, epochs=2, gamma=0.03).fit(data, start=model)
    assert (own.params_["gamma"], own.params_["exposure_power"]) == (0.03, (1.0, 0.75))
    half = dubnb.DubX(rank=3, epochs=2, exposure_power=1.0).fit(data, start=model)
    assert (half.params_["gamma"], half.params_["exposure_power"]) == (0.123, 1.0)


def test_a_start_is_refused_where_it_would_save_nothing(data):
    model = dubnb.DubX(rank=3, epochs=2).fit(data)
    for other in (dubnb.Base(**QUICK), dubnb.DUB(solver="exact", rank=3), dubnb.DubX(backbone="ncf", rank=3)):
        with pytest.raises(InputError, match="start= is for dub-x with backbone='mf'"):
            other.fit(data, start=model)
    with pytest.raises(InputError, match="start= has rank=3, this model 4"):
        dubnb.DubX(rank=4).fit(data, start=model)
    with pytest.raises(InputError, match="give an earlier dub-x"):
        dubnb.DubX(rank=3).fit(data, start=dubnb.Base(**QUICK).fit(data))
    parts = {part: data.triplets(part) for part in PARTS}
    with pytest.raises(InputError, match="knows none of the log's 20 users"):
        dubnb.DubX(rank=3).fit(Partition(parts, (20, 15), user_ids=Ids(np.arange(500, 520))), start=model)
