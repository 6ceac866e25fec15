"""Memory: how much a run took at most, whether it ran out, and the batch that fits."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from saccade.errors import TrainingError

__all__ = [
    "batch_that_fits",
    "is_out_of_memory",
    "peak_memory_mib",
    "start_peak_memory",
    "too_many_images",
    "unless_out_of_memory",
]

T = TypeVar("T")

MIB = 1 << 20
_PROCESS = Path("/proc/self")


def start_peak_memory(device: torch.device) -> None:
    """Forget the peak so far."""
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        (_PROCESS / "clear_refs").write_text("5")
    except OSError:
        return  # not Linux, or not allowed: the peak is then that of the whole process


def peak_memory_mib(device: torch.device) -> float | None:
    """The most memory since `start_peak_memory`: torch's tensors on a GPU, else the whole process.

    None where the system does not say.
    """
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / MIB, 1)
    try:
        lines = (_PROCESS / "status").read_text().splitlines()
    except OSError:
        return None
    return next((round(int(x.split()[1]) / 1024, 1) for x in lines if x.startswith("VmHWM:")), None)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device or the host has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = (
        "can't allocate memory",
        "could not create a primitive",
    )  # torch's and oneDNN's, on CPU
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def unless_out_of_memory(act: Callable[[], T], tell: Callable[[], TrainingError]) -> T:
    """What `act` gives; where memory runs out in it, the error that `tell` makes is raised."""
    try:
        return act()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Out of the handler, whose traceback holds on to the tensors.
    raise tell()


def too_many_images(asked: str, fits: int, advice: str) -> TrainingError:
    """The error of a batch that does not fit.

    Args:
        asked: How many images at once did not fit, and where.
        fits: How many would; 0 where not even one does.
        advice: What to set to have so many.
    """
    told = f"out of memory: {asked}"
    if not fits:
        return TrainingError(f"{told}, and neither does one; use a smaller model or image size")
    return TrainingError(f"{told}, {fits} do: use {advice}")


def batch_that_fits(
    model: nn.Module,
    shape: tuple[int, ...],
    device: torch.device,
    autocast: torch.dtype | None,
    *,
    backward: bool = True,
) -> int:
    """The largest of size/2, size/4, ... that the model can pass through; 0 if there is none.

    Args:
        model: The bare network.
        shape: (B, C, H, W) of the batch that did not fit.
        device: Where to try.
        autocast: Lower precision of the run, if any.
        backward: Whether a backward pass has to fit as well.
    """
    size = shape[0] // 2
    while size:
        model.zero_grad(set_to_none=True)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        with torch.set_grad_enabled(backward):
            runs = _runs(model, (size, *shape[1:]), device, autocast)
        if runs:
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
        loss = logits.float().logsumexp(1).sum()
        if loss.requires_grad:
            loss.backward()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
