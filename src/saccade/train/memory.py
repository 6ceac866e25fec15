"""Memory: the peak of a run, out-of-memory errors, and the batch size that fits."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from saccade.errors import TrainingError, is_out_of_memory

__all__ = [
    "batch_that_fits",
    "holds_earlier_runs",
    "is_out_of_memory",
    "peak_memory_mib",
    "start_peak_memory",
    "too_many_images",
    "translate_out_of_memory",
]

T = TypeVar("T")

MIB = 1 << 20
_PROCESS = Path("/proc/self")
_devices_used: set[str] = set()
"""Device types on which this process has started a run."""


def holds_earlier_runs(device: torch.device) -> bool:
    """True if the peak memory of the run that starts now includes memory of earlier runs.

    The CPU peak is that of the process, which keeps memory that earlier runs have freed.
    """
    is_first = device.type not in _devices_used
    _devices_used.add(device.type)
    return device.type != "cuda" and not is_first


def start_peak_memory(device: torch.device) -> None:
    """Reset the peak."""
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        (_PROCESS / "clear_refs").write_text("5")
    except OSError:
        return  # not Linux, or not permitted: the peak is then that of the whole process


def peak_memory_mib(device: torch.device) -> float | None:
    """Peak memory since `start_peak_memory`: torch's tensors on a GPU, else the whole process.

    None if the system does not report it.
    """
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / MIB, 1)
    try:
        lines = (_PROCESS / "status").read_text().splitlines()
    except OSError:
        return None
    return next((round(int(x.split()[1]) / 1024, 1) for x in lines if x.startswith("VmHWM:")), None)


def translate_out_of_memory(act: Callable[[], T], make_error: Callable[[], TrainingError]) -> T:
    """Return `act()`; if it runs out of memory, raise `make_error()` instead."""
    try:
        return act()
    except BaseException as error:
        if not is_out_of_memory(error):
            raise
    # Outside the handler, because the traceback keeps the tensors alive.
    raise make_error()


def too_many_images(asked: str, fits: int, advice: str) -> TrainingError:
    """The error of a batch that does not fit into memory.

    Args:
        asked: A clause that names the number of images and the device, such as "8 images at once do
            not fit on cuda".
        fits: The number of images that fit; 0 if not even one does.
        advice: The setting that uses this number.
    """
    message = f"out of memory: {asked}"
    if not fits:
        return TrainingError(f"{message}, and neither does one; use a smaller model or image size")
    return TrainingError(f"{message}, {fits} do: use {advice}")


def batch_that_fits(
    model: nn.Module,
    shape: tuple[int, ...],
    device: torch.device,
    autocast: torch.dtype | None,
    *,
    backward: bool = True,
) -> int:
    """The largest batch size of size/2, size/4, ... that fits into memory; 0 if none does.

    Args:
        model: The unwrapped network.
        shape: (B, C, H, W) of the batch that did not fit, or (B, N) for sequences.
        device: The device to try on.
        autocast: The lower precision of the run, if any.
        backward: Include a backward pass.
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
    """True if one pass fits; a separate function, so that a failed graph is freed."""
    try:
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            dtype = torch.int64 if len(shape) == 2 else torch.float32
            logits = model(torch.zeros(shape, dtype=dtype, device=device))
        loss = logits.float().logsumexp(1).sum()
        if loss.requires_grad:
            loss.backward()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
