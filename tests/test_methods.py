"""Methods: one contract that every one passes, scikit-learn's conventions, recipes, bad parameters, degenerate data."""

import doctest
import os
import pydoc
import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone

import dubnb
from dubnb import calibration
from dubnb._check import InputError, NotFittedError
from dubnb.backbones import BACKBONES
from dubnb.data.ids import Ids
from dubnb.data.partition import Partition
from dubnb.losses import TRAINABLE
from dubnb.methods import METHODS, Method, _method, _params, make
from dubnb.methods._params import LogFacts, batch_of_S_c, batch_of_S_t, lam_of_S_c, lam_of_S_t
from tests import naive
from tests.method_tools import FITTABLE, QUICK, digest, quietly

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning")  # uint64, JIT off

LEARNERS = [(name, backbone) for name, backbone in FITTABLE if not METHODS[name].is_baseline]


@pytest.fixture(scope="module")
def data(small_log):
    return small_log


def same_weights(first, second):
    first, second = first.arrays(), second.arrays()
    return first.keys() == second.keys() and all(first[k].tobytes() == second[k].tobytes() for k in first)


# -- the contract


def two_groups(times=1):
    """Users and items in two groups each; a label is positive if and only if user and item are of one group."""
    n_users, n_items = 16 * times, 12
    rng = np.random.default_rng(2)
    pairs = rng.permutation(n_users * n_items)
    parts, start = {}, 0
    for part, size in (("S_t", 60), ("S_va", 20), ("S_te", 32), ("S_c", 80)):
        users, items = np.divmod(pairs[start : start + times * size], n_items)
        parts[part] = users, items, (users % 2 == items % 2).astype(float), np.ones(len(users))
        start += times * size
    return Partition(parts, (n_users, n_items))


LEARN = {"rank": 4, "lr": 0.05, "epochs": 60, "patience": 60, "lam": 1e-3, "batch_size": 32, "seed": 1}
LEARN_OWN = {
    "relmf": LEARN | {"gamma": 1.0, "epochs": 20},
    "bridge": LEARN | {"gamma": 0.1, "teacher_lam": 1e-3},
    "dub": LEARN | {"gamma": 0.1, "teacher_lam": 1e-3},
    "cause": LEARN | {"teacher_lam": 1e-3},
    "refine": LEARN | {"alpha": 0.05},
    "stable-dr": LEARN | {"lr": 0.02},
    **dict.fromkeys(("bpr", "pda"), LEARN | {"lr": 0.01, "rank": 8, "lam": 1e-5}),
}


@pytest.mark.needs_jit
@pytest.mark.parametrize("name,backbone", LEARNERS)
def test_every_method_finds_the_two_groups(name, backbone):
    known = two_groups(60 if name in ("dub-i", "ease", "relmf", "bpr", "pda") else 1)  # these need more users
    own = LEARN_OWN.get(name, LEARN)
    if (name, backbone) in (
        ("autodebias", "mf"),
        ("ials", "mf"),
    ):  # full batches, and lam is the absolute decay per row
        own = {"rank": 4, "lam": 1.0, "epochs": 60, "patience": 60, "seed": 1}
    model = make(name, backbone=backbone, **own)
    assert model.fit(known) is model
    result = model.evaluate(known)
    assert (
        result["auc"] > {"unif": 0.75, "dub-i": 0.7, "ease": 0.8}.get(name, 0.9)
        and result["protocol"] == "full-ranking"
    )
    items, scores = model.recommend(np.arange(16), k=2, exclude=known.S_c)  # S_t's positives may be listed here
    assert items.shape == scores.shape == (16, 2)
    assert (items % 2 == np.arange(16)[:, None] % 2).mean() > 0.85
    assert (scores[:, 0] >= scores[:, 1]).all()
    users, every = np.arange(16)[:, None], np.arange(12)[None, :]
    raw = model.decision_function(users, every)
    p = model.predict(users, every)
    assert raw.shape == p.shape == (16, 12) and p.dtype == np.float32
    assert (p >= 0).all() and (p <= 1).all() and np.isfinite(raw).all()
    in_group = (users % 2) == (every % 2)
    assert p[in_group].mean() > p[~in_group].mean() + 0.2
    seen = stored(known.S_c)
    assert not any(seen[u, i] for u in range(16) for i in items[u])


def stored(matrix):
    """Where a sparse matrix stores anything, zeros too."""
    mask = np.zeros(matrix.shape, dtype=bool)
    mask[np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)), matrix.indices] = True
    return mask


@pytest.mark.needs_jit
@pytest.mark.parametrize("name", ["bridge", "dub"])
def test_exact_solver_finds_the_two_groups(name):
    known = two_groups()
    model = make(name, loss="squared", solver="exact", rank=4, lam=0.1, epochs=80, patience=80).fit(known)
    assert model.evaluate(known)["auc"] > 0.9


@pytest.mark.needs_jit
@pytest.mark.parametrize("loss", TRAINABLE)
def test_dub_and_joint_bridge_learn_with_every_loss(loss):
    known = two_groups()
    assert make("dub", loss=loss, **LEARN_OWN["dub"]).fit(known).evaluate(known)["auc"] > 0.85
    assert make("bridge", loss=loss, teacher="joint", **LEARN_OWN["bridge"]).fit(known).evaluate(known)["auc"] > 0.85


# -- scikit-learn's conventions


@pytest.mark.parametrize("name", METHODS)
def test_constructors_only_store(name):
    cls = METHODS[name]
    model = cls(rank="nonsense", lr=None, seed=-3)  # no check before fit
    assert model.rank == "nonsense" and set(vars(model)) == set(model.get_params())
    with pytest.raises(TypeError):
        cls(3)  # parameters by name only


