"""The result of `saccade bench model TARGET`: JSON, tables and the verdict in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from saccade.bench.crossings import (
    Crossing,
    Point,
    find_crossing,
    held_to_points,
    ratio_interval,
)
from saccade.bench.findings import Findings
from saccade.bench.shapes import PASSES, Pass
from saccade.bench.tables import Table, number
from saccade.bench.verdict.measure import Cell, Efficiency, ModelPoint, best
from saccade.bench.verdict.subject import Facts, Subject

__all__ = ["Outcome", "VerdictFindings", "judge", "told"]

BASELINE = "softmax"
BUSY_SHARE = 0.25
"""If a larger share of the points is unsteady, nothing is concluded."""

Here = Literal["faster", "slower", "no difference", "not told"]


@dataclass
class VerdictFindings(Findings):
    """Times of every attention in one model, and the efficiency of that model."""

    theme: ClassVar[str] = "verdict"
    title: ClassVar[str] = "Every attention in one model"
    preface: ClassVar[str] = (
        "All attentions were timed in turns in the same model, at its own size and at larger ones. "
        "`training` is forward and backward in the first tables, and with a step of AdamW under "
        "Efficiency. `x softmax` is the time of softmax divided by the time of the attention. "
        "Ratios and crossings are named only if the times carry them: 90 % intervals of a "
        "bootstrap, steady calls, and no jump that the work does not explain."
    )

    subject: Subject
    facts: Facts
    points: list[ModelPoint] = field(default_factory=list)
    efficiency: list[Efficiency] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def outcomes(self) -> list[Outcome]:
        """Every attention against softmax."""
        return judge(self.points, self.facts)

    def words(self) -> list[str]:
        """The verdict."""
        return told(self.outcomes(), self.points, self.facts, self.subject.unit)

    def conclusions(self) -> dict[str, Any]:
        """The verdict, in words and as numbers."""
        return {"words": self.words(), "outcomes": [asdict(o) for o in self.outcomes()]}

    def tables(self) -> list[Table]:
        """Times, efficiency, and the verdict."""
        tables = [*self._time_tables(), *self._efficiency_tables()]
        if self.remarks:
            tables.append(Table("Remarks", ("what was not measured",), [[r] for r in self.remarks]))
        tables.append(Table("Verdict", ("in words",), [[line] for line in self.words()]))
        return tables

    def _time_tables(self) -> Iterator[Table]:
        for direction in PASSES:
            own = [p for p in self.points if p.direction == direction]
            sizes = sorted({(p.size, p.tokens, p.batch) for p in own})
            if not sizes:
                continue
            heads = [f"{size:,} {self.subject.unit}, N {n:,}, B {b}" for size, n, b in sizes]
            names = list(dict.fromkeys(p.attention for p in own))
            cells = {(p.attention, p.size): p for p in own}
            lines = [
                [name, *(self._time(cells.get((name, size)), cells) for size, _, _ in sizes)]
                for name in names
            ]
            yield Table(f"{direction}: ms (x softmax)", ("attention", *heads), lines)

    def _time(self, point: ModelPoint | None, cells: dict[tuple[str, int], ModelPoint]) -> str:
        if point is None:
            return "-"
        if point.median_ms is None:
            return point.reason or "-"
        shaky = " unsteady" if point.as_point(self.facts).is_unsteady else ""
        base = cells.get((BASELINE, point.size))
        if base is None or base.median_ms is None or base is point:
            return number(point.median_ms) + shaky
        return f"{number(point.median_ms)} ({base.median_ms / point.median_ms:.2f}x){shaky}"

    def _efficiency_tables(self) -> Iterator[Table]:
        if not self.efficiency:
            return
        unit = "samples/s" if self.subject.is_sequence else "images/s"
        for found in self.efficiency:
            batches = sorted({c.batch for c in found.cells})
            lines = []
            for direction in PASSES:
                cells = {c.batch: c for c in found.cells if c.direction == direction}
                if not cells:
                    continue
                top = best(found, direction)
                rate = "-" if top is None else f"{number(top.samples_per_s)} (batch {top.batch})"
                lines += [
                    [f"{direction}, {unit}", *(_rate(cells[b]) for b in batches), rate],
                    [f"{direction}, peak MiB", *(_peak(cells[b]) for b in batches), ""],
                ]
            size = f"{found.parameters:,} parameters, {number(found.flops / 1e9)} GFLOPs"
            columns = ("", *(f"batch {b}" for b in batches), "best")
            yield Table(f"Efficiency of {found.attention}: {size}", columns, lines)


def _rate(cell: Cell) -> str:
    if cell.timing is None:
        return cell.reason or "-"
    return number(cell.samples_per_s) + (" unsteady" if cell.timing.is_unsteady else "")


def _peak(cell: Cell) -> str:
    return number(cell.peak_mib) if cell.peak_mib is not None else (cell.reason or "-")


@dataclass(frozen=True)
class Outcome:
    """An attention in the model against softmax, in one pass.

    Attributes:
        here: How it compares at the smallest size, the model's own.
        ratio: Time of softmax divided by its time there; None if it is not told.
        low: Lower end of the 90 % interval of the ratio.
        pays_from: The smallest measured size from which on it is faster at every size; None if
            there is none, or the times do not tell.
        reason: Why nothing is told, where nothing is.
    """

    attention: str
    direction: Pass
    here: Here
    ratio: float | None
    low: float | None
    high: float | None
    pays_from: int | None
    pays_from_tokens: int | None
    crossing: Crossing
    reason: str = ""


def judge(points: Sequence[ModelPoint], facts: Facts) -> list[Outcome]:
    """Every attention against softmax, in every pass."""
    timed = [p for p in points if p.times_ms]
    found = []
    for direction in dict.fromkeys(p.direction for p in timed):
        curves: dict[str, dict[int, ModelPoint]] = {}
        for p in timed:
            if p.direction == direction:
                curves.setdefault(p.attention, {})[p.tokens] = p
        rival = curves.pop(BASELINE, {})
        found += [_outcome(name, rival, ours, facts) for name, ours in curves.items()]
    return found


def _outcome(
    name: str, rival: Mapping[int, ModelPoint], ours: Mapping[int, ModelPoint], facts: Facts
) -> Outcome:
    direction = next(iter(ours.values())).direction
    grid = sorted(rival.keys() & ours.keys())
    if not grid:
        nothing = Crossing("not measured")
        reason = f"{BASELINE} was not timed beside it"
        return Outcome(name, direction, "not told", None, None, None, None, None, nothing, reason)
    theirs = {n: rival[n].as_point(facts) for n in grid}
    mine = {n: ours[n].as_point(facts) for n in grid}
    crossing = held_to_points(
        find_crossing(
            {n: p.times_ms for n, p in theirs.items()}, {n: p.times_ms for n, p in mine.items()}
        ),
        theirs,
        mine,
    )
    ratio, low, high = ratio_interval(theirs[grid[0]].times_ms, mine[grid[0]].times_ms)
    reason = crossing.reason
    if shaky := [p for p in (theirs[grid[0]], mine[grid[0]]) if p.is_unsteady]:
        here: Here = "not told"
        reason = reason or f"{shaky[0].line} is unsteady at N = {grid[0]:,}"
    else:
        here = "faster" if low > 1 else "slower" if high < 1 else "no difference"
    start = _pays_from(grid, theirs, mine) if crossing.verdict != "not reliable" else None
    is_told = here != "not told"
    return Outcome(
        attention=name,
        direction=direction,
        here=here,
        ratio=ratio if is_told else None,
        low=low if is_told else None,
        high=high if is_told else None,
        pays_from=None if start is None else ours[start].size,
        pays_from_tokens=start,
        crossing=crossing,
        reason=reason,
    )


def _pays_from(
    grid: Sequence[int], theirs: Mapping[int, Point], mine: Mapping[int, Point]
) -> int | None:
    """The first N of the grid from which ours is faster at every N, beyond doubt at the first."""
    start = None
    for n in reversed(grid):
        _, low, _ = ratio_interval(theirs[n].times_ms, mine[n].times_ms)
        if low <= 1 or theirs[n].is_unsteady or mine[n].is_unsteady:
            break
        start = n
    return start


def _busy_note(points: Sequence[ModelPoint], facts: Facts) -> str:
    """A sentence if too many times are unsteady to conclude anything, else an empty string."""
    timed = [p.as_point(facts) for p in points if p.times_ms]
    shaky = sum(p.is_unsteady for p in timed)
    if not timed or shaky <= BUSY_SHARE * len(timed):
        return ""
    return (
        f"the machine is too busy to tell: {shaky} of {len(timed)} times are unsteady (their "
        "slowest fifth takes 1.5 times as long as their fastest); nothing is concluded; run it "
        "again on an idle machine"
    )


def told(
    outcomes: Sequence[Outcome], points: Sequence[ModelPoint], facts: Facts, unit: str
) -> list[str]:
    """The verdict in sentences; for each pass, one that says so if the machine was too busy."""
    lines = []
    for direction in dict.fromkeys(o.direction for o in outcomes):
        if note := _busy_note([p for p in points if p.direction == direction], facts):
            lines.append(f"{direction}: {note}.")
            continue
        own = [o for o in outcomes if o.direction == direction]
        opening = f"{direction}, {facts.tokens:,} tokens, heads of {facts.head_dim}"
        lines.append(f"{opening}: {'; '.join(_here_sentences(own))}.")
        last = max((p.tokens for p in points if p.times_ms and p.direction == direction), default=0)
        lines += [f"{direction}: {_pays_sentence(o, unit, last)}." for o in own]
    return lines


def _here_sentences(outcomes: Sequence[Outcome]) -> list[str]:
    """How the attentions compare with softmax at the model's own size."""
    parts = []
    for o in outcomes:
        if o.ratio is not None and o.here == "slower":
            parts.append(f"{BASELINE} is {1 / o.ratio:.2g}x faster here than {o.attention}")
        elif o.ratio is not None and o.here == "faster":
            parts.append(f"{o.attention} is {o.ratio:.2g}x faster here than {BASELINE}")
    for here, words in (
        ("no difference", "no difference is told between {} and " + BASELINE),
        ("not told", "too unsteady to tell for {}"),
    ):
        if names := [o.attention for o in outcomes if o.here == here]:
            parts.append(words.format(", ".join(names)))
    return parts


def _pays_sentence(o: Outcome, unit: str, last: int) -> str:
    if o.crossing.verdict == "not measured" and o.pays_from is None:
        return f"{o.attention}: no crossing is named: {o.reason or 'one size was measured'}"
    if o.crossing.verdict == "not reliable":
        return f"{o.attention}: no crossing is named: {o.reason}"
    if o.pays_from is not None:
        at = f"{o.pays_from_tokens:,} tokens ({o.pays_from:,} {unit}) on"
        first = o.crossing.first_tokens == o.pays_from_tokens
        return f"{o.attention} pays {'at every size, from ' if first else 'from '}{at}"
    if o.crossing.verdict == "behind to the end" and o.crossing.low is None:
        return f"{o.attention} does not pay up to {last:,} tokens"
    return f"{o.attention}: the times do not decide whether it pays up to {last:,} tokens"
