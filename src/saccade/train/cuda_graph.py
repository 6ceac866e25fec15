"""A training step captured once as a CUDA graph and replayed for every batch.

A step of a small network has more than a thousand kernel launches, and the host takes longer to
launch them than the device to run them. Replaying a graph is a single launch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from saccade.data import Batch
from saccade.train.memory import is_out_of_memory

__all__ = ["CudaGraphStep"]

WARM_UPS = 3


class CudaGraphStep:
    """A training step that is captured as a CUDA graph after a few batches of the same shape.

    The first steps run normally: they compile kernels and create the optimizer state, which cannot
    be captured. Batches of another shape, such as the last of an epoch, always run normally.

    Args:
        step: One step on the device, including random draws. It must not wait for the device.
            Between two calls, tensors that it reads besides the batch may only change in place.
    """

    def __init__(self, step: Callable[[Batch], Tensor]) -> None:
        self._step = step
        self._shape: object = None
        self._alike = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._possible = True

    def __call__(self, batch: Batch) -> Tensor:
        """Take a step on this batch; return its loss, which the next call may overwrite."""
        shape = [(tensor.shape, tensor.dtype) for tensor in _tensors(batch)]
        if self._graph is None and self._possible:
            self._alike = self._alike + 1 if shape == self._shape else 1
            self._shape = shape
            if self._alike > WARM_UPS:
                self._capture(batch)
        if self._graph is None or shape != self._shape:
            return self._step(batch)
        for place, tensor in zip(_tensors(self._batch), _tensors(batch), strict=True):
            place.copy_(tensor)
        self._graph.replay()
        return self._loss

    def _capture(self, batch: Batch) -> None:
        """Capture a step without running it; warn if it cannot be captured."""
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
                f"steps cannot be captured as a CUDA graph and may be slower: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            self._graph = graph


def _tensors(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.images, batch.targets, batch.valid
