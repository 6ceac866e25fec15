"""The style of the figures of `saccade.explain`, and saving them as PNG and SVG.

Positions are in inches from the upper left corner of a figure, so that fonts and margins have the
same size in every figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from saccade.errors import ConfigError, writing_error
from saccade.io import write_file
from saccade.plotting import (
    BAD,
    GOOD,
    GRID,
    INK,
    MUTED,
    PIXELS_PER_INCH,
    draw_in_style,
    new_figure,
)

__all__ = [
    "BAD",
    "COLORMAP",
    "GOOD",
    "GRID",
    "INK",
    "MUTED",
    "SMALL",
    "TEXT",
    "TITLE",
    "Sheet",
    "overlay",
    "pixels",
    "save",
]

TITLE, TEXT, SMALL = 10.5, 8.5, 6.8
STYLE: dict[Any, Any] = {
    "font.size": TEXT,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.linewidth": 0.6,
    "svg.fonttype": "path",
    "svg.hashsalt": "saccade",
}


class Sheet:
    """A blank figure for images, bars and text; all positions are in inches."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.figure = new_figure(width, height, facecolor="white")
        self._page = self.figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        self._page.set_axis_off()
        self._page.set_autoscale_on(False)

    def picture(self, pixels: Any, x: float, y: float, width: float) -> float:
        """Draw an RGB array with its upper left corner at (x, y); return its height."""
        height = width * float(pixels.shape[0]) / float(pixels.shape[1])
        extent = (x, x + width, y + height, y)
        self._page.imshow(pixels, extent=extent, interpolation="nearest", aspect="auto")
        self._box(x, y, width, height, fill=False, edgecolor=GRID, linewidth=0.6)
        return height

    def bar(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """Draw a filled box with its upper left corner at (x, y)."""
        self._box(x, y, width, height, facecolor=color, linewidth=0)

    def words(
        self,
        text: str,
        x: float,
        y: float,
        *,
        size: float = TEXT,
        color: str = INK,
        bold: bool = False,
        align: str = "left",
    ) -> None:
        """Draw a line of text with its baseline at (x, y)."""
        weight = "bold" if bold else "normal"
        self._page.text(
            x, y, text, fontsize=size, color=color, fontweight=weight, horizontalalignment=align
        )

    def axes(self, x: float, y: float, width: float, height: float) -> Any:
        """Add axes with their upper left corner at (x, y)."""
        bottom = 1 - (y + height) / self.height
        return self.figure.add_axes(
            (x / self.width, bottom, width / self.width, height / self.height)
        )

    def _box(self, x: float, y: float, width: float, height: float, **style: Any) -> None:
        from matplotlib.patches import Rectangle

        self._page.add_patch(Rectangle((x, y), width, height, **style))


def save(draw: Callable[[], Sheet], stem: Path) -> list[Path]:
    """Draw a sheet in the common style and write `stem`.png and `stem`.svg atomically."""

    def draw_and_write() -> list[Path]:
        sheet = draw()
        return [_write(sheet, stem, kind) for kind in ("png", "svg")]

    return draw_in_style(draw_and_write, STYLE)


def _write(sheet: Sheet, stem: Path, kind: str) -> Path:
    path = stem.with_name(f"{stem.name}.{kind}")
    metadata = {"Date": None} if kind == "svg" else None
    draw_on = partial(sheet.figure.savefig, format=kind, dpi=PIXELS_PER_INCH, metadata=metadata)
    try:
        write_file(path, draw_on)
    except OSError as error:
        raise writing_error(f"cannot write {str(path)!r}", error, ConfigError) from None
    return path


COLORMAP = "inferno"
LUMA = (0.299, 0.587, 0.114)
DARKEST, LIGHTEST = 0.22, 0.9
"""Gray levels of black and white under a map, so that colors are readable on both."""


def pixels(image: Tensor, size: int) -> NDArray[np.float32]:
    """Resize an image (C, H, W) in 0..1 to RGB (height, width, 3) with nearest neighbors."""
    if image.dim() != 3 or image.shape[0] not in (1, 3):
        raise ConfigError(
            f"image must be a tensor of shape (1 or 3, height, width), got {tuple(image.shape)}"
        )
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
    """Color an image by the weights of its patches.

    Args:
        image: (1 or 3, height, width), in 0..1.
        weights: (rows, columns), one per patch.
        size: Pixels of the longer side of the result.
        opacity: 0 shows the image alone, 1 the map alone.
        limits: Weights of the first and last color; by default the range of the map.

    Returns:
        RGB, uint8 (height, width, 3).
    """
    import matplotlib

    if weights.dim() != 2:
        raise ConfigError(
            f"weights must be a tensor of shape (rows, columns), got {tuple(weights.shape)}"
        )
    if not 0 <= opacity <= 1:
        raise ConfigError(f"opacity must be a number in [0, 1], got {opacity!r}")
    ground = pixels(image, size)
    gray = (ground @ np.array(LUMA, dtype=np.float32))[..., None]
    ground = (1 - opacity) * ground + opacity * (DARKEST + (LIGHTEST - DARKEST) * gray)
    values = weights.detach().double().cpu()
    low, high = (float(values.min()), float(values.max())) if limits is None else limits
    level = ((values - low) / max(high - low, torch.finfo(torch.float64).tiny)).clamp(0, 1)
    smooth = F.interpolate(
        level[None, None], ground.shape[:2], mode="bilinear", align_corners=False
    )[0, 0]
    color = matplotlib.colormaps[COLORMAP](smooth.numpy())[..., :3]
    # A larger weight covers more of the image.
    cover = (opacity ** (1 - 0.6 * smooth.numpy()))[..., None]
    mixed: NDArray[np.float64] = (1 - cover) * ground + cover * color
    return (255 * mixed).round().clip(0, 255).astype(np.uint8)


def _scaled(sides: Sequence[int], size: int) -> tuple[int, int]:
    """Height and width scaled so that the longer side is `size`."""
    height, width = sides
    return (round(height * size / max(sides)), round(width * size / max(sides)))
