"""Time a call: a warm-up, several repeats, median and percentiles.

On a GPU each repeat is timed with a pair of events. A buffer larger than the last-level cache is
written before each repeat, so that inputs are not in the cache. Repeats are queued without
synchronization between them. On the CPU the wall clock is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from saccade.bench.results import Timing

__all__ = ["repeat_ms", "summarize", "time_calls"]

MAX_REPEATS = 100
MIN_REPEATS = 3
FLUSHED_BYTES = 256 << 20


def time_calls(
    call: Callable[[], object], device: torch.device, *, seconds: float, warm: bool = False
) -> Timing:
    """Time a call.

    Args:
        call: The function to time; it must submit its work to the current stream of the device.
        device: Device of the work.
        seconds: Approximate duration of the measurement. At least three calls are timed.
        warm: True if the call was made before. Otherwise the first call is a warm-up.
    """
    estimate = _once(call, device)
    if estimate < seconds / 4:
        estimate = _once(call, device)
    repeats = max(MIN_REPEATS, min(MAX_REPEATS, int(seconds / max(estimate, 1e-9))))
    # Keep the first time of a long call that is warm already.
    kept = [1e3 * estimate] if warm and estimate > seconds and device.type != "cuda" else []
    return summarize([*kept, *repeat_ms(call, device, repeats - len(kept))])


def repeat_ms(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Milliseconds of each of `repeats` warm calls."""
    if device.type == "cuda":
        return _cuda_times_ms(call, device, repeats)
    return [1e3 * _once(call, device) for _ in range(repeats)]


def summarize(times_ms: Sequence[float]) -> Timing:
    """Median, 20th and 80th percentile."""
    times = torch.tensor(sorted(times_ms), dtype=torch.float64)
    p20, median, p80 = (float(torch.quantile(times, p)) for p in (0.2, 0.5, 0.8))
    return Timing(median_ms=median, p20_ms=p20, p80_ms=p80, repeats=len(times_ms))


def _once(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, including synchronization."""
    _wait(device)
    start = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _cuda_times_ms(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
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
