"""A thread for what can be done beside the training: drawing the next epoch's samples, judging the last epoch.

It changes when work is done, never what comes of it: samples depend on their keys alone, an epoch is judged on a copy
of its weights, and judgements are passed in the order of the epochs.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self


class Enough(Exception):
    """The epochs before this one were enough: what is being trained will not be needed."""


class Beside:
    """One thread beside a training on `threads`, which ends after `last` epochs at the latest."""

    def __init__(self, threads: int, last: int):
        self.threads, self.last = threads, last
        self.pool = ThreadPoolExecutor(1, "dubnb")
        self.jobs: list[Future[Any]] = []
        self.arrange: Callable[[Any], Any] = _as_they_are  # makes drawn samples what the trainer takes
        self.between: Callable[[], None] = _nothing  # called now and then in the course of an epoch

    def submit(self, job: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Let the thread do a job, after those that it has."""
        self.jobs.append(self.pool.submit(job, *arguments))
        return self.jobs[-1]

    def in_need(self) -> bool:
        """Whether it has work to do, and would share a core with the training if that took all its threads."""
        self.jobs = [job for job in self.jobs if not job.done()]
        return bool(self.jobs) and self.threads == 2

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.pool.shutdown(cancel_futures=True)
        self.jobs, self.arrange, self.between = [], _as_they_are, _nothing  # nothing large hangs on what has ended


def _as_they_are(samples: Any) -> Any:
    return samples


def _nothing() -> None:
    pass
