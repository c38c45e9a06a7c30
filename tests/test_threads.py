"""fit(threads=2): the background thread and the pool for row solves do not change the result."""

import threading

import numba
import numpy as np
import pytest

import dubnb
from dubnb import train
from dubnb._check import InputError
from dubnb.background import BackgroundThread, WorkPool
from dubnb.methods import _method
from tests import naive

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning")  # uint64, JIT off


@pytest.fixture(scope="module")
def data():
    return naive.small_partition(9, 8, n_c=30, n_t=12, n_va=10, n_te=12)


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


def test_on_a_gpu_threads_has_no_effect():
    assert _method._checked_threads(2, "mf", "cuda") == 1 and _method._checked_threads(2, "mf", "cpu") == 2


def test_ncf_uses_one_thread_and_warns(data):
    with pytest.warns(UserWarning, match="threads=2 is for backbone='mf': ncf takes 1"):
        dubnb.Unif(rank=2, epochs=1, backbone="ncf").fit(data, threads=2)


@pytest.mark.parametrize("threads", [0, 1.5, "2"])
def test_invalid_numbers_of_threads_are_refused(threads, data):
    with pytest.raises(InputError, match="threads"):
        dubnb.Base().fit(data, threads=threads)
