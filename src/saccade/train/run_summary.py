"""What a run measures: speed, peak memory, last validation accuracy, skipped images."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from saccade.data import Loader
from saccade.train.distributed import Ranks

__all__ = [
    "MIB",
    "holds_earlier_runs",
    "last_val_accuracy",
    "measured_speed",
    "median_speed",
    "peak_memory_mib",
    "skipped_images",
    "start_peak_memory",
]

MIB = 1 << 20
MAX_NAMED = 20
"""Unreadable images of a split that are named; the others are only counted."""

_PROCESS = Path("/proc/self")
_devices_used: set[str] = set()
"""Device types on which this process has started a run."""


def measured_speed(images: int, seconds: float) -> dict[str, float]:
    """`seconds` and `img_per_s`, with six significant digits each."""
    return {"seconds": _six_digits(seconds), "img_per_s": _six_digits(images / seconds)}


def median_speed(
    epochs: Sequence[Mapping[str, Any]], images_per_epoch: int
) -> dict[str, float | None]:
    """Speed and duration of the median epoch; None if the rows of `metrics.jsonl` are lost."""
    speeds = [row["img_per_s"] for row in epochs if row["img_per_s"]]  # old runs may hold 0.0
    if not speeds:
        return {"seconds_per_epoch": None, "img_per_s": None}
    img_per_s = statistics.median(speeds[1:] or speeds)  # the first epoch warms up
    return {"seconds_per_epoch": _six_digits(images_per_epoch / img_per_s), "img_per_s": img_per_s}


def last_val_accuracy(epochs: Sequence[Mapping[str, Any]], last: int) -> float | None:
    """Validation accuracy of epoch `last`; None without validation, or if the row is lost."""
    return next((row["val_accuracy"] for row in epochs if row["epoch"] == last), None)


def skipped_images(loaders: Mapping[str, Loader | None], ranks: Ranks) -> dict[str, Any]:
    """The images of each split that could not be read in any process, as JSON values.

    Every process must call this after the splits were read.

    Returns:
        For each split with unreadable images, their `count` and the first `faults`.
    """
    found = {}
    for name, loader in loaders.items():
        faults: dict[int, str] = {}
        for part in ranks.gather(dict(loader.bad_images) if loader is not None else {}):
            faults |= part
        if faults:
            named = [faults[place] for place in sorted(faults)[:MAX_NAMED]]
            found[name] = {"count": len(faults), "faults": named}
    return found


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


def _six_digits(value: float) -> float:
    """`value` to six significant digits: durations and speeds span many orders of magnitude."""
    return float(f"{value:.6g}")
