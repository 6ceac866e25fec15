"""The figure of `saccade analyze crossover`: throughput and memory over N, crossings over D."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from saccade.bench.crossover.measure import TAYLOR_FORMS
from saccade.bench.plots import COLORS, new_figure, tidy
from saccade.ops.taylor import memory_threshold, speed_threshold

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from saccade.bench.crossings import Crossing, Point, Verdict
    from saccade.bench.crossover.run import Comparison, CrossoverFindings

__all__ = ["make_figure"]

ROLES: dict[str, dict[str, Any]] = {
    "softmax": {"color": "black", "marker": "."},
    "direct": {"color": COLORS[1], "marker": "s"},
    "efficient": {"color": COLORS[0], "marker": "o"},
}
SLOWER_SOFTMAX: dict[str, dict[str, Any]] = {"softmax, flash": {"color": "#888888"}}
LEGEND_ROWS = 2
MAX_TICKS = 5
FORMS: dict[str, Any] = {"fused": "-", "torch": (0, (4, 1.5)), "published": (0, (1, 1.5))}

PAIRS: dict[tuple[str, str], tuple[str, str, str]] = {
    ("published", "direct"): ("as published: efficient ahead of direct", COLORS[3], "D"),
    ("published", "softmax"): ("as published: efficient ahead of softmax", COLORS[4], "D"),
    ("torch", "direct"): ("torch: efficient ahead of direct", COLORS[0], "o"),
    ("torch", "softmax"): ("torch: efficient ahead of softmax", "black", "o"),
    ("fused", "direct"): ("fused: efficient ahead of direct", COLORS[2], "s"),
    ("fused", "softmax"): ("fused: efficient ahead of softmax", "#7F7F7F", "s"),
}

ENDS: dict[Verdict, tuple[str, str]] = {
    "behind to the end": ("^", "not up to here"),
    "ahead from the start": ("v", "before this"),
}


def make_figure(findings: CrossoverFindings) -> Figure:
    """For each D throughput and memory over N, and below them the crossings over D."""
    dims, found = findings.head_dims(), findings.comparisons("forward")
    found = [c for c in found if c.form in TAYLOR_FORMS]
    figure = new_figure(14, 12.5)
    grid = figure.add_gridspec(3, 2 * len(dims), height_ratios=(1, 1, 1.35))
    for i, dim in enumerate(dims):
        points = [p for p in findings.of_taylor_forward() if p.head_dim == dim]
        for row, draw in enumerate((_draw_throughput, _draw_memory)):
            axes = figure.add_subplot(grid[row, 2 * i : 2 * i + 2])
            draw(axes, points, [c for c in found if c.head_dim == dim])
            _finish_panel(axes, points, first=i == 0)
        figure.axes[2 * i].set_title(f"D = {dim}", fontweight="bold")
    for i, measure in enumerate(("time", "memory")):
        axes = figure.add_subplot(grid[2, len(dims) * i : len(dims) * (i + 1)])
        _draw_crossings(axes, dims, [c for c in found if c.measure == measure], measure)
    _add_legend(figure)
    name = findings.environment.get("device_name", "")
    figure.suptitle(
        f"From how many tokens on linear time pays: {name}, {findings.dtype}, forward",
        fontsize=12,
        y=0.99,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    return figure


def _add_legend(figure: Any) -> None:
    """The lines of the upper panels, and what the gray ones mean."""
    from matplotlib.lines import Line2D

    lines, names = figure.axes[0].get_legend_handles_labels()
    gray: dict[str, Any] = {"D(D+1)/2": "-", "D²": FORMS["published"]}
    for words, style in gray.items():
        lines.append(Line2D([], [], color="#999999", linestyle=style))
        names.append(f"theory, {words} features")
    columns = ceil(len(names) / LEGEND_ROWS)
    figure.legend(
        lines,
        names,
        frameon=False,
        fontsize=8.5,
        ncols=columns,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.975),
    )


def _lines(points: list[Point]) -> dict[str, list[Point]]:
    lines: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda p: p.tokens):
        lines.setdefault(point.line, []).append(point)
    return lines


def _look(point: Point) -> dict[str, Any]:
    return (
        ROLES[point.role]
        | SLOWER_SOFTMAX.get(point.line, {})
        | {
            "linestyle": FORMS[point.form],
            "linewidth": 1.4,
            "markersize": 3.5,
            "fillstyle": "none" if point.form == "published" else "full",
        }
    )


def _draw_throughput(axes: Any, points: list[Point], found: list[Comparison]) -> None:
    for name, line in _lines(points).items():
        xs, ys = [p.tokens for p in line], [p.tokens_per_s for p in line]
        axes.plot(xs, ys, label=name, **_look(line[0]))
        low, high = (
            [1e3 * p.heads * p.tokens / t for p, t in zip(line, ts, strict=True)]
            for ts in ([p.p80_ms for p in line], [p.p20_ms for p in line])
        )
        axes.fill_between(xs, low, high, color=ROLES[line[0].role]["color"], alpha=0.12)
    dim = points[0].head_dim
    axes.axvline(speed_threshold(dim), color="#999999", linewidth=1, linestyle=(0, (1, 1.5)))
    axes.axvline(speed_threshold(dim, symmetric=True), color="#999999", linewidth=1)
    for c in found:
        if c.measure == "time" and c.crossing.verdict == "crosses" and c.form != "published":
            color = PAIRS[c.form, c.rival][1]
            axes.axvspan(*_interval(c.crossing), color=color, alpha=0.15, linewidth=0)
            axes.axvline(c.crossing.tokens, color=color, linewidth=1, linestyle="--")
    axes.set_ylabel("tokens a second and head")


def _draw_memory(axes: Any, points: list[Point], found: list[Comparison]) -> None:
    del found
    for name, line in _lines(points).items():
        known = [(p.tokens, p.peak_mib) for p in line if p.peak_mib is not None and p.peak_mib > 0]
        if known:
            axes.plot(*zip(*known, strict=True), label=name, **_look(line[0]))
    dim = points[0].head_dim
    axes.axvline(memory_threshold(dim), color="#999999", linewidth=1, linestyle=(0, (1, 1.5)))
    axes.axvline(memory_threshold(dim, symmetric=True), color="#999999", linewidth=1)
    axes.set_ylabel("extra memory, MiB")
    axes.set_xlabel("tokens N")


def _finish_panel(axes: Any, points: list[Point], *, first: bool) -> None:
    lengths = sorted({p.tokens for p in points})
    ticks = [n for n in lengths if n & (n - 1) == 0]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shown = ticks[:: ceil(len(ticks) / MAX_TICKS)]
    axes.set_xticks(shown, [f"{n:,}" for n in shown], fontsize=8)
    axes.set_xlim(lengths[0] / 1.2, lengths[-1] * 1.2)
    tidy(axes)
    if not first:
        axes.set_ylabel("")


def _draw_crossings(axes: Any, dims: list[int], found: list[Comparison], measure: str) -> None:
    """Theory as lines over D, crossings as marks with their intervals."""
    threshold = speed_threshold if measure == "time" else memory_threshold
    symbol = "N0" if measure == "time" else "N1"
    fine = [dims[0] * (dims[-1] / dims[0]) ** (i / 40) for i in range(41)]
    for symmetric, line in ((False, (0, (1, 1.5))), (True, "-")):
        label = f"{symbol}, {'D(D+1)/2' if symmetric else 'D²'} features"
        ys = [threshold(round(d), symmetric=symmetric) for d in fine]
        axes.plot([round(d) for d in fine], ys, color="#999999", linestyle=line, label=label)
    pairs = [key for key in PAIRS if any((c.form, c.rival) == key for c in found)]
    for place, key in enumerate(pairs):
        shift = 1 + 0.04 * (place - (len(pairs) - 1) / 2)
        for comparison in found:
            if (comparison.form, comparison.rival) == key:
                _draw_mark(axes, comparison, shift)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(dims, [str(d) for d in dims])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("head dim D")
    axes.set_ylabel("tokens N")
    axes.set_title(f"Ahead in {measure} from N tokens on: theory (gray) and measured", fontsize=10)
    _explain_marks(axes, pairs, {c.crossing.verdict for c in found})
    tidy(axes)


def _draw_mark(axes: Any, comparison: Comparison, shift: float) -> None:
    """A crossing with its interval, or an empty triangle where the grid ended without one."""
    crossing, x = comparison.crossing, comparison.head_dim * shift
    _, color, marker = PAIRS[comparison.form, comparison.rival]
    if crossing.verdict == "crosses" and crossing.tokens is not None:
        low, high = _interval(crossing)
        errors = [[crossing.tokens - low], [high - crossing.tokens]]
        axes.errorbar(
            x, crossing.tokens, errors, color=color, marker=marker, markersize=6, capsize=3
        )
    elif crossing.verdict in ENDS:
        triangle, _ = ENDS[crossing.verdict]
        ends = {"^": crossing.last_tokens, "v": crossing.first_tokens}
        axes.plot(x, ends[triangle], marker=triangle, color=color, fillstyle="none")


def _explain_marks(axes: Any, pairs: list[tuple[str, str]], verdicts: set[Verdict]) -> None:
    """A legend below the panel, where it covers no mark."""
    from matplotlib.lines import Line2D

    lines, names = axes.get_legend_handles_labels()
    for name, color, marker in (PAIRS[key] for key in pairs):
        lines.append(Line2D([], [], color=color, marker=marker, linestyle="none"))
        names.append(name)
    for triangle, words in (ENDS[verdict] for verdict in ENDS if verdict in verdicts):
        lines.append(
            Line2D([], [], color="#666666", marker=triangle, fillstyle="none", linestyle="none")
        )
        names.append(words)
    axes.legend(
        lines,
        names,
        frameon=False,
        fontsize=8,
        ncols=2,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.14),
    )


def _interval(crossing: Crossing) -> tuple[float, float]:
    """Its ends, cut off where the grid ends."""
    assert crossing.first_tokens is not None
    assert crossing.last_tokens is not None
    return crossing.low or crossing.first_tokens, crossing.high or crossing.last_tokens
