"""Every CUDA kernel in Numba's simulator, and whole fits on the device against those of the CPU.

    NUMBA_ENABLE_CUDASIM=1 NUMBA_DISABLE_JIT=1 pytest tests/test_cuda_simulated.py

`tests/test_cuda.py` runs this file, with and without the host's JIT. All shapes of grids and orders of threads and
blocks must give the same bits. No GPU has ever run these kernels.
"""

import numba
import numpy as np
import pytest

if not numba.config.ENABLE_CUDASIM:
    pytest.skip("needs NUMBA_ENABLE_CUDASIM=1, see tests/test_cuda.py", allow_module_level=True)

from dubnb._check import InputError
from dubnb._random import generator, key
from dubnb.backbones import BACKBONES, MF, NCF, mf
from dubnb.backbones.mf import Extended, Stream
from dubnb.cuda import _launch, all_pairs, als, device, ncf, rows
from dubnb.cuda import streams as device_streams
from dubnb.data.partition import Partition
from dubnb.data.pattern import Pattern, UnobservedPairs
from dubnb.evaluation import top_k
from dubnb.losses import LOSSES
from dubnb.methods import METHODS, make
from dubnb.objective import als as cpu_als
from dubnb.objective import terms
from dubnb.objective.autodebias import SampledSolver
from dubnb.objective.terms import empty_stream, shuffle
from dubnb.train import Fit
from tests import naive
from tests.cuda_simulator import ORDERS, scheduled
from tests.exact_tools import spread

pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning"),  # uint64, JIT off
    pytest.mark.filterwarnings("ignore::UserWarning"),  # tiny models give all users the same ranking
]
QUICK = {"rank": 3, "epochs": 3, "patience": 3, "lr": 0.02, "batch_size": 16}
SHAPES = (_launch.Shape(1, 1), _launch.Shape(3, 2), _launch.Shape(5, 7))  # none is a multiple of a warp


@pytest.fixture(autouse=True)
def in_turn():
    """Run threads from barrier to barrier in a random order."""
    with scheduled("shuffled"):
        yield


@pytest.fixture(scope="module")
def data():
    return naive.small_partition(9, 8, n_c=30, n_t=12, n_va=10, n_te=12)


def on_host(stream):
    return Stream(*(column.copy_to_host() for column in stream))


def random_stream(n, n_users, n_items, seed=0):
    random = generator(seed, "stream", n)
    numbers = random.integers(0, n_users, n), random.integers(0, n_items, n), random.random(n), random.random(n) + 0.5
    return Stream(
        *(x.astype(t) for x, t in zip(numbers, ("i4", "i4", "f4", "f4"), strict=True)),
        random.integers(0, 2, n).astype(np.uint8),
    )


# -- the same samples


def pattern(n_users, n_items, share, seed=0):
    users, items = np.nonzero(generator(seed, "seen").random((n_users, n_items)) < share)
    return Pattern.of(users.astype(np.int32), items.astype(np.int32), n_users)


@pytest.mark.parametrize(
    ("n_users", "n_items", "share"), [(7, 5, 0.4), (1, 9, 0.5), (9, 1, 0.5), (4, 4, 0.0), (30, 2, 0.9)]
)
@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_draws_are_those_of_the_cpu(n_users, n_items, share, n):
    pairs = UnobservedPairs(n_users, n_items, pattern(n_users, n_items, share))
    expected = np.zeros((2, n), np.int32)
    pairs.draw(key(3, "d", n), *expected)
    users, items = _launch.zeros(n, np.int32), _launch.zeros(n, np.int32)
    device_streams.DeviceDraws(pairs, n).draw(key(3, "d", n), users, items)
    assert np.array_equal(users.copy_to_host(), expected[0]) and np.array_equal(items.copy_to_host(), expected[1])


def test_an_empty_S_u_is_refused_on_the_device_too():
    pairs = UnobservedPairs(2, 2, pattern(2, 2, 1.1))
    with pytest.raises(InputError, match="S_u is empty"):
        device_streams.DeviceDraws(pairs, 3).draw(key(0), _launch.zeros(3, np.int32), _launch.zeros(3, np.int32))


