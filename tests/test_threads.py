"""Training mf on several threads: the bits of one thread, and a note where threads are not to be had."""

import threading
from typing import ClassVar

import numba
import numpy as np
import pytest

import dubnb
from dubnb import _jit, losses, train
from dubnb import stream as streams
from dubnb._check import InputError
from dubnb.backbones import MF, mf_threads
from dubnb.beside import Beside, Crew
from dubnb.methods import _method
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


class Forced(mf_threads.Pace):
    """Several threads, or one, whatever they take; `None`: in turns."""

    several: ClassVar[bool | None] = True
    turn = True

    def batches(self, whole):
        self.turn = not self.turn
        return 3, self.turn if self.several is None else self.several


def copied(stream):
    return streams.Stream(*(column.copy() for column in stream))


@pytest.mark.needs_jit
@pytest.mark.parametrize("several", [True, False, None])
@pytest.mark.parametrize("rank,batch_size", [(5, 64), (50, 100), (70, 7), (3, 1), (130, 50)])
@pytest.mark.parametrize("loss", losses.TRAINABLE)
def test_epochs_have_the_bits_of_one_thread(rank, batch_size, loss, several, monkeypatch):
    monkeypatch.setattr(mf_threads, "Pace", Forced)
    monkeypatch.setattr(Forced, "several", several)
    stream = samples(1003, 90, 40)
    weights = MF.new((90, 40), rank, 0, "c")
    with Beside(2, 1) as beside:
        trainers = weights.trainer(batch_size), weights.trainer(batch_size, beside)
        given = stream, beside.arrange(copied(stream))
        for _ in range(2):
            totals = [
                trainer.epoch(samples, 2, losses.LOSSES[loss], 1e-2, 1e-3)
                for trainer, samples in zip(trainers, given, strict=True)
            ]
            np.testing.assert_array_equal(*totals)
    for name in ("users", "items", "b0"):
        np.testing.assert_array_equal(*(getattr(trainer.tables, name) for trainer in trainers))
    assert trainers[0].step == trainers[1].step


def test_arranged_batches_hold_the_same_samples_user_by_user():
    stream = samples(230, 30, 12)
    arranged = mf_threads.Arranger((30, 12), 64)(copied(stream))
    for start in range(0, 230, 64):
        old, new = (streams.part(each, start, start + 64) for each in (stream, arranged.samples))
        met = {user: k for k, user in reversed(list(enumerate(old.users.tolist())))}  # where each user comes first
        order = sorted(range(len(old.users)), key=lambda j, met=met, old=old: (met[int(old.users[j])], j))
        for before, after in zip(old, new, strict=True):
            np.testing.assert_array_equal(before[order], after)
        slots, seen = arranged.item_slots[start : start + 64], list(dict.fromkeys(new.items.tolist()))
        assert slots.tolist() == [seen.index(item) for item in new.items]


@pytest.fixture
def shared(monkeypatch):
    """Two threads, however small the log."""
    if not _jit._quick_to_launch():
        pytest.skip("Numba's threads are neither OpenMP's nor TBB's here")
    monkeypatch.setattr(train, "WORTH_SHARING", 1)
    monkeypatch.setattr(mf_threads, "PIECE", 600)


def told(model, data, threads, **options):
    """A fit, and all that it tells in its course, in order."""
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
def test_the_number_of_threads_does_not_matter(method, params, shared, tmp_path):
    """Not to the weights, nor to the history, nor to what is told when."""
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
def test_an_epoch_that_is_not_needed_is_broken_off(shared, monkeypatch):
    """The judgement of the epoch before arrives between two pieces of it."""
    trained = []
    plain = mf_threads.Team._train

    def slow(self, several, own, *rest):
        trained.append(own.step)
        if self.beside.jobs:
            self.beside.jobs[-1].result()
        return plain(self, several, own, *rest)

    monkeypatch.setattr(mf_threads.Team, "_train", slow)
    data = dubnb.load_dataset("simulated", seed=0)
    model = dubnb.Base(rank=4, epochs=50, patience=1, lr=0.05).fit(data, threads=2)
    n = len(data.triplets("S_c").users)
    batches = -(-n // model.params_["batch_size"])
    assert len(model.history_) < 50
    assert max(trained) <= len(model.history_) * batches  # at most one piece of the next epoch


@pytest.mark.needs_jit
def test_divergence_is_told_of_its_own_epoch(shared):
    data = dubnb.load_dataset("simulated", seed=0)
    said = []
    for threads in (1, 2):
        with pytest.raises(dubnb.DivergenceError) as caught:
            dubnb.Base(rank=4, epochs=5, lr=1e30, loss="mse").fit(data, threads=threads)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_what_goes_wrong_beside_is_told(shared):
    with Beside(2, 3) as beside, pytest.raises(ZeroDivisionError):
        beside.submit(lambda: 1 / 0).result()


def test_small_epochs_take_one_thread(monkeypatch, data):
    monkeypatch.setattr(train, "Beside", None)  # would fail
    dubnb.Base(rank=2, epochs=1).fit(data, threads=2)


@pytest.mark.parametrize("params", [{}, {"teacher": "model", "shrink": 0.5}])
def test_row_solves_on_two_threads(params, data, tmp_path):
    for threads in (1, 2):
        model = dubnb.make("dub-x", rank=3, epochs=3, **params).fit(data, threads=threads)
        model.save(tmp_path / f"{threads}.npz")
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "2.npz").read_bytes()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_crew_does_every_piece_once(threads):
    crew, done = Crew(threads), []
    assert crew.each(lambda k: done.append(k) or 10 * k, 50) == [10 * k for k in range(50)]
    assert sorted(done) == list(range(50))
    assert crew.each(str, 0) == [] and crew.begin(lambda: 7)() == 7
    with pytest.raises(ZeroDivisionError):
        crew.each(lambda k: 1 / (k - 20), 50)


