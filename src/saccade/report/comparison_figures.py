"""Figures that compare groups: differences to the baseline, accuracy against cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saccade.report.findings import Row
from saccade.report.style import (
    INK,
    MUTED,
    Drawing,
    Margins,
    Series,
    axes_style,
    draw,
    shortened,
)
from saccade.results import Claim

__all__ = ["cost_front", "differences", "pareto", "pareto_front"]


def differences(claims: Sequence[Claim], series: Mapping[str, Series]) -> Drawing:
    """Differences to the baseline with intervals; a filled marker means the claim holds."""
    labels = [shortened(claim.first, 32) for claim in claims]

    def paint(axes: Any) -> None:
        baseline = claims[0].second
        axes_style(axes, x=f"points above {shortened(baseline, 28)}", y="")
        axes.grid(False, axis="y")
        axes.axvline(0, color=MUTED, linewidth=1.2)
        axes.spines["left"].set_visible(False)
        axes.set_yticks(range(len(claims)), labels)
        axes.set_ylim(len(claims) - 0.5, -0.5)
        for place, claim in enumerate(claims):
            look = series[claim.first]
            ends = (100 * claim.low, 100 * claim.high)
            axes.plot(ends, (place, place), color=look.color, linewidth=1.6)
            axes.plot(
                100 * claim.difference,
                place,
                look.marker,
                color=look.color,
                markerfacecolor=look.color if claim.holds else "white",
                markersize=6.5,
            )

    left = 0.2 + 0.074 * max(map(len, labels))
    return draw(
        paint,
        width=max(4.6, left + 2.6),
        height=0.66 + 0.27 * len(claims),
        margins=Margins(left=left),
    )


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names on the Pareto front of (cost, accuracy): no other is cheaper and as accurate."""
    front: list[str] = []
    for name in sorted(points, key=lambda name: (points[name][0], -points[name][1], name)):
        if not front or points[name][1] > points[front[-1]][1]:
            front.append(name)
    return front


def cost_front(rows: Sequence[Row], key: str, *, more_is_better: bool) -> list[str]:
    """The labels on the Pareto front of accuracy against a cost, among rows that have the cost."""
    sign = -1 if more_is_better else 1
    known = {row.label: getattr(row, key) for row in rows}
    return pareto_front(
        {r.label: (sign * known[r.label], r.accuracy) for r in rows if known[r.label] is not None}
    )


def pareto(
    rows: Sequence[Row], series: Mapping[str, Series], key: str, label: str, *, more_is_better: bool
) -> Drawing | None:
    """Accuracy against a cost, with intervals and Pareto front; None for fewer than two points."""
    known = {row.label: row for row in rows if getattr(row, key) is not None}
    if len(known) < 2:
        return None
    front = cost_front(rows, key, more_is_better=more_is_better)

    def paint(axes: Any) -> None:
        axes_style(axes, x=label, y="accuracy", percent="y")
        line = [(getattr(known[name], key), known[name].accuracy) for name in front]
        axes.plot(*zip(*line, strict=True), color=MUTED, linewidth=1, linestyle=(0, (3, 2)))
        for name, row in known.items():
            _point(axes, getattr(row, key), row, series[name], is_front=name in front)
        axes.margins(x=0.08)

    return draw(paint, legend={name: series[name] for name in known})


def _point(axes: Any, x: float, row: Row, look: Series, *, is_front: bool) -> None:
    """Draw a marker with its interval, and a ring if it is on the Pareto front."""
    if row.accuracy_low is not None and row.accuracy_high is not None:
        axes.plot([x, x], [row.accuracy_low, row.accuracy_high], color=look.color, linewidth=1.2)
    if is_front:
        axes.plot(x, row.accuracy, "o", color="none", markeredgecolor=INK, markersize=12)
    axes.plot(x, row.accuracy, look.marker, color=look.color, markersize=6.5)
