"""Random numbers that are a pure function of (seed, epoch, index, stream).

There is no generator state to save or share. A number is the SplitMix64 output at a counter, for a
key made from the seed, the epoch and a purpose. So it does not depend on the batch, the rank, the
worker or the order of calls. Integer overflow wraps the same way on every device, and the
conversion to float32 is exact, so CPU and CUDA give identical numbers. They do not depend on the
version of NumPy or torch either, unlike the streams of their generators.

`random_bits`, `uniforms` and `permutation` return tensors, the functions with `numpy_` arrays.
Importing this module does not import torch.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "COUNTERS",
    "STREAMS",
    "Purpose",
    "make_key",
    "numpy_bits",
    "numpy_permutation",
    "numpy_uniforms",
    "part_key",
    "permutation",
    "random_bits",
    "uniforms",
]

STREAMS = 256
"""Random numbers of one image; the counter of stream j of image i is i * STREAMS + j."""
COUNTERS = 1 << 32
"""Random numbers of one generated item; the counter of number j of item i is i * COUNTERS + j."""
_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


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
    z = 0
    for word in (seed, epoch, int(purpose)):
        z = (z + word + _GOLDEN) & _WORD
        for shift, factor in _STEPS:
            z = ((z ^ (z >> shift)) * factor) & _WORD
        z ^= z >> 31
    return _signed(z)


def part_key(seed: int, part: str) -> int:
    """The key of a part (`train` or `test`) of a generated set, as an unsigned integer."""
    return make_key(seed, ("train", "test").index(part), Purpose.TASKS) & _WORD


def random_bits(key: int | Tensor, counter: Tensor) -> Tensor:
    """Return 64 random bits for every counter, as int64 of the counter's shape."""
    z = counter * _signed(_GOLDEN) + key
    for shift, factor in _STEPS:
        z = (z ^ _shift_right(z, shift)) * _signed(factor)
    return z ^ _shift_right(z, 31)


def uniforms(key: int | Tensor, index: Tensor, streams: Tensor) -> Tensor:
    """Return numbers in [0, 1) of 24 bits: one row per stream, one column per index.

    Args:
        key: From `make_key`; as a 0-d int64 tensor, torch.compile does not treat it as a constant.
        index: int64 (R,).
        streams: int64 (S,), each below 256.

    Returns:
        float32 (S, R).
    """
    bits = random_bits(key, index * STREAMS + streams[:, None])
    return _shift_right(bits, 40).float() * 2.0**-24


def permutation(key: int, size: int, device: torch.device | str = "cpu") -> Tensor:
    """Return a random permutation of `range(size)`, int64."""
    import torch

    return torch.argsort(random_bits(key, torch.arange(size, device=device)), stable=True)


def numpy_bits(key: int, counter: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The `random_bits` of every counter, uint64."""
    with np.errstate(over="ignore"):
        z = counter * np.uint64(_GOLDEN) + np.uint64(key & _WORD)
        for shift, factor in _STEPS:
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
        return z ^ (z >> np.uint64(31))


def numpy_uniforms(key: int, counter: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers in [0, 1) of 53 bits for every counter."""
    return (numpy_bits(key, counter) >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)


def numpy_permutation(key: int, size: int) -> NDArray[np.int64]:
    """Return the `permutation` of `range(size)`."""
    bits = numpy_bits(key, np.arange(size, dtype=np.uint64))
    return np.argsort(bits.view(np.int64), kind="stable")


def _signed(word: int) -> int:
    """The signed integer with the same 64 bits."""
    return word - (1 << 64) if word >> 63 else word


def _shift_right(z: Tensor, by: int) -> Tensor:
    """Shift right with zeros (logical shift); torch's own shift keeps the sign."""
    return (z >> by) & ((1 << (64 - by)) - 1)
