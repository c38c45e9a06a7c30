"""Numba's CUDA simulator with a chosen schedule: threads run one after the other, from barrier to barrier.

Numba's simulator runs all threads of a block at once and polls each of them, which takes minutes for a whole fit. Here
one thread runs until it waits or ends, then the next one. A schedule is therefore an order of threads. Faults such as a
missing barrier, or two threads that write to one place, give other bits under another order.
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
    """A simulated thread that runs only in its turn."""

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
    """Run blocks, and the threads of a block between two barriers, in this order inside the block."""
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
        """The simulator's NumPy, with blocks in the chosen order."""

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