@pytest.mark.parametrize("name", METHODS)
def test_params_clone_and_repr(name, data):
    model = make(name, rank=3, seed=4, epochs=1)
    params = model.get_params()
    assert params["rank"] == 3 and type(model)(**params).get_params() == params
    copied = clone(quietly(model.fit, data))
    assert copied.get_params() == params and copied is not model and not hasattr(copied, "weights_")
    assert repr(model) == repr(copied) == f"{type(model).__name__}(rank=3, epochs=1, seed=4)"
    assert repr(type(model)()) == f"{type(model).__name__}()"
    assert eval(repr(model), vars(dubnb) | {type(model).__name__: type(model)}).get_params() == params
    assert model.set_params(rank=5) is model and model.rank == 5


@pytest.mark.parametrize("name", METHODS)
def test_unfitted_models_say_so(name, data):
    model = make(name)
    for call in (
        lambda: model.predict(0, 0),
        lambda: model.decision_function(0, 0),
        lambda: model.recommend([0]),
        lambda: model.evaluate(data),
        lambda: model.save("never-written.npz"),
    ):
        with pytest.raises(NotFittedError, match="is not fitted: call fit"):
            call()


@pytest.mark.parametrize("name,backbone", FITTABLE)
def test_same_seed_same_bytes_other_seed_other_bytes(name, backbone, data):
    model = make(name, backbone=backbone, **QUICK)
    first = digest(quietly(model.fit, data))
    history = model.history_.drop(columns="seconds")
    assert digest(quietly(model.fit, data)) == first  # the same object fitted twice
    assert model.history_.drop(columns="seconds").equals(history)
    assert digest(quietly(clone(model).fit, data)) == first
    counted = name in ("popularity", "popularity-t", "dub-i", "ease")
    assert (digest(quietly(clone(model).set_params(seed=1).fit, data)) == first) == counted


@pytest.mark.parametrize("name", METHODS)
def test_fit_leaves_parameters_and_data_alone(name, data):
    model = make(name, **QUICK)
    before, fingerprint = model.get_params(), data.fingerprint
    quietly(model.fit, data)
    assert model.get_params() == before and data.fingerprint == fingerprint
    assert model.params_["lam"] is not None or model.params_["cutoff"] is not None
    assert set(model.params_["terms"]) <= set(model.TERMS)
    given = {k: v for k, v in before.items() if v is not None and (k, v) != ("head", "default")}
    assert {k: v for k, v in model.params_.items() if k in given} == given


NCF_EPOCH = """
import hashlib, warnings
warnings.simplefilter("ignore")
import numpy as np
import pandas as pd
import dubnb
rng = np.random.default_rng(0)
frames = []
for n in (9000, 3000):
    pairs = pd.DataFrame({"user": rng.integers(0, 300, n), "item": rng.integers(0, 200, n)}).drop_duplicates()
    frames.append(pairs.assign(label=rng.integers(0, 2, len(pairs))))
data = dubnb.Partition.from_frames(*frames)
model = dubnb.DUB(backbone="ncf", rank=64, batch_size=1024, epochs=2, gamma=0.1).fit(data)
print([hashlib.sha256(array.tobytes()).hexdigest() for array in model.weights_.arrays().values()])
"""


def _run_alone(script, threads):
    names = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    env = os.environ | dict.fromkeys(names, threads)
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


@pytest.mark.needs_jit
def test_bytes_of_an_ncf_fit_do_not_depend_on_the_threads_that_blas_may_have():
    assert len({_run_alone(NCF_EPOCH, threads=n) for n in ("1", "2", "4")}) == 1


THREADS = """
import hashlib, warnings
warnings.simplefilter("ignore")
import dubnb
from tests import naive
from tests.method_tools import QUICK, digest
data = naive.small_partition(40, 30, n_c=400, n_t=150, n_va=100, n_te=100)
for name, options in (
    ("dub", {}), ("dub", {"backbone": "ncf", "rank": 40}), ("bridge", {"teacher": "joint", "loss": "mse"}),
    ("dub", {"loss": "squared", "solver": "exact"}), ("autodebias", {}),
):
    print(name, digest(dubnb.make(name, **(QUICK | options)).fit(data)))
"""


@pytest.mark.needs_jit
def test_bytes_do_not_depend_on_the_number_of_threads():
    printed = {_run_alone(THREADS, threads=n) for n in ("1", "2")}
    assert len(printed) == 1 and len(printed.pop().splitlines()) == 5


def test_a_model_that_ranks_alike_for_everyone_says_so(data):
    with pytest.warns(UserWarning, match=r"ranks items alike for every user: .* lower lam \(now 1e\+06\)$") as caught:
        vanished = dubnb.DubX(rank=2, lam=1e6, gamma=0.03, epochs=2).fit(data)
    assert caught[0].filename == __file__
    assert vanished.evaluate(data)["personal"] < 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alive = dubnb.DubX(rank=2, lam=0.1, gamma=0.03, epochs=2).fit(data)
    assert alive.evaluate(data)["personal"] > 1e-3


@pytest.mark.parametrize("label, missing", [(0.0, "positive"), (1.0, "negative")])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_methods_that_learn_from_S_t_refuse_one_label(data, label, missing):
    parts = {part: data.triplets(part) for part in ("S_c", "S_te")}
    for part in ("S_t", "S_va"):
        log = data.triplets(part)
        parts[part] = log._replace(labels=np.full(len(log.labels), label, np.float32))
    one_label = Partition(parts, (data.n_users, data.n_items))
    n = len(parts["S_t"].users) + len(parts["S_va"].users)
    for name in ("unif", "combine", "cause", "bridge", "autodebias", "dub", "dub-x", "popularity-t"):
        with pytest.raises(
            InputError, match=f"no {missing} among the {n} randomized pairs of S_t and S_va, and {name}"
        ):
            dubnb.make(name).fit(one_label)
    for model in (dubnb.Base(rank=2, epochs=2), dubnb.make("popularity"), dubnb.DubX(terms="cd", rank=2, epochs=2)):
        assert model.fit(one_label).weights_ is not None
    parts["S_va"] = data.triplets("S_va")  # one part alone may have one label
    assert dubnb.Combine(rank=2, epochs=2).fit(Partition(parts, (data.n_users, data.n_items))).weights_ is not None


