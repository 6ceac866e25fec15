"""The result of `saccade bench attention`: rows, environment, JSON format, crossing points."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import inf, log
from typing import Any, Literal

from saccade.bench.clock import Roof, Timing
from saccade.bench.crossings import first_ahead
from saccade.bench.shapes import Pass, Shape
from saccade.errors import ConfigError
from saccade.io import parse_json

__all__ = [
    "AttentionResult",
    "Row",
    "Status",
    "crossover",
    "softmax_crossovers",
    "times_over_tokens",
]

FORMAT = "saccade.bench.attention"
VERSION = 1

Status = Literal["timed", "refused", "not available", "out of memory", "failed"]


@dataclass(frozen=True)
class Row:
    """One mechanism on one shape in one pass.

    Attributes:
        mechanism: Its name, `name` or `name/backend`.
        family: The attention it computes; mechanisms of a family are equal up to rounding.
        peer: True if others wrote the implementation.
        direction: The pass: `forward`, or `training` for forward and backward.
        status: `timed`, or why there is no time.
        tflops: FLOPs by formula divided by the median, in 10^12 per second.
        roof_percent: The shortest time that the roof allows, in percent of the median.
        peak_extra_mib: Peak memory minus the memory allocated before the call.
        errors: Relative errors of `out` and of every gradient, compared with float64.
    """

    mechanism: str
    family: str
    peer: bool
    batch: int
    heads: int
    tokens: int
    head_dim: int
    dtype: str
    direction: Pass
    status: Status
    reason: str = ""
    timing: Timing | None = None
    tflops: float | None = None
    roof_percent: float | None = None
    peak_extra_mib: float | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    allowed: Mapping[str, float] = field(default_factory=dict)

    @property
    def cell(self) -> tuple[int, int, int, int, str, Pass]:
        """Key that two rows must share to be comparable."""
        return self.head_dim, self.tokens, self.batch, self.heads, self.dtype, self.direction

    @property
    def shape(self) -> Shape:
        """Its shape."""
        return Shape(self.batch, self.heads, self.tokens, self.head_dim)

    @property
    def median_ms(self) -> float | None:
        """The median, or None if the row was not timed."""
        return None if self.timing is None else self.timing.median_ms


@dataclass
class AttentionResult:
    """Everything that one call of `saccade bench attention` measured.

    Attributes:
        environment: Hardware, versions, command line, git revision.
        rows: One for each mechanism, shape and pass, in the order of measurement.
    """

    environment: Mapping[str, Any]
    roof: Roof
    rows: list[Row] = field(default_factory=list)
    complete: bool = False
    preset: str | None = None

    def softmax_ms(self, row: Row) -> float | None:
        """The median of the fastest softmax in the row's cell."""
        times = [
            other.timing.median_ms
            for other in self.rows
            if other.family == "softmax" and other.cell == row.cell and other.timing is not None
        ]
        return min(times, default=None)

    def speedup(self, row: Row) -> float | None:
        """The speed-up over the fastest softmax in the row's cell."""
        softmax_ms = self.softmax_ms(row)
        if softmax_ms is None or row.timing is None:
            return None
        return softmax_ms / row.timing.median_ms

    def to_json(self) -> str:
        """The result as a JSON document."""
        document = {"format": FORMAT, "version": VERSION, **asdict(self)}
        for values, row in zip(document["rows"], self.rows, strict=True):
            values["speedup_over_softmax"] = self.speedup(row)
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> AttentionResult:
        """Read a document written by `to_json`."""
        document = parse_json(text, "the result")
        if document.get("format") != FORMAT or document.get("version") != VERSION:
            found = f"{document.get('format')!r} version {document.get('version')!r}"
            raise ConfigError(
                f"the result must have format {FORMAT!r} version {VERSION}, got {found}"
            )
        return cls(
            environment=document["environment"],
            roof=Roof(**document["roof"]),
            rows=[_row(values) for values in document["rows"]],
            complete=document["complete"],
            preset=document["preset"],
        )


def _row(values: dict[str, Any]) -> Row:
    values = {name: value for name, value in values.items() if name != "speedup_over_softmax"}
    timing = values.pop("timing")
    return Row(**values, timing=None if timing is None else Timing(**timing))


def crossover(slower: Mapping[int, float], faster: Mapping[int, float]) -> float | None:
    """The smallest N from which `faster` is faster, up to the end of the grid.

    Times between two N are interpolated linearly on log axes, which is exact for powers of N.

    Returns:
        The crossing; the first N of the grid if `faster` is always faster; None if it is slower at
        the last N.
    """
    grid = slower.keys() & faster.keys()
    start = first_ahead({n: log(slower[n] / faster[n]) for n in grid})
    return None if start == inf else start


def times_over_tokens(rows: list[Row]) -> dict[int, float]:
    """The medians by N of rows that differ only in N (and in B, which a token budget sets)."""
    return {row.tokens: row.timing.median_ms for row in rows if row.timing is not None}


def softmax_crossovers(result: AttentionResult) -> list[dict[str, object]]:
    """For every mechanism, D and pass, the N from which it is faster than the fastest softmax."""
    series: dict[tuple[str, int, str], list[Row]] = {}
    for row in result.rows:
        if row.family != "softmax" and row.timing is not None:
            series.setdefault((row.mechanism, row.head_dim, row.direction), []).append(row)
    found: list[dict[str, object]] = []
    for (mechanism, head_dim, direction), rows in series.items():
        softmax = {row.tokens: result.softmax_ms(row) for row in rows}
        known = {tokens: ms for tokens, ms in softmax.items() if ms is not None}
        if len(known) < 2:
            continue
        tokens = crossover(known, times_over_tokens(rows))
        key = {"mechanism": mechanism, "head_dim": head_dim, "direction": direction}
        found.append(key | {"tokens": tokens, "first_tokens": min(known)})
    return found
