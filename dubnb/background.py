"""Threads of Python for kernels that need no lock of Python's: one beside the training, or several that share work.

They change when work is done, never what comes of it: samples depend on their keys alone, an epoch is judged on a copy
of its weights, judgements are passed in the order of the epochs, and pieces of work are put together in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba


class TrainingOver(Exception):
    """The epochs before this one were enough: what is being trained will not be needed."""


class BackgroundThread(ThreadPoolExecutor):
    """One thread that works while the main thread trains; jobs that wait when its block ends are dropped."""

    def __init__(self) -> None:
        super().__init__(1, "dubnb")

    def __exit__(self, *error: Any) -> None:
        self.shutdown(cancel_futures=True)


class WorkPool:
    """Threads that share out pieces of work; with one thread everything is done by whoever asks for it.

    There are no more of them than Numba has, which is 1 in a sweep's worker.
    """

    def __init__(self, threads: int = 1):
        self.others = min(threads, numba.config.NUMBA_NUM_THREADS) - 1  # type: ignore[attr-defined]
        self.executor = ThreadPoolExecutor(self.others, "dubnb", _one_blas_thread) if self.others else None

    def each(self, job: Callable[[int], Any], count: int) -> list[Any]:
        """[job(0), .., job(count - 1)]; whoever is done takes the next one."""
        results: list[Any] = [None] * count
        numbers = iter(range(count))

        def work() -> None:
            for number in numbers:
                results[number] = job(number)

        others = [] if self.executor is None else [self.executor.submit(work) for _ in range(self.others)]
        try:
            work()
        finally:
            for _ in numbers:  # after an error nobody takes another piece
                pass
        for other in others:
            if not other.cancel():  # one that has not begun would find nothing left
                other.result()
        return results

    def begin(self, job: Callable[[], Any]) -> Callable[[], Any]:
        """Have another thread begin a job; call what is returned for its result."""
        return job if self.executor is None else self.executor.submit(job).result


SERIAL = WorkPool()


def _one_blas_thread() -> None:
    """Some BLAS have a limit for each thread (OpenMP's): this one's own. A fit gives back what was there before."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1, "blas")
