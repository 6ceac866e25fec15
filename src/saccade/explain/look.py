"""The look that all figures of this room share, and how one becomes files.

A figure is laid out like a page: in inches from its upper left corner, so that type and margins
keep their size whatever is on it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from saccade.errors import ConfigError, writing_error

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
    """An empty figure to put pictures, bars and words on; all places are in inches.

    Args:
        width: Of the figure.
        height: Of the figure.
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
        """An RGB array in a hairline frame, its corner at (x, y); gives its height."""
        height = width * float(pixels.shape[0]) / float(pixels.shape[1])
        extent = (x, x + width, y + height, y)
        self._page.imshow(pixels, extent=extent, interpolation="nearest", aspect="auto")
        self._box(x, y, width, height, fill=False, edgecolor=GRID, linewidth=0.6)
        return height

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """A filled box with its upper left corner at (x, y)."""
        self._box(x, y, width, height, facecolor=colour, linewidth=0)

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
        """A line of text that stands on (x, y)."""
        weight = "bold" if bold else "normal"
        self._page.text(
            x, y, text, fontsize=size, color=colour, fontweight=weight, horizontalalignment=align
        )

    def axes(self, x: float, y: float, width: float, height: float) -> Any:
        """Axes to plot in, their upper left corner at (x, y)."""
        bottom = 1 - (y + height) / self.height
        return self.figure.add_axes(
            (x / self.width, bottom, width / self.width, height / self.height)
        )

    def _box(self, x: float, y: float, width: float, height: float, **style: Any) -> None:
        from matplotlib.patches import Rectangle

        self._page.add_patch(Rectangle((x, y), width, height, **style))


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
            try:
                sheet.figure.savefig(aside, format=kind, dpi=PIXELS_PER_INCH, metadata=metadata)
                aside.replace(path)
            except OSError as error:
                raise writing_error(f"cannot write {str(path)!r}", error, ConfigError) from None
            finally:
                aside.unlink(missing_ok=True)
            paths.append(path)
    return paths


def shortened(text: str, longest: int) -> str:
    """A text cut to fit its place."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
