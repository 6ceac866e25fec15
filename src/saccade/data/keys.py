"""Keys of the counter-based random numbers, and permutations in NumPy; see `randomness.py`."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["GOLDEN", "STEPS", "Purpose", "make_key", "permuted", "signed"]

_WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


class Purpose(IntEnum):
    """The use of a key; keys of different purposes are independent."""

    ORDER = 1
    AUGMENT = 2
    SPLIT = 3
    SHAPES = 4
    TASKS = 5
    BUCKETS = 6
    TARGETS = 7


def make_key(seed: int, epoch: int, purpose: Purpose) -> int:
    """Mix a seed, an epoch and a purpose into one 64-bit key, as a signed integer."""
    key = 0
    for word in (seed, epoch, int(purpose)):
        key = _mix_int((key + word + GOLDEN) & _WORD)
    return signed(key)


def permuted(key: int, size: int) -> NDArray[np.int64]:
    """Return a random permutation of `range(size)`: that of `randomness.permutation`."""
    z = np.arange(size, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(key & _WORD)
    for shift, factor in STEPS:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    bits = (z ^ (z >> np.uint64(31))).view(np.int64)
    return np.argsort(bits, kind="stable")


def signed(word: int) -> int:
    """The signed integer with the same 64 bits."""
    return word - (1 << 64) if word >> 63 else word


def _mix_int(z: int) -> int:
    for shift, factor in STEPS:
        z = ((z ^ (z >> shift)) * factor) & _WORD
    return z ^ (z >> 31)
