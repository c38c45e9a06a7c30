"""Saved models come back bit for bit; an altered file is one line of InputError, never a crash or a wrong model."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dubnb
from dubnb import _store
from dubnb._check import InputError
from dubnb.methods import make
from tests import naive
from tests.method_tools import FITTABLE, QUICK, quietly

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning")  # uint64, JIT off


def data_of(**options):
    return naive.small_partition(9, 8, **{"n_c": 30, "n_t": 12, "n_va": 10, "n_te": 12, **options})


@pytest.mark.parametrize("name,backbone", FITTABLE)
@pytest.mark.parametrize("ids", [None, "str"])
def test_round_trip(name, backbone, ids, tmp_path):
    data = data_of(ids=ids)
    model = quietly(make(name, backbone=backbone, **QUICK).fit, data)
    model.save(tmp_path / "m.npz")
    again = dubnb.load(tmp_path / "m.npz")
    assert type(again) is type(model) and again.get_params() == model.get_params() and again.params_ == model.params_
    users, items = data.user_ids.values[:, None], data.item_ids.values[None, :]
    assert again.decision_function(users, items).tobytes() == model.decision_function(users, items).tobytes()
    assert again.predict(users, items).tobytes() == model.predict(users, items).tobytes()
    for found, expected in zip(again.recommend(users.ravel(), k=4), model.recommend(users.ravel(), k=4), strict=True):
        assert np.array_equal(found, expected, equal_nan=found.dtype.kind == "f")
    assert (again.teacher_ is None) == (model.teacher_ is None)
    if model.teacher_ is not None:
        expected = model.teacher_.arrays()
        assert all(array.tobytes() == expected[key].tobytes() for key, array in again.teacher_.arrays().items())
    assert again.evaluate(data) == model.evaluate(data)
    assert again.data_ == model.data_
    repeated = tmp_path / "again.npz"
    again.save(repeated)
    assert repeated.read_bytes() == (tmp_path / "m.npz").read_bytes()


def test_history_comes_back_exactly(tmp_path):
    import pandas as pd

    model = dubnb.DUB(**QUICK).fit(data_of())
    model.save(tmp_path / "m.npz")
    saved = model.history_.drop(columns="seconds")  # the one column that differs between equal fits
    pd.testing.assert_frame_equal(dubnb.load(tmp_path / "m.npz").history_, saved, check_exact=True)


def test_a_history_is_a_fit_s_own():
    model = dubnb.Base(**QUICK)
    with pytest.raises(AttributeError, match="history_ exists after fit"):
        model.history_  # noqa: B018
    rows = []
    model.fit(data_of(), callback=rows.append)
    assert [row | {"seconds": 0} for row in model.history_rows_] == [row | {"seconds": 0} for row in rows]
    model.history_rows_[0]["epoch"] = 99
    model.history_["epoch"] = 7  # a frame of its own, each time
    assert rows[0]["epoch"] == 1 and model.history_["epoch"].tolist() == [99, *(row["epoch"] for row in rows[1:])]


def test_equal_fits_save_equal_bytes(tmp_path):
    for name in ("first.npz", "second.npz"):
        dubnb.DUB(**QUICK).fit(data_of()).save(tmp_path / name)
    assert (tmp_path / "first.npz").read_bytes() == (tmp_path / "second.npz").read_bytes()


def test_loaded_models_fit_again(tmp_path):
    data = data_of()
    model = dubnb.Base(**QUICK).fit(data)
    model.save(tmp_path / "m.npz")
    again = dubnb.load(tmp_path / "m.npz").fit(data)
    assert again.decision_function(1, 2) == model.decision_function(1, 2)


def test_layers_and_numpy_parameters_are_kept(tmp_path):
    data = data_of()
    model = dubnb.Base(backbone="ncf", hidden=(5, 4), activation="relu", **QUICK).fit(data)
    model.save(tmp_path / "m.npz")
    assert dubnb.load(tmp_path / "m.npz").hidden == (5, 4)
    numpy = dubnb.Base(rank=np.int64(3), epochs=np.int32(1), lr=np.float32(0.01)).fit(data)
    numpy.save(tmp_path / "n.npz")
    assert dubnb.load(tmp_path / "n.npz").rank == 3


@pytest.mark.parametrize("kind", [np.asarray, pd.Series, list])
def test_ips_with_own_propensities_is_saved(tmp_path, kind):
    data = data_of()
    model = dubnb.IPS(propensity=kind(np.linspace(0.2, 0.9, data.S_c.nnz)), **QUICK).fit(data)
    model.save(tmp_path / "m.npz")
    again = dubnb.load(tmp_path / "m.npz")
    assert again.decision_function(1, 2) == model.decision_function(1, 2)


def test_existing_files_are_kept_by_default(tmp_path):
    model = dubnb.Base(**QUICK).fit(data_of())
    path = tmp_path / "m.npz"
    model.save(path)
    before = path.read_bytes()
    with pytest.raises(InputError):
        model.save(path)
    assert path.read_bytes() == before
    model.set_params(seed=1).fit(data_of()).save(path, overwrite=True)
    assert path.read_bytes() != before


def test_missing_file_is_one_line(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        dubnb.load(tmp_path / "nothing.npz")


# -- altered files: well-formed containers whose content does not fit together


def saved(backbone, tmp_path):
    model = dubnb.DUB(backbone=backbone, **QUICK).fit(data_of())
    model.save(tmp_path / "m.npz")
    return _store.read(tmp_path / "m.npz")


def refused(header, arrays, tmp_path):
    """`load` says no, in one line; a file that it takes must at least score safely (it must not be taken)."""
    _store.write(tmp_path / "altered.npz", header, arrays, overwrite=True)
    with pytest.raises(InputError) as caught:
        dubnb.load(tmp_path / "altered.npz")
    assert "\n" not in str(caught.value)


def alterations(arrays):
    """Each array missing, one row short, one row long, of another rank, flattened, one element, of another dtype."""
    for name, array in arrays.items():
        yield f"{name} missing", {key: value for key, value in arrays.items() if key != name}
        changes = {
            "short": array[:-1],
            "long": np.concatenate([array, array[-1:]]),
            "first": array[:1],
            "deeper": array[..., None],
            "integer": array.astype(np.int32) if array.dtype.kind == "f" else None,
            "real": array.astype(np.float64) if array.dtype.kind == "i" else None,
        }
        if array.ndim == 2:
            changes |= {"thin": array[:, :1], "wide": np.repeat(array, 2, axis=1), "flat": array.ravel()}
        for what, changed in changes.items():
            if changed is not None and (changed.shape, changed.dtype.kind) != (array.shape, array.dtype.kind):
                yield f"{name} {what}", {**arrays, name: changed}


@pytest.mark.parametrize("backbone", ["mf", "ncf"])
def test_arrays_that_do_not_fit_are_refused(backbone, tmp_path):
    header, arrays = saved(backbone, tmp_path)
    taken = []
    for what, altered in alterations(arrays):
        try:
            refused(header, altered, tmp_path)
        except pytest.fail.Exception:
            taken.append(what)
    free = {f"trained.pairs {what}" for what in ("missing", "short", "first")}  # any number of sorted hashes is valid
    assert set(taken) == free, f"taken: {', '.join(taken)}"


@pytest.mark.parametrize(
    "name,values",
    [
        ("seen.items", lambda a: a + 8),
        ("seen.items", lambda a: a - 9),
        ("seen.items", lambda a: a[::-1].copy()),
        ("seen.items", lambda a: a * 0),  # twice the same item
        ("seen.indptr", lambda a: a[::-1].copy()),
        ("seen.indptr", lambda a: a + 1),
        ("seen.indptr", lambda a: np.concatenate([a[:1], a[-2:0:-1], a[-1:]])),  # right ends, falling in between
        ("seen.items", lambda a: np.where(a == a.max(), a.max() + 1, a)),  # one beyond the last item
        ("user_ids", lambda a: a[::-1].copy()),
        ("item_ids", lambda a: a * 0),
        ("M_c.sizes", lambda a: np.array([6, 2**62, 1])),
        ("M_c.sizes", lambda a: np.array([6, 0, 1])),
        ("M_c.sizes", lambda a: np.array([], dtype=np.int64)),
        ("M_c.activation", lambda a: a + 50),
        ("M_c.activation", lambda a: a - 50),
    ],
)
def test_values_that_do_not_fit_are_refused(name, values, tmp_path):
    header, arrays = saved("ncf", tmp_path)
    refused(header, {**arrays, name: values(arrays[name]).astype(arrays[name].dtype)}, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "dubb"},
        {"method": None},
        {"method": "base"},  # which has no gamma
        {"params": None},
        {"params": {"unknown": 1}},
        {"params": {"backbone": "ncf"}},
        {"params": {"backbone": ["mf"]}},
        {"params": {"loss": "hinge"}},
        {"params": {"rank": -1}},
        {"params": {"rank": 7}},  # the tables have 3
        {"resolved": 3},
        {"resolved": {}},
        {"data": {}},
        {"data": {"name": 3, "fingerprint": "x"}},
        {"history": 5},
        {"history": [5]},
        {"history": [["stage", ["M_c", "M_c"]], ["epoch", [1]]]},
    ],
)
def test_headers_that_do_not_fit_are_refused(change, tmp_path):
    header, arrays = saved("mf", tmp_path)
    refused({**header, **change}, arrays, tmp_path)


@pytest.mark.parametrize("key", ["method", "params", "resolved", "data", "history"])
def test_headers_without_a_key_are_refused(key, tmp_path):
    header, arrays = saved("mf", tmp_path)
    refused({name: value for name, value in header.items() if name != key}, arrays, tmp_path)


def test_a_file_of_an_earlier_version_serves_as_it_did(small_log):
    """tests/old_model.npz was written at commit 4c6b1a5: a dub-x with a teacher, refitted on everything."""
    model = dubnb.load(Path(__file__).with_name("old_model.npz"))
    assert model.name == "dub-x" and model.refit_["on"] == "all" and model.params_["exposure_power"] == (1.0, 0.75)
    expected = [0.0753496, 0.3127162, 0.1806107, 0.0360517, 0.0842099, 0.4380133, 0.3776519, 0.2976239]
    np.testing.assert_allclose(model.decision_function(3, np.arange(8)), expected, rtol=1e-5)
    assert model.recommend([3], 3)[0].tolist() == [[5, 6, 4]] and model.teacher_ is not None
    np.testing.assert_allclose(model.fold_in([1, 2], [1, 0]).row, [0.483296, -0.0153062, 0.496685, 1.0], rtol=1e-4)
    assert model.judged_["auc"] == 0.59375 == model.evaluate(small_log)["auc"]
