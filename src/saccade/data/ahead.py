"""Making the next batches on a GPU while the last ones are trained on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

__all__ = ["made_ahead"]


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The same one every time: torch keeps memory for each stream that ever used some."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def made_ahead(
    made: Iterator[tuple[Tensor, ...]], device: torch.device
) -> Iterator[tuple[Tensor, ...]]:
    """The same tensors; on a GPU the next ones are made on a stream of their own meanwhile.

    Args:
        made: Makes tensors on the device as it goes, without waiting for it.
        device: Where.
    """
    if device.type != "cuda":
        yield from made
        return
    stream = _side_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))

    def launch() -> tuple[Tensor, ...] | None:
        with torch.cuda.stream(stream):
            return next(made, None)

    try:
        tensors = launch()
        while tensors is not None:
            using = torch.cuda.current_stream(device)
            using.wait_stream(stream)
            for tensor in tensors:
                tensor.record_stream(using)
            following = launch()
            yield tensors
            tensors = following
    finally:  # what is still being made reads tensors that may be freed after this
        torch.cuda.current_stream(device).wait_stream(stream)