# -- recipes


def without_S_va(data):
    """The same log, on which every epoch runs and the last one is kept."""
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_te")} | {"S_va": ([], [], [])}
    return Partition(parts, (data.n_users, data.n_items))


@pytest.mark.filterwarnings("ignore:S_va has 0 pairs")
@pytest.mark.parametrize("backbone", BACKBONES)
def test_dub_without_a_and_e_is_bridge(backbone, data):
    options, data = {"backbone": backbone, **QUICK}, without_S_va(data)
    first, second = dubnb.DUB(terms="cd", **options).fit(data), dubnb.Bridge(**options).fit(data)
    assert same_weights(first.weights_, second.weights_) and same_weights(first.teacher_, second.teacher_)
    assert not same_weights(first.weights_, dubnb.DUB(terms="acd", **options).fit(data).weights_)


def test_order_of_terms_does_not_matter(data):
    assert digest(dubnb.DUB(terms="dca", **QUICK).fit(data)) == digest(dubnb.DUB(terms="acd", **QUICK).fit(data))


@pytest.mark.parametrize(
    ("n_c", "n_t", "batch_size", "teacher_batch_size"),
    [
        (311_704, 5_400, 1024, 128),
        (4_798_776, 34_755, 1024, 128),
        (15_000, 2_000, 64, 64),
        (6_592, 464, 16, 8),
        (304 * 40, 42 * 10, 32, 8),
        (304 * 50, 42 * 12, 64, 16),
        (1, 0, 16, 8),
    ],
)
def test_batches_and_decays_follow_from_the_log(n_c, n_t, batch_size, teacher_batch_size):
    """A power of two with some 300 steps an epoch (42 on S_t); lam x batch size stays what it is at Yahoo! R3's."""
    log = LogFacts(1_000, 300, n_c, n_t, graded=False)
    assert batch_of_S_c(log, {}) == batch_size
    assert batch_of_S_t(log, {}) == teacher_batch_size
    assert batch_of_S_t(log, {"batch_size": 4}) == 4 and batch_of_S_t(log, {"batch_size": 4096}) == teacher_batch_size
    assert lam_of_S_c(1e-4)(log, {"batch_size": batch_size}) * batch_size == pytest.approx(1e-4 * 1024)
    assert lam_of_S_t(1e-2)(log, {"teacher_batch_size": 32}) == pytest.approx(4e-2)


@pytest.mark.parametrize(
    ("n_c", "n_t", "rank", "pretrain_terms", "weight"),
    [
        (311_704, 5_400, 100, "c", 5.0),  # Yahoo! R3
        (102_257, 800, 100, "c", 5.0),  # less of S_t changes nothing
        (100_000, 3_000, 100, "ac", 3.79958),
        (99_999, 2_999, 50, "c", 3.80019),
        (6_594, 464, 50, "ac", 2.48091),  # Coat
        (15_000, 2_000, 50, "ac", 2.0),
        (15_000, 0, 50, "c", 5.0),
        (20, 1, 50, "ac", 2.94314),
    ],
)
def test_factors_pretraining_and_weights_follow_from_the_log(n_c, n_t, rank, pretrain_terms, weight):
    """The numbers of SPEC at Yahoo! R3's size; fewer factors with few pairs, and more of S_t where there is more."""
    log, known = LogFacts(1_000, 300, n_c, n_t, graded=False), {"terms": "acde", "backbone": "mf"}
    assert _params.rank_of(100, 50)(log, {}) == rank
    assert _params.letters_of_pretraining(log, known) == pretrain_terms
    assert _params.letters_of_pretraining(log, known | {"terms": "cd"}) == "c"
    assert _params.letters_of_pretraining(log, known | {"backbone": "ncf"}) == "c"
    assert _params.weight_of_S_t(log, {}) == pytest.approx(weight, rel=1e-5)


def test_defaults_follow_the_spec():
    def defaults(name, backbone="mf", **options):
        found = make(name, backbone=backbone, **options).resolved_params()
        return {k: found[k] for k in ("rank", "lam", "gamma") if k in found}

    for backbone in BACKBONES:
        for name in ("base", "combine"):
            assert defaults(name, backbone) == {"rank": 50, "lam": 1e-4}
        assert defaults("cause", backbone) == {"rank": 50, "lam": 1e-4, "gamma": 1e-2}
    assert defaults("unif") == {"rank": 50, "lam": 1e-2} and defaults("unif", "ncf") == {"rank": 50, "lam": 1e-3}
    assert defaults("ips") == {"rank": 50, "lam": 3e-5} and defaults("ips", "ncf") == {"rank": 50, "lam": 1e-4}
    for name in ("bridge", "dub"):
        assert defaults(name) == {"rank": 100, "gamma": 1.5, "lam": 4e-5}
        assert defaults(name, "ncf") == {"rank": 50, "gamma": 0.1, "lam": 1e-5}
        assert defaults(name, loss="squared", solver="exact") == {"rank": 100, "gamma": 0.05, "lam": None}
    assert defaults("autodebias") == {"rank": 50, "lam": None}
    shape, n_c, n_t = (15_400, 1_000), 311_704, 5_400  # Yahoo! R3's: lam is what SPEC has
    everywhere = shape[0] * shape[1]
    exact = make("dub", loss="squared", solver="exact").resolve()
    assert exact.exact_lam(n_c + 2 * n_t + 0.05 * everywhere, shape) == pytest.approx(16.7, rel=0.01)
    assert make("autodebias").resolve().exact_lam(n_c + 0.1 * everywhere, shape, 2.0) == pytest.approx(40.0, rel=0.02)
    common = make("dub").resolved_params()
    assert (common["lr"], common["epochs"], common["patience"], common["batch_size"]) == (1e-3, 200, 5, 1024)
    assert (common["pretrain_lam"], common["teacher_lam"], common["terms"]) == (1e-4, 1e-2, "acde")
    assert common["pretrain_terms"] == "c" and make("dub-x", gamma=0.1).resolve().randomized_weight == 5.0


