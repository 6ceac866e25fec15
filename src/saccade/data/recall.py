"""Recall: pairs of a key and a value, then one of the keys; the class is its value.

A sequence has `length` symbols: `num_pairs` pairs at random places between fillers, then the query.
Without fillers (`length=None`) it is k1 v1 k2 v2 ... kn vn q. One pair in many fillers is the
needle in a haystack. The keys of a sequence differ, its values are drawn independently, and the
query is any of its keys.

Symbols: keys, then values, then 16 fillers if there are any.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from saccade.data.randomness import COUNTERS, numpy_bits

__all__ = ["FILLERS", "recall"]

FILLERS = 16


def recall(
    key: int,
    start: int,
    stop: int,
    *,
    num_pairs: int,
    num_keys: int,
    num_values: int,
    length: int,
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Items `start` to `stop` of a part: symbols (R, length) and the values of the queried keys."""
    index: NDArray[np.uint64] = np.arange(start, stop, dtype=np.uint64)[:, None] * np.uint64(
        COUNTERS
    )
    rows = np.arange(stop - start)[:, None]

    def draw(first: int, count: int) -> NDArray[np.uint64]:
        places = index + np.arange(first, first + count, dtype=np.uint64)
        return numpy_bits(key, places.astype(np.uint64))

    keys = np.argsort(draw(0, num_keys), axis=1)[:, :num_pairs]
    values = (draw(num_keys, num_pairs) % np.uint64(num_values)).astype(np.int64)
    asked = (draw(num_keys + num_pairs, 1) % np.uint64(num_pairs)).astype(np.int64)
    first = num_keys + num_pairs + 1
    free = length - 1 - 2 * num_pairs
    # Of `num_pairs + free` items, the pairs are those with the smallest numbers: a random choice.
    order = np.sort(np.argsort(draw(first, num_pairs + free), axis=1)[:, :num_pairs], axis=1)
    places = order + np.arange(num_pairs)  # a pair takes two symbols
    first += num_pairs + free
    noise = draw(first, length) % np.uint64(FILLERS)
    symbols = (num_keys + num_values + noise).astype(np.int16)
    symbols[rows, places] = keys
    symbols[rows, places + 1] = num_keys + values
    symbols[:, -1] = keys[rows, asked][:, 0]
    return symbols, values[rows, asked][:, 0]
