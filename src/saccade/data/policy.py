"""TrivialAugment (arXiv:2103.10158, "wide") and RandAugment (arXiv:1909.13719) on whole batches.

An operation, one of 31 magnitudes and a sign are drawn for every image. Tables map them to an
affine map and a value. The geometric operations of a batch are then one `grid_sample`, the
enhancements one blend, and so on. An image for which another operation was drawn gets values that
do not change it. So every operation is computed for every image.

Images are float (R, C, H, W) with integer levels 0..255 before and after every operation, as in
Pillow. Values are kept away from rounding boundaries by more than the floating-point error, and
blends are rounded in the same two steps everywhere. So the result for an image is the same in every
batch, on every device and compiled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["BINS", "OPERATIONS", "Policy", "apply_operations"]

BINS = 31
OPERATIONS = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
    *("brightness", "color", "contrast", "sharpness"),
    *("posterize", "solarize", "autocontrast", "equalize"),
)
_GEOMETRIC = slice(1, 6)
_OFF_MIDDLE = 1e-6
_BRIGHTNESS, _COLOR, _CONTRAST, _SHARPNESS, _POSTERIZE, _SOLARIZE, _AUTOCONTRAST, _EQUALIZE = range(
    6, 14
)


@dataclass(frozen=True)
class _Range:
    """The largest magnitudes of a policy; translations are in pixels or a fraction of the side."""

    shear: float
    translate: float
    rotate: float
    enhance: float
    posterize: float
    solarize: float
    translate_is_share: bool


_RANGES = {
    "trivial": _Range(0.99, 32, 135, 0.99, 6, 256, translate_is_share=False),
    "rand": _Range(0.3, 150 / 331, 30, 0.9, 4, 255, translate_is_share=True),
}


class Policy:
    """A policy for images of one size.

    Args:
        name: `trivial` for TrivialAugment or `rand` for RandAugment.
        size: Height and width.
        fill: Level of pixels uncovered by a geometric operation, float (1, C, 1, 1).
        num_ops: Number of successive operations; 1 for TrivialAugment.
        magnitude: Fixed magnitude bin of RandAugment; None draws one.
    """

    def __init__(
        self,
        name: Literal["trivial", "rand"],
        size: tuple[int, int],
        fill: Tensor,
        *,
        num_ops: int = 1,
        magnitude: int | None = None,
    ) -> None:
        self.num_ops, self.magnitude, self.fill = num_ops, magnitude, fill
        maps, values = _tables(_RANGES[name], size)
        self.maps, self.values = maps.to(fill.device), values.to(fill.device)

    def __call__(self, levels: Tensor, draws: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        """Apply the operations.

        Args:
            levels: float (R, C, H, W), integer levels.
            draws: For each successive operation, three tensors (R,) in [0, 1) that choose the
                operation, its magnitude and its sign.
        """
        for choice, strength, sign in draws:
            operation = (choice * len(OPERATIONS)).to(torch.int64)
            if self.magnitude is None:
                level = (strength * BINS).to(torch.int64)
            else:
                level = torch.full_like(operation, self.magnitude)
            row = (operation * BINS + level) * 2 + (sign < 0.5)
            levels = apply_operations(
                levels, operation, self.maps[row], self.values[row], self.fill
            )
        return levels


def apply_operations(
    levels: Tensor, operation: Tensor, maps: Tensor, values: Tensor, fill: Tensor
) -> Tensor:
    """Apply a separate operation to each image.

    Args:
        levels: float (R, C, H, W), integer levels.
        operation: int64 (R,), positions in `OPERATIONS`.
        maps: float (R, 6), affine maps from output to input coordinates, at pixel centers.
        values: float (R,), factor, step or threshold.
        fill: float (1, C, 1, 1).
    """
    chosen = operation[:, None, None, None]
    value = values[:, None, None, None]
    low, high = levels.amin((2, 3), keepdim=True), levels.amax((2, 3), keepdim=True)
    enhanced = (chosen >= _BRIGHTNESS) & (chosen <= _SHARPNESS)
    out = _blend(_degenerate(levels, chosen), levels, torch.where(enhanced, value, 1.0))
    out = _posterize(out, torch.where(chosen == _POSTERIZE, value, 1.0))
    out = torch.where(out < torch.where(chosen == _SOLARIZE, value, 256.0), out, 255 - out)
    stretched = (chosen == _AUTOCONTRAST) & (low < high)
    out = _stretch(out, torch.where(stretched, low, 0.0), torch.where(stretched, high, 255.0))
    out = torch.where(chosen == _EQUALIZE, _equalize(levels, high), out)
    geometric = (chosen >= _GEOMETRIC.start) & (chosen < _GEOMETRIC.stop)
    return torch.where(geometric, _warp(levels, maps, fill), out)


def _tables(limits: _Range, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the affine map (868, 6) and value (868,) of every (operation, bin, sign)."""
    maps, values = [], []
    for operation in OPERATIONS:
        for level in range(BINS):
            for sign in (1, -1):
                share = level / (BINS - 1)
                maps.append(_affine(operation, sign * share, limits, size))
                values.append(_value(operation, share, sign, limits))
    return torch.tensor(maps), torch.tensor(values)


