"""fit(threads=2): the background thread and the pool for row solves do not change the result."""

import threading

import numba
import numpy as np
import pytest
import threadpoolctl

import dubnb
from dubnb import train
from dubnb._check import InputError
from dubnb._jit import one_blas_thread
from dubnb.backbones import MF
from dubnb.background import BackgroundThread, WorkPool
from dubnb.methods import _serving

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning")  # uint64, JIT off


@pytest.fixture(scope="module")
def data(small_log):
    return small_log


@pytest.fixture
def shared(monkeypatch):
    """Use a background thread for epochs of any size."""
    monkeypatch.setattr(train, "WORTH_SHARING", 1)


def told(model, data, threads, **options):
    """(everything that a fit reports to `watch` and `callback`, in order; its history)."""
    found = []

    def watch(stage, epoch, scorer):
        found.append((stage, epoch, scorer.score_pairs(np.arange(5), np.arange(5)).tolist()))

    def callback(row):
        found.append({name: str(value) for name, value in row.items() if name != "seconds"})

    model.fit(data, threads=threads, watch=watch, callback=callback, **options)
    return found, model.history_.drop(columns="seconds")


@pytest.mark.needs_jit
@pytest.mark.parametrize(
    "method, params",
    [
        ("dub", {"epochs": 2}),
        ("dub", {"epochs": 40, "patience": 2}),
        ("dub", {"epochs": 12, "patience": 2, "monitor": "ndcg"}),
        ("base", {"epochs": 25, "patience": 1, "lr": 0.02}),
        ("base", {"epochs": 1}),
    ],
)
def test_the_result_does_not_depend_on_the_number_of_threads(method, params, shared, tmp_path):
    """Weights, history and the order of callbacks are the same."""
    data = dubnb.load_dataset("simulated", seed=0)
    models = [dubnb.make(method, rank=12, **params) for _ in range(2)]
    (first, history), (second, other) = (
        told(model, data, threads) for model, threads in zip(models, (1, 2), strict=True)
    )
    assert first == second and history.equals(other)
    for number, model in enumerate(models):
        model.save(tmp_path / f"{number}.npz")
    assert (tmp_path / "0.npz").read_bytes() == (tmp_path / "1.npz").read_bytes()


@pytest.mark.needs_jit
def test_refit_and_no_early_stopping_on_two_threads(shared):
    data = dubnb.load_dataset("simulated", seed=0)
    models = [dubnb.Base(rank=4, epochs=6, patience=1).fit(data, threads=threads, refit=True) for threads in (1, 2)]
    np.testing.assert_array_equal(*(model.weights_.users for model in models))
    assert len(models[0].history_) == len(models[1].history_)


@pytest.mark.needs_jit
def test_divergence_names_the_epoch_that_diverged(shared):
    data = dubnb.load_dataset("simulated", seed=0)
    said = []
    for threads in (1, 2):
        with pytest.raises(dubnb.DivergenceError) as caught:
            dubnb.Base(rank=4, epochs=5, lr=1e30, loss="mse").fit(data, threads=threads)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_an_error_in_the_background_is_raised(shared):
    with BackgroundThread() as background, pytest.raises(ZeroDivisionError):
        background.submit(lambda: 1 / 0).result()


def test_small_epochs_use_no_background_thread(monkeypatch, data):
    monkeypatch.setattr(train, "BackgroundThread", None)  # calling it would fail
    dubnb.Base(rank=2, epochs=1).fit(data, threads=2)


@pytest.mark.parametrize("params", [{}, {"teacher": "model", "shrink": 0.5}])
def test_row_solves_on_two_threads(params, data, tmp_path):
    for threads in (1, 2):
        model = dubnb.make("dub-x", rank=3, epochs=3, **params).fit(data, threads=threads)
        model.save(tmp_path / f"{threads}.npz")
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "2.npz").read_bytes()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_work_pool_does_every_piece_once(threads):
    pool, done = WorkPool(threads), []
    assert pool.each(lambda k: done.append(k) or 10 * k, 50) == [10 * k for k in range(50)]
    assert sorted(done) == list(range(50))
    assert pool.each(str, 0) == [] and pool.begin(lambda: 7)() == 7
    with pytest.raises(ZeroDivisionError):
        pool.each(lambda k: 1 / (k - 20), 50)


def test_a_work_pool_has_at_most_numbas_number_of_threads(monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
    assert WorkPool(1000).others == 1 and WorkPool(1).others == 0


def test_after_an_error_a_work_pool_begins_no_piece(monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
    begun, wait = [], threading.Event()

    def piece(number):
        begun.append(number)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        wait.wait(10)

    pool = WorkPool(2)
    with pytest.raises(KeyboardInterrupt):
        pool.each(piece, 40)
    wait.set()
    pool.executor.shutdown()
    assert len(begun) <= 2


def test_a_work_pool_does_not_wait_for_a_thread_that_has_not_begun(monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
    pool, wait = WorkPool(2), threading.Event()
    result = pool.begin(lambda: wait.wait(60))
    assert pool.each(lambda number: number, 5) == [0, 1, 2, 3, 4]  # while the other thread is busy
    wait.set()
    assert result()


@pytest.mark.parametrize("threads", [0, 1.5, "2"])
def test_invalid_numbers_of_threads_are_refused(threads, data):
    with pytest.raises(InputError, match="threads"):
        dubnb.Base().fit(data, threads=threads)


def blas_threads():
    """The largest number of threads of a loaded BLAS."""
    return max(library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas")


@pytest.mark.skipif(blas_threads() < 2, reason="this BLAS has one thread anyway")
def test_blocks_of_one_blas_thread_may_overlap_in_any_order():
    """A block that ends does not lift the limit of another one, and the last one restores it."""
    before = blas_threads()
    first, second, found = one_blas_thread(), one_blas_thread(), []
    first.__enter__()
    other = threading.Thread(target=lambda: (second.__enter__(), first.__exit__(None, None, None)))
    other.start()
    other.join()
    found.append(blas_threads())
    second.__exit__(None, None, None)
    found.append(blas_threads())
    assert found == [1, before]
    with pytest.raises(KeyError), one_blas_thread():
        raise KeyError
    assert blas_threads() == before


@pytest.mark.skipif(blas_threads() < 2, reason="this BLAS has one thread anyway")
def test_calls_for_one_user_run_on_one_blas_thread(data, monkeypatch):
    model = dubnb.Base(rank=3, epochs=1).fit(data)
    before, inside = blas_threads(), []
    for name in ("score_rows", "score_pairs"):
        own = getattr(MF, name)
        monkeypatch.setattr(MF, name, lambda *args, own=own: inside.append(blas_threads()) or own(*args))
    solve = np.linalg.solve
    monkeypatch.setattr(np.linalg, "solve", lambda *args: inside.append(blas_threads()) or solve(*args))
    top_k = _serving.top_k
    monkeypatch.setattr(_serving, "top_k", lambda *args: inside.append(blas_threads()) or top_k(*args))

    def serve():
        model.recommend([0], k=2)
        new = model.fold_in([0, 1])
        new.recommend(2), new.decision_function([0])
        model.predict([0], [1]), model.similar_items([0], 2)

    client = threading.Thread(target=serve)  # a server's threads are not the one that loaded the model
    client.start()
    client.join()
    assert len(inside) >= 7 and set(inside) == {1} and blas_threads() == before
