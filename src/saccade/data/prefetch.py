"""Order the images of a streamed set in an epoch, and fetch them in that order.

Blocks are fetched whole, so a fully random order would fetch a block again for every image. Instead
the blocks are shuffled and every rank gets an equal, consecutive part of them. The part is divided
into windows that fit in half the buffer, and each window is shuffled. While the images of one
window are used, the next window is fetched. The order is a function of the key, so a resume in the
middle of an epoch only fetches the current window again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saccade.data.randomness import random_bits
from saccade.data.splits import StreamSource
from saccade.data.stratify import block_places, shuffled_blocks

__all__ = ["EpochPlan", "fetch_spans", "plan_epoch", "share"]

_CONNECTIONS = 4  # row groups of a window fetched concurrently


@dataclass(frozen=True)
class EpochPlan:
    """The images one rank reads in an epoch.

    Attributes:
        order: int64, positions in the split; the last one is repeated to fill the last step.
        windows: Consecutive ranges of `order`; a window is fetched at once.
    """

    order: Tensor
    windows: list[range]


def share(size: int, rank: int, world_size: int) -> range:
    """Return a rank's range of `size` images; the ranges differ by at most one in length."""
    return range(size * rank // world_size, size * (rank + 1) // world_size)


def plan_epoch(source: StreamSource, key: int | None, rank: int, world_size: int) -> EpochPlan:
    """Plan the order and the windows of one rank in an epoch.

    Args:
        source: The images; at least one.
        key: Key of the order; None keeps the order of the split.
        rank: Index of the rank.
        world_size: Number of ranks.
    """
    size = len(source.blocks)
    order = torch.arange(size) if key is None else shuffled_blocks(source.blocks, key)
    mine = share(size, rank, world_size) or range(1)
    order = order[mine.start : mine.stop]
    windows = _cut(source.blocks[order], source.image_bytes[order], source.buffer_bytes // 2)
    if key is not None:
        number = np.repeat(np.arange(len(windows)), [len(window) for window in windows])
        bits = random_bits(key, size + order).numpy()
        order = order[torch.from_numpy(np.lexsort((bits, number)))]
    windows[-1] = range(windows[-1].start, len(order) + 2)
    return EpochPlan(torch.cat([order, order[-1:].repeat(2)]), windows)


def _cut(blocks: Tensor, image_bytes: Tensor, limit: int) -> list[range]:
    """Group consecutive whole blocks into windows of at most `limit` bytes, or of one block."""
    windows, start, held = [], 0, 0.0
    for places in block_places(blocks):
        needed = float(image_bytes[places.start]) * len(places)
        if held and held + needed > limit:
            windows.append(range(start, places.start))
            start, held = places.start, 0.0
        held += needed
    return [*windows, range(start, len(blocks))]


def fetch_spans(
    source: StreamSource, plan: EpochPlan, spans: Sequence[range]
) -> Iterator[list[bytes]]:
    """Yield the encoded images of each span of a plan.

    Spans ascend and may overlap their neighbors. Windows before the first span are not fetched. An
    image is dropped when no later span can contain it.
    """
    if not spans:
        return
    windows = [w for w in plan.windows if w.stop > spans[0].start]
    windows[0] = range(spans[0].start, windows[0].stop)
    held: dict[int, bytes] = {}
    fetched = _fetch_ahead(source, plan.order, windows)
    loaded = windows[0].start
    for number, span in enumerate(spans):
        while loaded < span.stop:
            contents = next(fetched)
            held.update(enumerate(contents, start=loaded))
            loaded += len(contents)
        yield [held[place] for place in span]
        following = spans[number + 1].start if number + 1 < len(spans) else span.stop
        for place in range(span.start, following):
            del held[place]


def _fetch_ahead(
    source: StreamSource, order: Tensor, windows: Sequence[range]
) -> Iterator[list[bytes]]:
    """Yield the images of each window; the next window is fetched while one is in use."""
    with ThreadPoolExecutor(1) as ahead, ThreadPoolExecutor(_CONNECTIONS) as pool:
        try:
            coming = ahead.submit(_fetch, source, order, windows[0], pool)
            for following in windows[1:]:
                contents = coming.result()
                coming = ahead.submit(_fetch, source, order, following, pool)
                yield contents
            yield coming.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _fetch(
    source: StreamSource, order: Tensor, window: range, pool: ThreadPoolExecutor
) -> list[bytes]:
    """Return the encoded images of a window, in order."""
    positions = order[window.start : window.stop]
    blocks, by_block = source.blocks[positions].sort()
    asked = [by_block[block.start : block.stop] for block in block_places(blocks)]
    fetched = pool.map(source.fetch, [positions[places].tolist() for places in asked])
    contents: list[bytes] = [b""] * len(window)
    for places, images in zip(asked, fetched, strict=True):
        for place, image in zip(places.tolist(), images, strict=True):
            contents[place] = image
    return contents
