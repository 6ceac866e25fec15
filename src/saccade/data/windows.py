"""The order of an epoch of a streamed set, and its images fetched in that order.

Blocks are fetched whole, so an order that jumps from block to block at random would fetch each of
them once for every image. Instead the blocks are shuffled, every rank gets an equal stretch of
them, the stretch is cut into windows that fit in half the buffer, and each window is shuffled.
While the images of one window are used the next window is fetched. All of it is a function of the
key, so an epoch can be entered anywhere by fetching one window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saccade.data.blocks import block_places, shuffled_blocks
from saccade.data.randomness import random_bits
from saccade.data.splits import StreamSource

__all__ = ["Course", "fetch_spans", "plan_course", "share"]

_CONNECTIONS = 4  # row groups of a window fetched at once


@dataclass(frozen=True)
class Course:
    """What one rank reads in an epoch.

    Attributes:
        order: int64, positions in the split; the last one is repeated to fill up a step.
        windows: Consecutive stretches of `order`, each fetched as one.
    """

    order: Tensor
    windows: list[range]


def share(size: int, rank: int, world_size: int) -> range:
    """Which of `size` images are a rank's; shares differ by at most one."""
    return range(size * rank // world_size, size * (rank + 1) // world_size)


def plan_course(source: StreamSource, key: int | None, rank: int, world_size: int) -> Course:
    """Lay out an epoch.

    Args:
        source: The images, of which there is at least one.
        key: Of the order; None keeps the split's own.
        rank: Whose course it is.
        world_size: How many ranks there are.
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
    return Course(torch.cat([order, order[-1:].repeat(2)]), windows)


def _cut(blocks: Tensor, image_bytes: Tensor, limit: int) -> list[range]:
    """Put as many whole blocks in a row into a window as its limit allows, and at least one."""
    windows, start, held = [], 0, 0.0
    for places in block_places(blocks):
        needed = float(image_bytes[places.start]) * len(places)
        if held and held + needed > limit:
            windows.append(range(start, places.start))
            start, held = places.start, 0.0
        held += needed
    return [*windows, range(start, len(blocks))]


def fetch_spans(
    source: StreamSource, course: Course, spans: Sequence[range]
) -> Iterator[list[bytes]]:
    """The encoded images of spans of the course, which ascend and may overlap their neighbours.

    Windows before the first span are not fetched. An image is forgotten once no span can ask for it
    again.
    """
    if not spans:
        return
    windows = [w for w in course.windows if w.stop > spans[0].start]
    windows[0] = range(spans[0].start, windows[0].stop)
    held: dict[int, bytes] = {}
    fetched = _fetch_ahead(source, course.order, windows)
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
    """Windows one after the other, each fetched while the one before is in use."""
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
    """The encoded images of a window, in order."""
    positions = order[window.start : window.stop]
    blocks, by_block = source.blocks[positions].sort()
    asked = [by_block[block.start : block.stop] for block in block_places(blocks)]
    fetched = pool.map(source.fetch, [positions[places].tolist() for places in asked])
    contents: list[bytes] = [b""] * len(window)
    for places, images in zip(asked, fetched, strict=True):
        for place, image in zip(places.tolist(), images, strict=True):
            contents[place] = image
    return contents
