"""Requests a second of 8 client threads on one model, with one BLAS thread for each call and with one for each core.

A client calls the model itself, without HTTP. The contenders take turns, and medians count. The peer is the same call
without the limit.
"""

import contextlib
import os
import threading
import time
from unittest import mock

import numpy as np
from threadpoolctl import threadpool_limits

import dubnb
from bench import _logs
from bench._timing import at_least, figure
from dubnb import _jit

CLIENTS, ROUNDS = 8, 7
OURS, PEER = "one BLAS thread for each call", "a BLAS thread for each core"


def run(quick=False):
    model = dubnb.make("dub-x", rank=50, epochs=2).fit(_logs.partition(scale=10 if quick else 1))
    histories = np.random.default_rng(0).permuted(np.tile(np.arange(len(model.item_ids_)), (64, 1)), axis=1)[:, :5]
    calls = {
        "recommend": lambda n: model.recommend([n % len(model.user_ids_)]),
        "fold_in and recommend": lambda n: model.fold_in(histories[n % 64]).recommend(),
        "similar_items": lambda n: model.similar_items([n % len(model.item_ids_)]),
        "predict": lambda n: model.predict([n % len(model.user_ids_)], [n % len(model.item_ids_)]),
    }
    with threadpool_limits(os.cpu_count()):
        _overhead()
        for name, call in calls.items():
            goal = at_least(5) if name.startswith("fold_in") else None
            _compare(f"Requests a second, {CLIENTS} clients, {name}", call, 0.2 if quick else 1.5, goal)


def _compare(title, call, seconds, goal):
    found = {OURS: [], PEER: []}
    for _ in range(ROUNDS):
        for contender, limit in ((OURS, contextlib.nullcontext()), (PEER, _without_limit())):
            with limit:
                found[contender].append(_clients(call, seconds))
    for contender, rounds in found.items():
        rate, late = np.median(rounds, axis=0)
        figure(title, contender, rate, "a second")
        figure(title, f"{contender}, p99", 1e3 * late, "ms")
    ratios = [ours / peer for (ours, _), (peer, _) in zip(found[OURS], found[PEER], strict=True)]
    figure(title, "ours / peer, median of rounds", float(np.median(ratios)), "x", goal)


def _without_limit():
    """The calls as they would be without `one_blas_thread`."""
    nothing = {"enter": lambda self: None, "leave": lambda self: None}
    return mock.patch.multiple(_jit._BlasLimit, **nothing)


def _clients(call, seconds):
    """(requests a second, the 99th percentile of their seconds)."""
    taken, end = [], time.perf_counter() + seconds

    def client(number):
        while time.perf_counter() < end:
            start = time.perf_counter()
            call(number)
            taken.append(time.perf_counter() - start)
            number += CLIENTS

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(taken) / (time.perf_counter() - begun), float(np.quantile(taken, 0.99))


def _overhead(times=2000):
    """Microseconds of an empty block, next to threadpoolctl's own."""
    for name, limit in ((OURS, _jit.one_blas_thread), ("threadpool_limits", lambda: threadpool_limits(1, "blas"))):
        start = time.perf_counter()
        for _ in range(times):
            with limit():
                pass
        figure("An empty block", name, 1e6 * (time.perf_counter() - start) / times, "us")


if __name__ == "__main__":
    run()