def test_a_crew_is_no_larger_than_numba_s(monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
    assert Crew(1000).others == 1 and Crew(1).others == 0


def test_after_an_error_a_crew_does_nothing_more(monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
    begun, wait = [], threading.Event()

    def piece(number):
        begun.append(number)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        wait.wait(10)

    crew = Crew(2)
    with pytest.raises(KeyboardInterrupt):
        crew.each(piece, 40)
    wait.set()
    crew.pool.shutdown()
    assert len(begun) <= 2


def test_a_crew_does_not_wait_for_who_has_not_begun(monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
    crew, wait = Crew(2), threading.Event()
    result = crew.begin(lambda: wait.wait(60))
    assert crew.each(lambda number: number, 5) == [0, 1, 2, 3, 4]  # while the other thread is busy
    wait.set()
    assert result()


def test_callbacks_are_no_part_of_an_epoch_s_seconds():
    class Told:
        def __init__(self):
            self.seconds = []

        def values(self, trained, scorer):
            return (True, 0.0, 0.0)

        def settle(self, trained, *rest):
            self.seconds.append(trained.seconds)
            clock[0] += 5.0  # a slow callback

    clock, judge = [0.0], Told()
    with pytest.MonkeyPatch.context() as patch, Beside(2, 3) as beside:
        patch.setattr(train.time, "perf_counter", lambda: clock[0])
        later = train.Later(judge, beside)
        for epoch in (1, 2):
            if later.waiting is not None:
                later.waiting[2].result()
            beside.between()
            clock[0] += 1.0
            later(train.Trained(epoch, {}, 1.0 + 5.0 * (epoch == 2)), None, lambda: None)
        later.finish()
    assert judge.seconds == [1.0, 1.0]


def test_a_gpu_takes_one_thread():
    assert _method._checked_threads(2, "mf", "cuda") == 1 and _method._checked_threads(2, "mf", "cpu") == 2


# ---- which is faster


def paced(times, share=lambda: 1.0):
    """The pieces that a Pace chooses where a sample takes times(several) seconds, and the thread has a share of its
    core."""
    pace, found = mf_threads.Pace(), []
    for _ in range(200):
        batches, several = pace.batches(32)
        found.append((batches, several))
        pace.took(several, times(several), share())
    return found


def test_on_a_busy_machine_several_threads_are_not_even_tried():
    assert set(paced(lambda several: 1.0, lambda: 0.6)) == {(32, False)}
    shares = iter([0.5] * 20)
    assert paced(lambda several: 0.6 if several else 1.0, lambda: next(shares, 0.99))[-1] == (32, True)


def test_a_lucky_piece_does_not_make_bad_ones_frequent():
    """In turns five times as slow and faster: the pauses stay."""
    luck = iter([5.0, 0.9] * 200)
    found = paced(lambda several: next(luck) if several else 1.0)
    assert sum(batches for batches, several in found if several) < 0.05 * sum(batches for batches, _ in found)


def test_several_threads_train_where_they_are_faster():
    found = paced(lambda several: 0.6 if several else 1.0)
    assert found[:4] == [(32, False), (2, True), (6, True), (32, True)]
    assert set(found[4:]) == {(32, True)}


def test_several_threads_may_begin_slowly():
    slow = iter([3.0, 1.5])
    found = paced(lambda several: next(slow, 0.7) if several else 1.0)
    assert set(found[3:]) == {(32, True)}


@pytest.mark.parametrize("slower, most", [(20.0, 0.05), (3.0, 0.05), (1.2, 0.05), (1.01, 0.05)])
def test_where_several_threads_lose_they_cost_little(slower, most):
    """Over 200 pieces, which are 20 epochs of a log like Yahoo! R3."""
    found = paced(lambda several: slower if several else 1.0)
    took = sum(batches * (slower if several else 1.0) for batches, several in found)
    alone = sum(batches for batches, _ in found)
    assert took < (1 + most) * alone


def test_several_threads_get_another_chance():
    calls = iter(range(10**6))
    found = paced(lambda several: (5.0 if next(calls) < 2 else 0.5) if several else 1.0)
    assert found[-1] == (32, True)


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
    monkeypatch.setattr(train, "WORTH_SHARING", 1)
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
