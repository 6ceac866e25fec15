"""mixup (arXiv:1710.09412) and cutmix (arXiv:1905.04899) with separate weights for each image.

An image is mixed with the next image of the epoch's order, which has its own augmentation. So a
mixture does not depend on the batch, and a batch of B mixed images is made from B + 1 images.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from saccade.config import AugmentConfig
from saccade.data.transform import Draws, Stream
from saccade.ops.compilation import constant_when_compiled

__all__ = ["mix", "mix_targets"]

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