@pytest.mark.parametrize("name", ["bridge", "dub"])
def test_theory_weights_are_refused_by_the_exact_solver(name):
    with pytest.raises(dubnb.InputError, match="weighting"):
        dubnb.make(name, loss="squared", solver="exact", weighting="theory").resolved_params()


# -- bad parameters


@pytest.mark.parametrize(
    "params,rule",
    [
        ({"rank": 0}, "rank=0 must be a whole number of at least 1"),
        ({"lam": -1}, "lam=-1 must be at least 0"),
        ({"lr": float("nan")}, "lr=nan must be a finite number"),
        ({"lr": 0.0}, "lr=0.0 must be above 0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"epochs": -1}, "epochs=-1"),
        ({"patience": 0}, "patience=0"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"terms": "x"}, "terms='x' must be some of the letters 'abcde'"),
        ({"terms": "abcde", "loss": "mae"}, "term b has no model"),
        ({"b_weight": -1.0}, "b_weight=-1.0 must be at least 0"),
        ({"terms": ""}, "terms=''"),
        ({"terms": ["a"]}, "terms="),
        ({"device": "gpu"}, "device='gpu' is unknown: choose one of cpu, cuda, auto"),
        ({"loss": "hinge"}, "loss='hinge' is unknown: choose one of"),
        ({"backbone": "mlp"}, "backbone='mlp' is unknown: choose one of mf, ncf"),
        ({"monitor": "acu"}, "did you mean 'auc'"),
        ({"weighting": "sampel"}, "did you mean 'sample'"),
        ({"activation": "tahn", "backbone": "ncf"}, "did you mean 'tanh'"),
        ({"hidden": (8,)}, "is for backbone='ncf'"),
        ({"hidden": (0,), "backbone": "ncf"}, "hidden=0 must be a whole number"),
        ({"hidden": 8, "backbone": "ncf"}, "hidden=8"),
        ({"solver": "exact", "loss": "bce"}, "solver='exact' needs"),
        ({"shrink": 2.0}, "shrink=2.0"),
        ({"patience": 10**400}, "must be at most 2,147,483,647: take a smaller number"),
        ({"lam": 10**400}, "must be a finite number"),
        ({"loss": np.array(["bce", "mse"])}, "is unknown: choose one of bce"),
        ({"rank": np.array([3, 4])}, "must be a whole number"),
        ({"normalise": 1}, "normalise=1 must be True or False"),
    ],
)
def test_bad_parameters_are_one_line(params, rule, data):
    method = dubnb.IPS if "normalise" in params else dubnb.DUB
    with pytest.raises(InputError) as caught:
        method(**params).fit(data)
    assert rule in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name,parameter,last,beyond",
    [
        ("base", "negative", 1.0, 1.0001),
        ("base", "negative", 0.0, -0.0001),
        ("base", "target_slope", 2.0, 2.0001),
        ("base", "negatives", 0, -1),
        ("base", "seed", 0, -1),
        ("base", "seed", 2**53, 2**53 + 1),
        ("base", "rank", 1, 0),
        ("base", "batch_size", 1, 0),
        ("dub", "shrink", 1.0, 1.0001),
        ("dub", "gamma", 0.0, -0.0001),
        ("dub", "exposure_power", 0.0, -0.0001),
        ("dub-x", "shrink", 1.0, 1.0001),
        ("dub-x", "grade_spread", 2.0, 2.0001),
        ("dub-x", "teacher_value", -9.0, float("-inf")),
        ("dub-x", "cutoff", 0.0001, 0.0),
        ("ips", "clip", 0.0001, 0.0),
        ("autodebias", "weights_from", 0, -1),
        ("autodebias", "meta_every", 1, 0),
    ],
)
def test_limits_belong_to_the_range(name, parameter, last, beyond):
    assert make(name, **{parameter: last}).resolved_params()[parameter] == last
    with pytest.raises(InputError, match=f"{parameter}="):
        make(name, **{parameter: beyond}).resolved_params()


def test_repr_leaves_out_what_equals_its_default():
    """Equal, not only the same object: 0.1 read from text is another float."""
    assert repr(dubnb.DUB(b_weight=float("0.1"), seed=np.int64(0))) == "DUB()"
    assert repr(dubnb.DUB(b_weight=0.2, exposure_power=(0.5, 1.0))) == "DUB(exposure_power=(0.5, 1.0), b_weight=0.2)"


def test_solvers_are_named_where_one_is_not_there():
    with pytest.raises(InputError, match="solver='exact' does not support backbone='ncf': use solver='sampled'"):
        dubnb.DUB(solver="exact", backbone="ncf").resolved_params()
    with pytest.raises(InputError, match="solver='newton' is unknown: choose one of sampled, exact"):
        dubnb.DUB(solver="newton").resolved_params()


