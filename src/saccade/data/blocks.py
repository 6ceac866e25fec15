"""Images that lie in blocks, each fetched whole: what is read together should lie together."""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.data.randomness import Purpose, make_key, permutation

__all__ = ["block_places", "block_range", "shuffled_blocks"]


def block_places(blocks: Tensor) -> list[range]:
    """The places of each block, where places of one block follow each other."""
    sizes = torch.unique_consecutive(blocks, return_counts=True)[1]
    stops = sizes.cumsum(0)
    starts = stops - sizes
    return [range(*ends) for ends in zip(starts.tolist(), stops.tolist(), strict=True)]


def shuffled_blocks(blocks: Tensor, key: int) -> Tensor:
    """Positions in an order that shuffles the blocks and leaves each of them as it is."""
    _, which = torch.unique(blocks, return_inverse=True)
    rank = permutation(key, int(which.max()) + 1 if len(which) else 0)
    return torch.argsort(rank[which], stable=True)


def block_range(blocks: Tensor, start: int, stop: int, seed: int) -> tuple[Tensor, Tensor]:
    """Cut images that lie in blocks in two, so that hardly a block is in both parts.

    Args:
        blocks: int64 (N,), the block each image lies in.
        start: With the blocks in a random order, the first image of the second part ...
        stop: ... and the one after its last.
        seed: The same seed gives the same order.

    Returns:
        Positions outside and inside, each ascending; at most two blocks have images in both.
    """
    order = shuffled_blocks(blocks, make_key(seed, 0, Purpose.SPLIT))
    inside = torch.zeros(len(blocks), dtype=torch.bool)
    inside[order[start:stop]] = True
    return torch.nonzero(~inside).flatten(), torch.nonzero(inside).flatten()
