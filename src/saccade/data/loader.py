"""Make batches of a split on the device, independent of the number of ranks and of resumes.

The order of an epoch is a function of (seed, epoch). Each step takes the next `batch_size *
world_size` positions of that order and gives each rank a consecutive piece. In the last step of an
epoch every rank gets the same number of images. Entries past the end of the epoch repeat its
beginning and are not `valid`. In a streamed split every rank has its own part of the order instead
(`prefetch.py`).

Padded sequences are grouped by length. For training, the shuffled sequences are sorted by length
within windows of 32 steps, and then the steps are shuffled. For evaluation, all sequences are
sorted, longest first. Lengths of batches are multiples of `GRANULE`, so that there are few
different shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from saccade.config import AugmentConfig
from saccade.data.decoding import Request, decode_batches
from saccade.data.prefetch import EpochPlan, fetch_spans, plan_epoch, share
from saccade.data.randomness import Purpose, make_key, permutation
from saccade.data.splits import Box, DatasetInfo, Split
from saccade.data.transform import Draws, Transform, mix, mix_targets, resized_boxes
from saccade.errors import ConfigError

__all__ = ["GRANULE", "Batch", "Loader", "make_loader"]

GRANULE = 64
"""The length of a batch of sequences is a multiple of it, or that of the longest sequence."""
_WINDOW = 32  # steps whose sequences are sorted together: less padding than in shuffled batches
_GROUP_BYTES = 64 << 20


@dataclass
class Batch:
    """The images of one step on the device.

    Attributes:
        images: float32 (B, C, H, W), normalized; for sequences int64 (B, N), symbols.
        targets: int64 (B,), or float32 (B, K) if images are mixed.
        index: int64 (B,), positions in the split.
        valid: bool (B,), False for padding entries, which metrics ignore.
        count: Number of images of the step without padding, as the mean over the ranks.
    """

    images: Tensor
    targets: Tensor
    index: Tensor
    valid: Tensor
    count: float


@dataclass(frozen=True)
class Step:
    """Positions `start` to `start + size` of the epoch's order; the first `num_valid` are valid."""

    start: int
    size: int
    num_valid: int
    count: float


