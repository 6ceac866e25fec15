"""Parts of a run's summary: speed, last validation accuracy, skipped images."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from saccade.data import Loader
from saccade.train.distributed import Ranks

__all__ = ["last_val_accuracy", "measured_speed", "median_speed", "skipped_images"]

MAX_NAMED = 20
"""Unreadable images of a split that are named; the others are only counted."""


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

    Args:
        loaders: The loader of each split, after it was read.
        ranks: The processes that read the splits; every one of them must call this function.

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


def _six_digits(value: float) -> float:
    """`value` to six significant digits: durations and speeds span many orders of magnitude."""
    return float(f"{value:.6g}")
