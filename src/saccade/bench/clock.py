"""Time of one call: warm-up untimed, several repeats, median and spread.

On a GPU every repeat lies between two events, and a buffer as large as the last-level cache is
written before it, so that no call finds its inputs there. Repeats are queued without waiting in
between. On the CPU it is the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from saccade.bench.results import Timing

__all__ = ["repeat_ms", "summarise", "time_calls"]

MOST_REPEATS = 100
LEAST_REPEATS = 3
FLUSHED_BYTES = 256 << 20


def time_calls(
    call: Callable[[], object], device: torch.device, *, seconds: float, warm: bool = False
) -> Timing:
    """Time a call.

    Args:
        call: What to time; it must leave its work in the device's current queue.
        device: Where the work is done.
        seconds: About how long to measure. At least three calls are timed, however long they are.
        warm: Whether the call was made before; otherwise its first is a warm-up.
    """
    estimate = _once(call, device)
    if estimate < seconds / 4:
        estimate = _once(call, device)
    repeats = max(LEAST_REPEATS, min(MOST_REPEATS, int(seconds / max(estimate, 1e-9))))
    # A long call that is warm already is too dear to be thrown away.
    kept = [1e3 * estimate] if warm and estimate > seconds and device.type != "cuda" else []
    return summarise([*kept, *repeat_ms(call, device, repeats - len(kept))])


def repeat_ms(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """Milliseconds of so many warm calls, one after the other."""
    if device.type == "cuda":
        return _cuda_times_ms(call, device, repeats)
    return [1e3 * _once(call, device) for _ in range(repeats)]


def summarise(times_ms: Sequence[float]) -> Timing:
    """Median, 20th and 80th percentile."""
    times = torch.tensor(sorted(times_ms), dtype=torch.float64)
    p20, median, p80 = (float(torch.quantile(times, p)) for p in (0.2, 0.5, 0.8))
    return Timing(median_ms=median, p20_ms=p20, p80_ms=p80, repeats=len(times_ms))


def _once(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, waited for."""
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
