"""Batches of sequences: padded ones are grouped by length and cropped to the longest of a batch.

The order of an epoch is a function of (seed, epoch). For training, the shuffled sequences are
sorted by length within windows of `WINDOW` steps, and then the steps are shuffled. For evaluation,
all sequences are sorted, longest first. Lengths of batches are multiples of `GRANULE`, so that
there are few different shapes. Sequences of one length keep the plain order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from saccade.data.loader import Batch, Loader
from saccade.data.randomness import Purpose, make_key, permutation

__all__ = ["GRANULE", "WINDOW", "SequenceLoader"]

WINDOW = 32
"""Steps whose sequences are sorted together: padding is less than with shuffled batches."""
GRANULE = 64
"""The length of a batch is a multiple of it, unless that is more than the longest sequence."""


class SequenceLoader(Loader):
    """Batches of symbols (B, N), int64; see `make_loader` for the arguments."""

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, from `start_batch` on."""
        assert self._images is not None
        order, lengths = self._order(epoch), self.split.lengths
        for number in range(start_batch, len(self)):
            step = self._step(number)
            index = order[step.start : step.start + step.size]
            longest = self._images.shape[1]
            if lengths is not None:
                longest = min(longest, -(-int(lengths[index].max()) // GRANULE) * GRANULE)
            index = index.to(self.device, non_blocking=True)
            symbols = self._images[:, :longest][index].long()
            yield Batch(symbols, self._labels[index], index, self._valid(step), step.count)

    def _order(self, epoch: int) -> Tensor:
        """The epoch's order for all ranks, on the CPU, repeated to fill the last step."""
        size = len(self.split)
        if self.shuffle:
            order = permutation(make_key(self.seed, epoch, Purpose.ORDER), size)
        else:
            order = torch.arange(size)
        if self.split.lengths is not None and size:
            order = self._grouped(order, self.split.lengths, epoch)
        return order.repeat(1 + -(-(self.world_size + 1) // max(1, size)))

    def _grouped(self, order: Tensor, lengths: Tensor, epoch: int) -> Tensor:
        """The order with sequences of similar length in the same step."""
        if not self.shuffle:
            return order[torch.argsort(lengths[order], descending=True, stable=True)]
        together = self.batch_size * self.world_size
        steps = len(order) // together
        whole, rest = order[: steps * together], order[steps * together :]
        windows = torch.split(whole, WINDOW * together)
        ordered = [part[torch.argsort(lengths[part], stable=True)] for part in windows]
        batches = torch.cat([*ordered, whole[:0]]).view(steps, together)
        key = make_key(self.seed, epoch, Purpose.BUCKETS)
        return torch.cat([batches[permutation(key, steps)].flatten(), rest])
