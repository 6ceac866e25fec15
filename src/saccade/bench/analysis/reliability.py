"""Whether measured times carry a verdict about where two curves cross.

Other load on a machine makes calls slower by any factor, for a moment or for all calls at one N.
The first shows in the spread of the calls. The second shows in the curve: the time of attention
grows like B H N at least and like B H N^2 at most, so a step far outside of that is a disturbance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from saccade.bench.analysis.crossings import Crossing
from saccade.bench.analysis.crossover_lines import Point

__all__ = ["held_to_points", "unsteady_points"]

JUMP = 3.0
"""Caches, threads and other kernels change the time of a step by less than this factor."""

Curve = Mapping[int, Point]
"""N -> the point there."""


def held_to_points(crossing: Crossing, rival: Curve, ours: Curve) -> Crossing:
    """The crossing, or that there is none to name, with the reason."""
    grid = sorted(rival.keys() & ours.keys())
    if crossing.verdict == "not measured":
        return crossing
    decisive = crossing.decided_by(grid)
    found = [
        reason
        for curve in (rival, ours)
        for reason in (_unsteady(curve, decisive), _jump(curve, decisive))
        if reason
    ]
    if not found:
        return crossing
    ends = {"first_tokens": grid[0], "last_tokens": grid[-1]}
    return Crossing("not reliable", changes=crossing.changes, reason="; ".join(found), **ends)


def unsteady_points(points: Sequence[Point]) -> list[Point]:
    """Those whose calls differ too much."""
    return [point for point in points if point.is_unsteady]


def _unsteady(curve: Curve, grid: Sequence[int]) -> str:
    points = [curve[n] for n in grid if curve[n].is_unsteady]
    if not points:
        return ""
    worst = max(points, key=lambda point: point.p80_ms / point.p20_ms)
    more = f" and {len(points) - 1} more" if len(points) > 1 else ""
    times = f"{worst.p20_ms:.3g} to {worst.p80_ms:.3g} ms"
    return f"{worst.line} is unsteady at N = {worst.tokens:,} ({times}){more}"


def _jump(curve: Curve, grid: Sequence[int]) -> str:
    for low, high in pairwise(grid):
        one, other = curve[low], curve[high]
        linear = (other.heads * high) / (one.heads * low)
        quadratic = linear * high / low
        step = other.median_ms / one.median_ms
        if not min(linear, quadratic) / JUMP <= step <= JUMP * max(linear, quadratic):
            times = f"{one.median_ms:.3g} to {other.median_ms:.3g} ms"
            return f"{other.line} goes from {times} between N = {low:,} and {high:,}"
    return ""
