"""The style of all figures: palette, axes, legend and saving.

Each attention has the same color and marker in every figure, by its index in the registry
(`saccade.layers.ATTENTIONS`). There are nine colors. From the tenth attention on they repeat with
other markers and dashes, so that a new attention needs no entry here. The colors can be
distinguished in normal vision and in simulated protanopia, deuteranopia and tritanopia. Their
contrast to the page is at least 3:1, with one value for light and one for dark pages
(tests/report/test_style.py measures both).
Figures are drawn with the light values, which are all different; `inline_svg` replaces them by CSS
variables.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from saccade.errors import shorten
from saccade.layers.attentions import ATTENTIONS
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
    "PAGE_COLORS",
    "SERIES_COLORS",
    "Drawing",
    "Margins",
    "Series",
    "axes_style",
    "draw",
    "series_of",
    "series_tone",
]


@dataclass(frozen=True)
class Tone:
    """A named color with its values on light and on dark pages."""

    name: str
    light: str
    dark: str


PAGE_COLORS = {
    tone.name: tone
    for tone in (
        Tone("paper", "#ffffff", "#14171a"),
        Tone("ink", INK, "#e8eaed"),
        Tone("muted", MUTED, "#a3abb4"),
        Tone("grid", GRID, "#2d333a"),
        Tone("good", GOOD, "#4d82fa"),
        Tone("bad", BAD, "#fd821e"),
    )
}

SERIES_COLORS = tuple(
    Tone(f"series-{number}", light, dark)
    for number, (light, dark) in enumerate(
        (
            ("#1b1f25", "#e8eaee"),
            ("#1852b4", "#4d82f9"),
            ("#c83e0d", "#fd821d"),
            ("#008b68", "#12c585"),
            ("#de59a0", "#c78fd6"),
            ("#b68f00", "#ffcd53"),
            ("#398ffa", "#a8cdff"),
            ("#6f527a", "#ad59bd"),
            ("#8c2a35", "#db3856"),
        )
    )
)
"""In the order of the registry, which starts with softmax and taylor."""

MARKERS = "osD^vPX*<"
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "svg.hashsalt": "saccade",
}
MAX_IN_LEGEND = 58
EDGE = 0.03
"""Inches that stay empty at the left of every figure."""


@dataclass(frozen=True)
class Series:
    """Color, marker and line style of one group of runs, the same in every figure."""

    color: str
    marker: str
    dash: Any


@dataclass(frozen=True)
class Margins:
    """Inches around the axes, for labels and ticks; the left margin grows with its labels."""

    left: float = 0.62
    right: float = 0.14
    top: float = 0.1
    bottom: float = 0.46


MARGINS = Margins()


@dataclass(frozen=True)
class Drawing:
    """A finished figure as PNG and SVG."""

    png: bytes
    svg: str


def series_of(labels: Iterable[str]) -> dict[str, Series]:
    """A style for each label: attentions keep their own, other labels get unused styles."""
    labels, known = list(labels), list(ATTENTIONS)
    spare = chain((i for i, name in enumerate(known) if name not in labels), count(len(known)))
    return {
        label: _series(known.index(label) if label in known else next(spare)) for label in labels
    }


def series_tone(attention: str) -> Tone:
    """The color of a registered attention, for light and for dark pages."""
    return SERIES_COLORS[list(ATTENTIONS).index(attention) % len(SERIES_COLORS)]


def _series(place: int) -> Series:
    """The style at an index; pairs of color and marker repeat after 81."""
    turn, color = divmod(place, len(SERIES_COLORS))
    return Series(
        SERIES_COLORS[color].light,
        MARKERS[(color + turn) % len(MARKERS)],
        DASHES[turn % len(DASHES)],
    )


def draw(
    paint: Callable[[Any], None],
    *,
    width: float = 4.6,
    height: float = 2.9,
    margins: Margins = MARGINS,
    legend: Mapping[str, Series] | None = None,
) -> Drawing:
    """Draw a figure with one pair of axes.

    Args:
        paint: Function that draws on the axes.
        width: Width of the figure in inches.
        height: Height of the figure in inches, without the legend.
        margins: Margins around the axes in inches.
        legend: Entries of the legend below the axes; omitted for a single entry.
    """
    return draw_in_style(lambda: _draw(paint, width, height, margins, legend), STYLE)


def _draw(
    paint: Callable[[Any], None],
    width: float,
    height: float,
    margins: Margins,
    legend: Mapping[str, Series] | None,
) -> Drawing:
    figure = new_figure(width, height)
    foot = _legend_below(figure, legend, width) if legend and len(legend) > 1 else 0.0
    tall = height + foot
    figure.set_size_inches(width, tall)
    across, up = width - margins.left - margins.right, height - margins.top - margins.bottom
    axes = figure.add_axes(
        (margins.left / width, (margins.bottom + foot) / tall, across / width, up / tall)
    )
    paint(axes)
    _make_room_at_left(axes)
    return _saved(figure)


def _make_room_at_left(axes: Any) -> None:
    """Narrow the axes if their labels would extend beyond the left edge of the figure."""
    figure = axes.figure
    taken = axes.yaxis.get_tightbbox(figure.canvas.get_renderer())
    lacking = 0.0 if taken is None else EDGE - taken.x0 / figure.dpi
    if lacking > 0:
        place = axes.get_position()
        place.x0 += lacking / figure.get_figwidth()
        axes.set_position(place)


def _saved(figure: Any) -> Drawing:
    png, svg = io.BytesIO(), io.StringIO()
    figure.savefig(png, format="png", dpi=PIXELS_PER_INCH, facecolor="white")
    figure.savefig(svg, format="svg", metadata={"Date": None}, facecolor="white")
    return Drawing(png.getvalue(), svg.getvalue())


def axes_style(axes: Any, *, x: str, y: str, percent: str = "", whole: bool = False) -> None:
    """Set labels, a light grid and few ticks.

    Args:
        axes: The axes to style.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        percent: Axes out of "xy" that show fractions as percentages.
        whole: True if the horizontal axis has integer ticks only.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        counts = whole and name == "x"
        least = 1 if counts else 2  # two ticks around a single epoch would be fractions
        axis.set_major_locator(MaxNLocator(nbins=5, integer=counts, min_n_ticks=least))
        text = _as_percent if name in percent else _as_number
        axis.set_major_formatter(FuncFormatter(text))


def _as_percent(value: float, _: int) -> str:
    return f"{100 * value:.4g} %".replace("-", "\u2212")


def _as_number(value: float, _: int) -> str:
    return f"{value:,.5g}".replace("-", "\u2212")


def _legend_below(figure: Any, legend: Mapping[str, Series], width: float) -> float:
    """Draw the legend at the bottom of the figure and return its height in inches."""
    from matplotlib.lines import Line2D

    names = [shorten(name, MAX_IN_LEGEND) for name in legend]
    columns = max(1, min(len(names), int(width / (0.42 + 0.068 * max(map(len, names))))))
    handles = [
        Line2D([], [], color=look.color, marker=look.marker, linestyle=look.dash, label=name)
        for name, look in zip(names, legend.values(), strict=True)
    ]
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=columns,
        frameon=False,
        fontsize=8,
        handlelength=2.2,
        columnspacing=1.2,
        borderaxespad=0.1,
    )
    return 0.1 + 0.18 * -(-len(names) // columns)
