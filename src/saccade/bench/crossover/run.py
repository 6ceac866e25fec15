"""`saccade analyze crossover`: number of tokens from which linear time pays.

The theory counts FLOPs and stored numbers (arXiv:2403.02920): N0 for speed, N1 for memory, each
with the paper's D^2 features and with the D(D+1)/2 that are sufficient. The measurement times the
forms and finds where their curves cross. This is figure 2 of the paper, measured on the user's
machine, with fused softmax added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from saccade.bench.crossings import (
    Crossing,
    Point,
    Samples,
    bracket_crossing,
    find_crossing,
    held_to_points,
)
from saccade.bench.crossover.measure import TAYLOR_FORMS, Device, lines_of, shape_on
from saccade.bench.crossover.schedule import REACHES, Budget, Schedule, lengths
from saccade.bench.findings import Findings, Report
from saccade.bench.plots import save_figure
from saccade.bench.shapes import PASSES, DTypeName, Pass
from saccade.bench.tables import Table, number, spread
from saccade.ops.taylor import memory_threshold, speed_threshold

__all__ = ["DTYPE", "HEAD_DIMS", "SECONDS", "Comparison", "CrossoverFindings", "run_crossover"]

HEAD_DIMS = (16, 32, 64, 128)
SECONDS = {"cpu": 210.0, "cuda": 90.0}
"""About how long measuring may take."""
REPEATED = 0.25
"""The part of it for repeated calls where they are fast."""
DTYPE: dict[str, DTypeName] = {"cpu": "float32", "cuda": "bfloat16"}

Measure = Literal["time", "memory"]


@dataclass(frozen=True)
class Comparison:
    """The efficient form against a rival at one D.

    Attributes:
        form: torch, fused or published.
        rival: `direct`, of the same form, or `softmax`.
        theory: The N of equal FLOPs, or of equally many stored numbers, for `direct`.
    """

    head_dim: int
    form: str
    rival: str
    measure: Measure
    theory: int | None
    crossing: Crossing
    direction: Pass = "forward"


@dataclass
class CrossoverFindings(Findings):
    """Points, and where their curves cross."""

    theme: ClassVar[str] = "crossover"
    title: ClassVar[str] = "From how many tokens on linear time pays"
    preface: ClassVar[str] = (
        "`training` is forward and backward; memory is that of the forward pass on a CPU. `direct` "
        "and `efficient` are this library's forms of Taylor attention, "
        "`as published` the plain formulas of the paper with N x N weights and N x D^2 features "
        "in memory, `softmax` torch's fused kernels. Other attentions have their own names and are "
        "held against softmax. A crossing is the N from which the efficient "
        "form is ahead up to the end of the grid, between grid points on a straight line on log "
        "axes, with the 90 % interval of a bootstrap over the repeated timings; memory is "
        "measured once, and its interval is the piece of the grid. Leads in memory below 10 % "
        "count as none. No crossing in time is named where the calls around it are unsteady (their "
        "slowest fifth takes 1.5 times as long as their fastest) or times jump by more than work "
        "can: the machine was busy with something else. Every form was held to float64 once for "
        "each D. The grid is finer near crossings; what was left out is told under Remarks."
    )

    dtype: str
    points: list[Point] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def head_dims(self) -> list[int]:
        """Those measured."""
        return sorted({point.head_dim for point in self.points})

    def passes(self) -> list[Pass]:
        """Those measured."""
        return [name for name in PASSES if any(p.direction == name for p in self.points)]

    def of_taylor_forward(self) -> list[Point]:
        """The forms of Taylor attention and softmax in the forward pass, which the figure shows."""
        return [p for p in self.points if p.direction == "forward" and p.form in TAYLOR_FORMS]

    def comparisons(self, direction: Pass | None = None) -> list[Comparison]:
        """Every efficient form against direct of its form and against the fastest softmax."""
        return [
            self._compare(head_dim, form, rival, measure, name)
            for name in self.passes()
            if direction in (None, name)
            for head_dim in self.head_dims()
            for form in dict.fromkeys(p.form for p in self.points if p.role == "efficient")
            for rival in ("direct", "softmax")
            for measure in ("time", "memory")
        ]

    def _compare(
        self, head_dim: int, form: str, rival: str, measure: Any, direction: Pass
    ) -> Comparison:
        ours = self._select(head_dim, "efficient", form, direction)
        rival_form = None if rival == "softmax" else form
        theirs = self._select(head_dim, rival, rival_form, direction)
        if measure == "time":
            rival_points, our_points = _fastest(theirs), _fastest(ours)
            crossing = find_crossing(_times(rival_points), _times(our_points))
            crossing = held_to_points(crossing, rival_points, our_points)
        else:
            crossing = bracket_crossing(_leanest(theirs), _leanest(ours))
        threshold = speed_threshold if measure == "time" else memory_threshold
        theory = threshold(head_dim, symmetric=form != "published") if rival == "direct" else None
        return Comparison(head_dim, form, rival, measure, theory, crossing, direction)

    def _select(self, head_dim: int, role: str, form: str | None, direction: Pass) -> list[Point]:
        return [
            p
            for p in self.points
            if (p.head_dim, p.role, p.direction) == (head_dim, role, direction)
            and form in (None, p.form)
        ]

    def conclusions(self) -> dict[str, Any]:
        """Theory and crossings."""
        return {
            "theory": [
                {
                    "head_dim": d,
                    "N0": speed_threshold(d),
                    "N0_symmetric": speed_threshold(d, symmetric=True),
                    "N1": memory_threshold(d),
                    "N1_symmetric": memory_threshold(d, symmetric=True),
                }
                for d in self.head_dims()
            ],
            "crossings": [asdict(comparison) for comparison in self.comparisons()],
        }

    def tables(self) -> list[Table]:
        """Crossings beside theory, and every point."""
        tables = [*self._crossing_tables(), *self._point_tables()]
        if self.remarks:
            tables.append(Table("Remarks", ("what was not measured",), [[r] for r in self.remarks]))
        return tables

    def _crossing_tables(self) -> Iterator[Table]:
        names = {"time": "N0, equal FLOPs", "memory": "N1, equal entries"}
        for direction, (measure, theory) in product(self.passes(), names.items()):
            found = self.comparisons(direction)
            lines = [
                [
                    f"{_name(c.form)} against {c.rival}",
                    str(c.head_dim),
                    "-" if c.theory is None else f"{c.theory:,}",
                    tell(c.crossing),
                ]
                for c in sorted(found, key=lambda c: (c.form, c.rival, c.head_dim))
                if c.measure == measure and c.crossing.verdict != "not measured"
            ]
            if lines:
                columns = ("", "D", theory, "measured")
                yield Table(f"{direction}: ahead in {measure} from N", columns, lines)

    def _point_tables(self) -> Iterator[Table]:
        columns = ("form", "N", "B H", "ms (p20-p80)", "tokens/s", "GFLOP", "MiB")
        for direction, head_dim in product(self.passes(), self.head_dims()):
            lines = [
                [
                    p.line,
                    f"{p.tokens:,}",
                    str(p.heads),
                    spread(p) + (" unsteady" if p.is_unsteady else ""),
                    number(p.tokens_per_s),
                    number(p.flops / 1e9),
                    number(p.peak_mib),
                ]
                for p in sorted(self.points, key=lambda p: p.tokens)
                if (p.head_dim, p.direction) == (head_dim, direction)
            ]
            yield Table(f"{direction}, D = {head_dim}", columns, lines)

    def draw(self, stem: Path) -> list[Path]:
        """Throughput and memory over N for each D, and crossings over D."""
        from saccade.bench.crossover.plot import make_figure

        return save_figure(make_figure(self), stem) if self.of_taylor_forward() else []


def tell(crossing: Crossing) -> str:
    """A crossing in a few words."""
    if crossing.verdict == "not reliable":
        return f"not named: {crossing.reason}"
    if crossing.verdict == "behind to the end":
        return f"not up to {crossing.last_tokens:,}"
    if crossing.tokens is None:
        return crossing.verdict
    if crossing.verdict == "ahead from the start":
        return f"from the first, {crossing.first_tokens:,}"
    low = f"<= {crossing.first_tokens:,}" if crossing.low is None else f"{crossing.low:,.0f}"
    high = f"> {crossing.last_tokens:,}" if crossing.high is None else f"{crossing.high:,.0f}"
    again = ", after crossing back and forth" if len(crossing.changes) > 1 else ""
    return f"{crossing.tokens:,.0f} ({low} to {high}){again}"


def _name(form: str) -> str:
    return f"efficient ({form})" if form in TAYLOR_FORMS else form


def run_crossover(
    findings: CrossoverFindings,
    device: torch.device,
    *,
    head_dims: tuple[int, ...] = HEAD_DIMS,
    attentions: Sequence[str] = (),
    passes: Sequence[Pass] = ("forward",),
    seconds: float | None = None,
    report: Report = lambda message, share: None,
) -> None:
    """Fill the findings within about so many seconds.

    Args:
        findings: Receives the points as they are measured.
        device: Device to run on.
        head_dims: The values of D.
        attentions: Attentions to measure beside the forms of Taylor attention.
        passes: Passes to measure, each in an equal part of the time.
        seconds: About how long all of it may take; by default `SECONDS` for each pass.
        report: Called after every N.
    """
    kind, remarks = device.type, findings.remarks
    budget = SECONDS[kind] if seconds is None else seconds / len(passes)
    reach, lines = REACHES[kind], lines_of(kind, attentions)
    turns = REPEATED * budget / sum(len(lengths(d, reach)) for d in head_dims)
    for number_of_pass, direction in enumerate(passes):
        points: list[Point] = [] if number_of_pass else findings.points
        schedule = Schedule(points, lines, head_dims, reach, partial(shape_on, kind))
        bench = Device(device, DTYPE[kind], turns, remarks, direction)

        def tell_share(message: str, share: float, *, part: int = number_of_pass) -> None:
            report(f"{passes[part]}: {message}", (part + share) / len(passes))

        try:
            Budget(schedule, points, remarks, bench.measure, budget, tell_share).run(
                after_coarse=partial(bench.add_memory, points, head_dims)
            )
        finally:
            findings.points += points if number_of_pass else []
    if shaky := [point for point in findings.points if point.is_unsteady]:
        remarks.append(
            f"{len(shaky)} of {len(findings.points)} points are unsteady; is the machine busy with "
            "something else?"
        )
    findings.complete = True


def _fastest(points: list[Point]) -> dict[int, Point]:
    """N -> the point of the line with the smallest median there."""
    best: dict[int, Point] = {}
    for point in points:
        if point.tokens not in best or point.median_ms < best[point.tokens].median_ms:
            best[point.tokens] = point
    return best


def _times(points: dict[int, Point]) -> Samples:
    return {tokens: point.times_ms for tokens, point in points.items()}


def _leanest(points: list[Point]) -> dict[int, float]:
    """N -> the smallest peak there, at least 0.1 MiB, below which it is noise."""
    best: dict[int, float] = {}
    for point in points:
        if point.peak_mib is not None:
            peak = max(point.peak_mib, 0.1)
            best[point.tokens] = min(peak, best.get(point.tokens, peak))
    return best
