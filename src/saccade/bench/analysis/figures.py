"""What the figures of the analyses share: size, colours, grid, files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.bench.plots import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "new_figure", "save_figure", "tidy"]


def new_figure(width: float, height: float) -> Figure:
    """A figure of so many inches that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Any) -> None:
    """A light grid, no minor ticks, no box."""
    axes.minorticks_off()
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg, the SVG without a date: equal figures are equal files."""
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    figure.savefig(paths[0], dpi=130)
    figure.savefig(paths[1], metadata={"Date": None})
    return paths