class Loader:
    """Batches of one split.

    Args:
        split: The split. Images in memory are copied to the device once, as uint8.
        info: Facts about the data set.
        batch_size: Images per rank and step.
        augment: Augmentation of the images; None only normalizes.
        seed: Seed of the order and of the augmentation.
        device: Device of the batches.
        shuffle: Shuffle the images anew in every epoch.
        drop_last: Drop the last step of an epoch if it is not full.
        rank: Index of this process.
        world_size: Number of processes.
        workers: Number of processes that read images which are not in memory.
        compiled: Make batches with torch.compile. The batches are the same, with fewer passes over
            memory. It has no effect on images that are not in memory and on resized crops.
        mixed_epochs: Images are mixed in the first `mixed_epochs` epochs only; None for all.

    Attributes:
        group_bytes: Maximum size of the batches that are made in one pass. It does not change the
            batches.

    Raises:
        ConfigError: A value does not fit the others, or the split.
    """

    def __init__(
        self,
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
        mixed_epochs: int | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank must be in [0, world_size={world_size}), got {rank}")
        if info.is_sequence and augment is not None and augment != AugmentConfig():
            raise ConfigError(
                f"augment must be off for {info.name}, whose inputs are sequences, got settings "
                "that change images"
            )
        self.split, self.info = split, info
        self._stream = split.stream
        self.batch_size, self.drop_last = batch_size, drop_last
        self.seed, self.shuffle, self.device = seed, shuffle, torch.device(device)
        self.rank, self.world_size, self.workers = rank, world_size, workers
        self._check_batch_size()
        self._transform = Transform(augment, info, self.device)
        self._mixes = self._transform.config.mixup > 0 or self._transform.config.cutmix > 0
        self._mixed_epochs = mixed_epochs if self._mixes else None
        self._labels = split.labels.to(self.device)
        self._images = None if split.images is None else split.images.to(self.device)
        resized = self._transform.config.resized_crop is not None
        self._compiled = compiled and self._images is not None and not resized
        if self._compiled:
            self._draw = torch.compile(self._transform.draw)
            exact = "emulate_precision_casts"  # rounds products before sums, as eager mode does
            self._make = torch.compile(self._transformed, options={exact: True})
        # Unreadable images over all epochs. Those that are not in the split come after its end.
        self._bad = {len(split) + n: item.message for n, item in enumerate(split.left_out)}
        self.group_bytes = _GROUP_BYTES if self.device.type == "cuda" else 0

    def _check_batch_size(self) -> None:
        size, most = self.batch_size, len(self.split) // self.world_size
        if size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {size}")
        if self.drop_last and size > most:
            raise ConfigError(
                f"batch_size must be at most {most} with drop_last=True, for {len(self.split)} "
                f"images on {self.world_size} rank(s), got {size}"
            )

    def __len__(self) -> int:
        together = self.batch_size * self.world_size
        return len(self.split) // together if self.drop_last else -(-len(self.split) // together)

    @property
    def num_images(self) -> int:
        """Number of images in an epoch, over all ranks."""
        full = len(self) * self.batch_size * self.world_size
        return min(full, len(self.split))

    @property
    def num_left_out(self) -> int:
        """Number of images that could not be read and are not in the split."""
        return len(self.split.left_out)

    @property
    def bad_images(self) -> Mapping[int, str]:
        """Error messages of the unreadable images found so far, by position.

        Images that were left out of the split have the positions after its last.
        """
        return self._bad

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, from `start_batch` on.

        Raises:
            DataError: An image cannot be read and may not be skipped. The message names it.
        """
        steps = [self._step(number) for number in range(start_batch, len(self))]
        if self.info.is_sequence:
            yield from self._sequence_batches(steps, self._order(epoch))
            return
        key = make_key(self.seed, epoch, Purpose.AUGMENT)
        mixing = self._mixing(epoch)
        spans = [range(step.start, step.start + step.size + self._mixes) for step in steps]
        plan = self._epoch_plan(epoch)
        order = self._order(epoch) if plan is None else plan.order
        pieces = [order[span.start : span.stop] for span in spans]
        if self._images is not None:
            yield from self._resident_batches(key, steps, pieces, self._images, mixing)
            return
        requests = self._requests(key, plan, spans, pieces)
        reads = decode_batches(self.split, requests, self.workers, self.device, self._bad)
        for step, index, read in zip(steps, pieces, reads, strict=True):
            index = index.to(self.device, non_blocking=True)
            rows = torch.arange(len(index), device=self.device)
            labels = self._labels[read.index]
            draws = self._transform.draw(key, index)
            images, targets = self._transformed(draws, read.images, rows, labels, mixing)
            valid = self._valid(step) & (read.index == index)[: step.size]
            yield Batch(images, targets, index[: step.size], valid, step.count)

    def _resident_batches(
        self,
        key: int,
        steps: list[Step],
        pieces: list[Tensor],
        stored: Tensor,
        mixing: Tensor | None,
    ) -> Iterator[Batch]:
        """Make several batches in one pass, to save kernel launches on a GPU."""
        device_key = torch.full((), key, dtype=torch.int64, device=self.device)
        bytes_a_batch = 4 * self.batch_size * math.prod(stored.shape[1:])
        together = max(1, self.group_bytes // max(1, bytes_a_batch))
        for first in range(0, len(steps), together):
            group = slice(first, first + together)
            index = torch.cat(pieces[group])
            images, targets = self._group(device_key, index, stored, mixing)
            offset = 0
            for step, piece in zip(steps[group], pieces[group], strict=True):
                part = slice(offset, offset + step.size)
                valid = self._valid(step)
                yield Batch(images[part], targets[part], piece[: step.size], valid, step.count)
                offset += len(piece)

    def _mixing(self, epoch: int) -> Tensor | None:
        """Whether images are mixed in an epoch, on the device; None if all epochs are the same."""
        if self._mixed_epochs is None:
            return None
        return torch.full((), epoch < self._mixed_epochs, device=self.device)

    def _group(
        self, key: Tensor, index: Tensor, stored: Tensor, mixing: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the images and targets of several batches.

        Random numbers are drawn in a separate compiled pass; fused, they would be computed again
        for every pixel. The key is a tensor and sizes are dynamic, so that a new epoch or a smaller
        last group does not compile again.
        """
        labels = self._labels[index]
        if not self._compiled:
            draws = self._transform.draw(key, index)
            return self._transformed(draws, stored, index, labels, mixing)
        torch._dynamo.maybe_mark_dynamic(index, 0)
        torch._dynamo.maybe_mark_dynamic(labels, 0)
        draws = self._draw(key, index)
        torch._dynamo.maybe_mark_dynamic(draws.values, 1)
        return self._make(draws, stored, index, labels, mixing)

    def _epoch_plan(self, epoch: int) -> EpochPlan | None:
        """Return what this rank reads of a streamed split; None for other splits."""
        if self._stream is None or not len(self.split):
            return None
        key = make_key(self.seed, epoch, Purpose.ORDER) if self.shuffle else None
        return plan_epoch(self._stream, key, self.rank, self.world_size)

    def _order(self, epoch: int) -> Tensor:
        """Return the epoch's order for all ranks, repeated past its end to fill the last step."""
        size = len(self.split)
        in_memory = self._images is not None and not self.info.is_sequence
        device = self.device if in_memory else torch.device("cpu")
        if not size:
            return torch.empty(0, dtype=torch.int64, device=device)
        if self.shuffle:
            order = permutation(make_key(self.seed, epoch, Purpose.ORDER), size, device)
        else:
            order = torch.arange(size, device=device)
        if self.split.lengths is not None:
            order = self._grouped(order, self.split.lengths, epoch)
        return order.repeat(1 + -(-(self.world_size + 1) // size))

    def _grouped(self, order: Tensor, lengths: Tensor, epoch: int) -> Tensor:
        """Return the order with sequences of similar length in the same step."""
        if not self.shuffle:
            return order[torch.argsort(lengths[order], descending=True, stable=True)]
        together = self.batch_size * self.world_size
        steps = len(order) // together
        whole, rest = order[: steps * together], order[steps * together :]
        windows = torch.split(whole, _WINDOW * together)
        ordered = [part[torch.argsort(lengths[part], stable=True)] for part in windows]
        batches = torch.cat([*ordered, whole[:0]]).view(steps, together)
        key = make_key(self.seed, epoch, Purpose.BUCKETS)
        return torch.cat([batches[permutation(key, steps)].flatten(), rest])

    def _sequence_batches(self, steps: list[Step], order: Tensor) -> Iterator[Batch]:
        """Yield batches of symbols, cropped to the longest sequence of each."""
        assert self._images is not None
        lengths = self.split.lengths
        for step in steps:
            index = order[step.start : step.start + step.size]
            longest = self._images.shape[1]
            if lengths is not None:
                longest = min(longest, -(-int(lengths[index].max()) // GRANULE) * GRANULE)
            index = index.to(self.device, non_blocking=True)
            symbols = self._images[:, :longest][index].long()
            yield Batch(symbols, self._labels[index], index, self._valid(step), step.count)

    def _step(self, number: int) -> Step:
        together = self.batch_size * self.world_size
        first = number * together
        count = min(together, len(self.split) - first)
        size = -(-count // self.world_size)
        start, stop = first + self.rank * size, len(self.split)
        if self._stream is not None:  # every rank has its own order
            start, stop = number * self.batch_size, len(share(stop, self.rank, self.world_size))
        return Step(start, size, max(0, min(size, stop - start)), count / self.world_size)

    def _valid(self, step: Step) -> Tensor:
        return torch.arange(step.size, device=self.device) < step.num_valid

    def _requests(
        self, key: int, plan: EpochPlan | None, spans: list[range], pieces: list[Tensor]
    ) -> Iterator[Request]:
        """Yield the requests to the workers, which apply resized crops while decoding."""
        if self._stream is None or plan is None:
            yield from (Request(index.tolist(), self._boxes(key, index)) for index in pieces)
            return
        for index, contents in zip(pieces, fetch_spans(self._stream, plan, spans), strict=True):
            yield Request(index.tolist(), self._boxes(key, index), contents)

    def _boxes(self, key: int, index: Tensor) -> list[Box] | None:
        area = self._transform.config.resized_crop
        if area is None:
            return None
        boxes = resized_boxes(area, self._transform.draw(key, index)).T.tolist()
        return [(box[0], box[1], box[2], box[3]) for box in boxes]

    def _transformed(
        self, draws: Draws, stored: Tensor, rows: Tensor, labels: Tensor, mixing: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Transform `stored[rows]` by their draws and mix each image with the next one.

        With mixing, the last image of each piece is only the partner of the one before. If pieces
        are concatenated, the mixture of such an image is meaningless and the caller drops it.
        """
        cropped = self._images is None
        images = self._transform(stored, rows, draws, cropped=cropped)
        if not self._mixes:
            return images, labels
        images, weight = mix(images, draws, self._transform.config, mixing)
        return images, mix_targets(labels, weight, self.info.num_classes)


make_loader = Loader
