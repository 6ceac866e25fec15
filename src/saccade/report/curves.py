"""Training curves: a measure over epochs or time, with its range over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any

from saccade.report.collect import Run, number
from saccade.report.groups import Group
from saccade.report.style import Drawing, Series, axes_style, draw

__all__ = ["Course", "accuracy_over_time", "course", "cut_accuracy", "epoch_curves"]

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
