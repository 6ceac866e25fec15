"""Keep the images of a sharded set in memory if they fit, else stream them in every epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from saccade.config import DataConfig
from saccade.data.bad_images import bad_image_limit, skip_bad_image
from saccade.data.block_shuffle import block_places
from saccade.data.decoding import read_some
from saccade.data.images import DEFAULT_IMAGE_SIZE
from saccade.data.shards import ShardSource
from saccade.data.splits import LeftOut, Split, limited, select, stratified_subset
from saccade.errors import ConfigError

__all__ = ["load_if_small"]


def load_if_small(train: Split, test: Split, config: DataConfig) -> tuple[Split, Split]:
    """Return both splits, with their images in memory if they fit in `data.resident_gib`.

    In a set that fits, `data.num_train` and `data.num_test` take stratified subsets. In a larger
    set they take whole row groups, so that no others are fetched. The subsets are kept in memory if
    they fit.

    Raises:
        ConfigError: A streamed set has row groups that are too large for the buffer.
        DataError: An image of a set kept in memory cannot be read and may not be skipped.
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
    """Raise an error if the buffer cannot hold two row groups."""
    sources = [split.source for split in splits if isinstance(split.source, ShardSource)]
    largest = max(group.num_bytes for source in sources for group in source.shards.groups)
    if 2 * largest > config.buffer_mib * 2**20:
        wanted = math.ceil(2 * largest / 2**20 * 1000) / 1000
        raise ConfigError(
            f"data.buffer_mib must be at least {wanted:g} to hold two row groups of {config.name}, "
            f"whose images take {largest} bytes each, got {config.buffer_mib:g}"
        )


def _read(split: Split, config: DataConfig) -> Split:
    """Read a split into memory, without unreadable images if they may be skipped."""
    assert split.stream is not None
    images = torch.empty(len(split), *split.image_shape, dtype=torch.uint8)
    is_good = torch.zeros(len(split), dtype=torch.bool)

    def fill(block: range) -> list[str]:
        """Read the images of a block and return the messages of unreadable ones."""
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
                skip_bad_image(faults, bad_image_limit(config))
    if not faults:
        return Split(split.labels, images, fingerprint=split.fingerprint)
    return Split(
        split.labels[is_good],
        images[is_good],
        fingerprint=split.fingerprint,
        left_out=tuple(map(LeftOut, faults)),
    )
