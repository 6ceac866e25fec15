"""A classification task for large images: which kind of small target is the most frequent one?

An image is a field of gray noise with small shapes of a fixed size in pixels: targets of the
image's class, and distractors of the seven other kinds, in random positions, rotations and colors.
The number of shapes grows with the area, so that a class cannot be recognized from a part of the
image with few shapes, nor from patches in which the kinds look the same. Image `i` is a pure
function of (seed, part, i, size). Its class is `i mod 8`. Images are drawn on the device of their
index, a thousand large ones in seconds on a GPU.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from saccade.data.randomness import Purpose, make_key, random_bits
from saccade.data.shapes import SHAPES, inside_shape

__all__ = ["TARGET_CLASSES", "num_targets", "render_targets"]

TARGET_CLASSES = SHAPES
CELL = 32
"""There is one shape for every square of this side in pixels, and eight at least."""
RADIUS = (3.5, 5.0)
WINDOW = 11  # pixels; no shape is larger
SHARE = 0.4
"""Share of the shapes that are of the image's class; the other kinds share the rest."""
GROUND, NOISE = 0.5, 0.08
_DRAWS = 8  # random numbers of a shape
_BYTES = 8  # of random bits, each the noise of one pixel


def num_targets(size: int) -> int:
    """Number of shapes in an image of this side."""
    return max(8, (size // CELL) ** 2)


def render_targets(
    index: Tensor, size: int, part: Literal["train", "test"] = "train", seed: int = 0
) -> Tensor:
    """Draw images.

    Args:
        index: int64 (R,), on the device that draws.
        size: Side of the images in pixels, at least 16.
        part: `train` and `test` have different images.
        seed: Seed of all images.

    Returns:
        uint8 (R, 3, size, size).
    """
    key = make_key(seed, ("train", "test").index(part), Purpose.TARGETS)
    images = _ground(key, index, size)
    count = num_targets(size)
    counters = index[:, None] * (1 << 32) + torch.arange(count * _DRAWS, device=index.device)
    draws = _uniform(random_bits(key, counters)).view(len(index), count, _DRAWS)
    places, masks = _windows(draws, _kinds(index, draws), size)
    colors = (draws[..., 5:8] * 255).to(torch.uint8)  # (R, G, 3)
    _paint(images, places, masks, colors)
    return images


def _kinds(index: Tensor, draws: Tensor) -> Tensor:
    """The kind of each shape, (R, G): the image's class for the first `SHARE` of them."""
    rows, count = draws.shape[:2]
    label = (index % len(SHAPES))[:, None].expand(rows, count)
    others = (label + 1 + (draws[..., 0] * (len(SHAPES) - 1)).long()) % len(SHAPES)
    is_target = torch.arange(count, device=index.device) < round(SHARE * count)
    return torch.where(is_target, label, others)


def _windows(draws: Tensor, kinds: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The top left pixel (R, G, 2) of each shape's window, and its mask (R, G, W, W)."""
    low, high = RADIUS
    radius = low + (high - low) * draws[..., 1]
    places = (draws[..., 2:4] * (size - WINDOW)).long()
    turn = 2 * torch.pi * draws[..., 4]
    at = torch.arange(WINDOW, device=draws.device) - (WINDOW - 1) / 2
    x, y = (grid / radius[..., None, None] for grid in (at[None, :], at[:, None]))
    cos, sin = turn.cos()[..., None, None], turn.sin()[..., None, None]
    x, y = cos * x + sin * y, cos * y - sin * x
    masks = torch.zeros(x.shape, dtype=torch.bool, device=draws.device)
    for kind in range(len(SHAPES)):
        chosen = kinds == kind
        masks[chosen] = inside_shape(kind, x[chosen], y[chosen])
    return places, masks


def _paint(images: Tensor, places: Tensor, masks: Tensor, colors: Tensor) -> None:
    """Paint the shapes into the images, in place; where two overlap, the one of higher number."""
    device, (rows, count), side = images.device, places.shape[:2], images.shape[-1]
    near = torch.arange(WINDOW, device=device)
    y, x = (places[..., axis, None] + near for axis in (0, 1))  # (R, G, W)
    pixels = (y[..., :, None] * side + x[..., None, :]).flatten(1)  # (R, G W W)
    numbers = torch.arange(1, count + 1, device=device)[:, None, None] * masks
    owner = torch.zeros(rows, side * side, dtype=torch.int64, device=device)
    owner.scatter_reduce_(1, pixels, numbers.flatten(1), "amax")
    palette = torch.cat([colors.new_zeros(rows, 1, 3), colors], dim=1)  # 0: no shape
    drawn = palette.gather(1, owner[..., None].expand(-1, -1, 3)).mT.reshape(images.shape)
    images.copy_(torch.where((owner > 0).view(rows, 1, side, side), drawn, images))


def _ground(key: int, index: Tensor, size: int) -> Tensor:
    """Gray noise, uint8 (R, 3, size, size), the same in all channels."""
    words = -(-size * size // _BYTES)
    word = torch.arange(words, device=index.device) + (1 << 31)
    bits = random_bits(key, index[:, None] * (1 << 32) + word)
    shifts = torch.arange(0, 64, 8, device=index.device)
    levels = ((bits[..., None] >> shifts) & 0xFF).flatten(1)[:, : size * size].float() / 255
    gray = 255 * (GROUND + NOISE * (2 * levels - 1))
    return gray.to(torch.uint8).view(-1, 1, size, size).expand(-1, 3, -1, -1).contiguous()


def _uniform(bits: Tensor) -> Tensor:
    return ((bits >> 40) & ((1 << 24) - 1)).float() * 2.0**-24
