"""Splits to batches on the device, the same for every number of ranks and after every resume.

The order of an epoch is a function of (seed, epoch). Step t takes the next `batch_size *
world_size` positions of that order and cuts them into one consecutive piece a rank. In the last
step of an epoch every rank gets equally many; those past the end repeat the beginning and are not
`valid`. Of a streamed split every rank has a stretch of its own instead (`windows`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from saccade.config import AugmentConfig
from saccade.data.decoding import Request, decode_batches
from saccade.data.mixing import mix, mix_targets
from saccade.data.randomness import Purpose, make_key, permutation
from saccade.data.splits import Box, DatasetInfo, Split
from saccade.data.transform import Draws, Transform, resized_boxes
from saccade.data.windows import Course, fetch_spans, plan_course, share
from saccade.errors import ConfigError

__all__ = ["Batch", "Loader", "make_loader"]

_GROUP_BYTES = 64 << 20


@dataclass
class Batch:
    """One step's worth of images on the device.

    Attributes:
        images: float32 (B, C, H, W), normalised.
        targets: int64 (B,), or float32 (B, K) where images are mixed.
        index: int64 (B,), positions in the split.
        valid: bool (B,), False for an entry that only fills up the batch; metrics ignore it.
        count: Images of the step without such entries, in the mean over the ranks.
    """

    images: Tensor
    targets: Tensor
    index: Tensor
    valid: Tensor
    count: float


@dataclass(frozen=True)
class Step:
    """Positions `start` to `start + size` of the epoch's order, of which the first are valid."""

    start: int
    size: int
    num_valid: int
    count: float


