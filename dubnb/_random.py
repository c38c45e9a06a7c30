"""Keyed random numbers: every random stream derives from the seed and a key such as ("refine", "d", epoch).

Streams are named and never drawn one after another. Results therefore do not depend on the order of calls, on the
number of workers or on interruptions.
"""

import hashlib
import math

import numpy as np

from dubnb._jit import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53
_LN_2 = np.int64(762123384786)  # in units of 2^-40, like every logarithm before it is rounded
_CENTRES = 1.0 + (np.arange(256) + 0.5) / 256
_MINUS_LOG = np.rint(-np.log(_CENTRES / 2) * 2.0**40).astype(np.int64)
_INVERSE = np.rint(2.0**34 / _CENTRES).astype(np.int64)


def key(seed: int, *names: object) -> np.uint64:
    """The 64-bit key of the stream with these names under `seed`."""
    text = "/".join(str(part) for part in (int(seed), *names))
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


def generator(seed: int, *names: object) -> np.random.Generator:
    """A NumPy generator for the stream with these names under `seed`."""
    return np.random.Generator(np.random.Philox(key=int(key(seed, *names))))


@njit
def mix(key, counter):
    """Number `counter` of the 64-bit stream `key` (splitmix64), a pure function: any order of evaluation will do."""
    z = key + np.uint64(counter) * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def mix_arrays(keys: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """`mix` of arrays (uint64), without the JIT."""
    z = keys + counters * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    mixed: np.ndarray = z ^ (z >> np.uint64(31))
    return mixed


@njit
def uniform(key, counter):
    """Number `counter` of the stream `key`, uniform in [0, 1) with 53 bits."""
    return np.float64(mix(key, counter) >> np.uint64(11)) * _TO_UNIT


@njit
def exponential(key, counter):
    """Number `counter` of the stream `key`, standard exponential: -ln(1 - u) as a whole number of units of 2^-30.

    It is computed in integers, because the logarithms of two libraries may differ in the last bit. A sum of integers
    does not depend on the order either, so a parallel sum on another device is the same.

    Write 1 - u = f 2^x with 1/2 <= f < 1, and let c be the centre of the 256th of that range in which f lies. Then
    -ln(1 - u) = -x ln 2 - ln c - ln(1 + d) with d = f / c - 1, and ln(1 + d) = d - d^2/2 + d^3/3 to 2^-38.
    """
    rest = (np.int64(1) << np.int64(53)) - np.int64(mix(key, counter) >> np.uint64(11))
    fraction, power = math.frexp(np.float64(rest))
    mantissa = np.int64(fraction * 2.0**53)
    part = (mantissa >> np.int64(44)) - np.int64(256)
    offset = (mantissa & np.int64((1 << 44) - 1)) - np.int64(1 << 43)
    d = ((offset >> np.int64(16)) * _INVERSE[part]) >> np.int64(30)
    square = (d * d) >> np.int64(40)
    cube = (square * d) >> np.int64(40)
    log = d - (square >> np.int64(1)) + ((cube * np.int64(21845)) >> np.int64(16))
    total = np.int64(53 - power) * _LN_2 + _MINUS_LOG[part] - log
    rounded = total + np.int64(512)
    return rounded >> np.int64(10) if rounded > 0 else np.int64(0)
