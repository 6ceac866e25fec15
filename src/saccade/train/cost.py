"""Estimate the time of an epoch on image files by a short step on this device."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from saccade.config import Config
from saccade.data import Split, Splits
from saccade.data.images import DEFAULT_IMAGE_SIZE, BadImageError
from saccade.errors import is_out_of_memory
from saccade.train.build import build_model
from saccade.train.distributed import connect
from saccade.train.step import PRECISIONS

__all__ = ["describe_cost", "warn_of_default_size"]

_log = logging.getLogger(__name__)

LONG_ENOUGH_S = 0.2
READ_IMAGES = 8
FEW_TOKENS_A_SIDE = 8


def describe_cost(config: Config, splits: Splits, device: torch.device, world_size: int = 1) -> str:
    """One line with the tokens of an image and the time of an epoch; empty for data in memory.

    If `data.image_size` is not set, the line says so and names a size with fewer tokens. The step
    is taken by a separate model and leaves the random generators of the run unchanged.
    """
    if splits.train.images is not None or not len(splits.train):
        return ""
    side = max(splits.info.image_size)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        model = build_model(config, splits.info).to(device).train()
        stem = cast(Any, model).patch_embed
        tokens, patch = stem.num_patches + cast(Any, model).num_prefix_tokens, stem.stride
        seconds = _seconds_an_image(model, config, splits, device)
    line = f"images of {side} x {side} make {tokens:,} tokens with a patch of {patch}"
    if seconds is None:
        line += f"; a step with one image does not fit on {device}"
    else:
        steps, images = _steps_and_images(len(splits.train), config.train.batch_size)
        epoch = _duration(images / world_size * seconds)
        line += f"; an epoch of {steps:,} steps takes about {epoch} on {device}"
    if config.data.image_size is not None:
        return line
    fewer = FEW_TOKENS_A_SIDE * patch
    hint = f"data.image_size={fewer} makes {FEW_TOKENS_A_SIDE**2} patches" if fewer < side else ""
    line = f"data.image_size is not set, so it is {DEFAULT_IMAGE_SIZE}: {line}"
    return f"{line}; {hint}" if hint else line


def warn_of_default_size(config: Config, splits: Splits) -> None:
    """Log the line of `describe_cost` once for many runs, if `data.image_size` is not set."""
    if config.data.image_size is None:
        device = connect(config.train.device).device
        if line := describe_cost(config, splits, device):
            _log.warning("%s", line)


def _steps_and_images(num_images: int, batch_size: int) -> tuple[int, int]:
    """Steps of an epoch and the images in them: full batches, or one step with all images."""
    steps = num_images // batch_size
    return (steps, steps * batch_size) if steps else (1, num_images)


def _seconds_an_image(
    model: nn.Module, config: Config, splits: Splits, device: torch.device
) -> float | None:
    """Seconds per image, for computing or reading, whichever is slower; None if memory ran out."""
    try:
        computing = _step_seconds(model, config, splits, device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None
    return max(computing, _reading_seconds(splits.train) / max(1, config.data.workers))


def _step_seconds(model: nn.Module, config: Config, splits: Splits, device: torch.device) -> float:
    """Seconds per image of a forward and backward pass, on a batch large enough to time."""
    shape = (splits.info.channels, *splits.info.image_size)
    for count in _counts(config.train.batch_size // config.train.accumulation):
        images = torch.zeros(count, *shape, device=device)
        if count == 2:
            _step(model, config, images)  # the first one warms up
        start = time.perf_counter()
        _step(model, config, images)
        seconds = time.perf_counter() - start
        if seconds > LONG_ENOUGH_S:
            break
    return seconds / count


def _counts(most: int) -> Iterator[int]:
    count = 2  # batch norm cannot train on one value
    while count < most:
        yield count
        count *= 4
    yield max(2, most)


def _step(model: nn.Module, config: Config, images: Tensor) -> None:
    precision = PRECISIONS[config.train.precision]
    with torch.autocast(images.device.type, precision, enabled=precision is not None):
        loss = model(images).float().square().mean()
    loss.backward()
    if images.is_cuda:
        torch.cuda.synchronize(images.device)


def _reading_seconds(split: Split) -> float:
    """Seconds to read an image, measured on a few evenly spaced ones."""
    if split.source is None or split.stream is not None:
        return 0.0
    places = range(0, len(split), -(-len(split) // READ_IMAGES))
    start = time.perf_counter()
    for place in places:
        try:
            split.source.read(place)
        except BadImageError:
            continue
    return (time.perf_counter() - start) / len(places)


def _duration(seconds: float) -> str:
    """Human-readable duration."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
