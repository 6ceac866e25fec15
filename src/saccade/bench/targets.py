"""Target ratios, and whether a result reached them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from saccade.bench.results import AttentionResult, Row
from saccade.bench.shapes import Pass

__all__ = ["Measure", "Target", "Verdict", "judge"]

Measure = Literal["time", "memory"]


@dataclass(frozen=True)
class Target:
    """A ratio that should be reached on one shape.

    Attributes:
        mechanism: Name of the mechanism.
        head_dim: D.
        tokens: N.
        direction: `forward` or `training`.
        at_least: Minimum of the ratio peer / mechanism.
        measure: `time`, or `memory` for peak extra memory.
        peer: A mechanism, or `softmax` for the best softmax in this measure.
    """

    mechanism: str
    head_dim: int
    tokens: int
    direction: Pass
    at_least: float
    measure: Measure = "time"
    peer: str = "softmax"


@dataclass(frozen=True)
class Verdict:
    """A target and the measured ratio, or None and the reason if a row is missing."""

    target: Target
    ratio: float | None
    reason: str = ""

    @property
    def word(self) -> str:
        """`reached`, `not reached` or `not measured`."""
        if self.ratio is None:
            return "not measured"
        return "reached" if self.ratio >= self.target.at_least else "not reached"


def judge(result: AttentionResult, targets: tuple[Target, ...]) -> list[Verdict]:
    """Compare every target with the rows of a result."""
    return [_judge(result, target) for target in targets]


def _judge(result: AttentionResult, target: Target) -> Verdict:
    own = [row for row in _cell(result, target) if row.mechanism == target.mechanism]
    if not own:
        return Verdict(target, None, f"{target.mechanism} was not run")
    value = _value(own[0], target)
    if value is None:
        return Verdict(target, None, f"{own[0].status}: {own[0].reason}".rstrip(": "))
    key = "family" if target.peer == "softmax" else "mechanism"
    peers = [
        _value(row, target)
        for row in _cell(result, target)
        if getattr(row, key) == target.peer and row.cell == own[0].cell
    ]
    best = min((peer for peer in peers if peer is not None), default=None)
    if best is None:
        return Verdict(target, None, f"no {target.measure} of {target.peer}")
    return Verdict(target, best / value)


def _cell(result: AttentionResult, target: Target) -> list[Row]:
    wanted = (target.head_dim, target.tokens, target.direction)
    return [row for row in result.rows if (row.head_dim, row.tokens, row.direction) == wanted]


def _value(row: Row, target: Target) -> float | None:
    if target.measure == "time":
        return row.median_ms
    peak = row.peak_extra_mib
    return None if peak is None or row.status != "timed" else max(peak, 0.1)
