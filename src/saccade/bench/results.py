"""The result of a benchmark of attention: rows, what they ran on, and its JSON form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from saccade.bench.shapes import Pass
from saccade.errors import ConfigError

__all__ = ["AttentionResult", "Roof", "Row", "Status", "Timing"]

FORMAT = "saccade.bench.attention"
VERSION = 1

Status = Literal["timed", "refused", "not available", "out of memory", "failed"]


@dataclass(frozen=True)
class Timing:
    """Wall-clock or device time of one call, over several.

    Attributes:
        median_ms: The middle one.
        p20_ms: A fifth of the calls were faster.
        p80_ms: A fifth of the calls were slower.
        repeats: How many calls were timed.
    """

    median_ms: float
    p20_ms: float
    p80_ms: float
    repeats: int

    @property
    def is_unsteady(self) -> bool:
        """Whether a fifth of the calls took half as long again as the fastest fifth."""
        return self.p80_ms > 1.5 * self.p20_ms


@dataclass(frozen=True)
class Roof:
    """What the device can do at most, measured in the same run.

    Attributes:
        matmul_tflops: A large matrix product in the dtype of the run.
        copy_gb_per_s: A large copy, bytes read and bytes written counted.
    """

    matmul_tflops: float
    copy_gb_per_s: float


@dataclass(frozen=True)
class Row:
    """One mechanism on one shape, one pass.

    Attributes:
        mechanism: Its name, `name` or `name/backend`.
        family: The function it computes; mechanisms of a family agree to rounding.
        peer: Whether it is somebody else's, to compare with.
        batch: B.
        heads: H.
        tokens: N.
        head_dim: D.
        dtype: Of q, k, v.
        direction: The pass: `forward`, or `training` for forward and backward.
        status: Whether there is a time, and if not why.
        reason: More about the status, for people.
        timing: The times, where status is `timed`.
        tflops: FLOPs by formula over the median, in 10^12 a second.
        roof_percent: The time that the roof allows, over the median.
        peak_extra_mib: Memory at its highest, less what was there before the call.
        errors: Relative error against float64, of `out` and of every gradient.
        allowed: The error that each of them may have.
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
        """What rows must share for their ratio to mean something."""
        return self.head_dim, self.tokens, self.batch, self.heads, self.dtype, self.direction

    @property
    def median_ms(self) -> float | None:
        """The median, where there is one."""
        return None if self.timing is None else self.timing.median_ms


@dataclass
class AttentionResult:
    """Everything one run of `saccade bench attention` found out.

    Attributes:
        environment: Hardware, versions, command line, git revision.
        roof: The device's roof.
        rows: One for each mechanism, shape and pass, in the order of measurement.
        complete: False where the run was interrupted.
        preset: Name of the preset, if one was used.
    """

    environment: Mapping[str, Any]
    roof: Roof
    rows: list[Row] = field(default_factory=list)
    complete: bool = False
    preset: str | None = None

    def softmax_ms(self, row: Row) -> float | None:
        """The fastest softmax of the row's cell: the peer of every ratio."""
        return self.fastest_ms(row, "softmax")

    def fastest_ms(self, row: Row, family: str) -> float | None:
        """The fastest median of a family in the cell of a row."""
        times = [
            other.timing.median_ms
            for other in self.rows
            if other.family == family and other.cell == row.cell and other.timing is not None
        ]
        return min(times, default=None)

    def speedup(self, row: Row) -> float | None:
        """How many times faster than the fastest softmax in the same cell of this run."""
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
        """Read what `to_json` wrote."""
        document = json.loads(text)
        if document.get("format") != FORMAT or document.get("version") != VERSION:
            found = f"{document.get('format')!r} version {document.get('version')!r}"
            raise ConfigError(f"{found} is not a result; expected {FORMAT!r} version {VERSION}")
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
