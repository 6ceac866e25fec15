"""Images read by worker processes, a batch at a time, ahead of the training loop.

A worker hands an unreadable image back as a message, not as an exception, so that the error the
user sees is one line that names the file. Where such images may be passed over, the next readable
image of the split stands in.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from saccade.data.splits import Box, ImageSource
from saccade.errors import DataError

__all__ = ["Decoded", "Request", "decode_batches"]

_log = logging.getLogger(__name__)

Request = tuple[Sequence[int], Sequence[Box] | None]
"""Positions in the split, and the crop to take of each."""


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
    source: ImageSource,
    size: int,
    requests: Iterator[Request],
    workers: int,
    device: torch.device,
    bad: dict[int, str],
) -> Iterator[Decoded]:
    """Read the images of each request, in order.

    Args:
        source: Reads one image.
        size: How many images the source has.
        requests: One for each batch.
        workers: Processes to read with, at most one a core; 0 reads in this one.
        device: Where the images go.
        bad: Unreadable images found so far, by position; new ones are added.

    Raises:
        DataError: More images than `source.max_bad_images` cannot be read.
    """
    loader: DataLoader[_Read] = DataLoader(
        _Reader(source, size),
        batch_size=None,
        sampler=requests,  # asked for one at a time, as workers become free
        num_workers=min(workers, os.cpu_count() or 1),
        pin_memory=device.type == "cuda",
    )
    for images, index, messages in loader:
        for position, message in messages.items():
            if position not in bad:
                bad[position] = message
                _count_bad(bad, source.max_bad_images)
        yield Decoded(images.to(device, non_blocking=True), index.to(device, non_blocking=True))


def _count_bad(bad: dict[int, str], limit: int) -> None:
    newest = list(bad.values())[-1]
    if limit == 0:
        raise DataError(f"{newest} (data.on_bad_image='skip' would pass it over)")
    if len(bad) > limit:
        raise DataError(f"{newest}; {len(bad)} bad images, data.max_bad_images={limit}")
    _log.warning("passed over %s", newest)


_Read = tuple[Tensor, Tensor, dict[int, str]]


class _Reader(Dataset[_Read]):
    """Reads one request; lives in the worker."""

    def __init__(self, source: ImageSource, size: int) -> None:
        self._source, self._size = source, size

    def __getitem__(self, request: Request) -> _Read:
        index, boxes = request
        images, used, messages = [], [], dict[int, str]()
        for place, position in enumerate(index):
            box = boxes[place] if boxes is not None else None
            image, position = self._read(position, box, messages)
            images.append(image)
            used.append(position)
        return torch.stack(images), torch.tensor(used, dtype=torch.int64), messages

    def _read(self, position: int, box: Box | None, messages: dict[int, str]) -> tuple[Tensor, int]:
        """An image, or the next readable one; all messages are kept."""
        for step in range(min(self._source.max_bad_images + 1, self._size)):
            candidate = (position + step) % self._size
            try:
                return self._source.read(candidate, box), candidate
            except DataError as error:
                messages[candidate] = str(error)
        return self._source.placeholder(), position