def test_grids_are_multiples_of_defaults_to_three_digits(data):
    """lam's default hangs on the batch size, and so on the log; ranks are the same on all of them."""
    lam = dubnb.Base().resolve(data).lam
    assert lam == pytest.approx(1e-4 * 1024 / 16) and len(f"{lam:.9g}") > 5
    found = dubnb.Base().grid("wide", data)
    assert found == {
        "rank": _params.WIDE_RANKS,
        "lam": tuple(float(f"{factor * lam:.3g}") for factor in (0.1, 0.3, 1, 3, 10)),
    }
    assert dubnb.Base().grid("wide")["lam"] == (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
    assert dubnb.Base().grid("paper") == {"rank": (50, 100, 200), "lam": (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)}
    sizes = {name: [len(axis) for axis in make(name).grid("even").values()] for name in ("base", "dub", "dub-x")}
    assert {np.prod(size) for size in sizes.values()} == {75}  # a search costs every method the same
    assert {1e-5, 1e-4, 1e-3, 1e-2, 1e-1} < set(dubnb.Base().grid("even")["lam"])


@pytest.mark.parametrize("name", METHODS)
def test_no_grid_searches_a_parameter_without_effect(name):
    for backbone, solver in METHODS[name].SETTINGS:
        given = {"backbone": backbone, "solver": solver}
        model = make(name, **{option: given[option] for option in make(name).get_params().keys() & given.keys()})
        for grid in ("paper", "wide", "even"):
            assert not model.grid(grid).keys() & model.resolve().idle()


def test_defaults_without_data_are_those_at_yahoo_r3_s_size():
    log = _params.YAHOO_R3
    assert (log.n_users, log.n_items, log.n_c, log.n_t) == (15_400, 1_000, 311_704, 5_400)
    assert not log.graded and not log.click_only and dubnb.DubX().resolve().targets == "binary"
    assert _params.negatives_of(log, {}) == 0 and dubnb.Base().resolve().negatives == 0


def test_defaults_depend_on_the_log(data):
    assert LogFacts.of(data) == LogFacts(9, 8, 30, 12, False, False)


def test_a_joint_teacher_is_sampled_unshrunk_and_unweighted():
    for options in ({"shrink": 0.5}, {"solver": "exact", "loss": "squared", "shrink": 0.0}):
        with pytest.raises(InputError, match="teacher='joint' needs solver='sampled' and shrink=0"):
            dubnb.Bridge(teacher="joint", **options).resolved_params()
        assert dubnb.Bridge(**options).resolved_params()["teacher"] == "frozen"
    with pytest.raises(InputError, match="weighting='theory' is for training one model"):
        dubnb.Bridge(teacher="joint", weighting="theory").resolved_params()
    assert dubnb.Bridge(weighting="theory").resolved_params()["weighting"] == "theory"
    with pytest.raises(InputError, match="terms='e' leaves nothing to train M_c on"):
        dubnb.CausE(terms="e").resolved_params()


def test_a_decay_is_given_once_and_is_above_0_for_row_solves():
    exact = {"solver": "exact", "loss": "squared"}
    with pytest.raises(InputError, match=r"lam=0\.5 and cutoff=0\.2 both set the decay"):
        dubnb.DUB(lam=0.5, cutoff=0.2, **exact).resolved_params()
    with pytest.raises(InputError, match=r"lam=0\.0 must be above 0 with solver='exact'"):
        dubnb.DUB(lam=0.0, **exact).resolved_params()
    assert dubnb.DUB(lam=0.0).resolved_params()["lam"] == 0.0 and dubnb.DUB(lam=1.0, **exact).resolved_params()
    with pytest.raises(InputError, match=r"cutoff=0\.2 is for solver='exact': set lam instead"):
        dubnb.DUB(cutoff=0.2).resolved_params()


@pytest.mark.parametrize("label", [0, 1])
def test_propensities_need_both_labels_in_S_t_where_S_c_has_them(label, data):
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_va", "S_te")}
    parts["S_t"] = parts["S_t"]._replace(labels=np.full(12, float(label)))
    with pytest.raises(InputError, match=f"S_t has no label {1 - label} but S_c has"):
        dubnb.IPS(**QUICK).fit(Partition(parts, (9, 8)))
    parts["S_c"] = parts["S_c"].take(parts["S_c"].labels == label)
    if not label:
        assert quietly(dubnb.IPS(**QUICK).fit, Partition(parts, (9, 8))).weights_ is not None


# -- threads, progress, what is kept


def test_threads_are_for_mf_on_the_cpu():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [_method._checked_threads(n, "mf", "cpu") for n in (1, 2, 16)] == [1, 2, 16]
        assert _method._checked_threads(1, "ncf", "cpu") == 1 == _method._checked_threads(4, "mf", "cuda")
    with pytest.warns(UserWarning, match="threads=2 is for backbone='mf': ncf uses 1"):
        assert _method._checked_threads(2, "ncf", "cpu") == 1
    with pytest.raises(InputError, match="threads=0"):
        _method._checked_threads(0, "mf", "cpu")


@pytest.mark.parametrize("name", METHODS)
def test_probabilities_are_calibrated_on_S_va_by_weight(name):
    """By the same scores that are served, a cold user's too."""
    data = naive.small_partition(9, 8, n_c=30, n_t=12, n_va=10, n_te=12)
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_te")}
    parts |= {part: parts[part].take(parts[part].users != 4) for part in ("S_c", "S_t")}
    S_va = data.triplets("S_va")
    parts["S_va"] = S_va._replace(weights=np.linspace(0.5, 3.0, 10))
    data = Partition(parts, (9, 8))
    S_va = data.triplets("S_va")
    model = quietly(make(name, **QUICK).fit, data)
    scores = model.decision_function(S_va.users, S_va.items)
    assert model.calibration_ == calibration.Calibration.fit(scores, S_va.labels, S_va.weights)
    assert model.calibrate is True and quietly(make(name, calibrate=False, **QUICK).fit, data).calibration_ is None


@pytest.mark.parametrize("positives,calibrated", [(0, False), (1, True), (9, True), (10, False)])
def test_calibration_needs_both_labels_in_S_va(positives, calibrated):
    data = naive.small_partition(9, 8, n_c=30, n_t=12, n_va=10, n_te=12)
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_va", "S_te")}
    parts["S_va"] = parts["S_va"]._replace(labels=(np.arange(10) < positives).astype(float))
    model = quietly(dubnb.Base(**QUICK).fit, Partition(parts, (9, 8)))
    assert (model.calibration_ is not None) == calibrated


def test_a_model_that_ranks_alike_has_mf_to_go_to():
    with pytest.warns(
        UserWarning, match=r"alike for every user: only 0\.05 % .* lower lam \(now 0\.5\), or use backbone='mf'$"
    ):
        dubnb.Base(backbone="ncf", lam=0.5).resolve()._check_personal(5e-4)
    with pytest.warns(UserWarning, match=r"lower lam \(now 0\.5\)$"):
        dubnb.Base(lam=0.5).resolve()._check_personal(5e-4)
    with pytest.warns(UserWarning, match=r"lower cutoff \(now 0\.3\)$"):
        dubnb.DubX(cutoff=0.3).resolve()._check_personal(5e-4)


def test_numpy_parameters_become_python_numbers(data):
    """A small NumPy number would overflow in the arithmetic of sizes: 255 + 2 is 1 as a uint8."""
    from fractions import Fraction

    given = {"rank": np.uint8(255), "epochs": np.int8(2), "lam": Fraction(1, 1000), "lr": np.float16(0.01)}
    given |= {"batch_size": np.int8(127), "patience": np.uint8(2), "seed": np.uint64(3)}
    model = dubnb.Base(**given).fit(data)
    plain = {"rank": 255, "epochs": 2, "lam": 0.001, "lr": float(np.float16(0.01)), "batch_size": 127}
    plain |= {"patience": 2, "seed": 3}
    assert {name: model.params_[name] for name in plain} == plain
    assert all(type(model.params_[name]) is type(value) for name, value in plain.items())
    assert len(model.history_) == 2 and model.weights_.rank == 255
    assert digest(model) == digest(dubnb.Base(**plain).fit(data))
    assert model.get_params()["rank"] is given["rank"]  # the constructor only stores


@pytest.mark.parametrize("method", METHODS.values())
def test_every_parameter_is_documented_once_and_checked(method):
    import inspect
    import re

    docs = [inspect.getdoc(cls).split("Parameters\n----------\n")[1] for cls in (method, Method)]
    lines = [line for doc in docs for line in re.findall(r"^(\w[\w, ]*) : ", doc, re.MULTILINE)]
    assert sorted(", ".join(lines).split(", ")) == sorted(method().get_params())
    checked = {name for base in method.__mro__ for name in vars(base).get("CHECKS", {})}
    assert checked >= set(method().get_params())


@pytest.mark.needs_jit
@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_help_of_a_method_is_short_and_its_example_runs(method):
    assert len(pydoc.render_doc(method).splitlines()) < 150
    found = doctest.DocTestParser().get_doctest(method.__doc__, {}, method.__name__, None, None)
    assert len(found.examples) >= 3 and quietly(doctest.DocTestRunner().run, found).failed == 0


def test_unknown_names_are_suggested():
    with pytest.raises(InputError, match=r"parameter='ranks' is unknown.*did you mean 'rank'"):
        make("dub", ranks=3)
    with pytest.raises(InputError, match=r"parameter='gama'.*did you mean 'gamma'"):
        dubnb.DUB().set_params(gama=1.0)
    with pytest.raises(InputError, match=r"method='dubb' is unknown.*did you mean 'dub'"):
        make("dubb")
    with pytest.raises(InputError, match=r"teacher='frozn'.*did you mean 'frozen'"):
        dubnb.Bridge(teacher="frozn").resolved_params()


# -- degenerate data


def parts_of(S_c, S_t, S_va=(), S_te=(), shape=None):
    rows = {"S_c": S_c, "S_t": S_t, "S_va": S_va, "S_te": S_te}
    columns = {p: np.array(found, dtype=np.int64).reshape(-1, 3).T for p, found in rows.items()}
    return Partition({p: (*own[:2], own[2].astype(float)) for p, own in columns.items()}, shape)


DEGENERATE = {
    "one user": ([(0, 0, 1), (0, 1, 0), (0, 2, 1)], [(0, 3, 1), (0, 4, 0)], [(0, 5, 1), (0, 6, 0)], [], (1, 8)),
    "one item": ([(0, 0, 1), (1, 0, 0), (2, 0, 1)], [(3, 0, 1), (4, 0, 0)], [(5, 0, 1), (6, 0, 0)], [], (8, 1)),
    "S_t of one row": ([(0, 0, 1), (1, 0, 0), (2, 1, 1)], [(0, 1, 1)], [(1, 1, 1), (2, 0, 0)], [], (3, 3)),
    "S_t all negative": ([(0, 0, 1), (1, 0, 0), (2, 1, 1)], [(0, 1, 0), (1, 2, 0)], [(1, 1, 1), (2, 0, 0)], [], (3, 3)),
    "S_t all positive": ([(0, 0, 1), (1, 0, 0), (2, 1, 1)], [(0, 1, 1), (1, 2, 1)], [(1, 1, 1), (2, 0, 0)], [], (3, 3)),
    "S_c all positive": ([(0, 0, 1), (1, 0, 1)], [(0, 1, 1), (1, 2, 0)], [(1, 1, 1), (2, 0, 0)], [], (3, 3)),
    "a user saw all": ([(0, 0, 1), (0, 1, 0), (1, 0, 0)], [(1, 1, 1), (0, 2, 0)], [(1, 2, 1), (2, 0, 0)], [], (3, 3)),
    "no validation": ([(0, 0, 1), (1, 1, 0)], [(0, 1, 1), (1, 0, 0)], [], [], (3, 3)),
    "nothing unseen": ([(0, 0, 1), (0, 1, 0)], [(1, 0, 1), (1, 1, 0)], [], [], (2, 2)),
    "S_t has other users": ([(0, 0, 1), (0, 1, 0)], [(2, 3, 1), (3, 2, 0)], [(3, 3, 1), (2, 2, 0)], [], (4, 4)),
}  # fmt: skip


@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("name,backbone", FITTABLE)
def test_degenerate_data(name, backbone, case):
    """A finite model or one clear line, never a traceback of another kind."""
    few = parts_of(*DEGENERATE[case])
    try:
        model = quietly(make(name, backbone=backbone, **QUICK).fit, few)
    except InputError as error:
        assert "\n" not in str(error) and len(str(error)) > 20
        assert case in (
            "nothing unseen",
            "S_t all negative",
            "S_t all positive",
            "S_t of one row",
            "S_c all positive",
        ) or (
            case == "one item" and name in ("bpr", "pda")  # there is nothing to compare with
        )
        return
    users, items = np.arange(few.n_users)[:, None], np.arange(few.n_items)[None, :]
    assert np.isfinite(model.predict(users, items)).all()
    found, scores = model.recommend(np.arange(few.n_users), k=3)
    left = few.n_items - model.seen_.sizes()
    assert ((found >= 0).sum(axis=1) == np.minimum(3, left)).all() and (np.isnan(scores) == (found < 0)).all()


def test_remedy_for_an_empty_S_u_works():
    """The message says to drop d: then it must work."""
    full = parts_of(*DEGENERATE["nothing unseen"])
    for name in ("bridge", "dub"):
        with pytest.raises(InputError, match="S_u is empty"):
            quietly(make(name, **QUICK).fit, full)
    quietly(make("bridge", terms="c", **QUICK).fit, full)
    quietly(make("dub", terms="ace", **QUICK).fit, full)


def test_empty_S_t_is_one_line():
    with pytest.raises(InputError, match="S_t is empty"):
        quietly(dubnb.DUB(**QUICK).fit, parts_of([(0, 0, 1), (1, 1, 0)], [], shape=(2, 2)))


# -- scores and recommendations


@pytest.fixture(scope="module")
def named():
    return naive.small_partition(9, 8, n_c=30, n_t=12, n_va=10, n_te=12, ids="str")


def test_scores_broadcast_and_map_ids(base, named):
    scalar = base.decision_function(3, 4)
    assert scalar.shape == () and scalar == base.weights_.score_pairs([3], [4])[0]
    assert base.decision_function(np.arange(9)[:, None], np.arange(8)).shape == (9, 8)
    assert base.decision_function(2, [1, 5]).tolist() == base.weights_.score_pairs([2, 2], [1, 5]).tolist()
    assert base.decision_function([], []).shape == (0,)
    strings = dubnb.Base(**QUICK).fit(named)
    assert (
        strings.decision_function("u03", ["i04", "i00"]).tolist()
        == strings.weights_.score_pairs([3, 3], [4, 0]).tolist()
    )
    with pytest.raises(InputError, match="user 99 is unknown"):
        base.decision_function([0, 99], [0, 0])
    with pytest.raises(InputError, match="item 'nope' is unknown"):
        strings.predict(["u00"], ["nope"])
    with pytest.raises(InputError, match="not of the data's kind"):
        base.predict(["u00"], [0])


@pytest.mark.parametrize("wrong", [None, np.zeros((3, 3)), csr_matrix((3, 3))])
def test_data_of_another_kind_is_one_line(base, wrong):
    for call in (dubnb.Base().fit, base.evaluate):
        with pytest.raises(InputError, match="Partition"):
            call(wrong)


def test_shapes_that_do_not_broadcast_are_one_line(base):
    with pytest.raises(InputError) as caught:
        base.decision_function([0, 1, 2], [0, 1])
    assert "\n" not in str(caught.value)


def test_without_calibration_predict_is_the_sigmoid_or_clipped(data):
    own = dubnb.Base(calibrate=False, **QUICK).fit(data)
    raw = own.decision_function(np.arange(9)[:, None], np.arange(8))
    np.testing.assert_allclose(own.predict(np.arange(9)[:, None], np.arange(8)), naive.sigmoid(raw), rtol=1e-5)
    linear = dubnb.Base(loss="squared", lr=1.0, rank=3, epochs=3, calibrate=False).fit(data)
    raw = linear.decision_function(np.arange(9)[:, None], np.arange(8))
    assert raw.min() < 0 and raw.max() > 1
    assert np.array_equal(linear.predict(np.arange(9)[:, None], np.arange(8)), np.clip(raw, 0, 1))


def ranked(base, user, excluded):
    scores = base.decision_function(user, np.arange(8))
    return naive.ranking(scores, [i for i in range(8) if i not in excluded])


def test_recommend_excludes_S_c_and_the_positives_of_S_t_by_default(base, data):
    items, scores = base.recommend(np.arange(9), k=8)
    assert data.S_t.sum() > 0
    for user in range(9):
        expected = ranked(base, user, (*naive.sets(data, "S_c", user)[0], *naive.sets(data, "S_t", user)[1]))
        assert items[user, : len(expected)].tolist() == expected
        assert (items[user, len(expected) :] == -1).all() and np.isnan(scores[user, len(expected) :]).all()
        np.testing.assert_allclose(
            scores[user, : len(expected)], base.decision_function(user, expected), rtol=1e-5, atol=1e-7
        )
    liked = csr_matrix((base.seen_.items + 1.0, base.seen_.items, base.seen_.indptr), shape=(9, 8))
    assert np.array_equal(items, base.recommend(np.arange(9), k=8, exclude=liked)[0])


def test_recommend_excludes_given_pairs(base):
    assert base.recommend([4], k=8, exclude=False)[0][0].tolist() == ranked(base, 4, ())
    own = csr_matrix((np.zeros(2), ([4, 4], [1, 6])), shape=(9, 8))  # stored zeros are pairs too
    assert base.recommend([4], k=6, exclude=own)[0][0].tolist() == ranked(base, 4, (1, 6))
    for bad in (True, np.zeros((9, 8)), csr_matrix((8, 9)), "S_c"):
        with pytest.raises(InputError, match="exclude must be"):
            base.recommend([4], exclude=bad)


def test_recommend_pads_and_warns_of_unknown_users(base, named):
    with pytest.warns(UserWarning, match="2 unknown users.*: 77, -5") as caught:
        lists = base.recommend([77, 3, -5], k=20)
    assert caught[0].filename == __file__
    items, scores = lists
    assert items.shape == scores.shape == (3, 8)  # all items
    left = 8 - int(np.diff(base.seen_.indptr)[3])
    assert (items[1, left:] == -1).all() and np.isnan(scores[1, left:]).all() and not np.isnan(scores[1, :left]).any()
    assert lists.fallback.tolist() == [True, False, True]
    average = base.decision_function(np.arange(9)[:, None], np.arange(8)).mean(axis=0)
    assert items[0, :8].tolist() == items[2, :8].tolist() == naive.ranking(average, range(8))
    np.testing.assert_allclose(scores[0, :8], average[items[0, :8]], rtol=1e-5, atol=1e-6)
    strings = dubnb.Base(**QUICK).fit(named)
    with pytest.warns(UserWarning, match="unknown users"):
        items, scores = strings.recommend(["u01", "nobody"], k=9)
    assert items[0, 0].startswith("i") and items[0, -1] == "" and items[1, 0].startswith("i")
    assert base.recommend([], k=2)[0].shape == (0, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # they are known, also the first of all
        assert base.recommend(3, k=2)[0].shape == (1, 2) and base.recommend(0, k=2)[0].shape == (1, 2)
    with pytest.raises(InputError, match="users"):
        base.recommend([[0, 1], [2, 3]])
    for k in (0, -1, 2.5):
        with pytest.raises(InputError, match="k="):
            base.recommend([3], k=k)


def test_ties_go_to_the_first_item(base):
    weights = base.weights_.arrays()
    flat = {name: np.zeros_like(array) for name, array in weights.items()}
    tied = clone(base)
    tied.__dict__.update({k: v for k, v in vars(base).items() if k.endswith("_")})
    tied.weights_ = type(base.weights_).from_arrays(flat)
    assert tied.recommend([0], k=8, exclude=False)[0][0].tolist() == list(range(8))


# -- evaluation of a fitted model


def test_evaluate_equals_the_twin(base, data):
    matrix = base.decision_function(np.arange(9)[:, None], np.arange(8))
    for protocol in ("full-ranking", "test-items"):
        expected, _ = naive.evaluate(matrix, data, protocol, (2, 5))
        found = base.evaluate(data, protocol, ks=(2, 5))
        assert found.pop("protocol") == protocol
        S_te = data.triplets("S_te")
        p = base.predict(S_te.users, S_te.items)
        assert found.pop("log_loss") == pytest.approx(calibration.log_loss(p, S_te.labels))
        assert found.pop("brier") == pytest.approx(calibration.brier(p, S_te.labels))
        assert found.pop("ece") == pytest.approx(calibration.expected_calibration_error(p, S_te.labels))
        assert found == pytest.approx(expected)


def test_evaluate_warns_on_other_data(base, data):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*below popularity")
        base.evaluate(data)
    other = naive.small_partition(9, 8, n_c=30, n_t=12, n_va=10, n_te=12, seed=1)
    with pytest.warns(UserWarning, match="trained on other data") as caught:
        base.evaluate(other)
    assert caught[0].filename == __file__


def test_evaluate_refuses_ids_of_which_it_knows_none(base, data):
    """Rows of other ids are other users, even where the numbers of users and items agree."""
    parts = {part: data.triplets(part) for part in ("S_c", "S_t", "S_va", "S_te")}
    renamed = Partition(parts, (9, 8), user_ids=Ids(np.arange(100, 109)))
    with pytest.raises(InputError, match=r"knows none of the 9 users: its ids look like .*0.* \(int\), .*100"):
        quietly(base.evaluate, renamed)


# -- baselines


def test_baseline_popularity_counts_the_positives_of_S_c(data):
    scores = make("popularity").fit(data).decision_function(np.arange(9)[:, None], np.arange(8))
    S_c = data.triplets("S_c")
    expected = [sum(S_c.labels[S_c.items == item]) / 9 for item in range(8)]
    np.testing.assert_allclose(scores, np.tile(expected, (9, 1)), rtol=1e-6)
    assert len(set(expected)) > 2


def test_baseline_popularity_t_is_the_rate_in_S_t_drawn_towards_the_base_rate(data):
    model = make("popularity-t").fit(data)
    S_t = data.triplets("S_t")
    base_rate = S_t.labels.mean()
    for item in range(8):
        own = S_t.labels[S_t.items == item]
        expected = (own.sum() + 40 * base_rate) / (len(own) + 40)
        assert model.decision_function(3, item) == pytest.approx(expected, rel=1e-5)


def test_baseline_random_follows_its_seed(data):
    first, again, other = (make("random", seed=s).fit(data).recommend(np.arange(9), 8, False)[0] for s in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert len({tuple(row) for row in first}) > 3  # another order for every user


@pytest.mark.needs_jit
def test_baseline_random_knows_nothing():
    data = dubnb.load_dataset("simulated")
    with pytest.warns(UserWarning, match="below popularity"):
        assert make("random").fit(data).evaluate(data, truth=False)["auc"] == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("name", ["popularity", "popularity-t", "random"])
def test_baselines_do_not_warn_that_they_rank_alike(name, data, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make(name).fit(data)
    assert len(model.history_) == 1 and 0 <= model.history_["va_auc"][0] <= 1
    model.save(tmp_path / "m.npz")
    copy = dubnb.load(tmp_path / "m.npz")
    assert np.array_equal(copy.recommend(np.arange(9), 3)[0], model.recommend(np.arange(9), 3)[0])


def test_baseline_popularity_s_result_is_the_one_beside_every_other(data):
    result = make("popularity").fit(data).evaluate(data)
    assert (result["auc"], result["ndcg"]) == (result["popularity_auc"], result["popularity_ndcg"])
