"""The style of the figures of `saccade.explain`, and saving them as PNG and SVG.

Positions are in inches from the upper left corner of a figure, so that fonts and margins have the
same size in every figure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from saccade.errors import ConfigError, writing_error
from saccade.io import write_file
from saccade.plotting import draw_with_fonts

__all__ = [
    "BAD",
    "GOOD",
    "GRID",
    "INK",
    "MUTED",
    "SMALL",
    "TEXT",
    "TITLE",
    "Sheet",
    "save",
    "shortened",
]

INK, MUTED, GRID = "#1b1f24", "#57606a", "#e1e5ea"
GOOD, BAD = "#1852b5", "#c83e0e"
TITLE, TEXT, SMALL = 10.5, 8.5, 6.8
PIXELS_PER_INCH = 160
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
    """A blank figure for images, bars and text; all positions are in inches.

    Args:
        width: Width of the figure.
        height: Height of the figure.
    """

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width, self.height = width, height
        self.figure = Figure(figsize=(width, height), facecolor="white")
        FigureCanvasAgg(self.figure)
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
    import matplotlib

    def in_fonts(families: list[str]) -> list[Path]:
        with matplotlib.rc_context({**STYLE, "font.family": families}):
            sheet = draw()
            return [_write(sheet, stem, kind) for kind in ("png", "svg")]

    return draw_with_fonts(in_fonts)


def _write(sheet: Sheet, stem: Path, kind: str) -> Path:
    path = stem.with_name(f"{stem.name}.{kind}")
    metadata = {"Date": None} if kind == "svg" else None
    draw_on = partial(sheet.figure.savefig, format=kind, dpi=PIXELS_PER_INCH, metadata=metadata)
    try:
        write_file(path, draw_on)
    except OSError as error:
        raise writing_error(f"cannot write {str(path)!r}", error, ConfigError) from None
    return path


def shortened(text: str, longest: int) -> str:
    """A text cut to `longest` characters, with an ellipsis at the end."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
