"""Random bits of an item, as in `saccade.data.randomness`, in NumPy.

Bits are the SplitMix64 output at a counter, for a key made from the seed and the part. They do not
depend on NumPy's version, unlike the streams of its generators.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from saccade.data.keys import GOLDEN, STEPS, Purpose, make_key

__all__ = ["COUNTERS", "bits", "part_key", "uniforms"]

_WORD = (1 << 64) - 1
COUNTERS = 1 << 32
"""Random numbers of one item; the counter of number j of item i is i * COUNTERS + j."""


def part_key(seed: int, part: str) -> int:
    """The key of a part (`train` or `test`) of a generated set."""
    return make_key(seed, ("train", "test").index(part), Purpose.TASKS) & _WORD


def bits(key: int, counter: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """64 random bits for every counter."""
    with np.errstate(over="ignore"):
        z = counter * np.uint64(GOLDEN) + np.uint64(key)
        for shift, factor in STEPS:
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
        return z ^ (z >> np.uint64(31))


def uniforms(key: int, counter: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers in [0, 1) of 53 bits for every counter."""
    whole = bits(key, counter) >> np.uint64(11)
    return whole.astype(np.float64) * np.float64(2.0**-53)
