"""Takes the steps of a schedule, as far as the time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from saccade.bench.analysis.crossover_lines import Line, Point
from saccade.bench.analysis.crossover_schedule import Schedule, Step
from saccade.bench.analysis.findings import Report
from saccade.bench.shapes import Shape

__all__ = ["MIN_ROUNDS", "Budget"]

MIN_ROUNDS = 3
MIN_LENGTHS = 2
EXTRA_CALLS = 2

Measure = Callable[[Shape, Sequence[Line]], Iterable[Point]]


@dataclass
class Budget:
    """Fills a list of points, so that an interrupted run keeps what it has.

    A step is taken if its fewest calls are expected to fit the time that is left. Two N of every D
    are measured however little that is.

    Args:
        schedule: What to measure next.
        points: Where points go; the schedule looks at them.
        remarks: Where what was not measured is named, with the reason.
        measure: Measures lines at a shape.
        seconds: About how long all of it may take.
        report: Is told of every N.
        clock: In seconds.
    """

    schedule: Schedule
    points: list[Point]
    remarks: list[str]
    measure: Measure
    seconds: float
    report: Report
    clock: Callable[[], float] = time.monotonic
    _skipped: dict[int, set[int]] = field(default_factory=dict)

    def run(self, after_coarse: Callable[[], None] = lambda: None) -> None:
        """Take coarse steps, call `after_coarse`, whose time does not count, take fine steps."""
        self._start = self.clock()
        try:
            self._take(self.schedule.coarse())
            paused = self.clock()
            after_coarse()
            self._start += self.clock() - paused
            self._take(self.schedule.fine())
        finally:
            self._remark()
        self.report("all measured", 1.0)

    def _take(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if self._fits(step):
                shape = self.schedule.shape(step.head_dim, step.tokens)
                self.points += self.measure(shape, step.lines)
                share = min(1.0, (self.clock() - self._start) / self.seconds)
                self.report(f"D = {step.head_dim}, N = {step.tokens:,}", share)
            else:
                self._skipped.setdefault(step.head_dim, set()).add(step.tokens)

    def _fits(self, step: Step) -> bool:
        done = {p.tokens for p in self.points if p.head_dim == step.head_dim}
        if len(done) < MIN_LENGTHS:
            return True
        left_s = self.seconds - (self.clock() - self._start)
        return 1e-3 * self.schedule.expected_ms(step) * (MIN_ROUNDS + EXTRA_CALLS) < left_s

    def _remark(self) -> None:
        for head_dim, lengths in sorted(self._skipped.items()):
            named = ", ".join(f"{n:,}" for n in sorted(lengths))
            self.remarks.append(f"D = {head_dim}: no time for all forms at N = {named}")
        for head_dim, line, last, ratio in self.schedule.left_out():
            self.remarks.append(
                f"D = {head_dim}: {line.name} not beyond N = {last:,}, where it was {ratio:.0f} "
                "times slower than the fastest, with no crossing left to find"
            )
