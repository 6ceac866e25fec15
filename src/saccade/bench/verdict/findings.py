"""The result of `saccade bench model TARGET`: JSON, tables and the verdict in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from saccade.bench.findings import Findings
from saccade.bench.shapes import PASSES
from saccade.bench.tables import Table, number
from saccade.bench.verdict.efficiency import Cell, Efficiency, best
from saccade.bench.verdict.measure import ModelPoint
from saccade.bench.verdict.subject import Facts, Subject
from saccade.bench.verdict.words import Outcome, judge, told

__all__ = ["VerdictFindings"]

BASELINE = "softmax"


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

    def draw(self, stem: Path) -> list[Path]:
        """No figure."""
        del stem
        return []


def _rate(cell: Cell) -> str:
    if cell.timing is None:
        return cell.reason or "-"
    return number(cell.samples_per_s) + (" unsteady" if cell.timing.is_unsteady else "")


def _peak(cell: Cell) -> str:
    return number(cell.peak_mib) if cell.peak_mib is not None else (cell.reason or "-")
