"""The look that all figures share: palette, axes, legend, and how a figure becomes files.

One attention has one colour and one marker everywhere. The nine colours are told apart in normal
sight and in simulated protanopia, deuteranopia and tritanopia, and stand out from the page by 3:1,
each in a tone for light pages and one for dark pages (tests/report/test_look.py measures both).
Figures are drawn in the light tones, no two of which are equal; `inline_svg` knows them by their
value and puts the page's own in their place.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

__all__ = [
    "ATTENTION_COLOURS",
    "PAGE_COLOURS",
    "Drawing",
    "Margins",
    "Series",
    "axes_style",
    "draw",
    "series_of",
    "shortened",
]


@dataclass(frozen=True)
class Tone:
    """A colour by its name on the page, as it is on light and on dark ground."""

    name: str
    light: str
    dark: str


PAGE_COLOURS = {
    tone.name: tone
    for tone in (
        Tone("paper", "#ffffff", "#14171a"),
        Tone("ink", "#1b1f24", "#e8eaed"),
        Tone("muted", "#57606a", "#a3abb4"),
        Tone("grid", "#e1e5ea", "#2d333a"),
        Tone("good", "#1852b5", "#4d82fa"),
        Tone("bad", "#c83e0e", "#fd821e"),
    )
}

ATTENTION_COLOURS = {
    name: Tone(f"series-{number}", light, dark)
    for number, (name, light, dark) in enumerate(
        (
            ("softmax", "#1b1f25", "#e8eaee"),
            ("taylor", "#1852b4", "#4d82f9"),
            ("taylorshift", "#c83e0d", "#fd821d"),
            ("performer", "#008b68", "#12c585"),
            ("performer_relu", "#de59a0", "#c78fd6"),
            ("performer_exp", "#b68f00", "#ffcd53"),
            ("performer_gelu", "#398ffa", "#a8cdff"),
            ("performer_elu", "#6f527a", "#ad59bd"),
            ("performer_ftheta", "#8c2a35", "#db3856"),
        )
    )
}

INK, MUTED, GRID = (PAGE_COLOURS[name].light for name in ("ink", "muted", "grid"))
MARKERS = "osD^vPX*<"
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
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
PIXELS_PER_INCH = 160
EDGE = 0.03
"""Inches that stay free at the left of every figure."""


@dataclass(frozen=True)
class Series:
    """How one group of runs looks in every figure."""

    colour: str
    marker: str
    dash: Any


@dataclass(frozen=True)
class Margins:
    """Inches around the axes, for labels and ticks; the left one grows with its labels."""

    left: float = 0.62
    right: float = 0.14
    top: float = 0.1
    bottom: float = 0.46


MARGINS = Margins()


@dataclass(frozen=True)
class Drawing:
    """A finished figure."""

    png: bytes
    svg: str


def series_of(labels: Iterable[str]) -> dict[str, Series]:
    """A look for each label: an attention's own, and for other labels those left over."""
    labels, own = list(labels), list(ATTENTION_COLOURS)
    spare = chain((i for i, name in enumerate(own) if name not in labels), count(len(own)))
    places = {label: own.index(label) if label in own else next(spare) for label in labels}
    tones = [tone.light for tone in ATTENTION_COLOURS.values()]
    return {
        label: Series(
            tones[places[label] % len(tones)],
            MARKERS[places[label] % len(MARKERS)],
            DASHES[places[label] // len(tones) % len(DASHES)],
        )
        for label in labels
    }


def draw(
    paint: Callable[[Any], None],
    *,
    width: float = 4.6,
    height: float = 2.9,
    margins: Margins = MARGINS,
    legend: Mapping[str, Series] | None = None,
) -> Drawing:
    """Paint one pair of axes and give it as PNG and SVG.

    Args:
        paint: Called with the axes.
        width: Of the figure, in inches.
        height: Of the figure without its legend, in inches.
        margins: Around the axes, in inches.
        legend: What to explain below the axes; one series alone needs no legend.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure()
        FigureCanvasAgg(figure)
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
    """Narrow the axes where their tick labels and label would leave the figure at its left."""
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
    """Labels, a quiet grid and few ticks.

    Args:
        axes: To style.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        percent: Which of "xy" hold fractions to be shown as percentages.
        whole: Whether the horizontal axis counts.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        counts = whole and name == "x"
        least = 1 if counts else 2  # two ticks about a single epoch would be fractions
        axis.set_major_locator(MaxNLocator(nbins=5, integer=counts, min_n_ticks=least))
        text = _as_percent if name in percent else _as_number
        axis.set_major_formatter(FuncFormatter(text))


def _as_percent(value: float, _: int) -> str:
    return f"{100 * value:.4g} %".replace("-", "\u2212")


def _as_number(value: float, _: int) -> str:
    return f"{value:,.5g}".replace("-", "\u2212")


def shortened(name: str, longest: int = 46) -> str:
    """A name cut to fit a legend or a tick."""
    return name if len(name) <= longest else name[: longest - 1] + "…"


def _legend_below(figure: Any, legend: Mapping[str, Series], width: float) -> float:
    """Draw the legend at the foot of a figure; gives its height in inches."""
    from matplotlib.lines import Line2D

    names = [shortened(name) for name in legend]
    columns = max(1, min(len(names), int(width / (0.42 + 0.068 * max(map(len, names))))))
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, linestyle=look.dash, label=name)
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
