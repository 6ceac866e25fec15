"""Mean and standard deviation of a training split, from all its images or from a sample.

All images in memory are used. Otherwise a fixed number of evenly spaced images is read. In a
streamed split, they come from a few evenly spaced blocks, in equal numbers.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from saccade.data.bad_images import refuse_bad
from saccade.data.decoding import read_some
from saccade.data.images import BadImageError
from saccade.data.splits import Split
from saccade.data.stratify import block_places
from saccade.errors import DataError

__all__ = ["channel_statistics", "measure_channels"]

_SAMPLED_BLOCKS = 32


def measure_channels(
    train: Split, *, sample: int, workers: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of every channel, for pixels in 0..1.

    Args:
        train: The training split.
        sample: Number of images to read if they are not in memory.
        workers: Number of threads that read them.

    Raises:
        DataError: An image of the sample cannot be read and may not be skipped, or no image of the
            sample can be read.
    """
    if train.images is not None:
        return channel_statistics(train.images)
    assert train.source is not None
    with ThreadPoolExecutor(max(1, workers)) as pool:
        read = pool.map(lambda places: read_some(train, places), _places(train, sample))
        results = [result for group in read for result in group]
    images = [result for result in results if isinstance(result, Tensor)]
    faults = [result for result in results if isinstance(result, BadImageError)]
    if train.source.max_bad_images == 0:
        refuse_bad([str(fault) for fault in faults[:1]], 0)
    if not images:
        raise DataError(f"{faults[0]}; of {len(faults)} training images tried none can be read")
    return channel_statistics(torch.stack(images))


def _places(train: Split, sample: int) -> list[list[int]]:
    """Return positions of the images to read, grouped by block."""
    if train.stream is None:
        return [[place] for place in _spaced(len(train), sample)]
    blocks = block_places(train.stream.blocks)
    chosen = [blocks[number] for number in _spaced(len(blocks), _SAMPLED_BLOCKS)]
    each = -(-sample // len(chosen))
    return [[block[place] for place in _spaced(len(block), each)] for block in chosen]


def _spaced(size: int, count: int) -> list[int]:
    """Return at most `count` evenly spaced positions out of `size`."""
    count = min(size, count)
    return [i * size // count for i in range(count)]


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel of uint8 (N, C, H, W), for pixels in 0..1.

    The sums are integers, so the result does not depend on the order of the images.
    """
    channels = images.shape[1]
    total = torch.zeros(channels, dtype=torch.int64)
    squares = torch.zeros(channels, dtype=torch.int64)
    for chunk in images.chunk(-(-len(images) // 1024)):
        levels = chunk.to(torch.int32).transpose(0, 1).reshape(channels, -1)
        total += levels.sum(1)
        squares += (levels * levels).sum(1)
    count = images.numel() // channels
    mean = total.double() / count
    std = (squares.double() / count - mean**2).clamp(min=0).sqrt()
    # A constant channel gets a standard deviation of one gray level.
    std = torch.where(std > 0, std, 1.0)
    return tuple((mean / 255).tolist()), tuple((std / 255).tolist())