def _affine(
    operation: str, share: float, limits: _Range, size: tuple[int, int]
) -> tuple[float, float, float, float, float, float]:
    height, width = size
    if operation == "shear_x":
        return 1, share * limits.shear, 0, 0, 1, 0
    if operation == "shear_y":
        return 1, 0, 0, share * limits.shear, 1, 0
    if operation in {"translate_x", "translate_y"}:
        side = width if operation == "translate_x" else height
        limit = limits.translate * side if limits.translate_is_share else limits.translate
        shift = math.trunc(share * min(limit, side))
        return (1, 0, shift, 0, 1, 0) if operation == "translate_x" else (1, 0, 0, 0, 1, shift)
    if operation == "rotate":
        angle = math.radians(share * limits.rotate)
        cos, sin = math.cos(angle), math.sin(angle)
        y, x = height / 2, width / 2
        return cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y
    return 1, 0, 0, 0, 1, 0


def _value(operation: str, share: float, sign: int, limits: _Range) -> float:
    if operation in {"brightness", "color", "contrast", "sharpness"}:
        return 1 + sign * share * limits.enhance
    if operation == "posterize":
        return float(2 ** round(share * limits.posterize))
    return limits.solarize * (1 - share)


def _warp(levels: Tensor, maps: Tensor, fill: Tensor) -> Tensor:
    """Sample each image bilinearly at the output pixel centers mapped by its affine map.

    Computed in float64. Blends by simple fractions often lie midway between two levels, so a small
    offset is added before rounding. Errors of 1e-13 then do not change the result.
    """
    height, width = levels.shape[-2:]
    centers = torch.arange(max(height, width), dtype=torch.float64, device=levels.device) + 0.5
    y, x = centers[None, :height, None], centers[None, None, :width]
    m = maps.double()[:, :, None, None].unbind(1)
    column = m[0] * x + m[1] * y + m[2]  # (R, H, W)
    row = m[3] * x + m[4] * y + m[5]
    grid = torch.stack([column * (2 / width) - 1, row * (2 / height) - 1], dim=-1)
    sampled = F.grid_sample((levels - fill).double(), grid, align_corners=False)
    return (sampled.add_(_OFF_MIDDLE).round() + fill).float()


def _degenerate(levels: Tensor, chosen: Tensor) -> Tensor:
    """Return the image to blend with: black, gray, the mean gray, or the smoothed image."""
    gray = _gray(levels)
    count = gray.shape[-1] * gray.shape[-2]
    total = gray.sum((2, 3), keepdim=True, dtype=torch.int64)
    mean = ((2 * total + count) // (2 * count)).float()
    flat = torch.where(chosen == _COLOR, gray, torch.where(chosen == _CONTRAST, mean, 0.0))
    return torch.where(chosen == _SHARPNESS, _smooth(levels), flat)


def _blend(start: Tensor, levels: Tensor, factor: Tensor) -> Tensor:
    """Blend as Pillow does.

    The first clamp does not change values; it keeps the product and the sum from being fused.
    """
    change = (factor * (levels - start)).clamp_(-512, 512)
    return change.add_(start).clamp_(0, 255).floor_()


def _gray(levels: Tensor) -> Tensor:
    """Return the luma (R, 1, H, W) in 16-bit fixed point; every product is exact in float32."""
    if levels.shape[1] != 3:
        return _whole_quotient(levels.sum(1, keepdim=True), levels.shape[1])
    red, green, blue = levels.split_with_sizes([1, 1, 1], dim=1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 32768) * 2.0**-16).floor()


def _smooth(levels: Tensor) -> Tensor:
    """Smooth with a 3 x 3 mean whose center has weight five; border pixels are unchanged."""
    height, width = levels.shape[-2:]
    if min(height, width) < 3:
        return levels
    across = levels[..., :-2] + levels[..., 1:-1] + levels[..., 2:]
    total = across[..., :-2, :] + across[..., 1:-1, :] + across[..., 2:, :]
    total = total + 4 * levels[..., 1:-1, 1:-1]
    inside = F.pad(_whole_quotient(total + 6, 13), (1, 1, 1, 1), value=-1.0)
    return torch.where(inside < 0, levels, inside)


def _posterize(levels: Tensor, step: Tensor) -> Tensor:
    return _whole_quotient(levels, step) * step


def _stretch(levels: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return _whole_quotient((levels - low) * 255, high - low)


def _equalize(levels: Tensor, high: Tensor) -> Tensor:
    """Equalize the histogram of every channel, with Pillow's integer rule."""
    planes = levels.flatten(2).to(torch.int64)  # (R, C, H W)
    counts = planes.new_zeros((*planes.shape[:2], 256), dtype=torch.int32)
    counts.scatter_add_(2, planes, counts.new_ones(()).expand_as(planes))
    darker = (levels < high).flatten(2).sum(2, keepdim=True, dtype=torch.int32)
    step = darker // 255  # (R, C, 1)
    before = counts.cumsum(2, dtype=torch.int32) - counts
    table = ((step // 2 + before) // step.clamp(min=1)).clamp(max=255)
    equal = table.to(levels.dtype).gather(2, planes).view(levels.shape)
    return torch.where(step[..., None] > 0, equal, levels)


def _whole_quotient(whole: Tensor, divisor: Tensor | int) -> Tensor:
    """Return `floor(whole / divisor)` of integers; adding 0.5 makes it safe from rounding."""
    return ((whole + 0.5) / divisor).floor()
