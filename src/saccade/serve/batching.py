"""One thread that computes, the bounded queue in front of it, and counters of the server.

Requests of one kind that wait at the same time are computed in one batch: while a batch runs, the
next one gathers. No request waits for others to arrive. A full queue refuses at once, so that a
client can try again later instead of waiting without end.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

__all__ = ["BusyError", "Compute", "Metrics", "TookTooLongError"]

T = TypeVar("T")
RunBatch = Callable[[Sequence[Any]], Sequence[Any]]


class BusyError(Exception):
    """The queue is full, or the server is stopping."""


class TookTooLongError(Exception):
    """The result was not ready in time."""


@dataclass
class _Job:
    """A request in the queue; jobs with equal keys may run in one batch."""

    key: Hashable | None
    item: Any
    run: RunBatch
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()


class Compute:
    """Runs functions one at a time in a thread of its own."""

    def __init__(self, *, max_queue: int, max_batch: int, timeout_s: float) -> None:
        self.max_queue, self.max_batch, self.timeout_s = max_queue, max_batch, timeout_s
        self.metrics = Metrics(waiting=lambda: len(self._jobs))
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._is_closing = True
        self._thread: threading.Thread | None = None
        self.start()

    def start(self) -> None:
        """Accept requests; also again after `close`. Does nothing if it accepts them already."""
        if not self._is_closing:
            return
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="saccade-compute", daemon=True)
        self._thread.start()

    async def batched(self, key: Hashable, item: Any, run: RunBatch) -> Any:
        """The result for one item of a batch; `run` gets the items of equal keys in a list."""
        return await self._submit(key, item, run)

    async def alone(self, call: Callable[[], T]) -> T:
        """The result of a call that shares no batch."""
        result: T = await self._submit(None, None, lambda items: [call()])
        return result

    def close(self, *, wait: bool = True) -> None:
        """Finish the requests in the queue and stop; new ones are refused."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if wait and self._thread is not None:
            self._thread.join(self.timeout_s)

    async def _submit(self, key: Hashable | None, item: Any, run: RunBatch) -> Any:
        job = _Job(key, item, run, asyncio.get_running_loop())
        with self._changed:
            if self._is_closing or len(self._jobs) >= self.max_queue:
                raise BusyError
            self._jobs.append(job)
            self._changed.notify()
        try:
            return await asyncio.wait_for(job.future, self.timeout_s)
        except TimeoutError:
            raise TookTooLongError from None

    def _work(self) -> None:
        while batch := self._next_batch():
            start = time.perf_counter()
            results: Sequence[Any] | BaseException
            try:
                results = batch[0].run([job.item for job in batch])
            except BaseException as error:  # the request gets it, whatever it is
                results = error
            self.metrics.batch_done(len(batch), time.perf_counter() - start)
            _deliver(batch, results)

    def _next_batch(self) -> list[_Job]:
        """Wait for a job, and take all waiting ones of its key; empty at the end."""
        with self._changed:
            while True:
                while not self._jobs and not self._is_closing:
                    self._changed.wait()
                if not self._jobs:
                    return []
                first = self._jobs.popleft()
                batch = [first]
                if first.key is not None:
                    batch += self._take_equal(first.key, self.max_batch - 1)
                if batch := [job for job in batch if not job.future.cancelled()]:
                    return batch

    def _take_equal(self, key: Hashable, most: int) -> list[_Job]:
        taken: list[_Job] = []
        others: deque[_Job] = deque()
        for job in self._jobs:
            is_taken = job.key == key and len(taken) < most
            (taken if is_taken else others).append(job)
        self._jobs = others
        return taken


def _deliver(batch: Sequence[_Job], results: Sequence[Any] | BaseException) -> None:
    """Give each request its result, in one step of the event loop."""

    def settle() -> None:
        for place, job in enumerate(batch):
            if job.future.done():
                continue
            if isinstance(results, BaseException):
                job.future.set_exception(results)
            elif isinstance(results[place], BaseException):
                job.future.set_exception(results[place])
            else:
                job.future.set_result(results[place])

    loop = batch[0].loop
    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)


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
    """What the server counts."""

    def __init__(self, waiting: Callable[[], int]) -> None:
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