@pytest.mark.parametrize("bucket", [4, 8192])
@pytest.mark.parametrize("n", [1, 2, 64, 257])
def test_the_shuffle_is_the_cpu_s(n, bucket, monkeypatch):
    monkeypatch.setattr(terms, "_BUCKET", bucket)
    monkeypatch.setattr(device_streams, "PIECES", 3)
    source, expected = random_stream(n, 50, 40), empty_stream(n)
    shuffle(key(1, "shuffle", n), source, expected)
    target = _launch.stream_to_device(empty_stream(n))
    device_streams.CudaShuffle(n)(key(1, "shuffle", n), _launch.stream_to_device(source), target)
    for column, found in zip(expected, on_host(target), strict=True):
        assert np.array_equal(column, found)


# -- kernels against NumPy


@pytest.mark.parametrize(("n", "batch_size", "n_rows"), [(1, 1, 1), (17, 5, 4), (20, 20, 1), (33, 8, 100)])
def test_grouping(n, batch_size, n_rows):
    own = generator(n, "rows").integers(0, n_rows, n).astype(np.int32)
    groups = rows.RowGroups(_launch.device_array(n, np.int32), _launch.device_array(n, np.int32))
    rows.group(n, _launch.to_device(own), batch_size, groups)
    order, sizes = (part.copy_to_host() for part in groups)
    for start in range(0, n, batch_size):
        batch = own[start : start + batch_size]
        expected = start + np.argsort(batch, kind="stable")
        assert np.array_equal(order[start : start + batch_size], expected)
        _, first, counts = np.unique(own[expected], return_index=True, return_counts=True)
        found = np.zeros(len(batch), np.int32)
        found[first] = counts
        assert np.array_equal(sizes[start : start + batch_size], found)


@pytest.mark.parametrize("n", [0, 1, 8, 29])
def test_totals_by_label(n):
    values, labels = generator(n, "values").random(n), generator(n, "labels").integers(0, 3, n).astype(np.uint8)
    found = _launch.Totals(3).of(_launch.to_device(values), _launch.to_device(labels))
    np.testing.assert_allclose(found, np.bincount(labels, values, 3), rtol=1e-12)


@pytest.mark.parametrize(("n", "height", "width"), [(1, 1, 1), (7, 3, 5), (40, 4, 4)])
def test_gram_matrices(n, height, width, monkeypatch):
    monkeypatch.setattr(all_pairs, "CHUNK", 16)
    random = generator(n, "gram")
    a, b, w = random.random((n, height)).astype("f4"), random.random((n, width)).astype("f4"), random.random(n)
    found = all_pairs.Gram(n, height, width).of(*map(_launch.to_device, (a, w, b)))
    np.testing.assert_allclose(found.copy_to_host(), (a * w[:, None]).T @ b.astype(float), rtol=1e-12)


