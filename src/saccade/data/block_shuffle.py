"""Order and split images that are stored in blocks, such as the row groups of a parquet file.

A block is always fetched whole, so images of one block should be used together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.data.randomness import Purpose, make_key, permutation

__all__ = ["block_places", "block_range", "shuffled_blocks"]


def block_places(blocks: Tensor) -> list[range]:
    """Return the range of positions of each block; the positions of a block are consecutive."""
    sizes = torch.unique_consecutive(blocks, return_counts=True)[1]
    stops = sizes.cumsum(0)
    starts = stops - sizes
    return [range(*ends) for ends in zip(starts.tolist(), stops.tolist(), strict=True)]


def shuffled_blocks(blocks: Tensor, key: int) -> Tensor:
    """Return positions with the blocks shuffled and the order within each block unchanged."""
    _, which = torch.unique(blocks, return_inverse=True)
    rank = permutation(key, int(which.max()) + 1 if len(which) else 0)
    return torch.argsort(rank[which], stable=True)


def block_range(blocks: Tensor, start: int, stop: int, seed: int) -> tuple[Tensor, Tensor]:
    """Split images into two parts along block boundaries, as far as the sizes allow.

    The blocks are shuffled by the seed. Images `start` to `stop` of that order are the second part.

    Args:
        blocks: int64 (N,), the block of each image.
        start: First image of the second part, in the shuffled order.
        stop: End of the second part, exclusive.
        seed: The same seed gives the same order.

    Returns:
        Positions outside and inside the range, each ascending. At most two blocks are split.
    """
    order = shuffled_blocks(blocks, make_key(seed, 0, Purpose.SPLIT))
    inside = torch.zeros(len(blocks), dtype=torch.bool)
    inside[order[start:stop]] = True
    return torch.nonzero(~inside).flatten(), torch.nonzero(inside).flatten()
