"""The queue: batches, bounds, timeouts, errors, and the end."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from saccade.serve.batching import BusyError, Compute, TookTooLongError


class Gate:
    """A function that waits until it may go on, and notes its batches."""

    def __init__(self) -> None:
        self.opened, self.entered = threading.Event(), threading.Event()
        self.batches: list[list[Any]] = []

    def run(self, items: Sequence[Any]) -> Sequence[Any]:
        self.batches.append(list(items))
        self.entered.set()
        assert self.opened.wait(60)
        return [10 * item for item in items]


def compute(**changes: Any) -> Compute:
    return Compute(**{"max_queue": 100, "max_batch": 8, "timeout_s": 60.0, **changes})


def test_what_waits_together_is_computed_together() -> None:
    gate, queue = Gate(), compute()

    async def ask() -> list[Any]:
        asked = [asyncio.create_task(queue.batched("a", 0, gate.run))]
        await asyncio.to_thread(gate.entered.wait)
        asked += [asyncio.create_task(queue.batched("a", i, gate.run)) for i in range(1, 12)]
        asked += [asyncio.create_task(queue.batched("b", i, gate.run)) for i in range(2)]
        asked += [asyncio.create_task(queue.alone(lambda: 7))]
        await asyncio.sleep(0.05)
        gate.opened.set()
        return await asyncio.gather(*asked)

    assert asyncio.run(ask()) == [*range(0, 120, 10), 0, 10, 7]
    assert [len(batch) for batch in gate.batches] == [1, 8, 3, 2]
    queue.close()


def test_a_full_queue_refuses_and_recovers() -> None:
    gate, queue = Gate(), compute(max_queue=3)

    async def ask() -> None:
        asked = [asyncio.create_task(queue.batched("a", 0, gate.run))]
        await asyncio.to_thread(gate.entered.wait)
        asked += [asyncio.create_task(queue.batched("a", i, gate.run)) for i in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(BusyError):
            await queue.batched("a", 9, gate.run)
        gate.opened.set()
        assert await asyncio.gather(*asked) == [0, 0, 10, 20]
        assert await queue.batched("a", 9, gate.run) == 90

    asyncio.run(ask())
    queue.close()


def test_a_late_result_is_an_error_and_is_not_computed_if_it_still_waits() -> None:
    gate, queue = Gate(), compute(timeout_s=0.2)

    async def ask() -> None:
        asked = [asyncio.create_task(queue.batched("a", 0, gate.run))]
        await asyncio.to_thread(gate.entered.wait)
        asked += [asyncio.create_task(queue.batched("a", 1, gate.run))]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(one) for one in found] == [TookTooLongError] * 2
        gate.opened.set()
        assert await queue.batched("a", 2, gate.run) == 20

    asyncio.run(ask())
    queue.close()
    assert gate.batches == [[0], [2]]


def test_an_error_reaches_those_who_asked_and_no_others() -> None:
    queue = compute()

    def fail() -> int:
        raise ZeroDivisionError("of one request")

    async def ask() -> None:
        with pytest.raises(ZeroDivisionError):
            await queue.alone(fail)
        assert await queue.alone(lambda: 3) == 3

    asyncio.run(ask())
    queue.close()


def test_closing_finishes_what_waits_and_refuses_the_rest() -> None:
    gate, queue = Gate(), compute()

    async def ask() -> None:
        asked = [asyncio.create_task(queue.batched("a", i, gate.run)) for i in range(5)]
        await asyncio.to_thread(gate.entered.wait)
        queue.close(wait=False)
        with pytest.raises(BusyError):
            await queue.batched("a", 9, gate.run)
        gate.opened.set()
        assert await asyncio.gather(*asked) == [0, 10, 20, 30, 40]

    asyncio.run(ask())


def test_it_can_start_again() -> None:
    queue = compute()
    queue.close()
    queue.start()
    assert asyncio.run(queue.alone(lambda: 3)) == 3
    queue.close()
