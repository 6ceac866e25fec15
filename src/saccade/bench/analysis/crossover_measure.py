"""Time, memory and FLOPs of the forms of Taylor attention and of softmax, over N, within a budget.

At every N the forms take turns, so that a disturbance meets all of them alike. Each was compared
with float64 before. N grows until the next would not fit the time that is left for its D; what lies
between the powers of two comes last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import torch

from saccade.bench.accuracy import Problem
from saccade.bench.analysis.findings import Report
from saccade.bench.attention import make_call
from saccade.bench.clock import repeat_ms, summarise
from saccade.bench.mechanisms import Operation, Setting, find
from saccade.bench.memory import cuda_peak_mib, probe_peaks_mib
from saccade.bench.shapes import DTypeName, Shape
from saccade.ops.taylor import speed_threshold

__all__ = ["LINES", "Line", "Measurement", "Point", "lengths"]

Role = Literal["softmax", "direct", "efficient"]
Form = Literal["torch", "fused", "published"]
Call = Callable[[], object]

LEAST_ROUNDS, MOST_ROUNDS = 3, 40
LEAST_LENGTHS = 2
SHARE_POWER = 1.25
AT_ONCE = {"cpu": 1, "cuda": 10}
TOKENS = {"cpu": 1 << 13, "cuda": 1 << 19}
"""B H N of every shape, as far as N allows."""

MOST_BYTES = {"cpu": 1 << 29, "cuda": 16 << 30}
"""What the published forms, which hold N x N weights or N x D^2 features, may take."""


@dataclass(frozen=True)
class Line:
    """A curve of the figure.

    Attributes:
        name: For people.
        mechanism: A name of `saccade.bench.mechanisms`.
        role: Which of the three it is.
        form: Our torch path, our fused kernel, or as published.
    """

    name: str
    mechanism: str
    role: Role
    form: Form


_TORCH = (
    Line("direct", "taylor-direct/torch", "direct", "torch"),
    Line("efficient", "taylor-efficient/torch", "efficient", "torch"),
)
_PUBLISHED = (
    Line("direct as published", "taylor-formula", "direct", "published"),
    Line("efficient as published", "taylor-unfused", "efficient", "published"),
)
LINES: dict[str, tuple[Line, ...]] = {
    "cpu": (Line("softmax", "sdpa", "softmax", "fused"), *_TORCH, *_PUBLISHED),
    "cuda": (
        Line("softmax, flash", "sdpa-flash", "softmax", "fused"),
        Line("softmax, cuDNN", "sdpa-cudnn", "softmax", "fused"),
        Line("direct, fused", "taylor-direct/triton", "direct", "fused"),
        Line("efficient, fused", "taylor-efficient/triton", "efficient", "fused"),
        *_TORCH,
        *_PUBLISHED,
    ),
}


@dataclass(frozen=True)
class Point:
    """One form at one N.

    Attributes:
        line: Its name in `LINES`.
        role: softmax, direct or efficient.
        form: torch, fused or published.
        head_dim: D.
        tokens: N.
        heads: B H.
        times_ms: Every timed call.
        median_ms: The middle one.
        p20_ms: A fifth of the calls were faster.
        p80_ms: A fifth of the calls were slower.
        tokens_per_s: B H N over the median.
        flops: Of the call, by formula.
        peak_mib: Memory at its highest, less what was there before; None where not measured.
    """

    line: str
    role: Role
    form: Form
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


def lengths(head_dim: int) -> list[int]:
    """Powers of two and their 1.5-folds, from a third of N0 to eight times N0."""
    middle = speed_threshold(head_dim, symmetric=True)
    steps = sorted(n for i in range(2, 18) for n in (1 << i, 3 << (i - 1)))
    return [n for n in steps if middle / 3 <= n <= 8 * middle]


def is_power_of_two(tokens: int) -> bool:
    """Whether N belongs to the coarse grid, which is measured first and whose memory is."""
    return tokens & (tokens - 1) == 0


@dataclass
class Measurement:
    """Fills a list of points, so that an interrupted run keeps what it has.

    Args:
        points: Where points go.
        remarks: Where what was not measured is named, with the reason.
        device: Where to run.
        dtype: Of q, k, v.
        seconds: About how long all head dims may take together.
        report: Is told of every N.
    """

    points: list[Point]
    remarks: list[str]
    device: torch.device
    dtype: DTypeName
    seconds: float
    report: Report
    _start: float = field(default_factory=time.monotonic)

    def run(self, head_dims: Sequence[int]) -> None:
        """Measure every head dim; larger ones, whose N0 is larger, get more of the time."""
        shares = [head_dim**SHARE_POWER for head_dim in head_dims]
        for i, head_dim in enumerate(head_dims):
            until = sum(shares[: i + 1]) / sum(shares)
            self._run_dim(head_dim, self._start + until * self.seconds)
            if self.device.type == "cpu":
                self._add_memory(head_dim)

    def _run_dim(self, head_dim: int, deadline: float) -> None:
        """The coarse grid first, so that little time still reaches far; then what lies between."""
        grid = lengths(head_dim)
        slice_s = 0.4 * (deadline - time.monotonic()) / len(grid)
        done, end = 0, grid[-1] + 1
        for tokens in sorted(grid, key=lambda n: (not is_power_of_two(n), n)):
            left = deadline - time.monotonic()
            if done >= LEAST_LENGTHS and self._expected_s(head_dim, tokens) > left:
                end = min(end, tokens)
            if tokens >= end:
                continue
            self._run_shape(self._shape(head_dim, tokens), slice_s)
            done += 1
            share = min(1.0, (time.monotonic() - self._start) / self.seconds)
            self.report(f"D = {head_dim}, N = {tokens:,}", share)
        if end <= grid[-1]:
            self.remarks.append(f"D = {head_dim}: no time for all N from {end} on")

    def _shape(self, head_dim: int, tokens: int) -> Shape:
        return Shape(1, max(1, TOKENS[self.device.type] // tokens), tokens, head_dim)

    def _expected_s(self, head_dim: int, tokens: int) -> float:
        """Time for the fewest rounds at N, from what the next smaller N took."""
        own = [p for p in self.points if p.head_dim == head_dim]
        last = max((p.tokens for p in own if p.tokens < tokens), default=own[0].tokens)
        calls_ms = sum(
            p.median_ms
            * (tokens * self._shape(head_dim, tokens).heads)
            / (p.tokens * p.heads)
            * (1 if p.role == "efficient" else tokens / p.tokens)
            for p in own
            if p.tokens == last
        )
        return 1e-3 * calls_ms * (LEAST_ROUNDS + 3)

    def _run_shape(self, shape: Shape, seconds: float) -> None:
        setting = Setting(shape, getattr(torch, self.dtype), self.device)
        problem = Problem(setting, gradients=False)
        ready: dict[Line, tuple[Operation, Call]] = {}
        for line in LINES[self.device.type]:
            if (
                line.form == "published"
                and self._published_bytes(line, shape) > MOST_BYTES[self.device.type]
            ):
                continue
            try:
                ready[line] = self._prepare(line, problem)
            except Exception as error:
                told = str(error).strip().splitlines() or [type(error).__name__]
                self.remarks.append(f"{line.name} at {shape}: {told[0][:200]}")
        times = take_turns({line: call for line, (_, call) in ready.items()}, self.device, seconds)
        for line, (operation, call) in ready.items():
            peak = cuda_peak_mib(call, self.device) if self.device.type == "cuda" else None
            self.points.append(_point(line, shape, times[line], operation, peak))
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _published_bytes(self, line: Line, shape: Shape) -> int:
        entries = 3 * shape.tokens if line.role == "direct" else 2 * shape.head_dim**2
        size: int = getattr(torch, self.dtype).itemsize
        return shape.heads * shape.tokens * entries * size

    def _prepare(self, line: Line, problem: Problem) -> tuple[Operation, Call]:
        """Build the form and hold it to its equation; one of ours that is wrong is refused."""
        mechanism, backend = find(line.mechanism)
        operation = mechanism.build(problem.setting, backend)
        faults = problem.check(operation, mechanism.family, gradients=False).faults()
        if faults and not mechanism.peer:
            raise ArithmeticError("not timed: " + "; ".join(faults))
        return operation, make_call(problem, operation, "forward")

    def _add_memory(self, head_dim: int) -> None:
        """Peaks at the powers of two, from one fresh process."""
        mechanisms = {line.name: line.mechanism for line in LINES[self.device.type]}
        chosen = [
            i
            for i, p in enumerate(self.points)
            if p.head_dim == head_dim and is_power_of_two(p.tokens)
        ]
        requests = [
            {
                "mechanism": mechanisms[self.points[i].line],
                "shape": asdict(self._shape(head_dim, self.points[i].tokens)),
                "dtype": self.dtype,
                "direction": "forward",
                "threads": torch.get_num_threads(),
            }
            for i in chosen
        ]
        try:
            peaks = probe_peaks_mib("attention", requests)
        except RuntimeError as error:
            self.remarks.append(f"D = {head_dim}: memory was not measured: {error}")
            return
        for i, peak in zip(chosen, peaks, strict=True):
            self.points[i] = replace(self.points[i], peak_mib=peak)


def take_turns(
    calls: Mapping[Line, Call], device: torch.device, seconds: float
) -> dict[Line, list[float]]:
    """Milliseconds of every call, a few of each in turn, for about so many seconds."""
    times: dict[Line, list[float]] = {line: [] for line in calls}
    start, rounds = time.monotonic(), 0
    while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and time.monotonic() - start < seconds):
        for line, call in calls.items():
            times[line] += repeat_ms(call, device, AT_ONCE[device.type])
        rounds += 1
    return times


def _point(
    line: Line, shape: Shape, times_ms: list[float], operation: Operation, peak: float | None
) -> Point:
    timing = summarise(times_ms)
    return Point(
        line=line.name,
        role=line.role,
        form=line.form,
        head_dim=shape.head_dim,
        tokens=shape.tokens,
        heads=shape.heads,
        times_ms=tuple(round(t, 5) for t in times_ms),
        median_ms=timing.median_ms,
        p20_ms=timing.p20_ms,
        p80_ms=timing.p80_ms,
        tokens_per_s=1e3 * shape.heads * shape.tokens / timing.median_ms,
        flops=operation.flops["forward"],
        peak_mib=peak,
    )
