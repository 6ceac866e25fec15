"""Read batches of images in worker processes, ahead of the training loop.

A worker returns a message for an unreadable image instead of raising an exception, so that the user
sees a one-line error with the file's name. If unreadable images may be skipped, the next readable
image of the split replaces a skipped one. In a streamed split it is the next one of the batch.

Terminals and schedulers send signals to every process of a job. Workers ignore them, so that the
main process still gets images to finish its step. Workers end when the main process shuts them down
or dies, and are killed if they do not end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from saccade.data.bad_images import skip_bad_image
from saccade.data.images import BadImageError
from saccade.data.splits import Box, Split
from saccade.errors import DataError

__all__ = ["NOT_READ", "Decoded", "Request", "decode_batches", "is_lost_worker", "read_some"]

NOT_READ = -1
"""Position of a black image that replaces an image for which no readable one was found."""

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
