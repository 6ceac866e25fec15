"""Helpers for the figures of the analyses: size, colors, grid, files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.bench.plots import COLORS
from saccade.io import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLORS", "new_figure", "save_figure", "tidy"]


def new_figure(width: float, height: float) -> Figure:
    """A figure of this size in inches, which needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Any) -> None:
    """Set a light grid and remove minor ticks and the box."""
    axes.minorticks_off()
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg; the SVG has no date, so equal figures give equal files."""
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    write_file(paths[0], partial(figure.savefig, format="png", dpi=130))
    write_file(paths[1], partial(figure.savefig, format="svg", metadata={"Date": None}))
    return paths
