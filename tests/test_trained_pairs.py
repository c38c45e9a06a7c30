"""What a model was trained or chosen on: kept in its file, left out of next week's judgement; refits on everything."""

import json

import numpy as np
import pandas as pd
import pytest

import dubnb
from dubnb import _store
from dubnb._check import InputError
from dubnb.cli import main
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.methods._method import all_randomized
from dubnb.metrics import auc
from tests import naive
from tests.method_tools import quietly

QUICK = {"rank": 2, "epochs": 3, "patience": 2, "lr": 0.05, "batch_size": 64}


def weeks(**how):
    """Last week's logs and this week's, which hold the same rows and more."""
    rng = np.random.default_rng(0)
    logs = []
    for n in (1500, 1600):
        users, items = np.divmod(rng.permutation(60 * 50)[:n], 50)
        logs.append(pd.DataFrame({"user": users, "item": items, "label": rng.integers(0, 2, n)}))
    biased, random = logs
    return Partition.from_frames(biased[:1000], random[:600], **how), Partition.from_frames(biased, random, **how)


@pytest.fixture(scope="module")
def hashed():
    return weeks()


@pytest.fixture(scope="module")
def permuted():
    return weeks(split="permutation", shares=(0.1, 0.1, 0.8))


def pairs(data, *parts):
    found = set()
    for part in parts:
        users, items = data.triplets(part)[:2]
        found |= set(zip(data.user_ids.values[users].tolist(), data.item_ids.values[items].tolist(), strict=True))
    return found


# ---- next week -----------------------------------------------------------------------------------------------------


def test_with_a_hash_split_nothing_trained_is_judged_next_week(hashed):
    last, now = hashed
    assert now.split.shares[2] < last.split.shares[2]
    assert not pairs(last, "S_t", "S_va") & pairs(now, "S_te") and not pairs(last, "S_t") & pairs(now, "S_va")
    result = quietly(dubnb.Base(**QUICK).fit(last).evaluate, now)
    assert result["trained_pairs_left_out"] == 0


def test_with_a_permutation_the_trained_pairs_are_left_out_and_counted(permuted):
    last, now = permuted
    model = dubnb.Combine(**QUICK).fit(last)
    known = pairs(last, "S_t", "S_va") & pairs(now, "S_te")
    assert len(known) > 50
    with pytest.warns(
        UserWarning, match=f"; {len(known)} of 1,280 pairs, which it was trained or chosen on, are left out"
    ):
        result = model.evaluate(now)
    assert result["trained_pairs_left_out"] == len(known) and result["left_out_pairs"] == 0
    S_te = now.triplets("S_te")
    ids = zip(now.user_ids.values[S_te.users], now.item_ids.values[S_te.items], strict=True)
    S_te = S_te.take(np.array([(user, item) not in known for user, item in ids]))
    fresh = now.replace(S_te=S_te)
    without = quietly(model.evaluate, fresh)
    assert without["trained_pairs_left_out"] == 0 and without["auc"] == pytest.approx(result["auc"])
    kept = quietly(model.evaluate, now, keep_trained=True)
    assert kept["trained_pairs_left_out"] == 0 and kept["auc"] != result["auc"]
    scores = model.decision_function(now.user_ids.values[S_te.users], now.item_ids.values[S_te.items])
    assert auc(scores, S_te.labels) > 0.4
    on_S_va = quietly(model.evaluate, now, part="S_va")
    assert on_S_va["trained_pairs_left_out"] == len(pairs(last, "S_t", "S_va") & pairs(now, "S_va"))


def test_pairs_that_are_left_out_are_not_listed_either(permuted):
    """Otherwise a model would fill its lists with its own training pairs, which are not judged."""
    from dubnb.methods._other_log import aligned

    last, now = permuted
    model = dubnb.Base(**QUICK).fit(last)
    log = aligned(now, (model.user_ids_, model.item_ids_), model.seen_, "S_te", "leave-out", model.trained_).data
    known = pairs(last, "S_t", "S_va") & pairs(now, "S_te")
    assert known <= pairs(log, "S_c") and not known & pairs(log, "S_te")


def test_on_its_own_log_nothing_changes(hashed):
    last, _ = hashed
    model = dubnb.Base(**QUICK).fit(last)
    result = quietly(model.evaluate, last)
    judged = quietly(dubnb.evaluate, model.decision_function, last)
    assert (
        "trained_pairs_left_out" not in result and result["auc"] == judged["auc"] and result["ndcg"] == judged["ndcg"]
    )
    assert quietly(model.evaluate, last, part="S_va")["auc"] > 0
    assert len(model.trained_) == len(last.triplets("S_t").users) + len(last.triplets("S_va").users)


