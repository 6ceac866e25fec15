"""Random numbers that are a pure function of (seed, epoch, index, stream).

There is no generator state to save or share. A number is the SplitMix64 output at counter
`256 * index + stream`, for a key made from the seed, the epoch and a purpose. So it does not depend
on the batch, the rank, the worker or the order of calls. Integer overflow wraps the same way on
every device, and the conversion to float32 is exact, so CPU and CUDA give identical numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.data.keys import GOLDEN, STEPS, Purpose, make_key, signed

__all__ = ["Purpose", "make_key", "permutation", "random_bits", "uniforms"]

STREAMS = 256


def random_bits(key: int | Tensor, counter: Tensor) -> Tensor:
    """Return 64 random bits for every counter, as int64 of the counter's shape."""
    z = counter * signed(GOLDEN) + key
    for shift, factor in STEPS:
        z = (z ^ _shift_right(z, shift)) * signed(factor)
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
    return _shift_right(bits, 40).to(torch.float32) * 2.0**-24


def permutation(key: int, size: int, device: torch.device | str = "cpu") -> Tensor:
    """Return a random permutation of `range(size)`, int64."""
    bits = random_bits(key, torch.arange(size, device=device))
    return torch.argsort(bits, stable=True)


def _shift_right(z: Tensor, by: int) -> Tensor:
    """Shift right with zeros (logical shift); torch's own shift keeps the sign."""
    return (z >> by) & ((1 << (64 - by)) - 1)
