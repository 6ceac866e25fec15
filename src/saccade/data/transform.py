"""Augment and normalize uint8 images in one vectorized pass on the device.

The order is: crop (padded or resized), flip, policy, normalize, erase. Each image has its own
random numbers and is transformed independently of its batch. Uncovered pixels become the training
mean, which is zero after normalizing.

Then images may be mixed: mixup (arXiv:1710.09412) and cutmix (arXiv:1905.04899) with separate
weights for each image. An image is mixed with the next image of the epoch's order, which has its
own augmentation. So a mixture does not depend on the batch, and a batch of B mixed images is made
from B + 1 images.
"""

from __future__ import annotations

import math
from enum import IntEnum
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.config import AugmentConfig
from saccade.data.policy import Policy
from saccade.data.randomness import STREAMS, uniforms
from saccade.data.splits import DatasetInfo
from saccade.errors import ConfigError
from saccade.ops.compilation import constant_when_compiled

__all__ = ["Draws", "Stream", "Transform", "mix", "mix_targets", "resized_boxes"]

_RATIOS = 1024
_MAX_RATIO = 4 / 3


class Stream(IntEnum):
    """Indices of an image's random numbers; changing them changes the augmentation of all runs."""

    CROP_TOP = 0
    CROP_LEFT = 1
    CROP_AREA = 2
    CROP_RATIO = 3
    FLIP = 4
    ERASE = 5
    ERASE_Y = 6
    ERASE_X = 7
    MIX = 8
    MIX_KIND = 9
    MIX_WEIGHT = 10
    MIX_Y = 11
    MIX_X = 12
    POLICY = 16  # and the following ones, three per operation


class Draws:
    """The random numbers of some images, indexed by stream."""

    def __init__(
        self, key: int | Tensor, index: Tensor, streams: Tensor, rows: dict[int, int]
    ) -> None:
        self.values = uniforms(key, index, streams) if rows else index.new_empty((0, len(index)))
        self._rows = rows

    def __getitem__(self, stream: int) -> Tensor:
        return self.values[self._rows[stream]]


