"""Plot the distance from softmax in four panels with annotations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from saccade.bench.plots import COLORS, save_figure, tidy
from saccade.layers.performers import default_num_features
from saccade.plotting import new_figure

if TYPE_CHECKING:
    from benchmarks.approximation import ApproximationFindings

__all__ = ["draw_approximation"]

LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "taylor": ("Taylor, 1 + s + s²/2", {"color": COLORS[1], "marker": "o"}),
    "taylorshift": ("TaylorShift (unit rows)", {"color": COLORS[4], "marker": "s"}),
    "performer": ("Performer (FAVOR+)", {"color": COLORS[0], "marker": "^"}),
    "uniform": ("no attention: all keys alike", {"color": "black", "linestyle": (0, (4, 2))}),
}
OTHERS = {"color": "#AAAAAA", "linewidth": 1.2}


def draw_approximation(findings: ApproximationFindings, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg."""
    if not findings.curve("spread", "taylor"):
        return []
    figure = new_figure(12.5, 9.2)
    panels = figure.subplots(2, 2).flat
    _draw_functions(panels[0])
    _draw_spreads(panels[1], findings)
    _draw_features(panels[2], findings)
    _draw_sizes(panels[3], findings)
    for axes in panels:
        tidy(axes)
    figure.tight_layout(h_pad=2.5, w_pad=2.5)
    return save_figure(figure, stem)


def _draw_functions(axes: Any) -> None:
    s = np.linspace(-4, 4, 400)
    axes.plot(s, np.exp(s), color="black", linewidth=2, label="softmax: exp(s)")
    axes.plot(s, 1 + s + s**2 / 2, color=COLORS[1], linewidth=2, label="Taylor: 1 + s + s²/2")
    axes.axvspan(-1, 1, color=COLORS[2], alpha=0.12, linewidth=0)
    axes.text(0, 30, "close\nhere", ha="center", color=COLORS[2], fontsize=9)
    axes.annotate(
        "below s = −1 the weight\nof a key grows again",
        (-2.6, 1 - 2.6 + 2.6**2 / 2),
        (-3.9, 12),
        arrowprops={"arrowstyle": "->", "color": "#555555"},
        fontsize=9,
    )
    ratio = float(np.exp(4) / (1 + 4 + 8))
    axes.annotate(
        f"at s = 4 softmax gives\n{ratio:.1f} times the weight",
        (4, 13),
        (1.6, 1.1),
        arrowprops={"arrowstyle": "->", "color": "#555555"},
        fontsize=9,
    )
    axes.set_yscale("log")
    axes.set_ylim(0.015, 80)
    axes.set_xlabel("score s of a key")
    axes.set_ylabel("weight before rows are divided by their sum")
    axes.set_title("1. Two ways to turn a score into a weight", fontsize=11, loc="left")
    axes.legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 0.06))


