"""Counters of the server in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

__all__ = ["Histogram", "Metrics"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> Iterator[str]:
        """The cumulative buckets, sum and count."""
        seen = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            yield f'{name}_bucket{{le="{bound:g}"}} {seen}'
        yield f'{name}_bucket{{le="+Inf"}} {sum(self.counts)}'
        yield f"{name}_sum {self.total:.6f}"
        yield f"{name}_count {sum(self.counts)}"


class Metrics:
    """What the server counts.

    Args:
        waiting: Gives the number of requests in the queue.
    """

    def __init__(self, waiting: Callable[[], int] = lambda: 0) -> None:
        self.waiting = waiting
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds = Histogram(SECONDS)
        self.batches = Histogram(BATCH_SIZES)
        self.batch_seconds = Histogram(SECONDS)

    def request_done(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request by its route, which is a pattern and never a path that a client chose."""
        self.requests[method, route, status] += 1
        self.seconds.add(seconds)

    def batch_done(self, size: int, seconds: float) -> None:
        """Count a batch."""
        self.batches.add(size)
        self.batch_seconds.add(seconds)

    def text(self) -> str:
        """All counters."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield "# HELP saccade_requests_total Requests by method, route and status."
        yield "# TYPE saccade_requests_total counter"
        for (method, route, status), count in sorted(self.requests.items()):
            labels = f'method="{method}",route="{route}",status="{status}"'
            yield f"saccade_requests_total{{{labels}}} {count}"
        for name, text, histogram in (
            ("saccade_request_seconds", "Seconds from request to answer.", self.seconds),
            ("saccade_batch_size", "Requests computed together.", self.batches),
            ("saccade_batch_seconds", "Seconds that a batch was computed.", self.batch_seconds),
        ):
            yield f"# HELP {name} {text}"
            yield f"# TYPE {name} histogram"
            yield from histogram.lines(name)
        yield "# HELP saccade_queue_length Requests that wait for the model."
        yield "# TYPE saccade_queue_length gauge"
        yield f"saccade_queue_length {self.waiting()}"
        yield "# HELP process_resident_memory_bytes Resident memory."
        yield "# TYPE process_resident_memory_bytes gauge"
        yield f"process_resident_memory_bytes {_resident_bytes()}"


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return 0
