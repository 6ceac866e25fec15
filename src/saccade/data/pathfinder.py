"""Pathfinder: are two discs joined by a dashed path (arXiv:1906.01558, arXiv:2011.04006)?

Two paths of `contour_length` paddles start at two seeds `seed_distance` apart and grow in turns.
The next paddle lies on the circle around the end of the last one, `margin` away; it turns by an
angle a with probability proportional to max(cos(min(c |a|, pi/2)), 0)^2 where nothing is in its
way, and c is the continuity. Then shorter distractors are drawn. One disc is put on the seed of a
path, and one on the far end of the same path (class 1) or of the other one (class 0).

Item i has class i mod 2. Many images are drawn at once; each has its own random numbers, so an
image does not depend on the others. Where the way is blocked, the image is started again with new
numbers; a distractor that is blocked `TRIES` times is left out.

DEVIATION: blocked angles have probability 0 and are not drawn again and again; the mask of occupied
places has cells of half a pixel (of one pixel at 128), not the antialiased lines; single paddles
are not added, of which the published code has two defaults; at 128 the margin is always 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from saccade.data.randomness import COUNTERS, numpy_uniforms
from saccade.errors import DataError

__all__ = ["SETTINGS", "PathfinderSettings", "pathfinder"]

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
TRIES = 3
MAX_ATTEMPTS = 200
SPOTS = 24  # places that are tried for the start of a distractor
_PADDING = 1.0
_PER_ATTEMPT = 1 << 12  # random numbers of an attempt
_CHUNK = 1024
_OFFSETS = np.radians(np.linspace(-90, 90, 37)).astype(np.float32)
_STEP = math.radians(5)


@dataclass(frozen=True)
class PathfinderSettings:
    """Sizes in pixels.

    Attributes:
        size: Side of the image.
        seed_distance: Distance of the two seeds.
        marker_radius: Radius of the discs.
        contour_length: Paddles of a path.
        paddle_length: Length of a paddle.
        thickness: Its thickness.
        margin: Gap between paddles.
        continuity: Higher values make straighter paths.
        num_distractors: Number of distractors.
        distractor_length: Paddles of a distractor.
        clearance: Least distance of the middle lines of paddles that do not follow each other.
        contrast: Brightness of a paddle that fills a pixel.
        cells: Cells of the mask of occupied places per pixel.
    """

    size: int = 32
    seed_distance: float = 7
    marker_radius: float = 1.5
    contour_length: int = 14
    paddle_length: float = 2
    thickness: float = 0.5
    margin: float = 1
    continuity: float = 1.0
    num_distractors: int = 5
    distractor_length: int = 4
    clearance: float = 2
    contrast: float = 1.5
    cells: int = 2


SETTINGS = {
    32: PathfinderSettings(),
    128: PathfinderSettings(
        size=128,
        seed_distance=20,
        marker_radius=3,
        paddle_length=5,
        thickness=1.5,
        margin=3,
        num_distractors=8,
        clearance=4.5,
        contrast=0.9,
        cells=1,
    ),
}
"""The hard setting at the two sizes of the Long Range Arena."""


def pathfinder(
    key: int, start: int, stop: int, settings: PathfinderSettings
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Items `start` to `stop` of a part: gray images (R, size, size) and classes."""
    images = np.zeros((stop - start, settings.size, settings.size), np.uint8)
    for first in range(start, stop, _CHUNK):
        index = np.arange(first, min(stop, first + _CHUNK))
        images[index - start] = _draw(key, index, settings)
    return images, np.arange(start, stop) % 2


def _draw(key: int, index: Ints, settings: PathfinderSettings) -> NDArray[np.uint8]:
    """The images at these positions; those that cannot be completed are started again."""
    images = np.zeros((len(index), settings.size, settings.size), np.uint8)
    pending, attempt = np.arange(len(index)), 0
    while len(pending):
        if attempt == MAX_ATTEMPTS:
            raise DataError(
                f"pathfinder: {len(pending)} images could not be drawn in {attempt} attempts: "
                "data.options must leave more room for the paths"
            )
        canvas = _Canvas(key, index[pending], attempt, settings)
        alive = canvas.grow_paths()
        canvas.add_distractors()
        images[pending[alive]] = canvas.render(index[pending[alive]] % 2)
        pending = np.setdiff1d(pending, pending[alive])
        attempt += 1
    return images