def _draw_spreads(axes: Any, findings: ApproximationFindings) -> None:
    gray = "other feature maps, untrained"
    for name in findings.attentions():
        curve = findings.curve("spread", name)
        if not curve:
            continue
        label, look = LOOKS.get(name, (gray, OTHERS))
        if name not in LOOKS:
            gray = "_" + gray.lstrip("_")
        xs = sorted(curve)
        axes.plot(
            xs,
            [100 * curve[x].misplaced for x in xs],
            label=label,
            markersize=4,
            zorder=3 if name in LOOKS else 1,
            **look,
        )
    _mark_departures(axes, findings)
    axes.annotate(
        "default random features are no\nnearer to softmax than no attention",
        (0.35, 15),
        (0.07, 35),
        arrowprops={"arrowstyle": "->", "color": COLORS[0]},
        fontsize=8.5,
        color=COLORS[0],
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks([1 / 16, 1 / 4, 1, 4], ["1/16", "1/4", "1", "4"])
    _percent(axes, "score magnitude (standard deviation of the scores)", lowest=0.03)
    axes.set_title("2. The larger the scores, the farther from softmax", fontsize=11, loc="left")
    axes.legend(frameon=False, fontsize=8.5, loc="lower right")


def _mark_departures(axes: Any, findings: ApproximationFindings) -> None:
    for limit, spread in findings.departures("taylor").items():
        if spread and limit in (0.01, 0.1):
            axes.annotate(
                f"Taylor: {limit:.0%} misplaced\nat magnitude {spread:.2g}",
                (spread, 100 * limit),
                (14, -4),
                textcoords="offset points",
                fontsize=8.5,
                color=COLORS[1],
                va="top",
            )


def _draw_features(axes: Any, findings: ApproximationFindings) -> None:
    shades = ("#56B4E9", "#0072B2", "#00456B")
    for spread, color in zip((0.5, 1.0, 2.0), shades, strict=True):
        curve = findings.curve("features", "performer", spread=spread)
        if not curve:
            continue
        xs = sorted(curve)
        ys = [100 * curve[x].misplaced for x in xs]
        axes.plot(xs, ys, color=color, marker="^", markersize=4)
        axes.text(
            xs[-1] * 1.15, ys[-1], f"scores {spread:g}", va="center", color=color, fontsize=8.5
        )
        low, high = ([100 * getattr(curve[x], p) for x in xs] for p in ("p20", "p80"))
        axes.fill_between(xs, low, high, color=color, alpha=0.15, linewidth=0)
        taylor = findings.curve("spread", "taylor").get(spread)
        if taylor is not None:
            axes.axhline(100 * taylor.misplaced, color=COLORS[1], linewidth=1, linestyle=":")
            words = f"Taylor, scores {spread:g}"
            axes.text(8, 104 * taylor.misplaced, words, va="bottom", fontsize=8.5, color=COLORS[1])
    default = default_num_features(32)
    axes.axvline(default, color="#555555", linewidth=0.8, linestyle=(0, (4, 2)))
    axes.text(default * 1.07, 4, f"default,\nM = {default}", fontsize=8.5, color="#555555")
    axes.set_xscale("log", base=2)
    axes.set_xlim(6.5, 12000)
    axes.set_xticks([8, 64, 512, 4096], ["8", "64", "512", "4096"])
    _percent(axes, "random features M (D = 32)", lowest=1)
    axes.set_title("3. More random features help the Performer, slowly", fontsize=11, loc="left")


def _draw_sizes(axes: Any, findings: ApproximationFindings) -> None:
    for name in ("taylor", "performer"):
        label, look = LOOKS[name]
        for sweep, line, of in (
            ("tokens", "-", "over N (D = 32)"),
            ("head_dim", (0, (2, 1.5)), "over D (N = 256)"),
        ):
            curve = findings.curve(sweep, name)
            xs = sorted(curve)
            axes.plot(
                xs,
                [100 * curve[x].misplaced for x in xs],
                linestyle=line,
                markersize=4,
                label=f"{label.split(',')[0]} {of}",
                **look,
            )
    axes.set_xscale("log", base=2)
    axes.set_xticks([8, 32, 128, 512, 2048], ["8", "32", "128", "512", "2048"])
    _percent(axes, "tokens N, or head dim D (score magnitude 1)", lowest=3)
    axes.set_title("4. N and D do not matter for Taylor", fontsize=11, loc="left")
    axes.legend(frameon=False, fontsize=8.5, loc="lower right")


def _percent(axes: Any, label: str, *, lowest: float) -> None:
    ticks = [tick for tick in (0.03, 0.1, 0.3, 1, 3, 10, 30, 100) if tick >= lowest]
    axes.set_yscale("log")
    axes.set_ylim(0.9 * lowest, 115)
    axes.set_yticks(ticks, [f"{tick:g} %" for tick in ticks])
    axes.set_ylabel("misplaced attention")
    axes.set_xlabel(label)
