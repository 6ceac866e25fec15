"""Plot time and memory over the number of tokens on log axes, one column for each head dim."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.bench.results import AttentionResult, Row, crossover, times_over_tokens
from saccade.io import write_file
from saccade.plotting import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLORS", "draw", "new_figure", "save_figure", "tidy"]

# The palette of Okabe and Ito, which is distinguishable for color-blind readers.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B7A500", "#7F7F7F")
MARKERS = "osD^vPX*"
SOFTMAX_NAME = "softmax, best kernel"
SOFTMAX = {"color": "black", "linestyle": "-", "marker": ".", "linewidth": 2.2}

Panel = tuple[str, str]
TITLES: dict[Panel, str] = {
    ("time", "forward"): "forward, ms",
    ("time", "training"): "forward + backward, ms",
    ("memory", "forward"): "extra memory, forward, MiB",
    ("memory", "training"): "extra memory, fwd + bwd, MiB",
}


def draw(result: AttentionResult, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg; write nothing if there is no line to draw."""
    timed = _comparable([row for row in result.rows if row.timing is not None])
    dims = sorted({row.head_dim for row in timed})
    panels = [panel for panel in TITLES if _has_lines(timed, panel)]
    if not panels:
        return []
    figure = new_figure(1.2 + 3.5 * max(2, len(dims)), 1.6 + 2.9 * len(panels))
    grid = figure.subplots(len(panels), len(dims), squeeze=False, sharey="row")
    styles = _styles(timed)
    lengths = sorted({row.tokens for row in timed})
    for axes_row, panel in zip(grid, panels, strict=True):
        for axes, head_dim in zip(axes_row, dims, strict=True):
            own = [row for row in timed if row.head_dim == head_dim]
            _draw_panel(axes, own, lengths, panel, styles)
        axes_row[0].set_ylabel(TITLES[panel])
    for axes, head_dim in zip(grid[0], dims, strict=True):
        axes.set_title(f"D = {head_dim}", fontweight="bold")
    _finish(figure, grid, styles, result)
    return save_figure(figure, stem)


def _comparable(rows: list[Row]) -> list[Row]:
    """The rows of each D that form a line: constant (B, H) or B H N, whichever has more rows."""
    kept = []
    for head_dim in sorted({row.head_dim for row in rows}):
        own = [row for row in rows if row.head_dim == head_dim]
        by_batch = Counter((row.batch, row.heads) for row in own).most_common(1)[0]
        by_budget = Counter(row.batch * row.heads * row.tokens for row in own).most_common(1)[0]
        if by_batch[1] >= by_budget[1]:
            kept += [row for row in own if (row.batch, row.heads) == by_batch[0]]
        else:
            kept += [row for row in own if row.batch * row.heads * row.tokens == by_budget[0]]
    return kept


def _styles(rows: list[Row]) -> dict[str, dict[str, Any]]:
    """A style for each mechanism; the fastest softmax is black."""
    names = dict.fromkeys(row.mechanism for row in rows if row.family != "softmax")
    styles: dict[str, dict[str, Any]] = {SOFTMAX_NAME: SOFTMAX}
    for i, name in enumerate(names):
        peer = next(row.peer for row in rows if row.mechanism == name)
        styles[name] = {
            "color": COLORS[i % len(COLORS)],
            "marker": MARKERS[(i + i // len(COLORS)) % len(MARKERS)],
            "linestyle": (0, (4, 2)) if peer else "-",
            "linewidth": 1.6,
            "markersize": 5,
        }
    return styles


def _points(rows: list[Row], panel: Panel) -> dict[str, dict[int, float]]:
    """Map mechanism to N to value; the softmax kernels are reduced to the best one."""
    measure, direction = panel
    points: dict[str, dict[int, float]] = {}
    for row in rows:
        value = row.median_ms if measure == "time" else row.peak_extra_mib
        if row.direction != direction or value is None or value <= 0:
            continue
        name = SOFTMAX_NAME if row.family == "softmax" else row.mechanism
        best = points.setdefault(name, {})
        best[row.tokens] = min(value, best.get(row.tokens, value))
    return points


def _has_lines(rows: list[Row], panel: Panel) -> bool:
    """True if some mechanism has at least two points at one D."""
    return any(
        len(points) > 1
        for head_dim in {row.head_dim for row in rows}
        for points in _points([r for r in rows if r.head_dim == head_dim], panel).values()
    )


def _draw_panel(
    axes: Any,
    rows: list[Row],
    lengths: list[int],
    panel: Panel,
    styles: dict[str, dict[str, Any]],
) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    points = _points(rows, panel)
    if not points:
        axes.text(0.5, 0.5, "not measured", ha="center", transform=axes.transAxes, color="gray")
        axes.set_xticks([])
        return
    for name in styles:
        if name in points:
            tokens = sorted(points[name])
            axes.plot(tokens, [points[name][n] for n in tokens], label=name, **styles[name])
    axes.set_xscale("log", base=2)
    axes.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [_tokens(n) for n in lengths])
    axes.set_xlabel("tokens N")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    tidy(axes)
    if panel[0] == "time":
        _mark_crossovers(axes, rows, panel[1], points, styles)


def _mark_crossovers(
    axes: Any,
    rows: list[Row],
    direction: str,
    points: dict[str, dict[int, float]],
    styles: dict[str, dict[str, Any]],
) -> None:
    """Mark the N from which a mechanism is faster than softmax, if it is inside the grid."""
    softmax = points.get(SOFTMAX_NAME, {})
    level = 0
    for name in styles:
        own = [r for r in rows if r.mechanism == name and r.direction == direction]
        times = times_over_tokens(own)
        common = sorted(softmax.keys() & times.keys())
        start = crossover(softmax, times) if len(common) > 1 else None
        if start is None or start == common[0]:
            continue
        axes.axvline(start, color=styles[name]["color"], linewidth=0.8, linestyle=":")
        low, high = axes.get_xlim()
        on_the_left = start > low**0.25 * high**0.75
        axes.annotate(
            f"N = {start:,.0f}",
            (start, 0.02 + 0.07 * level),
            xycoords=("data", "axes fraction"),
            xytext=(-3 if on_the_left else 3, 0),
            textcoords="offset points",
            horizontalalignment="right" if on_the_left else "left",
            color=styles[name]["color"],
            fontsize=8,
        )
        level += 1


def _tokens(count: int) -> str:
    if count % (1 << 20) == 0:
        return f"{count >> 20}M"
    return f"{count >> 10}k" if count % 1024 == 0 else str(count)


def _finish(figure: Any, grid: Any, styles: dict[str, Any], result: AttentionResult) -> None:
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    shown = [name for name in styles if name in handles]
    width, height = figure.get_size_inches()
    columns = max(1, min(len(shown), int(width / 2.3)))
    first = result.rows[0]
    title = f"Attention on {result.environment['device_name']}, {first.dtype}"
    if any(row.family == "softmax" for row in result.rows):
        title += "; dotted lines: faster than softmax from there on"
    figure.suptitle(title, fontsize=11)
    figure.legend(
        [handles[name] for name in shown],
        shown,
        loc="lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
    )
    lines = -(-len(shown) // columns)
    figure.tight_layout(rect=(0, (0.15 + 0.25 * lines) / height, 1, 1 - 0.05 / height))


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
