"""The figure of `saccade analyze crossover`: throughput and memory over N, crossings over D."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.bench.analysis.figures import COLOURS, new_figure, save_figure, tidy
from saccade.ops.taylor import memory_threshold, speed_threshold

if TYPE_CHECKING:
    from saccade.bench.analysis.crossings import Crossing
    from saccade.bench.analysis.crossover import Comparison, CrossoverFindings
    from saccade.bench.analysis.crossover_measure import Point

__all__ = ["draw_crossover"]

ROLES: dict[str, dict[str, Any]] = {
    "softmax": {"color": "black", "marker": "."},
    "direct": {"color": COLOURS[1], "marker": "s"},
    "efficient": {"color": COLOURS[0], "marker": "o"},
}
FORMS: dict[str, Any] = {"fused": "-", "torch": (0, (4, 1.5)), "published": (0, (1, 1.5))}

PAIRS: dict[tuple[str, str], tuple[str, str, str]] = {
    ("published", "direct"): ("as published: efficient ahead of direct", COLOURS[3], "D"),
    ("torch", "direct"): ("torch: efficient ahead of direct", COLOURS[0], "o"),
    ("torch", "softmax"): ("torch: efficient ahead of softmax", "black", "o"),
    ("fused", "direct"): ("fused: efficient ahead of direct", COLOURS[2], "s"),
    ("fused", "softmax"): ("fused: efficient ahead of softmax", "#7F7F7F", "s"),
}


def draw_crossover(findings: CrossoverFindings, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg; nothing where there are no points."""
    dims, found = findings.head_dims(), findings.comparisons()
    if not dims:
        return []
    figure = new_figure(14, 11.5)
    grid = figure.add_gridspec(3, 2 * len(dims), height_ratios=(1, 1, 1.35))
    for i, dim in enumerate(dims):
        points = [p for p in findings.points if p.head_dim == dim]
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
        f"From how many tokens on linear time pays: {name}, {findings.dtype}, forward", fontsize=12
    )
    figure.tight_layout(rect=(0, 0.035, 1, 0.985))
    return save_figure(figure, stem)


def _add_legend(figure: Any) -> None:
    """The lines of the upper panels, and what the grey ones mean."""
    from matplotlib.lines import Line2D

    lines, names = figure.axes[0].get_legend_handles_labels()
    grey: dict[str, Any] = {"D(D+1)/2": "-", "D²": FORMS["published"]}
    for words, style in grey.items():
        lines.append(Line2D([], [], color="#999999", linestyle=style))
        names.append(f"theory, {words} features")
    figure.legend(lines, names, loc="lower center", ncols=len(names), frameon=False, fontsize=8.5)


def _lines(points: list[Point]) -> dict[str, list[Point]]:
    lines: dict[str, list[Point]] = {}
    for point in sorted(points, key=lambda p: p.tokens):
        lines.setdefault(point.line, []).append(point)
    return lines


def _look(point: Point) -> dict[str, Any]:
    return ROLES[point.role] | {
        "linestyle": FORMS[point.form],
        "linewidth": 1.4,
        "markersize": 3.5,
        "fillstyle": "none" if point.form == "published" else "full",
    }


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
            colour = PAIRS[c.form, c.rival][1]
            axes.axvspan(*_interval(c.crossing), color=colour, alpha=0.15, linewidth=0)
            axes.axvline(c.crossing.tokens, color=colour, linewidth=1, linestyle="--")
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
    shown = ticks[:: 2 if len(ticks) > 5 else 1]
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
        _draw_marks(axes, [c for c in found if (c.form, c.rival) == key], key, shift)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(dims, [str(d) for d in dims])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("head dim D")
    axes.set_ylabel("tokens N")
    axes.set_title(f"Ahead in {measure} from N tokens on: theory (grey) and measured", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    tidy(axes)


def _draw_marks(axes: Any, found: list[Comparison], key: tuple[str, str], shift: float) -> None:
    label, colour, marker = PAIRS[key]
    for c in found:
        crossing, x = c.crossing, c.head_dim * shift
        if crossing.verdict == "crosses" and crossing.tokens is not None:
            low, high = _interval(crossing)
            errors = [[crossing.tokens - low], [high - crossing.tokens]]
            axes.errorbar(
                x,
                crossing.tokens,
                errors,
                color=colour,
                marker=marker,
                markersize=6,
                capsize=3,
                linestyle="none",
                label=label,
            )
        elif crossing.verdict == "behind to the end":
            axes.plot(
                x,
                crossing.last_tokens,
                marker="^",
                color=colour,
                fillstyle="none",
                linestyle="none",
                label=f"{label}: not up to here",
            )
        elif crossing.verdict == "ahead from the start":
            axes.plot(
                x,
                crossing.first_tokens,
                marker="v",
                color=colour,
                fillstyle="none",
                linestyle="none",
                label=f"{label}: before this",
            )
        label = "_" + label.lstrip("_")


def _interval(crossing: Crossing) -> tuple[float, float]:
    """Its ends, cut off where the grid ends."""
    assert crossing.first_tokens is not None
    assert crossing.last_tokens is not None
    return crossing.low or crossing.first_tokens, crossing.high or crossing.last_tokens
