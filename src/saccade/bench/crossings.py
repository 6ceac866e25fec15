"""Curves over N and where two of them cross, with an interval; and when no crossing can be named.

A lead is log(rival / ours) at one N: above 0 ours is smaller, which is better. Between two N of the
grid the lead is a straight line over log N, which is exact for powers of N. The interval is a
bootstrap: measurements of each point are resampled with replacement and the crossing found again.

Other load on a machine makes calls slower, either for a moment or for all calls at one N. The first
shows in the spread of the calls. The second shows in the curve: the time of attention grows at
least like B H N and at most like B H N^2, so a step outside of that range is a disturbance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, isfinite, log
from typing import Any, Literal, TypeVar

import numpy as np

from saccade.bench.clock import Timing, summarize
from saccade.bench.shapes import Pass, Shape

__all__ = [
    "Crossing",
    "Line",
    "Point",
    "Samples",
    "Verdict",
    "all_crossings",
    "bracket_crossing",
    "find_crossing",
    "first_ahead",
    "held_to_points",
    "make_point",
    "ratio_interval",
]

Samples = Mapping[int, Sequence[float]]
"""N -> repeated measurements."""

X = TypeVar("X", int, float)
Role = Literal["softmax", "direct", "efficient"]

Verdict = Literal[
    "crosses", "ahead from the start", "behind to the end", "not measured", "not reliable"
]

DRAWS = 400
LEVEL = 0.9
SEED = 0
JUMP = 3.0
"""Caches, threads and other kernels change the time of a step by less than this factor."""


@dataclass(frozen=True)
class Line:
    """A curve.

    Attributes:
        mechanism: A name of `saccade.bench.mechanisms`.
        role: Which of the three it is.
        form: Of Taylor attention: torch, fused or published; else the name of the attention.
    """

    name: str
    mechanism: str
    role: Role
    form: str


@dataclass(frozen=True)
class Point:
    """One curve at one N.

    Attributes:
        line: Name of the curve, which has this role and form.
        heads: B H.
        times_ms: Every timed call; the median and percentiles are theirs.
        flops: FLOPs of the call, by formula.
        peak_mib: Peak memory beyond what was there before; None if it was not measured.
    """

    line: str
    role: Role
    form: str
    head_dim: int
    tokens: int
    heads: int
    times_ms: tuple[float, ...]
    median_ms: float
    p20_ms: float
    p80_ms: float
    tokens_per_s: float
    flops: int
    peak_mib: float | None = None
    direction: Pass = "forward"

    @property
    def is_unsteady(self) -> bool:
        """True if its calls differ too much to tell a time."""
        return Timing(self.median_ms, self.p20_ms, self.p80_ms, len(self.times_ms)).is_unsteady


def make_point(
    line: Line,
    shape: Shape,
    times_ms: Sequence[float],
    flops: int,
    peak_mib: float | None = None,
    direction: Pass = "forward",
) -> Point:
    """The point of a line at a shape, from its timed calls."""
    timing, heads = summarize(times_ms), shape.batch * shape.heads
    return Point(
        line=line.name,
        role=line.role,
        form=line.form,
        head_dim=shape.head_dim,
        tokens=shape.tokens,
        heads=heads,
        times_ms=tuple(round(t, 5) for t in times_ms),
        median_ms=timing.median_ms,
        p20_ms=timing.p20_ms,
        p80_ms=timing.p80_ms,
        tokens_per_s=1e3 * heads * shape.tokens / timing.median_ms,
        flops=flops,
        peak_mib=peak_mib,
        direction=direction,
    )


@dataclass(frozen=True)
class Crossing:
    """From how many tokens on one curve lies below another, up to the end of the grid.

    Attributes:
        verdict: Whether there is such an N, and if not, which of them leads.
        tokens: That N; the first of the grid where it leads from the start.
        low: Lower end of the 90 % interval, None where that is below the grid.
        high: Upper end, None where that is beyond the grid.
        changes: Every N at which the lead changes; more than one where the curves cross again.
        first_tokens: The smallest N that both were measured at.
        last_tokens: The largest N that both were measured at.
        reason: Why the measurements are not reliable, where they are not.
    """

    verdict: Verdict
    tokens: float | None = None
    low: float | None = None
    high: float | None = None
    changes: tuple[float, ...] = ()
    first_tokens: int | None = None
    last_tokens: int | None = None
    reason: str = ""

    def decided_by(self, grid: Sequence[int]) -> list[int]:
        """The N of the grid that the verdict rests on: those around it, and their neighbors."""
        low, high = self.low or grid[0], self.high or grid[-1]
        if self.verdict == "ahead from the start":
            low, high = grid[0], grid[0]
        elif self.verdict == "behind to the end":
            low, high = grid[-1], grid[-1]
        first = max((i for i, n in enumerate(grid) if n <= low), default=0)
        last = min((i for i, n in enumerate(grid) if n >= high), default=len(grid) - 1)
        return list(grid[max(0, first - 1) : last + 2])


def all_crossings(leads: Mapping[X, float], *, tie: float = 0.0) -> list[float]:
    """Every N at which the lead changes its sign, in order; leads up to `tie` count for neither."""
    decided = [n for n in sorted(leads) if abs(leads[n]) > tie]
    return [
        _zero(left, right, leads)
        for left, right in pairwise(decided)
        if (leads[left] > 0) != (leads[right] > 0)
    ]


def find_crossing(rival: Samples, ours: Samples) -> Crossing:
    """From which N on `ours` is below `rival`, with a bootstrap interval."""
    grid = sorted(rival.keys() & ours.keys())
    if len(grid) < 2:
        return Crossing("not measured")
    middle = {n: _lead(np.median(rival[n]), np.median(ours[n])) for n in grid}
    start, changes = first_ahead(middle), tuple(all_crossings(middle))
    generator = np.random.default_rng(SEED)
    medians = [{n: _drawn_medians(curve[n], generator) for n in grid} for curve in (rival, ours)]
    starts = [
        first_ahead({n: _lead(medians[0][n][i], medians[1][n][i]) for n in grid})
        for i in range(DRAWS)
    ]
    low, high = np.quantile(starts, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
    return _crossing(grid, start, changes, low if low > grid[0] else None, high)


def bracket_crossing(
    rival: Mapping[int, float], ours: Mapping[int, float], *, tie: float = 0.1
) -> Crossing:
    """The same for values measured once: the interval is the piece of the grid it lies in."""
    grid = sorted(rival.keys() & ours.keys())
    if len(grid) < 2:
        return Crossing("not measured")
    leads = {n: _lead(rival[n], ours[n]) for n in grid}
    start = first_ahead(leads, tie)
    before = [n for n in grid if n <= start and leads[n] < -tie]
    after = [n for n in grid if n >= start and leads[n] > tie]
    changes = tuple(all_crossings(leads, tie=tie))
    return _crossing(grid, start, changes, max(before, default=None), min(after, default=inf))


def _crossing(
    grid: list[int], start: float, changes: tuple[float, ...], low: float | None, high: float
) -> Crossing:
    ends: dict[str, Any] = {"first_tokens": grid[0], "last_tokens": grid[-1]}
    least, most = (None if x is None or not isfinite(x) else float(x) for x in (low, high))
    if start == inf:
        return Crossing("behind to the end", None, least, None, changes, **ends)
    verdict: Verdict = "crosses" if changes else "ahead from the start"
    return Crossing(verdict, start, least, most, changes, **ends)


def first_ahead(leads: Mapping[X, float], tie: float = 0.0) -> float:
    """The N from which the lead stays positive; the first where it always is, inf where never."""
    grid = sorted(leads)
    decided = [n for n in grid if abs(leads[n]) > tie]
    if not decided or leads[decided[-1]] <= 0:
        return inf
    losses = [i for i, n in enumerate(decided) if leads[n] <= 0]
    if not losses:
        return float(grid[0])
    return _zero(decided[losses[-1]], decided[losses[-1] + 1], leads)


def _zero(left: X, right: X, leads: Mapping[X, float]) -> float:
    share = leads[left] / (leads[left] - leads[right])
    return exp(log(left) + share * (log(right) - log(left)))


def _lead(rival: float, ours: float) -> float:
    return log(rival / ours)


def ratio_interval(rival: Sequence[float], ours: Sequence[float]) -> tuple[float, float, float]:
    """Median of `rival` over that of `ours`, and the 90 % interval of a bootstrap."""
    generator = np.random.default_rng(SEED)
    drawn = [_drawn_medians(times, generator) for times in (rival, ours)]
    low, high = np.quantile(drawn[0] / drawn[1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(np.median(rival) / np.median(ours)), float(low), float(high)


def _drawn_medians(samples: Sequence[float], generator: np.random.Generator) -> Any:
    drawn = generator.choice(np.asarray(samples), size=(DRAWS, len(samples)))
    return np.median(drawn, axis=1)


def held_to_points(
    crossing: Crossing, rival: Mapping[int, Point], ours: Mapping[int, Point]
) -> Crossing:
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


def _unsteady(curve: Mapping[int, Point], grid: Sequence[int]) -> str:
    points = [curve[n] for n in grid if curve[n].is_unsteady]
    if not points:
        return ""
    worst = max(points, key=lambda point: point.p80_ms / point.p20_ms)
    more = f" and {len(points) - 1} more" if len(points) > 1 else ""
    times = f"{worst.p20_ms:.3g} to {worst.p80_ms:.3g} ms"
    return f"{worst.line} is unsteady at N = {worst.tokens:,} ({times}){more}"


def _jump(curve: Mapping[int, Point], grid: Sequence[int]) -> str:
    for low, high in pairwise(grid):
        one, other = curve[low], curve[high]
        linear = (other.heads * high) / (one.heads * low)
        quadratic = linear * high / low
        step = other.median_ms / one.median_ms
        if not min(linear, quadratic) / JUMP <= step <= JUMP * max(linear, quadratic):
            times = f"{one.median_ms:.3g} to {other.median_ms:.3g} ms"
            return f"{other.line} goes from {times} between N = {low:,} and {high:,}"
    return ""
