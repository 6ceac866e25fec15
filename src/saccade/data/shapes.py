"""A synthetic data set of colored shapes at any resolution, with exact foreground masks.

Image `i` is a pure function of (seed, part, i, size). Its class is `i mod 8`. Position, size,
rotation and colors are random and independent of the class. The same image at two resolutions
shows the same scene.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from saccade.data.randomness import STREAMS, Purpose, make_key, random_bits, uniforms
from saccade.data.splits import Box, Split

__all__ = [
    "SHAPES",
    "ShapesSource",
    "inside_shape",
    "render_shapes",
    "shapes_masks",
    "shapes_split",
]

SHAPES = ("circle", "ring", "square", "triangle", "cross", "star", "crescent", "bars")
SEED = 0
DEFAULT_SIZE = 32
Part = Literal["train", "test"]
_ANGLES = 1024
_NOISE_LEVELS = 24
_IN_MEMORY_BYTES = 1 << 29
_CHUNK_PIXELS = 1 << 22


@dataclass(frozen=True)
class ShapesSource:
    """Shapes drawn when they are read, for sets that are too large for memory."""

    index: Tensor
    size: int
    part: Part
    max_bad_images: int = 0

    def read(self, index: int, box: Box | None = None) -> Tensor:
        """Draw image `index` as uint8 (3, size, size); a crop is resized to the full size."""
        image = render_shapes(self.index[index : index + 1], self.size, self.part)[0]
        if box is None:
            return image[0]
        top, left, height, width = (round(side * self.size) for side in box)
        crop = image[:, :, top : top + max(1, height), left : left + max(1, width)]
        return torch.nn.functional.interpolate(crop, (self.size, self.size))[0]

    def placeholder(self) -> Tensor:
        """A black image."""
        return torch.zeros(3, self.size, self.size, dtype=torch.uint8)

    def select(self, index: Tensor) -> ShapesSource:
        """Return the source of a subset of the images."""
        return ShapesSource(self.index[index], self.size, self.part)


def shapes_split(count: int, size: int, part: Part) -> Split:
    """Return the first `count` images, kept in memory if they take at most 512 MiB."""
    index = torch.arange(count)
    labels = index % len(SHAPES)
    name = f"shapes {part} {size}"
    if count * 3 * size * size > _IN_MEMORY_BYTES:
        return Split(labels, source=ShapesSource(index, size, part), origin=index, fingerprint=name)
    pieces = index.chunk(max(1, count * size * size // _CHUNK_PIXELS))
    images = torch.cat([render_shapes(piece, size, part)[0] for piece in pieces])
    return Split(labels, images, origin=index, fingerprint=name)


def shapes_masks(index: Tensor, size: int, part: Part = "train", seed: int = SEED) -> Tensor:
    """Return the foreground masks of the images at `index`, bool (R, size, size).

    For the images of a split, pass the split's `origin` as `index`.
    """
    return _Scene(index, part, seed).foreground(size)


def render_shapes(
    index: Tensor, size: int, part: Part = "train", seed: int = SEED
) -> tuple[Tensor, Tensor]:
    """Draw images: uint8 (R, 3, size, size), and their foreground, bool (R, size, size)."""
    scene = _Scene(index, part, seed)
    mask = scene.foreground(size)
    at = _centers(size, index.device)
    slope = scene.slope[:, :, None, None]
    ground = scene.ground[:, :, None, None] + slope * (at[None, None, :, None] - 0.5)
    color = torch.where(mask[:, None], scene.color[:, :, None, None], ground)
    levels = (color * 255).clamp(0, 255) + scene.noise(size)
    return levels.clamp(0, 255).to(torch.uint8), mask


class _Scene:
    """The contents of some images: class, position, size, rotation and colors."""

    def __init__(self, index: Tensor, part: Part, seed: int) -> None:
        self.index = index
        self.key = make_key(seed, ("train", "test").index(part), Purpose.SHAPES)
        draws = uniforms(self.key, index, torch.arange(13, device=index.device)).T  # (R, 13)
        self.kind = index % len(SHAPES)
        self.radius = 0.18 + 0.16 * draws[:, 0]
        reach = self.radius[:, None]
        self.middle = reach + draws[:, 1:3] * (1 - 2 * reach)
        self.turn = _turns(index.device)[(draws[:, 3] * _ANGLES).long()]  # (R, 2)
        self.color = draws[:, 4:7]
        # Every channel of the background differs from the shape's by a quarter to three quarters.
        self.ground = (self.color + 0.25 + 0.5 * draws[:, 7:10]) % 1
        self.slope = 0.2 * (draws[:, 10:13] - 0.5)

    def foreground(self, size: int) -> Tensor:
        mask = self.index.new_zeros((len(self.index), size, size), dtype=torch.bool)
        at = _centers(size, self.index.device)
        for number, inside in enumerate(_INSIDES):
            rows = (self.kind == number).nonzero()[:, 0]
            middle, radius = self.middle[rows, :, None, None], self.radius[rows, None, None]
            x, y = (
                (at[None, None, :] - middle[:, 0]) / radius,
                (at[:, None] - middle[:, 1]) / radius,
            )
            cos, sin = self.turn[rows, :, None, None].unbind(1)
            mask[rows] = inside(cos * x + sin * y, cos * y - sin * x)
        return mask

    def noise(self, size: int) -> Tensor:
        """Return integer noise in [-12, 12), (R, 1, size, size), the same for all channels."""
        words = -(-size * size // 4)  # a word has four pixels of 16 bits
        word = torch.arange(words, device=self.index.device)
        counter = (self.index[:, None] + 1) * (1 << 40) + word * STREAMS + STREAMS - 1
        bits = random_bits(self.key, counter)[:, :, None]
        parts = (bits >> torch.arange(0, 64, 16, device=bits.device)).to(torch.int32) & 0xFFFF
        levels = (parts.flatten(1)[:, : size * size] * _NOISE_LEVELS >> 16) - _NOISE_LEVELS // 2
        return levels.view(-1, 1, size, size)


def _ring(x: Tensor, y: Tensor) -> Tensor:
    square = x * x + y * y
    return (square < 1) & (square > 0.36)


def _triangle(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([x * cos + y * sin < 0.5 for cos, sin in _directions(3)]).all(0)


def _cross(x: Tensor, y: Tensor) -> Tensor:
    wide, high = x.abs(), y.abs()
    return (torch.minimum(wide, high) < 0.28) & (torch.maximum(wide, high) < 0.95)


def _star(x: Tensor, y: Tensor) -> Tensor:
    """Return the mask of a pentagram: the points inside at least four of its five lines."""
    return torch.stack([x * cos + y * sin < 0.309 for cos, sin in _directions(5)]).sum(0) >= 4


def _bars(x: Tensor, y: Tensor) -> Tensor:
    return (x.abs() < 0.75) & (x.abs() > 0.25) & (y.abs() < 0.65)


# In the order of SHAPES: masks of the points inside a shape, in units of the radius.
_INSIDES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda x, y: x * x + y * y < 1,
    _ring,
    lambda x, y: torch.maximum(x.abs(), y.abs()) < 0.7,
    _triangle,
    _cross,
    _star,
    lambda x, y: (x * x + y * y < 1) & ((x - 0.45) ** 2 + y * y > 0.64),
    _bars,
)


def inside_shape(kind: int, x: Tensor, y: Tensor) -> Tensor:
    """The mask of the points inside a shape around 0, in units of its radius."""
    return _INSIDES[kind](x, y)


def _directions(count: int) -> list[tuple[float, float]]:
    angles = [2 * math.pi * i / count for i in range(count)]
    return [(math.cos(angle), math.sin(angle)) for angle in angles]


def _centers(size: int, device: torch.device) -> Tensor:
    return (torch.arange(size, device=device) + 0.5) / size


@cache
def _turns(device: torch.device) -> Tensor:
    return torch.tensor(_directions(_ANGLES), device=device)
