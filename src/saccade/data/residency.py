"""Whether the images of a set of shards are read once and kept, or streamed in every epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from saccade.config import DataConfig
from saccade.data.bad_images import bad_image_limit, pass_over
from saccade.data.blocks import block_places
from saccade.data.decoding import read_some
from saccade.data.images import DEFAULT_IMAGE_SIZE
from saccade.data.shards import ShardSource
from saccade.data.splits import Split, limited, select, stratified_subset
from saccade.errors import ConfigError

__all__ = ["keep_if_small"]


def keep_if_small(train: Split, test: Split, config: DataConfig) -> tuple[Split, Split]:
    """Both splits with their images in memory, where these fit in `data.resident_gib`.

    Of a set that fits, `data.num_train` and `data.num_test` take all classes in proportion. Of a
    larger one they take whole row groups, so that no others are fetched, and what is left may fit.

    Raises:
        ConfigError: A set that is streamed has row groups too large for the buffer.
        DataError: An image that is to be kept cannot be read and may not be passed over.
    """
    seed = config.split_seed
    if _fits(train, test, config):
        train = _stratified(train, config.num_train, seed)
        test = _stratified(test, config.num_test, seed)
        return _read(train, config), _read(test, config)
    train, test = limited(train, config.num_train, seed), limited(test, config.num_test, seed)
    if _fits(train, test, config):
        return _read(train, config), _read(test, config)
    _check_buffer((train, test), config)
    return train, test


def _fits(train: Split, test: Split, config: DataConfig) -> bool:
    size = config.image_size or DEFAULT_IMAGE_SIZE
    return (len(train) + len(test)) * 3 * size * size <= config.resident_gib * 2**30


def _stratified(split: Split, count: int | None, seed: int) -> Split:
    return split if count is None else select(split, stratified_subset(split.labels, count, seed))


def _check_buffer(splits: Sequence[Split], config: DataConfig) -> None:
    """Refuse row groups of which the buffer cannot hold two."""
    sources = [split.source for split in splits if isinstance(split.source, ShardSource)]
    largest = max(group.num_bytes for source in sources for group in source.shards.groups)
    if 2 * largest > config.buffer_mib * 2**20:
        wanted = math.ceil(2 * largest / 2**20 * 1000) / 1000
        raise ConfigError(
            f"data.buffer_mib={config.buffer_mib:g}: a row group of {config.name} has {largest} "
            f"bytes of images and the buffer has to hold two; wants at least {wanted:g}"
        )


def _read(split: Split, config: DataConfig) -> Split:
    """A split in memory, without its unreadable images where these may be passed over."""
    assert split.stream is not None
    images = torch.empty(len(split), *split.image_shape, dtype=torch.uint8)
    is_good = torch.zeros(len(split), dtype=torch.bool)

    def fill(block: range) -> list[str]:
        """Read the images of a block; returns what is wrong with bad ones."""
        results = dict(zip(block, read_some(split, block), strict=True))
        for place, result in results.items():
            if isinstance(result, Tensor):
                images[place], is_good[place] = result, True
        return [str(result) for result in results.values() if not isinstance(result, Tensor)]

    faults: list[str] = []
    with ThreadPoolExecutor(max(1, config.workers)) as pool:
        for found in pool.map(fill, block_places(split.stream.blocks)):
            for fault in found:
                faults.append(fault)
                pass_over(faults, bad_image_limit(config))
    if not faults:
        return Split(split.labels, images)
    return Split(split.labels[is_good], images[is_good])
