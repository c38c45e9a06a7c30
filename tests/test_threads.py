"""Training mf on several threads: the bits of one thread, and a note where threads are not to be had."""

import numpy as np
import pytest

import dubnb
from dubnb import _jit, losses
from dubnb import stream as streams
from dubnb._check import InputError
from dubnb.backbones import MF
from tests import naive

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning")  # uint64, JIT off


@pytest.fixture(scope="module")
def data():
    return naive.small_partition(9, 8, n_c=30, n_t=12, n_va=10, n_te=12)


def samples(n, n_users, n_items):
    """Popular users and items come many times in a batch; two terms, unequal weights."""
    rng = np.random.default_rng(0)
    stream = streams.empty(n)
    stream.users[:], stream.items[:] = n_users * rng.random(n) ** 2, n_items * rng.random(n) ** 3
    stream.targets[:], stream.weights[:] = rng.uniform(-0.5, 1.5, n), rng.uniform(0.2, 2.0, n)
    stream.terms[:] = rng.integers(0, 2, n)
    return stream


@pytest.mark.needs_jit
@pytest.mark.parametrize("rank,batch_size", [(5, 64), (50, 100), (70, 7), (3, 1)])
@pytest.mark.parametrize("loss", losses.TRAINABLE)
def test_epochs_have_the_bits_of_one_thread(rank, batch_size, loss):
    stream = samples(1003, 90, 40)
    weights = MF.new((90, 40), rank, 0, "c")
    trainers = [weights.trainer(batch_size, threads) for threads in (1, 2)]
    for _ in range(2):
        totals = [trainer.epoch(stream, 2, losses.LOSSES[loss], 1e-2, 1e-3) for trainer in trainers]
        np.testing.assert_array_equal(*totals)
    for name in ("users", "items", "b0"):
        np.testing.assert_array_equal(*(getattr(trainer.tables, name) for trainer in trainers))
    assert trainers[0].step == trainers[1].step


@pytest.mark.needs_jit
def test_the_number_of_threads_does_not_matter(tmp_path):
    if not _jit._quick_to_launch():
        pytest.skip("Numba's threads are neither OpenMP's nor TBB's here")
    data = dubnb.load_dataset("simulated", seed=0)
    models = [dubnb.DUB(rank=12, epochs=2).fit(data, threads=threads) for threads in (1, 2)]
    for number, model in enumerate(models):
        model.save(tmp_path / f"{number}.npz")
    assert (tmp_path / "0.npz").read_bytes() == (tmp_path / "1.npz").read_bytes()


def test_more_threads_than_numba_has_are_a_note(monkeypatch):
    monkeypatch.setattr(_jit, "_quick_to_launch", lambda: True)
    most = _jit.numba.config.NUMBA_NUM_THREADS
    with (
        pytest.warns(UserWarning, match=rf"threads={most + 1}: Numba has {most}"),
        _jit.threads_for_kernels(most + 1) as threads,
    ):
        assert threads == most


def test_without_a_quick_layer_training_takes_one_thread_and_says_so(monkeypatch, data):
    monkeypatch.setattr(_jit, "_quick_to_launch", lambda: False)
    with pytest.warns(UserWarning, match="neither OpenMP's nor TBB's"):
        model = dubnb.Base(rank=2, epochs=1).fit(data, threads=2)
    assert len(model.history_) == 1


def test_ncf_takes_one_thread_and_says_so(data):
    with pytest.warns(UserWarning, match="threads=2 is for backbone='mf': ncf takes 1"):
        dubnb.Unif(rank=2, epochs=1, backbone="ncf").fit(data, threads=2)


@pytest.mark.parametrize("threads", [0, 1.5, "2"])
def test_other_numbers_of_threads_are_refused(threads, data):
    with pytest.raises(InputError, match="threads"):
        dubnb.Base().fit(data, threads=threads)
