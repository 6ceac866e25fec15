"""A training step recorded once as a CUDA graph and played again for every batch.

A step of a small network is more than a thousand launches, and the host takes longer to ask for
them than the device to do them. A recording asks for all of them at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from saccade.data import Batch
from saccade.train.memory import is_out_of_memory

__all__ = ["Recording"]

WARM_UPS = 3


class Recording:
    """Takes steps; after a few of one shape it records the next and plays it from then on.

    The first ones compile kernels and make the optimisers' state, which a recording cannot. Batches
    of another shape, such as the last of an epoch, are stepped as they come.

    Args:
        step: One step on the device, random draws included. Between two calls all that it reads
            beside the batch may change in place only, and it must not wait for the device.
    """

    def __init__(self, step: Callable[[Batch], Tensor]) -> None:
        self._step = step
        self._shape: object = None
        self._alike = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._possible = True

    def __call__(self, batch: Batch) -> Tensor:
        """The loss of a step on this batch; the next call may overwrite it."""
        shape = [(tensor.shape, tensor.dtype) for tensor in _tensors(batch)]
        if self._graph is None and self._possible:
            self._alike = self._alike + 1 if shape == self._shape else 1
            self._shape = shape
            if self._alike > WARM_UPS:
                self._record(batch)
        if self._graph is None or shape != self._shape:
            return self._step(batch)
        for place, tensor in zip(_tensors(self._batch), _tensors(batch), strict=True):
            place.copy_(tensor)
        self._graph.replay()
        return self._loss

    def _record(self, batch: Batch) -> None:
        """Record a step, or warn that it cannot be; nothing is computed yet."""
        images, targets, valid = (torch.empty_like(tensor) for tensor in _tensors(batch))
        self._batch = Batch(images, targets, index=batch.index, valid=valid, count=batch.count)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._loss = self._step(self._batch)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            self._possible = False
            reason = str(error).splitlines()[0]
            warnings.warn(
                f"steps are not recorded as a CUDA graph, so they may be slower: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            self._graph = graph


def _tensors(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.images, batch.targets, batch.valid