@pytest.mark.parametrize("tile", [2, 3])
@pytest.mark.parametrize(("m", "n", "depth"), [(1, 1, 1), (5, 3, 7), (2, 6, 4)])
def test_tiled_product(m, n, depth, tile, monkeypatch):
    monkeypatch.setattr(ncf, "TILE", tile)
    random = generator(m, "product", n, depth)
    a, b, other = (random.standard_normal(size).astype("f4") for size in ((m, depth), (n, depth), (m, n)))
    network = ncf.CudaNetwork(NCF.new((2, 2), 2, 0, "c", activation="sigmoid"), 1)
    flat_a, flat_b, flat_other = (_launch.to_device(x.reshape(-1)) for x in (a, b, other))
    out = _launch.zeros(m * n)
    operands = ncf.Operand(flat_a, 0, depth, 1), ncf.Operand(flat_b, 0, 1, depth)  # the second one transposed
    beside, target = ncf.Operand(flat_other, 0, n, 1), ncf.Operand(out, 0, n, 1)
    product, h = a @ b.T, other
    for becomes, expected in (
        (ncf.PLAIN, product),
        (ncf.ADDED, product + h),
        (ncf.ACTIVATED, 1 / (1 + np.exp(-(product + h)))),
        (ncf.SLOPED, product * h * (1 - h)),
    ):
        network._product(*operands, (m, n, depth), beside, becomes, target)
        np.testing.assert_allclose(out.copy_to_host().reshape(m, n), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("k", [1, 4, 9])
def test_tops_of_lists_are_the_cpu_s(k, threads, monkeypatch):
    """Ties, both zeros, excluded items, a row with no candidate, lists longer than the row."""
    monkeypatch.setattr(_launch, "ROW_THREADS", threads)
    scores = generator(0, "scores").integers(-2, 3, (6, 7)).astype(np.float32)
    scores[0, :2] = 0.0, -0.0
    excluded = generator(0, "excluded").random((6, 7)) < 0.3
    excluded[2], excluded[3] = True, False

    class Fixed(rows.Ranker):
        def scores_of(self, users):
            return _launch.to_device(scores[users.copy_to_host()])

    users = np.array([5, 0, 2, 3])
    expected = top_k(scores[users], k, excluded[users])
    assert np.array_equal(Fixed().top_k(users, k, excluded[users]), expected)


@pytest.mark.parametrize("backbone", sorted(BACKBONES))
def test_scores_are_the_cpu_s(backbone):
    weights = BACKBONES[backbone].new((7, 5), 3, 0, "c")
    users, items = (np.arange(11) * 3 % 7).astype(np.int32), (np.arange(11) * 2 % 5).astype(np.int32)
    trainer = device.TRAINERS[backbone](weights, 4)
    expected = weights.score_pairs(users, items)
    np.testing.assert_allclose(trainer.score_pairs(users, items), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        trainer.score_rows(np.array([6, 0])), weights.score_rows(np.array([6, 0])), rtol=1e-5, atol=1e-6
    )
    out = _launch.zeros(11)
    device.device_scorer(weights).score(_launch.to_device(users), _launch.to_device(items), out)
    np.testing.assert_allclose(out.copy_to_host(), expected, rtol=1e-5, atol=1e-6)
    again = trainer.weights().arrays()
    assert all(again[name].tobytes() == array.tobytes() for name, array in weights.arrays().items())


@pytest.mark.parametrize("backbone", sorted(BACKBONES))
@pytest.mark.parametrize("loss", ["bce", "mse", "squared", "mae"])
def test_an_epoch_is_the_cpu_s(backbone, loss):
    weights, stream = BACKBONES[backbone].new((7, 5), 3, 0, "c"), random_stream(20, 7, 5)
    found, expected = device.TRAINERS[backbone](weights, 8), weights.trainer(8)
    totals = [found.epoch(_launch.stream_to_device(stream), 2, LOSSES[loss], 0.01, 0.1)]
    totals += [expected.epoch(stream, 2, LOSSES[loss], 0.01, 0.1)]
    np.testing.assert_allclose(*totals, rtol=1e-5)
    assert_close(found.weights(), expected.weights())


def test_divergence_is_detected():
    weights = MF.new((3, 2), 2, 0, "c")
    weights.users[1, 0] = np.inf
    assert not device.TRAINERS["mf"](weights, 4).finite()
    assert device.TRAINERS["mf"](MF.new((3, 2), 2, 0, "c"), 4).finite()
    weights = NCF.new((3, 2), 2, 0, "c")
    weights.dense[3] = np.nan
    assert not device.TRAINERS["ncf"](weights, 4).finite()


# -- whole fits


def assert_close(found, expected):
    """Weights within float32's rounding after several epochs."""
    expected = expected.arrays()
    for name, array in found.arrays().items():
        scale = np.abs(expected[name]).max() + 1e-3
        assert np.abs(array - expected[name]).max() <= 2e-5 * scale, name


CPU_ONLY = [name for name, method in METHODS.items() if not method.trains_on_gpu]
FITS = [
    *((name, {"backbone": "mf"}) for name in METHODS if name not in ("autodebias", *CPU_ONLY)),
    *(
        (name, {"backbone": "ncf", "epochs": 2})
        for name in METHODS
        if "ncf" in METHODS[name].backbones() and name not in CPU_ONLY
    ),
    ("base", {"loss": "squared", "monitor": "ndcg"}),
    ("dub-x", {"gamma": 0.02, "monitor": "ndcg"}),
    ("base", {"backbone": "ncf", "hidden": (5, 3), "activation": "relu", "epochs": 2}),
    ("base", {"backbone": "ncf", "hidden": (), "epochs": 2}),
    ("cause", {"norm": "frobenius", "side": "both"}),
    ("cause", {"side": "users", "terms": "c"}),
    ("bridge", {"teacher": "joint"}),
    ("bridge", {"solver": "exact", "shrink": 0.5}),
    ("dub", {"loss": "mae"}),
    ("dub", {"loss": "mae", "terms": "acd"}),
    ("dub", {"loss": "mse", "shrink": 0.3, "exposure_power": 0.5, "weighting": "theory"}),
    ("dub", {"shrink": 1.0}),
    ("dub", {"solver": "exact"}),
    ("dub-x", {"gamma": 0.02, "teacher": "item"}),
    ("dub-x", {"gamma": 0.02, "teacher": "model", "shrink": 0.5, "terms": "acde"}),
    ("autodebias", {"weights_from": 2, "epochs": 6}),
    ("autodebias", {"weights_from": 1, "imputation": "sigmoid", "exposure_power": 0.5}),
    ("autodebias", {"solver": "sampled", "loss": "squared", "weights_from": 0, "meta_every": 1, "lam": 0.1}),
    ("autodebias", {"solver": "sampled", "loss": "bce", "meta_every": 3, "alpha": 0.5, "exposure_power": 0.5}),
    ("autodebias", {"solver": "sampled", "loss": "mse", "weights_from": 0, "meta_every": 100, "alpha": 0.0}),
    ("autodebias", {"backbone": "ncf", "hidden": (5, 3), "activation": "relu", "epochs": 2, "weights_from": 0}),
]


def fitted(data, name, params, device):
    return make(name, device=device, **(QUICK | params)).fit(data)


@pytest.mark.parametrize(("name", "params"), FITS, ids=lambda value: str(value))
def test_whole_fits_agree_with_the_cpu(name, params, data):
    found, expected = (fitted(data, name, params, device) for device in ("cuda", "cpu"))
    assert_close(found.weights_, expected.weights_)
    assert (found.teacher_ is None) == (expected.teacher_ is None)
    if found.teacher_ is not None:
        assert_close(found.teacher_, expected.teacher_)
    assert found.params_["device"] == "cuda" and list(found.history_.columns) == list(expected.history_.columns)
    assert len(found.history_) == len(expected.history_)
    for column in found.history_.columns.drop("seconds"):
        if found.history_[column].dtype.kind == "f":
            np.testing.assert_allclose(found.history_[column], expected.history_[column], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("backbone", "loss"), [("mf", "bce"), ("mf", "squared"), ("ncf", "mse")])
def test_sampled_autodebias_learns_phi_as_on_the_cpu(backbone, loss, data):
    """Adam's first moments show the size of the gradients, which its steps hide."""
    given = {"backbone": backbone, "loss": loss, "solver": "sampled", "weights_from": 0, "meta_every": 2, "alpha": 0.5}
    method = make("autodebias", **(QUICK | given | {"lam": 0.1})).resolve(data)
    found = device.Cuda().sampled_solver(method.sampled_problem(Fit(data, "auc")))
    expected = SampledSolver(method.sampled_problem(Fit(data, "auc")))
    for epoch in (1, 2):
        assert found.epoch(epoch) == pytest.approx(expected.epoch(epoch), rel=1e-5)
    for name, moment in expected.adam.first._asdict().items():
        on_device = found.phi.groups.get(name)
        own = getattr(found.phi.adam.first, name) if on_device is None else on_device[1].copy_to_host()
        assert np.abs(own - moment).max() <= 1e-4 * np.abs(moment).max(), name


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("dub", {"epochs": 1}),
        ("cause", {"norm": "frobenius", "epochs": 1}),
        ("base", {"backbone": "ncf", "epochs": 1}),
        ("dub-x", {"gamma": 0.02, "epochs": 1}),
        ("autodebias", {"epochs": 2, "weights_from": 0}),
        ("autodebias", {"epochs": 1, "weights_from": 0, "loss": "bce", "meta_every": 2}),
    ],
)
def test_bits_depend_neither_on_the_grid_nor_on_the_order_of_threads(name, params, data, monkeypatch):
    expected = fitted(data, name, params, "cuda").weights_.arrays()
    for number, (shape, order) in enumerate(zip(SHAPES, ORDERS, strict=True)):
        monkeypatch.setattr(_launch, "shape", shape)
        monkeypatch.setattr(_launch, "ROW_THREADS", shape.threads)
        monkeypatch.setattr(ncf, "TILE", 2 + number % 2)
        with scheduled(order, seed=number):
            again = fitted(data, name, params, "cuda").weights_.arrays()
        assert all(again[part].tobytes() == array.tobytes() for part, array in expected.items()), (shape, order)