class _Canvas:
    """Images that are drawn together.

    Attributes:
        occupied: For each image, the cells that a paddle must not touch.
        paddles: Tails and heads (R, 2, 2) of paddles, and the images that have them.
    """

    def __init__(self, key: int, index: Ints, attempt: int, settings: PathfinderSettings) -> None:
        self.key, self.settings = key, settings
        first = index.astype(np.uint64) * np.uint64(COUNTERS)
        self.counter = first + np.uint64(attempt * _PER_ATTEMPT)
        self.drawn = 0
        side = settings.size * settings.cells
        self.occupied = np.zeros((len(index), side, side), np.bool_)
        self.paddles: list[tuple[Floats, Ints]] = []
        self.ends = np.zeros((len(index), 2, 2), np.float32)  # far end of each path
        self.seeds = np.zeros((len(index), 2, 2), np.float32)

    def uniforms(self, count: int, rows: Ints | None = None) -> Floats:
        """The next numbers of every image, or of some rows, (R, count)."""
        places = self.drawn + np.arange(count, dtype=np.uint64)
        self.drawn += count
        counter = self.counter if rows is None else self.counter[rows]
        return numpy_uniforms(self.key, counter[:, None] + places).astype(np.float32)

    def grow_paths(self) -> Ints:
        """Draw the two paths; keep the images in which both are complete, and return them."""
        settings = self.settings
        draws = self.uniforms(5)
        angles = 2 * np.pi * draws[:, :3]
        inner = min(2 * settings.seed_distance, 0.5 * settings.size - 2)
        start = inner + draws[:, 3:5] * (settings.size - 2 * inner)
        other = start + settings.seed_distance * _direction(angles[:, 2])
        alive = np.arange(len(draws))
        blocked = np.stack([self.occupied, self.occupied])  # for each path
        tails = [start, other]
        directions = [angles[:, 0].copy(), angles[:, 1].copy()]
        heads = [
            t + settings.paddle_length * _direction(a)
            for t, a in zip(tails, directions, strict=True)
        ]
        self.seeds = np.stack(tails, axis=1)
        fits = self._is_inside(heads[0]) & self._is_inside(heads[1]) & self._is_inside(other)
        fits &= _distance(tails[0], heads[0], tails[1], heads[1]) > settings.clearance
        kept = np.flatnonzero(fits)
        alive, blocked = alive[kept], np.take(blocked, kept, axis=1)
        self._keep(kept)
        tails, heads, directions = ([x[kept] for x in xs] for xs in (tails, heads, directions))
        last = [np.stack(pair, axis=1) for pair in zip(tails, heads, strict=True)]
        for path in (0, 1):
            self.paddles.append((last[path], np.arange(len(kept))))
            self._stamp(blocked[1 - path], last[path])
        for _ in range(settings.contour_length - 1):
            for path in (0, 1):
                paddle, turned, free = self._next(blocked[path], last[path][:, 1], directions[path])
                kept = np.flatnonzero(free)
                if len(kept) < len(free):
                    alive, blocked = alive[kept], np.take(blocked, kept, axis=1)
                    self._keep(kept)
                    last, directions = [x[kept] for x in last], [x[kept] for x in directions]
                    paddle, turned = paddle[kept], turned[kept]
                self._stamp(blocked[path], last[path])
                self._stamp(blocked[1 - path], paddle)
                self.paddles.append((paddle, np.arange(len(paddle))))
                last[path], directions[path] = paddle, turned
        for path in (0, 1):
            self._stamp(blocked[path], last[path])
        self.occupied = blocked[0] | blocked[1]
        self.ends = np.stack([last[0][:, 1], last[1][:, 1]], axis=1)
        return alive

    def add_distractors(self) -> None:
        """Draw the distractors for which there is room."""
        settings = self.settings
        for _ in range(settings.num_distractors):
            rows = np.arange(len(self.counter))
            for _ in range(TRIES):
                blocked = self.occupied[rows]
                found, good = self._try_distractor(rows, blocked)
                self.occupied[rows[good]] = blocked[good]
                for paddle in found:
                    self.paddles.append((paddle[good], rows[good]))
                rows = rows[~good]

    def _try_distractor(
        self, images: Ints, blocked: NDArray[np.bool_]
    ) -> tuple[list[Floats], NDArray[np.bool_]]:
        """A distractor for some images, and whether its way was free; it is put into `blocked`."""
        settings, rows = self.settings, np.arange(len(images))
        draws = self.uniforms(3 * SPOTS, images).reshape(len(rows), SPOTS, 3)
        tails = draws[..., :2] * settings.size
        angles = 2 * np.pi * draws[..., 2]
        heads = tails + settings.paddle_length * _direction(angles)
        free = self._is_free(blocked, tails, heads)
        chosen = free.argmax(axis=1)
        good: NDArray[np.bool_] = np.asarray(free.any(axis=1))
        direction = angles[rows, chosen]
        last = np.stack([tails[rows, chosen], heads[rows, chosen]], axis=1)
        found = [last]
        for _ in range(settings.distractor_length - 1):
            paddle, direction, is_free = self._next(blocked, last[:, 1], direction, images)
            good &= is_free
            self._stamp(blocked, last)
            last = paddle
            found.append(paddle)
        self._stamp(blocked, last)
        return found, good

    def render(self, labels: Ints) -> NDArray[np.uint8]:
        """The images (R, size, size), with the discs of their classes."""
        settings, rows = self.settings, np.arange(len(labels))
        image = np.zeros((len(labels), settings.size, settings.size), np.float32)
        reach = settings.thickness / 2 + 1
        half = np.float32(settings.thickness / 2)
        for paddle, shown in self.paddles:
            y, x, square = self._window(paddle, reach, 1)
            away = np.sqrt(square)
            cover = np.minimum(np.float32(0.5), away + half) - np.maximum(
                np.float32(-0.5), away - half
            )
            level = np.float32(settings.contrast) * np.maximum(cover, 0)
            place = shown[:, None], y, x
            image[place] = np.maximum(image[place], level)
        which = (self.uniforms(1)[:, 0] < 0.5).astype(np.int64)
        far = np.where(labels == 1, which, 1 - which)
        for center in (self.seeds[rows, which], self.ends[rows, far]):
            disc = np.stack([center, center], axis=1)
            y, x, square = self._window(disc, settings.marker_radius + 1, 1)
            place = rows[:, None], y, x
            level = np.clip(settings.marker_radius + 0.5 - np.sqrt(square), 0, 1)
            image[place] = np.maximum(image[place], level)
        levels: NDArray[np.uint8] = (255 * np.minimum(image, 1)).round().astype(np.uint8)
        return levels

    def _keep(self, kept: Ints) -> None:
        """Forget the other images."""
        self.counter, self.occupied = self.counter[kept], self.occupied[kept]
        self.seeds = self.seeds[kept]
        rows = np.arange(len(kept))
        self.paddles = [(paddle[kept], rows) for paddle, _ in self.paddles]

    def _next(
        self,
        blocked: NDArray[np.bool_],
        pivot: Floats,
        direction: Floats,
        images: Ints | None = None,
    ) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """The next paddle of a path, its direction, and whether any way was free."""
        settings, draws = self.settings, self.uniforms(2, images)
        turn = _OFFSETS + (draws[:, 1:] - 0.5) * _STEP
        angles = direction[:, None] + turn
        ways = _direction(angles)  # (R, K, 2)
        tails = pivot[:, None] + settings.margin * ways
        heads = pivot[:, None] + (settings.margin + settings.paddle_length) * ways
        weight = np.cos(np.minimum(settings.continuity * np.abs(turn), np.pi / 2)) ** 2
        weight = weight * self._is_free(blocked, tails, heads)
        total = np.cumsum(weight, axis=1)
        chosen = (total < draws[:, :1] * total[:, -1:]).sum(axis=1).clip(0, len(_OFFSETS) - 1)
        rows = np.arange(len(pivot))
        paddle = np.stack([tails[rows, chosen], heads[rows, chosen]], axis=1)
        return paddle, angles[rows, chosen], weight[rows, chosen] > 0

    def _is_inside(self, points: Floats) -> NDArray[np.bool_]:
        inside = (points >= _PADDING) & (points < self.settings.size - _PADDING)
        return inside[..., 0] & inside[..., 1]

    def _is_free(
        self, blocked: NDArray[np.bool_], tails: Floats, heads: Floats
    ) -> NDArray[np.bool_]:
        """True for the paddles (R, K) that stay inside and touch no blocked cell."""
        free = self._is_inside(tails) & self._is_inside(heads)
        rows = np.arange(len(tails))[:, None]
        for share in np.linspace(0, 1, math.ceil(self.settings.paddle_length) + 1):
            at = ((tails + np.float32(share) * (heads - tails)) * self.settings.cells).astype(
                np.int32
            )
            at = at.clip(0, blocked.shape[1] - 1)
            free &= ~blocked[rows, at[..., 0], at[..., 1]]
        return free

    def _stamp(self, blocked: NDArray[np.bool_], paddle: Floats) -> None:
        """Block the cells near a paddle."""
        settings, side = self.settings, blocked.shape[1]
        y, x, square = self._window(paddle, settings.clearance, settings.cells)
        place = (np.arange(len(paddle)) * side**2)[:, None] + y * side + x
        blocked.reshape(-1)[place[square < settings.clearance**2]] = True

    def _window(self, paddle: Floats, reach: float, cells: int) -> tuple[Ints, Ints, Floats]:
        """Cells around a paddle, (R, W) each, and their squared distance from it in pixels.

        Cells outside the image are replaced by those at its border, with their own distance.
        """
        tail, head = paddle[:, 0], paddle[:, 1]
        half = math.ceil((self.settings.paddle_length / 2 + reach) * cells)
        around = np.arange(-half, half + 1)
        middle = ((tail + head) / 2 * cells).astype(np.int64)
        side = self.settings.size * cells
        y = (middle[:, :1] + np.repeat(around, len(around))).clip(0, side - 1)
        x = (middle[:, 1:] + np.tile(around, len(around))).clip(0, side - 1)
        along = head - tail
        sizes = np.sqrt((along**2).sum(axis=1, keepdims=True))
        point = np.array([1, 0], np.float32)  # a disc: any direction
        along = np.where(sizes > 0, along / np.maximum(sizes, np.float32(1e-6)), point)
        cell, shift = np.float32(1 / cells), np.float32(0.5 / cells)
        dy = y.astype(np.float32) * cell + (shift - tail[:, :1])
        dx = x.astype(np.float32) * cell + (shift - tail[:, 1:])
        parallel = dy * along[:, :1] + dx * along[:, 1:]
        across = dy * along[:, 1:] - dx * along[:, :1]
        parallel -= np.clip(parallel, 0, sizes)
        return y, x, across * across + parallel * parallel


def _direction(angle: Floats) -> Floats:
    """Unit vectors (..., 2) of angles (...)."""
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1)


def _distance(tail: Floats, head: Floats, other_tail: Floats, other_head: Floats) -> Floats:
    """A distance of two paddles: the least between three points of each."""
    own, other = (
        np.stack([a, (a + b) / 2, b], axis=1) for a, b in ((tail, head), (other_tail, other_head))
    )
    gaps = np.linalg.norm(own[:, :, None] - other[:, None], axis=-1)
    found: Floats = gaps.min(axis=(1, 2))
    return found
