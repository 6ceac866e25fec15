"""A map laid over its image: the image gives the shades of grey, the map the colours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from saccade.errors import ConfigError

__all__ = ["COLOURMAP", "overlay", "pixels"]

COLOURMAP = "inferno"
LUMA = (0.299, 0.587, 0.114)
DARKEST, LIGHTEST = 0.22, 0.9
"""Greys that black and white become below a map: colours stay readable on both."""


def pixels(image: Tensor, size: int) -> NDArray[np.float32]:
    """An image (C, H, W) in 0..1 as RGB (size, size', 3), its pixels kept as sharp squares."""
    if image.dim() != 3 or image.shape[0] not in (1, 3):
        raise ConfigError(f"image has shape {tuple(image.shape)}: expected (1 or 3, height, width)")
    values = image.detach().float().cpu().clamp(0, 1).expand(3, -1, -1)
    shown = F.interpolate(values[None], _scaled(image.shape[-2:], size), mode="nearest-exact")[0]
    return np.ascontiguousarray(shown.permute(1, 2, 0).numpy())


def overlay(
    image: Tensor,
    weights: Tensor,
    *,
    size: int = 256,
    opacity: float = 0.5,
    limits: tuple[float, float] | None = None,
) -> NDArray[np.uint8]:
    """Colour an image by the weights of its patches.

    Args:
        image: (1 or 3, height, width), in 0..1.
        weights: (rows, columns), one a patch.
        size: Pixels of the longer side of what comes out.
        opacity: 0 shows the image alone, 1 the map alone.
        limits: Weights that get the first and the last colour; the map's own by default.

    Returns:
        RGB, uint8 (height, width, 3).
    """
    import matplotlib

    if weights.dim() != 2:
        raise ConfigError(f"weights has shape {tuple(weights.shape)}: expected (rows, columns)")
    if not 0 <= opacity <= 1:
        raise ConfigError(f"opacity={opacity!r}: expected a number in [0, 1]")
    ground = pixels(image, size)
    grey = (ground @ np.array(LUMA, dtype=np.float32))[..., None]
    ground = (1 - opacity) * ground + opacity * (DARKEST + (LIGHTEST - DARKEST) * grey)
    values = weights.detach().double().cpu()
    low, high = (float(values.min()), float(values.max())) if limits is None else limits
    level = ((values - low) / max(high - low, torch.finfo(torch.float64).tiny)).clamp(0, 1)
    smooth = F.interpolate(
        level[None, None], ground.shape[:2], mode="bilinear", align_corners=False
    )[0, 0]
    colour = matplotlib.colormaps[COLOURMAP](smooth.numpy())[..., :3]
    # The heavier a weight, the more its colour covers what is below it.
    cover = (opacity ** (1 - 0.6 * smooth.numpy()))[..., None]
    mixed: NDArray[np.float64] = (1 - cover) * ground + cover * colour
    return (255 * mixed).round().clip(0, 255).astype(np.uint8)


def _scaled(sides: Sequence[int], size: int) -> tuple[int, int]:
    """Height and width with the longer one brought to `size`."""
    height, width = sides
    return (round(height * size / max(sides)), round(width * size / max(sides)))