def test_numba_s_own_schedule_gives_these_bits(data, monkeypatch):
    """Threads run at the same time, as in the simulator itself."""
    import sys

    from numba.cuda.simulator import kernel

    ours = kernel.BlockManager
    expected = fitted(data, "dub", {"epochs": 1}, "cuda").weights_.arrays()
    monkeypatch.setattr(kernel, "BlockManager", ours.__mro__[1])
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        again = fitted(data, "dub", {"epochs": 1}, "cuda").weights_.arrays()
    finally:
        sys.setswitchinterval(before)
    assert all(again[part].tobytes() == array.tobytes() for part, array in expected.items())


@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (12, 5)])
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("dub", {}),
        ("base", {"backbone": "ncf", "epochs": 1}),
        ("dub-x", {"gamma": 0.05}),
        ("autodebias", {"weights_from": 0}),
        ("autodebias", {"weights_from": 0, "loss": "bce"}),
    ],
)
def test_one_user_one_item_and_rows_without_pairs(name, params, shape):
    n_users, n_items = shape
    last = (max(n_users - 2, 1), max(n_items - 2, 1))  # the last rows have no pair
    pairs = [(u, i) for u in range(last[0]) for i in range(last[1])]
    parts = {"S_c": pairs[::2], "S_t": pairs[1::2] or pairs[:1], "S_va": [], "S_te": []}
    columns = {
        part: np.array([(u, i, (u + i) // 2 % 2) for u, i in of], int).reshape(-1, 3).T for part, of in parts.items()
    }
    data = Partition(
        {
            part: (users, items, labels.astype(float), np.ones(len(users)))
            for part, (users, items, labels) in columns.items()
        },
        shape,
    )
    found, expected = (fitted(data, name, params, d).weights_.score_rows(np.arange(n_users)) for d in ("cuda", "cpu"))
    # not the weights: the direction of factors that have almost vanished depends on rounding
    assert np.abs(found - expected).max() <= 2e-5 * (np.abs(expected).max() + 1e-3)


@pytest.mark.parametrize("threads", [1, 3])
def test_row_solves_reach_the_cpu_s_objective(threads, monkeypatch):
    monkeypatch.setattr(_launch, "ROW_THREADS", threads)
    problem, _, *sides = spread(0)
    P, Q = (side.astype(np.float32) for side in sides)
    floats = ("curvature", "pull", "teacher_P", "teacher_Q")
    problem = problem._replace(**{name: getattr(problem, name).astype(np.float32) for name in floats})
    solver, ready = als.CudaRowSolver(problem, Extended(P, Q)), cpu_als.prepare(problem)
    for _ in range(2):
        value = solver.step(1)
        cpu_als.sweep_rows(ready, P, Q)
        expected = cpu_als.objective(ready, P, Q)
        assert value == pytest.approx(expected, rel=1e-4)
    moved = Extended(np.empty_like(P), np.empty_like(Q))
    solver.fetch(moved)
    np.testing.assert_allclose(moved.P @ moved.Q.T, P @ Q.T, rtol=1e-3, atol=1e-4)


def test_selftest_compares_with_the_cpu(monkeypatch):
    from dubnb import selftest

    monkeypatch.setattr(selftest, "CASES", {"base": ("base", {"rank": 2, "batch_size": 64})})
    monkeypatch.setattr(selftest, "SIZES", {"tiny": (9, 7, 30), "small": (12, 9, 50)})
    result = selftest.run("cuda", "small", say=lambda line: None)
    assert [check.what for check in result.checks] == ["samples", "base", "base"] * 2
    assert all(check.passed for check in result.checks) and not result.skipped
    assert result.checks[2].ratio is None and result.checks[5].ratio[1] <= result.checks[5].ratio[2]
    monkeypatch.setattr(selftest, "TOLERANCE", -1.0)
    assert not selftest.run("cuda", "tiny", say=lambda line: None).checks[2].passed


# -- what is refused


@pytest.mark.parametrize("name", CPU_ONLY)
def test_methods_for_the_cpu_refuse_cuda_and_say_where_auto_trained(name, data):
    with pytest.raises(InputError, match=f"device='cuda' does not support {name}: use device='cpu'"):
        fitted(data, name, {}, "cuda")
    assert fitted(data, name, {}, "auto").params_["device"] == "cpu"


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("dub", {}),
        ("dub", {"loss": "mae"}),
        ("dub-x", {"gamma": 0.02}),
        ("autodebias", {}),
        ("autodebias", {"loss": "bce"}),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_before_training(name, params, data, monkeypatch):
    monkeypatch.setattr(
        type(_launch.cuda.current_context()), "get_memory_info", lambda self: (1000, 2000), raising=False
    )
    with pytest.raises(InputError) as caught:
        fitted(data, name, params, "cuda")
    message = str(caught.value)
    assert "\n" not in message and "GB of device memory" in message and "device='cpu'" in message


def test_the_memory_plan_is_printed_unless_quiet(data, capsys):
    make("base", device="cuda", **QUICK).fit(data, quiet=False)
    assert "device memory: " in capsys.readouterr().err


def test_arguments_of_other_types_than_compiled_are_refused():
    with pytest.raises(TypeError, match="row_sums, argument 1"):
        rows.row_sums(1, _launch.zeros((1, 3, 4)), _launch.zeros(1, np.float32))
    with pytest.raises(TypeError, match="2 arguments, not 1"):
        rows.row_sums(1, _launch.zeros((1, 3, 4)))
    transposed = _launch.zeros((2, 4, 3)).transpose()  # compiled kernels index rows that lie one after another
    with pytest.raises(TypeError, match="row_sums, argument 0"):
        rows.row_sums(1, transposed, _launch.zeros(1, np.float64))
    squares, out = _launch.zeros(1, np.float64), _launch.zeros(1)
    for n, strength in ((True, 0.5), (1.0, 0.5), (1, 1), (1, 0.1), (1, "x")):  # 0.1 is not a float32
        with pytest.raises(TypeError, match="pull_factor, argument"):
            rows.pull_factor(1, squares, n, strength, 0, out)


def test_numbers_that_jitted_functions_return_are_converted_to_the_declared_types(monkeypatch):
    """A jitted function returns float32 as float and uint64 as int, for which a GPU would compile another program."""
    given = []

    class Jitted:
        def __getitem__(self, grid):
            return lambda *args: given.append(args)

    monkeypatch.setattr(rows.adam_rows, "jitted", Jitted())
    table, own, gradients = _launch.zeros((1, 3, 4)), _launch.zeros(1, np.int32), _launch.zeros((1, 4))
    now = mf.Rates(float(np.float32(0.1)), 1000.0)
    rows.adam_rows(1, table, own, rows.RowGroups(own, own), np.int32(0), 1, gradients, float(np.float32(0.1)), 3, now)
    *_, start, _, _, lam, _, now = given[0]
    assert type(start) is int and type(lam) is type(now.step) is type(now.inverse) is np.float32
    assert isinstance(now, mf.Rates) and lam == now.step == np.float32(0.1)
    of_key = _launch.CudaKernel(lambda: None, (_launch.U8,))
    monkeypatch.setattr(of_key, "jitted", Jitted())
    for own_key in (3, 2**64 - 1, np.uint64(7)):
        of_key(1, own_key)
        assert type(given[-1][0]) is np.uint64 and given[-1][0] == own_key
    with pytest.raises(TypeError, match="argument 0: uint64 is declared"):
        of_key(1, np.int64(-1))
