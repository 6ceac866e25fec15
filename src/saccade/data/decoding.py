"""Read images that are not in memory: batches in worker processes, ahead of the training loop.

A worker returns a message for an unreadable image instead of raising an exception, so that the user
sees a one-line error with the file's name. If unreadable images may be skipped, the next readable
image of the split replaces a skipped one. In a streamed split it is the next one of the batch.

Terminals and schedulers send signals to every process of a job. Workers ignore them, so that the
main process still gets images to finish its step. Workers end when the main process shuts them down
or dies, and are killed if they do not end.

The mean and standard deviation of a training split are those of all images in memory, or of a fixed
number of evenly spaced ones. In a streamed split, these come from a few evenly spaced blocks.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from saccade.data.bad_images import refuse_bad, skip_bad_image
from saccade.data.images import BadImageError
from saccade.data.splits import Box, Split
from saccade.data.stratify import block_places
from saccade.errors import DataError

__all__ = [
    "NOT_READ",
    "Decoded",
    "Request",
    "channel_statistics",
    "decode_batches",
    "is_lost_worker",
    "measure_channels",
    "read_some",
]

NOT_READ = -1
"""Position of a black image that replaces an image for which no readable one was found."""

_SAMPLED_BLOCKS = 32  # blocks of a streamed split that are read for the statistics
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


@dataclass(frozen=True)
class Request:
    """Images to read for one batch.

    Attributes:
        index: Positions in the split.
        boxes: The crop of each image; None for no crops.
        contents: The encoded images of a streamed split, else None.
    """

    index: Sequence[int]
    boxes: Sequence[Box] | None
    contents: Sequence[bytes] | None = None


@dataclass
class Decoded:
    """Images that have been read.

    Attributes:
        images: uint8 (R, C, H, W), on the device.
        index: int64 (R,), the positions that were read, including replacements; on the device.
    """

    images: Tensor
    index: Tensor


def decode_batches(
    split: Split,
    requests: Iterator[Request],
    workers: int,
    device: torch.device,
    bad: dict[int, str],
) -> Iterator[Decoded]:
    """Read the images of each request, in order.

    Args:
        split: Its source reads one image.
        requests: One for each batch.
        workers: Number of worker processes, at most one per core; 0 reads in this process.
        device: Device of the returned tensors.
        bad: Messages of the unreadable images found so far, by position. New ones are added.

    Raises:
        DataError: More images than the source's `max_bad_images` cannot be read.
    """
    reader = _Reader(split)
    with ExitStack() as starting:
        starting.enter_context(_signals_blocked())
        loader: DataLoader[_Read] = DataLoader(
            reader,
            batch_size=None,
            sampler=_after_start(requests, starting),  # consumed as workers become free
            num_workers=min(workers, os.cpu_count() or 1),
            pin_memory=device.type == "cuda",
            worker_init_fn=_ignore_signals,
        )
        reads = iter(loader)
    for worker in getattr(reads, "_workers", ()):  # workers ignore SIGTERM
        worker._popen.terminate = worker._popen.kill
    for images, index, messages in reads:
        for position, message in messages.items():
            if position not in bad:
                bad[position] = message
                skip_bad_image(list(bad.values()), reader.source.max_bad_images)
        yield Decoded(images.to(device, non_blocking=True), index.to(device, non_blocking=True))


def is_lost_worker(error: BaseException) -> bool:
    """True if the error means that a worker was killed or exited unexpectedly."""
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals while workers start, before they ignore signals themselves."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _after_start(requests: Iterator[Request], starting: ExitStack) -> Iterator[Request]:
    """Unblock signals when the first request is taken, after all workers have started."""
    starting.close()
    yield from requests


def _ignore_signals(worker: int) -> None:
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)


def read_some(split: Split, places: Sequence[int]) -> list[Tensor | BadImageError]:
    """Read the images at some positions; an unreadable one is returned as its error.

    In a streamed split all positions must be in one block.
    """

    def attempt(read: Callable[[], Tensor]) -> Tensor | BadImageError:
        try:
            return read()
        except BadImageError as error:
            return error

    stream, source = split.stream, split.source
    assert source is not None
    if stream is None:
        return [attempt(partial(source.read, place)) for place in places]
    fetched = zip(places, stream.fetch(places), strict=True)
    return [attempt(partial(stream.decode, place, content)) for place, content in fetched]


_Read = tuple[Tensor, Tensor, dict[int, str]]


class _Reader(Dataset[_Read]):
    """Data set of the worker processes; its items are whole batches."""

    def __init__(self, split: Split) -> None:
        assert split.source is not None
        self.source, self._stream, self._size = split.source, split.stream, len(split)

    def __getitem__(self, request: Request) -> _Read:
        images, used, messages = [], [], dict[int, str]()
        for place in range(len(request.index)):
            image, position = self._read(request, place, messages)
            images.append(image)
            used.append(position)
        return torch.stack(images), torch.tensor(used, dtype=torch.int64), messages

    def _read(self, request: Request, place: int, messages: dict[int, str]) -> tuple[Tensor, int]:
        """Return an image and its position, or those of the next readable image.

        Messages of unreadable images are added to `messages`.
        """
        box = request.boxes[place] if request.boxes is not None else None
        candidates = self._size if request.contents is None else len(request.index)
        for step in range(min(self.source.max_bad_images + 1, candidates)):
            try:
                if self._stream is None or request.contents is None:
                    position = (request.index[place] + step) % self._size
                    return self.source.read(position, box), position
                other = (place + step) % len(request.index)
                position = request.index[other]
                return self._stream.decode(position, request.contents[other], box), position
            except DataError as error:
                messages[position] = str(error)
        return self.source.placeholder(), NOT_READ


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
