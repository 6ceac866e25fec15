"""The look that all figures of this room share, and how one becomes files.

A figure is laid out like a page: in inches from its upper left corner, so that type and margins
keep their size whatever is on it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    "font.family": "DejaVu Sans",  # comes with matplotlib
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
    """An empty figure to put pictures, axes and words on.

    Args:
        width: In inches.
        height: In inches.
    """

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width, self.height = width, height
        self.figure = Figure(figsize=(width, height), facecolor="white")
        FigureCanvasAgg(self.figure)

    def axes(self, x: float, y: float, width: float, height: float) -> Any:
        """Axes whose upper left corner is `x` inches from the left and `y` from the top."""
        bottom = 1 - (y + height) / self.height
        return self.figure.add_axes(
            (x / self.width, bottom, width / self.width, height / self.height)
        )

    def picture(self, pixels: Any, x: float, y: float, width: float) -> Any:
        """An RGB array, `width` inches wide, in a hairline frame; gives its axes."""
        height = width * pixels.shape[0] / pixels.shape[1]
        axes = self.axes(x, y, width, height)
        axes.imshow(pixels, interpolation="nearest", aspect="auto")
        axes.set_xticks([])
        axes.set_yticks([])
        return axes

    def words(
        self,
        text: str,
        x: float,
        y: float,
        *,
        size: float = TEXT,
        colour: str = INK,
        bold: bool = False,
        align: str = "left",
    ) -> None:
        """A line of text whose baseline is `y` inches from the top."""
        self.figure.text(
            x / self.width,
            1 - y / self.height,
            text,
            fontsize=size,
            color=colour,
            fontweight="bold" if bold else "normal",
            horizontalalignment=align,
            verticalalignment="baseline",
        )


def save(draw: Callable[[], Sheet], stem: Path) -> list[Path]:
    """Draw a sheet in the common style and write `stem`.png and `stem`.svg, whole or not at all."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        sheet = draw()
        paths = []
        for kind in ("png", "svg"):
            path = stem.with_name(f"{stem.name}.{kind}")
            aside = path.with_name(f".{path.name}")
            metadata = {"Date": None} if kind == "svg" else None
            sheet.figure.savefig(aside, format=kind, dpi=PIXELS_PER_INCH, metadata=metadata)
            aside.replace(path)
            paths.append(path)
    return paths


def shortened(text: str, longest: int) -> str:
    """A text cut to fit its place."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
