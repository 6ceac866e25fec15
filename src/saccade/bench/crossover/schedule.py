"""Choose which form is measured at which N, and in which order, within a time limit.

Powers of two come first, every second one before the others, all D in turn, so that a run that ends
early has a coarse result for every D. Then come lengths around crossings: half-way between the two
N around a crossing, and beyond the grid if no crossing was found yet. Then the rest of the grid.

Times of linear and quadratic forms differ by a factor that grows like N. It predicts where they
cross and how long a call will take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log, log2
from typing import NamedTuple

from saccade.bench.clock import MIN_ROUNDS
from saccade.bench.crossings import Line, Point
from saccade.bench.crossover.measure import is_power_of_two
from saccade.bench.findings import Report
from saccade.bench.shapes import Shape
from saccade.ops.taylor import speed_threshold

__all__ = ["REACHES", "Budget", "Reach", "Schedule", "Step", "lengths"]

FAR_BEHIND = 20.0
"""A form this many times slower than the fastest, whose crossings are known, is left out."""
DECIDED = 0.2
"""The lead, as a logarithm, from which a curve that was behind counts as past the other."""
MIN_LENGTHS = 2
EXTRA_CALLS = 2


@dataclass(frozen=True)
class Reach:
    """The values of N.

    Attributes:
        first: The smallest of the grid, in N0.
        last: The largest of the grid, in N0.
        longest: How many tokens a crossing beyond the grid is followed to.
    """

    first: float
    last: float
    longest: int


REACHES = {"cpu": Reach(1 / 3, 8, 1 << 16), "cuda": Reach(1 / 4, 16, 1 << 20)}


class Step(NamedTuple):
    """Lines to be measured at one N."""

    head_dim: int
    tokens: int
    lines: tuple[Line, ...]


class Pair(NamedTuple):
    """An efficient form and what it is held against, of which the fastest counts."""

    ours: Line
    rivals: tuple[Line, ...]


def lengths(head_dim: int, reach: Reach) -> list[int]:
    """The grid: powers of two and their 1.5-folds around N0."""
    middle = speed_threshold(head_dim, symmetric=True)
    steps = sorted(n for i in range(2, 24) for n in (1 << i, 3 << (i - 1)))
    return [n for n in steps if reach.first * middle <= n <= reach.last * middle]


@dataclass
class Schedule:
    """Says what to measure next, given the points there are.

    Args:
        points: Points of the run, which grow while it lasts.
        lines: The lines to compare.
        head_dims: The values of D.
        reach: The values of N.
        shape: (D, N) -> the shape that is measured.
    """

    points: Sequence[Point]
    lines: Sequence[Line]
    head_dims: Sequence[int]
    reach: Reach
    shape: Callable[[int, int], Shape]
    _tried: set[tuple[int, int, Line]] = field(default_factory=set)

    def coarse(self) -> Iterator[Step]:
        """The powers of two; each step is to be taken before the next is asked for."""
        order = []
        for head_dim in self.head_dims:
            powers = [n for n in lengths(head_dim, self.reach) if is_power_of_two(n)]
            for turn, some in enumerate((powers[::2], powers[1::2])):
                order += [(turn, place, head_dim, n) for place, n in enumerate(some)]
        for _, _, head_dim, tokens in sorted(order):
            step = self._step(head_dim, tokens, self.lines)
            self._tried |= {(head_dim, tokens, line) for line in step.lines}
            yield step

    def fine(self) -> Iterator[Step]:
        """The cheapest step towards a crossing; where there is none, the cheapest of the grid."""
        while steps := self._towards_crossings() or self._rest_of_grid():
            step = min(steps, key=self.expected_ms)
            self._tried |= {(step.head_dim, step.tokens, line) for line in step.lines}
            yield step

    def expected_ms(self, step: Step) -> float:
        """One call of every line, by linear and quadratic laws, from the next smaller N known."""
        return sum(self._expected_ms(step.head_dim, step.tokens, line) for line in step.lines)

    def left_out(self) -> Iterator[tuple[int, Line, int, float]]:
        """(D, line, its last N, times slower than the fastest there), where others went on."""
        for head_dim in self.head_dims:
            measured = self._fastest(head_dim, self.lines)
            for line in self.lines:
                last = max(self._fastest(head_dim, (line,)), default=0)
                later = min((n for n in measured if n > last), default=None)
                if later is not None and self._leave_out(head_dim, later, line):
                    yield head_dim, line, last, self._ratios(head_dim, line, later)[-1]

    def _expected_ms(self, head_dim: int, tokens: int, line: Line) -> float:
        known = {p.tokens: p for p in self.points if (p.head_dim, p.line) == (head_dim, line.name)}
        if not known:
            return 0.0
        point = known[max((n for n in known if n < tokens), default=min(known))]
        shape, growth = self.shape(head_dim, tokens), tokens / point.tokens
        heads = shape.batch * shape.heads / point.heads
        return point.median_ms * heads * (growth if line.role == "efficient" else growth**2)

    def _step(self, head_dim: int, tokens: int, lines: Sequence[Line]) -> Step:
        chosen = [line for line in lines if (head_dim, tokens, line) not in self._tried]
        kept = tuple(line for line in chosen if not self._leave_out(head_dim, tokens, line))
        return Step(head_dim, tokens, kept)

    def _towards_crossings(self) -> list[Step]:
        wanted: dict[tuple[int, int], dict[Line, None]] = {}
        for head_dim in self.head_dims:
            for pair in self._pairs():
                for tokens in self._places(self._leads(head_dim, pair)):
                    lines = wanted.setdefault((head_dim, tokens), {})
                    lines |= dict.fromkeys((*pair.rivals, pair.ours))
        steps = [self._step(*place, tuple(lines)) for place, lines in wanted.items()]
        return [step for step in steps if step.lines]

    def _rest_of_grid(self) -> list[Step]:
        steps = [
            self._step(head_dim, tokens, self.lines)
            for head_dim in self.head_dims
            for tokens in lengths(head_dim, self.reach)
        ]
        return [step for step in steps if step.lines]

    def _places(self, leads: dict[int, float]) -> Iterator[int]:
        """The N to measure next for a pair: around its crossings, or where the first may be."""
        for left, right in pairwise(leads):
            if (leads[left] > 0) != (leads[right] > 0) and right >= 2 * left:
                yield _between(left, right)
        if leads and self._is_open(leads):
            last = max(leads)
            yield max(2 * _power_below(last), _power_below(_meeting(last, leads[last])))

    def _is_open(self, leads: dict[int, float]) -> bool:
        """Whether ours is not clearly ahead at the last N, and meets the rival within reach."""
        last = max(leads)
        return leads[last] <= DECIDED and _meeting(last, leads[last]) <= self.reach.longest

    def _pairs(self) -> list[Pair]:
        pairs = []
        for ours in (line for line in self.lines if line.role == "efficient"):
            direct = [x for x in self.lines if (x.role, x.form) == ("direct", ours.form)]
            softmax = [x for x in self.lines if x.role == "softmax"]
            pairs += [Pair(ours, tuple(rivals)) for rivals in (direct, softmax) if rivals]
        return pairs

    def _leads(self, head_dim: int, pair: Pair, below: float = float("inf")) -> dict[int, float]:
        """N -> log(fastest rival / ours), N in order."""
        ours = self._fastest(head_dim, (pair.ours,))
        rival = self._fastest(head_dim, pair.rivals)
        common = sorted(n for n in ours.keys() & rival.keys() if n < below)
        return {n: log(rival[n] / ours[n]) for n in common}

    def _fastest(self, head_dim: int, lines: Sequence[Line]) -> dict[int, float]:
        """N -> the smallest median of some lines."""
        names, best = {line.name for line in lines}, dict[int, float]()
        for p in self.points:
            if p.head_dim == head_dim and p.line in names:
                best[p.tokens] = min(p.median_ms, best.get(p.tokens, p.median_ms))
        return best

    def _leave_out(self, head_dim: int, tokens: int, line: Line) -> bool:
        """Whether a line is far behind, no longer gains, and has no crossing left to find."""
        ratios = self._ratios(head_dim, line, tokens)
        if len(ratios) < 2 or ratios[-1] <= FAR_BEHIND or ratios[-1] < ratios[-2]:
            return False
        leads = [
            self._leads(head_dim, pair, below=tokens)
            for pair in self._pairs()
            if line in (pair.ours, *pair.rivals)
        ]
        return all(len(known) >= 2 and not self._is_open(known) for known in leads)

    def _ratios(self, head_dim: int, line: Line, below: float) -> list[float]:
        """How many times slower than the fastest it was, N in order."""
        own, best = self._fastest(head_dim, (line,)), self._fastest(head_dim, self.lines)
        return [own[n] / best[n] for n in sorted(own) if n < below]


def _between(left: int, right: int) -> int:
    """The power of two in the middle, or half-way between two that are neighbors."""
    if right <= 2 * left:
        return 3 * left // 2
    return 1 << round((log2(left) + log2(right)) / 2)


def _meeting(tokens: int, lead: float) -> float:
    """The N at which a lead that grows like N becomes 0."""
    return tokens * exp(-lead)


def _power_below(tokens: float) -> int:
    return 1 << int(log2(tokens))


@dataclass
class Budget:
    """Measure the steps of a schedule within a time limit.

    Points are appended as they are measured, so that an interrupted run keeps them. A step is
    taken if its minimum number of calls is expected to fit the remaining time. Two N of every D are
    always measured.

    Args:
        schedule: Says what to measure next.
        points: Receives the measured points; the schedule reads them.
        remarks: Receives a sentence for each length that was not measured, with the reason.
        measure: Measures lines at a shape.
        seconds: Approximate time of all measurements.
        report: Called after every N.
        clock: Gives the time in seconds.
    """

    schedule: Schedule
    points: list[Point]
    remarks: list[str]
    measure: Callable[[Shape, Sequence[Line]], Iterable[Point]]
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
