"""Time calls: a warm-up, several repeats, median and percentiles; and the top rates of a device.

On a GPU each repeat is timed with a pair of events. A buffer larger than the last-level cache is
written before each repeat, so that inputs are not in the cache. Repeats are queued without
synchronization between them. On the CPU the wall clock is used.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import torch

from saccade.bench.shapes import Pass, Shape

__all__ = ["Call", "Roof", "Timing", "measure_roof", "summarize", "take_turns", "time_calls"]

Call = Callable[[], object]
"""A call to time; it must submit its work to the current stream of the device."""
Name = TypeVar("Name", bound=Hashable)

MIN_REPEATS, MAX_REPEATS = 3, 100
FLUSHED_BYTES = 256 << 20

MIN_ROUNDS, MAX_ROUNDS = 3, 40
AT_ONCE = {"cpu": 1, "cuda": 10}
TURN_MS = 20.0
"""Maximum time of one turn of a call; a call that takes longer is made alone."""

MATMUL_SIZE = {"cuda": 8192, "cpu": 2048}
COPIED_BYTES = {"cuda": 2 << 30, "cpu": 256 << 20}
TENSORS_MOVED: dict[Pass, int] = {"forward": 4, "training": 12}
"""Forward reads q, k, v and writes o. Backward reads q, k, v, o, do and writes dq, dk, dv."""


@dataclass(frozen=True)
class Timing:
    """Median and percentiles of a call that was repeated, in wall-clock or device time."""

    median_ms: float
    p20_ms: float
    p80_ms: float
    repeats: int

    @property
    def is_unsteady(self) -> bool:
        """True if the 80th percentile is more than 1.5 times the 20th."""
        return self.p80_ms > 1.5 * self.p20_ms


def time_calls(call: Call, device: torch.device, *, seconds: float, warm: bool = False) -> Timing:
    """Time a call for about `seconds`, at least three times; a call that is not `warm` warms up."""
    estimate = _once(call, device)
    if estimate < seconds / 4:
        estimate = _once(call, device)
    repeats = max(MIN_REPEATS, min(MAX_REPEATS, int(seconds / max(estimate, 1e-9))))
    # Keep the first time of a long call that is warm already.
    kept = [1e3 * estimate] if warm and estimate > seconds and device.type != "cuda" else []
    return summarize([*kept, *_repeat_ms(call, device, repeats - len(kept))])


def take_turns(
    calls: Mapping[Name, Call], device: torch.device, seconds: float
) -> dict[Name, list[float]]:
    """Milliseconds of warm calls that alternate, so that a disturbance affects all of them.

    Every round begins with another call. All rounds take about `seconds`; unsteady calls are
    repeated for twice as long.
    """
    times: dict[Name, list[float]] = {name: [] for name in calls}
    names, start, rounds = deque(calls), time.monotonic(), 0
    while rounds < MIN_ROUNDS or (
        rounds < MAX_ROUNDS and time.monotonic() - start < _patience(times, seconds)
    ):
        for name in names:
            times[name] += _repeat_ms(calls[name], device, _at_once(times[name], device))
        names.rotate(-1)
        rounds += 1
    return times


def _patience(times: Mapping[Name, list[float]], seconds: float) -> float:
    unsteady = any(summarize(found).is_unsteady for found in times.values())
    return 2 * seconds if unsteady else seconds


def _at_once(times_ms: list[float], device: torch.device) -> int:
    """Calls in a turn: one at first, then as many as `TURN_MS` allows."""
    if not times_ms:
        return 1
    return max(1, min(AT_ONCE[device.type], int(TURN_MS / median(times_ms))))


def summarize(times_ms: Sequence[float]) -> Timing:
    """Median, 20th and 80th percentile."""
    times = torch.tensor(sorted(times_ms), dtype=torch.float64)
    p20, middle, p80 = (float(torch.quantile(times, p)) for p in (0.2, 0.5, 0.8))
    return Timing(median_ms=middle, p20_ms=p20, p80_ms=p80, repeats=len(times_ms))


def _once(call: Call, device: torch.device) -> float:
    """Seconds of one call, including synchronization."""
    _wait(device)
    start = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _repeat_ms(call: Call, device: torch.device, repeats: int) -> list[float]:
    if device.type != "cuda":
        return [1e3 * _once(call, device) for _ in range(repeats)]
    buffer = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=device)
    starts, ends = (
        [torch.cuda.Event(enable_timing=True) for _ in range(repeats)]  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    for start, end in zip(starts, ends, strict=True):
        buffer.zero_()
        start.record()
        call()
        end.record()
    _wait(device)
    return [start.elapsed_time(end) for start, end in zip(starts, ends, strict=True)]


@dataclass(frozen=True)
class Roof:
    """The highest rates of the device, measured in the same run.

    Attributes:
        matmul_tflops: Rate of a large matrix product in the dtype of the run.
        copy_gb_per_s: Rate of a large copy, counting bytes read and bytes written.
    """

    matmul_tflops: float
    copy_gb_per_s: float

    def least_ms(self, shape: Shape, dtype: torch.dtype, direction: Pass, flops: int) -> float:
        """The shortest possible time: the longer of computing and moving the data once."""
        entries = shape.batch * shape.heads * shape.tokens * shape.head_dim
        moved = TENSORS_MOVED[direction] * entries * dtype.itemsize
        return max(flops / self.matmul_tflops / 1e9, moved / self.copy_gb_per_s / 1e6)


def measure_roof(device: torch.device, dtype: torch.dtype, *, seconds: float = 0.2) -> Roof:
    """Time a large matrix product in this dtype and a large copy."""
    size = MATMUL_SIZE[device.type]
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, dtype=dtype, device=device)
    product = time_calls(lambda: torch.mm(a, b, out=out), device, seconds=seconds)
    source = torch.zeros(COPIED_BYTES[device.type], dtype=torch.int8, device=device)
    target = torch.zeros_like(source)
    copy = time_calls(lambda: target.copy_(source), device, seconds=seconds)
    return Roof(
        matmul_tflops=2 * size**3 / product.p20_ms / 1e9,
        copy_gb_per_s=2 * len(source) / copy.p20_ms / 1e6,
    )
