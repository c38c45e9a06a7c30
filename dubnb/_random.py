"""One door for randomness: everything derives from one seed and a key such as ("refine", "d", epoch).

Sub-streams are named, never drawn in turn, so that a result does not depend on the order of calls, on the number of
workers or on an interruption.
"""

import hashlib

import numpy as np

from dubnb._jit import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53


def key(seed, *names):
    """A 64-bit key for the stream that `names` name under `seed`."""
    text = "/".join(str(part) for part in (int(seed), *names))
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


def generator(seed, *names):
    """A NumPy generator for the stream that `names` name under `seed`."""
    return np.random.Generator(np.random.Philox(key=int(key(seed, *names))))


@njit
def mix(key, counter):
    """Number `counter` of the 64-bit stream `key` (splitmix64): a pure function, so any order of evaluation will do."""
    z = key + np.uint64(counter) * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@njit
def uniform(key, counter):
    """Number `counter` of the stream `key`, uniform in [0, 1) with 53 bits."""
    return np.float64(mix(key, counter) >> np.uint64(11)) * _TO_UNIT