def test_a_log_that_was_trained_on_whole_is_refused(hashed):
    last, now = hashed
    model = dubnb.Base(**QUICK).fit(last)
    other = now.replace(S_te=now.triplets("S_te").take(slice(0)))
    old = pairs(last, "S_t")
    S_t = now.triplets("S_t")
    ids = zip(now.user_ids.values[S_t.users], now.item_ids.values[S_t.items], strict=True)
    of_old = np.array([pair in old for pair in ids])
    other = other.replace(S_t=S_t.take(~of_old), S_te=S_t.take(of_old))
    with pytest.raises(InputError, match=r"trained or chosen on all [\d,]+ pairs in S_te .* keep_trained evaluates"):
        quietly(model.evaluate, other)


def test_a_warm_start_brings_its_pairs(hashed):
    last, now = hashed
    first = dubnb.DubX(rank=2, epochs=1).fit(last.replace(S_t=last.triplets("S_te"), S_te=last.triplets("S_t")))
    warm = quietly(dubnb.DubX(rank=2, epochs=1).fit, now, start=first)
    assert len(warm.trained_) > len(dubnb.DubX(rank=2, epochs=1).fit(now).trained_)


# ---- files ---------------------------------------------------------------------------------------------------------


def altered(path, new, header=None, arrays=None):
    """A model file with some members changed; None drops one."""
    old_header, old_arrays = _store.read(path)
    changed = []
    for old, more in ((old_header, header), (old_arrays, arrays)):
        changed.append({name: value for name, value in (old | (more or {})).items() if value is not None})
    _store.write(new, *changed)
    return new


def test_older_files_without_hashes_load_and_warn(permuted, tmp_path, capsys):
    last, now = permuted
    dubnb.Base(**QUICK).fit(last).save(tmp_path / "new.npz")
    assert (dubnb.load(tmp_path / "new.npz").trained_ == dubnb.Base(**QUICK).fit(last).trained_).all()
    gone = {name: None for name in ("lengths", "refit", "judged")}
    old = altered(tmp_path / "new.npz", tmp_path / "old.npz", gone, {"trained.pairs": None})
    model = dubnb.load(old)
    assert model.trained_ is None and model.refit_ is None and model.judged_ is None
    with pytest.warns(UserWarning, match="its file does not record which pairs it was trained on"):
        result = model.evaluate(now)
    assert result["trained_pairs_left_out"] is None
    with pytest.raises(InputError, match=r"cannot be refitted .from a file that lacks epochs"):
        model.refitted(last)
    model.save(tmp_path / "again.npz")
    assert dubnb.load(tmp_path / "again.npz").trained_ is None


def test_altered_files_are_refused(hashed, tmp_path):
    model = dubnb.Base(**QUICK).fit(hashed[0])
    model.save(tmp_path / "m.npz")
    bad_arrays = (model.trained_[::-1], model.trained_.astype(np.int64), model.trained_[None])
    bad_headers = ({"lengths": {"M_c": -1}}, {"refit": {"on": "S_te", "pairs": {"S_c": 1, "S_t": 1}}})
    bad_headers += ({"refit": {"on": "all", "pairs": {}}}, {"judged": {"auc": [1]}}, {"lengths": 3})
    changes = [(None, {"trained.pairs": array}) for array in bad_arrays] + [(header, None) for header in bad_headers]
    for k, (header, arrays) in enumerate(changes):
        path = altered(tmp_path / "m.npz", tmp_path / f"{k}.npz", header, arrays)
        with pytest.raises(InputError):
            dubnb.load(path)


# ---- refits on everything ------------------------------------------------------------------------------------------


def with_held_back():
    """A log with an overlap, and with held-back rows of which some are pairs of the randomized log too."""
    rng = np.random.default_rng(1)
    order = rng.permutation(20 * 15)
    cuts = {"S_t": (0, 40), "S_va": (40, 80), "S_te": (80, 120), "S_c": (110, 200), "held_back": (30, 35)}
    columns = {}
    for part, (start, stop) in cuts.items():
        at = order[start:stop] if part != "held_back" else np.concatenate([order[30:35], order[200:240]])
        columns[part] = (*np.divmod(at, 15), (np.arange(len(at)) % 3 == 0).astype(float))
    late = columns.pop("held_back")
    propensities = {"propensities": np.linspace(0.1, 1, 90), "held_back_propensities": np.linspace(0.2, 0.9, 45)}
    return Partition(columns, (20, 15), held_back=late, **propensities)