class Loader:
    """Batches of one split; made by `make_loader`, which explains the arguments.

    Attributes:
        group_bytes: Batches of up to so many bytes are made in one pass; no batch depends on it.
    """

    def __init__(
        self,
        split: Split,
        info: DatasetInfo,
        *,
        batch_size: int,
        augment: AugmentConfig | None,
        seed: int,
        device: torch.device,
        shuffle: bool,
        drop_last: bool,
        rank: int,
        world_size: int,
        workers: int,
        compiled: bool,
    ) -> None:
        self.split, self.info = split, info
        self._stream = split.stream
        self.batch_size, self.drop_last = batch_size, drop_last
        self.seed, self.shuffle, self.device = seed, shuffle, device
        self.rank, self.world_size, self.workers = rank, world_size, workers
        self._transform = Transform(augment, info, device)
        self._mixes = self._transform.config.mixup > 0 or self._transform.config.cutmix > 0
        self._labels = split.labels.to(device)
        self._images = None if split.images is None else split.images.to(device)
        resized = self._transform.config.resized_crop is not None
        self._compiled = compiled and self._images is not None and not resized
        if self._compiled:
            self._draw = torch.compile(self._transform.draw)
            exact = "emulate_precision_casts"  # a product is rounded before something is added
            self._make = torch.compile(self._transformed, options={exact: True})
        self._bad: dict[int, str] = {}  # unreadable images, over all epochs
        self.group_bytes = _GROUP_BYTES if device.type == "cuda" else 0

    def __len__(self) -> int:
        together = self.batch_size * self.world_size
        return len(self.split) // together if self.drop_last else -(-len(self.split) // together)

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from `start_batch` on.

        Raises:
            DataError: An image cannot be read and may not be passed over; it is named.
        """
        key = make_key(self.seed, epoch, Purpose.AUGMENT)
        steps = [self._step(number) for number in range(start_batch, len(self))]
        spans = [range(step.start, step.start + step.size + self._mixes) for step in steps]
        course = self._course(epoch)
        order = self._order(epoch) if course is None else course.order
        pieces = [order[span.start : span.stop] for span in spans]
        if self._images is not None:
            yield from self._resident_batches(key, steps, pieces, self._images)
            return
        requests = self._requests(key, course, spans, pieces)
        reads = decode_batches(self.split, requests, self.workers, self.device, self._bad)
        for step, index, read in zip(steps, pieces, reads, strict=True):
            index = index.to(self.device, non_blocking=True)
            rows = torch.arange(len(index), device=self.device)
            labels = self._labels[read.index]
            draws = self._transform.draw(key, index)
            images, targets = self._transformed(draws, read.images, rows, labels)
            valid = self._valid(step) & (read.index == index)[: step.size]
            yield Batch(images, targets, index[: step.size], valid, step.count)

    def _resident_batches(
        self, key: int, steps: list[Step], pieces: list[Tensor], stored: Tensor
    ) -> Iterator[Batch]:
        """Make several batches in one pass, since on a GPU a pass costs its many small launches."""
        key_there = torch.full((), key, dtype=torch.int64, device=self.device)
        bytes_a_batch = 4 * self.batch_size * math.prod(stored.shape[1:])
        together = max(1, self.group_bytes // max(1, bytes_a_batch))
        for first in range(0, len(steps), together):
            group = slice(first, first + together)
            index = torch.cat(pieces[group])
            images, targets = self._group(key_there, index, stored)
            offset = 0
            for step, piece in zip(steps[group], pieces[group], strict=True):
                part = slice(offset, offset + step.size)
                valid = self._valid(step)
                yield Batch(images[part], targets[part], piece[: step.size], valid, step.count)
                offset += len(piece)

    def _group(self, key: Tensor, index: Tensor, stored: Tensor) -> tuple[Tensor, Tensor]:
        """Images and targets of several batches.

        Compiled, draws are a pass of their own, or every pixel would draw its image's again; and
        nothing is compiled anew for another epoch's key or a last group that is smaller.
        """
        labels = self._labels[index]
        if not self._compiled:
            return self._transformed(self._transform.draw(key, index), stored, index, labels)
        torch._dynamo.maybe_mark_dynamic(index, 0)
        torch._dynamo.maybe_mark_dynamic(labels, 0)
        draws = self._draw(key, index)
        torch._dynamo.maybe_mark_dynamic(draws.values, 1)
        return self._make(draws, stored, index, labels)

    def _course(self, epoch: int) -> Course | None:
        """What this rank reads of a streamed split; None for every other split."""
        if self._stream is None or not len(self.split):
            return None
        key = make_key(self.seed, epoch, Purpose.ORDER) if self.shuffle else None
        return plan_course(self._stream, key, self.rank, self.world_size)

    def _order(self, epoch: int) -> Tensor:
        """The epoch's order, for all ranks, continued as far past its end as the last step is."""
        size = len(self.split)
        device = self.device if self._images is not None else torch.device("cpu")
        if not size:
            return torch.empty(0, dtype=torch.int64, device=device)
        if self.shuffle:
            order = permutation(make_key(self.seed, epoch, Purpose.ORDER), size, device)
        else:
            order = torch.arange(size, device=device)
        return order.repeat(1 + -(-(self.world_size + 1) // size))

    def _step(self, number: int) -> Step:
        together = self.batch_size * self.world_size
        first = number * together
        count = min(together, len(self.split) - first)
        size = -(-count // self.world_size)
        start, stop = first + self.rank * size, len(self.split)
        if self._stream is not None:  # the order is this rank's own
            start, stop = number * self.batch_size, len(share(stop, self.rank, self.world_size))
        return Step(start, size, max(0, min(size, stop - start)), count / self.world_size)

    def _valid(self, step: Step) -> Tensor:
        return torch.arange(step.size, device=self.device) < step.num_valid

    def _requests(
        self, key: int, course: Course | None, spans: list[range], pieces: list[Tensor]
    ) -> Iterator[Request]:
        """What the workers have to read, each image already cropped where crops are resized."""
        if self._stream is None or course is None:
            yield from (Request(index.tolist(), self._boxes(key, index)) for index in pieces)
            return
        for index, contents in zip(pieces, fetch_spans(self._stream, course, spans), strict=True):
            yield Request(index.tolist(), self._boxes(key, index), contents)

    def _boxes(self, key: int, index: Tensor) -> list[Box] | None:
        area = self._transform.config.resized_crop
        if area is None:
            return None
        boxes = resized_boxes(area, self._transform.draw(key, index)).T.tolist()
        return [(box[0], box[1], box[2], box[3]) for box in boxes]

    def _transformed(
        self, draws: Draws, stored: Tensor, rows: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Transform `stored[rows]` by their draws and mix each with the next.

        Where images are mixed the last one is only a partner, and so is the last one of every
        piece where several were put together: its mixture means nothing and is cut off.
        """
        cropped = self._images is None
        images = self._transform(stored, rows, draws, cropped=cropped)
        if not self._mixes:
            return images, labels
        images, weight = mix(images, draws, self._transform.config)
        return images, mix_targets(labels, weight, self.info.num_classes)


def make_loader(
    split: Split,
    info: DatasetInfo,
    *,
    batch_size: int,
    augment: AugmentConfig | None,
    seed: int,
    device: torch.device | str,
    shuffle: bool,
    drop_last: bool = False,
    rank: int = 0,
    world_size: int = 1,
    workers: int = 0,
    compiled: bool = False,
) -> Loader:
    """Make the loader of one split.

    Args:
        split: Its images go to the device as uint8, once, where they are in memory.
        info: Of the data set.
        batch_size: Images a rank gets in a step.
        augment: What to do to training images; None only normalises.
        seed: Of the order and of the augmentation.
        device: Where the batches are made.
        shuffle: Whether every epoch has its own order.
        drop_last: Whether to leave out a last step that is not full.
        rank: Which of the pieces of a step this loader gets.
        world_size: How many pieces there are.
        workers: Processes that read images which are not in memory.
        compiled: Whether torch.compile makes the batches: the same ones, in a few passes over
            memory. Images that are not in memory and resized crops are left as they are.

    Raises:
        ConfigError: A value does not fit the others, or the split.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size={batch_size}: wants at least 1")
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank={rank}: wants 0 <= rank < world_size={world_size}")
    if drop_last and len(split) < batch_size * world_size:
        raise ConfigError(
            f"batch_size={batch_size} on {world_size} rank(s) is more than the split's "
            f"{len(split)} images: no step would be full"
        )
    return Loader(
        split,
        info,
        batch_size=batch_size,
        augment=augment,
        seed=seed,
        device=torch.device(device),
        shuffle=shuffle,
        drop_last=drop_last,
        rank=rank,
        world_size=world_size,
        workers=workers,
        compiled=compiled,
    )