class Transform:
    """Convert uint8 images to normalized floats, with optional augmentation.

    Args:
        config: The augmentation; None only normalizes.
        info: Mean, standard deviation and size of the data set.
        device: Device of the images.
    """

    def __init__(
        self, config: AugmentConfig | None, info: DatasetInfo, device: torch.device
    ) -> None:
        self.config = config or AugmentConfig()
        _check(self.config, info)
        mean = torch.tensor(info.mean, dtype=torch.float64)
        std = torch.tensor(info.std, dtype=torch.float64)
        per_channel = (1, -1, 1, 1)
        self._scale = (1 / (255 * std)).float().view(per_channel).to(device)
        self._bias = (-mean / std).float().view(per_channel).to(device)
        self._fill = (255 * mean).round().float().view(per_channel).to(device)
        self._policy = self._make_policy(info)
        names = sorted(self._needed())
        self._streams = torch.tensor(names, dtype=torch.int64, device=device)
        self._rows = {stream: row for row, stream in enumerate(names)}

    def draw(self, key: int | Tensor, index: Tensor) -> Draws:
        """Draw the random numbers for the images at these positions of the split."""
        return Draws(key, index, self._streams.to(index.device), self._rows)

    def __call__(self, images: Tensor, rows: Tensor, draws: Draws, *, cropped: bool) -> Tensor:
        """Transform `images[rows]`.

        Args:
            images: uint8 (N, C, H, W).
            rows: int64 (R,).
            draws: Random numbers of the R images.
            cropped: True if resized crops were already applied while decoding.

        Returns:
            float32 (R, C, H, W).
        """
        config, inside = self.config, None
        if config.resized_crop is not None and not cropped:
            flip = draws[Stream.FLIP] < 0.5 if config.flip else None
            boxes = resized_boxes(config.resized_crop, draws)
            levels = _sample_boxes(images[rows].float(), boxes, flip).round()
        elif config.crop_padding or config.flip:
            levels, inside = self._shift_and_flip(images, rows, draws)
        else:
            levels = images[rows].float()
        if self._policy is not None:
            if inside is not None:
                levels, inside = torch.where(inside, levels, self._fill), None
            levels = self._policy(levels, self._policy_draws(draws))
        out = levels.mul_(self._scale).add_(self._bias)
        if inside is not None:
            out = out.mul_(inside)
        if config.erase:
            out = out.mul_(self._not_erased(draws, out.shape[-2:]))
        return out

    def _needed(self) -> set[int]:
        """Return the streams that this configuration uses."""
        config, needed = self.config, set[int]()
        if config.crop_padding:
            needed |= {Stream.CROP_TOP, Stream.CROP_LEFT}
        if config.resized_crop is not None:
            needed |= {Stream.CROP_TOP, Stream.CROP_LEFT, Stream.CROP_AREA, Stream.CROP_RATIO}
        if config.flip:
            needed |= {Stream.FLIP}
        if config.erase:
            needed |= {Stream.ERASE, Stream.ERASE_Y, Stream.ERASE_X}
        if config.mixup or config.cutmix:
            needed |= {Stream.MIX, Stream.MIX_KIND, Stream.MIX_WEIGHT, Stream.MIX_Y, Stream.MIX_X}
        if self._policy is not None:
            needed |= set(range(Stream.POLICY, Stream.POLICY + 3 * self._policy.num_ops))
        return needed

    def _make_policy(self, info: DatasetInfo) -> Policy | None:
        config = self.config
        if config.policy == "none":
            return None
        if config.policy == "trivial":
            return Policy("trivial", info.image_size, self._fill)
        num_ops, magnitude = config.rand_ops, config.rand_magnitude
        return Policy("rand", info.image_size, self._fill, num_ops=num_ops, magnitude=magnitude)

    def _policy_draws(self, draws: Draws) -> list[tuple[Tensor, Tensor, Tensor]]:
        assert self._policy is not None
        first = (Stream.POLICY + 3 * i for i in range(self._policy.num_ops))
        return [(draws[at], draws[at + 1], draws[at + 2]) for at in first]

    def _shift_and_flip(self, images: Tensor, rows: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Shift and mirror each image; also return the mask of pixels from inside the image."""
        channels, height, width = images.shape[1:]
        y = torch.arange(height, device=images.device)[None, :]
        x = torch.arange(width, device=images.device)[None, :]
        if self.config.flip:
            x = torch.where((draws[Stream.FLIP] < 0.5)[:, None], width - 1 - x, x)
        if padding := self.config.crop_padding:
            y = y + _below(draws[Stream.CROP_TOP], 2 * padding + 1)[:, None] - padding
            x = x + _below(draws[Stream.CROP_LEFT], 2 * padding + 1)[:, None] - padding
        inside = _within(y, 0, height)[:, None, :, None] & _within(x, 0, width)[:, None, None, :]
        y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
        channel = torch.arange(channels, device=images.device)[None, :, None, None]
        picked = rows[:, None, None, None], channel, y[:, None, :, None], x[:, None, None, :]
        return images[picked].float(), inside  # (R, C, H, W), (R, 1, H, W)

    def _not_erased(self, draws: Draws, size: torch.Size) -> Tensor:
        """Return a mask that is False in a square around a random pixel, clipped to the image."""
        height, width = size
        side = self.config.erase
        top = _below(draws[Stream.ERASE_Y], height) - side // 2
        left = _below(draws[Stream.ERASE_X], width) - side // 2
        y = torch.arange(height, device=top.device)[None, :]
        x = torch.arange(width, device=left.device)[None, :]
        rows = _within(y, top[:, None], (top + side)[:, None])
        if self.config.erase_probability < 1:
            rows = rows & (draws[Stream.ERASE] < self.config.erase_probability)[:, None]
        columns = _within(x, left[:, None], (left + side)[:, None])
        return ~(rows[:, None, :, None] & columns[:, None, None, :])  # (R, 1, H, W)


def resized_boxes(area: tuple[float, float], draws: Draws) -> Tensor:
    """Return random crops (4, R): top, left, height and width as fractions of the image.

    The aspect ratio of a crop, relative to the image's, is log-uniform in [3/4, 4/3].
    """
    smallest, largest = area
    share = smallest + draws[Stream.CROP_AREA] * (largest - smallest)
    ratios = _root_ratios(share.device)
    ratio = ratios[_below(draws[Stream.CROP_RATIO], _RATIOS)]
    side = share.sqrt()
    height, width = (side * ratio).clamp(max=1), (side / ratio).clamp(max=1)
    top = draws[Stream.CROP_TOP] * (1 - height)
    left = draws[Stream.CROP_LEFT] * (1 - width)
    return torch.stack([top, left, height, width])


@cache
def _root_ratios(device: torch.device) -> Tensor:
    """Return a table of square roots of the aspect ratios, evenly spaced in the logarithm.

    A table is used because vectorized `exp` can differ in the last bit by the position in a tensor.
    """
    steps = [(2 * i + 1) / _RATIOS - 1 for i in range(_RATIOS)]
    largest = math.log(_MAX_RATIO)
    return torch.tensor([math.exp(step * largest / 2) for step in steps], device=device)


def _sample_boxes(images: Tensor, boxes: Tensor, flip: Tensor | None) -> Tensor:
    """Resample each box of float images to the full size, bilinearly."""
    height, width = images.shape[-2:]
    top, left, box_height, box_width = boxes[:, :, None]
    y = (torch.arange(height, device=images.device) + 0.5) / height
    x = ((torch.arange(width, device=images.device) + 0.5) / width)[None, :]
    if flip is not None:
        x = torch.where(flip[:, None], 1 - x, x)
    rows = 2 * (top + y * box_height) - 1  # (R, H)
    columns = 2 * (left + x * box_width) - 1  # (R, W)
    shape = (len(images), height, width)
    grid = torch.stack([columns[:, None, :].expand(shape), rows[:, :, None].expand(shape)], -1)
    return F.grid_sample(images, grid, "bilinear", "border", align_corners=False)


def _below(uniform: Tensor, limit: int) -> Tensor:
    """Map uniform numbers to integers in [0, limit)."""
    return (uniform * limit).to(torch.int64)


def _within(value: Tensor, low: Tensor | int, high: Tensor | int) -> Tensor:
    return (value >= low) & (value < high)


def _check(config: AugmentConfig, info: DatasetInfo) -> None:
    side = min(info.image_size)
    if config.crop_padding and config.resized_crop is not None:
        raise ConfigError("augment.crop_padding and augment.resized_crop both crop: set one")
    if config.crop_padding >= side:
        raise ConfigError(
            f"augment.crop_padding must be less than {side}, the image size, got "
            f"{config.crop_padding}"
        )
    if config.policy == "rand" and Stream.POLICY + 3 * config.rand_ops > STREAMS:
        raise ConfigError(f"augment.rand_ops must be at most 80, got {config.rand_ops}")
    if config.erase > 2 * side:
        raise ConfigError(
            f"augment.erase must be at most {2 * side}, twice the image size, got {config.erase}"
        )


_QUANTILES = 1 << 14


def mix(
    images: Tensor, draws: Draws, config: AugmentConfig, enabled: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mix each image with the next one.

    Args:
        images: float (B + 1, C, H, W), in the epoch's order.
        draws: Random numbers of these B + 1 images.
        config: The augmentation; at least one of `mixup` and `cutmix` must be above 0.
        enabled: bool scalar; False mixes no image. A tensor, so that a compiled pass need not be
            compiled again when it changes.

    Returns:
        The B mixtures, and the weight (B,) of each image in its own mixture.
    """
    height, width = images.shape[-2:]
    share, box = _cut_boxes(draws, config, height, width)
    cut = _takes_cutmix(draws, config)
    blend = _beta(config.mixup, draws[Stream.MIX_WEIGHT][:-1])
    if config.mix_probability < 1 or enabled is not None:
        mixed = draws[Stream.MIX][:-1] < config.mix_probability
        mixed = mixed if enabled is None else mixed & enabled
        share, blend = torch.where(mixed, share, 1.0), torch.where(mixed, blend, 1.0)
        box = box & mixed[:, None, None, None]
    weight = torch.where(cut[:, None, None, None], (~box).float(), blend[:, None, None, None])
    out = images[:-1] * weight + images[1:] * (1 - weight)
    return out, torch.where(cut, share, blend)


def mix_targets(labels: Tensor, weight: Tensor, num_classes: int) -> Tensor:
    """Return soft targets (B, K) from the B + 1 labels and the B weights."""
    classes = torch.arange(num_classes, device=labels.device)
    one_hot = (labels[:, None] == classes).float()
    return one_hot[:-1] * weight[:, None] + one_hot[1:] * (1 - weight)[:, None]


def _takes_cutmix(draws: Draws, config: AugmentConfig) -> Tensor:
    """Return the mask of images with cutmix, half of the images on average if both are on."""
    share = 0.5 if config.mixup and config.cutmix else float(config.cutmix > 0)
    return draws[Stream.MIX_KIND][:-1] < share


def _cut_boxes(
    draws: Draws, config: AugmentConfig, height: int, width: int
) -> tuple[Tensor, Tensor]:
    """Return the exact share of pixels kept, and masks (B, 1, H, W) of the partner's pixels.

    Roots and quotients are computed in float64 and rounded to float32. Compiled float32 ones can
    differ in the last bit.
    """
    side = (1 - _beta(config.cutmix, draws[Stream.MIX_WEIGHT][:-1])).double().sqrt().float()
    spans, area = [], torch.ones_like(side)
    for length, stream in ((height, Stream.MIX_Y), (width, Stream.MIX_X)):
        center = (draws[stream][:-1] * length).floor()
        extent = (side * length).floor()
        low = center - (extent * 0.5).floor()
        at = torch.arange(length, device=side.device)[None, :]
        spans.append((at >= low[:, None]) & (at < (low + extent)[:, None]))  # (B, length)
        area = area * ((low + extent).clamp(max=length) - low.clamp(min=0))
    box = spans[0][:, None, :, None] & spans[1][:, None, None, :]
    return 1 - (area.double() / (height * width)).float(), box


def _beta(alpha: float, uniform: Tensor) -> Tensor:
    """Map uniform numbers to Beta(alpha, alpha) by a table of quantiles; return 1 if alpha is 0."""
    if alpha == 0:
        return torch.ones_like(uniform)
    if alpha == 1:
        return uniform
    table = _constant_quantiles(alpha, uniform.device)
    return table[(uniform * _QUANTILES).to(torch.int64)]


@constant_when_compiled
def _constant_quantiles(alpha: float, device: torch.device) -> Tensor:
    """Return the quantiles as a constant for torch.compile."""
    return _beta_quantiles(alpha, device)


@cache
def _beta_quantiles(alpha: float, device: torch.device) -> Tensor:
    from scipy.special import betaincinv

    middles = (torch.arange(_QUANTILES, dtype=torch.float64) + 0.5) / _QUANTILES
    quantiles = betaincinv(alpha, alpha, middles.numpy())
    return torch.from_numpy(quantiles).float().to(device)
