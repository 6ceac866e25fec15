"""How the torch paths cut a problem into chunks whose temporaries stay small.

A chunk is some samples (all their heads) and some tokens. On the CPU a chunk fits the cache; on
other devices it is large enough to keep them busy.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["chunk_sizes", "chunk_slices", "feature_major"]

_CPU_BYTES = 8 << 20
_BYTES_ELSEWHERE = 256 << 20
_MIN_TOKENS = 32


def chunk_sizes(
    batch: int,
    tokens: int,
    bytes_per_token: int,
    device: torch.device,
    *,
    cpu_bytes: int = _CPU_BYTES,
) -> tuple[int, int]:
    """(samples, tokens) of a chunk, where one token of one sample costs `bytes_per_token`."""
    budget = cpu_bytes if device.type == "cpu" else _BYTES_ELSEWHERE
    length = max(_MIN_TOKENS, budget // bytes_per_token // _MIN_TOKENS * _MIN_TOKENS)
    length = min(tokens, length)
    samples = max(1, min(batch, budget // (bytes_per_token * max(length, 1))))
    return samples, max(length, 1)


def chunk_slices(total: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most `size` that cover `total`."""
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def feature_major(
    x: Tensor, samples: slice, tokens: slice, dtype: torch.dtype, key_mask: Tensor | None = None
) -> Tensor:
    """One chunk of (B, H, N, D) as (samples * H, D, tokens), masked keys set to zero."""
    chunk = x[samples, :, tokens]
    if key_mask is not None:
        chunk = chunk.masked_fill(~key_mask[samples, None, tokens, None], 0)
    return chunk.mT.to(dtype).reshape(-1, x.shape[-1], chunk.shape[2])
