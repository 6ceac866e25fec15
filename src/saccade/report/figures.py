"""Training curves: a measure over epochs or time, with its range over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any

from saccade.errors import shorten
from saccade.plotting import INK, MUTED
from saccade.report.collect import Run, number
from saccade.report.findings import Row
from saccade.report.groups import Group
from saccade.report.style import (
    Drawing,
    Margins,
    Series,
    axes_style,
    draw,
)
from saccade.results import Claim

__all__ = [
    "Course",
    "accuracy_over_time",
    "cost_front",
    "course",
    "cut_accuracy",
    "differences",
    "epoch_curves",
    "pareto",
    "pareto_front",
]

SPREAD_ALPHA = 0.13
MAX_MARKERS = 8


@dataclass(frozen=True)
class Course:
    """One measure over the epochs: mean, minimum and maximum of the runs that have it."""

    epochs: list[int]
    seconds: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def course(group: Group, key: str) -> Course | None:
    """A measure over the epochs that all runs of the group have; None if there are none."""
    runs = [points for run in group.runs if (points := _points(run, key))]
    common = sorted(set.intersection(*map(set, runs))) if runs else []
    if not common:
        return None
    columns = [[points[epoch] for points in runs] for epoch in common]
    return Course(
        epochs=common,
        seconds=[fmean(seconds for seconds, _ in column) for column in columns],
        mean=[fmean(value for _, value in column) for column in columns],
        low=[min(value for _, value in column) for column in columns],
        high=[max(value for _, value in column) for column in columns],
    )


def _points(run: Run, key: str) -> dict[int, tuple[float, float]]:
    """Map each epoch to (seconds of training so far, value)."""
    clock = accumulate(number(row.get("seconds")) or 0.0 for row in run.epochs)
    rows = [
        (int(row["epoch"]), seconds, number(row.get(key)))
        for row, seconds in zip(run.epochs, clock, strict=True)
    ]
    return {epoch: (seconds, value) for epoch, seconds, value in rows if value is not None}


def epoch_curves(
    groups: Sequence[Group], series: Mapping[str, Series], key: str, label: str
) -> Drawing | None:
    """A measure over the epochs, with the range over seeds; None if no run has it."""
    return _curves(groups, series, key, label, over="epoch", at=lambda _, own: own.epochs)


def accuracy_over_time(
    groups: Sequence[Group],
    series: Mapping[str, Series],
    seconds_per_epoch: Mapping[str, float] | None = None,
) -> Drawing | None:
    """Validation accuracy over seconds of training; None if no run was validated.

    Args:
        groups: The groups to draw.
        series: Color and marker of each group, by label.
        seconds_per_epoch: Seconds of an epoch, by label, used instead of the times of the runs.
            Groups without an entry are not drawn.
    """

    def at(label: str, own: Course) -> Sequence[float]:
        if seconds_per_epoch is None:
            return own.seconds
        return [seconds_per_epoch[label] * epoch for epoch in own.epochs]

    if seconds_per_epoch is not None:
        groups = [group for group in groups if group.label in seconds_per_epoch]
    over = "seconds of training"
    return _curves(groups, series, "val_accuracy", "validation accuracy", over=over, at=at)


def _curves(
    groups: Sequence[Group],
    series: Mapping[str, Series],
    key: str,
    label: str,
    *,
    over: str,
    at: Callable[[str, Course], Sequence[float]],
) -> Drawing | None:
    courses = {g.label: found for g in groups if (found := course(g, key)) is not None}
    if not courses:
        return None

    def paint(axes: Any) -> None:
        in_percent = "y" if "accuracy" in key else ""
        axes_style(axes, x=over, y=label, percent=in_percent, whole=over == "epoch")
        for name, own in courses.items():
            look, x = series[name], at(name, own)
            axes.fill_between(
                x, own.low, own.high, color=look.color, alpha=SPREAD_ALPHA, linewidth=0
            )
            axes.plot(
                x,
                own.mean,
                color=look.color,
                linestyle=look.dash,
                marker=look.marker,
                markersize=4,
                markevery=max(1, len(own.mean) // MAX_MARKERS),
            )
        if "accuracy" in key:
            axes.set_ylim(*_accuracy_limits([*courses.values()]))

    return draw(paint, legend={name: series[name] for name in courses})


def cut_accuracy(groups: Sequence[Group]) -> float | None:
    """The lower limit of the accuracy axis if early epochs are below it, else None."""
    courses = [found for group in groups if (found := course(group, "val_accuracy")) is not None]
    if not courses:
        return None
    floor, _ = _accuracy_limits(courses)
    return floor if min(min(own.low) for own in courses) < floor else None


def _accuracy_limits(courses: Sequence[Course]) -> tuple[float, float]:
    """Axis limits that contain every run after the first third of its epochs."""
    low = min(value for own in courses for value in own.low[len(own.low) // 3 :])
    high = max(value for own in courses for value in own.high)
    room = max(0.005, 0.06 * (high - low))
    return max(0.0, low - room), min(1.0 + room, high + room)


def differences(claims: Sequence[Claim], series: Mapping[str, Series]) -> Drawing:
    """Differences to the baseline with intervals; a filled marker means the claim holds."""
    labels = [shorten(claim.first, 32) for claim in claims]

    def paint(axes: Any) -> None:
        baseline = claims[0].second
        axes_style(axes, x=f"points above {shorten(baseline, 28)}", y="")
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