def test_everything_is_the_randomized_log_and_the_held_back_rows():
    data = with_held_back()
    whole = all_randomized(data, everything=True)
    assert {part: len(whole.triplets(part).users) for part in RANDOMIZED} == {"S_t": 120, "S_va": 0, "S_te": 0}
    assert whole.held_back is None and whole.held_back_propensities is None
    randomized = pairs(data, *RANDOMIZED)
    assert pairs(whole, "S_t") == randomized
    late = set(zip(data.held_back.users.tolist(), data.held_back.items.tolist(), strict=True))
    assert pairs(whole, "S_c") == (pairs(data, "S_c") | late) - randomized and len(late & randomized) == 5
    for label, user, item in zip(data.S_te.data, *data.S_te.nonzero(), strict=False):
        assert whole.S_t[user, item] == label or not label
    assert len(whole.propensities) == len(whole.triplets("S_c").users) == 80 + 40
    assert set(np.round(whole.propensities, 6)) <= set(
        np.round(np.concatenate([data.propensities, data.held_back_propensities]), 6)
    )
    assert whole.removed == 10 + 5
    assert len(all_randomized(data).triplets("S_te").users) == 40 and all_randomized(data).held_back is not None


@pytest.mark.parametrize("refit", [True, "all"])
@pytest.mark.parametrize("name", ["combine", "dub", "dub-x", "ips"])
def test_a_refit_needs_no_second_first_fit(name, refit, tmp_path):
    data = naive.small_partition(20, 15, n_c=120, n_t=40, n_va=40, n_te=40)
    params = QUICK if name != "dub-x" else {"rank": 3, "epochs": 3}
    first = dubnb.make(name, **params).fit(data)
    before = first.weights_.users.tobytes()
    shipped = quietly(first.refitted, data, refit)
    at_once = quietly(dubnb.make(name, **params).fit, data, refit=refit)
    first.save(tmp_path / "first.npz")
    from_file = quietly(dubnb.load(tmp_path / "first.npz").refitted, data, refit)
    for each in (shipped, from_file):
        for array, twin in zip(each.weights_.arrays().values(), at_once.weights_.arrays().values(), strict=True):
            assert array.tobytes() == twin.tobytes()
        assert each.refit_ == at_once.refit_ and each.params_ == at_once.params_ == first.params_
        assert each.calibration_ == at_once.calibration_ == first.calibration_
        assert (each.trained_ == at_once.trained_).all()
    assert first.weights_.users.tobytes() == before and first.refit_ is None
    assert shipped.weights_.users.tobytes() != before or name == "ips"  # which learns from S_c alone
    stages = shipped.history_["stage"]
    assert len(first.history_) == int((~stages.str.startswith("refit ")).sum()) < len(stages)
    assert shipped.get_params() == first.get_params()


def test_what_is_shipped_carries_what_was_judged(hashed, tmp_path):
    last, now = hashed
    first = dubnb.DubX(rank=2, epochs=1).fit(last)
    judged = quietly(first.evaluate, last)
    model = quietly(dubnb.DubX(rank=2, epochs=1).fit, last, refit="all")
    model.save(tmp_path / "ship.npz")
    n = sum(len(last.triplets(part).users) for part in RANDOMIZED)
    n_te = len(last.triplets("S_te").users)
    for each in (model, dubnb.load(tmp_path / "ship.npz")):
        assert each.refit_ == {"on": "all", "pairs": {"S_c": len(last.triplets("S_c").users), "S_t": n}}
        assert each.evaluate(last) == judged | {"refit": "all", "trained_pairs_left_out": n_te}
        assert len(each.trained_) == n and each.data_ == first.data_
        for name in ("gamma", "exposure_power", "grade_spread"):
            assert each.params_[name] == first.params_[name]
    for how in ({"protocol": "test-items"}, {"part": "S_va"}, {"ks": (3,)}, {"per_user": True}):
        with pytest.raises(InputError, match="refitted on all of own data"):
            model.evaluate(last, **how)
    seen = quietly(model.evaluate, last, keep_trained=True)
    assert seen["auc"] > judged["auc"] and "refit" not in seen
    later = quietly(model.evaluate, now)
    assert later["trained_pairs_left_out"] == len(pairs(last, *RANDOMIZED) & pairs(now, "S_te")) > 0
    lists, _ = model.recommend(last.user_ids.values, k=5)
    liked = last.triplets("S_te").take(last.triplets("S_te").labels > 0)
    listed = {
        (user, item) for user, row in zip(last.user_ids.values.tolist(), lists.tolist(), strict=True) for item in row
    }
    ids = zip(last.user_ids.values[liked.users].tolist(), last.item_ids.values[liked.items].tolist(), strict=True)
    assert not listed & set(ids)


