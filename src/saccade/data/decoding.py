"""Images read by worker processes, a batch at a time, ahead of the training loop.

A worker hands an unreadable image back as a message, not as an exception, so that the error the
user sees is one line that names the file. Where such images may be passed over, the next readable
image of the split stands in, or of the batch where the split is streamed.

Terminals and schedulers send a signal to every process of a job. Workers take no notice, so that
the main process has images to finish its step with; they end when it tells them to, or is gone, and
are killed where they do not.
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

from saccade.data.bad_images import pass_over
from saccade.data.images import BadImageError
from saccade.data.splits import Box, Split
from saccade.errors import DataError

__all__ = ["NOT_READ", "Decoded", "Request", "decode_batches", "is_lost_worker", "read_some"]

NOT_READ = -1
"""In place of a position, where no image could be read and a black one stands in."""

_STOPS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Request:
    """Images to read for one batch.

    Attributes:
        index: Positions in the split.
        boxes: The crop to take of each.
        contents: The encoded images, where the split is streamed.
    """

    index: Sequence[int]
    boxes: Sequence[Box] | None
    contents: Sequence[bytes] | None = None


@dataclass
class Decoded:
    """Images that have been read.

    Attributes:
        images: uint8 (R, C, H, W), on the device.
        index: int64 (R,), the positions that were read, stand-ins included; on the device.
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
        workers: Processes to read with, at most one a core; 0 reads in this one.
        device: Where the images go.
        bad: Unreadable images found so far, by position; new ones are added.

    Raises:
        DataError: More images than the source's `max_bad_images` cannot be read.
    """
    reader = _Reader(split)
    with ExitStack() as starting:
        starting.enter_context(_signals_held())
        loader: DataLoader[_Read] = DataLoader(
            reader,
            batch_size=None,
            sampler=_once_started(requests, starting),  # asked for as workers become free
            num_workers=min(workers, os.cpu_count() or 1),
            pin_memory=device.type == "cuda",
            worker_init_fn=_ignore_signals,
        )
        reads = iter(loader)
    for worker in getattr(reads, "_workers", ()):  # by a signal that they do not ignore
        worker._popen.terminate = worker._popen.kill
    for images, index, messages in reads:
        for position, message in messages.items():
            if position not in bad:
                bad[position] = message
                pass_over(list(bad.values()), reader.source.max_bad_images)
        yield Decoded(images.to(device, non_blocking=True), index.to(device, non_blocking=True))


def is_lost_worker(error: BaseException) -> bool:
    """Whether an error says that a worker was killed, or ended on its own."""
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")


@contextmanager
def _signals_held() -> Iterator[None]:
    """Have signals wait: one that met a worker before it ignores them would end it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _once_started(requests: Iterator[Request], starting: ExitStack) -> Iterator[Request]:
    """The requests; the first is asked for when all workers are there, and may take its time."""
    starting.close()
    yield from requests


def _ignore_signals(worker: int) -> None:
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)


def read_some(split: Split, places: Sequence[int]) -> list[Tensor | BadImageError]:
    """Images at some places, or what is wrong with them; in a streamed split, of one block."""

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
    """Reads one request; lives in the worker."""

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
        """An image and its position, or those of the next readable one; all messages are kept."""
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
