"""Numba's CUDA simulator with a schedule of our choice: threads run one after the other, from barrier to barrier.

The simulator proper lets all threads of a block run at once and asks each in turn whether it waits: exact, and so slow
that whole fits take minutes. Here a thread runs alone until it waits or ends, then the next; so a schedule is an order,
and what depends on it (a missing barrier, two threads or two blocks that write to one place) gives other bits under
another order.
"""

import contextlib
import threading

import numpy as np
from numba.cuda.simulator import kernel as simulator

ORDERS = ("forward", "backward", "shuffled")


def ordered(items, order, random):
    """`items` in the order of a schedule."""
    items = list(items)
    if order == "backward":
        items.reverse()
    elif order == "shuffled":
        random.shuffle(items)
    return items


class _Thread(simulator.BlockThread):
    """A simulated thread that runs only when it is its turn."""

    def __init__(self, *args):
        super().__init__(*args)
        self.turn, self.done = threading.Semaphore(0), False

    def run(self):
        self.turn.acquire()
        super().run()
        self.done = True
        self._manager.back.release()

    def syncthreads(self):
        self._manager.back.release()
        self.turn.acquire()


@contextlib.contextmanager
def scheduled(order="forward", seed=0):
    """Within: blocks, and the threads of a block between two barriers, take turns in this order."""
    random = np.random.default_rng(seed)

    class InTurn(simulator.BlockManager):
        def run(self, grid_point, *args):
            self.back = threading.Semaphore(0)
            points = np.ndindex(*self._block_dim)
            live = [_Thread(lambda: self._f(*args), self, grid_point, point, self._debug) for point in points]
            for thread in live:
                thread.start()
            while live:
                for thread in ordered(live, order, random):
                    thread.turn.release()
                    self.back.acquire()
                    if thread.exception:
                        raise thread.exception[0].with_traceback(thread.exception[1])
                live = [thread for thread in live if not thread.done]

    class Arrays:
        """NumPy as the simulator sees it, its blocks in another order."""

        def __getattr__(self, name):
            return getattr(np, name)

        def ndindex(self, *shape):
            return ordered(np.ndindex(*shape), order, random)

    before = simulator.BlockManager, simulator.np
    simulator.BlockManager, simulator.np = InTurn, Arrays()
    try:
        yield
    finally:
        simulator.BlockManager, simulator.np = before