def test_held_back_rows_are_trained_on_and_not_listed_again():
    data = with_held_back()
    model = quietly(dubnb.make("base", **QUICK).fit, data, refit="all")
    late = data.held_back
    assert (model.seen_.find(late.users, late.items)[late.labels > 0] >= 0).all()
    assert model.refit_["pairs"] == {"S_c": 120, "S_t": 120}
    two = quietly(dubnb.make("base", **QUICK).fit, data, refit=True)
    assert two.refit_ == {"on": "S_va", "pairs": {"S_c": 80, "S_t": 80}} and two.judged_ is None


def test_refits_that_cannot_be_are_refused(hashed):
    last, now = hashed
    for refit in ("everything", 2, None):
        with pytest.raises(InputError, match=r"refit=.* must be False, True .* or 'all'"):
            dubnb.Base(**QUICK).fit(last, refit=refit)
    model = dubnb.Base(**QUICK).fit(last)
    with pytest.raises(InputError, match=r"was fitted on other data .own data. than own data: fit it first"):
        model.refitted(now)
    with pytest.raises(InputError, match="refitted already"):
        quietly(model.refitted, last).refitted(last)
    with pytest.raises(InputError, match="refit=False"):
        model.refitted(last, False)
    none = last.replace(S_va=last.triplets("S_va").take(slice(0)))
    with pytest.raises(InputError, match="refit='all' needs an S_va"):
        quietly(dubnb.Base(**QUICK).fit, none, refit="all")


class Shared(dict):
    """A store of pre-trained models."""

    def put(self, key, weights, rows):
        self[key] = weights, [dict(row) for row in rows]
        return weights


def test_a_pretrained_model_from_a_store_is_refitted_for_the_epochs_that_it_took():
    data, store = naive.small_partition(20, 15, n_c=120, n_t=40, n_va=40, n_te=40), Shared()
    how = {"rank": 2, "epochs": 5, "patience": 2, "lr": 0.05}
    alone = quietly(dubnb.DUB(**how).fit, data, refit="all")
    for _ in range(2):
        shared = quietly(dubnb.DUB(**how).fit, data, store=store, refit="all")
        assert shared.lengths_ == alone.lengths_
        assert shared.weights_.users.tobytes() == alone.weights_.users.tobytes()
    assert len(store) == 2


# ---- on the command line -------------------------------------------------------------------------------------------


def test_fit_refit_all_and_evaluate_say_what_they_do(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, n in (("b", 400), ("r", 200), ("later", 450)):
        users, items = np.divmod(np.random.default_rng(5 if name != "b" else 6).permutation(30 * 30)[:n], 30)
        frame = pd.DataFrame({"user": users, "item": items, "label": (users + items + rng.integers(0, 3, n)) % 3 == 0})
        frame.astype(int).to_csv(f"{name}.csv", index=False)
    files = ["--biased", "b.csv", "--random", "r.csv"]
    fit = ["fit", *files, "--method", "base", "--set", "epochs=1", "--set", "rank=2"]
    assert main([*fit, "--refit", "all", "--out", "ship.npz"]) == 0
    out, err = capsys.readouterr()
    assert out.count("split by a hash") == 0 and err.count("split by a hash of user and item: S_t ") == 1
    assert "then refitted on everything" in out and "refit M_c" in out and "validation auc 0." in out
    assert main([*fit, "--refit", "all", "--out", "two.npz", "--json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["refit"]["on"] == "all" and document["test"]["refit"] == "all"
    assert document["data"]["split"]["rule"] == "random" and document["data"]["held_back"] == 0
    assert "positives are wanted in S_te" in document["data"]["split"]["why"]
    assert main(["evaluate", *files, "--model", "ship.npz", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["auc"] == document["test"]["auc"]
    later = ["evaluate", "--biased", "b.csv", "--random", "later.csv", "--model", "ship.npz"]
    assert main([*later, "--json", "--quiet"]) == 0
    left_out = json.loads(capsys.readouterr().out)["trained_pairs_left_out"]
    assert left_out > 20
    assert main(later) == 0
    assert f"left out: {left_out:,} pairs of S_te that the model was trained or chosen on" in capsys.readouterr().out
    assert main([*later, "--keep-trained", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["trained_pairs_left_out"] == 0
    assert main([*fit, "--refit", "some", "--out", "x.npz"]) == 2
    assert "--refit" in capsys.readouterr().err
    assert main([*fit, "--refit", "S_va", "--out", "x.npz"]) == 0
    assert "refitted on everything" not in capsys.readouterr().out and dubnb.load("x.npz").refit_["on"] == "S_va"
