"""Named grids of `saccade bench attention`, their target ratios, and which targets are reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from saccade.bench.results import AttentionResult, Row
from saccade.bench.shapes import DTypeName, Grid, Pass

__all__ = ["PRESETS", "Measure", "Preset", "Target", "Verdict", "judge"]

Measure = Literal["time", "memory"]


@dataclass(frozen=True)
class Target:
    """A ratio that should be reached on one shape.

    Attributes:
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


@dataclass(frozen=True)
class Preset:
    """A reproducible configuration of `saccade bench attention`.

    Attributes:
        seconds: Approximate time to measure each row.
        threads: Number of torch threads on the CPU; None keeps the default.
    """

    device: str
    dtype: DTypeName
    grids: tuple[Grid, ...]
    targets: tuple[Target, ...]
    seconds: float
    threads: int | None = None


_DIRECT = ("taylor-direct/triton", "taylorshift-direct")
_EFFICIENT = ("taylor-efficient/triton", "taylorshift-efficient")
_H200_MECHANISMS = ("sdpa-flash", "sdpa-cudnn", *_DIRECT, *_EFFICIENT)
_H200_TOKENS = (1024, 4096, 16384, 65536)

# Mechanisms, pass, N, and the target speed-up over softmax for each D.
_H200_SPEED: tuple[tuple[tuple[str, ...], Pass, tuple[int, ...], dict[int, float]], ...] = (
    (_DIRECT, "forward", (1024, 4096, 16384), {16: 1.5, 32: 1.5, 64: 1.15, 128: 1.0}),
    (_DIRECT, "training", (1024, 4096, 16384), {16: 1.4, 32: 1.4, 64: 1.1, 128: 0.95}),
    (_EFFICIENT, "forward", (4096,), {16: 16, 32: 7, 64: 1.4}),
    (_EFFICIENT, "forward", (16384,), {16: 65, 32: 27, 64: 5.5, 128: 1.3}),
    (_EFFICIENT, "training", (16384,), {16: 50, 32: 20, 64: 4.5, 128: 1.2}),
    (_EFFICIENT, "training", (65536,), {16: 190, 32: 75, 64: 17, 128: 4.5}),
)

_AGAINST_UNFUSED_ON_H200: tuple[tuple[Measure, float], ...] = (("time", 40), ("memory", 10))
_AGAINST_UNFUSED_ON_CPU: tuple[tuple[Measure, float], ...] = (("time", 2.5), ("memory", 5))

_H200_TARGETS = (
    *(
        Target(mechanism, head_dim, tokens, direction, at_least)
        for mechanisms, direction, lengths, ratios in _H200_SPEED
        for head_dim, at_least in ratios.items()
        for tokens in lengths
        for mechanism in mechanisms
    ),
    *(
        Target(mechanism, head_dim, tokens, direction, 0.8, "memory")
        for head_dim in (16, 32, 64, 128)
        for tokens in _H200_TOKENS
        for direction in ("forward", "training")
        for mechanism in (*_DIRECT, *_EFFICIENT)
    ),
    *(
        Target("taylor-efficient/triton", 32, tokens, "training", ratio, measure, "taylor-unfused")
        for tokens in (4096, 16384)
        for measure, ratio in _AGAINST_UNFUSED_ON_H200
    ),
    *(
        Target("performer", head_dim, 16384, "training", 4, peer="performer-pytorch")
        for head_dim in (32, 64)
    ),
)

_H200 = Preset(
    device="cuda",
    dtype="bfloat16",
    grids=(
        Grid(_H200_MECHANISMS, _H200_TOKENS, (16, 32), budget=1 << 21),
        Grid(_H200_MECHANISMS, _H200_TOKENS, (64, 128), budget=1 << 20),
        Grid(("taylor-unfused",), (4096, 16384), (32,), budget=1 << 21),
        Grid(
            (
                "performer",
                "performer-pytorch",
                "taylor-unfused-compiled",
                "taylor-flex",
            ),
            (16384,),
            (32,),
            budget=1 << 21,
        ),
        Grid(("taylor-formula-compiled",), (1024,), (32,), budget=1 << 21),
        Grid(("performer", "performer-pytorch"), (16384,), (64,), budget=1 << 20),
        Grid(_EFFICIENT, (1 << 20,), (32,), heads=8, batch=1),
    ),
    targets=_H200_TARGETS,
    seconds=0.04,
)

_CPU_MECHANISMS = ("sdpa", "taylor-efficient", "taylor-unfused")

_CPU = Preset(
    device="cpu",
    dtype="float32",
    grids=(
        Grid(_CPU_MECHANISMS, (1024,), (32, 64), passes=("forward",), memory=False),
        Grid(_CPU_MECHANISMS, (4096,), (64,), passes=("forward",), memory=False),
        Grid(_CPU_MECHANISMS, (4096, 16384), (32,), passes=("forward",)),
        Grid(_CPU_MECHANISMS, (16384,), (64,), passes=("forward",)),
        Grid(_CPU_MECHANISMS, (4096,), (32,), passes=("training",), memory=False),
    ),
    targets=(
        Target("taylor-efficient", 32, 4096, "forward", 2),
        Target("taylor-efficient", 32, 16384, "forward", 8),
        Target("taylor-efficient", 64, 16384, "forward", 2.5),
        *(
            Target("taylor-efficient", head_dim, 16384, "forward", ratio, measure, "taylor-unfused")
            for head_dim in (32, 64)
            for measure, ratio in _AGAINST_UNFUSED_ON_CPU
        ),
    ),
    seconds=1.5,
    threads=2,
)

PRESETS = {"h200": _H200, "cpu": _CPU}
