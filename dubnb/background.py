"""Python threads that take work off the thread that trains: one background thread, or a pool that shares out work.

Compiled kernels release Python's global lock, so they run at the same time. Threads change when work is done, never its
result. Samples depend on their keys alone. Each epoch is judged on a copy of its weights, in the order of the epochs.
Results of a pool are put together in the order of the pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba


class BackgroundThread(ThreadPoolExecutor):
    """One thread that works while the main thread trains; leaving the `with` block drops jobs that have not begun."""

    def __init__(self) -> None:
        super().__init__(1, "dubnb")

    def __exit__(self, *error: Any) -> None:
        self.shutdown(cancel_futures=True)


class WorkPool:
    """Threads that share out pieces of work; with threads=1 the calling thread does everything.

    There are at most as many threads as Numba is allowed, which is 1 in a sweep's worker.
    """

    def __init__(self, threads: int = 1):
        self.others = min(threads, numba.config.NUMBA_NUM_THREADS) - 1  # type: ignore[attr-defined]
        self.executor = ThreadPoolExecutor(self.others, "dubnb", _one_blas_thread) if self.others else None

    def each(self, job: Callable[[int], Any], count: int) -> list[Any]:
        """[job(0), .., job(count - 1)]; a thread that has finished a piece takes the next one."""
        results: list[Any] = [None] * count
        numbers = iter(range(count))

        def work() -> None:
            for number in numbers:
                results[number] = job(number)

        others = [] if self.executor is None else [self.executor.submit(work) for _ in range(self.others)]
        try:
            work()
        finally:
            for _ in numbers:  # after an error, no thread takes another piece
                pass
        for other in others:
            if not other.cancel():  # a thread that has not begun would find no piece left
                other.result()
        return results

    def begin(self, job: Callable[[], Any]) -> Callable[[], Any]:
        """Start a job on another thread; call the returned function for the result."""
        return job if self.executor is None else self.executor.submit(job).result


SERIAL = WorkPool()


def _one_blas_thread() -> None:
    """Limit BLAS in this thread: some BLAS libraries (with OpenMP) have a limit for each thread."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1, "blas")
