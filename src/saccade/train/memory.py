"""Out of memory: recognise it, and find the batch that fits."""

from __future__ import annotations

import gc

import torch
from torch import nn

__all__ = ["batch_that_fits", "is_out_of_memory"]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device or the host has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = (
        "can't allocate memory",
        "could not create a primitive",
    )  # torch's and oneDNN's, on CPU
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def batch_that_fits(
    model: nn.Module, shape: tuple[int, ...], device: torch.device, autocast: torch.dtype | None
) -> int:
    """The largest of size/2, size/4, ... whose forward and backward pass runs; 0 if none does.

    Args:
        model: The bare network.
        shape: (B, C, H, W) of the batch that did not fit.
        device: Where to try.
        autocast: Lower precision of the run, if any.
    """
    size = shape[0] // 2
    while size:
        model.zero_grad(set_to_none=True)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if _runs(model, (size, *shape[1:]), device, autocast):
            break
        size //= 2
    return size


def _runs(
    model: nn.Module, shape: tuple[int, ...], device: torch.device, autocast: torch.dtype | None
) -> bool:
    """Whether one pass runs; a function of its own, so that a failed graph is let go."""
    try:
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            logits = model(torch.zeros(shape, device=device))
        logits.float().logsumexp(1).sum().backward()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
